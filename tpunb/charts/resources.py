"""What devices use over time: their units by hardware counters, and their memory."""

from __future__ import annotations

import altair as alt
import polars as pl

from tpunb.charts.labels import listed
from tpunb.charts.render import LayerPicture
from tpunb.charts.rows import PALETTE, TIME, WIDTH, cleaned, rows_of
from tpunb.errors import TpunbError
from tpunb.frames import Profile

_BINS = 400  # in time


def counters(profile: Profile) -> LayerPicture:
    """Return the utilisation of each unit over time by its hardware counter, mean over devices.

    Raises
    ------
    TpunbError
        When the profile has no hardware counters.
    """
    rows = profile.counters.select("start_ps", name="counter", value=pl.col("value") * 100)
    return _over_time(profile, rows, "Hardware counters", "utilisation", "%", pl.col("value").mean())


def memory(profile: Profile) -> LayerPicture:
    """Return the memory in use over time by allocator: its maximum in each of 400 bins.

    Raises
    ------
    TpunbError
        When the profile has no events of allocators.
    """
    host = pl.when(profile.memory["host"].n_unique() > 1).then(pl.col("host") + " ").otherwise(pl.lit(""))
    name = host + pl.col("allocator").cast(pl.String).fill_null("unnamed").str.replace(r"^(\d+)$", "TPU:$1")
    rows = profile.memory.select("start_ps", name=name, value=pl.col("in_use_bytes") / 1e9)
    return _over_time(profile, rows, "Memory in use", "memory in use", "GB", pl.col("value").max())


def _over_time(
    profile: Profile, rows: pl.DataFrame, title: str, what: str, unit: str, mean_or_max: pl.Expr
) -> LayerPicture:
    """Return a line per name, of those with the highest values."""
    rows = rows.drop_nulls("value").with_columns(pl.col("name").cast(pl.String))
    if rows.is_empty():
        raise TpunbError(f"{profile.name} holds no {title.lower()}", hint="record it with them, see docs/profiles.md")
    highest = rows.group_by("name").agg(pl.col("value").max()).sort("value", "name", descending=[True, False])
    shown = highest.head(len(PALETTE))
    width = max(profile.span_ps, *rows["start_ps"], 1) // _BINS + 1
    binned = rows.join(shown, on="name", how="semi").group_by("name", bin=pl.col("start_ps") // width).agg(mean_or_max)
    binned = binned.sort("name", "bin").select(
        "name",
        "value",
        second=pl.col("bin") * width / 1e12,
        about=pl.format("{}: {} at {} s", "name", pl.col("value").round(3), (pl.col("bin") * width / 1e12).round(3)),
    )
    axis, peaks = f"{what} ({unit})", [f"{name} {value:.3g} {unit}" for name, value in shown.rows()]
    others = f"; {highest.height - shown.height} more left out" if highest.height > shown.height else ""
    hue = alt.Color("name:N", title=None).scale(range=PALETTE)
    line = rows_of(binned).encode(x=alt.X("second:Q", title=TIME), y=alt.Y("value:Q", title=axis), color=hue)
    text = cleaned(f"{title} · {profile.name}")
    return LayerPicture(
        layer=[line.mark_line(interpolate="step-after"), line.mark_point(size=9, filled=True)],
        title=alt.TitleParams(text, subtitle=[cleaned(f"at most: {listed(peaks)}{others}")]),
        description=cleaned(f"{text}, at most: {listed(peaks)}{others}."),
        width=WIDTH,
        height=200,
    )
