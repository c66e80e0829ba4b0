"""How far apart steps may be and still be neighbours: the scale over which the clusters stay what they are."""

from __future__ import annotations

import numpy as np
import polars as pl

from tpunb.cluster.cells import Cells
from tpunb.cluster.op_matrix import Floats, Ints

_SCALES = {"low": pl.Float64, "high": pl.Float64, "clusters": pl.Int64, "inside": pl.Float64, "eps": pl.Float64}
_GAP = 10  # clusters stay over a factor of 1 + 10 / steps or more: among few steps wide gaps come by chance
_STEADY = 0.5  # and several, besides, by a half: one cluster and a far stray is always there to be found
_ROWS = 256  # of distances that are sorted at one time
_MOST_INSIDE = 0.9  # of the steps are in a cluster, where the clusters are to be believed


def scales(distance: Floats, merged: Cells, k: int) -> pl.DataFrame:
    """Return the ranges of distances over which the number of clusters stays the same, and the one to take.

    As ``eps`` grows, dense clouds of `k` steps appear, grow together and swallow the strays between them. What holds
    over the widest range of scales, with nine steps in ten in a cloud, is there in the data; what lasts for a moment
    is chance. The k-distances of the paper's elbow are where the clouds appear; their widest gap alone joins phases
    that lie closer together than their strays lie apart.

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
        One row a range: ``low`` and ``high`` in feature units, ``clusters``, ``inside`` (the share of the steps in one
        at its end, 0 to 1), ``eps`` (the middle of its part with nine steps in ten inside, on a log scale; null where
        it has none), ``chosen``.
    """
    weights, n = merged.weights, float(merged.weights.sum())
    if not len(weights) or not distance.any():
        return _chosen(pl.DataFrame(schema={**_SCALES, "lasts": pl.Float64}), n)
    merges = _linkage(distance, _k_distance(distance, weights, min(k, n)))
    heights = np.concatenate([[0.0], merges[:, 2]])
    clouds, inside = _clouds(merges, weights, min(k, n))
    # within a cell of the grid distances are unknown, and far below the spread of all they say nothing
    spread = float(np.sqrt(np.average(distance @ weights / n, weights=weights)))
    scale = np.log(np.maximum(heights, max(merged.side / 2, 1e-2 * spread)))
    firsts = np.flatnonzero(np.diff(clouds, prepend=-1))
    rows = []
    for first, end in zip(firsts, np.append(firsts[1:], len(heights) - 1), strict=True):  # one at last says nothing
        begin = first + int((inside[first:end] < _MOST_INSIDE * n).sum())
        lasts = scale[end] - scale[min(begin, end)]
        middle = np.exp(scale[end] - lasts / 2) if begin < end else None
        rows.append((heights[first], heights[end], clouds[first], inside[max(end - 1, first)] / n, middle, lasts))
    return _chosen(pl.DataFrame(rows, {**_SCALES, "lasts": pl.Float64}, orient="row", strict=False), n)


def _chosen(ranges: pl.DataFrame, n: float) -> pl.DataFrame:
    """Return the ranges with the one to take marked: of several clusters the one that lasts longest, else of one."""
    several = pl.col("clusters") > 1
    enough = pl.when(several).then(np.log1p(max(_STEADY, _GAP / max(n, 1)))).otherwise(np.log1p(_GAP / max(n, 1)))
    real = ranges.with_row_index("at").filter(pl.col("eps").is_not_null(), pl.col("lasts") >= enough)
    ranges = ranges.drop("lasts")
    if real.is_empty():  # no gap: every step is in reach
        last = 0.0 if ranges.is_empty() else ranges["high"][-1]
        whole = pl.DataFrame([(last, last, 1, 1.0, last or 1.0)], _SCALES, orient="row")
        return pl.concat([ranges.with_columns(chosen=pl.lit(False)), whole.with_columns(chosen=pl.lit(True))])
    best = real.sort(several, "lasts", "at", descending=True)["at"][0]
    return ranges.with_columns(chosen=pl.int_range(pl.len()) == best)


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
