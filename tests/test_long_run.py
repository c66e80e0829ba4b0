"""A run of many windows and steps, replayed as fast as it goes: whole, and memory stays as it is."""

import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import tpunb as tp

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="no /proc here to ask for the memory"),
]

LONG = """
import gc, json, os, sys, threading, time
from collections import deque
import tpunb as tp
from tpunb.profiler import recorder
from tpunb.profiler.capture import Schedule
from tpunb.profiler.reducer import Reducer
from tpunb.testing import toy_window

folder, windows, early = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
STEPS = 100  # a window, as of a training of 10 ms a step


class Fast:
    '''Answers when 100 steps have run, with five operations in each.'''

    def __init__(self):
        self.marks = deque(maxlen=STEPS)
        self.asked = threading.Semaphore(0)
        self.due = threading.Semaphore(0)

    def start(self): pass
    def facts(self): return {"framework": "none"}
    def stop(self): self.due.release()

    def window(self, seconds):
        start = time.time_ns()
        self.asked.release()
        self.due.acquire()
        stop = time.time_ns()
        steps = [(n, a, b) for n, a, b in self.marks if a >= start]
        ops = [(f"Op{k}", a, b) for _, a, b in steps for k in range(5)]
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


recorder.ReducerProcess = Reducer  # whose memory counts, too
source, memory = Fast(), []
with tp.capture(folder, source=source, schedule=Schedule.continuous()) as run:
    for number in range(windows * STEPS):
        if number % STEPS == 0:
            source.asked.acquire()
        with run.step(number, "train"):
            pass
        if number % STEPS == STEPS - 1:
            source.due.release()
            done = number // STEPS + 1
            if done in (early, windows):
                memory.append(resident_mb())
print(json.dumps([*memory, sum(map(len, run._session.recorder.reducer._paces.values()))]))
"""


def check_a_long_run(folder, windows, early, more_mb):
    """Run it, and measure the memory after so many `early` windows, when all is warm, and at the end."""
    command = [sys.executable, "-c", LONG, str(folder), str(windows), str(early)]
    seen = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert seen.returncode == 0, seen.stderr
    first_mb, last_mb, paces = json.loads(seen.stdout)
    assert last_mb - first_mb < more_mb, f"{first_mb:.0f} MB after {early} windows, {last_mb:.0f} MB after {windows}"
    profile = tp.load(folder)
    steps = tp.steps(profile)
    assert steps.frame["step"].to_list() == list(range(100 * windows))
    assert profile.windows["window"].to_list() == list(range(profile.windows.height))
    assert profile.windows["steps"].to_list()[:windows] == [100] * windows
    assert set(steps.frame["traced"]) == {"full"}
    assert set(steps.full().ops["op"].cast(pl.String)) == {f"Op{k}" for k in range(5)}
    assert 1 <= len(list(folder.glob("plugins/profile/*"))) <= paces  # on a busy machine there are several


def test_memory_stays_as_it_is_over_a_hundred_windows(tmp_path):
    check_a_long_run(tmp_path / "run", windows=100, early=50, more_mb=20)


@pytest.mark.slow
def test_memory_stays_as_it_is_over_a_thousand_windows(tmp_path):
    check_a_long_run(tmp_path / "run", windows=1000, early=200, more_mb=30)
