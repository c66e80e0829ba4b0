"""Exclusive time of steps, without input wait and callbacks, and what made outliers long."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tpunb.frames.cache import memoised
from tpunb.frames.op_matrix import Ints
from tpunb.frames.steps import Steps

SLOW = "slow step"  # reason of an outlier by its duration, of a cause that the clock does not know
RARE = "operations"  # reason of an outlier by the phase method
USUAL = 1.5  # a step takes, by the median of its phase: the ratio of two paces, as in tpunb.cluster
_BESIDE = ("fit", "callbacks")  # no reasons: a method of Keras holds its steps, exclusive time excludes callbacks


def exclusive_time() -> pl.Expr:
    """Return the step time without callbacks and input wait, in picoseconds."""
    return (pl.col("dur_ps") - pl.col("callbacks_ps").fill_null(0) - input_wait()).clip(0).alias("exclusive_ps")


def clock_measures_input() -> pl.Expr:
    """Whether the clock measures the input wait of steps of this kind: those without it have none to measure."""
    return (pl.col("input_ps").is_not_null() & (pl.col("traced") == "none")).any().over("host", "kind")


def input_wait() -> pl.Expr:
    """Return the input wait in picoseconds: the mean of the kind of step where only windows measure it, else 0."""
    mean = pl.when(~clock_measures_input()).then(pl.col("input_ps").mean().over("host", "kind").round().cast(pl.Int64))
    return pl.coalesce("input_ps", mean, 0).clip(0)


def phase_medians(times: Ints, phase: Ints, kind: Ints) -> Ints:
    """Return the median exclusive time of the phase of each step; of outliers, -1, that of their kind.

    Medians are of steps that took time; kinds are numbers.
    """
    ascending = rows_by_time(times)
    of_kinds, of_phases = (group_medians(times, group, ascending)[group] for group in (kind, phase.clip(0)))
    return np.where(phase < 0, of_kinds, of_phases)


def deviates(times: Ints, medians: Ints) -> NDArray[np.bool_]:
    """Return which steps take unusually long: of those the time beyond the median of their phase is not productive."""
    return np.asarray(times > USUAL * medians)


def rows_by_time(times: Ints) -> Ints:
    """Return the rows that took time, in order of it."""
    ascending = np.argsort(times, kind="stable")
    return np.asarray(ascending[times[ascending] > 0])


def group_medians(times: Ints, group: Ints, ascending: Ints) -> Ints:
    """Return the median time of the rows in `ascending` of each group, numbered from 0; 0 without any."""
    from tpunb.frames.phase_sums import middle_values  # compiled: half a second that importing need not wait

    groups = int(group.max(initial=-1)) + 1
    middle = middle_values(group, ascending, times, np.bincount(group[ascending], minlength=groups))
    return np.asarray(middle.sum(axis=1) // 2)


def covered(intervals: pl.DataFrame, start: Ints, end: Ints) -> Ints:
    """Return how much of each [start, end] the union of the intervals covers."""
    merged = intervals.filter(pl.col("end_ps") > pl.col("start_ps")).sort("start_ps")
    begins, ends = merged["start_ps"].to_numpy().astype(np.int64), merged["end_ps"].to_numpy().astype(np.int64)
    if not len(begins):
        return np.zeros(len(start), np.int64)
    reach = np.maximum.accumulate(ends)
    begins = np.maximum(begins, np.concatenate([begins[:1], reach[:-1]]))
    ends = np.maximum(ends, begins)
    before = np.concatenate([[0], np.cumsum(ends - begins)])

    def until(time: Ints) -> Ints:
        at = np.searchsorted(begins, time, side="right") - 1
        inside = np.minimum(time, ends[at.clip(0)]) - begins[at.clip(0)]
        return np.asarray(np.where(at >= 0, before[at.clip(0)] + inside, 0), dtype=np.int64)

    return until(end) - until(start)


def stall_places(steps: pl.DataFrame, stalls: pl.DataFrame) -> pl.Series:
    """Return the place of the longest stall of each step of one host outside of callbacks, else null."""
    unit = pl.int_range(pl.len(), dtype=pl.Int64).alias("unit")
    ordered = steps.select(unit, "start_ps", "dur_ps").drop_nulls().sort("start_ps")
    longest = (
        stalls.filter(pl.col("kind").ne_missing("callbacks"))
        .drop_nulls("place")
        .sort("start_ps")
        .join_asof(ordered, on="start_ps", suffix="_step", coalesce=False)
        .filter(pl.col("start_ps") < pl.col("start_ps_step") + pl.col("dur_ps_step"))
        .sort(pl.col("dur_ps") * pl.col("share"), descending=True)
        .unique("unit", keep="first", maintain_order=True)
        .select("unit", "place")
    )
    return steps.select(unit).join(longest, on="unit", how="left", maintain_order="left")["place"]


def outlier_reasons(steps: Steps, labels: pl.Series) -> pl.Series:
    """Return why each step is an outlier, null for the steps of phases.

    The account, or garbage collection, that took half of its exclusive time or more; program startup; place of a stall.
    """
    left_by_clock = (labels >= 0).any() & (steps.frame["traced"] != "full")
    unexplained = pl.when(left_by_clock).then(pl.lit(SLOW)).otherwise(pl.lit(RARE))
    return pl.select(pl.when(labels < 0).then(pl.coalesce(_causes(steps), unexplained)).alias("reason")).to_series()


@memoised
def _causes(steps: Steps) -> pl.Series:
    """Return what took most of the exclusive time of each step, or the place of its longest stall; null if unknown."""
    causes = np.full(len(steps), None, dtype=object)
    rows = steps.frame.with_row_index("row").with_columns(exclusive_time())
    for host, part in rows.partition_by("host", as_dict=True).items():
        causes[part["row"].to_numpy()] = _causes_of_host(steps, str(host[0]), part)
    return pl.Series("reason", causes.tolist(), dtype=pl.String)


def _causes_of_host(steps: Steps, host: str, rows: pl.DataFrame) -> NDArray[np.object_]:
    names = ("start_ps", "dur_ps", "exclusive_ps", "compile_ps")
    start, dur, exclusive, compiling = (rows[name].fill_null(0).to_numpy().astype(np.int64) for name in names)
    times = {"program startup": compiling}
    causes = np.full(len(rows), None, dtype=object)
    if steps.wall is not None:
        until = (pl.col("start_ps") + pl.col("dur_ps")).alias("end_ps")
        spans = steps.wall.spans.filter(host=host).select("account", "start_ps", until)
        windows = steps.windows.filter(host=host).select(account=pl.lit("window"), start_ps="start_ps", end_ps=until)
        for (account,), part in spans.partition_by("account", as_dict=True).items():
            if account not in _BESIDE:
                # time that is excluded, or in which the step ran and was traced
                excluded = [spans.filter(account="callbacks"), *([windows] if account == "profiler" else [])]
                beside = pl.concat(excluded)
                time = covered(pl.concat([part, beside]), start, start + dur) - covered(beside, start, start + dur)
                times[str(account)] = np.maximum(times.get(str(account), 0), time)
        causes = stall_places(rows, steps.wall.stalls.filter(host=host)).to_numpy().astype(object)
    accounts, taken = np.array([*times], dtype=object), np.stack([*times.values()])
    causes = np.where(times["program startup"] > 0, "program startup", causes)
    most = taken.argmax(axis=0)
    return np.where((taken.max(axis=0) * 2 >= exclusive) & (exclusive > 0), accounts[most], causes)
