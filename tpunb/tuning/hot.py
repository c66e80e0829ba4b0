"""The phase that is worth tuning, by the paper's trigger (VII.B)."""

from __future__ import annotations

import polars as pl

from tpunb.frames import Phase, Phases

_TOP = 5
"""Operations a phase and side that are looked at (paper VI.B, Tables II and III)."""

_FEEDING = (
    *("reshape", "infeed", "outfeed", "fusion"),  # the paper's own, of the most common pattern
    *("transfer", "copy", "linearize", "transpose", "input wait", "input pipeline", "getnext", "iterator"),
)
"""Parts of the names of operations that feed the model, or reshape what it is fed."""

_PATTERN = 2
"""So many of them among the top ones are a pattern: a fusion alone is in every phase of a TPU."""

_MOST = 0.5


def hot(phases: Phases) -> Phase | None:
    """Return the longest phase that is worth tuning; None where none is (paper VII.B).

    That is one whose most time-consuming operations are those that feed the model (reshape, infeed, fusion, outfeed
    and their like), or that takes over half of the time. Noise is no phase.

    >>> from tpunb.testing import toy_steps
    >>> from tpunb.cluster import phases
    >>> hot(phases(toy_steps("aaabbb")))
    Phase(phase 1, 3 steps, 66.7% of the time)
    """
    real = phases.frame.filter(pl.col("phase") >= 0)
    feeding = _feeding(phases)
    for number, share in real.select("phase", "share").iter_rows():
        if share > _MOST or number in feeding:
            return phases[number]
    return None


def _feeding(phases: Phases) -> set[int]:
    """Return the phases that show the pattern."""
    name = pl.col("op").cast(pl.String).str.to_lowercase()
    kinds = [name.str.contains(word, literal=True).any().alias(word) for word in _FEEDING]
    seen = phases.top(_TOP).group_by("phase").agg(kinds)
    several = pl.sum_horizontal([pl.col(word).cast(pl.Int64) for word in _FEEDING]) >= _PATTERN
    return set(seen.filter(several)["phase"].to_list())
