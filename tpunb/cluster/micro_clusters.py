"""Micro-clusters: similar steps merged, so that a method's cost does not grow with the run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tpunb.cluster.features import Features, space
from tpunb.cluster.limits import LIMITS
from tpunb.errors import TpunbError, warn_user
from tpunb.frames import Steps
from tpunb.frames.cache import memoised
from tpunb.frames.op_matrix import Floats, Ints

_ROWS = 2048  # rows per chunk
_STEP = 0x9E3779B97F4A7C15
_MIX = [(np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB))]


@dataclass(frozen=True, eq=False)
class MicroClusters:
    """Points with similar rows merged, in order of their first row."""

    centres: Floats  # mean of the rows of each, (micro-clusters, columns)
    weights: Floats  # number of rows of each, (micro-clusters,)
    labels: Ints  # micro-cluster of each row, (rows,)
    side: float  # root mean square distance of the rows to their centres; 0.0 if only equal rows are merged
    # sum of squared distances of all rows to their centres. For every labelling of the micro-clusters, the
    # squared error of the rows is the weighted error of the centres plus this
    within: float
    lost: float  # `within` as a share of the sum of squared distances of all rows to their mean, 0 to 1
    spread: Floats  # variance of the rows of each, (micro-clusters, columns)
    columns: int  # number of leading columns that `LIMITS.most_variance_lost` holds for


def merge(points: Floats, columns: int | None = None) -> MicroClusters:
    """Merge similar rows of `points`.

    Equal rows are always merged; if too many differ, each joins the nearest seed of k-means|| (Bahmani et al. 2012).
    `TpunbError` if that loses too much of the variance in the leading `columns`, all by default.

    >>> merge(np.array([[0.0], [1.0], [0.0]])).weights.tolist()
    [2.0, 1.0]
    """
    from scipy.sparse import csr_array

    width = points.shape[1] if columns is None else columns
    first, labels, counts = _unique(points)
    merged = len(counts) > LIMITS.most_micro_clusters
    if merged:
        seeds = _nearest_seed(points[:, : min(width, LIMITS.seed_columns)])
        _, first, labels, counts = np.unique(seeds, return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    labels, weights = place[labels], counts[order].astype(np.float64)
    if not merged:  # the merged rows are equal: take one, a mean would round
        centres = points[np.sort(first)]
        return MicroClusters(centres, weights, labels, 0.0, 0.0, 0.0, np.zeros(centres.shape), width)
    n = len(points)
    members = csr_array((np.ones(n), (labels, np.arange(n))), shape=(len(weights), n))
    centres = members @ points / weights[:, None]
    squares = np.einsum("ij,ij->j", points, points)
    total = squares - n * np.square(points.mean(axis=0))
    within = (squares - weights @ np.square(centres)).clip(0)
    lost = within[:width].sum() / total[:width].sum()
    if lost > LIMITS.most_variance_lost:
        raise TpunbError(
            f"{len(points)} steps are too different to merge: {len(weights)} micro-clusters lose {lost:.0%} of the "
            "variance",
            hint="choose features in which fewer columns vary, such as features=('time_share', 'step_time')",
        )
    spread = (members @ np.square(points) / weights[:, None] - np.square(centres)).clip(0)
    error, share = float(within.sum()), float(within.sum() / total.sum())
    return MicroClusters(centres, weights, labels, float(np.sqrt(error / n)), error, share, spread, width)


def _nearest_seed(points: Floats) -> Ints:
    """Return the number of the seed nearest to each row."""
    # drawn in rounds, by the squared distance to the nearest so far: rare rows far from others are seeds too
    n, square, random = len(points), np.einsum("ij,ij->i", points, points), np.random.default_rng(0)
    rows = np.column_stack([points, np.ones(n)]).astype(np.float32)
    away, nearest = np.full(n, np.inf), np.zeros(n, dtype=np.int64)
    seeds = random.choice(n, LIMITS.seeds // LIMITS.seed_rounds, replace=False)
    gaps = np.empty((min(n, _ROWS), len(seeds)), np.float32)  # once: new memory takes longer than the products
    for begin in range(0, LIMITS.seeds, len(seeds)):
        centres = -rows[seeds]
        centres[:, -1] = np.einsum("ij,ij->i", centres[:, :-1], centres[:, :-1]) / 2  # for half of the distance
        for start in range(0, n, _ROWS):
            part = slice(start, start + _ROWS)
            gap = np.matmul(rows[part], centres.T, out=gaps[: n - start])
            best = gap.argmin(axis=1)
            distance = (2 * gap[np.arange(len(best)), best] + square[part]).clip(0)
            closer = distance < away[part]
            nearest[part][closer], away[part][closer] = begin + best[closer], distance[closer]
        seeds = random.choice(n, len(seeds), p=away / away.sum()) if away.any() else seeds
    return nearest


def merge_leading(points: Floats) -> MicroClusters:
    """Merge similar rows by as many leading columns as ``LIMITS.most_variance_lost`` allows, with a warning if not all.

    If steps vary in many independent ways, half as many are tried, and so on; `within` stays that of all columns.
    """
    merged = _merge_leading(points)
    _warn(merged)
    return merged


def micro_clusters_of(steps: Steps, features: Features) -> MicroClusters:
    """Return `merge_leading` of the points of `steps` in a feature space, made once per steps; warn each time."""
    merged = _cached(steps, features)
    _warn(merged)
    return merged


@memoised
def _cached(steps: Steps, features: Features) -> MicroClusters:
    return _merge_leading(space(steps, features).points)


def _merge_leading(points: Floats) -> MicroClusters:
    width = points.shape[1]
    while True:
        try:
            return merge(points, width)
        except TpunbError:
            if width == 1:
                raise
            width = (width + 1) // 2


def _warn(merged: MicroClusters) -> None:
    columns = merged.centres.shape[1]
    if merged.columns < columns:
        warn_user(
            f"{len(merged.labels)} steps vary in too many ways: similar ones are merged by {merged.columns} of "
            f"{columns} components, which loses {merged.lost:.0%} of the variance",
            stacklevel=4,
        )


def outliers(points: Floats, merged: MicroClusters, distance: float) -> NDArray[np.bool_]:
    """Return which rows are farther than `distance` from the centre of their micro-cluster.

    Rare rows are merged with others that they do not resemble. If all rows are far from their centres, as in data of
    many noisy columns, those four times as far as the root mean square.
    """
    if not merged.side:
        return np.zeros(len(points), dtype=np.bool_)
    square = np.empty(len(points))
    for start in range(0, len(points), _ROWS):
        rows = slice(start, start + _ROWS)
        square[rows] = np.square(points[rows] - merged.centres[merged.labels[rows]]).sum(axis=1)
    return np.asarray(square > max(distance**2, 16 * merged.within / len(points)))


def _unique(rows: Floats) -> tuple[Ints, Ints, Ints]:
    """Return the first row of each distinct row, the distinct row of each row, and the counts."""
    # Each row as one sum of well mixed bits: different rows share one once in 2**64, and numbers sort fast.
    names = np.zeros(len(rows), dtype=np.uint64)
    for column in range(rows.shape[1]):
        number = rows[:, column] + 0.0  # -0.0 counts as 0.0
        mixed = number.view(np.uint64) ^ np.uint64(column * _STEP % 2**64)
        for shift, factor in _MIX:  # Stafford's finaliser: every bit of a number changes every bit of the result
            mixed = (mixed ^ (mixed >> shift)) * factor
        names += mixed ^ (mixed >> np.uint64(31))
    _, first, kind, counts = np.unique(names, return_index=True, return_inverse=True, return_counts=True)
    return first, kind.ravel(), counts
