"""How much faster runs end when their input pipelines are tuned as they run (Figure 14)."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from tpunb.workloads.recordings import NAIVE, TUNED, Recording

_SCHEMA = {
    "run": pl.String(),
    "value": pl.Float64(),
    "how": pl.String(),
    "naive_s": pl.Float64(),
    "tuned_s": pl.Float64(),
    "tuning_s": pl.Float64(),
}


def speedups(runs: Iterable[Recording]) -> pl.DataFrame:
    """Return how much faster whole trainings were with their naive pipelines tuned, tuning included.

    Parameters
    ----------
    runs
        Among them the "naive" and the "tuned" one of each workload that is to be told of.

    Returns
    -------
    DataFrame
        One row a workload with both: ``run``; ``value``, the time of the naive run by that of the tuned; ``how``,
        "measured"; ``naive_s`` and ``tuned_s``, seconds of the whole training; ``tuning_s``, those of the tuning in it.
    """
    forms: dict[str, dict[str | None, Recording]] = {}
    for run in runs:
        forms.setdefault(run.workload.name, {})[run.form] = run
    rows = []
    for name, found in forms.items():
        if NAIVE in found and TUNED in found:
            naive, tuned = (float(found[form].about["seconds"]) for form in (NAIVE, TUNED))
            rows.append((name, naive / tuned, "measured", naive, tuned, found[TUNED].about.get("tuning_seconds")))
    return pl.DataFrame(rows, schema=_SCHEMA, orient="row")
