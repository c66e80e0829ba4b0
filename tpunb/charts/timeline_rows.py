"""Rows of the timeline: a time range is cut into marks once, and coloured again for each clustering."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from tpunb import schema
from tpunb.charts.style import HOSTS, NOISE, OTHERS, PHASE_COLOURS, cleaned
from tpunb.frames import Phases, Steps
from tpunb.frames.op_matrix import Floats, Ints, factorize
from tpunb.text import cut, short_time

Columns = dict[str, Any]

SHADES = (*PHASE_COLOURS, OTHERS, NOISE)
"""The colour of each shade: the longest phases by rank, all other phases, outliers."""

SLICES = 480
"""Slices of time, on all lanes together, where there are too many steps to draw each."""

TRACED = {"full": ("traced in full", 1.0), "partial": ("traced in part", 0.72), "none": ("inferred", 0.5)}
"""The name and the opacity of steps by how well they were traced."""

LANE, TOP, HEIGHT = 116, 16, 36
"""Points per host; from its top to its steps; of the steps."""

ACCOUNTS_AT, BELOW, THIN, PACE = (60, 12), 80, 8, (96, 16)
"""Points from the top of a host to its accounts, and of these; to the profiler's windows, and of these; to the times
of its steps, and of these."""

_EVENTS = 20  # saves and stalls that are marked, the longest
_EACH = 600  # steps that are drawn one by one; more share slices
_MARKED = 300  # stretches of an account that are drawn one by one
_LEAST_PART = 0.01  # smallest part of a slice that is drawn
_WIDE, _LETTER = 0.03, 0.009  # least width of a run of one phase for its name, and per letter; shares of the range


@dataclass(frozen=True, eq=False)
class Timeline:
    """A time range of a run in seconds, the whole if None, cut into marks that any clustering can colour."""

    steps: Steps
    time_range: tuple[float, float] | None = None

    @cached_property
    def hosts(self) -> list[str]:
        """Hosts that are drawn, one lane each."""
        return self.steps.frame["host"].unique().sort().to_list()[:HOSTS]

    @cached_property
    def edges(self) -> tuple[float, float]:
        """Start and end in seconds."""
        return self.time_range or self.whole

    @cached_property
    def whole(self) -> tuple[float, float]:
        """Start and end of the whole run in seconds."""
        spans = pl.concat([frame.select("start_ps", "dur_ps") for frame in (self.steps.frame, self.steps.windows)])
        first, last = pl.col("start_ps").min(), (pl.col("start_ps") + pl.col("dur_ps")).max()
        start, end = spans.select(first.fill_null(0).alias("first"), last.fill_null(0).alias("last")).row(0)
        end = max(end, 0 if self.steps.wall is None else self.steps.wall.span_ps)
        return min(0, start) / 1e12, (end or 1) / 1e12

    @cached_property
    def _steps(self) -> _Spans:
        ends = (pl.col("start_ps") + pl.col("dur_ps")).alias("end_ps")
        until = pl.min_horizontal(ends, pl.col("start_ps").shift(-1).over("host"))  # none hides the next
        return _Spans.of(self.steps.frame.with_columns(end_ps=until), self.hosts, self.edges)

    @cached_property
    def _windows(self) -> _Spans:
        return _Spans.of(_ended(self.steps.windows.filter(pl.col("dur_ps") > 0)), self.hosts, self.edges)

    @cached_property
    def _seen(self) -> Ints:
        seen = self.steps.frame["traced"].cast(pl.String)
        numbers = seen.replace_strict([*TRACED], range(len(TRACED)), return_dtype=pl.Int64)
        return np.asarray(numbers.to_numpy()[self._steps.row])

    def rows(
        self, phases: Phases | None, chosen: int | None = None, *, alias: Mapping[int, tuple[int, str]] | None = None
    ) -> dict[str, Columns]:
        """Return the tables "timeline", "ranks" and "numbers" as compact columns, which :func:`layout` unpacks.

        In "timeline", single steps have ``start``, ``end`` (seconds), ``lane`` and ``step``; of slices of time that
        steps share, ``after`` (slices since the previous row) and ``part`` (%). ``rank`` is the row of "ranks";
        ``traced`` is 0 in full, 1 in part, 2 inferred: one base-36 digit per row, or one if all are equal. Without
        phases all steps have one rank, without a name.
        """
        marks = self.marks(phases, chosen, alias)
        looks: Columns = {"rank": _digits(marks.rank), "traced": _digits(marks.seen)}
        if marks.step is None:
            looks |= {"after": np.diff(marks.place, prepend=0).tolist(), "part": (marks.high - marks.low).tolist()}
        else:
            looks |= {"start": self._short(marks.start), "end": self._short(marks.end)}
            looks |= {"lane": marks.lane.tolist(), "step": marks.step.tolist()}
        ranks: Columns = {name: [*getattr(marks.ranks, name)] for name in ("phase", "shade", "name")}
        return {"timeline": looks, "ranks": ranks, "numbers": self.numbers(marks)}

    def marks(
        self, phases: Phases | None, chosen: int | None = None, alias: Mapping[int, tuple[int, str]] | None = None
    ) -> Marks:
        """Return the steps as rectangles; see :meth:`rows` for the parameters."""
        if phases is None:
            of_step, ranks = np.zeros(len(self.steps), np.int64), Ranks([None], [0], [""])
        else:
            of_step, ranks = _ranked(phases, chosen, alias)
        spans, seen = self._steps, self._seen
        if not spans.each:
            return self._sliced(of_step, seen, ranks)
        rank = of_step[spans.row]
        place, step = np.arange(len(rank)), self.steps.frame["step"].to_numpy()[spans.row]
        high = np.full_like(rank, 100)
        return Marks(ranks, rank, seen, place, spans.lane, spans.start, spans.end, 0 * high, high, step)

    def _sliced(self, of_step: Ints, seen: Ints, ranks: Ranks) -> Marks:
        """Return each slice of time divided by the parts that its phases took, the longest phase on top."""
        spans, many, each = self._steps, len(ranks.phase), _slices(len(self.hosts))
        parts = np.zeros((each * len(self.hosts) * many, 3))
        if many == 1:  # as on the first paint, which the compiled loops would hold up
            parts += np.bincount(spans.slice * 3 + seen, spans.part, minlength=parts.size).reshape(-1, 3)
        else:
            from tpunb.frames.phase_sums import part_sums  # compiled

            part_sums(spans.slice, of_step, spans.row, seen, spans.part, many, parts)
        code = np.flatnonzero(parts.sum(axis=1) > _LEAST_PART)
        part, seen = parts[code].sum(axis=1), parts[code].argmax(axis=1)  # traced as most of it was
        place, rank = code // many, code % many
        first = np.flatnonzero(np.diff(place, prepend=-1))
        high = np.cumsum(part)
        below = np.append(0.0, high[first[1:] - 1])[: len(first)]  # empty where nothing is long enough
        high -= np.repeat(below, np.diff(np.append(first, len(code))))
        top = np.rint((100 * high).clip(0, 100)).astype(np.int64)
        under = np.append(0, top[:-1])[: len(top)]
        under[first] = 0
        return Marks(ranks, rank, seen, place, place // each, *self._slice(place), under, top, None)

    def _slice(self, place: Ints) -> tuple[Floats, Floats]:
        """Return start and end of slices in seconds."""
        slices = _slices(len(self.hosts))
        width = (self.edges[1] - self.edges[0]) / slices
        start = np.asarray(self.edges[0] + place % slices * width, dtype=np.float64)
        return start, start + width

    def numbers(self, marks: Marks) -> Columns:
        """Return the names of the phases above those of their runs that are wide enough."""
        most = np.lexsort((marks.low - marks.high, marks.place))[np.flatnonzero(np.diff(marks.place, prepend=-1))]
        rank, lane, start, end = (column[most] for column in (marks.rank, marks.lane, marks.start, marks.end))
        first = np.flatnonzero((np.diff(rank, prepend=-1) != 0) | (np.diff(lane, prepend=-1) != 0))
        start, end = start[first], end[np.append(first[1:], len(rank))[: len(first)] - 1]
        rank, lane = rank[first], lane[first]
        wide = (end - start) / (self.edges[1] - self.edges[0]) > _room(marks.ranks.name)[rank]
        wide &= np.array([phase != -1 for phase in marks.ranks.phase])[rank]  # what accounts explain
        return {
            "at": self._short(((start + end) / 2)[wide]),
            "y": (lane[wide] * LANE + 8).tolist(),
            "name": [marks.ranks.name[at] for at in rank[wide].tolist()],
            "phase": [marks.ranks.phase[at] for at in rank[wide].tolist()],
        }

    def windows(self) -> Columns:
        """Return the profiler's windows as columns."""
        return self._parts(self._windows, BELOW, THIN)

    def axis(self, checkpoints: Mapping[str, float], segments: pl.DataFrame | None) -> dict[str, Columns]:
        """Return the tables of the time range alone; seconds of checkpoints by name, and GOODPUT_SEGMENTS, if any."""
        of_run = pl.DataFrame(schema=schema.GOODPUT_SEGMENTS) if segments is None else segments
        tables = {"windows": self.windows(), "checkpoints": self.checkpoints(checkpoints), "pace": self.pace()}
        return tables | {"accounts": self.accounts(of_run), "events": self.events(of_run)}

    def accounts(self, segments: pl.DataFrame) -> Columns:
        """Return the account, by its place in ACCOUNTS, that took most of each slice of time as columns."""
        spans, many = _Spans.of(_ended(segments), self.hosts, self.edges, -1), len(schema.ACCOUNTS)
        cell = spans.slice * many + segments["account"].to_physical().to_numpy()[spans.row]
        parts = np.bincount(cell, spans.part, self._places * many).reshape(-1, many)
        place = np.flatnonzero(parts.sum(axis=1) > _LEAST_PART)
        code = parts[place].argmax(axis=1)
        first, columns = self._runs(place, code)
        return columns | {"lane": columns["lane"].tolist(), "code": code[first].tolist()}

    def pace(self) -> Columns:
        """Return the mean time of the steps in each slice of time as bars, cut at three times their median."""
        spans = _Spans.of(_ended(self.steps.frame), self.hosts, self.edges, -1)
        took = spans.part * self.steps.frame["dur_ps"].to_numpy()[spans.row]
        filled, times = (np.bincount(spans.slice, weights, self._places) for weights in (spans.part, took))
        place = np.flatnonzero(filled)
        mean = times[place] / filled[place]
        height = np.rint(PACE[1] * (mean / (3 * np.median(mean) if mean.any() else 1)).clip(0, 1)).astype(np.int64)
        first, columns = self._runs(place, height)
        return columns | {"lane": columns["lane"].tolist(), "height": height[first].tolist()}

    def events(self, segments: pl.DataFrame) -> Columns:
        """Return the longest saves and stalls as marks: when, what, and the account that it is in."""
        stalls = pl.DataFrame(schema=schema.STALLS) if self.steps.wall is None else self.steps.wall.stalls
        stalls = stalls.sort("share", descending=True).unique(["host", "start_ps"], keep="first", maintain_order=True)
        stalls = stalls.select("start_ps", "dur_ps", host=pl.col("host").cast(pl.String), what="place", account="kind")
        saves = segments.filter(account="checkpoint save").select(
            "start_ps", "dur_ps", host=pl.col("host").cast(pl.String), what="detail", account=pl.lit("checkpoint save")
        )
        marks = pl.concat([saves.with_columns(sign=pl.lit("◆")), stalls.with_columns(sign=pl.lit("▼"))])
        start = pl.col("start_ps") / 1e12
        shown = marks.filter(start.is_between(*self.edges), pl.col("host").is_in(self.hosts)).top_k(
            _EVENTS, by="dur_ps"
        )
        names = {"▼": "stall", "◆": "save"}
        return {
            "at": self._short(shown.select(start).to_series().to_numpy()),
            "y": [self.hosts.index(host) * LANE + ACCOUNTS_AT[0] - 4 for host in shown["host"]],
            "sign": shown["sign"].to_list(),
            "account": shown["account"].fill_null("step time deviation").to_list(),
            "about": [
                f"{names[sign]}, {short_time(dur_ps)}: {cut(cleaned(what or 'unknown'), 120)}"
                for sign, dur_ps, what in shown["sign", "dur_ps", "what"].iter_rows()
            ],
        }

    @property
    def _places(self) -> int:
        """Slices of all lanes."""
        return _slices(len(self.hosts)) * len(self.hosts)

    def _runs(self, place: Ints, look: Ints | Floats) -> tuple[Ints, Columns]:
        """Return the first of neighbouring slices of one look, and lane, start and end of them together."""
        slices = _slices(len(self.hosts))
        new = (np.diff(place, prepend=-2) > 1) | (np.diff(look, prepend=-1) != 0) | (place % slices == 0)
        first = np.flatnonzero(new)
        last = np.append(first[1:], len(place))[: len(first)] - 1
        start, end = self._slice(place[first])[0], self._slice(place[last])[1]
        return first, {"lane": place[first] // slices, "start": self._short(start), "end": self._short(end)}

    def account(self, segments: pl.DataFrame) -> Columns:
        """Return ``tpunb.schema.GOODPUT_SEGMENTS`` of one account as columns, in slices of time where they are many."""
        spans = _Spans.of(_ended(segments), self.hosts, self.edges, _MARKED)
        return self._parts(spans, TOP, HEIGHT)

    def _parts(self, spans: _Spans, top: int, height: int) -> Columns:
        """Return spans as columns; the height of a slice of time is the share of it that they fill."""
        if spans.each:
            lane, part = spans.lane, np.ones(len(spans.lane))
            columns: Columns = {"start": self._short(spans.start), "end": self._short(spans.end)}
        else:
            filled = np.round(np.bincount(spans.slice, spans.part).clip(0, 1), 2)
            place = np.flatnonzero(filled)
            first, columns = self._runs(place, filled[place])
            lane, part = columns.pop("lane"), filled[place][first]
        low = lane * LANE + top + height
        return columns | {"y": (low - part * height).round(1).tolist(), "y2": low.tolist()}

    def checkpoints(self, seconds: Mapping[str, float]) -> Columns:
        """Return where checkpoints are drawn, given the second of each by name."""
        low, high = self.edges
        inside = {name: at for name, at in seconds.items() if low <= at <= high}
        tops = [lane * LANE + TOP for lane in range(len(self.hosts)) for _ in inside]
        return {
            "at": self._short(np.array([*inside.values()])) * len(self.hosts),
            "y": [top + HEIGHT for top in tops],
            "y2": tops,
            "about": [f"checkpoint {cleaned(name)}" for name in inside] * len(self.hosts),
        }

    def _short(self, seconds: Floats) -> list[float]:
        """Return times with as many digits as can be seen."""
        digits = 5 - int(np.floor(np.log10(max(self.edges[1] - self.edges[0], 1e-9))))
        return [round(second, max(digits, 0)) for second in seconds.tolist()]


@dataclass(frozen=True, eq=False)
class _Spans:
    """Stretches of time on lanes: one by one if they are few, else divided into slices of time."""

    row: Ints  # of the frame
    lane: Ints
    start: Floats  # seconds
    end: Floats
    each: bool
    slice: Ints  # those of the second lane follow those of the first; one row per overlap
    part: Floats  # of the slice

    @classmethod
    def of(cls, frame: pl.DataFrame, hosts: Sequence[str], edges: tuple[float, float], most: int = 0) -> _Spans:
        lanes = dict(zip(hosts, range(len(hosts)), strict=True))
        lane = frame["host"].cast(pl.String).replace_strict(lanes, default=-1, return_dtype=pl.Int64).to_numpy()
        start, end = (frame[name].to_numpy() / 1e12 for name in ("start_ps", "end_ps"))
        low, high = edges
        row = np.flatnonzero((lane >= 0) & (start < high) & (end > low))
        lane, start, end = lane[row], start[row].clip(low, high), end[row].clip(low, high)
        if len(row) <= (most or _EACH):
            return cls(row, lane, start, end, True, np.zeros(0, dtype=np.int64), np.zeros(0))
        slices = _slices(len(hosts))
        width = (high - low) / slices
        first = ((start - low) / width).astype(np.int64).clip(0, slices - 1)
        last = np.ceil((end - low) / width).astype(np.int64).clip(first + 1, slices) - 1
        times = last - first + 1
        of = np.repeat(np.arange(len(row)), times)
        at = np.arange(len(of)) - np.repeat(np.cumsum(times) - times, times) + first[of]
        left = low + at * width
        part = (np.minimum(end[of], left + width) - np.maximum(start[of], left)).clip(0) / width
        return cls(row[of], lane[of], start[of], end[of], False, lane[of] * slices + at, part)


def _ended(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(end_ps=pl.col("start_ps") + pl.col("dur_ps"))


class Ranks(NamedTuple):
    """The look of each rank."""

    phase: list[int | None]  # None: several
    shade: list[int]
    name: list[str]


class Marks(NamedTuple):
    """Rectangles: single steps, or the parts of slices of time that phases took."""

    ranks: Ranks
    rank: Ints
    seen: Ints
    place: Ints  # the slice, or the position of a single step
    lane: Ints
    start: Floats  # seconds
    end: Floats
    low: Ints  # percent of the lane's height
    high: Ints
    step: Ints | None  # None: in slices


_DIGITS = np.frombuffer(b"0123456789abcdefghijklmnopqrstuvwxyz", dtype="S1")


def _digits(values: Ints) -> str:
    """Return one base-36 digit per value, or one digit if all are equal."""
    return _DIGITS[values[:1] if len(values) and (values == values[0]).all() else values].tobytes().decode()


def _ranked(phases: Phases, chosen: int | None, alias: Mapping[int, tuple[int, str]] | None) -> tuple[Ints, Ranks]:
    """Return the rank of each step, and the look of each rank."""
    others, outliers = len(PHASE_COLOURS), len(PHASE_COLOURS) + 1  # shades
    named = phases.names
    real = [phase for phase in named if phase >= 0]
    alone = real[: len(PHASE_COLOURS)]
    if chosen in real and chosen not in alone:
        alone.append(chosen)
    given = {phase: (at, cleaned(named[phase])) for at, phase in enumerate(real)} if alias is None else alias
    looks = [given.get(phase, (others, cleaned(named[phase]))) for phase in alone]
    rest = ["others", "outliers"]
    shades, names = [min(shade, others) for shade, _ in looks], [name for _, name in looks]
    ranks = Ranks([*alone, None, -1], [*shades, others, outliers], [*names, *rest])
    rank = dict(zip(alone, range(len(alone)), strict=True)) | {-1: len(alone) + 1}
    labels, at = factorize(phases.labels.to_numpy())
    return np.array([rank.get(label, len(alone)) for label in labels.tolist()], dtype=np.int64)[at], ranks


def _room(names: Sequence[str]) -> Floats:
    """Return the share of the range that each name takes."""
    return np.array([max(_WIDE, _LETTER * len(name)) for name in names])


def _slices(hosts: int) -> int:
    """Return the slices of each lane: all lanes together have as many as one."""
    return max(SLICES // max(hosts, 1), 1)


def layout(hosts: int) -> dict[str, Any]:
    """Return what a page needs to unpack the rows of that many hosts: positions in points, and the shades."""
    return {"slices": _slices(hosts), "lane": LANE, "top": TOP, "height": HEIGHT, "shades": [*SHADES]}
