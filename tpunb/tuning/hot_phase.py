"""The phase to tune, by the paper's trigger (VII.B)."""

from __future__ import annotations

import polars as pl

from tpunb.frames import Phase, Phases

_TOP = 5
"""Operations per phase and side (paper VI.B, Tables II and III)."""

_INPUT_OPS = (
    *("reshape", "infeed", "outfeed", "fusion"),  # the paper's, from the most common pattern
    *("transfer", "copy", "linearize", "transpose", "input wait", "input pipeline", "getnext", "iterator"),
)
"""Parts of the names of operations that feed the model or reshape its input."""

_PATTERN = 2
"""Kinds of input operations that make a pattern: a fusion alone occurs in every phase of a TPU."""

_SHARE = 0.5


def hot_phase(phases: Phases) -> Phase | None:
    """Return the longest phase whose tuning can pay; None if there is none (paper VII.B).

    Such a phase takes over half of the step time of all phases, input wait included, or its top operations feed the
    model (reshape, infeed, fusion, outfeed and the like). Outliers are no phase.

    >>> from tpunb.testing import toy_steps
    >>> from tpunb.cluster import phases
    >>> hot_phase(phases(toy_steps("aaabbb")))
    Phase(1, 'train', 3 steps, 66.7% of productive time)
    """
    input_bound = _input_bound(phases)
    rows = phases.frame.filter(pl.col("phase") >= 0).sort("dur_ps", descending=True, maintain_order=True)
    for number, share in rows.select("phase", pl.col("dur_ps") / pl.col("dur_ps").sum()).iter_rows():
        if share > _SHARE or number in input_bound:
            return phases[number]
    return None


def _input_bound(phases: Phases) -> set[int]:
    """Return the phases whose top operations include several kinds of input operations."""
    name = pl.col("op").cast(pl.String).str.to_lowercase()
    kinds = [name.str.contains(word, literal=True).any().cast(pl.Int64).alias(word) for word in _INPUT_OPS]
    counted = phases.top(_TOP, sources=False).group_by("phase").agg(pl.sum_horizontal(kinds).alias("kinds"))
    return set(counted.filter(pl.col("kinds") >= _PATTERN)["phase"].to_list())
