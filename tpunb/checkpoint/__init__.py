"""Checkpoints of TensorFlow, Keras, PyTorch, Orbax and tpunb: listing, saving and resuming from them (paper IV.C)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tpunb.checkpoint.catalog import Checkpoint, Checkpoints, Skipped
from tpunb.checkpoint.formats import hugging_face, keras, native, orbax, tensorflow, torch
from tpunb.checkpoint.resume import checkpointing, restore, save
from tpunb.errors import ProfileNotFound, TpunbError
from tpunb.text import format_error
from tpunb.training.snapshot import DAMAGED, is_temporary

__all__ = ["Checkpoint", "Checkpoints", "Skipped", "checkpointing", "checkpoints", "restore", "save"]

_FOLDER_FORMATS, _FILE_FORMATS = (native, orbax, hugging_face), (tensorflow, keras, torch)
"""Formats whose checkpoint is a whole folder, and those whose checkpoints are files in one."""

_SAVED_MODEL = "saved_model.pb"  # a model to serve: its variables are not the state of a run


def checkpoints(dir: str | os.PathLike[str]) -> Checkpoints:  # noqa: A002  the usual word
    """Return the checkpoints in a folder and its subfolders, in order of their steps.

    No model is built, and few variables are read. Incomplete checkpoints are listed in `Checkpoints.skipped`. Links to
    folders are not followed, and hidden folders not entered.

    Parameters
    ----------
    dir
        Folder on this machine.

    Raises
    ------
    ProfileNotFound
        The folder does not exist. An empty one has no checkpoints.
    TpunbError
        It is on another machine, or is a file.
    """
    if "://" in os.fspath(dir):
        raise TpunbError(f"{os.fspath(dir)} is not on this machine", hint="copy it here, or mount it")
    folder = Path(dir)
    if not folder.exists():
        raise ProfileNotFound(f"no folder {folder}", hint="give the folder that your training saves checkpoints to")
    if not folder.is_dir():
        raise TpunbError(f"{folder} is a file", hint=f"give its folder: {folder.parent}")
    return Checkpoints.of(folder, _scan(folder))


def _scan(top: Path) -> Iterator[Checkpoint | Skipped]:
    for path, below, files in os.walk(top):
        folder, others = Path(path), set[str]()
        with suppress(OSError), os.scandir(path) as entries:  # suppress: a snapshot that was just renamed
            others = {each.name for each in entries if not (each.is_file() or each.is_dir()) and Path(each).exists()}
        yield from (Skipped(folder / name, "is neither a file nor a folder") for name in others)
        names = sorted({*files} - others)
        whole = [checkpoint for reader in _FOLDER_FORMATS for checkpoint in _found(reader, folder, names)][:1]
        if whole or _SAVED_MODEL in names:
            below.clear()
            yield from whole
        else:
            below[:] = sorted(name for name in below if not name.startswith(".") or is_temporary(folder / name))
            for reader in _FILE_FORMATS:
                yield from _found(reader, folder, names)


def _found(reader: Any, folder: Path, names: Sequence[str]) -> Iterator[Checkpoint | Skipped]:
    """Yield the checkpoints of a format; what no writer writes, such as a time of 1e300, skips them."""
    try:
        yield from reader.find(folder, names)
    except DAMAGED as error:
        yield Skipped(folder, f"cannot be read: {format_error(error)}")
