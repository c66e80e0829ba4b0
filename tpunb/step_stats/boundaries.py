"""Rules that say where a step begins and ends. The first rule that finds steps of a host wins.

1. "annotation": step annotations, host events with ``step_num`` (TensorFlow's ``Trace``, JAX's ``StepTraceAnnotation``,
   PyTorch's ``ProfilerStep#``);
2. "steps line": the ``Steps`` line of a device;
3. "module": repeated runs of the compiled module with the most device time of its host, from one run to the next;
4. "calls": repeated calls of one compiled function on the host (JAX's ``PjitFunction``), from one call to the next.

Modules and functions of a single primitive, which JAX compiles outside ``jit``, count only where there are no others.
If no rule finds a step, all :func:`modules` are, else the :func:`whole` capture. Some have a clock: :func:`from_clock`.

On a device, a step consists of the runs launched during the step of the host (:mod:`tpunb.step_stats.launches`),
however late they start; without links, of what ran during it. It lasts while its busiest stream runs it.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import polars as pl

from tpunb import schema
from tpunb.step_stats import launches
from tpunb.step_stats.launches import DEVICE

INTERVALS: schema.Schema = {
    "host": pl.String(),
    "plane": pl.String(),  # device of the interval; null: the host and all devices without intervals
    "step": pl.Int64(),
    "kind": pl.String(),
    "start_ps": pl.Int64(),
    "end_ps": pl.Int64(),
    "traced": schema.TRACED,
    "rule": schema.RULE,
    "annotation_ps": pl.Int64(),
    "recorded": pl.Boolean(),  # whether the capture holds the devices' part of the step
}
"""One row per (host, plane, step): intervals of a host and plane never overlap."""

PYTORCH_STEP = r"^ProfilerStep#([0-9]{1,18})$"
"""Name of the event that PyTorch's profiler writes for a step: its only step annotation."""

_UNMARKED = ["annotation", "optimizer", "gradients", "fetches", "calls"]  # steps that no annotation of a capture shows
_TOLERANCE_PS = 2_000_000_000  # an annotation and the step clock agree to far less than 2 ms
_LAST_NUMBER = r"(\d+)\D*$"
_CALL = r"^PjitFunction\((.+)\)$"
# names that JAX gives to one operation of jax.numpy, jax.lax or jax.random that a program calls outside jit
_PRIMITIVE = (
    r"^(jit_)?_?(abs(olute)?|add|a?cosh?|a?sinh?|a?tanh?|arange|arg(max|min|sort)|astype|(bitwise|logical)_\w+|"
    r"bitcast_convert_type|broadcast(_in_dim|_to|_arrays)?|ceil|clip|clamp|concatenate|convert_element_type|copy|"
    r"cum(sum|prod|max)|(true_|floor_)?div(ide)?|dynamic_(update_)?slice|(not_)?equal|eq|ne|[lg][et]|"
    r"(greater|less)(_equal)?|exp(m1|_?2)?|expand_dims|eye|floor|full|gather|integer_pow|iota|is(nan|inf|finite)|"
    r"linspace|log(1p|2|10)?|max(imum)?|min(imum)?|mean|moveaxis|mul(tiply)?|neg(ative)?|normal|ones|pad|permutation|"
    r"pow(er)?|psum|randint|random_\w+|ravel|reduce_\w+|rem(ainder)?|reshape|roll|round|r?sqrt|scatter(_add)?|"
    r"select(_n)?|sign|slice|split|square|squeeze|stack|std|sub(tract)?|sum|swapaxes|take|threefry\w*|tile|transpose|"
    r"uniform|unstack|var|where|zeros)$"
)


def is_primitive(function: str) -> bool:
    """Return whether a compiled function is a single primitive, by its name.

    >>> is_primitive("jit__multiply"), is_primitive("train_step")
    (True, False)
    """
    return re.match(_PRIMITIVE, function) is not None


def intervals(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows as INTERVALS: of hosts unless there is a plane, traced in full unless they say otherwise."""
    defaults = {"traced": pl.lit("full"), "recorded": pl.lit(value=True)}
    defaults |= {name: pl.lit(None, INTERVALS[name]) for name in ("plane", "rule", "annotation_ps")}
    absent = {name: value for name, value in defaults.items() if name not in rows.columns}
    return schema.check(rows.with_columns(**absent), INTERVALS, "intervals")


def from_clock(events: pl.DataFrame, ticks: pl.DataFrame, *, by_time: bool = False) -> pl.DataFrame:
    """Return the intervals of steps that the step clock recorded, as (step, kind, start_ps, end_ps), during a window.

    A step is traced in full if the window has its annotation, as profilers start late; of a loop without marks, if it
    is within the events. It is left out without any event. With `by_time`, a step is what ran during it on devices
    too, and not what was launched: its annotation may be in an earlier window.
    """
    annotated = (
        events.select("dur_ps", step="step_num", annotated_ps="start_ps")
        .join(ticks, on="step")
        .filter(pl.col("annotated_ps").is_between(pl.col("start_ps") - _TOLERANCE_PS, pl.col("end_ps")))
        .group_by("step")
        .agg(annotation_ps=pl.col("dur_ps").max())
    )
    host = str(events["host"][0]) if events.height else ""
    recorded = events.select(first=pl.col("start_ps").min(), last=_END_PS.max())
    rows = (
        ticks.group_by("step")
        .agg(
            pl.col("kind").sort_by("start_ps").first(),
            pl.col("start_ps").min(),
            pl.col("end_ps").max(),
            pl.col("found_by").first(),
        )
        .join(recorded, how="cross")
        .filter((pl.col("end_ps") > pl.col("first")) & (pl.col("start_ps") < pl.col("last")))
        .join(annotated, on="step", how="left")
    )
    within = (pl.col("start_ps") >= pl.col("first")) & (pl.col("end_ps") <= pl.col("last"))
    unmarked = pl.col("found_by").is_in(_UNMARKED) | by_time
    full = pl.col("annotation_ps").is_not_null() | (within & unmarked)
    traced = pl.when(full).then(pl.lit("full")).otherwise(pl.lit("partial"))
    rows = intervals(rows.with_columns(host=pl.lit(host), traced=traced).sort("start_ps"))
    rows = rows if by_time else with_devices(rows, events)
    return rows.with_columns(rule=pl.lit("clock", schema.RULE))


_HOST, _NAME = (pl.col(column).cast(pl.String) for column in ("host", "name"))
_END_PS = (pl.col("start_ps") + pl.col("dur_ps")).alias("end_ps")


def find(events: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """Return INTERVALS and the names of the rules that found them, "none" without steps."""
    frames, rules = [pl.DataFrame(schema=INTERVALS)], []
    for name, rule in _RULES.items():  # each for the hosts without steps so far
        if events.is_empty():
            break
        rows = rule(events)
        if rows.height:
            frames.append(intervals(rows).with_columns(rule=pl.lit(name, schema.RULE)))
            rules.append(name)
            rest = set(events["host"].unique()) - set(rows["host"])
            events = events.filter(pl.col("host").is_in(list(rest)))
    return pl.concat(frames), ", ".join(rules) or "none"


def _by_annotations(events: pl.DataFrame) -> pl.DataFrame:
    annotations = events.select("host", "plane", "name", "start_ps", "dur_ps", step="step_num").drop_nulls("step")
    annotations = annotations.filter(~on_device()).select(_HOST, "start_ps", _END_PS, "step", kind=_NAME)
    # annotations of one number that overlap are one step, annotated by several threads; others are separate steps
    key = ["host", "kind", "step"]
    annotations = annotations.sort("start_ps", "end_ps").with_columns(
        again=(pl.col("start_ps") >= pl.col("end_ps").cum_max().shift(1)).fill_null(False).cum_sum().over(key)
    )
    steps = annotations.group_by(*key, "again").agg(pl.col("start_ps").min(), pl.col("end_ps").max())
    steps = steps.with_columns(annotation_ps=pl.col("end_ps") - pl.col("start_ps"))
    numbers = _number(_count_repeats(steps.with_columns(number="step"), "host"), "host")
    return with_devices(intervals(disjoint(numbers.with_columns(plane=pl.lit(None, pl.String)))), events, numbers)


def with_devices(rows: pl.DataFrame, events: pl.DataFrame, numbers: pl.DataFrame | None = None) -> pl.DataFrame:
    """Add intervals of devices to those of hosts: from their Steps lines, else from their launches.

    `numbers` has the step of each recorded (host, number, repeat); by default each number is its step.
    """
    if not launches.any_device(events):  # quick, since a capture calls this during training
        return rows
    if numbers is None:
        numbers = rows.select("host", "step", number="step", repeat=pl.lit(0, pl.UInt32))
    key = ["host", "number", "repeat"]
    lines = _steps_lines(events).join(numbers.select(*key, "step"), on=key)
    linked, last = launches.on_devices(events, rows)
    linked = linked.join(lines.select("host", "plane"), on=["host", "plane"], how="anti")
    # the profiler may have stopped, or filled its buffer, before a device ran the steps after its last one
    lagging = linked.join(rows.select("host", "step", from_ps="start_ps"), on=["host", "step"])
    rows = rows.join(lagging.group_by("host").agg(until_ps=pl.col("from_ps").max()), on="host", how="left")
    last = last.join(lines, on="host", how="anti")  # such a line says what the device ran
    rows = rows.join(last, on=["host", "kind"], how="left", maintain_order="left")
    missing = (pl.col("start_ps") > pl.min_horizontal("until_ps", "last_ps")).fill_null(value=False)
    partial = pl.when(missing).then(pl.lit("partial", schema.TRACED)).otherwise("traced")
    rows = rows.with_columns(traced=partial, recorded=pl.col("recorded") & ~missing)
    return pl.concat([intervals(rows), *(intervals(part) for part in (lines, linked) if part.height)])


def on_device() -> pl.Expr:
    """Return which events are on the plane of a device."""
    return pl.col("plane").cat.starts_with(DEVICE)


def _number(rows: pl.DataFrame, *by: str) -> pl.DataFrame:
    """Add step numbers that keep rising where recorded ones repeat (an epoch counts from 0)."""
    place = pl.int_range(pl.len(), dtype=pl.Int64)
    rising = (place + (pl.col("number") - place).cum_max()).over(by)
    repeats = pl.col("number").is_duplicated().any().over(by)
    return rows.sort(*by, "start_ps", "number").with_columns(step=pl.when(repeats).then(rising).otherwise("number"))


def _count_repeats(rows: pl.DataFrame, *by: str) -> pl.DataFrame:
    """Count for each row the earlier rows with the same number."""
    return rows.sort(*by, "start_ps").with_columns(repeat=pl.int_range(pl.len(), dtype=pl.UInt32).over(*by, "number"))


def disjoint(rows: pl.DataFrame) -> pl.DataFrame:
    """Cut each interval where the next of its host and plane begins: intervals never overlap."""
    rows = rows.sort("host", "plane", "start_ps", "end_ps")
    following = pl.col("start_ps").shift(-1).over("host", "plane")
    return rows.with_columns(end_ps=pl.min_horizontal("end_ps", following))


def _by_steps_line(events: pl.DataFrame) -> pl.DataFrame:
    return _number(_steps_lines(events), "host", "plane")


def _steps_lines(events: pl.DataFrame) -> pl.DataFrame:
    """Return the steps on the Steps lines of devices, with the number of each and how often it was used before."""
    by = ["host", "plane"]
    from_name = _NAME.str.extract(_LAST_NUMBER).cast(pl.Int64, strict=False)
    rows = events.filter(pl.col("line") == "Steps", on_device()).select(
        pl.col(by).cast(pl.String), "start_ps", _END_PS, number=pl.coalesce("step_num", from_name), kind=pl.lit("step")
    )
    rows = rows.drop_nulls("number")
    # a step in several pieces is one step; where numbers fall, another series of steps has begun
    falls = (pl.col("number") < pl.col("number").shift()).fill_null(False)
    rows = rows.sort(*by, "start_ps").with_columns(series=falls.cum_sum().over(by))
    whole = rows.group_by(*by, "series", "number").agg(
        pl.col("kind").first(), pl.col("start_ps").min(), pl.col("end_ps").max()
    )
    return _count_repeats(disjoint(whole), *by)


def _by_modules(events: pl.DataFrame) -> pl.DataFrame:
    """Use each run of the module with the most device time of its host as a step, aligned over the devices."""
    runs = _module_runs(events)
    names = runs.group_by("host", "kind").agg(
        busy=(pl.col("end_ps") - pl.col("start_ps")).sum(), n=pl.len().over("plane").max()
    )
    rows = _aligned(runs.join(_busiest(names), on=["host", "kind"], how="semi"))
    return rows.with_columns(step=pl.col("step") - pl.col("step").min().over("host"))


def modules(events: pl.DataFrame, *, primitives: bool = True) -> pl.DataFrame:
    """Return INTERVALS: each run of any module on a device is a step of the module's kind, in order of start."""
    runs = _module_runs(events).filter(primitives | ~pl.col("kind").str.contains(_PRIMITIVE))
    runs = _aligned(runs, "kind")
    by = ["host", "kind", "step"]
    order = runs.group_by(by).agg(pl.col("start_ps").min()).sort("host", "start_ps", "kind", "step")
    order = order.select(*by, number=pl.int_range(pl.len(), dtype=pl.Int64).over("host"))
    rows = runs.join(order, on=by).with_columns(step="number", rule=pl.lit("module", schema.RULE))
    return disjoint(intervals(rows))


def whole(events: pl.DataFrame) -> pl.DataFrame:
    """Return INTERVALS: the whole capture is one step a host, from its first event to its last."""
    end_ps = pl.max_horizontal(_END_PS, pl.col("start_ps") + 1)  # an event without length may be the last
    rows = events.group_by(_HOST).agg(pl.col("start_ps").min(), end_ps=end_ps.max())
    rule = pl.lit("whole", schema.RULE)
    return intervals(rows.with_columns(step=pl.lit(0, pl.Int64), kind=pl.lit("capture"), rule=rule).sort("host"))


def _module_runs(events: pl.DataFrame) -> pl.DataFrame:
    return events.filter(pl.col("line") == "XLA Modules", on_device()).select(
        pl.col("host", "plane").cast(pl.String), "start_ps", _END_PS, kind=_NAME.str.replace(r"\(\d+\)$", "")
    )


def _busiest(functions: pl.DataFrame) -> pl.DataFrame:
    """Return the function of each host with the most time `busy` among those that ran several times, `n`."""
    trivial = pl.col("kind").str.contains(_PRIMITIVE)
    return (
        functions.filter(~trivial | trivial.all().over("host"))
        .filter(pl.col("n") > 1)
        .sort("busy", "kind", descending=[True, False])
        .unique("host", keep="first", maintain_order=True)
    )


def _aligned(runs: pl.DataFrame, *by: str) -> pl.DataFrame:
    """Give runs of a host and group one number on all devices; each lasts until the next on its device."""
    if runs.is_empty():
        return runs.with_columns(step=pl.lit(0, pl.Int64))
    aligned = []
    for _, of_host in runs.sort("host", "plane", "start_ps").group_by("host", *by, maintain_order=True):
        planes = of_host.partition_by("plane", maintain_order=True)
        reference = max(planes, key=len)["start_ps"].to_numpy()
        for plane in planes:
            shift = _shift(reference, plane["start_ps"].to_numpy())
            aligned.append(plane.with_columns(step=pl.int_range(pl.len(), dtype=pl.Int64) + shift))
    rows = pl.concat(aligned)
    following = pl.col("start_ps").shift(-1).over("host", "plane", order_by="start_ps")
    # the time between two runs is part of the earlier step
    return rows.with_columns(end_ps=pl.coalesce(following, "end_ps"))


def _by_calls(events: pl.DataFrame) -> pl.DataFrame:
    """Use each call of the compiled function with the most host time as a step."""
    calls = (
        events.lazy()
        .filter(~on_device())
        .select(_HOST, "lane", "start_ps", _END_PS, kind=_NAME.str.extract(_CALL))
        .drop_nulls("kind")
        .sort("start_ps", "end_ps", descending=[False, True])
        # the profiler records a call twice, one inside the other
        .filter(
            (pl.col("start_ps") >= pl.col("end_ps").cum_max().shift(1).over("host", "lane", "kind")).fill_null(True)
        )
        .collect()
    )
    busiest = (
        calls.group_by("host", "lane", "kind")
        .agg(busy=(pl.col("end_ps") - pl.col("start_ps")).sum(), n=pl.len())
        .pipe(_busiest)
    )
    if busiest.is_empty():
        return pl.DataFrame(schema=INTERVALS)
    rows = calls.join(busiest, on=["host", "lane", "kind"], how="semi").with_columns(
        step=pl.int_range(pl.len(), dtype=pl.Int64).over("host"),
        end_ps=pl.coalesce(pl.col("start_ps").shift(-1).over("host"), "end_ps"),
    )
    return with_devices(intervals(rows), events)


def _shift(reference: npt.NDArray[np.int64], starts: npt.NDArray[np.int64]) -> int:
    """Return the index in `reference` of the first of `starts`: a device may miss runs at the edge of a window."""
    if len(reference) == len(starts):
        return 0  # however large the skew between the devices is

    def distance(shift: int) -> tuple[float, int]:
        low, high = max(0, -shift), min(len(starts), len(reference) - shift)
        if high - low < 1:
            return (np.inf, abs(shift))
        differences = np.abs(reference[low + shift : high + shift].astype(float) - starts[low:high])
        return (float(np.median(differences)), abs(shift))

    return min(range(-2, len(reference) - len(starts) + 3), key=distance)


_RULES = {"annotation": _by_annotations, "steps line": _by_steps_line, "module": _by_modules, "calls": _by_calls}
