"""Several run folders of one job, one per process, as one profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import polars as pl

from tpunb import schema
from tpunb.frames import Profile, Steps
from tpunb.frames.wall_clock import WallClock
from tpunb.io import host_files, storage
from tpunb.io.host_files import HostFile
from tpunb.step_stats.job_tables import later

_STEPS = ("frame", "ops", "devices", "input_stages", "windows")
_WALL = ("spans", "stalls", "load")


def together(runs: Sequence[Profile]) -> Profile:
    """Return the runs as one profile with a host each, which starts with the first of them.

    Hosts of one name are named after their run. Steps keep their numbers, by which they are aligned.
    """
    runs = _distinct([replace(run, stored=run.stored or _NOTHING) for run in runs])
    origins = [run.origin_ns for run in runs]
    known = [origin for origin in origins if origin is not None]
    origin_ns = min(known) if len(known) == len(runs) else None
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
            read_collectives=partial(_collectives, every) if shared else None,
            wall=WallClock(span_ps, all(wall.complete for wall in walls), **causes) if walls else None,
            metadata=dict(set.intersection(*(set(steps.metadata.items()) for steps in every))),
        ),
        read_events=partial(_events, runs) if kept else None,
        read_details=partial(_details, runs) if kept else None,
        stored_clocks=pl.concat(clocks) if clocks else None,
        overhead=None,
        overhead_interval=None,
        skipped=tuple(file for run in runs for file in run.skipped),
    )


_NOTHING = Steps(schema.empty(schema.STEPS), schema.empty(schema.OPS))


def _stored(run: Profile) -> Steps:
    return run.stored or _NOTHING


def _distinct(runs: Sequence[Profile]) -> list[Profile]:
    """Return the runs with distinct names of hosts."""
    hosts = [sorted({*run.windows["host"], *_stored(run).frame["host"]}) for run in runs]
    folders = [storage.local(str(run.source)).name for run in runs]
    files = [
        HostFile(folder, folder, host, None, None, 0, frozenset())
        for folder, of_run in zip(folders, hosts, strict=True)
        for host in of_run
    ]
    names = iter(host_files.distinct(files))
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


def _collectives(every: Sequence[Steps]) -> pl.DataFrame:
    return pl.concat([steps.collectives for steps in every])


def _details(runs: Sequence[Profile], kind: str) -> pl.DataFrame:
    rows: pl.DataFrame = pl.concat([getattr(run, kind) for run in runs])
    return rows
