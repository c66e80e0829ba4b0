"""Utilisation of accelerators in a storage benchmark."""

from __future__ import annotations

import polars as pl

from tpunb.analysis.run import Run, loaded, steps
from tpunb.errors import TpunbError
from tpunb.schema import SPANS, UTILISATION, check


def accelerator_utilisation(run: Run) -> pl.DataFrame:
    """Return the utilisation of accelerators in each epoch of a storage benchmark, as MLPerf Storage defines it.

    It is the computation as a share of the wall time of the epoch, both without the first step [1]_. The official
    figure of an epoch is the mean over processes; of one with checkpoints, that of its parts, weighted by their steps.
    It is null for a process that lacks steps of the epoch.
    Evaluations are left out: only process 0 records their wall time, and no other waits for it.

    Parameters
    ----------
    run
        Folder with the ``N_output.json`` of DLIO's processes and their ``per_epoch_stats.json``, its Profile, Steps or
        Phases.

    Returns
    -------
    polars.DataFrame
        ``tpunb.schema.UTILISATION``, in order of hosts and time.

    Raises
    ------
    TypeError
        When `run` is something else.
    TpunbError
        When the wall time of epochs is unknown.

    References
    ----------
    .. [1] https://github.com/argonne-lcf/dlio_benchmark
    """
    found = steps(loaded(run, "accelerator_utilisation"))
    spans = pl.DataFrame(schema=SPANS) if found.wall is None else found.wall.spans
    epochs = spans.filter(pl.col("detail").str.starts_with("epoch "), account="fit")
    if epochs.is_empty():
        raise TpunbError(
            f"{found.name or 'the run'} has no wall time of epochs", hint="load a folder of DLIO's results"
        )
    epochs = epochs.select(begin_ps="start_ps", epoch="detail", epoch_ps="dur_ps").unique().sort("begin_ps")
    frame = (found.frame if found.by_host is None else found.by_host.frame).filter(kind="train")
    rows = frame.with_columns(end_ps=pl.col("start_ps") + pl.col("dur_ps")).sort("end_ps")
    rows = rows.join_asof(epochs, left_on="end_ps", right_on="begin_ps").sort("host", "start_ps")
    dur, others = pl.col("dur_ps"), {"compute": "device", "input": "input", "barrier": "collective"}
    of_epoch = rows.drop_nulls("epoch").group_by("host", "epoch", maintain_order=True)
    sums = of_epoch.agg(
        steps=pl.len(),
        dur_ps=pl.col("epoch_ps").first(),
        first_ps=(dur - pl.col("collective_ps")).first(),
        unrecorded_ps=(pl.col("begin_ps") + pl.col("epoch_ps")).first() - pl.col("end_ps").max(),
        **{f"{name}_ps": pl.col(f"{column}_ps").slice(1).sum() for name, column in others.items()},
    )
    whole = pl.col("steps") == pl.col("steps").max().over("epoch")
    sums = sums.with_columns(utilisation=pl.when(whole).then(pl.col("compute_ps") / (dur - pl.col("first_ps"))))
    return check(sums, UTILISATION, "utilisation")
