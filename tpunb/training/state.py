"""State of a training: its parts, its variables, a copy in memory, and a digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tpunb.training.seeds import RandomState

WEIGHTS, OPTIMIZER, METRICS = "weights", "optimizer", "metrics"
DATA, RANDOM = "data position", "random state"
STATE_PARTS = (WEIGHTS, OPTIMIZER, METRICS, DATA, RANDOM)
"""Parts of the state of a training, in the order in which they are shown."""


@dataclass(frozen=True, eq=False)
class TrainingState:
    """Values of variables of Keras or TensorFlow, and the random state of the process, kept in memory."""

    variables: tuple[Any, ...]
    values: tuple[NDArray[Any], ...]
    random: RandomState

    @classmethod
    def capture(cls, variables: Iterable[Any]) -> Self:
        """Return the present values of variables, and the random state of the process."""
        every = tuple(variables)
        return cls(every, tuple(np.array(value) for value in to_numpy(every)), RandomState.capture())

    def restore(self) -> None:
        """Assign the values and restore the random state."""
        assign(self.variables, self.values)
        self.random.restore()


def find_trackables(model: Any) -> list[Any]:
    """Return the objects with variables: the model itself, or those in lists, tuples and mappings; each once."""
    parts = list(model.values()) if isinstance(model, Mapping) else model
    if not isinstance(parts, list | tuple):
        return [] if direct_variables(model) is None else [model]
    return list({id(each): each for part in parts for each in find_trackables(part)}.values())


def variables_by_part(trackable: Any) -> dict[str, list[Any]]:
    """Return the variables of a model, layer, optimizer, metric or module, by part of the state."""
    return {
        WEIGHTS: direct_variables(trackable) or [],
        OPTIMIZER: [variable for each in optimizers_of(trackable) for variable in getattr(each, "variables", ())],
        METRICS: list(getattr(trackable, "metrics_variables", None) or ()),
    }


def optimizers_of(model: Any) -> list[Any]:
    """Return the optimizer of a model, and others among its attributes, as models with a step of their own have."""
    kept = (each for each in getattr(model, "__dict__", {}).values() if hasattr(each, "apply_gradients"))
    every = [getattr(model, "optimizer", None), *(each for each in kept if is_from(each, "keras"))]
    return list({id(each): each for each in every if each is not None}.values())


def variables_of(*trackables: Any) -> list[Any]:
    """Return all variables of `variables_by_part`, each once."""
    every = (variable for each in trackables for part in variables_by_part(each).values() for variable in part)
    return list({id(variable): variable for variable in every}.values())


def direct_variables(part: Any) -> list[Any] | None:
    """Return the variables of an object of Keras or TensorFlow, or the variable itself; None for anything else."""
    if isinstance(part, type) or not is_from(part, "keras", "tensorflow"):
        return None
    if hasattr(part, "assign") and hasattr(part, "shape"):  # a variable: optimizers assign too, but have no shape
        return [part]
    if not hasattr(part, "variables"):
        return [part.state] if hasattr(getattr(part, "state", None), "assign") else None
    return list(part.variables)


def is_from(part: Any, *libraries: str) -> bool:
    """Return whether the class of an object, or a base of it, is defined in one of the libraries."""
    return any(kind.__module__.partition(".")[0] in libraries for kind in type(part).__mro__)


def to_numpy(variables: Sequence[Any]) -> list[NDArray[Any]]:
    """Return the values of variables of Keras or TensorFlow."""
    if not variables:
        return []
    import keras

    return [np.asarray(keras.ops.convert_to_numpy(variable)) for variable in variables]


def assign(variables: Sequence[Any], values: Sequence[NDArray[Any]]) -> None:
    """Assign one value to each variable."""
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def contents(outputs: Iterable[Any], variables: Iterable[Any]) -> Iterator[NDArray[Any]]:
    """Yield the arrays in the outputs of steps, and the values of variables after them."""
    yield from arrays(list(outputs))
    yield from to_numpy(list(variables))


def digest(outputs: Iterable[Any], variables: Iterable[Any] = ()) -> str:
    """Return a digest of the outputs of steps and of the variables after them, exact to the last bit.

    >>> import numpy as np
    >>> digest([{"loss": np.float32(1)}], []) == digest([{"loss": np.nextafter(np.float32(1), 2)}], [])
    False
    """
    hashed = hashlib.blake2b(digest_size=16)
    for array in contents(outputs, variables):
        hashed.update(f"{array.dtype} {array.shape}".encode())
        hashed.update(np.ascontiguousarray(array).tobytes())
    return hashed.hexdigest()


def _of_torch(value: Any) -> Any:
    """Return the array of a tensor, by its bytes if NumPy lacks its type; the state of a module or an optimizer."""
    if hasattr(value, "state_dict"):
        return value.state_dict()
    if not hasattr(value, "detach"):
        return value
    tensor = _dense(value)
    try:
        return tensor.numpy()
    except TypeError:  # such as bfloat16
        import torch

        return tensor.contiguous().reshape(-1).view(torch.uint8).numpy()


def _dense(tensor: Any) -> Any:
    import torch

    here = tensor.detach().cpu()
    return here.to_dense() if here.layout is not torch.strided else here


def arrays(value: Any) -> Iterator[NDArray[Any]]:
    """Yield the arrays and numbers in a value, its items and attributes; functions are skipped.

    >>> [array.tolist() for array in arrays({"loss": 2.0, "seen": [1, (2, None)], "step": len})]
    [2.0, 1, 2]
    """
    if value is None or isinstance(value, str | bytes | type):
        return
    if is_from(value, "torch"):
        value = _of_torch(value)
    if isinstance(value, Mapping):
        value = list(value.values())
    elif not isinstance(value, list | tuple):
        array = as_array(value)
        if array.dtype != object:
            yield array
            return
        value = list(getattr(value, "__dict__", {}).values())
    for part in value:
        yield from arrays(part)


def as_array(value: Any) -> NDArray[Any]:
    """Return a value as an array; a tensor of PyTorch in a type that NumPy has, which holds all its values."""
    if not (is_from(value, "torch") and hasattr(value, "detach")):
        return np.asarray(value)
    tensor = _dense(value)
    try:
        return np.asarray(tensor.numpy())
    except TypeError:  # bfloat16, float8
        return np.asarray(tensor.float().numpy())
