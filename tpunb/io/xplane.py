"""XPlane profiles (``*.xplane.pb``), what TensorFlow's and JAX's profilers write, as events.

An XSpace holds planes (devices, a host's CPU), a plane lines (streams, threads), a line events. Names, and on
TPU most statistics, lie once in the plane's event metadata, to which events point.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from tpunb import schema
from tpunb.errors import BadProfile
from tpunb.io.protobuf_table import Bytes, Ints, MessageMap, Messages, integer, text
from tpunb.op_names import FRAMEWORK_OP, FUNCTION_CALL

# tags of tsl/profiler/protobuf/xplane.proto
_PLANES, _ERRORS, _WARNINGS, _HOSTNAMES = text(1), text(2), text(3), text(4)
_PLANE_NAME, _LINES, _EVENT_METADATA, _STAT_METADATA, _PLANE_STATS = (text(field) for field in range(2, 7))
_LINE_NAME, _TIMESTAMP_NS, _EVENTS, _LINE_DISPLAY_NAME = text(2), integer(3), text(4), text(11)
_METADATA_ID, _OFFSET_PS, _DURATION_PS, _EVENT_STATS = integer(1), integer(2), integer(3), text(4)
# of event metadata; a stat's has only a name
_NAME, _DISPLAY_NAME, _METADATA_STATS = text(2), text(4), text(5)
# a stat's value
_DOUBLE, _UINT64, _INT64, _STR, _REF = 2 << 3 | 1, integer(3), integer(4), text(5), integer(7)

_HARDWARE_STATS = [
    "device_type_string",
    "gpu_device_name",
    "peak_teraflops_per_second",
    "peak_hbm_bw_gigabytes_per_second",
    "memory_bandwidth",
]
_MOST_NS = (2**63 - 1) // 1000


@dataclass(frozen=True)
class XSpaceFacts:
    """What a profile says beside its events."""

    hosts: list[str]
    start_ns: int | None  # since 1970: when the profiler began to watch, where it tells
    stop_ns: int | None
    hardware: pl.DataFrame  # ``tpunb.schema.HARDWARE``: devices with at least one event
    errors: list[str]  # of the profiler, while it captured
    warnings: list[str]


def events(data: bytes, *, source: str) -> pl.DataFrame:
    """Return the events of one XSpace, in file order: ``tpunb.schema.EVENTS``.

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
    """
    space = _XSpace(data, source)
    lines = space.planes.sub(_LINES)
    rows = lines.sub(_EVENTS)
    plane = lines.parent[rows.parent]
    metadata = MessageMap(space.planes, _EVENT_METADATA)
    identity, offset, duration = rows.columns(_METADATA_ID, _OFFSET_PS, _DURATION_PS)
    row = metadata.rows(plane, identity)
    full, short = (metadata.values.text(refs) for refs in metadata.values.columns(_NAME, _DISPLAY_NAME))
    stats = space.stats(rows, _EVENT_STATS, plane, ["hlo_op", "step_num", "tf_function_call"])
    own = space.framework_ops(rows, _EVENT_STATS, plane)
    shared = [*space.operations(metadata.values, full), None]
    calls = stats.text("tf_function_call", lambda word: word and FUNCTION_CALL)
    frame = {
        "host": pl.Series([space.host], dtype=schema.NAME).new_from_index(0, len(rows)),
        "plane": _gather(space.plane_names, plane),
        "line": _gather(_line_names(lines), rows.parent),
        "lane": pl.Series(rows.parent, dtype=pl.UInt32),
        "name": _gather([*(b or a for a, b in zip(full, short, strict=True)), ""], row),
        "tf_op": _first(calls, _first(own, _gather(shared, row))),
        "hlo_op": stats.text("hlo_op"),
        "step_num": stats.whole("step_num"),
        "start_ps": _starts(lines.columns(_TIMESTAMP_NS)[0][rows.parent], offset, source),
        "dur_ps": duration,
    }
    return pl.DataFrame(frame, schema=schema.EVENTS)


def facts(data: bytes, *, source: str) -> XSpaceFacts:
    """Return what one XSpace says beside its events.

    Raises
    ------
    BadProfile
        When the bytes are cut, corrupt or of another format, or hold no plane.
    """
    space = _XSpace(data, source)
    names = ["profile_start_time", "profile_stop_time", *_HARDWARE_STATS]
    stats = space.stats(space.planes, _PLANE_STATS, np.arange(len(space.planes)), names)
    watch = pl.Series([name == "Task Environment" for name in space.plane_names])
    start, stop = (stats.whole(name).filter(watch).drop_nulls().to_list() for name in names[:2])
    return XSpaceFacts(
        hosts=space.hosts,
        start_ns=start[0] if start else None,
        stop_ns=stop[0] if stop else None,
        hardware=_hardware(space, stats),
        errors=space.top.strings(_ERRORS),
        warnings=space.top.strings(_WARNINGS),
    )


def warm() -> None:
    """Compile or load the kernels, so that a later decode, beside a training, does not."""

    def field(tag: int, content: bytes) -> bytes:
        return bytes([tag, len(content)]) + content

    stat_name = field(_STAT_METADATA, b"\x08\x01" + field(text(2), field(_NAME, b"hlo_op")))
    event = b"\x08\x01" + field(_EVENT_STATS, b"\x08\x01" + field(_STR, b"dot"))
    plane = field(_PLANE_NAME, b"/device:TPU:0") + stat_name + field(_LINES, field(_EVENTS, event))
    space = field(_PLANES, plane)
    events(space, source="warm-up")
    facts(space, source="warm-up")


class _XSpace:
    """The planes of one profile, and the names of their statistics."""

    def __init__(self, data: bytes, source: str) -> None:
        seen = f"{len(data)} bytes, the first {data[:16]!r}"
        if not data:
            raise BadProfile(f"{source}: the file is empty", hint="the capture failed, or its copy did")
        try:
            self.top = Messages.of(data, source=source)
            self.planes = self.top.sub(_PLANES)
        except BadProfile as error:
            raise BadProfile(f"{error}; {seen}", hint=error.hint) from None
        if not len(self.planes):
            raise BadProfile(f"{source}: no plane in {seen}", hint="this may be a protobuf of another kind")
        self.hosts = self.top.strings(_HOSTNAMES)
        self.host = self.hosts[0] if self.hosts else ""
        self.plane_names = self.planes.text(self.planes.columns(_PLANE_NAME)[0])
        self.on_device = [name.startswith("/device:") for name in self.plane_names]
        self.stat_metadata = MessageMap(self.planes, _STAT_METADATA)
        self.stat_names = self.stat_metadata.values.text(self.stat_metadata.values.columns(_NAME)[0])

    def stats(self, messages: Messages, tag: int, plane: Ints, names: Sequence[str], *, on_host: bool = True) -> _Stats:
        """Return the statistics `names`, the field `tag` of messages that lie in the rows `plane`."""
        column = {name: number for number, name in enumerate(names)}
        planes, keys = self.stat_metadata.values.parent.tolist(), self.stat_metadata.keys.tolist()
        identity = {  # of equal names the last, as in a dictionary of the plane
            (of, name): key
            for of, key, name in zip(planes, keys, self.stat_names, strict=True)
            if name in column and (on_host or self.on_device[of])
        }
        wanted: list[dict[int, int]] = [{} for _ in self.plane_names]
        for (of, name), key in identity.items():
            wanted[of][key] = column[name]
        values, kinds = messages.pick(tag, plane, wanted, len(names))
        return _Stats(self, messages, plane, column, values, kinds)

    def framework_ops(self, messages: Messages, tag: int, plane: Ints) -> pl.Series:
        """Return the framework op that statistics of device events, or of their metadata, name."""
        stats = self.stats(messages, tag, plane, ["tf_op", "annotation"], on_host=False)
        annotation = stats.text("annotation", lambda word: word.partition("#")[0].removesuffix(":"))
        return _first(stats.text("tf_op", lambda word: word.removesuffix(":")), annotation)

    def operations(self, metadata: Messages, names: Sequence[str]) -> list[str | None]:
        """Return the framework op that each event metadata gives to its events."""
        known = self.framework_ops(metadata, _METADATA_STATS, metadata.parent).to_list()
        return [
            op if self.on_device[plane] else name if FRAMEWORK_OP.fullmatch(name) else None
            for op, name, plane in zip(known, names, metadata.parent.tolist(), strict=True)
        ]


@dataclass(frozen=True, eq=False)
class _Stats:
    """Statistics of messages: one may be a string here, a reference there, a number elsewhere."""

    space: _XSpace
    messages: Messages
    plane: Ints
    column: Mapping[str, int]
    values: Ints
    kinds: Bytes

    def _column(self, name: str) -> tuple[Ints, Bytes]:
        return self.values[self.column[name]], self.kinds[self.column[name]]

    def text(self, name: str, clean: Callable[[str], str] = str) -> pl.Series:
        """Return a statistic as words, each cleaned; null where it is empty, no text, or not there."""
        value, kind = self._column(name)
        words = [""]
        code = np.zeros(kind.size, np.int64)
        refs, strings = np.flatnonzero(kind == _REF), np.flatnonzero(kind == _STR)
        if refs.size:
            code[refs] = len(words) + self.space.stat_metadata.rows(self.plane[refs], value[refs])
            words += [*self.space.stat_names, ""]
        if strings.size:
            row, own = self.messages.distinct(value[strings])
            code[strings] = len(words) + row
            words += own
        return _gather([clean(word) or None for word in words], code)

    def whole(self, name: str) -> pl.Series:
        """Return a statistic as Int64: whole numbers, and strings of digits; null elsewhere."""
        value, kind = self._column(name)
        number = (kind == _INT64) | ((kind == _UINT64) & (value >= 0))
        digits = self.text(name).cast(pl.String)
        read = digits.set(~digits.str.contains(r"^[0-9]{1,18}$"), None).cast(pl.Int64)
        return pl.Series(value).zip_with(pl.Series(number), read)

    def real(self, name: str) -> pl.Series:
        """Return a statistic as Float64; null where it is 0, for then it is not known, or not there."""
        value, kind = self._column(name)
        number = np.where(kind == _DOUBLE, value.view(np.float64), value.astype(np.float64))
        known = np.isin(kind, (_DOUBLE, _INT64, _UINT64)) & (number > 0) & np.isfinite(number)
        return pl.Series(number).set(pl.Series(~known), None)


def _hardware(space: _XSpace, stats: _Stats) -> pl.DataFrame:
    lines = space.planes.sub(_LINES)
    active = np.bincount(lines.parent[lines.sub(_EVENTS).parent], minlength=len(space.planes)) > 0
    by_name = [
        name.split(":")[1] if device else None for name, device in zip(space.plane_names, space.on_device, strict=True)
    ]
    told = _first(stats.text("device_type_string"), stats.text("gpu_device_name")).cast(pl.String)
    tpu_bandwidth, bandwidth = (
        stats.real("peak_hbm_bw_gigabytes_per_second") * 1e9,
        stats.real("memory_bandwidth"),
    )
    frame = {
        "host": [space.host] * len(by_name),
        "device": space.plane_names,
        "kind": _first(told, pl.Series(by_name, dtype=pl.String)),
        "peak_flops": stats.real("peak_teraflops_per_second") * 1e12,
        "hbm_bandwidth": _first(tpu_bandwidth, bandwidth),
    }
    return pl.DataFrame(frame, schema=schema.HARDWARE).filter(pl.Series(space.on_device), pl.Series(active))


def _line_names(lines: Messages) -> list[str]:
    name, display_name = (lines.text(refs) for refs in lines.columns(_LINE_NAME, _LINE_DISPLAY_NAME))
    return [short or full for full, short in zip(name, display_name, strict=True)]


def _starts(line_ns: Ints, offset: Ints, source: str) -> Ints:
    """Return when events start, in picoseconds."""
    line_ps = line_ns * 1000
    starts: Ints = line_ps + offset
    wrapped = ((line_ps ^ starts) & (offset ^ starts)) < 0
    beyond = np.flatnonzero(wrapped | (line_ns > _MOST_NS) | (line_ns < -_MOST_NS))
    if beyond.size:
        at = beyond[0]
        raise BadProfile(
            f"{source}: an event starts at {line_ns[at]} ns + {offset[at]} ps, beyond Int64 picoseconds",
            hint="times count from the start of the capture; these look absolute or corrupt",
        )
    return starts


def _gather(words: Sequence[str | None], code: Ints) -> pl.Series:
    return pl.Series(words, dtype=schema.NAME).gather(pl.Series(code))


def _first(one: pl.Series, other: pl.Series) -> pl.Series:
    """Return `other` where `one` is null."""
    return one.zip_with(one.is_not_null(), other)
