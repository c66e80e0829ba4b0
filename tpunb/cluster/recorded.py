"""Operations whose absence from a step says nothing: a profiler that did not record them may have skipped them.

At its default level TensorFlow's host tracer records the operations that its executor deems expensive, by a running
mean of their cost: above 8,000 cycles, some microseconds. Which of the cheap ones it records differs from window to
window of one program, and changes within a window. Input pipelines run ahead of the steps, in other threads.

So an operation that is in some steps and not in others is *incidental* if it takes less than 2 % of the time of its
side, host or device, where it runs, together with the operations that run in nearly the same steps; 10 % for what a
profiler may skip. Where it is absent it was not recorded: its time is unknown, not 0. Operations of a whole class, such
as the optimizer, are never incidental if two or more of them come and go with the class; operations of input pipelines,
and those that wait for them, always are.

Limits: a phase that differs from others in less than 2 % of the time of a side, and in no class, is no phase of its
own, nor is one that differs in less than 10 % of it by cheap operations alone. Of steps so short that the cheap
operations of a window take 10 % or more together, those that were skipped count as absent.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from tpunb.cluster.limits import LIMITS
from tpunb.frames import Steps
from tpunb.frames.cache import memoised
from tpunb.frames.op_matrix import Bools, Floats, Ints, OpMatrix, int_arrays, op_matrix
from tpunb.step_stats import op_names

_ROWS = 2**20  # of the table of operations, for medians


@memoised
def incidental(steps: Steps) -> Bools:
    """Return which operations are incidental, (ops,), in the order of `tpunb.frames.op_matrix.op_matrix`.

    >>> from tpunb.testing import spelled_steps
    >>> incidental(spelled_steps(({"dot": 80, "cast": 1}, {}), ({"dot": 80}, {}))).tolist()
    [True, False]
    """
    from tpunb.frames import sparse_loops  # compiled

    ops = op_matrix(steps)
    n, d = ops.shape
    if not n or not d:
        return np.zeros(d, np.bool_)
    ran = sparse_loops.counts(ops.indices, d)
    first, pattern = patterns(ops)
    share = np.zeros((len(first), 2))
    shares = _shares(steps, ops) * np.where(skippable(steps), LIMITS.evidence / LIMITS.skippable_evidence, 1.0)
    np.add.at(share, (pattern, ops.sides), shares)
    together = share.copy()
    most = np.argsort(-share.max(axis=1), kind="stable")[: LIMITS.most_patterns]
    near = _correlation(ops, first[most]) >= LIMITS.presence_correlation
    together[most] = np.maximum(near @ share[most], share[most])
    small = (together.max(axis=1) < LIMITS.evidence)[pattern]
    return np.asarray((ran < n) & ((small & ~_whole_classes(ops)) | input_ops(ops)))


@memoised
def skippable(steps: Steps) -> Bools:
    """Return which operations a profiler may skip, (ops,): those of a host with short events, or in pipelines."""
    ops = op_matrix(steps)
    rows = steps.ops.gather_every(max(1, steps.ops.height // _ROWS))
    events = rows.group_by("side", "op").agg(event_ps=(pl.col("self_ps") / pl.col("count").clip(1)).median())
    event_ps = ops.ops.join(events, on=["side", "op"], how="left", maintain_order="left")["event_ps"].fill_null(0)
    return np.asarray((ops.sides == 0) & ((event_ps.to_numpy() < LIMITS.skippable_event_ps) | input_ops(ops)))


def piped(ops: OpMatrix) -> Bools:
    """Return which operations are of input pipelines, (ops,)."""
    return _of_categories(ops, {op_names.PIPELINE})


def input_ops(ops: OpMatrix) -> Bools:
    """Return which operations are of input pipelines or wait for them, (ops,): a framework waits by several."""
    return _of_categories(ops, {op_names.PIPELINE, op_names.INPUT_WAIT})


def _of_categories(ops: OpMatrix, categories: set[str]) -> Bools:
    names = ops.ops["op"].cast(pl.String)
    named = np.array([op_names.category(name, side="host") in categories for name in names], np.bool_)
    return np.asarray(named & (ops.sides == 0))


def launches(ops: OpMatrix) -> Bools:
    """Return which operations of a host launch work on its devices or wait for it, (ops,); none without devices."""
    names = [op_names.is_launch(name) for name in ops.ops["op"].cast(pl.String)]
    return np.asarray(np.array(names, dtype=np.bool_) & (ops.sides == 0) & bool((ops.sides == 1).any()))


def _shares(steps: Steps, ops: OpMatrix) -> Floats:
    """Return the share of its side's self time that each operation takes in the steps that run it; 1 if that is 0."""
    from tpunb.frames import sparse_loops  # compiled

    micros = ops.values("self_ps", scale=1e-6).data
    # of a side that does hardly anything the share of a tenth of the step time
    least = steps.frame["dur_ps"].fill_null(0).to_numpy() * 1e-7
    spent, whole = sparse_loops.of_sides(*int_arrays(ops), micros, ops.sides, least)
    share = spent / np.maximum(whole, 1e-30)
    return np.where(np.bincount(ops.sides, spent, minlength=2)[ops.sides] > 0, share, 1.0)


def patterns(ops: OpMatrix) -> tuple[Ints, Ints]:
    """Return the first operation of each set of steps, and the set of steps of each operation."""
    from tpunb.frames import sparse_loops  # compiled

    n, d = ops.shape
    # sums of two random numbers per step identify the set of steps; below 2**53, so they are exact
    random = np.random.default_rng(0)
    of_steps = np.stack([random.integers(1, 2**53 // max(n, 1), size=n).astype(np.float64) for _ in range(2)], axis=1)
    names = sparse_loops.names_of_rows(*int_arrays(ops), of_steps, d)
    _, first, pattern = np.unique(names, axis=0, return_index=True, return_inverse=True)
    return first.astype(np.int64), pattern.ravel()


def _correlation(ops: OpMatrix, columns: Ints) -> Floats:
    """Return how the presences of operations correlate, (columns, columns); 0 for those that never vary."""
    from tpunb.frames import sparse_loops  # compiled

    n, d = ops.shape
    place = np.full(d, -1, np.int64)
    place[columns] = np.arange(len(columns))
    (indptr, indices), ones = int_arrays(ops), np.ones(len(ops.indices), np.float32)
    gram, chunk = np.zeros((len(columns), len(columns))), np.empty((min(4096, n), len(columns)), np.float32)
    for start in range(0, n, 4096):
        chunk = chunk[: n - start]
        chunk[:] = 0
        sparse_loops.add_dense(indptr[start:], indices, ones, place, chunk)
        gram += chunk.T @ chunk
    frequency = gram.diagonal() / n
    covariance = gram / n - np.outer(frequency, frequency)
    spread = np.sqrt(covariance.diagonal().clip(1e-30))
    return np.asarray(covariance / np.outer(spread, spread))


def _whole_classes(ops: OpMatrix) -> Bools:
    """Return which operations come and go with the whole of their class, of two operations or more."""
    classes = np.array([op_names.operation_class(name) or "" for name in ops.ops["op"].cast(pl.String)])
    whole = np.zeros(len(classes), np.bool_)
    if not (classes != "").any():
        return whole
    from tpunb.frames import sparse_loops  # compiled

    ran, count = ops.presence(), sparse_loops.counts(ops.indices, len(classes))
    for name in {*classes} - {""}:
        members = np.flatnonzero(classes == name)
        steps = len(np.unique(ran[:, members].nonzero()[0]))
        whole_members = members[count[members] >= LIMITS.presence_correlation * steps]
        whole[whole_members] = len(whole_members) > 1
    return whole
