"""Curves that a phase method chose its parameters from: any declared sweep, DBSCAN's eps, HDBSCAN's tree."""

from __future__ import annotations

import math
from typing import Any

import altair as alt
import polars as pl
import polars.selectors as cs

from tpunb.charts import render
from tpunb.charts.render import LayerPicture, VConcatPicture
from tpunb.charts.style import GREY, LINE, WHOLE, WIDTH, counted, lanes, rows_of, titled
from tpunb.cluster import Curve, SliderSpec
from tpunb.errors import TpunbError
from tpunb.frames import Phases
from tpunb.text import cut, plain, plural

_POINTS = 60  # rows of a sweep that are all drawn; of longer ones, where a curve changes
_CHOICE: dict[str, Any] = {"color": GREY, "filled": True, "opacity": 1, "size": 170, "shape": "diamond"}


def sweep_curve(phases: Phases) -> VConcatPicture:
    """Return the sweep that a parameter was chosen from: a plot a curve, the choice marked by a diamond.

    Parameters
    ----------
    phases
        Phases of a method that declares a sweep.

    Raises
    ------
    TpunbError
        When the method declares no sweep, or swept nothing.
    """
    slider = getattr(phases.method, "slider", None)
    if not isinstance(slider, SliderSpec) or not slider.curves:
        name = cut(plain(repr(phases.method)))
        raise TpunbError(f"{name} declares no sweep", hint="see tpunb.cluster.SliderSpec")
    sweep = _sweep(phases, slider.parameter)
    columns = [curve.column for curve in slider.curves]
    if sweep.height > _POINTS:
        turns = [pl.col(name) != pl.col(name).shift(way) for name in columns for way in (1, -1)]
        ends = pl.int_range(pl.len()).is_in([0, sweep.height - 1])
        sweep = sweep.filter(pl.any_horizontal(*turns, ends, "chosen"))
    percent = [curve.column for curve in slider.curves if curve.percent_of]
    sweep = sweep.with_columns((pl.col(percent) * 100).round(1), (cs.float() - cs.by_name(percent)).round(6))
    sweep = sweep.with_columns(about=pl.Series([_about(slider, row) for row in sweep.iter_rows(named=True)]))
    chosen = sweep.filter("chosen")
    choice = f"chosen (diamond): {chosen['about'][0]}" if chosen.height else "none was chosen"
    axis = WHOLE if slider.step >= 1 else alt.Axis(tickCount=10)
    x = alt.X(f"{slider.parameter}:Q", title=slider.label, axis=axis).scale(zero=False)
    plots = [_plot(sweep, curve, x) for curve in slider.curves]
    title = titled(phases, slider.title or f"{type(phases.method).__name__}: {slider.parameter}")
    plots[0].height = 200
    plots[0].title = alt.TitleParams(title, subtitle=[choice.partition(", ")[0]])
    if slider.rules:
        plots[0].title.offset = 20
        plots[0].layer += _rule_marks(sweep, slider, x)
    return VConcatPicture(vconcat=plots, description=f"{title}; {choice}.")


def _sweep(phases: Phases, name: str) -> pl.DataFrame:
    if name not in phases.sweeps:
        raise TpunbError(
            f"{cut(plain(repr(phases.method)))} has no sweep of {name}; it has {sorted(phases.sweeps) or 'none'}",
            hint=f"group the steps by a method that chooses {name} from a sweep",
        )
    sweep = phases.sweeps[name]
    return sweep.sort(sweep.columns[0])  # the swept parameter


def _about(slider: SliderSpec, row: dict[str, Any]) -> str:
    """Return a row of a sweep in words."""
    parts = [f"{slider.parameter} = {row[slider.parameter]:.6g}"]
    for curve in slider.curves:
        value, title = row[curve.column], curve.title or curve.column
        if curve.percent_of:
            parts.append(f"{title} {value} % of {curve.percent_of}")
        elif isinstance(value, int):
            parts.append(plural(value, title.removesuffix("s")))
        else:
            parts.append(f"{title} {value:.4g}")
    return ", ".join(parts)


def _plot(sweep: pl.DataFrame, curve: Curve, x: alt.X) -> alt.LayerChart:
    """Return one curve of a sweep, the choice marked by a diamond."""
    title = curve.title or curve.column
    if curve.percent_of:
        title = f"{title} (% of {curve.percent_of})"
    y = alt.Y(f"{curve.column}:Q", title=title)
    if sweep[curve.column].n_unique() == 1:
        y = y.axis(alt.Axis(values=[sweep[curve.column][0]]))
    elif sweep[curve.column].dtype.is_integer():
        y = y.axis(_counts(sweep[curve.column]))
    elif not curve.percent_of:
        y = y.scale(zero=curve.column != "bic")
    base, choice = rows_of(sweep).encode(x=x, y=y), rows_of(sweep.filter("chosen")).encode(x=x)
    layers = [
        choice.mark_rule(strokeDash=[4, 3]),
        base.mark_line(color=GREY),
        base.mark_point(color=GREY, filled=True, opacity=1, size=36),
        choice.mark_point(**_CHOICE).encode(y=y),
    ]
    return alt.LayerChart(layer=layers, width=WIDTH, height=110)


def _counts(values: pl.Series) -> alt.Axis:
    """Return an axis of counts without the fractions that Vega draws between few of them."""
    most = max([0, *values])
    return alt.Axis(values=[*range(most + 1)], format="d") if most <= 8 else WHOLE


def _rule_marks(sweep: pl.DataFrame, slider: SliderSpec, x: alt.X) -> list[alt.Chart]:
    """Return a dotted line at each rule's choice, and the rules' names above the plot."""
    rules = _rules(sweep, slider)
    marks = [rows_of(rules.filter(~pl.col("chosen"))).mark_rule(strokeDash=[1, 3], color=GREY).encode(x=x)]
    for line, names in enumerate(rules.partition_by("line")):
        text = rows_of(names).mark_text(baseline="bottom", dy=-4 - LINE * line)
        marks.append(text.encode(x=x, y=alt.value(0), text="rule:N"))
    return marks


def _rules(sweep: pl.DataFrame, slider: SliderSpec) -> pl.DataFrame:
    """Return (parameter, chosen, rule, about, line): each rule's choice and a line of text without overlap."""
    name = slider.parameter
    rules = (
        sweep.unpivot(list(slider.rules), index=[name, "chosen"], variable_name="rule")
        .filter("value")
        .group_by(name, "chosen", maintain_order=True)
        .agg(pl.col("rule").replace_strict(slider.rules).str.join(" · "))
        .with_columns(about=pl.format("{}: {} = {}", "rule", pl.lit(name), name))
        .sort(name)
    )
    at = pl.col(name) * WIDTH / max(float(sweep[name].max()) - float(sweep[name].min()), 1)  # type: ignore[arg-type]
    half = 3.3 * pl.col("rule").str.len_chars()
    spans = rules.select(at - half, end=at + half)
    return rules.with_columns(line=pl.Series(lanes(spans.rows()), dtype=pl.Int64))


def with_slider(chart: alt.TopLevelMixin, parameter: str, ends: tuple[float, float], at: float) -> dict[str, Any]:
    """Return the spec of `sweep_curve` with a rule along `parameter`, moved by the signal ``at``."""
    spec = render.spec(chart)
    rule = {
        "data": {"values": [{}]},
        "transform": [{"calculate": "at", "as": parameter}],
        "mark": {"type": "rule", "strokeWidth": 2, "clip": True, "color": GREY},
        "encoding": {"x": {"field": parameter, "type": "quantitative"}},
    }
    for part in spec["vconcat"]:
        part["layer"].append(rule)
        for layer in part["layer"]:
            if layer["encoding"].get("x", {}).get("field") == parameter:
                layer["encoding"]["x"]["scale"] = {"domain": [*ends], "nice": False, "zero": False}
    spec["params"] = [*spec.get("params", []), {"name": "at", "value": at}]
    return spec


def dbscan_eps(phases: Phases) -> LayerPicture:
    """Return the number of dense clusters by eps, the choice marked by a diamond.

    A bar is a range of eps with the same clusters; it is faint where fewer than 90 % of steps are in a cluster.
    """
    sweep = _sweep(phases, "eps").with_columns(count=counted("clusters", "dense cluster"))
    least = sweep.filter(pl.col("low") > 0)["low"].min()
    floor = float(least) / 2 if isinstance(least, float) else 0.1  # the axis is a logarithm
    rows = sweep.filter(pl.col("high") > pl.col("low")).with_columns(
        pl.col("low").clip(floor),
        percent=(pl.col("inside") * 100).round(1),
        opacity=pl.when(pl.col("inside") < 0.9).then(0.35).otherwise(1.0),
    )
    about = "eps from {low:.3g} to {high:.3g}: {count}, {percent} % of steps inside"
    rows = rows.with_columns(
        about=pl.Series([about.format(**row) for row in rows.iter_rows(named=True)], dtype=pl.String)
    )
    chosen = sweep.filter("chosen").row(0, named=True)
    choice = f"chosen (diamond): eps = {chosen['eps']:.3g}, {chosen['count']}"
    counts, most = _counts(sweep["clusters"]), max(sweep["clusters"])
    x = alt.X("low:Q", title="eps (feature units)").scale(type="log", nice=False)
    y = alt.Y("clusters:Q", title="dense clusters", axis=counts)
    y = y.scale(domain=[0, most + max(0.5, most / 16)], nice=False)  # the highest bar inside the frame
    bars = rows_of(rows).mark_rule(strokeWidth=5).encode(x=x, x2="high", y=y)
    at = rows_of(pl.DataFrame([{"eps": chosen["eps"], "clusters": chosen["clusters"], "about": choice}])).encode(
        x="eps:Q"
    )
    title = titled(phases, "DBSCAN: clusters by eps")
    return LayerPicture(
        layer=[
            at.mark_rule(strokeDash=[4, 3]),
            bars.encode(color=alt.value(GREY), opacity=alt.Opacity("opacity:Q", scale=None)),
            at.mark_point(**_CHOICE).encode(y=y),
        ],
        title=alt.TitleParams(title, subtitle=[choice, "faint: fewer than 90 % of steps are in a cluster"]),
        description=f"{title}; {choice}.",
        width=WIDTH,
        height=200,
    )


def hdbscan_tree(phases: Phases) -> LayerPicture:
    """Return the condensed tree: clusters by distance, the chosen ones dark.

    The width of a cluster is the number of its steps; it reaches from the distance at which it leaves its parent down
    to that at which it splits.
    """
    tree = _sweep(phases, "tree")
    if tree.is_empty():
        raise TpunbError("one step has no tree", hint="capture more steps")
    blocks = _blocks(tree)
    ends = float(blocks["top"].max()), float(blocks["bottom"].min())  # type: ignore[arg-type]
    deep = (pl.col("top") / pl.col("bottom")).log() / math.log(ends[0] / ends[1])
    wide = (pl.col("right") - pl.col("left")) / blocks["right"].max()
    rows = blocks.with_columns(
        about=pl.format("{} of {}", pl.when("chosen").then(pl.lit("a phase")).otherwise(pl.lit("a cluster")), "size"),
        colour=pl.when("chosen").then(pl.lit("#4d4d4d")).otherwise(pl.lit("#bdbdbd")),
        ink=pl.when("chosen").then(pl.lit("white")).otherwise(pl.lit("black")),
        text=pl.when((wide > 0.05) & (deep > 0.06)).then(
            pl.col("steps").map_elements("{:,}".format, return_dtype=pl.String)
        ),
        across=(pl.col("left") + pl.col("right")) / 2,
        down=(pl.col("top") * pl.col("bottom")).sqrt(),
    )
    count = int(blocks["chosen"].sum())
    choice = f"{count} of {plural(blocks.height, 'cluster')} {'is a phase' if count == 1 else 'are phases'} (dark)"
    title = titled(phases, "HDBSCAN: condensed tree")
    whole, bare = alt.Axis(grid=False, tickMinStep=1, format=",d"), alt.Axis(grid=False)
    x = alt.X("left:Q", title="steps", axis=whole).scale(nice=False)
    y = alt.Y("top:Q", title="distance (feature units)", axis=bare).scale(type="log", nice=False, domain=ends[::-1])
    box = rows_of(rows).encode(x=x, x2="right", y=y, y2="bottom", color=alt.Color("colour:N", scale=None))
    numbers = rows_of(rows.drop_nulls("text")).encode(x="across:Q", y="down:Q", color=alt.Color("ink:N", scale=None))
    return LayerPicture(
        layer=[box.mark_rect(stroke="white", strokeWidth=1), numbers.mark_text().encode(text="text:N")],
        title=alt.TitleParams(title, subtitle=[choice, "numbers: steps of a cluster"]),
        description=f"{title}; {choice}.",
        width=WIDTH,
        height=240,
    )


def _blocks(tree: pl.DataFrame) -> pl.DataFrame:
    """Return (left, right in steps; top, bottom in feature units; steps; chosen; held) of each cluster."""
    kin: dict[int | None, list[dict[str, Any]]] = {}
    for row in tree.sort("lambda_val").iter_rows(named=True):
        kin.setdefault(row["parent"], []).append(row)
    parts = [1 / row["lambda_val"] for parent, rows in kin.items() if parent is not None for row in rows]
    widest, finest = 1.5 * max(parts, default=1.0), min(parts, default=1.0) / 1.5
    blocks, todo = [], [(row, 0) for row in kin.get(None, [])]
    while todo:
        row, left = todo.pop()
        children = kin.get(row["child"], [])
        top = widest if row["parent"] is None else 1 / row["lambda_val"]
        bottom = 1 / children[0]["lambda_val"] if children else finest
        blocks.append((left, left + row["steps"], top, bottom, row["steps"], row["chosen"]))
        for child in children:
            todo.append((child, left))
            left += child["steps"]
    schema = {"left": pl.Int64, "right": pl.Int64, "top": pl.Float64, "bottom": pl.Float64}
    frame = pl.DataFrame(blocks, schema=schema | {"steps": pl.Int64, "chosen": pl.Boolean}, orient="row")
    return frame.with_columns(size=counted("steps", "step"))
