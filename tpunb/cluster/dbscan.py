"""DBSCAN: phases are dense clusters of steps, and steps outside them are outliers (paper IV.A).

One neighbour graph serves every ``min_samples``, for the sweep of outliers and clusters. It is built on micro-clusters,
so its size does not grow with the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import ClassVar, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tpunb.cluster.base import Curve, Parameters, SliderSpec, in_order, knee, of_one_kind
from tpunb.cluster.dbscan_eps import eps_candidates, with_eps
from tpunb.cluster.features import Features, check, space
from tpunb.cluster.limits import LIMITS
from tpunb.cluster.micro_clusters import MicroClusters, merge, micro_clusters_of, outliers
from tpunb.cluster.paces import alternate, kinds_of
from tpunb.cluster.recorded import incidental
from tpunb.errors import check_whole, wrong_type
from tpunb.frames import Steps
from tpunb.frames.cache import memoised, memoised_last
from tpunb.frames.op_matrix import Floats, Ints, factorize, op_matrix
from tpunb.frames.phases import Labels

PAPER_SWEEP = tuple(range(5, 201, 25))
"""Values of ``min_samples`` in the paper: 5 to 200 in steps of 25 (IV.A)."""


@dataclass(frozen=True, repr=False)
class DBSCAN(Parameters):
    """Density-based phases (Ester et al. 1996), with parameters chosen from the data by default.

    The paper gives no ``eps``. The default is between the core distance of the clusters and the narrowest gap that is
    wide in comparison (:func:`tpunb.cluster.dbscan_eps.eps_candidates`). In the default space clusters that alternate
    need no wide gap if their operations take as much longer as their steps (:mod:`tpunb.cluster.paces`).

    ``min_samples`` is chosen as in the paper, at the elbow of the share of outliers over ``min_samples``; the smallest
    value if that curve is flat. In the default `sweep` the elbow may turn 0.5 % of the steps to outliers at most: more
    would be small phases. A cluster in the default space with steps of several kinds is a phase of each kind; fewer
    than 5 steps, of less than 50 a tenth, that run the same operations as a larger phase at another pace are outliers.

    Parameters
    ----------
    min_samples
        Number of steps within `eps` of a core step, itself included; chosen if None.
    eps
        Distance in feature space up to which steps are neighbours; chosen if None.
    features
        Feature space: "default", "paper", or a tuple of blocks (:mod:`tpunb.cluster.features`).
    sweep
        Values of `min_samples` to choose from; if None, from 2 for few steps, from 5 for many.

    Raises
    ------
    ValueError
        If a parameter is out of its range.

    >>> from tpunb.testing import toy_steps
    >>> DBSCAN()(toy_steps("aaaaaabbbbczz"))
    [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, -1, 2, 2]
    """

    min_samples: int | None = None
    eps: float | None = None
    features: Features = "default"
    sweep: tuple[int, ...] | None = None

    slider: ClassVar[SliderSpec] = SliderSpec(
        "min_samples",
        "min_samples (steps)",
        step=1,
        least=1,
        title="DBSCAN: outliers, and clusters before kinds divide them, by min_samples",
        curves=(Curve("noise", "outliers", percent_of="steps"), Curve("clusters")),
        fixed=("eps",),
    )

    def __post_init__(self) -> None:
        self._hold_whole(min_samples=1)
        if not isinstance(self.sweep, Sequence | None):
            raise wrong_type("DBSCAN", "sweep", "be a tuple of ints", self.sweep)
        for value in self.sweep or ():
            check_whole("DBSCAN", "sweep", value, 1)
        if self.sweep is not None and not self.sweep:
            raise ValueError("The sweep parameter of DBSCAN must not be empty. Got () instead.")
        if self.eps is not None and (
            isinstance(self.eps, bool) or not isinstance(self.eps, Real) or not 0 < self.eps < np.inf
        ):
            raise ValueError(f"The eps parameter of DBSCAN must be a float above 0. Got {self.eps!r} instead.")
        check(self.features, "DBSCAN")

    @classmethod
    def paper(cls) -> DBSCAN:
        """Return the paper's settings: its features, and ``min_samples`` from 5 to 200 in steps of 25 (IV.A)."""
        return cls(features="paper", sweep=PAPER_SWEEP)

    def __call__(self, steps: Steps) -> Labels:
        """Return one label per step, with the sweep of ``min_samples``: ``noise`` (0 to 1) and ``clusters``.

        If `eps` was chosen, ``sweeps["eps"]`` are its :func:`tpunb.cluster.dbscan_eps.eps_candidates`.
        """
        n = len(steps)
        k = _neighbours(n) if self.min_samples is None else self.min_samples
        merged = micro_clusters_of(steps, self.features)
        sweeps, eps = {}, self.eps
        if eps is None:
            sweeps["eps"] = _eps_sweep(steps, self.features, merged, k)
            eps = sweeps["eps"].filter("chosen")["eps"].item()
        graph, outside, inside = _graph(steps, self.features, merged, float(eps))
        values = np.array(
            (sorted(self.sweep or ()) or _values(n)) if self.min_samples is None else [self.min_samples], dtype=np.int64
        )
        noise = graph.noise(values, inside)
        chosen = _choose(values, noise, most=1.0 if self.sweep else LIMITS.elbow_outliers)
        sweeps["min_samples"] = pl.DataFrame(
            {
                "min_samples": values,
                "noise": noise,
                "clusters": graph.clusters(values),
                "chosen": np.arange(len(values)) == chosen,
            }
        )
        cut = graph.cut(int(values[chosen]))
        if self.features == "default":
            labels = _of_groups(cut, steps, _groups(steps, self.features, merged, float(eps)))
        else:
            labels = np.where(outside, -1, cut[merged.labels])
        return Labels(in_order(labels, steps), sweeps)


def labels_of(steps: Steps, rows: Ints) -> Ints:
    """Return the labels of `DBSCAN` with its default parameters for some rows of steps in the default space."""
    n, merged = len(rows), merge(space(steps, "default").points[rows])
    distance = distances(merged)
    candidates = _eps_of(steps, rows, merged, distance, _neighbours(n))
    graph = Graph(merged, distance, candidates.filter("chosen")["eps"].item())
    values = np.array(_values(n), dtype=np.int64)
    labels = graph.labels(int(values[_choose(values, graph.noise(values), most=LIMITS.elbow_outliers)]))
    return of_one_kind(labels, kinds_of(steps)[rows])


def chosen_eps(steps: Steps, features: Features) -> float:
    """Return the default ``eps`` for steps."""
    sweep = _eps_sweep(steps, features, micro_clusters_of(steps, features), _neighbours(len(steps)))
    return float(sweep.filter("chosen")["eps"].item())


class _Groups(NamedTuple):
    """Steps that get one label at any ``min_samples``: of one kind and one micro-cluster, or outside of it."""

    group: Ints  # of each step
    micro: Ints  # micro-cluster of each group, -1 outside of it
    kind: Ints
    size: Ints
    ran: Floats  # steps in which each operation that is not incidental ran, (groups, ops)


@memoised_last  # of one eps, as `_graph`
def _groups(steps: Steps, features: Features, merged: MicroClusters, eps: float) -> _Groups:
    from tpunb.frames import phase_sums  # numba: slow to import

    outside, kinds = _graph(steps, features, merged, eps)[1], kinds_of(steps)
    key = (merged.labels * 2 + outside) * (int(kinds.max(initial=0)) + 1) + kinds
    _, first, group, size = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    ran = phase_sums.sums(op_matrix(steps).presence(), group, len(size))
    micro = np.where(outside, -1, merged.labels)[first]
    return _Groups(group, micro, kinds[first], size, ran[:, ~incidental(steps)])


def _of_groups(cut: Ints, steps: Steps, groups: _Groups) -> Ints:
    """Return one label per step, one cluster per kind; a few that differ from a larger in time alone are outliers."""
    label = of_one_kind(np.append(cut, -1)[groups.micro], groups.kind)
    clusters, at = factorize(label)
    size, least = np.bincount(at, groups.size), min(len(steps) // 10, 5)
    is_few = (size < least) & (clusters >= 0)
    if is_few.any():
        from scipy.sparse import csr_array

        members = csr_array((np.ones(len(at)), (at, np.arange(len(at)))), shape=(len(clusters), len(at)))
        program = members @ groups.ran > size[:, None] / 2  # operations of most of its steps
        kinds = np.zeros(len(clusters), dtype=np.int64)
        kinds[at] = groups.kind  # of outliers any
        larger = np.flatnonzero((size >= least) & (clusters >= 0))
        for few in np.flatnonzero(is_few):
            alone = size[few] == 1 and len(steps) >= 20  # one step of another kind among those of a cluster
            same = larger[kinds[larger] == kinds[few]]
            if alone or (program[same] == program[few]).all(axis=1).any():
                label[at == few] = -1
    return label[groups.group]


@memoised
def _eps_sweep(steps: Steps, features: Features, merged: MicroClusters, k: int) -> pl.DataFrame:
    if features != "default":
        return eps_candidates(_distances(steps, merged), merged, k)
    return _eps_of(steps, np.arange(len(steps)), merged, _distances(steps, merged), k)


def _eps_of(steps: Steps, rows: Ints, merged: MicroClusters, distance: Floats, k: int) -> pl.DataFrame:
    """Return the candidates; chosen is the widest range with more clusters than its choice, if these alternate."""
    candidates = eps_candidates(distance, merged, k, LIMITS.equal_distance)
    chosen = candidates.filter("chosen").row(0, named=True)
    usable = pl.col("clusters") > max(1, chosen["clusters"]), pl.col("inside") >= LIMITS.clustered_share
    ratio = pl.col("high") / pl.col("low")
    wide = candidates.with_row_index().filter(*usable, pl.col("high") >= LIMITS.alternating_range_ratio * pl.col("low"))
    for number, low, high in wide.sort(ratio, descending=True).select("index", "low", "high").rows():
        eps = float(np.sqrt(low * high))
        if eps > LIMITS.equal_distance and alternate(steps, rows, Graph(merged, distance, eps).labels(k)):
            return with_eps(candidates, number, eps)
    return candidates


@memoised_last  # of one space: 72 MB for 3,000 micro-clusters, and a slider moves within one
def _distances(steps: Steps, merged: MicroClusters) -> Floats:
    return distances(merged)


@memoised_last  # of one eps: another 9 MB, and each min_samples needs the same
def _graph(
    steps: Steps, features: Features, merged: MicroClusters, eps: float
) -> tuple[Graph, NDArray[np.bool_], Floats]:
    """Return the graph at one eps, the outliers of the micro-clusters, and how many other steps each of these has."""
    outside = outliers(space(steps, features).points, merged, eps / 2)  # others are neighbours of each other
    inside = merged.weights - np.bincount(merged.labels[outside], minlength=len(merged.weights))
    return Graph(merged, _distances(steps, merged), eps), outside, inside


def _neighbours(n: int) -> int:
    """Return the k of the k-distances of `n` steps: enough to be steady, fewer than a rare phase has steps."""
    return max(2, min(n // 20, 5), min(n // 200, 30))


def _values(n: int) -> list[int]:
    """Return the default sweep of ``min_samples`` for `n` steps."""
    least = min(n, max(2, min(n // 50, 5)))
    most = max(least, n // 5)
    return sorted({*range(least, min(most, 30) + 1), *(value for value in PAPER_SWEEP if least <= value <= most)})


def _choose(values: Ints, noise: Floats, *, most: float) -> int:
    """Return the index of the elbow; of the smallest value if there is none, or it loses over `most` of the steps."""
    valid = np.flatnonzero(noise < 1)
    least = int(valid[0]) if len(valid) else 0
    if not len(valid) or np.ptp(noise[valid]) <= LIMITS.flat_outliers:
        return least
    elbow = knee(values[valid].tolist(), noise[valid].tolist(), direction="increasing")
    chosen = least if elbow is None else int(np.flatnonzero(values == elbow)[0])
    return chosen if noise[chosen] - noise[least] <= most else least


class Graph:
    """Neighbour graph of micro-clusters: DBSCAN for every ``min_samples`` from one matrix of distances.

    N steps are within `eps` of a micro-cluster, itself included: a core if ``N >= min_samples``; an outlier if no N of
    it and its neighbours is.
    """

    def __init__(self, merged: MicroClusters, distance: Floats, eps: float) -> None:
        self.merged = merged
        self.eps = eps
        self.near: NDArray[np.bool_] = distance <= eps
        self.reach: Floats = self.near @ merged.weights

    def noise(self, values: Ints, inside: Floats | None = None) -> Floats:
        """Return the share of outliers at each ``min_samples``; steps that are not `inside` are outliers at any."""
        if not len(self.reach):
            return np.zeros(len(values))
        most = self._most
        order = np.argsort(most)
        clustered = np.cumsum((self.merged.weights if inside is None else inside)[order][::-1])[::-1]
        clustered = np.append(clustered, 0.0)[np.searchsorted(most[order], values)]
        return np.asarray(1 - clustered / self.merged.weights.sum(), dtype=np.float64)

    def clusters(self, values: Ints) -> Ints:
        """Return the number of clusters at each value of ``min_samples``.

        It is the number of cores minus the edges of their spanning forest. One forest serves every value: the one of
        the largest ``min(N, N')``, because an edge joins two cores exactly if both its ends are cores.
        """
        cores = len(self.reach) - np.searchsorted(np.sort(self.reach), values)
        least = self._forest[2]
        return np.asarray(cores - (len(least) - np.searchsorted(least, values)), dtype=np.int64)

    @cached_property
    def _most(self) -> Floats:
        """The largest N among each micro-cluster and its neighbours."""
        return np.array([self.reach[near].max() for near in self.near])  # each is its own neighbour

    @cached_property
    def _forest(self) -> tuple[Ints, Ints, Floats]:
        """The ends of each edge of the spanning forest, and the smaller N of the two, ascending."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import minimum_spanning_tree

        ends = np.nonzero(np.triu(self.near, 1))
        edges = csr_array((-np.minimum(*self.reach[np.array(ends)]), ends), shape=self.near.shape)
        forest = minimum_spanning_tree(edges).tocoo()
        order = np.argsort(-forest.data, kind="stable")
        return forest.row[order], forest.col[order], -forest.data[order]

    def labels(self, min_samples: int) -> Ints:
        """Return one label per step, -1 for outliers: those of scikit-learn's DBSCAN on the same points."""
        return self.cut(min_samples)[self.merged.labels]

    def cut(self, min_samples: int) -> Ints:
        """Return the label of each micro-cluster."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import connected_components

        from tpunb.cluster.kernels import join_borders

        core = np.flatnonzero(self.reach >= min_samples)
        label = np.full(len(self.reach), -1, dtype=np.int64)
        if len(core):
            *ends, least = self._forest  # its edges connect the same cores as all edges do
            begin = np.searchsorted(least, min_samples)
            edges = csr_array((np.ones(len(least) - begin), (ends[0][begin:], ends[1][begin:])), shape=self.near.shape)
            label[core] = factorize(connected_components(edges, directed=False)[1][core])[1]
            join_borders(self.near, core, label)
        return label


def distances(merged: MicroClusters) -> Floats:
    """Return the distances between the centres of micro-clusters."""
    from scipy.spatial.distance import cdist

    return np.asarray(cdist(merged.centres, merged.centres))
