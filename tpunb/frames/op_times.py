"""The self times of operations by step, read where they stand: nothing of the size steps × operations is made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_ENTRIES = 2**22  # rows of ``Steps.ops`` that are read at one time


class OpTimes:
    """Self times of the operations of some steps; a host op and a device op of one name are two.

    Parameters
    ----------
    frame
        (host, step), one row a step.
    ops
        ``tpunb.schema.OPS``; operations of steps that are not in `frame` are left out.

    Attributes
    ----------
    names
        (side, op): one row a column of what is read here, sorted by side and name.

    >>> from tpunb.testing import toy_steps
    >>> steps = toy_steps("aab")
    >>> times = OpTimes(steps.frame, steps.ops)
    >>> times.names["op"].to_list()
    ['a_host', 'b_host', 'a0', 'a1', 'a2', 'b0', 'b1', 'b2']
    >>> (times.sums(np.array([0, 1])) / 1e6).round().tolist()
    [500.0, 0.0, 167.0, 333.0, 500.0, 0.0, 0.0, 0.0]
    """

    def __init__(self, frame: pl.DataFrame, ops: pl.DataFrame) -> None:
        # the operations of a step stand together, as a rule: one look-up a stretch of them
        first = (pl.col("step") != pl.col("step").shift()) | (pl.col("host") != pl.col("host").shift())
        heads = ops.lazy().select("host", "step").with_row_index("begin").filter(first.fill_null(True)).collect()
        heads = heads.with_columns(length=pl.col("begin").cast(pl.Int64).diff().shift(-1).fill_null(0))
        length = heads["length"].to_numpy().copy()
        length[-1:] = ops.height - heads["begin"][-1:].to_numpy()
        places = frame.select("host", "step", place=pl.int_range(pl.len()))
        place = heads.join(places, on=["host", "step"], how="left", maintain_order="left")["place"].fill_null(-1)
        order = np.argsort(place.to_numpy(), kind="stable")
        self._begin, self._length = heads["begin"].to_numpy().astype(np.int64)[order], length[order]
        self._of = np.searchsorted(place.to_numpy()[order], np.arange(frame.height + 1))  # stretches of each step
        self._op = ops["op"].to_physical().to_numpy()
        self._side = ops["side"].to_physical().to_numpy()
        self._self = ops["self_ps"].fill_null(0).to_numpy()
        self._column, self.names = self._columns(ops, place.to_numpy() >= 0, heads["begin"].to_numpy(), length)

    def _columns(
        self, ops: pl.DataFrame, known: NDArray[np.bool_], begin: NDArray[Any], length: Ints
    ) -> tuple[NDArray[np.int32], pl.DataFrame]:
        """Return the column of each (op, side), and what the columns are; sorted by name, whatever the rows' order."""
        first = np.zeros(2 * (int(self._op.max(initial=0)) + 1), dtype=np.int64)
        there = np.zeros(len(first), dtype=bool)
        for rows in _chunks(begin[known].astype(np.int64), length[known]):
            code = self._code(rows)
            first[code], there[code] = rows, True
        named = ops[first[there]].select("side", "op").with_columns(code=np.flatnonzero(there))
        named = named.sort("side", pl.col("op").cast(pl.String))
        column = np.zeros(len(first), dtype=np.int32)
        column[named["code"].to_numpy()] = np.arange(named.height)
        return column, named.drop("code")

    def _code(self, rows: Ints) -> Ints:
        return np.asarray(self._op[rows].astype(np.int64) * 2 + self._side[rows], dtype=np.int64)

    def _entries(self, steps: Ints) -> Iterator[tuple[Ints, NDArray[np.int32], Floats]]:
        """Yield the place among `steps`, the column and the self time of each of their operations, in chunks."""
        stretches = _ranges(self._of[steps], self._of[steps + 1] - self._of[steps])
        place = np.repeat(np.arange(len(steps)), self._of[steps + 1] - self._of[steps])
        begin, length = self._begin[stretches], self._length[stretches]
        for part in _parts(length):
            rows = _ranges(begin[part], length[part])
            own: Floats = np.maximum(self._self[rows], 0).astype(np.float64)
            yield np.repeat(place[part], length[part]), self._column[self._code(rows)], own

    def sums(self, steps: Ints, weight: Floats | None = None, *, power: float = 1.0) -> Floats:
        """Return the sum over `steps` (rows of the frame) of each operation's self time to a power, weighted."""
        total = np.zeros(self.names.height)
        for place, column, own in self._entries(steps):
            own = own if power == 1 else own**power
            total += np.bincount(column, own if weight is None else own * weight[place], minlength=len(total))
        return total

    def wholes(self, steps: Ints) -> Floats:
        """Return the self time of all operations of each of `steps`, in picoseconds."""
        whole = np.zeros(len(steps))
        for place, _, own in self._entries(steps):
            whole += np.bincount(place, own, minlength=len(whole))
        return whole

    def dense(self, steps: Ints) -> Floats:
        """Return the self times of a few steps, (steps, ops), in picoseconds."""
        d = self.names.height
        table = np.zeros(len(steps) * d)
        for place, column, own in self._entries(steps):
            table += np.bincount(place * d + column, own, minlength=len(table))
        return table.reshape(len(steps), d)


def _ranges(begin: Ints, length: Ints) -> Ints:
    """Return the numbers from each `begin` on, `length` of them, one after the other.

    >>> _ranges(np.array([5, 1]), np.array([2, 3])).tolist()
    [5, 6, 1, 2, 3]
    """
    return np.arange(length.sum()) + np.repeat(begin - np.cumsum(length) + length, length)


def _parts(length: Ints) -> Iterator[slice]:
    """Yield slices of stretches that hold ``_ENTRIES`` rows or one stretch each."""
    ends = np.cumsum(length)
    start = 0
    while start < len(length):
        before = ends[start] - length[start]
        stop = max(start + 1, int(np.searchsorted(ends, before + _ENTRIES, side="right")))
        yield slice(start, stop)
        start = stop


def _chunks(begin: Ints, length: Ints) -> Iterator[Ints]:
    for part in _parts(length):
        yield _ranges(begin[part], length[part])
