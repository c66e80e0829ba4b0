"""Comparison: what changed from one run to another, phase by phase."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from tpunb import schema
from tpunb.frames.phases import Phases
from tpunb.frames.words import plural, to_pandas

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Two runs whose phases were matched one to one; a change is always b less a, or b by a.

    Every interval is one of 95 % by itself: of many, some miss.

    Parameters
    ----------
    a, b
        The phases of either run.
    frame
        ``tpunb.schema.COMPARED``: one row a pair of phases, longest first.
    ops
        ``tpunb.schema.COMPARED_OPS``: the operations of each pair, the largest change first.
    explained
        ``tpunb.schema.EXPLAINED``: what each phase, matched or not, adds to the difference between the runs' times.
    """

    a: Phases
    b: Phases
    frame: pl.DataFrame
    ops: pl.DataFrame
    explained: pl.DataFrame

    def __post_init__(self) -> None:
        object.__setattr__(self, "frame", schema.check(self.frame, schema.COMPARED, "compared"))
        object.__setattr__(self, "ops", schema.check(self.ops, schema.COMPARED_OPS, "compared_ops"))
        object.__setattr__(self, "explained", schema.check(self.explained, schema.EXPLAINED, "explained"))

    def __len__(self) -> int:
        return self.frame.height

    def __repr__(self) -> str:
        told = f"{plural(len(self), 'phase')} matched"
        if len(self) and (ratio := self.frame["ratio"][0]) is not None:
            low, high = self.frame["ratio_low"][0], self.frame["ratio_high"][0]
            within = "" if low is None else f" [{low:.2f}, {high:.2f}]"
            told += f", steps of the longest {ratio:.2f}x{within} as long"
        return f"Comparison({told})"

    @property
    def ratio(self) -> float | None:
        """The time of all steps of b by that of a, means over their hosts; None where a has none."""
        a, b = int(self.explained["dur_a_ps"].sum()), int(self.explained["dur_b_ps"].sum())
        return b / a if a > 0 else None

    @property
    def unmatched(self) -> pl.DataFrame:
        """The rows of `explained` of phases that have no counterpart; noise is none, and has none."""
        return self.explained.filter(pl.col("phase_a").is_null() | pl.col("phase_b").is_null())

    @property
    def settings(self) -> pl.DataFrame:
        """What is known of either run, ``tpunb.schema.SETTINGS``: null where it is not known of one."""
        a, b = self.a.steps.about, self.b.steps.about
        rows = [(fact, a.get(fact), b.get(fact)) for fact in dict.fromkeys([*a, *b])]
        return pl.DataFrame(rows, schema=schema.SETTINGS, orient="row")

    def to_pandas(self) -> pd.DataFrame:
        """Return `frame` as a pandas DataFrame (needs the extra ``pandas``)."""
        return to_pandas(self.frame)
