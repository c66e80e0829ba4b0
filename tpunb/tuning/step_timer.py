"""Step times of a fit before and after its pipeline is changed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


class StepTimer:
    """Times steps, except the first of each epoch.

    >>> ticks = iter([0, 1, 3, 5, 6, 7])
    >>> timer = StepTimer(lambda: next(ticks))
    >>> timer.start()
    >>> for step in (1, 2, 3):
    ...     timer.record(step, within_epoch=True)
    >>> timer.step, timer.swap(), timer.record(4, within_epoch=True), timer.record(5, within_epoch=True), timer.saved
    (2.0, None, None, None, 2.0)
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._before: list[float] = []
        self._busy: list[float] = []  # cores, in each of these
        self._after: list[float] = []
        self._swapped = False
        self._saved = 0.0  # in earlier fits
        self._last: tuple[int, float, float] | None = None  # steps, and seconds of the clock and the processors
        self._started = 0.0
        self.seconds = 0.0
        """Since the fit started."""

    def start(self) -> None:
        """Start a fit with a new pipeline."""
        self._saved = self.saved
        self._before, self._busy, self._after, self._swapped = [], [], [], False
        self._started, self._last = self._clock(), None

    def record(self, step: int, *, within_epoch: bool) -> None:
        """Record the number of steps taken so far."""
        now, worked = self._clock(), time.process_time()
        self.seconds = now - self._started
        if self._last is not None and step > self._last[0]:
            taken, wall = step - self._last[0], now - self._last[1]
            times = self._after if self._swapped else self._before
            times += [wall / taken] * taken
            if not self._swapped:
                self._busy += [(worked - self._last[2]) / max(wall, 1e-9)] * taken
        self._last = (step, now, worked) if within_epoch else None

    def pause(self) -> None:
        """Exclude the time since the last step."""
        if self._last is not None:
            self._last = self._last[0], self._clock(), time.process_time()

    def swap(self, changed: bool = True) -> None:
        """Count the following steps as after the change, or before it."""
        self._swapped = changed

    @property
    def before(self) -> float:
        """Seconds of all steps before the change."""
        return sum(self._before)

    def recent(self, steps: int) -> tuple[float, float]:
        """Return the median seconds of the last steps before the change, and of the cores kept busy."""
        return statistics.median(self._before[-steps:]), statistics.median(self._busy[-steps:])

    @property
    def step(self) -> float:
        """Median seconds per step before the change."""
        return statistics.median(self._before) if self._before else 0.0

    @property
    def saved(self) -> float:
        """Seconds saved by the steps after the change."""
        return self._saved + len(self._after) * self.step - sum(self._after)
