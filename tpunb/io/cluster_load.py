"""Load the hosts of a job as statistics: some files at a time in this process, or on the workers of a Dask cluster.

Files go to workers by name, and statistics of some hosts come back (:mod:`tpunb.io.job_parts`); raw events stay where
they are. Parts are merged in the order of the files, so the result is the same wherever they were reduced.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, Protocol
from uuid import uuid4

import polars as pl

from tpunb import schema
from tpunb.errors import BadProfile
from tpunb.frames import Profile, Steps
from tpunb.frames.profile import device_kinds
from tpunb.frames.wall_clock import WallClock
from tpunb.io import host_files, logdir
from tpunb.io.job_parts import FRAMES, Numbered, Part, reduced
from tpunb.io.storage import Location
from tpunb.step_stats import job_tables, merge_hosts

_FILES, _BYTES = 25, 8 << 20  # of a part, at most


class Engine(Protocol):
    """Where parts are reduced."""

    def parts(self, chunks: Sequence[Numbered]) -> Iterator[Part]:
        """Yield the parts of files in order."""

    def part(self, chunk: Numbered) -> Part:
        """Return one part."""


class _Here:
    """Reduce parts in this process."""

    def __init__(self, bar: logdir.Bar) -> None:
        self.part = partial(reduced, job=uuid4().hex, bar=bar)

    def parts(self, chunks: Sequence[Numbered]) -> Iterator[Part]:
        return map(self.part, chunks)


def read(files: Sequence[Location], name: str, source: Any, engine: Engine | None = None) -> Profile:
    """Read many files of a job as one profile of statistics.

    Parameters
    ----------
    files
        Raw files, one per host and session, or run folders, one per process.
    name, source
        Of the profile.
    engine
        Where they are reduced: in this process by default.

    Raises
    ------
    BadProfile
        When no file can be read; the message names the first.
    """
    chunks = [[(number, files[number]) for number in chunk] for chunk in chunked(files)]
    with closing(logdir.Bar(files)) as bar:
        engine = engine or _Here(bar)
        total = Part()
        for chunk, part in zip(chunks, engine.parts(chunks), strict=True):
            known = {**total.files, **part.files}
            odd = host_files.strangers([*known.values()])
            strange = {number: reason for at, reason in odd.items() if (number := [*known][at]) in part.files}
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
        size = int(file.info.get("size") or 0)
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
    stored = Steps(schema.empty(schema.STEPS), schema.empty(schema.OPS), windows=windows, lost=rows)
    if total.tables is not None:
        tables = job_tables.renamed(job_tables.moved(total.tables, by_ps), names)
        if tables.unmatched:
            warnings.warn(merge_hosts.unmatched_message(name, tables.unmatched), stacklevel=5)
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
