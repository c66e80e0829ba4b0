"""Checkpoints of Keras: ``.keras``, ``.weights.h5``, whole models as HDF5, and what ``BackupAndRestore`` leaves."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tpunb.checkpoint.from_name import size_of, step_in, time_of
from tpunb.checkpoint.nouns import HOLDABLE, OPTIMIZER, RANDOM, WEIGHTS, Checkpoint, Skipped
from tpunb.errors import MissingExtra, need

_BACKUP = {"latest.weights.h5", "training_metadata.json"}
_SUFFIXES = (".keras", ".h5", ".hdf5")
_SHARDED = ".weights.json"
_MODEL = ("layers", "_layer_checkpoint_dependencies", "model_weights", "top_level_model_weights")


class _NoCheckpointError(ValueError):
    """A sound file of something else."""


def find(folder: Path, files: Sequence[str]) -> Iterator[Checkpoint | Skipped]:
    """Yield Keras' checkpoints among the files of a folder."""
    if set(files) >= _BACKUP:
        yield _backup(folder)
        files = [name for name in files if name not in _BACKUP]
    parts: set[str] = set()
    for name in (name for name in files if name.endswith(_SHARDED)):
        for one in _sharded(folder / name):
            if isinstance(one, set):
                parts |= one
            else:
                yield one
    for name in files:
        if name.endswith(_SUFFIXES) and name not in parts:
            yield from _one(folder / name)


def _one(path: Path) -> Iterator[Checkpoint | Skipped]:
    try:
        h5py = need("h5py", extra="tensorflow")
    except MissingExtra as error:
        yield Skipped(path, f"needs a library: {error}; {error.hint}")
        return
    try:
        if path.suffix == ".keras":
            with zipfile.ZipFile(path) as archive, archive.open("model.weights.h5") as inner:
                yield _checkpoint(path, h5py, inner)
        else:
            yield _checkpoint(path, h5py, path)
    except _NoCheckpointError:
        if path.name.endswith(".weights.h5"):
            yield Skipped(path, "holds no weights")
    except zipfile.BadZipFile as error:
        yield Skipped(path, f"is no whole .keras file: {error}")
    except (OSError, KeyError, RuntimeError) as error:  # h5py says so in either
        yield Skipped(path, f"cannot be read: {str(error).strip(chr(34) + chr(39))}")


def _checkpoint(path: Path, h5py: Any, content: Any) -> Checkpoint:
    with h5py.File(content, "r") as file:
        step, holds = _read(file)
    step_from = "optimizer"
    if step is None:
        step = step_in(path.name)
        step_from = "" if step is None else "name"
    return Checkpoint(path, step, time_of([path]), size_of([path]), "keras", holds, step_from=step_from)


def _read(file: Any) -> tuple[int | None, tuple[str, ...]]:
    """Return the step of an HDF5 file, as its optimizer tells it, and what is in it."""
    held = {WEIGHTS} if any(name in file for name in _MODEL) else set()
    optimizers = [name for name in file if name in ("optimizer", "optimizer_weights")]
    if not held and not optimizers:
        raise _NoCheckpointError(file.filename)
    steps: list[int] = []
    for name in optimizers:
        for variable, value in _variables(file[name]):
            held.add(OPTIMIZER)
            first = variable.endswith("vars/0") or variable.split("/")[-1].split(":")[0] in ("iter", "iteration")
            if first and value.shape == () and value.dtype.kind in "iu":
                steps.append(int(value[()]))
    if any("seed_generator" in variable for name in _MODEL if name in file for variable, _ in _variables(file[name])):
        held.add(RANDOM)
    return max(steps, default=None), tuple(one for one in HOLDABLE if one in held)


def _variables(group: Any) -> list[tuple[str, Any]]:
    """Return the variables below a group, by path."""
    found: list[tuple[str, Any]] = []
    group.visititems(lambda name, value: found.append((name, value)) if hasattr(value, "shape") else None)
    return found


def _backup(folder: Path) -> Checkpoint | Skipped:
    """Return what ``BackupAndRestore`` left: its restart begins with the epoch of the JSON, from its first batch."""
    weights, about = (folder / name for name in sorted(_BACKUP))
    try:
        told = json.loads(about.read_text())
        begun = f"epoch {int(told['epoch'])}, batch {int(told['batch'])}"
    except (ValueError, KeyError, TypeError) as error:
        return Skipped(folder, f"{about.name} cannot be read: {error}")
    (inner,) = _one(weights)
    if isinstance(inner, Skipped):
        return Skipped(folder, f"{weights.name} {inner.reason}")
    return replace(
        inner,
        path=folder,
        size=size_of([weights, about]),
        kind="backup",
        why=f"BackupAndRestore noted {begun}, and begins that epoch anew",
    )


def _sharded(index: Path) -> Iterator[Checkpoint | Skipped | set[str]]:
    """Yield the checkpoint of weights in several files, and the names of these."""
    try:
        where: Mapping[str, Any] = json.loads(index.read_text())["weight_map"]
        parts = {name for some in where.values() for name in ([some] if isinstance(some, str) else some)}
        files = [index.parent / Path(name).name for name in sorted(parts)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        yield Skipped(index, f"cannot be read: {error}")
        return
    yield parts
    if missing := [file.name for file in files if not file.exists()]:
        yield Skipped(index, f"lacks {', '.join(missing)}")
        return
    read = [next(_one(file), None) for file in files]
    if bad := [one for one in read if isinstance(one, Skipped)]:
        yield Skipped(index, f"{bad[0].path.name} {bad[0].reason}")
        return
    good = [one for one in read if isinstance(one, Checkpoint)]
    held = {holding for one in good for holding in one.holds}
    step = max((one.step for one in good if one.step is not None and one.step_from == "optimizer"), default=None)
    step_from = "optimizer"
    if step is None:
        step = step_in(index.name)
        step_from = "" if step is None else "name"
    every, holds = [index, *files], tuple(one for one in HOLDABLE if one in held)
    yield Checkpoint(index, step, time_of(every), size_of(every), "keras", holds, step_from=step_from)
