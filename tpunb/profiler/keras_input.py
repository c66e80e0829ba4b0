"""Time the wait for each batch of Keras' fit, evaluate and predict, on every backend.

On TensorFlow the train function draws its batch inside the graph, where no clock of the host sees it. Here the batch is
drawn just before, as an optional of the same element spec, and the function gets an iterator that holds it: it computes
the same, bit for bit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, wraps
from types import GeneratorType
from typing import Any

from tpunb.profiler.step_clock import StepClock

_LAST = "_tpunb_last_batch"
_TURNS = "_tpunb_turns"
_PYTHON = (GeneratorType, map, zip)  # batches that a train function draws itself


def timed(original: Callable[[Any], Any], clock: StepClock, kind: Callable[[], str | None]) -> Callable[[Any], Any]:
    """Return ``EpochIterator.__next__`` so that it begins a step and records its wait for data."""

    def draw(epochs: Any) -> Any:
        first, last, data = original(epochs)
        if first == last and _of_tensorflow(data):  # several steps in one call draw their batches in the graph
            data = _drawn()(data)
            setattr(epochs, _LAST, data)
        return first, last, data

    @wraps(original)
    def turn(epochs: Any) -> Any:
        running = kind()
        if running is None or _is_over(epochs):  # the iterator of another loop, or no step begins
            return original(epochs)
        clock.request(running)
        first, last, data = clock.draw(draw, epochs)
        return first, last, _TimedBatches(data, clock) if isinstance(data, _PYTHON) else data

    return turn


def _is_over(epochs: Any) -> bool:
    """Count the turns of an epoch, and return whether it has had all, where their number is known."""
    epoch, turns = getattr(epochs, _TURNS, (None, 0))
    turns = turns if epoch is epochs._epoch_iterator else 0
    setattr(epochs, _TURNS, (epochs._epoch_iterator, turns + 1))
    return epochs.num_batches is not None and turns * epochs.steps_per_execution >= epochs.num_batches


def _of_tensorflow(data: Any) -> bool:
    tf = sys.modules.get("tensorflow")
    return tf is not None and isinstance(data, tf.data.Iterator)


class _TimedBatches:
    """Batches that a train function draws itself in Python, with the wait for each."""

    def __init__(self, batches: Iterator[Any], clock: StepClock) -> None:
        self._batches, self._clock = batches, clock

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._clock.draw(next, self._batches)


@cache
def _drawn() -> type[Any]:
    """Return the class of iterators that hold one batch, which has been drawn."""
    import tensorflow as tf

    class BatchSpec(tf.TypeSpec):  # type: ignore[misc]  # TensorFlow is untyped
        def __init__(self, element_spec: Any) -> None:
            self.element_spec = element_spec

        @property
        def value_type(self) -> type[Any]:
            return Batch

        def _serialize(self) -> tuple[Any, ...]:
            return (self.element_spec,)

        @property
        def _component_specs(self) -> Any:
            return tf.OptionalSpec(self.element_spec)

        def _to_components(self, value: Any) -> Any:
            return value.optional

        def _from_components(self, components: Any) -> Any:
            return Batch.of(components)

    class Batch(tf.data.Iterator):  # type: ignore[misc]
        def __init__(self, iterator: Any) -> None:
            self.optional = iterator.get_next_as_optional()

        @classmethod
        def of(cls, optional: Any) -> Any:
            batch = cls.__new__(cls)
            batch.optional = optional
            return batch

        @property
        def element_spec(self) -> Any:
            return self.optional.element_spec

        @property
        def _type_spec(self) -> Any:
            return BatchSpec(self.element_spec)

        def get_next(self) -> Any:
            return self.optional.get_value()

        def get_next_as_optional(self) -> Any:
            return self.optional

        def __next__(self) -> Any:
            if not self.optional.has_value():
                raise StopIteration
            return self.get_next()

    return Batch


def ended(original: Callable[[Any], AbstractContextManager[None]]) -> Callable[[Any], AbstractContextManager[None]]:
    """Return ``catch_stop_iteration`` so that it knows the end of the data: of TensorFlow's, a batch without value."""

    @wraps(original)
    @contextmanager
    def catch(epochs: Any) -> Iterator[None]:
        with original(epochs):
            try:
                yield
            except Exception as error:
                batch = getattr(epochs, _LAST, None)
                if batch is None or type(error).__name__ != "InvalidArgumentError" or batch.optional.has_value():
                    raise
                raise StopIteration from None

    return catch
