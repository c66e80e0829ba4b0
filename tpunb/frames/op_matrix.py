"""What ran in each step, as one sparse matrix of steps × operations; from Polars, without a dense pivot."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tpunb.frames.steps import Steps

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class OpMatrix:
    """Which operations ran in which step; a host op and a device op of one name are two.

    Parameters
    ----------
    ops
        (side, op): one row a column of the matrix, sorted by side and name.
    indptr
        (steps + 1,): where each step's entries begin; steps as in ``Steps.frame``.
    indices
        (entries,): the column of each, rising within a step. Every op that ran has one, be it of no time.
    order
        (entries,): the row of `told` that each entry comes from.
    told
        ``Steps.ops``. The steps themselves are not held: as long as they were, they would be remembered for ever.
    """

    ops: pl.DataFrame
    indptr: Ints
    indices: NDArray[np.int32]
    order: NDArray[Any]
    told: pl.DataFrame

    @property
    def shape(self) -> tuple[int, int]:
        """(steps, ops)."""
        return len(self.indptr) - 1, self.ops.height

    @property
    def sides(self) -> Ints:
        """(ops,): 0 on the host, 1 on a device."""
        return self.ops["side"].to_physical().to_numpy().astype(np.int64)

    def values(self, column: str, *, scale: float = 1.0) -> csr_array:
        """Return one column of ``Steps.ops`` as a matrix of float32; what is unknown or negative is 0.

        Parameters
        ----------
        column
            Of ``tpunb.schema.OPS``: ``count``, ``total_ps`` or ``self_ps``.
        scale
            What its values are multiplied by.
        """
        told = self.told[column].cast(pl.Float32).fill_null(0).to_numpy()[self.order]
        return self._sparse(np.maximum(told, 0, out=told) * np.float32(scale))

    def presence(self) -> csr_array:
        """Return which op ran in which step, as ones."""
        return self._sparse(np.ones(len(self.indices), np.float32))

    def _sparse(self, values: NDArray[np.float32]) -> csr_array:
        from scipy.sparse import csr_array

        return csr_array((values, self.indices, self.indptr), shape=self.shape)


_KNOWN: WeakKeyDictionary[Steps, OpMatrix] = WeakKeyDictionary()


def op_matrix(steps: Steps) -> OpMatrix:
    """Return which operations ran in which of `steps`: made once for as long as they live.

    >>> from tpunb.testing import toy_steps
    >>> matrix = op_matrix(toy_steps("ab"))
    >>> matrix.shape, matrix.values("count").toarray()[0].tolist()
    ((2, 8), [2.0, 0.0, 1.0, 2.0, 3.0, 0.0, 0.0, 0.0])
    """
    if steps not in _KNOWN:
        _KNOWN[steps] = _made(steps)
    return _KNOWN[steps]


def _made(steps: Steps) -> OpMatrix:
    from scipy.sparse import csr_array

    rows, known = _rows(steps)
    columns, ops = _columns(steps.ops)
    order = np.arange(len(rows), dtype=np.int32 if len(rows) < 2**31 else np.int64)
    if not known.all():  # operations of steps that are not there
        rows, columns, order = rows[known], columns[known], order[known]
    n, d = len(steps), ops.height
    key_falls = (rows[1:] < rows[:-1]) | ((rows[1:] == rows[:-1]) & (columns[1:] <= columns[:-1]))
    if not key_falls.any():
        indptr = np.zeros(n + 1, dtype=np.int64)
        np.cumsum(np.bincount(rows, minlength=n), out=indptr[1:])
        return OpMatrix(ops, indptr, columns, order, steps.ops)
    matrix = csr_array((order, (rows, columns)), shape=(n, d))
    if matrix.nnz < len(order):  # an operation told twice of one step
        own = pl.col("count", "total_ps", "self_ps").sum()
        return _made(replace(steps, ops=steps.ops.group_by("host", "step", "op", "side", maintain_order=True).agg(own)))
    return OpMatrix(ops, matrix.indptr, matrix.indices, matrix.data, steps.ops)


def _rows(steps: Steps) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Return of each row of ``steps.ops`` the row of its step in ``steps.frame``, and whether it has one."""
    ops = steps.ops.select("host", "step")
    # the operations of a step stand together, as a rule: one look-up a stretch of them
    first = (pl.col("step") != pl.col("step").shift()) | (pl.col("host") != pl.col("host").shift())
    heads = ops.lazy().with_row_index("begin").filter(first.fill_null(True)).collect()
    places = steps.frame.select("host", "step", place=pl.int_range(pl.len(), dtype=pl.Int32))
    place = heads.join(places, on=["host", "step"], how="left", maintain_order="left")["place"].fill_null(-1).to_numpy()
    lengths = np.diff(heads["begin"].to_numpy().astype(np.int64), append=ops.height)
    rows = np.repeat(place, lengths)
    return rows, rows >= 0


def _columns(ops: pl.DataFrame) -> tuple[NDArray[np.int32], pl.DataFrame]:
    """Return the column of each row of `ops`, and (side, op) of each column."""
    # categories and sides are numbers already; sorted by name, whatever the order of the rows
    code = ops["op"].to_physical().to_numpy() * np.uint32(2) + ops["side"].to_physical().to_numpy()
    there = np.zeros(int(code.max(initial=0)) + 1, dtype=bool)
    there[code] = True
    first = np.zeros(len(there), dtype=np.int64)
    first[code[::-1]] = np.arange(len(code))[::-1]
    named = ops[first[there]].select("side", "op").with_columns(code=np.flatnonzero(there))
    named = named.sort("side", pl.col("op").cast(pl.String))
    column = np.zeros(len(there), dtype=np.int32)
    column[named["code"].to_numpy()] = np.arange(named.height)
    return column[code], named.drop("code")
