"""Raw captures, XPlane and Chrome trace, plain or gzipped: one file a host and session, several make one profile."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from types import TracebackType
from typing import Any

import polars as pl

from tpunb import schema
from tpunb.errors import BadProfile, TpunbError
from tpunb.frames import Profile
from tpunb.io import decoded, places
from tpunb.io.decoded import Decoded
from tpunb.io.places import Place

ENDINGS = (".xplane.pb", ".xplane.pb.gz", ".trace.json", ".trace.json.gz")
"""How the names of profiles end, best first: where two hold the same, the first is read."""

SLOW_S = 1.0
"""What takes longer than this to read and decode is kept decoded; a local XPlane mostly decodes as fast as it reads."""

_FETCHES = 8  # files that come over a network side by side
_BAR_AFTER_S = 2.0
_MOST_DAYS = 50  # apart; Int64 picoseconds end after 106


def stem(name: str) -> str:
    """Return the name without its ending: the same for all forms of one capture.

    >>> stem("s/a.xplane.pb.gz")
    's/a'
    """
    for ending in ENDINGS:
        name = name.removesuffix(ending)
    return name


def read(files: Sequence[Place], name: str, source: Path | str) -> Profile:
    """Read raw files as one profile; the earliest begin is its time 0.

    Files of one host, of several sessions, stay one host where step marks tell their steps apart; else each is a
    host of its own, named after its session.
    """
    parts = _told_apart(_parts(files), files)
    origins = [part.start_ns for part in parts if part.start_ns is not None]
    origin = min(origins) if len(origins) == len(parts) else None
    if origin is not None and (days := (max(origins) - origin) / 86_400e9) > _MOST_DAYS:
        sessions = ", ".join(sorted({file.session for file in files})[:8])
        raise TpunbError(f"{source}: sessions {days:.0f} days apart are no one profile", hint=f"load one of {sessions}")
    lanes = 0
    events, rows = [], []
    for number, part in enumerate(parts):
        move = 0 if origin is None or part.start_ns is None else (part.start_ns - origin) * 1000
        events.append(_moved(part.events, move, lanes, number))
        lanes += _lanes(part.events)
        begin, dur = part.watched()
        marks = part.events["step_num"].drop_nulls().n_unique()
        rows.append((part.host, number, begin + move, dur, dur, part.size, part.events.height, marks, None, None))
    windows = pl.DataFrame(rows, schema=schema.WINDOWS, orient="row")
    return Profile(
        name=name,
        source=source,
        windows=windows,
        hardware=pl.concat([part.hardware for part in parts]),
        span_ps=int(windows.select((pl.col("start_ps") + pl.col("dur_ps")).max()).item() or 0),
        origin_ns=origin,
        read_events=partial(pl.concat, events),
        reused=all(part.reused for part in parts),
    )


def windows(
    files: Mapping[tuple[int, str], Place], origin_ns: int | None, begins_ps: Mapping[tuple[int, str], int]
) -> pl.DataFrame:
    """Return the events of the raw windows of a run, by their numbers and hosts, each where it lies in the run.

    A window begins when it says itself, in the run's time since `origin_ns`; else when it was asked for, `begins_ps`.
    """
    frames, lanes = [], 0
    for number, (key, part) in enumerate(zip(files, _parts([*files.values()]), strict=True)):
        begin = begins_ps.get(key, 0)
        if part.start_ns is not None and origin_ns is not None:
            begin = (part.start_ns - origin_ns) * 1000
        frames.append(_moved(part.renamed(key[1]).events, begin, lanes, number))  # the host that the statistics name
        lanes += _lanes(part.events)
    return pl.concat(frames)


def _told_apart(parts: Sequence[Decoded], files: Sequence[Place]) -> list[Decoded]:
    """Name hosts so that no two steps are one: after the file, then the session's folder, and a number at last."""
    if len(parts) == 1:
        return [*parts]
    names = [part.host or stem(file.name) for part, file in zip(parts, files, strict=True)]
    for suffixes in ([file.session for file in files], [str(number) for number in range(len(files))]):
        clashing = {
            name for name in names if _clash([part for part, own in zip(parts, names, strict=True) if own == name])
        }
        names = [f"{name} {suffix}" if name in clashing else name for name, suffix in zip(names, suffixes, strict=True)]
    return [part if part.host == name else part.renamed(name) for part, name in zip(parts, names, strict=True)]


def _clash(parts: Sequence[Decoded]) -> bool:
    """Say whether the steps of files of one host cannot be told apart by the numbers of their marks."""
    marks = [set(part.events["step_num"].drop_nulls()) for part in parts]
    return len(parts) > 1 and (not all(marks) or len(set().union(*marks)) < sum(map(len, marks)))


def _moved(events: pl.DataFrame, by_ps: int, lanes: int, number: int) -> pl.DataFrame:
    """Return the events of file `number` where they lie in the profile, their ids apart from those of other files."""
    if not by_ps and not lanes:
        return events
    salt = pl.lit(number * 0xD1B54A32D192ED03 % 2**64, pl.UInt64)  # every process counts its launches from 1
    return events.with_columns(
        pl.col("start_ps") + by_ps,
        pl.col("lane") + pl.lit(lanes, pl.UInt32),
        pl.col("sends", "receives", "launch") ^ salt,
    )


def _lanes(events: pl.DataFrame) -> int:
    """Return how many lanes to leave to these events; lines without one leave holes in the numbers."""
    return int(events.select(pl.col("lane").max() + 1).item() or 0)


def _parts(files: Sequence[Place]) -> list[Decoded]:
    """Return what each file holds, several read and decoded side by side."""
    workers = _FETCHES if any(file.url for file in files) else os.cpu_count() or 1
    with _Bar(files) as bar, ThreadPoolExecutor(min(len(files), workers)) as pool:
        answers = [pool.submit(_part, file, bar) for file in files]
        try:
            places.awaited(answers)
            for answer in answers:
                if answer.done():  # the first that failed ends the load
                    answer.result()
            return [answer.result() for answer in answers]
        except BaseException:  # and so does whoever interrupts it
            bar.over = True
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _part(file: Place, bar: _Bar) -> Decoded:
    """Return what a file holds, from the cache where it is there."""
    entry = decoded.entry(file)
    if entry is not None and (kept := decoded.get(entry)):
        bar(file.info.get("size") or 0)
        return kept
    if ".xplane.pb" in file.name:
        _warm()
    begin = time.monotonic()
    part = _decoded(file, places.read(file, bar))
    if entry is not None and (file.url or time.monotonic() - begin > SLOW_S):
        decoded.keep(entry, part)
    return part


@cache
def _warm() -> None:
    """Compile the decoder, once a process: the time that this takes makes no file a slow one."""
    from tpunb.io import xplane

    xplane.warm()


def _decoded(file: Place, data: places.Bytes) -> Decoded:
    if ".xplane.pb" in file.name:
        from tpunb.io import xplane

        events, facts = xplane.read(data, source=str(file))
        host = facts.hosts[0] if facts.hosts else ""
        return Decoded(host, events, facts.hardware, data.size, facts.start_ns, facts.stop_ns)
    if ".trace.json" in file.name or data[:64].tobytes().lstrip()[:1] in (b"{", b"["):
        from tpunb.io import trace_json

        events = trace_json.events(data.tobytes(), source=str(file))
        host = str(events["host"][0]) if events.height else ""
        return Decoded(host, events, trace_json.hardware(events), data.size)
    raise BadProfile(
        f"{file}: not a profile by its name or its first bytes {data[:8].tobytes()!r}",
        hint=f"a profile's name ends in {', '.join(ENDINGS)}",
    )


class _Bar:
    """The progress of a load in bytes, shown when it takes longer than two seconds."""

    over = False  # the load was given up: whoever still reads shall stop

    def __init__(self, files: Sequence[Place]) -> None:
        self._total = sum(file.info.get("size") or 0 for file in files) or None
        self._began = time.monotonic()
        self._done = 0
        self._bar: Any = None
        self._lock = threading.Lock()

    def __call__(self, count: int) -> None:
        if self.over:
            raise CancelledError
        with self._lock:
            self._done += count
            if self._bar is not None:
                self._bar.update(count)
            elif time.monotonic() - self._began > _BAR_AFTER_S:
                with suppress(ImportError):  # a bar is no reason to fail a load
                    from tqdm.auto import tqdm

                    self._bar = tqdm(total=self._total, initial=self._done, unit="B", unit_scale=True, leave=False)

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()
