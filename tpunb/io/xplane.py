"""Decode XPlane profiles (``*.xplane.pb``, and the records of ``*.xplane.riegeli``) of TensorFlow and JAX to events.

An XSpace holds planes (devices, the CPU of a host), a plane lines (streams, threads), a line events. Names, and on TPU
most stats, are in the event metadata of the plane, to which events refer; a stat of the event wins.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tpunb import schema
from tpunb.costs import hlo
from tpunb.costs import hlo as texts
from tpunb.errors import BadProfile
from tpunb.io import streams
from tpunb.io.cache import Extent
from tpunb.io.programs import buffers_of, describe, protos_of
from tpunb.io.xstats import Mask, Numbers, StatNames, Stats, Words, as_series, as_text, first_number, first_word, nulls
from tpunb.protobuf import kernels as loops
from tpunb.protobuf.table import Bytes, Ints, MessageMaps, Messages, Rows, integer, text
from tpunb.step_stats.breakdown import COUNTERS
from tpunb.step_stats.op_names import FRAMEWORK_OP, FUNCTION_CALL, ITERATOR

# tags of tsl/profiler/protobuf/xplane.proto
_PLANES, _ERRORS, _WARNINGS, _HOSTNAMES = text(1), text(2), text(3), text(4)
_PLANE_NAME, _LINES, _EVENT_METADATA, _STAT_METADATA, _PLANE_STATS = (text(field) for field in range(2, 7))
_LINE_ID, _LINE_NAME, _TIMESTAMP_NS, _EVENTS, _LINE_DISPLAY_NAME = integer(1), text(2), integer(3), text(4), text(11)
_METADATA_ID, _OFFSET_PS, _DURATION_PS, _EVENT_STATS = integer(1), integer(2), integer(3), text(4)
_TIMES = (_METADATA_ID, _OFFSET_PS, _DURATION_PS)
_NAME, _DISPLAY_NAME, _METADATA_STATS = text(2), text(4), text(5)

_FLOWS = ["_pt", "_p", "_ct", "_c", "run_id", "correlation_id"]
_ON_HOST = ["step_num", "hlo_op", "program_id", "tf_function_call", "device_ordinal", *_FLOWS]
_COSTS = ["program_id", "hlo_category", "model_flops", "flops", "bytes_accessed", "memory_access_breakdown", "tf_op"]
_ACCESS, _MEMORY_SPACE, _ACCESSED, _HBM = text(1), integer(2), integer(3), 1  # of a memory_access_breakdown
_ON_DEVICE = [*("step_num", "hlo_op", "annotation", "step_name", "device_duration_ps"), *_COSTS, *_FLOWS]
_HARDWARE = ["device_type_string", "gpu_device_name", "device_vendor", "compute_cap_major", "compute_cap_minor"]
_PEAKS = ["peak_teraflops_per_second", "peak_hbm_bw_gigabytes_per_second", "memory_bandwidth"]
_MEMORY = [
    *("tf_op", "allocator_name", "index_on_host", "device_ordinal"),
    *("bytes_allocated", "bytes_reserved", "bytes_available", "peak_bytes_in_use", "allocation_bytes"),
]
_PROGRAMS = "/host:metadata"
_MXU = "matrix_unit_utilization_percent"
_OF_PLANES = [*_HARDWARE, *_PEAKS, _MXU, "profile_start_time", "profile_stop_time"]
_DAY_NS = 86_400 * 10**9
MOST_DAYS = 50
"""Days between files of one profile; Int64 picoseconds end after 106."""
_MOST_PLANES = 4096  # bounds the time of a damaged file
_CHUNK = 1 << 17  # events read at a time, to bound memory
_LENGTH = 0xFFFFFFFF  # of a string, in a reference to it


@dataclass(frozen=True)
class XSpaceFacts:
    """What a profile holds beside its events."""

    hosts: list[str]
    start_ns: int | None  # start of tracing since 1970, if recorded
    stop_ns: int | None
    hardware: pl.DataFrame  # ``tpunb.schema.HARDWARE``: devices with at least one event
    errors: list[str] = field(default_factory=list)  # of the profiler
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what the reader changed


def read(data: bytes | Bytes, *, source: str, workers: int = 1) -> tuple[pl.DataFrame, XSpaceFacts]:
    """Return the events of one XSpace, in file order, ``tpunb.schema.EVENTS``, and what it holds beside them.

    Takes four to six times the size of a real capture in memory. Raises BadProfile if damaged, or above 106 days.
    """
    space = _XSpace(data, source)
    events, notes = space.events(workers)
    return events, replace(space.facts(), notes=notes)


def read_many(files: Sequence[Bytes], names: Sequence[str]) -> tuple[pl.DataFrame, int | None, list[XSpaceFacts]]:
    """Return the events of several XSpaces in one pass, their time 0 in nanoseconds, and what each holds beside them.

    Events are in no order. If the files are `MOST_DAYS` apart, time 0 is None, and starts are relative to each file.
    `names` are those of the hosts.
    """
    space = _XSpace(files, "files", names)
    facts = space.facts_of_files()
    starts = [fact.start_ns for fact in facts if fact.start_ns is not None]
    origin_ns = None
    if len(starts) == len(facts) and max(starts) - min(starts) <= MOST_DAYS * _DAY_NS:
        origin_ns = min(starts)
        space.line_ns = space.line_ns + (np.array(starts) - origin_ns)[space.file[space.lines.parent]]
    return space.events()[0], origin_ns, facts


def read_in_order(files: Sequence[Bytes]) -> list[pl.DataFrame]:
    """Return what `read` returns of each XSpace, in one pass, in runs of rows; hosts are numbered."""
    space = _XSpace(files, "files", [*map(str, range(len(files)))])
    events, line = space.events()[0], space.rows.parent
    events = events.with_columns(lane=space.lanes_in_file.take(line))
    order = np.argsort(space.number.take(line), kind="stable")
    edges = np.flatnonzero(np.diff(order, prepend=-2, append=-1) != 1)  # of runs of rows that stay together
    return [events.slice(order[first], last - first) for first, last in pairwise(edges.tolist())]


def extent(data: bytes | Bytes, *, source: str) -> tuple[Extent, XSpaceFacts]:
    """Return what the events span, and what the profile holds beside them; raises as `read`, at half of its cost."""
    space = _XSpace(data, source)
    return space.extents()[0], space.facts()


def extents(files: Sequence[Bytes]) -> list[tuple[Extent, XSpaceFacts]]:
    """Return what `extent` does of several XSpaces, in one pass; raises if one is damaged."""
    space = _XSpace(files, "files", [""] * len(files))
    space.host_names = space.first_hosts
    return [*zip(space.extents(), space.facts_of_files(), strict=True)]


def instructions(data: bytes | Bytes, *, source: str) -> pl.DataFrame:
    """Return the HLO instructions of one XSpace: ``tpunb.schema.INSTRUCTIONS``.

    They are metadata of events on a TPU, elsewhere in the programs in the file, as the work is everywhere.
    """
    space = _XSpace(data, source)
    protos, ids, _ = space.protos()
    return texts.merged([[space.described()], describe(protos, ids)], space.host)


def programs(data: bytes | Bytes, *, source: str) -> dict[int, tuple[str, Messages]]:
    """Return name and ``HloProto`` of the compiled programs in one XSpace, by their ids as events refer to them."""
    protos, ids, names = _XSpace(data, source).protos()
    return {
        program: (name.rpartition("(")[0], protos[row : row + 1])
        for row, (program, name) in enumerate(zip(ids, names, strict=True))
        if program is not None
    }


def protos(data: bytes | Bytes, *, source: str) -> pl.DataFrame:
    """Return the compiled programs in one XSpace as messages: ``tpunb.schema.PROTOS``."""
    space = _XSpace(data, source)
    return _of_host(protos_of(*space.protos()[:2]), space.host, schema.PROTOS)


def buffers(data: bytes | Bytes, *, source: str) -> pl.DataFrame:
    """Return the buffers of the compiled programs in one XSpace: ``tpunb.schema.BUFFERS``."""
    space = _XSpace(data, source)
    return _of_host(buffers_of(*space.protos()[:2]), space.host, schema.BUFFERS)


def counters(data: bytes | Bytes, *, source: str) -> pl.DataFrame:
    """Return the samples of hardware counters of one XSpace, in file order: ``tpunb.schema.COUNTERS``."""
    space = _XSpace(data, source)
    return _of_host(space.counters(), space.host, schema.COUNTERS)


def memory(data: bytes | Bytes, *, source: str) -> pl.DataFrame:
    """Return allocations and deallocations of one XSpace, in order of time: ``tpunb.schema.MEMORY``."""
    space = _XSpace(data, source)
    return _of_host(space.memory(), space.host, schema.MEMORY).sort("start_ps", maintain_order=True)


def _of_host(frame: pl.DataFrame, host: str, columns: schema.Schema) -> pl.DataFrame:
    return schema.check(frame.with_columns(host=pl.lit(host)), columns, "raw")


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
    """The planes of one profile, as tables of all planes, of all their lines and of all their events."""

    def __init__(self, data: bytes | Bytes | Sequence[Bytes], source: str, names: Sequence[str] = ()) -> None:
        """Take the contents of one file, or of several with the names of their hosts."""
        if not len(data):
            raise BadProfile(f"{source}: the file is empty", hint="copy the file again, or repeat the capture")
        self.top = Messages.joined(data, source=source) if names else Messages.of(data, source=source)  # type: ignore[arg-type]
        self.planes = self.top.sub(_PLANES)
        self.file = self.planes.parent  # of each plane
        planes = np.bincount(self.file, minlength=len(self.top))
        if not planes.all():
            content = f"{len(data)} bytes, the first {bytes(data[:16])!r}" if not names else "one of several files"
            raise BadProfile(f"{source}: no plane in {content}", hint="check that this is an XPlane")
        if planes.max() > _MOST_PLANES:
            raise BadProfile(f"{source}: {planes.max()} planes; a profile has at most hundreds")
        self.hosts = self.top.strings(_HOSTNAMES)
        self.host_names = [*names] or self.first_hosts  # of each file
        self.host = self.host_names[0]
        self.names = self.planes.text(self.planes.columns(_PLANE_NAME)[0])
        self.on_device = self.where(lambda name: name.startswith("/device:"))
        self.lines = self.planes.sub(_LINES)
        self.number, self.planes_of_lines = np.arange(len(self.lines)), self.lines.parent
        if names:  # devices of all files first, since their stats are read in one go
            self.number = np.argsort(~self.on_device[self.lines.parent], kind="stable")
            self.lines = self.lines[self.number]
        self.line_ns, self.line_name, self.line_display_name = self.lines.columns(
            _TIMESTAMP_NS, _LINE_NAME, _LINE_DISPLAY_NAME
        )
        self.words = Words()
        self.stat_names = StatNames(self.planes, _STAT_METADATA, self.words)

    def where(self, fits: Callable[[str], bool]) -> Mask:
        """Return which planes have such a name."""
        return np.array([fits(name) for name in self.names], bool)

    @cached_property
    def rows(self) -> Messages:
        """All events."""
        return self.lines.sub(_EVENTS)

    @cached_property
    def active(self) -> Mask:
        """Which planes have an event."""
        return np.bincount(self.lines.parent.take(self.rows.parent), minlength=len(self.names)) > 0

    @cached_property
    def first(self) -> Rows:
        """Row of the first plane of the same file and name: a continuous capture has one for each part of its time."""
        rows = dict[tuple[int, str], int]()
        keys = zip(self.file.tolist(), self.names, strict=True)
        return np.array([rows.setdefault(key, row) for row, key in enumerate(keys)], np.int32)

    @cached_property
    def lanes(self) -> npt.NDArray[np.uint32]:
        """Lane of each line: its row, or that of the line of the same id in the first plane of its name."""
        plane = self.lines.parent
        if (self.first == np.arange(len(self.names))).all():
            return np.arange(len(plane), dtype=np.uint32)
        rows = pl.DataFrame({"plane": plane, "first": self.first[plane], "id": self.lines.columns(_LINE_ID)[0]})
        number = pl.int_range(pl.len()).over("plane", "id")  # lines of one plane are distinct whatever their ids
        lane = pl.col("index").first().over("first", "id", number)
        return rows.with_row_index().select(lane.cast(pl.UInt32)).to_series().to_numpy()

    @cached_property
    def first_hosts(self) -> list[str]:
        """The first host that each file names, or nothing."""
        file = self.top.sub(_HOSTNAMES).parent
        named = {int(file[row]): self.hosts[row] for row in reversed(range(file.size))}
        return [named.get(number, "") for number in range(len(self.top))]

    @cached_property
    def lanes_in_file(self) -> npt.NDArray[np.uint32]:
        """Lane of each line, by the order of lines in its file."""
        first = np.searchsorted(self.file[self.planes_of_lines], self.file[self.lines.parent])
        return (self.number[self.lanes] - first).astype(np.uint32)

    @cached_property
    def devices(self) -> Mask:
        """Which planes are the first of a device with at least one event."""
        used = np.flatnonzero(self.on_device & self.active)
        chosen = np.zeros(len(self.names), bool)
        chosen[used[np.unique(self.first[used], return_index=True)[1]]] = True
        return chosen

    @cached_property
    def metadata(self) -> MessageMaps:
        return MessageMaps(self.planes, _EVENT_METADATA)

    def _described(self, entries: Messages, tags: Sequence[int], names: Sequence[str]) -> tuple[list[Ints], Stats]:
        """Return fields and stats of event metadata."""
        return self.stat_names.read(entries, entries.parent, tags, _METADATA_STATS, names)

    def _timed(self, rows: Messages, names: Sequence[str]) -> tuple[Rows, Ints, Ints, Stats]:
        """Return the metadata, start, duration and stats of events."""
        planes = self.lines.parent.take(rows.parent)
        (identity, offset, dur), stats = self.stat_names.read(rows, planes, _TIMES, _EVENT_STATS, names)
        start, dur = _times(rows, self.line_ns, offset, dur)
        return self.metadata.rows(planes, identity), start, dur, stats

    # -- events -------------------------------------------------------------------------------------------------

    def events(self, workers: int = 1) -> tuple[pl.DataFrame, list[str]]:
        """Return all events, decoded in as many threads, and what was changed."""
        begins = range(0, len(self.rows), _CHUNK)
        if workers > 1 and len(begins) > 1:
            # computed once
            _ = self._plane_words, self._line_words, self._shared, self._ordinals, self.metadata, self.lanes
            with ThreadPoolExecutor(workers) as pool:
                frames = [*pool.map(self._chunk, begins)]
        else:
            frames = [self._chunk(begin) for begin in begins]
        whole = self._with_programs(pl.concat(frames or [pl.DataFrame(schema=schema.EVENTS)]))
        return streams.cut(whole, self._in_graph)

    def _in_graph(self, rows: Ints) -> Mask:
        """Return which of some events are of CUDA graphs."""
        graph = self._timed(self.rows[rows], ["cuda_graph_id"])[3].integer("cuda_graph_id")
        return np.zeros(rows.size, bool) if graph is None else graph.valid & (graph.values > 0)

    def _chunk(self, begin: int) -> pl.DataFrame:
        """Return ``_CHUNK`` events."""
        sides = [*self._sides(begin)]
        pieces, sizes = [self._read(*side) for side in sides], [len(rows) for rows, _ in sides]
        line = self.rows.parent[begin : begin + _CHUNK]
        plane = self.lines.parent.take(line)  # faster than [line], unless that is Int64
        numbers = {"plane": self._plane_words.take(plane), "line": self._line_words.take(line)}
        words = self.words.series()
        columns = {name: words[number.view(np.uint32)] for name, number in numbers.items()}
        columns["lane"] = pl.Series(self.lanes.take(line))
        host = pl.Series(self.host_names, dtype=schema.NAME)
        file = self.file.take(plane).view(np.uint32)
        columns["host"] = host[file] if len(host) > 1 else host.new_from_index(0, line.size)
        for name, dtype in schema.EVENTS.items():
            if name not in columns:
                parts = [piece[name] for piece in pieces]
                columns[name] = _series(parts, sizes, dtype, words)
        return pl.DataFrame({name: columns[name] for name in schema.EVENTS})

    def _read(self, rows: Messages, on_device: bool) -> dict[str, Numbers | Rows | None]:
        """Return columns of events of one side."""
        entry, start, dur, stats = self._timed(rows, _ON_DEVICE if on_device else _ON_HOST)
        shared = {name: None if column is None else column.take(entry) for name, column in self._shared.items()}
        ordinals = self._ordinals.take(stats.planes) if on_device else None
        return {
            "start_ps": _all_of(start),
            "dur_ps": _all_of(dur),
            **dict.fromkeys(("category", "device_dur_ps", "flops", "bytes", "hbm_bytes")),
            **(_of_devices(stats, shared) if on_device else _of_hosts(stats, shared)),
            "step_num": stats.integer("step_num"),
            "program": first_number(stats.number("program_id"), shared["program"]),
            "flow_out": stats.flow("_pt", "_p"),
            "flow_in": stats.flow("_ct", "_c"),
            "correlation_id": stats.launch(ordinals),
        }

    def extents(self) -> list[Extent]:
        """Return what the events of each file span; all that `events` reads is scanned, so that damage is found."""
        if len(self.rows):
            _ = self._costs, self.where(_PROGRAMS.__eq__).any() and self.programs
        of_line, line, n = self.file[self.lines.parent], self.rows.parent, len(self.top)
        begins, ends = np.full(n, np.iinfo(np.int64).max), np.full(n, np.iinfo(np.int64).min)
        numbers = [set[int]() for _ in range(n)]
        for begin in range(0, line.size, _CHUNK):
            for rows, on_device in self._sides(begin):
                _, start, dur, stats = self._timed(rows, _ON_DEVICE if on_device else _ON_HOST)
                file = of_line.take(rows.parent)
                first = np.flatnonzero(np.diff(file, prepend=-1))  # of the events of a file
                np.minimum.at(begins, file[first], np.minimum.reduceat(start, first))
                np.maximum.at(ends, file[first], np.maximum.reduceat(start + dur, first))
                if (steps := stats.integer("step_num")) is not None:
                    for of, number in zip(file[steps.valid].tolist(), steps.values[steps.valid].tolist(), strict=True):
                        numbers[of].add(number)
        counts, lanes = np.bincount(of_line.take(line), minlength=n), np.zeros(n, np.int64)
        used = np.bincount(line, minlength=of_line.size) > 0
        np.maximum.at(lanes, of_line[used], self.lanes_in_file[used].astype(np.int64) + 1)
        spans = np.where(counts, (counts, lanes, begins, ends), 0).T.tolist()
        return [
            Extent(events, lane, begin, end, frozenset(steps))
            for (events, lane, begin, end), steps in zip(spans, numbers, strict=True)
        ]

    def _sides(self, begin: int) -> Iterator[tuple[Messages, bool]]:
        """Yield ``_CHUNK`` events in parts of devices and of hosts, since their stats differ."""
        on_device = self.on_device.take(self.lines.parent).take(self.rows.parent[begin : begin + _CHUNK])
        cuts = [0, *(np.flatnonzero(on_device[1:] != on_device[:-1]) + 1).tolist(), on_device.size]
        for first, last in pairwise(cuts):
            yield self.rows[begin + first : begin + last], bool(on_device[first])

    @cached_property
    def _plane_words(self) -> Rows:
        return self.words.add(self.names)

    @cached_property
    def _line_words(self) -> Rows:
        """Names of the lines."""
        refs = np.where(self.line_display_name & _LENGTH, self.line_display_name, self.line_name)
        return self._distinct(self.lines, refs)

    def _distinct(self, messages: Messages, refs: Ints) -> Rows:
        """Return the numbers of strings."""
        row, distinct = messages.distinct(refs)
        return self.words.add(distinct)[row] if distinct else row

    @cached_property
    def _ordinals(self) -> Ints:
        """Numbers of the devices."""
        found = (re.search(r":(\d{1,9})$", name) for name in self.names)
        return np.array([int(number[1]) if number else 0 for number in found], np.int64)

    @cached_property
    def _costs(self) -> tuple[list[Ints], Stats]:
        return self._described(self.metadata.values, [_NAME, _DISPLAY_NAME], _COSTS)

    @cached_property
    def _shared(self) -> dict[str, Any]:
        """Columns of the event metadata, shared by events; the last row is for events without."""
        entries, ((name, display_name), stats) = self.metadata.values, self._costs
        ops = np.zeros(len(entries), np.int32)
        of_hosts = np.flatnonzero(~self.on_device[entries.parent])  # names of HLO instructions are long text
        row, distinct = entries.distinct(name[of_hosts])
        if distinct:
            ops[of_hosts] = self.words.add(map(_framework_op, distinct))[row]
        columns: dict[str, Numbers | Rows | None] = {
            "program": stats.number("program_id"),
            "tf_op": stats.text("tf_op", _bare),
            "category": stats.text("hlo_category", _bare),
            "flops": first_number(stats.integer("model_flops"), stats.integer("flops")),
            "bytes": stats.integer("bytes_accessed"),
            "hbm_bytes": _hbm_bytes(stats),
            "product": self._products(entries, name, stats.text("hlo_category")),
            "op": ops if ops.any() else None,
        }
        names = self._distinct(entries, np.where(display_name & _LENGTH, display_name, name))
        ends = {key: None if column is None else _with_null(column) for key, column in columns.items()}
        return ends | {"name": np.append(names, self.words.add([""]))}

    def _products(self, entries: Messages, name: Ints, category: Rows | None) -> Numbers | None:
        """Return the FLOPs of custom calls by the shapes in their text."""
        if category is None:
            return None
        rows = np.flatnonzero(category == self.words.add(["custom-call"]))
        values = np.zeros(len(entries), np.int64)
        values[rows] = [hlo.product(text) or 0 for text in entries.text(name[rows])]
        return Numbers(values, values > 0) if values.any() else None

    def _with_programs(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Add framework op and category from the HLO in the file on planes where the profiler wrote no categories."""
        unnamed = any(frame[name].null_count() == len(frame) for name in ("program", "hlo_op"))
        if unnamed or self.programs.is_empty():
            return frame
        key = ["program", "hlo_op", *["host"] * (len(self.host_names) > 1)]
        joined = frame.join(self.programs, on=key, how="left", maintain_order="left")
        named = pl.col("category").is_not_null().any().over("plane")
        added = {"tf_op": pl.coalesce("tf_op", "hlo_tf_op"), "category": pl.col("hlo_category")}
        added = {name: pl.when(named).then(name).otherwise(value) for name, value in added.items()}
        return joined.with_columns(**added).select(frame.columns)

    # -- what a profile holds beside events ------------------------------------------------------------------------

    def facts(self) -> XSpaceFacts:
        (facts,) = self.facts_of_files()
        return replace(facts, errors=self.top.strings(_ERRORS), warnings=self.top.strings(_WARNINGS))

    def facts_of_files(self) -> list[XSpaceFacts]:
        """Return the facts of each file."""
        stats = self.stat_names.read(
            self.planes, np.arange(len(self.planes), dtype=np.int32), [], _PLANE_STATS, _OF_PLANES
        )[1]
        tasks, cpus = (self.where(name.__eq__) for name in ("Task Environment", "/host:CPU"))
        times = [stats.integer(name) for name in ("profile_start_time", "profile_stop_time")]
        mxu, hosts = stats.real(_MXU), self.top.sub(_HOSTNAMES).parent
        of_file = [self.file == file for file in range(len(self.top))]
        percent = [_first(mxu, cpus & mine) for mine in of_file]
        devices = [
            (*row, None if (share := percent[file]) is None else share / 100) for file, row in self._hardware(stats)
        ]
        hardware = pl.DataFrame(devices, schema=schema.HARDWARE, orient="row")
        edges = np.append(0, np.cumsum([np.count_nonzero(self.devices & mine) for mine in of_file]))
        spans = [[_first(time, tasks & mine) for time in times] for mine in of_file]
        names = [[self.hosts[row] for row in np.flatnonzero(hosts == file).tolist()] for file in range(len(of_file))]
        devices_of = [hardware[first:last] for first, last in pairwise(edges.tolist())]
        return [XSpaceFacts(*facts) for facts in zip(names, *zip(*spans, strict=True), devices_of, strict=True)]

    def _hardware(self, stats: Stats) -> Iterator[tuple[int, tuple[str, str, str, float | None, float | None]]]:
        """Yield the file and the row in ``tpunb.schema.HARDWARE`` of each device, without the last column."""
        texts = {name: stats.series(name) for name in ("device_type_string", "gpu_device_name", "device_vendor")}
        for row in np.flatnonzero(self.devices).tolist():
            name = self.names[row]
            kind, gpu, vendor = (column[row] for column in texts.values())
            kind = kind or gpu
            if kind is None and vendor:  # ROCm writes no name
                parts = (_value(stats.integer(f"compute_cap_{part}"), row) for part in ("major", "minor"))
                version = ".".join(str(part) for part in parts if part is not None)
                kind = f"{vendor} {name.split(':')[1]}" + (f" (compute capability {version})" if version else "")
            peak, hbm, gpu_hbm = (_value(stats.real(stat), row) for stat in _PEAKS)
            flops, bandwidth = (peak or 0) * 1e12, gpu_hbm if hbm is None else hbm * 1e9
            file = int(self.file[row])
            # 0 means unknown
            yield file, (self.host_names[file], name, kind or name.split(":")[1], flops or None, bandwidth or None)

    @cached_property
    def programs(self) -> pl.DataFrame:
        """HLO instructions in the file: (program, hlo_op, hlo_tf_op, hlo_category)."""
        protos, programs, _ = self.protos()
        if not len(protos):
            columns = ("hlo_op", "program", "hlo_tf_op", "hlo_category")
            return pl.DataFrame(schema={name: pl.Int64 if name == "program" else schema.NAME for name in columns})
        instructions = hlo.instructions(protos)
        hosts = pl.Series(self.host_names, dtype=schema.NAME).gather(self.file[protos.parent])
        return instructions.select(
            "hlo_op",
            program=programs.gather(instructions["proto"]),
            host=hosts.gather(instructions["proto"]),
            hlo_tf_op="tf_op",
            hlo_category="category",
        ).unique(["host", "program", "hlo_op"], keep="first", maintain_order=True)

    def protos(self) -> tuple[Messages, pl.Series, list[str]]:
        """Return the HLO protos in the event metadata, the ids of their programs, and their names with the ids."""
        entries = self.metadata.values
        entries = entries[self.where(lambda name: name == _PROGRAMS)[entries.parent]]
        (names,), stats = self._described(entries, [_NAME], ["Hlo Proto"])
        refs, present = stats.bytes("Hlo Proto")
        rows = np.flatnonzero(present)
        words = entries.text(names[rows])
        protos = replace(entries.at(refs[rows]), parent=entries.parent[rows])
        return protos, pl.Series(map(hlo.program, words), dtype=pl.Int64), words

    def described(self) -> pl.DataFrame:
        """Return the instructions that the event metadata of devices describe."""
        entries = self.metadata.values
        entries = entries[self.on_device[entries.parent]]
        stats_read = ["hlo_category", "program_id", "shape_with_layout", "source"]
        (name, short), stats = self._described(entries, [_NAME, _DISPLAY_NAME], stats_read)
        columns = {
            "program": as_series(stats.number("program_id"), len(entries)),
            "hlo_op": self._text(entries, np.where(short & _LENGTH, short, name)),
            "shape": stats.series("shape_with_layout"),
            "source": stats.series("source", texts.relative),
            "text": self._text(entries, name),
        }
        rows = pl.DataFrame(columns).filter(stats.series("hlo_category").is_not_null())
        rows = rows.unique(maintain_order=True)  # devices that run one program have the same
        return texts.described(rows.with_columns(pl.col("shape", "text").cast(pl.String)))

    def _text(self, messages: Messages, refs: Ints) -> pl.Series:
        """Return strings as a column."""
        return as_text(self.words, self._distinct(messages, refs), refs.size)

    def _chosen(self, chosen: Mask, stat_names: Sequence[str]) -> tuple[dict[str, Any], Stats]:
        """Return (name, start_ps, dur_ps) of some of the events, and their stats."""
        entry, start, dur, stats = self._timed(self.rows[chosen], stat_names)
        name = pl.Series([*self._event_names, ""], dtype=schema.NAME)[entry]
        return {"name": name, "start_ps": start, "dur_ps": dur}, stats

    @cached_property
    def _event_names(self) -> list[str]:
        entries = self.metadata.values
        return entries.text(entries.columns(_NAME)[0])

    def counters(self) -> pl.DataFrame:
        """Return the samples on the lines of counters, as ``tpunb.schema.COUNTERS``."""
        named = np.array([name == COUNTERS for name in self.lines.text(self.line_name)], bool)
        of_counters = named & self.on_device[self.lines.parent]
        rows, stats = self._chosen(of_counters[self.rows.parent], ["% util"])
        device = pl.Series(self.names, dtype=pl.String)[stats.planes]
        value = as_series(stats.real("% util"), len(device), pl.Float64()) / 100
        return pl.DataFrame(rows).with_columns(device=device, value=value, counter="name")

    def memory(self) -> pl.DataFrame:
        """Return the events of allocators, as ``tpunb.schema.MEMORY``."""
        signs = [{"MemoryAllocation": 1, "MemoryDeallocation": -1}.get(name, 0) for name in self._event_names]
        planes = self.lines.parent[self.rows.parent]
        sign = np.array([*signs, 0])[self.metadata.rows(planes, self.rows.columns(_METADATA_ID)[0])]
        sign *= self.where(lambda name: name.startswith("/host:"))[planes]
        rows, stats = self._chosen(sign != 0, _MEMORY)
        n = len(stats.messages)
        in_use, reserved, free, peak, size = (as_series(stats.integer(name), n) for name in _MEMORY[4:])
        in_use = _counted(in_use + reserved.fill_null(0))
        numbers = (as_series(stats.integer(name), n).cast(pl.String).cast(schema.NAME) for name in _MEMORY[2:4])
        return pl.DataFrame(rows).with_columns(
            allocator=pl.coalesce(stats.series("allocator_name"), *numbers),
            size_bytes=size * pl.Series(sign[sign != 0]),
            in_use_bytes=in_use,
            peak_bytes=_counted(peak),
            capacity_bytes=_counted(in_use + free),
            tf_op=stats.series("tf_op", _bare),
        )


def _of_hosts(stats: Stats, shared: Mapping[str, Any]) -> dict[str, Any]:
    calls = stats.text("tf_function_call", lambda word: word and FUNCTION_CALL)
    executed = stats.text("hlo_op")
    if executed is not None:
        executed = np.where(stats.calls_driver, np.int32(0), executed)  # launched on a device
    return {"name": shared["name"], "tf_op": first_word(calls, shared["op"]), "hlo_op": executed}


def _of_devices(stats: Stats, shared: Mapping[str, Any]) -> dict[str, Any]:
    annotation = stats.text("annotation", lambda word: word.partition("#")[0].removesuffix(":"))
    category = first_word(stats.text("hlo_category"), shared["category"])
    name = shared["name"]
    named = stats.text("hlo_op")
    return {
        "name": first_word(stats.text("step_name"), name),  # traces of 2020 have the step number there
        "tf_op": first_word(stats.text("tf_op", _bare), annotation, shared["tf_op"]),
        "hlo_op": named if category is None else first_word(named, np.where(category, name, 0)),
        "category": category,
        "device_dur_ps": stats.integer("device_duration_ps"),
        "flops": _undoubted(
            first_number(stats.integer("model_flops"), stats.integer("flops"), shared["flops"]), shared["product"]
        ),
        "bytes": first_number(stats.integer("bytes_accessed"), shared["bytes"]),
        "hbm_bytes": shared["hbm_bytes"],
    }


def _undoubted(flops: Numbers | None, product: Numbers | None) -> Numbers | None:
    """Return FLOPs, null where they are not those by the shapes: a profiler may count one turn of a kernel's loop."""
    if flops is None or product is None:
        return flops
    differs = product.valid & (np.abs(flops.values - product.values) > product.values * hlo.TOLERANCE)
    return Numbers(flops.values, flops.valid & ~differs)


def _with_null(column: Any) -> Any:
    """Return a column with a null after it."""
    if isinstance(column, Numbers):
        return Numbers(np.append(column.values, 0), np.append(column.valid, False))
    return np.append(column, np.int32(0))


def _all_of(values: Ints) -> Numbers:
    return Numbers(values, np.ones(values.size, bool))


def _series(parts: Sequence[Any], sizes: Sequence[int], dtype: pl.DataType, words: pl.Series) -> pl.Series:
    """Return a column of several parts, None for one of nulls."""
    if all(part is None for part in parts):
        return nulls(dtype, sum(sizes))
    if dtype == schema.NAME:
        columns = [np.zeros(n, np.int32) if part is None else part for part, n in zip(parts, sizes, strict=True)]
        return words[(columns[0] if len(columns) == 1 else np.concatenate(columns)).view(np.uint32)]
    kind = np.uint64 if dtype == pl.UInt64 else np.int64
    numbers = [
        Numbers(np.zeros(n, kind), np.zeros(n, bool)) if part is None else part
        for part, n in zip(parts, sizes, strict=True)
    ]
    whole = numbers[0]
    if len(numbers) > 1:
        values, valid = [number.values for number in numbers], [number.valid for number in numbers]
        whole = Numbers(np.concatenate(values), np.concatenate(valid))
    return as_series(whole, len(whole.values))


def _value(column: Numbers | None, row: int) -> Any:
    return column.values[row].item() if column is not None and column.valid[row] else None


def _first(column: Numbers | None, rows: Mask) -> Any:
    """Return the first value that is not null of some rows."""
    return next((value for row in np.flatnonzero(rows).tolist() if (value := _value(column, row)) is not None), None)


def _counted(values: pl.Series) -> pl.Series:
    """Return counts, null where they are negative, as after freeing twice."""
    return values.set(values < 0, None)


def _hbm_bytes(stats: Stats) -> Numbers | None:
    refs, present = stats.bytes("memory_access_breakdown")
    if not present.any():
        return None
    accesses = stats.messages.at(refs).sub(_ACCESS)
    space, accessed = accesses.columns(_MEMORY_SPACE, _ACCESSED)
    sums = np.zeros(refs.size, np.int64)
    np.add.at(sums, accesses.parent, np.where(space == _HBM, accessed, 0))
    return Numbers(sums, present)


@lru_cache(1 << 16)  # many hosts have the same
def _framework_op(name: str) -> str | None:
    """Return the name of an event if it is that of a framework op or an iterator."""
    return name if name.startswith(ITERATOR) or FRAMEWORK_OP.fullmatch(name) else None


def _bare(op: str) -> str:
    """Return a framework op without the colon of an empty type; "" for "XlaModule:", an unknown one."""
    bare = op.removesuffix(":")
    return "" if bare == "XlaModule" else bare


def _times(rows: Messages, line_ns: Ints, offset: Ints, dur: Ints) -> Ints:
    """Return start and duration of events in picoseconds; starts and ends must fit Int64."""
    out = np.empty((2, len(rows)), np.int64)
    outcome = loops.times(rows.parent, line_ns, offset, dur, out)
    if outcome < 0:
        ns, at = line_ns[rows.parent[~outcome]], ~outcome
        raise BadProfile(
            f"{rows.source}: an event starts at {ns} ns + {offset[at]} ps and lasts {max(dur[at], 0)} ps, "
            "beyond Int64 picoseconds",
            hint="check the file: times should be relative to the start of the capture",
        )
    return out
