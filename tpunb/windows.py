"""One answer of a source into statistics of the run: the reduction of a capture, free of threads and files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from tpunb import links, schema, step_rules, stepping
from tpunb.cluster.scan import PhaseScan
from tpunb.errors import BadProfile, TpunbError
from tpunb.frames import Steps
from tpunb.io import run_folder
from tpunb.marking import Tick

OURS = ""
"""The key of a window of our own process, where a source watches nothing else."""

_SAME_PS = 200_000_000  # our clock and our mark in the profile agree to microseconds; clocks of two machines seldom


@dataclass(frozen=True)
class Answer:
    """What a source gave when it was asked for a window: bytes, or why not, by worker."""

    number: int
    why: str
    asked_ns: int
    answered_ns: int
    workers: Mapping[str, bytes | TpunbError]


@dataclass
class Reduced:
    """An answer in the run's time."""

    windows: list[dict[str, Any]] = field(default_factory=list)  # rows of WINDOWS
    frames: list[Steps] = field(default_factory=list)
    clocks: list[pl.DataFrame] = field(default_factory=list)
    raw: dict[str, bytes] = field(default_factory=dict)  # by host
    full: Counter[str] = field(default_factory=Counter)  # steps of the first host seen in full, by mark
    phases: Counter[int] = field(default_factory=Counter)  # the same, by phase of the scan
    opened: bool = False  # whether it ends in a phase that no window before it saw
    said: list[str] = field(default_factory=list)  # by the profiler itself

    @property
    def watched_ps(self) -> int:
        """How long the profiler watched: the longest of the workers."""
        return max((row["dur_ps"] for row in self.windows), default=0)

    @property
    def events(self) -> int:
        """How many events the largest of the workers had."""
        return max((row["events"] for row in self.windows), default=0)

    @property
    def queue_ps(self) -> int:
        """By how much the devices lagged behind the host."""
        delays = (delay for clocks in self.clocks for delay in clocks["delay_ps"].drop_nulls())
        return max(delays, default=0)

    def tables(self) -> dict[str, pl.DataFrame]:
        """Return what is written of it, by the names of the files of a part."""
        tables = {"windows": pl.DataFrame(self.windows, schema=schema.WINDOWS)}
        if self.frames:
            tables["steps"] = pl.concat([steps.frame for steps in self.frames])
            tables["ops"] = pl.concat([steps.ops for steps in self.frames])
            tables["devices"] = pl.concat([steps.devices for steps in self.frames])
            tables["clocks"] = pl.concat(self.clocks)
        return tables


class Reducer:
    """Reduces the answers of one run, in order; it names hosts, numbers unmarked steps on and follows the phases.

    Parameters
    ----------
    host
        The name of the machine that we run on.
    origin_ns
        Nanoseconds since the epoch of the run's time 0.
    """

    def __init__(self, host: str, origin_ns: int) -> None:
        self.host, self.origin_ns = host, origin_ns
        self.hardware: dict[str, list[dict[str, Any]]] = {}
        self.scan = PhaseScan()
        self.phase: int | None = None  # of the last step seen in full
        self._names: dict[str, str] = {}  # hosts, by worker
        self._own: str | None = None  # the worker that is this process: its marks are those of our clock
        self._unmarked: Counter[str] = Counter()  # steps found by repeated modules are numbered on, host by host

    def reduce(self, answer: Answer, ticks: Sequence[Tick]) -> Reduced:
        """Return the steps of an answer, in the run's time, and what it held.

        Parameters
        ----------
        answer
            What was asked for.
        ticks
            The steps of our own clock that may overlap it.
        """
        reduced = Reduced()
        for worker, data in answer.workers.items():
            row: dict[str, Any] = {
                "host": self._names.get(worker, worker or self.host),
                "window": answer.number,
                "start_ps": (answer.asked_ns - self.origin_ns) * 1000,
                "dur_ps": 0,
                "answer_ps": (answer.answered_ns - answer.asked_ns) * 1000,
                "bytes": 0,
                "events": 0,
                "steps": 0,
                "error": str(data) if isinstance(data, TpunbError) else None,
                "why": answer.why,
            }
            if not isinstance(data, TpunbError):
                try:
                    self._worker(worker, data, answer, ticks, row, reduced)
                except BadProfile as error:
                    row["error"] = str(error)
                except (Exception, pl.exceptions.PanicException) as error:  # noqa: BLE001  the others can be reduced
                    row["error"] = f"window {answer.number} could not be reduced: {error!r}"
            reduced.windows.append(row)
        self._follow(reduced)
        return reduced

    def _worker(
        self, worker: str, data: bytes, answer: Answer, ticks: Sequence[Tick], row: dict[str, Any], reduced: Reduced
    ) -> None:
        from tpunb.io import xplane

        row["bytes"] = len(data)
        events, facts = xplane.read(data, source=f"window {answer.number}" + (f" of {worker}" if worker else ""))
        start_ns = answer.asked_ns if facts.start_ns is None else facts.start_ns
        stop_ns = answer.answered_ns if facts.stop_ns is None else facts.stop_ns
        within = [
            (tick.step, tick.mark, (tick.start_ns - start_ns) * 1000, (tick.end_ns - start_ns) * 1000)
            for tick in ticks
            if tick.end_ns > start_ns and tick.start_ns < stop_ns
        ]
        columns = {name: run_folder.TICKS[name] for name in ("step", "mark", "start_ps", "end_ps")}
        noted = pl.DataFrame(within, schema=columns, orient="row")
        if self._own is None and (worker == OURS or (self.host in facts.hosts and _marked(events, noted))):
            self._own, self._names[worker] = worker, self.host
        ours = worker == self._own
        host = self._named(worker, facts.hosts)
        if ours and noted.height:
            intervals = step_rules.from_clock(events, noted)
        else:
            intervals, rule = step_rules.find(events)
            if rule == "modules":  # which number their steps anew in every window
                intervals = intervals.with_columns(pl.col("step") + self._unmarked[host])
                self._unmarked[host] = int(intervals.select(pl.col("step").max()).item() or 0) + 1
        steps = stepping.reduce(events, intervals, facts.hardware)
        move = (start_ns - self.origin_ns) * 1000
        row |= {
            "host": host,
            "start_ps": move,
            "dur_ps": (stop_ns - start_ns) * 1000,
            "events": events.height,
            "steps": steps.frame.filter(pl.col("seen") == "full").height,
        }
        reduced.said += [*facts.errors, *facts.warnings]
        if facts.hardware.height:
            self.hardware.setdefault(host, facts.hardware.with_columns(host=pl.lit(host)).to_dicts())
        reduced.frames.append(
            Steps(
                steps.frame.with_columns(pl.col("start_ps") + move, host=pl.lit(host)),
                steps.ops.with_columns(host=pl.lit(host)),
                steps.devices.with_columns(pl.col("start_ps") + move, host=pl.lit(host)),
            )
        )
        reduced.clocks.append(links.clocks(events).with_columns(host=pl.lit(host)))
        reduced.raw[host] = data

    def _named(self, worker: str, told: Sequence[str]) -> str:
        """Return a worker's host: what it calls itself, if no other does."""
        if worker not in self._names:
            name = told[0] if len(told) == 1 else worker
            self._names[worker] = worker if name in self._names.values() else name
        return self._names[worker]

    def _follow(self, reduced: Reduced) -> None:
        """Tell the scan of the steps that the first worker saw in full."""
        if not reduced.frames:
            return
        full = reduced.frames[0].full()
        known = len(self.scan)
        ran = full.ops.group_by("step").agg(pl.col("op").cast(pl.String).alias("ops"))
        for mark, ops in full.frame.select("step", "mark").join(ran, on="step").select("mark", "ops").iter_rows():
            self.phase = self.scan.feed(mark or "", ops)
            reduced.full[mark or ""] += 1
            reduced.phases[self.phase] += 1
        reduced.opened = bool(reduced.phases) and self.phase is not None and self.phase >= known


def _marked(events: pl.DataFrame, ticks: pl.DataFrame) -> bool:
    """Say whether a profile holds a mark of our own: of that number, at that time."""
    marks = events.filter(pl.col("step_num").is_not_null()).select("step_num", "start_ps")
    met = marks.join(ticks.select("step", clock_ps="start_ps"), left_on="step_num", right_on="step")
    return met.filter((pl.col("start_ps") - pl.col("clock_ps")).abs() < _SAME_PS).height > 0


class Kept:
    """Which raw windows stay: one a phase of the scan, the first that holds enough steps of it.

    Parameters
    ----------
    enough
        Steps of a phase beyond which no window of more steps replaces the one that is kept.
    """

    def __init__(self, enough: int = 20) -> None:
        self._enough = enough
        self._best: dict[int, tuple[int, int]] = {}  # by phase: steps, window

    def offer(self, window: int, phases: Mapping[int, int]) -> tuple[bool, list[int]]:
        """Return whether a window stays, and those that need not stay for it."""
        before = {kept for _, kept in self._best.values()}
        for phase, steps in phases.items():
            most, _ = self._best.get(phase, (0, -1))
            if most < min(steps, self._enough):
                self._best[phase] = steps, window
        after = {kept for _, kept in self._best.values()}
        return window in after, sorted(before - after)
