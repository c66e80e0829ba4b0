"""Operations among events: canonical name, self time, and the step of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from tpunb import schema
from tpunb.frames import Profile
from tpunb.step_stats import boundaries, launches, op_names

_OP_LINES = ["XLA Ops", "TensorFlow Ops", "Framework Ops"]
"""Lines of a device with operations, best first: they repeat each other, so one is counted."""

WORK = ["flops", "bytes", "hbm_bytes"]
"""Columns of operations that say how much they computed and moved."""

Ints = npt.NDArray[np.int64]

_READ = [
    *("host", "plane", "lane", "name", "tf_op", "hlo_op", "program", "category", "step_num", "correlation_id"),
    *("start_ps", "dur_ps", "device_dur_ps", *WORK),
]


def find(events: pl.DataFrame) -> pl.DataFrame:
    """Return the operations among events, one row each; lines that repeat each other are counted once.

    Operations of XLA on host threads are of the device :data:`tpunb.step_stats.launches.CPU`.
    """
    on_device = events["plane"].cat.starts_with(launches.DEVICE)
    thunk = ~on_device & events["hlo_op"].is_not_null()
    of_ops = pl.col("step_num").is_null() & pl.col("lane").is_in(_op_lanes(events).implode())
    rows = events.select(_READ, device=on_device | thunk, thunk=thunk)
    rows = _in_nested_order(rows.filter(of_ops & (pl.col("device") | ~_noise(events))))
    uncategorised = _where(rows, pl.col("device") & pl.col("category").is_null())
    category = pl.coalesce("category", map_names(uncategorised, lambda name: op_names.category(name, side="device")))
    on_host = map_names(_where(rows, ~pl.col("device")), lambda name: op_names.category(name, side="host"))
    from tpunb.step_stats.self_time import self_times  # compiled: loaded when there is something to sweep

    # the profiler writes 0 for what a custom call computes and moves: nothing is known of it
    unknown = (pl.col("category") == "custom-call").fill_null(value=False)
    work: list[pl.Expr] = [pl.when(~unknown | (pl.col(name) != 0)).then(name) for name in WORK]
    times = self_times(rows["lane"].to_numpy(), rows["start_ps"].to_numpy(), rows["dur_ps"].to_numpy())
    inside = pl.col("dur_ps") - pl.Series(times, dtype=pl.Int64)  # time of nested operations
    total = pl.coalesce("device_dur_ps", "dur_ps")
    return rows.select(
        *("host", "lane", "tf_op", "hlo_op", "program", "start_ps", "dur_ps", "correlation_id"),
        *work,
        pl.when("thunk").then(pl.lit(launches.CPU, schema.NAME)).otherwise("plane").alias("plane"),
        pl.when("device").then(pl.lit("device", schema.SIDE)).otherwise(pl.lit("host", schema.SIDE)).alias("side"),
        op=_op(rows),
        kernel="name",
        category=pl.when("device").then(category).otherwise(pl.coalesce(on_host, "category")),
        total_ps=total,
        self_ps=(total - inside).clip(0),
    )


def instructions(profile: Profile, ops: pl.DataFrame) -> pl.DataFrame:
    """Return ``tpunb.schema.INSTRUCTIONS``; no rows where no operation has one, or the profile kept no raw files."""
    if profile.read_details is None or ops["hlo_op"].null_count() == len(ops):
        return pl.DataFrame(schema=schema.INSTRUCTIONS)
    return profile.instructions


_CALL = ["host", "plane", "start_ps", "kernel"]


def with_calls(profile: Profile, ops: pl.DataFrame) -> pl.DataFrame:
    """Add `module`, `part`, `shape` and `dtype` of PyTorch's call behind each kernel."""
    columns = {name: schema.CALLS[name] for name in ("module", "part", "shape", "dtype")}
    names = ops["tf_op"][_numbered(ops["tf_op"])[1]].cast(pl.String)
    has_calls = profile.read_details is not None and names.str.contains("::").any()
    calls = profile.calls if has_calls else pl.DataFrame(schema=schema.CALLS)
    if calls.is_empty():
        return ops.with_columns(pl.lit(None, dtype).alias(name) for name, dtype in columns.items())
    calls = calls.rename({"device": "plane"}).with_columns(pl.col(_CALL[:2]).cast(schema.NAME)).unique(_CALL)
    return ops.join(calls.select(*_CALL, *columns), on=_CALL, how="left", maintain_order="left")


def map_names(column: pl.Series, function: Callable[[str], object], dtype: pl.DataType = schema.NAME) -> pl.Series:
    """Apply a function to a Categorical column, calling it once per distinct name."""
    if column.null_count() == len(column):
        return pl.Series([None], dtype=dtype).new_from_index(0, len(column))
    numbers, rows = _numbered(column)
    return pl.Series([None, *map(function, column[rows].cast(pl.String))], dtype=dtype)[numbers]


def _numbered(column: pl.Series) -> tuple[npt.NDArray[np.uint32], Ints]:
    """Return the number of each value among the distinct ones, from 1, 0 for null; and a row with each."""
    from tpunb.step_stats.self_time import NULL, distinct, numbered  # compiled

    if column.dtype == pl.Int64:  # too large for a table of codes
        numbers, rows = numbered(column.fill_null(0).to_numpy().view(np.uint64))
        return np.where(column.is_null(), np.uint32(0), numbers + np.uint32(1)), rows
    code = (column.cast(schema.NAME) if column.dtype == pl.String else column).to_physical().cast(pl.UInt32)
    return distinct((code.fill_null(NULL) if column.null_count() else code).to_numpy())


def totals(rows: pl.DataFrame, by: Sequence[str], sums: Sequence[str]) -> pl.DataFrame:
    """Return each distinct row of some columns, its `count`, and the sums of others, null where all values are.

    A million rows by a dozen columns: ``group_by`` takes several times as long, as it encodes each row as bytes.
    """
    from tpunb.step_stats.self_time import numbered  # compiled

    keys, most = np.zeros(len(rows), np.uint64), 1
    for column in (rows[name] for name in by if rows[name].null_count() < len(rows)):
        numbers, values = _numbered(column)
        if most * (len(values) + 1) >= 2**64:
            groups, first = numbered(keys)
            keys, most = groups.astype(np.uint64), len(first)
        keys *= np.uint64(len(values) + 1)
        keys += numbers
        most *= len(values) + 1
    groups, first = numbered(keys)
    added = {"count": pl.Series(np.bincount(groups, minlength=len(first)))}
    for column in rows.select(sums):
        of = groups.compress(column.is_not_null().to_numpy()) if column.null_count() else groups
        values = column.drop_nulls().to_numpy()
        total = np.zeros(len(first), values.dtype)
        np.add.at(total, of, values)
        added[column.name] = pl.Series(total).set(pl.Series(np.bincount(of, minlength=len(first)) == 0), None)
    return rows.select(by)[first].with_columns(**added)


def _noise(rows: pl.DataFrame) -> pl.Expr:
    """Return which events of hosts are bookkeeping: of a function that shows its operations, or by their names."""
    unnamed = map_names(_where(rows, pl.col("tf_op").is_null()), op_names.is_noise, pl.Boolean())
    return (pl.col("tf_op") == op_names.FUNCTION_CALL).fill_null(value=False) | unnamed.fill_null(value=False)


def _op(rows: pl.DataFrame) -> pl.Expr:
    """Return the canonical name of each operation: from framework op, HLO instruction, or event."""
    framework = map_names(rows["tf_op"], lambda op: op_names.canonical("", op) or None)
    instruction = map_names(rows["hlo_op"], lambda op: op_names.canonical("", None, op))
    unnamed = _where(rows, pl.Series(framework.is_null() & instruction.is_null()))
    return pl.coalesce(framework, instruction, map_names(unnamed, op_names.canonical))


def _where(rows: pl.DataFrame, condition: pl.Expr | pl.Series) -> pl.Series:
    """Return the names of the rows that meet a condition, null elsewhere."""
    return rows.select(pl.when(condition).then("name"))["name"]


def _in_nested_order(rows: pl.DataFrame) -> pl.DataFrame:
    """Sort by lane, start, and length, longest first."""
    lane, start, dur = (rows[name].to_numpy() for name in ("lane", "start_ps", "dur_ps"))
    order = np.arange(lane.size)
    if ((lane[1:] < lane[:-1]) | (lane[1:] == lane[:-1]) & (start[1:] < start[:-1])).any():
        order = np.lexsort((start, lane))
        lane, start = lane[order], start[order]
    ties = np.flatnonzero((lane[1:] == lane[:-1]) & (start[1:] == start[:-1]))
    if ties.size:
        tied = np.union1d(ties, ties + 1)
        order[tied] = order[tied][np.lexsort((-dur[order[tied]], start[tied], lane[tied]))]
    return rows if (order[1:] > order[:-1]).all() else rows[order]


def _op_lanes(events: pl.DataFrame) -> pl.Series:
    """Return the lanes with operations: all of a host, streams of a GPU, the XLA ops of a TPU."""
    begins = pl.col("lane") != pl.col("lane").shift()
    lines = events.select("lane", "plane", "line").filter(begins.fill_null(True)).unique("lane")
    lines = lines.with_columns(pl.col("plane", "line").cast(pl.String))
    rank = pl.Series(range(len(_OP_LINES)), dtype=pl.Int64)
    ranked = lines.with_columns(
        device=pl.col("plane").str.starts_with(launches.DEVICE),
        stream=pl.col("line").str.starts_with("Stream #"),
        rank=pl.col("line").replace_strict(pl.Series(_OP_LINES), rank, default=None),
    )
    best = ranked.with_columns(streams=pl.col("stream").any().over("plane"), best=pl.col("rank").min().over("plane"))
    chosen = (
        pl.when(~pl.col("device"))
        .then(pl.lit(True))
        .when(pl.col("streams"))
        .then(pl.col("stream"))
        .otherwise((pl.col("rank") == pl.col("best")).fill_null(False))
    )
    return best.filter(chosen)["lane"]


def place(ops: pl.DataFrame, intervals: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return operations with the intervals of their plane, else of their host, in which they run.

    These are the rows from `first` to before `until` of the second frame: (at, host, plane, step, start_ps, end_ps).
    """
    # consecutive operations mostly share a plane, so each change of plane starts a run
    host, plane = (ops[name].to_physical().to_numpy() for name in ("host", "plane"))
    begins = np.flatnonzero(np.append(len(ops) > 0, (host[1:] != host[:-1]) | (plane[1:] != plane[:-1])))
    runs = ops.select("host", "plane")[begins]
    planes = runs.unique(maintain_order=True).with_row_index("place")
    named = planes.with_columns(pl.col("host", "plane").cast(pl.String))
    of_devices = intervals.filter(pl.col("plane").is_not_null())
    shared = intervals.filter(pl.col("plane").is_null()).drop("plane")
    # a host without intervals has a step from the first begin to the last end on its devices
    span, alone = ["host", "step", "start_ps", "end_ps"], of_devices.join(shared, on="host", how="anti")
    if alone.height:
        spanned = pl.lit(None, pl.String).alias("plane"), pl.col("start_ps").min(), pl.col("end_ps").max()
        derived = boundaries.disjoint(alone.group_by("host", "step").agg(*spanned))
        shared = pl.concat([shared.select(span), derived.select(span)])
    columns = ["place", "host", "plane", "step", "start_ps", "end_ps"]
    places = pl.concat(
        [
            named.join(of_devices, on=["host", "plane"]).select(columns),
            named.join(of_devices, on=["host", "plane"], how="anti").join(shared, on="host").select(columns),
        ]
    ).sort("place", "start_ps")
    places = places.with_row_index("at")
    of_runs = runs.join(planes, on=["host", "plane"], maintain_order="left")["place"].to_numpy()
    number = np.repeat(of_runs, np.diff(np.append(begins, len(ops))))
    from tpunb.step_stats.self_time import placed  # compiled

    bounds = np.searchsorted(places["place"].to_numpy(), np.arange(len(planes) + 1))
    start, dur = (ops[name].to_numpy() for name in ("start_ps", "dur_ps"))
    begin, end = (places[name].to_numpy() for name in ("start_ps", "end_ps"))
    first, until = placed(number, start, dur, bounds, begin, end)
    return ops.with_columns(first=pl.Series(first), until=pl.Series(until)), places.drop("place")


def assign(ops: pl.DataFrame, places: pl.DataFrame, launched: pl.DataFrame | None = None) -> pl.DataFrame:
    """Assign each operation, of :func:`place`, to the step that launched it, else to that in which it starts.

    Return those with a step: `at` is a row of `places`. `launched` has the steps of kernels, of
    :func:`tpunb.step_stats.launches.in_steps`.
    """
    first, none = ops["first"].to_numpy(), len(places)
    begun = np.append(places["start_ps"].to_numpy(), 2**62)[first] <= ops["start_ps"].to_numpy()
    at = pl.Series(np.where(begun & (first < ops["until"].to_numpy()), first, none))
    if launched is not None:
        key = ["host", "plane", "correlation_id"]
        of = launched.join(places.select("host", "plane", "step", "at"), on=["host", "plane", "step"])
        of = of.select(pl.col("host", "plane").cast(schema.NAME), "correlation_id", pl.col("at").cast(pl.Int64))
        at = ops.select(key).join(of, on=key, how="left", maintain_order="left")["at"].fill_null(at)
    ops = ops.drop("first", "until", "correlation_id").with_columns(at=at.cast(pl.UInt32))
    return ops.filter(pl.col("at") < none)


class Parts(NamedTuple):
    """The part of each operation in each step that it runs in, by array: (parts,)."""

    at: npt.NDArray[np.uint32]  # place
    start: Ints
    end: Ints
    row: Ints  # of the operation

    def of(self, chosen: npt.NDArray[np.bool_]) -> Parts:
        """Return the parts of chosen operations, by place and start."""
        rows = np.flatnonzero(chosen[self.row])
        at, start = self.at[rows], self.start[rows]
        order = np.argsort(at, kind="stable")  # quick if sorted
        if ((np.diff(at[order]) == 0) & (np.diff(start[order]) < 0)).any():
            order = np.lexsort((start, at))
        rows = rows[order]
        return Parts(at[order], start[order], self.end[rows], self.row[rows])


def parts(ops: pl.DataFrame, places: pl.DataFrame) -> Parts:
    """Return the part of each operation, of :func:`place`, in each step that it runs in."""
    first, until, start, dur = (ops[name].to_numpy() for name in ("first", "until", "start_ps", "dur_ps"))
    count = np.maximum(until - first, 0)
    row = np.repeat(np.arange(len(ops)), count)
    at = np.arange(row.size) - np.repeat(np.cumsum(count) - count - first, count)
    begin, end = (places[name].to_numpy()[at] for name in ("start_ps", "end_ps"))
    return Parts(at.astype(np.uint32), np.maximum(start[row], begin), np.minimum((start + dur)[row], end), row)
