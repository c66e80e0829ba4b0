"""Hosts of a job beside each other: tables whose size is bounded, from the steps of all hosts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

import polars as pl

from tpunb import schema
from tpunb.errors import warn_user
from tpunb.frames import Steps
from tpunb.frames.steps import HostTables, WallClock
from tpunb.step_stats import job_tables
from tpunb.step_stats.collectives import replica_groups
from tpunb.text import plain, plural

_NAMED = 4  # hosts in a message
_INSTANCE = ["host", "step", "program", "name", "instance"]


def host_tables(steps: Steps) -> HostTables:
    """Return the tables of the hosts of a job from steps of all hosts; no collectives if no raw events were kept."""
    rows = steps.ops.with_columns(pl.col("host").cast(schema.NAME))
    ops = rows.group_by("host", "op", "side").agg(pl.col("count", "total_ps", "self_ps").sum())
    runs = pl.DataFrame(schema=schema.COLLECTIVES) if steps.read_collectives is None else steps.collectives
    ops = ops.sort(pl.col("host", "op").cast(pl.String), "side")
    return HostTables(steps.frame, ops, last_arrivals(runs), lost=lost(steps.frame["host"], steps.lost))


def lost(hosts: pl.Series, files: pl.DataFrame) -> pl.DataFrame:
    """Return ``tpunb.schema.LOST``: files, and the hosts whose number is missing among the names of the others."""
    missing = gaps({*hosts}, {*files["what"].str.extract(r"([^/.]+)[^/]*$").drop_nulls()})
    rows = pl.DataFrame({"what": missing, "reason": ["no file, but hosts before and after it have one"] * len(missing)})
    return pl.concat([files, schema.check(rows, schema.LOST, "lost")])


def gaps(hosts: Set[str], others: Set[str] = frozenset()) -> list[str]:
    """Return the hosts that are missing among numbered ones and others of such names, if most numbers are there.

    >>> gaps({"pod-08", "pod-09", "pod-12"}, {"pod-11", "x"}), gaps({"a1", "a7"}), gaps({"a", "c"})
    (['pod-10'], [], [])
    """
    parts = [re.fullmatch(r"(.*?)(\d{1,9})", host) for host in hosts]
    prefixes, widths = ({part[group] for part in parts if part} for group in (1, 2))
    if len(prefixes) != 1 or not all(parts) or not re.search("[A-Za-z]", min(prefixes)):  # addresses have gaps
        return []
    (prefix,), width = prefixes, min(map(len, widths))
    pattern = re.compile(re.escape(prefix) + r"(\d{1,9})")
    numbers = {int(part[1]) for part in map(pattern.fullmatch, hosts | others) if part}
    count = max(numbers) - min(numbers) + 1
    if 4 * (count - len(numbers)) > len(numbers):
        return []
    return [
        f"{prefix}{number:0{width}d}" for number in range(min(numbers), min(numbers) + count) if number not in numbers
    ]


def of_job(steps: Steps) -> Steps:
    """Return the steps of the job as a whole: one row per (role, step), with its hosts in ``by_host``.

    A step lasts as long as that of its slowest host. Steps of one host, and of a job already, stay as they are.
    """
    if steps.by_host is not None or steps.frame["host"].n_unique() < 2:
        return steps
    return _job(steps, host_tables(steps).collectives)[0]


def placed(steps: Steps) -> tuple[Steps, pl.DataFrame]:
    """Return the steps of the job, and (host, step) in it of each row of `steps`."""
    shared = steps.read_collectives is not None and (steps.frame["collective_ps"] > 0).any()
    return _job(steps, last_arrivals(steps.collectives) if shared else pl.DataFrame(schema=schema.HOST_COLLECTIVES))


def _job(steps: Steps, collectives: pl.DataFrame) -> tuple[Steps, pl.DataFrame]:
    whole = job_tables.tables(steps, collectives)
    if whole.unmatched:
        warn_user(unmatched_message(steps.name, whole.unmatched), stacklevel=2)
    job = with_facts(job_tables.job(whole), steps.windows, steps.wall, steps.lost)
    job = replace(
        job,
        **{name: getattr(steps, name) for name in ("name", "source", "metadata", "device", "pipeline")},
        whole=None if steps.whole is None else placed(steps.whole)[0],
    )
    roles = {} if job.by_host is None else job.by_host.roles
    return job, whole.frame.select(pl.col("host").replace(roles), "step")


def with_facts(job: Steps, windows: pl.DataFrame, wall: WallClock | None, files: pl.DataFrame) -> Steps:
    """Return the steps of a job with what is known of its hosts beside steps, and the lost ones."""
    if job.by_host is None:
        return job
    roles, missing = job.by_host.roles, lost(job.by_host.frame["host"], files)
    return replace(
        job,
        by_host=replace(job.by_host, lost=missing),
        windows=_windows_of_roles(windows, roles),
        wall=None if wall is None else _wall(wall, roles),
        lost=missing,
    )


def unmatched_message(name: str, hosts: Sequence[str]) -> str:
    """Return the warning about hosts whose steps match those of no other."""
    shown = ", ".join(plain(host) for host in hosts[:_NAMED]) + ", ..." * (len(hosts) > _NAMED)
    return f"{name}: steps of {plural(len(hosts), 'host')} could not be matched with those of others: {shown}"


def _windows_of_roles(windows: pl.DataFrame, of_host: Mapping[str, str]) -> pl.DataFrame:
    """Return one row per (role, window): from its first start to its last end."""
    by_role = windows.with_columns(pl.col("host").replace(of_host)).group_by("host", "window", maintain_order=True)
    end_ps, failed = pl.col("start_ps") + pl.col("dur_ps"), pl.col("error").is_not_null().all()
    rows = by_role.agg(
        pl.col("start_ps").min(),
        dur_ps=end_ps.max() - pl.col("start_ps").min(),
        latency_ps=pl.col("latency_ps").max(),
        bytes=pl.col("bytes").sum(),
        events=pl.col("events").sum(),
        steps=pl.col("steps").max(),
        error=pl.when(failed).then(pl.col("error").first()),
        reason=pl.col("reason").first(),
    )
    return rows.select(*schema.WINDOWS)


def _wall(wall: WallClock, of_host: Mapping[str, str]) -> WallClock:
    """Return what one host of each role recorded: the one with the most spans, as the one that saves checkpoints."""
    counts = wall.spans.group_by("host").len().sort("len", "host", descending=[True, False])
    chosen: dict[str, str] = {}
    for host in [*counts["host"], *of_host]:
        if host in of_host:
            chosen.setdefault(of_host[host], host)
    names = {host: role for role, host in chosen.items()}
    frames = {
        name: getattr(wall, name).filter(pl.col("host").is_in([*names])).with_columns(pl.col("host").replace(names))
        for name in ("spans", "stalls", "samples", "load")
    }
    return replace(wall, **frames)


def last_arrivals(collectives: pl.DataFrame) -> pl.DataFrame:
    """Return HOST_COLLECTIVES from COLLECTIVES: of each host and instance, the device that arrived last.

    Devices of a group end together, so the last to arrive has the shortest run; with several groups it starts last.
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
