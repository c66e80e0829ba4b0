"""Phases of a job of several hosts: steps are grouped once for each role, and hosts share the labels.

Slow hosts make no phases: the step time that counts is the median over hosts of the time outside collectives, the least
time in collectives, which is that of the host for which the others waited, and the longest callbacks; the input wait is
the median, too. Of an operation the least time of a host counts, if half of the hosts ran it or it saves a checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from tpunb.frames import Phases, Steps
from tpunb.frames.cache import memoised
from tpunb.frames.op_matrix import Ints
from tpunb.step_stats.aggregate import middle
from tpunb.step_stats.merge_hosts import placed


@dataclass(frozen=True, eq=False)
class Role:
    """The hosts of a job that run one program.

    Parameters
    ----------
    steps
        Steps of the job in that role.
    rows
        Rows of its hosts in the frame of all hosts.
    at
        Row in `steps` of each.
    """

    steps: Steps
    rows: Ints
    at: Ints


@memoised
def roles_of(steps: Steps) -> list[Role]:
    """Return the roles of the hosts of a job; none if there is one host."""
    if steps.by_host is None and steps.frame["host"].n_unique() < 2:
        return []
    job, places = (steps, steps.frame.select("host", "step")) if steps.by_host is not None else placed(steps)
    job, places = _without_waits(job), places.with_columns(row=pl.int_range(pl.len(), dtype=pl.Int64))
    roles = []
    for name in places["host"].unique(maintain_order=True):
        of_role = _of_role(job, name)
        at = of_role.frame.select("host", "step", at=pl.int_range(pl.len(), dtype=pl.Int64))
        rows = places.join(at, on=["host", "step"], maintain_order="left")
        roles.append(Role(of_role, rows["row"].to_numpy(), rows["at"].to_numpy()))
    return roles


def _without_waits(job: Steps) -> Steps:
    """Return the steps of a job with the times that count."""
    if job.by_host is None or job.by_host.least.is_empty():
        return job
    rows, key = job.by_host.frame.with_columns(role=pl.col("host").replace(job.by_host.roles)), ["role", "step"]
    cut = (pl.col("traced") == "partial") & (pl.col("traced") != "partial").any().over(key)
    known = pl.col("collective_ps").is_not_null().all().over(key)
    rows = rows.filter(~cut).with_columns(
        callbacks_ps=pl.col("callbacks_ps").fill_null(0),
        collective_ps=pl.when(known).then("collective_ps").otherwise(0),
    )
    outside = (pl.col("dur_ps") - pl.col("collective_ps") - pl.col("callbacks_ps")).alias("dur_ps")
    sound = (
        rows.with_columns(outside)
        .group_by(key)
        .agg(
            dur_ps=middle("dur_ps") + pl.col("collective_ps").min() + pl.col("callbacks_ps").max(),
            input_ps=middle("input_ps"),
        )
    )
    frame = job.frame.drop("dur_ps", "input_ps").join(
        sound, left_on=["host", "step"], right_on=key, how="left", maintain_order="left"
    )
    whole = None if job.whole is None else _without_waits(job.whole)
    return replace(job, frame=frame, ops=job.by_host.least, whole=whole)


def _of_role(job: Steps, name: str) -> Steps:
    return replace(
        job,
        **{table: getattr(job, table).filter(host=name) for table in ("frame", "ops", "devices", "windows")},
        whole=None if job.whole is None else _of_role(job.whole, name),
        by_host=None,
    )


def combined(steps: Steps, roles: Sequence[Role], parts: Sequence[Phases]) -> Phases:
    """Return the phases of `steps` of several hosts from those of each role; labels of later roles follow on.

    The sweeps are those of the role whose steps take most time. The confidence in all phases is the mean over roles,
    weighted by their steps, null where one is unknown.
    """
    labels, offset, offsets = np.full(len(steps), -1, np.int64), 0, []
    for role, part in zip(roles, parts, strict=True):
        of_role = part.labels.to_numpy()
        labels[role.rows] = np.where(of_role < 0, -1, of_role + offset)[role.at]
        offsets.append(offset)
        offset += int(of_role.max(initial=-1)) + 1

    def distances() -> pl.Series:
        distance = np.full(len(steps), np.nan)
        for role, part in zip(roles, parts, strict=True):
            distance[role.rows] = part.distance.to_numpy()[role.at]
        distance[(steps.frame["traced"] != "full").to_numpy()] = np.nan
        return pl.Series("distance", distance, nan_to_null=True)

    def confidences() -> dict[int | None, float | None]:
        of_parts = [dict(part.confidences()) for part in parts]
        of_phases: dict[int | None, float | None] = {
            label + at if label >= 0 else label: value
            for at, known in zip(offsets, of_parts, strict=True)
            for label, value in known.items()
            if label is not None
        }
        every = [known.get(None) for known in of_parts]
        sizes = [len(role.steps) for role in roles]
        weighted = [value * n for value, n in zip(every, sizes, strict=True) if value is not None]
        return of_phases | {None: sum(weighted) / sum(sizes) if len(weighted) == len(roles) else None}

    longest = max(range(len(roles)), key=lambda at: int(roles[at].steps.frame["dur_ps"].sum()))
    return Phases(
        steps=steps,
        labels=pl.Series("phase", labels),
        method=parts[0].method,
        distances=distances,
        sweeps=parts[longest].sweeps,
        confidences=confidences,
    )
