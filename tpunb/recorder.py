"""Watches the whole of a running block: paper III.A.

A profiling thread asks the framework's profiler service for one window after another; a recording thread reduces
what comes back to statistics and writes it, while the next window is already being asked for. Every step is noted by
our own clock besides, since windows have gaps between them.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from importlib.util import find_spec
from numbers import Integral
from pathlib import Path
from typing import TypeVar

from tpunb.errors import CaptureBusy
from tpunb.marking import StepClock, keras_marks
from tpunb.sources import Local, Source
from tpunb.watcher import Keep, Schedule, Watcher

__all__ = ["Keep", "Local", "Run", "Schedule", "Source", "capture"]

T = TypeVar("T")


class Run:
    """A capture in progress, and the folder it writes; a path for ``tp.load``."""

    def __init__(self, path: Path, clock: StepClock) -> None:
        self.path = path
        self._clock = clock

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

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
                self._clock.finished()
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


_running: list[Path] = []
_lock = threading.Lock()


@contextmanager
def capture(
    dir: str | Path | None = None,  # noqa: A002  the word everybody looks for
    *,
    source: Source | None = None,
    schedule: Schedule | None = None,
    keep: Keep = "none",
) -> Iterator[Run]:
    """Watch the block from its first line to its last, and write what was seen into a run folder.

    An exception or an interrupt in the block ends the capture, keeps what was recorded, and goes on unchanged.

    Parameters
    ----------
    dir
        The run folder; an earlier run there is renamed, not overwritten. ``runs/<date and time>`` if not given.
    source
        Where windows come from; this process unless given.
    schedule
        When they are asked for; ``Schedule.continuous()`` unless given.
    keep
        Which raw windows stay beside the statistics: "none" or "all".

    Raises
    ------
    CaptureBusy
        Another capture runs in this process.
    MissingExtra
        TensorFlow is not installed.
    """
    if keep not in ("none", "all"):
        raise ValueError(f"The keep parameter of capture must be 'none' or 'all'. Got {keep!r} instead.")
    # absolute: the block may change its working directory
    path = (Path("runs", f"{datetime.now():%Y%m%d-%H%M%S}") if dir is None else Path(dir).expanduser()).absolute()
    with ExitStack() as stack:
        stack.enter_context(_alone(path))
        watcher = Watcher(
            path,
            Local() if source is None else source,
            Schedule.continuous() if schedule is None else schedule,
            keep,
        )
        stack.enter_context(watcher)
        stack.enter_context(_marks(watcher.clock))
        yield Run(path, watcher.clock)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    with _lock:
        if _running:
            raise CaptureBusy(
                f"a capture into {_running[0]} is running", hint="end it first: one process has one profiler"
            )
        _running.append(path)
    try:
        yield
    finally:
        _running.clear()


@contextmanager
def _marks(clock: StepClock) -> Iterator[None]:
    """Mark Keras' steps where Keras is or may come into use; without it there is nothing to mark."""
    with ExitStack() as stack:
        if "keras" in sys.modules or ("tensorflow" in sys.modules and find_spec("keras")):
            stack.enter_context(keras_marks(clock))
        yield
