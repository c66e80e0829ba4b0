"""Goodput: every picosecond of a run in one account.

The terms are those of Google's ml-goodput-measurement (https://github.com/AI-Hypercomputer/ml-goodput-measurement),
which wants a program that logs them; here they follow from the host clock and the traced windows.
"""

from __future__ import annotations

import polars as pl

from tpunb import schema
from tpunb.analysis.account_segments import HostRun, segments
from tpunb.cluster import phases as group
from tpunb.errors import NoSteps, wrong
from tpunb.frames import Phases, Profile, Steps
from tpunb.frames.goodput import Goodput
from tpunb.frames.wall_clock import WallClock
from tpunb.step_stats.reduce import from_rules

_BY_CLOCK_ALONE = (
    *("callbacks", "checkpoint save", "checkpoint restore", "program startup", "between steps"),
    *("profiler", "tuning", "resuming"),
)
"""Accounts that only a capture of its own process knows."""


def goodput(run: Profile | Phases) -> Goodput:
    """Account for the wall time of a run: productive steps, and everything else by cause.

    Every picosecond of a host is in one account of ``tpunb.schema.ACCOUNTS``. Of a step, *own* time is its duration
    without input wait, callbacks, checkpoints and the like; the median own time of its phase is productive, what is
    beyond is the profiler's as far as that was busy, program startup if the step traced or compiled, and step time
    deviation otherwise. Input wait of steps that no clock measured is the mean of their phase.

    Parameters
    ----------
    run
        Phases of a run, or a profile, which is grouped by the default method.

    Raises
    ------
    TypeError
        If `run` is something else.

    >>> from tpunb.cluster import phases
    >>> from tpunb.testing import toy_steps
    >>> known = goodput(phases(toy_steps("aaabbb"))).frame.drop_nulls("time_ps")
    >>> known.select("account", "phase", "time_ps").rows()
    [('productive', 1, 6000000000), ('productive', 0, 3000000000)]
    """
    if isinstance(run, Phases):
        return _of_steps(run.steps, run.labels, run.steps.wall)
    if not isinstance(run, Profile):
        raise wrong("goodput", "run", "be a Profile or Phases", run, hint="tp.load(path) or tp.phases(steps)")
    wall = WallClock(run.span_ps) if run.stored is None else run.stored.wall
    try:
        steps = from_rules(run)
        labels = group(steps).labels
    except NoSteps:  # time without steps is accounted for all the same
        steps = Steps(schema.empty(schema.STEPS), schema.empty(schema.OPS)) if run.stored is None else run.stored
        labels = (steps.frame["kind"].fill_null("").rank("dense").cast(pl.Int64) - 1).alias("phase")
    return _of_steps(steps, labels, wall)


def _of_steps(steps: Steps, labels: pl.Series, wall: WallClock | None) -> Goodput:
    frame = steps.frame.with_columns(phase=labels.cast(pl.Int64))
    if wall is None:
        wall = WallClock(0)
        ends = frame.select(low=pl.col("start_ps").min(), high=(pl.col("start_ps") + pl.col("dur_ps")).max())
        low, high = (int(value or 0) for value in ends.row(0))
    else:
        low, high = 0, wall.span_ps
    hosts = sorted({*frame["host"].drop_nulls(), *wall.spans["host"].drop_nulls()}) or [""]
    pieces, notes = [], []
    for host in hosts:
        of_host = frame.filter(host=host)
        clocked = steps.wall is not None and bool(
            (of_host["traced"] != "full").any() or wall.spans["host"].is_in([host]).any()
        )
        complete = wall.complete and clocked
        run = HostRun(
            of_host,
            wall.spans.filter(host=host),
            wall.stalls.filter(host=host),
            steps.windows.filter(host=host),
            start_ps=low,
            end_ps=max(high, low),
            clocked=clocked,
            complete=complete,
        )
        pieces.append(segments(run).with_columns(host=pl.lit(host), complete=pl.lit(complete)))
        notes += _notes(host if len(hosts) > 1 else "", clocked=clocked, complete=complete)
    stretches = pl.concat(pieces)
    return Goodput(
        frame=_totals(stretches, frame, max(high - low, 0)),
        stalls=_stalls(wall.stalls),
        segments=schema.check(stretches.select(*schema.GOODPUT_SEGMENTS), schema.GOODPUT_SEGMENTS, "goodput_segments"),
        load=wall.load,
        wall_ps=max(high - low, 0),
        ideal_step_ps=_ideal(stretches, frame),
        notes=tuple(dict.fromkeys(notes)),
    )


def _notes(host: str, *, clocked: bool, complete: bool) -> list[str]:
    if complete:
        return []
    of = f" of {host}" if host else ""
    if clocked:
        return [f"the run{of} did not record callbacks, checkpoints, startup and the profiler's share"]
    return [f"the clock{of} was not recorded: time outside of traced steps is other"]


def _totals(stretches: pl.DataFrame, steps: pl.DataFrame, wall_ps: int) -> pl.DataFrame:
    """Return GOODPUT from the stretches, with a row of null for each account that a host has no record of."""
    key = ["host", "account", "phase", "detail"]
    units = stretches.group_by(*key, "unit").agg(pl.col("dur_ps").sum(), pl.col("source").last())
    rows = units.group_by(key).agg(
        time_ps=pl.col("dur_ps").sum(),
        count=pl.len().cast(pl.Int64),
        median_ps=pl.col("dur_ps").median().floor().cast(pl.Int64),
        # the least certain source
        source=pl.col("source").replace_strict({"clock": 0, "windows": 1, "estimated": 2}, return_dtype=pl.Int8).max(),
    )
    names = {0: "clock", 1: "windows", 2: "estimated"}
    rows = rows.with_columns(pl.col("source").replace_strict(names, return_dtype=pl.String))
    unknown = pl.DataFrame({"account": _BY_CLOCK_ALONE}).join(
        stretches.filter(~pl.col("complete")).select("host").unique(), how="cross"
    )
    unknown = unknown.join(rows, on=["host", "account"], how="anti")
    rows = _intervals(rows, units, steps)
    rows = pl.concat([rows, unknown], how="diagonal").with_columns(share=pl.col("time_ps") / max(wall_ps, 1))
    order = pl.col("account").replace_strict(
        {name: at for at, name in enumerate(schema.ACCOUNTS)}, return_dtype=pl.Int8
    )
    rows = rows.sort("host", order, pl.col("time_ps"), "phase", "detail", descending=[False, False, True, False, False])
    return schema.check(rows, schema.GOODPUT, "goodput")


def _intervals(rows: pl.DataFrame, units: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Add the 95 % interval of input waits that were taken from the other steps of their phase."""
    waits = steps.group_by("host", "phase").agg(
        mean=pl.col("input_ps").mean(), error=pl.col("input_ps").std() / pl.col("input_ps").count().sqrt()
    )
    guessed = (
        units.filter((pl.col("account") == "data loading") & (pl.col("source") == "estimated"))
        .group_by("host", "phase")
        .agg(n=pl.len())
        .join(waits, on=["host", "phase"])
        .select("host", "phase", pl.lit("data loading").alias("account"), off=1.96 * pl.col("error") * pl.col("n"))
    )
    off = pl.col("off").round().cast(pl.Int64)
    joined = rows.join(guessed, on=["host", "account", "phase"], how="left", nulls_equal=True)
    return joined.with_columns(low_ps=(pl.col("time_ps") - off).clip(0), high_ps=pl.col("time_ps") + off).drop("off")


def _ideal(stretches: pl.DataFrame, steps: pl.DataFrame) -> int | None:
    """Return the median own time of steps of kind "train", of all if there are none."""
    parts = ["productive", "evaluation", "step time deviation"]
    own = (
        stretches.filter(pl.col("account").is_in(parts) & pl.col("step").is_not_null())
        .group_by("host", "step")
        .agg(pl.col("dur_ps").sum())
        .join(steps.select("host", "step", "kind"), on=["host", "step"])
    )
    train = own.filter(kind="train")
    middle = (train if train.height else own)["dur_ps"].median()
    return None if middle is None else int(middle)  # type: ignore[arg-type]  # of ints


def _stalls(stalls: pl.DataFrame) -> pl.DataFrame:
    """Return GOODPUT_STALLS."""
    rows = (
        stalls.with_columns(time_ps=(pl.col("dur_ps") * pl.col("share")).round().cast(pl.Int64))
        .group_by("place", "kind")
        .agg(
            pl.col("time_ps").sum(),
            count=pl.len().cast(pl.Int64),
            median_ps=pl.col("dur_ps").median().round().cast(pl.Int64),
            locked=pl.col("locked").any(),
        )
        .sort("time_ps", "place", "kind", descending=[True, False, False])
    )
    return schema.check(rows, schema.GOODPUT_STALLS, "goodput_stalls")
