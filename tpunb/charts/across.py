"""Many runs in one chart: the curve that each chose from, and how much of each its longest phases cover."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt
import polars as pl

from tpunb.charts.labels import WIDEST, faded, listed, names_of
from tpunb.charts.rows import GREY, NOISE, OTHERS, PALETTE, WHOLE, WIDTH, percent_of, rows_of
from tpunb.errors import TpunbError, whole, wrong
from tpunb.frames import Phases
from tpunb.frames.words import cut, plain, plural
from tpunb.pictures import LayerPicture

Runs = Mapping[str, Phases]

_LINES = (
    ([1, 0], 1.0),
    ([6, 3], 0.0),
    ([2, 2], 0.4),
)  # the dash of six runs, of the next six; how their marks are filled
_SHAPES = "circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "triangle-right", "triangle-left"
_APART = 50  # times: counts that span more are on a logarithm


class _Sweep(NamedTuple):
    """How the sweeps of one method are drawn."""

    method: str
    title: str
    across: str
    up: str
    value: pl.Expr  # what is up
    chosen: str  # what the legend says of each run
    text: str  # how it says it


_ONE = pl.col("sse").filter(pl.col("k") == 1).first()  # of one cluster; 0 where all steps are alike
_SWEEPS = {  # by the parameter that was swept
    "k": _Sweep(
        "KMeans",
        "k-means: squared distances by k",
        "clusters, k",
        "sum of squared distances (% of that at k = 1)",
        pl.when(_ONE == 0).then(0.0).otherwise(100 * pl.col("sse") / _ONE),
        "k chosen: what is left",
        "{:g}: {:.1f} %",
    ),
    "min_samples": _Sweep(
        "DBSCAN",
        "DBSCAN: noise by min_samples",
        "min_samples (steps)",
        "noise (% of steps)",
        100 * pl.col("noise"),
        "min_samples chosen: noise",
        "{:g}: {:.1f} %",
    ),
    "threshold": _Sweep(
        "OLS",
        "OLS: phases by threshold",
        "similarity threshold (0 to 1)",
        "phases",
        pl.col("phases").cast(pl.Float64),
        "threshold chosen: phases",
        "{:g}: {:.0f}",
    ),
}
_EVERY = ", ".join(sweep.method for sweep in _SWEEPS.values())


def sweeps(runs: Runs) -> LayerPicture:
    """Return a line a run: the curve that its method chose from, with its choice as a mark (paper Figures 4 to 6).

    Of k-means the sum of squared distances as a share of that of one cluster, of DBSCAN the noisy steps, of OLS the
    number of phases. In a page with Vega, as ``chart.save("chart.html", inline=True)`` writes one, the run under the
    pointer stands out.

    Parameters
    ----------
    runs
        The phases of each run by its name, all by one method of ``KMeans``, ``DBSCAN`` and ``OLS``.

    Raises
    ------
    ValueError
        When they are by another method, or by more than one.
    TpunbError
        When there is no run, or one has no curve.
    """
    rows = swept(runs)
    drawn = _SWEEPS[_parameter(runs)]
    told = _told(rows, drawn)
    rows = rows.with_columns(run=pl.col("run").replace_strict(told)).with_columns(about="run")
    stroke, dash, fill, shape = _looks([*told.values()], f"run · {drawn.chosen}")
    base = rows_of(rows).encode(x=_across(drawn), y=_up(drawn, rows["value"]))
    pointed = alt.selection_point(
        name="pointed",
        fields=["run"],
        on="pointerover",
        clear="pointerout",
        bind=alt.LegendStreamBinding(legend="pointerover"),  # type: ignore[arg-type]  # its signature knows "legend" alone
    )
    strong = alt.when(pointed).then(alt.value(1)).otherwise(alt.value(0.15))
    lines = base.mark_line(strokeWidth=2).encode(stroke=stroke, strokeDash=dash, opacity=strong)
    chosen = rows_of(rows.filter("chosen")).encode(x="at:Q", y="value:Q", stroke=stroke, fill=fill, shape=shape)
    many = plural(len(runs), "run")
    return LayerPicture(
        layer=[lines.add_params(pointed), chosen.mark_point(size=120, strokeWidth=2).encode(opacity=strong)],
        title=alt.TitleParams(drawn.title, subtitle=[f"{many}; a mark is what a run chose"]),
        description=f"{drawn.title}, {many}; {drawn.chosen}. {listed([*told.values()])}.",
        width=WIDTH - 120,
        height=300,
    )


def _told(rows: pl.DataFrame, drawn: _Sweep) -> dict[str, str]:
    """Return what the legend says of each run: its name and its choice."""
    chosen = {run: drawn.text.format(at, value) for run, at, value, _ in rows.filter("chosen").iter_rows()}
    return {run: f"{run} · {chosen.get(run, 'none chosen')}" for run in rows["run"].unique(maintain_order=True)}


def swept(runs: Runs) -> pl.DataFrame:
    """Return what `sweeps` draws, a row a value that was tried.

    ``run``, its name as it is written; ``at``, the value of the parameter; ``value``, % or phases; ``chosen``. Of OLS
    only the values where the number of phases turns.
    """
    parameter = _parameter(_checked("sweeps", runs))
    drawn = _SWEEPS[parameter]
    frames = []
    for run, phases in zip(names_of(runs), runs.values(), strict=True):
        found = phases.sweeps[parameter].sort(parameter)
        curve = found.select(
            run=pl.lit(run), at=pl.col(parameter).cast(pl.Float64).round(6), value=drawn.value.round(6), chosen="chosen"
        )
        if curve["value"].null_count():
            raise TpunbError(
                f"{run} has no squared distances at k = 1: its k was given",
                hint="tp.phases(steps, tp.KMeans()) tries every k from 1",
            )
        frames.append(_corners(curve) if parameter == "threshold" else curve)
    return pl.concat(frames)


def _corners(curve: pl.DataFrame) -> pl.DataFrame:
    """Return the ends of a curve of steps, its turns, and what was chosen."""
    value = pl.col("value")
    turns = value.ne_missing(value.shift()), value.ne_missing(value.shift(-1))  # before and behind an end there is none
    return curve.filter(pl.any_horizontal(*turns, "chosen"))


def _checked(owner: str, runs: Runs) -> Runs:
    """Return `runs` that are phases by name, and some."""
    fit = isinstance(runs, Mapping) and all(isinstance(name, str) for name in runs)
    if not fit or not all(isinstance(phases, Phases) for phases in runs.values()):
        raise wrong(owner, "runs", "be a mapping of names to Phases", runs, hint="{'bert': tp.phases(steps)}")
    if not runs:
        raise TpunbError("no run to draw", hint=f"charts.{owner}({{'bert': tp.phases(steps)}})")
    return runs


def _parameter(runs: Runs) -> str:
    """Return what all the runs swept."""
    found = {name: next((each for each in _SWEEPS if each in phases.sweeps), None) for name, phases in runs.items()}
    first = next(iter(found.values()))
    if first is not None and {*found.values()} == {first}:
        return first
    told = listed([f"{_method(runs[name])} for {cut(plain(name))}" for name in found])
    raise ValueError(f"The runs parameter of sweeps must be Phases by one method of {_EVERY}. Got {told} instead.")


def _method(phases: Phases) -> str:
    return cut(plain(repr(phases.method)))


def _looks(runs: list[str], title: str) -> tuple[alt.Stroke, alt.StrokeDash, alt.Fill, alt.Shape]:
    """Return the colour and the dash of the lines, the filling and the shape of their marks: of 72 no two are alike."""
    legend = alt.Legend(orient="right", title=title, symbolSize=120, symbolStrokeWidth=2, rowPadding=4)
    hues = [PALETTE[i % len(PALETTE)] for i in range(len(runs))]
    shapes = [_SHAPES[i % len(_SHAPES)] for i in range(len(runs))]
    lines = [_LINES[i // len(PALETTE) % len(_LINES)] for i in range(len(runs))]
    fills = [faded(hue, strength) for hue, (_, strength) in zip(hues, lines, strict=True)]

    def scale(of: Sequence[Any]) -> alt.Scale:
        return alt.Scale(domain=runs, range=of)

    return (
        alt.Stroke("run:N", scale=scale(hues), legend=legend),
        alt.StrokeDash("run:N", scale=scale([dash for dash, _ in lines]), legend=legend),
        alt.Fill("run:N", scale=scale(fills), legend=legend),
        alt.Shape("run:N", scale=scale(shapes), legend=legend),
    )


def _across(drawn: _Sweep) -> alt.X:
    axis = alt.Axis(tickCount=10) if drawn.method == "OLS" else WHOLE
    return alt.X("at:Q", title=drawn.across, axis=axis, scale=alt.Scale(zero=drawn.method == "OLS", nice=False))


def _up(drawn: _Sweep, values: pl.Series) -> alt.Y:
    """Return the axis of what is up: counts that span much on a logarithm, from 0 where they do not."""
    if drawn.method != "OLS":
        return alt.Y("value:Q", title=drawn.up)
    least, most = min(values), max(values)
    if most <= _APART * least:
        return alt.Y("value:Q", title=drawn.up, axis=WHOLE)
    ticks = [digit * 10**decade for decade in range(9) for digit in (1, 2, 5) if digit * 10**decade <= most]
    scale = alt.Scale(type="log", domain=[least, 1.2 * most], nice=False)
    return alt.Y("value:Q", title=drawn.up, scale=scale, axis=alt.Axis(values=ticks, format="d"))


_REST, _NOISE = "the rest", "noise"
_CLAIM = 0.95  # of the time, at the least, is in the three longest phases (paper VI.A)
_ROOM = 9  # % of the time in whose bar a number fits


def coverages(runs: Runs, n: int = 3) -> LayerPicture:
    """Return a bar a run: its time in its `n` longest phases and in the rest (paper Figures 7 to 9).

    Noise counts as a group of its own, as in `Phases.coverage`; it has a dashed frame wherever it comes. Beside each
    bar stands what the `n` cover together.

    Parameters
    ----------
    runs
        The phases of each run by its name.
    n
        How many are told apart, 1 or more.

    Raises
    ------
    ValueError
        When `n` is out of its range.
    TpunbError
        When there is no run, or none with steps.
    """
    parts, sums = longest(runs, n), _sums(runs, n)
    if parts.is_empty():
        raise TpunbError("no run has a step whose time is known", hint="tp.steps(profile) says what it found")
    y = alt.Y("run:N", sort=sums["run"].to_list(), title=None, axis=alt.Axis(labelLimit=WIDEST))
    met = sum(phases.coverage(n) >= _CLAIM for phases in runs.values())
    ends = rows_of(sums).encode(x=alt.value("width"), y=y, text="text:N")
    paper = "95 %: the paper, section VI.A" if n == 3 else "95 %: the paper of its 3 longest, section VI.A"
    claim = rows_of(pl.DataFrame({"before": [100 * _CLAIM], "about": [paper]})).encode(x="before:Q", text="about:N")
    head = rows_of(pl.DataFrame({"about": [f"{n} longest"]})).encode(x=alt.value("width"), text="about:N")
    return LayerPicture(
        layer=[
            *_bars(parts, y),
            claim.mark_rule(strokeDash=[4, 3]),
            claim.mark_text(align="right", baseline="bottom", dx=4, dy=-4).encode(y=alt.value(0)),
            # beside the plot: behind their bars the dashed line would cross them
            head.mark_text(align="left", baseline="bottom", dx=6, dy=-4).encode(y=alt.value(0)),
            ends.mark_text(align="left", dx=6),
        ],
        title=alt.TitleParams(
            f"Coverage: time in the {n} longest phases",
            subtitle=[f"95 % or more in {met} of {plural(len(runs), 'run')}"],
        ),
        description=f"Share of the time in the {n} longest phases, noise as one: {listed(sums['about'].to_list())}.",
        width=WIDTH - 160,
        height=alt.Step(26),
    )


def _bars(parts: pl.DataFrame, y: alt.Y) -> list[alt.Chart]:
    """Return the parts of the bars, phases in the colours of their rank, and numbers where there is room."""
    percent = (pl.col("until") - pl.col("before")).round(1)
    rows = parts.with_columns(
        text=pl.format("{} %", percent),
        about=pl.format("{}: {}, {} % of the time", "run", "part", percent),
        middle=(pl.col("before") + pl.col("until")) / 2,
    )
    x = alt.X("before:Q", title="share of the time of all steps (%)").scale(domain=[0, 100])
    numbers = rows.filter(percent >= _ROOM, pl.col("part") != _REST)
    first, noise = pl.col("part") == _nth(0), pl.col("part") == _NOISE

    def written(which: pl.Expr) -> alt.Chart:
        return rows_of(numbers.filter(which)).encode(x="middle:Q", y=y, text="text:N")

    return [
        rows_of(rows).mark_bar(strokeWidth=1.5).encode(x=x, x2="until", y=y, **_shades(parts)),
        written(first).mark_text(color="white"),
        written(~first & ~noise).mark_text(color="black"),
        written(noise).mark_text(),  # on the page
    ]


def _shades(parts: pl.DataFrame) -> dict[str, Any]:
    """Return the looks of the parts that there are: full colours for phases, a dashed frame for noise."""
    ranks = parts.filter(~pl.col("part").is_in([_REST, _NOISE])).unique("rank").sort("rank")
    hues = {part: PALETTE[i] if i < len(PALETTE) else OTHERS for part, i in ranks.select("part", "rank").iter_rows()}
    looks = {part: (hue, "transparent", [1, 0]) for part, hue in hues.items()}
    faint = {_REST: (faded(GREY, 0.25), "transparent", [1, 0]), _NOISE: (faded(NOISE, 0.45), NOISE, [3, 2])}
    looks |= {part: look for part, look in faint.items() if part in parts["part"]}
    legend = alt.Legend(orient="bottom", title=None, columns=6, symbolType="square", symbolStrokeWidth=1.5)
    fill, stroke, dash = (alt.Scale(domain=[*looks], range=values) for values in zip(*looks.values(), strict=True))
    return {
        "fill": alt.Fill("part:N", scale=fill, legend=legend),
        "stroke": alt.Stroke("part:N", scale=stroke, legend=legend),
        "strokeDash": alt.StrokeDash("part:N", scale=dash, legend=legend),
    }


def longest(runs: Runs, n: int = 3) -> pl.DataFrame:
    """Return what `coverages` draws, a row a part of a run's time, in its order.

    ``run``, its name as it is written; ``rank``, from 0; ``part``, what it is called: longest, second, third and so
    on, noise, or the rest, which is all that is not among the `n` but noise; ``before`` and ``until``, where it begins
    and ends (%).
    """
    n = whole("coverages", "n", n, 1)
    named = zip(names_of(_checked("coverages", runs)), runs.values(), strict=True)
    rows = [(run, *part) for run, phases in named for part in _parts(phases.frame, n)]
    schema = {"run": pl.String, "rank": pl.Int64, "part": pl.String, "share": pl.Float64}
    until = 100 * pl.col("share").cum_sum().over("run")
    return pl.DataFrame(rows, schema=schema, orient="row").select(
        "run", "rank", "part", before=until - 100 * pl.col("share"), until=until
    )


def _parts(frame: pl.DataFrame, n: int) -> list[tuple[int, str, float]]:
    """Return (rank, part, share) of the phases of one run, longest first; none that takes no time."""
    top, others = frame.head(n), frame.slice(n)
    rest, noise = (float(others.filter(which)["share"].sum()) for which in (pl.col("phase") >= 0, pl.col("phase") < 0))
    parts = [
        (rank, _NOISE if phase < 0 else _nth(rank), share)
        for rank, (phase, share) in enumerate(top.select("phase", "share").iter_rows())
    ]
    parts += [(n, _REST, rest), (n + 1, _NOISE, noise)]
    return [part for part in parts if part[2] > 0]


def _nth(rank: int) -> str:
    return ("longest", "second", "third")[rank] if rank < 3 else f"no. {rank + 1}"


def _sums(runs: Runs, n: int) -> pl.DataFrame:
    """Return (run, text, about): what the `n` longest phases of each cover, in words."""
    named = zip(names_of(runs), runs.values(), strict=True)
    text = {
        run: percent_of(phases.coverage(n)) if phases.frame["share"].sum() > 0 else "no time" for run, phases in named
    }
    return pl.DataFrame(
        {"run": [*text], "text": [*text.values()], "about": [f"{run} {told}" for run, told in text.items()]}
    )
