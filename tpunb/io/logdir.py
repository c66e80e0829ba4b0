"""Raw captures, XPlane and Chrome trace, plain or gzipped: one file per host and session, several per profile."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import polars as pl

from tpunb import schema
from tpunb.errors import BadProfile, ProfileNotFound, TpunbError, warn_user
from tpunb.frames import Profile
from tpunb.io import cache, host_files, storage
from tpunb.io.cache import Decoded, Extent
from tpunb.io.host_files import ENDINGS, PARQUET, HostFile, stem
from tpunb.io.storage import Location
from tpunb.step_stats import launches
from tpunb.text import duration, plural

if TYPE_CHECKING:
    from tpunb.io.chrome_trace import Trace
    from tpunb.io.xplane import XSpaceFacts

SLOW_S = 1.0
"""Seconds to read and decode a local file above which the result is cached."""

_T = TypeVar("_T")
_U = TypeVar("_U")
_LOST = BadProfile, ProfileNotFound  # of some files, which others are read without
_OF_PROGRAMS = {
    "instructions": ["host", "program", "hlo_op"],
    "buffers": ["host", "program", "allocation", "hlo_op", "offset_bytes"],
    "protos": ["host", "program"],
}
_FETCHES = 8  # parallel downloads
_BAR_AFTER_S = 2.0
_MOST_DAYS = 50  # apart; Int64 picoseconds end after 106
_MOST_EVENTS = 1 << 16  # of several files, that are kept
_BATCH = 250_000  # events
_SMALL = 4 << 20  # bytes of a file that is decoded together with others
_TOGETHER = 10  # small files that are decoded in one pass: of more the tables leave the caches
_MOST_CHUNKS = 16  # of a column; every operation costs some time for each


def read(files: Sequence[Location], name: str, source: Path | str, *, forms: bool = False) -> Profile:
    """Read raw files as one profile whose time 0 is the earliest start; damaged ones are named in ``skipped``.

    With `forms`, another form of a damaged capture beside it is read. Raises the first error if all are damaged.
    """
    budget = _Budget()
    answers = _summaries(files, budget)
    several = len({file.session for file in files}) > 1
    parts, skipped = list[_Part](), list[tuple[str, str]]()
    for file, answer in zip(files, answers, strict=True):
        if isinstance(answer, _Part):  # an XPlane is whole
            other = _other_form(file, files, budget) if answer.is_cut else None
            notes = [*other.notes, f"read instead of {file.name}, {answer.notes[-1]}"] if other else []
            parts.append(replace(other, notes=notes) if other else answer)
        else:
            other = _other_form(file, files, budget) if forms else None
            used = f"; {other.file.name} is read instead" if other else ""
            skipped.append(skipped_file(file, f"{answer}{used}", session=several))
            parts += [other] if other else []
    if not parts:
        raise next(answer for answer in answers if not isinstance(answer, _Part))
    odd = host_files.strangers([part.facts for part in parts])
    skipped += [skipped_file(parts[row].file, reason, session=several) for row, reason in odd.items()]
    parts = [part for row, part in enumerate(parts) if row not in odd]
    names = host_files.distinct([part.facts for part in parts])
    parts = [part.named(name) for part, name in zip(parts, names, strict=True)]
    origins = [part.start_ns for part in parts if part.start_ns is not None]
    origin = min(origins) if len(origins) == len(parts) else None
    if origin is not None and (days := (max(origins) - origin) / 86_400e9) > _MOST_DAYS:
        if all(part.stop_ns is not None for part in parts):
            sessions = ", ".join(sorted({part.file.session for part in parts})[:8])
            raise TpunbError(f"{source}: sessions are {days:.0f} days apart", hint=f"load one of {sessions}")
        origin = None  # Chrome traces, which need not be of one run
    moves = [0 if origin is None or part.start_ns is None else (part.start_ns - origin) * 1000 for part in parts]
    rows = []
    for number, (part, move) in enumerate(zip(parts, moves, strict=True)):
        begin, dur = part.traced
        place, every = (number, begin + move, dur, dur, part.size), (part.extent.events, len(part.extent.steps))
        of_hosts = ((host, part.extent.hosts.get(process, every)) for process, host in part.hosts.items())
        rows += [(host, *place, *counts, None, None) for host, counts in of_hosts]
    windows = pl.DataFrame(rows, schema=schema.WINDOWS, orient="row")
    batches = _batches(parts)
    return Profile(
        name=name,
        source=source,
        windows=windows,
        hardware=pl.concat([part.with_host(part.hardware) if part.renamed else part.hardware for part in parts]).unique(
            ["host", "device"], keep="first", maintain_order=True
        ),
        span_ps=int(windows.select((pl.col("start_ps") + pl.col("dur_ps")).max()).item() or 0),
        origin_ns=origin,
        read_events=partial(_events, parts, moves, range(len(parts))),
        read_batches=[partial(_events, parts, moves, batch) for batch in batches] if len(batches) > 1 else (),
        read_details=partial(_details, parts, moves),
        read_clocks=launches.clocks,
        reused=all(part.reused for part in parts),
        skipped=tuple(skipped),
        notes=(*(f"{part.file.name}: {note}" for part in parts for note in part.notes), *_overlaps(windows, parts)),
        is_cut=any(part.is_cut for part in parts),
    )


def _overlaps(windows: pl.DataFrame, parts: Sequence[_Part]) -> Iterator[str]:
    """Yield that files of one host cover the same time."""
    until = (pl.col("start_ps") + pl.col("dur_ps")).cum_max().shift().over("host")
    rows = windows.sort("host", "start_ps").select("window", by_ps=until - pl.col("start_ps"))
    for number, by_ps in rows.filter(pl.col("by_ps") > 0).iter_rows():
        yield f"{parts[number].file.name}: begins {duration(by_ps)} before an earlier trace of its host ends"


def skip_message(name: str, skipped: Sequence[tuple[str, str]]) -> str:
    """Return the warning about files of a profile that were left out."""
    shown = "; ".join(f"{file}: {reason}" for file, reason in skipped[:3])
    return f"{name}: {plural(len(skipped), 'file')} skipped: {shown}"


def skipped_file(file: Location, reason: str | TpunbError, *, session: bool) -> tuple[str, str]:
    """Return name and reason of a file that is left out."""
    return f"{file.session}/{file.name}" if session else file.name, str(reason).partition("\n")[0].removeprefix(
        f"{file}: "
    )


def _other_form(file: Location, files: Sequence[Location], budget: _Budget) -> _Part | None:
    """Return the same capture from a sound file beside a damaged one, or None."""
    names = [stem(file.name) + ending for ending in ENDINGS]
    beside = {other.name: other for other in file.parent.children() if other.name in names}
    listed = {str(other) for other in files}
    for name in names:
        if name in beside and str(beside[name]) not in listed:
            (part,) = _summaries([beside[name]], budget)
            if isinstance(part, _Part):
                return part
    return None


@dataclass(frozen=True)
class _Part:
    """One file of several: what they are put together by, and its events while these are few."""

    file: Location
    host: str
    hardware: pl.DataFrame
    size: int
    start_ns: int | None
    stop_ns: int | None
    extent: Extent
    reused: bool = False
    events: pl.DataFrame | None = None
    notes: Sequence[str] = ()
    is_cut: bool = False
    calls: pl.DataFrame | None = None
    renamed: bool = False

    @classmethod
    def of(cls, file: Location, decoded: Decoded, *, keep_events: bool = True) -> _Part:
        host = "" if decoded.extent.hosts else decoded.host
        facts = host, decoded.hardware, decoded.size, decoded.start_ns, decoded.stop_ns, decoded.extent
        events, calls = (decoded.events, decoded.calls) if keep_events else (None, None)
        return cls(file, *facts, decoded.reused, events, decoded.notes, decoded.is_cut, calls)

    @property
    def traced(self) -> tuple[int, int]:
        """Start and duration of tracing, as recorded or derived from the events."""
        if self.start_ns is not None and self.stop_ns is not None:
            return 0, (self.stop_ns - self.start_ns) * 1000
        begin = min(0, self.extent.begin_ps)
        return begin, self.extent.end_ps - begin

    @property
    def facts(self) -> HostFile:
        times = self.start_ns, self.stop_ns, self.extent.events, self.extent.steps
        return HostFile(self.file.name, self.file.session, self.host, *times)

    @property
    def hosts(self) -> dict[str, str]:
        """Names of the hosts by those in the file, which has several if it is of several processes."""
        return {process: f"{self.host} {process}".strip() for process in self.extent.hosts} or {"": self.host}

    def with_host(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return a frame with the names of the hosts."""
        if not self.extent.hosts:
            return frame.with_columns(host=pl.lit(self.host, frame.schema["host"]))
        return frame.with_columns(pl.col("host").cast(pl.String).replace(self.hosts).cast(frame.schema["host"]))

    def named(self, host: str) -> _Part:
        """Return a copy with another name of the host."""
        return self if host == self.host else replace(self, host=host, renamed=True)


class _Budget:
    """Number of events that a profile of several files may keep; those of other files are decoded again on access."""

    def __init__(self) -> None:
        self._left = _MOST_EVENTS
        self._lock = threading.Lock()

    def take(self, events: int) -> bool:
        """Return whether events may be kept, and count them."""
        with self._lock:
            granted = self._left > 0
            self._left -= events if granted else 0
            return granted


def _summaries(files: Sequence[Location], budget: _Budget) -> list[_Part | BadProfile | ProfileNotFound]:
    """Return each file, or why it cannot be read; many small ones are read together, without keeping their events."""
    small = [number for number, file in enumerate(files) if _is_small(file, file.size)]
    chosen, summary = small if len(small) > _MOST_CHUNKS else [], partial(_or_error, partial(_summary, budget))
    groups = [*_groups(chosen), *([number] for number in range(len(files)) if number not in {*chosen})]

    def of(group: Sequence[int], bar: Bar) -> Sequence[_Part | BadProfile | ProfileNotFound]:
        if len(group) > 1:
            with suppress(BadProfile, ProfileNotFound):  # to be named where each is read
                return _together([files[number] for number in group], bar)
        return [summary(files[number], bar) for number in group]

    answers = _parallel(groups, of, files)
    found = dict(zip(chain(*groups), chain(*answers), strict=True))
    return [found[number] for number in range(len(files))]


def _groups(small: Sequence[int]) -> list[list[int]]:
    return [[*small[begin : begin + _TOGETHER]] for begin in range(0, len(small), _TOGETHER)]


def _is_small(file: Location, size: int | None) -> bool:
    return not file.url and host_files.is_xplane(file.name) and (size or 0) < _SMALL


def _together(files: Sequence[Location], bar: Bar) -> list[_Part]:
    from tpunb.io import xplane

    contents = [storage.read(file, bar) for file in files]
    return [_part_of(*each) for each in zip(files, contents, xplane.extents(contents), strict=True)]


def _summary(budget: _Budget, file: Location, bar: Bar) -> _Part:
    """Return a file with its events while the budget allows."""
    if budget.take(0) or file.url or not host_files.is_xplane(file.name):
        decoded = _part(file, bar)
        return _Part.of(file, decoded, keep_events=budget.take(decoded.extent.events))
    from tpunb.io import xplane

    data = storage.read(file, bar)
    return _part_of(file, data, xplane.extent(data, source=str(file)))


def _part_of(file: Location, data: storage.Bytes, found: tuple[Extent, XSpaceFacts]) -> _Part:
    extent, facts = found
    host = facts.hosts[0] if facts.hosts else ""
    return _Part(file, host, facts.hardware, data.size, facts.start_ns, facts.stop_ns, extent)


def _or_error(read: Callable[[Location, Bar], _T], file: Location, bar: Bar) -> _T | BadProfile | ProfileNotFound:
    try:
        return read(file, bar)
    except BadProfile as error:
        return error
    except ProfileNotFound as error:
        if file.url or not Path(file.path).is_symlink():
            raise
        return error  # a link that leads nowhere


def _batches(parts: Sequence[_Part]) -> list[list[int]]:
    """Return the files of a few hosts at a time, as their numbers: about ``_BATCH`` events, and as many in each."""
    by_host: dict[str, list[int]] = {}
    for number, part in enumerate(parts):
        by_host.setdefault(part.host, []).append(number)
    batches, room, events = list[list[int]](), 0.0, sum(part.extent.events for part in parts)
    for numbers in by_host.values():
        if room <= 0:
            batches.append([])
            room = events / max(1, round(events / _BATCH))
        batches[-1] += numbers
        room -= sum(parts[number].extent.events for number in numbers)
    return batches


def windows(
    files: Mapping[tuple[int, str], Location],
    origin_ns: int | None,
    begins_ps: Mapping[tuple[int, str], int],
    kind: str = "events",
    skipped: list[tuple[str, str]] | None = None,
) -> pl.DataFrame:
    """Return the events, or other frames, of raw windows of a run, by number and host, in the time of the run.

    A window starts as in `begins_ps`, else at its own time. Damaged ones are added to `skipped`; raises if all are.
    """
    answers = dict(zip(files, _parallel([*files.values()], partial(_or_error, _part), [*files.values()]), strict=True))
    damaged = {files[key]: answer for key, answer in answers.items() if isinstance(answer, _LOST)}
    if len(damaged) == len(files):
        raise next(iter(damaged.values()))
    rows = [skipped_file(file, error, session=True) for file, error in damaged.items()]
    if skipped is not None:
        skipped += [row for row in rows if row not in skipped]
    files = {key: file for key, file in files.items() if file not in damaged}
    parts = [_Part.of(files[key], part).named(key[1]) for key, part in answers.items() if isinstance(part, Decoded)]
    begins = [
        begins_ps.get(key, 0 if part.start_ns is None or origin_ns is None else (part.start_ns - origin_ns) * 1000)
        for key, part in zip(files, parts, strict=True)
    ]
    if kind != "events":
        return _details(parts, begins, kind)
    return _events(parts, begins, range(len(parts)))


def _details(parts: Sequence[_Part], by_ps: Sequence[int], kind: str) -> pl.DataFrame:
    """Return a frame that raw files hold beside events, such as "instructions", in the time of the profile."""
    columns: schema.Schema = getattr(schema, kind.upper())
    frames = [pl.DataFrame(schema=columns)]
    for part, by in zip(parts, by_ps, strict=True):
        try:
            frame = part.calls if kind == "calls" else None
            frame = details(part.file, None, kind) if frame is None else frame
        except BadProfile as error:
            if len(parts) == 1:
                raise
            _, reason = skipped_file(part.file, error, session=False)
            warn_user(f"{kind} without those of {part.file.name}: {reason}", stacklevel=2)
            continue
        frames.append(part.with_host(frame).with_columns(pl.col("^start_ps$") + by))
    rows = pl.concat(frames)
    if kind in _OF_PROGRAMS:  # several windows of a host may hold a program
        rows = rows.unique(_OF_PROGRAMS[kind], keep="first", maintain_order=True)
    return schema.check(rows, columns, kind)


def details(file: Location, data: storage.Bytes | None, kind: str) -> pl.DataFrame:
    """Return a frame that one raw file holds beside events, empty if its format has none; None reads the file."""
    columns: schema.Schema = getattr(schema, kind.upper())
    is_xplane = host_files.is_xplane(file.name)
    formats = import_module("tpunb.io.xplane" if is_xplane else "tpunb.io.chrome_trace")
    of_calls, frame = kind == "calls" and not is_xplane, None
    if not file.is_folder and (of_calls or hasattr(formats, kind)):
        data = storage.read(file) if data is None else data
        if of_calls:
            frame = decoded(file, data).calls
        elif is_xplane:
            frame = getattr(formats, kind)(data, source=str(file))
        elif _reader(data) is formats:
            frame = getattr(formats, kind)(data.tobytes(), source=str(file))
    return pl.DataFrame(schema=columns) if frame is None else frame


def _events(parts: Sequence[_Part], by_ps: Sequence[int], chosen: Sequence[int]) -> pl.DataFrame:
    """Return the events of some files in the time of the profile, with lanes and ids distinct from other files."""
    frames = {number: frame for number in chosen if (frame := parts[number].events) is not None}
    together, small = _small({number: parts[number] for number in chosen if number not in frames})
    edges = np.cumsum([0, *(parts[number].extent.events for number in together)]).tolist()
    frames |= {number: small[begin:end] for number, (begin, end) in zip(together, pairwise(edges), strict=True)}
    missing = [number for number in chosen if number not in frames]
    unread = [parts[number].file for number in missing]
    decoded = _parallel(unread, _part, unread) if unread else []
    frames |= {number: part.events for number, part in zip(missing, decoded, strict=True)}
    several = len(chosen) > _MOST_CHUNKS
    events = small if together == [*chosen] else pl.concat([frames[number] for number in chosen], rechunk=several)
    if len(parts) == 1 and not by_ps[0] and not parts[0].renamed:
        return events
    numbers = np.array(chosen)
    sizes = [len(frames[number]) for number in chosen]
    lanes = np.cumsum([0, *(part.extent.lanes for part in parts)])[numbers].astype(np.uint32)
    salt = numbers.astype(np.uint64) * np.uint64(0xD1B54A32D192ED03)  # every process counts launches from 1
    start, lane, ids = (pl.Series(np.repeat(by, sizes)) for by in (np.array(by_ps)[numbers], lanes, salt))
    if any(parts[number].extent.hosts for number in chosen):
        host = pl.concat([parts[n].with_host(frames[n].select("host")) for n in chosen], rechunk=True)["host"]
    else:
        host = pl.Series([parts[n].host for n in chosen], dtype=schema.NAME)[np.repeat(np.arange(len(chosen)), sizes)]
    return events.with_columns(
        pl.col("start_ps") + start,
        pl.col("lane") + lane,
        pl.col("flow_out", "flow_in", "correlation_id") ^ ids,
        host=host,
    )


def _small(parts: Mapping[int, _Part]) -> tuple[list[int], pl.DataFrame]:
    """Return the small files, and their events, decoded together: each alone costs as much as many events."""
    from tpunb.io import xplane

    chosen = [number for number, part in parts.items() if _is_small(part.file, part.size)]
    none = list[int](), pl.DataFrame()
    if len(chosen) < 2:
        return none
    try:
        read = (xplane.read_in_order([storage.read(parts[n].file) for n in group]) for group in _groups(chosen))
        events = pl.concat([pl.DataFrame(schema=schema.EVENTS), *chain(*read)], rechunk=True)
    except (BadProfile, ProfileNotFound):  # changed since it was loaded: to be named where each is read
        return none
    return (chosen, events) if len(events) == sum(parts[number].extent.events for number in chosen) else none


def _parallel(items: Sequence[_U], read: Callable[[_U, Bar], _T], files: Sequence[Location]) -> list[_T]:
    """Return the result of `read` for each file, or group of files, in parallel."""
    workers = _FETCHES if any(file.url for file in files) else os.cpu_count() or 1
    with closing(Bar(files)) as bar, ThreadPoolExecutor(min(len(items), workers)) as pool:
        try:
            answers = [pool.submit(read, item, bar) for item in items]  # an interrupt may come here, too
            storage.awaited(answers)
            for answer in answers:
                if answer.done():  # the first failure ends the load
                    answer.result()
            return [answer.result() for answer in answers]
        except BaseException:  # an interrupt too
            bar.cancelled = True
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _part(file: Location, bar: Bar) -> Decoded:
    """Return the contents of a file, from the cache if possible."""
    if file.is_folder:
        return _decoded_folder(file)
    entry = cache.entry(file)
    if entry is not None and (cached := cache.get(entry)):
        bar(file.size)
        return cached
    if host_files.is_xplane(file.name):
        from tpunb.io import xplane

        xplane.warm()  # not part of the time of decoding
    begin = time.monotonic()
    part = decoded(file, storage.read(file, bar))
    if entry is not None and (file.url or time.monotonic() - begin > SLOW_S):
        cache.put(entry, part)
    return part


def decoded(file: Location, data: storage.Bytes) -> Decoded:
    """Return the contents of a file."""
    if host_files.is_xplane(file.name):
        from tpunb.io import xplane

        events, facts = xplane.read(data, source=str(file), workers=os.cpu_count() or 1)
        host, notes = facts.hosts[0] if facts.hosts else "", facts.notes
        return Decoded(host, events, facts.hardware, data.size, facts.start_ns, facts.stop_ns, notes=notes)
    if storage.is_database(data) or ".trace.json" in file.name or storage.is_json(data):
        return _of_trace(_reader(data).read(data.tobytes(), source=str(file)), data.size)
    raise BadProfile(
        f"{file}: not a profile by its name or its first bytes {data[:8].tobytes()!r}",
        hint=f"a profile's name ends in {', '.join(ENDINGS)}",
    )


def _decoded_folder(folder: Location) -> Decoded:
    """Return the contents of an export with a file for each table."""
    from tpunb.io import gpu_exports

    tables = {child.name.removesuffix(".parquet"): child for child in folder.children() if child.name in PARQUET}
    read = {name: partial(storage.read, file) for name, file in tables.items()}
    return _of_trace(gpu_exports.read_tables(read, source=str(folder)), sum(file.size for file in tables.values()))


def _of_trace(trace: Trace, size: int) -> Decoded:
    host = str(trace.events["host"][0]) if trace.events.height else ""
    more: Any = {"notes": trace.notes, "is_cut": trace.is_cut, "calls": trace.calls, "start_ns": trace.origin_ns}
    return Decoded(host, trace.events, trace.hardware, size, **more)


def _reader(data: storage.Bytes) -> Any:
    """Return the module that reads a database, or JSON."""
    from tpunb.io import chrome_trace, gpu_exports, rocprof

    return gpu_exports if storage.is_database(data) else rocprof if rocprof.is_result(data) else chrome_trace


class Bar:
    """Progress of a load in bytes, shown after two seconds."""

    cancelled = False  # reading threads shall stop

    def __init__(self, files: Sequence[Location]) -> None:
        self._total = sum(file.size for file in files) or None
        self._began = time.monotonic()
        self._done = 0
        self._bar: Any = None
        self._lock = threading.Lock()

    def __call__(self, count: int) -> None:
        """Add bytes that were read."""
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
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
