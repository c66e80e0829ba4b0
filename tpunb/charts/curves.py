"""The curves that a method chose its parameters from."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl

from tpunb.charts.rows import GREY, PALETTE, WHOLE, WIDTH, rows_of, titled
from tpunb.errors import TpunbError
from tpunb.frames import Phases
from tpunb.pictures import LayerPicture, VConcatPicture


def _swept(phases: Phases, column: str, method: str) -> pl.DataFrame:
    if column not in phases.sweeps:
        raise TpunbError(
            f"{phases.method!r} swept no {column}; it swept {sorted(phases.sweeps) or 'nothing'}",
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
    said = {"by_elbow": "elbow", "by_log": "elbow of the log", "by_bic": "BIC"}
    rules = (
        sweep.unpivot(list(said), index=["k", "sse"], variable_name="rule")
        .filter("value")
        .group_by("k", "sse")
        .agg(pl.col("rule").replace_strict(said).str.join(" · "))
        .with_columns(about=pl.format("{}: k = {}", "rule", "k"))
    )
    names = rows_of(rules).mark_text(dy=-14, dx=4, align="left").encode(x=x, y=alt.Y("sse:Q"), text="rule:N")
    error.layer.append(names)
    about = "k = {k}, Bayesian information criterion {bic:.4g}"
    score = _curve(title, sweep, x, alt.Y("bic:Q", title="BIC").scale(zero=False), about)
    score.title, score.height = alt.Undefined, 110
    return VConcatPicture(vconcat=[error, score], description=error.description)


def dbscan_noise(phases: Phases) -> VConcatPicture:
    """Return the share of noise and the number of clusters by min_samples, the chosen one marked."""
    sweep = _swept(phases, "min_samples", "DBSCAN").with_columns(percent=(pl.col("noise") * 100).round(1))
    x = alt.X("min_samples:Q", title="min_samples (steps)", axis=WHOLE)
    title = titled(phases, "DBSCAN: noise and clusters by min_samples")
    about = "min_samples = {min_samples}, {clusters} clusters, {percent} % noise"
    noise = _curve(title, sweep, x, alt.Y("percent:Q", title="noise (% of steps)"), about)
    clusters = _curve(title, sweep, x, alt.Y("clusters:Q", title="clusters", axis=_counts(sweep["clusters"])), about)
    clusters.title, clusters.height = alt.Undefined, 110
    return VConcatPicture(vconcat=[noise, clusters], description=noise.description)


def dbscan_eps(phases: Phases) -> LayerPicture:
    """Return the number of dense clusters by the distance up to which steps are neighbours, the chosen one marked.

    A bar is a range of eps over which the clusters stay the same; a full one has nine steps in ten in a cluster.
    """
    ranges = _swept(phases, "eps", "DBSCAN").filter(pl.col("high") > pl.col("low"))
    least = ranges.filter(pl.col("low") > 0)["low"].min()
    floor = float(least) / 2 if isinstance(least, float) else 0.1
    rows = ranges.with_columns(pl.col("low").clip(floor)).with_columns(
        inside_percent=(pl.col("inside") * 100).round(1),
        seen=pl.when(pl.col("inside") < 0.9).then(0.35).otherwise(1.0),
    )
    told = "eps from {low:.3g} to {high:.3g}: {clusters} clusters, {inside_percent} % of the steps inside"
    rows = rows.with_columns(
        about=pl.Series([told.format(**row) for row in rows.iter_rows(named=True)], dtype=pl.String)
    )
    chosen = _swept(phases, "eps", "DBSCAN").filter("chosen")
    eps = chosen["eps"].item()
    what = f"chosen (diamond): eps = {eps:.3g}, {chosen['clusters'].item()} clusters"
    x = alt.X("low:Q", title="eps (feature units)").scale(type="log", nice=False)
    y = alt.Y("clusters:Q", title="clusters", axis=_counts(rows["clusters"]))
    bars = rows_of(rows).mark_rule(strokeWidth=5, color=PALETTE[0])
    at = chosen.select("eps", "clusters", about=pl.lit(what))
    diamond = rows_of(at).mark_point(color=PALETTE[5], filled=True, opacity=1, size=170, shape="diamond")
    title = titled(phases, "DBSCAN: clusters by eps")
    return LayerPicture(
        layer=[
            bars.encode(x=x, x2="high", y=y, opacity=alt.Opacity("seen:Q", scale=None)),
            diamond.encode(x=alt.X("eps:Q"), y=y),
        ],
        title=alt.TitleParams(title, subtitle=[what, "faint: fewer than nine steps in ten are in a cluster"]),
        description=f"{title}; {what}.",
        width=WIDTH,
        height=200,
    )


def ols_phases(phases: Phases) -> LayerPicture:
    """Return the number of phases by similarity threshold, the chosen one marked."""
    sweep = _swept(phases, "threshold", "OLS").with_columns(pl.col("threshold").round(6))
    x = alt.X("threshold:Q", title="similarity threshold (0 to 1)", axis=alt.Axis(tickCount=10))
    y = alt.Y("phases:Q", title="phases", axis=_counts(sweep["phases"]))
    title = titled(phases, "OLS: phases by threshold")
    turns = pl.col("phases") != pl.col("phases").shift(), pl.col("phases") != pl.col("phases").shift(-1)
    corners = sweep.filter(pl.any_horizontal(*turns, "chosen") | pl.col("threshold").is_in([0.0, 1.0]))
    return _curve(title, corners, x, y, "threshold = {threshold}, {phases} phases")


def olsplus_phases(phases: Phases) -> VConcatPicture:
    """Return the number of phases and the share of noise by the similarity that a phase asks for, the chosen marked."""
    sweep = _swept(phases, "ops", "OLSPlus").with_columns(
        pl.col("ops").round(6), percent=(pl.col("noise") * 100).round(1)
    )
    x = alt.X("ops:Q", title="similarity of the operations (0 to 1)", axis=alt.Axis(tickCount=10)).scale(zero=False)
    title = titled(phases, "OLSPlus: phases by similarity")
    about = "similarity {ops}: {phases} phases, {percent} % noise"
    found = _curve(title, sweep, x, alt.Y("phases:Q", title="phases", axis=_counts(sweep["phases"])), about)
    noise = _curve(title, sweep, x, alt.Y("percent:Q", title="noise (% of steps)"), about)
    noise.title, noise.height = alt.Undefined, 110
    return VConcatPicture(vconcat=[found, noise], description=found.description)


def hdbscan_tree(phases: Phases) -> LayerPicture:
    """Return the condensed tree: the clusters that steps fall into as the distance shrinks, the phases among them.

    A cluster is as wide as the steps that it holds, and reaches from the distance at which it parts from the rest to
    that at which it falls apart.
    """
    tree = _swept(phases, "tree", "HDBSCAN").sort("lambda_val", nulls_last=False)
    if tree.is_empty():
        raise TpunbError("one step has no tree", hint="capture more steps")
    kin: dict[int | None, list[dict[str, Any]]] = {}
    for row in tree.iter_rows(named=True):
        kin.setdefault(row["parent"], []).append(row)
    parts = [
        1 / row["lambda_val"] for row in tree.iter_rows(named=True) if row["lambda_val"] and row["parent"] is not None
    ]
    widest, finest = 1.5 * max(parts, default=1.0), min(parts, default=1.0) / 1.5
    rows, todo = [], [(row, 0.0) for row in kin.get(None, [])]
    while todo:
        row, left = todo.pop()
        children = kin.get(row["child"], [])
        top = widest if row["parent"] is None else 1 / row["lambda_val"]
        bottom = 1 / children[0]["lambda_val"] if children else finest
        what = "a phase" if row["chosen"] else "a cluster"
        rows.append((left, left + row["steps"], top, bottom, row["chosen"], f"{what} of {row['steps']} steps"))
        for child in children:
            todo.append((child, left))
            left += child["steps"]
    frame = pl.DataFrame(rows, schema=["left", "right", "top", "bottom", "chosen", "about"], orient="row")
    frame = frame.with_columns(colour=pl.when("chosen").then(pl.lit(PALETTE[0])).otherwise(pl.lit(GREY)))
    what = f"{frame['chosen'].sum()} of {frame.height} clusters are phases (blue)"
    title = titled(phases, "HDBSCAN: condensed tree")
    box = rows_of(frame).encode(
        x=alt.X("left:Q", title="steps").scale(nice=False),
        x2="right",
        y=alt.Y("top:Q", title="distance (feature units)").scale(type="log", nice=False),
        y2="bottom",
        color=alt.Color("colour:N", scale=None),
    )
    return LayerPicture(
        layer=[box.mark_rect(opacity=0.8, stroke="white", strokeWidth=1)],
        title=alt.TitleParams(title, subtitle=[what]),
        description=f"{title}; {what}.",
        width=WIDTH,
        height=240,
    )
