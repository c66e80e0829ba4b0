"""Where a step's time went, on each of its devices and on its host: paper V and VI, Tables II and III.

All times are unions: what two streams do at once counts once. What the profiler does not tell is null.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from tpunb import links, op_names, schema
from tpunb.operations import words

_TIMES = ["infeed", "outfeed", "transfer", "collective"]
_WORK = ["flops", "bytes", "hbm_bytes"]
_WAITS = ["infeed", "outfeed", "transfer"]  # not the device's own work: XProf's duty cycle leaves it out too
_WHOLE = ["while", "conditional", "call"]  # count what their bodies count again


def of_devices(ops: pl.DataFrame, places: pl.DataFrame, hardware: pl.DataFrame) -> pl.DataFrame:
    """Return what each device did in each step: ``tpunb.schema.DEVICES``.

    Parameters
    ----------
    ops, places
        Operations of devices, from :func:`tpunb.operations.assign`.
    hardware
        ``tpunb.schema.HARDWARE``: the peaks that utilisation is measured by.
    """
    if ops.is_empty():
        return schema.empty(schema.DEVICES)
    ops = ops.select("at", "host", "plane", "category", "start_ps", "dur_ps", "end_ps", "flops", "bytes", "hbm_bytes")
    kinds = words(ops["category"], op_names.kind)
    whole = words(ops["category"], lambda category: category in _WHOLE, pl.Boolean()).fill_null(False)
    work = [name for name in _WORK if ops[name].null_count() < len(ops)]
    counted = ops.select("at", *work) if not whole.any() else ops.select("at", *work).filter(~whole)
    sums = ops.select("at").unique().join(counted.group_by("at").agg(_sum(pl.col(work))), on="at", how="left")
    sums = sums.with_columns(pl.lit(None, pl.Float64).alias(name) for name in _WORK if name not in work)
    rows = sums.join(places, on="at").join(_union(ops, "device_ps"), on="at", how="left")
    waits = words(kinds, _WAITS.__contains__, pl.Boolean()).fill_null(False)
    rows = rows.join(_union(ops.filter(~waits), "working_ps"), on="at", how="left")
    for kind in _TIMES:
        rows = rows.join(_union(ops.filter(kinds == kind), f"{kind}_ps"), on="at", how="left")
    peaks = hardware.select("host", "peak_flops", "hbm_bandwidth", "mxu_util", plane="device")
    rows = rows.join(_told(ops), on=["host", "plane"], how="left").join(
        peaks.unique(["host", "plane"]), on=["host", "plane"], how="left"
    )
    dur_ps = pl.col("end_ps") - pl.col("start_ps")
    return schema.check(
        rows.with_columns(
            *(_known(f"{kind}_ps", "programs") for kind in ("infeed", "outfeed")),
            *(_known(f"{kind}_ps", "kinds") for kind in ("transfer", "collective")),
            device=pl.col("plane"),
            dur_ps=dur_ps,
            idle_ps=dur_ps - pl.col("device_ps"),
            duty_cycle=_share(pl.col("working_ps").fill_null(0), dur_ps),
            flops_util=_share(pl.col("flops"), dur_ps / 1e12 * pl.col("peak_flops")),
            hbm_util=_share(pl.col("hbm_bytes"), dur_ps / 1e12 * pl.col("hbm_bandwidth")),
        ),
        schema.DEVICES,
        "devices",
    ).sort("host", "device", "start_ps")


def _told(ops: pl.DataFrame) -> pl.DataFrame:
    """Say of each device whether it names the category of its operations, and whether it names copies at all."""
    rows = ops.group_by("host", "plane").agg(told=pl.col("category").is_not_null().any())
    rows = rows.with_columns(pl.col("host", "plane").cast(pl.String))
    gpu = pl.col("plane").str.contains("GPU")
    programs = pl.col("told") & ~gpu & (pl.col("plane") != links.CPU)
    return rows.select("host", "plane", programs=programs, kinds=programs | gpu)


def _known(column: str, told: str) -> pl.Expr:
    """Return a time, 0 where the device would have told and did not, null where it could not."""
    return pl.coalesce(column, pl.when(pl.col(told)).then(0))


def of_hosts(ops: pl.DataFrame, places: pl.DataFrame) -> pl.DataFrame:
    """Return (host, step, input_ps, compile_ps): what the host waited for its input, and compiled.

    Parameters
    ----------
    ops, places
        Operations of hosts, from :func:`tpunb.operations.assign`.
    """
    kinds = words(ops["category"], op_names.kind)
    rows = ops.select("at").unique().join(places, on="at")
    for kind in ("input", "compile"):
        rows = rows.join(_union(ops.filter(kinds == kind), f"{kind}_ps"), on="at", how="left")
    # a host whose profile has no event of an input pipeline may still have waited for data, by other means
    piped = pl.col("input_ps").is_not_null().any().over("host")
    rows = rows.with_columns(pl.coalesce("input_ps", pl.when(piped).then(0)), pl.col("compile_ps").fill_null(0))
    return rows.group_by("host", "step").agg(total("input_ps"), total("compile_ps"))


def of_steps(devices: pl.DataFrame) -> pl.DataFrame:
    """Return the figures of each (host, step) over its devices: times and shares as means, work as sums."""
    times = [name for name in schema.DEVICE_FACTS if name.endswith("_ps")]
    shares = [name for name in schema.DEVICE_FACTS if name.endswith(("_util", "_cycle"))]
    return devices.group_by("host", "step").agg(
        pl.col(times).mean().round().cast(pl.Int64),
        pl.col(shares).mean(),
        *(_sum(pl.col(name)) for name in ("flops", "bytes")),
    )


def _union(ops: pl.DataFrame, name: str) -> pl.DataFrame:
    """Return how long at least one of the operations of each place and step ran, cut at the step's end."""
    from tpunb.self_time import unions  # compiled

    end = np.minimum((ops["start_ps"] + ops["dur_ps"]).to_numpy(), ops["end_ps"].to_numpy())
    at, start = ops["at"].to_numpy(), ops["start_ps"].to_numpy()
    groups = np.flatnonzero(np.bincount(at)).astype(np.uint32)
    return pl.DataFrame({"at": groups, name: unions(at, start, end)})


def _sum(column: pl.Expr) -> pl.Expr:
    return pl.when(column.count() > 0).then(column.cast(pl.Float64).sum())


def total(name: str) -> pl.Expr:
    """Return the sum of a column, null where it knows nothing."""
    return pl.when(pl.col(name).count() > 0).then(pl.col(name).sum())


def _share(part: pl.Expr, whole: pl.Expr) -> pl.Expr:
    return pl.when(whole > 0).then(part / whole)
