"""Reduce events to statistics per step.

A capture reduces window by window and :mod:`tpunb.step_stats.aggregate` merges the results; :func:`steps` reduces
the events of a raw profile, or returns what a capture stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Literal

import polars as pl

from tpunb import schema
from tpunb.errors import BadProfile, NoSteps, warn_user
from tpunb.frames import Profile, Steps
from tpunb.frames.profile import device_kinds
from tpunb.frames.steps import NO_STEPS
from tpunb.signals import STEP_TIMES_ONLY
from tpunb.step_stats import boundaries, breakdown, launches, op_names
from tpunb.step_stats.collectives import collectives, of_ops
from tpunb.step_stats.ops import assign, find, instructions, map_names, parts, place, totals, with_calls
from tpunb.text import plural

StepRule = Callable[[Profile], pl.DataFrame]
"""A rule of the caller: takes a profile, returns one row per (host, step) with ``start_ps`` and ``dur_ps``."""


def steps(profile: Profile, by: StepRule | Literal["whole", "module"] | None = None) -> Steps:
    """Return the steps of a profile: :func:`tpunb.analysis.run.steps`."""
    if by is None:
        try:
            return from_rules(profile)
        except NoSteps:
            if profile.stored is not None:
                raise
            intervals = boundaries.modules(profile.events, primitives=False)
            each = "each run of a module" if intervals.height else "the whole capture"
            if intervals.is_empty() and (intervals := _whole(profile.events)).is_empty():
                raise
        annotate = _PYTORCH if profile.events["name"].cat.starts_with("aten::").any() else _JAX_OR_TF
        annotate = _NVTX if str(profile.source).endswith(_OF_GPUS) else annotate
        problem = f"{profile.name}: no steps found, so {each} is one step"
        warn_user(f"{problem}; to see steps, record again with {annotate}", stacklevel=3)
        return _reduced(profile, [profile.events], lambda _: intervals)
    if isinstance(by, str) and by not in _NAMED_RULES:
        raise ValueError(f"The by parameter of steps must be a function, 'whole' or 'module'. Got {by!r} instead.")
    events = profile.events
    intervals = _NAMED_RULES[by](events) if isinstance(by, str) else _from_rule(by(profile), by)
    if intervals.is_empty():
        raise NoSteps(f"{profile.name} holds no steps by the rule {by!r}")
    return _reduced(profile, [events], lambda _: intervals)


def from_rules(profile: Profile) -> Steps:
    """Return the steps that a capture stored, or that a rule finds: never the whole capture. Raises NoSteps."""
    if profile.stored is not None:
        if len(profile.stored) == 0:
            raise _no_steps(profile)
        if not profile.cached_steps:  # caches of steps last as long as these
            profile.cached_steps.append(_stored(profile, profile.stored))
        return profile.cached_steps[0]
    return _reduced(profile, profile.batches(), lambda events: boundaries.find(events)[0])


def _stored(profile: Profile, stored: Steps) -> Steps:
    """Return the steps that a capture stored, with what is read from its events and raw windows."""
    if profile.read_run_events is not None:
        stored = replace(stored, read_run_events=lambda: profile.run_events)
    if profile.read_events is None:
        return stored
    return replace(
        stored,
        ops=lambda: stored.ops,  # type: ignore[arg-type]  # read on access
        source=profile.source,
        read_events=lambda: profile.events,
        read_layers=lambda: _layers(profile, _intervals_of_run(stored, profile.events)),
        read_collectives=lambda: collectives(profile, _intervals_of_run(stored, profile.events)),
    )


def _reduced(profile: Profile, batches: Iterable[pl.DataFrame], rule: Callable[[pl.DataFrame], pl.DataFrame]) -> Steps:
    """Return the steps that a rule finds in events of a few hosts at a time."""
    intervals, parts = [], []
    for events in batches:
        rows = rule(events)
        if rows.is_empty():
            continue
        intervals.append(rows)
        parts.append(reduce(events, rows, profile.hardware, _counters(profile, events)))
        del events  # before the next are decoded
    if not parts:
        raise _no_steps(profile)
    bounds = pl.concat(intervals)
    tables = {
        name: pl.concat([getattr(part, name) for part in parts]) for name in ("frame", "ops", "devices", "input_stages")
    }
    return Steps(
        **tables,
        windows=profile.windows,
        name=profile.name,
        source=profile.source,
        read_events=None if profile.read_events is None else lambda: profile.events,
        read_layers=partial(_layers, profile, bounds),
        read_collectives=partial(collectives, profile, bounds),
        lost=pl.DataFrame([*profile.skipped], schema=schema.LOST, orient="row"),
        metadata={"device kind": kind} if (kind := device_kinds(profile.hardware)) else {},
    )


def _whole(events: pl.DataFrame) -> pl.DataFrame:
    """Return the whole capture as one step of each host that has operations."""
    return boundaries.whole(events).join(find(events).select(pl.col("host").cast(pl.String)), on="host", how="semi")


def _counters(profile: Profile, events: pl.DataFrame) -> pl.DataFrame | None:
    counted = profile.read_details is not None and (events["line"] == breakdown.COUNTERS).any()
    return profile.counters if counted else None


def with_collectives(profile: Profile) -> tuple[Steps, pl.DataFrame]:
    """Return the steps that a rule finds, none if it finds none, and ``tpunb.schema.COLLECTIVES``, in one pass."""
    events, runs = profile.events, [pl.DataFrame(schema=schema.COLLECTIVES)]
    rows = boundaries.find(events)[0]
    if rows.is_empty():
        return NO_STEPS, runs[0]
    steps = reduce(
        events,
        rows,
        profile.hardware,
        _counters(profile, events),
        on_ops=lambda ops, places: runs.append(of_ops(profile, ops, places)),
    )
    return steps, runs[-1]


_NAMED_RULES = {"whole": _whole, "module": boundaries.modules}
_OF_GPUS = ".sqlite", ".db", "_results.json"  # exports of profilers of GPUs
_NVTX = 'an NVTX range around each step, such as torch.cuda.nvtx.range_push(f"step {n}")'
_JAX_OR_TF = "jax.profiler.StepTraceAnnotation or tf.profiler.experimental.Trace, each with step_num"
_PYTORCH = "torch.profiler.schedule and prof.step() after each step"


def _no_steps(profile: Profile) -> NoSteps:
    failures = profile.windows["error"].drop_nulls()
    failures = failures.filter(~failures.str.contains(STEP_TIMES_ONLY))  # no profiler has refused
    if profile.windows.height and failures.len() == profile.windows.height:
        return NoSteps(
            f"{profile.name} holds no steps: {plural(failures.len(), 'window')} failed, the first with {failures[0]!r}",
            hint="stop other profilers of this program, and capture again",
        )
    annotate = f"annotate them: {_JAX_OR_TF}, or {_PYTORCH} (PyTorch), and record again"
    if profile.stored is not None and profile.skipped:  # a job, whose events are not kept
        why = f"{plural(len(profile.skipped), 'file')} skipped, {': '.join(profile.skipped[0])}"
        return NoSteps(f"{profile.name} holds no steps: {why}", hint=f"{annotate}; or load a file alone")
    if profile.stored is not None:
        return NoSteps(
            f"{profile.name} has no steps: none was marked, and no window shows any",
            hint="mark them in the program: `with run.step(i):` or `for batch in run.batches(data):` (Keras does so)",
        )
    return NoSteps(
        f"{profile.name} holds no steps: no event has step_num, no device has a Steps line, "
        "no module ran twice and no compiled function was called twice",
        hint=f"{annotate}; or, in Python, pass a rule to tp.steps(profile, by=rule), "
        "a function of the profile that returns one row per step with host, step, start_ps and dur_ps",
    )


_RULE_COLUMNS = {name: schema.STEPS[name] for name in ("host", "step", "start_ps", "dur_ps", "kind", "traced")}


def _from_rule(rows: pl.DataFrame | pl.LazyFrame, rule: StepRule) -> pl.DataFrame:
    """Return the intervals of the steps of a rule; where two overlap, the earlier ends as the next begins."""
    rows = rows.collect() if isinstance(rows, pl.LazyFrame) else rows
    if not isinstance(rows, pl.DataFrame):
        raise BadProfile(f"the step rule {rule!r} returned a {type(rows).__name__}, not a frame")
    defaults = {"kind": "rule", "traced": "full"}
    if missing := [name for name in _RULE_COLUMNS if name not in (*rows.columns, *defaults)]:
        raise BadProfile(f"the step rule {rule!r} returned no {missing}; it returned {rows.columns}")
    rows = rows.with_columns(**{name: pl.lit(text) for name, text in defaults.items() if name not in rows.columns})
    rows = schema.check(rows, _RULE_COLUMNS, "steps")
    problems = {
        "a null": rows.select(pl.any_horizontal(pl.all().is_null())).to_series(),
        "a step below 0 ps": rows["dur_ps"] < 0,
        "one step twice": rows.select("host", "step").is_duplicated(),
    }
    for problem, where in problems.items():
        if where.any():
            raise BadProfile(f"the step rule {rule!r} returned {problem}: {rows.filter(where).row(0)}")
    rows = rows.with_columns(end_ps=pl.col("start_ps") + pl.col("dur_ps"), rule=pl.lit("caller", schema.RULE))
    return boundaries.disjoint(boundaries.intervals(rows))


def reduce(
    events: pl.DataFrame,
    intervals: pl.DataFrame,
    hardware: pl.DataFrame | None = None,
    counters: pl.DataFrame | None = None,
    *,
    on_ops: Callable[[pl.DataFrame, pl.DataFrame], None] | None = None,
) -> Steps:
    """Reduce events to one row per (host, step) and one per (host, step, op, side).

    `on_ops` receives what :func:`tpunb.step_stats.ops.assign` returns, for other statistics of the same pass.
    """
    operations, places = place(breakdown.with_kinds(find(events)), intervals)
    ops = assign(operations, places, launches.in_steps(events, intervals))
    during = parts(operations, places)
    if on_ops is not None:
        on_ops(ops, places)
    on_device = pl.col("side") == "device"
    peaks = pl.DataFrame(schema=schema.HARDWARE) if hardware is None else hardware
    by_step = ["host", "step"]
    devices = breakdown.of_devices(ops, operations, during, places, peaks)
    devices = launches.with_waits(devices, events)
    if counters is not None:
        devices = breakdown.with_counters(devices, counters)
    devices = devices.join(intervals.filter(~pl.col("recorded")), on=by_step, how="anti", maintain_order="left")
    # intervals of devices win: the host may have continued long before
    of_device = pl.col("plane").is_not_null()
    used = of_device | ~of_device.any()
    frame = intervals.group_by(by_step).agg(
        pl.col("kind").sort_by("start_ps").first(),
        pl.col("start_ps").filter(used).min(),
        dur_ps=(pl.col("end_ps") - pl.col("start_ps")).filter(used).max(),
        traced=pl.col("traced").max(),
        rule=pl.col("rule").first(),
        annotation_ps=pl.col("annotation_ps").max(),
    )
    frame = frame.join(breakdown.of_steps(devices), on=by_step, how="left")
    slowest = devices.group_by(by_step).agg(mean_ps=pl.when(pl.len() > 1).then(pl.col("dur_ps").mean().round()))
    frame = frame.join(slowest, on=by_step, how="left").with_columns(imbalance_ps=pl.col("dur_ps") - pl.col("mean_ps"))
    frame = frame.join(breakdown.of_hosts(operations, during, places), on=by_step, how="left")
    stages = breakdown.input_stages(operations.filter(~on_device))
    return Steps(frame, _ops(ops, places), devices, input_stages=stages)


def _ops(ops: pl.DataFrame, places: pl.DataFrame) -> pl.DataFrame:
    """Return one row per (host, step, op, side), ``tpunb.schema.OPS``."""
    by_place = totals(ops, ["at", "op", "side", "category"], ["total_ps", "self_ps"])
    rows = by_place.join(places.select("at", "host", "step"), on="at").group_by("host", "step", "op", "side")
    category = pl.col("category").sort_by("self_ps", descending=True).first()
    return rows.agg(category, pl.col("count", "total_ps", "self_ps").sum())


_NESTING = ["while", "conditional", "call"]  # categories whose work is that of the instructions inside


def _layers(profile: Profile, intervals: pl.DataFrame) -> pl.DataFrame:
    """Return ``tpunb.schema.LAYERS``: one row per (host, step, side, framework op, program, instruction, kernel)."""
    ops, places = place(find(profile.events), intervals)
    ops = with_calls(profile, assign(ops, places, launches.in_steps(profile.events, intervals)))
    steps = places.select("host", "step").unique().sort("host", "step").with_row_index("row")
    row = places.join(steps, on=["host", "step"], maintain_order="left")["row"]  # of each place, whose number is `at`
    kernel = pl.when(pl.col("plane").cat.starts_with("/device:GPU")).then("kernel")
    of_call = ["module", "part", "shape", "dtype"]
    names = ["side", "tf_op", "program", "hlo_op", "kernel", "op", "category", *of_call]
    rows = ops.with_columns(row=row.gather(ops["at"]), kernel=kernel)
    rows = totals(rows, ["row", *names], ["total_ps", "self_ps", "flops", "bytes"]).with_columns(runs="count")
    if rows["kernel"].count():
        # a run of an instruction can launch several kernels: the rarest counts its runs, the longest has its work
        instruction, of_kernel = ["row", "program", "hlo_op"], pl.col("kernel").is_not_null()
        longest = pl.col("total_ps").rank("ordinal", descending=True).over(instruction) == 1
        least = pl.col("count").min().over(instruction)
        rows = rows.with_columns(runs=pl.when(~of_kernel).then("count").when(longest).then(least))
    rows = rows.sort("row", "side", "self_ps", descending=[False, True, True])
    rows = rows.join(steps, on="row", maintain_order="left")
    described, key = instructions(profile, ops), ["host", "program", "hlo_op"]
    of_programs = {"fused": "tf_op", "kind": "category", "of_run": "flops", "bytes_of_run": "bytes_accessed"}
    described = described.select(*key, *of_call[1:], "source", **of_programs)
    rows = rows.join(described, on=key, how="left", nulls_equal=True, maintain_order="left", suffix="_of_program")
    rows = rows.with_columns(
        pl.coalesce("category", "kind"), *(pl.coalesce(name, f"{name}_of_program") for name in of_call[1:])
    )
    nesting = pl.col("category").is_in(_NESTING).fill_null(value=False)
    runs, profiled = pl.when(~nesting).then("runs"), pl.col("flops").is_not_null()
    counted = (pl.col("of_run") * runs).is_not_null()
    by_shape = pl.lit("shapes", pl.String)
    given = pl.any_horizontal(pl.col("kernel", "hlo_op", "tf_op").cast(pl.String).is_in([*profile.given]))
    rows = rows.with_columns(
        flops=pl.coalesce("flops", pl.col("of_run") * runs),
        bytes=pl.coalesce("bytes", pl.col("bytes_of_run") * runs),
        flops_source=pl.when(profiled & given)
        .then(pl.lit("given"))
        .when(profiled & pl.col("shape").is_not_null() & pl.col("hlo_op").is_null())
        .then(by_shape)
        .when(profiled)
        .then(pl.lit("profiler"))
        .when(counted)
        .then(pl.lit("program")),
    )
    framework = rows.select(pl.coalesce("fused", "tf_op")).to_series()
    layer, part = map_names(framework, op_names.layer), map_names(framework, op_names.part, pl.String())
    rows = rows.with_columns(
        layer=pl.coalesce("module", layer), part=pl.coalesce("part", part), tf_op=pl.coalesce("tf_op", "fused")
    )
    return rows.select(*schema.LAYERS)


def _intervals_of_run(stored: Steps, events: pl.DataFrame) -> pl.DataFrame:
    """Return the intervals of stored steps, to find them in the raw windows of their run."""
    key, host = ["host", "step", "annotation_ps"], pl.col("host").cast(pl.String)
    annotations = events.filter(pl.col("step_num").is_not_null(), ~boundaries.on_device())
    annotations = annotations.select(host, step="step_num", annotation_ps="dur_ps", at="start_ps").unique(key)
    traced = stored.frame.filter(pl.col("traced") != "none").join(annotations, on=key, how="left")
    annotated = pl.when(pl.col("at").is_not_null())  # by the time of the host, unlike the others
    times = {"start_ps": pl.coalesce("at", "start_ps"), "dur_ps": annotated.then("annotation_ps").otherwise("dur_ps")}
    traced = traced.with_columns(**times, rule=annotated.then("rule"))
    on_devices = stored.devices.select("host", "step", "start_ps", "dur_ps", plane="device")
    on_devices = on_devices.join(traced.select("host", "step", "kind", "traced"), on=["host", "step"])
    end_ps = pl.col("start_ps") + pl.col("dur_ps")
    intervals = [boundaries.intervals(rows.with_columns(end_ps=end_ps)) for rows in (traced, on_devices)]
    return pl.concat([boundaries.disjoint(rows) for rows in intervals])
