"""What it takes to find the phases of the paper's longest run, beside the plain ways to do it.

``python benchmarks/phases.py [--quick]``: a made-up training of 112,590 steps × 300 operations
(`tpunb.testing.known_run`); both sides in one run, in processor time, user and system, of all threads. What would not
end is measured on a part and extrapolated, and the line says so; ``--quick`` does that more often. The last line is one
JSON object:

``kmeans``
    scikit-learn's time for k = 1 to 15, each from ten starts, by ours, on the same features.
``dbscan_cpu_s``, ``dbscan_mb``
    Our whole sweep, and the memory that it adds at most; of scikit-learn's eight fits the lines above tell.
``ols``
    Six thresholds with Python's sets by our 1,001; what ran in each step is at hand, as sets there, as a matrix here.
``ols_plus_us``
    A step of `OLSPlus`, in microseconds.
``all_wall_s``
    From the Steps to the curves and labels of all methods, by the clock on the wall.
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
from sklearn import cluster as sklearn_cluster

import tpunb as tp
from tpunb.cluster.cells import cells
from tpunb.cluster.features import space
from tpunb.frames.op_matrix import op_matrix
from tpunb.testing import known_run

KS = range(1, 16)
VALUES = range(5, 201, 25)  # of min_samples: the paper's
THRESHOLDS = (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
METHODS = (tp.KMeans(), tp.DBSCAN(), tp.HDBSCAN(), tp.OLS(), tp.OLSPlus())


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the processor seconds of some work, and its result."""
    begin = time.process_time()
    result = work()
    return time.process_time() - begin, result


def resident() -> int:
    """Return the bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_mb(work: Callable[[], Any]) -> float:
    """Return by how many megabytes the process grows at most while some work is done; Linux alone tells."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # what was freed is not given back else, and would be used again
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
    """Return scikit-learn's time for the sweep by ours; print how much the errors differ."""
    points = space(steps).points
    ours, labels = timed(lambda: tp.KMeans()(steps))
    theirs, errors = 0.0, {}
    for k in ks:
        taken, fit = timed(lambda k=k: sklearn_cluster.KMeans(k, n_init=10, random_state=0).fit(points))
        theirs, errors[k] = theirs + taken, fit.inertia_
    whole = theirs * sum(KS) / sum(ks)
    sse = dict(labels.sweeps["k"].select("k", "sse").rows())
    worse = max(sse[k] / error - 1 for k, error in errors.items() if k <= 9)
    said = "" if ks == KS else f", extrapolated from k = {list(ks)} by k"
    print(f"k-means, k = 1..15: {ours:.2f} s; scikit-learn: {whole:.1f} s{said}; {whole / ours:.0f} times")
    print(f"  our squared error is above theirs by {worse:.4%} at most, k <= 9")
    return whole / ours


def dbscan(steps: tp.Steps, n: int) -> tuple[float, float]:
    """Return the processor seconds and the megabytes of our sweep; print what scikit-learn's would take."""
    points = space(steps).points
    ours, labels = timed(lambda: tp.DBSCAN()(steps))
    megabytes = peak_mb(lambda: tp.DBSCAN()(steps))
    eps = labels.sweeps["eps"].filter("chosen")["eps"].item()
    part = points[np.linspace(0, len(points) - 1, n).astype(int)]
    fits = [sklearn_cluster.DBSCAN(eps=eps, min_samples=value) for value in VALUES]
    taken, _ = timed(lambda: [fit.fit(part) for fit in fits])
    held = peak_mb(lambda: fits[0].fit(part))
    grows = (len(points) / n) ** 2
    print(f"DBSCAN, every min_samples: {ours:.2f} s, {megabytes:.0f} MB over what was there")
    print(
        f"  scikit-learn, {len(fits)} values at {n} steps: {taken:.1f} s, {held:.0f} MB; "
        f"at {len(points)}, extrapolated by the square: {taken * grows:.0f} s, {held * grows / 1e3:.0f} GB"
    )
    return ours, megabytes


def ols(steps: tp.Steps, n: int) -> float:
    """Return the time of six thresholds with Python's sets by that of ours with 1,001."""
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
    said = "" if n == len(steps) else f", extrapolated from {n} steps"
    sweep = {round(threshold, 3): phases for threshold, phases, _ in labels.sweeps["threshold"].rows()}
    if n == len(steps) and found != [sweep[threshold] for threshold in THRESHOLDS]:
        raise AssertionError(f"sets find {found}, the matrix {sweep}")
    print(f"OLS, {len(sweep)} thresholds: {ours:.3f} s; six with sets: {whole:.1f} s{said}; {whole / ours:.0f} times")
    return whole / ours


def everything(steps: tp.Steps) -> float:
    """Return the seconds on the wall from the Steps to the labels and curves of all methods."""
    fresh = replace(steps)  # nothing is remembered of it
    begin = time.perf_counter()
    for method in METHODS:
        method(fresh)
    taken = time.perf_counter() - begin
    print(f"From the Steps to the labels and curves of {len(METHODS)} methods: {taken:.1f} s on the wall")
    return taken


def growth(sizes: tuple[int, ...], ops: int) -> None:
    """Print how the time of each method grows with the length of the run."""
    print(f"Growth, {ops} operations, processor seconds:")
    for n in sizes:
        steps = known_run(n, ops).steps
        taken = {"features": timed(lambda steps=steps: cells(space(steps).points))[0]}
        for method in METHODS:
            taken[type(method).__name__] = timed(lambda method=method, steps=steps: method(steps))[0]
        print(f"  {n:>9,} steps: " + "  ".join(f"{name} {second:.2f}" for name, second in taken.items()), flush=True)


def main() -> None:
    """Print what was measured, and the ratios."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="parts only, extrapolated; no growth")
    quick = options.parse_args().quick
    warm = known_run(300, 60).steps
    for method in METHODS:  # imports and compiled loops
        method(warm)
    steps = known_run(seed=11).steps
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
