"""Figures of the paper as frames: utilisation (10 to 13, 15, 16), speed-ups (14) and Observation 5."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import polars as pl

from tpunb import schema
from tpunb.analysis.roofline import roofline
from tpunb.frames import Steps
from tpunb.frames.hardware import Device, device
from tpunb.workloads.recordings import NAIVE, TUNED, RecordedRun

_HOW = {"value": pl.Float64(), "how": pl.String()}
_Figure = tuple[float | None, str, str]
_IDLE = "share of the time in which the device computes nothing"
_INPUT = "share of the time in which the step waits for its input; the CPU has no device of its own"
_COUNTED = "share of the matrix unit's peak, by hardware counters"
_PROFILED = "operations in the profile by the device's peak"
_MODEL = "matrix operations of the program by this machine's measured peak on matrices"


def utilisation(runs: Iterable[RecordedRun]) -> pl.DataFrame:
    """Return idle time and matrix unit utilisation of each run (Figures 10 to 13, 15 and 16).

    Only steps traced in full count. A CPU has no device apart from the host: its idle time is the time in which a step
    waits for its input, which is measured; its matrix unit is modelled, by the operations of the program
    (`tpunb.workloads.cost`) and the machine's own peak.

    Parameters
    ----------
    runs
        Runs as `tpunb.workloads.recorded` reads them.

    Returns
    -------
    DataFrame
        One row per run and measure: ``run``, the name of its workload; ``form`` of its input pipeline, or null;
        ``measure``, "idle" or "mxu"; ``value``, a share from 0 to 1, null if unknown; ``how``, "measured" or
        "modelled"; ``what``, its definition.
    """
    rows = [
        (run.workload.name, run.form, measure, *figure)
        for run in runs
        for measure, figure in (("idle", _idle(run)), ("mxu", _mxu(run)))
    ]
    names = {"run": pl.String(), "form": pl.String(), "measure": pl.String()}
    return pl.DataFrame(rows, schema=names | _HOW | {"what": pl.String()}, orient="row")


def _idle(run: RecordedRun) -> _Figure:
    for column, what in (("idle_ps", _IDLE), ("input_ps", _INPUT)):
        if (share := _mean(run, pl.col(column) / pl.col("dur_ps"))) is not None:
            return share, "measured", what
    return None, "measured", _IDLE


def _mxu(run: RecordedRun) -> _Figure:
    for column, what in (("mxu_util", _COUNTED), ("flops_util", _PROFILED)):
        if (share := _mean(run, pl.col(column))) is not None:
            return share, "measured", what
    costs, peak = {kind: cost.flops for kind, cost in run.costs.items()}, run.metadata.get("matrix_flops")
    if not costs or not peak:
        return None, "modelled", _MODEL
    flops = pl.col("kind").replace_strict(costs, default=0.0, return_dtype=pl.Float64)
    return _mean(run, flops / (pl.col("dur_ps") / 1e12) / float(peak)), "modelled", _MODEL


def _mean(run: RecordedRun, share: pl.Expr) -> float | None:
    """Return the time-weighted mean over the steps where it is known."""
    rows = run.steps.full().frame.select(share=share, dur_ps=pl.col("dur_ps").cast(pl.Float64)).drop_nulls()
    total = float(rows["dur_ps"].sum())
    return float((rows["share"] * rows["dur_ps"]).sum()) / total if total else None


def speedups(runs: Iterable[RecordedRun]) -> pl.DataFrame:
    """Return the speed-up of steps by tuning naive input pipelines, and the time of the whole runs (Figure 14).

    Parameters
    ----------
    runs
        Runs, among them the "naive" and the "tuned" one of each workload to report.

    Returns
    -------
    DataFrame
        One row per workload with both: ``run``; ``value``, ``low`` and ``high``, the step time of the naive form by
        that of the tuned in interleaved pairs of trials, and its interval: 1 and null if nothing was changed; ``how``,
        "measured"; ``naive_s`` and ``tuned_s``, seconds of each whole training, one run each; ``tuning_s``, seconds of
        the tuning.
    """
    forms: dict[str, dict[str | None, RecordedRun]] = {}
    for run in runs:
        forms.setdefault(run.workload.name, {})[run.form] = run
    rows = []
    for name, by_form in forms.items():
        if NAIVE in by_form and TUNED in by_form:
            naive, tuned = by_form[NAIVE].metadata, by_form[TUNED].metadata
            faster = tuned["speedup"] if tuned["values"] else (1.0, None, None)
            rows.append((name, *faster, "measured", naive["seconds"], tuned["seconds"], tuned["tuning_seconds"]))
    numbers = dict.fromkeys(("value", "low", "high"), pl.Float64())
    seconds = dict.fromkeys(("naive_s", "tuned_s", "tuning_s"), pl.Float64())
    return pl.DataFrame(rows, schema={"run": pl.String(), **numbers, "how": pl.String(), **seconds}, orient="row")


def on_devices(runs: Iterable[RecordedRun], others: Iterable[str | Device]) -> pl.DataFrame:
    """Return the share of idle time of each run, measured on its own device and modelled on others (Observation 5).

    Compute time scales with the roofline of the other device (`tpunb.analysis.roofline`); waiting time stays. Of a run
    on a CPU, compute time is the time in which no step waits for its input; operations and bytes are those of its
    program (`tpunb.workloads.cost`).

    Parameters
    ----------
    runs
        Runs as `tpunb.workloads.recorded` reads them.
    others
        Names of `tpunb.analysis.DEVICES`, or devices of your own.

    Returns
    -------
    DataFrame
        One row per run and device, its own first: ``run``, the name of its workload; ``form``, "as it ran" or the name
        of the device; ``value``, the idle share from 0 to 1, null if operations are unknown; ``how``, "measured" or
        "modelled".

    Raises
    ------
    ValueError
        When there is no device of that name.
    TpunbError
        When the device of a run on an accelerator is unknown.
    """
    chips = [device(other) if isinstance(other, str) else other for other in others]
    rows: list[tuple[str, str, float | None, str]] = []
    for run in runs:
        steps, own = _with_device(run)
        rows.append((run.workload.name, "as it ran", _idle(run)[0], "measured"))
        counted = steps.full().devices.drop_nulls(["flops", "bytes"])
        idle = [None] * len(chips) if counted.is_empty() else _idle_on(replace(steps, devices=counted), own, chips)
        rows += [(run.workload.name, chip.name, share, "modelled") for chip, share in zip(chips, idle, strict=True)]
    return pl.DataFrame(rows, schema={"run": pl.String(), "form": pl.String(), **_HOW}, orient="row")


def _idle_on(steps: Steps, own: Device | None, chips: Iterable[Device]) -> list[float | None]:
    """Return the idle share of whole steps, by their work on their own device, on each of other devices."""
    measured = roofline(replace(steps, read_layers=None), "step", device=own)
    waits = int((steps.full().devices["dur_ps"] - steps.full().devices["device_ps"]).sum())
    times = [int(measured.on(chip).frame["self_ps"].sum()) for chip in chips]
    return [waits / (busy + waits) if busy + waits else None for busy in times]


def _with_device(run: RecordedRun) -> tuple[Steps, Device | None]:
    """Return steps with operations and bytes, and the device if the profile does not name it."""
    if run.steps.devices["flops"].is_not_null().any():
        return run.steps, None
    kinds, peak = run.steps.frame["kind"].cast(pl.String), run.metadata.get("matrix_flops")
    costs = pl.DataFrame(
        [(kind, cost.flops, cost.bytes) for kind, cost in run.costs.items() if peak],
        schema={"kind": pl.String, "flops": pl.Float64, "bytes": pl.Float64},
        orient="row",
    )
    frame = run.steps.frame.select("host", "step", "start_ps", "dur_ps", "input_ps").with_columns(kind=kinds)
    devices = frame.join(costs, on="kind", how="left", maintain_order="left").select(
        *("host", "step", "start_ps", "dur_ps", "flops", "bytes"),
        device=pl.lit("processor"),
        device_ps=pl.col("dur_ps") - pl.col("input_ps").clip(upper_bound=pl.col("dur_ps")),
    )
    missing = [pl.lit(None, dtype=kind).alias(name) for name, kind in schema.DEVICES.items() if name not in devices]
    machine = Device("this machine", float(peak or math.inf), math.inf, math.inf, "measured when the run was recorded")
    return replace(run.steps, devices=devices.with_columns(missing).select(*schema.DEVICES)), machine
