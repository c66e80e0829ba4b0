"""Choice of DBSCAN's eps: above the core distance of the clusters, below the gaps between them.

With growing distance, dense clusters appear, merge, and absorb the outliers between them. Two are separate if the gap
between them is 1.5 times their core distance, 3 times in one dimension; the core distance is that at which nine in ten
of a cluster's steps have merged. So are, in several dimensions, the clusters of a range whose end is 2.1 times its
begin, with nine in ten steps in one of them. ``eps`` is the middle, on a log scale, between the core distance and the
narrowest such gap at which nine in ten steps are in a cluster; without a gap, the middle of the widest range with one
cluster, and at least twice the distance at which nine in ten are in it.

The k-distances of the paper's elbow are where clusters appear. Neither their widest gap nor the longest range with the
same number of clusters works: one phase far from all others merges the rest.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tpunb.cluster.limits import LIMITS
from tpunb.cluster.micro_clusters import MicroClusters
from tpunb.frames.op_matrix import Floats, Ints

_ROUNDED = 1e-7  # heights are in float32
_ROWS = 256  # rows of distances sorted at one time
_CANDIDATES = {"low": pl.Float64, "high": pl.Float64, "clusters": pl.Int64, "inside": pl.Float64}


def eps_candidates(distance: Floats, merged: MicroClusters, k: int, least_gap: float = 0.0) -> pl.DataFrame:
    """Return ranges of distances with a number of clusters of `k` steps; those below `least_gap` count as equal.

    ``low``, ``high``; ``clusters``; ``inside``, the share of steps in one at its end; ``chosen``; ``eps`` where chosen.
    """
    weights, n = merged.weights, float(merged.weights.sum())
    if not len(weights) or not distance.any():
        single = pl.DataFrame([(0.0, 0.0, min(len(weights), 1), 1.0)], _CANDIDATES, orient="row")
        return single.with_columns(eps=pl.lit(1.0), chosen=pl.lit(True))
    least = min(k, n)
    core = _core_distance(distance, weights, least)
    # distances inside a micro-cluster are unknown, and those far below the spread of the run mean nothing
    spread = float(np.average(distance @ weights / n, weights=weights))
    floor = max(merged.side, 1e-3 * spread)
    merges = _linkage(distance, core)
    heights = np.concatenate([[0.0], merges[:, 2]])
    clusters, inside = _clusters(merges, weights, least)
    firsts = np.flatnonzero(np.diff(clusters, prepend=-1))
    ends = np.append(firsts[1:], len(heights) - 1)  # the last merge always makes one cluster
    ranges = pl.DataFrame(
        {"low": heights[firsts], "high": heights[ends], "clusters": clusters[firsts], "inside": inside[ends - 1] / n},
        schema=_CANDIDATES,
    )
    most = min(LIMITS.clustered_share * n, n - 1)  # one outlier is allowed in any run
    enough = max(float(heights[(inside >= most).argmax()]), floor, least_gap)
    ratio = LIMITS.stable_range_ratio if merged.centres.shape[1] > 1 else np.inf
    stable = ranges.filter(
        pl.col("clusters") > 1, pl.col("inside") * n >= most, pl.col("high") >= ratio * pl.col("low")
    )
    gaps = [*_gaps(merges, merged, core, least, floor), *stable.select(pl.col("low").clip(floor), "high").iter_rows()]
    shortest = max(LIMITS.usable_range_ratio * enough, LIMITS.single_reach_ratio * least_gap)
    gaps = [gap for gap in gaps if gap[1] > shortest]
    if gaps:
        narrowest = min(gap for _, gap in gaps)
        low = max([enough, *(near for near, _ in gaps if near < narrowest)])
        eps = float(np.sqrt(low * narrowest))
    else:
        middle = _of_one(heights, (clusters == 1) & (inside >= most), n, max(floor, least_gap))
        eps = max(middle, LIMITS.single_reach_ratio * enough)
    at = max(int(np.searchsorted(ranges["low"].to_numpy(), eps, side="right")) - 1, 0)
    return with_eps(ranges, at, eps)


def with_eps(ranges: pl.DataFrame, at: int, eps: float) -> pl.DataFrame:
    """Return ranges with the chosen one, and `eps` in it: of three digits, or of as many as keep it there."""
    low, high = ranges.select("low", "high").row(at)
    low, high = (low, high) if eps < high else (min(eps, high * (1 + _ROUNDED)), np.inf)
    nearby = (eps * (1 + up * 0.5 * 10.0**-n) for n in range(2, 17) for up in (0, 1))  # rounded, then rounded up
    short = (float(f"{value:.{3 + i // 2}g}") for i, value in enumerate(nearby))
    eps, chosen = next((value for value in short if low <= value < high), eps), pl.int_range(pl.len()) == at
    return ranges.with_columns(eps=pl.when(chosen).then(eps), chosen=chosen)


def _gaps(merges: Floats, merged: MicroClusters, core: Floats, least: float, floor: float) -> list[tuple[float, float]]:
    """Return the core distance of each two separate clusters, and the distance between them."""
    n = len(merged.weights)
    ratio, few = (LIMITS.gap_ratio, 2) if merged.centres.shape[1] > 1 else (LIMITS.gap_ratio_1d, 10)
    weight = np.concatenate([merged.weights, np.zeros(len(merges))])
    height = np.maximum(np.concatenate([core, merges[:, 2]]), floor)
    heavier = np.full(len(weight), -1)
    several: dict[int, float] = {}  # nodes of more than one cluster, with the largest core distance of these
    gaps = []

    def core_of(node: int) -> float:
        if node in several:
            return several[node]
        most = min(LIMITS.clustered_share * weight[node], weight[node] - 1)  # leave out an outlier or two
        while node >= n and weight[heavier[node]] >= most:
            node = heavier[node]
        return float(height[node])

    for node, (left, right) in enumerate(merges[:, :2].astype(int).tolist(), start=n):
        weight[node] = weight[left] + weight[right]
        heavier[node] = left if weight[left] >= weight[right] else right
        lighter = min(weight[left], weight[right])
        if lighter >= least:
            larger = max(core_of(left), core_of(right))
            if height[node] >= ratio * (1 + few / lighter) * larger:  # few steps are separate by chance
                several[node] = larger
                gaps.append((larger, float(height[node])))
                continue
        parts = [several[part] for part in (left, right) if part in several]
        if parts:
            several[node] = max(parts)
    return gaps


def _of_one(heights: Floats, single: NDArray[np.bool_], n: float, floor: float) -> float:
    """Return the middle of the widest range with one cluster; the largest distance if none is wide enough."""
    log = np.log(np.maximum(heights, floor))
    best = max(np.flatnonzero(single[:-1]), key=lambda at: log[at + 1] - log[at], default=None)
    ratio = max(LIMITS.usable_range_ratio, 1 + LIMITS.single_stable_steps / n)
    if best is None or log[best + 1] - log[best] < np.log(ratio):
        return float(heights[-1]) * (1 + _ROUNDED) or 1.0
    return float(np.exp((log[best] + log[best + 1]) / 2))


def _linkage(distance: Floats, core: Floats) -> Floats:
    """Return the single linkage by mutual reachability distance."""
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    reachability = np.maximum(distance, core[:, None], dtype=np.float32, casting="same_kind")
    np.maximum(reachability, core.astype(np.float32), out=reachability)
    np.fill_diagonal(reachability, 0)
    return np.asarray(linkage(squareform(reachability, checks=False), "single"))


def _clusters(merges: Floats, weights: Floats, least: float) -> tuple[Ints, Floats]:
    """Return the number of clusters of `least` steps or more, and of steps inside, before and after each merge."""
    weight = np.concatenate([weights, np.zeros(len(merges))])
    clusters, inside = int((weights >= least).sum()), float(weights[weights >= least].sum())
    history = [(clusters, inside)]
    for node, (left, right) in enumerate(merges[:, :2].astype(int), start=len(weights)):
        weight[node] = weight[left] + weight[right]
        for member, sign in ((node, 1), (left, -1), (right, -1)):
            if weight[member] >= least:
                clusters += sign
                inside += sign * weight[member]
        history.append((clusters, inside))
    columns = np.array(history)
    return columns[:, 0].astype(np.int64), columns[:, 1]


def _core_distance(distance: Floats, weights: Floats, k: float) -> Floats:
    """Return the distance from each micro-cluster within which there are `k` steps, itself included."""
    most = min(int(np.ceil(k)), len(weights))
    core = np.empty(len(weights))
    for start in range(0, len(weights), _ROWS):
        chunk = distance[start : start + _ROWS]
        nearest = np.argpartition(chunk, most - 1, axis=1)[:, :most]
        near = np.take_along_axis(chunk, nearest, axis=1)
        order = np.argsort(near, axis=1, kind="stable")
        steps = np.cumsum(weights[np.take_along_axis(nearest, order, axis=1)], axis=1)
        enough = (steps >= k).argmax(axis=1)
        core[start : start + _ROWS] = np.take_along_axis(near, order, axis=1)[np.arange(len(chunk)), enough]
    return core
