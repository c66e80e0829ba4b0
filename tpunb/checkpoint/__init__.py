"""Checkpoints in a folder: of TensorFlow, Keras, Orbax and our own, each with its step, for a phase (paper IV.C)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tpunb.checkpoint import keras_files, orbax_files, own_files, tensorflow_files
from tpunb.checkpoint.nouns import Checkpoint, Checkpoints, Skipped
from tpunb.errors import ProfileNotFound, TpunbError

__all__ = ["Checkpoint", "Checkpoints", "checkpoints"]

_SAVED_MODEL = "saved_model.pb"  # a program to serve: its variables are no state of a run


def checkpoints(dir: str | os.PathLike[str]) -> Checkpoints:  # noqa: A002  the word everybody looks for
    """Return the checkpoints in a folder and the folders below it, in order of their steps.

    No model is built, and hardly a variable read. Half-written ones are no checkpoints: `Checkpoints.skipped` names
    them. Links to folders are not followed, and hidden folders not entered.

    Parameters
    ----------
    dir
        The folder, on this machine.

    Raises
    ------
    ProfileNotFound
        There is no such folder. An empty one is one without checkpoints.
    TpunbError
        It is on another machine, or is a file.
    """
    if "://" in os.fspath(dir):
        raise TpunbError(f"{os.fspath(dir)} is not on this machine", hint="copy it here, or mount it")
    folder = Path(dir)
    if not folder.exists():
        raise ProfileNotFound(f"no folder {folder}", hint="give the folder that your training saves checkpoints to")
    if not folder.is_dir():
        raise TpunbError(f"{folder} is a file", hint=f"give the folder that holds it: {folder.parent}")
    return Checkpoints.of(folder, _found(folder))


def _found(top: Path) -> Iterator[Checkpoint | Skipped]:
    for path, below, files in os.walk(top):
        folder = Path(path)
        whole = own_files.of(folder, files) or orbax_files.of(folder, files)
        if whole is not None:
            below.clear()
            yield whole
        elif _SAVED_MODEL in files:
            below.clear()
        else:
            below[:] = sorted(name for name in below if _is_ours_to_enter(folder / name))
            yield from tensorflow_files.find(folder, sorted(files))
            yield from keras_files.find(folder, sorted(files))


def _is_ours_to_enter(folder: Path) -> bool:
    return not folder.name.startswith(".") or own_files.is_temporary(folder)
