"""A run of an hour's worth of windows and steps, replayed as fast as it goes: whole, and memory stays as it is."""

import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import tpunb as tp

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="no /proc here to ask for the memory")

LONG = """
import gc, json, os, sys, threading, time
from collections import deque
import tpunb as tp
from tpunb.recorder import Schedule
from tpunb.testing import toy_window

folder, windows, keep = sys.argv[1], int(sys.argv[2]), sys.argv[3]
STEPS = 200  # a window, as of a training of 5 ms a step


class Fast:
    '''Answers at once, with the last 200 steps and five operations in each.'''

    def __init__(self):
        self.marks = deque(maxlen=STEPS)
        self.due = threading.Semaphore(0)
        self.given = threading.Semaphore(0)
        self.last = time.time_ns()

    def start(self): pass
    def facts(self): return {"framework": "none"}
    def stop(self): self.due.release()

    def window(self, seconds):
        self.due.acquire()
        start, stop = self.last, time.time_ns()
        steps = [(n, a, b) for n, a, b in self.marks if a >= start]
        ops = [(f"Op{k}", a, b) for _, a, b in steps for k in range(5)]
        self.last = stop
        self.given.release()
        return toy_window(start, stop, steps, ops)

    def step(self, mark, number):
        source = self

        class Annotation:
            def __enter__(self): self.begin = time.time_ns()
            def __exit__(self, *_): source.marks.append((number, self.begin, time.time_ns()))

        return Annotation()


def resident_mb():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


source, memory = Fast(), []
with tp.capture(folder, source=source, schedule=Schedule.continuous(), keep=keep) as run:
    for number in range(windows * STEPS):
        with run.step(number, "train"):
            pass
        if number % STEPS == STEPS - 1:
            source.due.release()
            source.given.acquire()
            done = number // STEPS + 1
            if done in (windows // 10, windows):
                memory.append(resident_mb())
print(json.dumps(memory))
"""


def check_a_long_run(folder, windows, more_mb, keep="phases"):
    command = [sys.executable, "-c", LONG, str(folder), str(windows), keep]
    seen = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert seen.returncode == 0, seen.stderr
    early, late = json.loads(seen.stdout)
    assert late - early < more_mb, f"{early:.0f} MB after a tenth, {late:.0f} MB at the end"
    profile = tp.load(folder)
    steps = tp.steps(profile)
    assert steps.frame["step"].to_list() == list(range(200 * windows))
    assert profile.windows["window"].to_list() == list(range(profile.windows.height))
    assert profile.windows.filter(pl.col("steps") > 100).height >= 0.9 * windows
    assert (steps.frame["seen"] == "full").mean() > 0.9
    assert set(steps.full().ops["op"].cast(pl.String)) == {f"Op{k}" for k in range(5)}
    assert len(list(folder.glob("plugins/profile/*"))) == 1


def test_memory_stays_as_it_is_over_a_run_of_some_windows(tmp_path):
    check_a_long_run(tmp_path / "run", windows=60, more_mb=30)


@pytest.mark.slow
def test_memory_stays_as_it_is_over_an_hours_worth_of_windows(tmp_path):
    check_a_long_run(tmp_path / "run", windows=3600, more_mb=30)
