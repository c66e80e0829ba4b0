"""HDBSCAN: phases are clouds of steps that stay together as the distance shrinks, each at a density of its own."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from tpunb.cluster.cells import Cells, leading_cells
from tpunb.cluster.features import Features, Space, check, space
from tpunb.cluster.methods import Parameters, in_order
from tpunb.frames import Labels, Steps
from tpunb.frames.op_matrix import Floats, Ints

if TYPE_CHECKING:
    import hdbscan
    from scipy.spatial import KDTree

MOST_ROWS = 10_000
"""Steps that are clustered at most."""

_STEADY = 1.5  # a phase holds over distances that differ by this factor, or it is a ripple
_FAR = 10.0  # times as far from its neighbours as is typical of its phase: a stray


@dataclass(frozen=True, repr=False)
class HDBSCAN(Parameters):
    """Density-based phases of unlike density (Campello et al. 2013), by the package ``hdbscan``.

    The package knows no weights, and its cost grows with the steps. So like steps are merged
    (:mod:`tpunb.cluster.cells`), and of each cell as many steps are clustered as a phase or a neighbourhood needs,
    10,000 in all at most; the others take the label that most of these have. Densities inside a cell are not those of
    the run, so phases nearer to each other than a cell is wide are one (``cluster_selection_epsilon``, Malzer and
    Baum 2020).

    The package would rather split than leave together, and gives each stray to the phase it is nearest to. So a phase
    must hold while the distance between its steps shrinks by a third, or its steps are noise, and so is a step ten
    times as far from its neighbours as is typical of its phase. Where fewer than two phases hold, the run is one.

    It finds the phases of the known runs (:func:`tpunb.testing.known_run`), as ``tests/test_hdbscan.py`` shows. Of runs
    of one or two hundred steps, and where operations of hardly any time come and go, as in a host's trace, it cuts a
    phase in pieces: the default method does not.

    Parameters
    ----------
    min_cluster_size
        Steps that make a phase, 2 or more; if None, from 2 for few steps to 15 for many.
    min_samples
        Steps in a neighbourhood, a step itself included, whose radius says how dense it is; as `min_cluster_size` if
        None.
    features
        The space: "default", "paper", or a tuple of blocks (:mod:`tpunb.cluster.features`).

    Raises
    ------
    ValueError
        When a parameter is out of its range.

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
        """Return one label a step, -1 for noise, and ``sweeps["tree"]``, as :class:`FittedHDBSCAN` has them."""
        return self.fit(steps).labels

    def fit(self, steps: Steps) -> FittedHDBSCAN:
        """Return the phases of `steps`, able to label steps that come later.

        >>> from tpunb.testing import toy_steps
        >>> HDBSCAN().fit(toy_steps("aaabbb")).predict(toy_steps("baz"))
        [1, 0, -1]
        """
        where = space(steps, self.features)
        if len(steps) < 2:  # nothing to compare
            return FittedHDBSCAN(Labels([0] * len(steps), {"tree": pl.DataFrame(schema=_TREE)}), where, None)
        merged = leading_cells(where.points)
        size = self.min_cluster_size or _least(len(steps))
        samples = self.min_samples or size
        rows, stands_for, most = _sample(merged, max(size, samples))
        # what comes later is held against twice as many others
        least = Least(size, max(2, min(size, most)), max(1, min(samples - 1, most - 1, len(rows) // 2)))
        cloud = Cloud(where.points[rows], stands_for, least, merged.side)
        votes = np.zeros((len(merged.weights), int(cloud.labels.max()) + 2))
        np.add.at(votes, (merged.cell[rows], cloud.labels + 1), 1)
        found = (votes.argmax(axis=1) - 1)[merged.cell]
        found[rows] = cloud.labels
        labels = in_order(found, steps)
        number = dict(zip(found.tolist(), labels.tolist(), strict=True))
        return FittedHDBSCAN(Labels(labels, {"tree": cloud.tree}), where, cloud, number)


@dataclass(frozen=True, eq=False)
class FittedHDBSCAN:
    """Phases found by :class:`HDBSCAN`, and how steps that come later find theirs.

    Parameters
    ----------
    labels
        One a step, -1 for noise. Their ``sweeps["tree"]`` is the condensed tree, one row a cluster: ``parent``, null
        for the root, which is all steps; ``child``, its number; ``lambda_val``, one over the distance at which it
        parts from its parent; ``steps`` that it holds; whether it was ``chosen`` to be a phase, as several may be.
    space
        Where the steps lie.
    cloud
        What was clustered; None where there were fewer than two steps.
    number
        The label of each cluster of `cloud`.
    """

    labels: Labels
    space: Space
    cloud: Cloud | None
    number: dict[int, int] = field(default_factory=dict)

    def predict(self, later: Steps) -> list[int]:
        """Return one label a step, numbered as `labels` are: of the phase that it would have joined, -1 for none.

        A step joins at the density at which it meets its neighbours, and changes no phase, however many come: to find
        new ones, fit again. Operations that `space` does not know count as nothing.
        """
        if self.cloud is None or not len(later):
            return [0 if self.labels else -1] * len(later)
        placed = self.space.place(later)
        return [self.number.get(label, -1) for label in self.cloud.predict(placed).tolist()]


class Least(NamedTuple):
    """The least number of steps of a cluster, of the rows that stand for them, and of other rows in a neighbourhood."""

    steps: int
    rows: int
    others: int


class Cloud:
    """Points clustered by the package, and what its condensed tree says of them.

    Parameters
    ----------
    points
        (rows, columns), two rows or more.
    stands_for
        (rows,): how many steps each is.
    least
        What a cluster and a neighbourhood must hold.
    nearest
        Clusters nearer to each other than this are one.
    """

    def __init__(self, points: Floats, stands_for: Floats, least: Least, nearest: float) -> None:
        self._points, self._least = points, least
        self._package = _clustered(points, least, nearest)
        self.labels: Ints = self._package.labels_.astype(np.int64)
        tree = self._package.condensed_tree_.to_numpy()
        n = len(points)
        row, node = tree[tree["child"] < n], tree[tree["child"] >= n]
        self._leaves, owner = np.empty(n), np.empty(n, dtype=np.int64)
        self._leaves[row["child"]], owner[row["child"]] = row["lambda_val"], row["parent"] - n
        self._parent, self._born = np.zeros(len(node) + 1, dtype=np.int64), np.zeros(len(node) + 1)
        self._parent[node["child"] - n], self._born[node["child"] - n] = node["parent"] - n, node["lambda_val"]
        self._steps = np.bincount(owner, stands_for, minlength=len(self._parent))
        for child in range(len(node), 0, -1):  # a child's number is above its parent's
            self._steps[self._parent[child]] += self._steps[child]
        self._steps = self._steps.round().astype(np.int64)
        self._chosen = self._choose(owner)

    def _choose(self, owner: Ints) -> list[int]:
        """Return the nodes that hold, or the root; and turn to noise the labels of the others and of strays."""
        chosen, reach = [], []
        for label in range(int(self.labels.max()) + 1):
            own = self.labels == label
            node = self._above(set(owner[own].tolist()))
            holds = np.median(self._leaves[own]) >= _STEADY * self._born[node]
            if holds and self._steps[node] >= self._least.steps:
                chosen.append(node)
            else:
                self.labels[own] = -1
        if len(chosen) < 2:
            chosen, self.labels[:] = [0], 0
        for label in range(int(self.labels.max()) + 1):
            own = self.labels == label
            typical = np.median(self._leaves[own]) if own.any() else np.inf
            reach.append(_FAR / typical)
            self.labels[own & (self._leaves * _FAR < typical)] = -1
        self._reach = np.array(reach)
        return chosen

    def _above(self, nodes: set[int]) -> int:
        """Return the lowest node that holds all of `nodes`."""
        while len(nodes) > 1:
            lowest = max(nodes)
            nodes = nodes - {lowest} | {int(self._parent[lowest])}
        return nodes.pop()

    @property
    def tree(self) -> pl.DataFrame:
        """One row a node, as :class:`FittedHDBSCAN` describes it."""
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
        return frame.filter(pl.col("lambda_val").is_finite())  # equal rows do not part

    def predict(self, points: Floats) -> Ints:
        """Return the label of each of other points."""
        from hdbscan import approximate_predict

        label = np.zeros(len(points), dtype=np.int64)
        if self._chosen != [0]:
            with _quiet():
                label[:] = approximate_predict(self._prepared, points)[0]
        distance = self._neighbours.query(points, k=[self._least.others + 1])[0][:, 0]
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


def _clustered(points: Floats, least: Least, nearest: float) -> hdbscan.HDBSCAN:
    import hdbscan
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1), _quiet():
        return hdbscan.HDBSCAN(
            min_cluster_size=least.rows,
            min_samples=least.others,
            cluster_selection_epsilon=float(nearest),
            algorithm="boruvka_kdtree",
            core_dist_n_jobs=1,
        ).fit(points)


def _least(n: int) -> int:
    """Return the least size of a phase among `n` steps."""
    return max(2, min(n // 50, 5), min(n // 500, 15))


def _sample(merged: Cells, most: int) -> tuple[Ints, Floats, int]:
    """Return up to `most` rows of each cell, how many rows each stands for, and `most`, less where it is too many."""
    weights = merged.weights.astype(np.int64)
    while most > 1 and np.minimum(weights, most).sum() > MOST_ROWS:
        most -= 1
    taken = np.minimum(weights, most)
    cell = np.repeat(np.arange(len(weights)), taken)
    place = np.arange(len(cell)) - np.repeat(np.cumsum(taken) - taken, taken)
    of_cell = np.argsort(merged.cell, kind="stable")
    begin = np.cumsum(weights) - weights
    rows = of_cell[begin[cell] + place * weights[cell] // taken[cell]]
    return rows, (weights / taken)[cell], most


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out what libraries warn of each other, and divisions by the distance 0."""
    with warnings.catch_warnings(), np.errstate(divide="ignore", invalid="ignore"):
        warnings.simplefilter("ignore")
        yield
