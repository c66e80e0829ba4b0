"""The loops that add up, by phase, what the step × operation matrix holds: compiled, and free of the GIL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tpunb.frames.op_matrix import Floats, Ints

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Entries(NamedTuple):
    """Which operations ran in each step, and what was told of them.

    Parameters
    ----------
    indptr, indices, order
        As in :class:`~tpunb.frames.op_matrix.OpMatrix`.
    times, total, own
        ``count``, ``total_ps`` and ``self_ps`` of the rows that `order` points to.
    """

    indptr: Ints
    indices: NDArray[np.int32]
    order: NDArray[Any]
    times: Ints
    total: Ints
    own: Ints


def _compiled(loop: Callable[_P, _R]) -> Callable[_P, _R]:
    kernel: Callable[_P, _R] = njit(nogil=True, cache=True, error_model="numpy")(loop)
    return kernel


@_compiled
def totals(rows: Ints, phase: Ints, entries: Entries, out: Ints) -> None:
    """Add up what was told of each operation in each phase, in whole numbers.

    Parameters
    ----------
    rows, phase
        (some,): the steps to add up, rising, and the phase of each.
    entries
        Of all steps.
    out
        (phases, ops, 5): in how many steps each op ran, how often, for how long in total, by itself, and by itself
        without what is below 0; added to.
    """
    longest = 0
    for i in range(rows.size):
        longest = max(longest, entries.indptr[rows[i] + 1] - entries.indptr[rows[i]])
    columns = np.empty(longest, np.uint32)
    for i in range(rows.size):
        begin, end = entries.indptr[rows[i]], entries.indptr[rows[i] + 1]
        order, indices = entries.order[begin:end], entries.indices[begin:end]
        sums = out[phase[i]]
        first = _as_told(indices, order, columns)
        if first >= 0:  # memory is read thrice as fast in the order in which it lies
            for k in range(order.size):
                _add(sums, columns[k], entries, first + k)
        else:
            for k in range(order.size):
                _add(sums, indices[k], entries, order[k])


@_compiled
def _as_told(indices: NDArray[np.int32], order: NDArray[Any], columns: NDArray[np.uint32]) -> int:
    """Write the columns of a step in the order of its rows; return the first row, or -1 where others lie between."""
    if not order.size:
        return -1
    first, last = order[0], order[0]
    for k in range(order.size):
        first, last = min(first, order[k]), max(last, order[k])
    if last - first + 1 != order.size:
        return -1
    for k in range(order.size):
        columns[np.uint64(order[k] - first)] = np.uint32(indices[k])
    return int(first)


@_compiled
def _add(sums: Ints, column: int, entries: Entries, row: int) -> None:
    at, of = np.uint64(column), np.uint64(row)  # unsigned: nothing counts from the end
    own = entries.own[of]
    sums[at, 0] += 1
    sums[at, 1] += entries.times[of]
    sums[at, 2] += entries.total[of]
    sums[at, 3] += own
    sums[at, 4] += max(own, 0)


@_compiled
def sums(phase: Ints, indptr: Ints, indices: NDArray[np.int32], values: NDArray[np.float32], out: Floats) -> None:
    """Add up the values of a sparse matrix of (steps, columns) by phase: `out` is (phases, columns)."""
    for row in range(phase.size):
        own = out[phase[row]]
        for k in range(indptr[row], indptr[row + 1]):
            own[np.uint64(indices[k])] += values[k]


@_compiled
def roots(
    rows: Ints,
    phase: Ints,
    weight: Floats,
    indptr: Ints,
    indices: NDArray[np.int32],
    values: NDArray[np.float32],
    out: Floats,
) -> None:
    """Add up, weighted by step, the square roots of the values of some `rows`, as `sums` does."""
    for i in range(rows.size):
        own = out[phase[i]]
        for k in range(indptr[rows[i]], indptr[rows[i] + 1]):
            own[np.uint64(indices[k])] += weight[i] * np.sqrt(values[k])


@_compiled
def add_up(phase: Ints, values: Ints, out: Ints) -> None:
    """Add up the rows of `values`, (steps, columns), by phase: `out` is (phases, columns)."""
    for i in range(phase.size):
        own = out[phase[i]]
        for k in range(values.shape[1]):
            own[k] += values[i, k]


@_compiled
def middles(phase: Ints, rising: Ints, values: Ints, size: Ints, out: Ints) -> None:
    """Write the two values in the middle of each phase, which are one where their number is odd.

    Parameters
    ----------
    phase, values
        Of each step.
    rising
        The steps by their values, lowest first, as many as `size` says.
    size
        How many of them are in each phase.
    out
        (phases, 2).
    """
    come = np.zeros(size.size, np.int64)
    for row in rising:
        own = phase[row]
        if come[own] == (size[own] - 1) // 2:
            out[own, 0] = values[row]
        if come[own] == size[own] // 2:
            out[own, 1] = values[row]
        come[own] += 1
