"""Time on one stream of a GPU: its kernels run one after the other, whatever durations were recorded."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from tpunb.text import duration, plural

Ints = npt.NDArray[np.int64]
_WORTH_SAYING = 0.01  # of the time on streams; below, the next kernel was launched ahead, as Hopper can


def cut(
    lane: npt.NDArray[np.uint32], start: Ints, dur: Ints, rows: Ints, together: Callable[[Ints], npt.NDArray[np.bool_]]
) -> list[str]:
    """End the events `rows`, in place, where the next of their stream starts; return what is worth saying.

    `together` returns which of some rows run together with others: branches of a graph, which stay.
    """
    rows = rows[dur[rows] > 0]
    rows = rows[np.lexsort((dur[rows], start[rows], lane[rows]))]
    room = np.where(lane[rows[1:]] == lane[rows[:-1]], start[rows[1:]] - start[rows[:-1]], np.iinfo(np.int64).max)
    late = np.flatnonzero(dur[rows[:-1]] > room)
    late = late[~together(rows[late])] if late.size else late
    if not late.size:
        return []
    past = int((dur[rows[late]] - room[late]).sum(dtype=float))
    dur[rows[late]] = room[late]
    if past <= _WORTH_SAYING * float(dur[rows].sum(dtype=float)):
        return []
    of_kernels = f"{plural(late.size, 'kernel')} recorded as running when the next of the stream started"
    return [f"{of_kernels}: each ends there, {duration(past)} less in all"]
