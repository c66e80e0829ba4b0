"""Tables of the hosts of a job that can be merged: parts of a job, each of some hosts, are reduced apart.

A part has rows per (host, step), (host, op) and (host, step, collective), but sums over hosts per (step, op): its size
is bounded. Merged in order, parts become the steps of the job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce as fold

import polars as pl

from tpunb import schema
from tpunb.frames import Steps
from tpunb.frames.steps import HostTables
from tpunb.step_stats import roles
from tpunb.step_stats.aggregate import over_hosts, total
from tpunb.step_stats.roles import Member, with_least, without_waits

_MOST_ROLES = 64  # whose operations are kept by step: more are hosts that do not match
_FIXED = 2.0**40  # shares are added up in whole numbers, whose sum does not depend on their order
_OP = ["role", "step", "traced", "op", "side"]
_DEVICE = ["role", "device", "step"]
_TIMES = ["count", "total_ps", "self_ps"]
_FACTS = schema.DEVICE_FACTS
_SHARES = [name for name in _FACTS if schema.FRAMES["DEVICES"].columns[name].windows == "mean"]


@dataclass(frozen=True, eq=False)
class JobTables:
    """Statistics of some hosts of a job, which can be merged with those of others."""

    frame: pl.DataFrame  # `tpunb.schema.STEPS`, numbered by the job, with `print` and `least_ps`
    ops: pl.DataFrame  # by role: sums over hosts, the least of a host (`least_count`, ...), how many `hosts` ran it
    devices: pl.DataFrame  # by role: sums over hosts, and of how many values ("idle_ps n")
    host_ops: pl.DataFrame  # `tpunb.schema.HOST_OPS`
    collectives: pl.DataFrame  # `tpunb.schema.HOST_COLLECTIVES`
    stages: pl.DataFrame  # `tpunb.schema.INPUT_STAGES`
    roles: Mapping[str, str]  # of each host: the name of its first host
    first: Mapping[str, Member]  # host of each role
    unmatched: tuple[str, ...] = ()  # hosts that run the program of others in other steps
    origin_ns: int | None = None  # time 0 since the epoch


def tables(steps: Steps, collectives: pl.DataFrame, origin_ns: int | None = None) -> JobTables:
    """Return the statistics of the hosts of `steps`, whose time 0 is `origin_ns` since the epoch."""
    prints = roles.fingerprints(steps.ops, steps.devices)
    frame = with_least(steps.frame, steps.devices, collectives).join(
        prints, on=["host", "step"], how="left", maintain_order="left"
    )
    host_ops = steps.ops.group_by("host", "op", "side").agg(map(total, _TIMES)).select(*schema.HOST_OPS)
    first: dict[str, Member] = {}
    of_host, shifts, unmatched = dict[str, str](), dict[str, int](), list[str]()
    for host in roles.members(frame, host_ops, collectives):
        role, shifts[host.host], matched = roles.place(first, host)
        first.setdefault(role, host)
        of_host[host.host] = role
        unmatched += [] if matched else [host.host]
    ops = steps.ops.with_columns(pl.col(_TIMES).clip(0))  # negative values count as 0, as in phases
    ops = ops.with_columns(pl.col(_TIMES).name.prefix("least_"), hosts=pl.lit(1, pl.Int64))
    frame, ops, devices, collectives = (
        _shifted(rows, shifts, "host") for rows in (frame, ops, steps.devices, collectives)
    )
    traced = frame.select("host", "step", "traced")
    named = pl.col("host").replace(of_host).alias("role")
    return JobTables(
        frame=frame,
        ops=_ops(ops.join(traced, on=["host", "step"], maintain_order="left").with_columns(named)),
        devices=_devices(_summable(devices.with_columns(named))),
        host_ops=host_ops,
        collectives=collectives,
        stages=steps.input_stages,
        roles=of_host,
        first=first,
        unmatched=tuple(unmatched),
        origin_ns=origin_ns,
    )


def _shifted(rows: pl.DataFrame, shifts: Mapping[str, int], key: str) -> pl.DataFrame:
    """Return rows with the step numbers of the job."""
    moved = {name: by for name, by in shifts.items() if by}
    if not moved:
        return rows
    by = pl.col(key).cast(pl.String).replace_strict(moved, default=0, return_dtype=pl.Int64)
    return rows.with_columns(pl.col("step") + by)


def _ops(rows: pl.DataFrame) -> pl.DataFrame:
    category = pl.col("category").drop_nulls().first()
    sums = category, *map(total, _TIMES), pl.col("hosts").sum()
    return rows.group_by(_OP, maintain_order=True).agg(*sums, pl.col("^least_.*$").min())


def _summable(devices: pl.DataFrame) -> pl.DataFrame:
    """Return figures of devices, shares as whole numbers, with how many there are of each."""
    shares = ((pl.col(name) * _FIXED).round().cast(pl.Int64) for name in _SHARES)
    counts = (pl.col(name).is_not_null().cast(pl.Int64).alias(f"{name} n") for name in _FACTS)
    return devices.with_columns(*shares, *counts)


def _devices(rows: pl.DataFrame) -> pl.DataFrame:
    edges, counts = [pl.col("start_ps").min(), pl.col("dur_ps").max()], [f"{name} n" for name in _FACTS]
    return rows.group_by(_DEVICE, maintain_order=True).agg(*edges, *map(total, _FACTS), pl.col(counts).sum())


def merge(parts: Sequence[JobTables]) -> JobTables:
    """Return the statistics of all hosts; parts are merged in order, and may be merged ones."""
    return fold(_merged, parts)


def _merged(one: JobTables, two: JobTables) -> JobTables:
    two = moved(two, later(one.origin_ns, two.origin_ns))
    first, names, shifts, unmatched = dict(one.first), dict[str, str](), dict[str, int](), list[str]()
    for role, host in two.first.items():
        names[role], shifts[role], matched = roles.place(one.first, host)
        first.setdefault(names[role], host)
        unmatched += [] if matched else [role]
    by_host = {host: shifts[role] for host, role in two.roles.items()}
    kept = [*first][:_MOST_ROLES]
    renamed = pl.col("role").replace(names)
    ops, devices = (
        pl.concat([before, _shifted(rows, shifts, "role").with_columns(renamed)])
        for before, rows in ((one.ops, two.ops), (one.devices, two.devices))
    )
    return JobTables(
        frame=pl.concat([one.frame, _shifted(two.frame, by_host, "host")]),
        ops=_ops(ops.filter(pl.col("role").is_in(kept))),
        devices=_devices(devices),
        host_ops=pl.concat([one.host_ops, two.host_ops]),
        collectives=pl.concat([one.collectives, _shifted(two.collectives, by_host, "host")]),
        stages=pl.concat([one.stages, two.stages]),
        roles={**one.roles, **{host: names[role] for host, role in two.roles.items()}},
        first=first,
        unmatched=tuple(dict.fromkeys([*one.unmatched, *two.unmatched, *unmatched])),
        origin_ns=two.origin_ns if one.origin_ns is None else one.origin_ns,
    )


def later(origin_ns: int | None, time_ns: int | None) -> int:
    """Return the time since an origin in picoseconds, 0 if either is unknown."""
    return 0 if origin_ns is None or time_ns is None else (time_ns - origin_ns) * 1000


def moved(tables: JobTables, by_ps: int) -> JobTables:
    """Return tables whose times are later."""
    if not by_ps:
        return tables
    frames = {
        name: getattr(tables, name).with_columns(pl.col("start_ps") + by_ps)
        for name in ("frame", "devices", "collectives")
    }
    first = {role: replace(host, ends=host.ends + by_ps) for role, host in tables.first.items()}
    return replace(tables, **frames, first=first)


def renamed(tables: JobTables, names: Mapping[str, str]) -> JobTables:
    """Return tables with other names of the hosts; those that become one have one role, and different steps."""
    host, role = (pl.col(name).cast(pl.String).replace(names) for name in ("host", "role"))
    ops = tables.host_ops.with_columns(host.cast(schema.NAME)).group_by("host", "op", "side").agg(map(total, _TIMES))
    return replace(
        tables,
        **{name: getattr(tables, name).with_columns(role) for name in ("ops", "devices")},
        **{name: getattr(tables, name).with_columns(host) for name in ("frame", "stages")},
        host_ops=ops,
        collectives=tables.collectives.with_columns(host.cast(schema.NAME)),
        roles={names.get(host, host): names.get(role, role) for host, role in tables.roles.items()},
        unmatched=tuple(names.get(host, host) for host in tables.unmatched),
    )


def job(tables: JobTables) -> Steps:
    """Return the steps of a job: one row per (role, step), with the hosts beside each other in ``by_host``.

    Operations and devices are means over the hosts of a role, operations over those that traced the step best.
    """
    hosts = Counter(tables.roles.values())  # a role is named by its first host, and the number of the others
    names = {role: role if count == 1 else f"{role} and {count - 1:,} more" for role, count in hosts.items()}
    of_host = {host: names[role] for host, role in tables.roles.items()}
    rows = tables.frame.with_columns(role=pl.col("host").replace(of_host)).sort("role", "step", "host")
    in_full = (pl.col("traced") == "full").any().over("role", "step")
    whole = rows.filter((pl.col("traced") != "partial") | ~in_full)  # cut by a window only if no host has it in full
    role = pl.col("host").cast(pl.String).replace(of_host)
    frame = _steps(whole)
    sizes = rows.group_by("role", "step", "traced").agg(of=pl.len().cast(pl.Int64))
    best = frame.select("step", "traced", role="host").join(sizes, on=["role", "step", "traced"])
    ops = tables.ops.with_columns(pl.col("role").replace(names)).join(best, on=["role", "step", "traced"])
    ops = ops.sort("role", "step", "side", pl.col("op").cast(pl.String)).rename({"role": "host"})
    mean = [(pl.col(name) / pl.col("of")).round().cast(pl.Int64) for name in _TIMES[1:]]
    ops = ops.with_columns((pl.col("count") / pl.col("of")).ceil().cast(pl.Int64), *mean)
    typical, typical_ops = without_waits(whole, frame, ops, tables.collectives.with_columns(role=role))
    by_stage = tables.stages.with_columns(pl.col("host").replace(of_host)).group_by("host", "stage")
    stages = by_stage.agg(pl.col("time_ps").mean().round().cast(pl.Int64)).sort("host", "stage")
    return Steps(
        frame,
        ops,
        _mean_devices(tables.devices.with_columns(host=pl.col("role").replace(names))).sort("host", "device", "step"),
        input_stages=stages.with_columns(share=pl.col("time_ps") / pl.col("time_ps").sum().over("host")),
        by_host=HostTables(
            schema.check(rows, schema.STEPS, "steps"),
            tables.host_ops.sort(pl.col("host", "op").cast(pl.String), "side"),
            tables.collectives.sort(pl.col("host").cast(pl.String), "start_ps", pl.col("name").cast(pl.String)),
            of_host,
            typical=typical,
            typical_ops=typical_ops,
        ),
    )


def _steps(rows: pl.DataFrame) -> pl.DataFrame:
    """Return one row per (role, step) of the steps of hosts."""
    key, outside = ["role", "step"], pl.col("dur_ps") - pl.col("collective_ps")
    measured = pl.col("collective_ps").is_not_null().all().over(key)
    rows = rows.with_columns(outside_ps=pl.when(measured).then(outside).otherwise("dur_ps"))
    several, outside = pl.len() > 1, pl.col("outside_ps")
    names = [name for name in schema.STEPS if name not in ("host", "step", "step_skew_ps", "slowest_host")]
    frame = rows.group_by(key, maintain_order=True).agg(
        *over_hosts(names),
        step_skew_ps=pl.when(several).then(outside.max() - outside.min()),
        slowest_host=pl.when(several).then(
            pl.col("host").sort_by(outside, descending=True, maintain_order=True).first()
        ),
    )
    return frame.rename({"role": "host"})


def _mean_devices(rows: pl.DataFrame) -> pl.DataFrame:
    """Return ``tpunb.schema.DEVICES`` from sums over hosts."""
    means = {name: pl.col(name) / pl.col(f"{name} n") for name in _FACTS}
    whole = {name: mean.round().cast(pl.Int64) for name, mean in means.items() if name.endswith("_ps")}
    shares = {name: means[name] / _FIXED for name in _SHARES}
    return schema.check(rows.with_columns(**means | whole | shares), schema.DEVICES, "devices")
