"""Feature spaces: one point per step, near each other for similar steps.

A space concatenates blocks of columns, each computed from the step × operation matrix, and keeps their principal
components. Its loadings explain distances in operations and place later steps. Two spaces have names: the default, and
the paper's (section IV.A).

Each block is centred and divided by its first singular value, so that none dominates (multiple factor analysis); a
block that hardly varies stays small. The paper does not say how counts and durations share a space; its columns are
standardised (mean 0, variance 1), because durations would hide the counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tpunb.cluster.limits import LIMITS
from tpunb.cluster.recorded import incidental, launches, patterns, piped
from tpunb.frames import Steps
from tpunb.frames.cache import memoised
from tpunb.frames.op_matrix import Bools, Floats, Ints, OpMatrix, int_arrays, op_matrix, sparse

if TYPE_CHECKING:
    from scipy.sparse import csr_array


_CHUNK = 2**22  # dense numbers at one time: 32 MiB
_ENTRIES = 2**22  # entries of a sparse matrix summed at one time

Features = str | tuple[str, ...]
"""A space by its name in `SPACES`, or a tuple of the names of its blocks in `BLOCKS`."""


def _log1p(values: csr_array) -> csr_array:
    np.log1p(values.data, out=values.data)
    return values


def _time_share(ops: OpMatrix, steps: Steps) -> csr_array:
    times = ops.values("self_ps", scale=1e-6)
    side = np.repeat(np.arange(times.shape[0]) * 2, np.diff(times.indptr)) + ops.sides[times.indices]
    total = np.bincount(side, times.data, minlength=2 * times.shape[0])[side]
    np.divide(times.data, total, out=times.data, where=total > 0, casting="unsafe")
    np.sqrt(times.data, out=times.data)
    return times


def _step_time(ops: OpMatrix, steps: Steps) -> csr_array:
    from scipy.sparse import csr_array

    micros = steps.frame["dur_ps"].fill_null(0).clip(0).to_numpy() * 1e-6
    return csr_array(np.log1p(micros)[:, None])


BLOCKS: dict[str, Callable[[OpMatrix, Steps], csr_array]] = {
    "presence": lambda ops, steps: ops.presence(),
    "counts": lambda ops, steps: _log1p(ops.values("count")),
    "time_share": _time_share,
    "log_self": lambda ops, steps: _log1p(ops.values("self_ps", scale=1e-6)),
    "step_time": _step_time,
    "invocations": lambda ops, steps: ops.values("count"),
    "durations": lambda ops, steps: ops.values("total_ps", scale=1e-6),
}
"""Blocks by name: (steps, ops), except ``step_time``, (steps, 1).

- ``presence``: which ops ran, 0 or 1, weighted by the fourth root of the op's share of its side's self time in the
  steps that run it; without incidental ops, whose absence says nothing (:mod:`tpunb.cluster.recorded`)
- ``counts``: log1p of each op's count
- ``time_share``: square root of each op's share of its side's self time in the step (Hellinger)
- ``log_self``: log1p of each op's self time in microseconds, weighted by the square root of the op's share of its
  side's self time in the run, so that a distance is about the relative change of step time; an incidental op that
  is not in a step's record has the mean of the other steps; ops of input pipelines, which run ahead, are left out, and
  those of a host that launch work on a device, which may wait until earlier work is done
- ``step_time``: log1p of the step time in microseconds
- ``invocations``, ``durations``: each op's count, and its total time in microseconds, unscaled
"""

SPACES: dict[str, tuple[str, ...]] = {
    "default": ("presence", "log_self", "step_time"),
    "paper": ("invocations", "durations"),
}
"""Blocks of each named space."""


@dataclass(frozen=True, eq=False)
class Fold:
    """Columns that a space keeps of a block, and their weights."""

    block: str  # key of `BLOCKS`
    ops: pl.DataFrame  # (side, op) of each column of the block; one row for ``step_time``
    column: Ints  # number of each among the columns kept, or -1: (ops,)
    weight: Floats  # factor of the values of each: (ops,)
    mean: Floats  # subtracted from the recorded values of each, so that a missing one counts as the mean: (ops,)

    @property
    def width(self) -> int:
        """Number of columns kept."""
        return int(self.column.max(initial=-1)) + 1

    def apply(self, values: csr_array) -> csr_array:
        """Return the kept columns of `values`, weighted."""
        from tpunb.frames import sparse_loops  # compiled

        mean, weight = self.mean.astype(np.float32), self.weight.astype(np.float32)
        indptr, columns, data = sparse_loops.folded(*int_arrays(values), values.data, self.column, mean, weight)
        return sparse(data, columns, indptr, (values.shape[0], self.width))

    def apply_to(self, steps: Steps) -> csr_array:
        """Return the kept columns of other steps; unknown operations count as 0."""
        ops = op_matrix(steps)
        values = BLOCKS[self.block](ops, steps)
        if self.block == "step_time":
            return self.apply(values)
        arrays = {"column": self.column, "weight": self.weight, "mean": self.mean}
        kept = self.ops.with_columns(pl.Series(name, values) for name, values in arrays.items())
        kept = ops.ops.join(kept, on=["side", "op"], how="left", maintain_order="left")
        column, weight, mean = (kept[name].fill_null(-(name == "column")).to_numpy() for name in arrays)
        placed = Fold(self.block, ops.ops, column, weight, mean).apply(values)
        placed.resize(values.shape[0], self.width)
        return placed


@dataclass(frozen=True, eq=False)
class Space:
    """Feature space of a run."""

    # point of each step, (steps, components), unitless, read-only; at least one column; rows as in
    # ``Steps.frame``
    points: Floats
    loadings: Floats  # matrix of (columns, components): a step's columns minus `mean`, times these, is its point
    mean: Floats  # mean of each column over the steps, (columns,)
    explained: Floats  # share of the variance of each component, 0 to 1, descending: (components,)
    folds: tuple[Fold, ...]  # sources of the columns, in their order

    @property
    def columns(self) -> pl.DataFrame:
        """(block, side, op) of each column; presence has one column for ops that ran in the same steps: the first."""
        kept = [
            fold.ops.with_columns(block=pl.lit(fold.block), column=pl.Series(fold.column, dtype=pl.Int64))
            .filter(pl.col("column") >= 0)
            .sort("column")
            .select("block", pl.col("side").cast(pl.String), pl.col("op").cast(pl.String))
            for fold in self.folds
        ]
        return pl.concat(kept)

    def place(self, steps: Steps) -> Floats:
        """Return the points of other steps in this space, (steps, components)."""
        blocks = [fold.apply_to(steps) for fold in self.folds]
        return _rounded(np.vstack([chunk @ self.loadings for chunk in _dense(blocks, self.mean)] or [self.points[:0]]))


def check(features: Features, owner: str) -> None:
    """Raise if `features` is neither the name of a space nor a tuple of names of blocks."""
    if isinstance(features, str) and features in SPACES:
        return
    names = tuple([features] if isinstance(features, str) else features if isinstance(features, Iterable) else [])
    blocks = bool(names) and all(isinstance(name, str) and name in BLOCKS for name in names)
    if blocks and not isinstance(features, tuple):
        raise ValueError(f"The features parameter of {owner} must be a tuple: {names!r}. Got {features!r} instead.")
    if not blocks:
        raise ValueError(
            f"The features parameter of {owner} must be one of {tuple(SPACES)} or a tuple of blocks, of "
            f"{tuple(BLOCKS)}. Got {features!r} instead."
        )


def space(steps: Steps, features: Features = "default") -> Space:
    """Return the feature space of `steps`, made once per steps.

    >>> from tpunb.testing import toy_steps
    >>> space(toy_steps("aab")).points.shape
    (3, 1)
    """
    check(features, "space")
    return _space(steps, features)


@memoised
def _space(steps: Steps, features: Features) -> Space:
    ops = op_matrix(steps)
    blocks, folds, shares = [], [], _shares(ops)
    for name in SPACES[features] if isinstance(features, str) else features:
        values = BLOCKS[name](ops, steps)
        folds.append(_fold(name, values, ops, shares, incidental(steps)))
        blocks.append(folds[-1].apply(values))
    n, widths = len(steps), [fold.width for fold in folds]
    if not n or not sum(widths):
        d = sum(widths)
        return Space(_read_only(np.zeros((n, 1))), np.zeros((d, 1)), np.zeros(d), np.ones(1), tuple(folds))
    mean = np.concatenate([_sums(block) / n for block in blocks])
    gram = np.zeros((len(mean), len(mean)))
    for chunk in _dense(blocks, mean):
        gram += chunk.T @ chunk
    gram /= n
    factor = _by_column(gram) if features == "paper" else _by_block(gram, widths)
    values, axes = np.linalg.eigh(gram * np.outer(factor, factor))
    values, axes = values[::-1].clip(0), axes[:, ::-1]
    share = 1.0 if features == "paper" else LIMITS.variance_kept
    kept = 1 + int(np.searchsorted(values.cumsum(), share * values.sum() * (1 - 1e-9)))
    axes = axes[:, : min(kept, LIMITS.most_components, len(mean))]
    strongest = np.abs(axes).argmax(axis=0)
    axes = axes * np.where(axes[strongest, np.arange(axes.shape[1])] < 0, -1.0, 1.0)  # an axis has no sign
    loadings = axes * factor[:, None]
    points = np.vstack([chunk @ loadings for chunk in _dense(blocks, mean)])
    explained = values[: axes.shape[1]] / max(values.sum(), np.finfo(float).tiny)
    return Space(_read_only(_rounded(points)), loadings, mean, explained, tuple(folds))


def _rounded(points: Floats) -> Floats:
    return points.round(9)  # equal rows stay equal: matrix products differ in the last digits


def _read_only(points: Floats) -> Floats:
    points.flags.writeable = False  # it is shared
    return points


def _fold(name: str, values: csr_array, ops: OpMatrix, shares: Floats, skipped: Bools) -> Fold:
    """Return the columns to keep of a block: those that vary, ``LIMITS.most_columns`` at most."""
    from tpunb.frames import sparse_loops  # compiled

    n, d = max(values.shape[0], 1), values.shape[1]
    weight, mean = np.ones(d), np.zeros(d)
    if name == "log_self":
        weight = np.where(piped(ops) | launches(ops), 0.0, np.sqrt(shares))
        mean = np.where(skipped, _sums(values) / np.maximum(sparse_loops.counts(values.indices, d), 1), 0.0)
    elif name == "presence":
        frequency = _sums(values) / n
        share = shares / np.maximum(frequency, np.finfo(float).tiny)
        weight = _merge_equal(ops, np.where(skipped, 0.0, np.sqrt(share)))
    square = _sums(values, mean, power=2) / n * weight**2
    variance = square - (_sums(values, mean) / n * weight) ** 2
    varies = np.flatnonzero((variance > 1e-9 * square) & (weight > 0))
    kept = np.sort(varies[np.argsort(-variance[varies], kind="stable")[: LIMITS.most_columns]])
    column = np.full(d, -1, dtype=np.int64)
    column[kept] = np.arange(len(kept))
    named = pl.DataFrame({"side": ["host"], "op": ["step time"]}) if name == "step_time" else ops.ops
    return Fold(name, named, column, weight, mean)


def _shares(ops: OpMatrix) -> Floats:
    """Return each op's share of the self time of its side in the run; equal shares if a side has none."""
    times = _sums(ops.values("self_ps", scale=1e-6))
    total = np.bincount(ops.sides, times, minlength=2)
    equal = 1 / np.maximum(np.bincount(ops.sides, minlength=2), 1)
    shares = times / np.maximum(total, np.finfo(float).tiny)[ops.sides]
    return np.where(total[ops.sides] > 0, shares, equal[ops.sides])


def _merge_equal(ops: OpMatrix, square: Floats) -> Floats:
    """Return weights of presence that keep one of equal columns, and every distance: the root of summed squares."""
    first, pattern = patterns(ops)
    weight = np.zeros(len(square))
    weight[first] = np.sqrt(np.bincount(pattern, square, minlength=len(first)))
    return weight


def _sums(values: csr_array, mean: Floats | None = None, power: int = 1) -> Floats:
    """Return the sum of each column's values less `mean` to a power, in float64; scipy's of float32 are not exact."""
    from tpunb.frames import sparse_loops  # compiled

    less = np.zeros(values.shape[1], np.float32) if mean is None else mean.astype(np.float32)
    return np.asarray(sparse_loops.column_sums(values.data, values.indices, less, power, _ENTRIES))


def _dense(blocks: list[csr_array], mean: Floats) -> Iterator[Floats]:
    """Yield chunks of rows of the blocks side by side, minus the mean, in one array; steps x ops is never dense."""
    from tpunb.frames import sparse_loops  # compiled

    n = blocks[0].shape[0] if blocks else 0
    size = max(1, _CHUNK // max(len(mean), 1))
    begins = np.cumsum([0, *(block.shape[1] for block in blocks)])
    arrays = [
        (*int_arrays(block), block.data, begin + np.arange(block.shape[1]))
        for block, begin in zip(blocks, begins, strict=False)
    ]
    chunk = np.empty((min(size, n), len(mean)))
    for start in range(0, n, size):
        chunk = chunk[: n - start]
        chunk[:] = -mean
        for indptr, columns, data, place in arrays:
            sparse_loops.add_dense(indptr[start:], columns, data, place, chunk)
        yield chunk


def _by_block(gram: Floats, widths: list[int]) -> Floats:
    """Return the factor of each column in multiple factor analysis: 1 / first singular value of its block."""
    factors = []
    for end, width in zip(np.cumsum(widths), widths, strict=True):
        block = gram[end - width : end, end - width : end]
        first = np.sqrt(max(np.linalg.eigvalsh(block)[-1], 0.0)) if width else 1.0
        factors.append(np.full(width, 1 / max(first, LIMITS.least_block_scale)))
    return np.concatenate(factors)


def _by_column(gram: Floats) -> Floats:
    """Return the factor of each column that gives it variance 1."""
    return np.asarray(1 / np.sqrt(np.maximum(gram.diagonal(), np.finfo(float).tiny)), dtype=np.float64)
