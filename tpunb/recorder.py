"""Watches the whole of a running block: paper III.A.

A profiling thread asks the framework's profiler service for one window after another; a recording thread reduces
what comes back to statistics and writes it, while the next window is already being asked for. Every step is noted by
our own clock besides, since windows have gaps between them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tpunb import news
from tpunb.checkpoint import Checkpoint
from tpunb.errors import CaptureBusy, TpunbError
from tpunb.io.run_writer import RunWriter
from tpunb.marking import StepClock, keras_marks
from tpunb.neighbours import Neighbours
from tpunb.recording import Keep
from tpunb.resuming.loops import save
from tpunb.schedule import Schedule
from tpunb.sources import TPU, Address, Local, Replay, Source
from tpunb.sources.frameworks import loaded
from tpunb.watcher import Status, Watcher

__all__ = ["TPU", "Address", "Keep", "Local", "Replay", "Run", "Schedule", "Source", "Status", "capture"]

if TYPE_CHECKING:
    from tpunb.tuning.job import Job

T = TypeVar("T")


class Run:
    """A capture in progress, and where it writes; a path for ``tp.load``.

    Parameters
    ----------
    watcher
        The threads that record it.
    """

    def __init__(self, watcher: Watcher) -> None:
        self.path = watcher.writer.source
        self._keeper = watcher.writer.keeper  # what was recorded in memory lasts as long as this
        self._watcher = watcher
        self._clock = watcher.clock

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def status(self) -> Status:
        """How the capture stands: steps, windows, observed share, estimated slow-down."""
        return self._watcher.status

    def stop(self) -> None:
        """End the capture here; the block goes on unwatched, and what was recorded is complete when it ends."""
        self._watcher.stop("stopped")

    @property
    def job(self) -> Job:
        """The model and the dataset of the last ``fit`` that was seen, to be run again by ``tp.tune``.

        Raises
        ------
        TpunbError
            When there was none, or its data were no ``tf.data.Dataset``.
        """
        from tpunb.tuning.job import Job  # a neighbour

        if self._clock.fitted is None:
            raise TpunbError(
                "the capture saw no fit", hint="call model.fit(data) in its block, or make a tp.Job(build)"
            )
        model, data = self._clock.fitted
        if not hasattr(data, "element_spec") or not hasattr(data, "options"):
            raise TpunbError(
                f"fit was given {type(data).__name__}, of which nothing can be tuned",
                hint="give fit a tf.data.Dataset",
            )
        job = Job(lambda: (model, data))
        _ = job.parts
        return job

    def save(self, step: int, dir: str | os.PathLike[str] | None = None, **parts: Any) -> Checkpoint:  # noqa: A002
        """Return the checkpoint of a loop of one's own, as `tpunb.resuming.save` writes it; the capture pays for it.

        Parameters
        ----------
        step
            How many steps were taken: of a loop that counts from 0, the number of the next.
        dir
            The folder for the checkpoints; "checkpoints" in the run folder, if None.
        **parts
            All that the next step depends on, by names of one's own.

        Raises
        ------
        ValueError, MissingExtra
            As `tpunb.resuming.save`.
        TpunbError
            When the run is not in a folder on this machine, and `dir` is not given.
        """
        if dir is None and not isinstance(self.path, Path):
            raise TpunbError(
                f"{self.path} is not a folder on this machine", hint="say where to: run.save(step, dir, ...)"
            )
        return save(Path(self.path) / "checkpoints" if dir is None else dir, step, **parts)

    @contextmanager
    def between(self, mark: str) -> Iterator[None]:
        """Mark the block, between two steps of a framework, as a step of its own kind."""
        step = self._clock.begin(_word(mark), explicit=True)
        try:
            yield
        finally:
            if step is not None:
                self._clock.end(step)

    @contextmanager
    def step(self, number: int, mark: str = "train") -> Iterator[None]:
        """Mark the block as one step: ``with run.step(i): ...``; an inner one is part of the outer."""
        if not isinstance(number, Integral) or not 0 <= number < 2**62:
            raise ValueError(f"The number parameter of step must be an int of 0 or more. Got {number!r} instead.")
        step = self._clock.begin(_word(mark), step=int(number), explicit=True)
        try:
            yield
        finally:
            if step is not None:
                self._clock.end(step)

    def steps(self, data: Iterable[T], mark: str = "train") -> Iterator[T]:
        """Mark each turn of a loop as a step, the wait for its data included: ``for batch in run.steps(data): ...``."""
        batches, step = iter(data), None
        _word(mark)
        try:
            while True:
                step = self._clock.begin(mark, complete=False, explicit=True)
                try:
                    batch = next(batches)
                except StopIteration:
                    return
                if step is not None:
                    self._clock.fed()
                yield batch
                if step is not None:
                    self._clock.end(step)
        finally:
            if step is not None:
                self._clock.end(step)


def _word(mark: str) -> str:
    """Return `mark` if it can be one: a profiler reads what follows a ``#`` as something else."""
    if not isinstance(mark, str) or not mark or "#" in mark or not mark.isprintable():
        raise ValueError(f"The mark parameter of step must be a word without '#'. Got {mark!r} instead.")
    return mark


_SOURCE = ("start", "facts", "window", "stop", "step")
_running: list[Watcher] = []
_lock = threading.Lock()


@contextmanager
def capture(
    dir: str | os.PathLike[str] | None = None,  # noqa: A002  the word everybody looks for
    *,
    source: Source | None = None,
    schedule: Schedule | None = None,
    keep: Keep = "phases",
    until: int | None = None,
) -> Iterator[Run]:
    """Watch the block from its first line to its last, and write what was seen into a run folder.

    An exception or an interrupt in the block ends the capture, keeps what was recorded, and goes on unchanged.

    Parameters
    ----------
    dir
        The run folder, here or at any URL that fsspec knows; an earlier run there is renamed, not overwritten.
        In memory if not given: ``tp.load(run)`` reads it while `run` is in reach.
    source
        Where windows come from: ``Local()`` unless given; ``Address``, ``TPU`` and ``Replay`` are here too.
    schedule
        When they are asked for: ``Schedule()`` unless given, which spends 2 % of a run's time on them.
    keep
        Which raw windows stay beside the statistics: "none", "phases" (one a phase), or "all".
    until
        The step at which to stop, as ``run.stop()`` does.

    Raises
    ------
    CaptureBusy
        Another capture runs in this process, or another process captures into that folder.
    MissingExtra
        Neither TensorFlow nor JAX is installed, or not what the source needs.
    TpunbError
        The source cannot be reached.
    """
    if schedule is not None and not isinstance(schedule, Schedule):
        raise TypeError(f"The schedule parameter of capture must be a Schedule. Got {schedule!r} instead.")
    if source is not None and not all(callable(getattr(source, name, None)) for name in _SOURCE):
        raise TypeError(
            f"The source parameter of capture must be a source, as Address(...) is. Got {source!r} instead."
        )
    if keep not in ("none", "phases", "all"):
        raise ValueError(f"The keep parameter of capture must be 'none', 'phases' or 'all'. Got {keep!r} instead.")
    if until is not None and (isinstance(until, bool) or not isinstance(until, Integral) or until < 1):
        raise ValueError(f"The until parameter of capture must be an int of 1 or more. Got {until!r} instead.")
    writer = RunWriter(dir)
    with ExitStack() as stack:
        watcher = Watcher(
            writer,
            Local() if source is None else source,
            Schedule() if schedule is None else schedule,
            keep=keep,
            until=None if until is None else int(until),
            opened=stack.enter_context(news.opened.told()),
        )
        stack.enter_context(_alone(watcher))
        stack.enter_context(watcher)
        stack.enter_context(news.saved.heard(watcher.saved))
        neighbours = stack.enter_context(Neighbours(watcher.give_way, watcher.go_on))
        marks = stack.enter_context(_KerasMarks(watcher.clock))
        watcher.lookouts += [neighbours.look, marks.look]
        yield Run(watcher)


@contextmanager
def _alone(watcher: Watcher) -> Iterator[None]:
    with _lock:
        if busy := next((other for other in _running if not other.is_over), None):
            raise CaptureBusy(
                f"a capture into {busy.writer.source} is running", hint="end it first: one process has one profiler"
            )
        _running[:] = [watcher]
    try:
        yield
    finally:
        if watcher in _running:
            _running.remove(watcher)


class _KerasMarks:
    """Marks Keras' steps from when Keras is there, which may be later than the capture begins."""

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock
        self._stack = ExitStack()
        self._lock = threading.Lock()
        self._open = True

    def __enter__(self) -> _KerasMarks:
        if loaded("tensorflow") and find_spec("keras"):
            with suppress(ImportError):  # a Keras that cannot be imported has nothing to mark
                import keras  # noqa: F401  TensorFlow would bring it at the first word of tf.keras
        self.look()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._open = False
        self._stack.close()

    def look(self) -> None:
        """Begin to mark if Keras has come."""
        if self._open and loaded("keras"):
            with self._lock:
                if self._open:
                    self._open = False
                    self._stack.enter_context(keras_marks(self._clock))
