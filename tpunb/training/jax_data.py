"""The data of a ``fit`` on JAX: batches of tf.data, arrays and Grain as Keras makes them, and the position in them.

Keras on JAX begins a pass over its data with the first batch, so that its iterators are opened then. On a GPU or TPU it
draws one batch ahead; here none is, so that a position is that of the batches trained on.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np

from tpunb.instrument.keras import array_adapter, dataset_adapter, distribute, sliceable
from tpunb.text import format_error, plain
from tpunb.tfdata.restored import explain_op
from tpunb.training import constants, seeds
from tpunb.training.fit_data import FitData
from tpunb.training.passes import CountingDataset


class Feed:
    """Batches of an iterator in the form in which Keras passes them to a step on JAX."""

    def __init__(self, adapter: Any, begin: Callable[[], Iterator[Any]]) -> None:
        self._adapter, self._begin = adapter, begin
        self.source: Any = None  # iterator of the data
        self.shapes: Any = None  # tree of the shapes and types of the first batch
        self.noted: list[Any] | None = None  # batches since this list was set; None to note none
        self._batches: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        import jax

        self.opened()
        assert self._batches is not None
        batch = next(self._batches)
        if self.shapes is None:
            self.shapes = jax.tree.map(_shape, batch)
        if self.noted is not None:
            self.noted.append(batch)
        return batch

    def opened(self) -> Any:
        """Return the iterator of the data, which is created if necessary."""
        if self.source is None:
            self.move(self._begin())
        return self.source

    def move(self, source: Any) -> None:
        """Take the next batches from another iterator."""
        self.source, self._batches = source, _on_device(_converted(self._adapter, source))


class JaxData(FitData):
    """The data of a fit on JAX and the position in them; Keras holds a `Feed`, and `iterator` is its source."""

    _feed: Feed | None = None  # of the steps
    _is_counted = False  # positions are those of `FitData`, not states of iterators

    def attach(self, epochs: Any, listened: Callable[[Any], Any]) -> None:
        """Take the data when Keras has prepared them; `listened` may replace a dataset by one with its elements."""
        import keras

        self.epochs, adapter = epochs, epochs.data_adapter
        self._is_counted = isinstance(adapter, dataset_adapter())
        if keras.distribution.distribution() is not None:
            self._is_counted, self.reason = False, "the training is distributed over devices (keras.distribution)"
            return
        if self._is_counted:
            epochs._distributed_dataset = adapter._dataset
            super().attach(epochs, listened)
        elif isinstance(adapter, array_adapter()):
            self.fingerprint = _of_arrays(adapter)
            self.passes = epochs._distributed_dataset = _Passes(lambda: ArrayPass(adapter))
        elif type(adapter).__name__ == "GrainDatasetAdapter":
            self.passes = epochs._distributed_dataset = _Passes(lambda: iter(adapter.get_jax_iterator()))
        elif hasattr(adapter, "py_dataset"):
            passes = _Passes(adapter.get_jax_iterator)
            self.passes = epochs._distributed_dataset = self._py_batches(passes) or passes
            self._is_counted = not self.reason
        else:
            name = plain(type(vars(adapter).get("_dataloader") or adapter).__name__)
            python = f"{name}: Python code feeds it, which may have state"
            python = f"{python} (give fit arrays, a tf.data.Dataset or a PyDataset)"
            self.reason = explain_op("GeneratorDataset") if hasattr(adapter, "generator") else python
            return
        epochs._get_iterator = lambda: Feed(adapter, lambda: iter(epochs._distributed_dataset))

    def begin(self, iterators: int, used: int) -> None:
        """Proceed in the orders of the data as if iterators had been created, and some of them used."""
        if self._is_counted:
            super().begin(iterators, used)
        else:
            self.passes.begin(iterators)

    def current(self, iterator: Any) -> Any:
        """Return the iterator that feeds the steps in place of Keras' own."""
        if not isinstance(iterator, Feed):
            return iterator
        self._feed = iterator
        return iterator.opened()

    def step_batches(self, iterator: Any) -> Any:
        """Return the batches of an iterator as a step takes them."""
        return iterator if self._feed is None else self._feed

    @property
    def shapes(self) -> Any:
        """Tree of the shapes and types of the first batch; None before it."""
        return None if self._feed is None else self._feed.shapes

    @property
    def _kept(self) -> Any:
        feed = super()._kept
        return feed.source if isinstance(feed, Feed) else feed

    def _feed_from(self, iterator: Any) -> None:
        assert self._feed is not None
        self.iterator = iterator
        self._feed.move(iterator)

    def _try_save(self, iterator: Any) -> str:
        return super()._try_save(iterator) if self._is_counted else _state_of(iterator)[0]

    def _write_position(self, folder: Path, live: Any, drawn: int) -> tuple[str, dict[str, Any]]:
        return super()._write_position(folder, live, drawn) if self._is_counted else _state_of(live)

    def _read_position(self, saved: Mapping[str, Any]) -> int:
        assert self.start is not None
        if (state := saved["position"].get("state")) is None and self._is_counted:
            return super()._read_position(saved)
        try:
            self.iterator.set_state(base64.b64decode(state["bytes"]) if "bytes" in state else state["json"])
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise self.start.different_data(f"its position cannot be restored ({format_error(error)})") from error
        return 0


class ArrayPass:
    """A pass over arrays, in the order that NumPy's random state gives it when its first batch is drawn."""

    def __init__(self, adapter: Any) -> None:
        self._adapter = copy(adapter)
        self._adapter._get_iterator = self._sliced
        self._random: dict[str, Any] | None = None  # when it began
        self._drawn, self._is_skipping = 0, False
        self._batches = self._adapter.get_jax_iterator()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._random = self._random or seeds.host_random_state()
        batch = next(self._batches)
        self._drawn += 1
        return batch

    def get_state(self) -> dict[str, Any]:
        """Return the position as JSON values."""
        return {"random": self._random, "drawn": self._drawn}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Proceed to a position; the batches before it are not read, and the random state stays."""
        present = seeds.host_random_state()
        self._is_skipping = True
        try:
            seeds.set_host_random_state(state["random"] or present)
            for _ in range(state["drawn"]):
                next(self)
        finally:
            self._is_skipping = False
            seeds.set_host_random_state(present)

    def _sliced(self, slice_batch: Callable[..., Any], inputs: Any) -> Iterator[Any]:
        def sliced(part: Any, indices: Any = None) -> Any:
            return None if self._is_skipping else slice_batch(part, indices=indices)

        batches: Iterator[Any] = type(self._adapter)._get_iterator(self._adapter, sliced, inputs)
        return batches


class _Passes(CountingDataset):
    """Passes whose order depends on no pass before."""

    def __init__(self, begin: Callable[[], Iterator[Any]]) -> None:
        super().__init__(None)
        self._begin = begin

    def pass_from(self, number: int) -> Iterator[Any]:
        return self._begin()

    def begin(self, iterators: int) -> None:
        self.iterators = iterators


def batches_of(iterator: Any) -> Feed:
    """Return the batches of an iterator of ``tf.data`` as ``fit`` passes them to a step."""
    kind = dataset_adapter()
    feed = Feed(kind.__new__(kind), lambda: iterator)
    feed.opened()
    return feed


def _converted(adapter: Any, source: Any) -> Iterator[Any]:
    """Return the batches of an iterator of ``tf.data`` as Keras converts them; others are converted already."""
    if not hasattr(source, "element_spec"):
        return iter(source)
    reader = copy(adapter)
    reader._dataset = source
    converted: Iterator[Any] = reader.get_jax_iterator()
    return converted


def _on_device(batches: Iterator[Any]) -> Iterator[Any]:
    """Return batches that Keras would transfer before the step, on another device than a CPU."""
    import jax

    return batches if jax.default_backend() == "cpu" else map(distribute, batches)


def _shape(array: Any) -> Any:
    import jax

    struct: Any = jax.ShapeDtypeStruct
    try:
        return struct(array.shape, jax.dtypes.canonicalize_dtype(array.dtype))
    except (AttributeError, TypeError):  # a number, or what the step refuses
        return array


def _state_of(iterator: Any) -> tuple[str, dict[str, Any]]:
    """Return why the state of an iterator cannot be saved, or "", and its metadata."""
    if iterator is None:
        return "", {}
    try:
        state = iterator.get_state()
        encoded = {"bytes": base64.b64encode(state).decode()} if isinstance(state, bytes) else {"json": state}
        json.dumps(encoded)
    except (AttributeError, TypeError, ValueError, NotImplementedError) as error:
        return f"{plain(type(iterator).__name__)}: its state cannot be saved ({format_error(error)})", {}
    return "", {"state": encoded}


def _of_arrays(adapter: Any) -> str:
    """Return a fingerprint of the arrays of a fit and of the order in which they are read."""
    import keras

    parts = keras.tree.flatten(sliceable(adapter._inputs))

    def rows(part: Any, at: Any) -> Any:
        return np.asarray(part.convert_to_numpy(part[np.asarray(at)]))

    readers = [lambda at, part=part: rows(part, at) for part in parts if part is not None]
    return constants.of_rows(readers, adapter._num_samples, repr((adapter._batch_size, adapter._shuffle)))
