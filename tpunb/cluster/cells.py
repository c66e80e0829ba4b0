"""Like steps merged: so that a method's cost does not grow with the length of a run."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tpunb.cluster.features import Features, space
from tpunb.errors import TpunbError
from tpunb.frames import Steps
from tpunb.frames.memory import remembered
from tpunb.frames.op_matrix import Floats, Ints

MOST_CELLS = 3000
"""Points that a method works on at most; beyond them like rows are merged."""
MOST_LOST = 0.1
"""Share of the scatter that merging may hide: beyond it cells say too little of the steps in them."""

_GRID = 10  # leading columns that the grid is laid over
_FINEST = 1000  # cells along the widest column, at first
_ROWS = 8192  # whose distances are taken at one time
_STEP = 0x9E3779B97F4A7C15
_MIX = [(np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB))]


@dataclass(frozen=True, eq=False)
class Cells:
    """Points with like rows merged, in order of their first row.

    Parameters
    ----------
    centres
        (cells, columns): the mean of a cell's rows.
    weights
        (cells,): how many rows a cell holds.
    cell
        (rows,): the cell of each row.
    side
        Of the grid that merged them; 0.0 where only equal rows share a cell.
    within
        The sum of squared distances of all rows to the centres of their cells: for every labelling of the cells, the
        squared error of the rows is that of the cells, weighted, plus this.
    lost
        `within` as a share of the scatter of all rows about their mean, 0 to 1.
    spread
        (cells, columns): the variance of a cell's rows about its centre.
    """

    centres: Floats
    weights: Floats
    cell: Ints
    side: float
    within: float
    lost: float
    spread: Floats


def cells(points: Floats, columns: int | None = None) -> Cells:
    """Return `points` with like rows merged.

    Equal rows always share a cell. Only where more than ``MOST_CELLS`` differ, a grid over the ten leading columns
    is laid, as fine as that number allows.

    Parameters
    ----------
    points
        (rows, columns), the columns in order of weight, as principal components are.
    columns
        How many of the leading ones must not be merged too far; all unless given.

    Raises
    ------
    TpunbError
        When cells that few hide more than ``MOST_LOST`` of the scatter in these columns.

    >>> cells(np.array([[0.0], [1.0], [0.0]])).weights.tolist()
    [2.0, 1.0]
    """
    from scipy.sparse import csr_array

    width = points.shape[1] if columns is None else columns
    first, cell, counts = _unique(points)
    side, leading = 0.0, points[:, : min(width, _GRID)]
    while len(counts) > MOST_CELLS:
        side = side * 1.5 or float(np.ptp(leading, axis=0).max()) / _FINEST
        first, cell, counts = _unique(np.round(leading / side))
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    cell, weights = place[cell], counts[order].astype(np.float64)
    if not side:  # the rows of a cell are equal: take one, a mean would round
        centres = points[np.sort(first)]
        return Cells(centres, weights, cell, side, 0.0, 0.0, np.zeros(centres.shape))
    n = len(points)
    held = csr_array((np.ones(n), (cell, np.arange(n))), shape=(len(weights), n))
    centres = held @ points / weights[:, None]
    squares = np.einsum("ij,ij->j", points, points)
    scatter = squares - n * np.square(points.mean(axis=0))
    within = (squares - weights @ np.square(centres)).clip(0)
    lost = within[:width].sum() / scatter[:width].sum()
    if lost > MOST_LOST:
        raise TpunbError(
            f"{len(points)} steps differ too much to be merged: {len(weights)} cells hide {lost:.0%} of what sets them "
            "apart",
            hint="choose features in which fewer columns vary, such as features=('time_share', 'step_time')",
        )
    spread = (held @ np.square(points) / weights[:, None] - np.square(centres)).clip(0)
    return Cells(centres, weights, cell, side, float(within.sum()), float(within.sum() / scatter.sum()), spread)


def leading_cells(points: Floats) -> Cells:
    """Return the cells of as many leading columns as so few can tell apart: all of them, as a rule.

    Where steps vary in many ways at once, as noise does, fewer leading columns rule the merging, half as many by
    turns; the error within the cells stays that of all columns.

    Parameters
    ----------
    points
        (rows, columns), as for `cells`.

    Warns
    -----
    UserWarning
        Where not all columns rule, of how much of the scatter the cells hide.

    Raises
    ------
    TpunbError
        When not even the first column can be told apart.
    """
    merged, width = _leading(points)
    _warn_of(merged, width)
    return merged


def cells_of(steps: Steps, features: Features) -> Cells:
    """Return the `leading_cells` of `steps` in a space: made once for as long as they live.

    Parameters
    ----------
    steps, features
        As for :func:`tpunb.cluster.features.space`.

    Warns
    -----
    UserWarning
        As for `leading_cells`, each time.

    Raises
    ------
    TpunbError
        As for `leading_cells`.
    """
    merged, width = _known_cells(steps, features)
    _warn_of(merged, width)
    return merged


@remembered
def _known_cells(steps: Steps, features: Features) -> tuple[Cells, int]:
    return _leading(space(steps, features).points)


def _leading(points: Floats) -> tuple[Cells, int]:
    """Return the leading cells, and how many columns rule them."""
    width = points.shape[1]
    while True:
        try:
            return cells(points, width), width
        except TpunbError:
            if width == 1:
                raise
            width = (width + 1) // 2


def _warn_of(merged: Cells, width: int) -> None:
    columns = merged.centres.shape[1]
    if width < columns:
        warnings.warn(
            f"{len(merged.cell)} steps differ in too many ways: like ones are merged by {width} of {columns} "
            f"components, which hides {merged.lost:.0%} of the scatter",
            stacklevel=4,
        )


def strays(points: Floats, merged: Cells, distance: float) -> NDArray[np.bool_]:
    """Return the rows farther than `distance` from the centre of their cell: no neighbours of the others there.

    A grid over the leading columns cannot tell them; none where the rows of a cell are equal. Where all rows lie far
    from their centres, as in noise of many columns, only those are strays that lie four times as far as is typical.
    """
    if not merged.side:
        return np.zeros(len(points), dtype=np.bool_)
    square = np.concatenate(
        [
            np.square(points[start : start + _ROWS] - merged.centres[merged.cell[start : start + _ROWS]]).sum(axis=1)
            for start in range(0, len(points), _ROWS)
        ]
    )
    return np.asarray(square > max(distance**2, 16 * merged.within / len(points)))


def _unique(rows: Floats) -> tuple[Ints, Ints, Ints]:
    """Return the first row of each kind, the kind of each row, and how many rows are of each kind."""
    # Each row as one sum of well mixed bits: unlike rows share one once in 2**64, and numbers sort fast.
    names = np.zeros(len(rows), dtype=np.uint64)
    for column in range(rows.shape[1]):
        number = rows[:, column] + 0.0  # -0.0 counts as 0.0
        mixed = number.view(np.uint64) ^ np.uint64(column * _STEP % 2**64)
        for shift, factor in _MIX:  # Stafford's finaliser: every bit of a number sways every bit of the result
            mixed = (mixed ^ (mixed >> shift)) * factor
        names += mixed ^ (mixed >> np.uint64(31))
    _, first, kind, counts = np.unique(names, return_index=True, return_inverse=True, return_counts=True)
    return first, kind.ravel(), counts
