"""Decode XPlane profiles (``*.xplane.pb``) of TensorFlow and JAX to events.

An XSpace holds planes (devices, the CPU of a host), a plane lines (streams, threads), a line events. Names, and on TPU
most stats, are in the event metadata of the plane, to which events refer; a stat of the event wins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import polars as pl

from tpunb import schema
from tpunb.errors import BadProfile
from tpunb.io import hlo, hlo_cost
from tpunb.io import instructions as texts
from tpunb.io.protobuf_table import Bytes, Ints, MessageMap, Messages, integer, text
from tpunb.io.xstats import Mask, StatNames, Stats, as_names, coalesce, gather, nulls
from tpunb.step_stats.breakdown import COUNTERS
from tpunb.step_stats.op_names import FRAMEWORK_OP, FUNCTION_CALL, ITERATOR

# tags of tsl/profiler/protobuf/xplane.proto
_PLANES, _ERRORS, _WARNINGS, _HOSTNAMES = text(1), text(2), text(3), text(4)
_PLANE_NAME, _LINES, _EVENT_METADATA, _STAT_METADATA, _PLANE_STATS = (text(field) for field in range(2, 7))
_LINE_NAME, _TIMESTAMP_NS, _EVENTS, _LINE_DISPLAY_NAME = text(2), integer(3), text(4), text(11)
_METADATA_ID, _OFFSET_PS, _DURATION_PS, _EVENT_STATS = integer(1), integer(2), integer(3), text(4)
_TIMES = (_METADATA_ID, _OFFSET_PS, _DURATION_PS)
_NAME, _DISPLAY_NAME, _METADATA_STATS = text(2), text(4), text(5)

_FLOWS = ["_pt", "_p", "_ct", "_c", "run_id", "correlation_id"]
_ON_HOST = ["step_num", "hlo_op", "program_id", "tf_function_call", "device_ordinal", *_FLOWS]
_COSTS = ["program_id", "hlo_category", "model_flops", "flops", "bytes_accessed", "memory_access_breakdown", "tf_op"]
_ACCESS, _MEMORY_SPACE, _ACCESSED, _HBM = text(1), integer(2), integer(3), 1  # of a memory_access_breakdown
_ON_DEVICE = [*("step_num", "hlo_op", "annotation", "step_name", "device_duration_ps"), *_COSTS, *_FLOWS]
_HARDWARE = [
    "device_type_string",
    "gpu_device_name",
    "device_vendor",
    "compute_cap_major",
    "compute_cap_minor",
    "peak_teraflops_per_second",
    "peak_hbm_bw_gigabytes_per_second",
    "memory_bandwidth",
]
_MEMORY = [
    *("tf_op", "allocator_name", "index_on_host", "device_ordinal"),
    *("bytes_allocated", "bytes_reserved", "bytes_available", "peak_bytes_in_use", "allocation_bytes"),
]
_PROGRAMS = "/host:metadata"
_MXU = "matrix_unit_utilization_percent"
_MOST_PS = 2**63 - 1
_MOST_NS = _MOST_PS // 1000
_MOST_PLANES = 4096  # bounds the time of a damaged file
_CHUNK = 1 << 17  # events read at a time, to bound memory


@dataclass(frozen=True)
class XSpaceFacts:
    """What a profile holds beside its events."""

    hosts: list[str]
    start_ns: int | None  # start of tracing since 1970, if recorded
    stop_ns: int | None
    hardware: pl.DataFrame  # ``tpunb.schema.HARDWARE``: devices with at least one event
    errors: list[str]  # of the profiler
    warnings: list[str]


def read(data: bytes | Bytes, *, source: str) -> tuple[pl.DataFrame, XSpaceFacts]:
    """Return the events of one XSpace, in file order, ``tpunb.schema.EVENTS``, and what it holds beside them.

    Times are by the clock of the host. Durations by the clock of the device are a column, since they can differ by a
    multiple and the two clocks drift by more than the duration of a module.

    Parameters
    ----------
    data
        Contents of the file, uncompressed.
    source
        Path or URL, for errors.

    Raises
    ------
    BadProfile
        When the data is truncated, corrupt or of another format, has no plane, or has an event beyond Int64
        picoseconds (106 days).

    Notes
    -----
    Reading takes four to six times the size of a real capture in memory, and at most 64 times the size of any file.
    """
    space = _XSpace(data, source)
    return space.events(), space.facts()


def instructions(data: bytes | Bytes, *, source: str) -> pl.DataFrame:
    """Return the HLO instructions of one XSpace: ``tpunb.schema.INSTRUCTIONS``.

    The profiler of a TPU writes them as metadata of events; elsewhere they are in the programs in the file, as is the
    work of each instruction everywhere.
    """
    space = _XSpace(data, source)
    devices = [plane.instructions() for plane in space.planes if plane.on_device]
    programs = [plane.instructions() for plane in space.planes if plane.name == _PROGRAMS]
    programs += [plane.work() for plane in space.planes if plane.name == _PROGRAMS]
    return texts.merged([devices, programs], space.host)


def counters(data: bytes | Bytes, *, source: str) -> pl.DataFrame:
    """Return the samples of hardware counters of one XSpace, in file order: ``tpunb.schema.COUNTERS``."""
    space = _XSpace(data, source)
    frames = [plane.counters() for plane in space.planes if plane.on_device and plane.active]
    return _of_host(frames, space.host, schema.COUNTERS)


def memory(data: bytes | Bytes, *, source: str) -> pl.DataFrame:
    """Return allocations and deallocations of one XSpace, in order of time: ``tpunb.schema.MEMORY``."""
    space = _XSpace(data, source)
    frames = [plane.memory() for plane in space.planes if plane.name.startswith("/host:") and plane.active]
    return _of_host(frames, space.host, schema.MEMORY).sort("start_ps", maintain_order=True)


def _of_host(frames: list[pl.DataFrame], host: str, columns: schema.Schema) -> pl.DataFrame:
    rows = [schema.check(frame.with_columns(host=pl.lit(host)), columns, "raw") for frame in frames]
    return pl.concat([schema.empty(columns), *rows])


@cache
def warm() -> None:
    """Compile or load the kernels once, so that decoding during training does not."""

    def field(tag: int, content: bytes) -> bytes:
        return bytes([tag, len(content)]) + content

    stat_name = field(_STAT_METADATA, b"\x08\x01" + field(text(2), field(_NAME, b"hlo_op")))
    event = b"\x08\x01" + field(_EVENT_STATS, b"\x08\x01" + field(text(5), b"dot"))
    plane = field(_PLANE_NAME, b"/device:TPU:0") + stat_name + field(_LINES, field(_EVENTS, event))
    read(field(_PLANES, plane), source="warm-up")


class _XSpace:
    """The planes of one profile."""

    def __init__(self, data: bytes | Bytes, source: str) -> None:
        if not len(data):
            raise BadProfile(f"{source}: the file is empty", hint="copy the file again, or repeat the capture")
        self.top = Messages.of(data, source=source)
        planes = self.top.sub(_PLANES)
        if not len(planes):
            content = f"{len(data)} bytes, the first {bytes(data[:16])!r}"
            raise BadProfile(f"{source}: no plane in {content}", hint="check that this is an XPlane")
        if len(planes) > _MOST_PLANES:
            raise BadProfile(f"{source}: {len(planes)} planes; a profile has at most hundreds")
        self.hosts = self.top.strings(_HOSTNAMES)
        self.host = self.hosts[0] if self.hosts else ""
        self.planes = [_Plane(planes[row : row + 1]) for row in range(len(planes))]

    def events(self) -> pl.DataFrame:
        frames = [schema.empty(schema.EVENTS)]
        lane = 0
        for plane in self.planes:
            frames += plane.events(lane, self)
            lane += len(plane.lines)
        return pl.concat(frames)

    def facts(self) -> XSpaceFacts:
        names = ("profile_start_time", "profile_stop_time")
        tasks = [plane.stats(*names) for plane in self.planes if plane.is_task]
        start, stop = ([ns for stats in tasks if (ns := stats.integer(name).item()) is not None] for name in names)
        percents = [plane.stats(_MXU).real(_MXU).item() for plane in self.planes if plane.name == "/host:CPU"]
        mxu_util = next((percent / 100 for percent in percents if percent is not None), None)
        rows = [(*plane.hardware(self.host), mxu_util) for plane in self.planes if plane.on_device and plane.active]
        return XSpaceFacts(
            hosts=self.hosts,
            start_ns=start[0] if start else None,
            stop_ns=stop[0] if stop else None,
            hardware=pl.DataFrame(rows, schema=schema.HARDWARE, orient="row"),
            errors=self.top.strings(_ERRORS),
            warnings=self.top.strings(_WARNINGS),
        )

    @cached_property
    def programs(self) -> pl.DataFrame:
        """HLO instructions in the file: (program, hlo_op, hlo_tf_op, hlo_category)."""
        frames = [plane.programs() for plane in self.planes if plane.name == _PROGRAMS]
        return pl.concat(frames or [_NO_PROGRAMS])


_NO_PROGRAMS = pl.DataFrame(
    schema={"hlo_op": schema.NAME, "program": pl.Int64, "hlo_tf_op": schema.NAME, "hlo_category": schema.NAME}
)


class _Plane:
    """One plane: its lines, the names of its events and of their stats."""

    def __init__(self, plane: Messages) -> None:
        self._plane = plane
        self.name = plane.text(plane.columns(_PLANE_NAME)[0])[0]
        self.is_task = self.name == "Task Environment"
        self.on_device = self.name.startswith("/device:")
        self.lines = plane.sub(_LINES)

    @cached_property
    def _names(self) -> StatNames:
        return StatNames(self._plane, _STAT_METADATA)

    @cached_property
    def _metadata(self) -> MessageMap:
        return MessageMap(self._plane, _EVENT_METADATA)

    @cached_property
    def _rows(self) -> Messages:
        return self.lines.sub(_EVENTS)

    @property
    def active(self) -> bool:
        """Whether it has an event."""
        return len(self._rows) > 0

    def stats(self, *names: str) -> Stats:
        """Return stats of the plane itself."""
        return self._names.read(self._plane, [], _PLANE_STATS, names)[1]

    def hardware(self, host: str) -> tuple[str, str, str, float | None, float | None]:
        """Return the row of a device in ``tpunb.schema.HARDWARE``."""
        stats = self.stats(*_HARDWARE)
        kind = coalesce(stats.text("device_type_string"), stats.text("gpu_device_name")).cast(pl.String).item()
        vendor = stats.text("device_vendor").cast(pl.String).item()
        if kind is None and vendor:  # ROCm writes no name
            parts = (stats.integer(f"compute_cap_{part}").item() for part in ("major", "minor"))
            version = ".".join(str(part) for part in parts if part is not None)
            kind = f"{vendor} {self.name.split(':')[1]}" + (f" (compute capability {version})" if version else "")
        peak = (stats.real("peak_teraflops_per_second") * 1e12).item() or None  # 0 means unknown
        hbm = coalesce(stats.real("peak_hbm_bw_gigabytes_per_second") * 1e9, stats.real("memory_bandwidth")).item()
        return host, self.name, kind or self.name.split(":")[1], peak, hbm or None

    def programs(self) -> pl.DataFrame:
        """Return the instructions of the HLO protos in the event metadata, as ``_XSpace.programs``."""
        protos, programs = self._protos()
        if not len(protos):
            return _NO_PROGRAMS
        instructions = hlo.instructions(protos)
        return instructions.select(
            "hlo_op", program=programs.gather(instructions["proto"]), hlo_tf_op="tf_op", hlo_category="category"
        ).unique(["program", "hlo_op"], keep="first", maintain_order=True)

    def _protos(self) -> tuple[Messages, pl.Series]:
        """Return the HLO protos in the event metadata, and the ids of their programs."""
        entries = self._metadata.values
        (names,), stats = self._names.read(entries, [_NAME], _METADATA_STATS, ["Hlo Proto"])
        refs, present = stats.bytes("Hlo Proto")
        rows = np.flatnonzero(present)
        return entries.at(refs[rows]), pl.Series(map(hlo.program, entries.text(names[rows])), dtype=pl.Int64)

    def instructions(self) -> pl.DataFrame:
        """Return the instructions that the event metadata describe, or hold programs of."""
        if not self.on_device:
            protos, programs = self._protos()
            rows = hlo.details(protos)
            return rows.with_columns(program=programs.gather(rows["proto"]))
        entries = self._metadata.values
        stats_read = ["hlo_category", "program_id", "shape_with_layout", "source"]
        (name, short), stats = self._names.read(entries, [_NAME, _DISPLAY_NAME], _METADATA_STATS, stats_read)
        columns = {
            "program": stats.number("program_id"),
            "hlo_op": as_names(entries.text(np.where(short & 0xFFFFFFFF, short, name))),
            "shape": stats.text("shape_with_layout").cast(pl.String),
            "source": stats.text("source", texts.relative),
            "text": pl.Series(entries.text(name), dtype=pl.String),
        }
        return texts.described(pl.DataFrame(columns).filter(stats.text("hlo_category").is_not_null()))

    def work(self) -> pl.DataFrame:
        """Return the work of the instructions of the programs in the event metadata."""
        protos, programs = self._protos()
        rows = hlo_cost.work(protos)
        counts = rows.select("hlo_op", "flops", "transcendentals", bytes_accessed="bytes")
        return counts.with_columns(program=programs.gather(rows["proto"]))

    def events(self, lane: int, space: _XSpace) -> Iterator[pl.DataFrame]:
        """Yield the events in frames of at most ``_CHUNK`` rows, lanes counted from `lane`."""
        if not self.active:
            return
        shared = self._shared()
        name, display_name, time_ns = self.lines.columns(_LINE_NAME, _LINE_DISPLAY_NAME, _TIMESTAMP_NS)
        names = [
            short or full for full, short in zip(self.lines.text(name), self.lines.text(display_name), strict=True)
        ]
        for begin in range(0, len(self._rows), _CHUNK):
            rows = self._rows[begin : begin + _CHUNK]
            stat_names = _ON_DEVICE if self.on_device else _ON_HOST
            (identity, offset, dur), stats = self._names.read(rows, _TIMES, _EVENT_STATS, stat_names)
            entry = pl.Series(self._metadata.rows(identity), dtype=pl.UInt32)
            known = {key: gather(values, entry) for key, values in shared.items()}
            dur = np.maximum(dur, 0)  # some profilers write negative durations
            start = _starts(time_ns[rows.parent], offset, dur, rows.source)
            frame = {
                "host": as_names([space.host]).new_from_index(0, len(rows)),
                "plane": as_names([self.name]).new_from_index(0, len(rows)),
                "line": gather(as_names(names), rows.parent),
                "lane": pl.Series(rows.parent.astype(np.uint32) + np.uint32(lane)),
                "name": known["name"],
                **(self._device(stats, known) if self.on_device else self._host(stats, known)),
                "step_num": stats.integer("step_num"),
                "program": coalesce(stats.number("program_id"), known["program"]),
                "flow_out": stats.flow("_pt", "_p"),
                "flow_in": stats.flow("_ct", "_c"),
                "correlation_id": stats.launch(self._ordinal if self.on_device else None),
            }
            columns = {"start_ps": pl.Series(start), "dur_ps": pl.Series(dur)} | frame
            ordered = {key: columns.get(key, nulls(dtype, len(rows))) for key, dtype in schema.EVENTS.items()}
            yield _with_programs(pl.DataFrame(ordered), space)

    def _chosen(self, chosen: Mask, stat_names: list[str]) -> tuple[pl.DataFrame, Stats]:
        """Return (name, start_ps, dur_ps) of some of the events, and their stats."""
        rows = self._rows[chosen]
        (identity, offset, dur), stats = self._names.read(rows, _TIMES, _EVENT_STATS, stat_names)
        dur, time_ns = np.maximum(dur, 0), self.lines.columns(_TIMESTAMP_NS)[0]
        start = _starts(time_ns[rows.parent], offset, dur, rows.source)
        names = gather(as_names([*self._event_names, ""]), self._metadata.rows(identity))
        return pl.DataFrame({"name": names, "start_ps": start, "dur_ps": dur}), stats

    @cached_property
    def _event_names(self) -> list[str]:
        entries = self._metadata.values
        return entries.text(entries.columns(_NAME)[0])

    def counters(self) -> pl.DataFrame:
        """Return the samples on the line of counters, as ``tpunb.schema.COUNTERS``."""
        of_counters = np.array([name == COUNTERS for name in self.lines.text(self.lines.columns(_LINE_NAME)[0])])
        rows, stats = self._chosen(of_counters[self._rows.parent], ["% util"])
        return rows.with_columns(device=pl.lit(self.name), value=stats.real("% util") / 100, counter="name")

    def memory(self) -> pl.DataFrame:
        """Return the events of allocators, as ``tpunb.schema.MEMORY``."""
        signs = [
            1 if name == "MemoryAllocation" else -1 if name == "MemoryDeallocation" else 0 for name in self._event_names
        ]
        sign = np.array([*signs, 0])[self._metadata.rows(self._rows.columns(_METADATA_ID)[0])]
        rows, stats = self._chosen(sign != 0, _MEMORY)
        in_use, reserved, free, peak, size = map(stats.integer, _MEMORY[4:])
        in_use = _counted(in_use + reserved.fill_null(0))
        numbers = (stats.integer(name).cast(pl.String).cast(schema.NAME) for name in _MEMORY[2:4])
        return rows.with_columns(
            allocator=coalesce(stats.text("allocator_name"), *numbers),
            size_bytes=size * pl.Series(sign[sign != 0]),
            in_use_bytes=in_use,
            peak_bytes=_counted(peak),
            capacity_bytes=_counted(in_use + free),
            tf_op=stats.text("tf_op", _bare),
        )

    @property
    def _ordinal(self) -> int:
        number = re.search(r":(\d{1,9})$", self.name)
        return int(number[1]) if number else 0

    def _shared(self) -> dict[str, pl.Series]:
        """Return columns of the event metadata, shared by events; the last row is for events without."""
        entries = self._metadata.values
        (name, display_name), stats = self._names.read(entries, [_NAME, _DISPLAY_NAME], _METADATA_STATS, _COSTS)
        names = entries.text(np.where(display_name & 0xFFFFFFFF, display_name, name))
        full = [] if self.on_device else entries.text(name)  # of HLO instructions long text without use here
        named = [op.startswith(ITERATOR) or FRAMEWORK_OP.fullmatch(op) for op in full]
        ops = [op if kept else None for op, kept in zip(full, named, strict=True)] or [None] * len(names)
        columns = {
            "program": stats.number("program_id"),
            "tf_op": stats.text("tf_op", _bare),
            "category": stats.text("hlo_category", _bare),
            "flops": coalesce(stats.integer("model_flops"), stats.integer("flops")),
            "bytes": stats.integer("bytes_accessed"),
            "hbm_bytes": _hbm_bytes(stats),
            "name": as_names(names),
            "op": as_names(ops),
        }
        none = {"name": ""}
        return {key: values.append(pl.Series([none.get(key)], dtype=values.dtype)) for key, values in columns.items()}

    def _host(self, stats: Stats, shared: Mapping[str, pl.Series]) -> dict[str, pl.Series]:
        calls = stats.text("tf_function_call", lambda word: word and FUNCTION_CALL)
        executed = stats.text("hlo_op").set(pl.Series(stats.calls_driver), None)  # not launched on a device
        return {"tf_op": coalesce(calls, shared["op"]), "hlo_op": executed}

    def _device(self, stats: Stats, shared: Mapping[str, pl.Series]) -> dict[str, pl.Series]:
        annotation = stats.text("annotation", lambda word: word.partition("#")[0].removesuffix(":"))
        category = coalesce(stats.text("hlo_category"), shared["category"])
        name = shared["name"]
        of_steps = stats.text("step_name")  # traces of 2020 have the step number there
        return {
            "name": coalesce(of_steps, name),
            "tf_op": coalesce(stats.text("tf_op", _bare), annotation, shared["tf_op"]),
            "hlo_op": coalesce(stats.text("hlo_op"), name.set(category.is_null(), None)),
            "category": category,
            "device_dur_ps": stats.integer("device_duration_ps"),
            "flops": coalesce(stats.integer("model_flops"), stats.integer("flops"), shared["flops"]),
            "bytes": coalesce(stats.integer("bytes_accessed"), shared["bytes"]),
            "hbm_bytes": shared["hbm_bytes"],
        }


def _counted(values: pl.Series) -> pl.Series:
    """Return counts, null where they are negative, as after freeing twice."""
    return values.set(values < 0, None)


def _hbm_bytes(stats: Stats) -> pl.Series:
    refs, present = stats.bytes("memory_access_breakdown")
    accesses = stats.messages.at(refs).sub(_ACCESS)
    space, accessed = accesses.columns(_MEMORY_SPACE, _ACCESSED)
    sums = np.zeros(refs.size, np.int64)
    np.add.at(sums, accesses.parent, np.where(space == _HBM, accessed, 0))
    return pl.Series(sums).set(pl.Series(~present), None)


def _bare(op: str) -> str:
    """Return a framework op without the colon of an empty type; "" for "XlaModule:", an unknown one."""
    bare = op.removesuffix(":")
    return "" if bare == "XlaModule" else bare


def _with_programs(frame: pl.DataFrame, space: _XSpace) -> pl.DataFrame:
    """Add framework op and category from the HLO in the file where the profiler wrote no categories."""
    unnamed = any(frame[name].null_count() == len(frame) for name in ("program", "hlo_op"))
    named = frame["category"].null_count() < len(frame)
    if unnamed or named or space.programs.is_empty():
        return frame
    joined = frame.join(space.programs, on=["program", "hlo_op"], how="left", maintain_order="left")
    coalesced = (pl.coalesce(name, f"hlo_{name}") for name in ("tf_op", "category"))
    return joined.with_columns(coalesced).select(frame.columns)


def _starts(line_ns: Ints, offset: Ints, dur: Ints, source: str) -> Ints:
    """Return the start of events in picoseconds; starts and ends must fit Int64."""
    starts: Ints = line_ns * 1000 + offset
    wrapped = ((line_ns * 1000 ^ starts) & (offset ^ starts)) < 0
    beyond = np.flatnonzero(wrapped | (line_ns > _MOST_NS) | (line_ns < -_MOST_NS) | (starts > _MOST_PS - dur))
    if beyond.size:
        at = beyond[0]
        raise BadProfile(
            f"{source}: an event starts at {line_ns[at]} ns + {offset[at]} ps and lasts {dur[at]} ps, "
            "beyond Int64 picoseconds",
            hint="check the file: times should be relative to the start of the capture",
        )
    return starts
