"""Tables of a run folder as compact Parquet.

A run writes a small table per window, so the layout helps zstd to compress a few thousand rows. On disk

- times are whole multiples of ``unit_ps`` picoseconds, 1000 if possible: ``start_ps`` is ``start_units``;
- operations are sorted by name, and self time is stored as total time less self time, which is mostly 0;
- total time is split into its lowest two bytes, one column each, and the rest, which changes rarely;
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
_SPLIT = "total_units"  # a large column with random low bytes
_BYTES = [f"{_SPLIT}_byte{number}" for number in range(2)]
_EARLIER: dict[str, tuple[str, pl.DataType]] = {
    "kind": ("mark", pl.String()),
    "traced": ("seen", pl.Enum(["full", "partial", "tick"])),
    "latency_units": ("answer_units", pl.Int64()),
    "reason": ("why", pl.String()),
}
"""Name on disk to the name and type in layout 2."""
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
    unit = 1000 if not frame.select(pl.any_horizontal((pl.col(times) % 1000 != 0).any())).item() else 1
    frame = frame.rename(_names(columns)).with_columns(pl.col(_names(columns).values()) // unit)
    if _has_ops(columns):
        total = pl.col(_SPLIT)
        split = [(total // 256**at % 256).cast(pl.UInt8).alias(name) for at, name in enumerate(_BYTES)]
        frame = frame.with_columns(total // 65536, *split)
    if _has_rule(columns):
        rule, first = pl.col("rule").cast(pl.String), pl.col("rule").cast(_RULE, strict=False)
        frame = frame.with_columns(first, pl.when(first.is_null()).then(rule).alias(_LATER_RULE))
    filled = [column.name for column in frame if column.null_count() < frame.height]
    frame = frame.select(pl.col(filled or frame.columns), pl.lit(unit, pl.Int16).alias(_UNIT))
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
    on_disk = _on_disk(columns)
    filled = {name for file in files for name in _scanned(file).collect_schema()}
    if others := filled - on_disk.keys():
        raise pl.exceptions.SchemaError(f"it has columns {sorted(others)}")
    # those that none has are inserted as one value each, which an expression would write out
    rows = _scanned([*files], schema=on_disk, missing_columns="insert")
    earlier = [name for name in on_disk if name in _EARLIER and _EARLIER[name][0] in filled]
    rows = rows.with_columns(_renamed(name, on_disk[name]) for name in earlier)
    if _has_ops(columns):
        low, high = (pl.col(name).cast(pl.Int64) for name in _BYTES)
        rows = rows.with_columns(pl.col(_SPLIT).cast(pl.Int128) * 65536 + high * 256 + low)
    if _has_rule(columns):
        rows = rows.with_columns(rule=pl.coalesce(_LATER_RULE, pl.col("rule").cast(pl.String)))
    filled |= {*earlier}
    unit = (pl.col(_UNIT) - 1).cast(pl.UInt16).cast(pl.Int128) + 1  # raises for 0 and less, as times beyond Int64 do
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
    split: schema.Schema = dict.fromkeys(_BYTES, pl.UInt8()) if _has_ops(columns) else {}
    earlier: schema.Schema = dict(_EARLIER[name] for name in plain if name in _EARLIER)
    later: schema.Schema = {_LATER_RULE: pl.String()} if _has_rule(columns) else {}
    return {**plain, **split, **earlier, **later, _UNIT: pl.Int16()}


def _renamed(name: str, dtype: pl.DataType) -> pl.Expr:
    """Return a column under its current name, from the name in the file."""
    earlier = pl.col(_EARLIER[name][0])
    if name in _EARLIER_VALUES:
        earlier = earlier.cast(pl.String).replace(_EARLIER_VALUES[name])
    return pl.coalesce(name, earlier.cast(dtype))
