"""Compare real jobs with the answers that others published.

``python benchmarks/jobs.py [--quick]`` with ``TPUNB_DATA``: all is quick. The last line is one JSON object:

- ``slowdown``: worst relative error of the slowdown of a job against operations of typical length
- ``by_type``: worst relative error of that by operation type, stage, data-parallel rank and worker, and of the step
  time without the slowest worker or the last stage
- ``causes``: share of real and simulated jobs whose cause is right, "none" included
- ``au``: worst difference to the official accelerator utilisation of an epoch, in points
- ``load_s``: seconds to load 117,216 operations
- ``buckets``: share of the situations of ml-goodput-measurement's tests that get the expected buckets
"""

from __future__ import annotations

import argparse
import json

import real_pods
import restarted_jobs

MEASURES = (real_pods.measure, restarted_jobs.measure)


def main() -> None:
    """Print the figures of all measures."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="accepted as by other benchmarks")
    options.parse_args()
    figures = {name: value for measure in MEASURES for name, value in measure().items()}
    print(json.dumps({name: round(float(value), 7) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
