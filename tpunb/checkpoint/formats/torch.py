"""Checkpoints that are files of ``torch.save``: state dicts, alone or in a dict, and those of Lightning's Trainer.

They are not unpickled: the codes of their pickle are read, for names, and for the number that follows "step".
"""

from __future__ import annotations

import pickletools
import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tpunb.checkpoint.catalog import Checkpoint, Skipped
from tpunb.checkpoint.formats import of_files, step_by_name
from tpunb.errors import BadProfile
from tpunb.frames.conversion import open_file, open_zip
from tpunb.text import format_error
from tpunb.training.state import OPTIMIZER, WEIGHTS

_SUFFIXES = (".ckpt", ".pt", ".pth")
_STEPS = ("global_step", "step", "steps", "iteration", "iter")
_WEIGHT = re.compile(r"(^|\.)(weight|bias|running_mean)$|^[A-Za-z_]\w*(\.\w+)+$")
_LARGEST = 1 << 26  # bytes of a pickle, which has no tensors in it, that are read at most


def find(folder: Path, files: Sequence[str]) -> Iterator[Checkpoint | Skipped]:
    """Yield the checkpoints among the files of a folder."""
    for name in files:
        if name.endswith(_SUFFIXES) and _is_zip(folder / name):
            yield from _file(folder / name)


def _is_zip(path: Path) -> bool:
    try:
        with open_file(path) as file:
            return file.read(2) == b"PK"
    except (OSError, BadProfile):
        return False


def _file(path: Path) -> Iterator[Checkpoint | Skipped]:
    try:
        with open_zip(path) as archive:
            names = archive.namelist()
            pickle = next((name for name in names if name.endswith("/data.pkl")), None)
            if pickle is None or any(name.endswith("/constants.pkl") for name in names):
                return  # a program of TorchScript, or another archive
            if archive.getinfo(pickle).file_size > _LARGEST:
                yield Skipped(path, "its pickle is too large to be read")
                return
            words, step = _read(archive.read(pickle))
            has_tensors = any("/data/" in name for name in names)
    except (zipfile.BadZipFile, OSError, EOFError, RuntimeError) as error:
        yield Skipped(path, f"is not a complete file of torch.save: {error}")
        return
    except ValueError as error:
        yield Skipped(path, f"cannot be read: {format_error(error)}")
        return
    parts = {OPTIMIZER} if "param_groups" in words else set()
    if has_tensors and any(map(_WEIGHT.search, words)):
        parts.add(WEIGHTS)
    if not parts:
        return
    kind = "lightning" if "pytorch-lightning_version" in words else "torch"
    yield of_files(path, [path], kind, parts, step_by_name(path) if step is None else (step, "counter"))


def _read(pickle: bytes) -> tuple[set[str], int | None]:
    """Return the texts in a pickle, and the number that follows the name of a step."""
    words, steps, memo = set[str](), dict[str, int](), dict[Any, Any]()
    last: Any = None
    for code, value, _ in pickletools.genops(pickle):
        if "PUT" in code.name:
            memo[value] = last
            continue
        if "GET" in code.name:
            value = memo.get(value)
        if isinstance(value, str) and "GLOBAL" not in code.name:
            words.add(value)
        elif type(value) is int and last in _STEPS:
            steps.setdefault(last, value)
        last = value if isinstance(value, str) else None
    return words, next((steps[name] for name in _STEPS if steps.get(name, -1) >= 0), None)
