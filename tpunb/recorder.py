"""Watches the whole of a running block: paper III.A.

A profiling thread asks the framework's profiler service for one window after another; a recording thread reduces
what comes back to statistics and writes it, while the next window is already being asked for. Every step is noted by
our own clock besides, since windows have gaps between them.
"""

from __future__ import annotations

import queue
import socket
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, TypeVar

import polars as pl

from tpunb import step_rules, stepping
from tpunb.errors import BadProfile, CaptureBusy, TpunbError
from tpunb.frames import Steps
from tpunb.io import run_folder
from tpunb.marking import StepClock, Tick, keras_marks
from tpunb.sources import Local, Source

T = TypeVar("T")
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
        """Mark the block as one step: ``with run.step(i): ...``."""
        self._clock.begin(mark, number)
        try:
            yield
        finally:
            self._clock.end()

    def steps(self, data: Iterable[T], mark: str = "train") -> Iterator[T]:
        """Mark each turn of a loop as a step, the wait for its data included: ``for batch in run.steps(data): ...``."""
        batches = iter(data)
        try:
            while True:
                self._clock.begin(mark, complete=False)
                try:
                    batch = next(batches)
                except StopIteration:
                    return
                self._clock.finished()
                yield batch
        finally:
            self._clock.end()


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
    path = (Path("runs", f"{datetime.now():%Y%m%d-%H%M%S}") if dir is None else Path(dir)).absolute()
    with ExitStack() as stack:
        stack.enter_context(_alone(path))
        recorder = _Recorder(path, source or Local(), schedule or Schedule.continuous(), keep)
        stack.enter_context(recorder)
        stack.enter_context(_marks(recorder.clock))
        yield Run(path, recorder.clock)


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
    with ExitStack() as stack:
        if "keras" in sys.modules or "tensorflow" in sys.modules:
            stack.enter_context(keras_marks(clock))
        yield


class _Recorder:
    """The two threads of a capture, and what they share."""

    def __init__(self, path: Path, source: Source, schedule: Schedule, keep: Keep) -> None:
        self.path, self.source, self.schedule, self.keep = path, source, schedule, keep
        self.clock = StepClock(source.step)
        self._ended = threading.Event()
        self._windows: queue.Queue[_Window | None] = queue.Queue(maxsize=4)
        self._ticks: list[Tick] = []  # those a coming window may still overlap
        self._entries: list[dict[str, Any]] = []
        self._facts: dict[str, Any] = {}
        self._unmarked = 0  # steps found by other rules than marks: numbered on from window to window
        self._failure: BaseException | None = None
        self._asking = threading.Thread(target=self._ask, name="tpunb-profiling", daemon=True)
        self._writing = threading.Thread(target=self._record, name="tpunb-recording", daemon=True)

    def __enter__(self) -> _Recorder:
        from tpunb import self_time  # noqa: F401  compiled by its import: now, not beside the training
        from tpunb.io import xplane

        xplane.warm()
        found = self.source.start()
        moved = run_folder.make_way(self.path)
        self._origin_ns = time.time_ns()
        self._facts = {
            "name": self.path.name,
            "started": datetime.fromtimestamp(self._origin_ns / 1e9, UTC).isoformat(timespec="seconds"),
            "origin_ns": self._origin_ns,
            "host": socket.gethostname(),
            **found,
            "options": {
                "window": self.schedule.window,
                "every": self.schedule.every,
                "keep": self.keep,
                "source": type(self.source).__name__,
            },
            "versions": {
                "python": sys.version.split()[0],
                **_versions("tpunb", "tensorflow", "keras", "polars"),
            },
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
        self._facts["state"] = "finished" if kind is None else "ended by an exception"
        if error is not None:
            self._facts["error"] = kind.__name__ if kind is not None else ""
        self._ended.set()
        try:
            self._hurry_home()
        finally:
            self._write_facts()
        if self._failure is not None:
            warnings.warn(
                f"the recording of {self.path} is incomplete: {self._failure!r}", RuntimeWarning, stacklevel=3
            )

    def _hurry_home(self) -> None:
        """End the last window now rather than when its time is up, and wait until all is written."""
        deadline = time.monotonic() + _COLLECT_SECONDS
        while self._asking.is_alive() and time.monotonic() < deadline:
            try:
                self.source.stop()
            except TpunbError as error:  # it may have ended by itself between two looks
                self._facts["last_stop"] = str(error)
            self._asking.join(timeout=0.2)
        self._writing.join(timeout=max(1.0, deadline - time.monotonic()))
        if self._writing.is_alive():
            self._failure = self._failure or TimeoutError("the last window did not come back in time")

    def _ask(self) -> None:
        """Ask for windows until the block ends: the profiling thread."""
        number = 0
        pause = 0.0
        while not self._ended.wait(pause):
            asked = time.time_ns()
            data, error = b"", None
            try:
                data = self.source.window(self.schedule.window)
            except TpunbError as refused:
                error = str(refused)
            self._windows.put(_Window(number, asked, time.time_ns(), data, error))
            number += 1
            due = 0.0 if self.schedule.every is None else asked / 1e9 + self.schedule.every - time.time()
            pause = max(due, 0.0 if error is None else min(5.0, max(0.2, 2 * pause)))
        self._windows.put(None)

    def _record(self) -> None:
        """Write windows as they come: the recording thread."""
        while (window := self._windows.get()) is not None:
            try:
                self._entries.append(self._write(window))
                self._write_facts()
            except OSError as error:  # a full disk must not end the training; it is told at the end
                self._failure = self._failure or error

    def _write(self, window: _Window) -> dict[str, Any]:
        ended = self.clock.take()
        self._ticks += ended
        host = str(self._facts["host"])
        entry: dict[str, Any] = {
            "window": window.number,
            "asked": datetime.fromtimestamp(window.asked_ns / 1e9, UTC).isoformat(),
            "answered": datetime.fromtimestamp(window.answered_ns / 1e9, UTC).isoformat(),
            "start_ps": (window.asked_ns - self._origin_ns) * 1000,
            "dur_ps": 0,
            "answer_ps": (window.answered_ns - window.asked_ns) * 1000,
            "bytes": len(window.data),
            "events": 0,
            "steps": 0,
            "error": window.error,
        }
        steps = None
        if window.error is None:
            try:
                steps = self._reduce(window, entry)
            except BadProfile as error:
                entry["error"] = str(error)
        rows = [
            (host, t.step, t.mark, (t.start_ns - self._origin_ns) * 1000, (t.end_ns - self._origin_ns) * 1000)
            for t in ended
        ]
        ticks = pl.DataFrame(rows, schema=run_folder.TICKS, orient="row")
        raw = window.data if self.keep == "all" and window.data else None
        run_folder.write_window(self.path, window.number, steps, ticks, raw)
        self._ticks = [tick for tick in self._ticks if tick.end_ns > window.asked_ns]
        return entry

    def _reduce(self, window: _Window, entry: dict[str, Any]) -> Steps:
        """Reduce one window to its steps, in the run's time, and note in `entry` what it held."""
        from tpunb.io import xplane

        source = f"window {window.number}"
        facts = xplane.facts(window.data, source=source)
        events = xplane.events(window.data, source=source)
        start_ns = facts.start_ns or window.asked_ns
        stop_ns = facts.stop_ns or window.answered_ns
        ticks = [*self._ticks, *filter(None, [self.clock.open_tick()])]
        within = [
            (tick.step, tick.mark, (tick.start_ns - start_ns) * 1000, (tick.end_ns - start_ns) * 1000)
            for tick in ticks
            if tick.end_ns > start_ns and tick.start_ns < stop_ns
        ]
        if within:
            columns = {name: run_folder.TICKS[name] for name in list(run_folder.TICKS)[1:]}
            intervals = step_rules.from_clock(events, pl.DataFrame(within, schema=columns, orient="row"))
        else:
            intervals, _ = step_rules.find(events)
            intervals = intervals.with_columns(pl.col("step") + self._unmarked)
            if intervals.height:
                self._unmarked = intervals.select(pl.col("step").max()).item() + 1
        steps = stepping.reduce(events, intervals)
        move = (start_ns - self._origin_ns) * 1000
        host = str(self._facts["host"])
        entry |= {
            "start_ps": move,
            "dur_ps": (stop_ns - start_ns) * 1000,
            "events": events.height,
            "steps": steps.frame.filter(pl.col("seen") == "full").height,
        }
        if facts.hardware.height and not self._facts["hardware"]:
            self._facts["hardware"] = facts.hardware.with_columns(host=pl.lit(host)).to_dicts()
        return Steps(
            steps.frame.with_columns(pl.col("start_ps") + move, host=pl.lit(host)),
            steps.ops.with_columns(host=pl.lit(host)),
            steps.devices.with_columns(pl.col("start_ps") + move, host=pl.lit(host)),
        )

    def _write_facts(self) -> None:
        run_folder.write_run(self.path, {**self._facts, "windows": self._entries})


def _versions(*names: str) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
