"""Where the steps of a profile lie in time, by the first of these rules that finds any.

1. step marks: host events that carry ``step_num`` (TensorFlow's ``Trace``, JAX's ``StepTraceAnnotation``);
2. a device's ``Steps`` line;
3. repeated runs of one compiled module on a device: a step lasts from one run to the next;
4. repeated calls of one compiled function on the host (JAX's ``PjitFunction``), from one call to the next.

A capture of our own knows its steps by the clock besides: :func:`from_clock`. To the steps of a host belong, on a
device, the runs that it launched in their time (:mod:`tpunb.links`), however much later they start; where nothing
links, what ran in their time.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import polars as pl

from tpunb import links, schema
from tpunb.links import DEVICE

INTERVALS: schema.Schema = {
    "host": pl.String(),
    "plane": pl.String(),  # the device the interval holds for; null: the host and all devices without their own
    "step": pl.Int64(),
    "mark": pl.String(),
    "start_ps": pl.Int64(),
    "end_ps": pl.Int64(),
    "seen": schema.SEEN,
}
"""One row a (host, plane, step): intervals of a host and plane never overlap."""

_EDGE_PS = 2_000_000_000  # a mark and our own clock agree to far less than these 2 ms


def from_clock(events: pl.DataFrame, ticks: pl.DataFrame) -> pl.DataFrame:
    """Return the intervals of steps that our own clock noted while a window watched.

    A step is seen in full where the window holds its mark, which the profiler records only for a step that began and
    ended while it watched; a step during which the window has no event at all was not seen, and is left out: a
    profiler begins to record some milliseconds after it says so.

    Parameters
    ----------
    events
        Of the window.
    ticks
        Columns step, mark, start_ps, end_ps, in the window's own time; a step may have several rows.
    """
    marked = (
        events.filter(pl.col("step_num").is_not_null())
        .select(step="step_num", mark_ps="start_ps")
        .join(ticks, on="step")
        .filter(pl.col("mark_ps").is_between(pl.col("start_ps") - _EDGE_PS, pl.col("end_ps")))["step"]
        .unique()
    )
    host = _first_host(events)
    recorded = events.select(first=pl.col("start_ps").min(), last=(pl.col("start_ps") + pl.col("dur_ps")).max())
    rows = (
        ticks.group_by("step")
        .agg(pl.col("mark").sort_by("start_ps").first(), pl.col("start_ps").min(), pl.col("end_ps").max())
        .join(recorded, how="cross")
        .filter((pl.col("end_ps") > pl.col("first")) & (pl.col("start_ps") < pl.col("last")))
    )
    seen = pl.when(pl.col("step").is_in(marked.implode())).then(pl.lit("full")).otherwise(pl.lit("partial"))
    steps = rows.with_columns(host=pl.lit(host), plane=pl.lit(None, pl.String), seen=seen).sort("start_ps")
    return with_devices(schema.check(steps, INTERVALS, "intervals"), events)


def _first_host(events: pl.DataFrame) -> str:
    return str(events["host"][0]) if events.height else ""


def find(events: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """Return where the steps lie, and the rule that found them, "none" if no one did."""
    found, rules = [schema.empty(INTERVALS)], []
    for rule, look in _RULES.items():  # each for the hosts that none before it knew
        if events.is_empty():
            break
        rows = look(events)
        if rows.height:
            found.append(schema.check(rows, INTERVALS, "intervals"))
            rules.append(rule)
            unknown = set(events["host"].unique()) - set(rows["host"])
            events = events.filter(pl.col("host").is_in(list(unknown)))
    return pl.concat(found), ", ".join(rules) or "none"


def _by_marks(events: pl.DataFrame) -> pl.DataFrame:
    marks = (
        events.filter(pl.col("step_num").is_not_null())
        .filter(~on_device())
        .select(
            pl.col("host").cast(pl.String),
            step="step_num",
            mark=pl.col("name").cast(pl.String),
            start_ps="start_ps",
            end_ps=pl.col("start_ps") + pl.col("dur_ps"),
        )
    )
    # marks of one number that overlap are one step, marked by several threads; others are steps of their own
    key = ["host", "mark", "step"]
    marks = marks.sort("start_ps", "end_ps").with_columns(
        again=(pl.col("start_ps") >= pl.col("end_ps").cum_max().shift(1)).fill_null(False).cum_sum().over(key)
    )
    steps = marks.group_by(*key, "again").agg(pl.col("start_ps").min(), pl.col("end_ps").max())
    rows = steps.with_columns(plane=pl.lit(None, pl.String), seen=pl.lit("full", schema.SEEN)).drop("again")
    told = _numbered_on(_nth(rows.with_columns(number="step"), "host"), "host")
    return with_devices(schema.check(apart(told), INTERVALS, "intervals"), events, told)


def with_devices(rows: pl.DataFrame, events: pl.DataFrame, told: pl.DataFrame | None = None) -> pl.DataFrame:
    """Add, to the intervals of a host, those of its devices: by their own word, else by their launches.

    Parameters
    ----------
    rows
        The intervals of hosts.
    events
        Among them those of the devices.
    told
        (host, number, nth, step): which step the nth of a number is; each number is its step unless given.
    """
    if not links.any_device(events):  # a capture asks this window by window, beside the training
        return rows
    if told is None:
        told = rows.select("host", "step", number="step", nth=pl.lit(0, pl.UInt32))
    said = _said(events).join(told.select("host", "number", "nth", "step"), on=["host", "number", "nth"])
    linked = links.on_devices(events, rows).join(said.select("host", "plane"), on=["host", "plane"], how="anti")
    # of what the host began after the last step that a device was seen to work for, the window may have missed the work
    last = linked.join(rows.select("host", "step", from_ps="start_ps"), on=["host", "step"])
    rows = rows.join(last.group_by("host").agg(last_ps=pl.col("from_ps").max()), on="host", how="left").with_columns(
        seen=pl.when(pl.col("start_ps") > pl.col("last_ps")).then(pl.lit("partial", schema.SEEN)).otherwise("seen")
    )
    rows = schema.check(rows, INTERVALS, "intervals")
    return pl.concat([rows, *(schema.check(part, INTERVALS, "intervals") for part in (said, linked) if part.height)])


def on_device() -> pl.Expr:
    """Say which events lie on the plane of a device."""
    return pl.col("plane").cat.starts_with(DEVICE)


def _numbered_on(rows: pl.DataFrame, *by: str) -> pl.DataFrame:
    """Give steps whose numbers come again (an epoch counts from 0) rising ones, as a capture does."""
    place = pl.int_range(pl.len(), dtype=pl.Int64)
    rising = (place + (pl.col("number") - place).cum_max()).over(by)
    again = pl.col("number").is_duplicated().any().over(by)
    return rows.sort(*by, "start_ps", "number").with_columns(step=pl.when(again).then(rising).otherwise("number"))


def _nth(rows: pl.DataFrame, *by: str) -> pl.DataFrame:
    """Say of each row how many before it bear the same number."""
    return rows.sort(*by, "start_ps").with_columns(nth=pl.int_range(pl.len(), dtype=pl.UInt32).over(*by, "number"))


def apart(rows: pl.DataFrame) -> pl.DataFrame:
    """Cut each interval where the next of its host and plane begins: intervals never overlap."""
    rows = rows.sort("host", "plane", "start_ps", "end_ps")
    following = pl.col("start_ps").shift(-1).over("host", "plane")
    return rows.with_columns(end_ps=pl.min_horizontal("end_ps", following.fill_null(pl.col("end_ps"))))


_LAST_NUMBER = re.compile(r"(\d+)\D*$")


def _by_steps_line(events: pl.DataFrame) -> pl.DataFrame:
    return _numbered_on(_said(events), "host", "plane")


def _said(events: pl.DataFrame) -> pl.DataFrame:
    """Return the steps that devices tell of themselves, with the number of each and how many before it bore that."""
    line = events.filter(pl.col("line") == "Steps").filter(on_device())
    rows = line.select(
        pl.col("host").cast(pl.String),
        pl.col("plane").cast(pl.String),
        number=pl.coalesce(
            "step_num", pl.col("name").cast(pl.String).str.extract(_LAST_NUMBER.pattern).cast(pl.Int64, strict=False)
        ),
        mark=pl.lit("step"),
        start_ps="start_ps",
        end_ps=pl.col("start_ps") + pl.col("dur_ps"),
        seen=pl.lit("full", schema.SEEN),
    ).drop_nulls("number")
    # a step shattered on its line is one step; where numbers fall, another series of steps has begun
    by = ["host", "plane"]
    falls = (pl.col("number") < pl.col("number").shift()).fill_null(False)
    rows = rows.sort(*by, "start_ps").with_columns(series=falls.cum_sum().over(by))
    whole = rows.group_by(*by, "series", "number").agg(
        pl.col("mark").first(), pl.col("start_ps").min(), pl.col("end_ps").max(), pl.col("seen").first()
    )
    return _nth(apart(whole), *by)


def _by_modules(events: pl.DataFrame) -> pl.DataFrame:
    """Take each run of the module that takes the most time for a step, lined up over the devices."""
    runs = (
        events.filter(pl.col("line") == "XLA Modules")
        .filter(on_device())
        .select(
            pl.col("host").cast(pl.String),
            pl.col("plane").cast(pl.String),
            mark=pl.col("name").cast(pl.String).str.replace(r"\(\d+\)$", ""),
            start_ps="start_ps",
            end_ps=pl.col("start_ps") + pl.col("dur_ps"),
        )
    )
    repeated = (
        runs.group_by("mark")
        .agg(
            (pl.col("end_ps") - pl.col("start_ps")).sum().alias("busy"),
            pl.len().over("plane").max().alias("n"),
        )
        .filter(pl.col("n") > 1)
        .sort("busy", "mark", descending=[True, False])
    )
    if repeated.is_empty():
        return schema.empty(INTERVALS)
    runs = runs.filter(pl.col("mark") == repeated["mark"][0]).sort("host", "plane", "start_ps")
    lined_up = []
    for (_,), of_host in runs.group_by("host", maintain_order=True):
        planes = of_host.partition_by("plane", maintain_order=True)
        reference = max(planes, key=lambda plane: plane.height)["start_ps"].to_numpy()
        lined_up += [
            plane.with_columns(
                step=pl.int_range(pl.len(), dtype=pl.Int64) + _shift(reference, plane["start_ps"].to_numpy())
            )
            for plane in planes
        ]
    rows = pl.concat(lined_up)
    first = rows["step"].min()
    following = pl.col("start_ps").shift(-1).over("host", "plane")
    return rows.with_columns(
        step=pl.col("step") - first,
        end_ps=pl.coalesce(following, "end_ps"),  # what waits between two runs belongs to the earlier step
        seen=pl.lit("full", schema.SEEN),
    )


_CALL = r"^PjitFunction\((.+)\)$"


def _by_calls(events: pl.DataFrame) -> pl.DataFrame:
    """Take each call of the compiled function that takes the most of the host's time for a step."""
    calls = (
        events.lazy()
        .filter(~on_device())
        .select(
            pl.col("host").cast(pl.String),
            "lane",
            mark=pl.col("name").cast(pl.String).str.extract(_CALL),
            start_ps="start_ps",
            end_ps=pl.col("start_ps") + pl.col("dur_ps"),
        )
        .drop_nulls("mark")
        .sort("start_ps", "end_ps", descending=[False, True])
        # the profiler notes a call twice, one within the other
        .filter(
            (pl.col("start_ps") >= pl.col("end_ps").cum_max().shift(1).over("host", "lane", "mark")).fill_null(True)
        )
        .collect()
    )
    busiest = (
        calls.group_by("host", "lane", "mark")
        .agg((pl.col("end_ps") - pl.col("start_ps")).sum().alias("busy"), pl.len())
        .filter(pl.col("len") > 1)
        .sort("busy", "mark", descending=[True, False])
        .unique("host", keep="first", maintain_order=True)
    )
    if busiest.is_empty():
        return schema.empty(INTERVALS)
    rows = calls.join(busiest, on=["host", "lane", "mark"], how="semi").with_columns(
        step=pl.int_range(pl.len(), dtype=pl.Int64).over("host"),
        plane=pl.lit(None, pl.String),
        end_ps=pl.coalesce(pl.col("start_ps").shift(-1).over("host"), "end_ps"),
        seen=pl.lit("full", schema.SEEN),
    )
    return with_devices(schema.check(rows, INTERVALS, "intervals"), events)


def _shift(reference: npt.NDArray[np.int64], starts: npt.NDArray[np.int64]) -> int:
    """Return how many runs later in `reference` the first of `starts` is: a device may miss runs at a window's edge."""
    if len(reference) == len(starts):
        return 0  # however far the devices are skewed against each other
    candidates = range(-2, len(reference) - len(starts) + 3)

    def apart(shift: int) -> tuple[float, int]:
        lo, hi = max(0, -shift), min(len(starts), len(reference) - shift)
        if hi - lo < 1:
            return (np.inf, abs(shift))
        differences = np.abs(reference[lo + shift : hi + shift].astype(float) - starts[lo:hi])
        return (float(np.median(differences)), abs(shift))

    return min(candidates, key=apart)


_RULES = {"marks": _by_marks, "steps line": _by_steps_line, "modules": _by_modules, "calls": _by_calls}
