"""The ribbon while it changes: rows that are cut once for a stretch of time, and coloured again at each new labelling.

The chart itself stays the same; phases come and go in its rows. Its colours are those of :func:`tpunb.charts.colours`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import altair as alt
import numpy as np
import polars as pl

from tpunb.charts.rows import GREY, HOSTS, INK, NOISE, OTHERS, PALETTE, SEEN, TIME, cleaned
from tpunb.frames import Phases, Steps
from tpunb.frames.op_matrix import Floats, Ints
from tpunb.frames.phase_sums import indexed
from tpunb.pictures import LayerPicture

Columns = dict[str, list[Any] | str]

SHADES = (*PALETTE, OTHERS, NOISE)
"""A colour a rank: the longest phases by themselves, all the others, noise."""

_EACH = 600  # steps that are drawn one by one; more share slices
SLICES = 480
"""Into which time is cut where steps share them, on all lanes together."""

_LANE = 88  # points on the page down for each host
_TOP, _HEIGHT = 16, 44  # of the steps in their lane
_BELOW, _THIN = 71, 8  # of the profiler's windows
_LEAST = 0.01  # of a slice: what is drawn of it
_WIDE = 0.03  # of the stretch: a run of one phase that has room for its number


@dataclass(frozen=True, eq=False)
class Ribbon:
    """A stretch of a run, ready to be coloured.

    Parameters
    ----------
    steps
        The run.
    within
        From and to, in seconds since the run began; the whole run if None.
    """

    steps: Steps
    within: tuple[float, float] | None = None

    @cached_property
    def hosts(self) -> list[str]:
        """The hosts that are drawn, a lane each."""
        return self.steps.frame["host"].unique().sort().to_list()[:HOSTS]

    @cached_property
    def edges(self) -> tuple[float, float]:
        """From and to, in seconds."""
        return self.within or self.whole

    @cached_property
    def whole(self) -> tuple[float, float]:
        """From and to of the whole run, in seconds."""
        spans = pl.concat([one.select("start_ps", "dur_ps") for one in (self.steps.frame, self.steps.windows)])
        first, last = pl.col("start_ps").min(), (pl.col("start_ps") + pl.col("dur_ps")).max()
        start, end = spans.select(first.fill_null(0).alias("first"), last.fill_null(0).alias("last")).row(0)
        return min(0, start) / 1e12, (end or 1) / 1e12

    @cached_property
    def _steps(self) -> _Spans:
        frame = self.steps.frame
        ends = (pl.col("start_ps") + pl.col("dur_ps")).alias("end_ps")
        until = pl.min_horizontal(ends, pl.col("start_ps").shift(-1).over("host"))  # none hides the next
        return _Spans.of(frame.with_columns(end_ps=until), self.hosts, self.edges)

    @cached_property
    def _windows(self) -> _Spans:
        frame = self.steps.windows.filter(pl.col("dur_ps") > 0)
        return _Spans.of(frame.with_columns(end_ps=pl.col("start_ps") + pl.col("dur_ps")), self.hosts, self.edges)

    @cached_property
    def _seen(self) -> Ints:
        kinds = (
            self.steps.frame["seen"].cast(pl.String).replace_strict([*SEEN], range(len(SEEN)), return_dtype=pl.Int64)
        )
        return kinds.to_numpy()

    def rows(
        self, phases: Phases, chosen: int | None = None, *, alias: Mapping[int, tuple[int, str]] | None = None
    ) -> dict[str, Columns]:
        """Return as columns what the tables "ribbon" and "numbers" of :func:`ribbon` hold, in few letters.

        In "ribbon", steps one by one have ``start``, ``end`` (seconds), ``lane`` and ``step``. Where many share slices
        of time (those of the second lane come after those of the first), the rows of a slice lie on each other: each
        has by how many slices it comes ``after`` the one before, and its ``part`` of it, in percent. ``rank`` is the
        row of "ranks" that says the ``phase`` (null: several) and the ``shade``; ``seen`` is 0 in full, 1 in part, 2
        inferred, in a slice what most of it is: of both, a digit of base 36 a row, or one where all are the same.
        :func:`layout` is what a page unpacks them by.

        Parameters
        ----------
        phases
            Of the same steps.
        chosen
            A phase that is drawn as itself though it be among the others.
        alias
            The rank, from 0, in whose colour each phase is drawn in place of its own, and what is written above it; of
            those left out, the colour of the others.
        """
        of_step, ranks = _ranked(phases, chosen, alias)
        spans = self._steps
        if spans.each:
            return self._one_by_one(of_step[spans.row], ranks)
        return self._in_slices(of_step, ranks)

    def _one_by_one(self, rank: Ints, ranks: _Ranks) -> dict[str, Columns]:
        spans = self._steps
        drawn: Columns = {
            "start": self._short(spans.start),
            "end": self._short(spans.end),
            "lane": spans.lane.tolist(),
            "rank": _digits(rank),
            "seen": _digits(self._seen[spans.row]),
            "step": self.steps.frame["step"].to_numpy()[spans.row].tolist(),
        }
        numbers = self._numbers(rank, spans.lane, spans.start, spans.end, ranks)
        return {"ribbon": drawn, "ranks": ranks.told, "numbers": numbers}

    def _in_slices(self, of_step: Ints, ranks: _Ranks) -> dict[str, Columns]:
        """Return each slice of time cut by the parts that its phases took, the longest phase on top."""
        spans, many = self._steps, len(ranks.phase)
        kind = (spans.slice * many + of_step[spans.row]) * 3 + self._seen[spans.row]
        places = _slices(len(self.hosts)) * len(self.hosts)
        parts = np.bincount(kind, spans.part, minlength=places * many * 3).reshape(-1, 3)
        code = np.flatnonzero(parts.sum(axis=1) > _LEAST)
        part, seen = parts[code].sum(axis=1), parts[code].argmax(axis=1)  # seen as most of it was
        place, rank = code // many, code % many
        first = np.flatnonzero(np.diff(place, prepend=-1))
        high = np.cumsum(part)
        below = np.append(0.0, high[first[1:] - 1])[: len(first)]  # of no slice, where nothing is long enough
        high -= np.repeat(below, np.diff(np.append(first, len(code))))
        top = np.rint((100 * high).clip(0, 100)).astype(np.int64)
        under = np.append(0, top[:-1])[: len(top)]
        under[first] = 0
        drawn: Columns = {
            "after": np.diff(place, prepend=0).tolist(),
            "part": (top - under).tolist(),
            "rank": _digits(rank),
            "seen": _digits(seen),
        }
        most = np.lexsort((-part, place))[first]  # of each slice, what took most of it
        start, end = self._slice(place[most])
        numbers = self._numbers(rank[most], place[most] // _slices(len(self.hosts)), start, end, ranks)
        return {"ribbon": drawn, "ranks": ranks.told, "numbers": numbers}

    def _slice(self, place: Ints) -> tuple[Floats, Floats]:
        """Return from when to when slices last, in seconds."""
        slices = _slices(len(self.hosts))
        width = (self.edges[1] - self.edges[0]) / slices
        start = np.asarray(self.edges[0] + place % slices * width, dtype=np.float64)
        return start, start + width

    def _numbers(self, rank: Ints, lane: Ints, start: Floats, end: Floats, ranks: _Ranks) -> Columns:
        """Return the names of the phases above those of their runs that are wide enough."""
        if not len(rank):
            return {"at": [], "y": [], "name": [], "phase": []}
        first = np.flatnonzero((np.diff(rank, prepend=-1) != 0) | (np.diff(lane, prepend=-1) != 0))
        last = np.append(first[1:], len(rank)) - 1
        start, end = start[first], end[last]
        wide = end - start > _WIDE * (self.edges[1] - self.edges[0])
        first, middle = first[wide], ((start + end) / 2)[wide]
        return {
            "at": self._short(middle),
            "y": (lane[first] * _LANE + 8).tolist(),
            "name": [ranks.name[one] for one in rank[first].tolist()],
            "phase": [ranks.phase[one] for one in rank[first].tolist()],
        }

    def watched(self) -> Columns:
        """Return when the profiler watched, as columns."""
        spans = self._windows
        if spans.each:
            lane, start, end, part = spans.lane, spans.start, spans.end, np.ones(len(spans.lane))
        else:
            part = np.bincount(spans.slice, spans.part).clip(0, 1)
            place = np.flatnonzero(part)
            lane, part = place // _slices(len(self.hosts)), part[place]
            start, end = self._slice(place)
        low = lane * _LANE + _BELOW + _THIN
        return {
            "start": self._short(start),
            "end": self._short(end),
            "y": (low - part * _THIN).round(1).tolist(),
            "y2": low.tolist(),
        }

    def marks(self, checkpoints: Mapping[str, float]) -> Columns:
        """Return where checkpoints are drawn, given the second of each by its name."""
        low, high = self.edges
        inside = {name: at for name, at in checkpoints.items() if low <= at <= high}
        return {
            "at": [at for _ in self.hosts for at in self._short(np.array([*inside.values()]))],
            "y": [lane * _LANE + _TOP + _HEIGHT for lane in range(len(self.hosts)) for _ in inside],
            "y2": [lane * _LANE + _TOP for lane in range(len(self.hosts)) for _ in inside],
            "about": [f"checkpoint {cleaned(name)}" for _ in self.hosts for name in inside],
        }

    def _short(self, seconds: Floats) -> list[float]:
        """Return times in as many digits as can be seen."""
        digits = 5 - int(np.floor(np.log10(max(self.edges[1] - self.edges[0], 1e-9))))
        return [round(second, max(digits, 0)) for second in seconds.tolist()]


@dataclass(frozen=True, eq=False)
class _Spans:
    """Stretches of time on lanes: one by one where they are few, else by the slices of time that they fall into."""

    row: Ints  # of the frame
    lane: Ints
    start: Floats  # seconds
    end: Floats
    each: bool
    slice: Ints  # those of the second lane come after those of the first; of rows that were cut, one an overlap
    part: Floats  # of the slice

    @classmethod
    def of(cls, frame: pl.DataFrame, hosts: Sequence[str], edges: tuple[float, float]) -> _Spans:
        lanes = dict(zip(hosts, range(len(hosts)), strict=True))
        lane = frame["host"].cast(pl.String).replace_strict(lanes, default=-1, return_dtype=pl.Int64).to_numpy()
        start, end = (frame[name].to_numpy() / 1e12 for name in ("start_ps", "end_ps"))
        low, high = edges
        row = np.flatnonzero((lane >= 0) & (start < high) & (end > low))
        lane, start, end = lane[row], start[row].clip(low, high), end[row].clip(low, high)
        none = np.zeros(0)
        if len(row) <= _EACH:
            return cls(row, lane, start, end, True, none.astype(np.int64), none)
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


@dataclass(frozen=True)
class _Ranks:
    """What each rank is drawn as."""

    phase: list[int | None]  # None: several
    shade: list[int]
    name: list[str]

    @property
    def told(self) -> Columns:
        return {"phase": [*self.phase], "shade": [*self.shade]}


def _digits(values: Ints) -> str:
    """Return one digit of base 36 a value, or one for all."""
    return _DIGITS[values[:1] if len(values) and (values == values[0]).all() else values].tobytes().decode()


_DIGITS = np.frombuffer(b"0123456789abcdefghijklmnopqrstuvwxyz", dtype="S1")


def _ranked(phases: Phases, chosen: int | None, alias: Mapping[int, tuple[int, str]] | None) -> tuple[Ints, _Ranks]:
    """Return the rank of each step, and what is drawn of each rank."""
    others, noise = len(PALETTE), len(PALETTE) + 1  # shades
    real = [phase for phase in phases.frame["phase"] if phase >= 0]
    alone = real[: len(PALETTE)]
    if chosen in real and chosen not in alone:
        alone.append(chosen)
    own = {phase: (at, str(phase)) for at, phase in enumerate(real)} if alias is None else alias
    looks = [own.get(phase, (others, str(phase))) for phase in alone]
    shades, names = [min(shade, others) for shade, _ in looks], [name for _, name in looks]
    ranks = _Ranks([*alone, None, -1], [*shades, others, noise], [*names, "others", "noise"])
    rank = dict(zip(alone, range(len(alone)), strict=True)) | {-1: len(alone) + 1}
    found, at = indexed(phases.labels.to_numpy())
    return np.array([rank.get(label, len(alone)) for label in found.tolist()], dtype=np.int64)[at], ranks


def _slices(hosts: int) -> int:
    """Return into how many slices each lane is cut: all lanes together into as many as one."""
    return max(SLICES // max(hosts, 1), 1)


def layout(hosts: int) -> dict[str, Any]:
    """Return what a page unpacks the rows of so many hosts by: where things lie, in points, and the shades."""
    return {"slices": _slices(hosts), "lane": _LANE, "top": _TOP, "height": _HEIGHT, "shades": [*SHADES]}


def ribbon(hosts: Sequence[str], *, watched: bool = True) -> LayerPicture:
    """Return the ribbon as a chart without rows, for the tables "ribbon", "numbers", "watched" and "checkpoints".

    Its signals: ``low`` and ``high``, the seconds from and to which it is drawn; ``chosen``, the phase that stands out,
    or null. Where the profiler `watched`, there is a band for it.
    """
    low, high, chosen = alt.param("low", value=0), alt.param("high", value=1), alt.param("chosen", value=None)
    within = alt.Scale(domain=[alt.ExprRef("low"), alt.ExprRef("high")], nice=False)
    page = alt.Scale(domain=[_LANE * len(hosts) - 4, 0], nice=False)
    time = alt.Axis(grid=False, tickCount=10)
    x, at = (alt.X(f"{one}:Q", title=TIME, scale=within, axis=time) for one in ("start", "at"))
    y = alt.Y("y:Q", axis=None, scale=page)
    box: dict[str, Any] = {"x": x, "x2": alt.X2("end"), "y": y, "y2": alt.Y2("y2")}
    steps = _named("ribbon").transform_calculate(
        who="datum.phase === null ? 'other phases' : datum.phase < 0 ? 'noise' : 'phase ' + datum.phase",
        seconds="format(datum.start, '.6~r') + ' s to ' + format(datum.end, '.6~r') + ' s'",
        about="datum.who + (isValid(datum.step) ? ', step ' + datum.step : ', ' + datum.part + ' % of this slice')"
        f" + ', ' + {[*SEEN.values()]}[datum.seen] + ': ' + datum.seconds",
    )
    shade = alt.Color("shade:O", legend=None, scale=alt.Scale(domain=[*range(len(SHADES))], range=[*SHADES]))
    faint = alt.ExprRef("[1, 0.72, 0.5][datum.seen] * (chosen !== null && datum.phase !== chosen ? 0.22 : 1)")
    told: dict[str, Any] = {"tooltip": alt.Tooltip("about:N", title=" "), "description": "about:N"}
    lanes = pl.DataFrame(
        {
            "name": [cleaned(name) for name in hosts],
            "y": [lane * _LANE + _BELOW for lane in range(len(hosts))],
            "y2": [lane * _LANE + _BELOW + _THIN for lane in range(len(hosts))],
            "middle": [lane * _LANE + _TOP + _HEIGHT / 2 for lane in range(len(hosts))],
        }
    )
    left, right = alt.value(0), alt.value("width")
    gaps = alt.Chart(lanes).mark_rect(color=GREY, opacity=0.18).encode(y=y, y2="y2", x=left, x2=right)
    brush = alt.selection_interval(name="brush", encodings=["x"])
    pin = alt.MarkDef("point", shape="triangle-up", filled=True, size=55, yOffset=5, opacity=1, color=INK)
    pins = _named("checkpoints")
    layers = [
        *([gaps] if watched else []),
        steps.mark_rect(opacity=faint, clip=True).encode(**box, color=shade, **told).add_params(brush),
        _named("watched").mark_rect(color=GREY, clip=True, tooltip="the profiler watched").encode(**box),
        _named("numbers").mark_text(baseline="middle").encode(x=at, y=y, text="name:N"),
        pins.mark_rule(color=INK, strokeDash=[3, 3]).encode(x=at, y=y, y2="y2"),
        pins.properties(mark=pin).encode(x=at, y=y, **told),
    ]
    if len(hosts) > 1:
        label = alt.Chart(lanes).mark_text(align="right", baseline="middle", dx=-8, limit=110)
        layers.append(label.encode(x=left, y=alt.Y("middle:Q", axis=None, scale=page), text="name:N"))
    chart = LayerPicture(
        layer=layers,
        description="The run on its time axis: every step coloured by its phase, the profiler's windows beneath.",
        height=_LANE * len(hosts) - 4,
        width=900,
        usermeta={"room": 24 if len(hosts) == 1 else 140},  # points on the page beside the plot
    )
    picture: LayerPicture = chart.add_params(low, high, chosen)
    return picture


def _named(table: str) -> alt.Chart:
    return alt.Chart(alt.NamedData(table))
