"""Times of events that nest or overlap, and numbers of their keys: compiled sweeps without the GIL."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt
from numba import boolean, int64, types, uint32, uint64

from tpunb.compiled import compiled

Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.uint32]


def self_times(lanes: npt.NDArray[np.uint32], starts: Ints, durs: Ints) -> Ints:
    """Return the time of each event without nested events, in picoseconds; rows by lane, start, longest first: (n,).

    Every instant is assigned to the running event that began last: self times add up to the lane's union.

    >>> self_times(np.uint32([0, 0, 1]), np.int64([0, 2, 2]), np.int64([10, 3, 3])).tolist()
    [7, 3, 3]
    """
    return np.asarray(_sweep(lanes, starts, durs))


def _sweep_lanes(lanes: npt.NDArray[np.uint32], starts: Ints, durs: Ints) -> Ints:
    times = np.zeros(starts.size, np.int64)
    stack = np.zeros(starts.size, np.int64)  # rows of open events, innermost last
    depth = 0
    now = np.int64(0)  # time is assigned up to here
    for row in range(starts.size + 1):
        lane_over = row == starts.size or (row > 0 and lanes[row] != lanes[row - 1])
        while depth > 0:
            top = stack[depth - 1]
            end = starts[top] + durs[top]
            if not lane_over and end > starts[row]:
                times[top] += max(starts[row] - now, 0)
                break
            if end > now:
                times[top] += end - now
                now = end
            depth -= 1
        if row < starts.size:
            now = starts[row]
            stack[depth] = row
            depth += 1
    return times


def unions(groups: Numbers, starts: Ints, ends: Ints, chosen: npt.NDArray[np.bool_], size: int) -> Ints:
    """Return how long at least one chosen event of each group ran, in picoseconds, -1 without any: (size,).

    Rows are in the order of groups, and of starts in each.

    >>> every = np.array([True, True, True])
    >>> unions(np.uint32([1, 3, 3]), np.int64([2, 0, 2]), np.int64([3, 3, 5]), every, 4).tolist()
    [-1, 1, -1, 5]
    """
    return np.asarray(_cover(groups, starts, ends, chosen, np.full(size, -1, np.int64)))


def _cover_groups(groups: Numbers, starts: Ints, ends: Ints, chosen: npt.NDArray[np.bool_], covered: Ints) -> Ints:
    last = np.int64(-1)
    now = np.int64(0)  # the group is covered up to here
    for row in range(starts.size):
        if not chosen[row]:
            continue
        if groups[row] != last:
            last = np.int64(groups[row])
            covered[last] = 0
            now = starts[row]
        now = max(now, starts[row])
        if ends[row] > now:
            covered[last] += ends[row] - now
            now = ends[row]
    return covered


NULL = np.uint32(2**32 - 1)  # code of a null


def distinct(codes: Numbers) -> tuple[Numbers, Ints]:
    """Return the number of each code among the distinct ones, from 1, 0 for `NULL`; and a row with each of them.

    >>> numbers, rows = distinct(np.uint32([5, 7, NULL, 5]))
    >>> numbers.tolist(), rows.tolist()
    ([1, 2, 0, 1], [0, 1])
    """
    numbers, rows = _number(codes)
    return np.asarray(numbers), np.asarray(rows)


def _number_codes(codes: Numbers) -> tuple[Numbers, Ints]:
    most = np.uint32(0)
    for code in codes:
        if most < code < NULL:
            most = code
    seen = np.zeros(np.int64(most) + 1, np.uint32)
    rows, numbers = np.empty(min(seen.size, codes.size), np.int64), np.zeros(codes.size, np.uint32)
    count = 0
    for row in range(codes.size):
        if codes[row] == NULL:
            continue
        if seen[codes[row]] == 0:
            rows[count] = row
            count += 1
            seen[codes[row]] = count
        numbers[row] = seen[codes[row]]
    return numbers, rows[:count]


def _readonly(dtype: types.Type) -> types.Array:
    return types.Array(dtype, 1, "C", readonly=True)  # as Polars returns them; writable arrays fit too


# compiled on import, not during training when the first window arrives
_groups, _times, _chosen = _readonly(uint32), _readonly(int64), _readonly(boolean)
_sweep = compiled(_sweep_lanes, signature=int64[::1](_groups, _times, _times))
_cover = compiled(_cover_groups, signature=int64[::1](_groups, _times, _times, _chosen, int64[::1]))
_coded = types.Tuple((uint32[::1], int64[::1]))  # type: ignore[no-untyped-call]
_number = compiled(_number_codes, signature=_coded(_groups))


@partial(compiled, signature=types.UniTuple(int64[::1], 2)(_groups, *[_times] * 5))  # type: ignore[no-untyped-call]
def placed(groups: Numbers, starts: Ints, durs: Ints, bounds: Ints, begins: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Return the intervals in which each event runs, 1 ps or more: from the first one to before the second.

    Those of a group are from its bound to before the next, in order of time.
    """
    first, until = np.empty(starts.size, np.int64), np.empty(starts.size, np.int64)
    at = np.int64(0)
    for row in range(starts.size):
        start, low, high = starts[row], bounds[groups[row]], bounds[groups[row] + 1]
        again = low <= at < high and ends[at] > start and (at == low or ends[at - 1] <= start)
        if not again:  # most events run in the interval of the one before
            at = low + np.searchsorted(ends[low:high], start, side="right")
        first[row] = until[row] = at
        while until[row] < high and begins[until[row]] < start + max(durs[row], 1):
            until[row] += 1
    return first, until


@partial(compiled, signature=_coded(_readonly(uint64)))
def numbered(keys: npt.NDArray[np.uint64]) -> tuple[Numbers, Ints]:
    """Return the number of each key among the distinct ones, from 0; and the first row with each of them."""
    bits = np.uint64(1)
    while np.int64(1) << bits < 2 * keys.size:
        bits += np.uint64(1)
    table = np.zeros(np.int64(1) << bits, np.uint32)  # number of the key at each place, from 1
    numbers, rows = np.empty(keys.size, np.uint32), np.empty(keys.size, np.int64)
    count = 0
    for row in range(keys.size):
        at = keys[row] * np.uint64(0x9E3779B97F4A7C15) >> (np.uint64(64) - bits)  # Fibonacci hashing
        while table[at] > 0 and keys[rows[table[at] - 1]] != keys[row]:
            at = (at + np.uint64(1)) & np.uint64(table.size - 1)
        if table[at] == 0:
            rows[count] = row
            count += 1
            table[at] = count
        numbers[row] = table[at] - 1
    return numbers, rows[:count]
