"""Exports of profilers of GPUs as the events of a trace of PyTorch: those of Nsight Systems, databases of rocprofv3."""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Any

import polars as pl

from tpunb.errors import BadProfile
from tpunb.io import chrome_trace, rocprof
from tpunb.io.chrome_trace import Event, Trace
from tpunb.io.gpu_records import Row, Tables, event, mark, reading, rows, work
from tpunb.io.storage import Bytes

_HINT = "nsys export --type sqlite or parquetdir, or rocprofv3 --output-format rocpd"

_RANGES = 59, 60  # kinds of NVTX events: pushed and popped, started and ended
_COPIES = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
_WORK = {  # of devices, by table: category as PyTorch calls it
    "CUPTI_ACTIVITY_KIND_KERNEL": "kernel",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "gpu_memcpy",
    "CUPTI_ACTIVITY_KIND_MEMSET": "gpu_memset",
}
_CALLS = {  # of threads
    "CUPTI_ACTIVITY_KIND_RUNTIME": "cuda_runtime",
    "CUPTI_ACTIVITY_KIND_OVERHEAD": "overhead",
    "PROFILER_OVERHEAD": "overhead",
}
_TABLES = {*_WORK, *_CALLS, "NVTX_EVENTS"}
"""Names of the tables of which an export of Nsight Systems has some."""


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


def _trace(tables: Tables, source: str) -> Trace:
    is_of_rocprof = any(name.startswith(rocprof.PREFIX) for name in tables)
    if not is_of_rocprof and not tables.keys() & _TABLES:
        raise BadProfile(f"{source}: a database without a table of Nsight Systems or rocprofv3", hint=_HINT)
    facts, events = (rocprof.opened if is_of_rocprof else _opened)(tables)
    return chrome_trace.contents(facts, [*events], source)


def _rows(database: sqlite3.Connection, table: str) -> Iterator[Row]:
    name = table.replace('"', '""')
    yield from map(dict, database.execute(f'SELECT * FROM "{name}"'))


def _opened(tables: Tables) -> tuple[dict[str, Any], Iterator[Event]]:
    """Return what a trace holds beside its events, and these; their times count from the begin of the session."""
    return _facts(tables), _events(tables)


def _facts(tables: Tables) -> dict[str, Any]:
    gpus = [{"id": row["id"], "name": row["name"]} for row in rows(tables, "TARGET_INFO_GPU")]
    begin = next((row["utcEpochNs"] for row in rows(tables, "TARGET_INFO_SESSION_START_TIME")), None)
    return {"schemaVersion": 1, "deviceProperties": gpus, "baseTimeNanoseconds": begin}


def _events(tables: Tables) -> Iterator[Event]:
    """Yield kernels, copies, calls of CUDA and NVTX ranges."""
    texts = {row["id"]: row["value"] for row in rows(tables, "StringIds")}
    for table, category in _WORK.items():
        for row in rows(tables, table):
            args = {"device": row["deviceId"], "stream": row["streamId"], "correlation": row["correlationId"]}
            if row.get("graphNodeId"):
                args["graph node id"] = row["graphNodeId"]
            process = _process(row.get("globalPid"))
            yield work(category, _work(row, category, texts), process, (row["start"], row["end"]), args)
    for table, category in _CALLS.items():
        for row in rows(tables, table):
            name = texts.get(row["nameId"], "") or category
            args = {"correlation": row["correlationId"]} if category == "cuda_runtime" else {}
            yield event(category, name, _thread(row), (row["start"], row["end"]), args)
    for row in rows(tables, "NVTX_EVENTS"):
        if row["eventType"] in _RANGES and row["end"] is not None:
            name = row.get("text") or texts.get(row.get("textId") or -1, "")
            yield mark(name, _thread(row), (row["start"], row["end"]))


def _work(row: Row, category: str, texts: Mapping[int, str]) -> str:
    """Return the name of work on a device, as PyTorch has it."""
    if category == "kernel":
        return texts.get(row.get("demangledName") or row["shortName"]) or texts.get(row["shortName"], "kernel")
    return "Memset" if category == "gpu_memset" else f"Memcpy {_COPIES.get(row['copyKind'], 'other')}"


def _process(serial: int | None) -> int:
    return (serial or 0) >> 24 & 0xFFFFFF


def _thread(row: Row) -> tuple[str, str]:
    serial = row.get("globalTid") or 0
    return str(_process(serial)), str(serial & 0xFFFFFF)
