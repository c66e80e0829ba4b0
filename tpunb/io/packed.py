"""Tables as few bytes: the Parquet of a run folder, and back.

A run writes a small table a window, so what counts is what zstd can do with a few thousand rows. On disk

- times are whole numbers of ``unit_ps`` picoseconds, 1000 where all of a table's are: ``start_ps`` is ``start_units``;
- operations lie in the order of their names, and their self time as what it is less than the total: mostly 0;
- their totals are split into their lowest two bytes, a column each, and the rest: alone, the rest hardly changes;
- a column that is null throughout is left out.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from tpunb import schema

_LEVEL = 6  # of zstd: 12 saves 2 percent and takes half as long again
_UNIT = "unit_ps"
_SPLIT = "total_units"  # the one column that is mostly noise in its low bytes, and large
_BYTES = [f"{_SPLIT}_byte{number}" for number in range(2)]


def pack(frame: pl.DataFrame, columns: schema.Schema) -> bytes:
    """Return a table of these columns as Parquet.

    >>> toy = {"host": pl.String(), "start_ps": pl.Int64()}
    >>> unpack(pl.read_parquet(pack(pl.DataFrame([("a", 5_000)], schema=toy, orient="row"), toy)), toy).rows()
    [('a', 5000)]
    """
    if _is_of_ops(columns):
        frame = frame.sort("host", pl.col("op").cast(pl.String), "side", "step")
        frame = frame.with_columns(self_ps=pl.col("total_ps") - pl.col("self_ps"))
    times = _times(columns)
    unit = 1000 if not frame.select(pl.any_horizontal((pl.col(times) % 1000 != 0).any())).item() else 1
    frame = frame.rename(_names(columns)).with_columns(pl.col(_names(columns).values()) // unit)
    if _is_of_ops(columns):
        rest, split = pl.col(_SPLIT), []
        for name in _BYTES:
            split.append((rest % 256).cast(pl.UInt8).alias(name))
            rest = rest // 256
        frame = frame.with_columns(rest, *split)
    known = [column.name for column in frame if column.null_count() < frame.height]
    frame = frame.select(pl.col(known or frame.columns), pl.lit(unit, pl.Int16).alias(_UNIT))
    file = io.BytesIO()
    frame.write_parquet(file, compression="zstd", compression_level=_LEVEL, statistics=False)
    return file.getvalue()


def read(files: Sequence[Path], columns: schema.Schema) -> pl.DataFrame:
    """Return the rows of many files, in their order, with these columns; null for what a file leaves out."""
    rows = pl.scan_parquet(
        [*files],
        schema=_on_disk(columns),
        missing_columns="insert",
        glob=False,  # a run's name may hold [ or *
        hive_partitioning=False,  # or =
    )
    return _unpacked(rows, columns).collect()


def unpack(frame: pl.DataFrame, columns: schema.Schema) -> pl.DataFrame:
    """Return what `pack` was given, of a frame as it lies on disk."""
    absent = [pl.lit(None, dtype).alias(name) for name, dtype in _on_disk(columns).items() if name not in frame.columns]
    return _unpacked(frame.lazy().with_columns(absent), columns).collect()


def _unpacked(rows: pl.LazyFrame, columns: schema.Schema) -> pl.LazyFrame:
    if _is_of_ops(columns):
        low, high = (pl.col(name).cast(pl.Int64) for name in _BYTES)
        rows = rows.with_columns(pl.col(_SPLIT) * 65536 + high * 256 + low)
    back = {short: name for name, short in _names(columns).items()}
    rows = rows.with_columns((pl.col(short) * pl.col(_UNIT)).alias(name) for short, name in back.items())
    if _is_of_ops(columns):
        rows = rows.with_columns(self_ps=pl.col("total_ps") - pl.col("self_ps"))
    return rows.select(pl.col(name).cast(dtype) for name, dtype in columns.items())


def _is_of_ops(columns: schema.Schema) -> bool:
    return "total_ps" in columns


def _times(columns: schema.Schema) -> list[str]:
    return [name for name in columns if name.endswith("_ps")]


def _names(columns: schema.Schema) -> dict[str, str]:
    """Return how the columns of times are called on disk."""
    return {name: name.removesuffix("_ps") + "_units" for name in _times(columns)}


def _on_disk(columns: schema.Schema) -> schema.Schema:
    """Return all columns that a file may have."""
    short = _names(columns)
    plain: schema.Schema = {short.get(name, name): dtype for name, dtype in columns.items()}
    split: schema.Schema = dict.fromkeys(_BYTES, pl.UInt8()) if _is_of_ops(columns) else {}
    return {**plain, **split, _UNIT: pl.Int16()}
