"""Google's published results on TPU pods in MLPerf Training v0.6, v0.7, v3.1 and v4.0.

The logs are from https://github.com/mlcommons/training_results_v0.6 (commit f312518), training_results_v0.7,
training_results_v3.1 (d06288b) and training_results_v4.0 (6fe9543), under the Apache License 2.0, converted by
``datasets/mlperf/convert.py``. MLCommons has not verified the figures that are derived from them.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from tpunb.studies.scaling.scaling import Scaling

__all__ = ["published"]

RUNS = Path(__file__).parent / "runs.parquet"


def published() -> Scaling:
    """Return the published runs; select some with `Scaling.filter`. Chips of v0.7 are unknown.

    >>> print(published().filter(benchmark="resnet", ruleset="0.6.0"))
    resnet tpu-v3-N 0.6.0: 16 to 1,024 chips, 32.9 times as fast to quality, 65 % of the throughput per chip
    """
    return Scaling(pl.read_parquet(RUNS))
