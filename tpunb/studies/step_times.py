"""Time of a step at each point of a sweep, from rounds on a machine that other work slows down at times."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

_FEWEST_POINTS = 4  # points that show what a round has in common


class StepTime(NamedTuple):
    """Seconds of a step: the median of the rounds and its interval, of 95 % by default; NaN without a round."""

    median: float
    low: float
    high: float


def step_times(rounds: ArrayLike, *, confidence: float = 0.95) -> list[StepTime]:
    """Return the time of a step at each point.

    What slowed all points of a round is divided out: the median, over the points, of the round's time by the point's
    median. With fewer than 4 points nothing is. The interval is that of order statistics, of fewer than six rounds the
    least and the greatest.

    Parameters
    ----------
    rounds
        Seconds of shape (rounds, points); NaN where a point was not reached.
    confidence
        Share of intervals that contain the true median.

    >>> [round(time.median, 3) for time in step_times([[1, 2, 3, 4], [2, 4, 6, 8], [1, 2, 3, 4]])]
    [1.0, 2.0, 3.0, 4.0]
    """
    seconds = np.atleast_2d(np.asarray(rounds, float))
    return [_time(column[~np.isnan(column)], confidence) for column in (seconds / _slowness(seconds)).T]


def _slowness(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return by how much each round was slower than the median one, of shape (rounds, 1)."""
    ones = np.ones((len(seconds), 1))
    whole = seconds[:, ~np.isnan(seconds).any(axis=0)]
    if whole.shape[1] < _FEWEST_POINTS or len(seconds) < 2:
        return ones
    factors = np.median(whole / np.median(whole, axis=0), axis=1)
    return np.asarray(factors / np.median(factors)).reshape(ones.shape)


def _time(seconds: NDArray[np.float64], confidence: float) -> StepTime:
    if not len(seconds):
        return StepTime(np.nan, np.nan, np.nan)
    from scipy.stats import binom

    ordered = np.sort(seconds)
    out = max(int(binom.ppf((1 - confidence) / 2, len(ordered), 0.5)) - 1, 0)
    return StepTime(float(np.median(ordered)), float(ordered[out]), float(ordered[-1 - out]))
