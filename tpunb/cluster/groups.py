"""Sums and means over the steps of each phase, beside those over all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tpunb.cluster.features import BLOCKS, Fold
from tpunb.frames import Steps, phase_sums
from tpunb.frames.memory import remembered
from tpunb.frames.op_matrix import Floats, Ints, op_matrix

if TYPE_CHECKING:
    from scipy.sparse import csr_array


@dataclass(frozen=True, eq=False)
class Groups:
    """The phases and, if there is any, the noise.

    Parameters
    ----------
    found
        (groups,): the label of each, rising.
    group
        (steps,): the group of each.
    size
        (groups,): in steps.
    """

    found: Ints
    group: Ints
    size: Ints

    @classmethod
    def of(cls, labels: Ints) -> Groups:
        """Return the groups of steps by their labels.

        >>> Groups.of(np.array([3, -1, 3])).size.tolist()
        [1, 2]
        """
        found, group = phase_sums.indexed(labels)
        return cls(found, group, np.bincount(group, minlength=len(found)))

    @property
    def known(self) -> NDArray[np.bool_]:
        """(groups,): which are phases."""
        return np.asarray(self.found >= 0)

    def spread(self, totals: pl.DataFrame, name: str, ops: int) -> Floats:
        """Return one column of `Phases.totals` as (groups, ops)."""
        figures = np.zeros((len(self.found), ops))
        figures[np.searchsorted(self.found, totals["phase"]), totals["column"]] = totals[name]
        return figures

    def means(self, sums: Floats) -> tuple[Floats, Floats]:
        """Return the mean of each column over the steps of each phase, and over all others: two of (phases, columns).

        Parameters
        ----------
        sums
            (groups, columns).
        """
        own, size = sums[self.known], self.size[self.known, None]
        return own / size, (sums.sum(axis=0) - own) / (self.size.sum() - size)

    def sums(self, full: Steps, fold: Fold, ran: Floats) -> Floats:
        """Return the sums of the columns that a block of a space keeps: (groups, columns).

        Parameters
        ----------
        full
            The steps.
        fold
            Of the space.
        ran
            (groups, ops): in how many steps each op ran.
        """
        kept = np.flatnonzero(fold.column >= 0)
        sums = ran
        if fold.block != "presence":
            sums = phase_sums.sums(_block(full, fold.block), self.group, len(self.found))
        return np.asarray(sums[:, kept] * fold.weight[kept])


@remembered
def _block(full: Steps, name: str) -> csr_array:  # 4 bytes an entry: a small part of the operations themselves
    return BLOCKS[name](op_matrix(full), full)
