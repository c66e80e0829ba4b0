"""The curves that a method chose its parameters from."""

from __future__ import annotations

import math
from typing import Any

import altair as alt
import polars as pl

from tpunb.charts.rows import GREY, PALETTE, WHOLE, WIDTH, counted, rows_of, titled
from tpunb.errors import TpunbError
from tpunb.frames import Phases
from tpunb.frames.words import cut, plain, plural
from tpunb.pictures import LayerPicture, VConcatPicture

_LINE = 14  # points on the page from one line of text to the next


def _swept(phases: Phases, column: str, method: str) -> pl.DataFrame:
    if column not in phases.sweeps:
        raise TpunbError(
            f"{cut(plain(repr(phases.method)))} swept no {column}; it swept {sorted(phases.sweeps) or 'nothing'}",
            hint=f"tp.phases(steps, tp.{method}()) chooses its {column} from a sweep",
        )
    sweep = phases.sweeps[column]
    return sweep.sort(sweep.columns[0])  # what was swept


def _curve(title: str, sweep: pl.DataFrame, x: alt.X, y: alt.Y, about: str) -> LayerPicture:
    """Return the curve of a sweep, the choice marked by a diamond; `about` is what to say of a row."""
    sweep = sweep.with_columns(about=pl.Series([about.format(**row) for row in sweep.iter_rows(named=True)]))
    chosen = sweep.filter(pl.col("chosen"))
    base, mark = rows_of(sweep).encode(x=x, y=y), rows_of(chosen).encode(x=x)
    what = f"chosen (diamond): {chosen['about'][0]}" if chosen.height else "none was chosen"
    diamond = mark.mark_point(color=PALETTE[5], filled=True, opacity=1, size=170, shape="diamond")
    return LayerPicture(
        layer=[
            mark.mark_rule(strokeDash=[4, 3]),
            base.mark_line(color=PALETTE[0]),
            base.mark_point(color=PALETTE[0], filled=True, opacity=1, size=36),
            diamond.encode(y=y),
        ],
        title=alt.TitleParams(title, subtitle=[what]),
        description=f"{title}; {what}.",
        width=WIDTH,
        height=200,
    )


def _counts(values: pl.Series) -> alt.Axis:
    """Return an axis of counts: every one where they are few, for Vega would draw halves and call them whole."""
    most = max([0, *values])
    return alt.Axis(values=[*range(most + 1)], format="d") if most <= 8 else WHOLE


def _percent(share: str) -> pl.Expr:
    return (pl.col(share) * 100).round(1)


def kmeans_elbow(phases: Phases) -> VConcatPicture:
    """Return the squared error and the information criterion by the number of clusters, with each rule's choice.

    The three rules: the elbow of the error (the paper's), that of its logarithm, and the Bayesian information
    criterion. The one that chose is the diamond.
    """
    sweep = _swept(phases, "k", "KMeans").with_columns(pl.col("sse", "bic").round(6))
    x = alt.X("k:Q", title="clusters, k", axis=WHOLE).scale(zero=False)
    title = titled(phases, "k-means: squared distances by k")
    about = "k = {k}, sum of squared distances {sse:.4g} (feature units²)"
    error = _curve(title, sweep, x, alt.Y("sse:Q", title="sum of squared distances"), about)
    error.title.offset = 20
    rules = _rules(sweep)
    error.layer.append(rows_of(rules.filter(~pl.col("chosen"))).mark_rule(strokeDash=[1, 3], color=GREY).encode(x=x))
    for line, names in enumerate(rules.partition_by("line")):
        text = rows_of(names).mark_text(baseline="bottom", dy=-4 - _LINE * line)
        error.layer.append(text.encode(x=x, y=alt.value(0), text="rule:N"))
    about = "k = {k}, Bayesian information criterion {bic:.4g}"
    score = _curve(title, sweep, x, alt.Y("bic:Q", title="BIC").scale(zero=False), about)
    score.title, score.height = alt.Undefined, 110
    if (level := _level(sweep)) is not None:
        about = "90 % of its range"
        reach = rows_of(pl.DataFrame({"bic": [level], "about": [about]})).encode(y="bic:Q")
        name = reach.mark_text(align="right", baseline="top", dx=-4, dy=4).encode(x=alt.value("width"), text="about:N")
        score.layer += [reach.mark_rule(strokeDash=[4, 3], color=GREY), name]
        if sweep.filter("by_bic")["bic"][0] < level:
            error.title.subtitle.append(f"BIC stops short of {about}: with more clusters they no longer lie apart")
    return VConcatPicture(vconcat=[error, score], description=error.description)


def _rules(sweep: pl.DataFrame) -> pl.DataFrame:
    """Return (k, chosen, rule, about, line): what each rule takes, and the line above the plot to write its name in.

    Names go over their k, each in the first line where it meets no other. Nearer to the curve there is no room: it
    falls steeply just before the k that a rule takes.
    """
    said = {"by_elbow": "elbow", "by_log": "elbow of the log", "by_bic": "BIC"}
    rules = (
        sweep.unpivot(list(said), index=["k", "chosen"], variable_name="rule")
        .filter("value")
        .group_by("k", "chosen", maintain_order=True)
        .agg(pl.col("rule").replace_strict(said).str.join(" · "))
        .with_columns(about=pl.format("{}: k = {}", "rule", "k"))
        .sort("k")
    )
    apart = WIDTH / max(int(sweep["k"].max()) - int(sweep["k"].min()), 1)  # type: ignore[arg-type]
    lines: list[int] = []
    ends: list[float] = []  # of each line, on the right
    for k, name in rules.select("k", "rule").iter_rows():
        half = 3.3 * len(name)
        line = next((i for i, end in enumerate(ends) if end < k * apart - half), len(ends))
        ends[line : line + 1] = [k * apart + half]
        lines.append(line)
    return rules.with_columns(line=pl.Series(lines, dtype=pl.Int64))


def _level(sweep: pl.DataFrame) -> float | None:
    """Return what the criterion must reach: 90 % of its range; None where k was given, and with it no range."""
    scores = sweep["bic"].fill_nan(None).drop_nulls()
    least, most = scores.min(), scores.max()
    if sweep["by_bic"].any() and isinstance(least, float) and isinstance(most, float) and least < most:
        return least + 0.9 * (most - least)
    return None


def dbscan_noise(phases: Phases) -> VConcatPicture:
    """Return the share of noise and the number of clusters by min_samples, the chosen one marked."""
    sweep = _swept(phases, "min_samples", "DBSCAN").with_columns(
        percent=_percent("noise"), found=counted("clusters", "cluster")
    )
    x = alt.X("min_samples:Q", title="min_samples (steps)", axis=WHOLE)
    title = titled(phases, "DBSCAN: noise and clusters by min_samples")
    about = "min_samples = {min_samples}, {found}, {percent} % noise"
    noise = _curve(title, sweep, x, alt.Y("percent:Q", title="noise (% of steps)"), about)
    clusters = _curve(title, sweep, x, alt.Y("clusters:Q", title="clusters", axis=_counts(sweep["clusters"])), about)
    clusters.title, clusters.height = alt.Undefined, 110
    return VConcatPicture(vconcat=[noise, clusters], description=noise.description)


def dbscan_eps(phases: Phases) -> LayerPicture:
    """Return the number of dense clusters by the distance up to which steps are neighbours, the chosen one marked.

    A bar is a range of eps over which the clusters stay the same; a full one has nine steps in ten in a cluster.
    """
    sweep = _swept(phases, "eps", "DBSCAN").with_columns(found=counted("clusters", "dense cluster"))
    least = sweep.filter(pl.col("low") > 0)["low"].min()
    floor = float(least) / 2 if isinstance(least, float) else 0.1  # the axis is a logarithm
    rows = sweep.filter(pl.col("high") > pl.col("low")).with_columns(
        pl.col("low").clip(floor),
        percent=_percent("inside"),
        seen=pl.when(pl.col("inside") < 0.9).then(0.35).otherwise(1.0),
    )
    told = "eps from {low:.3g} to {high:.3g}: {found}, {percent} % of the steps inside"
    rows = rows.with_columns(
        about=pl.Series([told.format(**row) for row in rows.iter_rows(named=True)], dtype=pl.String)
    )
    chosen = sweep.filter("chosen").row(0, named=True)
    what = f"chosen (diamond): eps = {chosen['eps']:.3g}, {chosen['found']}"
    counts, most = _counts(sweep["clusters"]), max(sweep["clusters"])
    x = alt.X("low:Q", title="eps (feature units)").scale(type="log", nice=False)
    y = alt.Y("clusters:Q", title="dense clusters", axis=counts)
    y = y.scale(domain=[0, most + max(0.5, most / 16)], nice=False)  # the highest bar inside the frame
    bars = rows_of(rows).mark_rule(strokeWidth=5).encode(x=x, x2="high", y=y)
    at = rows_of(pl.DataFrame([{"eps": chosen["eps"], "clusters": chosen["clusters"], "about": what}])).encode(
        x="eps:Q"
    )
    diamond = at.mark_point(color=PALETTE[5], filled=True, opacity=1, size=170, shape="diamond")
    title = titled(phases, "DBSCAN: clusters by eps")
    return LayerPicture(
        layer=[
            at.mark_rule(strokeDash=[4, 3]),
            bars.encode(color=alt.value(PALETTE[0]), opacity=alt.Opacity("seen:Q", scale=None)),
            diamond.encode(y=y),
        ],
        title=alt.TitleParams(title, subtitle=[what, "faint: fewer than nine steps in ten are in a cluster"]),
        description=f"{title}; {what}.",
        width=WIDTH,
        height=200,
    )


def ols_phases(phases: Phases) -> LayerPicture:
    """Return the number of phases by similarity threshold, the chosen one marked."""
    sweep = _swept(phases, "threshold", "OLS").with_columns(
        pl.col("threshold").round(6), found=counted("phases", "phase")
    )
    x = alt.X("threshold:Q", title="similarity threshold (0 to 1)", axis=alt.Axis(tickCount=10))
    y = alt.Y("phases:Q", title="phases", axis=_counts(sweep["phases"]))
    title = titled(phases, "OLS: phases by threshold")
    turns = pl.col("phases") != pl.col("phases").shift(), pl.col("phases") != pl.col("phases").shift(-1)
    corners = sweep.filter(pl.any_horizontal(*turns, "chosen") | pl.col("threshold").is_in([0.0, 1.0]))
    return _curve(title, corners, x, y, "threshold = {threshold}, {found}")


def olsplus_phases(phases: Phases) -> VConcatPicture:
    """Return the number of phases and the share of noise by the similarity that a phase asks for, the chosen marked."""
    sweep = _swept(phases, "ops", "OLSPlus").with_columns(
        pl.col("ops").round(6), percent=_percent("noise"), found=counted("phases", "phase")
    )
    x = alt.X("ops:Q", title="similarity of the operations (0 to 1)", axis=alt.Axis(tickCount=10)).scale(zero=False)
    title = titled(phases, "OLSPlus: phases by similarity")
    about = "similarity {ops}: {found}, {percent} % noise"
    phased = _curve(title, sweep, x, alt.Y("phases:Q", title="phases", axis=_counts(sweep["phases"])), about)
    noise = _curve(title, sweep, x, alt.Y("percent:Q", title="noise (% of steps)"), about)
    noise.title, noise.height = alt.Undefined, 110
    return VConcatPicture(vconcat=[phased, noise], description=phased.description)


def hdbscan_tree(phases: Phases) -> LayerPicture:
    """Return the condensed tree: the clusters that steps fall into as the distance shrinks, the phases among them.

    A cluster is as wide as the steps that it holds, and reaches from the distance at which it parts from the rest to
    that at which it falls apart.
    """
    tree = _swept(phases, "tree", "HDBSCAN")
    if tree.is_empty():
        raise TpunbError("one step has no tree", hint="capture more steps")
    blocks = _blocks(tree)
    ends = float(blocks["top"].max()), float(blocks["bottom"].min())  # type: ignore[arg-type]
    deep = (pl.col("top") / pl.col("bottom")).log() / math.log(ends[0] / ends[1])
    wide = (pl.col("right") - pl.col("left")) / blocks["right"].max()
    rows = blocks.with_columns(
        about=pl.format("{} of {}", pl.when("chosen").then(pl.lit("a phase")).otherwise(pl.lit("a cluster")), "held"),
        colour=pl.when("chosen").then(pl.lit(PALETTE[0])).otherwise(pl.lit(GREY)),
        ink=pl.when("chosen").then(pl.lit("white")).otherwise(pl.lit("black")),
        text=pl.when((wide > 0.05) & (deep > 0.06)).then(
            pl.col("steps").map_elements("{:,}".format, return_dtype=pl.String)
        ),
        across=(pl.col("left") + pl.col("right")) / 2,
        down=(pl.col("top") * pl.col("bottom")).sqrt(),
    )
    found = int(blocks["chosen"].sum())
    what = f"{found} of {plural(blocks.height, 'cluster')} {'is a phase' if found == 1 else 'are phases'} (blue)"
    title = titled(phases, "HDBSCAN: condensed tree")
    whole, bare = alt.Axis(grid=False, tickMinStep=1, format=",d"), alt.Axis(grid=False)
    x = alt.X("left:Q", title="steps", axis=whole).scale(nice=False)
    y = alt.Y("top:Q", title="distance (feature units)", axis=bare).scale(type="log", nice=False, domain=ends[::-1])
    box = rows_of(rows).encode(x=x, x2="right", y=y, y2="bottom", color=alt.Color("colour:N", scale=None))
    numbers = rows_of(rows.drop_nulls("text")).encode(x="across:Q", y="down:Q", color=alt.Color("ink:N", scale=None))
    return LayerPicture(
        layer=[box.mark_rect(stroke="white", strokeWidth=1), numbers.mark_text().encode(text="text:N")],
        title=alt.TitleParams(title, subtitle=[what, "numbers: steps of a cluster"]),
        description=f"{title}; {what}.",
        width=WIDTH,
        height=240,
    )


def _blocks(tree: pl.DataFrame) -> pl.DataFrame:
    """Return where each cluster of a condensed tree is drawn, parents first, the earliest to part on the left.

    ``left`` and ``right`` in steps, within the parent's; ``top`` and ``bottom`` in feature units; ``steps``; ``held``,
    these in words; ``chosen``.
    """
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
    return frame.with_columns(held=counted("steps", "step"))
