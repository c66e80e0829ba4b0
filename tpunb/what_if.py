"""What a run might have been on another device: modelled, beside what was measured.

What a device computes is scaled by its roofline (`tpunb.hardware`): a step whose operations and bytes would take 2 ms
here and 1 ms there at best is taken to be busy for half as long there, at the efficiency that was measured here. What
the device waits for (its input, the host) stays as it was. So the share of time in which nothing is computed grows
with the device: the paper's Observation 5.
"""

from __future__ import annotations

import polars as pl

from tpunb.errors import TpunbError, wrong
from tpunb.frames import Steps
from tpunb.frames.words import plain
from tpunb.hardware import DEVICES, Device, device


def what_if(steps: Steps, other: str | Device, *, of: str | Device | None = None) -> pl.DataFrame:
    """Return each step on each of its devices, as it was measured and as it is modelled on another device.

    Parameters
    ----------
    steps
        Of a run whose device told operations and bytes; of those seen in full.
    other
        The device to model, or its name.
    of
        The device that it ran on; by what the run tells of itself, if None.

    Returns
    -------
    DataFrame
        ``host``, ``device``, ``step``; ``dur_ps``, ``device_ps``, ``idle``, ``flops_util`` as they were measured;
        ``modelled_dur_ps``, ``modelled_device_ps``, ``modelled_idle``, ``modelled_flops_util``; null where the device
        told no operations. Idle is the share of the step in which the device computes nothing, utilisation that of the
        device's peak, both 0 to 1.

    Raises
    ------
    ValueError
        When no device is called so.
    TpunbError
        When it is not known on which device it ran.

    >>> from tpunb.testing import toy_steps
    >>> found = what_if(toy_steps("aab"), "TPU v3", of="TPU v2")
    >>> found["dur_ps"].to_list(), found["modelled_dur_ps"].to_list()  # its device told no operations
    ([1000000000, 1000000000, 2000000000], [None, None, None])
    """
    there, here = _device(other, "other"), _own(steps) if of is None else _device(of, "of")
    full = steps.full().frame.select("host", "step")
    rows = steps.devices.join(full, on=["host", "step"], how="semi", maintain_order="left")
    flops, bytes_ = pl.col("flops"), pl.col("bytes")
    faster = _least(there, flops, bytes_) / _least(here, flops, bytes_)
    busy = (pl.col("device_ps") * faster.fill_nan(1.0)).round().cast(pl.Int64)
    modelled = rows.with_columns(modelled_device_ps=busy).with_columns(
        modelled_dur_ps=pl.col("dur_ps") - pl.col("device_ps") + pl.col("modelled_device_ps")
    )
    return modelled.select(
        *("host", "device", "step", "dur_ps", "device_ps"),
        idle=1 - pl.col("device_ps") / pl.col("dur_ps"),
        flops_util=_share(flops, pl.col("dur_ps"), here),
        modelled_dur_ps=pl.col("modelled_dur_ps"),
        modelled_device_ps=pl.col("modelled_device_ps"),
        modelled_idle=1 - pl.col("modelled_device_ps") / pl.col("modelled_dur_ps"),
        modelled_flops_util=_share(flops, pl.col("modelled_dur_ps"), there),
    )


def _least(on: Device, flops: pl.Expr, bytes_: pl.Expr) -> pl.Expr:
    """Return the seconds of the roofline."""
    known = flops.is_not_null() & bytes_.is_not_null()
    return pl.when(known).then(pl.max_horizontal(flops / on.peak_flops, bytes_ / on.bandwidth))


def _share(flops: pl.Expr, dur_ps: pl.Expr, on: Device) -> pl.Expr:
    return flops / (dur_ps / 1e12 * on.peak_flops)


def _device(given: object, name: str) -> Device:
    if isinstance(given, Device):
        return given
    if not isinstance(given, str):
        raise wrong("what_if", name, "be a Device or the name of one", given)
    return device(given)


def _own(steps: Steps) -> Device:
    kind = steps.about.get("device kind", "")
    found = next((one for one in DEVICES.values() if kind in one.kinds), None)
    if found is None:
        told = f"its device is {plain(kind)!r}, which is not known here" if kind else "the run does not tell its device"
        raise TpunbError(told, hint="say of which it is: what_if(..., of='TPU v3')")
    return found
