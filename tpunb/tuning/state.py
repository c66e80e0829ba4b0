"""The state of what is trained, kept in memory: put back, it is as if no step had been taken since."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpunb.resuming import folders, keras_seeds, tf_seeds


@dataclass(frozen=True, eq=False)
class State:
    """Values of variables, Keras' global seeds where it has them, and Python's and NumPy's random numbers.

    Attributes
    ----------
    variables
        Whose values they are, in order.
    values
        As many arrays.
    seeds
        Of Keras' global seed generator; None where there was none.
    random
        As `tpunb.resuming.folders.random_state` gives it.
    tf_seed
        As `tpunb.resuming.tf_seeds.state` gives it.
    """

    variables: tuple[Any, ...]
    values: tuple[NDArray[Any], ...]
    seeds: NDArray[Any] | None
    random: Mapping[str, Any]
    tf_seed: Any

    @classmethod
    def of(cls, variables: Iterable[Any]) -> State:
        """Return the state of some variables, and of all random numbers, as they are now."""
        kept = tuple(variables)
        values = tuple(np.array(value) for value in folders.values(kept)) if kept else ()
        return cls(kept, values, _seeds(), folders.random_state(), tf_seeds.state())

    def put_back(self) -> None:
        """Make everything what it was."""
        for variable, value in zip(self.variables, self.values, strict=True):
            variable.assign(value)
        _set_seeds(self.seeds)
        folders.set_random_state(self.random)
        tf_seeds.put_back(self.tf_seed)


def holders(model: Any) -> list[Any]:
    """Return what holds variables: the model itself, or such as lie in lists, tuples and mappings; each once."""
    found: dict[int, Any] = {}
    todo = [model]
    while todo:
        part = todo.pop(0)
        if isinstance(part, Mapping):
            todo += part.values()
        elif isinstance(part, list | tuple):
            todo += part
        elif _own_variables(part) is not None:
            found[id(part)] = part
    return list(found.values())


def variables_of(holder: Any) -> list[Any]:
    """Return the variables of something that trains, those of its optimizer and its metrics too, each once."""
    every = list(_own_variables(holder) or [])
    every += getattr(holder, "metrics_variables", None) or []
    every += getattr(getattr(holder, "optimizer", None), "variables", None) or []
    return list({id(variable): variable for variable in every}.values())


def _own_variables(part: Any) -> Sequence[Any] | None:
    """Return the variables of a layer, an optimizer, a metric, a module of TensorFlow or a variable; None if none."""
    if isinstance(part, type) or not _is_of(part, "keras", "tensorflow"):
        return None
    if hasattr(part, "assign") and hasattr(part, "shape"):  # a variable: optimizers assign too, but have no shape
        return [part]
    if not hasattr(part, "variables"):
        return [part.state] if hasattr(getattr(part, "state", None), "assign") else None
    return list(part.variables)


def _is_of(part: Any, *libraries: str) -> bool:
    return any(kind.__module__.partition(".")[0] in libraries for kind in type(part).__mro__)


def digest(told: Iterable[Any], variables: Iterable[Any]) -> str:
    """Return a digest of what steps told, to the last bit, and of the variables after them.

    >>> import numpy as np
    >>> digest([{"loss": np.float32(1)}], []) == digest([{"loss": np.nextafter(np.float32(1), 2)}], [])
    False
    """
    hashed = hashlib.blake2b(digest_size=16)
    for array in (*arrays(list(told)), *folders.values(list(variables))):
        hashed.update(f"{array.dtype} {array.shape}".encode())
        hashed.update(np.ascontiguousarray(array).tobytes())
    return hashed.hexdigest()


def arrays(value: Any) -> Iterator[NDArray[Any]]:
    """Yield the arrays and numbers within a value, those of its parts and attributes too; of functions none.

    >>> [array.tolist() for array in arrays({"loss": 2.0, "seen": [1, (2, None)], "step": len})]
    [2.0, 1, 2]
    """
    if value is None or isinstance(value, str | bytes | type):
        return
    if isinstance(value, Mapping):
        value = list(value.values())
    elif not isinstance(value, list | tuple):
        array = np.asarray(value)
        if array.dtype != object:
            yield array
            return
        value = list(getattr(value, "__dict__", {}).values())
    for part in value:
        yield from arrays(part)


@contextmanager
def global_seeds() -> Iterator[bool]:
    """Have Keras' global seed generator in the block; give whether it was made for it, and is gone afterwards.

    What the first trial would make, the next could not put back: what was compiled meanwhile would still hold it.
    """
    made = "keras" in sys.modules and keras_seeds.generator() is None
    if made:
        keras_seeds.make()
    try:
        yield made
    finally:
        if made:
            keras_seeds.forget()


def _seeds() -> NDArray[Any] | None:
    generator = keras_seeds.generator()
    return None if generator is None else np.array(folders.values([generator.state])[0])


def _set_seeds(value: NDArray[Any] | None) -> None:
    generator = keras_seeds.generator()
    if value is not None and generator is not None:
        generator.state.assign(value)
    elif generator is not None:  # Keras made it since
        keras_seeds.forget()
