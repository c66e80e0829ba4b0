"""Collectives: each run on each device, how long it waited for the last device, and its bandwidth."""

from __future__ import annotations

import math
import re

import numpy as np
import polars as pl

from tpunb import schema
from tpunb.frames import Profile
from tpunb.step_stats import launches, op_names
from tpunb.step_stats.ops import assign, find, instructions, map_names, place

_MOST_DEVICES = 1 << 20  # in replica groups, which are text of a file
_PART = r"-(start|done)"
_SHARED = ["allgather", "reducescatter", "alltoall"]


def collectives(profile: Profile, intervals: pl.DataFrame) -> pl.DataFrame:
    """Return the runs of collectives in steps: ``tpunb.schema.COLLECTIVES``.

    The n-th runs of an instruction in a step on the devices of one host are one instance: clocks of hosts differ.
    """
    ops, places = place(find(profile.events), intervals)
    return of_ops(profile, assign(ops, places, launches.in_steps(profile.events, intervals)), places)


def of_ops(profile: Profile, ops: pl.DataFrame, places: pl.DataFrame) -> pl.DataFrame:
    """Return what :func:`collectives` does from the operations of steps, of :func:`tpunb.step_stats.ops.assign`."""
    ops = ops.filter((map_names(ops["category"], op_names.kind) == "collective") & (pl.col("side") == "device"))
    facts = instructions(profile, ops).with_columns(
        pl.col("host").cast(schema.NAME), result=pl.col("hlo_op").cast(pl.String)
    )
    name = pl.coalesce(pl.col("hlo_op").cast(pl.String), pl.col("op").cast(pl.String))
    rows = ops.join(places.select("at", "step"), on="at").with_columns(
        name=name.str.replace(_PART, ""),
        part=name.str.extract(_PART),
        result=name.str.replace("-start", "-done"),  # whose shape is without the operands
    )
    for fact, by in (("groups", "hlo_op"), ("bytes", "result")):
        by_op = ["host", "program", by]
        rows = rows.drop(fact, strict=False).join(facts.select(*by_op, fact), on=by_op, how="left", nulls_equal=True)
    rows = _with_messages(rows, profile).sort("start_ps")
    key = ["host", "step", "program", "name"]
    begins = (pl.col("part").fill_null("") != "done").cast(pl.Int64)  # the end of a transfer is part of its start
    rows = rows.with_columns(device="plane", instance=begins.cum_sum().over([*key, "plane"]))
    runs = rows.group_by(*key, "device", "instance").agg(
        pl.col("op").first().cast(pl.String).str.replace(_PART, ""),
        pl.col("start_ps").first(),
        dur_ps=(pl.col("start_ps") + pl.col("dur_ps")).max() - pl.col("start_ps").first(),
        groups=pl.col("groups").drop_nulls().first(),
        **{fact: pl.col(fact).drop_nulls().first() for fact in ("bytes", "ranks", "collective")},
    )
    return schema.check(
        _timed(_grouped(runs, profile.hardware["host"].n_unique() > 1)), schema.COLLECTIVES, "collectives"
    )


def _with_messages(rows: pl.DataFrame, profile: Profile) -> pl.DataFrame:
    """Add bytes, groups and the number of ranks of kernels of NCCL."""
    if profile.read_details is None or rows["hlo_op"].null_count() == 0:
        return rows.with_columns(ranks=pl.lit(None, pl.Int64), collective=pl.lit(None, pl.String))
    key = ["host", "plane", "start_ps"]
    sent = profile.messages.unique(["host", "device", "start_ps"]).select(
        pl.col("host").cast(schema.NAME),
        *("start_ps", "groups", "bytes", "collective"),
        plane=pl.col("device").cast(schema.NAME),
        ranks="size",
    )
    joined = rows.join(sent, on=key, how="left", suffix="_sent")
    return joined.with_columns(pl.coalesce(fact, f"{fact}_sent") for fact in ("groups", "bytes"))


def _grouped(runs: pl.DataFrame, hosts: bool) -> pl.DataFrame:
    """Add the replica group of each run and its size; a device's id is its number, unknown with several hosts."""
    pairs = runs.select("groups", "device").unique()
    members = {text: replica_groups(text) for text in pairs["groups"].unique().drop_nulls()}
    rows = []
    for text, device in pairs.rows():
        groups = members.get(text, [])
        number = re.search(r":(\d{1,9})$", device)
        place = next((at for at, group in enumerate(groups) if number and int(number[1]) in group), -1)
        unknown = hosts and len(groups) > 1
        rows.append((text, device, device if unknown else str(place), len(groups[max(place, 0)]) if groups else None))
    columns: schema.Schema = {"groups": pl.String(), "device": schema.NAME, "group": pl.String(), "size": pl.Int64()}
    table = pl.DataFrame(rows, schema=columns, orient="row")
    return runs.join(table, on=["groups", "device"], nulls_equal=True)


def replica_groups(text: str) -> list[list[int]]:
    """Return the devices of each replica group in HLO text; none where it is damaged.

    >>> replica_groups("{{0,2},{1,3}}"), replica_groups("[2,2]<=[2,2]T(1,0)")
    ([[0, 2], [1, 3]], [[0, 2], [1, 3]])
    """
    if text.startswith("{"):
        return [[int(number) for number in re.findall(r"\d{1,18}", group)] for group in re.findall(r"{([\d,]+)}", text)]
    parts = [[int(n) for n in re.findall(r"\d{1,9}", part)] for part in re.split(r"<=|T", text)]
    groups, shape, order = (*parts, [*range(len(parts[-1]))])[:3] if len(parts) > 1 else ([0], [0], [])
    n = math.prod(shape)
    if not groups or n != math.prod(groups) or not 0 < n <= _MOST_DEVICES or sorted(order) != [*range(len(shape))]:
        return []
    return np.arange(n).reshape(shape).transpose(order).reshape(groups[0], -1).tolist()


def _timed(runs: pl.DataFrame) -> pl.DataFrame:
    """Add the wait for the last device of each instance, and from its start on the bandwidths of NCCL's tests."""
    instance = ["host", "step", "program", "name", "instance", "group"]
    several = pl.len().over(instance) > 1
    last = pl.col("start_ps").max().over(instance)
    by_start = pl.col("device").sort_by("start_ps").last().over(instance)
    runs = runs.with_columns(
        wait_ps=pl.when(several).then(last - pl.col("start_ps")),
        last=pl.when(several).then(by_start),
        size=pl.coalesce("ranks", "size", pl.when(several).then(pl.len().over(instance).cast(pl.Int64))),
    )
    n, op = pl.col("size").cast(pl.Float64), pl.col("op")
    named = pl.coalesce("collective", "op")  # a kernel may run any of them
    kinds = {name: op_names.collective(name) for name in runs.select(named.unique()).to_series()}
    kind = named.replace_strict(kinds, return_dtype=pl.String)
    total = pl.col("bytes") * pl.when(op.str.starts_with("reduce-scatter")).then(pl.col("size")).otherwise(1)
    seconds = (pl.col("dur_ps") - pl.col("wait_ps").fill_null(0)) / 1e12
    factor = pl.when(kind == "allreduce").then(2 * (n - 1) / n).when(kind.is_in(_SHARED)).then((n - 1) / n)
    runs = runs.with_columns(bytes=total, algorithm_bandwidth=pl.when(seconds > 0).then(total / seconds))
    return runs.with_columns(bus_bandwidth=pl.col("algorithm_bandwidth") * factor.otherwise(1)).sort(
        "host", "start_ps", "device"
    )
