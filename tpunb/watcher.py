"""The two threads of a capture: one asks the profiler for windows, one reduces them and writes.

Paper III.A: while the recording thread stores a profile, the profiling thread already requests the next.
"""

from __future__ import annotations

import queue
import socket
import sys
import threading
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import polars as pl

from tpunb import links, step_rules, stepping
from tpunb.errors import BadProfile, TpunbError
from tpunb.frames import Steps
from tpunb.io import run_folder
from tpunb.marking import StepClock, Tick
from tpunb.sources import Source

Keep = Literal["none", "all"]

_COLLECT_SECONDS = 120.0  # how long the last window may take to come back


@dataclass(frozen=True)
class Schedule:
    """When windows are asked for.

    Parameters
    ----------
    window
        Seconds a window watches.
    every
        Seconds from one window's beginning to the next's; None asks back to back, as the paper did.

    >>> Schedule.continuous()
    Schedule(window=1.0, every=None)
    """

    window: float = 1.0
    every: float | None = None

    def __post_init__(self) -> None:
        if not 0.01 <= self.window <= 60:
            raise ValueError(
                f"The window parameter of Schedule must be in [0.01, 60] seconds. Got {self.window!r} instead."
            )
        if self.every is not None and not self.every >= self.window:
            raise ValueError(
                f"The every parameter of Schedule must be at least the window of {self.window} seconds. "
                f"Got {self.every!r} instead."
            )

    @classmethod
    def continuous(cls, window: float = 1.0) -> Schedule:
        """Ask for one window right after another."""
        return cls(window, None)


@dataclass(frozen=True)
class _Window:
    number: int
    asked_ns: int
    answered_ns: int
    data: bytes
    error: str | None


class Watcher:
    """The two threads of a capture, and what they share."""

    def __init__(self, path: Path, source: Source, schedule: Schedule, keep: Keep) -> None:
        self.path, self.source, self.schedule, self.keep = path, source, schedule, keep
        self.clock = StepClock(source.step)
        self._ended = threading.Event()
        self._abandoned = threading.Event()  # closing was interrupted: whoever is late writes nothing any more
        self._windows: queue.Queue[_Window | None] = queue.Queue(maxsize=4)
        self._unwritten: list[Tick] = []
        self._recent: list[Tick] = []  # those that a coming window may still overlap
        self._entries: list[dict[str, Any]] = []
        self._facts: dict[str, Any] = {}
        self._unmarked = 0  # steps found by repeated modules: numbered on from window to window
        self._asked = 0
        self._facts_due = 0.0
        self._failure: BaseException | None = None
        self._asking = threading.Thread(target=self._ask, name="tpunb-profiling", daemon=True)
        self._writing = threading.Thread(target=self._record, name="tpunb-recording", daemon=True)

    def __enter__(self) -> Watcher:
        from tpunb import self_time  # noqa: F401  compiled by its import: now, not beside the training
        from tpunb.io import xplane

        xplane.warm()
        found = self.source.start()
        moved = run_folder.make_way(self.path)
        self._origin_ns = time.time_ns()
        self._facts = {
            "name": self.path.name,
            "started": _iso(self._origin_ns),
            "origin_ns": self._origin_ns,
            "host": socket.gethostname(),
            **found,
            "options": {
                "window": self.schedule.window,
                "every": self.schedule.every,
                "keep": self.keep,
                "source": type(self.source).__name__,
            },
            "versions": {"python": sys.version.split()[0], **_versions("tpunb", "tensorflow", "keras", "polars")},
            "earlier_run": None if moved is None else moved.name,
            "hardware": [],
            "state": "running",
        }
        self._write_facts()
        self._asking.start()
        self._writing.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self.clock.abandon()
        self._facts["span_ps"] = (time.time_ns() - self._origin_ns) * 1000
        self._facts["state"] = "finished" if kind is None else f"ended by {kind.__name__}"
        self._ended.set()
        try:
            self._hurry_home()
        except BaseException:
            self._abandoned.set()
            self._facts["state"] = "interrupted while closing"
            raise
        finally:
            self._close()
        if self._failure is not None:
            told = f"the recording of {self.path} is incomplete: {self._failure!r}"
            if error is None:
                warnings.warn(told, RuntimeWarning, stacklevel=3)
            else:
                error.add_note(told)  # the exception of the block goes on, and stays the one that is seen

    def _hurry_home(self) -> None:
        """End the last window now rather than when its time is up, and wait until all is written."""
        deadline = time.monotonic() + _COLLECT_SECONDS
        while self._asking.is_alive() and time.monotonic() < deadline:
            with suppress(TpunbError):  # the window may have ended by itself between two looks
                self.source.stop()
            self._asking.join(timeout=0.2)
        self._writing.join(timeout=max(1.0, deadline - time.monotonic()))
        if self._writing.is_alive():
            self._abandoned.set()
            self._failure = self._failure or TimeoutError("the last window did not come back in time")

    def _close(self) -> None:
        """Write what is left: the steps since the last window, and how it ended."""
        try:
            self._unwritten += self.clock.take()
            if self._unwritten:
                run_folder.write_window(self.path, self._asked, None, self._ticks(), None)
            if self._failure is not None:
                self._facts["state"] += ", incomplete"
            self._write_facts()
        except (OSError, pl.exceptions.PolarsError) as failure:
            self._failure = self._failure or failure

    def _ask(self) -> None:
        """Ask for windows until the block ends: the profiling thread."""
        pause = 0.0
        try:
            while not self._ended.wait(pause):
                asked = time.time_ns()
                data, error = b"", None
                try:
                    data = self.source.window(self.schedule.window)
                except TpunbError as refused:
                    error = str(refused)
                self._windows.put(_Window(self._asked, asked, time.time_ns(), data, error))
                self._asked += 1
                due = 0.0 if self.schedule.every is None else asked / 1e9 + self.schedule.every - time.time()
                pause = max(due, 0.0 if error is None else min(5.0, max(0.2, 2 * pause)))
        except Exception as broken:  # noqa: BLE001  a source of the user's own may do anything; told at the end
            self._failure = self._failure or broken
        finally:
            self._windows.put(None)

    def _record(self) -> None:
        """Write windows as they come: the recording thread."""
        while (window := self._windows.get()) is not None:
            if self._abandoned.is_set():
                continue
            try:
                self._write(window)
            except Exception as broken:  # noqa: BLE001  nothing here may end the training; told at the end
                self._failure = self._failure or broken

    def _write(self, window: _Window) -> None:
        ended = self.clock.take()
        self._unwritten += ended
        self._recent += ended
        entry: dict[str, Any] = {
            "window": window.number,
            "asked": _iso(window.asked_ns),
            "answered": _iso(window.answered_ns),
            "start_ps": (window.asked_ns - self._origin_ns) * 1000,
            "dur_ps": 0,
            "answer_ps": (window.answered_ns - window.asked_ns) * 1000,
            "bytes": len(window.data),
            "events": 0,
            "steps": 0,
            "error": window.error,
        }
        steps = clocks = None
        if window.error is None:
            try:
                steps, clocks = self._reduce(window, entry)
            except BadProfile as error:
                entry["error"] = str(error)
        if self._abandoned.is_set():
            return
        raw = window.data if self.keep == "all" and window.data else None
        run_folder.write_window(self.path, window.number, steps, self._ticks(), raw, clocks=clocks)
        self._unwritten = []
        self._recent = [tick for tick in self._recent if tick.end_ns > window.asked_ns]
        self._entries.append(entry)
        began = time.monotonic()
        if began >= self._facts_due:
            self._write_facts()
            # it grows with the run: what writing it takes stays a fiftieth of the time
            self._facts_due = time.monotonic() + 50 * (time.monotonic() - began)

    def _ticks(self) -> pl.DataFrame:
        """Return the steps that no file holds yet, in the run's time."""
        host, origin = str(self._facts["host"]), self._origin_ns
        rows = [
            (host, tick.step, tick.mark, (tick.start_ns - origin) * 1000, (tick.end_ns - origin) * 1000)
            for tick in self._unwritten
        ]
        return pl.DataFrame(rows, schema=run_folder.TICKS, orient="row")

    def _reduce(self, window: _Window, entry: dict[str, Any]) -> tuple[Steps, pl.DataFrame]:
        """Reduce one window to its steps, in the run's time, and its clocks; note in `entry` what it held."""
        from tpunb.io import xplane

        source = f"window {window.number}"
        events, facts = xplane.read(window.data, source=source)
        start_ns = window.asked_ns if facts.start_ns is None else facts.start_ns
        stop_ns = window.answered_ns if facts.stop_ns is None else facts.stop_ns
        ticks = [*self._recent, *filter(None, [self.clock.open_tick()])]
        within = [
            (tick.step, tick.mark, (tick.start_ns - start_ns) * 1000, (tick.end_ns - start_ns) * 1000)
            for tick in ticks
            if tick.end_ns > start_ns and tick.start_ns < stop_ns
        ]
        if within:
            columns = {name: run_folder.TICKS[name] for name in list(run_folder.TICKS)[1:]}
            intervals = step_rules.from_clock(events, pl.DataFrame(within, schema=columns, orient="row"))
        else:
            intervals, rule = step_rules.find(events)
            if rule == "modules":  # which number their steps anew in every window
                intervals = intervals.with_columns(pl.col("step") + self._unmarked)
                self._unmarked = intervals.select(pl.col("step").max()).item() + 1
        steps = stepping.reduce(events, intervals, facts.hardware)
        move = (start_ns - self._origin_ns) * 1000
        host = str(self._facts["host"])
        entry |= {
            "start_ps": move,
            "dur_ps": (stop_ns - start_ns) * 1000,
            "events": events.height,
            "steps": steps.frame.filter(pl.col("seen") == "full").height,
        }
        if said := [*facts.errors, *facts.warnings]:
            entry["profiler_said"] = said
        if facts.hardware.height and not self._facts["hardware"]:
            self._facts["hardware"] = facts.hardware.with_columns(host=pl.lit(host)).to_dicts()
        in_run = Steps(
            steps.frame.with_columns(pl.col("start_ps") + move, host=pl.lit(host)),
            steps.ops.with_columns(host=pl.lit(host)),
            steps.devices.with_columns(pl.col("start_ps") + move, host=pl.lit(host)),
        )
        return in_run, links.clocks(events).with_columns(host=pl.lit(host))

    def _write_facts(self) -> None:
        run_folder.write_run(self.path, {**self._facts, "windows": self._entries})


def _iso(since_epoch_ns: int) -> str:
    return datetime.fromtimestamp(since_epoch_ns / 1e9, UTC).isoformat()


def _versions(*names: str) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
