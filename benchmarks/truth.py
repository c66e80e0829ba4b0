"""Compare the phases of synthetic runs with their ground truth.

``python benchmarks/truth.py [--quick] [--seeds 11,12,13,14,15] [--hard]``: synthetic trainings of 112,590 steps × 300
operations (`simulate.synthetic_runs`), clustered by each method. ``--quick`` takes only the first seed. The last
line is one JSON object, the worst over the seeds:

- ``ari``: adjusted Rand index of ``DBSCAN()`` over the steps that are not corrupted; 1.0 equals the ground truth
- ``noise_precision``, ``noise_recall``: its noise compared with the corrupted steps
- ``ari_bic``, ``ari_ols_plus``: the index of ``KMeans(choose="bic")`` and of ``OLSPlus()``
- ``error_10``, ``error_30``: error of the profile estimated from 10 and 30 representative steps
"""

from __future__ import annotations

import argparse
import json

import numpy as np
from simulate.synthetic_runs import synthetic_run
from sklearn.metrics import adjusted_rand_score

import tpunb as tp

SEEDS = "11,12,13,14,15"


def measure(seed: int, *, hard: bool) -> dict[str, float]:
    """Return the metrics of one run."""
    run = synthetic_run(seed=seed, hard=hard)
    corrupted = run.phase < 0

    def ari(labels):
        return adjusted_rand_score(run.phase[~corrupted], np.asarray(labels)[~corrupted])

    phases = tp.phases(run.steps)
    noise = (phases.labels == -1).to_numpy()
    right = (noise & corrupted).sum()
    return {
        "ari": ari(phases.labels),
        "noise_precision": right / max(noise.sum(), 1),
        "noise_recall": right / max(corrupted.sum(), 1),
        "ari_bic": ari(tp.KMeans(choose="bic")(run.steps)),
        "ari_ols_plus": ari(tp.OLSPlus()(run.steps)),
        "error_10": tp.analysis.representatives(phases, 10).error,
        "error_30": tp.analysis.representatives(phases, 30).error,
    }


def main() -> None:
    """Print one line per seed, and the worst of each metric."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="only the first seed")
    options.add_argument("--seeds", default=SEEDS, help="seeds of the runs, separated by commas")
    options.add_argument("--hard", action="store_true", help="times that vary as in real runs")
    given = options.parse_args()
    seeds = [int(seed) for seed in given.seeds.split(",")]
    found = []
    for seed in seeds[:1] if given.quick else seeds:
        found.append(measure(seed, hard=given.hard))
        line = "  ".join(f"{name} {value:.4f}" for name, value in found[-1].items())
        print(f"{'hard' if given.hard else 'easy'}, seed {seed}: {line}", flush=True)
    if given.quick:
        print(f"quick: of {len(seeds)} seeds {seeds[0]} alone; left out: {seeds[1:] or 'none'}")
    worst = {name: (max if name.startswith("error") else min)(figures[name] for figures in found) for name in found[0]}
    print(json.dumps({name: round(float(value), 4) for name, value in worst.items()}))


if __name__ == "__main__":
    main()
