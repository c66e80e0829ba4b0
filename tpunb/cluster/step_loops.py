"""The loops over steps and their operations: compiled, and free of the GIL.

A step is a row of the step × operation matrix: columns that rise, those of the host before those of the devices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tpunb.frames.op_matrix import Floats, Ints

_P = ParamSpec("_P")
_R = TypeVar("_R")

_FREELY = {"reassoc", "contract"}  # sums may be taken in any order, several at one time
_BLOCK = 32  # columns taken at one time: without a branch a column, for the sake of wide registers
_YOUNG = 10  # steps up to which a phase's own scatter is not known well enough to go by
_SCATTER = 8.0  # times the mean scatter of a phase: what no step of it exceeds but by chance
_FINEST = 0.25  # of the tolerance is granted by phases whose steps hardly scatter
_CLOSE = 1e-9  # sums in another order differ in the last digits, and must not decide


class Rows(NamedTuple):
    """Which operations ran in each step, and for how long.

    Parameters
    ----------
    indptr, indices, order
        As in :class:`~tpunb.frames.op_matrix.OpMatrix`.
    own
        Self time of each row that `order` points to, in any unit; what is not above 0 counts as 0.
    device
        The first column of a device: those before it are the host's.
    """

    indptr: Ints
    indices: NDArray[np.int32]
    order: NDArray[Any]
    own: NDArray[Any]
    device: int


class Leaders(NamedTuple):
    """What is known of each phase: sums over its steps.

    Parameters
    ----------
    sums
        (phases, ops, 2): in how many of its steps each op ran, and the sum of the square roots of its share of the
        self time of its side.
    facts
        (phases, 7): the steps told of it, their operations in total, the squared length of the sums of roots on either
        side, how far its steps lay from its mean on either side when they joined, summed; and all its steps, those
        that were told by another like them included.
    used
        (phases, 2): its number, -1 where there is none yet, and the last step that joined it.
    told
        (2,): how many numbers were given, and how many steps were told.
    """

    sums: NDArray[np.float64]
    facts: Floats
    used: Ints
    told: Ints


class Step(NamedTuple):
    """One step as phases are asked to have it.

    Parameters
    ----------
    columns
        Of the operations that ran, the host's first.
    roots
        The square roots of their shares of the self time of their side.
    split
        How many of them are the host's.
    host, device
        1.0 where that side took time at all, else 0.0.
    """

    columns: NDArray[np.int32]
    roots: Floats
    split: int
    host: float
    device: float


def leaders(phases: int, ops: int) -> Leaders:
    """Return room for so many phases, none of them known yet."""
    return Leaders(
        np.zeros((phases, ops, 2)),
        np.zeros((phases, 7)),
        np.full((phases, 2), -1, dtype=np.int64),
        np.zeros(2, dtype=np.int64),
    )


def _compiled(loop: Callable[_P, _R]) -> Callable[_P, _R]:
    kernel: Callable[_P, _R] = njit(nogil=True, cache=True, error_model="numpy", fastmath=_FREELY)(loop)
    return kernel


@_compiled
def shared(indptr: Ints, indices: NDArray[np.int32], out: Ints) -> None:
    """Write how many operations each step shares with the one before it; for the first, how many it has."""
    if out.size:
        out[0] = indptr[1] - indptr[0]
    for row in range(1, out.size):
        begin, middle, end = indptr[row - 1], indptr[row], indptr[row + 1]
        one, other = indices[begin:middle], indices[middle:end]
        alike = one.size == other.size
        if alike:  # most steps run what the step before ran: no branch a column, and the widest registers there are
            unlike = np.int32(0)
            for k in range(one.size):
                unlike = np.int32(unlike | np.int32(one[k] ^ other[k]))
            alike = unlike == 0
        out[row] = other.size if alike else _merged(one, other)


@_compiled
def _merged(one: NDArray[np.int32], other: NDArray[np.int32]) -> int:
    """Return how many columns two rows share."""
    left, right, found = 0, 0, 0
    while left < one.size and right < other.size:
        before, after = one[left], other[right]
        found += before == after
        left += before <= after
        right += after <= before
    return found


@_compiled
def scan(
    rows: Rows, which: Ints, weights: Floats, starts: NDArray[np.bool_], limits: Floats, known: Leaders, out: Ints
) -> None:
    """Write the number of the phase that each step joins, or opens; `known` keeps what was learnt.

    Parameters
    ----------
    rows
        All steps.
    which, weights, starts
        (told,): the steps to tell of, in order; how many alike each stands for; and whether it is its host's first.
    limits
        (2,): the least Jaccard and Bhattacharyya similarity at which a step joins a phase.
    known
        Phases so far; updated.
    out
        (told,): written.
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
            root[k - begin] = rows.own[rows.order[k]]
            split += rows.indices[k] < rows.device
        slot = tell(known, -1 if starts[i] else slot, rows.indices[begin:end], root, split, weights[i], limits)
        out[i] = known.used[slot, 0]


@_compiled
def tell(
    known: Leaders, before: int, columns: NDArray[np.int32], root: Floats, split: int, weight: float, limits: Floats
) -> int:
    """Return the place of the phase that a step joins, or opens.

    Parameters
    ----------
    known
        Phases so far; updated.
    before
        The place of the phase of the step before, or -1.
    columns
        Of the operations that ran, the host's first.
    root
        Their self times; overwritten.
    split
        How many of them are the host's.
    weight
        How many steps like it there are.
    limits
        As in `scan`.
    """
    host, device = _roots(root, 0, split), _roots(root, split, columns.size)
    step = Step(columns, root, split, host, device)
    products = np.zeros(2)
    slot = _home(known, before, step, limits, products)
    _join(known, slot, step, weight, products)
    return slot


@_compiled
def _roots(root: Floats, begin: int, end: int) -> float:
    """Put in place of self times the square roots of their shares; return 1.0 if they took time at all, else 0.0."""
    whole = 0.0
    for k in range(begin, end):
        root[k] = root[k] if root[k] > 0 else 0.0  # a NaN is not above 0
        whole += root[k]
    by = 1 / whole if whole > 0 else 0.0
    for k in range(begin, end):
        root[k] = np.sqrt(root[k] * by)
    return np.float64(whole > 0)


@_compiled
def _home(known: Leaders, before: int, step: Step, limits: Floats, products: Floats) -> int:
    """Return the phase of the most steps that will have a step, else one that is opened for it.

    Not the most alike: strays about a large phase gather in small ones, that would draw its ordinary steps over.
    """
    home = before if before >= 0 and _alike(known, before, step, limits, products) else -1
    least = 0
    for slot in range(known.used.shape[0]):
        if known.used[slot, 0] < 0:
            least = slot
            break
        more = home < 0 or known.facts[slot, 6] > known.facts[home, 6]
        if more and _alike(known, slot, step, limits, products):
            home = slot
        fewer = known.facts[slot, 6] - known.facts[least, 6]
        if fewer < 0 or (fewer == 0 and known.used[slot, 1] < known.used[least, 1]):
            least = slot
    if home >= 0:
        return home
    known.sums[least] = 0.0
    known.facts[least] = 0.0
    known.used[least, 0] = known.told[0]
    known.told[0] += 1
    return least


@_compiled
def _alike(known: Leaders, slot: int, step: Step, limits: Floats, products: Floats) -> bool:
    """Return whether a phase will have a step; if so, write the products of their roots on either side.

    The sets: sum of min over sum of max of the step's presence, 0 or 1, and how often the phase ran each op; Jaccard's
    similarity, as it is for a phase of one step. The times: the cosine of the roots of the shares and their mean over
    the phase; Bhattacharyya's coefficient, as it is for a phase of one step.
    """
    columns, roots = step.columns, step.roots
    own, steps, total = known.sums[slot], known.facts[slot, 0], known.facts[slot, 1]
    size = columns.size * steps
    if min(size, total) < (limits[0] - _CLOSE) * max(size, total):
        return False  # their sizes alone tell
    missing = size - (size + total) * (limits[0] - _CLOSE) / (1 + limits[0] - _CLOSE)  # that may be, times the steps
    for begin in range(0, columns.size, _BLOCK):
        for k in range(begin, min(begin + _BLOCK, columns.size)):
            missing -= steps - own[np.uint64(columns[k]), 0]
        if missing < 0:
            return False
    host, device = 0.0, 0.0
    for k in range(step.split):
        host += roots[k] * own[np.uint64(columns[k]), 1]
    for k in range(step.split, columns.size):
        device += roots[k] * own[np.uint64(columns[k]), 1]
    if 1 - _cosine(host, known.facts[slot, 2], step.host) > _tolerance(known, slot, 4, limits) or 1 - _cosine(
        device, known.facts[slot, 3], step.device
    ) > _tolerance(known, slot, 5, limits):
        return False
    products[0], products[1] = host, device
    return True


@_compiled
def _tolerance(known: Leaders, slot: int, side: int, limits: Floats) -> float:
    """Return how far from its mean a phase will have a step: less where its own steps scatter little."""
    most = 1 - limits[1]
    steps = known.facts[slot, 0]
    if steps > _YOUNG:
        most = min(most, max(_SCATTER * known.facts[slot, side] / (steps - 1), _FINEST * most))
    return float(most + _CLOSE)


@_compiled
def _cosine(product: float, square: float, there: float) -> float:
    """Return how alike two directions are; 1 where neither is one, 0 where one of the two is not."""
    if square <= 0:
        return 1 - there
    return float(product / np.sqrt(square))


@_compiled
def _join(known: Leaders, slot: int, step: Step, weight: float, products: Floats) -> None:
    """Add a step to a phase: once to its means, whatever it weighs, for those it stands for are not known."""
    facts, own = known.facts[slot], known.sums[slot]
    host, device = products
    if facts[0] > 0:
        facts[4] += 1 - _cosine(host, facts[2], step.host)
        facts[5] += 1 - _cosine(device, facts[3], step.device)
    facts[0] += 1
    facts[1] += step.columns.size
    facts[2] += 2 * host + step.host
    facts[3] += 2 * device + step.device
    facts[6] += weight
    for k in range(step.columns.size):
        own[np.uint64(step.columns[k]), 0] += 1
        own[np.uint64(step.columns[k]), 1] += step.roots[k]
    known.used[slot, 1] = known.told[1]
    known.told[1] += 1
