"""How values become one, as ``tpunb.schema`` declares it for each column."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import polars as pl

from tpunb import schema
from tpunb.step_stats.numbering import Change, Tables, numbered, of_steps, one_host


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


_KEY = ["host", "step"]
_BY_CLOCK = ["input_ps", "callbacks_ps", "dispatch_ps", "peers_ps", "samples", "tokens"]
_MEASURED = [name for name in schema.STEPS if name not in {*_KEY, "kind", "start_ps", "dur_ps", "traced", "rule"}]


def merge(tables: Tables) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Return STEPS, OPS and DEVICES of a run from the tables of all its parts: ticks, steps, ops and devices."""
    frame, merged, devices = merge_steps(tables)
    return frame, merged(tables["ops"]), devices


def merge_steps(
    tables: Tables, step_flops: float | None = None, *, is_over: bool = False
) -> tuple[pl.DataFrame, Change, pl.DataFrame]:
    """Return STEPS and DEVICES of a run as `merge`, and between them the function that merges its operations.

    `step_flops` are the FLOPs of a step of kind "train" whose profiler reports none; None if unknown. A run `is_over`
    if it was not killed.
    """
    tables, changes = numbered(tables, is_over=is_over)
    traced, several = _grouped(tables["steps"], over_windows("STEPS", [*schema.STEPS][2:]))
    by_clock = pl.col("kind").sort_by("start_ps").first(), pl.col("start_ps").min(), pl.col("end_ps").max()
    clocked, _ = _grouped(tables["ticks"], [*by_clock, pl.col("found_by").first(), *map(total, _BY_CLOCK)])
    names = ["kind", "start_ps", "end_ps", *_BY_CLOCK]
    clocked = clocked.select(*_KEY, pl.col("found_by").cast(schema.RULE), pl.col(names).name.prefix("clock_"))
    # times of a full trace win: a device that lags behind its host starts a step later than the clock says
    full = pl.when(pl.col("traced") == "full")
    clock_dur_ps = pl.col("clock_end_ps") - pl.col("clock_start_ps")
    ruled = pl.when(clock_dur_ps.is_not_null()).then(pl.lit("clock", schema.RULE))
    # a join would write out columns of nulls: most, in a long run
    empty = {name for name in _MEASURED if traced[name].null_count() == len(traced)}
    traced = traced.drop(empty)
    key, right = ("step", traced.drop("host")) if one_host(clocked, traced) else (_KEY, traced)
    frame = clocked.join(right, on=key, how="left", maintain_order="left")
    if frame["traced"].count() < len(traced):  # a full join copies the steps by the clock, too
        frame = pl.concat([frame, traced.filter(~of_steps(traced, clocked))], how="diagonal")
    del clocked, traced, right
    measured = {name: pl.lit(None, schema.STEPS[name]) if name in empty else pl.col(name) for name in _MEASURED}
    frame = frame.select(
        *_KEY,
        kind=pl.coalesce("clock_kind", "kind"),
        start_ps=full.then("start_ps").otherwise(pl.coalesce("clock_start_ps", "start_ps")),
        dur_ps=full.then("dur_ps").otherwise(pl.coalesce(clock_dur_ps, "dur_ps")),
        traced=pl.col("traced").fill_null("none"),
        rule=pl.coalesce("found_by", "rule", ruled),
        **measured | {name: pl.coalesce(f"clock_{name}", measured[name]) for name in _BY_CLOCK},
    )
    if step_flops is not None and frame["flops"].null_count() == len(frame):
        frame = frame.with_columns(flops=pl.when(pl.col("kind") == "train").then(step_flops))
    per_device = (
        tables["devices"]
        .group_by("host", "device", "step")
        .agg(over_windows("DEVICES", ["start_ps", "dur_ps", *schema.DEVICE_FACTS]))
    )
    return schema.compact(frame), partial(_merge_ops, changes, several), per_device


def _grouped(rows: pl.DataFrame, columns: Sequence[pl.Expr]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return columns by step, and the steps with several rows: others are what they are, most of a long run."""
    key, one = rows.select(_KEY), one_host(rows)
    rises = one and (key["step"].diff() > 0).all()  # as is usual; to look for two of a number takes longer
    again = pl.repeat(False, 0, eager=True) if rises else (key["step"] if one else key).is_duplicated()
    if not again.any():
        return rows.select(*_KEY, *(expr.meta.output_name() for expr in columns)), key.clear()
    merged = rows.filter(again).group_by(_KEY, maintain_order=True).agg(columns)
    return pl.concat([rows.filter(~again).select(merged.columns), merged]), merged.select(_KEY)


def merge_clocks(clocks: pl.DataFrame) -> pl.DataFrame:
    """Return CLOCKS over all windows, one row per link; the delay is weighted by the launches it is the median of."""
    linked = pl.col("linked").filter(pl.col("delay_ps").is_not_null()).sum()
    return clocks.group_by("host", "device", "link", maintain_order=True).agg(
        *over_windows("CLOCKS", ["launches", "linked", "skew_ps", "queue_length"]),
        delay_ps=(pl.col("delay_ps") * pl.col("linked")).sum() // pl.when(linked > 0).then(linked),
    )


def _merge_ops(changes: Iterable[Change], several: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Return one row per (host, step, op, side); most steps were traced by one window and stay as they are."""
    for change in changes:
        ops = change(ops)
    if several.is_empty():
        return ops
    is_once = ~of_steps(ops, several)
    # a group keeps the order of its rows: the first category is that of most self time
    merged = (
        ops.filter(~is_once)
        .sort("self_ps", descending=True)
        .group_by(*_KEY, "op", "side")
        .agg(pl.col("category").drop_nulls().first(), *over_windows("OPS", ["count", "total_ps", "self_ps"]))
    )
    left = ops.clone()  # its columns are freed one by one, if no one else holds them
    del ops
    columns = ([left.drop_in_place(name).filter(is_once), merged[name]] for name in [*left.columns])
    return pl.DataFrame([pl.concat(pair, rechunk=True) for pair in columns])
