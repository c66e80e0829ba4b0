"""What a capture makes of the answers it gets: statistics, written part by part, and a plan that hears of them."""

from __future__ import annotations

import math
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from typing import Any, Literal

import polars as pl

from tpunb.io import run_folder
from tpunb.io.run_writer import RunWriter
from tpunb.marking import StepClock, Tick
from tpunb.schedule import Planner, Schedule, Seen
from tpunb.windows import Answer, Kept, Reduced, Reducer

Keep = Literal["none", "phases", "all"]

_MOMENT_NS = 1_000_000_000
_END_S = 10.0  # how long the last word waits for the one before


class Recording:
    """A run as it is written.

    Parameters
    ----------
    writer
        Where it goes, open.
    clock
        Knows every step.
    schedule
        When windows are asked for.
    keep
        Which raw windows stay.
    opened
        Told of each phase that the scan opens, by its number.
    """

    def __init__(
        self, writer: RunWriter, clock: StepClock, schedule: Schedule, keep: Keep, opened: Callable[[int], None]
    ) -> None:
        self.writer, self.clock, self.keep, self._opened = writer, clock, keep, opened
        self.origin_ns = time.time_ns()
        self.reducer = Reducer(socket.gethostname(), self.origin_ns)
        self.planner = Planner(schedule, self.origin_ns / 1e9)
        self.came, self.failed, self.watched_ps = 0, 0, 0  # windows, and for how long, mean over the workers
        self.full = 0  # steps seen in full, of the first worker
        self.said: set[str] = set()  # by the profiler itself
        self.under_way: deque[int] = deque()  # when each window was asked for that is not written yet
        self._lock = threading.RLock()  # what is written; whoever closes an interrupted run may meet who records it
        self._closed = False
        self._kept = Kept()
        self._parts = 0
        self._unwritten: list[Tick] = []
        self._recent: list[Tick] = []  # those that a coming window may still overlap

    def note(self) -> None:
        """Take the steps that have ended since the last look."""
        with self._lock:
            ended = self.clock.take()
            self._unwritten += ended
            self._recent += ended
        self.planner.tell_steps((tick.mark, tick.start_ns / 1e9, tick.end_ns / 1e9) for tick in ended)
        # a window that is being asked for this very moment may not be among those under way yet
        asked_ns = min(self.under_way[0] if self.under_way else math.inf, time.time_ns() - _MOMENT_NS)
        self._recent = [tick for tick in self._recent if tick.end_ns > asked_ns]

    def write(self, answer: Answer) -> None:
        """Reduce an answer and write what came of it."""
        self.note()
        open_tick = self.clock.open_tick()
        reduced = self.reducer.reduce(answer, [*self._recent, *([open_tick] if open_tick else [])])
        with self._lock:
            if self._closed:
                return
            self._keep_raw(answer.number, reduced)
            self.part(reduced.tables())
        if reduced.opened and self.reducer.phase is not None:
            self._opened(self.reducer.phase)
        came = reduced.watched_ps > 0  # and is counted once it is there to be loaded
        self.came, self.failed = self.came + came, self.failed + (not came)
        self.full += reduced.full.total()
        self.watched_ps += sum(row["dur_ps"] for row in reduced.windows) // max(len(reduced.windows), 1)
        self.said |= set(reduced.said[: 20 - len(self.said)])
        self.under_way.popleft()
        self.note()
        watched_ps = min((row["start_ps"] for row in reduced.windows if row["dur_ps"]), default=0)
        seen = Seen(
            max(answer.asked_ns, self.origin_ns + watched_ps // 1000) / 1e9,  # a framework may have been waited for
            reduced.watched_ps / 1e12,
            time.time(),
            reduced.events,
            dict(reduced.full),
            reduced.opened,
            reduced.scarce,
            reduced.step_ps / 1e12,
            reduced.queue_ps / 1e12,
        )
        if came:
            self.planner.tell_window(seen)

    def _keep_raw(self, window: int, reduced: Reduced) -> None:
        stays, free = self.keep == "all", list[int]()
        if self.keep == "phases":
            stays, free = self._kept.offer(window, reduced.phases)
        for host, data in reduced.raw.items() if stays else ():
            self.writer.raw(window, host, data)
        for other in free:
            self.writer.drop_raw(other)

    def part(self, tables: Mapping[str, pl.DataFrame] | None = None) -> None:
        """Write a part: the tables of a window, if any, and the steps that no part holds yet."""
        with self._lock:
            if self._closed or not (tables or self._unwritten):
                return
            ticks = pl.DataFrame(map(self._row, self._unwritten), schema=run_folder.TICKS, orient="row")
            self.writer.part(self._parts, {**(tables or {}), "ticks": ticks})
            self._parts += 1
            self._unwritten = []

    def _row(self, tick: Tick) -> tuple[object, ...]:
        """Return a row of TICKS, in the run's time."""
        times = (tick.start_ns - self.origin_ns, tick.end_ns - self.origin_ns, tick.input_ns)
        return (self.reducer.host, tick.step, tick.mark, *(None if ns is None else ns * 1000 for ns in times))

    def tell(self, more: Mapping[str, Any], seconds: float) -> None:
        """Write what is known of the run, `seconds` after its beginning, and `more`."""
        known = {
            "name": self.writer.name,
            "started": datetime.fromtimestamp(self.origin_ns / 1e9, UTC).isoformat(),
            "origin_ns": self.origin_ns,
            "host": self.reducer.host,
            "own_worker": self.reducer.own or None,
            "process": os.getpid(),
            "earlier_run": self.writer.moved,
            "hardware": [row for rows in self.reducer.hardware.values() for row in rows],
            "overhead": self.planner.overhead(self.origin_ns / 1e9 + seconds),
            "profiler_said": sorted(self.said),
            "about": dict(self.clock.about),
            "versions": _versions("tpunb", "tensorflow", "keras", "jax", "polars"),
        }
        with self._lock:
            if not self._closed:
                self.writer.facts({**known, **more})

    @contextmanager
    def last(self) -> Iterator[bool]:
        """Write for the last time: after the block nobody does. Say whether whoever was writing came to an end."""
        free = self._lock.acquire(timeout=_END_S)
        try:
            yield free
        finally:
            self._closed = True
            if free:
                self._lock.release()


def _versions(*names: str) -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
