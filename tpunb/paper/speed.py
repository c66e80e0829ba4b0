"""How much faster steps are when naive input pipelines are tuned (Figure 14)."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from tpunb.workloads.recordings import NAIVE, TUNED, Recording

_SCHEMA = {
    "run": pl.String(),
    "value": pl.Float64(),
    "low": pl.Float64(),
    "high": pl.Float64(),
    "how": pl.String(),
    "naive_s": pl.Float64(),
    "tuned_s": pl.Float64(),
    "tuning_s": pl.Float64(),
}


def speedups(runs: Iterable[Recording]) -> pl.DataFrame:
    """Return how much faster steps were with their naive pipelines tuned, and how long the whole runs took.

    Parameters
    ----------
    runs
        Among them the "naive" and the "tuned" one of each workload that is to be told of.

    Returns
    -------
    DataFrame
        One row a workload with both: ``run``; ``value``, ``low`` and ``high``, the step time of the naive form by that
        of the tuned in interleaved pairs of trials, and its interval: 1 and none where the values stayed; ``how``,
        "measured"; ``naive_s`` and ``tuned_s``, seconds of each whole training, one run each; ``tuning_s``, those of
        the tuning.
    """
    forms: dict[str, dict[str | None, Recording]] = {}
    for run in runs:
        forms.setdefault(run.workload.name, {})[run.form] = run
    rows = []
    for name, found in forms.items():
        if NAIVE in found and TUNED in found:
            naive, tuned = found[NAIVE].about, found[TUNED].about
            faster = tuned["speedup"] if tuned["values"] else (1.0, None, None)
            rows.append((name, *faster, "measured", naive["seconds"], tuned["seconds"], tuned["tuning_seconds"]))
    return pl.DataFrame(rows, schema=_SCHEMA, orient="row")
