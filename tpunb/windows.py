"""One answer of a source into statistics of the run: the reduction of a capture, free of threads and files."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl

from tpunb import links, schema, step_rules, stepping
from tpunb.cluster.scan import PhaseScan
from tpunb.errors import BadProfile, TpunbError
from tpunb.frames import Steps
from tpunb.io import run_folder
from tpunb.marking import Tick
from tpunb.schedule import ENOUGH

if TYPE_CHECKING:
    from tpunb.io.xplane import XSpaceFacts

OURS = ""
"""The key of a window of our own process, where a source watches nothing else."""

_ASTRAY_NS = 10_000_000_000  # by which a window may seem to begin before it was asked for, or after it came
_TRIES = 3  # windows that end in a phase of few steps, before it is left alone
_SAME_PS = 50_000_000  # our clock and our mark in the profile agree to microseconds; clocks of two machines seldom


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
    frames: dict[str, Steps] = field(default_factory=dict)  # by host
    followed: Steps | None = None  # those of the worker that the scan follows
    clocks: list[pl.DataFrame] = field(default_factory=list)
    raw: dict[str, bytes] = field(default_factory=dict)  # by host
    full: Counter[str] = field(default_factory=Counter)  # steps that it saw in full, by mark
    phases: Counter[int] = field(default_factory=Counter)  # the same, by phase of the scan
    opened: bool = False  # whether it ends in a phase that no window before it saw
    scarce: bool = False  # whether it ends in one of which all windows so far saw few steps
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
    def step_ps(self) -> float:
        """How long a step took that was seen in full, the median; 0 for none."""
        if self.followed is None or not len(full := self.followed.full()):
            return 0.0
        return float(full.frame.select(pl.col("dur_ps").median()).item())

    @property
    def queue_ps(self) -> int:
        """By how much the devices lagged behind the host."""
        delays = (delay for clocks in self.clocks for delay in clocks["delay_ps"].drop_nulls())
        return max(delays, default=0)

    def tables(self) -> dict[str, pl.DataFrame]:
        """Return what is written of it, by the names of the files of a part."""
        tables = {"windows": pl.DataFrame(self.windows, schema=schema.WINDOWS)}
        if self.frames:
            tables["steps"] = pl.concat([steps.frame for steps in self.frames.values()])
            tables["ops"] = pl.concat([steps.ops for steps in self.frames.values()])
            tables["devices"] = pl.concat([steps.devices for steps in self.frames.values()])
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
        self._steps_of: Counter[int] = Counter()  # seen in full, by phase
        self._windows_of: Counter[int] = Counter()  # that ended in it
        self.own: str | None = None  # the worker that is this process: its marks are those of our clock
        self._followed: str | None = None  # the worker whose phases the scan follows
        self._numbers: defaultdict[str, _Numbers] = defaultdict(_Numbers)  # by host

    def reduce(self, answer: Answer, ticks: Sequence[Tick]) -> Reduced:
        """Return the steps of an answer, in the run's time, and what it held.

        Parameters
        ----------
        answer
            What was asked for.
        ticks
            The steps of our own clock that may overlap it.
        """
        from tpunb.io import xplane

        reduced, decoded = Reduced(), dict[str, _Decoded]()
        errors = {worker: str(data) for worker, data in answer.workers.items() if isinstance(data, TpunbError)}
        for worker, data in answer.workers.items():
            if not isinstance(data, TpunbError):
                source = f"window {answer.number}" + (f" of {worker}" if worker else "")
                with _told(worker, answer, errors):
                    decoded[worker] = _Decoded(*xplane.read(data, source=source), answer, ticks)
        self._look_for_ourselves(decoded)
        for worker, data in answer.workers.items():
            row: dict[str, Any] = {
                "host": worker or self.host,  # of our own worker `run.json` tells the host
                "window": answer.number,
                "start_ps": (answer.asked_ns - self.origin_ns) * 1000,
                "dur_ps": 0,
                "answer_ps": (answer.answered_ns - answer.asked_ns) * 1000,
                "bytes": 0 if isinstance(data, TpunbError) else len(data),
                "events": 0,
                "steps": 0,
                "why": answer.why,
            }
            if worker in decoded:
                with _told(worker, answer, errors):
                    row |= self._worker(worker, decoded[worker], reduced)
                    reduced.raw[row["host"]] = bytes(answer.workers[worker])  # type: ignore[arg-type]  # no error
            reduced.windows.append({**row, "error": errors.get(worker)})
        self._follow(reduced)
        return reduced

    def _look_for_ourselves(self, decoded: Mapping[str, _Decoded]) -> None:
        """Find the worker that is this process: on this machine, with the marks nearest to the ticks of our clock."""
        if self.own is None and OURS in decoded:
            self.own = OURS
        elif self.own is None:
            apart = {worker: one.apart_ps() for worker, one in decoded.items() if self.host in one.facts.hosts}
            near = {worker: ps for worker, ps in apart.items() if ps is not None and ps < _SAME_PS}
            self.own = min(near, key=near.__getitem__, default=None)

    def _worker(self, worker: str, one: _Decoded, reduced: Reduced) -> dict[str, Any]:
        """Take in what a worker saw; return what is to be said of its window."""
        host = worker or self.host
        if worker == self.own and one.noted.height:
            intervals = step_rules.from_clock(one.events, one.noted)
        else:
            intervals = self._numbers[host].on(*step_rules.find(one.events))
        steps = stepping.reduce(one.events, intervals, one.facts.hardware)
        move = (one.start_ns - self.origin_ns) * 1000
        reduced.said += [*one.facts.errors, *one.facts.warnings]
        if one.facts.hardware.height:
            self.hardware.setdefault(host, one.facts.hardware.with_columns(host=pl.lit(host)).to_dicts())
        reduced.frames[host] = Steps(
            steps.frame.with_columns(pl.col("start_ps") + move, host=pl.lit(host)),
            steps.ops.with_columns(host=pl.lit(host)),
            steps.devices.with_columns(pl.col("start_ps") + move, host=pl.lit(host)),
        )
        reduced.clocks.append(links.clocks(one.events).with_columns(host=pl.lit(host)))
        return {
            "host": host,
            "start_ps": move,
            "dur_ps": (one.stop_ns - one.start_ns) * 1000,
            "events": one.events.height,
            "steps": steps.frame.filter(pl.col("seen") == "full").height,
        }

    def _follow(self, reduced: Reduced) -> None:
        """Tell the scan of the steps that one worker saw in full: the first that ever answered."""
        self._followed = self._followed or next(iter(reduced.frames), None)
        if self._followed not in reduced.frames:
            return
        reduced.followed = reduced.frames[self._followed]
        full = reduced.followed.full()
        known = len(self.scan)
        ran = full.ops.group_by("step").agg(pl.col("op").cast(pl.String).alias("ops"))
        in_order = full.frame.select("step", "mark").join(ran, on="step", maintain_order="left")
        for mark, ops in in_order.select("mark", "ops").iter_rows():
            self.phase = self.scan.feed(mark or "", ops)
            reduced.full[mark or ""] += 1
            reduced.phases[self.phase] += 1
        if self.phase is not None and reduced.phases:
            self._steps_of.update(reduced.phases)
            self._windows_of[self.phase] += 1
            reduced.opened = self.phase >= known
            few = self._steps_of[self.phase] < ENOUGH and self._windows_of[self.phase] <= _TRIES
            reduced.scarce = few and not reduced.opened


class _Numbers:
    """Numbers the steps of one host on, from window to window, where its profile alone tells of them."""

    def __init__(self) -> None:
        self._unmarked = 0  # steps so far
        self._last = -1  # number of a marked step
        self._offset = 0

    def on(self, intervals: pl.DataFrame, rule: str) -> pl.DataFrame:
        """Return the intervals of a window's steps under numbers that no other step has.

        Marked ones keep theirs while they rise; where a program counts from 0 again they go on from the last. Steps
        that only repeat, found in every window anew, are numbered down from -1: should the same host mark steps later,
        they were not those (`run_folder`).
        """
        if intervals.is_empty():
            return intervals
        first, last = intervals.select(first=pl.col("step").min(), last=pl.col("step").max()).row(0)
        if {"modules", "calls"} & set(rule.split(", ")):
            numbered = intervals.with_columns(step=-1 - (pl.col("step") - first + self._unmarked))
            self._unmarked += last - first + 1
            return numbered
        if first + self._offset < self._last:
            self._offset = self._last + 1 - first
        self._last = last + self._offset
        return intervals.with_columns(pl.col("step") + self._offset)


class _Decoded:
    """What one worker saw, and the ticks of our clock at that time, in the window's own time."""

    def __init__(self, events: pl.DataFrame, facts: XSpaceFacts, answer: Answer, ticks: Sequence[Tick]) -> None:
        self.events, self.facts = events, facts
        start_ns = answer.asked_ns if facts.start_ns is None else facts.start_ns
        stop_ns = answer.answered_ns if facts.stop_ns is None else facts.stop_ns
        if not answer.asked_ns - _ASTRAY_NS < start_ns < answer.answered_ns + _ASTRAY_NS:
            # another machine's clock is wrong, or the window is of another day
            start_ns, stop_ns = answer.asked_ns, answer.asked_ns + stop_ns - start_ns
        self.start_ns, self.stop_ns = start_ns, stop_ns
        within = [
            (tick.step, tick.mark, (tick.start_ns - start_ns) * 1000, (tick.end_ns - start_ns) * 1000)
            for tick in ticks
            if tick.end_ns > start_ns and tick.start_ns < stop_ns
        ]
        columns = {name: run_folder.TICKS[name] for name in ("step", "mark", "start_ps", "end_ps")}
        self.noted = pl.DataFrame(within, schema=columns, orient="row")

    def apart_ps(self) -> float | None:
        """Return how far its marks lie from our ticks of the same numbers, the median; None where none are the same."""
        marks = self.events.filter(pl.col("step_num").is_not_null()).select("step_num", "start_ps")
        met = marks.join(self.noted.select("step", clock_ps="start_ps"), left_on="step_num", right_on="step")
        return met.select((pl.col("start_ps") - pl.col("clock_ps")).abs().median()).item()  # type: ignore[no-any-return]


@contextmanager
def _told(worker: str, answer: Answer, errors: dict[str, str]) -> Iterator[None]:
    """Note why a window of a worker cannot be used; the others can."""
    try:
        yield
    except BadProfile as error:
        errors[worker] = str(error)
    except (Exception, pl.exceptions.PanicException) as error:  # noqa: BLE001  the others can be reduced
        errors[worker] = f"window {answer.number} could not be reduced: {error!r}"


class Kept:
    """Which raw windows stay: one a phase of the scan, the first that holds enough steps of it.

    Parameters
    ----------
    enough
        Steps of a phase beyond which no window of more steps replaces the one that is kept.
    """

    def __init__(self, enough: int = ENOUGH) -> None:
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
