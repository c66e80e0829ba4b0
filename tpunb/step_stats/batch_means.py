"""Differences between two series of steps, with intervals that hold for autocorrelated steps: batch means."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tpunb.frames.op_matrix import Floats

BATCHES = 20
"""Fewest batches of adjacent steps for an interval, given as many steps."""

_UPPER = 0.975  # quantile of a 95 % interval
_ROUNDING = 1e-9  # share of the mean: a smaller spread is none


def difference(a: Floats, b: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the mean of `b` minus that of `a`, and the ends of its 95 % interval: NaN if unknown.

    Welch's t (Welch 1947) on the means of batches of adjacent steps, whose spread includes the autocorrelation of steps
    (Schmeiser 1982: 10 to 30 batches). Correlated batches widen it; values are (steps, ...) in order of time.

    >>> [end.round(2).item() for end in difference(np.array([1.0, 2.0, 3.0]), np.array([5.0, 6.0, 7.0]))]
    [4.0, 1.73, 6.27]
    """
    change = mean(b) - mean(a)
    low, high = ends(change, (error(means(a), len(a)), len(a)), (error(means(b), len(b)), len(b)))
    return change, low, high


def mean(values: Floats) -> Floats:
    """Return the mean along the first axis; NaN if it is empty."""
    return np.asarray(values.mean(axis=0) if len(values) else np.full(values.shape[1:], np.nan))


def batch(n: int) -> int:
    """Return the number of steps in a batch of `n` steps; the remainder is left out.

    >>> batch(7), batch(39), batch(1000)
    (1, 1, 50)
    """
    return max(1, n // BATCHES)


def means(values: Floats) -> Floats:
    """Return the means of the batches of (steps, ...)."""
    size = batch(len(values))
    complete = values[: len(values) // size * size]
    return np.asarray(complete.reshape(-1, size, *values.shape[1:]).mean(axis=1))


def error(of_batches: Floats, n: int) -> Floats:
    """Return the squared standard error of the mean of `n` steps from their batches; NaN for fewer than two."""
    if len(of_batches) < 2:
        return np.full(of_batches.shape[1:], np.nan)
    variance = np.asarray(of_batches.var(axis=0, ddof=1))
    constant = variance <= (_ROUNDING * of_batches.mean(axis=0)) ** 2
    return np.where(constant, 0, variance * _inflation(of_batches) * batch(n) / n)


def _inflation(of_batches: Floats) -> Floats:
    """Return the variance inflation (1 + r) / (1 - r) of a first-order autoregressive series; 1 for fewer than four."""
    # r is the correlation of adjacent batches, corrected for its bias (Marriott and Pope 1954), 0 to 0.95
    n = len(of_batches)
    if n < 4:
        return np.ones(of_batches.shape[1:])
    off = of_batches - of_batches.mean(axis=0)
    square = np.square(off).sum(axis=0)
    r = (off[1:] * off[:-1]).sum(axis=0) / np.maximum(square, np.finfo(float).tiny)
    r = (r + (1 + 3 * r) / n).clip(0, 0.95)
    return np.asarray((1 + r) / (1 - r))


def ends(change: Floats, a: tuple[Floats, int], b: tuple[Floats, int]) -> tuple[Floats, Floats]:
    """Return the ends of the 95 % interval of a change, from the squared standard error and the steps of each side."""
    from scipy.special import stdtrit

    (error_a, n_a), (error_b, n_b) = a, b
    free_a, free_b = (max(n // batch(n) - 1, 1) for n in (n_a, n_b))
    both = error_a + error_b
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom = both**2 / (error_a**2 / free_a + error_b**2 / free_b)  # Welch 1947, equation 28
    width = np.where(both > 0, stdtrit(freedom, _UPPER) * np.sqrt(both), np.nan)
    return change - width, change + width
