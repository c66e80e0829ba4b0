"""The curves that a method chose its parameters from."""

from __future__ import annotations

import altair as alt
import polars as pl

from tpunb.charts.rows import PALETTE, WHOLE, WIDTH, rows_of, titled
from tpunb.errors import TpunbError
from tpunb.frames import Phases
from tpunb.pictures import LayerPicture, VConcatPicture


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


def kmeans_elbow(phases: Phases) -> LayerPicture:
    """Return the sum of squared distances by the number of clusters, the chosen one marked."""
    sweep = _swept(phases, "k", "KMeans").with_columns(pl.col("sse").round(6))
    x = alt.X("k:Q", title="clusters, k", axis=WHOLE).scale(zero=False)
    y = alt.Y("sse:Q", title="sum of squared distances")
    title = titled(phases, "k-means: squared distances by k")
    return _curve(title, sweep, x, y, "k = {k}, sum of squared distances {sse:.4g} (feature units²)")


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


def ols_phases(phases: Phases) -> LayerPicture:
    """Return the number of phases by similarity threshold, the chosen one marked."""
    sweep = _swept(phases, "threshold", "OLS").with_columns(pl.col("threshold").round(6))
    x = alt.X("threshold:Q", title="similarity threshold (0 to 1)", axis=alt.Axis(tickCount=10))
    y = alt.Y("phases:Q", title="phases", axis=_counts(sweep["phases"]))
    title = titled(phases, "OLS: phases by threshold")
    return _curve(title, sweep, x, y, "threshold = {threshold}, {phases} phases")
