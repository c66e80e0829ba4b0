"""Goodput of jobs: whether the situations of ml-goodput-measurement's public tests get the buckets expected there."""

from __future__ import annotations

import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
from simulate.goodput_jobs import (
    INIT,
    LOADING,
    PREPARATION,
    SITUATIONS,
    STEP,
    Job,
    Situation,
    everything,
    moment,
    uneven,
)

import tpunb as tp
from tpunb.analysis import GoodputRecorder, categories

NEAR = 0.01  # seconds


def buckets(folder: Path) -> dict[str, bool]:
    """Return whether each situation is right, by its name."""
    found = {each.name: _right(each, folder) for each in SITUATIONS}
    found["steps of uneven length"] = _uneven(folder)
    found["read by ten threads"] = _by_threads(folder)
    return found | _recorded(folder)


def _right(situation: Situation, folder: Path) -> bool:
    job = Job(folder / f"{situation.name}.jsonl")
    situation.write(job)
    found = tp.job(job.path)
    exclude = [] if situation.exclude is None else [(moment(situation.exclude[0]), moment(situation.exclude[1]))]
    frame = categories(found, exclude)
    times = dict(frame.group_by("category").agg(pl.col("time_ps").sum() / 1e12).iter_rows())
    accounts = {name: found.time_ps(name) / 1e12 for name in situation.accounts}
    wall = frame.filter(pl.col("within").is_null())["time_ps"].sum() / 1e12
    return (
        all(abs(times.get(name, 0.0) - seconds) < NEAR for name, seconds in situation.expected.items())
        and all(abs(accounts[name] - seconds) < NEAR for name, seconds in situation.accounts.items())
        and (situation.wall is None or abs(wall - situation.wall) < NEAR)
        and found.frame["time_ps"].sum() == found.wall_ps == found.segments["dur_ps"].sum()
    )


def _uneven(folder: Path) -> bool:
    """Return whether steps have the times between their events; the deviation from the ideal follows from them."""
    job = Job(folder / "uneven.jsonl")
    uneven(job)
    lines = [json.loads(line) for line in job.path.read_text(encoding="utf-8").splitlines()]
    starts = [line["step_start_time"] for line in lines if "step_start_time" in line] + [lines[-1]["job_end_time"]]
    seconds = tp.steps(tp.load(job.path)).frame["dur_ps"] / 1e12
    return all(abs(a - (end - start)) < NEAR for a, start, end in zip(seconds, starts[:-1], starts[1:], strict=True))


def _by_threads(folder: Path) -> bool:
    job = Job(folder / "threads.jsonl")
    everything(job)
    with ThreadPoolExecutor(10) as pool:
        found = list(pool.map(lambda _: tp.job(job.path).frame, range(20)))
    return all(frame.equals(found[0]) for frame in found)


def _recorded(folder: Path) -> dict[str, bool]:
    """Return whether a recorder's file has the events, at the times given, or of the calls."""
    job = Job(folder / "recorded.jsonl")
    everything(job)
    lines = [json.loads(line) for line in job.path.read_text(encoding="utf-8").splitlines()]
    keys = {key for line in lines for key in line}
    begin = moment(0.0).timestamp()
    at = {key: [line[key] - begin for line in lines if key in line] for key in keys if key.endswith("_time")}
    parts = {"tpu_init": (1.0, INIT), "training_prep": (3.0, PREPARATION), "data_loading": (6.0, LOADING)}
    given = {
        f"{name} recorded": (at[f"{name}_start_time"][0], at[f"{name}_end_time"][0]) == (start, start + seconds)
        for name, (start, seconds) in parts.items()
    }
    steps = [9.0, 24.0, 29.0, 34.0, 49.0]
    ends = {"steps recorded": at["step_start_time"] == steps and at["job_end_time"] == [steps[-1] + LOADING + STEP]}
    ends["custom events recorded"] = keys - {*at} == {"job_name", "step_count", "custom_badput_event_type"}
    path, now = folder / "now.jsonl", datetime.now(UTC).timestamp()
    recorder = GoodputRecorder(path, "now")
    for method in ("record_training_preparation_start_time", "record_training_preparation_end_time"):
        getattr(recorder, method)()
    prepared = [next(reversed(json.loads(line).values())) for line in path.read_text(encoding="utf-8").splitlines()]
    recorder.record_data_loading_start_time()
    loaded = json.loads(path.read_text(encoding="utf-8").splitlines()[-1])["data_loading_start_time"]
    later = datetime.now(UTC).timestamp()
    called = {"preparation at the time of the call": len(prepared) == 2 and now <= prepared[0] <= prepared[1] <= later}
    return given | ends | called | {"loading at the time of the call": prepared[1] <= loaded <= later}


def measure() -> dict[str, float]:
    """Return the share of the situations that are right; print the others."""
    with tempfile.TemporaryDirectory() as folder:
        found = buckets(Path(folder))
    for name in [name for name, right in found.items() if not right]:
        print("wrong:", name)
    return {"buckets": sum(found.values()) / len(found)}
