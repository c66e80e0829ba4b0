"""What it costs a training to be watched: the same steps of the same model, plain and captured, by turns.

``python benchmarks/overhead.py [--quick] [--jax] [--pairs N]``, in one process, so that no start-up is in it: Keras
models on TensorFlow's CPU backend, as wide as a step of some 5 and of some 100 ms wants. A pair is two runs of as many
steps, one of them under ``tp.capture(keep="none")``, in random order; its ratio is that of the wall time of ``fit``. What
a capture takes to begin and end, once a run, is told apart. Processor time a step, of all threads, stands beside: it is
the steadier where others use the machine too. So does the run's own estimate.

What the default schedule costs goes with how long a run is: three windows at its beginning, later ones as its budget
allows. Its runs last 30 s here. The last line is one JSON object:

``default_100ms``, ``default_5ms``, ``continuous_5ms``, ``ticker_5ms``
    The median of the pairs' ratios of wall time, and its interval: order statistics that hold the median of such pairs
    at 95 % whatever their distribution; of fewer than six pairs the least and the greatest. ``ticker`` asks for no window.
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
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}

import numpy as np

import tpunb as tp
from tpunb.marking import StepClock, keras_marks
from tpunb.recorder import Run, Schedule
from tpunb.sources.local import annotation

MINUTE = {"windows": 3 + 5, "seconds": 60}  # of a default run without news: three at once, then one in ten seconds
BATCH = 64


@dataclass(frozen=True)
class Case:
    """A schedule on steps of a length; `pairs` of runs of `seconds`."""

    name: str
    schedule: Schedule
    step_s: float
    seconds: float
    pairs: int


FULL = [
    Case("default_100ms", Schedule(), 0.1, 30, 6),
    Case("default_5ms", Schedule(), 0.005, 30, 6),
    Case("continuous_5ms", Schedule.continuous(), 0.005, 6, 10),
    Case("ticker_5ms", Schedule.ticks(), 0.005, 2, 30),
]
QUICK = [
    Case("default_100ms", Schedule(), 0.1, 4, 1),
    Case("default_5ms", Schedule(), 0.005, 2, 2),
    Case("continuous_5ms", Schedule.continuous(0.5), 0.005, 1.5, 2),
    Case("ticker_5ms", Schedule.ticks(), 0.005, 0.5, 4),
]


class Took(NamedTuple):
    """A run: seconds of wall and of processor time; what a capture took around it and says of it."""

    wall_s: float
    cpu_s: float
    around_s: float = 0.0
    estimate: float | None = None  # the run's own, of its slow-down; None where it has measured too little
    windows: int = 0


Train = Callable[[int, "Run | None"], None]
"""Trains for some steps; a loop of one's own marks them with the run."""


# -- trainings -------------------------------------------------------------------------------------------------


def by_keras(width: int) -> Train:
    """Return the training of a Keras model: four dense layers of that width, Adam, batches by tf.data."""
    import keras
    import tensorflow as tf

    rng = np.random.default_rng(0)
    rows = rng.random((8 * BATCH, width), "float32"), rng.integers(0, 10, 8 * BATCH)
    data = tf.data.Dataset.from_tensor_slices(rows).repeat().batch(BATCH).prefetch(2)
    layers = [keras.layers.Dense(width, "relu") for _ in range(4)]
    model = keras.Sequential([keras.Input((width,)), *layers, keras.layers.Dense(10)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    return lambda steps, _: model.fit(data, steps_per_epoch=steps, shuffle=False, verbose=0)


def by_jax(width: int) -> Train:
    """Return the training of the same model in JAX: a compiled step, gradient descent, a loop of one's own."""
    import jax

    keys = jax.random.split(jax.random.key(0), 5)
    rows = jax.random.normal(keys[4], (BATCH, width))
    weights = [jax.random.normal(key, (width, width)) / width**0.5 for key in keys[:4]]

    @jax.jit
    def step(weights: list[Any], rows: Any) -> list[Any]:
        def loss(weights: list[Any]) -> Any:
            out = rows
            for weight in weights:
                out = jax.nn.relu(out @ weight)
            return (out**2).mean()

        return [weight - 0.01 * slope for weight, slope in zip(weights, jax.grad(loss)(weights), strict=True)]

    def train(steps: int, run: Run | None) -> None:
        trained = weights
        for number in range(steps):
            with run.step(number) if run else nullcontext():
                trained = jax.block_until_ready(step(trained, rows))

    return train


def calibrated(build: Callable[[int], Train], step_s: float) -> tuple[Train, float]:
    """Return a training whose steps take about that long, and how long they do; one time goes with width squared."""
    width = 256 if step_s < 0.02 else 1024
    for _ in range(3):
        train = build(width)
        train(5, None)  # compiles
        took_s = min(seconds(train, 10 if step_s < 0.02 else 3).wall_s for _ in range(3))
        took_s /= 10 if step_s < 0.02 else 3
        if 0.75 < took_s / step_s < 1.33:
            break
        width = max(64, round(width * min(4.0, max(0.25, (step_s / took_s) ** 0.5)) / 32) * 32)
    return train, took_s


# -- pairs -----------------------------------------------------------------------------------------------------


def seconds(train: Train, steps: int, run: Run | None = None) -> Took:
    """Return how long a training takes for some steps."""
    begin = time.perf_counter(), time.process_time()
    train(steps, run)
    return Took(time.perf_counter() - begin[0], time.process_time() - begin[1])


def captured(train: Train, steps: int, schedule: Schedule, folder: Path) -> Took:
    """Return the same of a training that is watched, and what the capture says."""
    begin = time.perf_counter()
    with tp.capture(folder, schedule=schedule, keep="none") as run:
        took = seconds(train, steps, run)
        status = run.status
    around_s = time.perf_counter() - begin - took.wall_s
    return took._replace(around_s=around_s, estimate=status.overhead, windows=status.windows + status.failed)


def pair(case: Case, train: Train, step_s: float, folder: Path) -> tuple[Took, Took]:
    """Return a plain and a captured run, made in random order."""
    steps = max(10, round(case.seconds / step_s))
    runs = {
        "plain": lambda: seconds(train, steps),
        "captured": lambda: captured(train, steps, case.schedule, folder),
    }
    took = {name: runs[name]() for name in random.sample([*runs], 2)}
    return took["plain"], took["captured"]


def interval(values: list[float]) -> list[float]:
    """Return the median, and the order statistics between which that of all such values lies at 95 %, or all lie."""
    ranked, n = sorted(values), len(values)
    outside = [sum(math.comb(n, k) for k in range(cut + 1)) / 2 ** (n - 1) for cut in range(n // 2)]
    cut = max((cut for cut, share in enumerate(outside) if share <= 0.05), default=0)
    return [statistics.median(ranked), ranked[cut], ranked[n - 1 - cut]]


def minute(plain: Took, watched: Took) -> float:
    """Return the ratio of a minute by the default schedule: what a window took of a short run, as often as one asks."""
    lost_s = (watched.wall_s - plain.wall_s) / max(watched.windows, 1)
    return 1 + lost_s * MINUTE["windows"] / MINUTE["seconds"]


def report(case: Case, step_s: float, pairs: list[tuple[Took, Took]], quick: bool) -> list[float]:
    """Print how a case fares, and return what it gives to the last line."""

    def span(values: list[float]) -> str:
        return "{:.3f} [{:.3f}, {:.3f}]".format(*interval(values))

    wall = [watched.wall_s / plain.wall_s for plain, watched in pairs]
    cpu = [watched.cpu_s / plain.cpu_s for plain, watched in pairs]
    around, windows = (
        statistics.median(getattr(watched, name) for _, watched in pairs) for name in ("around_s", "windows")
    )
    told = [1 + watched.estimate for _, watched in pairs if watched.estimate is not None]
    own = f"{statistics.median(told):.3f}" if told else "none yet"
    length = statistics.median(plain.wall_s for plain, _ in pairs)
    each = statistics.median(plain.cpu_s for plain, _ in pairs) / max(10, round(case.seconds / step_s))
    print(
        f"{case.name:15} {len(pairs):3} pairs of {length:4.1f} s, step {step_s * 1e3:5.1f} ms: wall {span(wall)}, "
        f"cpu {span(cpu)} of {each * 1e3:.1f} ms a step; own estimate {own}, {windows:g} windows; "
        f"begin and end {around:.2f} s"
    )
    if quick and case.name.startswith("default"):
        wall = [minute(*one) for one in pairs]
        print(f"{'':15}   extrapolated to a run of 60 s with {MINUTE['windows']} such windows: wall {span(wall)}")
    return [round(value, 3) for value in interval(wall)]


# -- what is no pair ---------------------------------------------------------------------------------------------


def kept(folders: list[Path]) -> float:
    """Print and return the bytes of the windows of some runs by those of the statistics kept of them."""
    raw, steps, tables = 0, 0, Counter[str]()
    for folder in folders:
        profile = tp.load(folder)
        raw += int(profile.windows["bytes"].sum())
        steps += len(tp.steps(profile).full())
        for file in folder.glob("parts/*/*"):
            tables[file.stem] += file.stat().st_size
    whole = sum(tables.values())
    words = ", ".join(f"{name} {size / 1e3:.1f} kB" for name, size in tables.most_common())
    print(f"\n{raw / 1e6:.1f} MB of windows, {steps} whole steps, became {whole / 1e3:.1f} kB: {words}")
    return raw / whole


def tickers(times: int = 10_000) -> None:
    """Print how long the clock takes a step: alone with TensorFlow's annotation, and by Keras' hooks."""
    import keras

    def each(what: Callable[[int], object]) -> float:
        rounds = []
        for _ in range(5):
            begin = time.perf_counter()
            for number in range(times):
                what(number)
            rounds.append((time.perf_counter() - begin) / times)
        return statistics.median(rounds) * 1e6

    def by_hand(_: int) -> None:
        step = clock.begin("train", complete=False)
        clock.finished()
        clock.end(step)

    def hooks(number: int) -> None:
        callbacks.on_train_batch_begin(number)
        callbacks.on_train_batch_end(number)

    def bare(number: int) -> None:
        with annotation("train", number):
            pass

    callbacks = keras.callbacks.CallbackList()
    clock, unmarked = StepClock(annotation), each(hooks)
    alone = each(by_hand)
    with keras_marks(clock):
        marked = each(hooks) - unmarked
    print(
        f"the clock takes {alone:.1f} us a step, {marked:.1f} us by Keras' hooks; of that TensorFlow's annotation, "
        f"which a profile needs, {each(bare):.1f} us"
    )


def main() -> None:
    """Print the comparison, and one line of JSON at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a coarse answer in under 50 seconds")
    parser.add_argument("--jax", action="store_true", help="a loop in JAX besides")
    parser.add_argument("--pairs", type=int, help="how many, of the default schedule; of the others in proportion")
    options = parser.parse_args()
    cases = QUICK if options.quick else FULL
    share = options.pairs / cases[0].pairs if options.pairs else 1.0
    trainings = {case.step_s: calibrated(by_keras, case.step_s) for case in cases}
    tickers()
    if options.jax:
        of_jax = calibrated(by_jax, 0.005)
    todo = [case for case in cases for _ in range(max(1, round(case.pairs * share)))]
    done: dict[str, list[tuple[Took, Took]]] = {case.name: [] for case in cases}
    with tempfile.TemporaryDirectory() as name:
        pair(Case("", Schedule.continuous(0.2), 0.005, 0.5, 1), *trainings[0.005], Path(name) / "first")  # imports
        for number, case in enumerate(random.sample(todo, len(todo))):  # so that no case has the machine's bad hour
            folder = Path(name) / f"{case.name}-{number}"
            done[case.name].append(pair(case, *trainings[case.step_s], folder))
        result: dict[str, Any] = {
            case.name: report(case, trainings[case.step_s][1], done[case.name], options.quick) for case in cases
        }
        if options.jax:
            case = Case("JAX, default", cases[1].schedule, 0.005, cases[1].seconds, 1)
            several = [pair(case, *of_jax, Path(name) / f"jax-{n}") for n in range(len(done["default_5ms"]))]
            report(case, of_jax[1], several, options.quick)
        ratio = kept(sorted(Path(name).glob("continuous*")))
    print(json.dumps(result | {"bytes_ratio": round(ratio, 1)}))


if __name__ == "__main__":
    sys.exit(main())
