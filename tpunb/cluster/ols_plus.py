"""OLSPlus: an online linear scan in which phases return, and supersets and times count.

Equation 1 of the paper (section IV.A) divides by the smaller set, so a training step equals one that also saves a
checkpoint; it ignores times; and it compares with the step before only, so A B A are three phases. OLSPlus compares a
step with phases (leader clustering, Hartigan 1975), by its operations and by their times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import polars as pl

from tpunb.cluster.base import Curve, Parameters, SliderSpec, in_order
from tpunb.cluster.limits import LIMITS
from tpunb.cluster.ols import first_of_host
from tpunb.errors import check_share
from tpunb.frames import Steps
from tpunb.frames.op_matrix import Floats, Ints, op_matrix
from tpunb.frames.phases import Labels

SWEEP = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.98, 0.99, 1.0)
"""Values of ``ops`` in the sweep, besides the chosen one."""


@dataclass(frozen=True, repr=False)
class OLSPlus(Parameters):
    """Phases from one pass over the steps: a step joins a similar phase, else opens a new one.

    A step and a phase are similar if their sets of operations are (Jaccard 1901), and if the shares of self time are,
    on the host and on devices separately (Bhattacharyya 1943: the sum of the square roots of the products of the
    shares). A phase is the mean of its steps. If its steps hardly vary, it accepts only a few times their scatter. If
    several phases accept a step, it joins the largest. At most 256 phases are kept; then the smallest is dropped.

    Sets of operations vary too: operations of hardly any time come and go in a host's trace, and a training that is
    one phase at 0.8 may be many at 0.97. ``sweeps["ops"]`` shows how much.

    Parameters
    ----------
    ops
        Smallest similarity of the sets at which a step joins a phase, 0 to 1.
    time
        Smallest similarity of the times on each side at which a step joins a phase, 0 to 1.
    least
        Number of steps below which a phase is outliers; if None, 1 below 100 steps, 5 from 250 steps on, and from
        30,000 on one in 5,000 of the steps, 30 at most.

    Raises
    ------
    ValueError
        If a parameter is out of its range.

    >>> from tpunb.testing import toy_steps
    >>> OLSPlus()(toy_steps("aabba"))
    [0, 0, 1, 1, 0]
    """

    ops: float = 0.97
    time: float = 0.8
    least: int | None = None

    slider: ClassVar[SliderSpec] = SliderSpec(
        "ops",
        "similarity of operations",
        step=0.01,
        least=0.5,
        most=1.0,
        title="OLSPlus: phases by similarity",
        curves=(Curve("phases"), Curve("noise", "outliers", percent_of="steps")),
    )

    def __post_init__(self) -> None:
        check_share("OLSPlus", "ops", self.ops)
        check_share("OLSPlus", "time", self.time)
        self._hold_whole(least=1)

    def __call__(self, steps: Steps) -> Labels:
        """Return one label per step, with the sweep of ``ops``: ``phases`` and ``noise``, the share of outliers.

        Hosts are scanned one after the other and share their phases. The sweep reads stretches of steps with the same
        operations and phase, each by its first step, or a sample of 2,048 stretches; the chosen row is exact.
        """
        n = len(steps)
        rows = _Rows(steps)
        numbers = rows.scan(self.ops, self.time, np.arange(n), np.ones(n))
        least = max(1, min(n // 50, 5), min(n // 5000, 30)) if self.least is None else self.least
        heads, lengths = rows.stretches(numbers)
        values = np.union1d(SWEEP, [self.ops])
        counts = [
            _count(numbers, np.ones(n), least)
            if value == self.ops
            else _count(rows.scan(value, self.time, heads, lengths), lengths, least)
            for value in values
        ]
        phases, noise = zip(*counts, strict=True)
        sweep = pl.DataFrame({"ops": values, "phases": phases, "noise": noise, "chosen": values == self.ops})
        labels = np.where(np.bincount(numbers, minlength=1)[numbers] < least, -1, numbers)
        return Labels(in_order(labels, steps), {"ops": sweep})


def _count(numbers: Ints, weights: Floats, least: int) -> tuple[int, float]:
    """Return the number of phases of `least` steps or more, and the share of the steps in no such phase."""
    weight = np.bincount(numbers, weights)
    small = weight < least - 1e-6
    return int((~small).sum()), float(weight[small].sum() / max(weight.sum(), 1.0))


class _Rows:
    """The steps of a run as the kernels read them."""

    def __init__(self, steps: Steps) -> None:
        from tpunb.cluster import kernels

        self._kernels = kernels
        matrix = op_matrix(steps)
        self._ops = matrix.shape[1]
        self._rows = kernels.Rows(
            matrix.indptr.astype(np.int64, copy=False),
            matrix.indices.astype(np.int32, copy=False),
            matrix.order,
            matrix.column("self_ps"),
            int((matrix.sides == 0).sum()),
        )
        self._starts = first_of_host(steps)

    def scan(self, ops: float, time: float, which: Ints, weights: Floats) -> Ints:
        """Return the phase number of each of the rows `which`, each of so many steps."""
        out = np.zeros(len(which), dtype=np.int64)
        leaders = self._kernels.new_leaders(LIMITS.most_phases, self._ops)
        self._kernels.scan(self._rows, which, weights, self._starts[which], np.array([ops, time]), leaders, out)
        return out

    def stretches(self, numbers: Ints) -> tuple[Ints, Floats]:
        """Return the first row and the length of stretches of one phase and one set of operations, or of a sample."""
        shared = np.zeros(len(numbers), dtype=np.int64)
        self._kernels.shared_ops(self._rows.indptr, self._rows.indices, shared)
        size = np.diff(self._rows.indptr)
        edge = self._starts.copy()
        edge[1:] |= (numbers[1:] != numbers[:-1]) | (shared[1:] < np.maximum(size[1:], size[:-1]))
        heads = np.flatnonzero(edge)
        lengths = np.diff(heads, append=len(numbers)).astype(np.float64)
        if len(heads) > LIMITS.ols_plus_stretches:  # at random: every second place would miss phases that alternate
            sample = np.sort(np.random.default_rng(0).choice(len(heads), LIMITS.ols_plus_stretches, replace=False))
            heads, lengths = heads[sample], lengths[sample] * (len(numbers) / lengths[sample].sum())
        return heads, lengths


class OnlineOLSPlus:
    """:class:`OLSPlus` during a run: takes one step at a time, and keeps the means of its phases.

    Its memory grows with the number of different operations, not with the number of steps.

    Parameters
    ----------
    ops, time
        Similarities as in :class:`OLSPlus`.

    Raises
    ------
    ValueError
        If a parameter is not in [0, 1].

    >>> scan = OnlineOLSPlus()
    >>> train, save = {"matmul": 8.0, "infeed": 2.0}, {"matmul": 8.0, "infeed": 2.0, "save": 5.0}
    >>> [scan.feed(step) for step in (train, train, save, train)]
    [0, 0, 1, 0]
    >>> scan.steps
    {0: 3, 1: 1}
    """

    def __init__(self, ops: float = OLSPlus.ops, time: float = OLSPlus.time) -> None:
        from tpunb.cluster import kernels

        check_share("OnlineOLSPlus", "ops", ops)
        check_share("OnlineOLSPlus", "time", time)
        self.ops, self.time = ops, time
        self._kernels = kernels
        self._limits = np.array([ops, time], dtype=np.float64)
        self._leaders = kernels.new_leaders(LIMITS.most_phases, 64)
        self._columns: dict[tuple[int, str], int] = {}
        self._names: tuple[tuple[str, ...], ...] = ((), ())  # operations of the last step
        self._last = np.zeros(0, dtype=np.int32)  # their columns
        self._slot = -1

    @property
    def steps(self) -> dict[int, int]:
        """Number of steps of each phase that is kept, by its number."""
        pairs = zip(self._leaders.slots[:, 0].tolist(), self._leaders.stats[:, 0].tolist(), strict=True)
        return {number: int(steps) for number, steps in sorted(pairs) if number >= 0}

    def feed(self, device: Mapping[str, float], host: Mapping[str, float] | None = None) -> int:
        """Return the phase number of the next step: an earlier one, or the next number.

        Parameters
        ----------
        device, host
            Self time of each operation that ran, by name, in any unit. Host and device are compared separately; a
            trace of one side may be given as either.
        """
        sides = (host or {}, device)
        names = tuple(map(tuple, sides))
        if names != self._names:  # most steps run what the step before ran
            columns = [self._column(side, op) for side, ops in enumerate(names) for op in ops]
            self._names, self._last = names, np.array(columns, dtype=np.int32)
        times = np.array([*sides[0].values(), *sides[1].values()], dtype=np.float64)
        self._slot = self._kernels.join(self._leaders, self._slot, self._last, times, len(sides[0]), 1.0, self._limits)
        return int(self._leaders.slots[self._slot, 0])

    def _column(self, side: int, op: str) -> int:
        column = self._columns.setdefault((side, op), len(self._columns))
        if column == self._leaders.sums.shape[1]:
            sums = np.zeros((LIMITS.most_phases, 2 * column, 2))
            sums[:, :column] = self._leaders.sums
            self._leaders = self._leaders._replace(sums=sums)
        return column
