"""How long the steps of a fit take, before its pipeline was changed in its midst and after."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


class Pace:
    """Hears of steps as they are taken.

    Epochs' first steps are left out, with whatever lies between epochs.

    Parameters
    ----------
    clock
        Seconds.

    >>> ticks = iter([0, 1, 3, 5, 6, 7])
    >>> pace = Pace(lambda: next(ticks))
    >>> pace.begin()
    >>> for step in (1, 2, 3):
    ...     pace.note(step, within=True)
    >>> pace.step, pace.swap(), pace.note(4, within=True), pace.note(5, within=True), pace.saved
    (2.0, None, None, None, 2.0)
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._before: list[float] = []
        self._after: list[float] = []
        self._swapped = False
        self._saved = 0.0  # in the fits before
        self._last: tuple[int, float] | None = None
        self._begun = 0.0
        self.seconds = 0.0
        """Since the fit began."""

    def begin(self) -> None:
        """Hear that a fit begins: it is another, until its pipeline is changed too."""
        self._saved = self.saved
        self._before, self._after, self._swapped = [], [], False
        self._begun, self._last = self._clock(), None

    def note(self, step: int, *, within: bool) -> None:
        """Hear that so many steps are taken; `within` an epoch that goes on."""
        now = self._clock()
        self.seconds = now - self._begun
        if self._last is not None and step > self._last[0]:
            taken = step - self._last[0]
            times = self._after if self._swapped else self._before
            times += [(now - self._last[1]) / taken] * taken
        self._last = (step, now) if within else None

    def pause(self) -> None:
        """Hear that the time since the last step was no step's."""
        if self._last is not None:
            self._last = self._last[0], self._clock()

    def swap(self) -> None:
        """Hear that the pipeline was changed: all steps from now on are after it."""
        self._swapped = True

    @property
    def step(self) -> float:
        """Seconds of a step before, the median."""
        return statistics.median(self._before) if self._before else 0.0

    @property
    def saved(self) -> float:
        """Seconds that all steps after would have taken more at the pace before."""
        return self._saved + len(self._after) * self.step - sum(self._after)
