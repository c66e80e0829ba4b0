"""What it costs a training to be watched: the same steps of the same model, plain and captured, by turns.

``python benchmarks/overhead.py [--quick] [--jax] [--pairs N]``, in one process, so that no start-up is in it: Keras
models on TensorFlow's CPU backend, as wide as a step of some 5 and of some 100 ms wants. A pair is two runs of as
many steps, in random order, one of them under ``tp.capture(keep="none")``; its ratio is that of the wall time of
``fit``. What a capture takes to begin and end, once a run, is told apart. Processor time, of all threads, stands
beside: it is the steadier where others use the machine too. So does the run's own estimate.

What the default schedule costs goes with how long a run is: three windows at its beginning, later ones as its budget
allows. Its runs last some 30 s here. The last line is one JSON object:

``default_100ms``, ``default_5ms``, ``continuous_5ms``, ``ticker_5ms``
    The median of the pairs' ratios of wall time, and its interval: order statistics that hold the median of such
    pairs at 95 % whatever their distribution; of fewer than six pairs the least and the greatest. ``ticker`` asks for
    no window.
``bytes_ratio``
    Bytes of the XPlanes of the continuous runs by those of the statistics kept of them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))  # for who runs this file by another way than its name

import trainings

import tpunb as tp
from tpunb.marking import StepClock, keras_marks
from tpunb.recorder import Run, Schedule
from tpunb.sources.frameworks import annotation

MINUTE_WINDOWS = 3 + 5  # of a minute by the default schedule, where nothing is new: three, then one in ten seconds
QUICK_S = 36.0  # when `--quick` begins no further pair


@dataclass(frozen=True)
class Case:
    """A schedule on steps of a length: `pairs` of runs of `seconds`; `by` names a function of `trainings`."""

    name: str
    schedule: Schedule
    step_s: float
    seconds: float
    pairs: int
    by: str = "by_keras"


FULL = [
    Case("default_100ms", Schedule(), 0.1, 30, 6),
    Case("default_5ms", Schedule(), 0.005, 30, 6),
    Case("continuous_5ms", Schedule.continuous(), 0.005, 5, 8),
    Case("ticker_5ms", Schedule.ticks(), 0.005, 2, 20),
]
QUICK = [
    Case("default_100ms", Schedule(), 0.1, 3, 1),
    Case("default_5ms", Schedule(), 0.005, 2, 2),
    Case("continuous_5ms", Schedule.continuous(), 0.005, 2, 2),
    Case("ticker_5ms", Schedule.ticks(), 0.005, 0.5, 6),
]


class Took(NamedTuple):
    """A run: seconds of wall and of processor time; what a capture took around it and says of it."""

    wall_s: float
    cpu_s: float
    around_s: float = 0.0
    estimate: float | None = None  # the run's own, of its slow-down; None where it has measured too little
    windows: int = 0


Pair = tuple[Took, Took]


def calibrated(build: Callable[[int], trainings.Train], step_s: float) -> tuple[trainings.Train, float]:
    """Return a training whose steps last about that long, and how long they do; their time goes with width squared."""
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
    """Return how long a training takes for some steps."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    train(steps, run)
    return Took(time.perf_counter() - wall_s, time.process_time() - cpu_s)


def captured(train: trainings.Train, steps: int, schedule: Schedule, folder: Path) -> Took:
    """Return the same of a training that is watched, and what the capture says."""
    begin = time.perf_counter()
    with tp.capture(folder, schedule=schedule, keep="none") as run:
        took = seconds(train, steps, run)
        status = run.status
    around_s = time.perf_counter() - begin - took.wall_s
    return took._replace(around_s=around_s, estimate=status.overhead, windows=status.windows + status.failed)


def pair(case: Case, train: trainings.Train, step_s: float, folder: Path) -> Pair:
    """Return a plain and a captured run, made in random order."""
    steps = max(10, round(case.seconds / step_s))
    runs = [lambda: seconds(train, steps), lambda: captured(train, steps, case.schedule, folder)]
    took = {which: runs[which]() for which in random.sample(range(2), 2)}
    return took[0], took[1]


def interval(values: list[float]) -> list[float]:
    """Return the median, and the order statistics that hold that of all such values at 95 %, or the extremes."""
    ranked, n = sorted(values), len(values)
    outside = [sum(math.comb(n, k) for k in range(cut + 1)) / 2 ** (n - 1) for cut in range(n // 2)]
    cut = max((cut for cut, share in enumerate(outside) if share <= 0.05), default=0)
    return [statistics.median(ranked), ranked[cut], ranked[n - 1 - cut]]


def minute(plain: Took, watched: Took) -> float:
    """Return the ratio of a minute by the default schedule: what a short run lost, as often as windows come."""
    return 1 + (watched.wall_s - plain.wall_s) / max(watched.windows, 1) * MINUTE_WINDOWS / 60


def report(case: Case, step_s: float, pairs: list[Pair], *, quick: bool) -> list[float]:
    """Print how a case fares, and return what it gives to the last line."""

    def span(values: list[float]) -> str:
        return "{:.3f} [{:.3f}, {:.3f}]".format(*interval(values))

    wall = [watched.wall_s / plain.wall_s for plain, watched in pairs]
    cpu = span([watched.cpu_s / plain.cpu_s for plain, watched in pairs])
    each_ms = statistics.median(plain.cpu_s for plain, _ in pairs) / max(10, round(case.seconds / step_s)) * 1e3
    told = [1 + watched.estimate for _, watched in pairs if watched.estimate is not None]
    own = f"{statistics.median(told):.3f}" if told else "none yet"
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
    """Print and return the bytes of the windows of some runs by those of the statistics kept of them."""
    raw, steps, tables = 0, 0, Counter[str]()
    for folder in folders:
        profile = tp.load(folder)
        raw, steps = raw + int(profile.windows["bytes"].sum()), steps + len(tp.steps(profile).full())
        for file in folder.glob("parts/*/*"):
            tables[file.stem] += file.stat().st_size
    words = ", ".join(f"{name} {size / 1e3:.1f} kB" for name, size in tables.most_common())
    print(f"{raw / 1e6:.1f} MB of windows, {steps} whole steps, became {tables.total() / 1e3:.1f} kB: {words}")
    return raw / tables.total()


def tickers(times: int = 10_000) -> tuple[float, float, float]:
    """Return the microseconds that the clock takes a step, and by Keras' hooks; and the annotation's part of it."""
    import keras

    def each_us(what: Callable[[int], object]) -> float:
        rounds = []
        for _ in range(5):
            begin = time.perf_counter()
            for number in range(times):
                what(number)
            rounds.append((time.perf_counter() - begin) / times * 1e6)
        return min(rounds)  # the machine's own hiccups only add

    def by_hand(_: int) -> None:
        step = clock.begin("train", complete=False)
        clock.finished()
        clock.end(step)

    def hooks(number: int) -> None:
        callbacks.on_train_batch_begin(number)
        callbacks.on_train_batch_end(number)

    def annotated(number: int) -> None:
        with annotation("train", number):
            pass

    callbacks, clock = keras.callbacks.CallbackList(), StepClock(annotation)
    unmarked = each_us(hooks)
    with keras_marks(clock):
        marked = each_us(hooks) - unmarked
    return each_us(by_hand), marked, each_us(annotated)


def main() -> None:
    """Print the comparison, and one line of JSON at the end."""
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
    print("the clock takes {:.1f} us a step, {:.1f} by Keras' hooks; TensorFlow's annotation {:.1f}".format(*tickers()))
    rest = [case for case in cases for _ in range(max(1, round(case.pairs * share)) - 1)]
    done: dict[str, list[Pair]] = {case.name: [] for case in cases}
    with tempfile.TemporaryDirectory() as name:
        captured(trained("by_keras", 0.005)[0], 50, Schedule.continuous(0.1), Path(name) / "first")  # imports
        mixed = [*cases, *random.sample(rest, len(rest))]  # so that none has the machine's bad hour
        for case in sorted(mixed, key=lambda case: case.by == "by_jax"):  # once in use, JAX is what is watched
            if options.quick and time.monotonic() - began_s > QUICK_S and done[case.name]:
                continue
            folder = Path(name) / f"{case.name}-{len(done[case.name])}"
            plain, watched = pair(case, *trained(case.by, case.step_s), folder)
            done[case.name].append((plain, watched))
            if not options.quick:  # it takes a quarter of an hour: what an interrupted one has found is seen
                ratios = watched.wall_s / plain.wall_s, watched.cpu_s / plain.cpu_s
                print("{}: wall {:.3f}, cpu {:.3f}".format(case.name, *ratios), flush=True)
        result: dict[str, Any] = {}
        for case in cases:
            result[case.name] = report(case, trained(case.by, case.step_s)[1], done[case.name], quick=options.quick)
        result["bytes_ratio"] = round(kept(sorted(Path(name).glob("continuous*"))), 1)
    print(json.dumps({name: ratio for name, ratio in result.items() if name != "default_5ms, JAX"}))


if __name__ == "__main__":
    main()
