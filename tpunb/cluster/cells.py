"""Like steps merged: so that a method's cost does not grow with the length of a run."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np

from tpunb.errors import TpunbError
from tpunb.frames.op_matrix import Floats, Ints

MOST_CELLS = 3000
"""Points that a method works on at most; beyond them like rows are merged."""
MOST_LOST = 0.1
"""Share of the scatter that merging may hide: beyond it cells say too little of the steps in them."""

_GRID = 10  # leading columns that the grid is laid over
_FINEST = 1000  # cells along the widest column, at first
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
    """

    centres: Floats
    weights: Floats
    cell: Ints
    side: float
    within: float
    lost: float


def cells(points: Floats) -> Cells:
    """Return `points` with like rows merged.

    Equal rows always share a cell. Only where more than ``MOST_CELLS`` differ, a grid over the ten leading columns
    is laid, as fine as that number allows.

    Parameters
    ----------
    points
        (rows, columns), the columns in order of weight, as principal components are.

    Raises
    ------
    TpunbError
        When cells that few hide more than ``MOST_LOST`` of the scatter.

    >>> cells(np.array([[0.0], [1.0], [0.0]])).weights.tolist()
    [2.0, 1.0]
    """
    from scipy.sparse import csr_array

    first, cell, counts = _unique(points)
    side = 0.0
    while len(counts) > MOST_CELLS:
        side = side * 1.5 or float(np.ptp(points[:, :_GRID], axis=0).max()) / _FINEST
        first, cell, counts = _unique(np.round(points[:, :_GRID] / side))
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    cell, weights = place[cell], counts[order].astype(np.float64)
    if not side:  # the rows of a cell are equal: take one, a mean would round
        return Cells(points[np.sort(first)], weights, cell, side, 0.0, 0.0)
    n = len(points)
    held = csr_array((np.ones(n), (cell, np.arange(n))), shape=(len(weights), n))
    centres = held @ points / weights[:, None]
    squares = float(np.einsum("ij,ij->", points, points))
    scatter = squares - n * float(np.square(points.mean(axis=0)).sum())
    within = max(0.0, squares - float(weights @ np.square(centres).sum(axis=1)))
    if within > MOST_LOST * scatter:
        raise TpunbError(
            f"{len(points)} steps differ too much to be merged: {len(weights)} cells hide {within / scatter:.0%} of "
            "what sets them apart",
            hint="merge fewer columns",
        )
    return Cells(centres, weights, cell, side, within, within / scatter)


def leading_cells(points: Floats) -> Cells:
    """Return the cells of as many leading columns as so few can tell apart: all of them, as a rule.

    Where all steps vary in many ways at once, the trailing columns are given up, the halves of them by turns, and a
    warning says how much of the scatter is left.

    Parameters
    ----------
    points
        (rows, columns), as for `cells`.
    """
    width = points.shape[1]
    while True:
        try:
            merged = cells(points[:, :width])
        except TpunbError:
            if width == 1:
                raise
            width = (width + 1) // 2
            continue
        if width < points.shape[1]:
            kept = float(points[:, :width].var(axis=0).sum() / points.var(axis=0).sum())
            warnings.warn(
                f"{len(points)} steps differ in too many ways: phases are sought in {width} of {points.shape[1]} "
                f"components, which hold {kept:.0%} of the scatter",
                stacklevel=2,
            )
        return merged


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
