"""Confidence in phases: how far they agree with those that the default method finds in parts of the run.

Five times, four fifths of the steps traced in full (1,000 at most) are grouped anew by :class:`tpunb.cluster.DBSCAN`
with its default parameters. The phases of any method are compared with these by the adjusted Rand index (Hubert and
Arabie 1985), which is a sum over phases: pairs of steps together in both, beyond those expected by chance (Warrens and
van der Hoef 2022). The outliers of either are a phase, unless they are less than 1 % of a part. An index of 0.6 or less
is a confidence of 0, of 0.8 is 0.5, and of 1.0 is 1.
"""

from __future__ import annotations

import numpy as np

from tpunb.cluster.dbscan import labels_of
from tpunb.frames import Steps
from tpunb.frames.cache import memoised
from tpunb.frames.op_matrix import Floats, Ints, factorize

_DRAWS, _PART, _MOST = 5, 0.8, 1000
_LEAST = 3  # steps
_SEEN = 10  # steps of a phase in a part of a long run, below which its confidence is unknown
_FEW = 0.01  # share of a part below which outliers are left out
_NONE = 0.6  # index of no confidence


def confidences(full: Steps, labels: Ints) -> dict[int | None, float | None]:
    """Return the confidence in each phase by its label, and in all of them by None; outliers are no phase.

    Parameters
    ----------
    full
        Steps traced in full.
    labels
        Label of each, -1 for outliers: (steps,).

    >>> from tpunb.testing import toy_steps
    >>> confidences(toy_steps("aaaaabbbbb"), np.repeat([0, 1], 5))
    {0: 1.0, 1: 1.0, None: 1.0}
    """
    if len(full) < _LEAST:
        return {}
    ids, phase = factorize(labels)
    shared, most = np.sum([_agreement(phase[rows], found, ids) for rows, found in _parts(full)], axis=0)
    # most parts of a long run have too few steps of a rare phase to find it
    rare = np.bincount(phase) * _MOST < _SEEN * len(full) if len(full) * _PART > _MOST else np.zeros(len(ids), np.bool_)
    known = (most > 0) & ~rare
    index = {int(label): shared[at] / most[at] if known[at] else None for at, label in enumerate(ids)}
    every = shared.sum() / most.sum() if most.sum() > 0 else 1.0  # all in one phase, in both
    of_one = {int(ids[0]): 1.0} if len(ids) == 1 and not most.sum() else {}
    return {
        label: None if value is None or label == -1 else float(np.clip((value - _NONE) / (1 - _NONE), 0, 1))
        for label, value in (index | of_one | {None: every}).items()
    }


def _agreement(phase: Ints, found: Ints, ids: Ints) -> Floats:
    """Return the parts of the adjusted Rand index in each phase: pairs beyond chance, and the most there can be."""
    outliers = ids[phase] < 0, found < 0
    few = [mask & (mask.mean() < _FEW) for mask in outliers]
    kept = ~(few[0] | few[1])
    table = np.zeros((len(ids), int(found.max(initial=-1)) + 2))
    np.add.at(table, (phase[kept], found[kept] + 1), 1)
    rows, columns, n = table.sum(axis=1), table.sum(axis=0), table.sum()
    together = (table * (table - 1)).sum(axis=1)
    mine, theirs = rows * (rows - 1), table @ (columns - 1).clip(0)
    chance = mine * (columns * (columns - 1)).sum() / max(n * (n - 1), 1)
    return np.stack([together - chance, (mine + theirs) / 2 - chance])


@memoised
def _parts(full: Steps) -> list[tuple[Ints, Ints]]:
    """Return the rows of each part, and the phases that the default method finds in them."""
    n, random = len(full), np.random.default_rng(0)
    size = min(round(n * _PART), _MOST)
    rows = [np.sort(random.choice(n, size, replace=False)) for _ in range(_DRAWS)]
    return [(part, labels_of(full, part)) for part in rows]
