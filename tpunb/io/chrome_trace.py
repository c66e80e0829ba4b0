"""Decode Chrome trace JSON, as exported by XProf and written by PyTorch, to events.

TensorFlow and JAX name planes and lines in "M" events; PyTorch has a category on each event instead.
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
from tpunb.frames.hardware import DEVICES
from tpunb.io import hlo as texts
from tpunb.io.event_ids import flow_id, run_launch
from tpunb.step_stats.boundaries import PYTORCH_STEP
from tpunb.step_stats.op_names import FRAMEWORK_OP, FUNCTION_CALL
from tpunb.text import format_error

_ON_STREAMS = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}
_ANNOTATIONS = {"gpu_user_annotation", "cuda_sync"}  # describe kernels of a device, and are none
_OPERATORS = ["cpu_op", "Operator"]
_FRAME = "python_function"
_TRACE = "Trace"  # PyTorch's category of the time span of the trace
_NCCL_CALL = "record_param_comms"  # describes the call whose kernels have its external id
_NCCL_SIZES = ("In msg nelems", "Out msg nelems")
_TYPE_BYTES = {
    **dict.fromkeys(("byte", "char", "bool", "float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("half", "bfloat16", "short"), 2),
    **dict.fromkeys(("float", "int"), 4),
    **dict.fromkeys(("double", "long", "complexfloat"), 8),
    "complexdouble": 16,
}
_SCALARS = (str, int, Decimal)
_LIMIT = 2**63
_RECENT_NS = 10**18  # the year 2001: times below are not since 1970

_Event = Mapping[str, Any]
_Names = Mapping[tuple[str | None, ...], str]


@contextmanager
def _without_collector() -> Iterator[None]:
    """Pause garbage collection, which would search millions of objects without cycles again and again."""
    paused = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if paused:
            gc.enable()


@_without_collector()
def read(data: bytes, *, source: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the events of a Chrome trace, in file order, ``tpunb.schema.EVENTS``, and ``tpunb.schema.HARDWARE``.

    The host is the rank of PyTorch, else "". Times of PyTorch, and those beyond Int64, start at 0.

    >>> trace = b'[{"ph": "X", "pid": 1, "tid": 2, "ts": 0.5, "dur": 2.25, "name": "fc/MatMul:MatMul"}, {}]'
    >>> read(trace, source="toy")[0].select("plane", "line", "name", "start_ps", "dur_ps").row(0)
    ('/host:CPU', '2', 'MatMul', 500000, 2250000)
    """
    events, hardware, _ = read_with_origin(data, source=source)
    return events, hardware


def read_with_origin(data: bytes, *, source: str) -> tuple[pl.DataFrame, pl.DataFrame, int | None]:
    """Return what `read` does, and time 0 of the events in nanoseconds since 1970, which PyTorch records."""
    top = parse(data, source)
    events, origin_ps = _events(top, source)
    base_ns = top.get("baseTimeNanoseconds") if isinstance(top, dict) else None
    origin_ns = (base_ns if isinstance(base_ns, int) else 0) + origin_ps // 1000
    return events, hardware(events, _device_names(top)), origin_ns if origin_ns > _RECENT_NS else None


def _events(top: Any, source: str) -> tuple[pl.DataFrame, int]:
    """Return the events, and how far they were moved."""
    origin, items = 0, _items(top, source)
    spans = _spans(items)
    starts = _picoseconds(spans, [span.get("ts") for span in spans], "ts", source)
    durations = _picoseconds(spans, [span.get("dur", 0) for span in spans], "dur", source)
    if starts and (max(starts) >= _LIMIT or (isinstance(top, dict) and "schemaVersion" in top)):
        origin = min(starts)
        starts = [start - origin for start in starts]
    args = _Args(spans)
    texts = ("tf_op", "annotation", "hlo_op", "hlo_category", "step_name", "long_name", "tf_function_call")
    numbers = ("step_num", "model_flops", "flops", "bytes_accessed", "device_duration_ps", "program_id")
    frame = args.places(_named(items, "process_name"), _named(items, "thread_name")).with_columns(
        host=pl.lit(_host(top), schema.NAME),
        start_ps=pl.Series(_fitting(starts, source), dtype=pl.Int64),
        dur_ps=pl.Series(_fitting(durations, source), dtype=pl.Int64),
        name=_texts([span.get("name") for span in spans]).fill_null(""),
        **{name: args.text(name) for name in texts},
        **{name: args.integer(name) for name in numbers},
        calls_driver=args.calls_driver(),
        flow_out=args.flow("_pt", "_p"),
        flow_in=args.flow("_ct", "_c"),
        operator=args.operators(),
    )
    frame = frame.with_columns(**_columns(), correlation_id=args.launch(frame["plane"]))
    return schema.check(frame, schema.EVENTS, "events"), origin


def instructions(data: bytes, *, source: str) -> pl.DataFrame:
    """Return the HLO instructions that the arguments of events describe: ``tpunb.schema.INSTRUCTIONS``."""
    top = parse(data, source)
    keys = ("program_id", "shape_with_layout", "source", "long_name")
    distinct = {
        tuple(map(str, (item.get("name"), *map(_args(item).get, keys)))): {"name": item.get("name"), **_args(item)}
        for item in _items(top, source)
        if "hlo_category" in _args(item)
    }
    args = _Args([{"args": each} for each in distinct.values()])
    rows = pl.DataFrame(
        {
            "hlo_op": args.text("name"),
            "program": args.integer("program_id"),
            "shape": args.text("shape_with_layout"),
            "source": [None if path is None else texts.relative(path) for path in args.text("source")],
            "text": args.text("long_name"),
        }
    )
    return texts.merged([[texts.described(rows)]], _host(top))


def messages(data: bytes, *, source: str) -> pl.DataFrame:
    """Return what PyTorch recorded of the messages of NCCL's kernels: ``tpunb.schema.MESSAGES``."""
    top = parse(data, source)
    spans = _spans(_items(top, source))
    calls = {str(_args(span).get("External id")): _args(span) for span in spans if span.get("name") == _NCCL_CALL}
    rows = []
    for number, span in enumerate(spans):
        args = _args(span)
        if "stream" in args and str(span.get("name")).lower().startswith("nccl"):
            message = args if _NCCL_SIZES[0] in args else calls.get(str(args.get("External id")), {})
            rows.append((number, *_message(message)))
    facts = {name: schema.MESSAGES[name] for name in ("bytes", "groups", "size")}
    columns: schema.Schema = {"row": pl.UInt32(), **facts}
    recorded = pl.DataFrame(rows, schema=columns, orient="row").filter(~pl.all_horizontal(pl.exclude("row").is_null()))
    events = _events(top, source)[0][recorded["row"]].select("host", "start_ps", device="plane")
    return schema.check(events.hstack(recorded.drop("row")), schema.MESSAGES, "messages")


def _message(args: _Event) -> tuple[int | None, str | None, int | None]:
    """Return bytes, replica group and size of the group of one message."""
    counts = [count for key in _NCCL_SIZES if type(count := args.get(key)) is int and 0 <= count < _LIMIT]
    width = _TYPE_BYTES.get(str(args.get("dtype")).lower())
    size, ranks = args.get("Group size"), str(args.get("Process Group Ranks"))
    listed = re.fullmatch(r"\[((?:\d{1,9}, ?)*\d{1,9})\]", ranks)  # a long list is cut
    total = max(counts) * width if counts and width else None
    return (
        total if total is not None and total < _LIMIT else None,
        f"{{{{{listed[1].replace(' ', '')}}}}}" if listed else None,
        size if type(size) is int and 0 < size < _LIMIT else None,
    )


def hardware(events: pl.DataFrame, names: Mapping[str, str]) -> pl.DataFrame:
    """Return ``tpunb.schema.HARDWARE`` of the devices among the planes of `events`; `names` has kinds of devices."""
    planes = events.select(pl.col("host", "plane").cast(pl.String)).unique(maintain_order=True)
    rows = []
    for host, device in planes.filter(pl.col("plane").str.starts_with("/device:")).rows():
        kind = names.get(device) or device.split(":")[1]
        chip = next((chip for chip in DEVICES.values() if chip.of_kind(kind)), None)
        peaks = (chip.peak_flops / chip.cores, chip.bandwidth / chip.cores) if chip else (None, None)
        rows.append((host, device, kind, *peaks, None))
    return pl.DataFrame(rows, schema=schema.HARDWARE, orient="row")


def _device_names(top: Any) -> dict[str, str]:
    """Return the names that PyTorch gives to GPUs in ``deviceProperties``."""
    devices: Any = top.get("deviceProperties") if isinstance(top, dict) else None
    listed = [each for each in devices if isinstance(each, dict)] if isinstance(devices, list) else []
    names = {f"/device:GPU:{each.get('id')}": each.get("name") for each in listed}
    return {device: name for device, name in names.items() if isinstance(name, str)}


def parse(data: bytes, source: str) -> Any:
    """Parse JSON text with exact fractions; a NaN becomes None, a half surrogate a question mark."""
    if not data:
        raise BadProfile(f"{source}: the file is empty", hint="the capture failed, or its copy did")
    try:
        text = data.decode(json.detect_encoding(data), "replace")
        # surrogates, which Polars cannot encode
        hook = _without_halves if re.search(r"\\u[dD][89a-fA-F]", text) else None
        # Decimal: microseconds since 1970 as float have a resolution of 0.25 us
        return json.loads(text, parse_float=Decimal, parse_constant=lambda word: None, object_pairs_hook=hook)
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise BadProfile(
            f"{source}: not JSON: {format_error(error)}; {len(data)} bytes, the first {data[:16]!r}",
            hint="copy the file again; it was truncated while written or copied, is compressed, or of another format",
        ) from error


def _without_halves(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    def clean(text: str) -> str:
        return text.encode("utf8", "replace").decode("utf8")

    return {clean(key): clean(value) if isinstance(value, str) else value for key, value in pairs}


def _items(top: Any, source: str) -> Sequence[_Event]:
    events = top.get("traceEvents") if isinstance(top, dict) else top
    if isinstance(events, list):
        items = [item for item in events if isinstance(item, dict)]
        if isinstance(top, dict) or any("ph" in item for item in items):
            return items
    content = f"an object with {sorted(top)[:8]}" if isinstance(top, dict) else f"a {type(top).__name__}"
    raise BadProfile(f"{source}: JSON, but no Chrome trace: {content}", hint="a trace has a list traceEvents")


def _spans(items: Sequence[_Event]) -> list[_Event]:
    return [item for item in items if item.get("ph") == "X" and item.get("cat") != _TRACE]


def _host(top: Any) -> str:
    info = top.get("distributedInfo") if isinstance(top, dict) else None
    rank = info.get("rank") if isinstance(info, dict) else None
    return f"rank {rank}" if isinstance(rank, int) else ""


def _args(item: _Event) -> _Event:
    args = item.get("args")
    return args if isinstance(args, dict) else {}


def _texts(values: Sequence[Any]) -> pl.Series:
    """Return text and numbers as text, other values as null."""
    if not set(map(type, values)) <= {str, type(None)}:
        values = [str(value) if isinstance(value, _SCALARS) else None for value in values]
    return pl.Series(values, dtype=pl.String)


def _named(items: Sequence[_Event], kind: str) -> _Names:
    """Return the names that "M" events give to processes (by pid) or to threads (by pid and tid)."""
    named = [item for item in items if item.get("ph") == "M" and item.get("name") == kind]
    keys = ["pid"] if kind == "process_name" else ["pid", "tid"]
    ids = [_texts([item.get(key) for item in named]) for key in keys]
    names = _texts([_args(item).get("name") for item in named])
    return {tuple(key): name for *key, name in zip(*ids, names, strict=True) if name is not None}


class _Args:
    """Arguments of events, one column per key."""

    def __init__(self, spans: Sequence[_Event]) -> None:
        self._spans = spans
        self._args = [_args(span) for span in spans]
        self._keys = set(chain.from_iterable(self._args))

    def text(self, key: str) -> pl.Series:
        """Return an argument as text; null if it is empty, of another type, or missing."""
        if key not in self._keys:
            return pl.Series([None], dtype=pl.String).new_from_index(0, len(self._args))
        texts = _texts([args.get(key) for args in self._args])
        return texts.set(texts == "", None)

    def integer(self, key: str) -> pl.Series:
        """Return an argument as Int64; null unless it is an integer of at most 18 digits."""
        texts = self.text(key)
        return texts.set(~texts.str.contains(r"^[0-9]{1,18}$"), None).cast(pl.Int64)

    def flow(self, kind: str, number: str) -> pl.Series:
        """Return ids of flows, see :func:`tpunb.io.event_ids.flow_id`."""
        kinds, numbers = self._ids(kind), self._ids(number)
        ids = [None if n is None else flow_id(kind or 0, n) for kind, n in zip(kinds, numbers, strict=True)]
        return pl.Series(ids, dtype=pl.UInt64)

    def operators(self) -> pl.Series:
        """Return PyTorch's operator with the external id of each kernel; null for names like "nccl:all_reduce"."""
        named: dict[str, Any] = {}
        for span, args in zip(self._spans, self._args, strict=True):
            if span.get("cat") in _OPERATORS and "External id" in args:
                named.setdefault(str(args["External id"]), span.get("name"))
        ids = (args.get("external id", args.get("External id")) if "stream" in args else None for args in self._args)
        operators = _texts([None if each is None else named.get(str(each)) for each in ids])
        return operators.set(operators.str.contains(f"^{FRAMEWORK_OP.pattern}$"), None)

    def calls_driver(self) -> pl.Series:
        """Return which events are calls of a device's driver: only these have a correlation id."""
        ids = [self._ids(key) for key in ("correlation_id", "correlation")]
        return pl.Series([bool(one or other) for one, other in zip(*ids, strict=True)], dtype=pl.Boolean)

    def launch(self, planes: pl.Series) -> pl.Series:
        """Return ids of launches from correlation id, else run and device, see :mod:`tpunb.io.event_ids`."""
        if not self._keys & {"correlation_id", "correlation", "run_id"}:
            return pl.Series([None], dtype=pl.UInt64).new_from_index(0, len(self._args))
        distinct = {plane: _ordinal(plane) for plane in planes.unique()}
        devices = [distinct[plane] for plane in planes]
        thunks = self.text("hlo_op").is_not_null()
        values = [self._ids(key) for key in ("correlation_id", "correlation", "run_id", "device_ordinal")]
        ids = []
        for device, thunk, correlation_id, correlation, run, named in zip(devices, thunks, *values, strict=True):
            ordinal = device if device is not None else -1 if thunk or named is None else named
            counted = run is not None and (named is None or named % 2**64 != 2**64 - 1)  # TensorFlow counts no thunks
            by_run = run_launch(run, ordinal) if counted else None
            ids.append((correlation_id or correlation or 0) % 2**64 or by_run)
        return pl.Series(ids, dtype=pl.UInt64)

    def places(self, processes: _Names, threads: _Names) -> pl.DataFrame:
        """Return plane, line and lane of each event, and PyTorch's category as `kind`."""
        keys = {key: _texts([span.get(key) for span in self._spans]) for key in ("cat", "pid", "tid")}
        rows = pl.DataFrame({**keys, "device": self.text("device"), "stream": self.text("stream")})
        distinct = rows.unique(maintain_order=True)
        places = [(*_place(key, processes, threads), *key[1:3]) for key in distinct.rows()]
        lanes = {place: lane for lane, place in enumerate(dict.fromkeys(places))}  # threads of one name are distinct
        columns = {"plane": pl.String, "line": pl.String, "lane": pl.UInt32}
        placed = distinct.hstack(
            pl.DataFrame([(*place[:2], lanes[place]) for place in places], schema=columns, orient="row")
        )
        rows = rows.join(placed, on=rows.columns, how="left", nulls_equal=True, maintain_order="left")
        return rows.select("plane", "line", "lane", kind="cat")

    def _ids(self, key: str) -> Sequence[int | None]:
        """Return an argument as signed or unsigned integers; None if it is not one of 64 bits."""
        texts = self.text(key)
        digits = texts.set(~texts.str.contains(r"^-?[0-9]{1,20}$"), None)
        return [None if number is None else int(number) for number in digits.to_list()]


def _ordinal(plane: str) -> int | None:
    """Return the number of a device; None for a host, whose events name the device."""
    if not plane.startswith("/device:"):
        return None
    number = re.search(r":([0-9]{1,9})$", plane)
    return int(number[1]) if number else 0


def _place(key: Sequence[str | None], processes: _Names, threads: _Names) -> tuple[str, str]:
    """Return plane and line of events of one category, process, thread, device and stream."""
    category, pid, tid, device, stream = key
    plane, line = processes.get((pid,)), threads.get((pid, tid), tid or "")
    if plane is not None and plane.startswith("/"):
        return plane, line
    kind = (category or "").lower()
    if kind in _ON_STREAMS:
        return f"/device:GPU:{device or pid or 0}", f"Stream #{stream or tid or 0}"
    if kind in _ANNOTATIONS:
        return f"/device:GPU:{device or pid or 0}", "Annotations"
    return "/host:CPU" if plane is None or category else plane, line


def _columns() -> dict[str, pl.Expr]:
    """Return the columns that depend on the plane of an event and on the profiler."""
    device, kind, name = pl.col("plane").str.starts_with("/device:"), pl.col("kind"), pl.col("name")
    call = pl.col("tf_function_call").is_not_null()
    framework = f"^(?:{FRAMEWORK_OP.pattern})$"
    full = pl.coalesce(*(pl.when(op.str.contains(framework)).then(op) for op in (name, pl.col("long_name"))))
    full = pl.when(kind.is_null() & ~call).then(full)  # not PyTorch's "nccl:all_reduce"
    step = pl.when(~device).then(name.str.extract(PYTORCH_STEP))
    step_num = pl.coalesce("step_num", step.cast(pl.Int64))
    # before step_num, XProf named the step on its first event
    older = pl.when(step_num.is_null().all() & ~device).then(pl.col("step_name").str.extract(r"([0-9]{1,18})$"))
    of_host = (
        pl.when(step.is_not_null())
        .then(pl.lit("ProfilerStep"))
        .when(kind == _FRAME)
        .then("$" + name)  # as in TensorFlow's Python tracer
        .otherwise(pl.coalesce(full.str.extract(framework), name))
    )
    op = pl.coalesce("tf_op", pl.col("annotation").str.splitn("#", 2).struct.field("field_0")).str.strip_suffix(":")
    return {
        "name": pl.when(device).then(pl.coalesce("step_name", name)).otherwise(of_host),
        "tf_op": pl.when(device)
        .then(pl.coalesce(pl.when(~op.is_in(["", "XlaModule"])).then(op), "operator"))
        .when(call)
        .then(pl.lit(FUNCTION_CALL))
        .otherwise(full),
        "hlo_op": pl.coalesce(
            pl.when(device | ~pl.col("calls_driver")).then("hlo_op"),
            pl.when(device & pl.col("hlo_category").is_not_null()).then(name),
        ),
        "category": pl.when(device).then("hlo_category"),
        "step_num": pl.coalesce(step_num, older.cast(pl.Int64)),
        "device_dur_ps": pl.when(device).then("device_duration_ps"),
        "flops": pl.when(device).then(pl.coalesce("model_flops", "flops")),
        "program": pl.col("program_id"),
        "bytes": pl.when(device).then("bytes_accessed"),
    }


def _picoseconds(spans: Sequence[_Event], values: Sequence[Any], key: str, source: str) -> list[int]:
    # the bound prevents an integer of a billion digits from 1e999999999
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
