"""How far apart steps may be and still be neighbours: wider than the grain of the clusters, less than their gaps."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tpunb.cluster.cells import Cells
from tpunb.frames.op_matrix import Floats, Ints

_APART = 1.5  # times its own grain that a cluster lies from the next; a cloud cut by chance seldom comes to that
_ON_A_LINE = 3.0  # the same in one dimension, where wide gaps come by chance
_ROOM = 1.2  # times: a narrower range of scales is none
_GAP = 10  # one cluster stays over a factor of 1 + 10 / steps or more: among few steps wide gaps come by chance
_INSIDE = 0.9  # of the steps are in a cluster, where the clusters are to be believed
_ROWS = 256  # of distances that are sorted at one time
_SCALES = {"low": pl.Float64, "high": pl.Float64, "clusters": pl.Int64, "inside": pl.Float64}


def scales(distance: Floats, merged: Cells, k: int) -> pl.DataFrame:
    """Return how many dense clusters there are at each scale of distance, and the ``eps`` to take.

    As distances grow, dense clouds of `k` steps appear, grow together and swallow the strays between them. Two clouds
    are clusters of their own where the gap between them is half as wide again as their grain, three times on a line;
    the grain is the distance at which nine in ten of their own steps had come together. ``eps`` is the middle, on a
    log scale, between the grain of the clusters and the narrowest such gap, where nine steps in ten are in a cluster;
    without a gap, the middle of the widest range over which there is one cluster.

    The k-distances of the paper's elbow are where clouds appear. Neither their widest gap nor the longest range of
    scales over which the number of clusters stays the same will do: one phase far from all others joins the rest.

    Parameters
    ----------
    distance
        (cells, cells).
    merged
        The cells, for their weights and the size of their grid.
    k
        Steps that make a cloud, and the k of the k-distances.

    Returns
    -------
    pl.DataFrame
        One row a range of scales over which the number of clusters stays the same: ``low`` and ``high`` in feature
        units, ``clusters``, ``inside`` (the share of the steps in one at its end, 0 to 1), ``chosen``, and ``eps``,
        null where not chosen.
    """
    weights, n = merged.weights, float(merged.weights.sum())
    if not len(weights) or not distance.any():
        only = pl.DataFrame([(0.0, 0.0, min(len(weights), 1), 1.0)], _SCALES, orient="row")
        return only.with_columns(eps=pl.lit(1.0), chosen=pl.lit(True))
    least = min(k, n)
    grain = _k_distance(distance, weights, least)
    # within a cell of the grid distances are unknown, and far below the spread of all they say nothing
    spread = float(np.average(distance @ weights / n, weights=weights))
    floor = max(merged.side, 1e-3 * spread)
    merges = _linkage(distance, grain)
    heights = np.concatenate([[0.0], merges[:, 2]])
    clouds, held = _clouds(merges, weights, least)
    firsts = np.flatnonzero(np.diff(clouds, prepend=-1))
    ends = np.append(firsts[1:], len(heights) - 1)  # that all steps are one at last says nothing
    ranges = pl.DataFrame(
        {"low": heights[firsts], "high": heights[ends], "clusters": clouds[firsts], "inside": held[ends - 1] / n},
        schema=_SCALES,
    )
    most = min(_INSIDE * n, n - 1)  # a stray there may be among however few
    enough = max(float(heights[(held >= most).argmax()]), floor)
    gaps = [gap for gap in _gaps(merges, merged, grain, least, floor) if gap[1] > _ROOM * enough]
    if gaps:
        narrowest = min(wide for _, wide in gaps)
        low = max([enough, *(fine for fine, _ in gaps if fine < narrowest)])
        eps = float(np.sqrt(low * narrowest))
    else:
        eps = _of_one(heights, (clouds == 1) & (held >= most), n, floor)
    at = max(int(np.searchsorted(ranges["low"].to_numpy(), eps, side="right")) - 1, 0)
    chosen = pl.int_range(pl.len()) == at
    return ranges.with_columns(eps=pl.when(chosen).then(eps), chosen=chosen)


def _gaps(merges: Floats, merged: Cells, grain: Floats, least: float, floor: float) -> list[tuple[float, float]]:
    """Return the grain of each two clusters that are so of their own right, and the distance between them."""
    n = len(merged.weights)
    apart, few = (_APART, 2) if merged.centres.shape[1] > 1 else (_ON_A_LINE, 10)
    weight = np.concatenate([merged.weights, np.zeros(len(merges))])
    height = np.maximum(np.concatenate([grain, merges[:, 2]]), floor)
    heavier = np.full(len(weight), -1)
    several: dict[int, float] = {}  # nodes of more than one cluster, and the coarsest grain of these
    gaps = []

    def grain_of(node: int) -> float:
        if node in several:
            return several[node]
        most = min(_INSIDE * weight[node], weight[node] - 1)  # a stray or two are not its grain
        while node >= n and weight[heavier[node]] >= most:
            node = heavier[node]
        return float(height[node])

    for node, (one, other) in enumerate(merges[:, :2].astype(int).tolist(), start=n):
        weight[node] = weight[one] + weight[other]
        heavier[node] = one if weight[one] >= weight[other] else other
        lighter = min(weight[one], weight[other])
        if lighter >= least:
            fine = max(grain_of(one), grain_of(other))
            if height[node] >= apart * (1 + few / lighter) * fine:  # few steps lie apart by chance
                several[node] = fine
                gaps.append((fine, float(height[node])))
                continue
        parts = [several[part] for part in (one, other) if part in several]
        if parts:
            several[node] = max(parts)
    return gaps


def _of_one(heights: Floats, one: NDArray[np.bool_], n: float, floor: float) -> float:
    """Return the middle of the widest range over which there is one cluster that leaves out its strays, if any."""
    scale = np.log(np.maximum(heights, floor))
    single = np.flatnonzero(one[:-1])
    best = max(single, key=lambda at: scale[at + 1] - scale[at], default=None)
    if best is None or scale[best + 1] - scale[best] < np.log(max(_ROOM, 1 + _GAP / n)):
        return float(heights[-1]) or 1.0
    return float(np.exp((scale[best] + scale[best + 1]) / 2))


def _linkage(distance: Floats, core: Floats) -> Floats:
    """Return the single linkage of what is together: two cells, once both are dense and near enough."""
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    together = np.maximum(distance, core[:, None], dtype=np.float32, casting="same_kind")
    np.maximum(together, core.astype(np.float32), out=together)
    np.fill_diagonal(together, 0)
    return np.asarray(linkage(squareform(together, checks=False), "single"))


def _clouds(merges: Floats, weights: Floats, least: float) -> tuple[Ints, Floats]:
    """Return how many clusters weigh `least` or more, and how much they hold, before a linkage and after each merge."""
    weight = np.concatenate([weights, np.zeros(len(merges))])
    clouds, inside = int((weights >= least).sum()), float(weights[weights >= least].sum())
    history = [(clouds, inside)]
    for row, (one, other) in enumerate(merges[:, :2].astype(int), start=len(weights)):
        weight[row] = weight[one] + weight[other]
        for member, sign in ((row, 1), (one, -1), (other, -1)):
            if weight[member] >= least:
                clouds += sign
                inside += sign * weight[member]
        history.append((clouds, inside))
    found = np.array(history)
    return found[:, 0].astype(np.int64), found[:, 1]


def _k_distance(distance: Floats, weights: Floats, k: float) -> Floats:
    """Return how far from each cell `k` steps lie, its own included."""
    most = min(int(np.ceil(k)), len(weights))
    reach = np.empty(len(weights))
    for start in range(0, len(weights), _ROWS):
        chunk = distance[start : start + _ROWS]
        nearest = np.argpartition(chunk, most - 1, axis=1)[:, :most]
        own = np.take_along_axis(chunk, nearest, axis=1)
        order = np.argsort(own, axis=1, kind="stable")
        held = weights[np.take_along_axis(nearest, order, axis=1)]
        enough = (np.cumsum(held, axis=1) >= k).argmax(axis=1)
        reach[start : start + _ROWS] = np.take_along_axis(own, order, axis=1)[np.arange(len(chunk)), enough]
    return reach
