"""What operations add up to in each phase, in one look at what ran in each step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tpunb.frames.op_matrix import Floats, Ints, op_matrix
from tpunb.frames.steps import Steps

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_NUMBERS = 2**20  # that are dense at one time: a phase each step must not cost steps × ops of memory
_FIGURES = ("ran", "count", "total_ps", "self_ps", "spent_ps")


def indexed(labels: NDArray[np.integer[Any]]) -> tuple[Ints, Ints]:
    """Return the labels that there are, rising, and the place of each one among them: ``np.unique``, without sorting.

    >>> found, at = indexed(np.array([3, -1, 3]))
    >>> found.tolist(), at.tolist()
    ([-1, 3], [1, 0, 1])
    """
    low, high = int(labels.min(initial=0)), int(labels.max(initial=0))
    if high - low > len(labels) + 1000:  # as a rule they count from 0
        found, at = np.unique(labels, return_inverse=True)
        return found.astype(np.int64), at
    there = np.bincount(labels - low, minlength=1) > 0
    return np.flatnonzero(there) + low, (np.cumsum(there) - 1)[labels - low]


def totals(steps: Steps, labels: Ints) -> pl.DataFrame:
    """Return what each operation adds up to in each phase: one row a phase and an operation that ran in it, sorted.

    Its columns: ``phase``; ``column``, the operation's in the `op_matrix` of `steps`; in how many steps it ``ran``;
    ``count``, ``total_ps`` and ``self_ps``, as in ``tpunb.schema.OPS``, where what is unknown counts as 0; and
    ``spent_ps``, its self time where what is below 0 counts as 0 too. All Int64, and exact.

    Parameters
    ----------
    steps
        Whose operations.
    labels
        (steps,): the phase of each.

    >>> from tpunb.testing import toy_steps
    >>> totals(toy_steps("aab"), np.array([0, 0, 1])).select("phase", "column", "ran", "count").row(0)
    (0, 0, 2, 4)
    """
    from tpunb.frames import phase_loops  # compiled: it takes half a second, and those who only import need not wait

    matrix = op_matrix(steps)
    entries = phase_loops.Entries(
        matrix.indptr.astype(np.int64, copy=False),
        matrix.indices.astype(np.int32, copy=False),
        matrix.order,
        *(matrix.told[name].fill_null(0).to_numpy() for name in ("count", "total_ps", "self_ps")),
    )
    found, phase = indexed(labels)
    d = matrix.shape[1]
    told = [np.zeros((0, 2 + len(_FIGURES)), dtype=np.int64)]
    for first, size, rows in _blocks(phase, len(found), d):
        sums = np.zeros((size, d, len(_FIGURES)), dtype=np.int64)
        phase_loops.totals(rows, phase[rows] - first, entries, sums)
        of, column = np.nonzero(sums[:, :, 0])
        told.append(np.column_stack([found[first + of], column, sums[of, column]]))
    return pl.DataFrame(np.concatenate(told), schema=dict.fromkeys(("phase", "column", *_FIGURES), pl.Int64))


def sums(values: csr_array, phase: Ints, phases: int) -> Floats:
    """Return the sums of each column over the steps of each phase, in float64: (phases, columns).

    Parameters
    ----------
    values
        (steps, columns), of float32.
    phase
        (steps,): the phase of each, from 0.
    phases
        How many there are.

    >>> from scipy.sparse import csr_array
    >>> sums(csr_array(np.float32([[1, 0], [2, 3]])), np.array([0, 0]), 1)
    array([[3., 3.]])
    """
    from tpunb.frames import phase_loops  # as late as in `totals`

    out = np.zeros((phases, values.shape[1]))
    indptr, indices = values.indptr.astype(np.int64, copy=False), values.indices.astype(np.int32, copy=False)
    phase_loops.sums(phase.astype(np.int64, copy=False), indptr, indices, values.data, out)
    return out


def root_sums(values: csr_array, phase: Ints, weight: Floats) -> Iterator[tuple[int, Floats]]:
    """Yield the first of some phases, and the weighted sums of the square roots of their steps' values.

    Parameters
    ----------
    values
        (steps, columns), of float32.
    phase
        (steps,): the phase of each, from 0; -1 for those that are left out.
    weight
        (steps,): what the roots of each are multiplied by.
    """
    from tpunb.frames import phase_loops  # as late as in `totals`

    indptr, indices = values.indptr.astype(np.int64, copy=False), values.indices.astype(np.int32, copy=False)
    for first, size, rows in _blocks(phase, int(phase.max(initial=-1)) + 1, values.shape[1]):
        out = np.zeros((size, values.shape[1]))
        phase_loops.roots(rows, phase[rows] - first, weight[rows], indptr, indices, values.data, out)
        yield first, out


def _blocks(phase: Ints, phases: int, columns: int) -> Iterator[tuple[int, int, Ints]]:
    """Yield phases that are added up at one time: the first, how many, and the rows of their steps, rising."""
    most = max(1, _NUMBERS // max(columns, 1))
    block = phase // most
    rows = np.argsort(block, kind="stable")
    edges = np.searchsorted(block[rows], np.arange(-(-phases // most) + 1))
    for first, begin, end in zip(range(0, phases, most), edges[:-1], edges[1:], strict=True):
        yield first, min(most, phases - first), rows[begin:end]
