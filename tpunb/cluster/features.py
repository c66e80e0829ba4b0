"""Steps as points: one row a step, so that steps that do alike lie together.

Two spaces: :func:`features`, the default, and :func:`paper_features`, the paper's (section IV.A). Both start
from sparse step x op matrices, where a host op and a device op of one name are two columns, and end in principal
components. Beside them stands what every phase method needs: cells of like rows, and labels in order of time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tpunb.frames import Steps

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_COMPONENTS = 100
"""Principal components at most: the paper's "at most 100 distinct operations"."""
MOST_COLUMNS = 512
"""Columns of a block at most; beyond them the ones that vary least are left out."""
MOST_CELLS = 3000
"""Points that a method works on at most; beyond them like rows are merged."""

_VARIANCE = 0.99  # share that the components keep: a rare phase owns little of the variance, yet is a phase
_QUIET = 0.1  # a block that varies by less than this (10 %) is not blown up to the size of the others
_CHUNK = 2**22  # numbers that are dense at one time: 32 MiB


def _remembered(space: Callable[[Steps], Floats]) -> Callable[[Steps], Floats]:
    """Compute a space once for as long as its steps live: a method and the distances both ask for it."""
    known: WeakKeyDictionary[Steps, Floats] = WeakKeyDictionary()

    @wraps(space)
    def remembering(steps: Steps) -> Floats:
        if steps not in known:
            points = space(steps)
            points.flags.writeable = False  # it is handed to everyone who asks
            known[steps] = points
        return known[steps]

    return remembering


@_remembered
def features(steps: Steps) -> Floats:
    """Return the default space: which ops ran, how long each took, and how long the step took.

    Three blocks, each centred and divided by its first singular value (multiple factor analysis), so that none
    outshouts the others:

    - presence of each op, 0 or 1;
    - log1p of each op's self time in microseconds, weighted by the square root of the op's share of its side's
      self time, so that a distance is about the relative change of the step's time;
    - log of the step time.

    A block that hardly varies stays small. Then principal components, 100 at most.

    Parameters
    ----------
    steps
        To place; rows follow ``steps.frame``.

    Returns
    -------
    Floats
        (steps, components), without a unit; at least one column, and read-only.
    """
    from scipy.sparse import csr_array

    micros, sides = matrix(steps, "self_ps", scale=1e-6)
    ran = _alike_once(_where_present(micros))
    totals = _sums(micros)
    whole = np.bincount(sides, totals, minlength=2)[sides]
    share = np.divide(totals, whole, out=np.zeros_like(totals), where=whole > 0)
    np.log1p(micros.data, out=micros.data)
    micros.data *= np.sqrt(share).astype(np.float32)[micros.indices]
    step_us = steps.frame["dur_ps"].fill_null(0).clip(0).to_numpy() * 1e-6
    blocks = [ran, micros, csr_array(np.log1p(step_us)[:, None])]
    return _components([_most_varying(block) for block in blocks], _by_block, _VARIANCE)


@_remembered
def paper_features(steps: Steps) -> Floats:
    """Return the paper's space: how often each op ran in a step, and for how long (paper IV.A, k-means stage 1).

    Invocations and total durations, then principal components, 100 at most. The paper does not say how counts and
    durations share one space; here each column is standardised (mean 0, variance 1), because durations would bury
    the counts otherwise.

    Parameters
    ----------
    steps
        To place; rows follow ``steps.frame``.

    Returns
    -------
    Floats
        (steps, components), without a unit; at least one column, and read-only.
    """
    blocks = [matrix(steps, column, scale=scale)[0] for column, scale in (("count", 1.0), ("total_ps", 1e-6))]
    return _components([_most_varying(block) for block in blocks], _by_column, 1.0)


SPACES: dict[str, Callable[[Steps], Floats]] = {"default": features, "paper": paper_features}
"""The spaces by the name that a method's parameter gives them."""


def matrix(steps: Steps, column: str, *, scale: float = 1.0) -> tuple[csr_array, Ints]:
    """Return one column of ``steps.ops`` as a sparse step x op matrix, and the side of each op.

    Parameters
    ----------
    steps
        Rows follow ``steps.frame``.
    column
        Of ``tpunb.schema.OPS``: ``count``, ``total_ps`` or ``self_ps``.
    scale
        What its values are multiplied by.

    Returns
    -------
    matrix : csr_array
        (steps, ops) of float32. Every op that ran has an entry, be it 0.
    sides : Ints
        (ops,): 0 on the host, 1 on a device.
    """
    from scipy.sparse import csr_array

    rows = steps.frame.select("host", "step").with_columns(row=pl.int_range(pl.len(), dtype=pl.Int32))
    # sorted by name, for the same numbers whatever the order of the rows of `ops`
    names = (
        steps.ops.select("side", "op")
        .unique()
        .sort("side", pl.col("op").cast(pl.String))
        .with_columns(column=pl.int_range(pl.len(), dtype=pl.Int32))
    )
    entries = (
        steps.ops.lazy()
        .join(rows.lazy(), on=["host", "step"])
        .join(names.lazy(), on=["side", "op"])
        .select("row", "column", value=(pl.col(column).fill_null(0).clip(0) * scale).cast(pl.Float32))
        .collect()
    )
    where = (entries["row"].to_numpy(), entries["column"].to_numpy())
    sparse = csr_array((entries["value"].to_numpy(), where), shape=(rows.height, names.height))
    sparse.sum_duplicates()  # also sorts: no trace is left of the order of the rows of `ops`
    return sparse, names["side"].to_physical().to_numpy().astype(np.int64)


def presence(steps: Steps) -> csr_array:
    """Return which op ran in which step: (steps, ops) of ones, rows as in ``steps.frame``."""
    return _where_present(matrix(steps, "count")[0])


def _where_present(values: csr_array) -> csr_array:
    from scipy.sparse import csr_array

    ones = np.ones(values.nnz, dtype=np.float32)
    return csr_array((ones, values.indices, values.indptr), shape=values.shape)


def _alike_once(ran: csr_array) -> csr_array:
    """Return presence with one column for all ops that ran in the very same steps.

    m equal columns are one column times sqrt(m): every distance stays, and thousands of ops become a handful.
    """
    columns = ran[:, _sums(ran) > 0].tocsc()
    if not columns.shape[1]:
        return columns.tocsr()
    # The sum of one random number a step names the set of steps; two sets share a sum once in 2**64.
    names = np.random.default_rng(0).integers(2**64, size=ran.shape[0], dtype=np.uint64)
    sums = np.add.reduceat(names[columns.indices], columns.indptr[:-1])
    _, first, times = np.unique(sums, return_index=True, return_counts=True)
    kept = columns[:, first].tocsr()
    kept.data = np.sqrt(times).astype(np.float32)[kept.indices]
    return kept


def _most_varying(block: csr_array) -> csr_array:
    """Return the columns that vary, ``MOST_COLUMNS`` of them at most."""
    n = max(block.shape[0], 1)
    square = _sums(block, power=2) / n
    variance = square - (_sums(block) / n) ** 2
    varies = np.flatnonzero(variance > 1e-9 * square)
    if len(varies) == block.shape[1] <= MOST_COLUMNS:
        return block
    most = varies[np.argsort(-variance[varies], kind="stable")[:MOST_COLUMNS]]
    return block[:, np.sort(most)].tocsr()


def _sums(block: csr_array, power: int = 1) -> Floats:
    """Return the sum of each column's values to a power, in float64, which scipy's own sums of float32 are not."""
    sums = np.bincount(block.indices, block.data.astype(np.float64) ** power, minlength=block.shape[1])
    return np.asarray(sums, dtype=np.float64)


def _by_block(gram: Floats, widths: list[int]) -> Floats:
    """Return the factor of each column in multiple factor analysis: 1 / first singular value of its block."""
    factors = []
    for end, width in zip(np.cumsum(widths), widths, strict=True):
        block = gram[end - width : end, end - width : end]
        first = np.sqrt(max(np.linalg.eigvalsh(block)[-1], 0.0)) if width else 1.0
        factors.append(np.full(width, 1 / max(first, _QUIET)))
    return np.concatenate(factors)


def _by_column(gram: Floats, widths: list[int]) -> Floats:
    """Return the factor of each column that gives it variance 1."""
    return np.asarray(1 / np.sqrt(np.maximum(gram.diagonal(), np.finfo(float).tiny)), dtype=np.float64)


def _components(blocks: list[csr_array], factors: Callable[[Floats, list[int]], Floats], variance: float) -> Floats:
    """Return the leading principal components of blocks side by side.

    Through the covariance of the columns, a chunk of rows at a time: nothing of the size steps x ops gets dense.

    Parameters
    ----------
    blocks
        Sparse, of (steps, columns) each.
    factors
        From the covariance and the blocks' widths to what each column is multiplied by.
    variance
        Share of the variance to keep, 0 to 1.
    """
    from scipy.sparse import hstack

    whole = hstack(blocks, format="csr")
    n, d = whole.shape
    if not n or not d:
        return np.zeros((n, 1))
    mean = _sums(whole) / n
    size = max(1, _CHUNK // d)
    gram = np.zeros((d, d))
    for start in range(0, n, size):
        chunk = whole[start : start + size].toarray() - mean
        gram += chunk.T @ chunk
    gram /= n
    factor = factors(gram, [block.shape[1] for block in blocks])
    values, axes = np.linalg.eigh(gram * np.outer(factor, factor))
    values, axes = values[::-1].clip(0), axes[:, ::-1]
    kept = 1 + int(np.searchsorted(values.cumsum(), variance * values.sum() * (1 - 1e-9)))
    axes = axes[:, : min(kept, MOST_COMPONENTS, d)]
    strongest = np.abs(axes).argmax(axis=0)
    axes = axes * np.where(axes[strongest, np.arange(axes.shape[1])] < 0, -1.0, 1.0)  # an axis has no sign
    axes = axes * factor[:, None]
    return np.vstack([(whole[start : start + size].toarray() - mean) @ axes for start in range(0, n, size)]).round(
        9
    )  # like rows stay like: matrix products differ in the last digits


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
    """

    centres: Floats
    weights: Floats
    cell: Ints
    side: float


def cells(points: Floats) -> Cells:
    """Return `points` with like rows merged: so that a method's cost does not grow with the length of a run.

    Equal rows always share a cell. Only where more than ``MOST_CELLS`` differ, a grid over the ten leading columns
    is laid, as fine as that number allows.

    Parameters
    ----------
    points
        (rows, columns), the columns in order of weight, as principal components are.
    """
    key, side = points, 0.0
    while True:
        _, first, cell, counts = np.unique(_as_bytes(key), return_index=True, return_inverse=True, return_counts=True)
        if len(counts) <= MOST_CELLS:
            break
        side = side * 1.5 or float(np.ptp(points, axis=0).max()) / 1000
        key = np.round(points[:, :10] / side)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    cell, weights = place[cell.ravel()], counts[order].astype(np.float64)
    if not side:  # the rows of a cell are equal: take one, a mean would round
        return Cells(points[np.sort(first)], weights, cell, side)
    by_cell = np.argsort(cell, kind="stable")
    starts = np.concatenate([[0], np.cumsum(counts[order])[:-1]])
    return Cells(np.add.reduceat(points[by_cell], starts, axis=0) / weights[:, None], weights, cell, side)


def _as_bytes(rows: Floats) -> NDArray[np.void]:
    """Return each row as one value, which sorts faster than a row does; -0.0 counts as 0.0."""
    rows = np.ascontiguousarray(rows + 0.0)
    return rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).ravel()


def in_order(labels: NDArray[np.integer[Any]], steps: Steps) -> list[int]:
    """Return `labels` numbered 0, 1, 2, ... by first appearance in time; -1, noise, stays.

    >>> from tpunb.testing import toy_steps
    >>> in_order(np.array([7, -1, 3, 7]), toy_steps("abca"))
    [0, -1, 1, 0]
    """
    in_time = labels[np.argsort(steps.frame["start_ps"].to_numpy(), kind="stable")]
    found, first = np.unique(in_time[in_time >= 0], return_index=True)
    number = dict(zip(found[np.argsort(first)].tolist(), range(len(found)), strict=True))
    return [number.get(label, -1) for label in labels.tolist()]


class Parameters:
    """A phase method's parameters; its repr names those that are not the default."""

    def __repr__(self) -> str:
        told = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in fields(self)  # type: ignore[arg-type]  # every child is a dataclass
            if getattr(self, field.name) != field.default
        ]
        return f"{type(self).__name__}({', '.join(told)})"
