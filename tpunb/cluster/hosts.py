"""Phases of a job of several hosts: steps are grouped once for each role, and hosts share the labels.

Slow hosts make no phases, since these go by the steps without waits: :mod:`tpunb.step_stats.without_waits`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from tpunb.frames import Phases, Steps
from tpunb.frames.cache import memoised
from tpunb.frames.op_matrix import Ints
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
    job, places = _typical(job), places.with_columns(row=pl.int_range(pl.len(), dtype=pl.Int64))
    roles = []
    for name in places["host"].unique(maintain_order=True):
        of_role = _of_role(job, name)
        at = of_role.frame.select("host", "step", at=pl.int_range(pl.len(), dtype=pl.Int64))
        rows = places.join(at, on=["host", "step"], maintain_order="left")
        roles.append(Role(of_role, rows["row"].to_numpy(), rows["at"].to_numpy()))
    return roles


def _typical(job: Steps) -> Steps:
    """Return the steps of a job without waits for slow hosts."""
    if job.by_host is None or job.by_host.typical.is_empty():
        return job
    whole = None if job.whole is None else _typical(job.whole)
    return replace(job, frame=job.by_host.typical, ops=job.by_host.typical_ops, whole=whole)


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
