"""Two settings against each other, in pairs, until it is clear which one is faster (paper VII.B).

On a shared machine a step takes now more, now less time. So both run alternately from the same place, each pair gives
one ratio, and the interval of the mean ratio honours that it is looked at after every pair.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Literal

from tpunb.errors import whole

Decision = Literal["faster", "not faster", "undecided"]

GAIN = 1.02
"""A gain of less is not worth a change."""

_ERROR = 0.05  # 95 % intervals


@dataclass(frozen=True)
class Raced:
    """What a race told.

    Attributes
    ----------
    decision
        "faster", "not faster", or "undecided" when the pairs were over before it was clear.
    ratio
        Time of the present setting by that of the other: over 1, the other is faster.
    low, high
        The 95 % interval of `ratio` over all looks at it; NaN where fewer than two pairs ran.
    pairs
        How many ran.
    """

    decision: Decision
    ratio: float
    low: float
    high: float
    pairs: int


def race(pairs: Iterable[tuple[float, float]], *, fewest: int = 3, most: int = 10) -> Raced:
    """Return whether the second of each pair takes less time than the first.

    It is faster when the interval of the mean ratio lies above 1 and the mean above `GAIN`. The interval is Student's,
    of the logarithms of the ratios; its error of 5 % is shared among the looks (Bonferroni), so that stopping early
    does not make it more. It is not faster when the interval lies below `GAIN`; and a race is given up as not faster
    when the mean does so at a look, or both of the first two pairs show a loss: more pairs would seldom show a gain
    that is worth the time which they take.

    Parameters
    ----------
    pairs
        (seconds of the present setting, seconds of the other); no more are drawn than are needed.
    fewest
        Pairs before the first look, 2 or more.
    most
        Pairs at the last look.

    Raises
    ------
    ValueError
        When `fewest` is below 2, `most` below `fewest`, no pair is given, or a time is not above 0.

    >>> race([(3.0, 1.0), (3.1, 1.0), (2.9, 1.0), (3.0, 1.0)]).decision
    'faster'
    >>> race([(1.2, 1.0), (1.0, 1.0), (1.1, 1.0)]).decision
    'undecided'
    """
    fewest = whole("race", "fewest", fewest, 2)
    most = whole("race", "most", most, fewest)
    ratios: list[float] = []
    told: Raced | None = None
    for present, other in islice(pairs, most):
        if not (present > 0 and other > 0):
            raise ValueError(f"The pairs parameter of race must hold times above 0. Got {(present, other)} instead.")
        ratios.append(math.log(present / other))
        told = _told(ratios, most - fewest + 1)
        if len(ratios) >= fewest and (decision := _decision(told)) != "undecided":
            return Raced(decision, told.ratio, told.low, told.high, told.pairs)
        if len(ratios) == 2 and max(ratios) < -math.log(GAIN):
            return Raced("not faster", told.ratio, told.low, told.high, told.pairs)
    if told is None:
        raise ValueError("The pairs parameter of race must hold one pair or more. Got none instead.")
    return told


def alternating(present: Callable[[], float], other: Callable[[], float]) -> Iterator[tuple[float, float]]:
    """Yield pairs without end: in every second the other setting runs first, so that none has the better place.

    >>> from itertools import count
    >>> clock = count()
    >>> run = lambda: next(clock)
    >>> list(islice(alternating(run, run), 2))
    [(0, 1), (3, 2)]
    """
    while True:
        yield present(), other()
        second = other()
        yield present(), second


def _told(ratios: list[float], looks: int) -> Raced:
    """Return what the logarithms of ratios tell, undecided as yet."""
    mean, n = statistics.fmean(ratios), len(ratios)
    if n < 2:
        return Raced("undecided", math.exp(mean), math.nan, math.nan, n)
    far = _quantile(n - 1, looks) * statistics.stdev(ratios) / math.sqrt(n)
    return Raced("undecided", math.exp(mean), _exp(mean - far), _exp(mean + far), n)


def _exp(exponent: float) -> float:
    return math.exp(exponent) if exponent < 700 else math.inf  # two pairs that lie far apart


def _decision(told: Raced) -> Decision:
    if told.low > 1 and told.ratio > GAIN:
        return "faster"
    return "not faster" if told.ratio < GAIN else "undecided"  # of which the interval below `GAIN` is a part


@cache
def _quantile(freedom: int, looks: int) -> float:
    """Return Student's quantile for one of so many looks."""
    from scipy.stats import t

    return float(t.ppf(1 - _ERROR / 2 / looks, freedom))
