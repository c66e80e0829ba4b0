"""Tables of the paper: its printed numbers, and the most time-consuming operators (Tables II and III)."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from tpunb.errors import check_whole
from tpunb.frames import Phases

_SCHEMA = {
    "measure": pl.String(),
    "run": pl.String(),  # name of a workload; null: the mean over all
    "form": pl.String(),  # description
    "device": pl.String(),
    "value": pl.Float64(),
    "where": pl.String(),
}
_ROWS = (
    ("idle", None, "paper: mean on TPU v2", "TPU v2", 0.3890, "VI.B, Figure 10"),
    ("idle", None, "paper: mean on TPU v3", "TPU v3", 0.4353, "VI.B, Figure 10"),
    ("mxu", None, "paper: mean on TPU v2", "TPU v2", 0.2272, "VI.B, Figure 11"),
    ("mxu", None, "paper: mean on TPU v3", "TPU v3", 0.1134, "VI.B, Figure 11"),
    ("mxu", "qanet-squad", "paper: TPU v2", "TPU v2", 0.16, "VI.B"),
    ("mxu", "qanet-squad", "paper: TPU v3", "TPU v3", 0.13, "VI.B"),
    ("mxu", "retinanet-coco", "paper: TPU v2", "TPU v2", 0.46, "VI.B"),
    ("coverage", None, "paper: the three longest phases, at least", None, 0.95, "VI.A, Figure 7"),
    ("phases at 70 %", None, "paper: most workloads", None, 3, "VI.A, Figure 6"),
    ("phases at 100 %", None, "paper: fewer than, but RetinaNet and ResNet", None, 15, "VI.A, Figure 6"),
    ("k, from", None, "paper: the elbow", None, 4, "VI.A, Figure 4"),
    ("k, to", None, "paper: the elbow", None, 6, "VI.A, Figure 4"),
    ("min_samples, from", None, "paper: the elbow", None, 30, "VI.A, Figure 5"),
    ("min_samples, to", None, "paper: the elbow", None, 80, "VI.A, Figure 5"),
    ("clusters, from", None, "paper: DBSCAN", None, 3, "VI.A, Figure 5"),
    ("clusters, to", None, "paper: DBSCAN", None, 13, "VI.A, Figure 5"),
    ("speed-up", None, "paper: mean on TPU v2", "TPU v2", 1.12, "VII.C, Figure 14"),
    ("speed-up, at least", None, "paper: at least, on TPU v3", "TPU v3", 0.90, "VII.C"),
)


def published(measure: str | None = None) -> pl.DataFrame:
    """Return the numbers that the paper (Wudenhe and Tseng, ISPASS 2021) prints, one row each, with their place.

    Parameters
    ----------
    measure
        "idle", "mxu", "coverage" and so on; all, if None.

    Raises
    ------
    ValueError
        When the paper prints nothing by that name.

    >>> published("idle")["value"].to_list()
    [0.389, 0.4353]
    """
    every = pl.DataFrame(_ROWS, schema=_SCHEMA, orient="row").with_columns(how=pl.lit("published"))
    rows = every if measure is None else every.filter(pl.col("measure") == measure)
    if rows.is_empty():
        names = ", ".join(every["measure"].unique(maintain_order=True))
        raise ValueError(f"the paper prints no {measure!r}; it prints {names}")
    return rows


def operators(runs: Mapping[str, Mapping[str, Phases]], n: int = 5) -> pl.DataFrame:
    """Return the operators that take most time in the longest phase of each run, by method (Tables II and III).

    Parameters
    ----------
    runs
        Phases of each run by each method: ``{"bert-mrpc": {"k-means": ..., "OLS": ...}}``.
    n
        Number of operators on each side.

    Returns
    -------
    DataFrame
        One row per operator: ``side``, "host" or "device"; ``op``; one column per run with the methods in whose longest
        phase it is among the first `n`, comma-separated, null if in none; ``total``, the number of such methods over
        all runs. Most frequent first, host before device.

    Raises
    ------
    ValueError
        When `n` is no whole number of at least 1.

    >>> import tpunb as tp
    >>> steps = tp.steps(tp.sample("keras_cnn"))
    >>> table = operators({"cnn": {"OLS": tp.phases(steps, tp.OLS()), "DBSCAN": tp.phases(steps)}}, n=1)
    >>> table.columns, table["total"].to_list()
    (['side', 'op', 'cnn', 'total'], [2])
    """
    check_whole("operators", "n", n, 1)
    methods: dict[tuple[str, str], dict[str, list[str]]] = {}
    for run, by_method in runs.items():
        for method, phases in by_method.items():
            longest = phases.top(n, sources=False).filter(pl.col("phase") == phases.longest.id)
            for side, op in longest.select(pl.col("side", "op").cast(pl.String)).iter_rows():
                methods.setdefault((side, op), {}).setdefault(run, []).append(method)
    schema = {"side": pl.String, "op": pl.String, **dict.fromkeys(runs, pl.String), "total": pl.Int64}
    rows = [
        (side, op, *(", ".join(by_run[run]) if run in by_run else None for run in runs), sum(map(len, by_run.values())))
        for (side, op), by_run in methods.items()
    ]
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return frame.sort(pl.col("side") != "host", pl.col("total"), "op", descending=[False, True, False])
