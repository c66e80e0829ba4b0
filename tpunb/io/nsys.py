"""Exports of NVIDIA Nsight Systems as SQLite: what they hold as the events of a trace of PyTorch."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Any

import polars as pl

from tpunb.errors import BadProfile
from tpunb.io import chrome_trace
from tpunb.io.chrome_trace import Event, Trace
from tpunb.text import format_error

_RANGES = 59, 60  # kinds of NVTX events: pushed and popped, started and ended
_STEP = re.compile(r"((?:[A-Za-z]+[ _])*(?:step|iter|iteration|batch))[\s_#:=.-]*(\d{1,18})", re.IGNORECASE)
_OPERATOR = re.compile(r"(aten::\w+)\b.*")  # of PyTorch's emit_nvtx, with the number of the call
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
_Row = Mapping[str, Any]


def read(data: bytes, *, source: str) -> Trace:
    """Return kernels, copies, calls of CUDA and NVTX ranges; those that are named and numbered as steps mark them.

    Times count from the begin of the session. Processes that mark steps are hosts.

    Raises
    ------
    BadProfile
        If it is another database, or a damaged one.
    """
    try:
        with closing(sqlite3.connect(":memory:")) as database:
            database.deserialize(data)
            database.row_factory = sqlite3.Row
            database.text_factory = partial(str, encoding="utf8", errors="replace")
            names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            tables = dict.fromkeys(names, database)
            if not tables.keys() & {*_WORK, *_CALLS, "NVTX_EVENTS"}:
                raise BadProfile(
                    f"{source}: a database without a table of Nsight Systems", hint="nsys export --type sqlite"
                )
            texts = dict(database.execute("SELECT id, value FROM StringIds")) if "StringIds" in tables else {}
            return chrome_trace.contents(_facts(tables), [*_events(tables, texts)], source)
    except BadProfile:
        raise
    except (sqlite3.DatabaseError, TypeError, KeyError, ValueError, OverflowError) as error:
        raise BadProfile(
            f"{source}: a damaged database: {format_error(error)}", hint="nsys export --type sqlite"
        ) from error


def calls(data: bytes, *, source: str) -> pl.DataFrame:
    """Return what each kernel was launched for: ``tpunb.schema.CALLS``."""
    return read(data, source=source).calls


def _facts(tables: Mapping[str, sqlite3.Connection]) -> dict[str, Any]:
    facts: dict[str, Any] = {"schemaVersion": 1}
    gpus = _rows(tables, "TARGET_INFO_GPU")
    facts["deviceProperties"] = [{"id": row["id"], "name": row["name"]} for row in gpus]
    for row in _rows(tables, "TARGET_INFO_SESSION_START_TIME"):
        facts["baseTimeNanoseconds"] = row["utcEpochNs"]
    return facts


def _events(tables: Mapping[str, sqlite3.Connection], texts: Mapping[int, str]) -> Iterator[Event]:
    for table, category in _WORK.items():
        for row in _rows(tables, table):
            process = _process(row.get("globalPid"))
            args = {"device": row["deviceId"], "stream": row["streamId"], "correlation": row["correlationId"]}
            if row.get("graphNodeId"):
                args["graph node id"] = row["graphNodeId"]
            yield _event(row, category, _work(row, category, texts), f"{process} GPU", str(row["streamId"]), args)
    for table, category in _CALLS.items():
        for row in _rows(tables, table):
            name = texts.get(row["nameId"], "") or category
            args = {"correlation": row["correlationId"]} if category == "cuda_runtime" else {}
            yield _event(row, category, name, *_thread(row), args)
    for row in _rows(tables, "NVTX_EVENTS"):
        if row["eventType"] in _RANGES and row["end"] is not None:
            name = row.get("text") or texts.get(row.get("textId") or -1, "")
            operator, step = _OPERATOR.fullmatch(name), _STEP.fullmatch(name)
            args = {"step_num": step[2]} if step else {}
            category = "cpu_op" if operator else "user_annotation"
            yield _event(row, category, operator[1] if operator else step[1] if step else name, *_thread(row), args)


def _event(row: _Row, category: str, name: str, pid: str, tid: str, args: dict[str, Any]) -> Event:
    start, dur = _microseconds(row["start"]), _microseconds(row["end"] - row["start"])
    return Event("X", category, name, pid, tid, start, dur, args)


def _microseconds(ns: int) -> str:
    return f"{'-' * (ns < 0)}{abs(ns) // 1000}.{abs(ns) % 1000:03d}"


def _work(row: _Row, category: str, texts: Mapping[int, str]) -> str:
    """Return the name of work on a device, as PyTorch has it."""
    if category == "kernel":
        return texts.get(row.get("demangledName") or row["shortName"]) or texts.get(row["shortName"], "kernel")
    return "Memset" if category == "gpu_memset" else f"Memcpy {_COPIES.get(row['copyKind'], 'other')}"


def _process(serial: int | None) -> int:
    return (serial or 0) >> 24 & 0xFFFFFF


def _thread(row: _Row) -> tuple[str, str]:
    serial = row.get("globalTid") or 0
    return str(_process(serial)), str(serial & 0xFFFFFF)


def _rows(tables: Mapping[str, sqlite3.Connection], table: str) -> Iterator[dict[str, Any]]:
    if table in tables:
        yield from map(dict, tables[table].execute(f"SELECT * FROM {table}"))
