"""Read XProf's tables of HLO operations, ``hlo_stats`` and ``roofline_model``, as a profile of one step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any

import polars as pl

from tpunb import schema
from tpunb.errors import BadProfile
from tpunb.frames import Profile, Steps
from tpunb.io.chrome_trace import parse
from tpunb.step_stats import op_names
from tpunb.text import cut

_TABLES = ("hlo_stats.json", "roofline_model.json")  # best first: only the first names programs and framework ops
ENDINGS = (*_TABLES, *(f"{name}.gz" for name in _TABLES))
"""Endings of the names of these tables."""

_MOST_PS = 2**62
_NUMBER = re.compile(r"-?[0-9]{1,30}(\.[0-9]{0,30})?([eE][+-]?[0-9]{1,3})?")
_GIB = 2**30
Object = Mapping[str, Any]
_ZERO_UNKNOWN = "custom-call"  # whose work XProf writes as 0


def profile(tables: Mapping[str, bytes | BadProfile], name: str, source: Path | str) -> Profile:
    """Return the profile of ``hlo_stats`` or ``roofline_model``: one step of all devices with `layers`, no operations.

    FLOPs and bytes are rates of the table times its total times; where one is 0 for a custom call, it is null.
    """
    contents = {file: parsed(data, file) for file, data in sorted(tables.items())}  # hlo_stats first
    operations = {file: [*_operations(top, file)] for file, top in contents.items()}
    listed = next(filter(None, operations.values()), [])
    if not listed:
        raise BadProfile(f"{source}: the tables have no operations", hint="XProf's tables of a CPU capture have none")
    layers = pl.DataFrame(listed, schema=schema.LAYERS)
    busy = int(layers["self_ps"].sum())
    step = {"host": "", "step": 0, "kind": "whole", "start_ps": 0, "dur_ps": busy, "device_ps": busy, "idle_ps": None}
    frame = pl.DataFrame([step | {"traced": "full", "rule": "whole"}])
    firsts = [(objects(top) or [as_object(top)])[0] for top in contents.values()]
    kind = next(filter(None, (text(as_object(first.get("p")).get("device_type")) for first in firsts)), "")
    hardware = pl.DataFrame([("", "devices", kind, None, None, None)], schema=schema.HARDWARE, orient="row")
    metadata = {"device kind": kind} if kind else {}
    steps = Steps(frame, pl.DataFrame(schema=schema.OPS), name=name, read_layers=lambda: layers, metadata=metadata)
    windows = pl.DataFrame(schema=schema.WINDOWS)
    return Profile(name, source, windows, hardware if kind else hardware.clear(), busy, stored=steps)


def _operations(top: Any, file: str) -> Iterator[Object]:
    """Return the rows of ``tpunb.schema.LAYERS`` of one file."""
    for row in chain.from_iterable(map(rows_of, objects(top) or [as_object(top)])):
        hlo_op = row.get("hlo_op_name", row.get("operation"))
        if not isinstance(hlo_op, str) or row.get("category") in ("IDLE", "Program", None):
            continue
        if row.get("step", "Total") != "Total" or row.get("include_infeed_outfeed", True) is False:
            continue
        total_ps, self_ps = (_ps(row.get(name), file) for name in ("total_time", "total_self_time"))
        seconds, unknown = total_ps / 1e12, row["category"] == _ZERO_UNKNOWN
        flops = _number(row.get("model_flop_rate")) * 1e9 * seconds
        moved = _number(row.get("measured_memory_bw")) * _GIB * seconds
        tf_op = text(row.get("tf_op_name")) or None
        shape = re.match(r"%?[^=]{1,400}= (\(.{0,400}?\)|\S{1,400}) ", str(row.get("hlo_op_expression", "")))
        yield dict.fromkeys(schema.LAYERS) | {
            **{"host": "", "step": 0, "side": "device", "category": str(row["category"]), "hlo_op": hlo_op},
            "program": _program(row.get("program_id", row.get("hlo_module_id"))),
            "tf_op": tf_op,
            "layer": op_names.layer(tf_op) if tf_op else None,
            "op": op_names.canonical("", tf_op) or op_names.canonical("", None, hlo_op),
            "count": int(_number(row.get("occurrences"))),
            **{"total_ps": total_ps, "self_ps": self_ps},
            "flops": None if unknown and not flops else flops,
            "bytes": None if unknown and not moved else moved,
            "flops_source": "profiler",
            "shape": cut(shape[1], 120) if shape else None,
        }


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float | Decimal) and 0 <= value < 1e30 else 0.0


def _ps(value: Any, file: str) -> int:
    """Return microseconds in picoseconds."""
    picoseconds = round(value * 10**6) if isinstance(value, int | Decimal) and 0 <= value < _MOST_PS else 0
    if picoseconds > _MOST_PS:
        raise BadProfile(f"{file}: a time of {value!s:.40} us, beyond Int64 picoseconds")
    return picoseconds


def _program(value: Any) -> int | None:
    """Return the id of a program as Int64, as events refer to it."""
    written = re.fullmatch(r"\d{1,20}", str(value))
    return (int(written[0]) + 2**63) % 2**64 - 2**63 if written and int(written[0]) else None


MEMORY_ENDINGS = ("memory_profile.json", "memory_profile.json.gz")
"""Endings of the names of such tables."""

_ALLOCATORS = "memoryProfilePerAllocator"
_LISTS = ("memoryProfileSnapshots", "sampledTimelineSnapshots")
_SIGNS = {"ALLOCATION": 1, "DEALLOCATION": -1}
_MOST = 2**62  # sums of two still fit Int64


def is_memory_table(name: str, data: bytes) -> bool:
    """Return whether a file is such a table, by its name or its first bytes.

    >>> is_memory_table("vm.memory_profile.json", b""), is_memory_table("a.json", b'{"memoryProfilePerAllocator":{}}')
    (True, True)
    """
    return name.endswith(MEMORY_ENDINGS) or f'"{_ALLOCATORS}"'.encode() in data[:4096]


def memory(data: bytes | BadProfile, name: str) -> pl.DataFrame:
    """Return the allocations of one host in order of time, ``tpunb.schema.MEMORY``; the host is the name's prefix."""
    top = parsed(data, name)
    allocators = top.get(_ALLOCATORS, {}) if isinstance(top, dict) else None
    if not isinstance(allocators, dict):
        raise BadProfile(f"{name}: JSON, but no memory profile of XProf: a {type(top).__name__}")
    host = next((name.removesuffix(ending) for ending in MEMORY_ENDINGS if name.endswith(ending)), "").removesuffix(".")
    snapshots = {row for allocator, table in allocators.items() for row in _snapshot_rows(allocator, table)}
    of_memory = {key: dtype for key, dtype in schema.MEMORY.items() if key != "host"}
    frame = pl.DataFrame([*snapshots], schema=of_memory, orient="row").with_columns(host=pl.lit(host))
    return schema.check(frame.sort("start_ps", "allocator", "in_use_bytes"), schema.MEMORY, "memory")


def _snapshot_rows(allocator: str, table: Any) -> Iterator[tuple[str | int | None, ...]]:
    """Yield (allocator, start_ps, size_bytes, in_use_bytes, peak_bytes, capacity_bytes, tf_op)."""
    for snapshot in (each for key in _LISTS for each in objects(as_object(table).get(key))):
        stats, activity = (as_object(snapshot.get(key)) for key in ("aggregationStats", "activityMetadata"))
        start = integer(snapshot.get("timeOffsetPs"))
        if start is None:
            continue
        size, sign = integer(activity.get("allocationBytes")), _SIGNS.get(text(activity.get("memoryActivity")))
        heap, stack, free = (integer(stats.get(f"{n}Bytes")) for n in ("heapAllocated", "stackReserved", "freeMemory"))
        used = None if heap is None else heap + (stack or 0)
        op, peak = text(activity.get("tfOpName")), integer(stats.get("peakBytesInUse"))
        change = sign * size if size and sign else None
        capacity = None if used is None or free is None else used + free
        yield allocator, start, change, used, peak, capacity, None if op in ("", "dummy") else op


# -- values of JSON, which may be of any type --------------------------------------------------------------------------


def parsed(data: bytes | BadProfile, file: str) -> Any:
    """Parse a file, or raise why it could not be read."""
    if isinstance(data, BadProfile):
        raise data
    return parse(data, file)


def as_object(value: Any) -> Object:
    """Return an object, empty if it is none."""
    return value if isinstance(value, dict) else {}


def objects(value: Any) -> list[Object]:
    """Return the items of a list, each as an object."""
    return [as_object(item) for item in value] if isinstance(value, list) else []


def text(value: Any) -> str:
    """Return text, empty if it is none."""
    return value if isinstance(value, str) else ""


def number_of(value: Any) -> Decimal | None:
    """Return a number, or one written as text (int64, or a percentage in some years); None for other values."""
    if type(value) in (int, Decimal):
        return Decimal(value)
    written = isinstance(value, str) and _NUMBER.fullmatch(value)
    return Decimal(written[0]) if written else None


def integer(value: Any) -> int | None:
    """Return a whole number from 0, which may be text; None for other values."""
    count = number_of(value)
    return int(count) if count is not None and 0 <= count < _MOST and count == int(count) else None


def columns(table: Object) -> list[str]:
    """Return the ids of the columns of a table."""
    return [text(column.get("id")) for column in objects(table.get("cols"))]


def rows_of(table: Object) -> Iterator[Object]:
    """Yield the rows of a table, by the ids of its columns."""
    ids = columns(table)
    for row in objects(table.get("rows")):
        yield dict(zip(ids, [cell.get("v") for cell in objects(row.get("c"))], strict=False))
