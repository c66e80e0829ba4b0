"""Keras' PyDatasets: why a batch may depend on more than its index, and their batches from any one on, in Keras' order.

The byte code of the methods and the types of what they use decide; besides, the first batch is read twice.
"""

from __future__ import annotations

import enum
import itertools
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tpunb.text import plain
from tpunb.tfdata.python_functions import GLOBAL, Use, object_attributes, uses_of
from tpunb.training.callbacks import CONSTANT, CallbackState
from tpunb.training.fingerprints import of_arrays
from tpunb.training.passes import CountingDataset
from tpunb.training.positions import LARGE
from tpunb.training.seeds import RandomState
from tpunb.training.state import digest, is_from

_NUMBERS = (bool, int, float, complex, str, bytes, enum.Enum, range, slice, type(None), *CONSTANT)
_BY_INDEX = "a batch must depend on its index only: draw from np.random.default_rng(index), and change nothing"
_PLAIN = "keep numbers, text and arrays there, or give fit arrays or a tf.data.Dataset"


class PyDatasetState:
    """A PyDataset for some steps, its attributes that change between epochs, and why it cannot be restored, or ""."""

    def __init__(self, dataset: Any, steps: int | None) -> None:
        self.dataset, self._kind, self._changing = dataset, plain(type(dataset).__name__), set[str]()
        self.reason = next(self._reasons(in_part=steps not in (None, dataset.num_batches)), "")

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes that change between epochs."""
        return {name: getattr(self.dataset, name) for name in sorted(self._changing) if hasattr(self.dataset, name)}

    def _reasons(self, *, in_part: bool) -> Iterator[str]:
        import keras

        kind, workers = self._kind, self.dataset.workers
        if type(self.dataset).__getitem__.__module__.startswith("keras."):
            yield f"{kind}: Keras' own Python code feeds it (use keras.utils.image_dataset_from_directory, or arrays)"
        for use in self._uses("__getitem__"):
            if use.action:
                yield f"{kind}.__getitem__ {use.action} ({_BY_INDEX})"
            elif use.owner is None and not _is_plain(use.value):
                what = f"{use.name!r} ({plain(type(use.value).__name__)})"
                yield f"{kind}.__getitem__ uses {what}, which may have state ({_PLAIN})"
        if self._uses("on_epoch_begin") or (in_part and self._uses("on_epoch_end")):
            yield f"{kind} may change while its batches are read (use on_epoch_end, and omit the number of steps)"
        for use in self._uses("on_epoch_end"):
            if use.action.startswith(GLOBAL) or (not use.action and _is_constant(use.value)):
                continue
            if use.owner is not self.dataset:
                yield f"{kind}.on_epoch_end {use.action or f'may change {use.name!r}'} (keep it in an attribute)"
            self._changing.add(use.name.removeprefix("self."))
        for name, value in vars(self.dataset).items():
            if name not in self._changing and not _is_plain(value):
                yield f"{kind}.{plain(name)} ({plain(type(value).__name__)}) may have state ({_PLAIN})"
        saved = CallbackState(datasets=[self])
        if saved.unsaved:
            yield f"{saved.unsaved}; {kind}.on_epoch_end may change it"
        if sum(array.nbytes for array in saved.arrays) > LARGE:
            names = ", ".join(f"{kind}.{plain(name)}" for name in self.attributes)
            yield f"{names}: too large to be saved, and may change between epochs (permute an array of indices instead)"
        is_ahead = workers > 1 or (workers > 0 and self.dataset.use_multiprocessing)
        if is_ahead and (in_part or keras.backend.backend() == "jax"):  # on JAX, building the model begins a pass
            yield f"{kind}: its workers leave batches to the next epoch, as many as they had read (set workers=1)"

    def _uses(self, method: str) -> list[Use]:
        return [*uses_of(*object_attributes(self.dataset, method))]

    def fingerprint(self) -> str:
        """Return a fingerprint of the number of batches, and of the attributes that do not change."""
        kept = {name: value for name, value in vars(self.dataset).items() if name not in self._changing}
        values = CallbackState()
        texts = sorted(f"{name}={value}" for name, value in values.add(self.dataset, kept).items())
        return of_arrays([np.frombuffer(repr((self.dataset.num_batches, texts)).encode(), np.uint8), *values.arrays])

    def probe(self) -> str:
        """Read the first batch twice; return why the batches cannot be restored, or ""."""
        if self.reason:
            return self.reason
        before, attributes = RandomState.capture(), self.fingerprint()
        first, again = (digest([self.dataset[0]], []) for _ in range(2))
        is_same = (first, repr(RandomState.capture()), self.fingerprint()) == (again, repr(before), attributes)
        before.restore()
        return "" if is_same else f"{self._kind}.__getitem__ is not the same when it is called again ({_BY_INDEX})"


class PyDatasetBatches(CountingDataset):
    """Batches of a PyDataset, from any one on, in the order that Keras draws from Python's random numbers."""

    def __init__(self, dataset: Any, adapter: Any, state: PyDatasetState) -> None:
        super().__init__(dataset)
        self._adapter, self._data = adapter, state.dataset
        self._begun: Any = None  # Python's random state when the pass began
        self._next: tuple[Any, int] = None, 0  # where the next pass begins: such a state, and a batch
        adapter._finite_generator = adapter._infinite_generator = self._batches
        if (enqueuer := adapter.enqueuer) is not None:
            enqueuer.shuffle, send = False, enqueuer._send_py_dataset

            def sending() -> None:  # called in a thread of Keras, before its workers read batches
                enqueuer.indices = self._order()
                send()

            enqueuer._send_py_dataset = sending

    def begin_at(self, position: Mapping[str, Any], drawn: int) -> None:
        """Have the first pass continue one that had begun, after some batches."""
        self._next = (position["begun"], drawn) if drawn and "begun" in position else (None, 0)

    def position(self, drawn: int) -> tuple[str, dict[str, Any]]:
        """Return why the position after some batches cannot be restored, or "", and its metadata."""
        is_read = self._begun is not None or not drawn
        return "" if is_read else "this Keras does not read a PyDataset as expected", {"begun": self._begun}

    def _batches(self) -> Iterator[Any]:
        for index in self._order():
            yield self._adapter._standardize_batch(self._data[index])

    def _order(self) -> Iterator[int]:
        """Begin a pass; return the order that Keras would give it, from its first batch on."""
        (begun, first), self._next = self._next, (None, 0)
        self._begun = begun or random.getstate()
        if (count := self._data.num_batches) is None:
            return itertools.count(first)
        order, drawn = list(range(count)), random.Random()
        if self._adapter.shuffle:
            drawn.setstate((self._begun[0], tuple(self._begun[1]), self._begun[2]))
            drawn.shuffle(order)
            if begun is None:
                random.shuffle([*order])  # as Keras draws
        return itertools.islice(order, first, None)


def _is_constant(value: Any) -> bool:
    """Return whether a value cannot change."""
    parts = value if isinstance(value, tuple | frozenset) else [getattr(value, "__self__", None)]  # of a method
    return isinstance(value, (tuple, frozenset, *_NUMBERS)) and all(
        part is None or _is_constant(part) for part in parts
    )


def _is_plain(value: Any) -> bool:
    """Return whether a value is made of numbers, text and arrays, so that only the program's code can change it."""
    if isinstance(value, list | tuple | set | frozenset | Mapping):
        return all(map(_is_plain, value.values() if isinstance(value, Mapping) else value))
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype != object or all(map(_is_plain, value.flat))
    is_tensor = (
        hasattr(value, "__array__") and not hasattr(value, "assign") and is_from(value, "tensorflow", "jax", "jaxlib")
    )
    return is_tensor or is_from(value, "pandas", "scipy", "h5py") or _is_constant(value)
