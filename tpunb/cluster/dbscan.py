"""DBSCAN: phases are dense clouds of steps, and a step in no cloud is noise (paper IV.A).

One neighbour graph answers for every ``min_samples`` at once: how many steps are noise, and how many clusters there
are. It is built on cells of like steps, so its size is bounded whatever the length of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tpunb.cluster.cells import Cells, cells_of, strays
from tpunb.cluster.eps import scales
from tpunb.cluster.features import Features, check, space
from tpunb.cluster.knee import knee
from tpunb.cluster.methods import Parameters, in_order
from tpunb.errors import whole, wrong
from tpunb.frames import Labels, Steps
from tpunb.frames.memory import last_remembered, remembered
from tpunb.frames.op_matrix import Floats, Ints

PAPER_SWEEP = tuple(range(5, 201, 25))
"""The values of ``min_samples`` that the paper tries: 5 to 200 in steps of 25 (IV.A)."""

_FLAT = 0.02  # a noise curve that rises by less than this share of the steps has no elbow
_LOSS = 0.005  # of the steps: what an elbow of our own sweep may cost


@dataclass(frozen=True, repr=False)
class DBSCAN(Parameters):
    """Density-based phases (Ester et al. 1996), that choose their own parameters unless given.

    The paper names no ``eps``. Ours lies between the grain of the clusters and the narrowest of the gaps that are wide
    against it (:func:`tpunb.cluster.eps.scales`).

    ``min_samples`` is chosen as the paper does, at the elbow of the share of noise over ``min_samples``, and the
    smallest value where that curve is flat. Without a `sweep` of your own the elbow may cost 0.5 % of the steps
    at most: what a larger value turns to noise are small phases.

    Parameters
    ----------
    min_samples
        Steps within `eps` of a step, itself included, that make it the core of a phase; chosen if None.
    eps
        Distance in feature space up to which steps are neighbours; chosen if None.
    features
        The space: "default", "paper", or a tuple of blocks (:mod:`tpunb.cluster.features`).
    sweep
        The values of `min_samples` to choose from; if None, from 2 up for few steps, from 5 up for many.

    Raises
    ------
    ValueError
        When a parameter is out of its range.

    >>> from tpunb.testing import toy_steps
    >>> DBSCAN()(toy_steps("aaaaaabbbbczz"))
    [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, -1, 2, 2]
    """

    min_samples: int | None = None
    eps: float | None = None
    features: Features = "default"
    sweep: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        self._hold_whole(min_samples=1)
        if not isinstance(self.sweep, Sequence | None):
            raise wrong("DBSCAN", "sweep", "be a tuple of ints", self.sweep)
        for value in self.sweep or ():
            whole("DBSCAN", "sweep", value, 1)
        if self.sweep is not None and not self.sweep:
            raise ValueError("The sweep parameter of DBSCAN must hold a value. Got () instead.")
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
        """Return one label a step, and ``sweeps["min_samples"]``: noise (0 to 1) and clusters at each value.

        Where `eps` was chosen, ``sweeps["eps"]`` are the ranges it was chosen from (:func:`tpunb.cluster.eps.scales`).
        """
        n = len(steps)
        k = _nearest(n) if self.min_samples is None else self.min_samples
        merged = cells_of(steps, self.features)
        eps, ranges = self.eps, None
        if eps is None:
            ranges = _scales(steps, merged, k)
            eps = ranges.filter("chosen")["eps"].item()
        graph, alone, held = _near(steps, self.features, merged, float(eps))
        values = np.array(
            (sorted(self.sweep or ()) or _values(n)) if self.min_samples is None else [self.min_samples], dtype=np.int64
        )
        noise = graph.noise(values, held)
        at = _chosen(values, noise, most=1.0 if self.sweep else _LOSS)
        sweep = pl.DataFrame(
            {
                "min_samples": values,
                "noise": noise,
                "clusters": graph.clusters(values),
                "chosen": np.arange(len(values)) == at,
            }
        )
        labels = np.where(alone, -1, graph.labels(int(values[at])))
        sweeps = {"min_samples": sweep} if ranges is None else {"min_samples": sweep, "eps": ranges}
        return Labels(in_order(labels, steps), sweeps)


class _Near(NamedTuple):
    """The neighbours at one eps, the steps that are strays of their cells, and how many others each cell holds."""

    graph: Graph
    alone: NDArray[np.bool_]
    held: Floats


@remembered
def _scales(steps: Steps, merged: Cells, k: int) -> pl.DataFrame:
    return scales(_distances(steps, merged), merged, k)


@last_remembered  # of one space: of 3,000 cells they are 72 MB, and a slider moves within one
def _distances(steps: Steps, merged: Cells) -> Floats:
    return distances(merged)


@last_remembered  # of one eps: another 9 MB, and another min_samples asks for the same
def _near(steps: Steps, features: Features, merged: Cells, eps: float) -> _Near:
    alone = strays(space(steps, features).points, merged, eps)
    held = merged.weights - np.bincount(merged.cell[alone], minlength=len(merged.weights))
    return _Near(Graph(merged, _distances(steps, merged), eps), alone, held)


def _nearest(n: int) -> int:
    """Return the k of the k-distances of `n` steps: enough to be steady, fewer than a rare phase has steps."""
    return max(2, min(n // 20, 5), min(n // 200, 30))


def _values(n: int) -> list[int]:
    """Return the values of ``min_samples`` to try on `n` steps."""
    least = min(n, max(2, min(n // 50, 5)))
    most = max(least, n // 5)
    return sorted({*range(least, min(most, 30) + 1), *(value for value in PAPER_SWEEP if least <= value <= most)})


def _chosen(values: Ints, noise: Floats, *, most: float) -> int:
    """Return the place of the value to take: the elbow of the noise among those that leave any step labelled.

    The smallest where the noise is flat, where it has no elbow, or where the elbow costs more than `most` of the
    steps: noise that a larger value adds is small phases lost.
    """
    some = np.flatnonzero(noise < 1)
    least = int(some[0]) if len(some) else 0
    if not len(some) or np.ptp(noise[some]) <= _FLAT:
        return least
    found = knee(values[some].tolist(), noise[some].tolist(), curve="convex", direction="increasing")
    at = least if found is None else int(np.flatnonzero(values == found)[0])
    return at if noise[at] - noise[least] <= most else least


class Graph:
    """Who is whose neighbour: DBSCAN for every ``min_samples`` from one look at the distances.

    A cell of w like steps counts as w steps. With N the steps within `eps` of a cell, and M the largest N among the
    cell and its neighbours, a cell is a core if ``N >= min_samples``, and noise if ``M < min_samples``.

    Parameters
    ----------
    merged
        The points.
    distance
        Theirs: (cells, cells), as :func:`distances` gives them.
    eps
        Distance up to which two are neighbours.
    """

    def __init__(self, merged: Cells, distance: Floats, eps: float) -> None:
        self.merged = merged
        self.eps = eps
        self.near: NDArray[np.bool_] = distance <= eps
        self.reach: Floats = self.near @ merged.weights

    def noise(self, values: Ints, held: Floats | None = None) -> Floats:
        """Return the share of steps that are noise at each value of ``min_samples``, 0 to 1.

        All that a cell stands for go with it, or as many as are `held` (cells,); the others are noise at any value.
        """
        if not len(self.reach):
            return np.zeros(len(values))
        most = self._most
        order = np.argsort(most)
        inside = np.cumsum((self.merged.weights if held is None else held)[order][::-1])[::-1]
        inside = np.append(inside, 0.0)[np.searchsorted(most[order], values)]
        return np.asarray(1 - inside / self.merged.weights.sum(), dtype=np.float64)

    def clusters(self, values: Ints) -> Ints:
        """Return the number of clusters at each value of ``min_samples``.

        Cores less the edges of their spanning forest. One forest serves every value: the one of the largest
        ``min(N, N')``, because an edge joins two cores exactly if both its ends are cores.
        """
        cores = len(self.reach) - np.searchsorted(np.sort(self.reach), values)
        least = self._forest[2]
        return np.asarray(cores - (len(least) - np.searchsorted(least, values)), dtype=np.int64)

    @cached_property
    def _most(self) -> Floats:
        """The largest N among each cell and its neighbours."""
        return np.array([self.reach[near].max() for near in self.near])  # every cell is near itself

    @cached_property
    def _forest(self) -> tuple[Ints, Ints, Floats]:
        """The two ends of each edge of the spanning forest and the least N at them, by which they are sorted."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import minimum_spanning_tree

        one, other = np.nonzero(np.triu(self.near, 1))
        least = np.minimum(self.reach[one], self.reach[other])
        edges = csr_array((-least, (one, other)), shape=self.near.shape)
        forest = minimum_spanning_tree(edges).tocoo()
        order = np.argsort(-forest.data, kind="stable")
        return forest.row[order], forest.col[order], -forest.data[order]

    def labels(self, min_samples: int) -> Ints:
        """Return one label a step, -1 for noise; those of scikit-learn's DBSCAN on the same points."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import connected_components

        core = np.flatnonzero(self.reach >= min_samples)
        label = np.full(len(self.reach), -1, dtype=np.int64)
        if len(core):
            one, other, least = self._forest  # its edges between cores join the same cores as all edges do
            both = slice(np.searchsorted(least, min_samples), None)
            edges = csr_array((np.ones(len(least[both])), (one[both], other[both])), shape=self.near.shape)
            component = connected_components(edges, directed=False)[1][core]
            label[core] = np.unique(component, return_inverse=True)[1]
            # a step at the border of two clusters belongs to the one that was found first
            rest = np.flatnonzero(label < 0)
            by_label = core[np.argsort(label[core], kind="stable")]
            beside = self.near[np.ix_(rest, by_label)]
            first = beside.argmax(axis=1)
            label[rest] = np.where(beside[np.arange(len(rest)), first], label[by_label[first]], -1)
        return label[self.merged.cell]


def distances(merged: Cells) -> Floats:
    """Return how far the centres of cells lie from each other: (cells, cells)."""
    from scipy.spatial.distance import cdist

    return np.asarray(cdist(merged.centres, merged.centres))
