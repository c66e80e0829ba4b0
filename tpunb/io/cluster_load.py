"""Load the hosts of a job as statistics: some files at a time in this process, or on the workers of a Dask cluster.

Files go to workers by name, and statistics of some hosts come back; raw events stay where they are. Parts
are merged in the order of the files, so the result is the same wherever they were reduced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any, Protocol
from uuid import uuid4

import polars as pl

from tpunb import schema
from tpunb.errors import BadProfile, TpunbError, warn_user
from tpunb.frames import Profile
from tpunb.frames.profile import device_kinds
from tpunb.frames.steps import NO_STEPS, WallClock
from tpunb.io import host_files, logdir, run_folder, storage, xplane
from tpunb.io.host_files import HostFile
from tpunb.io.storage import Bytes, Location
from tpunb.io.xplane import XSpaceFacts
from tpunb.step_stats import job_tables, merge_hosts
from tpunb.step_stats.job_tables import JobTables
from tpunb.step_stats.reduce import with_collectives

_FILES, _BYTES = 64, 20 << 20  # of a part, at most: half of the time of a part of 10 MB does not depend on its size


class Engine(Protocol):
    """Where parts are reduced."""

    def parts(self, chunks: Sequence[Numbered]) -> Iterator[Part]:
        """Yield the parts of files in order."""

    def part(self, chunk: Numbered) -> Part:
        """Return one part."""


class _Here:
    """Reduce parts in this process."""

    def __init__(self, bar: logdir.Bar) -> None:
        self.part, self._bar = partial(reduced, job=uuid4().hex), bar

    def parts(self, chunks: Sequence[Numbered]) -> Iterator[Part]:
        for chunk in chunks:
            yield self.part(chunk)
            self._bar(sum(file.size for _, file in chunk if isinstance(file, Location)))


def read(files: Sequence[Location], name: str, source: Any, engine: Engine | None = None) -> Profile:
    """Read many files of a job, one per host and session, or run folders, as one profile of statistics.

    `engine` is where they are reduced: in this process by default. Raises BadProfile if no file can be read.
    """
    chunks = [[(number, files[number]) for number in chunk] for chunk in chunked(files)]
    with closing(logdir.Bar(files)) as bar:
        engine = engine or _Here(bar)
        total = Part()
        for chunk, part in zip(chunks, engine.parts(chunks), strict=True):
            so_far = {**total.files, **part.files}
            odd = host_files.strangers([*so_far.values()])
            strange = {number: reason for at, reason in odd.items() if (number := [*so_far][at]) in part.files}
            if strange:  # their statistics are in sums over hosts
                part = engine.part([file for file in chunk if file[0] not in strange])
            total += replace(part, lost={**part.lost, **strange})
    several = len({file.session for file in files}) > 1
    lost = [logdir.skipped_file(files[number], total.lost[number], session=several) for number in sorted(total.lost)]
    if not total.files:
        raise BadProfile(f"{files[0]}: {lost[0][1]}", hint="check the files: each is empty, damaged or no profile")
    return _profile(total, name, source, lost)


def chunked(files: Sequence[Location]) -> list[list[int]]:
    """Return the numbers of the files of each part."""
    chunks: list[list[int]] = []
    room = 0
    for number, file in enumerate(files):
        size = file.size
        if not chunks or room < size or len(chunks[-1]) == _FILES:
            chunks.append([])
            room = _BYTES
        chunks[-1].append(number)
        room -= max(size, 1)
    return chunks


def _profile(total: Part, name: str, source: Any, lost: Sequence[tuple[str, str]]) -> Profile:
    roles = {} if total.tables is None else total.tables.roles
    files = [replace(file, role=roles.get(str(number), "")) for number, file in total.files.items()]
    names = dict(zip(map(str, total.files), host_files.distinct(files), strict=True))
    starts = [file.start_ns for file in files if file.start_ns is not None]
    origin_ns = min([*starts, total.origin_ns]) if total.origin_ns is not None else None
    by_ps = job_tables.later(origin_ns, total.origin_ns)
    moved = pl.col("host").replace(names), pl.col("^start_ps$") + by_ps
    frames = {name: getattr(total, name).with_columns(moved) for name in FRAMES}
    windows, hardware = frames["windows"], frames["hardware"]
    span_ps = int(windows.select((pl.col("start_ps") + pl.col("dur_ps")).max()).item() or 0)
    rows = schema.check(pl.DataFrame([*lost], schema.LOST, orient="row"), schema.LOST, "lost")
    stored = replace(NO_STEPS, windows=windows, lost=rows)
    if total.tables is not None:
        tables = job_tables.renamed(job_tables.moved(total.tables, by_ps), names)
        if tables.unmatched:
            warn_user(merge_hosts.unmatched_message(name, tables.unmatched), stacklevel=5)
        sessions = {session: number for number, session in enumerate(dict.fromkeys(file.session for file in files))}
        number = pl.Series([sessions[file.session] for file in files], dtype=pl.Int64)
        wall = (
            WallClock(span_ps, True, spans=frames["spans"], stalls=frames["stalls"]) if len(frames["spans"]) else None
        )
        stored = merge_hosts.with_facts(job_tables.job(tables), windows.with_columns(window=number), wall, rows)
    kind = device_kinds(hardware)
    return Profile(
        name=name,
        source=source,
        windows=windows,
        hardware=hardware,
        span_ps=span_ps,
        origin_ns=origin_ns,
        stored=replace(stored, name=name, source=source, metadata={"device kind": kind} if kind else {}),
        skipped=tuple(lost),
    )


_FETCHES = 8  # parallel downloads

Numbered = Sequence[tuple[int, str | Location]]
"""Files or run folders by number."""


@dataclass(frozen=True, eq=False)
class Part:
    """Some files of a job, reduced: what a worker returns."""

    tables: JobTables | None = None  # hosts are named after the number of their file; None without steps
    files: Mapping[int, HostFile] = field(default_factory=dict)
    windows: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=schema.WINDOWS))
    spans: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=schema.SPANS))
    stalls: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=schema.STALLS))
    hardware: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=schema.HARDWARE))
    lost: Mapping[int, str] = field(default_factory=dict)  # why a file gives no host
    origin_ns: int | None = None

    def __add__(self, other: Part) -> Part:
        tables = [part.tables for part in (self, other) if part.tables is not None]
        start_ps = pl.col("^start_ps$") + job_tables.later(self.origin_ns, other.origin_ns)
        return Part(
            job_tables.merge(tables) if tables else None,
            {**self.files, **other.files},
            **{name: pl.concat([getattr(self, name), getattr(other, name).with_columns(start_ps)]) for name in FRAMES},
            lost={**self.lost, **other.lost},
            origin_ns=other.origin_ns if self.origin_ns is None else self.origin_ns,
        )


FRAMES = ("windows", "spans", "stalls", "hardware")
"""Frames of parts that are put one below the other."""


_INSTRUCTIONS = dict[tuple[str, Any], pl.DataFrame]()  # of the programs of the last job


def reduced(files: Numbered, job: str) -> Part:
    """Return some files of a job reduced: what a worker does."""
    lost, contents, parts = dict[int, str](), dict[int, tuple[Location, Bytes]](), list[Part]()

    def fetched(path: str | Location) -> tuple[Location, Bytes | Profile | TpunbError]:
        file = storage.local(path) if isinstance(path, str) else path
        try:
            file = storage.find(path) if isinstance(path, str) else path
            return file, run_folder.read(file, file.below()) if file.is_folder else storage.read(file)
        except TpunbError as error:
            return file, error

    remote = any((isinstance(path, Location) and path.url) or "://" in str(path) for _, path in files)
    with ThreadPoolExecutor(_FETCHES if remote else 1) as pool:
        for (number, _), (file, answer) in zip(files, pool.map(fetched, [path for _, path in files]), strict=True):
            if isinstance(answer, TpunbError):
                lost[number] = str(answer).removeprefix(f"{file}: ")
            elif isinstance(answer, Profile):
                parts.append(_of_run(number, file, answer))
            else:
                contents[number] = file, answer
    if contents:
        parts.append(_of_events(contents, job))
    return reduce(Part.__add__, parts, Part(lost=lost))


def _of_run(number: int, file: Location, run: Profile) -> Part:
    """Return the steps that one process stored."""
    steps, host, key = run.stored, str(run.windows["host"].first() or file.name), pl.lit(str(number)).alias("host")
    if steps is None or not len(steps):
        return Part(lost={number: "the run has no steps"})
    names = {name: getattr(steps, name).with_columns(key) for name in ("frame", "ops", "devices", "input_stages")}
    runs = pl.DataFrame(schema=schema.COLLECTIVES) if steps.read_collectives is None else steps.collectives
    arrivals = merge_hosts.last_arrivals(runs.with_columns(key))
    tables = job_tables.tables(replace(steps, **names), arrivals, run.origin_ns)
    events, size = (int(run.windows[name].sum()) for name in ("events", "bytes"))
    wall = WallClock(run.span_ps) if steps.wall is None else steps.wall
    return Part(
        tables,
        {number: HostFile(file.name, file.name, host, None, None, events, frozenset())},
        _windows([(str(number), number, 0, run.span_ps, run.span_ps, size, events, len(steps))]),
        wall.spans.with_columns(key),
        wall.stalls.with_columns(key),
        run.hardware.with_columns(key),
        origin_ns=run.origin_ns,
    )


def _windows(rows: Sequence[tuple[Any, ...]]) -> pl.DataFrame:
    return pl.DataFrame([(*row, None, None) for row in rows], schema=schema.WINDOWS, orient="row")


def _of_events(contents: Mapping[int, tuple[Location, Bytes]], job: str) -> Part:
    """Return the statistics of raw files."""
    events, facts, origin_ns, lost = _decoded(contents)
    if not facts:
        return Part(lost=lost)
    moves = {number: job_tables.later(origin_ns, each.start_ns) for number, each in facts.items()}
    hardware = pl.concat([each.hardware for each in facts.values()])
    profile = Profile(
        name="part",
        source="",
        windows=pl.DataFrame(schema=schema.WINDOWS),
        hardware=hardware,
        span_ps=0,
        read_events=lambda: events,
        read_details=partial(_details, job, events, {number: contents[number] for number in facts}, moves),
    )
    steps, runs = with_collectives(profile)
    lost |= dict.fromkeys(facts.keys() - {int(host) for host in steps.frame["host"].unique()}, "no steps found")
    end_ps = (pl.col("start_ps") + pl.col("dur_ps")).max()
    spans = events.group_by(pl.col("host").cast(pl.String)).agg(
        pl.len(), pl.col("start_ps").min(), end_ps.alias("end_ps"), pl.col("step_num").drop_nulls().unique()
    )
    of_host = {int(host): facts for host, *facts in spans.iter_rows()}
    files, rows = dict[int, HostFile](), []
    for number, each in facts.items():
        (file, data), (count, begin, end, numbers) = contents[number], of_host.get(number, (0, 0, 0, []))
        begin = min(moves[number], begin)
        dur = end - begin
        if each.start_ns is not None and each.stop_ns is not None:
            begin, dur = moves[number], (each.stop_ns - each.start_ns) * 1000
        host = each.hosts[0] if each.hosts else ""
        files[number] = HostFile(file.name, file.session, host, each.start_ns, each.stop_ns, count, frozenset(numbers))
        rows.append((str(number), number, begin, dur, dur, len(data), count, len(numbers)))
    tables = job_tables.tables(steps, merge_hosts.last_arrivals(runs), origin_ns) if len(steps) else None
    return Part(tables, files, _windows(rows), hardware=hardware, lost=lost, origin_ns=origin_ns)


def _decoded(
    contents: Mapping[int, tuple[Location, Bytes]],
) -> tuple[pl.DataFrame, dict[int, XSpaceFacts], int | None, dict[int, str]]:
    """Return events, facts of each file, time 0, and why files are damaged; all XPlanes are decoded in one pass."""
    frames, origin_ns = [pl.DataFrame(schema=schema.EVENTS)], None
    facts, lost = dict[int, XSpaceFacts](), dict[int, str]()
    xplanes = {number: data for number, (file, data) in contents.items() if host_files.is_xplane(file.name)}
    try:
        batch = xplane.read_many([*xplanes.values()], [*map(str, xplanes)]) if xplanes else None
    except BadProfile:
        for number, data in [*xplanes.items()]:
            try:
                xplane.extent(data, source="")
            except BadProfile as error:
                lost[number] = str(error).removeprefix(": ")
                del xplanes[number]
        batch = xplane.read_many([*xplanes.values()], [*map(str, xplanes)]) if xplanes else None
    if batch is not None:
        frames.append(batch[0])
        origin_ns, facts = batch[1], dict(zip(xplanes, batch[2], strict=True))
    for number in sorted(contents.keys() - xplanes.keys() - lost.keys()):
        try:
            raw = logdir.decoded(*contents[number])
        except BadProfile as error:
            lost[number] = str(error).removeprefix(f"{contents[number][0]}: ")
            continue
        lanes = max((int(frame["lane"].to_numpy().max()) + 1 for frame in frames if len(frame)), default=0)
        lane, host = pl.col("lane") + lanes, pl.lit(str(number))
        frames.append(schema.check(raw.events.with_columns(lane, host=host), schema.EVENTS, "events"))
        hardware = raw.hardware.with_columns(host=host)
        facts[number] = XSpaceFacts([raw.host] * bool(raw.host), raw.start_ns, raw.stop_ns, hardware)
    return pl.concat(frames), facts, origin_ns, lost


def _details(
    job: str, events: pl.DataFrame, contents: Mapping[int, tuple[Location, Bytes]], moves: Mapping[int, int], kind: str
) -> pl.DataFrame:
    """Return a frame that raw files hold beside events; of hosts with equal programs the instructions are read once."""
    frames = [pl.DataFrame(schema=getattr(schema, kind.upper()))]
    if kind != "instructions":
        for number, (file, data) in contents.items():
            rows = logdir.details(file, data, kind)
            frames.append(rows.with_columns(pl.col("^start_ps$") + moves[number], host=pl.lit(str(number))))
        return pl.concat(frames)
    pairs = events.select("host", "program", pl.col("hlo_op").to_physical()).unique()  # one numbering in a process
    by_host = pairs.group_by(pl.col("host").cast(pl.String))
    programs = dict(by_host.agg(pl.struct("program", "hlo_op").hash().sum()).iter_rows())
    for number, content in contents.items():
        key = job, programs.get(str(number))
        if key not in _INSTRUCTIONS:
            for old in [other for other in _INSTRUCTIONS if other[0] != job]:
                del _INSTRUCTIONS[old]
            _INSTRUCTIONS[key] = logdir.details(*content, kind)
        frames.append(_INSTRUCTIONS[key].with_columns(host=pl.lit(str(number))))
    return pl.concat(frames)
