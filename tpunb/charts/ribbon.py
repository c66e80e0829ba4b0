"""The run on its time axis: every step, coloured by phase, above the windows in which the profiler watched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt
import polars as pl
import polars.selectors as cs

from tpunb.charts.rows import GREY, HOSTS, SEEN, TIME, WIDTH, legend_of, percent_of, rows_of, titled
from tpunb.errors import TpunbError
from tpunb.export import segments, slices
from tpunb.frames import Phases
from tpunb.pictures import LayerPicture

_SHADES = {"seen in full": 1, "seen in part": 0.7, "inferred": 0.45}
_LANE = 92  # points on the page down for each host
_MARKS, _ROWS = 2_000, 4_000  # more marks than the first are binned, into fewer rows than the second
_FULL = (pl.lit(0.0).alias("low"), pl.lit(1.0).alias("high"))  # a mark as high as its lane


@dataclass(frozen=True)
class _Canvas:
    """A run's time across, a lane a host down; `edges` in picoseconds."""

    phases: Phases
    hosts: list[str]
    edges: tuple[int, int]

    def mine(self, frame: pl.DataFrame) -> pl.DataFrame:
        return frame.filter(pl.col("host").is_in(self.hosts)).with_columns(end_ps=pl.col("start_ps") + pl.col("dur_ps"))

    def whole(self, texts: Sequence[str]) -> pl.DataFrame:
        """Return one row a host, from edge to edge."""
        frame = pl.DataFrame({"host": self.hosts, "what": [*texts]}, schema_overrides={"host": pl.String})
        return frame.with_columns(*_FULL, start_ps=pl.lit(self.edges[0]), end_ps=pl.lit(self.edges[1]))

    def draw(self, frame: pl.DataFrame, top: float, height: float = 0) -> alt.Chart:
        """Return a chart of rows (host, start_ps, end_ps, low, high, what) in a band `top` down each lane."""
        lane = pl.col("host").replace_strict(self.hosts, range(len(self.hosts)), return_dtype=pl.Float64)
        start, end = (pl.col(name) / 1e12 for name in ("start_ps", "end_ps"))
        rows = frame.select(
            cs.by_name("group", "seen", "what", require_all=False),
            start=start,
            end=end,
            y=lane * _LANE + top + pl.col("low") * height,
            y2=lane * _LANE + top + pl.col("high") * height,
            about=pl.format("{}: {} s to {} s", "what", start.round(6), end.round(6)),
        )
        time = alt.Scale(domain=[edge / 1e12 for edge in self.edges], nice=False)
        page = alt.Scale(domain=[_LANE * len(self.hosts) - 6, 0], nice=False)
        x = alt.X("start:Q", title=TIME, axis=alt.Axis(grid=False), scale=time)
        chart: alt.Chart = rows_of(rows).encode(x=x, y=alt.Y("y:Q", axis=None, scale=page))
        return chart

    def label(self, texts: Sequence[str], top: float) -> alt.Chart:
        mark = alt.MarkDef("text", align="right", baseline="middle", dx=-8, limit=160)
        return self.draw(self.whole(texts), top).encode(text="what:N").properties(mark=mark)

    def ribbon(self) -> tuple[pl.DataFrame, list[str]]:
        """Return the marks of the ribbon, with `group` and `seen`; and how time was sliced, if it was."""
        seen = pl.col("seen").cast(pl.String).replace_strict(SEEN, return_dtype=pl.String)
        steps = self.mine(self.phases.labelled).with_columns(seen=seen)
        runs = segments(steps, "phase", "seen").join(legend_of(self.phases), on="phase", maintain_order="left")
        if runs.height <= _MARKS:
            text = pl.format("{}, steps {} to {}, {}", "group", "first_step", "last_step", "seen")
            return runs.with_columns(*_FULL, what=text), []
        key = ("host", "order", "group", "seen")
        bins = max(20, min(WIDTH // 2, _ROWS // runs.select(key).n_unique()))
        high = pl.col("part").cum_sum().over("host", "start_ps")
        rows = slices(runs, key, self.edges, bins).sort("host", "start_ps", "order", "group", "seen")
        rows = rows.with_columns(
            low=(high - pl.col("part")).clip(0, 1),
            high=high.clip(0, 1),
            what=pl.format("{}, {}, {} % of this slice", "group", "seen", (pl.col("part") * 100).round(1)),
        )
        width = (self.edges[1] - self.edges[0]) / bins / 1e12
        return rows, [f"in slices of {width:.3g} s, each cut by the time that its phases took"]

    def watched(self) -> pl.DataFrame:
        """Return when the profiler watched."""
        windows = self.mine(self.phases.steps.windows).filter(pl.col("dur_ps") > 0)
        if windows.height <= _MARKS // 4:
            text = pl.format("profile {}, {} steps in full", "window", pl.col("steps").fill_null(0))
            return windows.with_columns(*_FULL, what=text)
        rows = slices(windows, ("host",), self.edges, max(20, _MARKS // 4 // len(self.hosts)))
        text = pl.format("watched {} % of this slice", (pl.col("part") * 100).round(1))
        return rows.with_columns(low=1 - pl.col("part"), high=pl.lit(1.0), what=text)

    def numbers(self) -> pl.DataFrame:
        """Return the names of the phases, above those of their runs that are wide enough."""
        runs = segments(self.mine(self.phases.labelled), "phase")
        wide = (pl.col("end_ps") - pl.col("start_ps")) / max(self.edges[1] - self.edges[0], 1)
        noise, middle = pl.col("phase") < 0, (pl.col("start_ps") + pl.col("end_ps")) // 2
        name = pl.when(noise).then(pl.lit("noise")).otherwise(pl.col("phase").cast(pl.String))
        runs = runs.filter(wide > pl.when(noise).then(0.07).otherwise(0.03))
        return runs.with_columns(*_FULL, what=name, start_ps=middle, end_ps=middle)


def timeline(phases: Phases) -> LayerPicture:
    """Return the ribbon: every step on the run's time axis, coloured by phase, above the profiler's windows.

    Consecutive steps of one phase are one mark. Where too many marks remain, time is sliced.
    """
    steps, windows = phases.steps.frame, phases.steps.windows
    if steps.is_empty():
        raise TpunbError("no steps to draw", hint="tp.steps(profile, by=...) takes a rule that marks them")
    every = steps["host"].unique().sort().to_list()
    spans = pl.concat([frame.select("start_ps", "dur_ps") for frame in (steps, windows)])
    end = int(spans.select((pl.col("start_ps") + pl.col("dur_ps")).max()).item())
    canvas = _Canvas(phases, every[:HOSTS], (min(0, *spans["start_ps"]), end))
    marks, sliced = canvas.ribbon()
    groups = legend_of(phases).unique("group", maintain_order=True)
    names, box = groups["group"].to_list(), {"x2": alt.X2("end"), "y2": alt.Y2("y2")}
    shades = {text: shade for text, shade in _SHADES.items() if text in marks["seen"]}
    legend = alt.Legend(orient="bottom", columns=4, symbolType="square", symbolOpacity=1)
    faint = alt.Legend(orient="bottom", symbolType="square", symbolFillColor=GREY)
    colour = alt.Color("group:N", title="phase · share of step time", legend=legend)
    colour = colour.scale(domain=names, range=groups["colour"].to_list())
    seen = alt.Opacity("seen:N", title="steps", legend=faint if len(shades) > 1 else None)
    seen = seen.scale(domain=[*shades], range=[*shades.values()])
    layers = [
        canvas.draw(marks, 18, 42).mark_rect().encode(color=colour, opacity=seen, **box),
        canvas.draw(canvas.numbers(), 11).mark_text().encode(text="what:N"),
        canvas.label(canvas.hosts if len(every) > 1 else ["phases"], 39),
    ]
    if windows.height:
        gaps = canvas.whole(["not watched, but where marked"] * len(canvas.hosts))
        layers += [
            canvas.draw(gaps, 66, 10).mark_rect(color=GREY, opacity=0.2).encode(**box),
            canvas.draw(canvas.watched(), 66, 10).mark_rect(color=GREY).encode(**box),
            canvas.label(["profiler"] * len(canvas.hosts), 71),
        ]
    found, whole = len(phases), len(phases.steps)
    facts = f"{found} phase{'s'[: found != 1]} over {whole:,} step{'s'[: whole != 1]}"
    facts += f"; top 3 cover {percent_of(phases.coverage(3))}"
    if failed := windows["error"].is_not_null().sum():
        facts += f"; {failed} of {windows.height} windows failed"
    if len(every) > HOSTS:
        facts += f"; {HOSTS} of {len(every)} hosts shown"
    return LayerPicture(
        layer=layers,
        title=alt.TitleParams(titled(phases, "Phases of the run"), subtitle=[facts, *sliced]),
        description=f"Timeline of the phases. {facts}. {', '.join(names)}.",
        width=WIDTH,
        height=_LANE * len(canvas.hosts) - 6,
    )
