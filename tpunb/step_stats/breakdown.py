"""Step-time breakdown per device and per host: sections V and VI of the TPUPoint paper, Tables II and III.

All times are unions: what two streams run at once counts once. What the profiler does not record is null.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import polars as pl

from tpunb import schema
from tpunb.step_stats import launches, op_names
from tpunb.step_stats.aggregate import over_devices, total
from tpunb.step_stats.ops import WORK, Parts, map_names, totals

COUNTERS = "_counters_"
"""Line of a TPU with samples of its hardware counters."""

_TIMES = ["infeed", "outfeed", "transfer", "collective"]
_WAITS = ["infeed", "outfeed", "transfer"]  # not part of XProf's duty cycle either
_HIDDEN = ["transfer", "collective"]  # other streams may compute meanwhile
_CONTAINERS = ["while", "conditional", "call"]  # count what their bodies count again
_NUMBERS = {kind: number for number, kind in enumerate([*_TIMES, "input", "compile"], 1)}  # of kinds


def with_kinds(ops: pl.DataFrame) -> pl.DataFrame:
    """Add `kind`, the number of the kind of each operation, 0 for others; and `container`."""
    kinds = map_names(ops["category"], lambda category: _NUMBERS.get(op_names.kind(category) or ""), pl.UInt8())
    container = pl.any_horizontal(pl.col("category", "op").is_in(_CONTAINERS)).fill_null(value=False)
    return ops.with_columns(kind=kinds.fill_null(0), container=container)


def of_devices(
    ops: pl.DataFrame, found: pl.DataFrame, during: Parts, places: pl.DataFrame, hardware: pl.DataFrame
) -> pl.DataFrame:
    """Return ``tpunb.schema.DEVICES`` from operations of :func:`with_kinds`: those `ops.assign` returns, and all."""
    during = during.of((found["side"] == "device").to_numpy())
    if not during.row.size:
        return pl.DataFrame(schema=schema.DEVICES)
    counted_ps = pl.when(pl.col("flops").is_not_null()).then("self_ps")
    counted = ops.select("at", "self_ps", pl.col(WORK).cast(pl.Float64), counted_ps=counted_ps)
    counted = counted.filter((ops["side"] == "device") & ~ops["container"])
    share = _share(pl.col("counted_ps").fill_null(0), pl.col("self_ps"))
    sums = totals(counted, ["at"], [*WORK, "self_ps", "counted_ps"]).select("at", *WORK, flops_time_share=share)
    kinds, containers = (found[name].to_numpy()[during.row] for name in ("kind", "container"))
    waits = np.isin(kinds, [_NUMBERS[kind] for kind in _WAITS])
    computing = (kinds == 0) & ~containers
    times = {"device": np.ones(kinds.size, bool), "working": ~waits, "computing": computing}
    times |= {kind: kinds == _NUMBERS[kind] for kind in _TIMES}
    times |= {f"exposed_{kind}": computing | (kinds == _NUMBERS[kind]) for kind in _HIDDEN}
    named = np.zeros(len(places), bool)
    named[during.at[found["category"].is_not_null().to_numpy()[during.row]]] = True
    rows = _with_unions(places, during, times).with_columns(named=named).filter(pl.col("device_ps").is_not_null())
    peaks = hardware.select("host", "peak_flops", "hbm_bandwidth", "mxu_util", plane="device")
    rows = rows.join(sums, on="at", how="left").join(peaks.unique(["host", "plane"]), on=["host", "plane"], how="left")
    gpu, dur_ps = pl.col("plane").str.contains("GPU"), pl.col("end_ps") - pl.col("start_ps")
    programs = pl.col("named").any().over("host", "plane") & ~gpu & (pl.col("plane") != launches.CPU)
    return schema.check(
        rows.with_columns(programs=programs, kinds=programs | gpu).with_columns(
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


def _zero_if(column: str, reported: str) -> pl.Expr:
    """Return a time: 0 where the device reports such times and has none, null where it does not report them."""
    return pl.coalesce(column, pl.when(pl.col(reported)).then(0))


def of_hosts(found: pl.DataFrame, during: Parts, places: pl.DataFrame) -> pl.DataFrame:
    """Return (host, step, input_ps, compile_ps): time in which a host waits for input, and compiles."""
    on_host, kinds = (found["side"] == "host").to_numpy(), found["kind"].to_numpy()
    seen = np.zeros(len(places), bool)
    seen[during.at[on_host[during.row]]] = True
    during = during.of(on_host & np.isin(kinds, [_NUMBERS["input"], _NUMBERS["compile"]]))
    times = {kind: kinds[during.row] == _NUMBERS[kind] for kind in ("input", "compile")}
    rows = _with_unions(places, during, times).filter(pl.Series(seen))
    # without any event of an input pipeline, a host may still have waited for data in another way
    piped = pl.col("input_ps").is_not_null().any().over("host")
    rows = rows.with_columns(pl.coalesce("input_ps", pl.when(piped).then(0)), pl.col("compile_ps").fill_null(0))
    return rows.group_by("host", "step").agg(total("input_ps"), total("compile_ps"))


def input_stages(ops: pl.DataFrame) -> pl.DataFrame:
    """Return ``tpunb.schema.INPUT_STAGES`` from operations of hosts, of :func:`tpunb.step_stats.ops.find`.

    As in XProf, the self time of an iterator is its time without nested iterators and framework ops.
    """
    stage = map_names(ops.select(pl.coalesce("tf_op", "op"))["tf_op"], op_names.input_stage)
    rows = ops.select("host", "lane", "start_ps", "dur_ps", "tf_op", stage=stage)
    rows = rows.filter(pl.any_horizontal(pl.col("stage", "tf_op").is_not_null()))
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


def _with_unions(places: pl.DataFrame, during: Parts, times: Mapping[str, npt.NDArray[np.bool_]]) -> pl.DataFrame:
    """Add how long at least one of some operations of each place ran, by the name of the time; null without any."""
    from tpunb.step_stats.self_time import unions  # compiled

    sums = {
        f"{name}_ps": unions(during.at, during.start, during.end, counts, len(places)) for name, counts in times.items()
    }
    return places.with_columns(**sums).with_columns(pl.when(pl.col(name) >= 0).then(name).alias(name) for name in sums)


def _share(part: pl.Expr, whole: pl.Expr) -> pl.Expr:
    return pl.when(whole > 0).then(part / whole)
