"""OLSPlus: the online linear scan repaired, so that phases come back and a step is no superset's equal.

Equation 1 of the paper (section IV.A) divides by the smaller set, so a training step is as similar as can be to one
that saves a checkpoint besides; it sees no times; and it compares with the step before alone, so that A B A are three
phases. Here a step is held against phases (leader clustering, Hartigan 1975), by its operations and by their times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from tpunb.cluster.methods import Parameters, in_order
from tpunb.cluster.ols import first_of_host
from tpunb.errors import share
from tpunb.frames import Labels, Steps
from tpunb.frames.op_matrix import Floats, Ints, op_matrix

MOST = 256
"""Phases known at one time: beyond them the one of the fewest steps is forgotten."""
SWEEP = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.98, 0.99, 1.0)
"""The values of ``ops`` that are tried beside the chosen one."""

_STRETCHES = 2048  # of like steps that the sweep goes by at most


@dataclass(frozen=True, repr=False)
class OLSPlus(Parameters):
    """Phases by one look at each step, in order: a step joins a phase that is like it, else opens one.

    It is like a phase if their sets of operations are (Jaccard 1901), and if on the host and on the devices, each by
    itself, the self time is shared out alike (Bhattacharyya 1943: the sum of the square roots of the products of the
    shares). A phase is the mean of its steps. One of which every step shares out its time alike grants no more than a
    few times its own scatter; of several that would have a step, the one of the most steps does.

    Sets vary in the wild too: in a host's trace operations of hardly any time come and go, and a training may fall
    apart at 0.97 that is one phase at 0.8. ``sweeps["ops"]`` shows how much hangs on it.

    Parameters
    ----------
    ops
        The least similarity of the sets at which a step joins a phase, 0 to 1.
    time
        The least similarity of the times on either side at which a step may join a phase, 0 to 1.
    least
        Steps below which a phase is noise; if None 1 for less than 100 steps, 5 from 250 steps on, and from 30,000
        on one in 5,000 of the steps, 30 at most.

    Raises
    ------
    ValueError
        When a parameter is out of its range.

    >>> from tpunb.testing import toy_steps
    >>> OLSPlus()(toy_steps("aabba"))
    [0, 0, 1, 1, 0]
    """

    ops: float = 0.97
    time: float = 0.8
    least: int | None = None

    def __post_init__(self) -> None:
        share("OLSPlus", "ops", self.ops)
        share("OLSPlus", "time", self.time)
        self._hold_whole(least=1)

    def __call__(self, steps: Steps) -> Labels:
        """Return one label a step, and ``sweeps["ops"]``: phases and noise (0 to 1) at each value of `ops`.

        Hosts follow one another and share their phases. The sweep goes by stretches of steps that run the same
        operations and are of one phase, each told by its first step, and by a sample of 2,048 where there are more;
        the row that is chosen is exact.
        """
        told = _Told(steps)
        numbers = told.scan(self.ops, self.time, np.arange(len(steps)), np.ones(len(steps)))
        n = len(steps)
        least = max(1, min(n // 50, 5), min(n // 5000, 30)) if self.least is None else self.least
        labels = np.where(np.bincount(numbers, minlength=1)[numbers] < least, -1, numbers)
        return Labels(in_order(labels, steps), {"ops": self._sweep(told, numbers, least)})

    def _sweep(self, told: _Told, numbers: Ints, least: int) -> pl.DataFrame:
        heads, lengths = told.stretches(numbers)
        found = []
        for value in (values := np.union1d(SWEEP, [self.ops])):
            if value == self.ops:
                found.append(_counted(numbers, np.ones(len(numbers)), least))
            else:
                found.append(_counted(told.scan(value, self.time, heads, lengths), lengths, least))
        phases, noise = zip(*found, strict=True)
        return pl.DataFrame(
            {"ops": values, "phases": phases, "noise": noise, "chosen": values == self.ops},
            schema={"ops": pl.Float64, "phases": pl.Int64, "noise": pl.Float64, "chosen": pl.Boolean},
        )


def _counted(numbers: Ints, weights: Floats, least: int) -> tuple[int, float]:
    """Return how many phases weigh `least` or more, and the share of the steps that are in none of them."""
    weight = np.bincount(numbers, weights)
    small = weight < least - 1e-6
    return int((~small).sum()), float(weight[small].sum() / max(weight.sum(), 1.0))


class _Told:
    """The steps of a run as the compiled loops read them."""

    def __init__(self, steps: Steps) -> None:
        from tpunb.cluster import step_loops  # as late as in `ols.similarities`

        self._loops = step_loops
        ran = op_matrix(steps)
        self._shape = ran.shape
        self._rows = step_loops.Rows(
            ran.indptr.astype(np.int64, copy=False),
            ran.indices.astype(np.int32, copy=False),
            ran.order,
            ran.told["self_ps"].fill_null(0).to_numpy(),
            int((ran.sides == 0).sum()),
        )
        self._starts = first_of_host(steps)

    def scan(self, ops: float, time: float, which: Ints, weights: Floats) -> Ints:
        """Return the number of the phase of each of the rows `which`, each of so many steps."""
        out = np.zeros(len(which), dtype=np.int64)
        known = self._loops.leaders(MOST, self._shape[1])
        self._loops.scan(self._rows, which, weights, self._starts[which], np.array([ops, time]), known, out)
        return out

    def stretches(self, numbers: Ints) -> tuple[Ints, Floats]:
        """Return the first row and the length of each stretch of one phase and one set of operations, or of some."""
        shared = np.zeros(len(numbers), dtype=np.int64)
        self._loops.shared(self._rows.indptr, self._rows.indices, shared)
        size = np.diff(self._rows.indptr)
        cut = self._starts.copy()
        cut[1:] |= (numbers[1:] != numbers[:-1]) | (shared[1:] < np.maximum(size[1:], size[:-1]))
        heads = np.flatnonzero(cut)
        lengths = np.diff(heads, append=len(numbers)).astype(np.float64)
        if len(heads) > _STRETCHES:  # at random: what takes turns would be met at every second place
            some = np.sort(np.random.default_rng(0).choice(len(heads), _STRETCHES, replace=False))
            heads, lengths = heads[some], lengths[some] * (len(numbers) / lengths[some].sum())
        return heads, lengths


class OnlineOLSPlus:
    """:class:`OLSPlus` while the run still goes: fed one step at a time, it keeps the means of its phases only.

    What it keeps grows with the number of operations that there are, not with the number of steps.

    Parameters
    ----------
    ops, time
        As in :class:`OLSPlus`.

    Raises
    ------
    ValueError
        When a parameter is not in [0, 1].

    >>> scan = OnlineOLSPlus()
    >>> train, save = {"matmul": 8.0, "infeed": 2.0}, {"matmul": 8.0, "infeed": 2.0, "save": 5.0}
    >>> [scan.feed(step) for step in (train, train, save, train)]
    [0, 0, 1, 0]
    >>> scan.steps
    {0: 3, 1: 1}
    """

    def __init__(self, ops: float = OLSPlus.ops, time: float = OLSPlus.time) -> None:
        from tpunb.cluster import step_loops

        share("OnlineOLSPlus", "ops", ops)
        share("OnlineOLSPlus", "time", time)
        self.ops, self.time = ops, time
        self._loops = step_loops
        self._limits = np.array([ops, time], dtype=np.float64)
        self._known = step_loops.leaders(MOST, 64)
        self._columns: dict[tuple[bool, str], int] = {}
        self._names: tuple[tuple[str, ...], ...] = ((), ())
        self._now = np.zeros(0, dtype=np.int32)  # their columns
        self._slot = -1

    @property
    def steps(self) -> dict[int, int]:
        """How many steps joined each phase that is known, by its number."""
        there = self._known.used[:, 0] >= 0
        pairs = zip(self._known.used[there, 0].tolist(), self._known.facts[there, 0].tolist(), strict=True)
        return {number: int(steps) for number, steps in sorted(pairs)}

    def feed(self, device: Mapping[str, float], host: Mapping[str, float] | None = None) -> int:
        """Return the number of the phase of the next step: one seen before, or the next number.

        Parameters
        ----------
        device, host
            The self time of each operation that ran, by its name, in any unit. What runs on the one is not held
            against what runs on the other; a trace of one side may be told as either.
        """
        sides = (host or {}, device)
        names = tuple(map(tuple, sides))
        if names != self._names:  # most steps run what the step before ran
            self._names = names
            self._now = np.array([self._column(on, op) for on, ops in enumerate(names) for op in ops], dtype=np.int32)
        own = np.array([*sides[0].values(), *sides[1].values()], dtype=np.float64)
        self._slot = self._loops.tell(self._known, self._slot, self._now, own, len(sides[0]), 1.0, self._limits)
        return int(self._known.used[self._slot, 0])

    def _column(self, on_device: int, op: str) -> int:
        column = self._columns.setdefault((bool(on_device), op), len(self._columns))
        if column == self._known.sums.shape[1]:
            sums = np.zeros((MOST, 2 * column, 2))
            there = self._known.used[:, 0] >= 0
            sums[there, :column] = self._known.sums[there]
            self._known = self._known._replace(sums=sums)
        return column
