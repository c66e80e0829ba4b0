"""Checkpoints of Keras: ``.keras``, ``.weights.h5``, whole models as HDF5, and those of ``BackupAndRestore``."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tpunb.checkpoint.catalog import Checkpoint, Skipped
from tpunb.checkpoint.formats import of_files, size_of, step_by_name
from tpunb.errors import BadProfile, MissingExtra, need
from tpunb.frames.conversion import open_file, open_zip, read_file
from tpunb.text import format_error
from tpunb.training.state import OPTIMIZER, RANDOM, WEIGHTS

_BACKUP = {"latest.weights.h5", "training_metadata.json"}
_SUFFIXES = (".keras", ".h5", ".hdf5")
_SHARDED = ".weights.json"
_MODEL = ("layers", "_layer_checkpoint_dependencies", "model_weights", "top_level_model_weights")


class _NoCheckpointError(ValueError):
    """A valid HDF5 file of something else."""


def find(folder: Path, files: Sequence[str]) -> Iterator[Checkpoint | Skipped]:
    """Yield Keras' checkpoints among the files of a folder."""
    if set(files) >= _BACKUP:
        yield _backup(folder)
        files = [name for name in files if name not in _BACKUP]
    shards: set[str] = set()
    for index in (folder / name for name in files if name.endswith(_SHARDED)):
        try:
            names = _shard_names(index)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            yield Skipped(index, f"cannot be read: {format_error(error)}")
        else:
            shards |= names
            yield _sharded(index, [folder / Path(name).name for name in sorted(names)])
    for name in files:
        if name.endswith(_SUFFIXES) and name not in shards:
            yield from _single(folder / name)


def _single(path: Path) -> Iterator[Checkpoint | Skipped]:
    try:
        h5py = need("h5py", extra="tensorflow")
    except MissingExtra as error:
        yield Skipped(path, f"needs a library: {error}; {error.hint}")
        return
    try:
        if path.suffix == ".keras":
            with open_zip(path) as archive, archive.open("model.weights.h5") as inner, h5py.File(inner) as file:
                step, parts = _read(file)
        else:
            with open_file(path) as content, h5py.File(content) as file:
                step, parts = _read(file)
        yield _checkpoint(path, [path], step, parts)
    except _NoCheckpointError:
        if path.name.endswith(".weights.h5"):
            yield Skipped(path, "holds no weights")
    except zipfile.BadZipFile as error:
        yield Skipped(path, f"is not a complete .keras file: {error}")
    except (OSError, KeyError, RuntimeError, BadProfile) as error:  # h5py raises any of them
        yield Skipped(path, f"cannot be read: {str(error).strip(chr(34) + chr(39))}")


def _checkpoint(path: Path, files: Sequence[Path], step: int | None, parts: set[str]) -> Checkpoint:
    """Return a checkpoint whose step is its optimizer's, or that of its name."""
    return of_files(path, files, "keras", parts, step_by_name(path) if step is None else (step, "optimizer"))


def _read(file: Any) -> tuple[int | None, set[str]]:
    """Return the step of the optimizer in an HDF5 file, and the parts of the state in it."""
    if foreign := [name for name in file if type(file.get(name, getlink=True)).__name__ != "HardLink"]:
        raise BadProfile(f"{min(foreign)!r} in it is a link, which may lead to any file")
    parts = {WEIGHTS} if any(name in file for name in _MODEL) else set()
    optimizers = [name for name in file if name in ("optimizer", "optimizer_weights")]
    if not parts and not optimizers:
        raise _NoCheckpointError(file.filename)
    steps: list[int] = []
    for name in optimizers:
        for variable, value in _variables(file[name]):
            parts.add(OPTIMIZER)
            is_counter = variable.endswith("vars/0") or variable.split("/")[-1].split(":")[0] in ("iter", "iteration")
            if is_counter and value.shape == () and value.dtype.kind in "iu":
                steps.append(int(value[()]))
    if any("seed_generator" in variable for name in _MODEL if name in file for variable, _ in _variables(file[name])):
        parts.add(RANDOM)
    return max(steps, default=None), parts


def _variables(group: Any) -> list[tuple[str, Any]]:
    """Return the variables below a group, by path; none whose values are in other files."""
    found: list[tuple[str, Any]] = []
    group.visititems(lambda name, value: found.append((name, value)))
    return [(name, value) for name, value in found if not getattr(value, "is_virtual", True) and not value.external]


def _backup(folder: Path) -> Checkpoint | Skipped:
    """Return the checkpoint of ``BackupAndRestore``, which restarts the epoch in its JSON from the first batch."""
    weights, metadata = (folder / name for name in sorted(_BACKUP))
    try:
        saved = json.loads(read_file(metadata))
        position = f"epoch {int(saved['epoch'])}, batch {int(saved['batch'])}"
    except (ValueError, KeyError, TypeError) as error:
        return Skipped(folder, f"{metadata.name} cannot be read: {format_error(error)}")
    (inner,) = _single(weights)
    if isinstance(inner, Skipped):
        return Skipped(folder, f"{weights.name} {inner.reason}")
    reason = f"BackupAndRestore saved {position}, and restarts that epoch"
    return replace(inner, path=folder, size=size_of([weights, metadata]), kind="backup", reason=reason)


def _shard_names(index: Path) -> set[str]:
    shards = json.loads(read_file(index))["weight_map"].values()
    return {name for each in shards for name in ([each] if isinstance(each, str) else each)}


def _sharded(index: Path, files: Sequence[Path]) -> Checkpoint | Skipped:
    """Return the checkpoint of weights in several files."""
    if missing := [file.name for file in files if not file.exists()]:
        return Skipped(index, f"lacks {', '.join(missing)}")
    shards = [shard for file in files for shard in _single(file)]
    for shard in shards:
        if isinstance(shard, Skipped):
            return Skipped(index, f"{shard.path.name} {shard.reason}")
    good = [shard for shard in shards if isinstance(shard, Checkpoint)]
    steps = [shard.step for shard in good if shard.step is not None and shard.step_from == "optimizer"]
    parts = {part for shard in good for part in shard.holds}
    return _checkpoint(index, [index, *files], max(steps, default=None), parts)
