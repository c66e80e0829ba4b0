"""Operations of each step as one sparse matrix, steps × operations; built from Polars without a dense pivot."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tpunb.frames.cache import memoised
from tpunb.frames.steps import Steps

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class OpMatrix:
    """Which operations ran in which step; a host op and a device op of the same name are two columns."""

    ops: pl.DataFrame  # side and name of each column, sorted by both: (side, op)
    indptr: Ints  # first entry of each step, (steps + 1,); steps as in ``Steps.frame``
    # column of each entry, (entries,), ascending within a step. An op that ran in no time has an entry too
    indices: NDArray[np.int32]
    order: NDArray[Any]  # row of `table` of each entry, (entries,)
    table: pl.DataFrame  # ``Steps.ops``. The steps themselves are not held: the cache would keep them alive

    @property
    def shape(self) -> tuple[int, int]:
        """(steps, ops)."""
        return len(self.indptr) - 1, self.ops.height

    @property
    def sides(self) -> Ints:
        """(ops,): 0 on the host, 1 on a device."""
        return self.ops["side"].to_physical().to_numpy().astype(np.int64)

    def column(self, name: str) -> Ints:
        """Return a column of ``Steps.ops``, in the order of its rows; null is 0."""
        return np.asarray(self.table[name].fill_null(0).to_numpy())

    def values(self, column: str, *, scale: float = 1.0) -> csr_array:
        """Return a column of ``Steps.ops`` times `scale` as a matrix of float32; null and negative values are 0."""
        from tpunb.frames import sparse_loops  # compiled

        return self._sparse(sparse_loops.values(self.column(column), self.order, scale))

    def presence(self) -> csr_array:
        """Return which op ran in which step, as ones."""
        return self._sparse(np.ones(len(self.indices), np.float32))

    def _sparse(self, values: NDArray[np.float32]) -> csr_array:
        return sparse(values, self.indices, self.indptr, self.shape)


@memoised
def distinct_ops(steps: Steps) -> pl.DataFrame:
    """Return the distinct (side, category, op) of the operations of steps, in no order."""
    return steps.ops.lazy().select("side", "category", "op").unique().collect(engine="streaming")


def of_ops(steps: Steps, chosen: pl.DataFrame, columns: list[str]) -> pl.DataFrame:
    """Return these columns, and side, category and op, of the operations whose (side, category, op) are `chosen`."""
    key = ["side", "category", "op"]
    if chosen.is_empty():
        return steps.ops.select(*columns, *key).clear()
    by_op = steps.ops.filter(pl.col("op").is_in(chosen["op"].unique().implode()))  # a join is slower
    return by_op.select(*columns, *key).join(chosen, on=key, how="semi", nulls_equal=True)


@memoised
def op_matrix(steps: Steps) -> OpMatrix:
    """Return the operations of `steps` as a matrix, built once per steps.

    >>> from tpunb.testing import toy_steps
    >>> matrix = op_matrix(toy_steps("ab"))
    >>> matrix.shape, matrix.values("count").toarray()[0].tolist()
    ((2, 8), [2.0, 0.0, 1.0, 2.0, 3.0, 0.0, 0.0, 0.0])
    """
    return _build(steps)


def _build(steps: Steps) -> OpMatrix:
    from scipy.sparse import csr_array

    from tpunb.frames import sparse_loops  # compiled

    rows = _rows(steps)
    columns, ops = _columns(steps.ops)
    order = np.arange(len(rows), dtype=np.int32 if len(rows) < 2**31 else np.int64)
    inside = rows >= 0
    if not inside.all():  # operations of steps that are not in the frame
        rows, columns, order = rows[inside], columns[inside], order[inside]
    n, d = len(steps), ops.height
    if sparse_loops.in_order(rows, columns):
        return OpMatrix(ops, np.searchsorted(rows, np.arange(n + 1, dtype=np.int32)), columns, order, steps.ops)
    matrix = csr_array((order, (rows, columns)), shape=(n, d))
    if matrix.nnz < len(order):  # an operation has two rows in one step
        sums = pl.col("count", "total_ps", "self_ps").sum()
        key = ("host", "step", "op", "side")
        return _build(replace(steps, ops=steps.ops.group_by(key, maintain_order=True).agg(sums)))
    return OpMatrix(ops, matrix.indptr, matrix.indices, matrix.data, steps.ops)


def _rows(steps: Steps) -> NDArray[np.int32]:
    """Return the row in ``steps.frame`` of each row of ``steps.ops``, -1 if its step is not there."""
    ops = steps.ops.select("host", "step")
    step, number, hosts = steps.frame["step"], ops["step"], steps.frame["host"].unique().to_list()
    numbers = step.drop_nulls().to_numpy()
    low, high = (int(numbers.min()), int(numbers.max())) if numbers.size else (0, 0)
    dense = high - low <= len(ops) and not step.null_count() and not number.null_count()
    if dense and len(hosts) == 1 and ops["host"].unique().to_list() == hosts:  # a table by step number
        place = np.full(high - low + 2, -1, np.int32)  # the last is that of other steps
        place[numbers - low] = np.arange(numbers.size)
        of_step = number.to_numpy() - low
        return np.asarray(place[np.where((of_step < 0) | (of_step > high - low), -1, of_step)])
    # the operations of a step are usually adjacent: one look-up per stretch of them
    first = (pl.col("step") != pl.col("step").shift()) | (pl.col("host") != pl.col("host").shift())
    heads = ops.lazy().with_row_index("begin").filter(first.fill_null(True)).collect()
    places = steps.frame.select("host", "step", place=pl.int_range(pl.len(), dtype=pl.Int32))
    place = heads.join(places, on=["host", "step"], how="left", maintain_order="left")["place"].fill_null(-1).to_numpy()
    return np.repeat(place, np.diff(heads["begin"].to_numpy().astype(np.int64), append=ops.height))


def _columns(ops: pl.DataFrame) -> tuple[NDArray[np.int32], pl.DataFrame]:
    """Return the column of each row of `ops`, and (side, op) of each column."""
    from tpunb.frames import sparse_loops  # compiled

    # categories and sides are numbers already; columns are sorted by name, whatever the order of the rows
    code = ops["op"].to_physical().to_numpy() * np.uint32(2) + ops["side"].to_physical().to_numpy()
    first = sparse_loops.first_rows(code)
    used = first >= 0
    named = ops[first[used]].select("side", "op").with_columns(code=np.flatnonzero(used))
    named = named.sort("side", pl.col("op").cast(pl.String))
    column = np.zeros(len(used), dtype=np.int32)
    column[named["code"].to_numpy()] = np.arange(named.height)
    return column[code], named.drop("code")


def sparse(values: NDArray[Any], indices: NDArray[np.int32], indptr: Ints, shape: tuple[int, int]) -> csr_array:
    """Return a sparse matrix of its arrays; SciPy would copy `indices` to the type of `indptr`."""
    from scipy.sparse import csr_array

    return csr_array((values, indices, indptr.astype(np.int32 if len(indices) < 2**31 else np.int64)), shape=shape)


def int_arrays(matrix: Any) -> tuple[Ints, NDArray[np.int32]]:
    """Return the index arrays of a sparse matrix in the types that loops are compiled for."""
    return matrix.indptr.astype(np.int64, copy=False), matrix.indices.astype(np.int32, copy=False)


def factorize(labels: NDArray[np.integer[Any]]) -> tuple[Ints, Ints]:
    """Return the distinct labels, ascending, and the place of each label among them: ``np.unique`` without a sort.

    >>> distinct, place = factorize(np.array([3, -1, 3]))
    >>> distinct.tolist(), place.tolist()
    ([-1, 3], [1, 0, 1])
    """
    low, high = int(labels.min(initial=0)), int(labels.max(initial=0))
    if high - low > len(labels) + 1000:  # labels usually count from 0
        distinct, place = np.unique(labels, return_inverse=True)
        return distinct.astype(np.int64), place
    from tpunb.frames import sparse_loops  # compiled

    return sparse_loops.places(labels.astype(np.int64, copy=False), low, high)


@memoised
def self_times(steps: Steps) -> tuple[csr_array, Floats]:
    """Return the self times of each step, (steps, ops), and their sum: (steps,)."""
    times = op_matrix(steps).values("self_ps")
    return times, np.asarray(times.sum(axis=1, dtype=np.float64))
