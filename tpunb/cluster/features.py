"""Steps as points: one row a step, so that steps that do alike lie together.

A space is made of blocks of columns, each a reading of the step × operation matrix, and ends in principal components.
Its loadings are kept, so that what sets phases apart can be told in operations, and steps that come later can be
placed. Two have names: the default one, and the paper's (section IV.A).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import polars as pl

from tpunb.frames import Steps
from tpunb.frames.op_matrix import Floats, Ints, OpMatrix, op_matrix

if TYPE_CHECKING:
    from scipy.sparse import csr_array

MOST_COMPONENTS = 100
"""Principal components at most: the paper's "at most 100 distinct operations"."""
MOST_COLUMNS = 512
"""Columns of a block at most; beyond them the ones that vary least are left out."""

_VARIANCE = 0.99  # share that the components keep: a rare phase owns little of the variance, yet is a phase
_QUIET = 0.1  # a block that varies by less than this (10 %) is not blown up to the size of the others
_CHUNK = 2**22  # numbers that are dense at one time: 32 MiB
_ENTRIES = 2**22  # of a sparse matrix that are summed at one time

Features = str | tuple[str, ...]
"""A space by its name in `SPACES`, or a tuple of the names of its blocks in `BLOCKS`."""


def _presence(ops: OpMatrix, steps: Steps) -> csr_array:
    return ops.presence()


def _counts(ops: OpMatrix, steps: Steps) -> csr_array:
    counts = ops.values("count")
    np.log1p(counts.data, out=counts.data)
    return counts


def _time_share(ops: OpMatrix, steps: Steps) -> csr_array:
    own = ops.values("self_ps", scale=1e-6)
    of_side = np.repeat(np.arange(own.shape[0]) * 2, np.diff(own.indptr)) + ops.sides[own.indices]
    whole = np.bincount(of_side, own.data, minlength=2 * own.shape[0])[of_side]
    np.divide(own.data, whole, out=own.data, where=whole > 0, casting="unsafe")
    np.sqrt(own.data, out=own.data)
    return own


def _log_self(ops: OpMatrix, steps: Steps) -> csr_array:
    own = ops.values("self_ps", scale=1e-6)
    np.log1p(own.data, out=own.data)
    return own


def _step_time(ops: OpMatrix, steps: Steps) -> csr_array:
    from scipy.sparse import csr_array

    micros = steps.frame["dur_ps"].fill_null(0).clip(0).to_numpy() * 1e-6
    return csr_array(np.log1p(micros)[:, None])


BLOCKS: dict[str, Callable[[OpMatrix, Steps], csr_array]] = {
    "presence": _presence,
    "counts": _counts,
    "time_share": _time_share,
    "log_self": _log_self,
    "step_time": _step_time,
    "invocations": lambda ops, steps: ops.values("count"),
    "durations": lambda ops, steps: ops.values("total_ps", scale=1e-6),
}
"""What a block says of a step, by its name; (steps, ops), but for ``step_time``, (steps, 1).

- ``presence``: which ops ran, 0 or 1, weighted by the fourth root of the share of its side's self time that the op
  takes in a step that runs it: an op of hardly any time, which a profiler may tell or not, sets no phase apart
- ``counts``: log1p of how often each ran
- ``time_share``: square root of each op's share of its side's self time in the step (Hellinger)
- ``log_self``: log1p of each op's self time in microseconds, weighted by the square root of the op's share of its
  side's self time in the run, so that a distance is about the relative change of the step's time
- ``step_time``: log1p of the step's time in microseconds
- ``invocations``, ``durations``: how often each op ran, and for how many microseconds in total, as they are
"""

SPACES: dict[str, tuple[str, ...]] = {
    "default": ("presence", "log_self", "step_time"),
    "paper": ("invocations", "durations"),
}
"""Spaces by their names, as the blocks that they are made of."""


@dataclass(frozen=True, eq=False)
class Fold:
    """Which columns a block keeps of those it reads.

    Parameters
    ----------
    block
        A key of `BLOCKS`.
    ops
        (side, op) of each column that it reads; of one row for ``step_time``.
    column
        (ops,): the number of each among those that are kept, or -1.
    weight
        (ops,): what the values of each are multiplied by.
    """

    block: str
    ops: pl.DataFrame
    column: Ints
    weight: Floats

    @property
    def width(self) -> int:
        """How many columns are kept."""
        return int(self.column.max(initial=-1)) + 1

    def of(self, values: csr_array) -> csr_array:
        """Return the kept columns of `values`, weighted."""
        from scipy.sparse import csr_array

        column = self.column[values.indices]
        kept = column >= 0
        data = (values.data * self.weight.astype(np.float32)[values.indices])[kept]
        indptr = np.concatenate([[0], np.cumsum(kept, dtype=values.indptr.dtype)])[values.indptr]
        return csr_array((data, column[kept], indptr), shape=(values.shape[0], self.width))

    def of_others(self, ops: OpMatrix, steps: Steps) -> csr_array:
        """Return the kept columns of other steps; operations that were not there when it was made count as nothing."""
        values = BLOCKS[self.block](ops, steps)
        if self.block == "step_time":
            return self.of(values)
        own = self.ops.with_columns(column=pl.Series(self.column), weight=pl.Series(self.weight))
        met = ops.ops.join(own, on=["side", "op"], how="left", maintain_order="left")
        there = Fold(
            self.block, ops.ops, met["column"].fill_null(-1).to_numpy(), met["weight"].fill_null(0.0).to_numpy()
        )
        kept = there.of(values)
        kept.resize(values.shape[0], self.width)
        return kept


@dataclass(frozen=True, eq=False)
class Space:
    """Where the steps of a run lie.

    Parameters
    ----------
    points
        (steps, components), without a unit; at least one column, read-only; rows follow ``Steps.frame``.
    loadings
        (columns, components): what a step does in each column, less `mean`, times these is its point.
    mean
        (columns,): over the steps.
    explained
        (components,): the share of the variance that each tells, 0 to 1, falling.
    folds
        Where the columns come from, in their order.
    """

    points: Floats
    loadings: Floats
    mean: Floats
    explained: Floats
    folds: tuple[Fold, ...]

    @property
    def columns(self) -> pl.DataFrame:
        """(block, side, op) of each column; of ops that ran in the very same steps presence names the first alone."""
        kept = [
            fold.ops.with_columns(block=pl.lit(fold.block), column=pl.Series(fold.column, dtype=pl.Int64))
            .filter(pl.col("column") >= 0)
            .sort("column")
            .select("block", pl.col("side").cast(pl.String), pl.col("op").cast(pl.String))
            for fold in self.folds
        ]
        return pl.concat(kept)

    def place(self, steps: Steps) -> Floats:
        """Return where other steps lie in this space, (steps, components)."""
        ops = op_matrix(steps)
        blocks = [fold.of_others(ops, steps) for fold in self.folds]
        return _rounded(np.vstack([chunk @ self.loadings for chunk in _dense(blocks, self.mean)] or [self.points[:0]]))


_KNOWN: WeakKeyDictionary[Steps, dict[Features, Space]] = WeakKeyDictionary()


def check(features: Features, owner: str) -> None:
    """Refuse what is no space.

    Raises
    ------
    ValueError
        When `features` is neither the name of a space nor a tuple of names of blocks.
    """
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
    """Return the space of `steps`: made once for as long as they live.

    Each block is centred and divided by its first singular value, so that none outshouts the others (multiple factor
    analysis); one that hardly varies stays small. The paper's does not say how counts and durations share one space;
    there each column is standardised (mean 0, variance 1), because durations would bury the counts otherwise. Then
    principal components, 100 at most.

    Parameters
    ----------
    steps
        To place.
    features
        "default", "paper", or a tuple of names of `BLOCKS`.

    Raises
    ------
    ValueError
        When `features` is none of these.

    >>> from tpunb.testing import toy_steps
    >>> space(toy_steps("aab")).points.shape
    (3, 1)
    """
    check(features, "space")
    known = _KNOWN.setdefault(steps, {})
    if features not in known:
        known[features] = _made(steps, features)
    return known[features]


def _made(steps: Steps, features: Features) -> Space:
    ops = op_matrix(steps)
    blocks, folds = [], []
    for name in SPACES[features] if isinstance(features, str) else features:
        values = BLOCKS[name](ops, steps)
        fold = _fold(name, values, ops)
        folds.append(fold)
        blocks.append(fold.of(values))
    n, widths = len(steps), [fold.width for fold in folds]
    if not n or not sum(widths):
        return Space(
            _read_only(np.zeros((n, 1))), np.zeros((sum(widths), 1)), np.zeros(sum(widths)), np.ones(1), tuple(folds)
        )
    mean = np.concatenate([_sums(block) / n for block in blocks])
    gram = np.zeros((len(mean), len(mean)))
    for chunk in _dense(blocks, mean):
        gram += chunk.T @ chunk
    gram /= n
    factor = _by_column(gram) if features == "paper" else _by_block(gram, widths)
    values, axes = np.linalg.eigh(gram * np.outer(factor, factor))
    values, axes = values[::-1].clip(0), axes[:, ::-1]
    share = 1.0 if features == "paper" else _VARIANCE
    kept = 1 + int(np.searchsorted(values.cumsum(), share * values.sum() * (1 - 1e-9)))
    axes = axes[:, : min(kept, MOST_COMPONENTS, len(mean))]
    strongest = np.abs(axes).argmax(axis=0)
    axes = axes * np.where(axes[strongest, np.arange(axes.shape[1])] < 0, -1.0, 1.0)  # an axis has no sign
    loadings = axes * factor[:, None]
    points = np.vstack([chunk @ loadings for chunk in _dense(blocks, mean)])
    explained = values[: axes.shape[1]] / max(values.sum(), np.finfo(float).tiny)
    return Space(_read_only(_rounded(points)), loadings, mean, explained, tuple(folds))


def _rounded(points: Floats) -> Floats:
    return points.round(9)  # like rows stay like: matrix products differ in the last digits


def _read_only(points: Floats) -> Floats:
    points.flags.writeable = False  # it is handed to everyone who asks
    return points


def _fold(name: str, values: csr_array, ops: OpMatrix) -> Fold:
    """Return which columns a block keeps: those that vary, ``MOST_COLUMNS`` of them at most."""
    d = values.shape[1]
    weight = np.ones(d)
    if name == "log_self":
        weight = np.sqrt(_shares(ops))
    elif name == "presence":
        often = _sums(values) / max(values.shape[0], 1)
        weight = _once(values, np.sqrt(_shares(ops) / np.maximum(often, np.finfo(float).tiny)))
    n = max(values.shape[0], 1)
    square = _sums(values, power=2) / n * weight**2
    variance = square - (_sums(values) / n * weight) ** 2
    varies = np.flatnonzero((variance > 1e-9 * square) & (weight > 0))
    kept = np.sort(varies[np.argsort(-variance[varies], kind="stable")[:MOST_COLUMNS]])
    column = np.full(d, -1, dtype=np.int64)
    column[kept] = np.arange(len(kept))
    named = pl.DataFrame({"side": ["host"], "op": ["step time"]}) if name == "step_time" else ops.ops
    return Fold(name, named, column, weight)


def _shares(ops: OpMatrix) -> Floats:
    """Return the share of each op of the self time of its side in the run; alike where none is known."""
    own = _sums(ops.values("self_ps", scale=1e-6))
    whole = np.bincount(ops.sides, own, minlength=2)
    alike = 1 / np.maximum(np.bincount(ops.sides, minlength=2), 1)
    return np.where(whole[ops.sides] > 0, own / np.maximum(whole, np.finfo(float).tiny)[ops.sides], alike[ops.sides])


def _once(ran: csr_array, square: Floats) -> Floats:
    """Return the weight of each column of presence: one column for all ops that ran in the very same steps.

    Equal columns are one, of the root of the sum of their squared weights: every distance stays, and thousands of ops
    become a handful.
    """
    n, d = ran.shape
    # The sums of two random numbers a step name the set of steps; below 2**53, so that they are exact.
    random = np.random.default_rng(0)
    most = 2**53 // max(n, 1)
    lengths = np.diff(ran.indptr)
    names = [
        np.bincount(ran.indices, np.repeat(random.integers(1, most, size=n).astype(np.float64), lengths), minlength=d)
        for _ in range(2)
    ]
    _, first, kind = np.unique(np.stack(names), axis=1, return_index=True, return_inverse=True)
    weight = np.zeros(d)
    weight[first] = np.sqrt(np.bincount(kind.ravel(), square, minlength=len(first)))
    return weight


def _sums(values: csr_array, power: int = 1) -> Floats:
    """Return the sum of each column's values to a power, in float64, which scipy's own sums of float32 are not."""
    sums = np.zeros(values.shape[1])
    for start in range(0, values.nnz, _ENTRIES):
        data = values.data[start : start + _ENTRIES].astype(np.float64)
        indices = values.indices[start : start + _ENTRIES]
        sums += np.bincount(indices, data**power if power > 1 else data, minlength=len(sums))
    return sums


def _dense(blocks: list[csr_array], mean: Floats) -> Iterator[Floats]:
    """Yield blocks side by side, less the mean, a chunk of rows at a time: nothing of the size steps x ops is dense."""
    n = blocks[0].shape[0] if blocks else 0
    size = max(1, _CHUNK // max(len(mean), 1))
    for start in range(0, n, size):
        chunk = np.hstack([block[start : start + size].toarray() for block in blocks], dtype=np.float64)
        chunk -= mean
        yield chunk


def _by_block(gram: Floats, widths: list[int]) -> Floats:
    """Return the factor of each column in multiple factor analysis: 1 / first singular value of its block."""
    factors = []
    for end, width in zip(np.cumsum(widths), widths, strict=True):
        block = gram[end - width : end, end - width : end]
        first = np.sqrt(max(np.linalg.eigvalsh(block)[-1], 0.0)) if width else 1.0
        factors.append(np.full(width, 1 / max(first, _QUIET)))
    return np.concatenate(factors)


def _by_column(gram: Floats) -> Floats:
    """Return the factor of each column that gives it variance 1."""
    return np.asarray(1 / np.sqrt(np.maximum(gram.diagonal(), np.finfo(float).tiny)), dtype=np.float64)
