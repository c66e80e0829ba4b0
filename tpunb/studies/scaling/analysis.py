"""What more chips buy: runs of one training on several numbers of chips, from captures or from MLPerf's logs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tpunb import schema
from tpunb.analysis.goodput import goodput
from tpunb.cluster import phases as group
from tpunb.errors import TpunbError, check_whole, wrong_type
from tpunb.frames import Phases, Steps
from tpunb.studies.scaling import logs
from tpunb.studies.scaling.columns import SCALING_FIT, SCALING_RUNS
from tpunb.studies.scaling.scaling import KIND, Scaling, ScalingFit
from tpunb.text import plural

Run = Steps | Phases


def points(captures: Mapping[int, Run | Sequence[Run]], *, batch: int | Mapping[int, int] | None = None) -> Scaling:
    """Return captures of one training on several numbers of chips as a `Scaling`.

    The time of a step is the median over the training steps but the first, each of its slowest host. Startup is the
    program startup and preparation of ``tp.goodput``.

    Parameters
    ----------
    captures
        Steps or Phases by number of chips, or several runs of each: the interval of a fit is by their spread.
    batch
        Examples of a step over all chips, or these by number of chips; by the metadata of a run if None.

    Raises
    ------
    TypeError
        If `captures` is no mapping, or holds something else.
    ValueError
        If a number of chips or a batch is no whole number above 0.
    """
    if not isinstance(captures, Mapping):
        raise wrong_type("points", "captures", "be a mapping of chips to Steps", captures, hint="points({8: steps})")
    rows = []
    for chips, runs in captures.items():
        facts = {"chips": check_whole("points", "chips", chips, 1)}
        given = batch.get(chips) if isinstance(batch, Mapping) else batch
        for number, run in enumerate(runs if isinstance(runs, Sequence) else [runs], 1):
            if not isinstance(run, Steps | Phases):
                raise wrong_type("points", "captures", "be Steps or Phases by chips", run, hint="tp.steps(profile)")
            rows.append({**facts, "run": f"{plural(chips, 'chip')}, run {number}", **_of_capture(run, given)})
    return Scaling(pl.DataFrame(rows, schema=SCALING_RUNS))


def _of_capture(run: Run, batch: int | None) -> dict[str, Any]:
    steps = run.steps if isinstance(run, Phases) else run
    recorded = steps.metadata.get("batch", "")
    batch = int(recorded) if batch is None and recorded.isdecimal() else batch
    train = steps.frame.filter((pl.col("kind") == "train") | (pl.col("kind") != "train").all())
    times = train.group_by("step").agg(pl.col("dur_ps").max()).sort("step")["dur_ps"]
    row: dict[str, Any] = {
        "benchmark": steps.metadata.get("model", "captures"),
        "system": steps.metadata.get("device kind", ""),
        "status": "capture",
    }
    if len(times):
        row["step_ps"] = int(np.median(times[1:] if len(times) > 1 else times))
    if batch is not None:
        row["batch"] = check_whole("points", "batch", batch, 1)
        row["examples_per_s"] = batch * 1e12 / row["step_ps"] if row.get("step_ps") else None
    if steps.wall is not None:
        account = goodput(run if isinstance(run, Phases) else group(steps))
        startup = account.time_ps("program startup") + account.time_ps("preparation")
        times_ps = {"startup_minutes": startup, "evaluation_minutes": account.time_ps("evaluation")}
        times_ps["minutes"] = account.wall_ps - startup
        row |= {name: time / 60e12 for name, time in times_ps.items()}
    return row


def mlperf(folder: str | Path, *, chips: Mapping[str, int] | None = None, ruleset: str | None = None) -> Scaling:
    """Return the runs of a folder of MLPerf Training logs as a `Scaling`; requires the extra ``mlperf``.

    Throughput is from the start of a block to that of the next, because blocks overlap where one is evaluated while the
    next is trained. Chips are those of the system descriptions beside the results, not of the names of systems.

    Parameters
    ----------
    folder
        Folder of results, with logs ``<system>/<benchmark>/result_*.txt`` and ``systems/<system>.json``.
    chips
        Chips by name of a system, such as ``{"tpu-v4-16-TF": 8}``, for systems without a description.
    ruleset
        Ruleset of all logs, such as "4.0.0"; if None found for each log by the form of its lines, its folder or its
        date, and rulesets stay apart.

    Raises
    ------
    ProfileNotFound
        If there is no run.
    ValueError
        If `chips` names no system of the logs or is no whole number above 0, or `ruleset` is unknown.
    MissingExtra
        If ``mlperf-logging`` is not installed.
    """
    sizes = {name: check_whole("mlperf", f"chips[{name!r}]", count, 1) for name, count in (chips or {}).items()}
    return Scaling(*logs.read(Path(folder), sizes, ruleset))


def fit(scaling: Scaling, sizes: Sequence[int] | None = None) -> ScalingFit:
    """Return the fit of step time = serial + divided / chips (Amdahl's law) to sizes of one batch.

    The sum of squared relative errors is least. Every prediction is from other sizes: of a size that is fitted, from a
    fit without it. The interval is by Student's t with the degrees of freedom of Welch and Satterthwaite; it covers the
    spread of the runs, not that the law may not hold: see ``error``.

    Parameters
    ----------
    scaling
        Runs of one benchmark, ruleset and kind of system; select them with `Scaling.filter`.
    sizes
        Numbers of chips to fit; if None all of the batch that has most sizes.

    Raises
    ------
    TpunbError
        If the runs are of several benchmarks, rulesets or systems, or there are no two sizes of one batch.
    """
    if not isinstance(scaling, Scaling):
        raise wrong_type("fit", "scaling", "be a Scaling", scaling, hint="tp.studies.scaling.mlperf(folder)")
    if (kinds := scaling.frame.select(KIND).n_unique()) > 1:
        hint = 'scaling.filter(benchmark="resnet", ruleset="0.6.0")'
        raise TpunbError(f"a fit is of one benchmark and ruleset on one kind of system; these are {kinds}", hint=hint)
    runs = scaling.runs.filter(pl.col("status").is_in(["success", "capture"])).drop_nulls(["chips", "step_ps"])
    step = pl.col("step_ps").cast(pl.Float64)
    by_size = runs.group_by("batch", "chips").agg(step.mean(), variance=step.var() / pl.len(), runs=pl.len())
    chosen = pl.lit(value=True) if sizes is None else pl.col("chips").is_in([*sizes])
    batch = by_size.filter(chosen).group_by("batch").len().sort("len", "batch", descending=True).head(1)
    by_size = by_size.join(batch, on="batch", how="semi", nulls_equal=True).sort("chips")
    fitted = by_size.filter(chosen)
    if len(fitted) < max(2, len({*(sizes or ())})):
        among = "" if sizes is None else f" among {[*sizes]}"
        problem = f"the step time is known of {plural(len(fitted), 'size')} of one batch{among}"
        raise TpunbError(f"a fit requires all of its sizes, two or more: {problem}", hint="see scaling.frame")
    at, times = (fitted[name].to_numpy() for name in ("chips", "step_ps"))
    rest = [at != chips for chips in by_size["chips"]]
    predicted = [
        float(_weights(at[others], times[others]) @ times[others] @ [1, 1 / chips]) if others.sum() > 1 else None
        for others, chips in zip(rest, by_size["chips"], strict=True)
    ]
    frame = by_size.with_columns(predicted_ps=pl.Series(predicted, dtype=pl.Float64)).with_columns(
        pl.col("step_ps", "predicted_ps").round(),
        error=pl.col("predicted_ps") / pl.col("step_ps") - 1,
        fitted=chosen,
    )
    return ScalingFit(schema.check(frame, SCALING_FIT, "scaling_fit"), *_serial(fitted, int(frame["chips"][-1])))


def _weights(chips: np.ndarray[Any, Any], times: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return serial and divided time as linear combinations of the times."""
    weights: np.ndarray[Any, Any] = np.linalg.pinv(np.column_stack([1 / times, 1 / chips / times])) / times
    return weights


def _serial(fitted: pl.DataFrame, most: int) -> tuple[float, float, float, tuple[float, float] | None]:
    """Return serial and divided time, the serial share on `most` chips, and its interval to first order."""
    from scipy.stats import t

    chips, times, variances, runs = (fitted[name].to_numpy() for name in ("chips", "step_ps", "variance", "runs"))
    weights = _weights(chips, times)
    serial, divided = (float(each) for each in weights @ times)
    step = serial + divided / most
    parts = (np.array([divided / most, -serial / most]) / step**2 @ weights) ** 2 * variances
    if fitted["variance"].count() < len(fitted) or not parts.any():
        return serial, divided, serial / step, None
    freedom = parts.sum() ** 2 / (parts**2 / (runs - 1)).sum()
    margin = float(t.ppf(0.975, freedom) * math.sqrt(parts.sum()))
    return serial, divided, serial / step, (serial / step - margin, serial / step + margin)
