"""Positions in a job's data, from which trials of any values start at the same element.

A position is reached once and kept: restoring takes hundredths of a second, reading again as long as the run did.
"""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpunb.errors import TpunbError
from tpunb.text import format_error
from tpunb.tfdata.graph import AUTOTUNE
from tpunb.tfdata.position import explain, set_state, state_of
from tpunb.torchdata.effects import digest
from tpunb.torchdata.loader import batches_of, shut_down
from tpunb.tuning.grain import GrainPipeline
from tpunb.tuning.job import Training
from tpunb.tuning.loader import LoaderPipeline, trial_loader
from tpunb.tuning.parameters import Kind, Value
from tpunb.tuning.pipeline import Pipeline

_LAST = 8  # batches before a position that are read with the program's values
_TIMEOUT = 60.0  # seconds for a batch after which workers count as hung


class BatchSource:
    """Data from a position on; after their end they start again, as in the next epoch."""

    def __init__(self, dataset: Any, iterator: Iterator[Any]) -> None:
        self.dataset, self.iterator = dataset, iterator

    def execute(self, training: Training) -> Any:
        """Run one execution of a training; return its outputs."""
        return self._asked(training.execute)

    def draw(self) -> Any:
        """Return the next batch."""
        return self._asked(next)

    def _asked(self, ask: Callable[[Iterator[Any]], Any]) -> Any:
        try:
            return ask(self.iterator)
        except StopIteration:
            self.iterator = iter(self.dataset)
        try:
            return ask(self.iterator)
        except StopIteration:
            raise _no_batch() from None

    def batches_digest(self) -> NDArray[np.uint8] | None:
        """Return a digest of the batches so far, and compute it no longer; None if only outputs are compared."""
        return None

    def close(self) -> None:
        """End what reads ahead for the iterator: threads, and worker processes."""
        for reader in (self.iterator, getattr(self.iterator, "_iterator", None)):  # a grain.DataLoader's holds another
            if callable(close := getattr(reader, "close", None)):
                close()


class LoaderSource(BatchSource):
    """Batches of a DataLoader from the beginning, whose workers end with `close`."""

    def __init__(self, loader: Any) -> None:
        super().__init__(self, self)
        self._loader = loader
        self._batches: Any = None  # begins with the first batch
        self._hashed: Any = hashlib.blake2b(digest_size=16)
        self._waits: list[float] = []
        self._firsts: list[int] = []  # places of the first batches of epochs

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        started = time.perf_counter()
        if self._batches is None:
            self._firsts.append(len(self._waits))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that there are more workers than cores
                self._batches = iter(self._loader)
        try:
            batch = next(self._batches)
        except StopIteration:
            self._batches = None
            raise
        self._waits.append(time.perf_counter() - started)
        if self._hashed is not None:
            self._hashed.update(digest(batch))
        return batch

    def epoch_seconds(self, seconds: float, executions: int) -> float:
        """Return the seconds per execution over an epoch, at whose beginning workers start."""
        if (batches := batches_of(self._loader)) is None:
            return seconds
        last = range(len(self._waits) - executions, len(self._waits))
        later = [self._waits[place] for place in last if place not in self._firsts]
        first, steady = min(self._waits[place] for place in self._firsts), sum(later) / max(len(later), 1)
        model = seconds - sum(self._waits[place] for place in last) / executions
        return model + (first + (batches - 1) * steady) / batches

    def batches_digest(self) -> NDArray[np.uint8]:
        """Return a digest of the batches so far, and compute it no longer."""
        hashed, self._hashed = self._hashed, None
        return np.frombuffer(hashed.digest(), np.uint8)

    def close(self) -> None:
        """End the workers."""
        shut_down(self._batches)
        shut_down(self._loader._iterator)  # workers that stay


class TfPosition:
    """A position in a ``tf.data`` pipeline, which is reached by reading, and kept as the state of an iterator.

    The program started `begun` iterators before, each of which changes its shuffles, and drew batches since, at least
    one, which fills buffers.
    """

    def __init__(self, pipeline: Pipeline, *, begun: int = 0, drawn: int = 0) -> None:
        import tensorflow as tf

        self._pipeline, self._begun, self._drawn = pipeline, begun, max(drawn, 1)
        self.obstacle = ""  # why the position cannot be kept
        iterator = self._reached()
        try:
            self._state = state_of(iterator)
            set_state(iter(pipeline.build({})), self._state)
        except tf.errors.OpError as error:
            self.obstacle = explain(error)

    def source(self, values: Mapping[str, Value]) -> BatchSource:
        """Return the data from the position on."""
        dataset = self._pipeline.build(values)
        if self.obstacle:
            return BatchSource(dataset, self._by_reading(dataset))
        iterator = iter(dataset)
        set_state(iterator, self._state)
        return BatchSource(dataset, iterator)

    def _reached(self) -> Iterator[Any]:
        """Return an iterator at the position, with the contents of its buffers as in the program."""
        import tensorflow as tf

        if self._drawn > 2 * _LAST:  # most is read in parallel, the last part with the program's values
            try:
                return self._quickly()
            except (tf.errors.OpError, TpunbError):  # functions that fail in parallel, positions that cannot be kept
                pass
        try:
            return self._by_reading(self._pipeline.build({}))
        except tf.errors.OpError as error:
            raise TpunbError(f"the data fail as they are: {format_error(error)}", hint="check build()") from error

    def _quickly(self) -> Iterator[Any]:
        parallel: dict[str, Value] = {
            parameter.name: AUTOTUNE
            for parameter in self._pipeline.parameters
            if parameter.kind is Kind.CALLS and AUTOTUNE in parameter.domain
        }
        near = state_of(self._by_reading(self._pipeline.build(parallel), self._drawn - _LAST))
        dataset = self._pipeline.build({})
        iterator = iter(dataset)
        set_state(iterator, near)
        return _after(dataset, _LAST, iterator)

    def _by_reading(self, dataset: Any, drawn: int | None = None) -> Iterator[Any]:
        for _ in range(self._begun):
            iter(dataset)
        return _after(dataset, self._drawn if drawn is None else drawn)


class Beginning:
    """The beginning of data of Grain, or of a DataLoader."""

    obstacle = ""

    def __init__(self, pipeline: GrainPipeline | LoaderPipeline) -> None:
        self._pipeline = pipeline

    def source(self, values: Mapping[str, Value]) -> BatchSource:
        """Return the data from the beginning on."""
        if isinstance(self._pipeline, LoaderPipeline):
            return LoaderSource(trial_loader(self._pipeline, values, _TIMEOUT))
        dataset = self._pipeline.build(values)
        return BatchSource(dataset, _after(dataset, 1))


def _after(dataset: Any, drawn: int, iterator: Iterator[Any] | None = None) -> Iterator[Any]:
    """Return an iterator after some batches; it starts again when the data end."""
    iterator, left, fresh = iterator or iter(dataset), drawn, iterator is None
    while left:
        try:
            next(iterator)
            left, fresh = left - 1, False
        except StopIteration:
            if fresh:
                raise _no_batch() from None
            iterator, fresh = iter(dataset), True
    return iterator


def _no_batch() -> TpunbError:
    return TpunbError("the data have no batch", hint="check build()")
