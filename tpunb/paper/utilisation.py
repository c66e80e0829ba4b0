"""How busy the devices of runs were (Figures 10 to 13, 15 and 16): measured where it was, modelled where it was not."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from tpunb.workloads.recordings import Recording

_SCHEMA = {
    "run": pl.String(),
    "form": pl.String(),
    "measure": pl.String(),  # "idle" or "mxu"
    "value": pl.Float64(),  # 0 to 1, or null where it is not known
    "how": pl.String(),  # "measured" or "modelled"
    "what": pl.String(),  # in words
}
_Found = tuple[float | None, str, str]
_IDLE = "share of the time in which the device computes nothing"
_WAITS = "share of the time in which the step waits for its input; the CPU has no device of its own"
_COUNTED = "share of the matrix unit's peak, by the hardware's count"
_TOLD = "operations that the profile tells, by the device's peak"
_MODEL = "operations of the program's matrices, by what this machine does on matrices at its best"


def utilisation(runs: Iterable[Recording]) -> pl.DataFrame:
    """Return how long the devices of each run were idle, and what share of their matrix units was used.

    Of the steps seen in full. A CPU has no device apart from the host: idle is then the time in which a step waits for
    its input, which is measured; and no matrix unit: what is used of it is modelled, by the operations of the program
    (`tpunb.workloads.cost`) and the machine's own peak.

    Parameters
    ----------
    runs
        As `tpunb.workloads.recorded` reads them.

    Returns
    -------
    DataFrame
        One row a run and measure: ``run``, the name of its workload; ``form``, of its input pipeline, or null;
        ``measure``, "idle" or "mxu"; ``value``, a share from 0 to 1, null where it is not known; ``how``, "measured" or
        "modelled"; ``what`` that is, in words.
    """
    rows = [
        (run.workload.name, run.form, measure, *found)
        for run in runs
        for measure, found in (("idle", _idle(run)), ("mxu", _mxu(run)))
    ]
    return pl.DataFrame(rows, schema=_SCHEMA, orient="row")


def _idle(run: Recording) -> _Found:
    for column, what in (("idle_ps", _IDLE), ("input_ps", _WAITS)):
        if (known := _share(run, pl.col(column) / pl.col("dur_ps"))) is not None:
            return known, "measured", what
    return None, "measured", _IDLE


def _mxu(run: Recording) -> _Found:
    for column, what in (("mxu_util", _COUNTED), ("flops_util", _TOLD)):
        if (known := _share(run, pl.col(column))) is not None:
            return known, "measured", what
    costs, peak = {mark: cost.flops for mark, cost in run.costs.items()}, run.about.get("matrix_flops")
    if not costs or not peak:
        return None, "modelled", _MODEL
    flops = pl.col("mark").replace_strict(costs, default=0.0, return_dtype=pl.Float64)
    return _share(run, flops / (pl.col("dur_ps") / 1e12) / float(peak)), "modelled", _MODEL


def _share(run: Recording, share: pl.Expr) -> float | None:
    """Return the mean over the time of the steps that know it."""
    known = run.steps.full().frame.select(share=share, dur_ps=pl.col("dur_ps").cast(pl.Float64)).drop_nulls()
    total = float(known["dur_ps"].sum())
    return float((known["share"] * known["dur_ps"]).sum()) / total if total else None
