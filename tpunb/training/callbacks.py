"""State of a fit's callbacks and PyDatasets: numbers and arrays among their attributes, which are saved, and others."""

from __future__ import annotations

import dis
import logging
import random
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import filterfalse
from pathlib import PurePath
from types import BuiltinFunctionType, BuiltinMethodType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpunb.text import plain
from tpunb.training.state import is_from, to_numpy, variables_of

_COUNTERS = {  # what Keras' own callbacks change, by class; not their arguments: Keras changes the sign of min_delta
    "EarlyStopping": ("wait", "best", "best_epoch", "stopped_epoch", "best_weights"),
    "ReduceLROnPlateau": ("wait", "best", "cooldown_counter"),
    "ModelCheckpoint": (
        *("best", "epochs_since_last_save", "_batches_seen_since_last_saving", "_last_batch_seen", "_current_epoch"),
    ),
    "SwapEMAWeights": ("_ema_weights_in_model",),
    "History": ("history", "epoch"),
}

GENERATORS: dict[type, tuple[Any, Any]] = {
    random.Random: (random.Random.getstate, random.Random.setstate),
    np.random.RandomState: (lambda drawn: drawn.get_state(legacy=False), np.random.RandomState.set_state),
    np.random.Generator: (
        lambda drawn: drawn.bit_generator.state,
        lambda drawn, to: drawn.bit_generator.__setstate__(to),
    ),
}
"""How the state of a random generator is read and set."""

_PLAIN = "keep numbers, text, arrays or random generators there, or give the callback get_state and set_state"
_OF_EVERY = {"params", "_model", "model", "validation_data"}
CONSTANT = (
    *(FunctionType, BuiltinFunctionType, BuiltinMethodType, MethodType, ModuleType, type),
    *(np.ufunc, np.dtype, PurePath, logging.Logger, type(threading.Lock()), type(threading.RLock())),
)


class CallbackState:
    """State of callbacks: JSON `values`, in which an array is its number in `arrays`, and why a value is `unsaved`."""

    def __init__(self, callbacks: Iterable[Any] = (), model: Any = (), datasets: Iterable[Any] = ()) -> None:
        self.arrays: list[NDArray[Any]] = []
        self.unsaved = ""
        self._tracked = {id(variable) for variable in variables_of(model)}
        parts = [(each.dataset, each.attributes) for each in datasets]
        parts += [(each, dict(filterfalse(self._is_constant, _attributes(each).items()))) for each in callbacks]
        saved = [(type(part).__name__, self.add(part, attributes)) for part, attributes in parts]
        self.values = [{"kind": kind, "attributes": attributes} for kind, attributes in saved if attributes]

    def add(self, owner: Any, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Return attributes of an object as JSON values, but those that cannot be saved."""
        saved = {}
        for name, value in attributes.items():
            try:
                saved[name] = self._encoded(GENERATORS.get(type(value), (lambda part: part,))[0](value))
            except TypeError:
                where = plain(f"{type(owner).__name__}.{name} ({type(value).__name__})")
                self.unsaved = self.unsaved or f"the attribute {where} cannot be saved ({_PLAIN})"
        return saved

    def _is_constant(self, attribute: tuple[str, Any]) -> bool:
        """Return whether the value of an attribute does not change, or is restored with the model."""
        _, value = attribute
        if isinstance(value, CONSTANT):
            return True
        if is_from(value, "tensorflow") and hasattr(value, "element_spec") and not hasattr(value, "__next__"):
            return True  # a dataset
        variables = variables_of(value) if is_from(value, "keras") else []
        return bool(variables) and all(id(variable) in self._tracked for variable in variables)

    def _encoded(self, value: Any) -> list[Any]:
        if value is None or isinstance(value, bool | int | float | str):
            return ["value", value]
        if isinstance(value, np.generic | np.ndarray) and value.dtype.kind in "biufcUS":
            self.arrays.append(np.asarray(value))
            return ["number" if isinstance(value, np.generic) else "array", len(self.arrays) - 1]
        if is_from(value, "tensorflow") and hasattr(value, "_numpy") and not hasattr(value, "assign"):
            return ["tensor", self._encoded(np.asarray(value.numpy()))[1]]
        if _is_seed_generator(value):
            return self._encoded(to_numpy([value.state])[0])
        if is_from(value, "torch") and hasattr(value, "detach"):
            import torch

            bits = value.detach().contiguous().cpu()
            self.arrays.append(np.asarray((bits if bits.ndim else bits.reshape(1)).view(torch.uint8)))
            return ["torch", [len(self.arrays) - 1, str(value.dtype), list(value.shape), str(value.device)]]
        if is_from(value, "jaxlib"):
            import jax

            is_key = jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key)
            kind = str(jax.random.key_impl(value)) if is_key else ""
            self.arrays.append(np.array(jax.random.key_data(value) if is_key else value))
            return ["jax", [len(self.arrays) - 1, kind]]
        if type(value) in (list, tuple):
            return [type(value).__name__, [self._encoded(each) for each in value]]
        if isinstance(value, dict):
            return ["dict", [[self._encoded(key), self._encoded(each)] for key, each in value.items()]]
        raise TypeError


def restore_callbacks(callbacks: Iterable[Any], values: Sequence[Mapping[str, Any]], arrays: Sequence[Any]) -> None:
    """Restore a `CallbackState`: the n-th of a class to the n-th callback of that class."""
    by_class: dict[str, list[Mapping[str, Any]]] = {}
    for saved in values:
        by_class.setdefault(saved["kind"], []).append(saved["attributes"])
    for callback in callbacks:
        if not (waiting := by_class.get(type(callback).__name__)):
            continue
        restored = {name: restored_value(value, arrays) for name, value in waiting.pop(0).items()}
        if _has_state_methods(callback):
            callback.set_state(restored["get_state"])
            continue
        for name, value in restored.items():
            _set(callback, name, value)


def _set(callback: Any, name: str, value: Any) -> None:
    """Set an attribute; a list, a dict or a random generator in place, as others may read it."""
    present = vars(callback).get(name)
    if type(present) in GENERATORS:
        GENERATORS[type(present)][1](present, value)
    elif _is_seed_generator(present):
        present.state.assign(value)
    elif isinstance(present, list) and isinstance(value, list):
        present[:] = value
    elif isinstance(present, dict) and isinstance(value, dict):
        present.clear()
        present.update(value)
    else:
        vars(callback)[name] = value


def restored_value(encoded: Sequence[Any], arrays: Sequence[Any]) -> Any:
    """Return a value of `CallbackState`."""
    kind, value = encoded
    match kind:
        case "torch":
            import torch

            number, dtype, shape, device = value
            bits = torch.from_numpy(np.array(arrays[number]))
            return bits.view(getattr(torch, dtype.rpartition(".")[2])).reshape(shape).to(device)
        case "jax":
            import jax

            number, kind = value
            array = jax.numpy.asarray(arrays[number])
            return jax.random.wrap_key_data(array, impl=kind) if kind else array
        case "array":
            return arrays[value]
        case "number":
            return arrays[value][()]
        case "tensor":
            import tensorflow as tf

            return tf.constant(arrays[value])
        case "list" | "tuple":
            items = [restored_value(each, arrays) for each in value]
            return items if kind == "list" else tuple(items)
        case "dict":
            return {restored_value(key, arrays): restored_value(each, arrays) for key, each in value}
    return value


def _is_seed_generator(value: Any) -> bool:
    return is_from(value, "keras") and type(value).__name__ == "SeedGenerator"


def _has_state_methods(callback: Any) -> bool:
    return all(callable(getattr(callback, name, None)) for name in ("get_state", "set_state"))


def _attributes(callback: Any) -> dict[str, Any]:
    """Return the attributes of a callback that may be state: not those of Keras' classes but their counters."""
    if _has_state_methods(callback):
        return {"get_state": callback.get_state()}
    counters = {name for kind in type(callback).__mro__ if _is_keras(kind) for name in _COUNTERS.get(kind.__name__, ())}
    ignored = (_OF_EVERY | set(_names_in_keras(type(callback)))) - counters
    return {name: value for name, value in vars(callback).items() if name not in ignored}


def _is_keras(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "keras"


def _names_in_keras(kind: type) -> frozenset[str]:
    """Return the names of attributes that the methods of Keras' classes among the bases of a class set."""

    def stored(methods: Iterable[Any]) -> Iterator[str]:
        for method in methods:
            if isinstance(method, FunctionType):
                yield from (each.argval for each in dis.get_instructions(method) if each.opname == "STORE_ATTR")

    return frozenset(name for base in kind.__mro__ if _is_keras(base) for name in stored(vars(base).values()))
