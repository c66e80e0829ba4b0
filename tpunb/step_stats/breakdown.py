"""Step-time breakdown per device and per host: sections V and VI of the TPUPoint paper, Tables II and III.

All times are unions: what two streams run at once counts once. What the profiler does not record is null.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from tpunb import schema
from tpunb.step_stats import launches, op_names
from tpunb.step_stats.aggregate import over_devices, total
from tpunb.step_stats.ops import WORK, map_names

COUNTERS = "_counters_"
"""Line of a TPU with samples of its hardware counters."""

_TIMES = ["infeed", "outfeed", "transfer", "collective"]
_WAITS = ["infeed", "outfeed", "transfer"]  # not part of XProf's duty cycle either
_HIDDEN = ["transfer", "collective"]  # other streams may compute meanwhile
_CONTAINERS = ["while", "conditional", "call"]  # count what their bodies count again


def of_devices(ops: pl.DataFrame, during: pl.DataFrame, places: pl.DataFrame, hardware: pl.DataFrame) -> pl.DataFrame:
    """Return ``tpunb.schema.DEVICES`` from operations of devices, those `ops.assign` returns and `ops.parts`."""
    if during.is_empty():
        return pl.DataFrame(schema=schema.DEVICES)
    counted = ops.filter(~_containers(ops)).select("at", "self_ps", pl.col(WORK).cast(pl.Float64))
    flops_ps = pl.col("self_ps").filter(pl.col("flops").is_not_null()).sum()
    sums = counted.group_by("at").agg(*map(total, WORK), flops_time_share=_share(flops_ps, pl.col("self_ps").sum()))
    kinds = map_names(during["category"], op_names.kind)
    waits = map_names(kinds, _WAITS.__contains__, pl.Boolean()).fill_null(False)
    computing = kinds.is_null() & ~_containers(during)
    times = {"device": ~waits | waits, "working": ~waits, "computing": computing}
    times |= {kind: kinds == kind for kind in _TIMES}
    times |= {f"exposed_{kind}": computing | (kinds == kind) for kind in _HIDDEN}
    rows = during.select("at").unique().join(sums, on="at", how="left").join(places, on="at")
    for name, counts in times.items():
        rows = rows.join(_union(during.filter(counts), f"{name}_ps"), on="at", how="left")
    peaks = hardware.select("host", "peak_flops", "hbm_bandwidth", "mxu_util", plane="device")
    rows = rows.join(_reported(during), on=["host", "plane"], how="left").join(
        peaks.unique(["host", "plane"]), on=["host", "plane"], how="left"
    )
    dur_ps = pl.col("end_ps") - pl.col("start_ps")
    return schema.check(
        rows.with_columns(
            *(_zero_if(f"{kind}_ps", "programs") for kind in ("infeed", "outfeed")),
            *(_zero_if(f"{kind}_ps", "kinds") for kind in _HIDDEN),
            *(_exposed(kind) for kind in _HIDDEN),
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


def _containers(ops: pl.DataFrame) -> pl.Series:
    named = (map_names(ops[name], _CONTAINERS.__contains__, pl.Boolean()) for name in ("category", "op"))
    return next(named).fill_null(False) | next(named).fill_null(False)


def _exposed(kind: str) -> pl.Expr:
    """Return the time of a kind beyond that of computation, where the device reports the kind."""
    beyond = pl.col(f"exposed_{kind}_ps").fill_null(0) - pl.col("computing_ps").fill_null(0)
    return pl.when(_zero_if(f"{kind}_ps", "kinds").is_not_null()).then(beyond).alias(f"exposed_{kind}_ps")


def with_counters(devices: pl.DataFrame, counters: pl.DataFrame) -> pl.DataFrame:
    """Return ``tpunb.schema.DEVICES`` with the mean of the matrix unit's samples that begin in each step, if any."""
    by = ["host", "device"]
    samples = counters.filter(pl.col("counter") == "MXU").drop_nulls("value").sort("start_ps")
    steps = devices.select(*by, "step", begin_ps="start_ps", end_ps=pl.col("start_ps") + pl.col("dur_ps"))
    inside = samples.join_asof(
        steps.sort("begin_ps"), left_on="start_ps", right_on="begin_ps", by=by, check_sortedness=False
    ).filter(pl.col("start_ps") < pl.col("end_ps"))
    weight = pl.col("dur_ps").clip(1)
    means = inside.group_by(*by, "step").agg(counted=(pl.col("value") * weight).sum() / weight.sum())
    rows = devices.join(means, on=[*by, "step"], how="left", maintain_order="left")
    return rows.with_columns(mxu_util=pl.coalesce("counted", "mxu_util")).drop("counted")


def _reported(ops: pl.DataFrame) -> pl.DataFrame:
    """Return which devices report categories of programs, and which report copies at all."""
    rows = ops.group_by("host", "plane").agg(categories=pl.col("category").is_not_null().any())
    rows = rows.with_columns(pl.col("host", "plane").cast(pl.String))
    gpu = pl.col("plane").str.contains("GPU")
    programs = pl.col("categories") & ~gpu & (pl.col("plane") != launches.CPU)
    return rows.select("host", "plane", programs=programs, kinds=programs | gpu)


def _zero_if(column: str, reported: str) -> pl.Expr:
    """Return a time: 0 where the device reports such times and has none, null where it does not report them."""
    return pl.coalesce(column, pl.when(pl.col(reported)).then(0))


def of_hosts(ops: pl.DataFrame, places: pl.DataFrame) -> pl.DataFrame:
    """Return (host, step, input_ps, compile_ps): time in which a host waits for input, and compiles."""
    kinds = map_names(ops["category"], op_names.kind)
    rows = ops.select("at").unique().join(places, on="at")
    for kind in ("input", "compile"):
        rows = rows.join(_union(ops.filter(kinds == kind), f"{kind}_ps"), on="at", how="left")
    # without any event of an input pipeline, a host may still have waited for data in another way
    piped = pl.col("input_ps").is_not_null().any().over("host")
    rows = rows.with_columns(pl.coalesce("input_ps", pl.when(piped).then(0)), pl.col("compile_ps").fill_null(0))
    return rows.group_by("host", "step").agg(total("input_ps"), total("compile_ps"))


def input_stages(ops: pl.DataFrame) -> pl.DataFrame:
    """Return ``tpunb.schema.INPUT_STAGES`` from operations of hosts, of :func:`tpunb.step_stats.ops.find`.

    As in XProf, the self time of an iterator is its time without nested iterators and framework ops.
    """
    stage = map_names(ops.select(pl.coalesce("tf_op", "op"))["tf_op"], op_names.input_stage)
    rows = ops.with_columns(stage=stage).filter(pl.any_horizontal(pl.col("stage", "tf_op").is_not_null()))
    if rows["stage"].null_count() == len(rows):
        return pl.DataFrame(schema=schema.INPUT_STAGES)
    from tpunb.step_stats.self_time import self_times  # compiled

    times = self_times(rows["lane"].to_numpy(), rows["start_ps"].to_numpy(), rows["dur_ps"].to_numpy())
    staged = rows.with_columns(time_ps=pl.Series(times)).drop_nulls("stage").group_by("host", "stage")
    sums = staged.agg(pl.col("time_ps").sum()).filter(pl.col("time_ps") > 0).sort("host", "stage")
    sums = sums.with_columns(share=pl.col("time_ps") / pl.col("time_ps").sum().over("host"))
    return schema.check(sums, schema.INPUT_STAGES, "input_stages")


def of_steps(devices: pl.DataFrame) -> pl.DataFrame:
    """Return one row per (host, step) over its devices."""
    return devices.group_by("host", "step").agg(over_devices(schema.DEVICE_FACTS))


def _union(ops: pl.DataFrame, name: str) -> pl.DataFrame:
    """Return how long at least one operation of each place and step ran, of :func:`tpunb.step_stats.ops.parts`."""
    from tpunb.step_stats.self_time import unions  # compiled

    at, start, end = (ops[name].to_numpy() for name in ("at", "start_ps", "end_ps"))
    groups = np.flatnonzero(np.bincount(at)).astype(np.uint32)
    return pl.DataFrame({"at": groups, name: unions(at, start, end)})


def _share(part: pl.Expr, whole: pl.Expr) -> pl.Expr:
    return pl.when(whole > 0).then(part / whole)
