"""Knee of a curve: kneed, with None for curves that have none."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Literal

import numpy as np


def knee(
    x: Sequence[int],
    y: Sequence[float],
    *,
    curve: Literal["convex", "concave"] = "convex",
    direction: Literal["decreasing", "increasing"] = "decreasing",
) -> int | None:
    """Return the x of the knee of a curve, or None if it has none.

    The Kneedle algorithm (Satopaa et al. 2011) of the package kneed. None for fewer than four points, a straight line,
    a curve that bends the other way everywhere, and values that are not finite. A knee at 0 is a knee: test
    ``is None``.

    Parameters
    ----------
    x
        Ascending values.
    y
        One value per x.
    curve, direction
        Shape of the curve; the default is an elbow: falling, ever more slowly.

    Raises
    ------
    ValueError
        If `x` and `y` differ in length.

    >>> knee(range(1, 8), [100, 40, 10, 9, 8, 7, 6])
    3
    >>> knee([0, 1, 2, 3], [4, 3, 2, 1]) is None
    True
    """
    xs, ys = np.asarray(x, dtype=np.int64), np.asarray(y, dtype=np.float64)
    if len(xs) != len(ys):
        raise ValueError(f"The y parameter of knee must be as long as x, {len(xs)}. Got {len(ys)} instead.")
    if len(xs) < 4 or not np.isfinite(ys).all() or np.ptp(ys) == 0:
        return None
    bend = np.interp(xs, xs[[0, -1]], ys[[0, -1]]) - ys  # from the curve up to the line between its ends
    if (bend if curve == "convex" else -bend).max() <= 1e-9 * np.ptp(ys):
        return None  # kneed finds knees in the rounding of a straight line, and at the ends of the opposite shape

    from kneed import KneeLocator

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "No knee/elbow found" is the answer None
        found = KneeLocator(xs, ys, curve=curve, direction=direction).knee
    return None if found is None else int(found)
