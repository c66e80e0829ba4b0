"""Wall clock: what the host knows of a run beside its steps."""

from __future__ import annotations

from dataclasses import dataclass, field

import polars as pl

from tpunb import schema


@dataclass(frozen=True, eq=False)
class WallClock:
    """The wall time of a run, and where the host clock saw it go outside of computation.

    Parameters
    ----------
    span_ps
        Wall time of the captured block in picoseconds.
    complete
        Whether the run recorded `spans`: runs before layout 3, and other processes, did not.
    spans
        Stretches of known cause, which may be nested: ``tpunb.schema.SPANS``.
    stalls
        Where the program was in stalls: ``tpunb.schema.STALLS``.
    load
        Load of the process and the machine: ``tpunb.schema.LOAD``.
    """

    span_ps: int
    complete: bool = False
    spans: pl.DataFrame = field(default_factory=lambda: schema.empty(schema.SPANS))
    stalls: pl.DataFrame = field(default_factory=lambda: schema.empty(schema.STALLS))
    load: pl.DataFrame = field(default_factory=lambda: schema.empty(schema.LOAD))

    def __post_init__(self) -> None:
        for name, columns in (("spans", schema.SPANS), ("stalls", schema.STALLS), ("load", schema.LOAD)):
            object.__setattr__(self, name, schema.check(getattr(self, name), columns, name))
