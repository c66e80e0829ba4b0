"""Online linear scan: a new phase wherever a step's operations differ from those of the step before.

The paper's equation 1 and nothing else (section IV.A). It reads the sets of operations only, so phases that run the
same operations in other times are one; and a step is as similar as can be, 1.0, to any superset of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tpunb.cluster.methods import Parameters
from tpunb.errors import share
from tpunb.frames import Labels, Steps
from tpunb.frames.memory import remembered
from tpunb.frames.op_matrix import Floats, op_matrix

_THRESHOLDS = 1000  # of the sweep, above 0


@dataclass(frozen=True, repr=False)
class OLS(Parameters):
    """The paper's online linear scan: a phase is a run of consecutive steps, each similar to the one before.

    The similarity of two consecutive steps is ``|A & B| / min(|A|, |B|)`` of their sets of operations (paper IV.A,
    equation 1), and 1.0 where the smaller set is empty. Phases never come back: A B A are three.

    Parameters
    ----------
    threshold
        The least similarity at which a step stays in the phase of the step before, 0 to 1.

    Raises
    ------
    ValueError
        When `threshold` is not in [0, 1].

    >>> from tpunb.testing import toy_steps
    >>> OLS()(toy_steps("aabba"))
    [0, 0, 1, 1, 2]
    """

    threshold: float = 0.7

    def __post_init__(self) -> None:
        share("OLS", "threshold", self.threshold)

    def __call__(self, steps: Steps) -> Labels:
        """Return one label a step, and ``sweeps["threshold"]``: the number of phases from 0 to 1 by a thousandth.

        Each host is scanned on its own, in order of time; the next host's numbers go on where the last one's ended.
        """
        similar, starts = similarities(steps)
        breaks = (similar < self.threshold) | starts
        labels = np.cumsum(breaks) - 1
        return Labels(labels, {"threshold": self._sweep(similar[~starts], int(starts.sum()))})

    def _sweep(self, similar: Floats, hosts: int) -> pl.DataFrame:
        """Return the phases of all thresholds from one sort: one a host, and one a similarity below it."""
        thresholds = np.union1d(np.arange(_THRESHOLDS + 1) / _THRESHOLDS, [self.threshold])
        below = np.searchsorted(np.sort(similar), thresholds, side="left")
        return pl.DataFrame(
            {"threshold": thresholds, "phases": below + hosts, "chosen": thresholds == self.threshold},
            schema={"threshold": pl.Float64, "phases": pl.Int64, "chosen": pl.Boolean},
        )


@remembered
def similarities(steps: Steps) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the similarity of each step to the one before it on its host, and where a host's steps start.

    They are worked out once for as long as the steps live, and read-only.

    Returns
    -------
    similar : Floats
        (steps,): equation 1, 0 to 1; 1.0 for the first step of a host, which has none before it.
    starts : NDArray[np.bool_]
        (steps,): whether a step is the first of its host.
    """
    from tpunb.cluster import step_loops  # compiled: it takes half a second, and those who only import need not wait

    ran = op_matrix(steps)
    shared = np.zeros(len(steps), dtype=np.int64)
    step_loops.shared(ran.indptr.astype(np.int64, copy=False), ran.indices.astype(np.int32, copy=False), shared)
    starts = first_of_host(steps)
    size = np.diff(ran.indptr)
    smaller = np.minimum(size[1:], size[:-1])
    similar = np.ones(len(steps))
    np.divide(shared[1:], smaller, out=similar[1:], where=smaller > 0)
    similar[starts] = 1.0
    similar.flags.writeable = starts.flags.writeable = False  # they are handed to everyone who asks
    return similar, starts


def first_of_host(steps: Steps) -> NDArray[np.bool_]:
    """Return whether each step is the first of its host: (steps,).

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
    """:class:`OLS` while the run still goes: fed one step at a time, it keeps the last step's operations only.

    Parameters
    ----------
    threshold
        As in :class:`OLS`.

    Raises
    ------
    ValueError
        When `threshold` is not in [0, 1].

    >>> scan = OnlineOLS()
    >>> [scan.feed(ops) for ops in (["a", "b"], ["a", "b", "c"], ["x"])]
    [0, 0, 1]
    """

    def __init__(self, threshold: float = 0.7) -> None:
        share("OnlineOLS", "threshold", threshold)
        self.threshold = threshold
        self._label = -1
        self._before: frozenset[str] = frozenset()

    def feed(self, ops: Iterable[str]) -> int:
        """Return the label of the next step, that ran `ops`."""
        now = frozenset(ops)
        smaller = min(len(now), len(self._before))
        similar = len(now & self._before) / smaller if smaller else 1.0
        if self._label < 0 or similar < self.threshold:
            self._label += 1
        self._before = now
        return self._label
