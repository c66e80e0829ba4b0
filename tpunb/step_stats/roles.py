"""Roles of the hosts of a job, and which of their steps are one step of the job.

Hosts that run one program have one role. They do if both have devices, or none, and a step of one runs the operations
of a step of the other. Without such steps they do if they spend half of their time in operations that both have, unless
each repeats its steps exactly, as the stages of a pipeline. Hosts without operations join the first role.

Steps of hosts of one role are one step if their numbers are equal and the program gave them: by annotations or by the
step clock. Else a host is moved by the number of steps at which its steps end as far apart as those of the first host:
collectives end together on all hosts, so the times between their ends differ by microseconds, those of other steps by
the jitter of step time. Where several numbers fit, the clocks decide, if they agree to a quarter of a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from tpunb import schema
from tpunb.frames.phase_names import SAVING
from tpunb.step_stats import op_names
from tpunb.step_stats.aggregate import middle
from tpunb.step_stats.numbering import BY_ORDER
from tpunb.step_stats.ops import map_names

Ints = npt.NDArray[np.int64]

_COMMON = 0.5  # least share of time in operations that hosts of one program have in common
_REPEATED = 0.9  # share of steps that repeat others, from which steps that differ are of another program
_CLEAR = 4  # factor between the best shift and others
_JITTER_PS = 1_000_000  # of the ends of collectives
_LOCKSTEP = 0.25  # of a step


@dataclass(frozen=True, eq=False)
class Member:
    """What a host is compared by."""

    host: str
    numbered: bool  # whether the program gave its steps their numbers
    steps: Ints  # numbers, ascending: (steps,)
    ends: Ints  # of the last collective of each step in picoseconds, or another time that all hosts reach together
    prints: frozenset[int]  # fingerprints of steps traced in full
    repeated: float  # share of them that are equal to another, 0 to 1
    ops: pl.DataFrame  # self time of operations on its devices, or of the host if it has none: (op, self_ps)
    on_device: bool

    @property
    def times(self) -> dict[str, int]:
        """`ops` by name."""
        return dict(self.ops.select(pl.col("op").cast(pl.String), pl.col("self_ps").fill_null(0).clip(0)).iter_rows())


def fingerprints(ops: pl.DataFrame, devices: pl.DataFrame) -> pl.DataFrame:
    """Return (host, step, print): steps with equal operations and counts on each device have equal prints."""
    key = ["host", "step"]
    on_devices = ops.filter(pl.col("side") == "device")
    counted = on_devices.join(devices.group_by(key).len("devices"), on=key, how="left")
    each = (pl.col("count").fill_null(0).clip(0) * 1000 // pl.col("devices").fill_null(1)).cast(pl.String)
    printed = pl.concat_str(pl.col("op").cast(pl.String), pl.lit(" "), each).hash()
    return counted.group_by(key).agg(print=printed.sum())


def members(frame: pl.DataFrame, host_ops: pl.DataFrame, collectives: pl.DataFrame) -> list[Member]:
    """Return what each host is compared by, in the order of the hosts in `frame`, those without operations last."""
    end_ps = (pl.col("start_ps") + pl.col("dur_ps")).max()
    ends = collectives.group_by(pl.col("host").cast(pl.String), "step").agg(end_ps=end_ps)
    placed = frame.join(ends, on=["host", "step"], how="left", maintain_order="left").sort("host", "step")
    numbered = ~pl.col("rule").cast(pl.String).is_in(BY_ORDER).fill_null(value=False)
    full = pl.col("print").filter(pl.col("traced") == "full").drop_nulls()
    facts = placed.group_by("host", maintain_order=True).agg(
        numbered.all().alias("numbered"), full.unique(), repeated=full.is_duplicated().mean().fill_null(0.0), n=pl.len()
    )
    steps, times = (
        column.fill_null(0).to_numpy() for column in placed.select("step", pl.coalesce("end_ps", "start_ps"))
    )
    ops = {str(host): rows for (host,), rows in host_ops.partition_by("host", as_dict=True).items()}
    of_host, at = dict[str, Member](), 0
    for host, is_numbered, prints, repeated, n in facts.iter_rows():
        rows = ops.get(host, host_ops.clear())
        on_device = rows.filter(pl.col("side") == "device")
        figures = steps[at : at + n], times[at : at + n], frozenset(prints), repeated
        of_host[host] = Member(host, is_numbered, *figures, on_device if len(on_device) else rows, len(on_device) > 0)
        at += n
    return sorted(
        (of_host[host] for host in frame["host"].unique(maintain_order=True)), key=lambda host: not len(host.ops)
    )


def place(roles: Mapping[str, Member], host: Member) -> tuple[str, int, bool]:
    """Return the role of a host, how far its step numbers move, and whether its steps match those of the role.

    A host of a new role, or one whose steps do not match, has a role of its own: that of its name.
    """
    alike = [(role, first) for role, first in roles.items() if same_program(first, host)]
    for role, first in alike:
        if (shift := shift_of(first, host)) is not None:
            return role, shift, True
    return host.host, 0, not alike


def same_program(one: Member, two: Member) -> bool:
    """Return whether two hosts run one program."""
    if one.ops.is_empty() or two.ops.is_empty():
        return True
    if one.on_device != two.on_device:
        return False
    if not one.prints.isdisjoint(two.prints):
        return True
    times = [one.times, two.times]
    common = times[0].keys() & times[1].keys()
    shared = sum(each[op] for each in times for op in common)
    return shared >= _COMMON * sum(sum(each.values()) for each in times) and min(one.repeated, two.repeated) < _REPEATED


def shift_of(first: Member, host: Member) -> int | None:
    """Return what is added to the step numbers of a host to make them those of another; None if it does not match."""
    if first.numbered and host.numbered:
        return 0
    a, b = first.ends, host.ends
    least = max(2, (min(a.size, b.size) + 1) // 2)
    places = range(least - b.size, a.size - least + 1)  # of the first step of the host among those of the first one
    if not len(places):
        return None
    pairs = [(a[max(at, 0) : at + b.size], b[max(-at, 0) : a.size - at]) for at in places]
    apart = np.array([np.median(np.abs(np.diff(x) - np.diff(y))) for x, y in pairs])
    offset = np.array([np.median(y - x) for x, y in pairs])
    fits = np.flatnonzero(apart <= _CLEAR * apart.min() + _JITTER_PS)
    best = fits[np.abs(offset[fits]).argmin()]
    x, y = pairs[best]
    room = _LOCKSTEP * np.median(np.diff(a))
    together = np.median(np.abs(y - x - offset[best])) < room
    clear = 1 == fits.size < apart.size or abs(offset[best]) < room
    at = places[best]
    return int(first.steps[max(at, 0)] - host.steps[max(-at, 0)]) if together and clear else None


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

    `ops` are means over `hosts` of the `of` hosts, with the least values of a host: ``least_count``, ...
    """
    rows = rows.with_columns(has_collectives=pl.col("collective_ps").is_not_null().all().over(_KEY))
    has_collectives = pl.col("has_collectives")
    shared = {"collective_ps": pl.col("collective_ps"), "least_ps": pl.coalesce("least_ps", "collective_ps")}
    rows = rows.with_columns(
        pl.col("callbacks_ps").fill_null(0),
        **{name: pl.when(has_collectives).then(time).otherwise(0) for name, time in shared.items()},
    )
    outside = pl.col("dur_ps") - pl.col("collective_ps") - pl.col("callbacks_ps")
    rows = rows.with_columns(dur_ps=outside, within_ps=pl.col("collective_ps") - pl.col("least_ps"))
    runs = collectives.group_by(*_KEY, "name", "instance").agg(pl.col("dur_ps").min())  # ids of programs may differ
    rows = rows.join(runs.group_by(_KEY).agg(transfer_ps=pl.col("dur_ps").sum()), on=_KEY, how="left")
    transfer = pl.coalesce(pl.when(has_collectives).then("transfer_ps"), "least_ps").min() + middle("within_ps")
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
