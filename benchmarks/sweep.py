"""Whether a sweep can be believed on a busy machine: equal things are equal, a knee is found, a gain is seen.

``python benchmarks/sweep.py [--quick]``. A sweep of sums of five sizes is recorded in rounds, beside a
process that computes now and then; pairs of sweeps are made of disjoint rounds of it. The last line is JSON:

``aa``
    Of 40 pairs of sweeps of one thing, the share whose interval of the speed-up contains 1.
``knee``
    Of 20 made-up sweeps with drift and 30 % outliers, the share whose saturation is the known one.
``ratio_low``
    Lower end of the interval of the throughput of ``fc`` 4 x 256 with batch 1,024 by that with batch 16; null where the
    budget reached one of them alone.
``points_s``
    Seconds of a sweep that measures 20 points in 8 rounds at least, with the start of its process and the peaks of
    this CPU; null if that took more than 60 s.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from typing import Any

import numpy as np
import polars as pl

import tpunb as tp
from tpunb.studies.step_times import step_times
from tpunb.studies.sweeps import measuring

BATCHES = (16, 32, 64, 128, 256, 512, 1024)
KNEE = 256


def busy(seconds: float) -> None:
    """Compute now and then, as other people's programs do."""
    drawn, until = np.random.default_rng(0), time.monotonic() + seconds
    while time.monotonic() < until:
        array, pause = drawn.random(100_000), drawn.exponential(0.5)
        stop = time.monotonic() + drawn.exponential(0.5)
        while time.monotonic() < stop:
            np.sort(array)
        time.sleep(pause)


def swept(rounds: Any, names: Any = BATCHES) -> tp.studies.sweeps.Sweep:
    """Return the sweep of rounds of seconds, one point per batch."""
    times = step_times(rounds)
    figures = {
        "step_ps": [round(each.median * 1e12) for each in times],
        "low_ps": [round(each.low * 1e12) for each in times],
        "high_ps": [round(each.high * 1e12) for each in times],
        "examples": list(names),
        "rounds": [len(rounds)] * len(times),
    }
    facts = {"mode": "train", "state": "ok"}
    frame = pl.DataFrame({"batch": list(names), **figures}).with_columns(**{k: pl.lit(v) for k, v in facts.items()})
    return tp.studies.sweeps.Sweep(frame, ("batch",))


def numbers(count: int) -> tuple[Any, Any]:
    """Return a loop over some numbers, in one thread."""
    return {"seen": 0}, [np.linspace(0, 1, count)]


def add_sines(model: Any, batch: Any) -> float:
    """Take a step of the loop."""
    model["seen"] += 1
    return float(np.sin(batch).sum())


def equal_share(pairs: int, each: int) -> float:
    """Return the share of pairs of sweeps of one thing, of so many rounds each, whose interval contains 1."""
    patched = {"_NARROW": 0.0, "_MOST_ROUNDS": 2 * pairs * each, "_ROUND_S": 0.02}
    kept = {name: getattr(measuring, name) for name in patched}
    other = multiprocessing.get_context("spawn").Process(target=busy, args=(600,))
    other.start()
    try:
        for name, value in patched.items():
            setattr(measuring, name, value)
        sweep = tp.sweep(numbers, budget=600, step=add_sines, count=[2_000, 5_000, 10_000, 20_000, 50_000])
    finally:
        other.terminate()
        other.join()
        for name, value in kept.items():
            setattr(measuring, name, value)
    rounds = np.array(sweep.frame["rounds_ps"].to_list(), float).T / 1e12
    spread = np.percentile(rounds, 95, axis=0) / np.median(rounds, axis=0)
    print(f"  {len(rounds)} rounds recorded beside other work, 95th percentile by median {spread.max():.2f} at most")
    parts = [swept(rounds[part * each : (part + 1) * each], range(1, 6)) for part in range(2 * pairs)]
    hits = 0
    for pair, (one, two) in enumerate(zip(parts[::2], parts[1::2], strict=True)):
        row = one.speedup(two).frame.row(pair % 5, named=True)
        hits += row["low"] <= 1 <= row["high"]
    return hits / pairs


def knee_share(seeds: int = 20, count: int = 20) -> float:
    """Return the share of made-up sweeps whose saturation is found exactly."""
    hits = 0
    for seed in range(seeds):
        drawn = np.random.default_rng(seed)
        drift = 1 + 0.5 * np.sin(np.linspace(0, 5, count) + seed)
        seconds = np.maximum(np.array(BATCHES), KNEE) * 1e-4 * drift[:, None]
        seconds = seconds * np.exp(drawn.normal(0, 0.02, seconds.shape))
        slow = drawn.random(seconds.shape) < 0.3
        seconds = np.where(slow, seconds * drawn.uniform(1.2, 3, seconds.shape), seconds)
        hits += swept(seconds).saturation("batch").value == KNEE
    return hits / seeds


def gain(quick: bool) -> float | None:
    """Return the lower end of the throughput of a large batch by that of a small one; None if one was not reached."""
    fixed = {"layers": [4], "nodes": [256], "input": [256], "output": [64]}
    sweep = tp.sweep(tp.studies.sweeps.fc, budget=20 if quick else 40, batch=[16, 1024], **fixed)
    small, large = sweep.frame.sort("batch").rows(named=True)
    if small["low_ps"] is None or large["high_ps"] is None:
        print(f"  fc 4 x 256: {small['state']} at 16, {large['state']} at 1,024: the machine was busy")
        return None
    print(f"  fc 4 x 256: {small['examples_per_s']:,.0f} examples/s at 16, {large['examples_per_s']:,.0f} at 1,024")
    return round(float(1024 / large["high_ps"] / (16 / small["low_ps"])), 2)


def points_seconds() -> float | None:
    """Return the seconds of a sweep of 20 points."""
    begun = time.monotonic()
    fixed = {"input": [64], "output": [8]}
    sweep = tp.sweep(
        tp.studies.sweeps.fc, budget=45, layers=[2, 4], nodes=[32, 64], batch=[16, 64, 128, 256, 512], **fixed
    )
    taken = time.monotonic() - begun
    fewest = sweep.frame["rounds"].min()
    print(f"  20 points: {taken:.0f} s, {fewest} rounds and more")
    return round(taken, 1) if fewest >= 8 and taken <= 60 else None


def main() -> None:
    """Print what was measured, and the figures."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="8 pairs of recorded sweeps, and no sweep of 20 points")
    quick = options.parse_args().quick
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    result = {
        "aa": equal_share(8 if quick else 40, 8),
        "knee": knee_share(),
        "ratio_low": gain(quick),
        "points_s": None if quick else points_seconds(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
