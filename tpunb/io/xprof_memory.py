"""Read XProf's ``memory_profile`` table: allocations by allocator, sampled if there are many.

It is an object with a profile for each allocator. Of its two lists one has the allocations alive at the peak, the other
at most a thousand over the whole time. Integers are text, as in all JSON of protobuf, and 0 where they are unset. Times
begin with the first event of a thread, so those of threads that began later do not agree with the raw profile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from tpunb import schema
from tpunb.errors import BadProfile
from tpunb.io.chrome_trace import parse

ENDINGS = ("memory_profile.json", "memory_profile.json.gz")
"""Endings of the names of such tables."""

_ALLOCATORS = "memoryProfilePerAllocator"
_LISTS = ("memoryProfileSnapshots", "sampledTimelineSnapshots")
_SIGNS = {"ALLOCATION": 1, "DEALLOCATION": -1}
_MOST = 2**62  # sums of two still fit Int64


def is_table(name: str, data: bytes) -> bool:
    """Return whether a file is such a table, by its name or its first bytes.

    >>> is_table("vm.memory_profile.json", b""), is_table("a.json", b'{"memoryProfilePerAllocator":{}}')
    (True, True)
    """
    return name.endswith(ENDINGS) or f'"{_ALLOCATORS}"'.encode() in data[:4096]


def read(data: bytes, name: str) -> pl.DataFrame:
    """Return the allocations of one host in order of time, ``tpunb.schema.MEMORY``; the host is the name's prefix.

    Raises
    ------
    BadProfile
        When the data is not JSON or not such a table.
    """
    top = parse(data, name)
    allocators = top.get(_ALLOCATORS, {}) if isinstance(top, dict) else None
    if not isinstance(allocators, dict):
        raise BadProfile(f"{name}: JSON, but no memory profile of XProf: a {type(top).__name__}")
    host = next((name.removesuffix(ending) for ending in ENDINGS if name.endswith(ending)), "").removesuffix(".")
    rows = {row for allocator, table in allocators.items() for row in _rows(allocator, table)}
    columns = {key: dtype for key, dtype in schema.MEMORY.items() if key != "host"}
    frame = pl.DataFrame([*rows], schema=columns, orient="row").with_columns(host=pl.lit(host))
    return schema.check(frame.sort("start_ps", "allocator", "in_use_bytes"), schema.MEMORY, "memory")


def _rows(allocator: str, table: Any) -> Iterator[tuple[str | int | None, ...]]:
    """Yield (allocator, start_ps, size_bytes, in_use_bytes, peak_bytes, capacity_bytes, tf_op)."""
    for snapshot in (each for key in _LISTS for each in _list(table, key)):
        stats, activity = _object(snapshot, "aggregationStats"), _object(snapshot, "activityMetadata")
        start = _integer(snapshot, "timeOffsetPs")
        if start is None:
            continue
        size, sign = _integer(activity, "allocationBytes"), _SIGNS.get(str(activity.get("memoryActivity")))
        heap, stack, free = (
            _integer(stats, f"{name}Bytes") for name in ("heapAllocated", "stackReserved", "freeMemory")
        )
        used = None if heap is None else heap + (stack or 0)
        op = activity.get("tfOpName")
        yield (
            allocator,
            start,
            sign * size if size and sign else None,
            used,
            _integer(stats, "peakBytesInUse"),
            None if used is None or free is None else used + free,
            op if isinstance(op, str) and op not in ("", "dummy") else None,
        )


def _object(value: Any, key: str) -> dict[str, Any]:
    inner = value.get(key) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else {}


def _list(value: Any, key: str) -> list[dict[str, Any]]:
    inner = value.get(key) if isinstance(value, dict) else None
    return [each for each in inner if isinstance(each, dict)] if isinstance(inner, list) else []


def _integer(value: dict[str, Any], key: str) -> int | None:
    """Return a whole number from 0, which may be text; None for others."""
    number = value.get(key)
    if isinstance(number, str) and number.isascii() and number.isdigit() and len(number) <= 19:
        number = int(number)
    return number if type(number) is int and 0 <= number < _MOST else None
