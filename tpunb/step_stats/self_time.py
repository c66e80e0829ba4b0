"""Times of events that nest or overlap: compiled sweeps without the GIL."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import int64, njit, types, uint32

Ints = npt.NDArray[np.int64]


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


def unions(groups: npt.NDArray[np.uint32], starts: Ints, ends: Ints) -> Ints:
    """Return how long at least one event of each group ran, in picoseconds, by number of the group.

    >>> unions(np.uint32([7, 4, 7]), np.int64([2, 2, 0]), np.int64([5, 3, 3])).tolist()
    [1, 5]
    """
    order = np.argsort(groups, kind="stable")  # quick if sorted
    group, start = groups[order], starts[order]
    if ((group[1:] == group[:-1]) & (start[1:] < start[:-1])).any():
        order = np.lexsort((starts, groups))
    return np.asarray(_cover(groups[order], starts[order], ends[order]))


def _cover_groups(groups: npt.NDArray[np.uint32], starts: Ints, ends: Ints) -> Ints:
    covered = np.zeros(starts.size, np.int64)
    last = -1
    now = np.int64(0)  # the group is covered up to here
    for row in range(starts.size):
        if row == 0 or groups[row] != groups[row - 1]:
            last += 1
            now = starts[row]
        now = max(now, starts[row])
        if ends[row] > now:
            covered[last] += ends[row] - now
            now = ends[row]
    return covered[: last + 1].copy()


def _readonly(dtype: types.Type) -> types.Array:
    return types.Array(dtype, 1, "C", readonly=True)  # as Polars returns them; writable arrays fit too


# compiled on import, not during training when the first window arrives
_compiled = njit([int64[::1](_readonly(uint32), _readonly(int64), _readonly(int64))], nogil=True, cache=True)
_sweep, _cover = _compiled(_sweep_lanes), _compiled(_cover_groups)
