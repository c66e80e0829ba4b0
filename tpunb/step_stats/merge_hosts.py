"""Hosts of a job beside each other: tables whose size is bounded, from the steps of all hosts."""

from __future__ import annotations

import polars as pl

from tpunb import schema
from tpunb.frames import Steps
from tpunb.frames.host_tables import HostTables
from tpunb.step_stats.collectives import replica_groups

_INSTANCE = ["host", "step", "program", "name", "instance"]


def host_tables(steps: Steps) -> HostTables:
    """Return the tables of the hosts of a job from steps of all hosts; no collectives if no raw events were kept."""
    rows = steps.ops.with_columns(pl.col("host").cast(schema.NAME))
    ops = rows.group_by("host", "op", "side").agg(pl.col("count", "total_ps", "self_ps").sum())
    runs = schema.empty(schema.COLLECTIVES) if steps.read_collectives is None else steps.collectives
    return HostTables(steps.frame, ops.sort(pl.col("host", "op").cast(pl.String), "side"), last_arrivals(runs))


def last_arrivals(collectives: pl.DataFrame) -> pl.DataFrame:
    """Return ``tpunb.schema.HOST_COLLECTIVES``: of each host and instance, the device that arrived last.

    Devices of one group end together, so that the last to arrive has the shortest run. Where replica groups separate
    the devices of a host, it is the last to start, and the run lasts to the end of the last device.

    Parameters
    ----------
    collectives
        Runs on devices: ``tpunb.schema.COLLECTIVES``.
    """
    several = [text for text in collectives["groups"].drop_nulls().unique() if len(replica_groups(text)) > 1]
    start, dur = pl.col("start_ps"), pl.col("dur_ps")
    names = pl.col("host", "device", "groups").cast(schema.NAME)
    whole = collectives.with_columns(names, split=pl.col("groups").is_in(several).fill_null(value=False))
    arrivals = whole.sort(pl.when("split").then(-start).otherwise(dur), "device")
    facts = arrivals.group_by(_INSTANCE, maintain_order=True).agg(
        pl.col("device", "start_ps", "dur_ps", "groups", "split").first(), until=(start + dur).max()
    )
    facts = facts.with_columns(dur_ps=pl.when("split").then(pl.col("until") - start).otherwise(dur))
    return schema.check(facts.sort("host", "start_ps", "name"), schema.HOST_COLLECTIVES, "host_collectives")
