"""k-means: phases are round clouds of steps, as many as the curve of the error says (paper IV.A)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import polars as pl

from tpunb.cluster.cells import Cells, cells_of
from tpunb.cluster.features import Features, check
from tpunb.cluster.knee import knee
from tpunb.cluster.methods import Parameters, in_order
from tpunb.frames import Labels, Steps
from tpunb.frames.memory import remembered
from tpunb.frames.op_matrix import Floats, Ints

CHOICES = ("elbow", "log", "bic")
"""The rules by which k is chosen."""

_STARTS = 10
_TURNS = 2  # ways from a neighbouring k that are tried
_LEADING = 20  # columns that the starts search: k - 1 principal components span the centres (Ding and He 2004)
_NOTHING = 1e-12  # squared error that is rounding
_ALIKE = 1e-3  # of the error at k = 1: what is left below it is no structure
_APART = 2.0
_TOUCHING = 3  # k in a row whose phases are not apart
_BIC_SHARE = 0.9  # SimPoint takes the least k that scores this share of the range of the criterion


@dataclass(frozen=True, repr=False)
class KMeans(Parameters):
    """k-means phases, for k = 1 to `k_max`, with k chosen from the curve of the error unless given.

    Three rules choose, and ``sweeps["k"]`` shows what each would have:

    - ``"elbow"``, the paper's: the knee of the sum of squared distances. One phase that holds most of the variance
      bends that curve at k = 2 or 3 whatever follows.
    - ``"log"``: the knee of its logarithm, where each phase counts by the share of the remaining error it explains.
    - ``"bic"``, the default: the least k whose Bayesian information criterion reaches 90 % of its range (SimPoint,
      Sherwood et al. 2002), of spherical clusters of one variance (Pelleg and Moore 2000).

    The last two go no further than the last k whose phases lie apart: beyond it centres only cut one cloud in pieces.
    Of a known run (:func:`tpunb.testing.known_run`) "bic" finds the phases; where times vary as they do in the wild
    k-means itself falls short, and by how much ``benchmarks/truth.py`` prints.

    Like steps are merged (:mod:`tpunb.cluster.cells`). Ten starts search the leading principal components; what they
    find is held against the next larger k with two phases joined and the next smaller with one split, and the best
    goes on in all components. The error is that of every step.

    Parameters
    ----------
    k
        Number of phases; chosen if None. Fewer come back where fewer steps differ. Up to `k_max` they are those that
        the sweep from 1 to `k_max` finds at this k, so that its curve tells their error.
    k_max
        Largest k to try. A larger `k` is searched for by itself.
    seed
        Of the random starts, ten a k.
    features
        The space: "default", "paper", or a tuple of blocks (:mod:`tpunb.cluster.features`).
    choose
        By which rule: "elbow", "log" or "bic".

    Raises
    ------
    ValueError
        When a parameter is out of its range.

    >>> from tpunb.testing import toy_steps
    >>> KMeans()(toy_steps("aaabbbaa"))
    [0, 0, 0, 1, 1, 1, 0, 0]
    """

    k: int | None = None
    k_max: int = 15
    seed: int = 0
    features: Features = "default"
    choose: Literal["elbow", "log", "bic"] = "bic"

    def __post_init__(self) -> None:
        self._hold_whole(k=1, k_max=1, seed=0)
        check(self.features, "KMeans")
        if self.choose not in CHOICES:
            raise ValueError(f"The choose parameter of KMeans must be one of {CHOICES}. Got {self.choose!r} instead.")

    @classmethod
    def paper(cls) -> KMeans:
        """Return the paper's settings: its features, k from 1 to 15, and the elbow of the plain error (IV.A)."""
        return cls(features="paper", choose="elbow")

    def __call__(self, steps: Steps) -> Labels:
        """Return one label a step, and ``sweeps["k"]``: what was found at each k tried.

        Its columns: ``k``; ``sse``, the sum of squared distances of all steps to the centres of their phases, which
        never rises; ``bic``; ``by_elbow``, ``by_log`` and ``by_bic``, whether that rule takes this k, null where k
        was given; ``chosen``. A `k` that was given has one row.
        """
        if not len(steps):
            return Labels([])
        merged = cells_of(steps, self.features)
        most = len(merged.weights)
        tried = range(1, min(self.k_max, most) + 1)
        k = None if self.k is None else min(self.k, most)
        if k is not None and k not in tried:
            tried = range(k, k + 1)
        found = _fits(steps, merged, tried, self.seed)
        if k is not None:
            tried, found = range(k, k + 1), [found[tried.index(k)]]
        bic = [_bic(fit, merged) for fit in found]
        said = _choices(found, bic, merged, self.k_max) if k is None else dict.fromkeys(CHOICES, k)
        at = tried.index(said[self.choose])
        sweep = pl.DataFrame(
            {
                "k": tried,
                "sse": [fit.sse + merged.within for fit in found],
                "bic": bic,
                **{f"by_{rule}": [n == said[rule] if k is None else None for n in tried] for rule in CHOICES},
                "chosen": [i == at for i in range(len(tried))],
            },
            schema=_SWEEP,
        )
        return Labels(in_order(found[at].labels[merged.cell], steps), {"k": sweep})


_SWEEP = {
    "k": pl.Int64,
    "sse": pl.Float64,
    "bic": pl.Float64,
    "by_elbow": pl.Boolean,
    "by_log": pl.Boolean,
    "by_bic": pl.Boolean,
    "chosen": pl.Boolean,
}


class Fit(NamedTuple):
    """k clusters of cells: the label of each, the clusters' centres, and the cells' squared error, weighted."""

    labels: Ints
    centres: Floats
    sse: float


@remembered  # the labels of cells, not of steps: some 40 kB a k
def _fits(steps: Steps, merged: Cells, tried: range, seed: int) -> list[Fit]:
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):  # points are few: threads would spin more than they work
        return fits(merged, tried, seed)


def fits(merged: Cells, tried: Sequence[int], seed: int) -> list[Fit]:
    """Return the clusters of `merged` at each k of `tried`, rising by one; a larger k never fits worse."""
    weights, points = merged.weights, merged.centres
    leading = np.ascontiguousarray(points[:, : max(_LEADING, *tried)])
    found = [_lloyd(leading, weights, k, seed) for k in tried]
    for at in range(len(found) - 2, -1, -1):
        found[at] = _best(found[at], leading, weights, _joined(found[at + 1], weights))
    for at in range(1, len(found)):
        found[at] = _best(found[at], leading, weights, _split(found[at - 1], leading, weights))
    if leading.shape == points.shape:
        return found
    found = [_lloyd(points, weights, _fit(points, weights, fit.labels).centres) for fit in found]
    for at in range(1, len(found)):
        if found[at].sse > found[at - 1].sse:
            found[at] = _best(found[at], points, weights, _split(found[at - 1], points, weights))
    return found


def _lloyd(points: Floats, weights: Floats, start: int | Floats, seed: int = 0) -> Fit:
    """Return where Lloyd's algorithm comes to: from centres, or as the best of ten random starts of so many."""
    from sklearn.cluster import KMeans as Lloyd

    if isinstance(start, int):
        lloyd = Lloyd(start, n_init=_STARTS, random_state=seed)
    else:
        lloyd = Lloyd(len(start), init=start, n_init=1)
    return _fit(points, weights, lloyd.fit(points, sample_weight=weights).labels_.astype(np.int64))


def _fit(points: Floats, weights: Floats, labels: Ints) -> Fit:
    held = np.eye(int(labels.max()) + 1)[:, labels] * weights
    centres = held @ points / _sizes(labels, weights)[:, None]
    return Fit(labels, centres, float(weights @ np.square(points - centres[labels]).sum(axis=1)))


def _sizes(labels: Ints, weights: Floats) -> Floats:
    return np.maximum(np.bincount(labels, weights), 1.0)


def _best(fit: Fit, points: Floats, weights: Floats, starts: Iterable[Floats]) -> Fit:
    """Return `fit`, or what Lloyd's algorithm finds from one of the starts where that is better."""
    return min([fit, *(_lloyd(points, weights, start) for start in starts)], key=lambda found: found.sse)


def _split(fit: Fit, points: Floats, weights: Floats) -> Iterator[Floats]:
    """Yield the centres with one more: the worst cell of each of the two clusters with the largest error."""
    error = weights * np.square(points - fit.centres[fit.labels]).sum(axis=1)
    for cluster in np.argsort(-np.bincount(fit.labels, error), kind="stable")[:_TURNS]:
        worst = np.where(fit.labels == cluster, error, -1.0).argmax()
        yield np.vstack([fit.centres, points[worst]])


def _joined(fit: Fit, weights: Floats) -> Iterator[Floats]:
    """Yield the centres with one less: each of the two pairs as one whose union adds least to the error (Ward 1963)."""
    from scipy.spatial.distance import cdist

    size = _sizes(fit.labels, weights)
    one, other = np.triu_indices(len(size), 1)
    cost = cdist(fit.centres, fit.centres, "sqeuclidean")[one, other] / (1 / size[one] + 1 / size[other])
    for at in np.argsort(cost, kind="stable")[:_TURNS]:
        pair = [one[at], other[at]]
        yield np.vstack(
            [np.delete(fit.centres, pair, axis=0), np.average(fit.centres[pair], axis=0, weights=size[pair])]
        )


def _choices(found: list[Fit], bic: list[float], merged: Cells, k_max: int) -> dict[str, int]:
    """Return the k that each rule takes; the criterion's where a curve has no knee."""
    error = np.array([fit.sse for fit in found]) + merged.within
    if error[0] <= _NOTHING:
        return dict.fromkeys(CHOICES, 1)
    last = _last_apart(found, merged)
    score = np.array(bic)
    least = int((score >= score.min() + _BIC_SHARE * np.ptp(score)).argmax()) + 1
    # With as many centres as unlike steps the error is 0, and stays so: the curve goes on flat up to k_max.
    ks = range(1, max(k_max, len(found) + 3) + 1)
    curve = np.pad(error, (0, len(ks) - len(found)), mode="edge")
    logs = np.log(np.maximum(curve, max(curve[last - 1], _ALIKE * curve[0])))
    elbow, log = knee(ks, curve.tolist()), knee(ks, logs.tolist())
    return {
        "elbow": least if elbow is None else min(elbow, len(found)),
        "log": min(least if log is None else log, last),
        "bic": min(least, last),
    }


def _last_apart(found: list[Fit], merged: Cells) -> int:
    """Return the last k whose phases lie apart, before three k in a row whose do not; then it is chance if they do."""
    last, most = 1, merged.weights.sum() / 2
    for k, fit in enumerate(found, 1):
        if k - last > _TOUCHING:
            break
        if 1 < k <= most and _apart(fit, merged):
            last = k
    return last


def _apart(fit: Fit, merged: Cells) -> bool:
    """Return whether there is a gap between every two phases, seen along the line through their centres.

    Their centres lie farther apart than ``_APART`` times the sum of their standard deviations along that line: one
    normal cloud cut in two gives 1.3, one uniform cloud 1.7. Few steps look apart by chance, so they need more.
    """
    size = _sizes(fit.labels, merged.weights)
    spread = np.zeros((len(size), len(size)))  # of each phase along the line to each other, times the line's length
    for own, centre in enumerate(fit.centres):
        cell = fit.labels == own
        along = (merged.centres[cell] - centre) @ (fit.centres - centre).T
        inside = merged.spread[cell] @ np.square(fit.centres - centre).T  # what the cells themselves hide
        spread[own] = np.sqrt(merged.weights[cell] @ (along**2 + inside) / size[own])
    length = np.square(fit.centres[:, None] - fit.centres).sum(axis=2)
    needed = _APART * (1 + 4 / (size[:, None] + size)) * (spread + spread.T)
    return bool((length >= needed)[np.triu_indices(len(size), 1)].all())


def _bic(fit: Fit, merged: Cells) -> float:
    """Return the Bayesian information criterion of spherical clusters of one variance (Pelleg and Moore 2000)."""
    n, d, k = merged.weights.sum(), merged.centres.shape[1], len(fit.centres)
    size = _sizes(fit.labels, merged.weights)
    variance = max((fit.sse + merged.within) / (n * d), _NOTHING)
    likely = -n * d / 2 * (np.log(2 * np.pi * variance) + 1) - n * np.log(n)
    likely += (size * np.log(size)).sum()
    return float(likely - k * (d + 1) / 2 * np.log(n))
