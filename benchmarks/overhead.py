"""Measure the overhead of a capture: the same steps of the same model, plain and captured, in pairs.

``python benchmarks/overhead.py [--quick] [--jax] [--pairs N]``, in one process, without start-up: Keras models on
TensorFlow's CPU backend, with steps of about 5 and 100 ms. A pair is two runs with the same number of steps, in random
order, one under ``tp.capture(keep="none")``; its ratio is that of the wall time of ``fit``. The time to start and end a
capture, once per run, is printed separately. So are the processor time of all threads, which varies less on a shared
machine, and the overhead that the run itself estimates.

The overhead of the default schedule depends on the length of the run: its budget is 5 % of runs of 30 s, and 10 % of
runs of 10 s. The last line is one JSON object:

``default_100ms``, ``default_5ms``, ``short_10s``, ``continuous_5ms``, ``ticker_5ms``
    The median of the pairs' ratios of wall time, with its interval: order statistics that contain the median at 95 %
    for any distribution; of fewer than six pairs minimum and maximum. ``ticker`` requests no windows; ``short_10s`` has
    steps of 20 ms in runs of 10 s (4 s with ``--quick``).
``entry_s``
    Wall seconds, by framework, to import tpunb and to enter a capture, in a process that has imported its framework.
``end_s``
    Wall seconds of ``tpunb run`` from the last line of a training to its exit.
``gc``
    Processor time of a full collection of garbage in a capture of PyTorch that has reduced a window, by that before it.
    These three are of new processes: medians of three, of one with ``--quick``.
``event_us``
    Microseconds in which the thread that trains adds an event.
``step_us``
    Microseconds of its processor time, by framework, that a capture without windows adds to a step of an ordinary loop:
    JAX, PyTorch with a DataLoader, and ``fit`` of Keras, of the smallest steps, which vary least. The difference of the
    medians of plain and captured trainings in alternation, each by the lower quartile of blocks of 16 steps.
``step_process_us``
    The same of all threads of the process, by whole trainings; it varies by more.
``bytes_ratio``
    Bytes of the XPlanes of the continuous runs divided by those of the statistics kept.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

sys.path.extend(map(str, Path(__file__).parents[:2]))  # whichever way this file is run

import tpunb as tp
from programs import trainings
from tpunb.instrument import listening
from tpunb.instrument.events import MOST_A_SECOND, EventLog
from tpunb.instrument.sink import What
from tpunb.io.run_writer import RunWriter
from tpunb.profiler.capture import Run, Schedule
from tpunb.profiler.loop import Loop
from tpunb.profiler.recorder import journal_row
from tpunb.profiler.sources.frameworks import annotation
from tpunb.profiler.step_clock import StepClock
from tpunb.training.program import user_frame

MINUTE_WINDOWS = 3 + 5  # per minute by the default schedule without new steps: three, then one per 10 s
QUICK_S = 20.0  # after which `--quick` starts no pair
STEPS, BLOCKS = 16, 50  # of each training of small steps


@dataclass(frozen=True)
class Case:
    """A schedule and a step time: `pairs` of runs of `seconds`; `by` names a function of `trainings`."""

    name: str
    schedule: Schedule
    step_s: float
    seconds: float
    pairs: int
    by: str = "by_keras"


FULL = [
    Case("default_100ms", Schedule(), 0.1, 30, 6),
    Case("default_5ms", Schedule(), 0.005, 30, 6),
    Case("short_10s", Schedule(), 0.02, 10, 8),
    Case("continuous_5ms", Schedule.continuous(), 0.005, 5, 8),
    Case("ticker_5ms", Schedule.ticks(), 0.005, 2, 20),
]
QUICK = [
    Case("default_100ms", Schedule(), 0.1, 2, 1),
    Case("default_5ms", Schedule(), 0.005, 2, 2),
    Case("short_10s", Schedule(), 0.02, 4, 1),
    Case("continuous_5ms", Schedule.continuous(), 0.005, 2, 2),
    Case("ticker_5ms", Schedule.ticks(), 0.005, 0.5, 6),
]


class Took(NamedTuple):
    """A run: wall and processor seconds, the time to start and end its capture, and its estimate."""

    wall_s: float
    cpu_s: float
    around_s: float = 0.0
    estimate: float | None = None  # overhead estimated by the run; None if too short
    windows: int = 0
    interval: tuple[float, float] | None = None  # of the estimate


Pair = tuple[Took, Took]


def calibrated(build: Callable[[int], trainings.Train], step_s: float) -> tuple[trainings.Train, float]:
    """Return a training with about this step time, and its step time, which grows with the square of the width."""
    width, steps = (352, 10) if step_s < 0.02 else (2048, 3)
    for _ in range(3):
        train = build(width)
        train(5, None)  # compiles
        took_s = min(seconds(train, steps).wall_s for _ in range(3)) / steps
        if 0.75 < took_s / step_s < 1.33:
            break
        width = max(64, round(width * min(4.0, max(0.25, (step_s / took_s) ** 0.5)) / 32) * 32)
    return train, took_s


def seconds(train: trainings.Train, steps: int, run: Run | None = None) -> Took:
    """Return the time of some steps of a training."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    train(steps, run)
    return Took(time.perf_counter() - wall_s, time.process_time() - cpu_s)


def captured(train: trainings.Train, steps: int, schedule: Schedule, folder: Path) -> Took:
    """Return the same for a captured training, with the capture's facts."""
    begin = time.perf_counter()
    with tp.capture(folder, schedule=schedule, keep="none") as run:
        took = seconds(train, steps, run)
        status = run.status
    around_s = time.perf_counter() - begin - took.wall_s
    windows = status.windows + status.failed
    return took._replace(
        around_s=around_s, estimate=status.overhead, windows=windows, interval=status.overhead_interval
    )


def pair(case: Case, train: trainings.Train, step_s: float, folder: Path) -> Pair:
    """Return a plain and a captured run, in random order."""
    steps = max(10, round(case.seconds / step_s))
    runs = [lambda: seconds(train, steps), lambda: captured(train, steps, case.schedule, folder)]
    took = {which: runs[which]() for which in random.sample(range(2), 2)}
    return took[0], took[1]


def interval(values: list[float]) -> list[float]:
    """Return the median, and the order statistics that contain it at 95 %, or the extremes."""
    ranked, n = sorted(values), len(values)
    outside = [sum(math.comb(n, k) for k in range(cut + 1)) / 2 ** (n - 1) for cut in range(n // 2)]
    cut = max((cut for cut, share in enumerate(outside) if share <= 0.05), default=0)
    return [statistics.median(ranked), ranked[cut], ranked[n - 1 - cut]]


def minute(plain: Took, watched: Took) -> float:
    """Return the ratio of a one-minute run by the default schedule, from the cost per window of a short run."""
    return 1 + (watched.wall_s - plain.wall_s) / max(watched.windows, 1) * MINUTE_WINDOWS / 60


def report(case: Case, step_s: float, pairs: list[Pair], *, quick: bool) -> list[float]:
    """Print a case, and return its values of the last line."""

    def span(values: list[float]) -> str:
        return "{:.3f} [{:.3f}, {:.3f}]".format(*interval(values))

    wall = [watched.wall_s / plain.wall_s for plain, watched in pairs]
    cpu = span([watched.cpu_s / plain.cpu_s for plain, watched in pairs])
    each_ms = statistics.median(plain.cpu_s for plain, _ in pairs) / max(10, round(case.seconds / step_s)) * 1e3
    told = [1 + watched.estimate for _, watched in pairs if watched.estimate is not None]
    own = f"{statistics.median(told):.3f}" if told else "none yet"
    ends = [watched.interval for _, watched in pairs if watched.interval is not None]
    if ends:
        own += " [{:.3f}, {:.3f}]".format(*(1 + statistics.median(each) for each in zip(*ends, strict=True)))
    length_s = statistics.median(plain.wall_s for plain, _ in pairs)
    around_s = statistics.median(watched.around_s for _, watched in pairs)
    windows = statistics.median(watched.windows for _, watched in pairs)
    print(f"{case.name}: {len(pairs)} pairs of {length_s:.1f} s, steps of {step_s * 1e3:.1f} ms, {windows:g} windows")
    print(f"  wall {span(wall)}, cpu {cpu} of {each_ms:.1f} ms a step, own estimate {own}; ends {around_s:.2f} s")
    if quick and case.name.startswith("default"):
        wall = [minute(*one) for one in pairs]
        print(f"  extrapolated to a run of 60 s, {MINUTE_WINDOWS} such windows: wall {span(wall)}")
    return [round(value, 3) for value in interval(wall)]


def kept(folders: list[Path]) -> float:
    """Print and return the bytes of the windows of runs divided by those of their statistics."""
    raw, steps, tables = 0, 0, Counter[str]()
    for folder in folders:
        profile = tp.load(folder)
        raw, steps = raw + int(profile.windows["bytes"].sum()), steps + len(tp.steps(profile).full())
        for file in folder.glob("parts/*/*"):
            tables[file.stem] += file.stat().st_size
    words = ", ".join(f"{name} {size / 1e3:.1f} kB" for name, size in tables.most_common())
    print(f"{raw / 1e6:.1f} MB of windows, {steps} whole steps, became {tables.total() / 1e3:.1f} kB: {words}")
    return raw / tables.total()


def tickers(folder: Path, times: int = 2_000) -> tuple[float, float, float, float]:
    """Return the microseconds of processor time per step: of the clock, its journal, Keras' hooks, and the annotation.

    Keras' hooks write a step to the journal twice: as it has computed, and as it ends.
    """
    import keras

    def each_us(what: Callable[[int], object]) -> float:
        rounds = []
        for _ in range(25):
            begin = time.thread_time()
            for number in range(times):
                what(number)
            rounds.append((time.thread_time() - begin) / times * 1e6)
            clock.take()  # as a capture does
        return min(rounds)  # interruptions only add

    def by_hand(_: int) -> None:
        step = clock.begin("train", complete=False)
        clock.complete()
        clock.end(step)

    def hooks(number: int) -> None:
        callbacks.on_train_batch_begin(number)
        callbacks.on_train_batch_end(number)

    def annotated(number: int) -> None:
        with annotation("train", number):
            pass

    callbacks, clock = keras.callbacks.CallbackList(), StepClock(annotation)
    unmarked = each_us(hooks)
    with listening(Loop(clock)):
        marked = each_us(hooks) - unmarked
    plain, writer = each_us(by_hand), RunWriter(folder)
    writer.open()
    clock.on_step = lambda record: writer.step(journal_row(record, None))
    return plain, each_us(by_hand) - plain, marked, each_us(annotated)


def event_us() -> float:
    """Return the microseconds that the thread that trains takes to add an event, which is not counted beside others."""
    log, what, key = EventLog(user_frame), What.of("benchmarks", event_us), iter(range(1000))

    def rounds_us(number: int = MOST_A_SECOND) -> float:
        add, of = log.add, next(key)
        return timeit.timeit(lambda: add("call", what, of, 1000, 2000), number=number) / number * 1e6

    return min(rounds_us() for _ in range(50))  # interruptions only add


def small_steps(name: str) -> Callable[[], list[float]]:
    """Return a training of the smallest steps of a framework, which returns the processor time of each few of them."""
    times = list[float]()
    begun_s = [0.0]

    def begin() -> None:
        begun_s[0] = time.thread_time()

    def end() -> None:
        times.append(time.thread_time() - begun_s[0])

    if name == "keras":
        import keras

        hooks = {"on_epoch_begin": lambda *_: begin(), "on_epoch_end": lambda *_: end()}
        train = trainings.by_keras(1, 1, 1, epochs=BLOCKS, callbacks=[keras.callbacks.LambdaCallback(**hooks)])
    else:
        train = getattr(trainings, f"by_{name}")(1, 1, 1)

    def blocks() -> list[float]:
        times.clear()
        for _ in range(1 if name == "keras" else BLOCKS):
            begin()
            train(STEPS, None)
            if name != "keras":
                end()
        return sorted(times)

    return blocks


def step_us(folder: Path, pairs: int) -> dict[str, dict[str, float]]:
    """Return the microseconds of processor time, by framework, that a capture adds to a step: see the module."""
    added_us: dict[str, dict[str, float]] = {"step_us": {}, "step_process_us": {}}
    for name in ("keras", "jax", "torch"):
        train, plain, captured = small_steps(name), list[tuple[float, float]](), list[tuple[float, float]]()

        def run(runs: list[tuple[float, float]], train: Callable[[], list[float]] = train) -> None:
            begin_s, blocks = time.process_time(), train()
            process_us = (time.process_time() - begin_s) / BLOCKS / STEPS * 1e6
            runs.append((blocks[len(blocks) // 4] / STEPS * 1e6, process_us))  # interruptions only add

        train()  # compiles
        for at in range(pairs):
            run(plain)
            with tp.capture(folder / f"{name}-{at}", schedule=Schedule.ticks(), keep="none"):
                train()  # first calls are looked at
                run(captured)
            run(plain)
        for which, of in zip(
            added_us, zip(zip(*captured, strict=True), zip(*plain, strict=True), strict=True), strict=True
        ):
            added_us[which][name] = round(statistics.median(of[0]) - statistics.median(of[1]), 1)
    return added_us


_ENTRY = """
import sys, tempfile, time
import {framework}
begin = time.perf_counter()
import tpunb as tp
with tp.capture(tempfile.mkdtemp() + "/run"):
    print(time.perf_counter() - begin)
"""

_TRAINING = """
import contextlib, gc, statistics, sys, tempfile, time
import torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def train(enough):
    end = time.monotonic() + 60
    while not enough() and time.monotonic() < end:
        optimizer.zero_grad()
        model(torch.randn(32, 64)).square().mean().backward()
        optimizer.step()
"""

_END = """
begin = time.monotonic()
train(lambda: time.monotonic() > begin + 2)
print(time.time())
"""

_COLLECTION = """
def collect():
    begin = time.thread_time()
    gc.collect()
    return time.thread_time() - begin
begin = time.monotonic()
train(lambda: time.monotonic() > begin + 0.5)
plain = statistics.median(collect() for _ in range(9))
import tpunb as tp
with tp.capture(tempfile.mkdtemp() + "/run") as run:
    train(lambda: run.status.windows)
    print(statistics.median(collect() for _ in range(9)) / plain)
"""


def of_process(code: str) -> float:
    """Return the number that a new Python process prints last."""
    words = [sys.executable, "-c", code]
    return float(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split("\n")[-2])


def end_s(folder: Path) -> float:
    """Return the seconds of ``tpunb run`` after the last line of its program."""
    script = folder / "train.py"
    script.write_text(_TRAINING + _END)
    words = [sys.executable, "-m", "tpunb", "run", "-o", str(folder / "of_run"), "--", sys.executable, str(script)]
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    ended_s = time.time()
    return ended_s - max(float(line) for line in printed.splitlines() if line.replace(".", "", 1).isdecimal())


def of_processes(folder: Path, times: int) -> dict[str, Any]:
    """Return what a capture costs a process beside its steps: at its entry, at its end, and each search for garbage."""

    def middle(values: Iterable[float]) -> float:
        return round(statistics.median(values), 3)

    frameworks = ("torch", "jax", "keras")
    return {
        "entry_s": {
            name: middle(of_process(_ENTRY.format(framework=name)) for _ in range(times)) for name in frameworks
        },
        "end_s": middle(end_s(Path(tempfile.mkdtemp(dir=folder))) for _ in range(times)),
        "gc": middle(of_process(_TRAINING + _COLLECTION) for _ in range(times)),
    }


def main() -> None:
    """Print the comparison, and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a coarse answer in under 50 seconds")
    parser.add_argument("--jax", action="store_true", help="a loop in JAX besides")
    parser.add_argument("--pairs", type=int, help="how many, of the default schedule; of the others in proportion")
    options = parser.parse_args()
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
    began_s, cases = time.monotonic(), QUICK if options.quick else FULL
    if options.jax:
        cases = [*cases, replace(cases[1], name="default_5ms, JAX", by="by_jax")]
    share = options.pairs / cases[0].pairs if options.pairs else 1.0
    trained = cache(lambda by, step_s: calibrated(getattr(trainings, by), step_s))
    with tempfile.TemporaryDirectory() as name:
        each_us = tickers(Path(name) / "run")
    words = (
        "the clock takes {:.1f} us a step and its journal {:.1f}, Keras' hooks {:.1f}; TensorFlow's annotation {:.1f}"
    )
    print(words.format(*each_us))
    rest = [case for case in cases for _ in range(max(1, round(case.pairs * share)) - 1)]
    done: dict[str, list[Pair]] = {case.name: [] for case in cases}
    with tempfile.TemporaryDirectory() as name:
        captured(trained("by_keras", 0.005)[0], 50, Schedule.continuous(0.1), Path(name) / "first")  # imports
        mixed = [*cases, *random.sample(rest, len(rest))]  # spreads slow periods of the machine
        for case in sorted(mixed, key=lambda case: case.by == "by_jax"):  # once imported, JAX is captured
            if options.quick and time.monotonic() - began_s > QUICK_S and done[case.name]:
                continue
            folder = Path(name) / f"{case.name}-{len(done[case.name])}"
            plain, watched = pair(case, *trained(case.by, case.step_s), folder)
            done[case.name].append((plain, watched))
            if not options.quick:  # it takes 15 minutes: show results so far
                ratios = watched.wall_s / plain.wall_s, watched.cpu_s / plain.cpu_s
                print("{}: wall {:.3f}, cpu {:.3f}".format(case.name, *ratios), flush=True)
        result: dict[str, Any] = {}
        for case in cases:
            result[case.name] = report(case, trained(case.by, case.step_s)[1], done[case.name], quick=options.quick)
        result |= of_processes(Path(name), 1 if options.quick else 3)
        result |= {"event_us": round(event_us(), 2), **step_us(Path(name), 3 if options.quick else 15)}
        result["bytes_ratio"] = round(kept(sorted(Path(name).glob("continuous*"))), 1)
    print(json.dumps({name: ratio for name, ratio in result.items() if name != "default_5ms, JAX"}))


if __name__ == "__main__":
    main()
