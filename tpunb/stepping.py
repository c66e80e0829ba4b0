"""Events in, steps out: the one reduction of the house.

A capture applies it window by window and stores the result; :func:`steps` applies it to the events of a raw profile,
or hands on what was stored. Where the steps lie is told by :mod:`tpunb.step_rules`, or by a rule of the caller's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import polars as pl

from tpunb import op_names, operations, schema, step_facts, step_rules
from tpunb.errors import BadProfile, NoSteps
from tpunb.frames import Profile, Steps
from tpunb.frames.words import kinds

StepRule = Callable[[Profile], pl.DataFrame]
"""A caller's rule: a profile in, one row a (host, step) out: ``start_ps``, ``dur_ps`` (and ``mark``, ``seen``)."""


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
        if profile.read_events is None:
            return profile.stored
        return replace(profile.stored, read_layers=partial(_layers_of_run, profile, profile.stored))
    events = profile.events
    if by is None:
        intervals, _ = step_rules.find(events)
        if intervals.is_empty():
            raise _no_steps(profile)
    else:
        intervals = _from_rule(by(profile), by)
        if intervals.is_empty():
            raise NoSteps(f"{profile.name} holds no steps by the rule {by!r}")
    found = reduce(events, intervals, profile.hardware)
    return replace(
        found,
        windows=profile.windows,
        name=profile.name,
        read_layers=partial(_layers, events, intervals),
        about={"device kind": kind} if (kind := kinds(profile.hardware)) else {},
    )


def _no_steps(profile: Profile) -> NoSteps:
    failures = profile.windows["error"].drop_nulls()
    if profile.windows.height and failures.len() == profile.windows.height:
        return NoSteps(
            f"{profile.name} holds no steps: all {failures.len()} windows failed, the first with {failures[0]!r}",
            hint="end whatever else profiles this program, and capture again",
        )
    marks = "`with run.step(i):` or `for batch in run.steps(data):` in the captured block (Keras marks its own)"
    if profile.stored is None:
        marks = (
            "jax.profiler.StepTraceAnnotation or tf.profiler.experimental.Trace, each with step_num, and record again"
        )
    return NoSteps(
        f"{profile.name} holds no steps: no event carries step_num, no device has a Steps line, "
        "no module ran twice and no compiled function was called twice",
        hint=f"mark them: {marks}; or give tp.steps(profile, by=rule) a rule, "
        "a function of the profile to one row a step with host, step, start_ps and dur_ps",
    )


_RULED = {name: schema.STEPS[name] for name in ("host", "step", "start_ps", "dur_ps", "mark", "seen")}


def _from_rule(rows: pl.DataFrame | pl.LazyFrame, rule: StepRule) -> pl.DataFrame:
    """Return the intervals of the steps that a rule gave; where two overlap, the earlier ends as the next begins."""
    rows = rows.collect() if isinstance(rows, pl.LazyFrame) else rows
    if not isinstance(rows, pl.DataFrame):
        raise BadProfile(f"the step rule {rule!r} gave a {type(rows).__name__}, not a frame")
    missing = [name for name in _RULED if name not in (*rows.columns, "mark", "seen")]
    if missing:
        raise BadProfile(f"the step rule {rule!r} gave no {missing}; it gave {rows.columns}")
    told = {"mark": "rule", "seen": "full"}
    rows = rows.with_columns(**{name: pl.lit(word) for name, word in told.items() if name not in rows.columns})
    rows = schema.check(rows, _RULED, "steps")
    wrong = {
        "a null": rows.select(pl.any_horizontal(pl.all().is_null())).to_series(),
        "a step below 0 ps": rows["dur_ps"] < 0,
        "one step twice": rows.select("host", "step").is_duplicated(),
    }
    for what, where in wrong.items():
        if where.any():
            raise BadProfile(f"the step rule {rule!r} gave {what}: {rows.filter(where).row(0)}")
    columns = {"plane": pl.lit(None, pl.String), "end_ps": pl.col("start_ps") + pl.col("dur_ps")}
    return step_rules.apart(schema.check(rows.with_columns(**columns), step_rules.INTERVALS, "intervals"))


def reduce(events: pl.DataFrame, intervals: pl.DataFrame, hardware: pl.DataFrame | None = None) -> Steps:
    """Reduce events to one row a (host, step) and one a (host, step, op, side).

    An operation belongs to the step in whose interval it starts: its device's own, else its host's. Self time is by a
    sweep over the nested events of a line; device time is the union of a device's operations.

    Parameters
    ----------
    events
        ``tpunb.schema.EVENTS``.
    intervals
        From :func:`tpunb.step_rules.find` or :func:`tpunb.step_rules.from_clock`.
    hardware
        ``tpunb.schema.HARDWARE``, for the peaks that utilisation is measured by.
    """
    ops, places = operations.assign(operations.find(events), intervals)
    on_device = pl.col("side") == "device"
    peaks = schema.empty(schema.HARDWARE) if hardware is None else hardware
    devices = step_facts.of_devices(ops.filter(on_device), places, peaks)
    by_step = ["host", "step"]
    # where devices have intervals of their own, they are the step: the host may have gone on long before
    length, own = pl.col("end_ps") - pl.col("start_ps"), pl.col("plane").is_not_null()
    frame = intervals.group_by(by_step).agg(
        pl.col("mark").sort_by("start_ps").first(),
        pl.when(own.any())
        .then(pl.col("start_ps").filter(own).min())
        .otherwise(pl.col("start_ps").min())
        .alias("start_ps"),
        pl.when(own.any()).then(length.filter(own).max()).otherwise(length.max()).alias("dur_ps"),
        pl.col("seen").max(),
    )
    frame = frame.join(step_facts.of_steps(devices), on=by_step, how="left")
    frame = frame.join(step_facts.of_hosts(ops.filter(~on_device), places), on=by_step, how="left")
    return Steps(frame, _table(ops, places), devices)


def _table(ops: pl.DataFrame, places: pl.DataFrame) -> pl.DataFrame:
    """Return one row a (host, step, op, side), ``tpunb.schema.OPS``."""
    times = ["count", "total_ps", "self_ps"]
    by_place = ops.group_by("at", "op", "side", "category").agg(
        pl.len().cast(pl.Int64).alias("count"), pl.col("total_ps", "self_ps").sum()
    )
    return (
        by_place.join(places.select("at", "host", "step"), on="at")
        .group_by("host", "step", "op", "side")
        .agg(pl.col("category").sort_by("self_ps", descending=True).first(), pl.col(times).sum())
    )


def _layers(events: pl.DataFrame, intervals: pl.DataFrame) -> pl.DataFrame:
    """Return one row a (host, step, side, layer, framework op, HLO instruction), ``tpunb.schema.LAYERS``."""
    ops, places = operations.assign(operations.find(events), intervals)
    words = ["side", "tf_op", "hlo_op", "op", "category"]
    sums = ["count", "total_ps", "self_ps", "flops", "bytes"]
    by_place = ops.group_by("at", *words).agg(pl.len().alias("count"), *(step_facts.total(name) for name in sums[1:]))
    layers = {op: op_names.layer(op) for op in ops["tf_op"].unique().drop_nulls().cast(pl.String)}
    layer = pl.col("tf_op").cast(pl.String).replace_strict(layers, default=None, return_dtype=pl.String)
    rows = by_place.join(places.select("at", "host", "step"), on="at").group_by("host", "step", *words)
    return (
        rows.agg(step_facts.total(name) for name in sums)
        .with_columns(layer=layer)
        .sort("host", "step", "side", "self_ps", descending=[False, False, True, True])
    )


def _layers_of_run(profile: Profile, stored: Steps) -> pl.DataFrame:
    """Return the layers of the steps that a run stored, from the raw windows it kept."""
    end_ps = pl.col("start_ps") + pl.col("dur_ps")
    seen = stored.frame.filter(pl.col("seen") != "tick")
    marked = seen.select("host", "step", "mark", "start_ps", "seen", plane=pl.lit(None, pl.String), end_ps=end_ps)
    own = stored.devices.select("host", "step", "start_ps", plane="device", end_ps=end_ps)
    own = own.join(seen.select("host", "step", "mark", "seen"), on=["host", "step"])
    intervals = [schema.check(part, step_rules.INTERVALS, "intervals") for part in (marked, own)]
    hosts = stored.frame["host"].unique()
    events = profile.events
    if hosts.len() == 1:  # the profiler may know the host by another name than the capture
        events = events.with_columns(host=pl.lit(hosts[0], schema.NAME))
    return _layers(events, pl.concat([step_rules.apart(part) for part in intervals]))
