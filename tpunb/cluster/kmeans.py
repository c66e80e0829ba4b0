"""k-means: phases are round clouds of steps, as many as the elbow of the error curve says (paper IV.A)."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Literal

import numpy as np
import polars as pl

from tpunb.cluster.cells import Cells, cells
from tpunb.cluster.features import Features, check, space
from tpunb.cluster.knee import knee
from tpunb.cluster.methods import Parameters, in_order
from tpunb.cluster.op_matrix import Floats, Ints
from tpunb.frames import Labels, Steps

_RESTARTS = 10
_ALIKE = 1e-3  # of the error at k = 1: what is left below it is no structure
_APART = 2.0
_BIC_SHARE = 0.9  # SimPoint takes the least k that scores this share of the range of the criterion


@dataclass(frozen=True, repr=False)
class KMeans(Parameters):
    """k-means phases, for k = 1 to `k_max`, with k chosen at the elbow unless given.

    The paper takes the elbow of the sum of squared distances. One phase that holds most of the variance bends that
    curve at k = 2 or 3 whatever follows; the default takes the elbow of its logarithm, where each phase found counts
    by the share of the remaining error that it explains. Where the curve has no elbow, the least k whose Bayesian
    information criterion reaches 90 % of its range, as SimPoint does (Sherwood et al. 2002).

    Parameters
    ----------
    k
        Number of phases; chosen if None. Fewer come back where fewer steps differ.
    k_max
        Largest k to try.
    seed
        Of the random starts, ten a k.
    features
        The space: "default" or "paper" (:mod:`tpunb.cluster.features`).
    elbow
        Of which curve: "log" or "linear".

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
    elbow: Literal["log", "linear"] = "log"

    def __post_init__(self) -> None:
        numbers = {"k": (self.k, 1), "k_max": (self.k_max, 1), "seed": (self.seed, 0)}
        for name, (value, least) in numbers.items():
            chosen_later = name == "k" and value is None
            if not chosen_later and (not isinstance(value, Integral) or value < least):
                raise ValueError(
                    f"The {name} parameter of KMeans must be an int of {least} or more. Got {value!r} instead."
                )
        check(self.features, "KMeans")
        choices = {"elbow": (self.elbow, ("log", "linear"))}
        for name, (choice, known) in choices.items():
            if choice not in known:
                raise ValueError(f"The {name} parameter of KMeans must be one of {known}. Got {choice!r} instead.")

    @classmethod
    def paper(cls) -> KMeans:
        """Return the paper's settings: its features, k from 1 to 15, and the elbow of the plain error (IV.A)."""
        return cls(features="paper", elbow="linear")

    def __call__(self, steps: Steps) -> Labels:
        """Return one label a step, and ``sweeps["k"]``: the sum of squared distances at each k tried."""
        if not len(steps):
            return Labels([])
        points = space(steps, self.features).points
        merged = cells(points)
        most = len(merged.weights)
        tried = [min(self.k, most)] if self.k is not None else list(range(1, min(self.k_max, most) + 1))
        fits = [self._fit(merged, k) for k in tried]
        # a larger k never fits worse; where it seems so, ten starts were too few
        error = np.minimum.accumulate([sse + merged.within for _, sse in fits])
        k = tried[0] if self.k is not None else self._choose(tried, error, fits, merged)
        sweep = pl.DataFrame(
            {"k": tried, "sse": error, "chosen": [value == k for value in tried]},
            schema={"k": pl.Int64, "sse": pl.Float64, "chosen": pl.Boolean},
        )
        labels = fits[tried.index(k)][0][merged.cell]
        return Labels(in_order(labels, steps), {"k": sweep})

    def _fit(self, merged: Cells, k: int) -> tuple[Ints, float]:
        """Return the label of each cell, and the weighted sum of squared distances to the centres."""
        from sklearn.cluster import KMeans as Lloyd

        fit = Lloyd(k, n_init=_RESTARTS, random_state=self.seed).fit(merged.centres, sample_weight=merged.weights)
        return fit.labels_.astype(np.int64), float(fit.inertia_)

    def _choose(self, tried: list[int], error: Floats, fits: list[tuple[Ints, float]], merged: Cells) -> int:
        if error[0] <= 1e-12 * max(float((merged.weights @ merged.centres**2).sum()), 1.0):
            return 1
        n = float(merged.weights.sum())
        # With as many centres as unlike steps the error is 0, and stays so: the curve goes on flat up to k_max.
        ks = list(range(1, max(self.k_max, len(tried) + 3) + 1))
        curve = np.concatenate([error, np.full(len(ks) - len(error), error[-1])])
        if self.elbow == "log":
            # beyond the last k whose phases lie apart, centres only cut one cloud in pieces
            last = max(i for i, k in enumerate(tried) if k == 1 or (k <= n / 2 and _apart(fits[i][0], merged)))
            tried, fits = tried[: last + 1], fits[: last + 1]
            curve = np.log(np.maximum(curve, max(curve[last], _ALIKE * curve[0])))
        found = knee(ks, curve.tolist())
        if found is None:
            found = _simpoint(tried, fits, merged)
        return min(found, tried[-1])


def _apart(labels: Ints, merged: Cells) -> bool:
    """Return whether there is a gap between every two phases, seen along the line through their centres.

    Their centres lie farther apart than ``_APART`` times the sum of their standard deviations along that line: one
    normal cloud cut in two gives 1.3, one uniform cloud 1.7. Few steps look apart by chance, so they need more.
    """
    k = int(labels.max()) + 1
    size = np.bincount(labels, merged.weights, minlength=k)
    centre = np.array(
        [np.average(merged.centres[labels == i], axis=0, weights=merged.weights[labels == i]) for i in range(k)]
    )
    for i in range(k):
        for j in range(i):
            line = centre[i] - centre[j]
            length = float(np.linalg.norm(line))
            spread = 0.0
            for own in (i, j):
                along = (merged.centres[labels == own] - centre[own]) @ line / length
                spread += np.sqrt(np.average(along**2, weights=merged.weights[labels == own]))
            if length < _APART * (1 + 4 / (size[i] + size[j])) * spread:
                return False
    return True


def _simpoint(tried: list[int], fits: list[tuple[Ints, float]], merged: Cells) -> int:
    """Return the least k whose Bayesian information criterion reaches 90 % of its range (SimPoint).

    The criterion of spherical clusters of one variance (Pelleg and Moore 2000).
    """
    n, d = merged.weights.sum(), merged.centres.shape[1]
    scores = []
    for k, (labels, sse) in zip(tried, fits, strict=True):
        size = np.bincount(labels, merged.weights, minlength=k)
        variance = max(sse / (n * d), 1e-12)
        likely = -n * d / 2 * (np.log(2 * np.pi * variance) + 1) - n * np.log(n)
        likely += (size[size > 0] * np.log(size[size > 0])).sum()
        scores.append(likely - (k * (d + 1)) / 2 * np.log(n))
    score = np.array(scores)
    return tried[int((score >= score.min() + _BIC_SHARE * np.ptp(score)).argmax())]
