"""Raw captures, XPlane and Chrome trace, plain or gzipped: one file a host and session, several make one profile."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import polars as pl

from tpunb import schema
from tpunb.errors import BadProfile, ProfileNotFound
from tpunb.frames import Profile

ENDINGS = (".xplane.pb", ".xplane.pb.gz", ".trace.json", ".trace.json.gz")
"""How the names of profiles end, best first: where two hold the same, the first is read."""

_GZIP = b"\x1f\x8b"


def nearby(where: Path) -> str:
    """Return what lies there or beside it: the hint of an error that found nothing."""
    parent = where if where.is_dir() else where.parent
    if not parent.is_dir():
        return f"{parent} is no folder either"
    seen = sorted(path.name for path in parent.iterdir())[:8]
    return f"{parent} holds {', '.join(seen)}" if seen else f"{parent} is empty"


def stem(file: Path) -> tuple[Path, str]:
    """Return the folder and the name without its ending: the same for all forms of one capture."""
    name = file.name
    for ending in ENDINGS:
        name = name.removesuffix(ending)
    return file.parent, name


def read(files: Sequence[Path], name: str, source: Path) -> Profile:
    """Read raw files as one profile; the earliest begin is its time 0.

    Files of one host, of several sessions, stay one host where step marks tell their steps apart; else each is a
    host of its own, named after its session.
    """
    parts = _told_apart([_read(file) for file in files], files)
    origins = [part.start_ns for part in parts if part.start_ns is not None]
    origin = min(origins) if len(origins) == len(parts) else None
    lanes = 0
    events, rows = [], []
    for number, part in enumerate(parts):
        move = 0 if origin is None or part.start_ns is None else (part.start_ns - origin) * 1000
        events.append(_moved(part.events, move, lanes))
        lanes += _lanes(part.events)
        begin, dur = part.watched()
        marks = part.events["step_num"].drop_nulls().n_unique()
        rows.append((part.host, number, begin + move, dur, dur, part.size, part.events.height, marks, None))
    windows = pl.DataFrame(rows, schema=schema.WINDOWS, orient="row")
    return Profile(
        name=name,
        source=source,
        windows=windows,
        hardware=pl.concat([part.hardware for part in parts]),
        span_ps=int(windows.select((pl.col("start_ps") + pl.col("dur_ps")).max()).item() or 0),
        origin_ns=origin,
        read_events=partial(pl.concat, events),
    )


def windows(files: Mapping[int, Path], origin_ns: int | None, begins_ps: Mapping[int, int]) -> pl.DataFrame:
    """Return the events of the raw windows of a run, by their numbers, each where it lies in the run.

    A window begins when it says itself, in the run's time since `origin_ns`; else when it was asked for, `begins_ps`.
    """
    frames, lanes = [], 0
    for number, file in files.items():
        part = _read(file)
        begin = begins_ps.get(number, 0)
        if part.start_ns is not None and origin_ns is not None:
            begin = (part.start_ns - origin_ns) * 1000
        frames.append(_moved(part.events, begin, lanes))
        lanes += _lanes(part.events)
    return pl.concat(frames)


@dataclass(frozen=True)
class _Part:
    """What one file holds."""

    host: str
    events: pl.DataFrame
    hardware: pl.DataFrame
    size: int  # bytes, unzipped
    start_ns: int | None = None  # since the epoch
    stop_ns: int | None = None

    def watched(self) -> tuple[int, int]:
        """Return from when and how long the profiler watched: by its own word, else until the last event ends."""
        if self.start_ns is not None and self.stop_ns is not None:
            return 0, (self.stop_ns - self.start_ns) * 1000
        ends = self.events.select(pl.col("start_ps").min(), end_ps=(pl.col("start_ps") + pl.col("dur_ps")).max())
        begin, end = ends.row(0) if self.events.height else (0, 0)
        return min(0, begin), end - min(0, begin)

    def renamed(self, host: str) -> _Part:
        """Return the same of a host of another name."""
        events = self.events.with_columns(host=pl.lit(host, schema.NAME))
        return replace(self, host=host, events=events, hardware=self.hardware.with_columns(host=pl.lit(host)))


def _told_apart(parts: Sequence[_Part], files: Sequence[Path]) -> list[_Part]:
    """Name hosts so that no two steps are one: after the file, then the session's folder, and a number at last."""
    if len(parts) == 1:
        return [*parts]
    names = [part.host or stem(file)[1] for part, file in zip(parts, files, strict=True)]
    for suffixes in ([file.parent.name for file in files], [str(number) for number in range(len(files))]):
        clashing = {
            name for name in names if _clash([part for part, own in zip(parts, names, strict=True) if own == name])
        }
        names = [f"{name} {suffix}" if name in clashing else name for name, suffix in zip(names, suffixes, strict=True)]
    return [part if part.host == name else part.renamed(name) for part, name in zip(parts, names, strict=True)]


def _clash(parts: Sequence[_Part]) -> bool:
    """Say whether the steps of files of one host cannot be told apart by the numbers of their marks."""
    marks = [set(part.events["step_num"].drop_nulls()) for part in parts]
    return len(parts) > 1 and (not all(marks) or len(set().union(*marks)) < sum(map(len, marks)))


def _moved(events: pl.DataFrame, by_ps: int, lanes: int) -> pl.DataFrame:
    return events.with_columns(pl.col("start_ps") + by_ps, pl.col("lane") + pl.lit(lanes, pl.UInt32))


def _lanes(events: pl.DataFrame) -> int:
    """Return how many lanes to leave to these events; lines without one leave holes in the numbers."""
    return int(events.select(pl.col("lane").max() + 1).item() or 0)


def _bytes(file: Path) -> bytes:
    try:
        data = file.read_bytes()
        return gzip.decompress(data) if data.startswith(_GZIP) else data
    except FileNotFoundError:
        raise ProfileNotFound(f"nothing is at {file}", hint=nearby(file)) from None
    except (OSError, EOFError, zlib.error) as error:
        raise BadProfile(f"{file}: cannot be read: {error}") from error


def _read(file: Path) -> _Part:
    data = _bytes(file)
    source = str(file)
    if ".xplane.pb" in file.name:
        from tpunb.io import xplane

        facts = xplane.facts(data, source=source)
        events = xplane.events(data, source=source)
        host = facts.hosts[0] if facts.hosts else ""
        return _Part(host, events, facts.hardware, len(data), facts.start_ns, facts.stop_ns)
    if ".trace.json" in file.name or data.lstrip()[:1] in (b"{", b"["):
        from tpunb.io import trace_json

        events = trace_json.events(data, source=source)
        return _Part("", events, trace_json.hardware(events), len(data))
    raise BadProfile(
        f"{file}: not a profile by its name or its first bytes {data[:8]!r}",
        hint=f"a profile's name ends in {', '.join(ENDINGS)}",
    )
