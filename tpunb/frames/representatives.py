"""Representative steps of a run, and how well they estimate it."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from tpunb.frames.conversion import Tabular
from tpunb.text import percent, plural


@dataclass(frozen=True, eq=False, repr=False)
class Representatives(Tabular):
    """Representative steps of a run, and the run as estimated from them.

    Each phase is estimated from its own steps; outliers are a group like a phase. The time of every step is known,
    traced or not, so an operation's time in a phase is its time per step time in the representatives, multiplied by the
    time of all steps of the phase (ratio estimator, Cochran 1977, section 6.10).

    Parameters
    ----------
    frame
        Representative steps, those of the longest phase first: ``tpunb.schema.REPRESENTATIVES``.
    profile
        Self time of each operation in the run, estimated and measured: ``tpunb.schema.REPRESENTED``.
    time_ps
        Estimated time of all steps; for steps not traced in full, the clock's.
    interval
        Interval that covers the time of all steps in 95 of 100 draws; None if the steps were not drawn at random.
    time_error
        Error of `time_ps`, as a share of the measured time.
    steps
        Number of steps of the run.
    missing
        Share of step time in phases without a representative: no step of them was traced in full, or fewer steps
        were requested than there are phases (these are estimated from the others).
    """

    frame: pl.DataFrame
    profile: pl.DataFrame
    time_ps: int
    interval: tuple[int, int] | None
    time_error: float
    steps: int
    missing: float

    @property
    def error(self) -> float:
        """L1 error of the operations' self times, as a share of all self time, from 0."""
        off = (self.profile["self_ps"] - self.profile["true_ps"]).abs().sum()
        return int(off) / max(int(self.profile["true_ps"].sum()), 1)

    def __repr__(self) -> str:
        missing = f", none for {percent(self.missing, 1)} of step time" if self.missing else ""
        steps = f"{len(self)} of {plural(self.steps, 'step')}"
        return f"Representatives({steps}, op profile within {percent(self.error, 1)}{missing})"
