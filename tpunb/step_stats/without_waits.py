"""Steps of a job as they would be if no host waited for a slow one: what its phases go by.

The time of a collective is that of the device for which the others waited; to their sum comes the median over hosts of
what the devices of one wait for each other. Without records of single collectives it is the device that is in them the
least. Step time is that, the median over hosts of the time outside collectives, and the longest
callbacks; the input wait is the median. An operation takes the least time of a host, and counts if half of the hosts
ran it, or if it saves a checkpoint. Of equal hosts all this is what each of them measured.
"""

from __future__ import annotations

import polars as pl

from tpunb import schema
from tpunb.frames.phase_names import SAVING
from tpunb.step_stats import op_names
from tpunb.step_stats.aggregate import middle
from tpunb.step_stats.ops import map_names

_KEY = ["role", "step"]
_TIMES = ["total_ps", "self_ps"]


def with_least(frame: pl.DataFrame, devices: pl.DataFrame, collectives: pl.DataFrame) -> pl.DataFrame:
    """Add ``least_ps``, the least time that a device of a host is in collectives."""
    key = ["host", "step"]
    least = devices.group_by(key).agg(least_ps=pl.col("collective_ps").min())
    if len(collectives):
        least = collectives.group_by(pl.col("host").cast(pl.String), "step").agg(least_ps=pl.col("dur_ps").sum())
    return frame.join(least, on=key, how="left", maintain_order="left")


def without_waits(
    rows: pl.DataFrame, frame: pl.DataFrame, ops: pl.DataFrame, collectives: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return ``tpunb.schema.STEPS`` and ``tpunb.schema.OPS`` of a job without waits for slow hosts.

    Parameters
    ----------
    rows
        Steps of hosts, with ``role`` and what :func:`with_least` adds.
    frame
        ``tpunb.schema.STEPS`` of the roles.
    ops
        Means over hosts, as ``tpunb.schema.OPS``, with the least values of a host (``least_count``, ...), the number
        of `hosts` that ran the operation, and `of` how many.
    collectives
        ``tpunb.schema.HOST_COLLECTIVES`` with ``role``.
    """
    rows = rows.with_columns(known=pl.col("collective_ps").is_not_null().all().over(_KEY))
    known = pl.col("known")
    shared = {"collective_ps": pl.col("collective_ps"), "least_ps": pl.coalesce("least_ps", "collective_ps")}
    rows = rows.with_columns(
        pl.col("callbacks_ps").fill_null(0),
        **{name: pl.when(known).then(time).otherwise(0) for name, time in shared.items()},
    )
    outside = pl.col("dur_ps") - pl.col("collective_ps") - pl.col("callbacks_ps")
    rows = rows.with_columns(dur_ps=outside, within_ps=pl.col("collective_ps") - pl.col("least_ps"))
    runs = collectives.group_by(*_KEY, "name", "instance").agg(pl.col("dur_ps").min())  # ids of programs may differ
    rows = rows.join(runs.group_by(_KEY).agg(transfer_ps=pl.col("dur_ps").sum()), on=_KEY, how="left")
    transfer = pl.coalesce(pl.when(known).then("transfer_ps"), "least_ps").min() + middle("within_ps")
    times = rows.group_by(_KEY).agg(
        dur_ps=middle("dur_ps") + transfer + pl.col("callbacks_ps").max(),
        input_ps=middle("input_ps"),
        part=transfer / pl.col("collective_ps").mean(),
    )
    times = times.rename({"role": "host"})
    steps = frame.drop("dur_ps", "input_ps").join(times, on=["host", "step"], how="left", maintain_order="left")
    collective = pl.Series(map_names(ops["category"], op_names.kind) == "collective").fill_null(value=False)
    collective &= ops["side"] == "device"
    most = (2 * pl.col("hosts") >= pl.col("of")) | pl.col("op").cast(pl.String).str.contains(SAVING)
    parts = ops.with_columns(collective=collective).filter(most).join(times, on=["host", "step"], maintain_order="left")
    part = pl.when(pl.col("part").is_finite()).then("part").otherwise(1.0)
    of_collectives = [(pl.col(name) * part).round().cast(pl.Int64) for name in _TIMES]
    least = [
        pl.when("collective").then(time).otherwise(f"least_{name}").alias(name)
        for name, time in zip(_TIMES, of_collectives, strict=True)
    ]
    return schema.check(steps, schema.STEPS, "steps"), schema.check(
        parts.with_columns(pl.col("least_count").alias("count"), *least), schema.OPS, "ops"
    )
