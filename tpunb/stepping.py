"""Events in, steps out: the one reduction of the house.

A capture applies it window by window and stores the result; :func:`steps` applies it to the events of a raw profile,
or hands on what was stored. Where the steps lie is told by :mod:`tpunb.step_rules`, or by a rule of the caller's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import polars as pl

from tpunb import op_names, schema, step_rules
from tpunb.errors import BadProfile, NoSteps
from tpunb.frames import Profile, Steps

StepRule = Callable[[Profile], pl.DataFrame]
"""A caller's rule: a profile in, one row a (host, step) out: ``start_ps``, ``dur_ps`` (and ``mark``, ``seen``)."""

_OP_LINES = ["XLA Ops", "TensorFlow Ops", "Framework Ops"]
"""Lines of a device that hold its operations, best first: they repeat each other, so one is counted."""


def steps(profile: Profile, by: StepRule | None = None) -> Steps:
    """Return the steps of a profile.

    Parameters
    ----------
    profile
        From ``tp.load`` or ``tp.sample``.
    by
        A rule of your own: a function of the profile that gives one row a (host, step) with ``start_ps`` and
        ``dur_ps`` in the profile's picoseconds. Needs raw events.

    Raises
    ------
    NoSteps
        When no rule finds a step; the message says which marks were looked for.
    TpunbError
        When `by` is given and the profile kept no raw events.
    """
    if by is None and profile.stored is not None:
        if len(profile.stored) == 0:
            raise _no_steps(profile)
        return profile.stored
    events = profile.events
    if by is None:
        intervals, _ = step_rules.find(events)
        if intervals.is_empty():
            raise _no_steps(profile)
    else:
        intervals = _from_rule(by(profile), by)
    return replace(reduce(events, intervals), windows=profile.windows, name=profile.name)


def _no_steps(profile: Profile) -> NoSteps:
    failures = profile.windows["error"].drop_nulls()
    if profile.windows.height and failures.len() == profile.windows.height:
        return NoSteps(
            f"{profile.name} holds no steps: all {failures.len()} windows failed, the first with {failures[0]!r}",
            hint="end whatever else profiles this program, and capture again",
        )
    return NoSteps(
        f"{profile.name} holds no steps: no event carries step_num, no device has a Steps line, no module ran twice",
        hint="mark them: `with run.step(i):` or `for batch in run.steps(data):` in the captured block "
        "(Keras marks its own), or give tp.steps(profile, by=rule) a rule",
    )


def _from_rule(rows: pl.DataFrame, rule: StepRule) -> pl.DataFrame:
    wanted = ["host", "step", "start_ps", "dur_ps"]
    missing = [name for name in wanted if name not in rows.columns]
    if missing:
        raise BadProfile(f"the step rule {rule!r} gave no {missing}; it gave {rows.columns}")
    mark = pl.col("mark") if "mark" in rows.columns else pl.lit("rule")
    seen = pl.col("seen") if "seen" in rows.columns else pl.lit("full")
    return schema.check(
        rows.select(
            "host",
            "step",
            "start_ps",
            plane=pl.lit(None, pl.String),
            mark=mark,
            end_ps=pl.col("start_ps") + pl.col("dur_ps"),
            seen=seen,
        ),
        step_rules.INTERVALS,
        "intervals",
    )


def reduce(events: pl.DataFrame, intervals: pl.DataFrame) -> Steps:
    """Reduce events to one row a (host, step) and one a (host, step, op, side).

    An operation belongs to the step in whose interval it starts. Lines that repeat each other are counted once;
    self time is by a sweep over the nested events of a line. Device time is the union of a device's operations.

    Parameters
    ----------
    events
        ``tpunb.schema.EVENTS``.
    intervals
        From :func:`tpunb.step_rules.find` or :func:`tpunb.step_rules.from_clock`.
    """
    ops = _assign(_operations(events), intervals)
    devices = _device_time(ops.filter(pl.col("side") == "device"), intervals)
    by_step = ["host", "step"]
    # a device that has its own intervals stands for the step; else the host's do
    own = pl.col("plane").is_not_null()
    frame = intervals.group_by(by_step).agg(
        pl.col("mark").sort_by("start_ps").first(),
        pl.col("start_ps").min(),
        pl.when((~own).any())
        .then((pl.col("end_ps") - pl.col("start_ps")).filter(~own).max())
        .otherwise((pl.col("end_ps") - pl.col("start_ps")).max())
        .alias("dur_ps"),
        pl.col("seen").max(),
    )
    means = devices.group_by(by_step).agg(pl.col("device_ps", "idle_ps").mean().round().cast(pl.Int64))
    table = ops.group_by(*by_step, "op", "side").agg(
        count=pl.len(), total_ps=pl.col("dur_ps").sum(), self_ps=pl.col("self_ps").sum()
    )
    return Steps(frame.join(means, on=by_step, how="left"), table, devices)


def _operations(events: pl.DataFrame) -> pl.DataFrame:
    """Return the events that count as operations: host, plane, lane, op, side, start_ps, dur_ps, self_ps."""
    lines = events.select("lane", pl.col("plane", "line").cast(pl.String)).unique()
    lanes = lines.filter(_op_lines(lines)).select(
        "lane",
        side=pl.when(pl.col("plane").str.starts_with(step_rules.DEVICE))
        .then(pl.lit("device"))
        .otherwise(pl.lit("host"))
        .cast(schema.SIDE),
    )
    rows = events.filter(pl.col("step_num").is_null()).join(lanes, on="lane")
    names = rows.select("name", "tf_op", "hlo_op", "side").unique()
    ops = [
        None if side == "host" and op_names.is_noise(name, tf_op) else op_names.canonical(name, tf_op, hlo_op)
        for name, tf_op, hlo_op, side in names.iter_rows()
    ]
    named = names.with_columns(op=pl.Series(ops, dtype=schema.NAME))
    rows = (
        rows.join(named, on=["name", "tf_op", "hlo_op", "side"], nulls_equal=True)
        .filter(pl.col("op").is_not_null())
        .select("host", "plane", "lane", "op", "side", "start_ps", "dur_ps")
        .sort(["lane", "start_ps", "dur_ps"], descending=[False, False, True])
    )
    from tpunb.self_time import self_times  # compiled: loaded when there is something to sweep

    own = self_times(rows["lane"].to_numpy(), rows["start_ps"].to_numpy(), rows["dur_ps"].to_numpy())
    return rows.with_columns(self_ps=pl.Series(own, dtype=pl.Int64))


def _op_lines(lines: pl.DataFrame) -> pl.Series:
    """Say which lines hold operations, each once: all of a host, a GPU's streams, a TPU's XLA ops."""
    rank = pl.Series(range(len(_OP_LINES)), dtype=pl.Int64)
    ranked = lines.with_columns(
        device=pl.col("plane").str.starts_with(step_rules.DEVICE),
        stream=pl.col("line").str.starts_with("Stream #"),
        rank=pl.col("line").replace_strict(pl.Series(_OP_LINES), rank, default=None),
    )
    best = ranked.with_columns(streams=pl.col("stream").any().over("plane"), best=pl.col("rank").min().over("plane"))
    return best.select(
        pl.when(~pl.col("device"))
        .then(pl.lit(True))
        .when(pl.col("streams"))
        .then(pl.col("stream"))
        .otherwise((pl.col("rank") == pl.col("best")).fill_null(False))
    ).to_series()


def _assign(ops: pl.DataFrame, intervals: pl.DataFrame) -> pl.DataFrame:
    """Give each operation the step of its device, else of its host, in whose interval it starts; drop the others."""
    ops = ops.with_columns(pl.col("host", "plane").cast(pl.String))
    own = intervals.filter(pl.col("plane").is_not_null())
    shared = intervals.filter(pl.col("plane").is_null())
    if shared.is_empty():  # the devices alone know the steps: the host's are where the first of them begins
        shared = step_rules.apart(
            own.group_by("host", "step").agg(
                pl.lit(None, pl.String).alias("plane"), pl.col("start_ps").min(), pl.col("end_ps").max()
            )
        )
    with_own = ops.join(own.select("host", "plane").unique(), on=["host", "plane"], how="semi")
    others = ops.join(own.select("host", "plane").unique(), on=["host", "plane"], how="anti")
    return pl.concat([_inside(with_own, own, by=["host", "plane"]), _inside(others, shared.drop("plane"), by=["host"])])


def _inside(ops: pl.DataFrame, intervals: pl.DataFrame, *, by: list[str]) -> pl.DataFrame:
    begun = intervals.select(*by, "step", step_start_ps="start_ps", step_end_ps="end_ps").sort("step_start_ps")
    return (
        ops.sort("start_ps")
        .join_asof(
            begun,
            left_on="start_ps",
            right_on="step_start_ps",
            by=by,
            strategy="backward",
            check_sortedness=False,
        )
        .filter(pl.col("start_ps") < pl.col("step_end_ps"))
    )


def _device_time(ops: pl.DataFrame, intervals: pl.DataFrame) -> pl.DataFrame:
    """Return busy and idle time of each device in each step: the union of its operations, cut at the step's end."""
    key = ["host", "plane", "step"]
    ops = ops.with_columns(end_ps=pl.min_horizontal(pl.col("start_ps") + pl.col("dur_ps"), "step_end_ps")).sort(
        *key, "start_ps"
    )
    covered = pl.col("end_ps").cum_max().shift(1).over(key)
    fresh = (pl.col("end_ps") - pl.max_horizontal("start_ps", covered)).clip(0)
    busy = (
        ops.with_columns(fresh_ps=fresh)
        .group_by(key)
        .agg(
            device_ps=pl.col("fresh_ps").sum(),
            start_ps=pl.col("step_start_ps").first(),
            dur_ps=(pl.col("step_end_ps") - pl.col("step_start_ps")).first(),
        )
    )
    return busy.select(
        "host",
        pl.col("plane").alias("device"),
        "step",
        "start_ps",
        "dur_ps",
        "device_ps",
        idle_ps=pl.col("dur_ps") - pl.col("device_ps"),
    ).sort("host", "device", "start_ps")
