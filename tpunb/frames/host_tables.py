"""HostTables: the hosts of a job beside each other, in tables whose size is bounded."""

from __future__ import annotations

from dataclasses import dataclass, field

import polars as pl

from tpunb import schema


@dataclass(frozen=True, eq=False, repr=False)
class HostTables:
    """Statistics of the hosts of a job; never one row per (host, step, op).

    Parameters
    ----------
    frame
        One row per (host, step): ``tpunb.schema.STEPS``, with step numbers of the job.
    ops
        One row per (host, op, side): ``tpunb.schema.HOST_OPS``.
    collectives
        One row per (host, step, instance) of a collective: ``tpunb.schema.HOST_COLLECTIVES``.
    roles
        Role of each host, by the program that it runs.
    lost
        Hosts and files without data: ``tpunb.schema.LOST``.
    typical, typical_ops
        Steps of the job without waits for slow hosts, which phases go by: ``tpunb.schema.STEPS`` and
        ``tpunb.schema.OPS``, by role (:mod:`tpunb.step_stats.without_waits`).
    """

    frame: pl.DataFrame
    ops: pl.DataFrame
    collectives: pl.DataFrame
    roles: dict[str, str] = field(default_factory=dict)
    lost: pl.DataFrame = field(default_factory=lambda: schema.empty(schema.LOST))
    typical: pl.DataFrame = field(default_factory=lambda: schema.empty(schema.STEPS))
    typical_ops: pl.DataFrame = field(default_factory=lambda: schema.empty(schema.OPS))

    def __post_init__(self) -> None:
        columns = {"frame": "STEPS", "ops": "HOST_OPS", "collectives": "HOST_COLLECTIVES", "lost": "LOST"}
        for name, frame in columns.items():
            object.__setattr__(self, name, schema.check(getattr(self, name), getattr(schema, frame), name))
