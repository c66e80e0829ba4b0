"""Frames of the program that is trained: neither of a library, nor of the standard library, nor of this package."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from functools import lru_cache
from pathlib import Path
from types import FrameType

CELL = re.compile(r"<ipython-input-|[\\/](?:ipykernel_|xpython_|ipython-input-)\d")
GENERATED = "__autograph_generated_file"
PACKAGES = re.compile(rf"[\\/](?:site-packages|dist-packages|debugpy|pydevd)[\\/]|{GENERATED}")
_STANDARD = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), str(Path(os.__file__).parent)}
STANDARD_FOLDERS = tuple(f"{folder}{os.sep}" for folder in _STANDARD)
TPUNB = f"{Path(__file__).parents[1]}{os.sep}"
_LIBRARIES = (*STANDARD_FOLDERS, TPUNB)
_HOOK = f"{os.sep}sitecustomize.py"  # of Python's start, and of ``tpunb run``, never of the program


@lru_cache(4096)
def is_user_code(file: str) -> bool:
    """Return whether a file is of the program, not of a library."""
    if CELL.search(file):
        return True
    if file.startswith("<"):
        return file in ("<stdin>", "<string>")
    return not (file.startswith(_LIBRARIES) or PACKAGES.search(file) or file.endswith(_HOOK))


def user_frame() -> FrameType | None:
    """Return the innermost frame of the program in this thread; None without one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_user_code(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def place_of(frame: FrameType | None) -> str:
    """Return the file and line of a frame, such as "train.py:12"; "" for None."""
    if frame is None:
        return ""
    file = frame.f_code.co_filename
    return f"{'cell' if CELL.search(file) else Path(file).name}:{frame.f_lineno}"
