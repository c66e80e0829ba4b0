"""Trials: short runs of a job, all from the same place, with other values of its pipeline (paper VII.B).

A trial puts the state back and the data to the place, lets buffers fill, runs a window of steps, and tells how long one
took and, in a digest, what came out. Two trials of the same values that differ in their digests mean that outputs
cannot be compared: such a job is not tuned.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Self

from tpunb.checkpoint import Checkpoint, own_files
from tpunb.errors import TpunbError, whole, wrong
from tpunb.frames.words import plain, plural
from tpunb.resuming import datasets, folders
from tpunb.resuming.fits import Fit, Start
from tpunb.tuning.grain_pipeline import GrainPipeline
from tpunb.tuning.job import Job
from tpunb.tuning.knob import Value
from tpunb.tuning.pipeline import Pipeline
from tpunb.tuning.place import Feed, GrainPlace, Midst, Place, TfPlace
from tpunb.tuning.refused import Refused, in_words
from tpunb.tuning.state import State, arrays

WARM = 8
"""Turns before the window: a buffer that holds no more batches is emptied, or filled, by then."""

_SECONDS, _LEAST, _MOST = 0.5, 3, 100
"""A window takes about so long in the present values, in this many turns."""

_FIRST = 3, 3
"""Turns before the window and in it, of the first trial: of slow ones, it is like the others."""

_SHORT, _AGAIN = 0.15, 0.2
"""Seconds of a window that are too few to tell of; and those that are then timed once more, after the output."""

_SLOW = 0.3
"""Seconds of a turn from which on less is warmed up."""

_PATIENCE, _HICCUP = 5, 2.0
"""Trials of the program's own values that another trial may take in time, and seconds that any may."""


@dataclass(frozen=True)
class Outcome:
    """What a trial told.

    Attributes
    ----------
    seconds
        A step, in the window.
    digest
        Of losses, metrics and the state after the last step.
    spent
        Seconds of the whole trial.
    busy
        Cores that this process kept busy in the window.
    """

    seconds: float
    digest: str
    spent: float
    busy: float = 0.0


class Track:
    """A job at one place of its run, from which any values can be tried: ``with Track(job) as track: ...``.

    After the block the model, its optimizer, metrics and seeds, and Python's and NumPy's random numbers are what they
    were before, however it ends. Files are written to a temporary folder only.

    Parameters
    ----------
    job
        What is run.
    start
        A checkpoint of its ``fit``, of `tpunb.resuming.checkpointing`; None for the beginning. The position in the
        data is reached by drawing what was drawn, once: it need not be in the checkpoint. Of a fit that is running,
        its `Midst`: trials start from the model as it is.
    warm, window
        Turns before the window, and in it; None to choose them by the time of a turn.

    Raises
    ------
    TpunbError
        The checkpoint cannot be tuned from; or, in the block, it is of another job.
    """

    def __init__(
        self, job: Job, start: Checkpoint | Midst | None = None, *, warm: int | None = None, window: int | None = None
    ) -> None:
        if not isinstance(job, Job):
            raise wrong("tune", "job", "be a Job", job, hint="tpunb.Job(build), where build() returns (model, data)")
        self.job, self.start = job, _checked(job, start)
        if isinstance(start, Midst):
            known = turns(start.turn_s)
            warm, window = known[0] if warm is None else warm, known[1] if window is None else window
        self._turns = warm, window
        self._limit, self._short = math.inf, 0.0
        self.warm = WARM if warm is None else whole("Track", "warm", warm, 1)
        self.window = _LEAST if window is None else whole("Track", "window", window, 1)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(State.of(()).put_back)  # build() may draw random numbers, and seed them
            self.pipeline: Pipeline | GrainPipeline = self.job.pipeline
            self.training = self.job.training
            self.refusal: str | None = getattr(self.pipeline, "refusal", None)
            users = self.training.state()
            stack.callback(lambda: self.training.put_back(users))
            stack.enter_context(self.training.seeded())
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="tpunb-")))
            if self.refusal is None:  # else there is nothing to try
                self._place = self._placed(folder)
            self._state = self.training.state()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __repr__(self) -> str:
        where = "its beginning" if self.start is None else f"step {self.start.step}"
        return f"Track({self.job!r} at {where}, {self.warm} + {self.window} turns a trial)"

    @property
    def why_slow(self) -> str:
        """Why a trial must draw all batches before its place again, in a sentence; "" where it need not."""
        return self._place.why

    @property
    def hidden(self) -> str:
        """What a trial could not put back, since a step keeps it to itself, in a sentence; "" for nothing."""
        return self.training.hidden(self._place.feed({}).iterator)

    def settle(self) -> Outcome:
        """Return what a trial of the present values tells, once all is compiled; and choose how many turns it has."""
        first = self._run({}, *_FIRST)
        warm, window = turns(first.seconds * self.training.steps)
        self.warm = warm if self._turns[0] is None else self.warm
        self.window = window if self._turns[1] is None else self.window
        self._short = _SHORT if self._turns[1] is None else 0.0
        return first if (self.warm, self.window) == _FIRST else self.run({})

    def run(self, values: Mapping[str, Value]) -> Outcome:
        """Return what a trial of some values tells.

        Raises
        ------
        Refused
            When anything raises in it; or when it takes five times as long as a whole trial of the present values, of
            which the first ran before: between two turns it is ended then.
        """
        try:
            outcome = self._run(values, self.warm, self.window)
            if not values:
                self._limit = max(_PATIENCE * outcome.spent, _HICCUP)
            return outcome
        except Exception as error:  # noqa: BLE001  whatever it is, these values are not for this program
            told = in_words(error)
        raise Refused(told)  # without what was raised: its frames would keep the iterator, which would read on

    def alone(self, turns: int = 10) -> float:
        """Return the seconds of a step for which no data must be waited: of the model alone, on one batch.

        It is the least of three windows: whatever else the machine does only adds.
        """
        self.training.put_back(self._state)
        feed = Feed(*self._at_hand())
        begun, least = time.perf_counter(), math.inf
        for warm in (3, 1, 1):
            least = min(least, _timed(lambda: feed.turn(self.training), warm, turns).seconds)
            if time.perf_counter() - begun > _SECONDS:
                break
        return least / self.training.steps

    def _run(self, values: Mapping[str, Value], warm: int, window: int) -> Outcome:
        begun = time.perf_counter()
        self.training.put_back(self._state)
        feed = self._place.feed(values)
        limit = self._limit if values else math.inf
        timed = _timed(lambda: feed.turn(self.training), warm, window, limit=limit)
        digest = self.training.digest(timed.told)
        if window * timed.seconds < self._short:
            again = min(math.ceil(_AGAIN / timed.seconds), _MOST)
            timed = _timed(lambda: feed.turn(self.training), warm, again, limit=limit)
        return Outcome(timed.seconds / self.training.steps, digest, time.perf_counter() - begun, timed.busy)

    def _at_hand(self) -> tuple[Any, Any]:
        """Return a dataset of one batch without end, that is kept in memory, and an iterator over it."""
        feed = self._place.feed({})  # from the place: at the beginning a shuffle fills its buffer first
        batch = next(chain(feed.iterator, feed.dataset))
        if isinstance(self.pipeline, GrainPipeline):
            return (), repeat(batch)
        import tensorflow as tf

        endless = tf.data.experimental.to_variant(tf.data.Dataset.from_tensors(batch).repeat())
        dataset = tf.data.experimental.from_variant(endless, feed.dataset.element_spec)
        return dataset, iter(dataset)

    def _placed(self, folder: Path) -> Place:
        """Put the training into the state of the start, and return the place in the data."""
        if isinstance(self.pipeline, GrainPipeline):
            return GrainPlace(self.pipeline)
        if isinstance(self.start, Midst):
            return self.start.place
        if self.start is None:
            return TfPlace(self.pipeline, folder)
        about = own_files.read(self.start.path)
        data = self.job.parts[1]
        graph = datasets.graph_of(data)
        if graph is not None and datasets.unseeded(graph):
            data = datasets.seeded(data, graph, about["seeds"])
        Fit(self.job.parts[0], about["fit"], (), Start(self.start.path, about)).put_back(metrics=True)
        return TfPlace(Pipeline(data), folder, begun=about["iterators"], drawn=about["drawn"])


def turns(seconds: float) -> tuple[int, int]:
    """Return how many turns a trial has before its window and in it, where one takes so many seconds.

    >>> turns(0.05), turns(1.0)
    ((8, 10), (3, 3))
    """
    window = _SECONDS / max(seconds, 1e-6)
    return _FIRST[0] if seconds > _SLOW else WARM, round(min(max(window, _LEAST), _MOST))


def _checked(job: Job, start: Checkpoint | Midst | None) -> Checkpoint | Midst | None:
    """Return where trials start, where a job can be put to it exactly."""
    if start is None or isinstance(start, Midst):
        return start
    if not isinstance(start, Checkpoint):
        raise wrong("tune", "start", "be a checkpoint of tpunb.checkpoints(dir), or None", start)
    if start.kind != "tpunb":
        raise TpunbError(
            f"{plain(start.path.name)} does not hold all that a trial needs: it is of {start.kind}",
            hint="save with `with tp.checkpointing(dir):` around fit, or leave start= out",
        )
    found = folders.read(start.path)
    if job.step is not None or "fit" not in own_files.read(found.path):
        raise TpunbError(
            f"{plain(start.path.name)} is of a {'fit' if job.step else 'loop'}: trials start from one of Keras' fit",
            hint="leave start= out: a loop is tuned from its beginning",
        )
    return found


class _Timed(NamedTuple):
    """Of turns: seconds of one in the window, cores that were busy in it, and what all of them told."""

    seconds: float
    busy: float
    told: list[Any]


def _timed(turn: Callable[[], Any], warm: int, window: int, *, limit: float = math.inf) -> _Timed:
    """Return how long turns take in the window after some before it: all is computed when the clock is read.

    Raises
    ------
    TpunbError
        When more than `limit` seconds are over before a turn begins.
    """
    told: list[Any] = []
    first = time.perf_counter()

    def some(turns: int) -> None:
        for _ in range(turns):
            if time.perf_counter() - first > limit:
                raise TpunbError(f"{plural(len(told), 'turn')} took over {limit:.3g} s: that is much too slow")
            told.append(turn())
        _wait(told[-1:])

    some(warm)
    begun, worked = time.perf_counter(), time.process_time()
    some(window)
    wall = time.perf_counter() - begun
    return _Timed(wall / window, (time.process_time() - worked) / max(wall, 1e-9), told)


def _wait(told: list[Any]) -> None:
    for _ in arrays(told):
        pass
