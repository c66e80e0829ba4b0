"""A checkpoint's folder: written to the side and renamed whole, so that a kill leaves no half one that counts."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpunb.checkpoint import Checkpoint, own_files
from tpunb.errors import TpunbError

Arrays = Mapping[str, Sequence[NDArray[Any]]]
"""Values of variables, in order, by what they are."""

VARIABLES = "variables.npz"


def write(
    folder: Path, step: int, fill: Callable[[Path], Mapping[str, Any]], *, instead_of: Path | None = None
) -> Checkpoint:
    """Return the checkpoint of a step that `fill` writes into a folder; an earlier one of that step stays.

    Parameters
    ----------
    folder
        Of all checkpoints; made where it is not there.
    step
        How many steps the optimizer has taken.
    fill
        Writes its files into the folder that it is given, and returns what is to be told of them: "holds", "exact",
        "why", and what it needs to read them again. How long it took is noted as "seconds".
    instead_of
        An earlier one that goes, when this one is there.
    """
    begun = time.perf_counter()
    name = own_files.name_of(step)
    aside = folder / f".{name}.{os.getpid()}"
    shutil.rmtree(aside, ignore_errors=True)  # of a process of that number that is no more
    aside.mkdir(parents=True)
    try:
        about = {"format": own_files.FORMAT, "step": step, "time": time.time(), **fill(aside)}
        files = {path.relative_to(aside).as_posix(): path.stat().st_size for path in _files(aside)}
        about |= {"files": files, "seconds": time.perf_counter() - begun}
        (aside / own_files.ABOUT).write_text(json.dumps(about))
        path = _renamed(aside, folder / name)
        if instead_of is not None:
            shutil.rmtree(instead_of)
            path = path.rename(instead_of)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return read(path)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _renamed(aside: Path, path: Path) -> Path:
    """Give a folder its name, or the next that is free."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return aside.rename(free)


def read(path: Path) -> Checkpoint:
    """Return one of our checkpoints by its folder.

    Raises
    ------
    TpunbError
        When it is none, or not whole.
    """
    found = own_files.of(path, [file.name for file in path.iterdir()] if path.is_dir() else [])
    if isinstance(found, Checkpoint):
        return found
    why = "it is no checkpoint of tpunb" if found is None else found.reason
    raise TpunbError(f"{path} cannot be resumed from: {why}", hint="tp.checkpoints(dir) lists those that can")


def write_arrays(folder: Path, arrays: Arrays) -> None:
    """Write the values of variables; types that NumPy does not know (bfloat16) as the bits they are."""
    flat = {f"{kind}/{at}": _bits(value) for kind, some in arrays.items() for at, value in enumerate(some)}
    np.savez(folder / VARIABLES, allow_pickle=False, **flat)


def _bits(value: NDArray[Any]) -> NDArray[Any]:
    return value.view(f"u{value.dtype.itemsize}") if value.dtype.kind == "V" else value


def read_arrays(folder: Path, like: Arrays) -> dict[str, list[NDArray[Any]]]:
    """Return the values of variables, of the number, the shapes and the types of those that are there now.

    Raises
    ------
    TpunbError
        When they are not alike: the model is another one.
    """
    with np.load(folder / VARIABLES, allow_pickle=False) as file:
        saved: dict[str, int] = {}
        for name in file.files:
            kind = name.rpartition("/")[0]
            saved[kind] = saved.get(kind, 0) + 1
        for kind, now in like.items():
            if saved.get(kind, 0) != len(now):
                raise _other(
                    folder, f"{saved.get(kind, 0)} variables of its {kind} were saved, and {len(now)} are here"
                )
        return {
            kind: [_alike(folder, kind, file[f"{kind}/{at}"], value) for at, value in enumerate(now)]
            for kind, now in like.items()
        }


def _alike(folder: Path, kind: str, saved: NDArray[Any], now: NDArray[Any]) -> NDArray[Any]:
    if saved.shape != now.shape or saved.dtype != _bits(now).dtype:
        what = f"a variable of its {kind} was {saved.dtype} {saved.shape}, and is {now.dtype} {now.shape} here"
        raise _other(folder, what)
    return saved.view(now.dtype)


def _other(folder: Path, what: str) -> TpunbError:
    return TpunbError(f"{folder.name} is of another model: {what}", hint="run the same cell as when it was saved")


def values(variables: Sequence[Any]) -> list[NDArray[Any]]:
    """Return the values of Keras' variables."""
    import keras

    return [np.asarray(keras.ops.convert_to_numpy(variable)) for variable in variables]


def random_state() -> dict[str, Any]:
    """Return the state of Python's and NumPy's random numbers, as JSON takes it."""
    version, numbers, gauss = random.getstate()
    name, key, at, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, list(numbers), gauss],
        "numpy": [str(name), np.asarray(key).tolist(), int(at), int(has_gauss), float(cached)],
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    """Put Python's and NumPy's random numbers into a state of `random_state`."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    name, key, *rest = state["numpy"]
    np.random.set_state((name, np.array(key, dtype=np.uint32), *rest))
