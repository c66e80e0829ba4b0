"""Chrome trace JSON as events: what XProf exports for TensorFlow and JAX, and what PyTorch writes.

TensorFlow and JAX name planes and lines in "M" events, and every argument is a string. PyTorch has a
category on each event instead, and its process and thread ids may be words.
"""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from itertools import chain
from typing import Any

import polars as pl

from tpunb import schema
from tpunb.errors import BadProfile
from tpunb.ids import flow_id, run_launch
from tpunb.op_names import FRAMEWORK_OP, FUNCTION_CALL

_ON_STREAMS = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}
_BESIDE = {"gpu_user_annotation", "cuda_sync"}  # tell of a device's kernels, and are none
_FRAME = "python_function"
_WHOLE_RUN = "Trace"  # PyTorch's word for the time in which its profiler watched: no event of the run
_SCALARS = (str, int, Decimal)
_LIMIT = 2**63

_Event = Mapping[str, Any]
_Names = Mapping[tuple[str | None, ...], str]


@contextmanager
def _without_collector() -> Iterator[None]:
    """Keep the collector from looking, over and over, through millions of objects that hold no cycle."""
    paused = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if paused:
            gc.enable()


@_without_collector()
def events(data: bytes, *, source: str) -> pl.DataFrame:
    """Return the events of a Chrome trace, in file order: ``tpunb.schema.EVENTS``.

    The host is PyTorch's "rank 3" where it ran distributed, else "": the format does not name it. PyTorch's times, and
    any that do not fit Int64 picoseconds, are moved so that the first event starts at 0.

    Parameters
    ----------
    data
        The JSON text, an object with ``traceEvents`` or the list itself; not compressed.
    source
        Where it came from, for errors.

    Raises
    ------
    BadProfile
        When the bytes are no JSON, the JSON no trace, or a time no number.

    >>> trace = b'[{"ph": "X", "pid": 1, "tid": 2, "ts": 0.5, "dur": 2.25, "name": "fc/MatMul:MatMul"}, {}]'
    >>> events(trace, source="toy").select("plane", "line", "name", "start_ps", "dur_ps").row(0)
    ('/host:CPU', '2', 'MatMul', 500000, 2250000)
    """
    top = parse(data, source)
    items = _items(top, source)
    spans = [item for item in items if item.get("ph") == "X" and item.get("cat") != _WHOLE_RUN]
    starts = _picoseconds(spans, [span.get("ts") for span in spans], "ts", source)
    durations = _picoseconds(spans, [span.get("dur", 0) for span in spans], "dur", source)
    if starts and (max(starts) >= _LIMIT or (isinstance(top, dict) and "schemaVersion" in top)):
        origin = min(starts)
        starts = [start - origin for start in starts]
    told = _Told(spans)
    words = ("tf_op", "annotation", "hlo_op", "hlo_category", "step_name", "long_name", "tf_function_call")
    numbers = ("step_num", "model_flops", "flops", "bytes_accessed", "device_duration_ps")
    frame = told.places(_named(items, "process_name"), _named(items, "thread_name")).with_columns(
        host=pl.lit(_host(top), schema.NAME),
        start_ps=pl.Series(_fitting(starts, source), dtype=pl.Int64),
        dur_ps=pl.Series(_fitting(durations, source), dtype=pl.Int64),
        name=_texts([span.get("name") for span in spans]).fill_null(""),
        **{word: told.text(word) for word in words},
        **{number: told.whole(number) for number in numbers},
        sends=told.flow("_pt", "_p"),
        receives=told.flow("_ct", "_c"),
    )
    return schema.check(frame.with_columns(**_meanings(), launch=told.launch(frame["plane"])), schema.EVENTS, "events")


def hardware(events: pl.DataFrame) -> pl.DataFrame:
    """Return a row a device among the planes of `events`, ``tpunb.schema.HARDWARE``; its peaks are not known.

    >>> trace = b'[{"ph": "X", "cat": "kernel", "ts": 0, "dur": 1, "name": "gemm", "args": {"device": 3}}]'
    >>> hardware(events(trace, source="toy")).row(0)
    ('', '/device:GPU:3', 'GPU', None, None, None)
    """
    planes = events.select(pl.col("host", "plane").cast(pl.String)).unique(maintain_order=True)
    devices = planes.filter(pl.col("plane").str.starts_with("/device:")).rename({"plane": "device"})
    kind = pl.col("device").str.split(":").list.get(1)
    unknown = [name for name in schema.HARDWARE if name not in ("host", "device", "kind")]
    return schema.check(
        devices.with_columns(*(pl.lit(None).alias(name) for name in unknown), kind=kind), schema.HARDWARE, "hardware"
    )


def parse(data: bytes, source: str) -> Any:
    """Return the value of JSON text; its fractions are exact, a NaN is None, half a character a question mark.

    Raises
    ------
    BadProfile
        When it is no JSON.
    """
    if not data:
        raise BadProfile(f"{source}: the file is empty", hint="the capture failed, or its copy did")
    try:
        text = data.decode(json.detect_encoding(data), "replace")
        halves = _cleaned if re.search(r"\\u[dD][89a-fA-F]", text) else None  # Polars cannot spell them
        # Decimal: microseconds since 1970 in a float step by 0.25 us
        return json.loads(text, parse_float=Decimal, parse_constant=lambda word: None, object_pairs_hook=halves)
    except (ValueError, ArithmeticError, RecursionError) as error:
        reason = str(error).partition("\n")[0]
        raise BadProfile(
            f"{source}: no JSON: {reason}; {len(data)} bytes, the first {data[:16]!r}",
            hint="the file was cut while written or copied, or is compressed, or is of another format",
        ) from error


def _cleaned(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    return {_whole_text(key): _whole_text(value) if isinstance(value, str) else value for key, value in pairs}


def _whole_text(text: str) -> str:
    return text.encode("utf8", "replace").decode("utf8")


def _items(top: Any, source: str) -> Sequence[_Event]:
    found = top.get("traceEvents") if isinstance(top, dict) else top
    if isinstance(found, list):
        items = [item for item in found if isinstance(item, dict)]
        if isinstance(top, dict) or any("ph" in item for item in items):
            return items
    seen = f"an object with {sorted(top)[:8]}" if isinstance(top, dict) else f"a {type(top).__name__}"
    raise BadProfile(f"{source}: JSON, but no Chrome trace: {seen}", hint="a trace has a list traceEvents")


def _host(top: Any) -> str:
    told = top.get("distributedInfo") if isinstance(top, dict) else None
    rank = told.get("rank") if isinstance(told, dict) else None
    return f"rank {rank}" if isinstance(rank, int) else ""


def _args(item: _Event) -> _Event:
    args = item.get("args")
    return args if isinstance(args, dict) else {}


def _texts(values: Sequence[Any]) -> pl.Series:
    """Return values as words; null for what is no word and no number."""
    if not set(map(type, values)) <= {str, type(None)}:
        values = [str(value) if isinstance(value, _SCALARS) else None for value in values]
    return pl.Series(values, dtype=pl.String)


def _named(items: Sequence[_Event], kind: str) -> _Names:
    """Return the names that "M" events give to processes (by pid) or to threads (by pid and tid)."""
    tellers = [item for item in items if item.get("ph") == "M" and item.get("name") == kind]
    keys = ["pid"] if kind == "process_name" else ["pid", "tid"]
    ids = [_texts([item.get(key) for item in tellers]) for key in keys]
    names = _texts([_args(item).get("name") for item in tellers])
    return {tuple(key): name for *key, name in zip(*ids, names, strict=True) if name is not None}


class _Told:
    """What events tell of themselves, a column a key."""

    def __init__(self, spans: Sequence[_Event]) -> None:
        self._spans = spans
        self._args = [_args(span) for span in spans]
        self._keys = set(chain.from_iterable(self._args))

    def text(self, key: str) -> pl.Series:
        """Return an argument as words; null where it is empty, no word, or not there."""
        if key not in self._keys:
            return pl.Series([None], dtype=pl.String).new_from_index(0, len(self._args))
        words = _texts([args.get(key) for args in self._args])
        return words.set(words == "", None)

    def whole(self, key: str) -> pl.Series:
        """Return an argument as Int64; null where it is no whole number of at most 18 digits."""
        words = self.text(key)
        return words.set(~words.str.contains(r"^[0-9]{1,18}$"), None).cast(pl.Int64)

    def flow(self, kind: str, number: str) -> pl.Series:
        """Return the ids of hand-overs: see :func:`tpunb.ids.flow_id`."""
        kinds, numbers = self._ids(kind), self._ids(number)
        ids = [None if one is None else flow_id(of or 0, one) for of, one in zip(kinds, numbers, strict=True)]
        return pl.Series(ids, dtype=pl.UInt64)

    def launch(self, planes: pl.Series) -> pl.Series:
        """Return the ids of launches: a correlation id, else the run and the device: see :mod:`tpunb.ids`."""
        if not self._keys & {"correlation_id", "correlation", "run_id"}:
            return pl.Series([None], dtype=pl.UInt64).new_from_index(0, len(self._args))
        distinct = {plane: _ordinal(plane) for plane in planes.unique()}
        told = [self._ids(key) for key in ("correlation_id", "correlation", "run_id", "device_ordinal")]
        thunks = self.text("hlo_op").is_not_null().to_list()
        ids = []
        for plane, thunk, one, other, run, named in zip(planes.to_list(), thunks, *told, strict=True):
            device = distinct[plane]
            ordinal = device if device is not None else -1 if thunk or named is None else named
            counted = run is not None and (named is None or named % 2**64 != 2**64 - 1)  # TensorFlow counts no thunks
            known = run_launch(run, ordinal) if counted else None
            ids.append((one or other or 0) % 2**64 or known)
        return pl.Series(ids, dtype=pl.UInt64)

    def places(self, processes: _Names, threads: _Names) -> pl.DataFrame:
        """Return plane, line and lane of each event, and its kind, PyTorch's category."""
        told = {key: _texts([span.get(key) for span in self._spans]) for key in ("cat", "pid", "tid")}
        rows = pl.DataFrame({**told, "device": self.text("device"), "stream": self.text("stream")})
        distinct = rows.unique(maintain_order=True)
        found = [(*_place(key, processes, threads), *key[1:3]) for key in distinct.rows()]
        lanes = {place: lane for lane, place in enumerate(dict.fromkeys(found))}  # threads of one name stay apart
        placed = distinct.with_columns(
            plane=pl.Series([plane for plane, *_ in found], dtype=pl.String),
            line=pl.Series([line for _, line, *_ in found], dtype=pl.String),
            lane=pl.Series([lanes[place] for place in found], dtype=pl.UInt32),
        )
        every = rows.join(placed, on=rows.columns, how="left", nulls_equal=True, maintain_order="left")
        return every.select("plane", "line", "lane", kind="cat")

    def _ids(self, key: str) -> Sequence[int | None]:
        """Return an argument as whole numbers, signed or not; None where it is none of 64 bits."""
        words = self.text(key)
        digits = words.set(~words.str.contains(r"^-?[0-9]{1,20}$"), None)
        return [None if number is None else int(number) for number in digits.to_list()]


def _ordinal(plane: str) -> int | None:
    """Return the number of a device; None of a host, whose events name the device."""
    if not plane.startswith("/device:"):
        return None
    found = re.search(r":([0-9]{1,9})$", plane)
    return int(found[1]) if found else 0


def _place(key: Sequence[str | None], processes: _Names, threads: _Names) -> tuple[str, str]:
    """Return the plane and the line of the events of one category, process, thread, device and stream."""
    category, pid, tid, device, stream = key
    plane, line = processes.get((pid,)), threads.get((pid, tid), tid or "")
    if plane is not None and plane.startswith("/"):
        return plane, line
    kind = (category or "").lower()
    if kind in _ON_STREAMS:
        return f"/device:GPU:{device or pid or 0}", f"Stream #{stream or tid or 0}"
    if kind in _BESIDE:
        return f"/device:GPU:{device or pid or 0}", "Annotations"
    return "/host:CPU" if plane is None or category else plane, line


def _meanings() -> dict[str, pl.Expr]:
    """Return the columns whose meaning depends on where an event lies, and on who wrote it."""
    device, kind, name = pl.col("plane").str.starts_with("/device:"), pl.col("kind"), pl.col("name")
    call = pl.col("tf_function_call").is_not_null()
    framework = f"^(?:{FRAMEWORK_OP.pattern})$"
    full = pl.coalesce(*(pl.when(op.str.contains(framework)).then(op) for op in (name, pl.col("long_name"))))
    full = pl.when(kind.is_null() & ~call).then(full)  # PyTorch's "nccl:all_reduce" is none
    step = pl.when(~device).then(name.str.extract(r"^ProfilerStep#([0-9]{1,18})$"))
    marks = pl.coalesce("step_num", step.cast(pl.Int64))
    # before there was step_num, XProf named the step on the event that began it
    older = pl.when(marks.is_null().all() & ~device).then(pl.col("step_name").str.extract(r"([0-9]{1,18})$"))
    of_host = (
        pl.when(step.is_not_null())
        .then(pl.lit("ProfilerStep"))
        .when(kind == _FRAME)
        .then("$" + name)  # as TensorFlow names the frames of its Python tracer
        .otherwise(pl.coalesce(full.str.extract(framework), name))
    )
    op = pl.coalesce("tf_op", pl.col("annotation").str.splitn("#", 2).struct.field("field_0")).str.strip_suffix(":")
    return {
        "name": pl.when(device).then(pl.coalesce("step_name", name)).otherwise(of_host),
        "tf_op": pl.when(device)
        .then(pl.when(~op.is_in(["", "XlaModule"])).then(op))
        .when(call)
        .then(pl.lit(FUNCTION_CALL))
        .otherwise(full),
        "hlo_op": pl.coalesce("hlo_op", pl.when(device & pl.col("hlo_category").is_not_null()).then(name)),
        "category": pl.when(device).then("hlo_category"),
        "step_num": pl.coalesce(marks, older.cast(pl.Int64)),
        "device_dur_ps": pl.when(device).then("device_duration_ps"),
        "flops": pl.when(device).then(pl.coalesce("model_flops", "flops")),
        "bytes": pl.when(device).then("bytes_accessed"),
    }


def _picoseconds(spans: Sequence[_Event], values: Sequence[Any], key: str, source: str) -> list[int]:
    # the bound keeps 1e999999999 from becoming an integer of a billion digits
    numbers = set(map(type, values)) <= {int, Decimal}
    if not numbers or min(values, default=0) <= -(10**30) or max(values, default=0) >= 10**30:
        for span, value in zip(spans, values, strict=True):
            if type(value) not in (int, Decimal) or not -(10**30) < value < 10**30:
                raise BadProfile(f"{source}: event {span.get('name')!r:.80} has {key} {value!r:.40}, not a number")
    return [round(value * 1_000_000) for value in values]


def _fitting(times: list[int], source: str) -> list[int]:
    low, high = min(times, default=0), max(times, default=0)
    if low < -_LIMIT or high >= _LIMIT:
        raise BadProfile(f"{source}: times from {low} to {high} ps do not fit Int64 picoseconds")
    return times
