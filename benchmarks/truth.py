"""Whether the phases that are found are those that are there.

``python benchmarks/truth.py [--quick] [--seeds 11,12,13,14,15] [--hard]``: made-up trainings of 112,590 steps × 300
operations whose phases are known (`tpunb.testing.known_run`), cut by each method. ``--quick`` takes the first seed.
The last line is one JSON object, the worst over the seeds:

- ``ari``: adjusted Rand index of ``DBSCAN()`` over the steps that are not corrupted; 1.0 is the truth itself
- ``noise_precision``, ``noise_recall``: of its noise, against the corrupted steps
- ``ari_bic``, ``ari_ols_plus``: the index of ``KMeans(choose="bic")`` and of ``OLSPlus()``
- ``error_10``, ``error_30``: how far the run's profile is from the one estimated from 10 and 30 representative steps
"""

from __future__ import annotations

import argparse
import json

import numpy as np
from sklearn.metrics import adjusted_rand_score

import tpunb as tp
from tpunb.testing import known_run

SEEDS = "11,12,13,14,15"


def measure(seed: int, *, hard: bool) -> dict[str, float]:
    """Return the figures of one training."""
    run = known_run(seed=seed, hard=hard)
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
        "error_10": phases.representatives(10).error,
        "error_30": phases.representatives(30).error,
    }


def main() -> None:
    """Print one line a seed, and the worst of each figure."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="the first seed alone")
    options.add_argument("--seeds", default=SEEDS, help="of the trainings, with commas between them")
    options.add_argument("--hard", action="store_true", help="times that vary as they do in the wild")
    asked = options.parse_args()
    seeds = [int(seed) for seed in asked.seeds.split(",")]
    found = []
    for seed in seeds[:1] if asked.quick else seeds:
        found.append(measure(seed, hard=asked.hard))
        told = "  ".join(f"{name} {value:.4f}" for name, value in found[-1].items())
        print(f"{'hard' if asked.hard else 'easy'}, seed {seed}: {told}", flush=True)
    if asked.quick:
        print(f"quick: of {len(seeds)} seeds {seeds[0]} alone; left out: {seeds[1:] or 'none'}")
    worst = {name: (max if name.startswith("error") else min)(figures[name] for figures in found) for name in found[0]}
    print(json.dumps({name: round(float(value), 4) for name, value in worst.items()}))


if __name__ == "__main__":
    main()
