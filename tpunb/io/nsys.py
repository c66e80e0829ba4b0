"""Exports of NVIDIA Nsight Systems: what their tables hold as the events of a trace of PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tpunb.io.chrome_trace import Event
from tpunb.io.gpu_records import Row, Tables, event, mark, rows, work

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
TABLES = {*_WORK, *_CALLS, "NVTX_EVENTS"}
"""Names of the tables of which an export has some."""


def opened(tables: Tables) -> tuple[dict[str, Any], Iterator[Event]]:
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
