"""Choice of representative steps, and the error of the run estimated from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
import polars as pl

from tpunb import schema
from tpunb.errors import check_whole
from tpunb.frames import Phases
from tpunb.frames.conversion import Tabular
from tpunb.frames.op_matrix import Floats, Ints, op_matrix, self_times
from tpunb.frames.steps import Steps
from tpunb.text import percent, plural


@dataclass(frozen=True, eq=False, repr=False)
class Representatives(Tabular):
    """Representative steps of a run, and the run as estimated from them.

    Each phase is estimated from its own steps; outliers are a group like a phase. The time of every step is known,
    traced or not, so an operation's time in a phase is its time per step time in the representatives, multiplied by the
    time of all steps of the phase (ratio estimator, Cochran 1977, section 6.10).

    Parameters
    ----------
    frame
        Representative steps, those of the longest phase first: ``tpunb.schema.REPRESENTATIVES``.
    profile
        Self time of each operation in the run, estimated and measured: ``tpunb.schema.REPRESENTED``.
    time_ps
        Estimated time of all steps; for steps not traced in full, the clock's.
    interval
        Interval that covers the time of all steps in 95 of 100 draws; None if the steps were not drawn at random.
    time_error
        Error of `time_ps`, as a share of the measured time.
    steps
        Number of steps of the run.
    missing
        Share of step time in phases without a representative: no step of them was traced in full, or fewer steps
        were requested than there are phases (these are estimated from the others).
    """

    frame: pl.DataFrame
    profile: pl.DataFrame
    time_ps: int
    interval: tuple[int, int] | None
    time_error: float
    steps: int
    missing: float

    @property
    def error(self) -> float:
        """L1 error of the operations' self times, as a share of all self time, from 0."""
        off = (self.profile["self_ps"] - self.profile["true_ps"]).abs().sum()
        return int(off) / max(int(self.profile["true_ps"].sum()), 1)

    def __repr__(self) -> str:
        missing = f", none for {percent(self.missing, 1)} of step time" if self.missing else ""
        steps = f"{len(self)} of {plural(self.steps, 'step')}"
        return f"Representatives({steps}, op profile within {percent(self.error, 1)}{missing})"


_POOL = 2000  # most candidates of a phase
_POOL_NUMBERS = 2**23  # dense numbers of these at one time
_SPREAD = 300  # steps that the spread of a phase is measured on
_GREEDY = 100  # most steps of a phase chosen one by one; more are spread evenly over its time
_DRAWS = (500, 4000)  # fewest and most draws of an interval
_DRAWN_NUMBERS = 2**31  # numbers to sum in more than the fewest draws
_TIME_WEIGHT = 0.5  # weight of the error in step time beside that of the op profile


@dataclass(frozen=True, eq=False)
class Group:
    """Steps of one phase, or the outliers."""

    phase: int  # label
    rows: Ints  # rows of the steps traced in full, in order of time
    steps: int  # number of all its steps, and their time in picoseconds
    time: float


class Population:
    """All steps of a run in their phases, to choose representatives from; `labelled` is ``Phases.labelled``."""

    def __init__(self, steps: Steps, labelled: pl.DataFrame) -> None:
        self.labelled = labelled
        self.names = op_matrix(steps).ops
        self.times, self.total = self_times(steps)
        # at least one picosecond, to divide by
        self.dur = labelled["dur_ps"].fill_null(0).clip(1).to_numpy().astype(np.float64)
        self.groups = self._groups()
        self._offsets: dict[tuple[int, ...], tuple[Floats, Floats]] = {}

    def _groups(self) -> list[Group]:
        full = (pl.col("traced") == "full").fill_null(False)
        rows = (
            self.labelled.select("phase", "start_ps", full=full, row=pl.int_range(pl.len()), dur=pl.Series(self.dur))
            .sort("start_ps", "row")
            .group_by("phase")
            .agg(pl.col("row").filter("full"), pl.len(), pl.col("dur").sum())
            .sort("dur", "phase", descending=[True, False])
        )
        return [Group(phase, np.array(full, dtype=np.int64), n, time) for phase, full, n, time in rows.iter_rows()]

    @cached_property
    def traced(self) -> list[Group]:
        """The groups with a step traced in full, longest first."""
        return [group for group in self.groups if len(group.rows)]

    @cached_property
    def truth(self) -> Floats:
        """Self time of each operation in the run, extrapolated from the steps of each group traced in full."""
        return self.estimate([group.rows for group in self.traced])

    def estimate(self, chosen: Sequence[Ints]) -> Floats:
        """Return the self time of each operation in the run, from the chosen rows of each group of `traced`."""
        rows = np.concatenate([*chosen, np.zeros(0, dtype=np.int64)])
        scale = [
            group.time / self.dur[part].sum() if len(part) else 0.0
            for group, part in zip(self.traced, chosen, strict=True)
        ]
        return self._sums(rows, np.repeat(scale, [len(part) for part in chosen]))

    def _sums(self, rows: Ints, weight: Floats | None = None) -> Floats:
        """Return the weighted self time of each operation in these rows."""
        return np.asarray(self.times.T @ np.bincount(rows, weight, minlength=self.times.shape[0]).astype(np.float64))

    def _dense(self, rows: Ints) -> Floats:
        """Return the self times of a few steps, (steps, ops)."""
        return np.asarray(self.times[rows].toarray(), dtype=np.float64)

    def counts(self, n: int | None) -> Ints:
        """Return the number of steps to choose of each group of `traced`, `n` in all if there are as many.

        One each, the others by steps times spread (Neyman 1934), in integers (Wright 2012, The American Statistician
        66). If there are fewer than one each, the longest groups.
        """
        counts = np.ones(len(self.traced), dtype=np.int64)
        if n is None or n <= len(counts) or not len(counts):
            counts[len(counts) if n is None else n :] = 0
            return counts
        spread = [group.steps * self._spread(group) for group in self.traced]
        more = [np.arange(1, min(len(group.rows), n)) for group in self.traced]
        gain = np.concatenate([value / np.sqrt(k * (k + 1)) for value, k in zip(spread, more, strict=True)])
        group_of = np.repeat(np.arange(len(counts)), [len(k) for k in more])
        taken = np.argsort(-gain, kind="stable")[: n - len(counts)]
        return counts + np.bincount(group_of[taken], minlength=len(counts))

    def _spread(self, group: Group) -> float:
        """Return the spread of the operations' times between steps of a group, in picoseconds."""
        if len(group.rows) == 1:
            return 0.0
        rows = _evenly(group.rows, min(_SPREAD, self._most))
        times, dur = self._dense(rows), self.dur[rows]
        off = times - np.outer(dur, times.sum(axis=0) / dur.sum())
        return float(off.std(axis=0).sum() + 1e-9 * dur.mean())  # by step time if all steps are equal

    @property
    def _most(self) -> int:
        return max(1, min(_POOL, _POOL_NUMBERS // max(self.names.height, 1)))

    def best(self, group: Group, n: int) -> Ints:
        """Return the `n` rows of a group that represent it best, the best first.

        Greedily: each brings the operations' shares of step time nearest to the group's; the earliest of equal ones.
        """
        if n == 0 or n == len(group.rows) or n > _GREEDY:
            return _evenly(group.rows, n)
        typical = group.time / group.steps
        target = self._sums(group.rows) / self.dur[group.rows].sum()
        total = max(target.sum(), np.finfo(float).tiny)
        rows = _evenly(group.rows, max(self._most, n))
        dur, times = self.dur[rows] / typical, self._dense(rows) / (typical * total)
        sum_dur, sum_times, chosen = 0.0, np.zeros(len(target)), np.zeros(0, dtype=np.int64)
        for k in range(1, n + 1):
            off = np.abs((sum_times + times) / (sum_dur + dur)[:, None] - target / total).sum(axis=1)
            off += _TIME_WEIGHT * np.abs((sum_dur + dur) / k - 1)
            off[chosen] = np.inf
            at = int(off.round(12).argmin())
            chosen = np.append(chosen, at)
            sum_dur, sum_times = sum_dur + dur[at], sum_times + times[at]
        return rows[chosen]

    def offsets(self, counts: Ints) -> tuple[Floats, Floats]:
        """Return how far below and above an estimate the truth is in 95 of 100 draws of so many steps.

        For the self time of each operation, and last for the time of all steps: quantiles of thousands of draws. Large
        phases are drawn from a random part, corrected by Cochran 1977, equation 2.9.
        """
        key = tuple(counts.tolist())
        if key not in self._offsets:
            errors = self._errors(counts)
            low = np.quantile(errors, 0.975, axis=0, method="higher")
            self._offsets[key] = low, -np.quantile(errors, 0.025, axis=0, method="lower")
        return self._offsets[key]

    def _errors(self, counts: Ints) -> Floats:
        """Return the errors of draws of so many steps: (draws, ops + 1), as for `offsets`."""
        random = np.random.default_rng(0)
        d = self.names.height
        sampled = [(group, int(m)) for group, m in zip(self.traced, counts, strict=True) if m < len(group.rows)]
        draws = int(np.clip(_DRAWN_NUMBERS // ((d + 1) * (sum(m for _, m in sampled) + 1)), *_DRAWS))
        errors = np.zeros((draws, d + 1))
        for group, m in sampled:
            n = len(group.rows)
            part = random.permutation(group.rows)[: self._most] if n > self._most else group.rows
            taken = min(m, max(1, len(part) // 2))
            dur, times = self.dur[part], self._dense(part)
            sum_dur, sum_times = np.zeros(draws), np.zeros((draws, d))
            for rows in _draws(len(part), taken, draws, random).T:
                sum_dur += dur[rows]
                sum_times += times[rows]
            # the variance of a mean of m of n steps is that of one step times (1 - m / n) / m
            factor = np.sqrt((1 / m - 1 / n) / (1 / taken - 1 / len(part))) if len(part) > 1 else 1.0
            errors[:, :d] += factor * group.time * (sum_times / sum_dur[:, None] - times.sum(axis=0) / dur.sum())
            errors[:, d] += factor * len(group.rows) * (sum_dur / taken - dur.mean())
        return errors


def _evenly(rows: Ints, n: int) -> Ints:
    """Return `n` evenly spaced rows; all if there are no more."""
    if n >= len(rows):
        return rows
    return rows[:0] if n < 1 else rows[((np.arange(n) + 0.5) * (len(rows) / n)).astype(np.int64)]


def _draws(n: int, m: int, draws: int, random: np.random.Generator) -> Ints:
    """Return draws of `m` of the numbers below `n` without replacement: (draws, m)."""
    if m == 1:
        return random.integers(n, size=(draws, 1))
    return np.concatenate(
        [random.random((len(part), n)).argpartition(m - 1, axis=1)[:, :m] for part in np.array_split(range(draws), 8)]
    )


_POPULATIONS: WeakKeyDictionary[Phases, Population] = WeakKeyDictionary()


def _population(phases: Phases) -> Population:
    """Return the steps of a run in its phases, made once."""
    if phases not in _POPULATIONS:
        _POPULATIONS[phases] = Population(phases.steps, phases.labelled)
    return _POPULATIONS[phases]


def representative(phases: Phases, phase: int) -> pl.DataFrame:
    """Return the representative step of one phase: its row of ``representatives(phases).frame``, without the estimate.

    No row if no step of it was traced in full.

    Raises
    ------
    KeyError
        If no step has that label.
    """
    population, phase = _population(phases), phases[phase].id
    return _frame(
        population, [(group, population.best(group, 1)) for group in population.traced if group.phase == phase]
    )


def representatives(phases: Phases, n: int | None = None, *, seed: int | None = None) -> Representatives:
    """Return representative steps of the run, and the run as estimated from them.

    The outliers are a group like a phase. Representatives are traced in full.

    Parameters
    ----------
    phases
        Phases of the run.
    n
        Number of steps, 1 or more; one per phase and one for the outliers if None. More steps go where they
        reduce the error most; fewer go to the longest phases.
    seed
        Seed to draw the steps of each phase at random, with a 95 % interval of the estimates. If None, the steps
        that represent their phase best, without an interval.

    Raises
    ------
    ValueError
        If `n` or `seed` is out of its range.

    >>> from tpunb.testing import toy_steps
    >>> import tpunb as tp
    >>> chosen = representatives(tp.phases(toy_steps("aaabbb")))
    >>> chosen, chosen.frame.select("phase", "step", "weight").rows()
    (Representatives(2 of 6 steps, op profile within 0.0 %), [(1, 3, 3.0), (0, 0, 3.0)])
    """
    n = n if n is None else check_whole("representatives", "n", n, 1)
    seed = seed if seed is None else check_whole("representatives", "seed", seed, 0)
    population = _population(phases)
    traced, counts = population.traced, population.counts(n)
    if seed is None:
        chosen = [population.best(group, int(m)) for group, m in zip(traced, counts, strict=True)]
    else:
        random = np.random.default_rng(seed)
        chosen = [
            group.rows[np.sort(random.choice(len(group.rows), m, replace=False))]
            for group, m in zip(traced, counts, strict=True)
        ]
    pairs = [(group, rows) for group, rows in zip(traced, chosen, strict=True) if len(rows)]
    offsets = population.offsets(counts) if seed is not None and len(pairs) == len(traced) else None
    # phases without a chosen step are estimated from the others
    true = sum(group.time for group in traced)
    covered = sum(group.time for group, _ in pairs)
    steps = sum(len(group.rows) for group in traced) / max(sum(len(group.rows) for group, _ in pairs), 1)
    untraced = sum(group.time - float(population.dur[group.rows].sum()) for group in traced)
    time = untraced + steps * sum(len(group.rows) * float(population.dur[rows].mean()) for group, rows in pairs)
    missing = 1 - covered / max(sum(group.time for group in population.groups), 1)
    return Representatives(
        frame=_frame(population, pairs),
        profile=_profile(population, population.estimate(chosen) * (true / max(covered, 1)), offsets),
        time_ps=round(time),
        interval=(max(0, int(time - offsets[0][-1])), int(np.ceil(time + offsets[1][-1]))) if offsets else None,
        time_error=abs(time - true) / max(true, 1),
        steps=population.labelled.height,
        missing=missing if len(pairs) < len(population.groups) else 0.0,
    )


def _frame(population: Population, pairs: Sequence[tuple[Group, Ints]]) -> pl.DataFrame:
    rows = np.concatenate([*(rows for _, rows in pairs), np.zeros(0, dtype=np.int64)])
    weight = [group.steps / len(rows) for group, rows in pairs]
    frame = population.labelled[rows].with_columns(weight=np.repeat(weight, [len(rows) for _, rows in pairs]))
    return schema.check(frame, schema.REPRESENTATIVES, "representatives")


def _profile(population: Population, times: Floats, offsets: tuple[Floats, Floats] | None) -> pl.DataFrame:
    rows = population.names.with_columns(
        self_ps=times.round(),
        low_ps=np.floor((times - offsets[0][:-1]).clip(0)) if offsets else None,
        high_ps=np.ceil(times + offsets[1][:-1]) if offsets else None,
        true_ps=population.truth.round(),
    ).with_columns(share=pl.col("self_ps") / pl.col("self_ps").sum().clip(1).over("side"))
    rows = rows.sort("side", "self_ps", pl.col("op").cast(pl.String), descending=[False, True, False])
    return schema.check(rows, schema.REPRESENTED, "represented")
