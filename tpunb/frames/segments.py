"""Segments of consecutive steps of one phase."""

from __future__ import annotations

import polars as pl


def segments(steps: pl.DataFrame, *by: str) -> pl.DataFrame:
    """Return the longest segments of consecutive steps of a host with equal values in the columns `by` of STEPS.

    A segment ends where the next one starts, so no two of a host overlap; they are in order of host and time.
    """
    changed = pl.any_horizontal(pl.col(name).ne_missing(pl.col(name).shift()) for name in ("host", *by))
    first = pl.int_range(pl.len()) == 0  # nulls must not hide the first change
    return (
        steps.sort("host", "start_ps", "step")
        .with_columns(_run=(changed | first).cum_sum())
        .group_by("_run", maintain_order=True)
        .agg(
            pl.col("host", *by).first(),
            pl.col("step").first().alias("first_step"),
            pl.col("step").last().alias("last_step"),
            pl.len().cast(pl.Int64).alias("steps"),
            pl.col("start_ps").first(),
            (pl.col("start_ps") + pl.col("dur_ps")).max().alias("end_ps"),
        )
        .with_columns(end_ps=pl.min_horizontal("end_ps", pl.col("start_ps").shift(-1).over("host")))
        .drop("_run")
    )
