"""How values become one, as ``tpunb.schema`` declares it for each column."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from tpunb import schema


def total(name: str) -> pl.Expr:
    """Return the sum of a column, null where all its values are."""
    return pl.when(pl.col(name).count() > 0).then(pl.col(name).sum())


def middle(name: str) -> pl.Expr:
    """Return the lower median of a column, null where all its values are."""
    column = pl.col(name)
    return column.drop_nulls().sort().get((column.count().cast(pl.Int64) - 1) // 2, null_on_oob=True)


def over_windows(frame: str, columns: Iterable[str]) -> list[pl.Expr]:
    """Return how columns of a frame become one row over the windows that traced a part of it.

    >>> toy = pl.DataFrame({"dur_ps": [3, 1], "idle_ps": [2, None], "mxu_util": [0.5, 0.1]})
    >>> toy.select(over_windows("STEPS", ["dur_ps", "idle_ps", "mxu_util"])).row(0)
    (3, 2, 0.4)
    """
    return [_one(name, schema.FRAMES[frame].columns[name].windows) for name in columns]


def over_devices(columns: Iterable[str]) -> list[pl.Expr]:
    """Return how columns of ``tpunb.schema.DEVICES`` become one row per step over the devices of a host."""
    exprs = []
    for name in columns:
        spec = schema.FRAMES["DEVICES"].columns[name]
        expr = pl.col(name).mean() if spec.devices == "mean" else total(name)
        exprs.append(expr.round().cast(spec.dtype) if spec.dtype == pl.Int64() else expr)
    return exprs


def over_hosts(columns: Iterable[str]) -> list[pl.Expr]:
    """Return how columns of ``tpunb.schema.STEPS`` become one row per step over the hosts of a job.

    >>> toy = pl.DataFrame({"start_ps": [9, 5, 6, 7], "dur_ps": [1, 3, 2, 1], "idle_ps": [2, None, 3, 4]})
    >>> toy.select(over_hosts(["start_ps", "dur_ps", "idle_ps"])).row(0)
    (6, 3, 3)
    """
    exprs = []
    for name in columns:
        spec = schema.FRAMES["STEPS"].columns[name]
        how = spec.hosts or spec.devices
        expr = pl.col(name).mean() if how == "mean" else _one(name, how)
        exprs.append(expr.round().cast(spec.dtype) if how == "mean" and spec.dtype == pl.Int64() else expr)
    return exprs


def _one(name: str, aggregation: schema.Aggregation | None) -> pl.Expr:
    column = pl.col(name)
    if aggregation is None:
        raise ValueError(f"{name} has no aggregation: it is a key")
    if aggregation == "sum":
        return total(name)
    if aggregation == "middle":
        return middle(name)
    if aggregation == "mean":
        weights = pl.col("dur_ps").filter(column.is_not_null()).sum()
        mean = (column * pl.col("dur_ps")).sum() / pl.when(weights > 0).then(weights)
        return pl.when(column.min() == column.max()).then(column.min()).otherwise(mean).alias(name)
    return {"first": column.first(), "min": column.min(), "max": column.max()}[aggregation]
