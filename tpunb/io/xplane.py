"""XPlane profiles (``*.xplane.pb``), what TensorFlow's and JAX's profilers write, as events.

An XSpace holds planes (devices, a host's CPU), a plane lines (streams, threads), a line events. Names, and on
TPU most statistics, lie once in the plane's event metadata, to which events point; a statistic of the event wins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from tpunb import schema
from tpunb.errors import BadProfile
from tpunb.io.protobuf_table import Bytes, Ints, MessageMap, Messages, Rows, integer, text
from tpunb.io.xstats import StatNames, Stats, as_words, first, gather
from tpunb.op_names import FRAMEWORK_OP, FUNCTION_CALL

# tags of tsl/profiler/protobuf/xplane.proto
_PLANES, _ERRORS, _WARNINGS, _HOSTNAMES = text(1), text(2), text(3), text(4)
_PLANE_NAME, _LINES, _EVENT_METADATA, _STAT_METADATA, _PLANE_STATS = (text(field) for field in range(2, 7))
_LINE_NAME, _TIMESTAMP_NS, _EVENTS, _LINE_DISPLAY_NAME = text(2), integer(3), text(4), text(11)
_METADATA_ID, _OFFSET_PS, _DURATION_PS, _EVENT_STATS = integer(1), integer(2), integer(3), text(4)
_NAME, _DISPLAY_NAME, _METADATA_STATS = text(2), text(4), text(5)

_HAND_OVERS = ["_pt", "_p", "_ct", "_c", "run_id", "correlation_id"]
_ON_HOST = ["step_num", "hlo_op", "program_id", "tf_function_call", "device_ordinal", *_HAND_OVERS]
_COSTS = ["hlo_category", "model_flops", "flops", "bytes_accessed", "memory_access_breakdown", "tf_op"]
_ACCESS, _MEMORY_SPACE, _ACCESSED, _HBM = text(1), integer(2), integer(3), 1  # of a memory_access_breakdown
_ON_DEVICE = [
    *("step_num", "hlo_op", "program_id", "annotation", "step_name", "device_duration_ps"),
    *_COSTS,
    *_HAND_OVERS,
]
_HARDWARE = [
    "device_type_string",
    "gpu_device_name",
    "peak_teraflops_per_second",
    "peak_hbm_bw_gigabytes_per_second",
    "memory_bandwidth",
]
_MXU = "matrix_unit_utilization_percent"
_MOST_PS = 2**63 - 1
_MOST_NS = _MOST_PS // 1000
_MOST_PLANES = 4096  # each takes its time, however empty
_CHUNK = 1 << 17  # events read at a time: what is needed on the way stays small


@dataclass(frozen=True)
class XSpaceFacts:
    """What a profile says beside its events."""

    hosts: list[str]
    start_ns: int | None  # since 1970: when the profiler began to watch, where it tells
    stop_ns: int | None
    hardware: pl.DataFrame  # ``tpunb.schema.HARDWARE``: devices with at least one event
    errors: list[str]  # of the profiler, while it captured
    warnings: list[str]


def events(data: bytes | Bytes, *, source: str) -> pl.DataFrame:
    """Return the events of one XSpace, in file order: ``tpunb.schema.EVENTS``.

    Events lie where the host's clock puts them; how long a device itself says that one took is kept beside: single ones
    can differ by a multiple, and the two clocks wander against each other by more than a module lasts.

    Parameters
    ----------
    data
        The bytes of the file, not compressed.
    source
        Where they came from, for errors.

    Raises
    ------
    BadProfile
        When the bytes are cut, corrupt or of another format, hold no plane, or have an event that starts
        beyond Int64 picoseconds (106 days).

    Notes
    -----
    Reading takes some four to six times the size of a real capture in memory, and 64 times that of any file at most.
    """
    return _XSpace(data, source).events()


def facts(data: bytes | Bytes, *, source: str) -> XSpaceFacts:
    """Return what one XSpace says beside its events.

    Raises
    ------
    BadProfile
        When the bytes are cut, corrupt or of another format, or hold no plane.
    """
    return _XSpace(data, source).facts()


def read(data: bytes | Bytes, *, source: str) -> tuple[pl.DataFrame, XSpaceFacts]:
    """Return what :func:`events` and :func:`facts` do, at the price of one."""
    space = _XSpace(data, source)
    return space.events(), space.facts()


def warm() -> None:
    """Compile or load the kernels, so that a later decode, beside a training, does not."""

    def field(tag: int, content: bytes) -> bytes:
        return bytes([tag, len(content)]) + content

    stat_name = field(_STAT_METADATA, b"\x08\x01" + field(text(2), field(_NAME, b"hlo_op")))
    event = b"\x08\x01" + field(_EVENT_STATS, b"\x08\x01" + field(text(5), b"dot"))
    plane = field(_PLANE_NAME, b"/device:TPU:0") + stat_name + field(_LINES, field(_EVENTS, event))
    space = field(_PLANES, plane)
    read(space, source="warm-up")


class _XSpace:
    """The planes of one profile."""

    def __init__(self, data: bytes | Bytes, source: str) -> None:
        if not len(data):
            raise BadProfile(f"{source}: the file is empty", hint="the capture failed, or its copy did")
        self.top = Messages.of(data, source=source)
        planes = self.top.sub(_PLANES)
        if not len(planes):
            seen = f"{len(data)} bytes, the first {bytes(data[:16])!r}"
            raise BadProfile(f"{source}: no plane in {seen}", hint="this may be a protobuf of another kind")
        if len(planes) > _MOST_PLANES:
            raise BadProfile(f"{source}: {len(planes)} planes; a profile has hundreds at most: this is no profile")
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
        told = [plane.stats("profile_start_time", "profile_stop_time") for plane in self.planes if plane.is_task]
        start, stop = (
            [one for stats in told if (one := stats.whole(name).item()) is not None]
            for name in ("profile_start_time", "profile_stop_time")
        )
        used = [plane.stats(_MXU).real(_MXU).item() for plane in self.planes if plane.name == "/host:CPU"]
        mxu_util = next((percent / 100 for percent in used if percent is not None), None)
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
        """What the HLO in the file tells of instructions: (program, hlo_op, hlo_tf_op, hlo_category)."""
        known = [plane.programs() for plane in self.planes if plane.name == "/host:metadata"]
        return pl.concat(known or [_NO_PROGRAMS])


_NO_PROGRAMS = pl.DataFrame(
    schema={"hlo_op": schema.NAME, "program": pl.Int64, "hlo_tf_op": schema.NAME, "hlo_category": schema.NAME}
)


class _Plane:
    """One plane: its lines, the names of its events and of their statistics."""

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
        """Return statistics of the plane itself."""
        return self._names.read(self._plane, [], _PLANE_STATS, names)[1]

    def hardware(self, host: str) -> tuple[str, str, str, float | None, float | None]:
        """Return the row of ``tpunb.schema.HARDWARE`` of a device."""
        stats = self.stats(*_HARDWARE)
        kind = first(stats.text("device_type_string"), stats.text("gpu_device_name")).cast(pl.String).item()
        peak = (stats.real("peak_teraflops_per_second") * 1e12).item() or None  # 0 is not known
        hbm = first(stats.real("peak_hbm_bw_gigabytes_per_second") * 1e9, stats.real("memory_bandwidth")).item() or None
        return host, self.name, kind or self.name.split(":")[1], peak, hbm

    def programs(self) -> pl.DataFrame:
        """Return what the HLO protos in the plane's event metadata tell, as ``_XSpace.programs``."""
        entries = self._metadata.values
        (names,), stats = self._names.read(entries, [_NAME], _METADATA_STATS, ["Hlo Proto"])
        refs, known = stats.bytes("Hlo Proto")
        bears = np.flatnonzero(known)
        if not bears.size:
            return _NO_PROGRAMS
        from tpunb.io import hlo

        told = hlo.instructions(entries.at(refs[bears]))
        programs = pl.Series([hlo.program(name) for name in entries.text(names[bears])], dtype=pl.Int64)
        return told.select(
            "hlo_op", program=programs.gather(told["proto"]), hlo_tf_op="tf_op", hlo_category="category"
        ).unique(["program", "hlo_op"], keep="first", maintain_order=True)

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
            tags = (_METADATA_ID, _OFFSET_PS, _DURATION_PS)
            wanted = _ON_DEVICE if self.on_device else _ON_HOST
            (identity, offset, dur), stats = self._names.read(rows, tags, _EVENT_STATS, wanted)
            row = self._metadata.rows(identity)
            dur = np.maximum(dur, 0)  # a length below none is a fault of the profiler
            start = _starts(time_ns[rows.parent], offset, dur, rows.source)
            frame = {
                "host": pl.Series([space.host], dtype=schema.NAME).new_from_index(0, len(rows)),
                "plane": pl.Series([self.name], dtype=schema.NAME).new_from_index(0, len(rows)),
                "line": gather(as_words(names), rows.parent),
                "lane": pl.Series(rows.parent.astype(np.uint32) + np.uint32(lane)),
                "name": gather(shared.names, row),
                **(self._device(stats, shared, row) if self.on_device else self._host(stats, shared, row)),
                "step_num": stats.whole("step_num"),
                "program": stats.number("program_id"),
                "sends": stats.flow("_pt", "_p"),
                "receives": stats.flow("_ct", "_c"),
                "launch": stats.launch(self._ordinal if self.on_device else None),
            }
            columns = {"start_ps": pl.Series(start), "dur_ps": pl.Series(dur)} | frame
            yield schema.check(_with_programs(pl.DataFrame(columns), space), schema.EVENTS, "events")

    @property
    def _ordinal(self) -> int:
        found = re.search(r":(\d{1,9})$", self.name)
        return int(found[1]) if found else 0

    def _shared(self) -> _Shared:
        entries = self._metadata.values
        (name, display_name), stats = self._names.read(entries, [_NAME, _DISPLAY_NAME], _METADATA_STATS, _COSTS)
        names = entries.text(np.where(display_name & 0xFFFFFFFF, display_name, name))
        full = [] if self.on_device else entries.text(name)  # of HLO instructions whole lines of text, of no use here
        ops = [op if FRAMEWORK_OP.fullmatch(op) else None for op in full]
        return _Shared(as_words([*names, ""]), as_words([*ops, None]), stats)

    def _host(self, stats: Stats, shared: _Shared, row: Rows) -> dict[str, pl.Series]:
        calls = stats.text("tf_function_call", lambda word: word and FUNCTION_CALL)
        return {
            "tf_op": first(calls, gather(shared.ops, row)),
            "hlo_op": stats.text("hlo_op"),
        }

    def _device(self, stats: Stats, shared: _Shared, row: Rows) -> dict[str, pl.Series]:
        annotation = stats.text("annotation", lambda word: word.partition("#")[0].removesuffix(":"))
        category = first(stats.text("hlo_category"), shared.text("hlo_category", row))
        name = gather(shared.names, row)
        of_steps = stats.text("step_name").cast(pl.String)  # a step of 2020 bears its number there
        flops = [stats.whole("model_flops"), stats.whole("flops")]
        return {
            "name": name if of_steps.null_count() == len(of_steps) else first(of_steps.cast(schema.NAME), name),
            "tf_op": first(stats.text("tf_op", _bare), annotation, shared.text("tf_op", row)),
            "hlo_op": first(stats.text("hlo_op"), name.set(category.is_null(), None)),
            "category": category,
            "device_dur_ps": stats.whole("device_duration_ps"),
            "flops": first(*flops, shared.whole("model_flops", row), shared.whole("flops", row)),
            "bytes": first(stats.whole("bytes_accessed"), shared.whole("bytes_accessed", row)),
            "hbm_bytes": shared.hbm_bytes(row),
        }


@dataclass(frozen=True, eq=False)
class _Shared:
    """What the metadata of events tells all their events; the last row is of events without."""

    names: pl.Series
    ops: pl.Series  # framework ops, by their full names
    stats: Stats

    def text(self, name: str, row: Rows) -> pl.Series:
        words = self.stats.text(name, _bare)
        return gather(words.extend(as_words([None])), row)

    def whole(self, name: str, row: Rows) -> pl.Series:
        values = self.stats.whole(name)
        return values.extend(pl.Series([None], dtype=pl.Int64)).gather(pl.Series(row))

    def hbm_bytes(self, row: Rows) -> pl.Series:
        refs, known = self.stats.bytes("memory_access_breakdown")
        accesses = self.stats.messages.at(refs).sub(_ACCESS)
        space, accessed = accesses.columns(_MEMORY_SPACE, _ACCESSED)
        sums = np.zeros(refs.size, np.int64)
        np.add.at(sums, accesses.parent, np.where(space == _HBM, accessed, 0))
        values = pl.Series(sums).set(pl.Series(~known), None)
        return values.extend(pl.Series([None], dtype=pl.Int64)).gather(pl.Series(row))


def _bare(op: str) -> str:
    """Return a framework op without the colon of an empty type; "XlaModule:" stands for one that is not known."""
    bare = op.removesuffix(":")
    return "" if bare == "XlaModule" else bare


def _with_programs(frame: pl.DataFrame, space: _XSpace) -> pl.DataFrame:
    """Add what the HLO in the file tells of the instructions that an event itself says little of."""
    known = frame.get_column("program", default=None)
    if known is None or known.null_count() == len(known) or frame["hlo_op"].null_count() == len(frame):
        return frame
    if space.programs.is_empty():
        return frame
    joined = frame.join(space.programs, on=["program", "hlo_op"], how="left", maintain_order="left")
    own = [name for name in ("tf_op", "category") if name in joined.columns]
    return joined.with_columns(
        **{name: pl.coalesce(*([name] if name in own else []), f"hlo_{name}") for name in ("tf_op", "category")}
    )


def _starts(line_ns: Ints, offset: Ints, dur: Ints, source: str) -> Ints:
    """Return when events start, in picoseconds; neither that nor when they end may go beyond Int64."""
    starts: Ints = line_ns * 1000 + offset
    wrapped = ((line_ns * 1000 ^ starts) & (offset ^ starts)) < 0
    beyond = np.flatnonzero(wrapped | (line_ns > _MOST_NS) | (line_ns < -_MOST_NS) | (starts > _MOST_PS - dur))
    if beyond.size:
        at = beyond[0]
        raise BadProfile(
            f"{source}: an event starts at {line_ns[at]} ns + {offset[at]} ps and lasts {dur[at]} ps, "
            "beyond Int64 picoseconds",
            hint="times count from the start of the capture; these look absolute or corrupt",
        )
    return starts
