"""Write the raw events around a step as a trace for Perfetto. Names in it are not trusted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tpunb.analysis.representatives import representative
from tpunb.errors import KEEP_ALL, BadProfile, not_kept
from tpunb.frames import Phases, Steps
from tpunb.frames.export import write_trace
from tpunb.text import cut, plain, short_time


@dataclass(frozen=True, repr=False)
class StepTrace:
    """A step of a phase in a trace file.

    Parameters
    ----------
    path
        The trace.
    phase
        Name of the phase.
    host, step
        The step.
    dur_ps
        Step time in picoseconds.
    logdir
        Folder in which XProf and TensorBoard open the raw capture, if there is one.
    window
        Number of the window of the step, as XProf names it, if the run was captured in windows.
    """

    path: Path
    phase: str
    host: str
    step: int
    dur_ps: int
    logdir: str | None = None
    window: int | None = None

    def __repr__(self) -> str:
        lines = [
            f"step {self.step:,} of {plain(self.phase)} ({short_time(self.dur_ps)}) is in {self.path}",
            "Perfetto: open https://ui.perfetto.dev and drop the file there",
        ]
        if self.logdir is not None:
            session = "" if self.window is None else f", then choose {self.window:05d}"
            lines.append(f"XProf: tensorboard --logdir {self.logdir}{session}")
        return "\n".join(lines)


_ARGS = ("tf_op", "hlo_op", "category", "step_num", "flops", "bytes", "hbm_bytes", "correlation_id")


def open_trace(phases: Phases, phase: int | None = None, path: str | os.PathLike[str] | None = None) -> StepTrace:
    """Write the raw events of a typical step of a phase, and of one step time before and after it.

    What is returned says how to open the trace.

    Parameters
    ----------
    phases
        Phases of the run.
    phase
        Number of the phase; the longest if None.
    path
        Target file, gzipped if it ends in ``.gz``; named after the phase and the step in the working folder if None.

    Raises
    ------
    KeyError
        If no step has that label.
    TpunbError
        If the capture kept no raw events, or no raw events of this phase.
    """
    if phases.steps.read_events is None:
        raise not_kept(phases.steps.name, "raw events", job=phases.steps.by_host is not None)
    phase = phases.longest.id if phase is None else phases[phase].id
    events, name = phases.steps.read_events(), phases.names[phase]
    row = _typical(phases, phase, events)
    if row is None:
        problem = f"{phases.steps.name or 'this run'} kept no raw events of a step of phase {phase}, {plain(name)}"
        raise BadProfile(problem, hint=KEEP_ALL)
    host, step, start, dur = (row[key] for key in ("host", "step", "start_ps", "dur_ps"))
    at = pl.col("start_ps")
    around = events.filter(pl.col("host") == host, at < start + 2 * dur, at + pl.col("dur_ps") > start - dur)
    if path is None:
        words = "".join(letter if letter.isalnum() else "-" for letter in plain(name)).strip("-")
        path = Path(f"{words}-step-{step}.trace.json.gz")
    written = write_trace(Path(path), [*_named(around), *_events(around)])
    return StepTrace(written, name, host, step, dur, *_session(phases.steps, host, start))


def _typical(phases: Phases, phase: int, events: pl.DataFrame) -> dict[str, Any] | None:
    """Return the representative step, else of the steps with raw events the one of the nearest step time."""
    columns = "host", "step", "start_ps", "dur_ps"
    full = phases.labelled.filter(pl.col("phase") == phase, traced="full").select(columns)
    best = representative(phases, phase).select(columns)
    middle = best["dur_ps"].median() or full["dur_ps"].median() or 0
    steps = pl.concat([best, full.sort((pl.col("dur_ps") - middle).abs(), "start_ps")])
    for host in steps["host"].unique():
        begins = np.sort(events.filter(pl.col("host") == host)["start_ps"].to_numpy())
        start = pl.col("start_ps")
        ends = [start, start + pl.col("dur_ps")]
        of_host = pl.col("host") == host
        first, last = (np.searchsorted(begins, steps.select(end).to_series().to_numpy()) for end in ends)
        steps = steps.filter(~of_host | pl.Series(last > first))
    return steps.row(0, named=True) if steps.height else None


def _named(events: pl.DataFrame) -> Iterator[dict[str, Any]]:
    planes = _planes(events)
    for row in events.select("plane", "line", "lane").unique("lane").sort("lane").iter_rows(named=True):
        pid = planes[row["plane"]]
        for kind, name in (("process_name", row["plane"]), ("thread_name", row["line"])):
            yield {"ph": "M", "pid": pid, "tid": row["lane"], "name": kind, "args": {"name": cut(plain(name or ""))}}


def _events(events: pl.DataFrame) -> Iterator[dict[str, Any]]:
    planes = _planes(events)
    for row in events.sort("start_ps", -pl.col("dur_ps")).iter_rows(named=True):
        args = {name: plain(value) if isinstance(value, str) else value for name in _ARGS if (value := row[name])}
        at, dur = row["start_ps"] // 1000 / 1e3, row["dur_ps"] // 1000 / 1e3  # microseconds, to the nanosecond
        name, pid = plain(row["name"] or ""), planes[row["plane"]]
        yield {"ph": "X", "name": name, "pid": pid, "tid": row["lane"], "ts": at, "dur": dur, "args": args}


def _planes(events: pl.DataFrame) -> dict[str | None, int]:
    """Return a number for each device and host CPU."""
    return {plane: number for number, plane in enumerate(events["plane"].cast(pl.String).unique().sort(), 1)}


def _session(steps: Steps, host: str, at_ps: int) -> tuple[str | None, int | None]:
    """Return the folder that XProf opens, and of a run folder the number of the window in which a moment is."""
    source = Path(steps.source)
    if (source / "plugins").is_dir():
        begun = pl.col("start_ps") <= at_ps
        windows = steps.windows.filter(begun, pl.col("host") == host, at_ps < pl.col("start_ps") + pl.col("dur_ps"))
        kept = [n for n in windows["window"].to_list() if (source / "plugins" / "profile" / f"{n:05d}").is_dir()]
        return str(source), next(iter(kept), None)
    return next((str(folder.parent) for folder in source.parents if folder.name == "plugins"), None), None
