"""How well a predicted order of configurations agrees with the measured one: the metrics of TpuGraphs."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from tpunb.studies.ranking.measured import Floats


def kendall(predicted: ArrayLike, measured: ArrayLike) -> float | None:
    """Return Kendall's tau-b of two orders, -1 to 1; None if all of one are equal.

    >>> kendall([1, 2, 3], [10, 20, 30]), kendall([1, 1], [1, 2])
    (1.0, None)
    """
    from scipy.stats import kendalltau

    tau = float(kendalltau(predicted, measured)[0])
    return None if math.isnan(tau) else tau


def ordered_pairs(predicted: ArrayLike, measured: ArrayLike) -> float | None:
    """Return the share of pairs of different measured times whose order is predicted; None if there is none.

    Without ties, it is (tau + 1) / 2.

    >>> ordered_pairs([1, 3, 2], [1, 2, 3])
    0.6666666666666666
    """
    before, now = (np.sign(np.subtract.outer(values, values)) for values in map(np.asarray, (measured, predicted)))
    pairs = np.triu(before != 0, 1)
    return float((before == now)[pairs].mean()) if pairs.any() else None


def top_error(predicted: ArrayLike, measured: ArrayLike, k: int) -> float:
    """Return how much slower the best of the first `k` predicted is than the best of all: 0.01 is 1 %.

    >>> top_error([1, 2, 3], [30, 20, 10], 2)
    1.0
    """
    times = np.asarray(measured, float)
    first = np.argsort(predicted, kind="stable")[:k]
    return float(times[first].min() / times.min() - 1)


def random_error(measured: ArrayLike, k: int) -> float:
    """Return the mean of `top_error` over all choices of `k` configurations.

    >>> random_error([10, 20, 30], 1)
    1.0
    """
    times: Floats = np.sort(np.asarray(measured, float))
    n = times.size
    if k >= n:
        return 0.0
    # the best of k is the i-th of all in this many choices
    chances = np.array([math.comb(n - 1 - i, k - 1) for i in range(n)], float) / math.comb(n, k)
    return float(chances @ times / times[0] - 1)
