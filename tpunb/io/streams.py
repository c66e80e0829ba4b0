"""Time on one stream of a GPU: its kernels run one after the other, whatever durations were recorded."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import polars as pl

from tpunb.text import duration, plural

Ints = npt.NDArray[np.int64]
_WORTH_SAYING = 0.01  # of the time on streams; below, the next kernel was launched ahead, as Hopper can


def cut(events: pl.DataFrame, together: Callable[[Ints], npt.NDArray[np.bool_]]) -> tuple[pl.DataFrame, list[str]]:
    """End events on streams where the next of their stream starts; return all events, and what is worth saying.

    `together` returns which of some rows run together with others: branches of a graph, which stay.
    """
    on_stream = events["line"].cat.starts_with("Stream #")
    if not on_stream.any():
        return events, []
    rows = np.flatnonzero(on_stream & events["plane"].cat.starts_with("/device:") & (events["dur_ps"] > 0))
    lane, start = events["lane"].to_numpy(), events["start_ps"].to_numpy()
    dur = events["dur_ps"].to_numpy().copy()
    rows = rows[np.lexsort((dur[rows], start[rows], lane[rows]))]
    gap = start[rows[1:]] - start[rows[:-1]]  # negative where it exceeds Int64
    room = np.where((lane[rows[1:]] == lane[rows[:-1]]) & (gap >= 0), gap, np.iinfo(np.int64).max)
    late = np.flatnonzero(dur[rows[:-1]] > room)
    late = late[~together(rows[late])] if late.size else late
    past = int((dur[rows[late]] - room[late]).sum(dtype=float))
    dur[rows[late]] = room[late]
    events = events.with_columns(dur_ps=dur) if late.size else events
    if past <= _WORTH_SAYING * float(dur[rows].sum(dtype=float)):
        return events, []
    of_kernels = f"{plural(late.size, 'kernel')} recorded as running when the next of the stream started"
    return events, [f"{of_kernels}: each ends there, {duration(past)} less in all"]
