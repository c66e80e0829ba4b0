"""Frames in, Altair charts out: a chart is a value, made and returned, never shown.

Frames are aggregated before Altair sees them. Names in them are not trusted. How a chart draws itself, in a notebook
and offline, is in :mod:`tpunb.pictures`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt
import polars as pl
import polars.selectors as cs

from tpunb.errors import TpunbError
from tpunb.export import phase_name, segments, slices
from tpunb.frames import Phases
from tpunb.pictures import LayerPicture, VConcatPicture

_PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")  # Okabe and Ito, 2008
_NOISE, _OTHERS, _GREY = "#8c8c8c", "#7f6a4d", "#7f7f7f"
_SEEN = {"full": ("seen in full", 1), "partial": ("seen in part", 0.7), "tick": ("inferred", 0.45)}
_WIDTH, _LANE = 640, 92  # points on the page: across, and down for each host
_MARKS, _ROWS = 2_000, 4_000  # more marks than the first are binned, into fewer rows than the second
_HOSTS, _BARS = 8, 20  # as many in one picture
_FULL = (pl.lit(0.0).alias("low"), pl.lit(1.0).alias("high"))  # a mark as high as its lane
_WHOLE = alt.Axis(tickCount=8, tickMinStep=1, format="d")


def _clean(text: pl.Expr) -> pl.Expr:
    """Return `text` without the characters that XML forbids or that turn a line around."""
    return text.cast(pl.String).str.replace_all(r"[\p{Cc}\p{Cf}\x{FFFE}\x{FFFF}]", "\ufffd")


def _rows(frame: pl.DataFrame) -> alt.Chart:
    """Return a chart of rows that JavaScript and XML can hold; ``about`` is what the pointer shows."""
    rows = frame.with_columns(_clean(cs.string() | cs.categorical() | cs.enum()), cs.float().fill_nan(None))
    return alt.Chart(rows).encode(description="about:N", tooltip=alt.Tooltip("about:N", title=" "))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _named(phases: Phases, text: str) -> str:
    name: str = pl.select(_clean(pl.lit(phases.steps.name))).item()
    return f"{text} · {name}" if name else text


def colours(phases: Phases) -> dict[int, str]:
    """Return a colour a phase: six that colour-blind eyes tell apart, for the longest; one for all others."""
    real = [phase for phase in phases.frame["phase"] if phase >= 0]
    hues = dict(zip(real, _PALETTE, strict=False))
    return {phase: hues.get(phase, _OTHERS) for phase in real} | {-1: _NOISE}


def _groups(phases: Phases) -> pl.DataFrame:
    """Return (phase, colour, group, order): what the legend calls each phase, in its order."""
    others, noise = pl.col("colour") == _OTHERS, pl.col("colour") == _NOISE
    share = (pl.col("share").sum().over("colour") * 100).round(1)
    name = pl.when(others).then(pl.format("{} other phases", pl.len().over("colour"))).otherwise("name")
    frame = phases.frame.with_columns(
        colour=pl.col("phase").replace_strict(colours(phases)),
        name=pl.col("phase").map_elements(phase_name, return_dtype=pl.String),
    )
    return frame.select(
        "phase", "colour", pl.format("{} · {} %", name, share).alias("group"), (others + 2 * noise).alias("order")
    ).sort("order", maintain_order=True)


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
        x = alt.X("start:Q", title="time since the start of the run (s)", axis=alt.Axis(grid=False), scale=time)
        chart: alt.Chart = _rows(rows).encode(x=x, y=alt.Y("y:Q", axis=None, scale=page))
        return chart

    def label(self, texts: Sequence[str], top: float) -> alt.Chart:
        mark = alt.MarkDef("text", align="right", baseline="middle", dx=-8, limit=160)
        return self.draw(self.whole(texts), top).encode(text="what:N").properties(mark=mark)

    def ribbon(self) -> tuple[pl.DataFrame, list[str]]:
        """Return the marks of the ribbon, with `group` and `seen`; and how time was sliced, if it was."""
        words = {seen: text for seen, (text, _) in _SEEN.items()}
        seen = pl.col("seen").cast(pl.String).replace_strict(words, return_dtype=pl.String)
        steps = self.mine(self.phases.labelled).with_columns(seen=seen)
        runs = segments(steps, "phase", "seen").join(_groups(self.phases), on="phase", maintain_order="left")
        if runs.height <= _MARKS:
            text = pl.format("{}, steps {} to {}, {}", "group", "first_step", "last_step", "seen")
            return runs.with_columns(*_FULL, what=text), []
        key = ("host", "order", "group", "seen")
        bins = max(20, min(_WIDTH // 2, _ROWS // runs.select(key).n_unique()))
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
    canvas = _Canvas(phases, every[:_HOSTS], (min(0, *spans["start_ps"]), end))
    marks, sliced = canvas.ribbon()
    groups = _groups(phases).unique("group", maintain_order=True)
    names, box = groups["group"].to_list(), {"x2": alt.X2("end"), "y2": alt.Y2("y2")}
    shades = {text: shade for text, shade in _SEEN.values() if text in marks["seen"]}
    legend = alt.Legend(orient="bottom", columns=4, symbolType="square", symbolOpacity=1)
    faint = alt.Legend(orient="bottom", symbolType="square", symbolFillColor=_GREY)
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
            canvas.draw(gaps, 66, 10).mark_rect(color=_GREY, opacity=0.2).encode(**box),
            canvas.draw(canvas.watched(), 66, 10).mark_rect(color=_GREY).encode(**box),
            canvas.label(["profiler"] * len(canvas.hosts), 71),
        ]
    found, whole = len(phases), len(phases.steps)
    facts = f"{found} phase{'s'[: found != 1]} over {whole:,} step{'s'[: whole != 1]}"
    facts += f"; top 3 cover {_percent(phases.coverage(3))}"
    if failed := windows["error"].is_not_null().sum():
        facts += f"; {failed} of {windows.height} windows failed"
    if len(every) > _HOSTS:
        facts += f"; {_HOSTS} of {len(every)} hosts shown"
    return LayerPicture(
        layer=layers,
        title=alt.TitleParams(_named(phases, "Phases of the run"), subtitle=[facts, *sliced]),
        description=f"Timeline of the phases. {facts}. {', '.join(names)}.",
        width=_WIDTH,
        height=_LANE * len(canvas.hosts) - 6,
    )


def coverage(phases: Phases) -> LayerPicture:
    """Return the phases by share of the time of all steps, each from where the longer ones end."""
    share, until = ((column * 100).round(1) for column in (pl.col("share"), pl.col("share").cum_sum()))
    rows = phases.frame.head(_BARS).select(
        name=pl.col("phase").map_elements(phase_name, return_dtype=pl.String),
        colour=pl.col("phase").replace_strict(colours(phases)),
        before=until.shift(1, fill_value=0),
        until=until,
        text=pl.format("{} %", share),
        about=pl.format("{} steps, {} % of the time; {} % with the longer ones", "steps", share, until),
    )
    x = alt.X("before:Q", title="cumulative share of the time of all steps (%)").scale(domain=[0, 100])
    base = _rows(rows).encode(y=alt.Y("name:N", sort=None, title="phase, longest first"))
    top = f"top 3 cover {_percent(phases.coverage(3))}"
    third = _rows(pl.DataFrame({"until": [100 * phases.coverage(3)], "about": [top]}))
    cut = f"; the first {_BARS} of {phases.frame.height} shown" if phases.frame.height > _BARS else ""
    return LayerPicture(
        layer=[
            base.mark_bar().encode(x=x, x2="until", color=alt.Color("colour:N", scale=None)),
            third.mark_rule(strokeDash=[4, 3]).encode(x="until:Q"),
            base.mark_text(align="left", dx=6).encode(x="until:Q", text="text:N"),
        ],
        title=alt.TitleParams(_named(phases, "Coverage by phase"), subtitle=[f"{top} (dashed line){cut}"]),
        description=f"Phases by share of the time of all steps: {top}.",
        width=_WIDTH,
        height=alt.Step(26),
    )


def top_ops(phases: Phases, phase: int | None = None, n: int = 5) -> VConcatPicture:
    """Return the `n` most time-consuming operations of the longest or the given phase, host and device apart.

    Raises
    ------
    KeyError
        When no step is in that phase.
    TpunbError
        When none of its steps was seen in full, or the profile holds no operations.
    """
    chosen = phases.longest if phase is None else phases[phase]
    top = phases.top(n).filter(pl.col("phase") == chosen.id)
    if top.is_empty():
        seen = (chosen.steps["seen"] == "full").any()
        why = "its profile holds none" if seen else "none of its steps was seen in full"
        hint = "XProf's tables keep none: load the XPlane" if seen else "choose another phase, or capture more windows"
        raise TpunbError(f"{phase_name(chosen.id)} has no operations: {why}", hint=hint)
    percent = pl.col("share") * 100
    text = pl.format("{} % · {} ms", percent.round(1), (pl.col("self_ps") / 1e9).round(3))
    about = pl.format("{}: {}, {} calls", pl.col("op").cast(pl.String), text, "count")
    rows = top.select("op", "side", percent=percent, text=text, about=about)
    charts = []
    for side in [side for side in ("device", "host") if side in rows["side"]]:
        x = alt.X("percent:Q", title="share of the phase's self time on that side (%)").scale(domain=[0, 100])
        base = _rows(rows.filter(pl.col("side") == side)).encode(x=x, y=alt.Y("op:N", sort=None, title=None))
        texts = base.mark_text(align="left", dx=6).encode(text="text:N")
        layer = [base.mark_bar(color=colours(phases)[chosen.id]), texts]
        title = alt.TitleParams(f"On the {side}", fontSize=11, offset=4, frame="group")
        charts.append(alt.LayerChart(layer=layer, title=title, width=_WIDTH - 240, height=alt.Step(24)))
    what = f"{phase_name(chosen.id)}: {chosen.steps.height:,} steps, {_percent(chosen.share)} of step time"
    return VConcatPicture(
        vconcat=charts,
        bounds="flush",
        spacing=80,
        title=alt.TitleParams(_named(phases, "Most time-consuming operations"), subtitle=[what]),
        description=f"The most time-consuming operations, by self time, of {what}.",
    )


def _swept(phases: Phases, column: str, method: str) -> pl.DataFrame:
    if column not in phases.sweeps:
        raise TpunbError(
            f"{phases.method!r} swept no {column}; it swept {sorted(phases.sweeps) or 'nothing'}",
            hint=f"tp.phases(steps, tp.{method}()) chooses its {column} from a sweep",
        )
    return phases.sweeps[column].sort(column)


def _curve(title: str, sweep: pl.DataFrame, x: alt.X, y: alt.Y, about: str) -> LayerPicture:
    """Return the curve of a sweep, the choice marked by a diamond; `about` is what to say of a row."""
    sweep = sweep.with_columns(about=pl.Series([about.format(**row) for row in sweep.iter_rows(named=True)]))
    chosen = sweep.filter(pl.col("chosen"))
    base, mark = _rows(sweep).encode(x=x, y=y), _rows(chosen).encode(x=x)
    what = f"chosen (diamond): {chosen['about'][0]}" if chosen.height else "none was chosen"
    diamond = mark.mark_point(color=_PALETTE[5], filled=True, opacity=1, size=170, shape="diamond")
    return LayerPicture(
        layer=[
            mark.mark_rule(strokeDash=[4, 3]),
            base.mark_line(color=_PALETTE[0]),
            base.mark_point(color=_PALETTE[0], filled=True, opacity=1, size=36),
            diamond.encode(y=y),
        ],
        title=alt.TitleParams(title, subtitle=[what]),
        description=f"{title}; {what}.",
        width=_WIDTH,
        height=200,
    )


def _counts(values: pl.Series) -> alt.Axis:
    """Return an axis of counts: every one where they are few, for Vega would draw halves and call them whole."""
    most = max([0, *values])
    return alt.Axis(values=[*range(most + 1)], format="d") if most <= 8 else _WHOLE


def kmeans_elbow(phases: Phases) -> LayerPicture:
    """Return the sum of squared distances by the number of clusters, the chosen one marked."""
    sweep = _swept(phases, "k", "KMeans").with_columns(pl.col("sse").round(6))
    x = alt.X("k:Q", title="clusters, k", axis=_WHOLE).scale(zero=False)
    y = alt.Y("sse:Q", title="sum of squared distances")
    title = _named(phases, "k-means: squared distances by k")
    return _curve(title, sweep, x, y, "k = {k}, sum of squared distances {sse:.4g} (feature units²)")


def dbscan_noise(phases: Phases) -> VConcatPicture:
    """Return the share of noise and the number of clusters by min_samples, the chosen one marked."""
    sweep = _swept(phases, "min_samples", "DBSCAN").with_columns(percent=(pl.col("noise") * 100).round(1))
    x = alt.X("min_samples:Q", title="min_samples (steps)", axis=_WHOLE)
    title = _named(phases, "DBSCAN: noise and clusters by min_samples")
    about = "min_samples = {min_samples}, {clusters} clusters, {percent} % noise"
    noise = _curve(title, sweep, x, alt.Y("percent:Q", title="noise (% of steps)"), about)
    clusters = _curve(title, sweep, x, alt.Y("clusters:Q", title="clusters", axis=_counts(sweep["clusters"])), about)
    clusters.title, clusters.height = alt.Undefined, 110
    return VConcatPicture(vconcat=[noise, clusters], description=noise.description)


def ols_phases(phases: Phases) -> LayerPicture:
    """Return the number of phases by similarity threshold, the chosen one marked."""
    sweep = _swept(phases, "threshold", "OLS").with_columns(pl.col("threshold").round(6))
    x = alt.X("threshold:Q", title="similarity threshold (0 to 1)", axis=alt.Axis(tickCount=10))
    y = alt.Y("phases:Q", title="phases", axis=_counts(sweep["phases"]))
    title = _named(phases, "OLS: phases by threshold")
    return _curve(title, sweep, x, y, "threshold = {threshold}, {phases} phases")
