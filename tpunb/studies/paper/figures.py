"""Utilisation of devices as a frame: Figures 10 and 11 of the paper, of whole runs."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from tpunb.studies.paper.recordings import RecordedRun

_HOW = {"value": pl.Float64(), "how": pl.String()}
_Figure = tuple[float | None, str, str]
_IDLE = "share of the time in which the device computes nothing"
_INPUT = "share of the time in which the step waits for its input; the CPU has no device of its own"
_COUNTED = "share of the matrix unit's peak, by hardware counters"
_PROFILED = "operations in the profile by the device's peak"
_COMPILED = "operations of the compiled program by the measured peak of its core"
_MODEL = "matrix operations of the program by this machine's measured peak on matrices"


def utilisation(runs: Iterable[RecordedRun]) -> pl.DataFrame:
    """Return idle time and matrix unit utilisation of each run.

    Only steps traced in full count. A CPU has no device apart from the host, except at a balance: its idle time is the
    time in which a step waits for its input, which is measured; its matrix unit is modelled, by the operations of the
    program (`tpunb.studies.paper.workloads.cost`) and the machine's own peak.

    Parameters
    ----------
    runs
        Runs as `tpunb.studies.paper.recorded` reads them.

    Returns
    -------
    DataFrame
        One row per run and measure: ``run``, the name of its workload; ``measure``, "idle" or "mxu"; ``value``, a share
        from 0 to 1, null if unknown; ``how``, "measured" or "modelled"; ``what``, its definition.
    """
    rows = [
        (run.workload.name, measure, *figure)
        for run in runs
        for measure, figure in (("idle", _idle(run)), ("mxu", mxu(run)))
    ]
    names = {"run": pl.String(), "measure": pl.String()}
    return pl.DataFrame(rows, schema=names | _HOW | {"what": pl.String()}, orient="row")


def _idle(run: RecordedRun) -> _Figure:
    for column, what in (("idle_ps", _IDLE), ("input_ps", _INPUT)):
        if (share := _mean(run, pl.col(column) / pl.col("dur_ps"))) is not None:
            return share, "measured", what
    return None, "measured", _IDLE


def mxu(run: RecordedRun) -> _Figure:
    """Return the utilisation of the matrix unit, how it is known, and its definition."""
    for column, what in (("mxu_util", _COUNTED), ("flops_util", _PROFILED)):
        if (share := _mean(run, pl.col(column))) is not None:
            return share, "measured", what
    costs, core = {kind: cost.flops for kind, cost in run.costs.items()}, run.steps.device
    peak = core.peak_flops if core else run.metadata.get("matrix_flops")
    how, what = ("measured", _COMPILED) if core else ("modelled", _MODEL)
    if not costs or not peak:
        return None, how, what
    flops = pl.col("kind").replace_strict(costs, default=0.0, return_dtype=pl.Float64)
    return _mean(run, flops / (pl.col("dur_ps") / 1e12) / float(peak)), how, what


def _mean(run: RecordedRun, share: pl.Expr) -> float | None:
    """Return the time-weighted mean over the steps where it is known."""
    rows = run.steps.full().frame.select(share=share, dur_ps=pl.col("dur_ps").cast(pl.Float64)).drop_nulls()
    total = float(rows["dur_ps"].sum())
    return float((rows["share"] * rows["dur_ps"]).sum()) / total if total else None
