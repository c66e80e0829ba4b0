"""By how much two series of steps differ, with an interval that holds though steps resemble their neighbours."""

from __future__ import annotations

import numpy as np

from tpunb.frames.op_matrix import Floats

BATCHES = 20
"""Means of neighbouring steps that an interval is made from at least, where there are as many steps."""

_UPPER = 0.975  # of 95 %
_ROUNDING = 1e-9  # of the mean: a spread below that is none


def difference(a: Floats, b: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the mean of `b` less that of `a`, and the ends of its 95 % interval: NaN where nothing can be told.

    Welch's t (Welch 1947) on the means of batches of neighbouring steps: a step that resembles the one before tells
    little anew, and a batch of them has that in its spread (Schmeiser 1982: 10 to 30 batches serve). Below 40 steps
    each is a batch of its own. Where batches still resemble their neighbours, that widens the interval once more. There
    is no interval of fewer than two steps, nor where neither side varies.

    Parameters
    ----------
    a, b
        (steps, ...), in order of time; compared along the first axis, of any length.

    >>> [end.round(2).item() for end in difference(np.array([1.0, 2.0, 3.0]), np.array([5.0, 6.0, 7.0]))]
    [4.0, 1.73, 6.27]
    """
    change = mean(b) - mean(a)
    low, high = ends(change, (error(means(a), len(a)), len(a)), (error(means(b), len(b)), len(b)))
    return change, low, high


def mean(values: Floats) -> Floats:
    """Return the mean along the first axis; NaN of nothing."""
    return np.asarray(values.mean(axis=0) if len(values) else np.full(values.shape[1:], np.nan))


def batch(n: int) -> int:
    """Return how many of `n` steps make a batch; fewer than that are left over at the end.

    >>> batch(7), batch(39), batch(1000)
    (1, 1, 50)
    """
    return max(1, n // BATCHES)


def means(values: Floats) -> Floats:
    """Return the means of the batches of (steps, ...)."""
    size = batch(len(values))
    whole = values[: len(values) // size * size]
    return np.asarray(whole.reshape(-1, size, *values.shape[1:]).mean(axis=1))


def error(of_batches: Floats, n: int) -> Floats:
    """Return the squared standard error of the mean of `n` steps, given their batches; NaN of fewer than two."""
    if len(of_batches) < 2:
        return np.full(of_batches.shape[1:], np.nan)
    variance = np.asarray(of_batches.var(axis=0, ddof=1))
    nothing = variance <= (_ROUNDING * of_batches.mean(axis=0)) ** 2
    return np.where(nothing, 0, variance * _stretch(of_batches) * batch(n) / n)


def _stretch(of_batches: Floats) -> Floats:
    """Return by what a variance grows where each batch resembles the one before: (1 + r) / (1 - r).

    As in an autoregressive series of first order, r being the correlation of neighbours, set right for its bias
    (Marriott and Pope 1954), 0 to 0.95; 1 of fewer than four.
    """
    n = len(of_batches)
    if n < 4:
        return np.ones(of_batches.shape[1:])
    off = of_batches - of_batches.mean(axis=0)
    square = np.square(off).sum(axis=0)
    r = (off[1:] * off[:-1]).sum(axis=0) / np.maximum(square, np.finfo(float).tiny)
    r = (r + (1 + 3 * r) / n).clip(0, 0.95)
    return np.asarray((1 + r) / (1 - r))


def ends(change: Floats, a: tuple[Floats, int], b: tuple[Floats, int]) -> tuple[Floats, Floats]:
    """Return the ends of the 95 % interval of a change, given the squared standard error of each side and its steps."""
    from scipy.special import stdtrit

    (one, n_a), (other, n_b) = a, b
    free_a, free_b = (max(n // batch(n) - 1, 1) for n in (n_a, n_b))
    both = one + other
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom = both**2 / (one**2 / free_a + other**2 / free_b)  # Welch 1947, equation 28
    width = np.where(both > 0, stdtrit(freedom, _UPPER) * np.sqrt(both), np.nan)
    return change - width, change + width
