"""Charts of cost models: rank and time, errors by the number of timed configurations, a graph as a table."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import polars as pl

from tpunb.charts.render import LayerPicture
from tpunb.charts.style import GREY, LINE, PALETTE, WIDTH, cleaned, listed, rows_of
from tpunb.errors import wrong_type
from tpunb.studies.ranking import CostModel, Evaluation, Measured, ProgramGraph, kendall, top_error
from tpunb.text import cut, duration, percent, plain, plural, short_time

_MARKS = {"configuration": (PALETTE[0], "circle"), "default": (PALETTE[1], "diamond")}
_MARKS["fastest"] = (PALETTE[2], "triangle-up")
_METHODS = {
    **{"model": (PALETTE[0], [1, 0]), "bytes moved": (PALETTE[4], [1, 0]), "largest tile": (PALETTE[3], [1, 0])},
    **{"default": (PALETTE[1], [8, 4]), "AUTO": ("#8F2D56", [2, 6]), "random": (PALETTE[5], [2, 2])},
    **{"repeat ceiling": (GREY, [6, 3])},
}
_TICKS = [0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2]
_ROWS = 40  # of a table
_COLUMNS = {"node": (0, 6), "operation": (40, 30), "result": (240, 32), "uses": (455, 16), "layer": (560, 24)}
_BAR, _LONGEST = 730, 70  # points on the page


def ranking(measured: Measured, model: CostModel) -> LayerPicture:
    """Return the time of each configuration by its predicted rank, with the default and the fastest marked.

    Parameters
    ----------
    measured
        Measured configurations, of a graph that the model was not fitted to.
    model
        Fitted model.
    """
    if not isinstance(measured, Measured) or not isinstance(model, CostModel):
        raise wrong_type("ranking", "measured and model", "be Measured and a fitted CostModel", (measured, model))
    predicted, times = model.predict(measured), measured.times
    default = measured.frame["default"].fill_null(value=False)
    kinds = ["default" if each else "configuration" for each in default]
    if not default[best := int(times.argmin())]:
        kinds[best] = "fastest"
    rank = np.argsort(np.argsort(predicted, kind="stable")) + 1
    about = [f"rank {place}, {kind}: {duration(time)}" for place, kind, time in zip(rank, kinds, times, strict=True)]
    frame = measured.frame.select(pl.col("low_ps", "high_ps") / 1e9).with_columns(
        rank=pl.Series(rank), time=pl.Series(times / 1e9), kind=pl.Series(kinds), about=pl.Series(about)
    )
    x = alt.X("rank:Q", title="rank by the model", axis=alt.Axis(format="d"))
    base = rows_of(frame.sort("kind", "rank")).encode(x=x.scale(nice=False, domain=[0, len(rank) + 1]))
    y = alt.Y("time:Q", title="time (ms)").scale(zero=False)
    looks = {
        "color": alt.Color("kind:N", scale=_scale(_MARKS, 0), legend=alt.Legend(title=None, orient="bottom")),
        "shape": alt.Shape("kind:N", scale=_scale(_MARKS, 1), legend=alt.Legend(title=None, orient="bottom")),
    }
    tau, first, of_three = kendall(predicted, times) or 0, *(top_error(predicted, times, k) for k in (1, 3))
    facts = f"tau {tau:.2f}; the first is {percent(first, 1)}, the best of 3 is {percent(of_three, 1)} off the fastest"
    title = f"Predicted rank and time · {cleaned(plain(measured.name))}"
    return LayerPicture(
        layer=[
            base.transform_filter("isValid(datum.low_ps)").mark_rule(color=GREY).encode(y="low_ps:Q", y2="high_ps:Q"),
            base.mark_point(filled=True, size=80 if len(rank) <= 60 else 30, opacity=0.9).encode(y=y, **looks),
        ],
        title=alt.TitleParams(
            title, subtitle=[f"{plural(len(rank), 'configuration')}, from the {model.features}", facts]
        ),
        description=f"{title}: {facts}; {listed(about)}.",
        width=WIDTH,
        height=280,
    )


def top_errors(evaluation: Evaluation) -> LayerPicture:
    """Return how far the best of the first `k` configurations is from the fastest, by `k`, for each method."""
    if not isinstance(evaluation, Evaluation):
        raise wrong_type("top_errors", "evaluation", "be what CostModel.evaluate returns", evaluation)
    means = {row["method"]: row for row in evaluation.frame.rows(named=True)}
    rows: list[dict[str, Any]] = [
        {"k": k, "method": name} | {end or "_": row[f"top{k}{end}"] for end in ("", "_low", "_high")}
        for name, row in means.items()
        for k in (1, 3, 5, 10)
    ]
    about = [f"{row['method']}, first {row['k']}: {percent(row['_'], 2)}" for row in rows]
    frame = pl.DataFrame(rows).with_columns(about=pl.Series(about))
    x = alt.X("k:O", title="configurations timed", axis=alt.Axis(labelAngle=0))
    scale = alt.Scale(type="symlog", constant=0.005)
    y = alt.Y("_:Q", title="off the fastest, mean over graphs", scale=scale)
    y = y.axis(values=_TICKS, labelExpr="format(100 * datum.value, '.3~g') + ' %'", labelOverlap=False)
    shown = {name: look for name, look in _METHODS.items() if name in means}
    legend = alt.Legend(title=None, orient="bottom", columns=4, symbolStrokeWidth=2)
    hue, dash = (
        kind("method:N", scale=_scale(shown, part), sort=[*shown], legend=legend)
        for part, kind in enumerate((alt.Color, alt.StrokeDash))
    )
    base = rows_of(frame).encode(x=x)
    ends = base.transform_filter("datum.method == 'model' && isValid(datum._low)")
    title = f"Error by the number of configurations timed, from the {evaluation.features}"
    split = f"{evaluation.split}; {plural(means['model']['graphs'], 'graph')}; interval of the model 95 %"
    return LayerPicture(
        layer=[
            ends.mark_rule(color=PALETTE[0], strokeWidth=1.5).encode(y=alt.Y("_low:Q", scale=scale), y2="_high:Q"),
            base.mark_line(strokeWidth=2).encode(y=y, color=hue, strokeDash=dash),
            base.mark_circle(size=40).encode(y=y, color=alt.Color("method:N", scale=_scale(shown, 0), legend=None)),
        ],
        title=alt.TitleParams(title, subtitle=[split]),
        description=f"{title}, {split}: {listed(about)}.",
        width=WIDTH,
        height=300,
    )


def graph_table(graph: ProgramGraph, computation: int | None = None) -> LayerPicture:
    """Return a computation of a program as a table: a row per node, what it uses, and its self time as a bar.

    Parameters
    ----------
    graph
        Graph of a program.
    computation
        Number of the computation; that with which a run of the program begins if None.
    """
    if not isinstance(graph, ProgramGraph):
        raise wrong_type("graph_table", "graph", "be what tp.studies.ranking.graph returns", graph)
    number = int(graph.computations.filter("entry")["computation"][0]) if computation is None else computation
    if number not in graph.computations["computation"]:
        raise ValueError(f"The computation must be 0 to {len(graph.computations) - 1}. Got {number!r} instead.")
    nodes = graph.nodes.filter(pl.col("computation") == number)
    total = int(nodes["self_ps"].sum())
    kept = nodes.top_k(_ROWS, by=pl.col("self_ps").fill_null(-1)).sort("node") if total else nodes.head(_ROWS)
    left = f", {'those with the most time' if total else 'the first'} of {len(nodes):,}"
    summary = f"{plural(len(kept), 'node')}{left if len(kept) < len(nodes) else ''}; "
    summary += f"self time {duration(total)}" if total else "self time unknown: no capture"
    frame = pl.DataFrame(_table(graph, kept))
    base = rows_of(frame).encode(y=alt.Y("node:N", sort=frame["node"].to_list(), axis=None))
    heads = rows_of(pl.DataFrame({"about": ["columns"]}))
    layers = []
    for name, (at, _) in _COLUMNS.items():
        layers.append(base.mark_text(align="left", fontSize=11).encode(x=alt.value(at), text=f"{name}:N"))
        bold = heads.mark_text(align="left", fontSize=11, fontWeight="bold", color=GREY)
        layers.append(bold.encode(x=alt.value(at), y=alt.value(-8), text=alt.value(name)))
    across = alt.Scale(domain=[0, _BAR + _LONGEST], range=[0, _BAR + _LONGEST])
    bars = base.transform_filter("datum.end > datum.begin").mark_bar(color=PALETTE[0], height=9)
    layers.append(bars.encode(x=alt.X("begin:Q", axis=None, scale=across), x2="end:Q"))
    layers.append(base.mark_text(align="left", fontSize=11).encode(x=alt.value(_BAR + _LONGEST + 6), text="time:N"))
    title = f"{cleaned(plain(graph.name))} · {cleaned(plain(graph.computations['name'][number]))}"
    return LayerPicture(
        layer=layers,
        title=alt.TitleParams(title, subtitle=[summary], offset=22),
        description=f"{title}: {summary}; {listed(frame['about'].to_list())}.",
        width=_BAR + _LONGEST + 60,
        height=(LINE + 4) * len(frame),
    )


def _table(graph: ProgramGraph, nodes: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the texts of nodes by column, and the ends of their bars."""
    operands = graph.edges.filter(pl.col("kind") == "operand").group_by("consumer").agg("producer")
    used = dict(operands.iter_rows())
    longest = max(nodes["self_ps"].fill_null(0).to_numpy().max(initial=0), 1)
    rows = []
    for row in nodes.rows(named=True):
        array = f"{row['dtype'] or ''}[{','.join(map(str, row['dims']))}]{row['layout'] or ''}"
        texts = {
            "node": str(row["node"]),
            "operation": row["hlo_op"],
            "layer": row["layer"] or "",
            "result": array if row["dtype"] != "tuple" else "tuple",
            "uses": " ".join(map(str, used.get(row["node"], []))),
        }
        texts = {name: cut(cleaned(plain(text)), _COLUMNS[name][1]) for name, text in texts.items()}
        time = "" if row["self_ps"] is None else short_time(row["self_ps"])
        about = f"{texts['operation']} {texts['result']}, uses {texts['uses'] or 'nothing'}, {time or 'no time'}"
        end = _BAR + float(_LONGEST * (row["self_ps"] or 0) / longest)
        rows.append({**texts, "time": time, "about": about, "begin": float(_BAR), "end": end})
    return rows


def _scale(looks: dict[str, Any], part: int) -> alt.Scale:
    return alt.Scale(domain=[*looks], range=[look[part] for look in looks.values()])
