"""Races of two settings in pairs, until it is clear which is faster (paper VII.B).

Step times vary on a shared machine: so both run alternately from the same place, and each pair gives one ratio.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

Decision = Literal["faster", "not faster", "undecided"]

FEWEST_PAIRS, MOST_PAIRS = 3, 6
"""Pairs of a race before its first check, and at its last."""

GAIN = 1.02
"""The least gain that justifies a change."""

ERROR = 0.05
"""Of 95 % intervals."""

_QUANTILES = 50.92303664, 8.860200035, 5.391949072, 4.314656049, 3.8100047
"""Student's, by pairs from two on, for one of the checks; SciPy takes seconds to import, in which a training waits."""


@dataclass(frozen=True)
class RaceResult:
    """Outcome of a race."""

    decision: Decision  # "undecided" if the pairs ended before it was clear
    ratio: float  # time of the baseline by time of the candidate
    low: float  # ends of the 95 % interval of the ratio over all checks; NaN for fewer than two pairs
    high: float
    pairs: int


def race(pairs: Iterable[tuple[float, float]], *, narrow: float = math.inf) -> RaceResult:
    """Return the result of a `Race` over (baseline, candidate) pairs in seconds, drawn as needed.

    A race that is won continues, while there are pairs, until the ends of its interval have a ratio of `narrow`.

    >>> race([(3.0, 1.0), (3.1, 1.0), (2.9, 1.0), (3.0, 1.0)]).decision
    'faster'
    >>> race([(1.2, 1.0), (1.0, 1.0), (1.1, 1.0)]).decision
    'undecided'
    """
    contest = Race()
    result = won = None
    for baseline, candidate in islice(pairs, MOST_PAIRS):
        result = contest.add(baseline, candidate)
        if result.decision == "faster":
            won = result
        if (won or result).decision != "undecided" and not (won and result.high > narrow * result.low):
            break
    if result is None:
        raise ValueError("The pairs parameter of race must hold one pair or more. Got none instead.")
    return won or result


class Race:
    """A race whose pairs come one at a time.

    The candidate is faster if the interval of the mean ratio is above 1, and the mean above `GAIN`. It is Student's, of
    log ratios; its error of 5 % is split among the checks (Bonferroni), so that early stopping does not raise it.
    """

    def __init__(self) -> None:
        self._logs: list[float] = []

    def add(self, baseline: float, candidate: float) -> RaceResult:
        """Return the result with one pair more."""
        if not (baseline > 0 and candidate > 0):
            raise ValueError(
                f"The pairs parameter of race must hold times above 0. Got {(baseline, candidate)} instead."
            )
        logs = self._logs
        logs.append(math.log(baseline / candidate))
        result = _estimate(logs)
        if len(logs) >= FEWEST_PAIRS:
            return replace(result, decision=_decision(result))
        if len(logs) == 2 and max(logs) < -math.log(GAIN):  # more pairs would seldom show a gain worth their time
            return replace(result, decision="not faster")
        return result


def _estimate(logs: list[float]) -> RaceResult:
    """Return the mean ratio and its interval, undecided."""
    mean, n = statistics.fmean(logs), len(logs)
    if n < 2:
        return RaceResult("undecided", math.exp(mean), math.nan, math.nan, n)
    half = _QUANTILES[n - 2] * statistics.stdev(logs) / math.sqrt(n)
    return RaceResult("undecided", math.exp(mean), _exp(mean - half), _exp(mean + half), n)


def _exp(exponent: float) -> float:
    return math.exp(exponent) if exponent < 700 else math.inf  # of two pairs that differ greatly


def _decision(result: RaceResult) -> Decision:
    if result.low > 1 and result.ratio > GAIN:
        return "faster"
    return "not faster" if result.ratio < GAIN else "undecided"  # includes intervals below `GAIN`
