"""Results of AMD's rocprofv3, JSON and rocpd, its databases: their records as the events of a trace of PyTorch.

JSON is that of ROCprofiler-SDK 0.5 to 1.1, databases have the schema 3.0, of ROCm 7, or 4.1, by the sources [1]_.

References
----------
.. [1] https://github.com/ROCm/rocm-systems, ``projects/rocprofiler-sdk/source``: ``docs/rocprofv3-schema.json``, and
   ``share/rocprofiler-sdk-rocpd/versions``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tpunb.io import chrome_trace
from tpunb.io.chrome_trace import Event, Trace
from tpunb.io.gpu_records import Row, Tables, event, mark, reading, rows, work
from tpunb.io.storage import Bytes

PREFIX = "rocpd_"
"""Begin of the names of the tables of a database."""

_KERNELS = f"{PREFIX}kernel_dispatch"  # followed by an id of the process, or by nothing
_RESULT = re.compile(rb'\s*\{\s*"rocprofiler-sdk-tool"')
_GPU = 2  # type of an agent
_COPY = re.compile(r"MEMORY_COPY_([HD])\w*_TO_([HD])\w*")
_CALLS = {"HIP_": "cuda_runtime", "HSA_": "cuda_driver"}  # by the begin of the kind: category as PyTorch calls it


class _Process(NamedTuple):
    """The records of a process; work has "agent", "stream", "queue", calls have "category" and "thread"."""

    pid: int
    gpus: Mapping[int, str]  # names by the id of the agent, in order of their numbers
    kernels: Iterable[Row]
    copies: Iterable[Row]
    calls: Iterable[Row]
    environment: Row


def is_result(data: Bytes) -> bool:
    """Return whether a file begins as JSON of rocprofv3."""
    return _RESULT.match(data) is not None  # type: ignore[call-overload]


def read(data: bytes, *, source: str) -> Trace:
    """Return kernels, copies, calls of HIP and HSA, and ranges of ROCTx of JSON; raises BadProfile if it is damaged."""
    top = chrome_trace.parse(data, source)
    with reading(source, "result of rocprofv3", "rocprofv3 --output-format json"):
        processes = [_of_json(process) for process in top["rocprofiler-sdk-tool"]]
        return chrome_trace.contents(_facts(processes), [*_events(processes)], source)


def opened(tables: Tables) -> tuple[dict[str, Any], Iterator[Event]]:
    """Return what a trace of a database holds beside its events, and these, as `read`."""
    processes = [*_of_tables(tables)]
    return _facts(processes), _events(processes)


def _facts(processes: Sequence[_Process]) -> dict[str, Any]:
    gpus = [{"id": number, "name": name} for each in processes[:1] for number, name in enumerate(each.gpus.values())]
    rank = str(processes[0].environment.get("RANK")) if len(processes) == 1 else ""
    found = {"distributedInfo": {"rank": int(rank)}} if re.fullmatch("[0-9]{1,9}", rank) else {}
    return {"schemaVersion": 1, "deviceProperties": gpus, **found}


def _events(processes: Iterable[_Process]) -> Iterator[Event]:
    for pid, gpus, kernels, copies, called, _ in processes:
        numbers = {agent: number for number, agent in enumerate(gpus)}
        kernels = [*kernels]
        lane = "stream" if len({row["stream"] for row in kernels}) > 1 else "queue"  # as they were traced
        of_kinds = {"kernel": kernels, "gpu_memcpy": copies}
        for category, each in of_kinds.items():
            for row in each:
                if category == "gpu_memcpy" and row["agent"] not in numbers:
                    continue  # between hosts
                copy = _COPY.fullmatch(name := str(row["name"]))
                args = {"device": numbers.get(row["agent"], row["agent"]), "correlation": row["id"]}
                args["stream"] = category if row[lane] is None else row[lane]
                yield work(category, f"Memcpy {copy[1]}to{copy[2]}" if copy else name, pid, _times(row), args)
        for row in called:
            place, name = (str(pid), str(row["thread"])), str(row["name"])
            category = next((_CALLS[begin] for begin in _CALLS if str(row["category"]).startswith(begin)), "")
            if category:
                yield event(category, name, place, _times(row), {"correlation": row["id"]})
            else:
                yield mark(name, place, _times(row))


def _times(row: Row) -> tuple[int, int]:
    return row["start"], row["end"]


def _of_json(process: Row) -> _Process:
    gpus = {each["id"]["handle"]: each.get("product_name", "") for each in process["agents"] if each["type"] == _GPU}
    symbols = {each["kernel_id"]: each["formatted_kernel_name"] for each in process["kernel_symbols"]}
    kinds, buffers = process["strings"]["buffer_records"], process["buffer_records"]
    messages = {each["key"]: each["value"] for each in process["strings"]["marker_api"]}

    def records(kind: str) -> Iterator[dict[str, Any]]:
        for row in buffers.get(kind, ()):
            of_kind, id_ = kinds[row["kind"]], row["correlation_id"]["internal"]
            times = {"start": row["start_timestamp"], "end": row["end_timestamp"]}
            place = {"thread": row["thread_id"], "stream": row.get("stream_id", {}).get("handle"), "queue": None}
            name = {"category": of_kind["kind"], "name": of_kind["operations"][row["operation"]]}
            yield {**row, **times, **place, **name, "id": id_}

    def dispatches() -> Iterator[Row]:
        for row in records("kernel_dispatch"):
            info = row["dispatch_info"]
            place = {"agent": info["agent_id"]["handle"], "queue": info["queue_id"]["handle"]}
            yield {**row, **place, "name": symbols[info["kernel_id"]]}

    def called() -> Iterator[Row]:
        for kind in ("hip_api", "hsa_api", "rccl_api"):
            yield from records(kind)
        for row in records("marker_api"):
            if row["id"] in messages and row["end"] > row["start"]:
                yield {**row, "name": messages[row["id"]]}

    copies = ({**row, "agent": _agent(row, gpus)} for row in records("memory_copy"))
    return _Process(process["metadata"]["pid"], gpus, dispatches(), copies, called(), {})


def _agent(row: Row, gpus: Mapping[int, str]) -> Any:
    """Return the GPU to which a copy is, else that from which it is."""
    ends = [each["handle"] if isinstance(each := row[f"{end}_agent_id"], dict) else each for end in ("dst", "src")]
    return next((agent for agent in ends if agent in gpus), ends[0])


def _of_tables(tables: Tables) -> Iterator[_Process]:
    for name in tables:
        if name.startswith(_KERNELS):
            yield from _of_suffix(tables, name.removeprefix(_KERNELS))


def _of_suffix(tables: Tables, suffix: str) -> Iterator[_Process]:
    """Yield the processes of which the names of the tables have one ending."""

    def by_id(table: str) -> dict[int, Row]:
        return {row["id"]: row for row in rows(tables, f"{PREFIX}{table}{suffix}")}

    texts = {id_: row["string"] for id_, row in by_id("string").items()}
    kinds = {id_: row["name"] for id_, row in by_id("info_category").items()} or texts
    symbols = {id_: row["display_name"] or row["kernel_name"] for id_, row in by_id("info_kernel_symbol").items()}
    tracks, times, happened = by_id("track"), by_id("timestamp"), by_id("event")
    threads = by_id("info_thread")

    def records(table: str) -> Iterator[dict[str, Any]]:
        for row in rows(tables, f"{PREFIX}{table}{suffix}"):
            row = {**tracks.get(row.get("track_id") or 0, {}), **row}
            if "start" not in row:
                row |= {end: times[row[f"{end}_id"]]["value"] for end in ("start", "end")}
            cause = happened.get(row["event_id"], {})
            thread = threads.get(row["tid"], {}).get("tid", row["tid"])
            place = {"thread": thread, **{key: row.get(f"{key}_id") for key in ("agent", "stream", "queue")}}
            of_kind = {"id": cause.get("stack_id"), "category": kinds.get(cause.get("category_id") or 0, "")}
            name = symbols[row["kernel_id"]] if "kernel_id" in row else texts[row["name_id"]]
            yield {**row, **place, **of_kind, "name": name, "more": cause.get("extdata")}

    def called() -> Iterator[Row]:
        for row in records("region"):
            message = json.loads(row["more"] or "{}").get("message") if "MARKER" in row["category"] else None
            yield {**row, "name": message or row["name"]}

    of_process = [*by_id("info_process").items()]
    dispatched, copied, regions = [*records("kernel_dispatch")], [*records("memory_copy")], [*called()]
    for key, process in of_process:
        agents = sorted(by_id("info_agent").values(), key=lambda row: row["type_index"] or 0)
        gpus = {row["id"]: row["product_name"] for row in agents if row["type"] == "GPU" and row["pid"] == key}
        kernels, copies, spans = ([row for row in each if row["pid"] == key] for each in (dispatched, copied, regions))
        copies = [{**row, "agent": _agent(row, gpus)} for row in copies]
        environment = json.loads(process["environment"] or "{}")
        yield _Process(process["pid"], gpus, kernels, copies, spans, environment)
