"""Snapshots of a training on disk: a folder that is written aside and renamed when complete, with its metadata."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path, PurePosixPath
from pickle import UnpicklingError
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from tpunb.errors import TpunbError, brief
from tpunb.frames.conversion import check_file, open_file, open_zip, read_file
from tpunb.text import format_error

Arrays = Mapping[str, Sequence[NDArray[Any]]]
"""Values of variables, in order, by part of the state."""

METADATA = "tpunb.json"
"""File that makes a folder a snapshot: its format, its step, its parts."""

FORMAT = 1
_NAME, _TEMPORARY = "tpunb-", ".tpunb-"
_VARIABLES = "variables.npz"
_METADATA_BYTES = 64 << 20  # real ones have some kB, and orders of shuffles
_TYPES: Mapping[type, str] = {
    str: "why fingerprints varying trainer ends_folder",
    int: "fit loop call epoch exact global_seed",
    list: "holds seeds block_random callbacks",
    dict: "files parts random data progress ends variables",
}  # of metadata that have the same type in all snapshots

DAMAGED = (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, EOFError, RuntimeError)
"""What reading a file raises that is not as its program writes it; RecursionError is the last."""


class BadSnapshot(TpunbError):
    """A folder that is not a complete snapshot, and the reason."""

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(
            f"{folder.name} cannot be resumed: {reason}", hint="use one of tp.checkpointing or tpunb.checkpoint.save"
        )
        self.reason = reason


class _Facts(dict[str, Any]):
    """An object of the metadata, which says what it lacks."""

    def __missing__(self, name: str) -> Any:
        raise BadSnapshot(Path("the checkpoint"), f"{METADATA} lacks {name!r}")


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Raise errors in reading a file of a snapshot as `BadSnapshot`."""
    try:
        yield
    except (*DAMAGED, MemoryError, UnpicklingError, BadZipFile) as error:
        raise BadSnapshot(file.parent, f"{file.name} cannot be read: {format_error(error)}") from error


def write(
    folder: Path, step: int, write_parts: Callable[[Path], Mapping[str, Any]], *, replacing: Path | None = None
) -> Path:
    """Write a snapshot and return its folder, ``tpunb-STEP``; an earlier one of that step is kept beside it.

    `write_parts` writes files into a folder and returns their metadata, "holds", "exact" and "why" among them. A
    snapshot to be replaced is removed when this one is complete, which then takes its name.
    """
    begun = time.perf_counter()
    aside = folder / f"{_TEMPORARY}{step}.{os.getpid()}"
    shutil.rmtree(aside, ignore_errors=True)  # of an ended process with the same number
    aside.mkdir(parents=True)
    try:
        metadata = {"format": FORMAT, "step": step, "time": time.time(), **write_parts(aside)}
        files = sorted(path for path in aside.rglob("*") if path.is_file())
        metadata["files"] = {path.relative_to(aside).as_posix(): path.stat().st_size for path in files}
        metadata["seconds"] = time.perf_counter() - begun
        (aside / METADATA).write_text(json.dumps(metadata))
        names = chain([f"{_NAME}{step}"], (f"{_NAME}{step}-{number}" for number in count(2)))
        path = aside.rename(next(free for name in names if not (free := folder / name).exists()))
        if replacing is not None:
            shutil.rmtree(replacing)
            path = path.rename(replacing)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return path


def is_temporary(folder: Path) -> bool:
    """Return whether a folder is a snapshot that is being written, or was when its process ended."""
    return re.match(rf"{re.escape(_TEMPORARY)}\d+\.", folder.name) is not None


def read_metadata(folder: Path) -> dict[str, Any]:
    """Return the metadata of a complete snapshot, and the "size" of its files in bytes."""
    if is_temporary(folder):
        raise BadSnapshot(folder, "was still being written")
    file = folder / METADATA
    if not file.is_file():
        raise BadSnapshot(folder, "it is not a checkpoint of tpunb")
    with reading(file):
        for parent, folders, names in os.walk(folder):  # any reader may open them
            for name in names:
                check_file(Path(parent, name))
            if links := [name for name in folders if Path(parent, name).is_symlink()]:
                raise ValueError(f"{min(links)} is a link to a folder")
        metadata: dict[str, Any] = json.loads(read_file(file, _METADATA_BYTES), object_hook=_Facts)
        if metadata.get("format") != FORMAT:
            raise ValueError(f"format {metadata.get('format')!r} is not supported by this version")
        for kind, name in ((kind, name) for kind, names in _TYPES.items() for name in names.split()):
            if not isinstance(metadata.get(name, kind()), kind):
                raise ValueError(f"{name} is {brief(metadata[name])}")
        metadata["step"], metadata["time"] = int(metadata["step"]), float(metadata["time"])
        files = {name: (path_within(folder, name), int(size)) for name, size in metadata["files"].items()}
        metadata |= {"size": file.stat().st_size + sum(size for _, size in files.values())}
    for name, (path, size) in files.items():
        if not path.is_file() or path.stat().st_size != size:
            raise BadSnapshot(folder, f"lacks {name} as it was written")
    return metadata


def path_within(folder: Path, name: str) -> Path:
    """Return the path of a file that metadata name; ValueError if it is not within the folder."""
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or PurePosixPath(name).is_absolute():
        raise ValueError(f"{name!r} is not a file in it")
    return folder.joinpath(*parts)


def write_arrays(folder: Path, arrays: Arrays) -> None:
    """Write the values of variables; types that NumPy does not know (bfloat16) as their bits."""
    flat = {f"{part}/{at}": _bits(value) for part, values in arrays.items() for at, value in enumerate(values)}
    np.savez(folder / _VARIABLES, allow_pickle=False, **flat)


def read_arrays(folder: Path, like: Arrays) -> dict[str, list[NDArray[Any]]]:
    """Return the values of variables, in the number, shapes and types of `like`."""
    with _variables(folder) as file:
        parts = [name.rpartition("/")[0] for name in file.files]
        for part, present in like.items():
            if parts.count(part) != len(present):
                raise _different_model(folder, f"saved variables of its {part}: {parts.count(part)}", len(present))
        return {
            part: [_checked(folder, part, file[f"{part}/{at}"], value) for at, value in enumerate(present)]
            for part, present in like.items()
        }


def read_part(folder: Path, part: str) -> list[NDArray[Any]]:
    """Return the arrays of a part in any number, shapes and types."""
    with _variables(folder) as file:
        names = [name for name in file.files if name.rpartition("/")[0] == part]
        return [file[f"{part}/{at}"] for at in range(len(names))]


@contextmanager
def _variables(folder: Path) -> Iterator[Any]:
    file = folder / _VARIABLES
    with reading(file), open_zip(file), open_file(file) as content, np.load(content, allow_pickle=False) as arrays:
        yield arrays


def _bits(value: NDArray[Any]) -> NDArray[Any]:
    return value.view(f"u{value.dtype.itemsize}") if value.dtype.kind == "V" else value


def _checked(folder: Path, part: str, saved: NDArray[Any], present: NDArray[Any]) -> NDArray[Any]:
    if saved.shape != present.shape or saved.dtype != _bits(present).dtype:
        what = f"a variable of its {part} was {saved.dtype} {saved.shape}"
        raise _different_model(folder, what, f"{present.dtype} {present.shape}")
    return saved.view(present.dtype)


def _different_model(folder: Path, saved: str, present: object) -> TpunbError:
    return TpunbError(
        f"{folder.name} was saved with a different model: {saved}, now {present}",
        hint="run the same cell as when it was saved",
    )
