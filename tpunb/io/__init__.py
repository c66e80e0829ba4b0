"""Reading profiles, wherever they come from: one verb, and the samples this project recorded itself."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from tpunb import schema
from tpunb.errors import BadProfile, ProfileNotFound
from tpunb.frames import Profile
from tpunb.io import run_folder

_ENDINGS = (".xplane.pb", ".xplane.pb.gz", ".trace.json", ".trace.json.gz")
_GZIP = b"\x1f\x8b"

PathLike = str | os.PathLike[str]


def load(path: PathLike | Iterable[PathLike]) -> Profile:
    """Read a profile.

    Parameters
    ----------
    path
        A run folder that ``tp.capture`` wrote, a profiler's logdir, one ``*.xplane.pb`` or ``*.trace.json`` (each also
        gzipped), or a list of such files, one a host. Where a session of a logdir holds both forms of a host's
        profile, the XPlane is read; of several sessions, all.

    Raises
    ------
    ProfileNotFound
        Nothing is there, or nothing that is a profile.
    BadProfile
        A file is empty, cut, corrupt or something else; the message names it and what was seen.
    """
    if not isinstance(path, (str, os.PathLike)):
        paths = [Path(one) for one in path]
        if not paths:
            raise ProfileNotFound("the list of profiles is empty")
        return _load_files(paths, paths[0].name, paths[0].parent)
    where = Path(path)
    if not where.exists():
        raise ProfileNotFound(f"nothing is at {where}", hint=_nearby(where))
    if where.is_file():
        return _load_files([where], where.name, where)
    if run_folder.is_run(where):
        return run_folder.read(where, _moved_events)
    files = sorted(file for file in where.rglob("*") if file.name.endswith(_ENDINGS))
    if not files:
        raise ProfileNotFound(
            f"{where} holds no profile: no run.json and no file ending in {', '.join(_ENDINGS)}",
            hint=_nearby(where),
        )
    best: dict[tuple[Path, str], Path] = {}
    for ending in _ENDINGS:
        for file in files:
            if file.name.endswith(ending):
                best.setdefault(_stem(file), file)
    return _load_files(sorted(best.values()), where.name, where)


def sample(name: str) -> Profile:
    """Load a run that this project recorded itself; an unknown name raises and lists those there are.

    >>> sample("keras_cnn").name
    'keras_cnn'
    """
    here = Path(__file__).resolve().parents[1]
    places = [here / "_samples", here.parent / "datasets" / "sample_profiles"]
    names: set[str] = set()
    for place in places:
        if run_folder.is_run(place / name):
            return load(place / name)
        names |= {path.name for path in place.glob("*") if run_folder.is_run(path)}
    raise ProfileNotFound(f"no sample is named {name!r}", hint=f"there are {', '.join(sorted(names)) or 'none'}")


def _nearby(where: Path) -> str:
    parent = where if where.is_dir() else where.parent
    if not parent.is_dir():
        return f"{parent} is no folder either"
    seen = sorted(path.name for path in parent.iterdir())[:8]
    return f"{parent} holds {', '.join(seen)}" if seen else f"{parent} is empty"


def _stem(file: Path) -> tuple[Path, str]:
    name = file.name
    for ending in _ENDINGS:
        name = name.removesuffix(ending)
    return file.parent, name


def _bytes(file: Path) -> bytes:
    try:
        data = file.read_bytes()
        return gzip.decompress(data) if data.startswith(_GZIP) else data
    except FileNotFoundError:
        raise ProfileNotFound(f"nothing is at {file}", hint=_nearby(file)) from None
    except (OSError, EOFError, zlib.error) as error:
        raise BadProfile(f"{file}: cannot be read: {error}") from error


def _load_files(files: Sequence[Path], name: str, source: Path) -> Profile:
    """Read raw files, one a host or session; the earliest begin is the profile's time 0."""
    parts = [_read_file(file) for file in files]
    if len(parts) > 1:
        parts = [_with_host(part, _stem(file)[1]) for part, file in zip(parts, files, strict=True)]
    origins = [part["start_ns"] for part in parts if part["start_ns"] is not None]
    origin = min(origins) if len(origins) == len(parts) else None
    moves = [0 if origin is None else (part["start_ns"] - origin) * 1000 for part in parts]
    lanes = 0
    events, rows = [], []
    for number, (part, move) in enumerate(zip(parts, moves, strict=True)):
        frame = part["events"]
        events.append(_moved(frame, move, lanes))
        lanes += _lanes(frame)
        begin, end = _span(frame, part)
        marks = frame["step_num"].drop_nulls().n_unique()
        rows.append(
            (
                part["host"],
                number,
                begin + move,
                end - begin,
                end - begin,
                part["bytes"],
                frame.height,
                marks,
                None,
            )
        )
    windows = pl.DataFrame(rows, schema=schema.WINDOWS, orient="row")
    return Profile(
        name=name,
        source=source,
        windows=windows,
        hardware=pl.concat([part["hardware"] for part in parts]),
        span_ps=int(windows.select((pl.col("start_ps") + pl.col("dur_ps")).max()).item() or 0),
        origin_ns=origin,
        read_events=partial(pl.concat, events),
    )


def _with_host(part: dict[str, Any], name: str) -> dict[str, Any]:
    """Name the host after its file where the format does not, so that the steps of two hosts stay apart."""
    if part["host"]:
        return part
    events = part["events"].with_columns(host=pl.lit(name, schema.NAME))
    return {**part, "host": name, "events": events, "hardware": part["hardware"].with_columns(host=pl.lit(name))}


def _span(events: pl.DataFrame, part: dict[str, Any]) -> tuple[int, int]:
    """Return when a file's profiler watched: by its own word, else from the first event to the last."""
    if part["start_ns"] is not None and part["stop_ns"] is not None:
        return 0, (part["stop_ns"] - part["start_ns"]) * 1000
    if events.is_empty():
        return 0, 0
    ends = events.select(pl.col("start_ps").min(), end_ps=(pl.col("start_ps") + pl.col("dur_ps")).max())
    return int(ends["start_ps"][0]), int(ends["end_ps"][0])


def _moved(events: pl.DataFrame, by_ps: int, lanes: int) -> pl.DataFrame:
    return events.with_columns(pl.col("start_ps") + by_ps, pl.col("lane") + pl.lit(lanes, pl.UInt32))


def _lanes(events: pl.DataFrame) -> int:
    """Return how many lanes to leave to these events; lines without one leave holes in the numbers."""
    return int(events.select(pl.col("lane").max() + 1).item() or 0)


def _moved_events(files: Sequence[Path], begins_ps: Sequence[int]) -> pl.DataFrame:
    """Decode the raw windows of a run, each moved to where it lies in the run."""
    from tpunb.io import xplane

    frames, lanes = [], 0
    for file, begin in zip(files, begins_ps, strict=True):
        frame = xplane.events(_bytes(file), source=str(file))
        frames.append(_moved(frame, begin, lanes))
        lanes += _lanes(frame)
    return pl.concat(frames)


def _read_file(file: Path) -> dict[str, Any]:
    data = _bytes(file)
    read: Callable[[bytes, str], dict[str, Any]]
    if ".xplane.pb" in file.name:
        read = _read_xplane
    elif ".trace.json" in file.name or data.lstrip()[:1] in (b"{", b"["):
        read = _read_trace
    else:
        raise BadProfile(
            f"{file}: not a profile by its name or its first bytes {data[:8]!r}",
            hint=f"a profile's name ends in {', '.join(_ENDINGS)}",
        )
    return {"bytes": len(data), **read(data, str(file))}


def _read_xplane(data: bytes, source: str) -> dict[str, Any]:
    from tpunb.io import xplane

    facts = xplane.facts(data, source=source)
    events = xplane.events(data, source=source)
    host = facts.hosts[0] if facts.hosts else ""
    return {
        "host": host,
        "events": events,
        "start_ns": facts.start_ns,
        "stop_ns": facts.stop_ns,
        "hardware": facts.hardware,
    }


def _read_trace(data: bytes, source: str) -> dict[str, Any]:
    from tpunb.io import trace_json

    events = trace_json.events(data, source=source)
    hardware = trace_json.hardware(events)
    return {"host": "", "events": events, "start_ns": None, "stop_ns": None, "hardware": hardware}
