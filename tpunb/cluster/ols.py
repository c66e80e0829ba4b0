"""Online linear scan: a new phase wherever a step's operations differ from those of the step before.

The paper's equation 1 (section IV.A). It compares sets of operations only, so phases of the same operations and other
times are one, and the similarity of a step to any superset of it is 1.0.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tpunb.cluster.base import Curve, Parameters, SliderSpec
from tpunb.cluster.limits import LIMITS
from tpunb.errors import check_share
from tpunb.frames import Steps
from tpunb.frames.cache import memoised
from tpunb.frames.op_matrix import Floats, op_matrix
from tpunb.frames.phases import Labels


@dataclass(frozen=True, repr=False)
class OLS(Parameters):
    """The paper's online linear scan: a phase is a stretch of consecutive steps, each similar to the one before.

    The similarity of two consecutive steps is ``|A & B| / min(|A|, |B|)`` of their sets of operations (paper IV.A,
    equation 1), and 1.0 if the smaller set is empty. Phases never return: A B A are three.

    Parameters
    ----------
    threshold
        Smallest similarity at which a step stays in the phase of the step before, 0 to 1.

    Raises
    ------
    ValueError
        If `threshold` is not in [0, 1].

    >>> from tpunb.testing import toy_steps
    >>> OLS()(toy_steps("aabba"))
    [0, 0, 1, 1, 2]
    """

    threshold: float = 0.7

    title: ClassVar[str] = "OLS (the paper's scan)"
    slider: ClassVar[SliderSpec] = SliderSpec(
        "threshold",
        "similarity threshold",
        step=0.01,
        least=0.0,
        most=1.0,
        title="OLS: phases by threshold",
        curves=(Curve("phases"),),
    )

    def __post_init__(self) -> None:
        check_share("OLS", "threshold", self.threshold)

    def __call__(self, steps: Steps) -> Labels:
        """Return one label per step, with the sweep of ``threshold``: ``phases`` at 0 to 1 in thousandths.

        Each host is scanned by itself, in order of time, and its labels continue those of the host before.
        """
        similarity, starts = similarities(steps)
        labels = np.cumsum((similarity < self.threshold) | starts) - 1
        thresholds = np.union1d(np.arange(LIMITS.ols_thresholds + 1) / LIMITS.ols_thresholds, [self.threshold])
        # one sort gives the phases of all thresholds: one per host, and one per similarity below the threshold
        below = np.searchsorted(np.sort(similarity[~starts]), thresholds, side="left")
        phases, chosen = below + int(starts.sum()), thresholds == self.threshold
        return Labels(
            labels, {"threshold": pl.DataFrame({"threshold": thresholds, "phases": phases, "chosen": chosen})}
        )


@memoised
def similarities(steps: Steps) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the similarity of each step to the one before it (equation 1), and which steps are the first of a host.

    Both are (steps,) and read-only; the similarity of the first step of a host is 1.0.
    """
    from tpunb.cluster.kernels import shared_ops

    matrix = op_matrix(steps)
    shared = np.zeros(len(steps), dtype=np.int64)
    shared_ops(matrix.indptr.astype(np.int64, copy=False), matrix.indices.astype(np.int32, copy=False), shared)
    starts = first_of_host(steps)
    size = np.diff(matrix.indptr)
    smaller = np.minimum(size[1:], size[:-1])
    similarity = np.ones(len(steps))
    np.divide(shared[1:], smaller, out=similarity[1:], where=smaller > 0)
    similarity[starts] = 1.0
    similarity.flags.writeable = starts.flags.writeable = False  # they are shared
    return similarity, starts


def first_of_host(steps: Steps) -> NDArray[np.bool_]:
    """Return which steps are the first of their host: (steps,).

    >>> from tpunb.testing import toy_steps
    >>> first_of_host(toy_steps("abc")).tolist()
    [True, False, False]
    """
    host = steps.frame["host"]
    first = np.zeros(len(host), dtype=bool)
    first[:1] = True
    if len(host) and host[0] != host[-1]:  # they are sorted
        first[1:] = (host[1:] != host[:-1]).to_numpy()
    return first


class OnlineOLS:
    """:class:`OLS` during a run: takes one step at a time.

    It keeps the operations of the last step; with `recall`, those of the last step of each phase, 256 at most.

    Parameters
    ----------
    threshold
        Threshold as in :class:`OLS`.
    recall
        Smallest Jaccard similarity at which a new stretch of steps joins an earlier phase again; None if phases never
        return. If all 256 phases are taken, the most similar one.

    Raises
    ------
    ValueError
        If `threshold` or `recall` is not in [0, 1].

    >>> scan = OnlineOLS()
    >>> [scan.feed(ops) for ops in (["a", "b"], ["a", "b", "c"], ["x"], ["a", "b"])]
    [0, 0, 1, 2]
    >>> scan = OnlineOLS(recall=0.7)
    >>> [scan.feed(ops) for ops in (["a", "b"], ["x"], ["a", "b"])], len(scan)
    ([0, 1, 0], 2)
    """

    def __init__(self, threshold: float = 0.7, *, recall: float | None = None) -> None:
        check_share("OnlineOLS", "threshold", threshold)
        if recall is not None:
            check_share("OnlineOLS", "recall", recall)
        self.threshold, self.recall = threshold, recall
        self._count = 0
        self._label = -1
        self._phases: dict[int, tuple[str, frozenset[str]]] = {}  # kind and operations of the last step of each

    def __len__(self) -> int:
        """Return the number of phases so far."""
        return self._count

    def feed(self, ops: Iterable[str], kind: str = "") -> int:
        """Return the label of the next step, of a kind and with the names of its operations.

        A step of another kind than the one before it starts a new stretch.
        """
        now = frozenset(ops)
        last_kind, before = self._phases.get(self._label, (None, now))
        smaller = min(len(now), len(before))
        similarity = len(now & before) / smaller if smaller else 1.0
        if kind != last_kind or similarity < self.threshold:
            self._label = self._find(kind, now)
        self._phases[self._label] = kind, now
        return self._label

    def _find(self, kind: str, now: frozenset[str]) -> int:
        """Return the earlier phase to join, or the next number."""
        if self.recall is None:
            self._phases.clear()
        else:
            similarity = {
                label: len(now & ops) / max(len(now | ops), 1) if other == kind else -1.0
                for label, (other, ops) in self._phases.items()
            }
            best = max(similarity, key=similarity.__getitem__, default=-1)
            if best >= 0 and (similarity[best] >= self.recall or len(similarity) == LIMITS.most_phases):
                return best
        self._count += 1
        return self._count - 1
