"""The most time-consuming operators of the longest phase, by workload and method: Tables II and III."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from tpunb.errors import whole
from tpunb.frames import Phases


def operators(runs: Mapping[str, Mapping[str, Phases]], n: int = 5) -> pl.DataFrame:
    """Return which operators take most time in the longest phase of each run, and by which methods.

    Parameters
    ----------
    runs
        Of each run its phases by each method: ``{"bert-mrpc": {"k-means": ..., "OLS": ...}}``.
    n
        Operators of each side.

    Returns
    -------
    DataFrame
        One row an operator: ``side``, "host" or "device"; ``op``; one column a run with the methods in whose longest
        phase it is among the first `n`, comma-separated, null where in none; ``total``, in how many of all it is. Most
        frequent first, host before device.

    Raises
    ------
    ValueError
        When `n` is no whole number of at least 1.

    >>> import tpunb as tp
    >>> steps = tp.steps(tp.sample("keras_cnn"))
    >>> found = operators({"cnn": {"OLS": tp.phases(steps, tp.OLS()), "DBSCAN": tp.phases(steps)}}, n=1)
    >>> found.columns, found["total"].to_list()
    (['side', 'op', 'cnn', 'total'], [2])
    """
    whole("operators", "n", n, 1)
    rows: dict[tuple[str, str], dict[str, list[str]]] = {}
    for run, methods in runs.items():
        for method, phases in methods.items():
            longest = phases.top(n).filter(pl.col("phase") == phases.longest.id)
            for side, op in longest.select(pl.col("side", "op").cast(pl.String)).iter_rows():
                rows.setdefault((side, op), {}).setdefault(run, []).append(method)
    schema = {"side": pl.String, "op": pl.String, **dict.fromkeys(runs, pl.String), "total": pl.Int64}
    told = [
        (side, op, *(", ".join(found[run]) if run in found else None for run in runs), sum(map(len, found.values())))
        for (side, op), found in rows.items()
    ]
    frame = pl.DataFrame(told, schema=schema, orient="row")
    return frame.sort(pl.col("side") != "host", pl.col("total"), "op", descending=[False, True, False])
