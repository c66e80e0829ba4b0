"""Compiled loops over the entries of a sparse matrix of steps × operations: NumPy makes a copy of all for each.

Sums add up in the order of the entries, as `numpy.bincount` does. What a short run calls instead is above each loop.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpunb.compiled import compiled_later

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Singles = NDArray[np.float32]
Columns = NDArray[np.int32]


def _first_rows(codes: NDArray[np.uint32]) -> Ints:
    first = np.full(int(codes.max(initial=0)) + 1, -1, np.int64)
    first[codes[::-1]] = np.arange(codes.size)[::-1]  # the last one stays
    return first


@compiled_later(_first_rows)
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


@compiled_later()
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


def _in_order(rows: Columns, columns: Columns) -> bool:
    below, right = np.diff(rows), np.diff(columns)
    return bool(((below > 0) | ((below == 0) & (right > 0))).all())


@compiled_later(_in_order)
def in_order(rows: Columns, columns: Columns) -> bool:
    """Return whether entries are by row and column, each once."""
    for at in range(1, rows.size):
        if rows[at] < rows[at - 1] or (rows[at] == rows[at - 1] and columns[at] <= columns[at - 1]):
            return False
    return True


def _values(column: NDArray[Any], order: NDArray[Any], scale: float) -> Singles:
    return np.asarray(np.maximum(column[order].astype(np.float32), np.float32(0)) * np.float32(scale))


@compiled_later(_values)
def values(column: NDArray[Any], order: NDArray[Any], scale: float) -> Singles:
    """Return a column in the order of entries as single precision, times `scale`; negative values are 0."""
    out, factor = np.empty(order.size, np.float32), np.float32(scale)
    for at in range(order.size):
        out[at] = max(np.float32(column[order[at]]), np.float32(0)) * factor
    return out


def _column_sums(data: Singles, columns: Columns, mean: Singles, power: int, part: int) -> Floats:
    sums = np.zeros(mean.size)
    for begin in range(0, data.size, part):
        at = columns[begin : begin + part]
        sums += np.bincount(at, (data[begin : begin + part] - mean[at]).astype(np.float64) ** power, mean.size)
    return sums


@compiled_later(_column_sums)
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


@compiled_later(lambda columns, size: np.bincount(columns, minlength=size))
def counts(columns: Columns, size: int) -> Ints:
    """Return the number of entries of each column."""
    found = np.zeros(size, np.int64)
    for column in columns:
        found[column] += 1
    return found


def _of_sides(indptr: Ints, columns: Columns, data: Singles, sides: Ints, least: Floats) -> tuple[Floats, Floats]:
    rows, values = rows_of(indptr), data.astype(np.float64)
    side = 2 * rows + sides[columns]
    whole = np.maximum(np.bincount(side, values, 2 * indptr.size)[side], least[rows])
    of_columns = [np.bincount(columns, each, sides.size).astype(np.float64) for each in (values, whole)]
    return of_columns[0], of_columns[1]


def rows_of(indptr: Ints) -> Ints:
    """Return the row of each entry."""
    return np.repeat(np.arange(indptr.size - 1), np.diff(indptr))


@compiled_later(_of_sides)
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


def _names_of_rows(indptr: Ints, columns: Columns, names: Floats, size: int) -> Floats:
    rows = rows_of(indptr)
    return np.column_stack([np.bincount(columns, name[rows], size) for name in names.T]).astype(np.float64)


@compiled_later(_names_of_rows)
def names_of_rows(indptr: Ints, columns: Columns, names: Floats, size: int) -> Floats:
    """Return the sum over the rows of each column of numbers that name the rows: (columns, names)."""
    sums = np.zeros((size, names.shape[1]))
    for row in range(indptr.size - 1):
        for at in range(indptr[row], indptr[row + 1]):
            for name in range(names.shape[1]):
                sums[columns[at], name] += names[row, name]
    return sums


def _folded(
    indptr: Ints, columns: Columns, data: Singles, place: Ints, mean: Singles, weight: Singles
) -> tuple[Ints, Columns, Singles]:
    is_kept = place[columns] >= 0
    kept = columns[is_kept]
    ends = np.append(0, np.cumsum(is_kept))[indptr]
    return ends, place[kept].astype(np.int32), (data[is_kept] - mean[kept]) * weight[kept]


@compiled_later(_folded)
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


def _add_dense(indptr: Ints, columns: Columns, data: Singles, place: Ints, out: NDArray[Any]) -> None:
    begin, end = indptr[0], indptr[len(out)]
    at = place[columns[begin:end]]
    np.add.at(out, (rows_of(indptr[: len(out) + 1])[at >= 0], at[at >= 0]), data[begin:end][at >= 0])


@compiled_later(_add_dense)
def add_dense(indptr: Ints, columns: Columns, data: Singles, place: Ints, out: NDArray[Any]) -> None:
    """Add entries of the first rows to a dense array, each at the place of its column, -1 for those left out."""
    for row in range(out.shape[0]):
        for at in range(indptr[row], indptr[row + 1]):
            if place[columns[at]] >= 0:
                out[row, place[columns[at]]] += data[at]
