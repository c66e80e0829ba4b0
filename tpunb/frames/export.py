"""Write phases as a trace for chrome://tracing and Perfetto, and as CSV.

A trace has the description of each phase with its host and device operations, as in section IV.B and Figure 3 of the
paper, and the account of every stretch of time. The time axis is the real one. Names of hosts, steps and operations are
not trusted.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from tpunb import schema
from tpunb.frames.conversion import write_atomically
from tpunb.text import cut, plain

_WINDOWS, _PHASES, _ACCOUNTS = 1, 2, 3  # threads
_DESCRIBED = 2_000  # segments above which only the first of a phase lists its operations


def chrome_trace(
    path: Path,
    steps: pl.DataFrame,
    windows: pl.DataFrame,
    described: dict[int, dict[str, Any]],
    accounts: pl.DataFrame | None,
) -> Path:
    """Write a trace for chrome://tracing and Perfetto (paper IV.B, Figure 3) to `path`, gzipped if it ends in ``.gz``.

    `steps` are ``Phases.labelled``, `described` what `descriptions` returns, `accounts` GOODPUT_SEGMENTS.
    """
    hosts = pl.concat([steps["host"], windows["host"]]).unique().sort().to_list()
    pids = {host: pid for pid, host in enumerate(hosts, 1)}
    events = [
        *_metadata(pids, accounts is not None),
        *_window_events(windows, pids),
        *_phase_events(segments(steps, "phase"), described, pids),
        *(() if accounts is None else _account_events(accounts, pids)),
    ]
    return write_trace(path, events)


def write_trace(path: Path, events: Sequence[Mapping[str, Any]]) -> Path:
    """Write events in Chrome's format to `path`, gzipped if it ends in ``.gz``."""
    trace = {"displayTimeUnit": "ms", "otherData": {"written by": "tpunb"}, "traceEvents": events}
    text = json.dumps(trace, allow_nan=False, separators=(",", ":")).encode()
    return write_atomically(path, gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


def _metadata(pids: dict[str, int], accounts: bool) -> Iterator[dict[str, Any]]:
    for host, pid in pids.items():
        yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": host or "host"}}
        threads = {_WINDOWS: "Profile breakdown", _PHASES: "Phase breakdown"}
        for tid, name in (threads | ({_ACCOUNTS: "accounts"} if accounts else {})).items():
            yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}
            yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}


def _event(name: str, pid: int, tid: int, start_ps: int, end_ps: int) -> dict[str, Any]:
    # whole nanoseconds, as in the viewers, so that adjacent events do not overlap
    start, end = start_ps // 1000, end_ps // 1000
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": start / 1e3, "dur": max(end - start, 0) / 1e3}


def _window_events(windows: pl.DataFrame, pids: dict[str, int]) -> Iterator[dict[str, Any]]:
    traced = pl.when(pl.col("dur_ps") > 0).then("start_ps")  # a failed window has no duration and cuts no other
    until = traced.shift(-1).backward_fill().over("host")
    rows = windows.sort("host", "start_ps", "window").with_columns(
        end_ps=pl.min_horizontal(pl.col("start_ps") + pl.col("dur_ps"), until)
    )
    for row in rows.iter_rows(named=True):
        event = _event(f"Profile {row['window']}", pids[row["host"]], _WINDOWS, row["start_ps"], row["end_ps"])
        args = {"bytes": row["bytes"], "events": row["events"], "steps traced": row["steps"]}
        yield event | {"args": args if row["error"] is None else {"error": row["error"]}}


def _phase_events(
    runs: pl.DataFrame, described: dict[int, dict[str, Any]], pids: dict[str, int]
) -> Iterator[dict[str, Any]]:
    done: set[tuple[str, int]] = set()
    for row in runs.iter_rows(named=True):
        phase = row["phase"]
        event = _event(described[phase]["name"], pids[row["host"]], _PHASES, row["start_ps"], row["end_ps"])
        args = {"phase": phase} | {name: row[name.replace(" ", "_")] for name in ("first step", "last step", "steps")}
        if runs.height <= _DESCRIBED or (row["host"], phase) not in done:
            done.add((row["host"], phase))
            args |= {name: value for name, value in described[phase].items() if name != "name"}
        yield event | {"args": args}


def _account_events(stretches: pl.DataFrame, pids: dict[str, int]) -> Iterator[dict[str, Any]]:
    """Return one event per stretch of an account, those of consecutive steps merged."""
    look = ["host", "account", "detail"]
    changed = pl.any_horizontal(pl.col(look).ne_missing(pl.col(look).shift())).fill_null(True)
    merged = stretches.filter(pl.col("dur_ps") > 0).sort("host", "start_ps", maintain_order=True)
    merged = merged.group_by(changed.cum_sum().alias("run"), maintain_order=True).agg(
        pl.col(*look, "start_ps").first(), pl.col("dur_ps").sum(), first=pl.col("step").min(), last=pl.col("step").max()
    )
    for row in merged.filter(pl.col("host").is_in([*pids])).iter_rows(named=True):
        event = _event(row["account"], pids[row["host"]], _ACCOUNTS, row["start_ps"], row["start_ps"] + row["dur_ps"])
        args = {"detail": row["detail"] and cut(plain(row["detail"]), 120), "first step": row["first"]}
        yield event | {"args": {**args, "last step": row["last"]}}


def descriptions(phases: pl.DataFrame, top: pl.DataFrame, checkpoints: Mapping[int, str]) -> dict[int, dict[str, Any]]:
    """Return the name and facts of each phase, by number; `checkpoints` has the nearest of a phase, by number."""
    described: dict[int, dict[str, Any]] = {
        row["phase"]: {
            "name": row["name"],
            "steps of the phase": row["steps"],
            "share of step time without waits (%)": _percent(row["share"]),
            "median step time (ms)": None if row["step_ps"] is None else row["step_ps"] / 1e9,
            "top host operations": [],
            "top device operations": [],
        }
        for row in phases.iter_rows(named=True)
    }
    for row in top.sort("phase", "side", "rank").iter_rows(named=True):
        if row["phase"] in described:
            share = _percent(row["share"])
            facts = [f"{share:.1f} %"] if share is not None else []
            facts += [name for name in (row["layer"], row["source"]) if name is not None]
            text = f"{row['op']} ({', '.join(facts)})" if facts else row["op"]
            described[row["phase"]][f"top {row['side']} operations"].append(text)
    for phase, name in checkpoints.items():
        described[phase]["nearest checkpoint"] = name
    return described


def _percent(share: float | None) -> float | None:
    return None if share is None or not math.isfinite(share) else round(100 * share, 4)


def csv(folder: Path, phases: pl.DataFrame, top: pl.DataFrame) -> list[Path]:
    """Write ``phases.csv``, ``operations_host.csv`` and ``operations_device.csv`` with units in the headers.

    Text that a spreadsheet would run as a formula gets an apostrophe in front; control characters are replaced.
    """
    tables = {
        "phases.csv": phases.select(
            "phase",
            "steps",
            pl.col("full").alias("steps traced in full"),
            _text("kinds").alias("kinds"),
            pl.col("first_step").alias("first step"),
            _ms("start_ps").alias("start (ms)"),
            _ms("dur_ps").alias("total time (ms)"),
            (pl.col("share") * 100).fill_nan(None).round(4).alias("share of step time without waits (%)"),
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
            _text("layer").alias("layer"),
            _text("source").alias("source line"),
        )
    return [write_atomically(folder / name, table.write_csv().encode()) for name, table in tables.items()]


def _ms(column: str) -> pl.Expr:
    return (pl.col(column) / 1e9).round(6)  # to the nanosecond


def _text(column: str) -> pl.Expr:
    text = pl.col(column).cast(pl.String).str.replace_all(r"[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]", "\ufffd")  # as `plain`
    return pl.when(text.str.contains(r"^[=+\-@]")).then("'" + text).otherwise(text)


def segments(steps: pl.DataFrame, *by: str) -> pl.DataFrame:
    """Return the longest segments of consecutive steps of a host with equal values in the columns `by` of STEPS.

    A segment ends where the next one starts, so no two of a host overlap; they are in order of host and time.
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
