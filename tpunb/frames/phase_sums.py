"""Sums over the steps of each phase, of what the step × operation matrix holds: compiled, and free of the GIL.

Compiling takes half a second, so import this module inside the function that needs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tpunb.compiled import compiled, compiled_later
from tpunb.frames.op_matrix import Floats, Ints, factorize, int_arrays, op_matrix, self_times
from tpunb.frames.sparse_loops import rows_of
from tpunb.frames.steps import Steps

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_NUMBERS = 2**20  # dense at one time: a phase per step must not take steps × ops of memory
_LEAST_VARIANCE = 0.1**2 / 4  # of steps whose operations' times vary by 10 %
_FIGURES = ("ran", "count", "total_ps", "self_ps", "spent_ps")


class _Entries(NamedTuple):
    """Entries of an `OpMatrix`, and the columns of the rows that `order` points to."""

    indptr: Ints
    indices: NDArray[np.int32]
    order: NDArray[Any]
    counts: Ints
    total_ps: Ints
    self_ps: Ints


def totals(steps: Steps, labels: Ints) -> pl.DataFrame:
    """Return the totals of each operation in each phase, exact: one row per phase and operation that ran in it, sorted.

    ``column`` is that of the `op_matrix`, ``ran`` the number of steps, ``spent_ps`` self time, negative values as 0.

    >>> from tpunb.testing import toy_steps
    >>> totals(toy_steps("aab"), np.array([0, 0, 1])).select("phase", "column", "ran", "count").row(0)
    (0, 0, 2, 4)
    """
    matrix = op_matrix(steps)
    entries = _Entries(
        *int_arrays(matrix), matrix.order, *(matrix.column(name) for name in ("count", "total_ps", "self_ps"))
    )
    distinct, phase = factorize(labels)
    d = matrix.shape[1]
    blocks = [np.zeros((0, 2 + len(_FIGURES)), dtype=np.int64)]
    for first, size, rows in _blocks(phase, len(distinct), d):
        out = np.zeros((size, d, len(_FIGURES)), dtype=np.int64)
        _totals(rows, phase[rows] - first, entries, out)
        at, column = np.nonzero(out[:, :, 0])
        blocks.append(np.column_stack([distinct[first + at], column, out[at, column]]))
    return pl.DataFrame(np.concatenate(blocks), schema=dict.fromkeys(("phase", "column", *_FIGURES), pl.Int64))


def sums(values: csr_array, phase: Ints, phases: int) -> Floats:
    """Return the sum of each column over the steps of each phase, numbered from 0, in float64: (phases, columns).

    >>> from scipy.sparse import csr_array
    >>> sums(csr_array(np.float32([[1, 0], [2, 3]])), np.array([0, 0]), 1)
    array([[3., 3.]])
    """
    out = np.zeros((phases, values.shape[1]))
    _sums(phase.astype(np.int64, copy=False), *int_arrays(values), values.data, out)
    return out


def root_sums(values: csr_array, phase: Ints, weight: Floats) -> Iterator[tuple[int, Floats]]:
    """Yield blocks of phases: the first of each, and the sums of the square roots of their steps' values.

    The roots of a step are multiplied by its weight; steps of phase -1 are left out.
    """
    for first, size, rows in _blocks(phase, int(phase.max(initial=-1)) + 1, values.shape[1]):
        out = np.zeros((size, values.shape[1]))
        _root_sums(rows, phase[rows] - first, weight[rows], *int_arrays(values), values.data, out)
        yield first, out


def explained_variance(steps: Steps, labels: pl.Series) -> float:
    """Return :attr:`tpunb.frames.Phases.explained_variance` of steps with these labels, one per row of their frame."""
    times, total = self_times(steps)
    full = (steps.frame["traced"] == "full").fill_null(False).to_numpy()
    dur = np.where(total > 0, steps.frame["dur_ps"].fill_null(0).clip(1).to_numpy().astype(np.float64), 0.0)
    phase = np.full(len(dur), -1, dtype=np.int64)
    phase[full] = factorize(labels.to_numpy()[full])[1]
    spent = np.bincount(phase[full], dur[full])
    run_time = float(spent.sum())
    if not run_time:
        return 1.0
    between, centre = 0.0, np.zeros(times.shape[1])
    for first, roots in root_sums(times, phase, dur / np.sqrt(total.clip(1))):
        time = spent[first : first + len(roots)]
        between += float(np.square(roots)[time > 0].sum(axis=1) @ (1 / time[time > 0]))
        centre += roots.sum(axis=0)
    variance = run_time - float(np.square(centre).sum()) / run_time
    within = max(0.0, run_time - between)
    return min(1.0, 1 - within / max(variance, _LEAST_VARIANCE * run_time))


def _blocks(phase: Ints, phases: int, columns: int) -> Iterator[tuple[int, int, Ints]]:
    """Yield the phases to sum at one time: the first, their number, and the rows of their steps, ascending."""
    most = max(1, _NUMBERS // max(columns, 1))
    block = phase // most
    rows = np.argsort(block, kind="stable")
    edges = np.searchsorted(block[rows], np.arange(-(-phases // most) + 1))
    for first, begin, end in zip(range(0, phases, most), edges[:-1], edges[1:], strict=True):
        yield first, min(most, phases - first), rows[begin:end]


def _totals_of_few(rows: Ints, phase: Ints, entries: _Entries, out: Ints) -> None:
    ends = entries.indptr[rows + 1]
    of_phase, at = np.repeat(phase, ends - entries.indptr[rows]), _within(entries.indptr[rows], ends)
    order = entries.order[at]
    self_ps = entries.self_ps[order]
    figures = (np.ones_like(self_ps), entries.counts[order], entries.total_ps[order], self_ps, self_ps.clip(0))
    np.add.at(out, (of_phase, entries.indices[at]), np.column_stack(figures))


def _within(begins: Ints, ends: Ints) -> Ints:
    """Return the numbers from each begin to before its end, in one array."""
    size = ends - begins
    return np.arange(size.sum()) + np.repeat(ends - np.cumsum(size), size)


@compiled_later(_totals_of_few)
def _totals(rows: Ints, phase: Ints, entries: _Entries, out: Ints) -> None:
    """Add the figures of each operation in each phase to `out`, (phases, ops, 5)."""
    longest = 0
    for i in range(rows.size):
        longest = max(longest, entries.indptr[rows[i] + 1] - entries.indptr[rows[i]])
    columns = np.empty(longest, np.uint32)
    for i in range(rows.size):
        begin, end = entries.indptr[rows[i]], entries.indptr[rows[i] + 1]
        order, indices = entries.order[begin:end], entries.indices[begin:end]
        sums = out[phase[i]]
        first = _in_row_order(indices, order, columns)
        if first >= 0:  # memory is read three times as fast in its own order
            for k in range(order.size):
                _add(sums, columns[k], entries, first + k)
        else:
            for k in range(order.size):
                _add(sums, indices[k], entries, order[k])


@compiled
def _in_row_order(indices: NDArray[np.int32], order: NDArray[Any], columns: NDArray[np.uint32]) -> int:
    """Write the columns of a step in the order of its rows; return the first row, -1 if they are not adjacent."""
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


@compiled
def _add(sums: Ints, column: int, entries: _Entries, row: int) -> None:
    to, at = np.uint64(column), np.uint64(row)  # unsigned: no index counts from the end
    self_ps = entries.self_ps[at]
    sums[to, 0] += 1
    sums[to, 1] += entries.counts[at]
    sums[to, 2] += entries.total_ps[at]
    sums[to, 3] += self_ps
    sums[to, 4] += max(self_ps, 0)


def _sums_of_few(phase: Ints, indptr: Ints, indices: Ints, values: Floats, out: Floats) -> None:
    np.add.at(out, (phase[rows_of(indptr)], indices), values)


@compiled_later(_sums_of_few)
def _sums(phase: Ints, indptr: Ints, indices: NDArray[np.int32], values: NDArray[np.float32], out: Floats) -> None:
    for row in range(phase.size):
        sums = out[phase[row]]
        for k in range(indptr[row], indptr[row + 1]):
            sums[np.uint64(indices[k])] += values[k]


def _root_sums_of_few(
    rows: Ints, phase: Ints, weight: Floats, indptr: Ints, indices: Ints, values: Floats, out: Floats
) -> None:
    size, at = np.diff(indptr)[rows], _within(indptr[rows], indptr[rows + 1])
    np.add.at(out, (np.repeat(phase, size), indices[at]), np.repeat(weight, size) * np.sqrt(values[at]))


@compiled_later(_root_sums_of_few)
def _root_sums(
    rows: Ints,
    phase: Ints,
    weight: Floats,
    indptr: Ints,
    indices: NDArray[np.int32],
    values: NDArray[np.float32],
    out: Floats,
) -> None:
    for i in range(rows.size):
        sums = out[phase[i]]
        for k in range(indptr[rows[i]], indptr[rows[i] + 1]):
            sums[np.uint64(indices[k])] += weight[i] * np.sqrt(values[k])


class StepValues(NamedTuple):
    """What depends on the steps alone, one row per step; an order leaves out the rows that have no such value."""

    flags: Ints  # number of the combination of flags and kind
    sums: Ints  # (steps, columns), to add up
    mxu: Floats  # utilisation times picoseconds
    time: Ints  # 0 where null
    varies: NDArray[np.int8]  # 1 if the time counts for the variance, 2 if only in phases without a 1, else 0
    exclusive: Ints
    kind_median: Ints  # of `exclusive` over the kind
    by_time: Ints
    by_start: Ints
    by_exclusive: Ints  # rows that took time


@compiled_later()
def phase_sums(phase: Ints, phases: int, flags: int, values: StepValues) -> tuple[Ints, Ints, Floats]:
    """Return the number of steps of each phase by flags, the sums of its columns, and sums of floats, (phases, 3).

    These are the utilisation, and the times whose `varies` is 1, and 2.
    """
    counts, floats = np.zeros((phases, flags), np.int64), np.zeros((phases, 3))
    sums = np.zeros((phases, values.sums.shape[1]), np.int64)
    for row in range(phase.size):
        at = phase[row]
        counts[at, values.flags[row]] += 1
        for k in range(values.sums.shape[1]):
            sums[at, k] += values.sums[row, k]
        floats[at, 0] += values.mxu[row]
        if values.varies[row]:
            floats[at, values.varies[row]] += values.time[row]
    return counts, sums, floats


@compiled_later()
def phase_deviations(
    phase: Ints, values: StepValues, varies: Ints, mean: Floats, usual: Ints, ratio: float
) -> tuple[Ints, Floats]:
    """Return the productive time of each phase, and the sum of the squares of its times less their mean.

    `varies` is that of the times which count, `usual` the median exclusive time, -1 for that of the kind, up to `ratio`
    times which a step is productive in full.
    """
    productive, squares = np.zeros(usual.size, np.int64), np.zeros(usual.size)
    for row in range(phase.size):
        at = phase[row]
        median = values.kind_median[row] if usual[at] < 0 else usual[at]
        deviates = values.exclusive[row] > ratio * median
        productive[at] += median if deviates else values.exclusive[row]
        if values.varies[row] == varies[at]:
            squares[at] += (values.time[row] - mean[at]) ** 2
    return productive, squares


@compiled_later()
def middle_values(phase: Ints, ascending: Ints, values: Ints, size: Ints) -> Ints:
    """Return the two middle values of each phase, (phases, 2); equal if their number is odd, 0 if there are none.

    `ascending` are the rows of the steps in order of their values, `size` of them in each phase; -1 is no phase.
    """
    out, count = np.zeros((size.size, 2), np.int64), np.zeros(size.size, np.int64)
    low, high = (size - 1) // 2, size // 2
    for row in ascending:
        at = phase[row]
        if at < 0:
            continue
        if count[at] == low[at]:
            out[at, 0] = values[row]
        if count[at] == high[at]:
            out[at, 1] = values[row]
        count[at] += 1
    return out


@compiled_later()
def phase_ends(phase: Ints, values: StepValues, size: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the first and the last row of each phase by start, (phases, 2), `size` of them in each; -1 without any.

    And 2 · phase for the rows of its first tenth, one more for the last, else -1, (steps,); and how many of each took
    time.
    """
    ends, tenth, tenths = np.full((size.size, 2), -1), np.full(phase.size, -1), np.zeros(2 * size.size, np.int64)
    count, part = np.zeros(size.size, np.int64), (size + 9) // 10
    for row in values.by_start:
        at = phase[row]
        if not count[at]:
            ends[at, 0] = row
        ends[at, 1] = row
        is_last = count[at] >= size[at] - part[at]
        if is_last or count[at] < part[at]:
            tenth[row] = 2 * at + is_last
            tenths[tenth[row]] += values.exclusive[row] > 0
        count[at] += 1
    return ends, tenth, tenths


@compiled_later()
def part_sums(group: Ints, of_step: Ints, row: Ints, kind: Ints, values: Floats, size: int, out: Floats) -> None:
    """Add values to `out`, (groups · `size`, kinds), at the number below `size` of the step in their row."""
    for k in range(row.size):
        out[group[k] * size + of_step[row[k]], kind[k]] += values[k]
