"""Compiled loops over steps and their operations, free of the GIL.

A step is a row of the step × operation matrix: ascending columns, those of the host before those of devices. Compiling
takes half a second, so import this module inside the function that needs it.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpunb.cluster.limits import LIMITS
from tpunb.compiled import compiled, compiled_later
from tpunb.frames.op_matrix import Floats, Ints

_BLOCK = 32  # columns per branch, for wide registers
# compiled in, and cached by the state of this file: save it again after a change of these limits
_SCATTER_STEPS = LIMITS.scatter_steps
_SCATTER_RATIO = LIMITS.scatter_ratio
_LEAST_TOLERANCE = LIMITS.least_tolerance
_ANY_ORDER = ("reassoc", "contract")  # several at one time
_compiled = partial(compiled, fastmath=_ANY_ORDER)
_ROUNDING = 1e-9  # sums in another order differ in the last digits, and must not decide


class Rows(NamedTuple):
    """Operations of each step, and their self times."""

    indptr: Ints  # arrays as in :class:`~tpunb.frames.op_matrix.OpMatrix`
    indices: NDArray[np.int32]
    order: NDArray[Any]
    self_time: NDArray[Any]  # self time of each row that `order` points to, in any unit; values not above 0 count as 0
    device: int  # first column of a device; those before it are the host's


class Leaders(NamedTuple):
    """Phases of a scan, as sums over their steps."""

    # number of the steps that ran each op, and sum of the square roots of its share of its side's self time:
    # (phases, ops, 2)
    sums: NDArray[np.float64]
    # steps; operations in total; squared length of the sums of roots on the host, on devices; summed distance
    # of its steps from its mean when they joined, on the host, on devices; summed weight: (phases, 7)
    stats: Floats
    slots: Ints  # phase number, -1 if the slot is free, and the last step that joined: (phases, 2)
    counts: Ints  # number of phases opened, and of steps scanned: (2,)


class Step(NamedTuple):
    """One step: its columns, the roots of its shares, the number of host columns, and 1.0 per side with any time."""

    columns: NDArray[np.int32]
    roots: Floats
    split: int
    host: float
    device: float


def new_leaders(phases: int, ops: int) -> Leaders:
    """Return free slots for so many phases."""
    slots = np.full((phases, 2), -1, dtype=np.int64)
    return Leaders(np.zeros((phases, ops, 2)), np.zeros((phases, 7)), slots, np.zeros(2, dtype=np.int64))


def _shared_ops(indptr: Ints, indices: NDArray[np.int32], out: Ints) -> None:
    size = int(indices.max(initial=0)) + 1
    entries = np.repeat(np.arange(out.size), np.diff(indptr)) * size + indices  # ascending
    before = np.searchsorted(entries, entries - size).clip(0, max(entries.size - 1, 0))
    out[:] = np.bincount(entries[entries[before] == entries - size] // size, minlength=out.size)
    out[:1] = np.diff(indptr[:2])


@compiled_later(_shared_ops, fastmath=_ANY_ORDER)
def shared_ops(indptr: Ints, indices: NDArray[np.int32], out: Ints) -> None:
    """Write how many operations each step shares with the one before it; for the first, how many it has."""
    if out.size:
        out[0] = indptr[1] - indptr[0]
    for row in range(1, out.size):
        begin, middle, end = indptr[row - 1], indptr[row], indptr[row + 1]
        before, now = indices[begin:middle], indices[middle:end]
        equal = before.size == now.size
        if equal:  # most steps run what the step before ran: no branch per column, for wide registers
            different = np.int32(0)
            for k in range(before.size):
                different = np.int32(different | np.int32(before[k] ^ now[k]))
            equal = different == 0
        out[row] = now.size if equal else _intersection(before, now)


@_compiled
def _intersection(a: NDArray[np.int32], b: NDArray[np.int32]) -> int:
    left, right, shared = 0, 0, 0
    while left < a.size and right < b.size:
        first, second = a[left], b[right]
        shared += first == second
        left += first <= second
        right += second <= first
    return shared


def _scan_few(
    rows: Rows, which: Ints, weights: Floats, starts: NDArray[np.bool_], limits: Floats, leaders: Leaders, out: Ints
) -> None:
    slot = -1
    for i, row in enumerate(which):
        entries = slice(rows.indptr[row], rows.indptr[row + 1])
        columns, root = rows.indices[entries], rows.self_time[rows.order[entries]].astype(np.float64)
        split = int(np.searchsorted(columns, rows.device))
        slot = _join_one(leaders, -1 if starts[i] else slot, columns, root, split, weights[i], limits)
        out[i] = leaders.slots[slot, 0]


def _join_one(
    leaders: Leaders, before: int, columns: NDArray[np.int32], root: Floats, split: int, weight: float, limits: Floats
) -> int:
    root[:] = np.where(root > 0, root, 0.0)
    present = np.zeros(2)
    for side, part in enumerate((root[:split], root[split:])):
        whole = part.sum()
        present[side] = whole > 0
        part[:] = np.sqrt(part * (1 / whole if whole > 0 else 0.0))
    count = int(np.count_nonzero(leaders.slots[:, 0] >= 0))
    stats, ran = leaders.stats[:count], leaders.sums[:count][:, columns]
    products = np.column_stack([ran[:, :split, 1] @ root[:split], ran[:, split:, 1] @ root[split:]])
    is_like = _accepting(stats, ran[:, :, 0], products, present, limits)
    slot = count
    if is_like.any():
        weights = np.where(is_like, stats[:, 6], -1.0)
        slot = before if before >= 0 and weights[before] == weights.max() else int(weights.argmax())
    else:
        if count == len(leaders.slots):
            slot = int(np.lexsort((leaders.slots[:, 1], stats[:, 6]))[0])
        leaders.sums[slot], leaders.stats[slot] = 0.0, 0.0
        leaders.slots[slot, 0] = leaders.counts[0]
        leaders.counts[0] += 1
        products = np.zeros((slot + 1, 2))
    joined, sums = leaders.stats[slot], leaders.sums[slot]
    joined[4:6] += (joined[0] > 0) * (1 - _cosines(products[slot], joined[2:4], present))
    joined[:4] += 1, columns.size, *(2 * products[slot] + present)
    joined[6] += weight
    sums[columns] += np.column_stack([np.ones_like(root), root])
    leaders.slots[slot, 1] = leaders.counts[1]
    leaders.counts[1] += 1
    return slot


def _cosines(products: Floats, squares: Floats, present: Floats) -> Floats:
    return np.where(squares > 0, products / np.sqrt(squares), 1 - present)


def _accepting(stats: Floats, ran: Floats, products: Floats, present: Floats, limits: Floats) -> NDArray[np.bool_]:
    """Return which phases accept a step."""
    steps, total, least = stats[:, 0], stats[:, 1], limits[0] - _ROUNDING
    size = ran.shape[1] * steps
    is_like = np.minimum(size, total) >= least * np.maximum(size, total)
    is_like &= size - (size + total) * least / (1 + least) >= (steps[:, None] - ran).sum(axis=1)
    scatter = np.maximum(_SCATTER_RATIO * stats[:, 4:6] / (steps[:, None] - 1), _LEAST_TOLERANCE * (1 - limits[1]))
    scatter[steps <= _SCATTER_STEPS] = 1 - limits[1]
    tolerance = np.minimum(scatter, 1 - limits[1]) + _ROUNDING
    return np.asarray(is_like & (1 - _cosines(products, stats[:, 2:4], present) <= tolerance).all(axis=1))


@compiled_later(_scan_few, compiles_s=3.0, fastmath=_ANY_ORDER)
def scan(
    rows: Rows, which: Ints, weights: Floats, starts: NDArray[np.bool_], limits: Floats, leaders: Leaders, out: Ints
) -> None:
    """Write the phase number of each of the rows `which`, of `weights` equal steps each, to `out`; update `leaders`.

    `limits` are the smallest Jaccard and Bhattacharyya similarity; `starts` marks the first row of each host.
    """
    most = 0
    for i in range(which.size):
        most = max(most, rows.indptr[which[i] + 1] - rows.indptr[which[i]])
    root = np.empty(most)
    slot = -1
    for i in range(which.size):
        begin, end = rows.indptr[which[i]], rows.indptr[which[i] + 1]
        split = 0
        for k in range(begin, end):
            root[k - begin] = rows.self_time[rows.order[k]]
            split += rows.indices[k] < rows.device
        slot = join(leaders, -1 if starts[i] else slot, rows.indices[begin:end], root, split, weights[i], limits)
        out[i] = leaders.slots[slot, 0]


@compiled_later(_join_one, compiles_s=3.0, fastmath=_ANY_ORDER)
def join(
    leaders: Leaders, before: int, columns: NDArray[np.int32], root: Floats, split: int, weight: float, limits: Floats
) -> int:
    """Add a step to a phase that accepts it, else to a new one; return its slot. `before` is that of the step before.

    `columns` are the operations that ran, `split` of the host first; `root` has their self times and is overwritten.
    """
    host, device = _roots(root, 0, split), _roots(root, split, columns.size)
    step = Step(columns, root, split, host, device)
    products = np.zeros(2)
    slot = _choose(leaders, before, step, limits, products)
    _add(leaders, slot, step, weight, products)
    return slot


@_compiled
def _roots(root: Floats, begin: int, end: int) -> float:
    """Replace self times by the square roots of their shares; return 1.0 if there is any time, else 0.0."""
    total = 0.0
    for k in range(begin, end):
        root[k] = root[k] if root[k] > 0 else 0.0  # a NaN is not above 0
        total += root[k]
    factor = 1 / total if total > 0 else 0.0
    for k in range(begin, end):
        root[k] = np.sqrt(root[k] * factor)
    return np.float64(total > 0)


@_compiled
def _choose(leaders: Leaders, before: int, step: Step, limits: Floats, products: Floats) -> int:
    """Return the slot of the largest phase that accepts a step, that of the step before in ties; else of a new one."""
    # not the most similar phase: outliers near a large one form small ones, which would attract its ordinary steps
    best = before if before >= 0 and _accepts(leaders, before, step, limits, products) else -1
    least = 0
    for slot in range(leaders.slots.shape[0]):
        if leaders.slots[slot, 0] < 0:
            least = slot
            break
        larger = best < 0 or leaders.stats[slot, 6] > leaders.stats[best, 6]
        if larger and _accepts(leaders, slot, step, limits, products):
            best = slot
        fewer = leaders.stats[slot, 6] - leaders.stats[least, 6]
        if fewer < 0 or (fewer == 0 and leaders.slots[slot, 1] < leaders.slots[least, 1]):
            least = slot
    if best >= 0:
        return best
    leaders.sums[least] = 0.0
    leaders.stats[least] = 0.0
    leaders.slots[least, 0] = leaders.counts[0]
    leaders.counts[0] += 1
    return least


@_compiled
def _accepts(leaders: Leaders, slot: int, step: Step, limits: Floats, products: Floats) -> bool:
    """Return whether a phase accepts a step; if so, write the products of their roots on each side."""
    # sets: sum of min over sum of max of the step's presence, 0 or 1, and the phase's frequency of each op (Jaccard for
    # a phase of one step); times: cosine of the roots of the shares and their mean over the phase (Bhattacharyya)
    columns, roots = step.columns, step.roots
    sums, steps, total = leaders.sums[slot], leaders.stats[slot, 0], leaders.stats[slot, 1]
    size = columns.size * steps
    if min(size, total) < (limits[0] - _ROUNDING) * max(size, total):
        return False  # by their sizes alone
    allowed = size - (size + total) * (limits[0] - _ROUNDING) / (1 + limits[0] - _ROUNDING)  # missing ops × steps
    for begin in range(0, columns.size, _BLOCK):
        for k in range(begin, min(begin + _BLOCK, columns.size)):
            allowed -= steps - sums[np.uint64(columns[k]), 0]
        if allowed < 0:
            return False
    host, device = 0.0, 0.0
    for k in range(step.split):
        host += roots[k] * sums[np.uint64(columns[k]), 1]
    for k in range(step.split, columns.size):
        device += roots[k] * sums[np.uint64(columns[k]), 1]
    if 1 - _cosine(host, leaders.stats[slot, 2], step.host) > _tolerance(leaders, slot, 4, limits) or 1 - _cosine(
        device, leaders.stats[slot, 3], step.device
    ) > _tolerance(leaders, slot, 5, limits):
        return False
    products[0], products[1] = host, device
    return True


@_compiled
def _tolerance(leaders: Leaders, slot: int, side: int, limits: Floats) -> float:
    """Return the distance from its mean that a phase accepts: less if its own steps scatter little."""
    most = 1 - limits[1]
    steps = leaders.stats[slot, 0]
    if steps > _SCATTER_STEPS:
        scatter = _SCATTER_RATIO * leaders.stats[slot, side] / (steps - 1)
        most = min(most, max(scatter, _LEAST_TOLERANCE * most))
    return float(most + _ROUNDING)


@_compiled
def _cosine(product: float, square: float, present: float) -> float:
    """Return the cosine of two directions; 1 if neither has any time, 0 if one of them has."""
    if square <= 0:
        return 1 - present
    return float(product / np.sqrt(square))


@_compiled
def _add(leaders: Leaders, slot: int, step: Step, weight: float, products: Floats) -> None:
    """Add a step to the sums of a phase: once, whatever its weight, as the steps it stands for are not read."""
    stats, sums = leaders.stats[slot], leaders.sums[slot]
    host, device = products
    if stats[0] > 0:
        stats[4] += 1 - _cosine(host, stats[2], step.host)
        stats[5] += 1 - _cosine(device, stats[3], step.device)
    stats[0] += 1
    stats[1] += step.columns.size
    stats[2] += 2 * host + step.host
    stats[3] += 2 * device + step.device
    stats[6] += weight
    for k in range(step.columns.size):
        sums[np.uint64(step.columns[k]), 0] += 1
        sums[np.uint64(step.columns[k]), 1] += step.roots[k]
    leaders.slots[slot, 1] = leaders.counts[1]
    leaders.counts[1] += 1


@compiled_later(fastmath=_ANY_ORDER)
def renumbered(labels: Ints, by_start: Ints, size: int) -> Ints:
    """Return labels below `size` as 0, 1, 2, ... by first appearance in time; -1 stays."""
    number, count = np.full(size, -1, np.int64), 0
    for row in by_start:
        if labels[row] >= 0 and number[labels[row]] < 0:
            number[labels[row]] = count
            count += 1
    out = np.full(labels.size, -1, np.int64)
    for row in range(labels.size):
        if labels[row] >= 0:
            out[row] = number[labels[row]]
    return out


def _join_borders(near: NDArray[np.bool_], core: Ints, label: Ints) -> None:
    others = np.setdiff1d(np.arange(label.size), core)
    most = np.iinfo(np.int64).max
    least = np.where(near[np.ix_(others, core)], label[core], most).min(axis=1, initial=most)
    label[others] = np.where(
        label[others] < 0, np.where(least < most, least, label[others]), np.minimum(least, label[others])
    )


@compiled_later(_join_borders, fastmath=_ANY_ORDER)
def join_borders(near: NDArray[np.bool_], core: Ints, label: Ints) -> None:
    """Give each point that is no core the least label of the cores near it: a border belongs to the first cluster."""
    is_core = np.zeros(label.size, np.bool_)
    is_core[core] = True
    for at in np.flatnonzero(~is_core):
        for other in core:
            if near[at, other] and (label[at] < 0 or label[other] < label[at]):
                label[at] = label[other]
