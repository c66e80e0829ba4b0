"""Tables of a run folder as compact Parquet.

A run writes a small table per window, so the layout helps zstd to compress a few thousand rows. On disk

- times are whole multiples of ``unit_ps`` picoseconds, 1000 if possible: ``start_ps`` is ``start_units``;
- operations are sorted by name, and self time is stored as total time less self time, which is mostly 0;
- of events, whose times are whole microseconds, ``end_units`` is the time since the end of the row before, and
  ``start_units`` that from the start to the end;
- total time, and those two, are split into the lowest two bytes, one column each, and the rest, which changes rarely;
- columns without values are left out;
- rules of steps that an earlier version did not know are in a column of their own.

Files of layout 2 have earlier names of some columns (`_EARLIER`), which are renamed on reading.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl

from tpunb import schema

with suppress(ImportError):  # other versions; the first write would import it, in a thread
    import polars._utils.parquet

_LEVEL = 6  # of zstd: level 12 saves 2 % and takes 50 % longer
_UNIT = "unit_ps"
_SPLIT = {"total_ps": ["total_units"], "busy_ps": ["start_units", "end_units"]}
"""Large columns with random low bytes, of tables that have this column."""
_EARLIER: dict[str, tuple[str, pl.DataType]] = {  # name on disk to the name and type in layout 2
    "kind": ("mark", pl.String()),
    "traced": ("seen", pl.Enum(["full", "partial", "tick"])),
    "latency_units": ("answer_units", pl.Int64()),
    "reason": ("why", pl.String()),
}
_RULE = pl.Enum(schema.RULE.categories[:7])  # the type in files, which cannot be added to
_LATER_RULE = "later_rule"  # the column of the other categories
_EARLIER_VALUES = {"kind": {"test": "eval"}, "traced": {"tick": "none"}}


def pack(frame: pl.DataFrame, columns: schema.Schema) -> bytes:
    """Return a table of these columns as Parquet.

    >>> toy = {"host": pl.String(), "start_ps": pl.Int64()}
    >>> read([pack(pl.DataFrame([("a", 5_000)], schema=toy, orient="row"), toy)], toy).rows()
    [('a', 5000)]
    """
    if _has_ops(columns):
        frame = frame.sort("host", pl.col("op").cast(pl.String), "side", "step")
        frame = frame.with_columns(self_ps=pl.col("total_ps") - pl.col("self_ps"))
    times = _times(columns)
    units = (1_000_000, 1000) if _has_events(columns) else (1000,)
    whole = (each for each in units if not frame.select(pl.any_horizontal((pl.col(times) % each != 0).any())).item())
    unit = next(whole, 1)
    frame = frame.rename(_names(columns)).with_columns(pl.col(_names(columns).values()) // unit)
    if _has_events(columns):
        last = pl.col("end_units").forward_fill().fill_null(0)  # known, of this row or one before
        since, dur = pl.col("end_units") - last.shift(1, fill_value=0), last - pl.col("start_units")
        frame = frame.with_columns(end_units=since, start_units=dur)
    for name in _split(columns):
        low = [(pl.col(name) // 256**at % 256).cast(pl.UInt8).alias(each) for at, each in enumerate(_bytes(name))]
        frame = frame.with_columns(pl.col(name) // 65536, *low)
    if _has_rule(columns):
        rule, first = pl.col("rule").cast(pl.String), pl.col("rule").cast(_RULE, strict=False)
        frame = frame.with_columns(first, pl.when(first.is_null()).then(rule).alias(_LATER_RULE))
    filled = [column.name for column in frame if column.null_count() < frame.height]
    frame = frame.select(pl.col(filled or frame.columns), pl.lit(unit, _unit_type(columns)).alias(_UNIT))
    file = io.BytesIO()
    frame.write_parquet(file, compression="zstd", compression_level=_LEVEL, statistics=False)
    return file.getvalue()


def read(files: Sequence[Path | bytes], columns: schema.Schema) -> pl.DataFrame:
    """Return the rows of files, given by path or content, in order; columns that a file leaves out are null."""
    return collected(scan(files, columns))


def collected(rows: pl.LazyFrame) -> pl.DataFrame:
    """Return the rows of a scan, each column in one chunk."""
    parts = rows.collect()
    # column by column: two copies of all of a long run might not fit into memory
    return schema.compact(pl.DataFrame([parts.drop_in_place(name).rechunk() for name in parts.columns]))


def scan(files: Sequence[Path | bytes], columns: schema.Schema) -> pl.LazyFrame:
    """Return the rows that `read` returns, to be read by `collected`; raises for files that are cut, or others'."""
    if _has_events(columns) and len(files) > 1:  # times begin anew in each file
        return pl.concat([scan([file], columns) for file in files])
    on_disk = _on_disk(columns)
    filled = {name for file in files for name in _scanned(file).collect_schema()}
    if others := filled - on_disk.keys():
        raise pl.exceptions.SchemaError(f"it has columns {sorted(others)}")
    # those that none has are inserted as one value each, which an expression would write out
    rows = _scanned([*files], schema=on_disk, missing_columns="insert")
    earlier = [name for name in on_disk if name in _EARLIER and _EARLIER[name][0] in filled]
    rows = rows.with_columns(_renamed(name, on_disk[name]) for name in earlier)
    for name in _split(columns):
        low, high = (pl.col(each).cast(pl.Int64) for each in _bytes(name))
        rows = rows.with_columns(pl.col(name).cast(pl.Int128) * 65536 + high * 256 + low)
    if _has_events(columns):
        since, dur = (pl.col(name).cast(pl.Int64) for name in ("end_units", "start_units"))
        last = since.fill_null(0).cum_sum()
        rows = rows.with_columns(start_units=last - dur, end_units=pl.when(since.is_not_null()).then(last))
    if _has_rule(columns):
        rows = rows.with_columns(rule=pl.coalesce(_LATER_RULE, pl.col("rule").cast(pl.String)))
    filled |= {*earlier}
    unsigned = pl.UInt32 if _has_events(columns) else pl.UInt16
    unit = (pl.col(_UNIT) - 1).cast(unsigned).cast(pl.Int128) + 1  # raises for 0 and less, as times beyond Int64 do
    for name, short in _names(columns).items():
        time = (pl.col(short) * unit).cast(pl.Int64) if short in filled else pl.col(short)
        rows = rows.with_columns(time.alias(name))
    if _has_ops(columns):
        rows = rows.with_columns(self_ps=pl.col("total_ps") - pl.col("self_ps"))
    return rows.select(pl.col(name).cast(dtype) for name, dtype in columns.items())


def _scanned(source: Any, **options: Any) -> pl.LazyFrame:
    return pl.scan_parquet(source, glob=False, hive_partitioning=False, **options)  # names may contain [, * or =


def _has_rule(columns: schema.Schema) -> bool:
    return columns.get("rule") == schema.RULE


def _has_ops(columns: schema.Schema) -> bool:
    return "total_ps" in columns


def _has_events(columns: schema.Schema) -> bool:
    return "busy_ps" in columns


def _split(columns: schema.Schema) -> list[str]:
    """Return the names on disk of columns that are split."""
    return [name for of, names in _SPLIT.items() if of in columns for name in names]


def _bytes(name: str) -> list[str]:
    """Return the names of the lowest bytes of a column that is split."""
    return [f"{name}_byte{number}" for number in range(2)]


def _unit_type(columns: schema.Schema) -> pl.DataType:
    return pl.Int32() if _has_events(columns) else pl.Int16()


def _times(columns: schema.Schema) -> list[str]:
    return [name for name in columns if name.endswith("_ps")]


def _names(columns: schema.Schema) -> dict[str, str]:
    """Return the names of times on disk."""
    return {name: name.removesuffix("_ps") + "_units" for name in _times(columns)}


def _on_disk(columns: schema.Schema) -> schema.Schema:
    """Return all columns that a file can have."""
    short = _names(columns)
    plain: schema.Schema = {
        short.get(name, name): _RULE if dtype == schema.RULE else dtype for name, dtype in columns.items()
    }
    split: schema.Schema = {each: pl.UInt8() for name in _split(columns) for each in _bytes(name)}
    earlier: schema.Schema = dict(_EARLIER[name] for name in plain if name in _EARLIER)
    later: schema.Schema = {_LATER_RULE: pl.String()} if _has_rule(columns) else {}
    return {**plain, **split, **earlier, **later, _UNIT: _unit_type(columns)}


def _renamed(name: str, dtype: pl.DataType) -> pl.Expr:
    """Return a column under its current name, from the name in the file."""
    earlier = pl.col(_EARLIER[name][0])
    if name in _EARLIER_VALUES:
        earlier = earlier.cast(pl.String).replace(_EARLIER_VALUES[name])
    return pl.coalesce(name, earlier.cast(dtype))
