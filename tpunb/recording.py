"""What a capture makes of the answers it gets: statistics, written part by part, and a plan that hears of them.

One thread uses it at a time.
"""

from __future__ import annotations

import math
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Mapping
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
    """

    def __init__(self, writer: RunWriter, clock: StepClock, schedule: Schedule, keep: Keep) -> None:
        self.writer, self.clock, self.keep = writer, clock, keep
        self.origin_ns = time.time_ns()
        self.reducer = Reducer(socket.gethostname(), self.origin_ns)
        self.planner = Planner(schedule, self.origin_ns / 1e9)
        self.came, self.failed, self.watched_ps = 0, 0, 0  # windows, and for how long
        self.full = 0  # steps seen in full, of the first worker
        self.said: set[str] = set()  # by the profiler itself
        self.under_way: deque[int] = deque()  # when each window was asked for that is not written yet
        self._kept = Kept()
        self._parts = 0
        self._unwritten: list[Tick] = []
        self._recent: list[Tick] = []  # those that a coming window may still overlap

    def note(self) -> None:
        """Take the steps that have ended since the last look."""
        ended = self.clock.take()
        self.planner.tell_steps((tick.mark, tick.start_ns / 1e9, tick.end_ns / 1e9) for tick in ended)
        self._unwritten += ended
        self._recent += ended
        # a window that is being asked for this very moment may not be among those under way yet
        asked_ns = min(self.under_way[0] if self.under_way else math.inf, time.time_ns() - _MOMENT_NS)
        self._recent = [tick for tick in self._recent if tick.end_ns > asked_ns]

    def write(self, answer: Answer) -> None:
        """Reduce an answer and write what came of it."""
        self.note()
        open_tick = self.clock.open_tick()
        reduced = self.reducer.reduce(answer, [*self._recent, *([open_tick] if open_tick else [])])
        self._keep_raw(answer.number, reduced)
        self.part(reduced.tables())
        came = reduced.watched_ps > 0  # and is counted once it is there to be loaded
        self.came, self.failed = self.came + came, self.failed + (not came)
        self.full += reduced.full.total()
        self.watched_ps += reduced.watched_ps
        self.said |= set(reduced.said[: 20 - len(self.said)])
        self.under_way.popleft()
        self.note()
        seen = Seen(
            answer.asked_ns / 1e9,
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
        if not tables and not self._unwritten:
            return
        origin = self.origin_ns
        rows = [
            (
                self.reducer.host,
                tick.step,
                tick.mark,
                (tick.start_ns - origin) * 1000,
                (tick.end_ns - origin) * 1000,
                None if tick.input_ns is None else tick.input_ns * 1000,
            )
            for tick in self._unwritten
        ]
        ticks = pl.DataFrame(rows, schema=run_folder.TICKS, orient="row")
        self.writer.part(self._parts, {**(tables or {}), "ticks": ticks})
        self._parts += 1
        del self._unwritten[: len(rows)]

    def tell(self, more: Mapping[str, Any], seconds: float) -> None:
        """Write what is known of the run, `seconds` after its beginning, and `more`."""
        self.writer.facts(
            {
                "name": self.writer.name,
                "started": datetime.fromtimestamp(self.origin_ns / 1e9, UTC).isoformat(),
                "origin_ns": self.origin_ns,
                "host": self.reducer.host,
                "process": os.getpid(),
                "earlier_run": self.writer.moved,
                "hardware": [row for rows in self.reducer.hardware.values() for row in rows],
                "overhead": self.planner.overhead(self.origin_ns / 1e9 + seconds),
                "profiler_said": sorted(self.said),
                "versions": {
                    "python": sys.version.split()[0],
                    **_versions("tpunb", "tensorflow", "keras", "jax", "polars"),
                },
                **more,
            }
        )


def _versions(*names: str) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
