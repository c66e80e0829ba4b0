"""Charts of many runs: the sweep that each chose its parameter from, and the coverage of its longest phases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt
import polars as pl

from tpunb.charts.render import LayerPicture
from tpunb.charts.style import (
    GREY,
    NOISE,
    OTHERS,
    PALETTE,
    WHOLE,
    WIDEST,
    WIDTH,
    listed,
    names_of,
    rows_of,
)
from tpunb.errors import TpunbError, check_whole, wrong_type
from tpunb.frames import Phases
from tpunb.studies.paper.charts.measures import faded, framed
from tpunb.text import cut, percent, plain, plural

Runs = Mapping[str, Phases]

_LINES = (([1, 0], 1.0), ([6, 3], 0.0), ([2, 2], 0.4))  # the dash of six runs, of the next six; the fill of their marks
_SHAPES = "circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "triangle-right", "triangle-left"
_LOG_RATIO = 50  # counts with a larger ratio are on a logarithmic axis


class _Sweep(NamedTuple):
    """How the sweeps of one method are drawn."""

    method: str
    title: str
    x_title: str
    y_title: str
    y: pl.Expr
    legend: str
    choice: str  # format of x and y in the legend


_ONE = pl.col("sse").filter(pl.col("k") == 1).first()  # of one cluster; 0 if all steps are alike
_SWEEPS = {  # by swept parameter
    "k": _Sweep(
        "KMeans",
        "k-means: squared distances by k",
        "clusters, k",
        "sum of squared distances (% of that at k = 1)",
        pl.when(_ONE == 0).then(0.0).otherwise(100 * pl.col("sse") / _ONE),
        "chosen k: distances",
        "{:g}: {:.1f} %",
    ),
    "min_samples": _Sweep(
        "DBSCAN",
        "DBSCAN: outliers by min_samples",
        "min_samples (steps)",
        "outliers (% of steps)",
        100 * pl.col("noise"),
        "chosen min_samples: outliers",
        "{:g}: {:.1f} %",
    ),
    "threshold": _Sweep(
        "OLS",
        "OLS: phases by threshold",
        "similarity threshold (0 to 1)",
        "phases",
        pl.col("phases").cast(pl.Float64),
        "chosen threshold: phases",
        "{:g}: {:.0f}",
    ),
}


def sweeps(runs: Runs) -> LayerPicture:
    """Return one line per run: the sweep of its method, with its choice as a mark (paper Figures 4 to 6).

    K-means: the sum of squared distances as a share of that of one cluster; DBSCAN: the share of outliers; OLS: the
    number of phases. In a page with Vega, as ``chart.save("chart.html", inline=True)`` writes, the run under the
    pointer is highlighted.

    Parameters
    ----------
    runs
        Phases of each run by name, all by one method of ``KMeans``, ``DBSCAN`` and ``OLS``.

    Raises
    ------
    ValueError
        When they are by another method, or by several.
    TpunbError
        When there is no run, or one has no sweep.
    """
    rows = swept(runs)
    sweep = _SWEEPS[_parameter(runs)]
    chosen = {run: sweep.choice.format(at, value) for run, at, value, _ in rows.filter("chosen").iter_rows()}
    labels = {run: f"{run} · {chosen.get(run, 'none chosen')}" for run in rows["run"].unique(maintain_order=True)}
    rows = rows.with_columns(run=pl.col("run").replace_strict(labels)).with_columns(about="run")
    stroke, dash, fill, shape = looks([*labels.values()], f"run · {sweep.legend}")
    counts = sweep.method == "OLS"
    x = alt.X("at:Q", title=sweep.x_title, axis=alt.Axis(tickCount=10) if counts else WHOLE)
    y = _count_axis(rows["value"]) if counts else alt.Y("value:Q")
    base = rows_of(rows).encode(x=x.scale(zero=counts, nice=False), y=y.title(sweep.y_title))
    pointed = alt.selection_point(
        name="pointed",
        fields=["run"],
        on="pointerover",
        clear="pointerout",
        bind=alt.LegendStreamBinding(legend="pointerover"),  # type: ignore[arg-type]  # its signature has "legend" alone
    )
    strong = alt.when(pointed).then(alt.value(1)).otherwise(alt.value(0.15))
    lines = base.mark_line(strokeWidth=2).encode(stroke=stroke, strokeDash=dash, opacity=strong)
    kinds = rows_of(rows.filter("chosen")).encode(x="at:Q", y="value:Q", stroke=stroke, fill=fill, shape=shape)
    many = plural(len(runs), "run")
    return LayerPicture(
        layer=[lines.add_params(pointed), kinds.mark_point(size=120, strokeWidth=2).encode(opacity=strong)],
        title=alt.TitleParams(sweep.title, subtitle=[f"{many}; marks: chosen values"]),
        description=f"{sweep.title}, {many}; {sweep.legend}. {listed([*labels.values()])}.",
        width=WIDTH - 120,
        height=300,
    )


def swept(runs: Runs) -> pl.DataFrame:
    """Return the rows of `sweeps`, one per value that was tried.

    ``run``; ``at``, the parameter; ``value``, % or phases, of OLS only where their number changes; ``chosen``.
    """
    parameter = _parameter(_checked("sweeps", runs))
    frames = []
    for run, phases in zip(names_of(runs), runs.values(), strict=True):
        at, value = pl.col(parameter).cast(pl.Float64).round(6), _SWEEPS[parameter].y.round(6)
        curve = phases.sweeps[parameter].sort(parameter).select(run=pl.lit(run), at=at, value=value, chosen="chosen")
        if curve["value"].null_count():
            raise TpunbError(
                f"{run} has no squared distances at k = 1: its k was given",
                hint="tp.phases(steps, tp.KMeans()) tries every k from 1",
            )
        if parameter == "threshold":  # the ends, where the number changes, and the choice
            changes = (pl.col("value").ne_missing(pl.col("value").shift(by)) for by in (1, -1))
            curve = curve.filter(pl.any_horizontal(*changes, "chosen"))
        frames.append(curve)
    return pl.concat(frames)


def _checked(owner: str, runs: Runs) -> Runs:
    """Return `runs` if they are phases by name, one at least."""
    named = isinstance(runs, Mapping) and all(isinstance(name, str) for name in runs)
    if not named or not all(isinstance(phases, Phases) for phases in runs.values()):
        raise wrong_type(owner, "runs", "be a mapping of names to Phases", runs, hint="{'bert': tp.phases(steps)}")
    if not runs:
        raise TpunbError("no run to draw", hint=f"charts.{owner}({{'bert': tp.phases(steps)}})")
    return runs


def _parameter(runs: Runs) -> str:
    """Return the parameter that all runs swept."""
    swept_by = {next((name for name in _SWEEPS if name in phases.sweeps), None) for phases in runs.values()}
    if len(swept_by) == 1 and (parameter := swept_by.pop()) is not None:
        return parameter
    methods = listed([f"{cut(plain(repr(phases.method)))} for {cut(plain(name))}" for name, phases in runs.items()])
    every = ", ".join(sweep.method for sweep in _SWEEPS.values())
    raise ValueError(f"The runs parameter of sweeps must be Phases by one method of {every}. Got {methods} instead.")


def looks(runs: list[str], title: str) -> tuple[alt.Stroke, alt.StrokeDash, alt.Fill, alt.Shape]:
    """Return colour and dash of the lines, fill and shape of their marks: different for up to 72 runs."""
    legend = alt.Legend(orient="right", title=title, symbolSize=120, symbolStrokeWidth=2, rowPadding=4)
    hues = [PALETTE[i % len(PALETTE)] for i in range(len(runs))]
    shapes = [_SHAPES[i % len(_SHAPES)] for i in range(len(runs))]
    lines = [_LINES[i // len(PALETTE) % len(_LINES)] for i in range(len(runs))]
    fills = [faded(hue, strength) for hue, (_, strength) in zip(hues, lines, strict=True)]

    def scale(values: Sequence[Any]) -> alt.Scale:
        return alt.Scale(domain=runs, range=values)

    return (
        alt.Stroke("run:N", scale=scale(hues), legend=legend),
        alt.StrokeDash("run:N", scale=scale([dash for dash, _ in lines]), legend=legend),
        alt.Fill("run:N", scale=scale(fills), legend=legend),
        alt.Shape("run:N", scale=scale(shapes), legend=legend),
    )


def _count_axis(values: pl.Series) -> alt.Y:
    """Return the axis of counts: logarithmic if they span much, else from 0."""
    least, most = min(values), max(values)
    if most <= _LOG_RATIO * least:
        return alt.Y("value:Q", axis=WHOLE)
    ticks = [digit * 10**decade for decade in range(9) for digit in (1, 2, 5) if digit * 10**decade <= most]
    scale = alt.Scale(type="log", domain=[least, 1.2 * most], nice=False)
    return alt.Y("value:Q", scale=scale, axis=alt.Axis(values=ticks, format="d"))


_REST, _OUTLIERS = "other phases", "outliers"
_CLAIM = 0.95  # least share of the time in the three longest phases (paper VI.A)
_ROOM = 9  # % of the time, for a number in its bar


def coverages(runs: Runs, n: int = 3) -> LayerPicture:
    """Return one bar per run: the time in its `n` longest phases and in the others (paper Figures 7 to 9).

    Outliers count as a group, as in `Phases.coverage`, and have a dashed frame. The coverage of the `n` is shown beside
    each bar.

    Parameters
    ----------
    runs
        Phases of each run by name.
    n
        Number of phases that are distinguished, 1 or more.

    Raises
    ------
    ValueError
        When `n` is out of range.
    TpunbError
        When there is no run, or none with steps.
    """
    parts = longest(runs, n)
    if parts.is_empty():
        raise TpunbError("no run has a step with a duration", hint="print tp.steps(profile) to see its steps")
    texts = [
        percent(phases.coverage(n), 1) if phases.frame["share"].sum() > 0 else "no time" for phases in runs.values()
    ]
    sums = pl.DataFrame({"run": names_of(runs), "text": texts}).with_columns(about=pl.format("{} {}", "run", "text"))
    y = alt.Y("run:N", sort=sums["run"].to_list(), title=None, axis=alt.Axis(labelLimit=WIDEST))
    met = sum(phases.coverage(n) >= _CLAIM for phases in runs.values())
    paper = "95 %: the paper, section VI.A" if n == 3 else "95 %: the paper, for 3 phases, section VI.A"
    claim = rows_of(pl.DataFrame({"before": [100 * _CLAIM], "about": [paper]})).encode(x="before:Q", text="about:N")
    head = rows_of(pl.DataFrame({"about": [f"{n} longest"]})).encode(x=alt.value("width"), text="about:N")
    return LayerPicture(
        layer=[
            *_bars(parts, y),
            claim.mark_rule(strokeDash=[4, 3]),
            claim.mark_text(align="right", baseline="bottom", dx=4, dy=-4).encode(y=alt.value(0)),
            # beside the plot: the dashed line would cross texts at the end of their bars
            head.mark_text(align="left", baseline="bottom", dx=6, dy=-4).encode(y=alt.value(0)),
            rows_of(sums).mark_text(align="left", dx=6).encode(x=alt.value("width"), y=y, text="text:N"),
        ],
        title=alt.TitleParams(
            f"Coverage of the {n} longest phases", subtitle=[f"95 % or more in {met} of {plural(len(runs), 'run')}"]
        ),
        description=f"Step time without waits in the {n} longest phases, outliers as one: {listed([*sums['about']])}.",
        width=WIDTH - 160,
        height=alt.Step(26),
    )


def _bars(parts: pl.DataFrame, y: alt.Y) -> list[alt.Chart]:
    """Return the parts of the bars in the colours of their rank, with numbers if there is room."""
    scaled = (pl.col("until") - pl.col("before")).round(1)
    rows = parts.with_columns(
        text=pl.format("{} %", scaled),
        about=pl.format("{}: {}, {} % of step time without waits", "run", "part", scaled),
        middle=(pl.col("before") + pl.col("until")) / 2,
    )
    x = alt.X("before:Q", title="share of step time without waits (%)").scale(domain=[0, 100])
    numbers = rows.filter(scaled >= _ROOM, pl.col("part") != _REST)
    first, outliers = pl.col("part") == _nth(0), pl.col("part") == _OUTLIERS
    inks: tuple[tuple[pl.Expr, dict[str, Any]], ...]  # without a colour: that of the page
    inks = (first, {"color": "white"}), (~first & ~outliers, {"color": "black"}), (outliers, {})
    return [
        rows_of(rows).mark_bar(strokeWidth=1.5).encode(x=x, x2="until", y=y, **_shades(parts)),
        *(rows_of(numbers.filter(of)).mark_text(**ink).encode(x="middle:Q", y=y, text="text:N") for of, ink in inks),
    ]


def _shades(parts: pl.DataFrame) -> dict[str, Any]:
    """Return the looks of the parts: full colours for phases, a dashed frame for outliers."""
    ranks = parts.filter(~pl.col("part").is_in([_REST, _OUTLIERS])).unique("rank").sort("rank")
    hues = {part: PALETTE[i] if i < len(PALETTE) else OTHERS for part, i in ranks.select("part", "rank").iter_rows()}
    looks = {part: (hue, "transparent", [1, 0]) for part, hue in hues.items()}
    faint = {_REST: (faded(GREY, 0.25), "transparent", [1, 0]), _OUTLIERS: (faded(NOISE, 0.45), NOISE, [3, 2])}
    looks |= {part: look for part, look in faint.items() if part in parts["part"]}
    return framed("part", looks, columns=6)


def longest(runs: Runs, n: int = 3) -> pl.DataFrame:
    """Return the rows of `coverages`, one per part of a run's time, in order.

    ``run``, its name as it is shown; ``rank``, from 0; ``part``, its name: longest, second, third and so on, outliers,
    or other phases; ``before`` and ``until``, its start and end (%).
    """
    n = check_whole("coverages", "n", n, 1)
    named = zip(names_of(_checked("coverages", runs)), runs.values(), strict=True)
    rows = [(run, *part) for run, phases in named for part in _parts(phases.frame, n)]
    schema = {"run": pl.String, "rank": pl.Int64, "part": pl.String, "share": pl.Float64}
    until = 100 * pl.col("share").cum_sum().over("run")
    return pl.DataFrame(rows, schema=schema, orient="row").select(
        "run", "rank", "part", before=until - 100 * pl.col("share"), until=until
    )


def _parts(frame: pl.DataFrame, n: int) -> list[tuple[int, str, float]]:
    """Return (rank, part, share) of the phases of one run, longest first, without empty ones."""
    shares = frame.filter(pl.col("phase") >= 0)["share"]
    parts = [(rank, _nth(rank), share) for rank, share in enumerate(shares.head(n))]
    parts += [(n, _REST, float(shares.slice(n).sum()))]
    parts += [(n + 1, _OUTLIERS, float(frame.filter(pl.col("phase") < 0)["share"].sum()))]
    return [part for part in parts if part[2] > 0]


def _nth(rank: int) -> str:
    return ("longest", "second", "third")[rank] if rank < 3 else f"no. {rank + 1}"
