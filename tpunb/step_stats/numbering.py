"""Number the steps of a run whose windows are reduced one by one: on writing by window, on reading over all of them.

Annotated steps keep the numbers of the program; steps inferred from repetition are numbered down from -1 on disk, since
the host may annotate other steps later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import polars as pl

Tables = Mapping[str, pl.DataFrame]

_KEY = ["host", "step"]

BY_ORDER = ("module", "calls")
"""Rules that number the steps of a host by their order in its profile."""

TUNING_STEP = "tune"
"""Kind of the step as which a capture records tuning in the midst of a fit."""


class StepNumbering:
    """Number the steps of one host across windows where only its profile gives them."""

    def __init__(self) -> None:
        self._inferred = 0  # steps without annotation so far
        self._last = -1  # number of an annotated step
        self._offset = 0

    def renumber(self, intervals: pl.DataFrame, rule: str) -> pl.DataFrame:
        """Return the intervals of a window's steps with numbers unique in the run: where they fall, they continue."""
        if intervals.is_empty():
            return intervals
        first, last = intervals.select(first=pl.col("step").min(), last=pl.col("step").max()).row(0)
        if set(BY_ORDER) & set(rule.split(", ")):
            below = intervals.with_columns(step=-1 - (pl.col("step") - first + self._inferred))
            self._inferred += last - first + 1
            return below
        if first + self._offset < self._last:
            self._offset = self._last + 1 - first
        self._last = last + self._offset
        return intervals.with_columns(pl.col("step") + self._offset)


def numbered(tables: Tables) -> Tables:
    """Return the tables of a run with the final numbers of its steps.

    Inferred steps are dropped for hosts with annotated ones; steps of tuning in the midst of a fit are an account.
    """
    return _without_tuning(_without_phantom_steps(_with_inferred_steps(tables)))


def _without_tuning(tables: Tables) -> Tables:
    end_ps = pl.col("start_ps") + pl.col("dur_ps")
    spans = tables["spans"].filter(account="tuning").select("host", "start_ps", end_ps=end_ps)
    if spans.is_empty():
        return tables
    steps = tables["ticks"].filter(kind=TUNING_STEP).select(*_KEY, at_ps="start_ps")
    dropped = (
        steps.join(spans, on="host")
        .filter(pl.col("at_ps").is_between("start_ps", "end_ps"))
        .select(*_KEY)
        .unique()
        .sort("step")
        .with_columns(before=pl.int_range(1, pl.len() + 1).over("host"))
    )
    if dropped.is_empty():
        return tables
    return _changed(
        tables,
        lambda frame: (
            frame.join(dropped.select(_KEY), on=_KEY, how="anti")
            .sort("step")
            .join_asof(dropped, on="step", by="host", check_sortedness=False)
            .with_columns(step=pl.col("step") - pl.col("before").fill_null(0))
            .drop("before")
        ),
    )


def _with_inferred_steps(tables: Tables) -> Tables:
    steps = pl.concat([tables["steps"].select(_KEY), tables["ticks"].select(_KEY)])
    inferred = pl.col("step") < 0
    if steps.filter(inferred).is_empty():
        return tables
    annotated = steps.filter(~inferred)["host"].unique().implode()
    number = pl.when(inferred).then(-1 - pl.col("step")).otherwise("step")
    dropped = inferred & pl.col("host").is_in(annotated)
    return _changed(tables, lambda frame: frame.filter(~dropped).with_columns(step=number))


def _without_phantom_steps(tables: Tables) -> Tables:
    """Leave out steps that were open during a window, and became a part of the step before or of none."""
    clocked = tables["ticks"].select(*_KEY, "start_ps")
    last = clocked.group_by("host").agg(last=pl.col("step").max())
    open_ones = tables["steps"].filter(traced="partial", rule="clock").join(last, on="host")
    dropped = open_ones.filter(pl.col("step") < pl.col("last")).join(clocked, on=_KEY, how="anti").select(_KEY)
    unknown = tables["steps"].join(clocked, on=_KEY, how="anti").select(*_KEY, "start_ps")
    before = clocked.select("host", "start_ps", step=pl.col("step") + 1, to="step")
    moved = unknown.join(before, on=[*_KEY, "start_ps"]).select(*_KEY, "to").unique(_KEY)
    dropped = dropped.join(moved, on=_KEY, how="anti")
    if dropped.is_empty() and moved.is_empty():
        return tables
    step = pl.coalesce("to", "step")
    kept = _changed(tables, lambda frame: frame.join(dropped, on=_KEY, how="anti"))
    return _changed(kept, lambda frame: frame.join(moved, on=_KEY, how="left").with_columns(step=step).drop("to"))


def _changed(tables: Tables, change: Callable[[pl.DataFrame], pl.DataFrame]) -> Tables:
    """Return the tables, those with steps changed."""
    return {name: change(frame) if "step" in frame.columns else frame for name, frame in tables.items()}
