"""Kinds of steps: what a training does in turns, such as updates of two networks, and moves of a policy that acts."""

from __future__ import annotations

import polars as pl

from tpunb.analysis.goodput import Goodput, goodput
from tpunb.frames import Phases, Steps
from tpunb.frames.cache import memoised
from tpunb.step_stats.recorded_steps import are_whole
from tpunb.step_stats.sample_places import line_of
from tpunb.step_stats.step_fold import BY_THEN, EVALUATION
from tpunb.text import cut, duration, percent, plain

KINDS = {
    "kind": pl.String(),
    "count": pl.Int64(),  # of the longest host
    "time_ps": pl.Int64(),  # mean over the hosts
    "every_ps": pl.Int64(),  # mean time from one to the next
}
MOST_KINDS = 5
"""Kinds that are listed."""
_ACTS = "a model in its mode to evaluate"
_NO_TRAINING = (EVALUATION, "predict")


@memoised
def kinds_of(phases: Phases) -> pl.DataFrame:
    """Return the kinds of steps of a run, most time first: `KINDS`; none if all that train are of one kind.

    A step is divided at the end of each update of an optimizer that gradients were taken for since the last. The time
    of a model in its mode to evaluate within steps is that of a policy that acts, if no batch is evaluated.
    """
    steps, wall = phases.steps, phases.steps.wall
    parts = steps.frame.select("host", "step", "kind", start="start_ps", end=pl.col("start_ps") + pl.col("dur_ps"))
    is_evaluation = pl.col("kind").is_in(_NO_TRAINING)
    if (updates := _updates(steps, parts.filter(~is_evaluation))) is not None:
        others = parts.join(updates, on=["host", "step"], how="anti")
        parts = pl.concat([others, updates.select(parts.columns)])
    parts = parts.sort("start").with_row_index("part").with_columns(time=pl.col("end") - pl.col("start"))
    if wall is not None and wall.span_ps > 0 and not parts.select(is_evaluation.any()).item():
        acts = goodput(phases).segments.filter(account="evaluation").drop_nulls("step").sort("start_ps")
        acts = acts.join_asof(parts, left_on="start_ps", right_on="start", by="host", check_sortedness=False)
        within = acts.group_by("part").agg(acts_ps=pl.col("dur_ps").sum())
        parts = parts.join(within, on="part", how="left").with_columns(pl.col("time") - pl.col("acts_ps").fill_null(0))
        acting = acts.with_columns(kind=pl.lit(_ACTS), start="start_ps", time="dur_ps")
        acting = acting.with_columns(end=pl.col("start") + pl.col("time"))
        parts = pl.concat([part.select("host", "kind", "start", "end", "time") for part in (parts, acting)])
    of_host = parts.group_by("host", "kind").agg(
        count=pl.len(), time_ps=pl.col("time").sum(), every_ps=(pl.col("end").max() - pl.col("start").min()) / pl.len()
    )
    found = of_host.group_by("kind").agg(
        pl.col("count").max(), pl.col("time_ps").sum() // parts["host"].n_unique(), pl.col("every_ps").mean()
    )
    several = found.filter(~is_evaluation).height > 1
    found = found.select(pl.col(name).cast(dtype) for name, dtype in KINDS.items())
    return found.sort("time_ps", "kind", descending=[True, False]).head(found.height * several)


def kinds_text(phases: Phases, run: Goodput) -> str | None:
    """Return the kinds of steps in words; None without several."""
    parts = [
        f"{cut(plain(kind), 80)} {duration(time_ps)} ({percent(time_ps / max(run.wall_ps, 1))} of run time), once in "
        f"{duration(every_ps)}"
        for kind, _, time_ps, every_ps in kinds_of(phases).head(MOST_KINDS).iter_rows()
    ]
    return f"Kinds of steps: {'; '.join(parts)}" if parts else None


def _updates(steps: Steps, parts: pl.DataFrame) -> pl.DataFrame | None:
    """Return the parts of steps that lead to an update each, by optimizer; None if one takes all gradients."""
    run = None if steps.read_run_events is None else steps.read_run_events()
    if run is None or not are_whole(run) or {*run.events["host"]} != {*parts["host"]}:  # of each rank
        return None
    events = run.events.filter(pl.col("event").is_in(["gradient", "update"])).sort("end_ps", maintain_order=True)
    gradients = (pl.col("event") == "gradient").cum_sum().over("host")
    updates = events.with_columns(gradients=gradients).filter(pl.col("event") == "update")
    updates = updates.filter(pl.col("gradients").diff().over("host").fill_null(1) > 0)  # others follow one at once
    if updates.select("host", "thread").n_unique() > updates["host"].n_unique():  # whose steps overlap
        return None
    if updates.select("host", "key").n_unique() == updates["host"].n_unique():
        return None
    done = run.events.filter(pl.col("event") == "done", pl.col("end_of").ne_missing(BY_THEN))
    done = done.select("host", end_ps="start_ps", done="end_ps").unique(["host", "end_ps"])
    updates = updates.join(done, on=["host", "end_ps"], how="left").with_columns(until=pl.coalesce("done", "end_ps"))
    updates = updates.with_columns(at=pl.col("until") - 1).sort("at")  # a step may end with its update
    steps_at = parts.with_columns(at="start").sort("at")
    within = updates.join_asof(steps_at, on="at", by="host", check_sortedness=False).filter(
        pl.col("at") < pl.col("end")
    )
    before = pl.col("until").shift().over("host", "step")
    names = {(host, number): name for host, number, _, _, name in run.names.rows()}
    places = {(host, number): line_of(*place) for host, number, *place in run.places.rows()}
    optimizers, kinds = dict[tuple[object, ...], str](), list[str]()
    for host, key, what, place in within.select("host", "key", "what", "place").iter_rows():
        at = places.get((host, place))
        name = f"{names.get((host, what), 'an optimizer')}{f' at {at}' if at else ''}"
        others = sum(kind.partition(" (")[0] == name for kind in optimizers.values())
        kinds.append(optimizers.setdefault((host, key), f"{name} ({others + 1})" if others else name))
    end = pl.when(pl.struct("host", "step").is_last_distinct()).then("end").otherwise("until")
    return within.with_columns(kind=pl.Series(kinds, dtype=pl.String), start=pl.coalesce(before, "start"), end=end)
