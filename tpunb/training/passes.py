"""Passes over the data of a ``fit``: counted, and of arrays each from any batch on, in an order that has a seed."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tpunb.errors import warn_user
from tpunb.instrument.keras import array_adapter
from tpunb.text import format_error
from tpunb.training import constants


class CountingDataset:
    """A dataset that counts its iterators: with each, its shuffles proceed to another order."""

    def __init__(self, dataset: Any, iterators: int = 0) -> None:
        self.dataset, self.iterators = dataset, iterators
        self.is_creating = False

    def __iter__(self) -> Iterator[Any]:
        self.iterators += 1
        self.is_creating = True
        try:
            return self.pass_from(self.iterators - 1)
        finally:
            self.is_creating = False

    def pass_from(self, number: int) -> Iterator[Any]:
        """Return an iterator over the pass of a number."""
        return iter(self.dataset)

    def begin(self, iterators: int) -> None:
        """Proceed as if some iterators had been created."""
        for _ in range(iterators):
            iter(self)


class ArrayBatches(CountingDataset):
    """Batches of the arrays of a fit, gathered by Keras' own pipeline.

    Keras shuffles with TensorFlow's global seed if there is one: each pass has the same order. Without it, the passes
    have orders of the same distribution from `seed`; after a `problem`, Keras' own.
    """

    def __init__(self, dataset: Any, gather: Any, adapter: Any) -> None:
        super().__init__(dataset)
        self._gather, self._adapter = gather, adapter
        self._indices, self._arrays = gather._inputs()[0]._inputs()
        self._shuffle_seeds = _shuffle_seeds(self._indices)
        self.needs_seed = any(seeds == (0, 0) for seeds in self._shuffle_seeds)
        self.seed = secrets.randbelow(2**62) + 1
        self.problem = ""

    def __iter__(self) -> Iterator[Any]:
        try:
            return super().__iter__()
        except Exception as error:  # noqa: BLE001  the training must continue
            if not self.problem:
                self.problem = f"the order of the arrays is not that of its seed: {format_error(error)}"
                warn_user(f"resuming will not be exact. {self.problem}", stacklevel=2)
            return iter(self.dataset)

    @classmethod
    def of(cls, dataset: Any, adapter: Any) -> Self | None:
        """Return the batches of Keras' pipeline over arrays; None for any other dataset, such as a distributed one."""
        if not isinstance(adapter, array_adapter()) or not hasattr(dataset, "_inputs"):
            return None
        gather = dataset
        while not hasattr(gather, "_map_func"):
            (gather,) = gather._inputs()
        return cls(dataset, gather, adapter)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the arrays and of the order in which they are read."""
        (source,) = self._arrays._inputs()
        adapter = self._adapter
        order = adapter._batch_size, adapter._shuffle, *self._shuffle_seeds
        return constants.of_arrays(source._tensors, repr(order))

    def pass_from(self, number: int, start: int = 0) -> Iterator[Any]:
        """Return an iterator over the pass of a number, from a batch on; the earlier ones are not read."""
        import tensorflow as tf

        if not self.needs_seed:
            return iter(self._ending(self._gathered(self._indices.skip(start))) if start else self.dataset)
        variant = self._shuffled(self._order(number), tf.constant(start, tf.int64))
        return iter(self._ending(tf.data.experimental.from_variant(variant, self.dataset.element_spec)))

    def begin(self, iterators: int) -> None:
        """Proceed as if some iterators had been created."""
        self.iterators = iterators

    def _gathered(self, indices: Any) -> Any:
        """Return the batches of the arrays at indices, as Keras makes them."""
        import tensorflow as tf

        pairs = tf.data.Dataset.zip((indices, self._arrays))
        return pairs.map(self._gather._map_func._func, num_parallel_calls=tf.data.AUTOTUNE)

    def _ending(self, batches: Any) -> Any:
        import tensorflow as tf

        return batches.with_options(self.dataset.options()).prefetch(tf.data.AUTOTUNE)

    def _order(self, number: int) -> NDArray[np.int64]:
        """Return the order of a pass: of all samples, or with ``shuffle="batch"`` within each batch."""
        drawn = np.random.Generator(np.random.PCG64([self.seed, number]))
        samples, size = self._adapter._num_samples, self._adapter._batch_size
        if self._adapter._shuffle != "batch":
            return drawn.permutation(samples)
        order, full = np.arange(samples), samples // size * size
        order[:full] = drawn.permuted(order[:full].reshape(-1, size), axis=1).reshape(-1)
        drawn.shuffle(order[full:])
        return order

    @cached_property
    def _shuffled(self) -> Any:
        """A compiled function of an order and a first batch, which returns the dataset as a tensor."""
        import tensorflow as tf

        samples, size = self._adapter._num_samples, self._adapter._batch_size
        full = samples // size * size

        def shuffled(order: Any, start: Any) -> Any:
            indices = tf.data.Dataset.from_tensor_slices(tf.reshape(order[:full], [full // size, size]))
            if full < samples:
                indices = indices.concatenate(tf.data.Dataset.from_tensors(order[full:]))
            return tf.data.experimental.to_variant(self._gathered(indices.skip(start)))

        return tf.function(shuffled, [tf.TensorSpec([samples], tf.int64), tf.TensorSpec([], tf.int64)])


def _shuffle_seeds(dataset: Any) -> list[tuple[int, int]]:
    """Return the two seeds of each random shuffle in the functions of a dataset and of those that it reads."""
    nodes = [node for each in dataset._functions() for node in each.function.graph.as_graph_def().node]
    present = [(node.attr["seed"].i, node.attr["seed2"].i) for node in nodes if node.op == "RandomShuffle"]
    return [*present, *(seeds for below in dataset._inputs() for seeds in _shuffle_seeds(below))]
