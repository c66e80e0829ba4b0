"""Files of the hosts of a job: which belong to it, and how their hosts are named."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median_low
from typing import Any

import polars as pl

from tpunb.frames import Profile, Steps
from tpunb.frames.standing import of_ranks
from tpunb.frames.steps import NO_STEPS, WallClock
from tpunb.io import storage
from tpunb.step_stats import launches
from tpunb.step_stats.job_tables import later
from tpunb.text import duration

XPLANES = (".xplane.pb", ".xplane.riegeli")
ENDINGS = tuple(name + zipped for name in (*XPLANES, ".trace.json") for zipped in ("", ".gz"))
"""Endings of the names of profiles, best first: of two forms of one capture the first is read."""

DATABASES, RESULTS = (".sqlite", "_results.db"), ("_results.json",)
"""Endings of exports of Nsight Systems and results of rocprofv3; the second may be of another program."""

_OF_NSYS = [f"CUPTI_ACTIVITY_KIND_{name}" for name in ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME", "OVERHEAD")]
_OF_NSYS += ["NVTX_EVENTS", "PROFILER_OVERHEAD", "StringIds", "TARGET_INFO_GPU", "TARGET_INFO_SESSION_START_TIME"]
PARQUET = tuple(f"{name}.parquet" for name in _OF_NSYS)
"""Names of the tables of an export of Nsight Systems with a file for each."""

_FAR_NS = 600 * 10**9  # between windows of one session
_FEWEST_FILES = 3  # that date a session
_COPY = re.compile(r"[ .(~]")  # what follows the name of the original
_CYCLE = re.compile(r"(.+)\.\d{13,}\.pt")  # worker and time, as PyTorch's `tensorboard_trace_handler` names files


@dataclass(frozen=True)
class HostFile:
    """What is known of a file beside its statistics; times in nanoseconds since the epoch, None if unknown."""

    name: str
    session: str  # name of its folder
    host: str  # its name in the file
    start_ns: int | None
    stop_ns: int | None
    events: int
    steps: frozenset[int]  # numbers in step annotations
    role: str = ""


def stem(name: str) -> str:
    """Return the name without its ending, which is the same for all forms of one capture.

    >>> stem("s/a.xplane.pb.gz")
    's/a'
    """
    for ending in ENDINGS:
        name = name.removesuffix(ending)
    return name


def is_xplane(name: str) -> bool:
    """Return whether a file is an XPlane by its name, which may have a further ending."""
    return any(ending in name for ending in XPLANES)


def strangers(files: Sequence[HostFile]) -> dict[int, str]:
    """Return which files are no further host of the job, each with the reason.

    A copy has host, times and number of events of another file, from whose name its name is derived.
    """
    reasons, sessions, seen = dict[int, str](), dict[str, list[int]](), dict[object, int]()
    for row, file in enumerate(files):
        if file.start_ns is None:
            continue
        sessions.setdefault(file.session, []).append(row)
        key = file.session, file.host, file.start_ns, file.stop_ns, file.events
        other = files[seen.setdefault(key, row)].name
        short, long = sorted((stem(other), stem(file.name)), key=len)
        if other != file.name and long.startswith(short) and _COPY.match(long, len(short)):
            reasons[row] = f"a copy of {other}"
    for rows in sessions.values():
        # a process may write several Chrome traces, hours apart, which do not say when they stopped
        spans = {row: (files[row].start_ns or 0, stop_ns) for row in rows if (stop_ns := files[row].stop_ns)}
        if len(spans) < _FEWEST_FILES:
            continue
        start, stop = (median_low(ends) for ends in zip(*spans.values(), strict=True))
        apart = {row: max(begin - stop, start - end) for row, (begin, end) in spans.items()}
        far = {row: ns for row, ns in apart.items() if ns > _FAR_NS}
        for row, ns in far.items() if 2 * len(far) < len(spans) else ():
            when = "before" if spans[row][0] < start else "after"
            reasons[row] = f"of another run: traced {duration(ns * 1000)} {when} the others"
    return reasons


def distinct(files: Sequence[HostFile]) -> list[str]:
    """Return names of hosts whose steps are distinct: after the file, then the folder of the session, then by number.

    Files of one host whose annotated steps have different numbers are one host.
    """
    workers = (_CYCLE.fullmatch(stem(file.name)) for file in files)
    names = [
        file.host or (worker[1] if worker else stem(file.name)) for file, worker in zip(files, workers, strict=True)
    ]
    if len(files) == 1:
        return [files[0].host]
    for suffixes in ([file.session for file in files], [str(number) for number in range(len(files))]):
        by_name: dict[str, list[HostFile]] = {}
        for file, name in zip(files, names, strict=True):
            by_name.setdefault(name, []).append(file)
        clashing = {name for name, same in by_name.items() if _clash(same)}
        names = [f"{name} {suffix}" if name in clashing else name for name, suffix in zip(names, suffixes, strict=True)]
    return names


def _clash(files: Sequence[HostFile]) -> bool:
    """Return whether steps of files of one host share numbers, or have none, or the files have different roles."""
    steps = [file.steps for file in files]
    shared = not all(steps) or len(frozenset[int]().union(*steps)) < sum(map(len, steps))
    return len(files) > 1 and (shared or len({file.role for file in files}) > 1)


_STEPS = ("frame", "ops", "devices", "input_stages", "windows")
_WALL = ("spans", "stalls", "samples", "load")


def together(runs: Sequence[Profile], skipped: Sequence[tuple[str, str]] = ()) -> Profile:
    """Return the runs as one profile with a host each, which starts with the first of them.

    Hosts of one name are named after their run. Steps keep their numbers, by which they are aligned. `skipped` names
    the runs that were left out.
    """
    runs = _distinct([replace(run, stored=run.stored or NO_STEPS) for run in runs])
    origins = [run.origin_ns for run in runs]
    dated = [origin for origin in origins if origin is not None]
    origin_ns = min(dated) if len(dated) == len(runs) else None
    runs = [_later(run, later(origin_ns, run.origin_ns)) for run in runs]
    walls = [steps.wall for steps in map(_stored, runs) if steps.wall is not None]
    span_ps = max(run.span_ps for run in runs)
    causes = {name: pl.concat([getattr(wall, name) for wall in walls]) for name in _WALL} if walls else {}
    first, every = runs[0], [*map(_stored, runs)]
    clocks = [run.stored_clocks for run in runs if run.stored_clocks is not None]
    kept = all(run.read_events is not None for run in runs)
    shared = all(steps.read_collectives is not None for steps in every)
    return replace(
        first,
        windows=pl.concat([run.windows for run in runs]),
        hardware=pl.concat([run.hardware for run in runs]),
        span_ps=span_ps,
        origin_ns=origin_ns,
        stored=replace(
            _stored(first),
            **{name: pl.concat([getattr(steps, name) for steps in every]) for name in _STEPS},
            read_collectives=(lambda: pl.concat([steps.collectives for steps in every])) if shared else None,
            wall=WallClock(span_ps, all(wall.complete for wall in walls), **causes) if walls else None,
            metadata=dict(set.intersection(*(set(steps.metadata.items()) for steps in every))),
        ),
        read_events=partial(_events, runs) if kept else None,
        read_clocks=launches.clocks,
        read_details=(lambda kind: pl.concat([getattr(run, kind) for run in runs])) if kept else None,
        stored_clocks=pl.concat(clocks) if clocks else None,
        overhead=None,
        overhead_interval=None,
        skipped=(*(file for run in runs for file in run.skipped), *skipped),
        notes=[f"{run.name}: {note}" for run in runs for note in run.notes],
        standing=of_ranks([run.standing for run in runs if run.standing is not None]),
    )


def _stored(run: Profile) -> Steps:
    return run.stored or NO_STEPS


def _distinct(runs: Sequence[Profile]) -> list[Profile]:
    """Return the runs with distinct names of hosts."""
    hosts = [sorted({*run.windows["host"], *_stored(run).frame["host"]}) for run in runs]
    folders = [storage.local(str(run.source)).name for run in runs]
    files = [
        HostFile(folder, folder, host, None, None, 0, frozenset())
        for folder, of_run in zip(folders, hosts, strict=True)
        for host in of_run
    ]
    names = iter(distinct(files))
    return [
        _changed(run, pl.col("host").cast(pl.String).replace({host: next(names) for host in of_run}))
        for run, of_run in zip(runs, hosts, strict=True)
    ]


def _later(run: Profile, by_ps: int) -> Profile:
    return replace(_changed(run, pl.col("^start_ps$") + by_ps), span_ps=run.span_ps + by_ps)


def _changed(run: Profile, change: pl.Expr) -> Profile:
    """Return a run with a column changed in all tables, those of raw events included."""
    steps, read, details = _stored(run), run.read_events, run.read_details
    shared = steps.read_collectives

    def tables(owner: object, names: Sequence[str]) -> dict[str, Any]:
        return {name: getattr(owner, name).with_columns(change) for name in names}

    return replace(
        run,
        **tables(run, ["windows", "hardware"]),
        stored=replace(
            steps,
            **tables(steps, _STEPS),
            read_collectives=None if shared is None else lambda: shared().with_columns(change),
            wall=None if steps.wall is None else replace(steps.wall, **tables(steps.wall, _WALL)),
        ),
        stored_clocks=None if run.stored_clocks is None else run.stored_clocks.with_columns(change),
        read_events=None if read is None else lambda: read().with_columns(change),
        read_details=None if details is None else lambda kind: details(kind).with_columns(change),
    )


def _events(runs: Sequence[Profile]) -> pl.DataFrame:
    frames, lanes = list[pl.DataFrame](), 0
    for run in runs:
        frames.append(run.events.with_columns(pl.col("lane") + pl.lit(lanes, pl.UInt32)))
        lanes = int(frames[-1]["lane"].max() or -1) + 1  # type: ignore[arg-type]  # of numbers
    return pl.concat(frames)
