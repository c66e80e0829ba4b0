"""Decode Chrome trace JSON, as exported by XProf and written by PyTorch, to events.

TensorFlow and JAX name planes and lines in "M" events; PyTorch has a category on each event instead.
"""

from __future__ import annotations

import gc
import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from functools import cached_property, partial
from itertools import chain, compress, pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tpunb import schema
from tpunb.costs import hlo as texts
from tpunb.costs import torch_links
from tpunb.errors import BadProfile
from tpunb.frames.hardware import DEVICES
from tpunb.io import streams
from tpunb.io.event_ids import MULTIPLIER, flow_id, run_launch
from tpunb.step_stats.boundaries import PYTORCH_STEP
from tpunb.step_stats.op_names import FRAMEWORK_OP, FUNCTION_CALL
from tpunb.text import cut, format_error, plain, plural

_ANNOTATIONS = {"gpu_user_annotation", "cuda_sync"}  # describe kernels of a device, and are none
_MTIA, _SIGNALS = "mtia_ccp_events", {"event_wait", "event_record"}  # between streams: no work either
_ON_STREAMS = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset", _MTIA}
_LABEL = re.compile(r"([A-Za-z]{2,15}) ([0-9]{1,9})")  # of a process that stands for a device: "GPU 0", "MTIA 9"
# categories that such a process may have, too
_OF_HOST = re.compile(r"\w+_(runtime|driver|op|function|annotation|range)|runtime|operator|overhead")
_ACCELERATOR = re.compile(r"[A-Z]{2,8} [0-9]{1,9}")  # name of a process that has no label
_COLLECTIVE = "privateuse1_driver"  # of Rebellions and Neuron, which have their collectives as such
_HARDWARE, _TASK = (
    "Ascend Hardware",
    "Task Type",
)  # process of what an NPU of Huawei does, and the argument of its tasks
_DESCRIBING = {
    "Overlap Analysis",
    "Communication",
    "HCCL",
}  # and of what describes that: idle time, communication again
_NO_TASK = re.compile(r"(event|notify)_(wait|record)", re.IGNORECASE)
_LIKE_DEVICE = re.compile(r"\b([DGHINMTVX]PU|MLU|GCU|accelerator|device|hardware)s?\b", re.IGNORECASE)
_FRAME = "python_function"
_TRACE = "Trace"  # PyTorch's category of the time span of the trace
_OVERHEAD = "overhead"  # and of what its profiler does while the program waits
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
_MODULUS = pl.Series([2**64], dtype=pl.Int128)  # of ids
_RECENT_NS = 10**18  # the year 2001: times below are not since 1970
_MOST_US = 10**30  # prevents an integer of a billion digits from 1e999999999
_DECIMAL = re.compile(r"-?[0-9]{1,30}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?")
_VIEWER_EVENTS, _AT_ONE_TIME = 1_000_000, 1_000
"""Events to which TensorFlow and JAX cut a trace, the earliest ones, and how many more may share the last time."""
_GAP = 16 << 20  # bytes without a quotation mark, which no trace has

_Object = Mapping[str, Any]
_Names = Mapping[tuple[str | None, ...], str]


class Event(msgspec.Struct, gc=False):
    """An event as it is written; a fraction is the text of its digits, which a float would round."""

    ph: str | None = None
    cat: str | None = None
    name: str | None = None
    pid: str | int | None = None
    tid: str | int | None = None
    ts: Any = None
    dur: Any = 0
    args: Any = None

    @classmethod
    def of(cls, item: _Object) -> Event:
        """Return an event whose names and ids may be any values: numbers as text, others as None."""
        texts = {key: str(value) for key in _FIELDS[:5] if isinstance(value := item.get(key), _SCALARS)}
        return cls(**texts, **{key: item[key] for key in _FIELDS[5:] if key in item})


_FIELDS = Event.__struct_fields__


class Trace(NamedTuple):
    """The contents of a trace."""

    events: pl.DataFrame
    hardware: pl.DataFrame
    origin_ns: int | None  # time 0 of the events in nanoseconds since 1970, which PyTorch records
    notes: list[str]  # what was left out or changed
    is_cut: bool  # the run goes on after the last event
    calls: pl.DataFrame  # what PyTorch launched each kernel for, ``tpunb.schema.CALLS``


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
def read(data: bytes, *, source: str) -> Trace:
    """Return the events of a Chrome trace, in file order, ``tpunb.schema.EVENTS``, and ``tpunb.schema.HARDWARE``.

    The host is the rank of PyTorch, else "". Times of PyTorch, and those beyond Int64, start at 0.

    >>> trace = b'[{"ph": "X", "pid": 1, "tid": 2, "ts": 0.5, "dur": 2.25, "name": "fc/MatMul:MatMul"}, {}]'
    >>> read(trace, source="toy")[0].select("plane", "line", "name", "start_ps", "dur_ps").row(0)
    ('/host:CPU', '2', 'MatMul', 500000, 2250000)
    """
    return contents(*_opened(data, source), source)


def contents(facts: _Object, items: Sequence[Event], source: str) -> Trace:
    """Return the contents of a trace from what is in it beside its events, and these."""
    timed = _timed(facts, items, source)
    events, notes, calls = _events(facts, items, timed)
    is_viewer = bool(facts) and "schemaVersion" not in facts
    is_cut = is_viewer and 0 <= len(events) - _VIEWER_EVENTS < _AT_ONE_TIME
    if is_cut:  # steps that go on after the last event lack operations
        whole = pl.col("start_ps") + pl.col("dur_ps") <= pl.col("start_ps").max()
        events = events.with_columns(pl.when(whole).then("step_num").alias("step_num"))
        notes.append(f"cut at {len(events):,} events, the most that this form holds: what follows is missing")
    return Trace(events, hardware(events, _device_names(facts)), timed.origin_ns, notes, is_cut, calls)


class _Timed(NamedTuple):
    """The events with a time, in picoseconds."""

    spans: Sequence[Event]
    starts: pl.Series
    durs: pl.Series
    origin_ns: int | None  # time 0 since 1970
    notes: list[str]


def _timed(facts: _Object, items: Sequence[Event], source: str) -> _Timed:
    """Return the events with a time; those without one are left out, unless all are."""
    spans, endless = _spans(items)
    described = _describing(items)
    every, spans = len(spans), [span for span in spans if str(span.pid) not in described] if described else spans
    starts = _picoseconds([span.ts for span in spans])
    durs = _picoseconds([span.dur for span in spans])
    base_ns = base if isinstance(base := facts.get("baseTimeNanoseconds"), int) else 0
    # a kernel whose record was lost starts at 0, in 1970
    recent = (_RECENT_NS - base_ns) * 1000
    is_sound = starts.is_not_null() & (durs >= 0).fill_null(value=False)  # kineto writes 0 - ts for an end that is lost
    if _range(starts)[1] > recent:
        is_sound &= starts >= pl.Series([recent], dtype=pl.Int128)
    if spans and not is_sound.any():
        key, value = ("ts", spans[0].ts) if starts[0] is None else ("dur", spans[0].dur)
        raise BadProfile(f"{source}: event {spans[0].name!r:.80} has {key} {value!r:.40}, not a number")
    notes = [f"{plural(endless, 'event')} left out: begun, never ended"] * bool(endless)
    if every > len(spans):
        names = ", ".join(sorted(set(described.values())))
        notes.append(f"{plural(every - len(spans), 'event')} left out that describe those of {_HARDWARE}: {names}")
    if lost := len(spans) - int(is_sound.sum()):
        notes.append(f"{plural(lost, 'event')} left out: without a time, or with an end before it")
        spans, starts, durs = [*compress(spans, is_sound)], starts.filter(is_sound), durs.filter(is_sound)
    origin = 0
    if len(starts) and (_range(starts)[1] >= _LIMIT or "schemaVersion" in facts):
        origin = _range(starts)[0]
        starts = starts - pl.Series([origin], dtype=pl.Int128)
    for low, high in map(_range, (starts, durs)):
        if low < -_LIMIT or high >= _LIMIT:
            raise BadProfile(f"{source}: times from {low} to {high} ps do not fit Int64 picoseconds")
    origin_ns = base_ns + origin // 1000
    times = starts.cast(pl.Int64), durs.cast(pl.Int64)
    return _Timed(spans, *times, origin_ns if origin_ns > _RECENT_NS else None, notes)


def _describing(items: Sequence[Event]) -> Mapping[str | None, str]:
    """Return the names of processes that describe the tasks of an NPU, which another has, by pid."""
    metadata = [item for item in items if item.ph == "M"]
    names, labels = (_named(metadata, kind) for kind in ("process_name", "process_labels"))
    if _HARDWARE not in names.values():
        return {}
    rest = {pid: name for (pid,), name in names.items() if name != _HARDWARE}
    return {pid: name for pid, name in rest.items() if name in _DESCRIBING or labels.get((pid,), "").startswith("NPU")}


def _range(values: pl.Series) -> tuple[int, int]:
    least, most = values.min(), values.max()
    return (least, most) if isinstance(least, int) and isinstance(most, int) else (0, 0)


def _events(facts: _Object, items: Sequence[Event], timed: _Timed) -> tuple[pl.DataFrame, list[str], pl.DataFrame]:
    """Return the events, what was changed or is unknown, and what PyTorch launched its kernels for."""
    args = _Args(timed.spans)
    metadata = [item for item in items if item.ph == "M"]
    names = [_named(metadata, kind) for kind in ("process_name", "process_labels", "thread_name")]
    frame = args.places(*names)
    frame = frame.with_columns(
        host=pl.lit(_host(facts), schema.NAME),
        start_ps=timed.starts,
        dur_ps=timed.durs,
        name=_texts([span.name for span in timed.spans]).fill_null(""),
    ).hstack(args.columns(frame["plane"]))
    owners = _owners(frame)
    links = torch_links.links(timed.spans, frame.select("kind", "name", "start_ps", "dur_ps", owner=owners))
    is_call = ~pl.col("operator").str.contains(f"^{FRAMEWORK_OP.pattern}$")  # other than "nccl:all_reduce"
    work = links.select(pl.when(is_call).then("operator"), "kind_of_work", "work", "moved")
    frame = frame.hstack(_at_rows(work, links["row"], len(frame))).with_columns(**_columns())
    if owners is not None:
        frame = _apart(frame.with_columns(owner=owners))
    notes, unknown = timed.notes, frame.filter(pl.col("line") == _UNKNOWN)
    if len(unknown):
        kinds = ", ".join(sorted(unknown["kind"].fill_null("none").unique()))
        notes.append(f"{plural(len(unknown), 'event')} of devices in categories not known as their work: {kinds}")
    notes += _unknown_devices(frame, *names[:2])
    events = schema.check(frame, schema.EVENTS, "events")
    events, cuts = streams.cut(events, lambda rows: args.positive("graph node id", rows))
    calls = events[links["row"]].select("host", "start_ps", device="plane", kernel="name")
    return events, notes + cuts, schema.check(calls.hstack(links.select(torch_links.TEXTS)), schema.CALLS, "calls")


def _unknown_devices(frame: pl.DataFrame, names: _Names, labels: _Names) -> list[str]:
    """Return a note of the processes that are called as devices, yet whose events are not known as work of one."""
    texts = {pid: f"{names.get((pid,), '')} {labels.get((pid,), '')}".strip() for (pid,) in {*names, *labels}}
    called = {pid: text for pid, text in texts.items() if _LIKE_DEVICE.search(text)}
    if not called:
        return []
    plane = pl.col("plane").str
    of_host = plane.starts_with("/device:") | plane.starts_with("/host:CPU") & pl.col("kind").is_null()
    of_host |= pl.col("kind").str.contains(f"^(?:{_OF_HOST.pattern})$").fill_null(value=False)
    pids = frame.filter(pl.col("pid").is_in([*called]), ~of_host)["pid"]
    shown = ", ".join(sorted({cut(plain(called[pid])) for pid in pids.unique()})[:8])
    return [f"{plural(len(pids), 'event')} of processes that are not known as devices: {shown}"] * bool(len(pids))


def _at_rows(frame: pl.DataFrame, rows: Sequence[int] | pl.Series, height: int) -> pl.DataFrame:
    """Return a frame of some height whose given rows are those of `frame`, and the others null."""
    if len(frame) == height:
        return frame
    every, at = (pl.Series("at", numbers, pl.Int64) for numbers in (range(height), rows))
    return every.to_frame().join(frame.with_columns(at), on="at", how="left", maintain_order="left").drop("at")


def _owners(frame: pl.DataFrame) -> pl.Series | None:
    """Return the process of each event if several mark steps or launch work, and each counts launches from 1."""
    # that of a device launched most of its work: no work starts before its launch
    device, launch = pl.col("plane").str.starts_with("/device:"), pl.col("correlation_id")
    if frame["kind"].null_count() == len(frame) or frame.filter(~device)["pid"].n_unique() < 2:
        return None
    calls = frame.filter(~device, launch.is_not_null() | pl.col("name").str.contains(PYTORCH_STEP))
    if calls["pid"].n_unique() < 2:
        return None
    sent = calls.filter(launch.is_not_null()).group_by("pid", launch).agg(sent_ps=pl.col("start_ps").min())
    of_rows = pl.struct("plane", "pid")  # merged files may have devices of one number, each with rows of its own
    votes = (
        frame.filter(device)
        .select("correlation_id", "start_ps", device=of_rows)
        .join(sent, on="correlation_id")
        .filter(pl.col("sent_ps") <= pl.col("start_ps"))
        .group_by("device", "pid")
        .agg(n=pl.len())
        .filter(pl.col("n") == pl.col("n").max().over("device"))
        .sort(pl.len().over("device"), pl.col("device").struct.unnest(), pl.col("pid").str.len_chars(), "pid")
    )
    owners = dict[tuple[str, str], str]()
    for rows, pids in votes.group_by("device", maintain_order=True).agg("pid").iter_rows():
        owners[rows["plane"], rows["pid"]] = next((pid for pid in pids if pid not in owners.values()), pids[0])
    by_rows = pl.DataFrame(
        [(*rows, owner) for rows, owner in owners.items()],
        {"plane": frame.schema["plane"], "pid": pl.String(), "owner": pl.String()},
        orient="row",
    )
    of_rows_alone = frame.select("plane", "pid").join(by_rows, on=["plane", "pid"], how="left", maintain_order="left")
    of_device = pl.coalesce(_in_shared_rows(frame, device, sent), of_rows_alone["owner"], pl.lit(calls["pid"][0]))
    return frame.select(owner=pl.when(device).then(of_device).otherwise("pid")).to_series()


def _in_shared_rows(frame: pl.DataFrame, device: pl.Expr, sent: pl.DataFrame) -> pl.Series:
    """Return the process of work in rows that two write for devices of one number: in the order of their launches."""
    order = pl.int_range(pl.len(), dtype=pl.Int64)
    launches = sent.sort("sent_ps").select(
        "correlation_id", owner="pid", nth=order.over("correlation_id"), n=pl.len().over("correlation_id")
    )
    rows = ["plane", "pid", "correlation_id"]
    work = frame.select(*rows, "start_ps", at=order).filter(device).drop_nulls("correlation_id").sort("start_ps")
    work = work.with_columns(nth=order.over(rows), n=pl.len().over(rows))
    work = work.join(launches, on=["correlation_id", "nth", "n"], how="left", maintain_order="left")
    is_shared = (pl.col("owner").is_not_null() & (pl.col("n") > 1)).mean().over("plane", "pid") > 0.5
    work = work.select("at", owner=pl.when(is_shared).then("owner"))
    return _at_rows(work.select("owner"), work["at"], len(frame))["owner"]


def _apart(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the events with ids of launches distinct by process, and a host for each process that marks steps."""
    pids = frame["owner"].unique(maintain_order=True).to_list()
    salts = {pid: number * MULTIPLIER % 2**64 for number, pid in enumerate(pids)}
    salt = pl.col("owner").replace_strict(salts, return_dtype=pl.UInt64)
    marked = frame.filter(pl.col("step_num").is_not_null())["owner"].unique(maintain_order=True)
    lane = pl.struct("lane", "owner").rank("dense").cast(pl.UInt32) - 1  # rows may be of two
    frame = frame.with_columns(lane=lane, correlation_id=pl.col("correlation_id") ^ salt)
    if len(marked) < 2:
        return frame
    owner = pl.when(pl.col("owner").is_in(marked.implode())).then("owner").otherwise(pl.lit(marked[0]))
    host = pl.format("{} process {}", pl.col("host").cast(pl.String), owner).str.strip_chars()
    return frame.with_columns(host=host.cast(schema.NAME))


def instructions(data: bytes, *, source: str) -> pl.DataFrame:
    """Return the HLO instructions that the arguments of events describe: ``tpunb.schema.INSTRUCTIONS``."""
    facts, items = _opened(data, source)
    keys = ("program_id", "shape_with_layout", "source", "long_name")
    distinct = {
        tuple(map(str, (item.name, *map(_args(item).get, keys)))): {"name": item.name, **_args(item)}
        for item in items
        if "hlo_category" in _args(item)
    }
    args = _Args([Event(args=each) for each in distinct.values()])
    rows = pl.DataFrame(
        {
            "hlo_op": args.text("name"),
            "program": args.integer("program_id"),
            "shape": args.text("shape_with_layout"),
            "source": [None if path is None else texts.relative(path) for path in args.text("source")],
            "text": args.text("long_name"),
        }
    )
    return texts.merged([[texts.described(rows)]], _host(facts))


def messages(data: bytes, *, source: str) -> pl.DataFrame:
    """Return what PyTorch recorded of the messages of NCCL's kernels: ``tpunb.schema.MESSAGES``."""
    facts, items = _opened(data, source)
    timed = _timed(facts, items, source)
    spans = timed.spans
    calls = {str(_args(span).get("External id")): _args(span) for span in spans if span.name == _NCCL_CALL}
    rows = []
    for number, span in enumerate(spans):
        args = _args(span)
        if "stream" in args and str(span.name).lower().startswith("nccl"):
            message = args if _NCCL_SIZES[0] in args else calls.get(str(args.get("External id")), {})
            rows.append((number, *_message(message)))
    columns: schema.Schema = {
        "row": pl.UInt32(),
        **{n: schema.MESSAGES[n] for n in ("bytes", "groups", "size", "collective")},
    }
    recorded = pl.DataFrame(rows, schema=columns, orient="row").filter(~pl.all_horizontal(pl.exclude("row").is_null()))
    events = _events(facts, items, timed)[0][recorded["row"]].select("host", "start_ps", device="plane")
    return schema.check(events.hstack(recorded.drop("row")), schema.MESSAGES, "messages")


def _message(args: _Object) -> tuple[int | None, str | None, int | None, str | None]:
    """Return bytes, replica group and size of the group of one message, and its collective."""
    counts = [count for key in _NCCL_SIZES if type(count := args.get(key)) is int and 0 <= count < _LIMIT]
    width = _TYPE_BYTES.get(str(args.get("dtype")).lower())
    size, ranks = args.get("Group size"), str(args.get("Process Group Ranks"))
    listed = re.fullmatch(r"\[((?:\d{1,9}, ?)*\d{1,9})\]", ranks)  # a long list is cut
    total = max(counts) * width if counts and width else None
    return (
        total if total is not None and total < _LIMIT else None,
        f"{{{{{listed[1].replace(' ', '')}}}}}" if listed else None,
        size if type(size) is int and 0 < size < _LIMIT else None,
        name if isinstance(name := args.get("Collective name"), str) else None,
    )


def hardware(events: pl.DataFrame, names: Mapping[str, str]) -> pl.DataFrame:
    """Return ``tpunb.schema.HARDWARE`` of the devices among the planes of `events`; `names` has kinds of devices."""
    planes = events.select(pl.col("host", "plane").cast(pl.String)).unique(maintain_order=True)
    rows = []
    for host, device in planes.filter(pl.col("plane").str.starts_with("/device:")).rows():
        _, family, *number = device.split(":")
        kind = names.get(":".join(number)) or names.get("") or family
        chip = next((chip for chip in DEVICES.values() if chip.of_kind(kind)), None)
        peaks = (chip.peak_flops / chip.cores, chip.bandwidth / chip.cores) if chip else (None, None)
        rows.append((host, device, kind, *peaks, None))
    return pl.DataFrame(rows, schema=schema.HARDWARE, orient="row")


def _device_names(facts: _Object) -> dict[str, str]:
    """Return the names that PyTorch gives to devices, by number; that of all by "", since ROCm counts differently."""
    devices = facts.get("deviceProperties")
    listed = [each for each in devices if isinstance(each, dict)] if isinstance(devices, list) else []
    names = {str(each.get("id")): each.get("name") for each in listed}
    shared = {"": listed[0].get("name")} if len({str(each.get("name")) for each in listed}) == 1 else {}
    return {number: name for number, name in {**shared, **names}.items() if isinstance(name, str)}


_TOKEN = re.compile(
    r"""
      "[^"\\]*(?:\\.[^"\\]*)*"                                              # a text
    | ,(?=\s*(?:[\]}]|\Z))                                                    # after the last of a list
    | [-+]?(?:nan|inf(?:inity)?)(?:\(\w*\))? | [-+]?1\.\#(?:ind|inf|[qs]nan)\d*  # as C writes no number
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_ESCAPE = re.compile(r'(\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))|\\')


_BETWEEN = re.compile(r'\}\s*(,)\s*\{\s*"')  # between two events, or at places where one part is no list of objects
_PART = 1 << 18  # characters that are parsed at once, since parsing holds the interpreter lock
_LIST = msgspec.json.Decoder(list[Event], float_hook=str)


def parse(data: bytes, source: str) -> Any:
    """Parse JSON text with exact fractions; a NaN becomes None, a half surrogate a question mark.

    Also as tools write it: with control characters, single backslashes, ``nan``, commas at the end, zero bytes after
    it, and a list that is not closed.
    """
    return _parsed(data, source, partial(_loads, parse_float=Decimal))


def _parsed(data: bytes, source: str, loads: Callable[[str], Any]) -> Any:
    if not data:
        raise BadProfile(f"{source}: the file is empty", hint="the capture failed, or its copy did")
    encoding, added = json.detect_encoding(data), list[int]()
    data = data.rstrip(b"\0") if encoding.startswith("utf-8") else data
    for at in range(0, len(data) - _GAP, _GAP):
        if data.find(b'"', at, at + _GAP) < 0:
            raise BadProfile(
                f"{source}: no quotation mark from byte {at:,} to {at + _GAP:,}: no trace has such a value"
            )
    text = data.decode(encoding, "replace")
    try:
        try:
            return loads(text)
        except json.JSONDecodeError:
            return loads(_mended(text, added))
    except json.JSONDecodeError as error:
        at = error.pos - bisect_left(added, error.pos)
        byte, expected = len(text[:at].encode(encoding, "replace")), error.msg.replace("Expecting", "expected")
        if at >= len(text.rstrip()) or "Unterminated" in error.msg:
            raise BadProfile(
                f"{source}: not JSON: it ends at byte {len(data):,}: {expected}",
                hint="copy the file again; it was truncated while written or copied",
            ) from error
        raise BadProfile(
            f"{source}: not JSON: {expected} at byte {byte:,} of {len(data):,}, which has {data[byte : byte + 16]!r}",
            hint="check that this is a trace, or mend it there",
        ) from error
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise BadProfile(f"{source}: not JSON: {format_error(error)}; {len(data):,} bytes") from error


def _loads_events(text: str) -> Any:
    """Parse a trace a part at a time, and its events as such; as a whole where the parts are no lists of objects."""
    ends = [0]
    while (end := _BETWEEN.search(text, ends[-1] + _PART)) is not None:
        ends.append(end.start(1))
    first, *parts = [text[start:end].lstrip(",") for start, end in pairwise([*ends, len(text)])]
    with suppress(json.JSONDecodeError):
        if parts and next(reversed(top := _loads(first + "]}"))) == "traceEvents":
            last = _loads('{"traceEvents": [' + parts.pop())
            events = chain(top["traceEvents"], *map(_loads_list, parts), last["traceEvents"])
            return {**top, **last, "traceEvents": [*events]}
    return _loads(text)


def _loads_list(part: str) -> list[Any]:
    text = f"[{part}]"
    try:
        return _LIST.decode(text)
    except (msgspec.DecodeError, RecursionError):  # of values that are no JSON, or of events that are no objects
        rows: list[Any] = _loads(text)
        return rows


def _loads(text: str, parse_float: Callable[[str], Any] = str) -> Any:
    # surrogates, which Polars cannot encode
    hook = _without_halves if re.search(r"\\u[dD][89a-fA-F]", text) else None
    # no float: microseconds since 1970 have a resolution of 0.25 us
    options: Any = {"parse_float": parse_float, "parse_constant": lambda _: None, "object_pairs_hook": hook}
    return json.loads(text, strict=False, **options)


def _mended(text: str, added: list[int]) -> str:
    """Return text with what JSON does not allow replaced, and add the places of further characters to `added`."""

    def mend(token: re.Match[str]) -> str:
        def escape(match: re.Match[str]) -> str:
            if not match[1]:
                added.append(token.start() + match.start() + len(added))
            return match[1] or r"\\"

        if token[0][0] == '"':
            return _ESCAPE.sub(escape, token[0]) if "\\" in token[0] else token[0]
        return " " if token[0] == "," else "NaN".ljust(len(token[0]))

    text = _TOKEN.sub(mend, text)
    is_open = text.lstrip()[:1] == "[" and text.rstrip()[-1:] == "}"
    return text.rstrip() + "]" if is_open else text


def _without_halves(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    def clean(text: str) -> str:
        return text.encode("utf8", "replace").decode("utf8")

    return {clean(key): clean(value) if isinstance(value, str) else value for key, value in pairs}


def _opened(data: bytes, source: str) -> tuple[_Object, Sequence[Event]]:
    """Return what a trace holds beside its events, if it is no mere list, and the events."""
    top = _parsed(data, source, _loads_events)
    events = top.get("traceEvents") if isinstance(top, dict) else top
    if isinstance(events, list):
        items = [item if type(item) is Event else Event.of(item) for item in events if type(item) in (Event, dict)]
        if isinstance(top, dict) or any(item.ph is not None for item in items):
            return top if isinstance(top, dict) else {}, items
    content = f"an object with {sorted(top)[:8]}" if isinstance(top, dict) else f"a {type(top).__name__}"
    raise BadProfile(f"{source}: JSON, but no Chrome trace: {content}", hint="a trace has a list traceEvents")


def _spans(items: Sequence[Event]) -> tuple[list[Event], int]:
    """Return the events with a duration, which may be written as begin and end, and how many have no end."""
    spans, begun = [item for item in items if item.ph == "X" and item.cat != _TRACE], dict[Any, list[Event]]()
    for item in items if len(spans) < len(items) else ():
        stack = begun.setdefault((item.pid, item.tid), []) if item.ph in ("B", "E") else None
        if item.ph == "B" and stack is not None:
            stack.append(item)
        elif stack:
            begin = stack.pop()
            start, end = _number(begin.ts), _number(item.ts)
            dur = None if start is None or end is None else end - start
            spans.append(msgspec.structs.replace(begin, ph="X", dur=dur, args={**_args(begin), **_args(item)}))
    return spans, sum(map(len, begun.values()))


def _host(facts: _Object) -> str:
    info = facts.get("distributedInfo")
    rank = info.get("rank") if isinstance(info, dict) else None
    return f"rank {rank}" if isinstance(rank, int) else ""


def _args(item: Event) -> _Object:
    return item.args if isinstance(item.args, dict) else {}


def _texts(values: Sequence[Any]) -> pl.Series:
    """Return text and numbers as text, other values as null."""
    if not set(map(type, values)) <= {str, type(None)}:
        values = [str(value) if isinstance(value, _SCALARS) else None for value in values]
    return pl.Series(values, dtype=pl.String)


def _named(items: Sequence[Event], kind: str) -> _Names:
    """Return names or labels that "M" events give to processes (by pid) or to threads (by pid and tid)."""
    named = [item for item in items if item.name == kind]
    ids = [_texts([item.pid for item in named])]
    ids += [_texts([item.tid for item in named])] * (kind == "thread_name")
    names = _texts([_args(item).get(kind.rpartition("_")[2]) for item in named])
    return {tuple(key): name for *key, name in zip(*ids, names, strict=True) if name is not None}


class _Args:
    """Arguments of events, one column per key, null for frames of Python."""

    def __init__(self, spans: Sequence[Event]) -> None:
        self._spans = spans
        self._rows = [row for row, span in enumerate(spans) if span.cat != _FRAME]
        self._args = [_args(spans[row]) for row in self._rows]
        self._keys = set(chain.from_iterable(self._args))

    def columns(self, planes: pl.Series) -> pl.DataFrame:
        """Return the arguments of the events, which are on some planes."""
        texts = (
            "direction",
            "tf_op",
            "annotation",
            "hlo_op",
            "hlo_category",
            "step_name",
            "long_name",
            "tf_function_call",
        )
        numbers = ("step_num", "model_flops", "flops", "bytes_accessed", "device_duration_ps", "program_id")
        columns = {
            **{name: self.text(name) for name in texts},
            **{name: self.integer(name) for name in numbers},
            "calls_driver": self.correlation != 0,
            "flow_out": flow_id(self._ids("_pt").fill_null(0), self._ids("_p")),
            "flow_in": flow_id(self._ids("_ct").fill_null(0), self._ids("_c")),
            "correlation_id": self.launch(planes[self._rows]),
        }
        return _at_rows(pl.DataFrame(columns), self._rows, len(self._spans))

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

    def positive(self, key: str, rows: Iterable[int]) -> npt.NDArray[np.bool_]:
        """Return in which of some events an argument is a number above 0."""
        return np.array([isinstance(n := _args(self._spans[row]).get(key), int) and n > 0 for row in rows], bool)

    @cached_property
    def correlation(self) -> pl.Series:
        """The id of a call of a device's driver, and of the work that it launches; 0 for other events."""
        ids, others = (self._ids(key).fill_null(0) for key in ("correlation_id", "correlation"))
        return ids.zip_with(ids != 0, others)

    def launch(self, planes: pl.Series) -> pl.Series:
        """Return ids of launches from correlation id, else run and device, see :mod:`tpunb.io.event_ids`."""
        ids = {key: self._ids(key) for key in ("run_id", "device_ordinal")}
        frame = pl.DataFrame({**ids, "plane": planes, "op": self.text("hlo_op"), "correlation": self.correlation})
        named, plane, none = pl.col("device_ordinal"), pl.col("plane"), pl.lit(2**64 - 1, pl.UInt64)
        number = plane.str.extract(r":([0-9]{1,9})$").cast(pl.UInt64).fill_null(0)
        of_host = pl.when(pl.col("op").is_null()).then(named).fill_null(none)
        ordinal = pl.when(plane.str.starts_with("/device:")).then(number).otherwise(of_host)
        # TensorFlow counts no thunks
        by_run = pl.when(named.ne_missing(none)).then(run_launch(pl.col("run_id"), ordinal))
        return frame.select(pl.when(pl.col("correlation") != 0).then("correlation").otherwise(by_run)).to_series()

    def places(self, processes: _Names, labels: _Names, threads: _Names) -> pl.DataFrame:
        """Return plane, line, lane and process of each event, and PyTorch's category as `kind`."""
        of_args = zip(self._rows, self.text("device"), self.text("stream"), self.text(_TASK), strict=True)
        streams = {row: names for row, *names in of_args if any(names)}
        kinds = [span.cat for span in self._spans]
        if _MTIA in kinds:
            signals = [span.cat == _MTIA and span.name in _SIGNALS for span in self._spans]
            kinds = ["cuda_sync" if is_signal else kind for kind, is_signal in zip(kinds, signals, strict=True)]
        none, keys = (None, None, None), dict[tuple[Any, ...], int]()
        code = [
            keys.setdefault((kind, span.pid, span.tid, *streams.get(row, none)), len(keys))
            for row, (kind, span) in enumerate(zip(kinds, self._spans, strict=True))
        ]
        distinct = [tuple(None if part is None else str(part) for part in key) for key in keys]
        places = [(*_place(key, processes, labels, threads), *key[1:3]) for key in distinct]
        lanes = {place: lane for lane, place in enumerate(dict.fromkeys(places))}  # threads of one name are distinct
        rows = [(*place[:2], lanes[place], pid, kind) for place, (kind, pid, *_) in zip(places, distinct, strict=True)]
        columns: schema.Schema = {"plane": pl.String(), "line": pl.String(), "lane": pl.UInt32()}
        columns |= {"pid": pl.String(), "kind": pl.String()}
        return pl.DataFrame(rows, columns, orient="row")[code]

    def _ids(self, key: str) -> pl.Series:
        """Return an argument as UInt64, to which signed integers wrap; null unless it is an integer."""
        numbers = self.text(key).str.extract(r"^(-?[0-9]{1,20})$").cast(pl.Int128)
        return (numbers % _MODULUS).cast(pl.UInt64)


_UNKNOWN = "Unknown"  # line of events of a device that are no known work


def _place(key: Sequence[str | None], processes: _Names, labels: _Names, threads: _Names) -> tuple[str, str]:
    """Return plane and line of events of one category, process, thread, device and stream."""
    category, pid, tid, device, stream, task = key
    plane, line = processes.get((pid,)), threads.get((pid, tid), tid or "")
    if plane is not None and plane.startswith("/"):
        return plane, line
    kind, text = (category or "").lower(), labels.get((pid,), "")
    if plane is not None and _ACCELERATOR.fullmatch(plane) and not text:
        text = plane
    label = _LABEL.fullmatch(text)
    if plane == _HARDWARE:
        is_work = task is not None and not _NO_TASK.match(task)
        return f"/device:NPU:{label[2] if label else pid}", line.replace(" ", " #") if is_work else "Annotations"
    of_device = f"/device:{label[1] if label else 'GPU'}:{device or (label[2] if label else pid) or 0}"
    if kind in _ON_STREAMS or (label and kind == _COLLECTIVE):
        return of_device, f"Stream #{stream or tid or 0}"
    if kind in _ANNOTATIONS:
        return of_device, "Annotations"
    if kind and label and label[1] != "CPU" and not _OF_HOST.fullmatch(kind):
        return of_device, _UNKNOWN
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
        .when((kind == _FRAME) | name.str.starts_with(torch_links.MODULE))
        .then("$" + name)  # as in TensorFlow's Python tracer
        .otherwise(pl.coalesce(full.str.extract(framework), name))
    )
    # a profiler may count one turn of a loop in a kernel
    flops = pl.coalesce("model_flops", "flops")
    of_call = pl.when(pl.col("hlo_category") == "custom-call", flops.is_not_null()).then("long_name")
    product = of_call.map_elements(texts.product, return_dtype=pl.Int64)
    doubted = ((product - flops).abs() > product * texts.TOLERANCE).fill_null(value=False)
    of_host_op = pl.col("kind_of_work").is_not_null() & ~device
    ends = pl.col("direction").str.extract_groups(r"^([HD])\w*_TO_([HD])\w*$")  # of MTIA's transfers
    copy = pl.format("Memcpy {}to{}", *(ends.struct.field(end) for end in ("1", "2")))
    op = pl.coalesce("tf_op", pl.col("annotation").str.splitn("#", 2).struct.field("field_0")).str.strip_suffix(":")
    return {
        "name": pl.when(device).then(pl.coalesce("step_name", copy, name)).otherwise(of_host),
        "tf_op": pl.when(device)
        .then(pl.coalesce(pl.when(~op.is_in(["", "XlaModule"])).then(op), "operator"))
        .when(call)
        .then(pl.lit(FUNCTION_CALL))
        .otherwise(pl.coalesce(full, pl.when(of_host_op).then("operator"))),
        "hlo_op": pl.coalesce(
            pl.when(device | ~pl.col("calls_driver")).then("hlo_op"),
            pl.when(device & pl.col("hlo_category").is_not_null()).then(name),
        ),
        "category": pl.when(device | of_host_op)
        .then(pl.coalesce("hlo_category", "kind_of_work"))
        .when(kind == _OVERHEAD)
        .then(pl.lit("profiler")),
        "step_num": pl.coalesce(step_num, older.cast(pl.Int64)),
        "device_dur_ps": pl.when(device).then("device_duration_ps"),
        "flops": pl.when(of_host_op | (device & ~doubted)).then(pl.coalesce(flops, "work")),
        "program": pl.col("program_id"),
        "bytes": pl.when(device | of_host_op).then(pl.coalesce("bytes_accessed", "moved")),
    }


def _picoseconds(values: Sequence[Any]) -> pl.Series:
    """Return microseconds as picoseconds, Int128; null for what is no number."""
    texts = _texts(values)
    if texts.str.contains(r"^-?[0-9]{1,20}(\.[0-9]{1,6})?$").all():
        return texts.cast(pl.Decimal(38, 6)).to_physical()
    numbers = map(_number, values)
    return pl.Series([None if n is None else round(n * 1_000_000) for n in numbers], dtype=pl.Int128)


def _number(value: Any) -> Any:
    """Return a number, which may be text, or None."""
    if type(value) is str and _DECIMAL.fullmatch(value):
        value = Decimal(value)
    return value if type(value) in (int, Decimal) and -_MOST_US < value < _MOST_US else None
