"""Loops to capture, waiting for what a capture does, and what its run folder says."""

import json
import time
from pathlib import Path

import tpunb as tp
from tpunb.profiler.capture import Schedule

SHORT = Schedule.continuous(window=0.05)


def until(true):
    """Wait until something is true."""
    end = time.monotonic() + 120
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def train(run, numbers, kind="train", seconds=0.002):
    for i in numbers:
        with run.step(i, kind):
            time.sleep(seconds)


def train_until(run, true, first=0):
    """Run steps until something is true; return the number of the next step."""
    end = time.monotonic() + 120
    while not true():
        assert time.monotonic() < end, run.status
        train(run, [first])
        first += 1
    return first


def traced(run):
    """Return how many steps have been traced in full so far."""
    return run._session.recorder.full


def wait_more(run, count):
    """Wait until two more "windows" came, or "failed": by then another one is under way."""
    goal = getattr(run.status, count) + 2
    until(lambda: getattr(run.status, count) >= goal)


def facts(run):
    """Return ``run.json``."""
    return json.loads((Path(run) / "run.json").read_text())


def steps_of(run):
    """Return the numbers of the steps in a run folder."""
    return tp.load(run).stored.frame["step"].to_list()
