"""Begin and end sessions of a profiler in the thread that trains, between two steps, where no other thread may."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from tpunb.errors import TpunbError
from tpunb.profiler.limits import LIMITS

T = TypeVar("T")


class BetweenSteps:
    """Functions that the thread that trains calls for another one, at the next boundary of steps."""

    def __init__(self) -> None:
        self._due: Callable[[], None] | None = None
        self._lock = threading.Lock()
        self.boundaries = 0  # calls of `boundary` so far

    def call(self, function: Callable[[], T], stopped: threading.Event, *, anywhere: bool = True) -> T:
        """Return what a function returns in the thread that trains.

        Some time after `stopped` this thread calls it, since nothing computes any more; not so unless `anywhere`.

        Raises
        ------
        TpunbError
            If no boundary came, and it must not be called here, or if it was interrupted.
        """
        if not self.boundaries and anywhere:
            return function()
        ended, results, errors = threading.Event(), list[T](), list[Exception]()

        def due() -> None:
            try:
                results.append(function())
            except Exception as error:  # noqa: BLE001  the other thread raises it
                errors.append(error)
            finally:
                ended.set()

        self._due, stopped_s = due, None
        while not ended.wait(LIMITS.import_look_s):
            now_s = time.monotonic()
            stopped_s = (stopped_s or now_s) if stopped.is_set() else None
            if stopped_s is not None and now_s - stopped_s > LIMITS.boundary_s:
                if not anywhere and self._take() is not None:
                    raise TpunbError("no step has ended since the window was due", hint="mark the steps: run.step(i)")
                self.boundary()
        if errors:
            raise errors[0]
        if not results:
            raise TpunbError("the program was interrupted as a window began or ended")
        return results[0]

    def _take(self) -> Callable[[], None] | None:
        with self._lock:
            due, self._due = self._due, None
        return due

    def boundary(self) -> None:
        """Do what is due, between two steps; for the thread that trains."""
        self.boundaries += 1
        self.turn()

    def turn(self) -> None:
        """Do what is due, within one; for the thread that trains."""
        if self._due is not None and (due := self._take()) is not None:
            due()

    @property
    def is_due(self) -> bool:
        """Whether a function waits for a boundary."""
        return self._due is not None
