"""Saves and restores a custom loop of TensorFlow, JAX, Flax NNX or PyTorch, with the position in its data."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tpunb import signals
from tpunb.checkpoint.catalog import Checkpoint
from tpunb.checkpoint.formats import native
from tpunb.errors import TpunbError, check_whole, need, warn_user
from tpunb.frames.conversion import read_file
from tpunb.instrument.registry import loaded
from tpunb.text import format_error
from tpunb.tfdata import position
from tpunb.tfdata.graph import graph_or_none
from tpunb.tfdata.restored import not_restored, unseeded
from tpunb.training import seeds, snapshot, torch_state
from tpunb.training.state import (
    DATA,
    OPTIMIZER,
    RANDOM,
    STATE_PARTS,
    WEIGHTS,
    assign,
    direct_variables,
    is_from,
    to_numpy,
)

_NO_DATA = "no iterator over the data was given"
_STATE_BYTES = 256 << 20  # of an iterator, which may hold elements
_ARRAYS = "arrays"  # kind of the parts that are trees of arrays, and the folder in which Orbax writes them, together
_VALUES = "values"  # kind of the parts that are trees of tensors, numbers and text


def save(dir: str | os.PathLike[str], step: int, **parts: Any) -> Checkpoint:  # noqa: A002  as in `checkpointing`
    """Save the state of a custom loop, with the random state of Python, NumPy and PyTorch; return the checkpoint.

    Parameters
    ----------
    dir
        Folder of the checkpoints, on this machine; nothing in it is overwritten.
    step
        Number of steps taken: if the loop counts from 0, the number of the next step.
    **parts
        Everything that the next step depends on, by names that `restore` takes again: Keras' models, optimizers,
        metrics and seed generators; ``tf.Variable``, ``tf.random.Generator``, an iterator of ``tf.data``; an iterator
        of Grain; what has a ``state_dict``, as in PyTorch, a ``torch.Generator``, and beside them trees of tensors and
        numbers; modules, optimizers, metrics and random streams of Flax NNX, or lists of them; trees of arrays, as in
        JAX. Orbax writes the last two. Give shuffles of ``tf.data`` a seed: without one, a
        new process shuffles later epochs differently.

    Raises
    ------
    ValueError
        When `step` is not an int of 0 or more, or no part is given.
    MissingExtra
        A tree of arrays is given, and Orbax is not installed.

    >>> import tempfile
    >>> class Batches:  # as an iterator of Grain
    ...     at = 7
    ...     def get_state(self): return {"next_index": self.at}
    ...     def set_state(self, state): self.at = state["next_index"]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     saved = save(folder, 3, data=Batches())
    ...     again = Batches()
    ...     again.at = 0
    ...     restore(saved, data=again), again.at
    ({}, 7)
    """
    step = check_whole("save", "step", step, 0)
    if not parts:
        raise ValueError("The parts parameter of save must name what to save. Got {} instead.")

    def write(folder: Path) -> dict[str, Any]:
        metadata, unsaved = write_parts(folder, parts)
        reason = unsaved or ("" if any(map(_is_data, parts.values())) else _NO_DATA)
        return {**metadata, "exact": not reason, "why": reason, "random": seeds.host_random_state()}

    with signals.spending("checkpoint save", "tpunb"):
        saved = native.save(Path(dir), step, write)
    if not saved.exact and saved.reason != _NO_DATA:
        warn_user(
            f"the position in the data was not saved, so that resuming is not exact: {saved.reason}", stacklevel=2
        )
    return saved


def restore(checkpoint: Checkpoint | str | os.PathLike[str], *, exact: bool = True, **parts: Any) -> dict[str, Any]:
    """Restore the parts of a custom loop in place; return the trees of arrays by name.

    Parameters
    ----------
    checkpoint
        Checkpoint of `save`: from ``tp.checkpoints``, or its folder.
    exact
        Whether it must contain the position in the data.
    **parts
        Parts that were given to `save`, by the same names. Trees of arrays are not changed: they give the shapes, types
        and devices of those returned.

    Raises
    ------
    TpunbError
        The checkpoint is of another kind, not exact, or of other parts.
    """
    folder = Path(checkpoint)
    metadata = snapshot.read_metadata(folder)
    if "parts" not in metadata:
        raise TpunbError(
            f"{folder.name} is a checkpoint of fit, not of a custom loop",
            hint="`with tp.resume(checkpoint):` around the fit",
        )
    if exact and not metadata["exact"] and metadata["why"] != _NO_DATA:
        raise TpunbError(
            f"{folder.name} cannot be resumed exactly: {metadata['why']}",
            hint="restore(..., exact=False) restores the rest",
        )
    trees = read_parts(folder, metadata["parts"], parts)
    seeds.set_host_random_state(metadata["random"])
    return trees


def write_parts(folder: Path, parts: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Write parts of a state; return their metadata, and why one of them cannot be restored, or ""."""
    kinds = _kinds(parts)
    trees = array_trees(parts)
    reasons = [_FORMATS[kinds[name]][0](_path(folder, name), parts[name]) for name in kinds if name not in trees]
    trees |= {name: nnx_arrays(parts[name]) for name, kind in kinds.items() if kind == "nnx"}
    if trees:
        _write_arrays(folder / _ARRAYS, trees)
    reason = next(filter(None, reasons), "")
    written = {RANDOM, *(_state_part(name, part) for name, part in parts.items())} - ({DATA} if reason else set())
    return {"holds": [part for part in STATE_PARTS if part in written], "parts": kinds}, reason


def read_parts(folder: Path, saved: Mapping[str, str], parts: Mapping[str, Any]) -> dict[str, Any]:
    """Restore parts of the `saved` kinds in place; return the trees of arrays by name."""
    kinds = _kinds(parts)
    if kinds != saved:
        expected, given = (", ".join(f"{name} ({kind})" for name, kind in each.items()) for each in (saved, kinds))
        raise TpunbError(f"{folder.name} holds {expected}; got {given or 'none'}", hint="give all parts that it holds")
    trees = array_trees(parts)
    values: dict[str, Any] = {}
    for name, part in parts.items():
        if name not in trees and not _path(folder, name).with_suffix(".missing").exists():
            with snapshot.reading(_path(folder, name)):
                value = _FORMATS[kinds[name]][1](_path(folder, name), part)
            values |= {name: value} if kinds[name] == _VALUES else {}
    of_nnx = {name: nnx_arrays(parts[name]) for name, kind in kinds.items() if kind == "nnx"}
    read = _read_arrays(folder / _ARRAYS, trees | of_nnx) if trees or of_nnx else {}
    for name in of_nnx:
        _assign_nnx(parts[name], read.pop(name))
    return values | read


def array_trees(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts that are trees of arrays, by name."""
    kinds = _kinds(parts)
    return {name: part for name, part in parts.items() if kinds[name] == _ARRAYS}


def torch_parts(parts: Mapping[str, Any]) -> list[Any]:
    """Return the parts that PyTorch writes."""
    return [parts[name] for name, kind in _kinds(parts).items() if kind in ("torch", _VALUES)]


def _kinds(parts: Mapping[str, Any]) -> dict[str, str]:
    """Return the kinds of parts; trees without arrays of JAX beside what PyTorch writes are written by it too."""
    kinds = {name: _kind(part) for name, part in parts.items()}
    of_torch = not {"torch", _VALUES}.isdisjoint(kinds.values())
    plain = {name for name, kind in kinds.items() if kind == _ARRAYS and of_torch and not _has_jax(parts[name])}
    return {name: _VALUES if name in plain else kind for name, kind in kinds.items()}


def _has_jax(tree: Any) -> bool:
    parts = tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, list | tuple) else ()
    return is_from(tree, "jaxlib", "jax", "flax", "optax") or any(map(_has_jax, parts))


def _path(folder: Path, name: str) -> Path:
    return folder / f"part-{name}"


def _kind(part: Any) -> str:
    """Return how a part is written: its own state, its variables, by TensorFlow or PyTorch, or as arrays by Orbax."""
    if nnx_arrays(part):  # first: nnx.Rngs has a stream of any name
        return "nnx"
    if torch_state.is_generator(part):
        return "generator"
    if callable(getattr(part, "get_state", None)) and callable(getattr(part, "set_state", None)):
        return "state"
    if is_from(part, "keras"):
        return "variables"
    if torch_state.is_part(part):
        return "torch"
    if is_from(part, "tensorflow"):
        return "tensorflow"
    return _VALUES if any(True for _ in torch_state.tensors(part)) else _ARRAYS


def _is_data(part: Any) -> bool:
    return hasattr(type(part), "__next__")


def _state_part(name: str, part: Any) -> str:
    if _is_data(part) or _kind(part) == "state":
        return DATA
    if _kind(part) == "generator":
        return RANDOM
    word = f"{name} {type(part).__name__}".lower()
    if "optim" in word or name.startswith("opt"):
        return OPTIMIZER
    return RANDOM if any(sign in word for sign in ("seed", "random", "rng")) else WEIGHTS


def _write_variables(path: Path, part: Any) -> None:
    path.mkdir()
    snapshot.write_arrays(path, {"variables": to_numpy(direct_variables(part) or [])})


def _read_variables(path: Path, part: Any) -> None:
    variables = direct_variables(part) or []
    assign(variables, snapshot.read_arrays(path, {"variables": to_numpy(variables)})["variables"])


def write_state(path: Path, part: Any) -> None:
    """Write the state of an iterator with `get_state`: bytes, or JSON values."""
    state = part.get_state()
    encoded = {"bytes": base64.b64encode(state).decode()} if isinstance(state, bytes) else {"json": state}
    path.with_suffix(".json").write_text(json.dumps(encoded, default=_number))


def _number(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"the state of an iterator holds a {type(value).__name__}")


def read_state(path: Path, part: Any) -> None:
    """Restore the state of an iterator from the file of `write_state`."""
    encoded = json.loads(read_file(path.with_suffix(".json"), _STATE_BYTES))
    part.set_state(encoded["json"] if "json" in encoded else base64.b64decode(encoded["bytes"]))


def _write_tensorflow(path: Path, part: Any) -> str:
    reason = position.write(path, part)
    if reason:
        path.with_suffix(".missing").write_text(reason)
    graph = graph_or_none(part._dataset) if _is_data(part) and hasattr(part, "_dataset") else None
    if graph is None:
        return reason
    return unseeded(graph) or not_restored(graph, part._dataset.options(), passes=False) or reason


def _write_arrays(path: Path, trees: dict[str, Any]) -> None:
    orbax = need("orbax.checkpoint", extra="jax")
    import jax

    with orbax.StandardCheckpointer() as checkpointer:
        checkpointer.save(path.absolute(), jax.tree.map(_as_array, trees))


def _read_arrays(path: Path, trees: dict[str, Any]) -> dict[str, Any]:
    orbax = need("orbax.checkpoint", extra="jax")
    import jax

    with orbax.StandardCheckpointer() as checkpointer:
        try:
            restored: dict[str, Any] = checkpointer.restore(path.absolute(), jax.tree.map(_as_array, trees))
        except (ValueError, KeyError, TypeError) as error:
            problem = f"{path.parent.name} was saved with a different tree: {format_error(error)}"
            raise TpunbError(problem, hint="give a tree as it was saved") from error
    numbers = jax.tree.map(lambda value, like: value[()] if isinstance(like, np.generic) else value, restored, trees)
    return dict(numbers)


def nnx_arrays(part: Any) -> dict[str, Any]:
    """Return the arrays of all variables of Flax NNX in a part, by their paths; none if it is no such object."""
    nnx = loaded("flax.nnx")
    if nnx is None or isinstance(part, nnx.State):
        return {}
    import jax

    kinds = nnx.Pytree, nnx.Variable
    if not any(isinstance(each, kinds) for each in jax.tree.leaves(part, is_leaf=lambda each: isinstance(each, kinds))):
        return {}
    arrays = jax.tree_util.tree_leaves_with_path(nnx.state([part]))  # the list: for a variable
    return {jax.tree_util.keystr(path, simple=True, separator="."): array for path, array in arrays}


def _assign_nnx(part: Any, arrays: Mapping[str, Any]) -> None:
    import jax
    from flax import nnx

    state = nnx.state([part])
    nnx.update([part], jax.tree.unflatten(jax.tree.structure(state), [arrays[name] for name in nnx_arrays(part)]))


def _write_settings(path: Path, part: Any) -> None:
    settings = [["/".join(map(str, where)), value] for where, _, value in _settings(part)]
    path.with_suffix(".json").write_text(json.dumps(settings))


def _read_settings(path: Path, part: Any) -> None:
    saved = dict(json.loads(read_file(path.with_suffix(".json"), _STATE_BYTES)))
    for where, owner, value in _settings(part):
        if (other := saved.get("/".join(map(str, where)), value)) != value:
            setattr(owner, where[-1], other)


def _settings(part: Any) -> list[tuple[Any, Any, Any]]:
    """Return the numbers and texts among the attributes of modules of NNX: path, module and value."""
    from flax import nnx

    every = dict(nnx.iter_graph([part]))
    plain = [(path, value) for path, value in every.items() if path and type(value) in (bool, int, float, str)]
    owned = [(path, every.get(path[:-1]), value) for path, value in plain if "_pytree" not in str(path[-2:])]
    return [(path, owner, value) for path, owner, value in owned if isinstance(owner, nnx.Pytree)]


def _as_array(leaf: Any) -> Any:
    """Return a leaf of a tree; NumPy's numbers, which Orbax does not restore, as arrays."""
    return np.asarray(leaf) if isinstance(leaf, np.generic) else leaf


_FORMATS: Mapping[str, tuple[Callable[[Path, Any], str | None], Callable[[Path, Any], Any]]] = {
    "variables": (_write_variables, _read_variables),
    "state": (write_state, read_state),
    "nnx": (_write_settings, _read_settings),
    "tensorflow": (_write_tensorflow, position.read),
    "torch": (torch_state.write_part, torch_state.read_part),
    "generator": (torch_state.write_generator, torch_state.read_generator),
    _VALUES: (torch_state.write_values, torch_state.read_values),
}
"""How a kind of part is written, which returns why it cannot be, and read."""
