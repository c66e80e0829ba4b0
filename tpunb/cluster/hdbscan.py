"""HDBSCAN: phases are clusters of steps that persist as the distance shrinks, each at its own density."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from tpunb.cluster.base import Parameters, in_order
from tpunb.cluster.dbscan import chosen_eps
from tpunb.cluster.features import Features, Space, check, space
from tpunb.cluster.limits import LIMITS
from tpunb.cluster.micro_clusters import MicroClusters, merge_leading
from tpunb.frames import Steps
from tpunb.frames.op_matrix import Floats, Ints
from tpunb.frames.phases import Labels

if TYPE_CHECKING:
    import hdbscan
    from scipy.spatial import KDTree


@dataclass(frozen=True, repr=False)
class HDBSCAN(Parameters):
    """Density-based phases of different densities (Campello et al. 2013), by the package ``hdbscan``.

    The package has no weights, and its cost grows with the steps. So similar steps are merged
    (:mod:`tpunb.cluster.micro_clusters`), and of each micro-cluster as many steps are clustered as a phase or a
    neighbourhood needs, at most 10,000 in all; the others take the label of most of these. Phases nearer to each other
    than the default ``eps`` of :class:`tpunb.DBSCAN` are one (``cluster_selection_epsilon``, Malzer and Baum 2020), and
    so are those nearer than the width of a micro-cluster: densities inside it are not those of the run.

    The package splits readily, and gives each outlier to the nearest phase. So a phase must persist while the distance
    between its steps shrinks by a third, else its steps are outliers, and so is a step ten times as far from its
    neighbours as typical in its phase. If fewer than two phases persist, the run is one phase.

    Parameters
    ----------
    min_cluster_size
        Smallest number of steps of a phase, 2 or more; if None, from 2 for few steps to 15 for many.
    min_samples
        Number of steps of a neighbourhood, the step included, whose radius measures density; as `min_cluster_size` if
        None.
    features
        Feature space: "default", "paper", or a tuple of blocks (:mod:`tpunb.cluster.features`).

    Raises
    ------
    ValueError
        If a parameter is out of its range.

    >>> from tpunb.testing import toy_steps
    >>> HDBSCAN()(toy_steps("aaaabbbbbzaa"))
    [0, 0, 0, 0, 1, 1, 1, 1, 1, -1, 0, 0]
    """

    min_cluster_size: int | None = None
    min_samples: int | None = None
    features: Features = "default"

    def __post_init__(self) -> None:
        self._hold_whole(min_cluster_size=2, min_samples=1)
        check(self.features, "HDBSCAN")

    def __call__(self, steps: Steps) -> Labels:
        """Return one label per step, -1 for outliers, with the condensed tree of clusters as ``sweeps["tree"]``.

        One row per cluster: ``parent``, null for the root, which is all steps; ``child``, its number; ``lambda_val``,
        one over the distance at which it splits from its parent; ``steps``; whether it was ``chosen`` as a phase.
        """
        return self.fit(steps).labels

    def fit(self, steps: Steps) -> FittedHDBSCAN:
        """Fit phases that can also label later steps.

        >>> from tpunb.testing import toy_steps
        >>> HDBSCAN().fit(toy_steps("aaabbb")).predict(toy_steps("baz"))
        [1, 0, -1]
        """
        fitted_space = space(steps, self.features)
        if len(steps) < 2:  # nothing to compare
            return FittedHDBSCAN(Labels([0] * len(steps), {"tree": pl.DataFrame(schema=_TREE)}), fitted_space, None)
        merged = merge_leading(fitted_space.points)
        size = self.min_cluster_size or _least_size(len(steps))
        samples = self.min_samples or size
        rows, weights, most = _sample(merged, max(size, samples))
        # `predict` reads twice as many neighbours
        least = Least(size, max(2, min(size, most)), max(1, min(samples - 1, most - 1, len(rows) // 2)))
        epsilon = max(merged.side, chosen_eps(steps, self.features))
        clustering = Clustering(fitted_space.points[rows], weights, least, epsilon)
        votes = np.zeros((len(merged.weights), int(clustering.labels.max()) + 2))
        np.add.at(votes, (merged.labels[rows], clustering.labels + 1), 1)
        clusters = (votes.argmax(axis=1) - 1)[merged.labels]
        clusters[rows] = clustering.labels
        labels = in_order(clusters, steps)
        number = dict(zip(clusters.tolist(), labels.tolist(), strict=True))
        return FittedHDBSCAN(Labels(labels, {"tree": clustering.tree}), fitted_space, clustering, number)


@dataclass(frozen=True, eq=False)
class FittedHDBSCAN:
    """Phases of :class:`HDBSCAN`, which can label later steps."""

    labels: Labels  # with ``sweeps["tree"]``
    space: Space
    clustering: Clustering | None  # None if there were fewer than two steps
    number: dict[int, int] = field(default_factory=dict)  # label of each cluster of `clustering`

    def predict(self, later: Steps) -> list[int]:
        """Return one label per step, of the phase that it would have joined, -1 for none.

        A step joins at the density at which it meets its neighbours. Phases do not change: to find new ones, fit again.
        Operations that `space` does not have count as 0.
        """
        if self.clustering is None or not len(later):
            return [0 if self.labels else -1] * len(later)
        placed = self.space.place(later)
        return [self.number.get(label, -1) for label in self.clustering.predict(placed).tolist()]


class Least(NamedTuple):
    """Smallest number of steps of a cluster, of the rows that represent them, and of neighbours of a row."""

    steps: int
    rows: int
    neighbours: int


class Clustering:
    """Points, of `weights` steps each, clustered by the package; clusters within `epsilon` of each other are one."""

    def __init__(self, points: Floats, weights: Floats, least: Least, epsilon: float) -> None:
        self._points, self._least = points, least
        self._package = _fit(points, least, epsilon)
        self.labels: Ints = self._package.labels_.astype(np.int64)
        tree = self._package.condensed_tree_.to_numpy()
        n = len(points)
        row, node = tree[tree["child"] < n], tree[tree["child"] >= n]
        self._lambda, cluster = np.empty(n), np.empty(n, dtype=np.int64)  # of each row
        self._lambda[row["child"]], cluster[row["child"]] = row["lambda_val"], row["parent"] - n
        self._parent, self._born = np.zeros(len(node) + 1, dtype=np.int64), np.zeros(len(node) + 1)
        self._parent[node["child"] - n], self._born[node["child"] - n] = node["parent"] - n, node["lambda_val"]
        self._steps = np.bincount(cluster, weights, minlength=len(self._parent))
        for child in range(len(node), 0, -1):  # a child's number is above its parent's
            self._steps[self._parent[child]] += self._steps[child]
        self._steps = self._steps.round().astype(np.int64)
        self._chosen = self._choose(cluster)

    def _choose(self, cluster: Ints) -> list[int]:
        """Return the nodes that persist, or the root; label the others and outliers -1."""
        chosen, reach = [], []
        for label in range(int(self.labels.max()) + 1):
            member = self.labels == label
            node = self._ancestor(set(cluster[member].tolist()))
            persists = np.median(self._lambda[member]) >= LIMITS.hdbscan_persistence * self._born[node]
            if persists and self._steps[node] >= self._least.steps:
                chosen.append(node)
            else:
                self.labels[member] = -1
        if len(chosen) < 2:
            chosen, self.labels[:] = [0], 0
        for label in range(int(self.labels.max()) + 1):
            member = self.labels == label
            typical = np.median(self._lambda[member]) if member.any() else np.inf
            reach.append(LIMITS.hdbscan_outlier_ratio / typical)
            self.labels[member & (self._lambda * LIMITS.hdbscan_outlier_ratio < typical)] = -1
        self._reach = np.array(reach)
        return chosen

    def _ancestor(self, nodes: set[int]) -> int:
        """Return the lowest common ancestor of `nodes`."""
        while len(nodes) > 1:
            lowest = max(nodes)
            nodes = nodes - {lowest} | {int(self._parent[lowest])}
        return nodes.pop()

    @property
    def tree(self) -> pl.DataFrame:
        """One row per node, as described in `HDBSCAN.__call__`."""
        nodes = range(len(self._parent))
        frame = pl.DataFrame(
            {
                "parent": [None, *self._parent[1:].tolist()],
                "child": nodes,
                "lambda_val": self._born,
                "steps": self._steps,
                "chosen": [node in self._chosen for node in nodes],
            },
            schema=_TREE,
        )
        return frame.filter(pl.col("lambda_val").is_finite())  # equal rows do not split

    def predict(self, points: Floats) -> Ints:
        """Return the label of each of other points."""
        from hdbscan import approximate_predict

        label = np.zeros(len(points), dtype=np.int64)
        if self._chosen != [0]:
            with _quiet():
                label[:] = approximate_predict(self._prepared, points)[0]
        distance = self._neighbours.query(points, k=[self._least.neighbours + 1])[0][:, 0]
        return np.where(distance <= self._reach[label], label, -1)

    @cached_property
    def _prepared(self) -> hdbscan.HDBSCAN:
        self._package.generate_prediction_data()
        return self._package

    @cached_property
    def _neighbours(self) -> KDTree:
        from scipy.spatial import KDTree

        return KDTree(self._points)


_TREE = {"parent": pl.Int64, "child": pl.Int64, "lambda_val": pl.Float64, "steps": pl.Int64, "chosen": pl.Boolean}


def _fit(points: Floats, least: Least, epsilon: float) -> hdbscan.HDBSCAN:
    import hdbscan
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1), _quiet():
        return hdbscan.HDBSCAN(
            min_cluster_size=least.rows,
            min_samples=least.neighbours,
            cluster_selection_epsilon=float(epsilon),
            algorithm="boruvka_kdtree",
            core_dist_n_jobs=1,
        ).fit(points)


def _least_size(n: int) -> int:
    """Return the default size of the smallest phase among `n` steps."""
    return max(2, min(n // 10, 5), min(n // 500, 15))


def _sample(merged: MicroClusters, most: int) -> tuple[Ints, Floats, int]:
    """Return up to `most` rows of each micro-cluster, the number of rows each represents, and the `most` used."""
    weights = merged.weights.astype(np.int64)
    while most > 1 and np.minimum(weights, most).sum() > LIMITS.hdbscan_most_steps:
        most -= 1
    taken = np.minimum(weights, most)
    label = np.repeat(np.arange(len(weights)), taken)
    place = np.arange(len(label)) - np.repeat(np.cumsum(taken) - taken, taken)
    by_label = np.argsort(merged.labels, kind="stable")
    begin = np.cumsum(weights) - weights
    rows = by_label[begin[label] + place * weights[label] // taken[label]]
    return rows, (weights / taken)[label], most


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings of libraries about each other, and of divisions by the distance 0."""
    with warnings.catch_warnings(), np.errstate(divide="ignore", invalid="ignore"):
        warnings.simplefilter("ignore")
        yield
