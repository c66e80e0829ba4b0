"""Read what a capture saw of a training that stands still, and see a process that gives no sign of work any more."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from math import isfinite
from pathlib import Path
from typing import Any

import polars as pl
import psutil

from tpunb.frames.standing import Standing
from tpunb.io import py_spy
from tpunb.text import cut, plain

SILENT_S, SILENT_STEPS = 15.0, 10
"""Time, and usual steps, after which a process that shows each second that it is at work gives no sign of it."""

_LONGEST = 160  # characters of a text
_CHILDREN = 16  # that are asked for, which takes 0.1 s each, or more


def stands(seen: object, group: object, samples: pl.DataFrame, *, is_now: bool, host: object = None) -> Standing | None:
    """Return what ``standing.json`` holds; None if the training continues, or it is of another version.

    With the `host` on which it stands still now, if that is this machine, also where its child processes are.
    """
    if not isinstance(seen, dict):
        return None
    try:
        since, seconds, last = datetime.fromisoformat(seen["since"]).astimezone(), float(seen["seconds"]), seen["step"]
        is_here = is_now and host == socket.gethostname()
        found = ((each, _state_of_child(each, is_here=is_here)) for each in seen["children"][:_CHILDREN])
        children = tuple(_text(f"{each['name']} ({each['process']}): {state}") for each, state in found if state)
        training: Mapping[str, Any] = next((each for each in seen["threads"] if each["trains"]), {"frames": []})
        sampled = samples.sort("start_ps")["place"].drop_nulls()[-1:].to_list()
        line = next(iter(sampled or training["frames"]), None)  # without samples the innermost call
        rank = group.get("rank") if isinstance(group, dict) else None
        return Standing(
            since,
            seconds if isfinite(seconds) else 0.0,
            last if isinstance(last, int) and last >= 0 else None,
            None if line is None else _text(line),
            children,
            is_now,
            rank if isinstance(rank, int) else None,
            waits=training.get("innermost") == "library",
            is_counted=seen.get("counted", True) is True,
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None


def _state_of_child(child: Mapping[str, Any], *, is_here: bool) -> str | None:
    """Return how a child has ended, or the line of the program that it is at; None if neither is known."""
    if child["state"].startswith("ended"):
        return str(child["state"])
    return None if not is_here or (line := py_spy.line(child["process"])) is None else f"at {line}"


def is_silent(lock: Path, facts: Mapping[str, Any], ticks: pl.DataFrame) -> Standing | None:
    """Return that the process which holds the lock of a run gives no sign of work: it cannot say so itself."""
    with suppress(OSError, OverflowError, ValueError):
        beat_s = lock.stat().st_mtime
        usual_ps = (ticks["end_ps"] - ticks["start_ps"]).median() or 0
        if (silent_s := time.time() - beat_s) >= max(SILENT_S, SILENT_STEPS * float(usual_ps) / 1e12):  # type: ignore[arg-type]
            since, step = datetime.fromtimestamp(beat_s).astimezone(), ticks["step"].max()
            why = _why_silent(facts.get("process"), facts.get("host"))
            return Standing(since, silent_s, step, why, (), is_now=True)  # type: ignore[arg-type]
    return None


def _why_silent(process: object, host: object) -> str:
    if host == socket.gethostname() and isinstance(process, int):
        with suppress(psutil.Error, OSError, ValueError, OverflowError):
            state = psutil.Process(process).status()
            if state in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
                return f"its process {process} is stopped, as by SIGSTOP: kill -CONT {process}"
            if state == psutil.STATUS_DISK_SLEEP:
                return f"its process {process} waits for a disk or a network file system"
        if process != os.getpid() and (line := py_spy.line(process, locked=True)) is not None:
            return f"{line}, which holds the interpreter lock, or collects garbage"
    return "its process gives no sign: code in C holds the interpreter lock, or the machine does not run"


def _text(value: object) -> str:
    return cut(plain(str(value)), _LONGEST)
