"""Exports of profilers of GPUs, which are known by their contents: Nsight Systems and rocprofv3."""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial

import polars as pl

from tpunb.errors import BadProfile
from tpunb.io import chrome_trace, nsys, rocprof
from tpunb.io.chrome_trace import Trace
from tpunb.io.gpu_records import Row, Tables, reading
from tpunb.io.storage import Bytes

_HINT = "nsys export --type sqlite or parquetdir, or rocprofv3 --output-format rocpd"


def read(data: bytes, *, source: str) -> Trace:
    """Return what a database holds; ranges that are named and numbered as steps mark them.

    Processes that mark steps are hosts. Raises BadProfile if it is another database, or a damaged one.
    """
    with reading(source, "database", _HINT), closing(sqlite3.connect(":memory:")) as database:
        database.deserialize(data)
        database.row_factory = sqlite3.Row
        database.text_factory = partial(str, encoding="utf8", errors="replace")
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return _trace({name: partial(_rows, database, name) for name in names}, source)


def read_tables(files: Mapping[str, Callable[[], Bytes]], *, source: str) -> Trace:
    """Return what tables hold that are each a file of Parquet, by name, as of a database."""
    with reading(source, "export", _HINT):
        return _trace({name: partial(_rows_of_parquet, read) for name, read in files.items()}, source)


def _rows_of_parquet(read: Callable[[], Bytes]) -> Iterator[Row]:
    return pl.read_parquet(io.BytesIO(read().tobytes())).iter_rows(named=True)


def calls(data: bytes, *, source: str) -> pl.DataFrame:
    """Return what each kernel was launched for: ``tpunb.schema.CALLS``."""
    return read(data, source=source).calls


def _trace(tables: Tables, source: str) -> Trace:
    exporter = rocprof if any(name.startswith(rocprof.PREFIX) for name in tables) else nsys
    if exporter is nsys and not tables.keys() & nsys.TABLES:
        raise BadProfile(f"{source}: a database without a table of Nsight Systems or rocprofv3", hint=_HINT)
    facts, events = exporter.opened(tables)
    return chrome_trace.contents(facts, [*events], source)


def _rows(database: sqlite3.Connection, table: str) -> Iterator[Row]:
    name = table.replace('"', '""')
    yield from map(dict, database.execute(f'SELECT * FROM "{name}"'))
