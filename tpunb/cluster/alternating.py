"""Clusters that alternate: steps of the same operations on more data, against disturbed steps.

Batches of three lengths run the same operations for three times as long; so, beside other programs, may a step that is
interrupted. Load comes and goes in stretches, and an interruption lengthens one operation or another. So clusters are
other work if they alternate, and if the typical time of their operations differs as their step time does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tpunb.cluster.recorded import fed, launches
from tpunb.frames import Steps
from tpunb.frames.op_matrix import Ints, op_matrix
from tpunb.frames.own_time import own_time

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_LEAST = 5  # steps of a cluster
_OTHER = 1.4  # factor between median step times
_TYPICAL = 0.6  # of its logarithm that the medians of operations explain
_ALTERNATE = 0.5  # changes from one cluster to the other, by those of a random order
_MOST = 200  # steps of a cluster that are read


def alternate(steps: Steps, rows: Ints, labels: Ints) -> bool:
    """Return whether all clusters, of rows of steps in order of time, are other work by alternation and operations."""
    own = steps.frame.select(own_time()).to_series().fill_null(0).to_numpy()[rows]
    ids = [label for label in np.unique(labels) if label >= 0]
    ids = sorted(ids, key=lambda label: float(np.median(own[labels == label])))
    if len(ids) < 2 or min(int((labels == label).sum()) for label in ids) < _LEAST:
        return False
    ops = op_matrix(steps)
    times = ops.values("self_ps")[:, ~(fed(ops) | launches(ops))]
    typical = [_typical(times, rows[labels == label]) for label in ids]
    for shorter, longer, short_work, long_work in zip(ids, ids[1:], typical, typical[1:], strict=False):
        short, long = own[labels == shorter], own[labels == longer]
        factor = np.median(long) / max(np.median(short), 1)
        if factor < _OTHER or np.quantile(long, 0.25) <= np.quantile(short, 0.75):
            return False
        if long_work < short_work * factor**_TYPICAL:
            return False
        order = labels[(labels == shorter) | (labels == longer)]
        if np.count_nonzero(np.diff(order)) < _ALTERNATE * 2 * len(short) * len(long) / len(order):
            return False
    return True


def _typical(times: csr_array, rows: Ints) -> float:
    """Return the sum of the median self times of operations, in picoseconds."""
    sample = rows[np.linspace(0, len(rows) - 1, min(len(rows), _MOST)).astype(np.int64)]
    return float(np.median(times[sample].toarray(), axis=0).sum())
