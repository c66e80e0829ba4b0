"""Other readers of XPlanes, into events or into XProf's tables.

The loops read only the statistics that tpunb reads, store them sparsely, and look up metadata once per name: they are
optimised.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from xspaces import xplane_pb2

_WORDS = ["hlo_op", "tf_function_call", "annotation", "hlo_category", "tf_op", "step_name"]
_NUMBERS = [
    *("step_num", "program_id", "device_ordinal", "run_id", "correlation_id", "_pt", "_p", "_ct", "_c"),
    *("device_offset_ps", "device_duration_ps", "model_flops", "flops", "bytes_accessed"),
]
_SHARED = [*_WORDS[3:5], *_NUMBERS[-3:]]  # from metadata, for all events of a name
_NAME = pl.Categorical()
_TYPES: dict[str, Any] = dict.fromkeys(_WORDS, _NAME) | dict.fromkeys(_NUMBERS, pl.UInt64)


@dataclass
class _Collected:
    """Events of a loop: three lists with one entry per event, and sparse statistics."""

    places: list[tuple[str, str, str]] = field(default_factory=list)  # host, plane and line of each line
    counts: list[int] = field(default_factory=list)  # events of each
    starts: list[int] = field(default_factory=list)
    durs: list[int] = field(default_factory=list)
    rows: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in _TYPES})
    values: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in _TYPES})

    def frame(self, names: pl.DataFrame) -> pl.DataFrame:
        """Return the events with one column per statistic; `names` holds those of their metadata."""
        line = np.repeat(np.arange(len(self.places)), self.counts)
        places = pl.DataFrame(self.places, schema=dict.fromkeys(("host", "plane", "line"), _NAME), orient="row")
        return pl.concat([places[line], names], how="horizontal").with_columns(
            *(self._column(name) for name in _TYPES if self.rows[name]),
            lane=pl.Series(line, dtype=pl.UInt32),
            start_ps=pl.Series(self.starts, dtype=pl.Int64),
            dur_ps=pl.Series(self.durs, dtype=pl.Int64),
        )

    def _column(self, name: str) -> pl.Series:
        empty = pl.repeat(None, len(self.starts), dtype=_TYPES[name], eager=True)
        return empty.scatter(self.rows[name], typed(name, self.values[name])).alias(name)


def typed(name: str, values: list[Any]) -> pl.Series:
    """Return values as text or as numbers modulo 2**64, as signedness differs between readers."""
    kind = str if name in _WORDS else int
    fitting = [value if isinstance(value, kind) else None for value in values]
    if kind is int:
        fitting = [value if value is None else value & 0xFFFFFFFFFFFFFFFF for value in fitting]
    return pl.Series(name, fitting, dtype=_TYPES[name])


def _value(stat: Any, words: dict[int, str]) -> Any:
    kind = stat.WhichOneof("value")
    return words.get(stat.ref_value) if kind == "ref_value" else getattr(stat, kind) if kind else None


def messages(data: bytes) -> pl.DataFrame:
    """Return events by a loop over messages of the protobuf library."""
    space = xplane_pb2().XSpace.FromString(data)
    seen, entries, entry, row = _Collected(), [], [], 0
    for plane in space.planes:
        words = {key: metadata.name for key, metadata in plane.stat_metadata.items()}
        wanted = {key: name for key, name in words.items() if name in _TYPES}
        rows = {key: seen.rows[name] for key, name in wanted.items()}
        values = {key: seen.values[name] for key, name in wanted.items()}
        number = {}
        for key, metadata in plane.event_metadata.items():
            number[key] = len(entries)
            stats = {words.get(stat.metadata_id): _value(stat, words) for stat in metadata.stats}
            entries.append((metadata.display_name or metadata.name, *(stats.get(name) for name in _SHARED)))
        nameless = len(entries)
        entries.append(("", *(None for _ in _SHARED)))
        for line in plane.lines:
            seen.places.append(
                (space.hostnames[0] if space.hostnames else "", plane.name, line.display_name or line.name)
            )
            seen.counts.append(len(line.events))
            begin = line.timestamp_ns * 1000
            for event in line.events:
                entry.append(number.get(event.metadata_id, nameless))
                seen.starts.append(begin + event.offset_ps)
                seen.durs.append(event.duration_ps)
                for one in event.stats:
                    key = one.metadata_id
                    if key in wanted:
                        rows[key].append(row)
                        values[key].append(_value(one, words))
                row += 1
    columns = list(zip(*entries, strict=True))
    shared = {f"shared_{name}": typed(name, list(column)) for name, column in zip(_SHARED, columns[1:], strict=True)}
    return seen.frame(pl.DataFrame({"name": pl.Series(columns[0], dtype=_NAME), **shared})[entry])


def profile_data(data: bytes) -> pl.DataFrame:
    """Return events by a loop over JAX's ``ProfileData``, which rounds to nanoseconds and hides metadata."""
    from jax.profiler import ProfileData

    seen, names, row = _Collected(), [], 0
    for plane in ProfileData.from_serialized_xspace(data).planes:
        for line in plane.lines:
            before = row
            for event in line.events:
                names.append(event.name)
                seen.starts.append(round(event.start_ns * 1000))
                seen.durs.append(round(event.duration_ns * 1000))
                for name, value in event.stats:
                    if name in _TYPES:
                        seen.rows[name].append(row)
                        seen.values[name].append(value)
                row += 1
            seen.places.append(("", plane.name, line.name))
            seen.counts.append(row - before)
    return seen.frame(pl.DataFrame({"name": pl.Series(names, dtype=_NAME)}))


def parquet(file: Path) -> pl.DataFrame:
    """Return the events of XProf's Parquet file."""
    from xprof.convert.events_db.python.pywrap_events_db_c_api import xspace_to_parquet

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "events.parquet")
        xspace_to_parquet(input_path=file, output_path=out)
        return pl.read_parquet(out, memory_map=False)


def _tool(name: str, file: Path) -> Any:
    from xprof.convert import raw_to_tool_data

    # a separate folder, as XProf caches next to the file
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder, "plugins", "profile", "run", "host.xplane.pb")
        own.parent.mkdir(parents=True)
        own.symlink_to(file.resolve())
        data, _ = raw_to_tool_data.xspace_to_tool_data([str(own)], name, {"use_saved_result": False})
    if not data:
        raise RuntimeError(f"XProf's {name} gave nothing")
    return data


def overview(file: Path) -> Any:
    """Return XProf's overview page: sums without events."""
    return _tool("overview_page", file)


def op_profile(file: Path) -> Any:
    """Return XProf's op profile: sums without events."""
    return _tool("op_profile", file)


def chrome(file: Path) -> pl.DataFrame:
    """Return the events of XProf's Chrome trace."""
    trace = json.loads(_tool("trace_viewer", file))["traceEvents"]
    events = [event for event in trace if event.get("ph") == "X"]
    columns = {name: [event.get(name) for event in events] for name in ("pid", "tid", "name", "ts", "dur")}
    words = [json.dumps(event.get("args", {})) for event in events]  # all as text: their types are unknown
    return pl.DataFrame(columns | {"args": words}, strict=False)


class _Table(ctypes.Structure):
    """The struct that ``xspace_decoder.c`` fills."""

    _fields_ = [("n", ctypes.c_int64), ("room", ctypes.c_int64), ("columns", ctypes.c_void_p * 5)]


def compiled(library: Path) -> bool:
    """Return whether a C compiler built ``xspace_decoder.c`` as `library`."""
    source = Path(__file__).with_name("xspace_decoder.c")
    try:
        subprocess.run(["gcc", "-O3", "-shared", "-fPIC", "-o", library, source], check=True)
    except FileNotFoundError:
        return False
    return True


def in_c(library: Path) -> Callable[[bytes], tuple[int, int]]:
    """Return a function that decodes bytes in C and returns the numbers of events and statistics."""
    code = ctypes.CDLL(str(library))

    def decode(data: bytes) -> tuple[int, int]:
        tables = (_Table * 2)()
        sound = code.decode(data, ctypes.c_int64(len(data)), tables)
        code.release(tables)
        if not sound:
            raise ValueError("corrupt")
        return tables[0].n, tables[1].n

    return decode
