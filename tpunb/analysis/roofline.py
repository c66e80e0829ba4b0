"""Roofline of a run, and a model of the run on another device.

The roof of an instruction is the larger of two times: its FLOPs at the peak of the device, and its bytes at the memory
bandwidth (Williams, Waterman, Patterson: Roofline, 2009). Sums are of instructions, each at its own roof.

Compute time is scaled by the rooflines of `tpunb.analysis`: if the operations and bytes of a step take at
least 2 ms on this device and 1 ms on the other, its busy time is halved, at the measured efficiency. Waits (for input,
for the host) stay. So a faster device is idle for a larger share of its time: the paper's Observation 5.
"""

from __future__ import annotations

import polars as pl

from tpunb.errors import TpunbError, wrong
from tpunb.frames import Phases, Steps
from tpunb.frames.hardware import DEVICES, Device
from tpunb.frames.hardware import device as device_named
from tpunb.frames.roofline import Roofline
from tpunb.step_stats.aggregate import total
from tpunb.text import plain

_BY = {"run": "run", "phase": "phase", "category": "category", "layer": "layer", "op": "op", "instruction": "hlo_op"}
_ASYNCHRONOUS = r"^(copy-|async-|send|recv|all-|collective-|reduce-scatter|ragged-)"


def roofline(data: Steps | Phases, by: str = "run", *, device: str | Device | None = None) -> Roofline:
    """Return the work of a run's device operations, beside the most that its device can do in that time.

    Operations without a name at the level `by` are a row "unattributed", so time, FLOPs and bytes add up to the same at
    every level.

    Parameters
    ----------
    data
        Steps or Phases of a run whose raw events were kept.
    by
        Level of the rows: "run", "phase" (requires Phases), "category", "layer", "op" or "instruction".
    device
        Device whose peaks are the roof, or its name; by the run's metadata if None.

    Raises
    ------
    ValueError
        If `by` or the name of the device is unknown.
    TpunbError
        If the device of the run is unknown, or the capture kept statistics only.
    """
    steps = data.steps if isinstance(data, Phases) else data
    if not isinstance(steps, Steps):
        raise wrong("roofline", "data", "be Steps or Phases", data)
    if by not in _BY:
        raise ValueError(f"The by parameter of roofline must be one of {', '.join(_BY)}. Got {by!r} instead.")
    if by == "phase" and not isinstance(data, Phases):
        raise wrong("roofline", "data", "be Phases for by='phase'", data)
    chip = (
        _device_of(steps, "roofline(..., device='TPU v3')") if device is None else _device(device, "device", "roofline")
    )
    rows = steps.layers.filter(pl.col("side") == "device").with_columns(run=pl.lit(steps.name or "run"))
    if isinstance(data, Phases):
        labels = data.labelled.select("host", "step", phase=pl.col("phase").replace_strict(data.names, default=None))
        rows = rows.join(labels, on=["host", "step"], how="left")
    unit = ["program", "hlo_op", "tf_op", "op", "category"]
    sums = [total(name) for name in ("count", "self_ps", "flops", "bytes")]
    rows = rows.with_columns(what=pl.col(_BY[by]).cast(pl.String)).group_by("what", *unit, "flops_source").agg(*sums)
    rows = _at_the_roof(rows, chip).with_columns(
        program=pl.when(pl.lit(by == "instruction") & pl.col("what").is_not_null()).then("program"),
        what=pl.col("what").fill_null("unattributed"),
    )
    frame = rows.group_by("what", "program").agg(*sums, *_summary())
    return Roofline(frame.sort("headroom_ps", "self_ps", "what", descending=True, nulls_last=True), chip, by)


def _at_the_roof(rows: pl.DataFrame, chip: Device) -> pl.DataFrame:
    """Add the self time of instructions whose work is known, and their time at the roof."""
    peak, bandwidth = chip.peak_flops / chip.cores, chip.bandwidth / chip.cores  # profiles list cores as devices
    time, counted = pl.col("self_ps"), pl.col("flops").is_not_null() & pl.col("bytes").is_not_null()
    # what continues outside its self time has no roof there, and waiting for it no headroom
    outside = pl.col("category").cast(pl.String).str.contains(_ASYNCHRONOUS).fill_null(value=False)
    rows = rows.with_columns(
        known=counted & ~outside,
        compute_ps=pl.when(counted).then(pl.col("flops") / peak * 1e12),
        memory_ps=pl.when(counted).then(pl.col("bytes") / bandwidth * 1e12),
    ).with_columns(roof_ps=pl.max_horizontal("compute_ps", "memory_ps"))
    times = (pl.col("compute_ps") / time).round(1).cast(pl.String)
    why = (
        pl.when(outside)
        .then(pl.lit("asynchronous copy or collective: it continues outside its self time"))
        .when(pl.col("compute_ps") <= time)
        .then(pl.lit("data in a cache or on-chip memory"))
        .when((pl.col("category").cast(pl.String) == "custom-call").fill_null(value=False))
        .then(pl.format("custom call whose estimate exceeds the peak {} times", times))
        .otherwise(pl.format("FLOPs exceed the peak {} times: other data type or device", times))
    )
    return rows.with_columns(
        above=pl.when(pl.col("roof_ps") > time).then(why),
        least_ps=pl.when("known").then(pl.min_horizontal("roof_ps", "self_ps")),
    )


def _summary() -> list[pl.Expr]:
    """Return the figures of a row of ``tpunb.schema.ROOFLINE``, of the instructions whose work is known."""
    time, flops, bytes_, roof, least = (
        pl.when(pl.col("known").any()).then(pl.col(name).filter("known").sum())
        for name in ("self_ps", "flops", "bytes", "roof_ps", "least_ps")
    )
    of_memory = pl.col("roof_ps").filter(pl.col("memory_ps") > pl.col("compute_ps")).sum()
    sources = pl.col("flops_source").drop_nulls().unique()
    excess = (pl.col("roof_ps") - pl.col("self_ps")).filter(pl.col("above").is_not_null())
    return [
        (time.fill_null(0) / _above_zero(pl.col("self_ps").sum())).alias("flops_time_share"),
        (flops / _above_zero(time) * 1e12).alias("rate"),
        (flops / _above_zero(bytes_)).alias("intensity"),
        pl.when(roof > 0)
        .then(pl.when(of_memory > roof / 2).then(pl.lit("memory")).otherwise(pl.lit("compute")))
        .alias("bound"),
        (flops / _above_zero(roof) * 1e12).alias("attainable"),
        (least / _above_zero(time)).alias("efficiency"),
        (time - least).round().cast(pl.Int64).alias("headroom_ps"),
        pl.when(sources.len() > 1)
        .then(pl.lit("both"))
        .otherwise(sources.first().cast(pl.String))
        .alias("flops_source"),
        pl.col("above").drop_nulls().sort_by(excess, descending=True).first(),
    ]


def _above_zero(value: pl.Expr) -> pl.Expr:
    return pl.when(value > 0).then(value)


def what_if(steps: Steps, other: str | Device, *, of: str | Device | None = None) -> pl.DataFrame:
    """Model each step of each device on another device, beside its measurements.

    Parameters
    ----------
    steps
        Steps with FLOPs and bytes; those traced in full are modelled.
    other
        Device to model, or its name.
    of
        Device of the run, or its name; by the run's metadata if None.

    Returns
    -------
    DataFrame
        ``host``, ``device``, ``step``; measured ``dur_ps``, ``device_ps``, ``idle``, ``flops_util`` (a lower bound
        where ``flops_time_share`` is below 0.9); and
        ``modelled_dur_ps``, ``modelled_device_ps``, ``modelled_idle``, ``modelled_flops_util``, null without FLOPs and
        bytes. Idle is the share of step time without compute, utilisation the share of peak FLOP/s, both 0 to 1.

    Raises
    ------
    ValueError
        If a device is unknown.
    TpunbError
        If the device of the run is unknown.

    >>> from tpunb.testing import toy_steps
    >>> modelled = what_if(toy_steps("aab"), "TPU v3", of="TPU v2")
    >>> modelled["dur_ps"].to_list(), modelled["modelled_dur_ps"].to_list()  # without FLOPs
    ([1000000000, 1000000000, 2000000000], [None, None, None])
    """
    target = _device(other, "other")
    source = _device_of(steps, "what_if(..., of='TPU v3')") if of is None else _device(of, "of")
    full = steps.full().frame.select("host", "step")
    rows = steps.devices.join(full, on=["host", "step"], how="semi", maintain_order="left")
    flops = pl.col("flops")
    ratio = _roofline(target) / _roofline(source)
    busy = (pl.col("device_ps") * ratio.fill_nan(1.0)).round().cast(pl.Int64)
    return rows.with_columns(
        modelled_device_ps=busy, modelled_dur_ps=pl.col("dur_ps") - pl.col("device_ps") + busy
    ).select(
        *("host", "device", "step", "dur_ps", "device_ps"),
        idle=1 - pl.col("device_ps") / pl.col("dur_ps"),
        flops_util=flops / (pl.col("dur_ps") / 1e12 * source.peak_flops),
        flops_time_share=pl.col("flops_time_share"),
        modelled_dur_ps=pl.col("modelled_dur_ps"),
        modelled_device_ps=pl.col("modelled_device_ps"),
        modelled_idle=1 - pl.col("modelled_device_ps") / pl.col("modelled_dur_ps"),
        modelled_flops_util=flops / (pl.col("modelled_dur_ps") / 1e12 * target.peak_flops),
    )


def _roofline(on: Device) -> pl.Expr:
    """Return the least time of a step in seconds."""
    flops, bytes_ = pl.col("flops"), pl.col("bytes")
    valid = flops.is_not_null() & bytes_.is_not_null()
    return pl.when(valid).then(pl.max_horizontal(flops / on.peak_flops, bytes_ / on.bandwidth))


def _device(value: object, name: str, owner: str = "what_if") -> Device:
    if isinstance(value, Device):
        return value
    if not isinstance(value, str):
        raise wrong(owner, name, "be a Device or the name of one", value)
    return device_named(value)


def _device_of(steps: Steps, call: str) -> Device:
    kind = steps.metadata.get("device kind", "")
    matching = [chip for chip in DEVICES.values() if chip.of_kind(kind)]
    if not matching:
        problem = f"unknown device {plain(kind)!r}" if kind else "the run does not name its device"
        raise TpunbError(problem, hint=f"give the device of the run: {call}")
    return matching[0]
