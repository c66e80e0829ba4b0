"""Races of two settings in pairs, until it is clear which is faster (paper VII.B).

Step times vary on a shared machine: so both run alternately from the same place, and each pair gives one ratio.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from typing import Literal

from tpunb.errors import check_whole

Decision = Literal["faster", "not faster", "undecided"]

GAIN = 1.02
"""The least gain that justifies a change."""

_ERROR = 0.05  # 95 % intervals


@dataclass(frozen=True)
class RaceResult:
    """Outcome of a race."""

    decision: Decision  # "undecided" if the pairs ended before it was clear
    ratio: float  # time of the baseline by time of the candidate
    low: float  # ends of the 95 % interval of the ratio over all checks; NaN for fewer than two pairs
    high: float
    pairs: int


def race(
    pairs: Iterable[tuple[float, float]], *, fewest: int = 3, most: int = 10, narrow: float = math.inf
) -> RaceResult:
    """Return whether the candidate takes less time than the baseline.

    It is faster if the interval of the mean ratio is above 1 and the mean above `GAIN`. The interval is Student's, of
    the log ratios; its error of 5 % is split among the checks (Bonferroni), so that early stopping does not raise it.
    It is not faster if the interval is below `GAIN`; and a race is given up as not faster if the mean is below
    `GAIN` at a check, or both of the first two pairs show a loss: more pairs would seldom show a gain that is worth
    their time.

    Parameters
    ----------
    pairs
        (seconds of the baseline, seconds of the candidate); drawn as needed.
    fewest
        Pairs before the first check, 2 or more.
    most
        Pairs at the last check.
    narrow
        Ratio of the ends of the interval down to which a race that is won continues, while there are pairs.

    >>> race([(3.0, 1.0), (3.1, 1.0), (2.9, 1.0), (3.0, 1.0)]).decision
    'faster'
    >>> race([(1.2, 1.0), (1.0, 1.0), (1.1, 1.0)]).decision
    'undecided'
    """
    contest = Race(fewest=fewest, most=most)
    result = won = None
    for baseline, candidate in islice(pairs, contest.most):
        result = contest.add(baseline, candidate)
        if result.decision == "faster":
            won = result
        if (won or result).decision != "undecided" and not (won and result.high > narrow * result.low):
            break
    if result is None:
        raise ValueError("The pairs parameter of race must hold one pair or more. Got none instead.")
    return won or result


class Race:
    """A race whose pairs come one at a time; `race` documents the parameters and the decision."""

    def __init__(self, *, fewest: int = 3, most: int = 10) -> None:
        self._fewest = check_whole("race", "fewest", fewest, 2)
        self.most = check_whole("race", "most", most, fewest)
        self._logs: list[float] = []

    def add(self, baseline: float, candidate: float) -> RaceResult:
        """Return the result with one pair more."""
        if not (baseline > 0 and candidate > 0):
            raise ValueError(
                f"The pairs parameter of race must hold times above 0. Got {(baseline, candidate)} instead."
            )
        logs = self._logs
        logs.append(math.log(baseline / candidate))
        result = _estimate(logs, self.most - self._fewest + 1)
        if len(logs) >= self._fewest:
            return replace(result, decision=_decision(result))
        if len(logs) == 2 and max(logs) < -math.log(GAIN):
            return replace(result, decision="not faster")
        return result


def alternating(baseline: Callable[[], float], candidate: Callable[[], float]) -> Iterator[tuple[float, float]]:
    """Yield pairs without end; the candidate runs first in every second one.

    >>> from itertools import count
    >>> clock = count()
    >>> run = lambda: next(clock)
    >>> list(islice(alternating(run, run), 2))
    [(0, 1), (3, 2)]
    """
    while True:
        yield baseline(), candidate()
        first = candidate()
        yield baseline(), first


def _estimate(logs: list[float], checks: int) -> RaceResult:
    """Return the mean ratio and its interval, undecided."""
    mean, n = statistics.fmean(logs), len(logs)
    if n < 2:
        return RaceResult("undecided", math.exp(mean), math.nan, math.nan, n)
    half = _quantile(n - 1, checks) * statistics.stdev(logs) / math.sqrt(n)
    return RaceResult("undecided", math.exp(mean), _exp(mean - half), _exp(mean + half), n)


def _exp(exponent: float) -> float:
    return math.exp(exponent) if exponent < 700 else math.inf  # of two pairs that differ greatly


def _decision(result: RaceResult) -> Decision:
    if result.low > 1 and result.ratio > GAIN:
        return "faster"
    return "not faster" if result.ratio < GAIN else "undecided"  # includes intervals below `GAIN`


@cache
def _quantile(freedom: int, checks: int) -> float:
    """Return Student's quantile for one of several checks."""
    from scipy.stats import t

    return float(t.ppf(1 - _ERROR / 2 / checks, freedom))
