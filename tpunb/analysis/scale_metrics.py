"""Metrics of many devices, and the time of weight updates."""

from __future__ import annotations

import polars as pl

from tpunb.analysis.roofline import Roofline, device_of
from tpunb.frames import Phases, Steps
from tpunb.frames.cache import memoised
from tpunb.frames.hardware import Device
from tpunb.frames.hardware import device as device_named
from tpunb.frames.op_matrix import distinct_ops, of_ops

# times that each weight is read or written: weight, gradient and moments; for LARS the norms of weight and gradient too
_PASSES = {"sgd": 3, "momentum": 5, "rmsprop": 5, "adagrad": 5, "lars": 7, "adam": 7, "adamw": 7}
_REDUCE, _SCATTER = r"(?i)all.?reduce", r"(?i)reduce.?scatter"


def weight_update_ps(weights: int, optimizer: str, device: Device | str) -> float | None:
    """Return the modelled time to update all weights on one core, in picoseconds; None for another optimizer.

    Each weight and moment is in float32, and each is read from or written to the main memory of the chip, of whose
    bandwidth a core has an equal share: 4 bytes x weights x passes / bandwidth. Passes are 3 for SGD, 5 with momentum,
    7 for LARS and Adam, after the update rules in https://arxiv.org/abs/1708.03888 and https://arxiv.org/abs/1412.6980.

    Parameters
    ----------
    weights
        Number of weights.
    optimizer
        Name of the optimizer: "sgd", "momentum", "rmsprop", "adagrad", "lars", "adam" or "adamw", in any case.
    device
        Chip, or its name in ``tpunb.analysis.DEVICES``.

    >>> round(weight_update_ps(25_600_000, "LARS", "TPU v3") / 1e9, 2)  # ResNet-50, in milliseconds
    1.59
    """
    chip = device_named(device) if isinstance(device, str) else device
    passes = _PASSES.get(optimizer.casefold())
    return None if passes is None else 4 * weights * passes / (chip.bandwidth / chip.cores) * 1e12


def scale_metrics(metrics: pl.DataFrame, phases: Phases, roof: Roofline | None = None) -> pl.DataFrame:
    """Return the metrics of phases with those of many devices; null if unknown.

    ``devices`` busy in a step of the phase, and ``train_devices``, the most in a phase of training steps; ``replicas``,
    the devices that all-reduce; ``update``, share of step time in the weight update, and ``update_source``:
    "measured" with a roofline if raw events were kept, else "modelled"; with a roofline ``intensity``, ``ridge``
    (FLOP/byte) and ``device_batch``, examples of a step per device.
    """
    steps, train = phases.steps, pl.col("main") == "train"
    used = _used_devices(steps).join(phases.labelled.select("host", "step", "phase"), on=["host", "step"])
    used = used.group_by("phase").agg(pl.col("devices").median().cast(pl.Int64), pl.col("reduces").all())
    weights, optimizer, batch = (steps.metadata.get(name, "") for name in ("weights", "optimizer", "batch"))
    chip = device_of(steps)
    update_ps = weight_update_ps(int(weights), optimizer, chip) if weights.isdecimal() and chip else None
    modelled = pl.when(train).then(pl.lit(update_ps, pl.Float64) / pl.col("step_ps"))
    metrics = metrics.join(used, on="phase", how="left", maintain_order="left").with_columns(
        train_devices=pl.col("devices").filter(train).max(),
        replicas=pl.when("reduces").then("devices"),
        update=pl.when(modelled < 1).then(modelled),
        update_source=pl.when(modelled < 1).then(pl.lit("modelled")),
        device_batch=pl.lit(float(batch) if batch.isdecimal() else None, pl.Float64) / pl.col("devices"),
        **dict.fromkeys(("intensity", "ridge"), pl.lit(None, pl.Float64)),
    )
    if roof is None:
        return metrics
    ridge = pl.lit(None, pl.Float64)
    if roof.device is not None:
        peak = pl.col("dtype").replace_strict(dict(roof.device.peaks), default=roof.device.peak_flops)
        ridge = peak / roof.device.bandwidth
    by_name = roof.frame.select("intensity", name="what", ridge=ridge)
    metrics = metrics.drop("intensity", "ridge").join(by_name, on="name", how="left", maintain_order="left")
    if steps.read_layers is None or not steps.layers["part"].count():
        return metrics
    is_update = pl.col("self_ps").filter(pl.col("part") == "update")
    parts = steps.layers.filter(pl.col("side") == "device").join(phases.labelled, on=["host", "step"])
    parts = parts.group_by("phase").agg(measured=is_update.sum() / pl.col("self_ps").sum())
    metrics = metrics.join(parts, on="phase", how="left", maintain_order="left")
    measured = pl.col("measured") * pl.col("busy")
    source = pl.when(measured.is_null()).then("update_source").otherwise(pl.lit("measured"))
    return metrics.with_columns(update=pl.coalesce(measured, "update"), update_source=source)


@memoised
def _used_devices(steps: Steps) -> pl.DataFrame:
    """Return (host, step, devices, reduces) of full steps: devices in use, and whether they only all-reduce."""
    full = steps.full()
    used = full.devices.filter(pl.col("device_ps") > 0).group_by("step")
    rows = full.frame.select("host", "step").join(used.agg(devices=pl.struct("host", "device").n_unique()), on="step")
    text = pl.concat_str(pl.col("op", "category").cast(pl.String), separator=" ", ignore_nulls=True)
    ops = distinct_ops(full).filter(pl.col("side") == "device").with_columns(text=text)
    reducing, scattering = (
        of_ops(full, ops.filter(pl.col("text").str.contains(pattern)), ["host", "step"])
        .select("host", "step", pl.lit(value=True).alias(name))
        .unique()
        for name, pattern in (("reduces", _REDUCE), ("scatters", _SCATTER))
    )
    rows = rows.join(reducing, on=["host", "step"], how="left").join(scattering, on=["host", "step"], how="left")
    return rows.with_columns(reduces=pl.col("reduces").fill_null(False) & pl.col("scatters").is_null())
