"""Measure the cost of finding the phases of the paper's longest run, compared with scikit-learn and plain Python.

``python benchmarks/phases.py [--quick]``: a synthetic training of 112,590 steps × 300 operations
(`simulate.synthetic_runs`); both sides in one run, in processor time (user and system, all threads). What takes too
long is measured on a part and extrapolated, and marked in the output; ``--quick`` does that more often. The last line
is one JSON object:

``kmeans``
    scikit-learn's time for k = 1 to 15 with ten starts each, divided by tpunb's, on the same features.
``dbscan_cpu_s``, ``dbscan_mb``
    Time and peak additional memory of tpunb's whole sweep; the lines above state those of scikit-learn's eight fits.
``ols``
    Time of six thresholds with Python sets divided by that of tpunb's 1,001; the operations of each step are given, as
    sets and as a matrix.
``ols_plus_us``
    Time of `OLSPlus` per step, in microseconds.
``all_wall_s``
    Wall time from the Steps to the curves and labels of all methods.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from simulate.synthetic_runs import synthetic_run
from sklearn import cluster as sklearn_cluster

import tpunb as tp
from tpunb.cluster.features import space
from tpunb.cluster.micro_clusters import merge
from tpunb.frames.op_matrix import op_matrix

KS = range(1, 16)
VALUES = range(5, 201, 25)  # min_samples in the paper
THRESHOLDS = (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
METHODS = (tp.KMeans(), tp.DBSCAN(), tp.HDBSCAN(), tp.OLS(), tp.OLSPlus())


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the processor seconds of a call, and its result."""
    begin = time.process_time()
    result = work()
    return time.process_time() - begin, result


def resident() -> int:
    """Return the resident memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_mb(work: Callable[[], Any]) -> float:
    """Return the peak additional memory of a call, in megabytes; Linux only."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # return freed memory, which would be reused otherwise
    before, most, done = resident(), [0], threading.Event()

    def look() -> None:
        while not done.wait(0.001):
            most[0] = max(most[0], resident())

    watching = threading.Thread(target=look)
    watching.start()
    work()
    done.set()
    watching.join()
    return max(most[0] - before, 0) / 1e6


def kmeans(steps: tp.Steps, ks: range) -> float:
    """Return scikit-learn's time for the sweep divided by tpunb's; print the difference of the errors."""
    points = space(steps).points
    ours, labels = timed(lambda: tp.KMeans()(steps))
    theirs, errors = 0.0, {}
    for k in ks:
        taken, fit = timed(lambda k=k: sklearn_cluster.KMeans(k, n_init=10, random_state=0).fit(points))
        theirs, errors[k] = theirs + taken, fit.inertia_
    whole = theirs * sum(KS) / sum(ks)
    sse = dict(labels.sweeps["k"].select("k", "sse").rows())
    worse = max(sse[k] / error - 1 for k, error in errors.items() if k <= 9)
    note = "" if ks == KS else f", extrapolated from k = {list(ks)} by k"
    print(f"k-means, k = 1..15: {ours:.2f} s; scikit-learn: {whole:.1f} s{note}; {whole / ours:.0f} times")
    print(f"  tpunb's squared error is at most {worse:.4%} larger, k <= 9")
    return whole / ours


def dbscan(steps: tp.Steps, n: int) -> tuple[float, float]:
    """Return processor seconds and megabytes of tpunb's sweep; print those of scikit-learn's."""
    points = space(steps).points
    ours, labels = timed(lambda: tp.DBSCAN()(steps))
    megabytes = peak_mb(lambda: tp.DBSCAN()(steps))
    eps = labels.sweeps["eps"].filter("chosen")["eps"].item()
    part = points[np.linspace(0, len(points) - 1, n).astype(int)]
    fits = [sklearn_cluster.DBSCAN(eps=eps, min_samples=value) for value in VALUES]
    taken, _ = timed(lambda: [fit.fit(part) for fit in fits])
    held = peak_mb(lambda: fits[0].fit(part))
    grows = (len(points) / n) ** 2
    print(f"DBSCAN, every min_samples: {ours:.2f} s, {megabytes:.0f} MB additional memory")
    print(
        f"  scikit-learn, {len(fits)} values at {n} steps: {taken:.1f} s, {held:.0f} MB; "
        f"at {len(points)}, extrapolated by the square: {taken * grows:.0f} s, {held * grows / 1e3:.0f} GB"
    )
    return ours, megabytes


def ols(steps: tp.Steps, n: int) -> float:
    """Return the time of six thresholds with Python sets divided by tpunb's for 1,001."""
    ran = op_matrix(steps)
    names = np.array([f"{side} {op}" for side, op in ran.ops.rows()])
    sets = [frozenset(names[ran.indices[ran.indptr[i] : ran.indptr[i + 1]]]) for i in range(n)]

    def plain() -> list[int]:
        found = []
        for threshold in THRESHOLDS:
            breaks = 0
            for before, now in pairwise(sets):
                smaller = min(len(before), len(now))
                breaks += (len(before & now) / smaller if smaller else 1.0) < threshold
            found.append(breaks + 1)
        return found

    theirs, found = timed(plain)
    ours, labels = timed(lambda: tp.OLS()(steps))
    whole = theirs * len(steps) / n
    note = "" if n == len(steps) else f", extrapolated from {n} steps"
    sweep = {round(threshold, 3): phases for threshold, phases, _ in labels.sweeps["threshold"].rows()}
    if n == len(steps) and found != [sweep[threshold] for threshold in THRESHOLDS]:
        raise AssertionError(f"sets find {found}, the matrix {sweep}")
    print(f"OLS, {len(sweep)} thresholds: {ours:.3f} s; six with sets: {whole:.1f} s{note}; {whole / ours:.0f} times")
    return whole / ours


def everything(steps: tp.Steps) -> float:
    """Return the wall time from the Steps to the labels and curves of all methods."""
    fresh = replace(steps)  # without cached results
    begin = time.perf_counter()
    for method in METHODS:
        method(fresh)
    taken = time.perf_counter() - begin
    print(f"From the Steps to the labels and curves of {len(METHODS)} methods: {taken:.1f} s on the wall")
    return taken


def growth(sizes: tuple[int, ...], ops: int) -> None:
    """Print the time of each method by the length of the run."""
    print(f"Growth, {ops} operations, processor seconds:")
    for n in sizes:
        steps = synthetic_run(n, ops).steps
        taken = {"features": timed(lambda steps=steps: merge(space(steps).points))[0]}
        for method in METHODS:
            taken[type(method).__name__] = timed(lambda method=method, steps=steps: method(steps))[0]
        print(f"  {n:>9,} steps: " + "  ".join(f"{name} {second:.2f}" for name, second in taken.items()), flush=True)


def main() -> None:
    """Print the measurements and the ratios."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="parts only, extrapolated; no growth")
    quick = options.parse_args().quick
    warm = synthetic_run(300, 60).steps
    for method in METHODS:  # imports and compiled loops
        method(warm)
    steps = synthetic_run(seed=11).steps
    figures = {"all_wall_s": everything(steps)}
    space(steps)
    figures["kmeans"] = kmeans(steps, range(5, 8) if quick else KS)
    figures["dbscan_cpu_s"], figures["dbscan_mb"] = dbscan(steps, 4000 if quick else 8000)
    figures["ols"] = ols(steps, 10_000 if quick else len(steps))
    taken, _ = timed(lambda: tp.OLSPlus()(steps))
    figures["ols_plus_us"] = taken / len(steps) * 1e6
    print(f"OLSPlus: {figures['ols_plus_us']:.2f} us a step")
    if not quick:
        del steps
        growth((10_000, 100_000, 1_000_000), 60)
    order = ("kmeans", "dbscan_cpu_s", "dbscan_mb", "ols", "ols_plus_us", "all_wall_s")
    print(json.dumps({name: round(figures[name], 2) for name in order}))


if __name__ == "__main__":
    main()
