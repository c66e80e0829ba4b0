"""How idle runs would be on other devices (Observation 5): measured on their own, modelled on the others."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import polars as pl

from tpunb import schema
from tpunb.frames import Steps
from tpunb.hardware import Device
from tpunb.paper.utilisation import utilisation
from tpunb.what_if import what_if
from tpunb.workloads.recordings import Recording

OWN = "as it ran"
"""The form of what was measured."""
_SCHEMA = {"run": pl.String(), "form": pl.String(), "value": pl.Float64(), "how": pl.String()}


def on_devices(runs: Iterable[Recording], others: Iterable[str | Device]) -> pl.DataFrame:
    """Return the share of idle time of each run on its own device, and modelled on others.

    What is computed takes as much less time as the roofline of the other device says (`tpunb.what_if`); what is waited
    for takes as long as it did. Of a run on a CPU, that is the time in which no step waits for its input; operations
    and bytes are those of its program (`tpunb.workloads.cost`).

    Parameters
    ----------
    runs
        As `tpunb.workloads.recorded` reads them.
    others
        Names of `tpunb.hardware.DEVICES`, or devices of your own.

    Returns
    -------
    DataFrame
        One row a run and device, its own first: ``run``, the name of its workload; ``form``, "as it ran" or the name of
        the device; ``value``, the idle share from 0 to 1, null where operations are not known; ``how``, "measured" or
        "modelled".

    Raises
    ------
    ValueError
        When no device is called so.
    TpunbError
        When a run on an accelerator does not tell which it was.
    """
    others = [*others]
    rows: list[tuple[str, str, float | None, str]] = []
    for run in runs:
        steps, own = _with_device(run)
        (as_it_ran,) = utilisation([run]).filter(pl.col("measure") == "idle")["value"]
        rows.append((run.workload.name, OWN, as_it_ran, "measured"))
        for other in others:
            known = what_if(steps, other, of=own).drop_nulls("modelled_dur_ps")
            busy, whole = int(known["modelled_device_ps"].sum()), int(known["modelled_dur_ps"].sum())
            name = other if isinstance(other, str) else other.name
            rows.append((run.workload.name, name, 1 - busy / whole if whole else None, "modelled"))
    return pl.DataFrame(rows, schema=_SCHEMA, orient="row")


def _with_device(run: Recording) -> tuple[Steps, Device | None]:
    """Return steps whose devices tell operations and bytes, and the device, where the run does not tell it itself."""
    if run.steps.devices["flops"].is_not_null().any():
        return run.steps, None
    marks = run.steps.frame["mark"].cast(pl.String)
    costs = pl.DataFrame(
        [(mark, cost.flops, cost.bytes) for mark, cost in run.costs.items()],
        schema={"mark": pl.String, "flops": pl.Float64, "bytes": pl.Float64},
        orient="row",
    )
    told = run.steps.frame.select("host", "step", "start_ps", "dur_ps", "input_ps").with_columns(mark=marks)
    devices = told.join(costs, on="mark", how="left", maintain_order="left").select(
        *("host", "step", "start_ps", "dur_ps", "flops", "bytes"),
        device=pl.lit("processor"),
        device_ps=pl.col("dur_ps") - pl.col("input_ps").clip(upper_bound=pl.col("dur_ps")),
    )
    missing = [pl.lit(None, dtype=kind).alias(name) for name, kind in schema.DEVICES.items() if name not in devices]
    peak = float(run.about.get("matrix_flops", math.nan))
    machine = Device("this machine", peak, math.inf, math.inf, "measured when the run was recorded")
    return replace(run.steps, devices=devices.with_columns(missing).select(*schema.DEVICES)), machine
