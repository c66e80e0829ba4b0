"""Saves a loop of one's own, of TensorFlow or JAX, with the position in its data; and puts it back."""

from __future__ import annotations

import base64
import json
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tpunb import news
from tpunb.checkpoint import Checkpoint, own_files
from tpunb.checkpoint.nouns import DATA, HOLDABLE, OPTIMIZER, RANDOM, WEIGHTS
from tpunb.errors import TpunbError, need, whole
from tpunb.resuming import datasets, folders

_NO_DATA = "no iterator over its data was given"


def save(dir: str | os.PathLike[str], step: int, **parts: Any) -> Checkpoint:  # noqa: A002  as `checkpointing` has it
    """Return the checkpoint of a loop's state, with Python's and NumPy's random state.

    Parameters
    ----------
    dir
        The folder for the checkpoints, on this machine; nothing there is overwritten.
    step
        How many steps were taken: of a loop that counts from 0, the number of the next.
    **parts
        All that the next step depends on, by names of one's own, which `restore` wants again: Keras' models,
        optimizers, metrics and seed generators; ``tf.Variable``, ``tf.random.Generator``, an iterator of ``tf.data``;
        an iterator of Grain; trees of arrays, as JAX has them, which Orbax writes. A shuffle of ``tf.data`` needs a
        seed: without one, its passes after the one that was cut are others in a new process.

    Raises
    ------
    ValueError
        When `step` is no whole number of 0 or more, or nothing is given.
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
    step = whole("save", "step", step, 0)
    if not parts:
        raise ValueError("The parts parameter of save must name what to save. Got {} instead.")

    def fill(folder: Path) -> dict[str, Any]:
        kinds = {name: _kind(part) for name, part in parts.items()}
        troubles = [_WRITE[kinds[name]](_place(folder, name), part) for name, part in parts.items()]
        reasons = [trouble for trouble in troubles if trouble]
        iterates = any(_is_data(part) for part in parts.values())
        why = reasons[0] if reasons else "" if iterates else _NO_DATA
        held = {RANDOM, *(_held(name, part) for name, part in parts.items())} - ({DATA} if reasons else set())
        holds = [one for one in HOLDABLE if one in held]
        return {"holds": holds, "exact": not why, "why": why, "parts": kinds, "random": folders.random_state()}

    with news.saving():
        saved = folders.write(Path(dir), step, fill)
    if not saved.exact and saved.why != _NO_DATA:
        warnings.warn(
            f"the position in the data was not saved, so that resuming is not exact. {saved.why}", stacklevel=2
        )
    return saved


def restore(checkpoint: Checkpoint | str | os.PathLike[str], *, exact: bool = True, **parts: Any) -> dict[str, Any]:
    """Put the parts of a loop into the state in which `save` saved them; return the trees of arrays by name.

    Parameters
    ----------
    checkpoint
        One of `save`: of ``tp.checkpoints``, or its folder.
    exact
        Whether the position in the data must be in it.
    **parts
        What was given to `save`, by the same names: it is changed in place. Trees of arrays cannot be: those given
        say which shapes, types and devices are wanted.

    Raises
    ------
    TpunbError
        The checkpoint is of another kind, not exact, or of other parts.
    """
    folder = folders.read(Path(checkpoint)).path
    about = own_files.read(folder)
    if "parts" not in about:
        raise TpunbError(
            f"{folder.name} is of a fit, not of a loop", hint="`with tp.resume(checkpoint):` around the fit"
        )
    if exact and not about["exact"] and about["why"] != _NO_DATA:
        raise TpunbError(
            f"{folder.name} cannot be resumed exactly: {about['why']}",
            hint="restore(..., exact=False) restores the rest",
        )
    kinds = {name: _kind(part) for name, part in parts.items()}
    if kinds != about["parts"]:
        known, given = (
            ", ".join(f"{name} ({kind})" for name, kind in some.items()) for some in (about["parts"], kinds)
        )
        raise TpunbError(
            f"{folder.name} holds {known}; given were {given or 'none'}", hint="give the parts that it holds"
        )
    trees = {}
    for name, part in parts.items():
        if _place(folder, name).with_suffix(".missing").exists():
            continue
        value = _READ[kinds[name]](_place(folder, name), part)
        if kinds[name] == "arrays":
            trees[name] = value
    folders.set_random_state(about["random"])
    return trees


def _place(folder: Path, name: str) -> Path:
    return folder / f"part-{name}"


def _kind(part: Any) -> str:
    """Return how a part is written: by its variables, by its own state, by TensorFlow, or as arrays by Orbax."""
    if callable(getattr(part, "get_state", None)) and callable(getattr(part, "set_state", None)):
        return "state"
    if _is_of(part, "tensorflow"):
        return "tensorflow"
    return "variables" if _variables(part) is not None else "arrays"


def _is_of(part: Any, library: str) -> bool:
    return any(known.__module__.partition(".")[0] == library for known in type(part).__mro__) and not _is_of_keras(part)


def _is_of_keras(part: Any) -> bool:
    return any(known.__module__.partition(".")[0] == "keras" for known in type(part).__mro__)


def _variables(part: Any) -> list[Any] | None:
    """Return the variables of something of Keras; None of anything else."""
    if not _is_of_keras(part):
        return None
    return list(part.variables) if hasattr(part, "variables") else [part.state] if hasattr(part, "state") else [part]


def _is_data(part: Any) -> bool:
    return hasattr(part, "__next__")


def _held(name: str, part: Any) -> str:
    if _is_data(part) or _kind(part) == "state":
        return DATA
    word = f"{name} {type(part).__name__}".lower()
    if "optim" in word or name.startswith("opt"):
        return OPTIMIZER
    return RANDOM if any(sign in word for sign in ("seed", "random", "rng")) else WEIGHTS


def _write_variables(path: Path, part: Any) -> str:
    path.mkdir()
    folders.write_arrays(path, {"variables": folders.values(_variables(part) or [])})
    return ""


def _read_variables(path: Path, part: Any) -> None:
    now = _variables(part) or []
    saved = folders.read_arrays(path, {"variables": folders.values(now)})["variables"]
    for variable, value in zip(now, saved, strict=True):
        variable.assign(value)


def _write_state(path: Path, part: Any) -> str:
    state = part.get_state()
    told = {"bytes": base64.b64encode(state).decode()} if isinstance(state, bytes) else {"json": state}
    path.with_suffix(".json").write_text(json.dumps(told, default=_number))
    return ""


def _number(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"the state of an iterator holds a {type(value).__name__}")


def _read_state(path: Path, part: Any) -> None:
    told = json.loads(path.with_suffix(".json").read_text())
    part.set_state(told["json"] if "json" in told else base64.b64decode(told["bytes"]))


def _write_tensorflow(path: Path, part: Any) -> str:
    why = datasets.write(path, part)
    if why:
        path.with_suffix(".missing").write_text(why)
    return why


def _read_tensorflow(path: Path, part: Any) -> None:
    datasets.read(path, part)


def _write_arrays(path: Path, part: Any) -> str:
    orbax = need("orbax.checkpoint", extra="jax")
    with orbax.StandardCheckpointer() as checkpointer:
        checkpointer.save(path.absolute(), part)
    return ""


def _read_arrays(path: Path, part: Any) -> Any:
    orbax = need("orbax.checkpoint", extra="jax")
    with orbax.StandardCheckpointer() as checkpointer:
        try:
            return checkpointer.restore(path.absolute(), part)
        except (ValueError, KeyError, TypeError) as error:
            told = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise TpunbError(f"{path.name} is of another tree: {told}", hint="give one as it was saved") from error


_WRITE: Mapping[str, Callable[[Path, Any], str]] = {
    "variables": _write_variables,
    "state": _write_state,
    "tensorflow": _write_tensorflow,
    "arrays": _write_arrays,
}
_READ: Mapping[str, Callable[[Path, Any], Any]] = {
    "variables": _read_variables,
    "state": _read_state,
    "tensorflow": _read_tensorflow,
    "arrays": _read_arrays,
}
