"""Convert published MLPerf Training logs: ``python datasets/mlperf/convert.py FOLDER``; requires the extra ``mlperf``.

FOLDER holds results of https://github.com/mlcommons/training_results_v0.6 and later rounds (Apache-2.0), with their
system descriptions, which this script reads as they are. It replaces the Parquet file in ``tpunb/studies/scaling``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tpunb.studies.scaling import analysis
from tpunb.studies.scaling.mlperf_runs import RUNS

ORIGIN = {
    "origin": "https://github.com/mlcommons/training_results_v0.6, v0.7, v3.1, v4.0",
    "licence": "Apache-2.0",
    "changes": "a row per run, from its log and the description of its system",
}


def main(folder: Path) -> None:
    """Write the table."""
    runs = analysis.mlperf(folder).runs.sort("ruleset", "benchmark", "chips", "run")
    runs.write_parquet(RUNS, compression="zstd", compression_level=19, metadata=ORIGIN)
    print(f"{RUNS.name}: {len(runs)} runs, {RUNS.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
