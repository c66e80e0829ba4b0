"""k-means: phases are spherical clusters of steps, their number chosen from the curve of the error (paper IV.A)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import polars as pl

from tpunb.cluster.base import Curve, Parameters, SliderSpec, in_order, knee
from tpunb.cluster.features import Features, check
from tpunb.cluster.limits import LIMITS
from tpunb.cluster.micro_clusters import MicroClusters, micro_clusters_of
from tpunb.frames import Steps
from tpunb.frames.cache import memoised
from tpunb.frames.op_matrix import Floats, Ints
from tpunb.frames.phases import Labels

CHOICES = ("elbow", "log", "bic")
"""Rules that choose k."""

_ROUNDING = 1e-12  # squared error that is rounding


@dataclass(frozen=True, repr=False)
class KMeans(Parameters):
    """k-means phases for k = 1 to `k_max`, with k chosen from the curve of the error by default.

    Three rules choose k; ``sweeps["k"]`` shows the choice of each:

    - ``"elbow"``, the paper's: the knee of the sum of squared distances. A phase with most of the variance puts it at
      k = 2 or 3, whatever follows.
    - ``"log"``: the knee of its logarithm, where each phase counts by the share of the remaining error it explains.
    - ``"bic"``, the default: the smallest k whose Bayesian information criterion reaches 90 % of its range (SimPoint,
      Sherwood et al. 2002), for spherical clusters of one variance (Pelleg and Moore 2000).

    The last two choose no k beyond the last one with separate phases, where centres only split clusters. "bic" finds
    the phases of a synthetic run (``benchmarks/simulate/synthetic_runs.py``); ``benchmarks/truth.py`` prints by how
    much it misses them if step times vary a lot.

    Similar steps are merged (:mod:`tpunb.cluster.micro_clusters`). Ten starts search the leading principal components.
    Each result competes with that of the next larger k with two phases joined, and of the next smaller k with one
    split; the best is refined in all components. The error is that of every step.

    Parameters
    ----------
    k
        Number of phases; chosen if None. Fewer if fewer steps differ. Up to `k_max`, the phases of the sweep at this
        k.
    k_max
        Largest k of the sweep. A larger `k` is fitted alone.
    seed
        Seed of the random starts, ten per k.
    features
        Feature space: "default", "paper", or a tuple of blocks (:mod:`tpunb.cluster.features`).
    choose
        Rule that chooses k: "elbow", "log" or "bic".

    Raises
    ------
    ValueError
        If a parameter is out of its range.

    >>> from tpunb.testing import toy_steps
    >>> KMeans()(toy_steps("aaabbbaa"))
    [0, 0, 0, 1, 1, 1, 0, 0]
    """

    k: int | None = None
    k_max: int = 15
    seed: int = 0
    features: Features = "default"
    choose: Literal["elbow", "log", "bic"] = "bic"

    title: ClassVar[str] = "k-means"
    slider: ClassVar[SliderSpec] = SliderSpec(
        "k",
        "clusters, k",
        step=1,
        least=1,
        title="k-means: squared distances by k",
        curves=(Curve("sse", "sum of squared distances"), Curve("bic", "BIC")),
        rules={"by_elbow": "elbow", "by_log": "elbow of the log", "by_bic": "BIC"},
    )

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
        """Return one label per step, with the sweep of ``k``.

        Its columns: ``k``; ``sse``, the sum of squared distances of all steps to the centres of their phases, which
        never rises; ``bic``; ``by_elbow``, ``by_log`` and ``by_bic``, whether that rule takes this k, null if k was
        given; ``chosen``. A given `k` has one row.
        """
        if not len(steps):
            return Labels([])
        merged = micro_clusters_of(steps, self.features)
        most = len(merged.weights)
        ks = range(1, min(self.k_max, most) + 1)
        k = None if self.k is None else min(self.k, most)
        if k is not None and k not in ks:
            ks = range(k, k + 1)
        results = _cached_fits(steps, merged, ks, self.seed)
        if k is not None:
            ks, results = range(k, k + 1), [results[ks.index(k)]]
        bic = [_bic(result, merged) for result in results]
        choices = _choices(results, bic, merged, self.k_max) if k is None else dict.fromkeys(CHOICES, k)
        chosen = ks.index(choices[self.choose])
        sweep = pl.DataFrame(
            {
                "k": ks,
                "sse": [result.sse + merged.within for result in results],
                "bic": bic,
                **{f"by_{rule}": [n == choices[rule] if k is None else None for n in ks] for rule in CHOICES},
                "chosen": [n == ks[chosen] for n in ks],
            },
            schema_overrides={"k": pl.Int64, **{f"by_{rule}": pl.Boolean for rule in CHOICES}},
        )
        return Labels(in_order(results[chosen].labels[merged.labels], steps), {"k": sweep})


class Fit(NamedTuple):
    """k clusters: the label of each micro-cluster, the centres, and the weighted squared error."""

    labels: Ints
    centres: Floats
    sse: float


@memoised  # labels of micro-clusters, not of steps: some 40 kB per k
def _cached_fits(steps: Steps, merged: MicroClusters, ks: range, seed: int) -> list[Fit]:
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):  # points are few: threads would cost more than they gain
        return fits(merged, ks, seed)


def fits(merged: MicroClusters, ks: Sequence[int], seed: int) -> list[Fit]:
    """Return the clusters of `merged` at each of consecutive `ks`; a larger k never fits worse."""
    weights, points = merged.weights, merged.centres
    leading = np.ascontiguousarray(points[:, : max(LIMITS.kmeans_columns, *ks)])
    results = [_lloyd(leading, weights, k, seed) for k in ks]
    for at in range(len(results) - 2, -1, -1):
        results[at] = _best(results[at], leading, weights, _joined(results[at + 1], weights))
    for at in range(1, len(results)):
        results[at] = _best(results[at], leading, weights, _split(results[at - 1], leading, weights))
    if leading.shape == points.shape:
        return results
    results = [_lloyd(points, weights, _fit(points, weights, result.labels).centres) for result in results]
    for at in range(1, len(results)):
        if results[at].sse > results[at - 1].sse:
            results[at] = _best(results[at], points, weights, _split(results[at - 1], points, weights))
    return results


def _lloyd(points: Floats, weights: Floats, start: int | Floats, seed: int = 0) -> Fit:
    """Run Lloyd's algorithm from centres, or from ten random starts of so many centres."""
    from sklearn.cluster import KMeans as Lloyd

    if isinstance(start, int):
        lloyd = Lloyd(start, n_init=LIMITS.kmeans_starts, random_state=seed)
    else:
        lloyd = Lloyd(len(start), init=start, n_init=1)
    return _fit(points, weights, lloyd.fit(points, sample_weight=weights).labels_.astype(np.int64))


def _fit(points: Floats, weights: Floats, labels: Ints) -> Fit:
    members = np.eye(int(labels.max()) + 1)[:, labels] * weights
    centres = members @ points / _sizes(labels, weights)[:, None]
    return Fit(labels, centres, float(weights @ np.square(points - centres[labels]).sum(axis=1)))


def _sizes(labels: Ints, weights: Floats) -> Floats:
    return np.maximum(np.bincount(labels, weights), 1.0)


def _best(fit: Fit, points: Floats, weights: Floats, starts: Iterable[Floats]) -> Fit:
    """Return the best of `fit` and Lloyd's algorithm from each of the starts."""
    return min([fit, *(_lloyd(points, weights, start) for start in starts)], key=lambda result: result.sse)


def _split(fit: Fit, points: Floats, weights: Floats) -> Iterator[Floats]:
    """Yield the centres and one more: the worst point of each of the two clusters with the largest error."""
    error = weights * np.square(points - fit.centres[fit.labels]).sum(axis=1)
    for cluster in np.argsort(-np.bincount(fit.labels, error), kind="stable")[: LIMITS.kmeans_moves]:
        worst = np.where(fit.labels == cluster, error, -1.0).argmax()
        yield np.vstack([fit.centres, points[worst]])


def _joined(fit: Fit, weights: Floats) -> Iterator[Floats]:
    """Yield the centres with two joined: each of the two pairs that add least to the error (Ward 1963)."""
    from scipy.spatial.distance import cdist

    size = _sizes(fit.labels, weights)
    a, b = np.triu_indices(len(size), 1)
    cost = cdist(fit.centres, fit.centres, "sqeuclidean")[a, b] / (1 / size[a] + 1 / size[b])
    for at in np.argsort(cost, kind="stable")[: LIMITS.kmeans_moves]:
        pair = [a[at], b[at]]
        joined = np.average(fit.centres[pair], axis=0, weights=size[pair])
        yield np.vstack([np.delete(fit.centres, pair, axis=0), joined])


def _choices(results: list[Fit], bic: list[float], merged: MicroClusters, k_max: int) -> dict[str, int]:
    """Return the k of each rule; that of the criterion if a curve has no knee."""
    error = np.array([result.sse for result in results]) + merged.within
    if error[0] <= _ROUNDING:
        return dict.fromkeys(CHOICES, 1)
    last = _last_separate(results, merged)
    score = np.array(bic)
    least = int((score >= score.min() + LIMITS.bic_share * np.ptp(score)).argmax()) + 1
    # with as many centres as different steps the error is 0: the curve continues flat up to k_max
    ks = range(1, max(k_max, len(results) + 3) + 1)
    curve = np.pad(error, (0, len(ks) - len(results)), mode="edge")
    logs = np.log(np.maximum(curve, max(curve[last - 1], LIMITS.kmeans_least_error * curve[0])))
    elbow, log = knee(ks, curve.tolist()), knee(ks, logs.tolist())
    return {
        "elbow": least if elbow is None else min(elbow, len(results)),
        "log": min(least if log is None else log, last),
        "bic": min(least, last),
    }


def _last_separate(results: list[Fit], merged: MicroClusters) -> int:
    """Return the last k with separate phases, before three consecutive k without; later ones are chance."""
    last, most = 1, merged.weights.sum() / 2
    for k, result in enumerate(results, 1):
        if k - last > LIMITS.kmeans_touching:
            break
        if 1 < k <= most and _separate(result, merged):
            last = k
    return last


def _separate(fit: Fit, merged: MicroClusters) -> bool:
    """Return whether every two centres are farther apart than twice the sum of standard deviations along their line."""
    # one normal cluster cut in two gives 1.3, a uniform one 1.7; few steps are separate by chance and need more
    size = _sizes(fit.labels, merged.weights)
    spread = np.zeros((len(size), len(size)))  # of each phase along the line to each other, times the line's length
    for label, centre in enumerate(fit.centres):
        member = fit.labels == label
        along = (merged.centres[member] - centre) @ (fit.centres - centre).T
        inside = merged.spread[member] @ np.square(fit.centres - centre).T  # variance inside the micro-clusters
        spread[label] = np.sqrt(merged.weights[member] @ (along**2 + inside) / size[label])
    length = np.square(fit.centres[:, None] - fit.centres).sum(axis=2)
    needed = LIMITS.kmeans_gap_ratio * (1 + 4 / (size[:, None] + size)) * (spread + spread.T)
    return bool((length >= needed)[np.triu_indices(len(size), 1)].all())


def _bic(fit: Fit, merged: MicroClusters) -> float:
    """Return the Bayesian information criterion of spherical clusters of one variance (Pelleg and Moore 2000)."""
    n, d, k = merged.weights.sum(), merged.centres.shape[1], len(fit.centres)
    size = _sizes(fit.labels, merged.weights)
    variance = max((fit.sse + merged.within) / (n * d), _ROUNDING)
    likelihood = -n * d / 2 * (np.log(2 * np.pi * variance) + 1) - n * np.log(n)
    likelihood += (size * np.log(size)).sum()
    return float(likelihood - k * (d + 1) / 2 * np.log(n))
