"""The program of a training step: its operations and collectives, drawn from one real capture."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from tpunb.errors import TpunbError, check_whole
from tpunb.frames import Profile, Steps
from tpunb.step_stats import op_names
from tpunb.step_stats.reduce import steps as steps_of

_ADDED = 0.05  # share of a step that added collectives take together
_TEXTS = ("name", "op", "category")


@dataclass(frozen=True, eq=False)
class StepProgram:
    """What a device runs in one step: ``name``, ``op``, ``category`` and ``dur_ps`` of `runs` and `collectives`.

    Both are in order; ``segment`` of a run is the number of the collective that follows, and the last ends the step.
    """

    runs: pl.DataFrame
    collectives: pl.DataFrame

    @property
    def step_ps(self) -> float:
        """Time of runs and collectives together in picoseconds."""
        return float(pl.concat([self.runs["dur_ps"], self.collectives["dur_ps"]]).sum())


def step_program(
    capture: Profile | Steps, *, ops: int | None = None, collectives: int | None = None, seed: int = 0
) -> StepProgram:
    """Return the step of a capture: operations with the count and the time of its mean step on one device.

    It is the step of the kind with the most time. Where a capture has no device, operations of hosts take their place,
    without input pipeline and compiler. Runs are in random order; collectives divide them evenly.

    Parameters
    ----------
    capture
        Profile, or its steps by a rule of the caller.
    ops
        Number of runs to draw, with a probability proportional to their time; all of them by default.
    collectives
        Number of collectives, by default those of the capture; missing ones are added: all-reduces, 5 % of the step.
    seed
        Seed of the order and the draw.

    Raises
    ------
    TpunbError
        If the capture has no operations, or no collectives and `collectives` is None.
    ValueError
        If `ops` or `collectives` is not an integer of 1 or more.
    """
    steps = (steps_of(capture) if isinstance(capture, Profile) else capture).full()
    every, rng, name = _runs(steps), np.random.default_rng(seed), steps.name or "the capture"
    shared, runs = (every.filter(collective=known).drop("collective") for known in (True, False))
    if runs.is_empty():
        raise TpunbError(f"{name} has no operations", hint="pass a capture with events of devices")
    if collectives is None and shared.is_empty():
        hint = "add some: step_program(capture, collectives=3)"
        raise TpunbError(f"{name} has no collectives, so nothing joins hosts that run it", hint=hint)
    n = runs.height if ops is None else check_whole("step_program", "ops", ops, 1)
    m = shared.height if collectives is None else check_whole("step_program", "collectives", collectives, 1)
    total = float(runs["dur_ps"].sum())
    weight = None if ops is None else runs["dur_ps"].to_numpy() / total
    runs = runs[rng.choice(runs.height, n, replace=runs.height < n, p=weight)]
    added = pl.DataFrame({"name": [f"all-reduce.{number}" for number in range(m - shared.height)]})
    kind, dur_ps = pl.lit("all-reduce"), _ADDED * total / max(added.height, 1)
    shared = shared.with_columns(pl.col(_TEXTS).str.replace("-(start|done)", ""))[rng.permutation(shared.height)[:m]]
    shared = pl.concat([shared, added.with_columns(op=kind, category=kind, dur_ps=dur_ps)], how="vertical_relaxed")
    return StepProgram(runs.with_columns(segment=pl.Series(np.arange(n) * m // n)), shared)


def _runs(steps: Steps) -> pl.DataFrame:
    """Return one row per run in the mean step of the main kind: name, op, category, dur_ps, collective."""
    times = steps.frame.group_by("kind").agg(pl.col("dur_ps").sum())
    chosen = steps.frame.join(times.sort("dur_ps", "kind").tail(1), on="kind", how="semi", nulls_equal=True)
    raw = steps.read_layers is not None
    name = pl.coalesce("hlo_op", "kernel", "op") if raw else pl.col("op")
    rows = (steps.layers if raw else steps.ops).join(chosen, on=["host", "step"], how="semi")
    texts = name.cast(pl.String).alias("name"), pl.col("op", "category").cast(pl.String)
    rows, n = rows.select("side", *texts, "count", "self_ps"), chosen.height
    if (rows["side"] == "device").any():
        rows, n = rows.filter(side="device"), steps.devices.join(chosen, on=["host", "step"], how="semi").height
    other = pl.col("category").is_in([op_names.PIPELINE, op_names.INPUT_WAIT, "compile"]).fill_null(value=False)
    each = rows.filter(~other, pl.col("self_ps") > 0).group_by(_TEXTS).agg(pl.col("count", "self_ps").sum() / max(n, 1))
    runs = pl.col("count").round().clip(1).cast(pl.Int64)
    kinds = [{op_names.kind(kind or ""), op_names.operation_class(op)} for kind, op in each["category", "op"].rows()]
    shared = pl.Series(["collective" in kind for kind in kinds], dtype=pl.Boolean)
    rows = each.select(*_TEXTS, dur_ps=pl.col("self_ps") / runs, collective=shared)
    return rows[np.repeat(np.arange(rows.height), each.select(runs).to_series())].sort(*_TEXTS)
