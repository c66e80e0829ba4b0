"""Goodput events of ml-goodput-measurement, one JSON object a line in place of its cloud log: written and read.

The names of the events are those of version 0.2.3 (https://github.com/AI-Hypercomputer/ml-goodput-measurement). An
attempt of a job begins with the event of its start; where training stops to wait for slices; or where steps are counted
from an earlier number. A step lasts until the next begins, the last one to the end of the job.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any

import polars as pl

from tpunb import schema
from tpunb.errors import BadProfile, TpunbError, warn_user
from tpunb.frames import Profile, Steps
from tpunb.frames.steps import WallClock
from tpunb.io import run_folder, storage
from tpunb.io.storage import Location
from tpunb.step_stats import aggregate
from tpunb.text import cut, format_error, plain, plural

ENDING = ".jsonl"
DEVICES, TRAINING = "device initialization", "training preparation"
SCALE_UP, SLICE_DOWN, ANEW = "waiting to scale up", "waiting for a slice", "initialization with other slices"
UNFINISHED = "unfinished step"
_SPANS = {  # account and detail of the time between the events of a name with "_start_time" and "_end_time"
    "tpu_init": ("preparation", DEVICES),
    "training_prep": ("preparation", TRAINING),
    "data_loading": ("data loading", None),
    "elastic_wait": ("resizing", SLICE_DOWN),
    "elastic_reinit": ("resizing", ANEW),
    "custom_badput_event": ("program code", None),
}
_FACT = {  # what else the events of a name have
    "step": "step_count",
    "custom_badput_event": "custom_badput_event_type",
    "elastic_wait": "elastic_wait_event_type",
}
_ORBAX = {  # of Orbax' records of a kind: start and seconds, and the account
    "save": ("checkpoint_manager_blocking", "checkpoint save"),
    "restore": ("checkpoint_manager", "checkpoint restore"),
    "emergency_restore": ("checkpoint_manager", "checkpoint restore"),
}
_NOTHING = ("flush", "record_checkpoint_progress", "record_elastic_slice_counts")
# each call has written its event, what was lost follows from the steps, and waits for slices have events of their own
_EVALUATES = ("eval", "valid")  # in the type of a custom event


class GoodputRecorder:
    """Writes goodput events to a local file: each call appends a line, so that a kill leaves all before it.

    It has the methods of ml-goodput-measurement's recorders, with their arguments: ``record_job_start_time()``,
    ``record_step_start_time(step)``, ``record_custom_badput_event_end_time(custom_badput_event_type="eval")``, and so
    on. The time of an event is that of the call, unless a datetime is given.

    Parameters
    ----------
    path
        File to append to, such as ``events.jsonl``; the attempts of a job may share it, or have one each.
    job_name
        Name of the job, the same in all attempts.
    logging_enabled
        Whether to write: of the processes of a job, one should.

    >>> GoodputRecorder("events.jsonl", logging_enabled=False).record_step_start_time(3)
    """

    def __init__(self, path: str | os.PathLike[str], job_name: str = "job", logging_enabled: bool = True) -> None:
        self.job_name = job_name
        self._path = Path(path) if logging_enabled else None
        self._offset_s = datetime.now(UTC).timestamp() - monotonic()  # the system clock may be set between two events

    def __getattr__(self, method: str) -> Callable[..., None]:
        """Return the method that records an event, or one that does nothing."""
        if method in _NOTHING:
            return lambda *_, **__: None
        event = method.removeprefix("record_").replace("preparation", "prep")
        name = event.removesuffix("_start_time").removesuffix("_end_time")
        if name == event or (name not in ("job", *_SPANS) and event != "step_start_time"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {method!r}")
        return partial(self._record, event, _FACT.get(name))

    def _record(self, event: str, fact: str | None, *values: object, **named: object) -> None:
        given = [value for value in (*values, *named.values()) if value is not None]
        now = datetime.fromtimestamp(self._offset_s + monotonic(), UTC)
        time = next((value for value in given if isinstance(value, datetime)), now)
        value = next((value for value in given if value is not time), "unknown")
        try:
            facts = {} if fact is None else {fact: value if isinstance(value, str) else int(value)}  # type: ignore[call-overload]
            if self._path is not None:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"job_name": self.job_name, **facts, event: time.timestamp()}) + "\n")
        except (OSError, TypeError, ValueError) as error:  # which must not end the training
            warn_user(f"{self._path}: {event} was not written: {format_error(error)}", stacklevel=2)


@dataclass
class _Attempt:
    """Events of an attempt; times in seconds since the epoch."""

    start: float
    end: float  # of the last event
    started: bool = False  # whether the event of its start was read
    finished: bool = False
    steps: list[tuple[int, float]] = field(default_factory=list)
    spans: list[tuple[str, str | None, float, float]] = field(default_factory=list)  # account, detail, start, end
    open: dict[tuple[str, str], float] = field(default_factory=dict)

    def add(self, event: str, time: float, entry: Mapping[str, Any]) -> None:
        self.end = max(self.end, time)
        name, _, which = event.removesuffix("_time").rpartition("_")
        kind = str(entry.get(_FACT.get(name, ""), ""))
        if event == "step_start_time":
            self.steps.append((int(entry["step_count"]), time))
        elif name == "job":
            self.started, self.finished = True, which == "end"
        elif event in _ORBAX:
            self.end = max(self.end, time + float(entry[f"{_ORBAX[event][0]}_duration_secs"]))
            self.spans.append((_ORBAX[event][1], "Orbax", time, self.end))
        elif name in _SPANS and which == "start":
            self.open[name, kind] = time
        elif (begun := self.open.pop((name, kind), None)) is not None:
            account, detail = _SPANS[name]
            if name == "custom_badput_event":
                account = "evaluation" if any(word in kind.lower() for word in _EVALUATES) else account
                detail = kind.upper()
            elif name == "elastic_wait" and "scale_up" in kind.lower():
                detail = SCALE_UP
            self.spans.append((account, detail, begun, time))

    def splits(self, event: str, entry: Mapping[str, Any]) -> bool:
        """Return whether an event begins another attempt."""
        if event == "step_start_time":
            return bool(self.steps) and int(entry["step_count"]) <= self.steps[-1][0]
        resizes = event in ("elastic_wait_start_time", "elastic_reinit_start_time")
        return (event == "job_start_time" and self.started) or (resizes and bool(self.steps))

    def profile(self, name: str, job: str, notes: Sequence[str]) -> Profile:
        """Return its steps and spans as a run."""
        steps, spans = self.steps, [*self.spans, ("other", None, self.start, self.end)]
        if self.finished:
            steps = [*steps, (-1, self.end)]
        elif steps:
            spans.append(("other", UNFINISHED, steps[-1][1], self.end))
        origin_ns = round(self.start * 1e9)

        def ps(time: float) -> int:
            return (round(time * 1e9) - origin_ns) * 1000

        pairs = [(step, ps(start), ps(end)) for (step, start), (_, end) in pairwise(steps)]
        ticks = [("", step, "train", start, end, None, None, None, "event", *[None] * 3) for step, start, end in pairs]
        rows = [("", ps(start), ps(end) - ps(start), account, detail) for account, detail, start, end in spans]
        tables = {name: pl.DataFrame(schema=columns) for name, columns in run_folder.TABLES.items()}
        tables["ticks"] = pl.DataFrame(ticks, schema=run_folder.TICKS, orient="row")
        wall = WallClock(ps(self.end), spans=pl.DataFrame(rows, schema=schema.SPANS, orient="row"))
        stored = Steps(*aggregate.merge(tables), name=name, metadata={"job": job}, wall=wall, steps_before=0)
        hardware = pl.DataFrame(schema=schema.HARDWARE)
        return Profile(name, name, tables["windows"], hardware, wall.span_ps, origin_ns, stored, notes=notes)


def attempts(file: Location) -> list[Profile]:
    """Return the attempts of a job in a file of goodput events; none if it holds none. Damaged lines are left out."""
    events, jobs, lines, damaged = list[tuple[float, str, dict[str, Any]]](), set[str](), 0, list[str]()
    for number, line in enumerate(storage.read(file).tobytes().split(b"\n"), 1):
        if line.strip():
            lines += 1
            try:
                entry = json.loads(line)
                entry = entry.get("jsonPayload", entry)  # as exported from the cloud's log
                events.append(_event(entry))
                jobs |= {str(entry["job_name"])} if "job_name" in entry else set()
            except (ValueError, TypeError, AttributeError, LookupError, OverflowError, RecursionError) as error:
                damaged.append(f"line {number}: {format_error(error)}")
    if len(jobs) > 1:
        listed = ", ".join(cut(plain(job)) for job in sorted(jobs)[:3])
        raise BadProfile(f"{file}: events of {len(jobs)} jobs: {listed}", hint="write each job to a file of its own")
    if not jobs or not events:
        return []
    found = list[_Attempt]()
    for time, event, entry in sorted(events, key=lambda event: event[0]):
        if not found or found[-1].splits(event, entry):
            found.append(_Attempt(time, time))
        found[-1].add(event, time, entry)
    notes = [f"{len(damaged)} of {plural(lines, 'line')} left out: {damaged[0]}"] if damaged else []
    (job,) = jobs
    names = [job] if len(found) == 1 else [f"{job} attempt {at}" for at in range(len(found))]
    return [attempt.profile(name, job, notes) for name, attempt in zip(names, found, strict=True)]


def _event(entry: Mapping[str, Any]) -> tuple[float, str, dict[str, Any]]:
    """Return time and name of an event; a ValueError, TypeError or LookupError if it is damaged."""
    event = str(entry.get("event_type", ""))
    key = f"{_ORBAX[event][0]}_start_time" if event in _ORBAX else ""
    if not key:
        event = key = next((key for key in entry if key.endswith(("_time", "_timestamp"))), "")
        if not key:
            raise ValueError("it has no time")
    if event == "step_start_time":
        int(entry["step_count"])
    elif event in _ORBAX:
        float(entry[f"{_ORBAX[event][0]}_duration_secs"])
    time = float(entry[key])
    if not math.isfinite(time):
        raise ValueError(f"its time is {time}")
    return time, event, dict(entry)


def read(fitting: Sequence[Location], where: Location, files: Mapping[str, Location], engine: Any) -> Profile | None:
    """Read the events of one attempt; those of several are refused."""
    found = [attempt for file in fitting for attempt in attempts(file)]
    if len(found) > 1:
        raise TpunbError(
            f"{where} holds {len(found)} attempts of a job", hint=f"load one file, or in Python tp.job({str(where)!r})"
        )
    return found[0] if found else None
