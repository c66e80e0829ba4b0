"""Read a table of the operations of a job with pipeline parallelism, one row each, in Parquet or CSV.

Columns are ``step``, ``rank``, ``stage``, ``optype``, ``start`` and ``duration`` in seconds, and optionally ``dp_rank``
and ``chunk``; published traces have other names for some [1]_. Types are those of the traces: "forward-compute",
"forward-send", "forward-recv", the same for "backward", and any others. Microbatches are in order of time.

References
----------
.. [1] J. Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis", OSDI 2025; data at
   https://github.com/ByteDance-Seed/StragglerAnalysis.
"""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import polars as pl

from tpunb import schema
from tpunb.errors import BadProfile
from tpunb.frames import Profile, Steps
from tpunb.io import storage
from tpunb.io.storage import Location
from tpunb.step_stats.op_names import PEERS
from tpunb.text import cut, format_error, plain, plural

ENDINGS = (".parquet", ".csv", ".csv.gz")
"""Endings of the names of these tables."""

_COLUMNS: dict[str, tuple[type[pl.DataType], tuple[str, ...]]] = {  # type, and names in files
    "step": (pl.Int64, ("step",)),
    "rank": (pl.Int64, ("rank",)),
    "stage": (pl.Int64, ("stage", "pp_rank")),
    "op": (pl.String, ("optype", "operation", "op")),
    "start": (pl.Float64, ("start", "start_ts")),
    "dur": (pl.Float64, ("duration", "dur")),
    "dp_rank": (pl.Int64, ("dp_rank",)),
    "chunk": (pl.Int64, ("chunk", "mc")),
}
_REQUIRED = [*_COLUMNS][:6]
_ENOUGH = 4  # of the required columns, by which a table is one of operations
_MOST_S = 2**62 / 1e12
_MOST_NUMBER = 2**24  # ranks and stages: more are no such numbers
_OVERLAP = 0.01  # of a step: start times may be rounded
_SHOWN = 8  # steps in a note


def profile(file: Location, name: str, source: Path | str) -> Profile | None:
    """Return the profile of a table of operations: a host for each rank; None if the file has another content.

    Steps in which a rank lacks operations are traced in part. Raises BadProfile if columns are missing, or hold values
    of another type.
    """
    table = _read(file)
    if table is None:
        return None
    rows, notes = _valid(table, file)
    rows, absent, more = _workers(rows, file)
    notes += more
    rows, laid = _in_sequence(rows)
    notes += ["times are relative to their step: steps are placed one after the other"] if laid else []
    damaged = _cut(rows)
    listed = ", ".join(map(str, damaged[:_SHOWN])) + ", ..." * (len(damaged) > _SHOWN)
    notes += [f"{plural(len(damaged), 'step')} without all operations: {listed}"] if damaged else []
    span_ps = int(rows.select((pl.col("start_ps") + pl.col("dur_ps")).max()).item())
    windows = rows.group_by("host", maintain_order=True).agg(
        start_ps=pl.col("start_ps").min(), events=pl.len().cast(pl.Int64), steps=pl.col("step").n_unique()
    )
    windows = windows.with_columns(window=pl.lit(0), dur_ps=span_ps - pl.col("start_ps"), bytes=file.size)
    lost = pl.DataFrame(absent, schema=schema.LOST, orient="row")
    steps = replace(_steps(rows, damaged), windows=windows, name=name, source=source, lost=lost)
    hardware = pl.DataFrame(schema=schema.HARDWARE)
    return Profile(name, source, windows, hardware, span_ps, stored=steps, notes=tuple(notes))


def _read(file: Location) -> pl.DataFrame | None:
    """Return the columns of a table by our names and in our types; None if it is no table of operations."""
    is_parquet = file.name.endswith(".parquet")
    try:
        data = io.BytesIO(storage.read(file).tobytes())
        scan = pl.scan_parquet(data) if is_parquet else pl.scan_csv(data, infer_schema_length=None)
        columns = scan.collect_schema().names()
        found = {ours: name for ours, (_, names) in _COLUMNS.items() for name in names if name in columns}
        needed = {ours: _COLUMNS[ours][1][0] for ours in _REQUIRED}
        missing = [name for ours, name in needed.items() if ours not in found]
        if len(needed) - len(missing) < _ENOUGH:
            return None
        if missing:
            raise BadProfile(
                f"{file}: the table of operations has no column {', '.join(missing)}; "
                f"it has {', '.join(cut(plain(column)) for column in columns[:20])}",
                hint=f"it needs {', '.join(needed.values())}; times are in seconds",
            )
        return scan.select(pl.col(name).cast(_COLUMNS[ours][0]).alias(ours) for ours, name in found.items()).collect()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise BadProfile(f"{file}: the table cannot be read: {format_error(error)}") from error


def _valid(table: pl.DataFrame, file: Location) -> tuple[pl.DataFrame, list[str]]:
    """Return the rows that are operations, with times in picoseconds since the first, and a note of the others."""
    start, dur = pl.col("start"), pl.col("dur")
    valid = pl.all_horizontal(pl.col(*_REQUIRED).is_not_null(), start.is_finite(), dur.is_between(0, _MOST_S))
    rows = table.filter(valid, pl.col("rank", "stage").is_between(0, _MOST_NUMBER))
    if rows.is_empty():
        raise BadProfile(f"{file}: the table holds no operations", hint="it needs a row per operation")
    rows = rows.with_columns(start=start - start.min())
    if rows.select(start.max() + dur.max()).item() > _MOST_S:
        raise BadProfile(
            f"{file}: operations are {rows.select(start.max()).item():.3g} s apart", hint="give times in seconds"
        )
    times = [(pl.col(name) * 1e12).round().cast(pl.Int64).alias(f"{name}_ps") for name in ("start", "dur")]
    lost = table.height - rows.height
    return rows.with_columns(times).drop("start", "dur"), [f"{plural(lost, 'row')} without valid values"] * (lost > 0)


def _workers(rows: pl.DataFrame, file: Location) -> tuple[pl.DataFrame, list[tuple[str, str]], list[str]]:
    """Return the rows of one rank for each stage and data-parallel rank, the workers without one, and notes."""
    if rows.group_by("rank").agg(pl.col("stage").n_unique())["stage"].max() != 1:
        raise BadProfile(f"{file}: ranks are in several stages", hint="each rank has one stage")
    if "dp_rank" not in rows.columns:
        rows = rows.with_columns(dp_rank=pl.col("rank").rank("dense").over("stage").cast(pl.Int64) - 1)
    workers = rows.group_by("stage", "dp_rank").agg(pl.col("rank").min()).sort("stage", "dp_rank")
    kept = rows.join(workers, on=["stage", "dp_rank", "rank"], how="semi", maintain_order="left")
    beside = rows["rank"].n_unique() - len(workers)
    notes = [f"{plural(beside, 'rank')} beside others of the same stage and data-parallel rank"] * (beside > 0)
    missing = absent_workers(workers).rows()
    absent = [(f"stage {stage}, dp {rank}", "no rank of this stage has operations") for stage, rank in missing]
    return kept.with_columns(host=pl.format("rank{} (stage {}, dp {})", "rank", "stage", "dp_rank")), absent, notes


def absent_workers(rows: pl.DataFrame) -> pl.DataFrame:
    """Return (stage, dp_rank) of workers without operations: each stage has all data-parallel ranks."""
    stages, ranks = (rows.select(pl.col(name).unique().sort()) for name in ("stage", "dp_rank"))
    return stages.join(ranks, how="cross").join(rows, on=["stage", "dp_rank"], how="anti", maintain_order="left")


def _in_sequence(rows: pl.DataFrame) -> tuple[pl.DataFrame, bool]:
    """Return rows of steps one after the other, and whether the file has times relative to their step."""
    end = pl.col("start_ps") + pl.col("dur_ps")
    bounds = rows.group_by("host", "step").agg(low=pl.col("start_ps").min(), high=end.max()).sort("host", "step")
    early = pl.col("high").shift() - _OVERLAP * (pl.col("high") - pl.col("low")).shift()
    if not bounds.select((pl.col("low") < early.over("host")).any()).item():
        return rows, False
    spans = rows.group_by("step").agg(low=pl.col("start_ps").min(), high=end.max()).sort("step")
    ends = (pl.col("high") - pl.col("low")).cum_sum()
    moved = spans.select("step", by=ends.shift(fill_value=0) - pl.col("low"))
    return rows.join(moved, on="step", maintain_order="left").with_columns(pl.col("start_ps") + pl.col("by")), True


def _cut(rows: pl.DataFrame) -> list[int]:
    """Return the steps in which a rank lacks usual operations, or the backward computation of a forward one."""
    counts = rows.group_by("host", "step").agg(
        kinds=pl.col("op").n_unique(),
        open=(pl.col("op") == "forward-compute").sum() != (pl.col("op") == "backward-compute").sum(),
    )
    few = pl.col("open") | (pl.col("kinds") < pl.col("kinds").median().over("host"))
    few |= pl.len().over("step") < pl.col("host").n_unique()
    return counts.filter(few)["step"].unique().sort().to_list()


def _steps(rows: pl.DataFrame, damaged: list[int]) -> Steps:
    end, key = pl.col("start_ps") + pl.col("dur_ps"), ["host", "step"]
    frame = (
        rows.sort("host", "step")
        .group_by(key, maintain_order=True)
        .agg(pl.col("start_ps").min(), dur_ps=end.max() - pl.col("start_ps").min())
    )
    frame = frame.with_columns(
        kind=pl.lit("train"),
        traced=pl.when(pl.col("step").is_in(damaged)).then(pl.lit("partial")).otherwise(pl.lit("full")),
        rule=pl.lit("annotation"),
        **dict.fromkeys(("device_ps", "idle_ps")),
    )
    sums = rows.group_by(*key, "op", maintain_order=True).agg(
        count=pl.len().cast(pl.Int64), total_ps=pl.col("dur_ps").sum(), self_ps=pl.col("dur_ps").sum()
    )
    ops = sums.with_columns(
        side=pl.lit("device"), category=pl.when(pl.col("op").str.contains(PEERS)).then(pl.lit("all-reduce"))
    )
    return Steps(frame, ops, pipeline=rows)
