"""Compiled loops over the entries of a sparse matrix of steps × operations: NumPy makes a copy of all for each.

Sums add up in the order of the entries, as `numpy.bincount` does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpunb.compiled import compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Singles = NDArray[np.float32]
Columns = NDArray[np.int32]


@compiled
def first_rows(codes: NDArray[np.uint32]) -> Ints:
    """Return the first row of each code, -1 for those that do not occur."""
    most = np.uint32(0)
    for code in codes:
        most = max(most, code)
    first = np.full(np.int64(most) + 1, -1, np.int64)
    for row in range(codes.size):
        if first[codes[row]] < 0:
            first[codes[row]] = row
    return first


@compiled
def places(labels: Ints, low: int, high: int) -> tuple[Ints, Ints]:
    """Return the distinct labels, ascending, all from `low` to `high`, and the place of each label among them."""
    number = np.zeros(high - low + 1, np.int64)
    for label in labels:
        number[label - low] = 1
    distinct = np.flatnonzero(number)
    number[distinct] = np.arange(distinct.size)
    place = np.empty(labels.size, np.int64)
    for row in range(labels.size):
        place[row] = number[labels[row] - low]
    return distinct + low, place


@compiled
def in_order(rows: Columns, columns: Columns) -> bool:
    """Return whether entries are by row and column, each once."""
    for at in range(1, rows.size):
        if rows[at] < rows[at - 1] or (rows[at] == rows[at - 1] and columns[at] <= columns[at - 1]):
            return False
    return True


@compiled
def values(column: NDArray[Any], order: NDArray[Any], scale: float) -> Singles:
    """Return a column in the order of entries as single precision, times `scale`; negative values are 0."""
    out, factor = np.empty(order.size, np.float32), np.float32(scale)
    for at in range(order.size):
        out[at] = max(np.float32(column[order[at]]), np.float32(0)) * factor
    return out


@compiled
def column_sums(data: Singles, columns: Columns, mean: Singles, power: int, part: int) -> Floats:
    """Return the sum of each column's values less `mean`, to a power of 1 or 2, by parts of so many entries."""
    sums = np.zeros(mean.size)
    for begin in range(0, data.size, part):
        of_part = np.zeros(mean.size)
        for at in range(begin, min(begin + part, data.size)):
            value = np.float64(data[at] - mean[columns[at]])
            of_part[columns[at]] += value * value if power > 1 else value
        sums += of_part
    return sums


@compiled
def counts(columns: Columns, size: int) -> Ints:
    """Return the number of entries of each column."""
    found = np.zeros(size, np.int64)
    for column in columns:
        found[column] += 1
    return found


@compiled
def of_sides(indptr: Ints, columns: Columns, data: Singles, sides: Ints, least: Floats) -> tuple[Floats, Floats]:
    """Return of each column the sum of its values, and of the sums of its side in its rows, `least` or more."""
    spent, whole, base = np.zeros(sides.size), np.zeros(sides.size), np.zeros(2)
    for row in range(indptr.size - 1):
        base[:] = 0
        for at in range(indptr[row], indptr[row + 1]):
            base[sides[columns[at]]] += np.float64(data[at])
        for at in range(indptr[row], indptr[row + 1]):
            spent[columns[at]] += np.float64(data[at])
            whole[columns[at]] += max(base[sides[columns[at]]], least[row])
    return spent, whole


@compiled
def names_of_rows(indptr: Ints, columns: Columns, names: Floats, size: int) -> Floats:
    """Return the sum over the rows of each column of numbers that name the rows: (columns, names)."""
    sums = np.zeros((size, names.shape[1]))
    for row in range(indptr.size - 1):
        for at in range(indptr[row], indptr[row + 1]):
            for name in range(names.shape[1]):
                sums[columns[at], name] += names[row, name]
    return sums


@compiled
def folded(
    indptr: Ints, columns: Columns, data: Singles, place: Ints, mean: Singles, weight: Singles
) -> tuple[Ints, Columns, Singles]:
    """Return the entries of the columns with a place, less their mean, times their weight: row ends, places, values."""
    ends, count = np.zeros(indptr.size, np.int64), 0
    for column in columns:
        count += place[column] >= 0
    kept, out = np.empty(count, np.int32), np.empty(count, data.dtype)
    count = 0
    for row in range(indptr.size - 1):
        for at in range(indptr[row], indptr[row + 1]):
            column = columns[at]
            if place[column] >= 0:
                kept[count], out[count] = place[column], (data[at] - mean[column]) * weight[column]
                count += 1
        ends[row + 1] = count
    return ends, kept, out


@compiled
def add_dense(indptr: Ints, columns: Columns, data: Singles, place: Ints, out: NDArray[Any]) -> None:
    """Add entries of the first rows to a dense array, each at the place of its column, -1 for those left out."""
    for row in range(out.shape[0]):
        for at in range(indptr[row], indptr[row + 1]):
            if place[columns[at]] >= 0:
                out[row, place[columns[at]]] += data[at]
