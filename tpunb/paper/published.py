"""The numbers that the paper prints, each with its place: what runs at hand are held against."""

from __future__ import annotations

import polars as pl

PAPER = "Wudenhe and Tseng, TPUPoint, ISPASS 2021"
SCHEMA = {
    "measure": pl.String(),
    "run": pl.String(),  # of a workload; null of a mean over all
    "form": pl.String(),  # what it is of, in words
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
    ("speed-up, at least", None, "paper: mean on TPU v3", "TPU v3", 0.90, "VII.C"),
)


def published(measure: str | None = None) -> pl.DataFrame:
    """Return what the paper prints: one row a number, with whose it is and where it stands.

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
    rows = pl.DataFrame(_ROWS, schema=SCHEMA, orient="row").with_columns(how=pl.lit("published"))
    if measure is None:
        return rows
    found = rows.filter(pl.col("measure") == measure)
    if found.is_empty():
        known = ", ".join(rows["measure"].unique(maintain_order=True))
        raise ValueError(f"the paper prints no {measure!r}; it does {known}")
    return found
