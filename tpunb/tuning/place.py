"""A place in a job's data: iterators over whatever values build all begin there, at the same element.

The position is reached once and written down. Reading it takes hundredths of a second, where drawing everything before
it again would take as long as the run did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tpunb.errors import TpunbError
from tpunb.resuming import datasets
from tpunb.tuning.grain_pipeline import GrainPipeline
from tpunb.tuning.knob import AUTOTUNE, Value
from tpunb.tuning.pipeline import Pipeline
from tpunb.tuning.refused import in_words
from tpunb.tuning.training import Training

_LAST = 8
"""Batches before a place that are drawn as the program is written."""

_FEW = 4
"""Batches that are drawn again where a position cannot be read: more would make every trial as long as the run."""


class Feed:
    """Data from a place on: when they are over they begin anew, as in the next epoch.

    Parameters
    ----------
    dataset
        Which is begun anew.
    iterator
        That stands at the place.
    """

    def __init__(self, dataset: Any, iterator: Iterator[Any]) -> None:
        self.dataset, self.iterator = dataset, iterator

    def turn(self, training: Training) -> Any:
        """Take a turn of training; return what it tells.

        Raises
        ------
        TpunbError
            When an epoch holds no batch.
        """
        try:
            return training.turn(self.iterator)
        except StopIteration:
            self.iterator = iter(self.dataset)
        try:
            return training.turn(self.iterator)
        except StopIteration:
            raise TpunbError("the data hold no batch", hint="see what build() returns") from None


class Place(Protocol):
    """Where trials find their data."""

    why: str
    """The position cannot be written down, in a sentence, or ""."""

    def feed(self, values: Mapping[str, Value]) -> Feed:
        """Return the data from the place on, as these values build them."""


class Midst(NamedTuple):
    """The midst of a running fit."""

    step: int  # how many it has taken
    place: Place  # where it stands in its data
    turn_s: float  # how long a turn took as yet: a trial's own first ones find what was read ahead


class TfPlace:
    """A place in a ``tf.data`` pipeline.

    Parameters
    ----------
    pipeline
        Of the job.
    folder
        Where the position is written.
    begun
        How often the program had begun its data before: each time its shuffles go on to another order.
    drawn
        Batches that it had drawn since. At least one is drawn, which fills the buffers of shuffles.
    iterator
        One that stands there already, of `movable` data; without it, what was drawn is drawn again.
    """

    def __init__(
        self, pipeline: Pipeline, folder: Path, *, begun: int = 0, drawn: int = 0, iterator: Any = None
    ) -> None:
        self._pipeline, self._begun, self._drawn = pipeline, begun, max(drawn, 1)
        self._prefix = folder / "position"
        self.why = datasets.write(self._prefix, self._reached() if iterator is None else iterator)

    def feed(self, values: Mapping[str, Value]) -> Feed:
        """Return the data from the place on.

        Raises
        ------
        TpunbError
            When these values make other stages, in which the position is not known, and it lies far in the data.
        """
        dataset = self._built(values)
        if self.why:
            return Feed(dataset, self._by_drawing(dataset))
        iterator = iter(dataset)
        try:
            datasets.read(self._prefix, iterator)
        except TpunbError as error:
            if self._begun or self._drawn > _FEW:
                raise TpunbError(
                    f"the position after {self._drawn} batches cannot be read into another order of stages",
                    hint="tune from the beginning: leave start= out",
                ) from error
            iterator = self._by_drawing(self._built(values))
        return Feed(dataset, iterator)

    def later(self, values: Mapping[str, Value]) -> Any:
        """Return the data as later epochs begin them, with these values.

        They go on with the program's own shuffles, wherever and however often these were begun: what reads a position
        has shuffles of its own.
        """
        return movable(self._pipeline.in_place(values))

    def _built(self, values: Mapping[str, Value]) -> Any:
        return movable(self._pipeline.build(values))

    def _reached(self) -> Iterator[Any]:
        """Return an iterator at the place, that holds no more in its buffers than the program's own would.

        Most of a long way is drawn by several threads, the last part as the program is written.
        """
        import tensorflow as tf

        if self._drawn > 2 * _LAST:
            try:
                return self._quickly()
            except (tf.errors.OpError, TpunbError):  # functions that fail in two threads, positions that are not kept
                pass
        try:
            return self._by_drawing(self._built({}))
        except tf.errors.OpError as error:
            told = f"the data fail as they are: {in_words(error)}"
            raise TpunbError(told, hint="see what build() returns") from error

    def _quickly(self) -> Iterator[Any]:
        near = self._prefix.with_name("near")
        if why := datasets.write(near, self._by_drawing(self._built(_quick(self._pipeline)), self._drawn - _LAST)):
            raise TpunbError(why)
        dataset = self._built({})
        iterator = iter(dataset)
        datasets.read(near, iterator)
        return _after(lambda: iter(dataset), _LAST, iterator)

    def _by_drawing(self, dataset: Any, drawn: int | None = None) -> Iterator[Any]:
        for _ in range(self._begun):
            iter(dataset)
        return _after(lambda: iter(dataset), self._drawn if drawn is None else drawn)


def movable(dataset: Any) -> Any:
    """Return a dataset whose position may be written although Python feeds it.

    Whether Python keeps a state of its own is told by the outputs, which are compared.
    """
    import tensorflow as tf

    options = tf.data.Options()
    options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.IGNORE
    return dataset.with_options(options)


class GrainPlace:
    """A place in a Grain pipeline, at its beginning.

    Parameters
    ----------
    pipeline
        Of the job.
    """

    why = ""

    def __init__(self, pipeline: GrainPipeline) -> None:
        self._pipeline = pipeline

    def feed(self, values: Mapping[str, Value]) -> Feed:
        """Return the data from the place on."""
        dataset = self._pipeline.build(values)
        return Feed(dataset, _after(lambda: iter(dataset), 1))


def _after(begin: Callable[[], Iterator[Any]], drawn: int, iterator: Iterator[Any] | None = None) -> Iterator[Any]:
    """Return an iterator of which so many batches are drawn; it begins anew where the data are over before."""
    iterator, left, fresh = iterator or begin(), drawn, iterator is None
    while left:
        try:
            next(iterator)
            left, fresh = left - 1, False
        except StopIteration:
            if fresh:
                raise TpunbError("the data hold no batch", hint="see what build() returns") from None
            iterator, fresh = begin(), True
    return iterator


def _quick(pipeline: Pipeline) -> dict[str, Value]:
    """Return values that draw much quickly."""
    return {
        knob.name: AUTOTUNE
        for knob in pipeline.knobs
        if knob.verdict != "refused" and AUTOTUNE in knob.domain and knob.name.endswith(" parallel calls")
    }
