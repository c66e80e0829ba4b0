"""Plain frames in, files out: so that a noun can save itself.

A trace holds what the paper's IV.B and Figure 3 ask for: a formatted description of each phase with its host
and device operations, on two tracks that Chrome and Perfetto draw. Here the time axis is the real one. Names of
hosts, marks and operations are not trusted: they may hold anything.
"""

from __future__ import annotations

import gzip
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from tpunb import schema

_WINDOWS, _PHASES = 1, 2  # threads
_DESCRIBED = 2_000  # more segments than this, and only the first of a phase lists its operations


def phase_name(phase: int) -> str:
    """Return what people call a phase.

    >>> phase_name(2), phase_name(-1)
    ('Phase 2', 'Noise')
    """
    return "Noise" if phase < 0 else f"Phase {phase}"


def segments(steps: pl.DataFrame, *by: str) -> pl.DataFrame:
    """Return the maximal runs of consecutive steps of a host that agree in the columns `by`.

    Parameters
    ----------
    steps
        ``tpunb.schema.STEPS`` and the columns `by`.

    Returns
    -------
    pl.DataFrame
        (host, *by, first_step, last_step, steps, start_ps, end_ps), in order of host and time. A segment that
        outlasts the start of the next is cut there, so no two of a host overlap.
    """
    changed = pl.any_horizontal(pl.col(name).ne_missing(pl.col(name).shift()) for name in ("host", *by))
    first = pl.int_range(pl.len()) == 0  # nulls must not hide the first change
    return (
        steps.sort("host", "start_ps", "step")
        .with_columns(_run=(changed | first).cum_sum())
        .group_by("_run", maintain_order=True)
        .agg(
            pl.col("host", *by).first(),
            pl.col("step").first().alias("first_step"),
            pl.col("step").last().alias("last_step"),
            pl.len().cast(pl.Int64).alias("steps"),
            pl.col("start_ps").first(),
            (pl.col("start_ps") + pl.col("dur_ps")).max().alias("end_ps"),
        )
        .with_columns(end_ps=pl.min_horizontal("end_ps", pl.col("start_ps").shift(-1).over("host")))
        .drop("_run")
    )


def slices(runs: pl.DataFrame, key: Sequence[str], edges: tuple[int, int], n: int) -> pl.DataFrame:
    """Return the part, 0 to 1, of each of `n` slices of time that each key fills.

    Parameters
    ----------
    runs
        (*key, start_ps, end_ps).
    edges
        From and to, in picoseconds.

    Returns
    -------
    pl.DataFrame
        (*key, start_ps, end_ps, part), sorted; only where the part is not 0.
    """
    origin, end = edges
    width = -(-max(end - origin, 1) // n)
    first, last = ((column - origin) // width for column in (pl.col("start_ps"), pl.col("end_ps") - 1))
    left = origin + pl.col("slice") * width
    inside = pl.min_horizontal("end_ps", left + width) - pl.max_horizontal("start_ps", left)
    return (
        runs.filter(pl.col("end_ps") > pl.col("start_ps"))
        .with_columns(slice=pl.int_ranges(first, last + 1))
        .explode("slice")
        .with_columns(part=inside / width)
        .group_by(*key, "slice")
        .agg(pl.col("part").sum().clip(0, 1))
        .select(*key, left.alias("start_ps"), (left + width).clip(upper_bound=end).alias("end_ps"), "part")
        .sort(*key, "start_ps")
    )


def chrome_trace(
    path: Path,
    steps: pl.DataFrame,
    phases: pl.DataFrame,
    top: pl.DataFrame,
    windows: pl.DataFrame,
    checkpoints: Mapping[int, str],
) -> Path:
    """Write a trace for chrome://tracing and Perfetto; return `path`.

    A process a host; on it the thread "Profile breakdown", an event a window of the profiler, and the thread
    "Phase breakdown", an event a run of consecutive steps of one phase (paper IV.B, Figure 3).

    Parameters
    ----------
    path
        Where to; gzipped where it ends in ``.gz``. Its folder is made.
    steps
        ``tpunb.schema.STEPS`` and the column ``phase``.
    phases
        ``tpunb.schema.PHASES``.
    top
        ``tpunb.schema.TOP``.
    windows
        ``tpunb.schema.WINDOWS``.
    checkpoints
        The nearest of each phase that has one.
    """
    hosts = pl.concat([steps["host"], windows["host"]]).unique().sort().to_list()
    pids = {host: pid for pid, host in enumerate(hosts, 1)}
    trace = {
        "displayTimeUnit": "ms",
        "otherData": {"written by": "tpunb"},
        "traceEvents": [
            *_metadata(pids),
            *_window_events(windows, pids),
            *_phase_events(segments(steps, "phase"), _descriptions(phases, top, checkpoints), pids),
        ],
    }
    text = json.dumps(trace, allow_nan=False, separators=(",", ":")).encode()
    return write(path, gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


def _metadata(pids: dict[str, int]) -> Iterator[dict[str, Any]]:
    for host, pid in pids.items():
        yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": host or "host"}}
        for tid, name in ((_WINDOWS, "Profile breakdown"), (_PHASES, "Phase breakdown")):
            yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}
            yield {
                "ph": "M",
                "pid": pid,
                "tid": tid,
                "name": "thread_sort_index",
                "args": {"sort_index": tid},
            }


def _event(name: str, pid: int, tid: int, start_ps: int, end_ps: int) -> dict[str, Any]:
    # whole nanoseconds, as the viewers keep them: neighbours that touch stay apart
    start, end = start_ps // 1000, end_ps // 1000
    return {
        "ph": "X",
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": start / 1e3,
        "dur": max(end - start, 0) / 1e3,
    }


def _window_events(windows: pl.DataFrame, pids: dict[str, int]) -> Iterator[dict[str, Any]]:
    watched = pl.when(pl.col("dur_ps") > 0).then("start_ps")  # a failed window has no length and cuts nothing
    until = watched.shift(-1).backward_fill().over("host")
    rows = windows.sort("host", "start_ps", "window").with_columns(
        end_ps=pl.min_horizontal(pl.col("start_ps") + pl.col("dur_ps"), until)
    )
    for row in rows.iter_rows(named=True):
        event = _event(f"Profile {row['window']}", pids[row["host"]], _WINDOWS, row["start_ps"], row["end_ps"])
        facts = {"bytes": row["bytes"], "events": row["events"], "steps seen": row["steps"]}
        yield event | {"args": facts if row["error"] is None else {"error": row["error"]}}


def _phase_events(
    runs: pl.DataFrame, about: dict[int, dict[str, Any]], pids: dict[str, int]
) -> Iterator[dict[str, Any]]:
    told: set[tuple[str, int]] = set()
    for row in runs.iter_rows(named=True):
        phase = row["phase"]
        event = _event(phase_name(phase), pids[row["host"]], _PHASES, row["start_ps"], row["end_ps"])
        args = {
            "phase": phase,
            "first step": row["first_step"],
            "last step": row["last_step"],
            "steps": row["steps"],
        }
        if runs.height <= _DESCRIBED or (row["host"], phase) not in told:
            told.add((row["host"], phase))
            args |= about.get(phase, {})
        yield event | {"args": args}


def _descriptions(phases: pl.DataFrame, top: pl.DataFrame, checkpoints: Mapping[int, str]) -> dict[int, dict[str, Any]]:
    """Return what to say of each phase, by its number."""
    about: dict[int, dict[str, Any]] = {
        row["phase"]: {
            "steps of the phase": row["steps"],
            "share of the run (%)": _percent(row["share"]),
            "median step time (ms)": None if row["step_ps"] is None else row["step_ps"] / 1e9,
            "top host operations": [],
            "top device operations": [],
        }
        for row in phases.iter_rows(named=True)
    }
    for row in top.sort("phase", "side", "rank").iter_rows(named=True):
        if row["phase"] in about:
            share = _percent(row["share"])
            text = row["op"] if share is None else f"{row['op']} ({share:.1f} %)"
            about[row["phase"]][f"top {row['side']} operations"].append(text)
    for phase, name in checkpoints.items():
        about[phase]["nearest checkpoint"] = name
    return about


def _percent(share: float | None) -> float | None:
    return None if share is None or not math.isfinite(share) else round(100 * share, 4)


def csv(folder: Path, phases: pl.DataFrame, top: pl.DataFrame) -> list[Path]:
    """Write ``phases.csv``, ``operations_host.csv`` and ``operations_device.csv``; return their paths.

    Headers name the units. A text cell that a spreadsheet would run as a formula gets an apostrophe in front.

    Parameters
    ----------
    folder
        Where to; it is made.
    phases
        ``tpunb.schema.PHASES``.
    top
        ``tpunb.schema.TOP``.
    """
    tables = {
        "phases.csv": phases.select(
            "phase",
            "steps",
            pl.col("full").alias("steps seen in full"),
            _text("marks").alias("marks"),
            pl.col("first_step").alias("first step"),
            _ms("start_ps").alias("start (ms)"),
            _ms("dur_ps").alias("total time (ms)"),
            (pl.col("share") * 100).fill_nan(None).round(4).alias("share of the run (%)"),
            _ms("step_ps").alias("median step time (ms)"),
            _ms("device_ps").alias("device time (ms)"),
            _ms("idle_ps").alias("idle time (ms)"),
        )
    }
    for side in schema.SIDE.categories:
        tables[f"operations_{side}.csv"] = top.filter(pl.col("side") == side).select(
            "phase",
            "rank",
            _text("op").alias("operation"),
            pl.col("count").alias("calls"),
            _ms("total_ps").alias("total time (ms)"),
            _ms("self_ps").alias("self time (ms)"),
            (pl.col("share") * 100).fill_nan(None).round(4).alias("share of self time (%)"),
        )
    return [write(folder / name, table.write_csv().encode()) for name, table in tables.items()]


def _ms(column: str) -> pl.Expr:
    return (pl.col(column) / 1e9).round(6)  # to the nanosecond


def _text(column: str) -> pl.Expr:
    text = pl.col(column).cast(pl.String)
    return pl.when(text.str.contains(r"^[=+\-@\t\r\n]")).then("'" + text).otherwise(text)


def write(path: Path, content: bytes) -> Path:
    """Write to the side and rename: nobody ever reads half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_bytes(content)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    return path
