"""Number the steps of a run whose windows are reduced one by one: on writing by window, on reading over all of them.

Annotated steps keep the numbers of the program; steps inferred from repetition are numbered down from -1 on disk, since
the host may annotate other steps later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import polars as pl

from tpunb import schema
from tpunb.frames.steps import RunEvents
from tpunb.step_stats.recorded_steps import steps_of

Tables = Mapping[str, pl.DataFrame]
Change = Callable[[pl.DataFrame], pl.DataFrame]

_KEY = ["host", "step"]
_MEASURED = ("input_ps", "callbacks_ps", "dispatch_ps", "peers_ps")
_MICROSECOND = 1_000_000

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


def judged_again(
    ticks: pl.DataFrame, run: RunEvents, until: int | None = None
) -> tuple[pl.DataFrame, pl.DataFrame | None]:
    """Return the rows of ``TICKS`` of `steps_of`, and (host, step, to) of the recorded ones that are still steps.

    The second is None if all are, and none has another number. What was measured in a recorded step is of the loaded
    step that it is in the midst of. Times that differ by less than a microsecond, which events lack, are as recorded;
    likewise those of runs of an earlier version, whose events do not say when work was done.
    """
    sums = [pl.when(pl.col(name).count() > 0).then(pl.col(name).sum()).name.keep() for name in _MEASURED]
    recorded = ticks.select("host", "step", "found_by", *_MEASURED, from_ps="start_ps", until_ps="end_ps")
    if recorded["step"].is_duplicated().any():
        ends = pl.col("from_ps").min(), pl.col("until_ps").max()
        recorded = recorded.group_by(_KEY, maintain_order=True).agg(pl.col("found_by").first(), *ends, *sums)
    columns: schema.Schema = {"to": pl.Int64(), "kind": pl.String(), "rule": pl.String()}
    columns |= dict.fromkeys(("start_ps", "end_ps", "waited_ps", "samples", "tokens"), pl.Int64())
    steps = steps_of(run, until)
    rows = [
        (step.number, step.kind, step.rule, step.start, step.end, step.input, *(step.size or (None, None)))
        for step in steps
    ]
    loaded = pl.DataFrame(rows, columns, orient="row")
    moved = None
    if recorded["step"].equals(loaded["to"]) and recorded["found_by"].equals(loaded["rule"]):
        loaded = loaded.hstack(recorded.with_columns(same=pl.lit(value=True)))
    else:
        moved = _moved(recorded, loaded)
        times, alone = pl.col("from_ps", "until_ps").filter("same").first(), pl.col("same").all() & (pl.len() == 1)
        measured = moved.group_by("to").agg(times, *sums, same=alone)
        loaded = loaded.join(measured, on="to", how="left", maintain_order="left")
        moved = moved.filter("same").unique("to").select(*_KEY, "to")
    has_ends = run.events.filter(pl.col("event") == "done")["end_of"].null_count() == 0
    same = [
        (pl.col(name) - pl.col(by)).abs().lt(_MICROSECOND) if has_ends else pl.col(name).is_not_null()
        for name, by in (("from_ps", "start_ps"), ("until_ps", "end_ps"))
    ]
    found = loaded.select(
        host=pl.lit(run.events["host"][0]),
        step="to",
        kind="kind",
        start_ps=pl.when(same[0]).then("from_ps").otherwise("start_ps"),
        end_ps=pl.when(same[1]).then("until_ps").otherwise("end_ps"),
        input_ps=pl.when("same").then("input_ps").otherwise("waited_ps"),
        callbacks_ps="callbacks_ps",
        dispatch_ps="dispatch_ps",
        found_by="rule",
        peers_ps="peers_ps",
        samples="samples",
        tokens="tokens",
    )
    return found, moved


def _moved(recorded: pl.DataFrame, loaded: pl.DataFrame) -> pl.DataFrame:
    """Return the recorded steps that are in the midst of a loaded one, with its number, and whether it is the same."""
    middle = (pl.col("start_ps") + pl.col("end_ps")) // 2
    loaded = loaded.select("to", "start_ps", "end_ps", middle_ps=middle).sort("start_ps")
    at = (pl.col("from_ps") + pl.col("until_ps")) // 2
    moved = recorded.with_columns(at_ps=at).sort("at_ps").join_asof(loaded, left_on="at_ps", right_on="start_ps")
    moved = moved.filter(pl.col("at_ps") <= pl.col("end_ps"))
    middles = loaded["middle_ps"].sort()
    within = middles.search_sorted(moved["until_ps"], "right") - middles.search_sorted(moved["from_ps"], "left")
    return moved.with_columns(same=(within == 1) & pl.col("middle_ps").is_between("from_ps", "until_ps"))


def numbered(tables: Tables, *, is_over: bool = False) -> tuple[Tables, list[Change]]:
    """Return the tables of a run with the final numbers of its steps, and what did it to each table with steps.

    Of a run that `is_over`, the clock has every step: one that was open during a window was none, such as that in which
    the end of the data was found. Inferred steps are dropped for hosts with annotated ones; steps of tuning in the
    midst of a fit are an account.
    """
    done = list[Change]()
    for rule in (_inferred, partial(_phantoms, is_over=is_over), _tuning):
        changes = rule(tables)
        for change in changes:
            tables = {name: change(frame) if "step" in frame.columns else frame for name, frame in tables.items()}
        done += changes
    return tables, done


def _tuning(tables: Tables) -> list[Change]:
    end_ps = pl.col("start_ps") + pl.col("dur_ps")
    spans = tables["spans"].filter(account="tuning").select("host", "start_ps", end_ps=end_ps)
    if spans.is_empty():
        return []
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
        return []
    return [
        lambda frame: (
            frame.join(dropped.select(_KEY), on=_KEY, how="anti")
            .sort("step")
            .join_asof(dropped, on="step", by="host", check_sortedness=False)
            .with_columns(step=pl.col("step") - pl.col("before").fill_null(0))
            .drop("before")
        )
    ]


def _inferred(tables: Tables) -> list[Change]:
    keys = [tables[name].select(_KEY) for name in ("steps", "ticks")]
    inferred = pl.col("step") < 0
    if all(key.filter(inferred).is_empty() for key in keys):
        return []
    annotated = pl.concat(keys).filter(~inferred)["host"].unique().implode()
    number = pl.when(inferred).then(-1 - pl.col("step")).otherwise("step")
    dropped = inferred & pl.col("host").is_in(annotated)
    return [lambda frame: frame.filter(~dropped).with_columns(step=number)]


def _phantoms(tables: Tables, *, is_over: bool) -> list[Change]:
    """Leave out steps that were open during a window, and became a part of the step before or of none."""
    clocked = tables["ticks"].select(*_KEY, "start_ps")
    steps = tables["steps"].select(*_KEY, "start_ps", "traced", "rule")
    unknown = steps.filter(~of_steps(steps, clocked))
    if unknown.is_empty():
        return []
    last = clocked.group_by("host").agg(last=pl.col("step").max())
    open_ones = unknown.filter(traced="partial", rule="clock").join(last, on="host")
    dropped = open_ones.filter(pl.lit(is_over) | (pl.col("step") < pl.col("last"))).select(_KEY)
    before = clocked.select("host", "start_ps", step=pl.col("step") + 1, to="step")
    moved = unknown.join(before, on=[*_KEY, "start_ps"]).select(*_KEY, "to").unique(_KEY)
    dropped = dropped.join(moved, on=_KEY, how="anti")
    if dropped.is_empty() and moved.is_empty():
        return []
    step = pl.coalesce("to", "step")
    return [
        lambda frame: frame.join(dropped, on=_KEY, how="anti"),
        lambda frame: frame.join(moved, on=_KEY, how="left").with_columns(step=step).drop("to"),
    ]


def of_steps(rows: pl.DataFrame, steps: pl.DataFrame) -> pl.Series:
    """Return which rows are of some steps."""
    if one_host(rows, steps):
        return rows["step"].is_in(steps["step"].implode())
    chosen = steps.select(_KEY).unique().with_columns(found=True)
    found = rows.select(_KEY).join(chosen, on=_KEY, how="left", maintain_order="left")["found"]
    return found.fill_null(value=False)


def one_host(*frames: pl.DataFrame) -> bool:
    """Return whether the number of a step says which it is: a join of a long run by two keys takes seconds."""
    return len({host for frame in frames for host in frame["host"].unique()}) <= 1
