"""Chrome trace JSON as events: what XProf exports for TensorFlow and JAX, and what PyTorch writes.

TensorFlow and JAX name planes and lines in "M" events, and every argument is a string. PyTorch has a
category on each event instead, and its process and thread ids may be words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, NoReturn

import polars as pl

from tpunb import schema
from tpunb.errors import BadProfile
from tpunb.op_names import FRAMEWORK_OP, FUNCTION_CALL

_DEVICE_CATEGORIES = {"kernel", "gpu_memcpy", "gpu_memset"}
_LIMIT = 2**63

_Event = Mapping[str, Any]


def events(data: bytes, *, source: str) -> pl.DataFrame:
    """Return the events of a Chrome trace, in file order.

    Parameters
    ----------
    data
        The JSON text, an object with ``traceEvents`` or the list itself; not compressed.
    source
        Where it came from, for errors.

    Returns
    -------
    ``tpunb.schema.EVENTS``. The host is "", for the format does not name it. Times that do not fit Int64
    picoseconds (PyTorch counts from 1970) are moved so that the first event starts at 0.

    Raises
    ------
    BadProfile
        When the bytes are no JSON, the JSON no trace, or a time no number.

    >>> trace = b'[{"ph": "X", "pid": 1, "tid": 2, "ts": 0.5, "dur": 2.25, "name": "fc/MatMul:MatMul"}, {}]'
    >>> events(trace, source="toy").select("plane", "line", "name", "start_ps", "dur_ps").row(0)
    ('/host:CPU', '2', 'MatMul', 500000, 2250000)
    """
    items = _items(data, source)
    spans = [item for item in items if item.get("ph") == "X"]
    planes, lines = _named(items, "process_name"), _named(items, "thread_name")
    threads = [(_plane(span, planes), _text(span.get("pid")), _text(span.get("tid"))) for span in spans]
    lanes = {thread: lane for lane, thread in enumerate(dict.fromkeys(threads))}
    starts = [_picoseconds(span, "ts", source) for span in spans]
    if max(starts, default=0) >= _LIMIT:
        origin = min(starts)
        starts = [start - origin for start in starts]
    durations = [_picoseconds(span, "dur", source) for span in spans]
    names = [_names(span, thread[0]) for span, thread in zip(spans, threads, strict=True)]
    columns: dict[str, list[Any]] = {
        "host": [""] * len(spans),
        "plane": [plane for plane, _, _ in threads],
        "line": [lines.get((pid, tid), tid) for _, pid, tid in threads],
        "lane": [lanes[thread] for thread in threads],
        "name": [name for name, _, _ in names],
        "tf_op": [tf_op for _, tf_op, _ in names],
        "hlo_op": [hlo_op for _, _, hlo_op in names],
        "step_num": [_step_num(span) for span in spans],
        "start_ps": _fitting(starts, source),
        "dur_ps": _fitting(durations, source),
    }
    return pl.DataFrame(columns, schema=schema.EVENTS)


def hardware(events: pl.DataFrame) -> pl.DataFrame:
    """Return a row a device among the planes of `events`, ``tpunb.schema.HARDWARE``; its peaks are not known.

    >>> trace = b'[{"ph": "X", "cat": "kernel", "ts": 0, "dur": 1, "name": "gemm", "args": {"device": 3}}]'
    >>> hardware(events(trace, source="toy")).row(0)
    ('', '/device:GPU:3', 'GPU', None, None)
    """
    planes = events.select(pl.col("host", "plane").cast(pl.String)).unique(maintain_order=True)
    devices = planes.filter(pl.col("plane").str.starts_with("/device:"))
    return devices.select(
        "host",
        pl.col("plane").alias("device"),
        pl.col("plane").str.split(":").list.get(1).alias("kind"),
        pl.lit(None, pl.Float64).alias("peak_flops"),
        pl.lit(None, pl.Float64).alias("hbm_bandwidth"),
    )


def _items(data: bytes, source: str) -> Sequence[_Event]:
    def refuse(word: str) -> NoReturn:
        raise ValueError(f"{word} is no JSON number")

    if not data:
        raise BadProfile(f"{source}: the file is empty", hint="the capture failed, or its copy did")
    try:
        # Decimal: microseconds since 1970 in a float step by 0.25 us
        top = json.loads(data, parse_float=Decimal, parse_constant=refuse)
    except (ValueError, ArithmeticError, RecursionError) as error:
        reason = str(error).partition("\n")[0]
        raise BadProfile(
            f"{source}: no JSON: {reason}; {len(data)} bytes, the first {data[:16]!r}",
            hint="the file was cut while written or copied, or is compressed, or is of another format",
        ) from error
    found = top.get("traceEvents") if isinstance(top, dict) else top
    if isinstance(found, list):
        items = [item for item in found if isinstance(item, dict)]
        if isinstance(top, dict) or any("ph" in item for item in items):
            return items
    seen = f"an object with {sorted(top)[:8]}" if isinstance(top, dict) else f"a {type(top).__name__}"
    raise BadProfile(f"{source}: JSON, but no Chrome trace: {seen}", hint="a trace has a list traceEvents")


def _args(item: _Event) -> _Event:
    args = item.get("args")
    return args if isinstance(args, dict) else {}


def _text(value: Any) -> str:
    return str(value).encode("utf8", "replace").decode("utf8")  # JSON can spell half a character, Polars cannot


def _named(items: Sequence[_Event], kind: str) -> dict[str | tuple[str, str], str]:
    """Return the names that "M" events give to processes (by pid) or to threads (by pid and tid)."""
    names: dict[str | tuple[str, str], str] = {}
    for item in items:
        if item.get("ph") == "M" and item.get("name") == kind and "name" in _args(item):
            pid, tid = _text(item.get("pid")), _text(item.get("tid"))
            names[pid if kind == "process_name" else (pid, tid)] = _text(_args(item)["name"])
    return names


def _plane(span: _Event, planes: Mapping[Any, str]) -> str:
    named = planes.get(_text(span.get("pid")))
    if named is not None and named.startswith("/"):
        return named
    category = span.get("cat")
    if isinstance(category, str) and category in _DEVICE_CATEGORIES:
        return _text(f"/device:GPU:{_args(span).get('device', span.get('pid'))}")
    return "/host:CPU" if named is None or category else named


def _names(span: _Event, plane: str) -> tuple[str, str | None, str | None]:
    """Return name, tf_op and hlo_op of an event."""
    args, name = _args(span), _text(span.get("name", ""))
    hlo_op = _text(args.get("hlo_op", "")) or None
    if plane.startswith("/device:"):
        tf_op = args.get("tf_op") or _text(args.get("annotation", "")).partition("#")[0]
        return name, _text(tf_op).removesuffix(":") or None, hlo_op
    if "tf_function_call" in args:
        return name, FUNCTION_CALL, hlo_op
    for full in (name, _text(args.get("long_name", ""))):
        if found := FRAMEWORK_OP.fullmatch(full):
            return found["type"], full, hlo_op
    return name, None, hlo_op


def _step_num(span: _Event) -> int | None:
    text = str(_args(span).get("step_num", ""))
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def _picoseconds(span: _Event, key: str, source: str) -> int:
    value = span.get(key, 0 if key == "dur" else None)
    # the bound keeps 1e999999999 from becoming an integer of a billion digits
    if isinstance(value, bool) or not isinstance(value, int | Decimal) or not -(10**30) < value < 10**30:
        raise BadProfile(f"{source}: event {span.get('name')!r:.80} has {key} {value!r:.40}, not a number")
    return round(value * 1_000_000)


def _fitting(times: list[int], source: str) -> list[int]:
    low, high = min(times, default=0), max(times, default=0)
    if low < -_LIMIT or high >= _LIMIT:
        raise BadProfile(f"{source}: times from {low} to {high} ps do not fit Int64 picoseconds")
    return times
