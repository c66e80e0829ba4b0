"""Frames of the program that is trained: neither of a library, nor of the standard library, nor of this package."""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import lru_cache
from pathlib import Path
from types import FrameType

from tpunb.step_stats.sample_places import CELL, is_program

_STANDARD = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), str(Path(os.__file__).parent)}
STANDARD_FOLDERS = tuple(f"{folder}{os.sep}" for folder in _STANDARD)
TPUNB = f"{Path(__file__).parents[1]}{os.sep}"


@lru_cache(4096)
def home_of(file: str) -> str | None:
    """Return which folder of the interpreter has a file: "python", "tpunb", or None for any other."""
    return "python" if file.startswith(STANDARD_FOLDERS) else "tpunb" if file.startswith(TPUNB) else None


@lru_cache(4096)
def is_user_code(file: str) -> bool:
    """Return whether a file is of the program, not of a library."""
    return is_program(file, home_of(file))


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
