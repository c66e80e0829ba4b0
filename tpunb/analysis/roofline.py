"""Model of a run on another device, by rooflines.

Compute time is scaled by the rooflines of `tpunb.analysis`: if the operations and bytes of a step take at
least 2 ms on this device and 1 ms on the other, its busy time is halved, at the measured efficiency. Waits (for input,
for the host) stay. So a faster device is idle for a larger share of its time: the paper's Observation 5.
"""

from __future__ import annotations

import polars as pl

from tpunb.errors import TpunbError, wrong
from tpunb.frames import Steps
from tpunb.frames.hardware import DEVICES, Device, device
from tpunb.text import plain


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
    target, source = _device(other, "other"), _device_of(steps) if of is None else _device(of, "of")
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


def _device(value: object, name: str) -> Device:
    if isinstance(value, Device):
        return value
    if not isinstance(value, str):
        raise wrong("what_if", name, "be a Device or the name of one", value)
    return device(value)


def _device_of(steps: Steps) -> Device:
    kind = steps.metadata.get("device kind", "")
    matching = [chip for chip in DEVICES.values() if chip.of_kind(kind)]
    if not matching:
        problem = f"unknown device {plain(kind)!r}" if kind else "the run does not name its device"
        raise TpunbError(problem, hint="give the device of the run: what_if(..., of='TPU v3')")
    return matching[0]
