"""Raw captures, XPlane and Chrome trace, plain or gzipped: one file per host and session, several per profile."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from tpunb import schema
from tpunb.errors import BadProfile, TpunbError
from tpunb.frames import Profile
from tpunb.io import cache, storage
from tpunb.io.cache import Decoded
from tpunb.io.storage import Location

ENDINGS = (".xplane.pb", ".xplane.pb.gz", ".trace.json", ".trace.json.gz")
"""Endings of the names of profiles, best first: of two forms of one capture the first is read."""

SLOW_S = 1.0
"""Seconds to read and decode a local file above which the result is cached."""

_T = TypeVar("_T")
_FETCHES = 8  # parallel downloads
_BAR_AFTER_S = 2.0
_MOST_DAYS = 50  # apart; Int64 picoseconds end after 106


def stem(name: str) -> str:
    """Return the name without its ending, which is the same for all forms of one capture.

    >>> stem("s/a.xplane.pb.gz")
    's/a'
    """
    for ending in ENDINGS:
        name = name.removesuffix(ending)
    return name


def read(files: Sequence[Location], name: str, source: Path | str) -> Profile:
    """Read raw files as one profile; the earliest start is its time 0.

    Of several files, damaged ones are left out and named in ``skipped``; if all are damaged, the first error is raised.
    Several sessions of one host stay one host where step annotations distinguish their steps; else each is a host named
    after its session.
    """
    answers = _parallel(files, _part if len(files) == 1 else _part_or_error)
    errors = [(file, answer) for file, answer in zip(files, answers, strict=True) if isinstance(answer, BadProfile)]
    if len(errors) == len(files):
        raise errors[0][1]
    read = [(file, answer) for file, answer in zip(files, answers, strict=True) if isinstance(answer, Decoded)]
    several = len({file.session for file in files}) > 1
    names = [f"{file.session}/{file.name}" if several else file.name for file, _ in errors]
    files = [file for file, _ in read]
    parts = _distinct_hosts([part for _, part in read], files)
    origins = [part.start_ns for part in parts if part.start_ns is not None]
    origin = min(origins) if len(origins) == len(parts) else None
    if origin is not None and (days := (max(origins) - origin) / 86_400e9) > _MOST_DAYS:
        sessions = ", ".join(sorted({file.session for file in files})[:8])
        raise TpunbError(f"{source}: sessions are {days:.0f} days apart", hint=f"load one of {sessions}")
    moves = [0 if origin is None or part.start_ns is None else (part.start_ns - origin) * 1000 for part in parts]
    rows = []
    for number, (part, move) in enumerate(zip(parts, moves, strict=True)):
        begin, dur = part.traced()
        steps = part.events["step_num"].drop_nulls().n_unique()
        rows.append((part.host, number, begin + move, dur, dur, part.size, part.events.height, steps, None, None))
    windows = pl.DataFrame(rows, schema=schema.WINDOWS, orient="row")
    return Profile(
        name=name,
        source=source,
        windows=windows,
        hardware=pl.concat([part.hardware for part in parts]),
        span_ps=int(windows.select((pl.col("start_ps") + pl.col("dur_ps")).max()).item() or 0),
        origin_ns=origin,
        read_events=partial(pl.concat, _moved(parts, moves)),
        read_details=partial(_details, files, [part.host for part in parts], moves),
        reused=all(part.reused for part in parts),
        skipped=tuple(zip(names, (str(error).removeprefix(f"{file}: ") for file, error in errors), strict=True)),
    )


def windows(
    files: Mapping[tuple[int, str], Location],
    origin_ns: int | None,
    begins_ps: Mapping[tuple[int, str], int],
    kind: str = "events",
) -> pl.DataFrame:
    """Return the events of raw windows of a run, by number and host, in the time of the run, or other frames of them.

    A window starts at its recorded time, relative to `origin_ns`, else at its start in `begins_ps`.
    """
    parts = [part.renamed(host) for (_, host), part in zip(files, _parallel([*files.values()], _part), strict=True)]
    begins = [
        begins_ps.get(key, 0) if part.start_ns is None or origin_ns is None else (part.start_ns - origin_ns) * 1000
        for key, part in zip(files, parts, strict=True)
    ]
    if kind != "events":
        return _details([*files.values()], [part.host for part in parts], begins, kind)
    return pl.concat(_moved(parts, begins))


def _details(files: Sequence[Location], hosts: Sequence[str], by_ps: Sequence[int], kind: str) -> pl.DataFrame:
    """Return a frame that raw files hold beside events, such as "instructions", in the time of the profile."""
    columns: schema.Schema = getattr(schema, kind.upper())
    frames = [schema.empty(columns)]
    for file, host, by in zip(files, hosts, by_ps, strict=True):
        data = storage.read(file)
        if ".xplane.pb" in file.name:
            from tpunb.io import xplane

            frame = getattr(xplane, kind)(data, source=str(file))
        elif kind == "instructions":
            from tpunb.io import chrome_trace

            frame = chrome_trace.instructions(data.tobytes(), source=str(file))
        else:
            continue
        frames.append(frame.with_columns(pl.col("^start_ps$") + by, host=pl.lit(host)))
    return schema.check(pl.concat(frames), columns, kind)


def _distinct_hosts(parts: Sequence[Decoded], files: Sequence[Location]) -> list[Decoded]:
    """Name hosts so that steps are distinct: after the file, then the folder of the session, then by number."""
    if len(parts) == 1:
        return [*parts]
    names = [part.host or stem(file.name) for part, file in zip(parts, files, strict=True)]
    for suffixes in ([file.session for file in files], [str(number) for number in range(len(files))]):
        clashing = {
            name for name in names if _clash([part for part, other in zip(parts, names, strict=True) if other == name])
        }
        names = [f"{name} {suffix}" if name in clashing else name for name, suffix in zip(names, suffixes, strict=True)]
    return [part if part.host == name else part.renamed(name) for part, name in zip(parts, names, strict=True)]


def _clash(parts: Sequence[Decoded]) -> bool:
    """Return whether steps of files of one host share numbers, or have none."""
    steps = [set(part.events["step_num"].drop_nulls()) for part in parts]
    return len(parts) > 1 and (not all(steps) or len(set().union(*steps)) < sum(map(len, steps)))


def _moved(parts: Sequence[Decoded], by_ps: Sequence[int]) -> list[pl.DataFrame]:
    """Return the events of each file in the time of the profile, with lanes and ids distinct from other files."""
    frames, lanes = [], 0
    for number, (part, by) in enumerate(zip(parts, by_ps, strict=True)):
        salt = pl.lit(number * 0xD1B54A32D192ED03 % 2**64, pl.UInt64)  # every process counts launches from 1
        moved = part.events.with_columns(
            pl.col("start_ps") + by,
            pl.col("lane") + pl.lit(lanes, pl.UInt32),
            pl.col("flow_out", "flow_in", "correlation_id") ^ salt,
        )
        frames.append(moved if by or lanes else part.events)
        lanes += int(part.events.select(pl.col("lane").max() + 1).item() or 0)
    return frames


def _parallel(files: Sequence[Location], read: Callable[[Location, _Bar], _T]) -> list[_T]:
    """Return the result of `read` for each file, in parallel."""
    workers = _FETCHES if any(file.url for file in files) else os.cpu_count() or 1
    with closing(_Bar(files)) as bar, ThreadPoolExecutor(min(len(files), workers)) as pool:
        try:
            answers = [pool.submit(read, file, bar) for file in files]  # an interrupt may come here, too
            storage.awaited(answers)
            for answer in answers:
                if answer.done():  # the first failure ends the load
                    answer.result()
            return [answer.result() for answer in answers]
        except BaseException:  # an interrupt too
            bar.cancelled = True
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _part_or_error(file: Location, bar: _Bar) -> Decoded | BadProfile:
    try:
        return _part(file, bar)
    except BadProfile as error:
        return error


def _part(file: Location, bar: _Bar) -> Decoded:
    """Return the contents of a file, from the cache if possible."""
    entry = cache.entry(file)
    if entry is not None and (cached := cache.get(entry)):
        bar(file.info.get("size") or 0)
        return cached
    if ".xplane.pb" in file.name:
        from tpunb.io import xplane

        xplane.warm()  # not part of the time of decoding
    begin = time.monotonic()
    part = _decoded(file, storage.read(file, bar))
    if entry is not None and (file.url or time.monotonic() - begin > SLOW_S):
        cache.put(entry, part)
    return part


def _decoded(file: Location, data: storage.Bytes) -> Decoded:
    if ".xplane.pb" in file.name:
        from tpunb.io import xplane

        events, facts = xplane.read(data, source=str(file))
        host = facts.hosts[0] if facts.hosts else ""
        return Decoded(host, events, facts.hardware, data.size, facts.start_ns, facts.stop_ns)
    if ".trace.json" in file.name or data[:64].tobytes().lstrip()[:1] in (b"{", b"["):
        from tpunb.io import chrome_trace

        events, hardware = chrome_trace.read(data.tobytes(), source=str(file))
        host = str(events["host"][0]) if events.height else ""
        return Decoded(host, events, hardware, data.size)
    raise BadProfile(
        f"{file}: not a profile by its name or its first bytes {data[:8].tobytes()!r}",
        hint=f"a profile's name ends in {', '.join(ENDINGS)}",
    )


class _Bar:
    """Progress of a load in bytes, shown after two seconds."""

    cancelled = False  # reading threads shall stop

    def __init__(self, files: Sequence[Location]) -> None:
        self._total = sum(file.info.get("size") or 0 for file in files) or None
        self._began = time.monotonic()
        self._done = 0
        self._bar: Any = None
        self._lock = threading.Lock()

    def __call__(self, count: int) -> None:
        if self.cancelled:
            raise CancelledError
        with self._lock:
            self._done += count
            if self._bar is not None:
                self._bar.update(count)
            elif time.monotonic() - self._began > _BAR_AFTER_S:
                with suppress(ImportError):  # never fail a load for a progress bar
                    from tqdm.auto import tqdm

                    self._bar = tqdm(total=self._total, initial=self._done, unit="B", unit_scale=True, leave=False)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
