"""Cache of decoded raw files that were remote or slow to decode, and of what was drawn of runs slow to group.

An entry is a folder in ``TPUNB_CACHE`` ("off": no cache) or the cache folder of the user; above ``TPUNB_CACHE_LIMIT``
bytes (2 GiB) the least recently used are removed. Errors here never fail a load: the file is decoded again.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

import polars as pl

from tpunb import schema
from tpunb.io.storage import Location

DECODER = 11
"""Version of the decoders: to be raised when their results change, which invalidates older entries."""

_LIMIT = 2 << 30
_EVENTS, _FACTS, _DRAWN = "events.parquet", "facts.json", "drawn.json"
_ENTRY = re.compile(r"\.?[0-9a-f]{64}(\.[0-9a-f]{8})?")


@dataclass(frozen=True)
class Extent:
    """What the events of a file span."""

    events: int  # number of events
    lanes: int
    begin_ps: int
    end_ps: int
    steps: frozenset[int]  # numbers in step annotations
    hosts: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # if several: events and steps of each process


@dataclass(frozen=True)
class Decoded:
    """Contents of one raw file."""

    host: str
    events: pl.DataFrame
    hardware: pl.DataFrame
    size: int  # bytes, unzipped
    start_ns: int | None = None  # since the epoch
    stop_ns: int | None = None
    reused: bool = False
    notes: Sequence[str] = ()  # what was left out or changed
    is_cut: bool = False  # the run goes on after the last event
    calls: pl.DataFrame | None = None  # ``tpunb.schema.CALLS`` with these events; None if they are to be read again

    @cached_property
    def extent(self) -> Extent:
        """What the events span; columns are read as arrays, because a query costs as much as a small file."""
        start, dur, lane = (self.events[name].to_numpy() for name in ("start_ps", "dur_ps", "lane"))
        step = self.events["step_num"]
        if not start.size:
            return Extent(0, 0, 0, 0, frozenset())
        steps = [] if step.null_count() == len(step) else [n for n in step.unique().to_list() if n is not None]
        ends = int(start.min()), int((start + dur).max())
        host = self.events["host"].to_physical().to_numpy()
        hosts = dict[str, tuple[int, int]]()
        if (host != host[0]).any():
            counts = pl.len(), pl.col("step_num").drop_nulls().n_unique()
            rows = self.events.group_by(pl.col("host").cast(pl.String), maintain_order=True).agg(counts)
            hosts = {name: (events, marked) for name, events, marked in rows.iter_rows()}
        return Extent(start.size, 1 + int(lane.max()), *ends, frozenset(steps), hosts)


def folder() -> Path | None:
    """Return the cache folder, or None if the cache is off."""
    path = os.environ.get("TPUNB_CACHE")
    if path == "off":
        return None
    if path:
        return Path(os.path.expanduser(path))  # noqa: PTH111  Path raises for unknown users
    from platformdirs import user_cache_path

    return user_cache_path("tpunb")


def private_folder(name: str) -> Path | None:
    """Return a folder of the cache for what runs or is shown as it is; None if other users can enter it."""
    if (root := folder()) is None:
        return None
    with suppress(OSError):  # it is not there yet, or nobody can read it
        info = (root / name).lstat()
        if hasattr(os, "getuid") and (info.st_uid, info.st_mode & 0o077) != (os.getuid(), 0):
            return None
    return root / name


def entry(file: Location) -> Path | None:
    """Return the path of the entry of a file; None if changes of the file cannot be detected."""
    root = folder()
    if root is None or file.stamp is None:
        return None
    columns = {name: str(dtype) for name, dtype in schema.EVENTS.items()}
    identity = [file.url or str(Path(file.path).absolute()), file.stamp, DECODER, columns]
    key = hashlib.sha256(json.dumps(identity).encode("utf8", "surrogatepass")).hexdigest()
    return root / "decoded" / key


def get(entry: Path) -> Decoded | None:
    """Return the contents of an entry, or None; an entry that cannot be read is removed."""
    try:
        facts = json.loads((entry / _FACTS).read_text(encoding="utf-8"))
        host, hardware, size, start_ns, stop_ns, notes, is_cut, check = facts
        data = (entry / _EVENTS).read_bytes()
        intact = isinstance(host, str) and isinstance(size, int) and zlib.crc32(data) == check
        if not intact or not all(isinstance(time, int | None) for time in (start_ns, stop_ns)):
            raise ValueError("damaged entry")
        events = pl.read_parquet(io.BytesIO(data))
        if events.schema != schema.EVENTS:
            raise ValueError("entry with other columns")
        devices = pl.DataFrame(hardware, schema=schema.HARDWARE, orient="row")
    except (OSError, ValueError, TypeError, RecursionError, pl.exceptions.PolarsError, pl.exceptions.PanicException):
        shutil.rmtree(entry, ignore_errors=True)
        return None
    with suppress(OSError):  # a read-only cache
        os.utime(entry)
    return Decoded(host, events, devices, size, start_ns, stop_ns, True, [*map(str, notes)], is_cut is True)


def put(entry: Path, part: Decoded) -> None:
    """Write an entry of a file."""

    def fill(aside: Path) -> None:
        part.events.write_parquet(aside / _EVENTS)
        check = zlib.crc32((aside / _EVENTS).read_bytes())  # Parquet does not detect a flipped bit
        times = part.start_ns, part.stop_ns
        facts = [part.host, part.hardware.rows(), part.size, *times, [*part.notes], part.is_cut, check]
        (aside / _FACTS).write_text(json.dumps(facts), encoding="utf-8")

    _write(entry, fill)


def drawn_entry(run: Location, *settings: object) -> Path | None:
    """Return the path of the entry of what was drawn of a run folder; None if its changes cannot be detected.

    A change of any file, of the settings or of tpunb gives another path.
    """
    root, stamps = private_folder("drawn"), {name: file.stamp for name, file in sorted(run.below().items())}
    if root is None or None in stamps.values():
        return None
    identity = [str(Path(run.path).absolute()), stamps, _changed_ns(), *settings]
    return root / hashlib.sha256(json.dumps(identity).encode("utf8", "surrogatepass")).hexdigest()


def _changed_ns() -> int:
    """Return when the code of tpunb last changed, which may then draw otherwise."""
    return max(file.stat().st_mtime_ns for file in Path(__file__).parents[1].rglob("*.py"))


def get_drawn(entry: Path) -> dict[str, Any] | None:
    """Return what was drawn, or None; an entry that cannot be read is removed."""
    try:
        check, _, data = (entry / _DRAWN).read_bytes().partition(b"\n")
        if zlib.crc32(data) != int(check):
            raise ValueError("damaged entry")
        drawn: dict[str, Any] = json.loads(data)
    except (OSError, ValueError):
        shutil.rmtree(entry, ignore_errors=True)
        return None
    with suppress(OSError):  # a read-only cache
        os.utime(entry)
    return drawn


def put_drawn(entry: Path, drawn: dict[str, Any]) -> None:
    """Write an entry of what was drawn."""
    data = json.dumps(drawn).encode()
    _write(entry, lambda aside: (aside / _DRAWN).write_bytes(b"%d\n%s" % (zlib.crc32(data), data)))


def _write(entry: Path, fill: Callable[[Path], object]) -> None:
    """Write an entry atomically, then remove old ones; a full or read-only disk is ignored."""
    aside = entry.with_name(f".{entry.name}.{uuid4().hex[:8]}")
    try:
        entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        aside.mkdir()
        fill(aside)
        aside.rename(entry)
        _evict(entry.parent)
    except (OSError, pl.exceptions.PolarsError):
        shutil.rmtree(aside, ignore_errors=True)


def _evict(folder: Path) -> None:
    """Remove the least recently used entries above the limit."""
    limit = os.environ.get("TPUNB_CACHE_LIMIT", "")
    left = int(limit) if limit.isdecimal() else _LIMIT
    entries = [path for path in folder.iterdir() if _ENTRY.fullmatch(path.name)]  # never files of other programs
    for entry in sorted(entries, key=lambda path: path.stat().st_mtime_ns, reverse=True):
        size = sum(file.stat().st_size for file in entry.iterdir())
        if size > left:
            shutil.rmtree(entry, ignore_errors=True)
        else:
            left -= size
