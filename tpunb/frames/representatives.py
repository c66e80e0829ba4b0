"""The few steps to look at to know a whole run, and how far they can be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tpunb import schema
from tpunb.frames.memory import remembered
from tpunb.frames.op_matrix import Floats, Ints, op_matrix
from tpunb.frames.phase_sums import root_sums
from tpunb.frames.steps import Steps
from tpunb.frames.words import plural, to_pandas

if TYPE_CHECKING:
    import pandas as pd
    from scipy.sparse import csr_array

_POOL = 2000  # steps of a phase that are weighed against each other
_POOL_NUMBERS = 2**23  # and numbers of them that are dense at one time
_SPREAD = 300  # steps of a phase by which its spread is told
_GREEDY = 100  # more steps than these of one phase are spread evenly over its time instead
_DRAWS = (500, 4000)  # of which an interval is read, at least and at most
_DRAWN_NUMBERS = 2**31  # that they add up, for more than the least
_QUIET = 0.1**2 / 4  # scatter of steps whose operations' times vary by a tenth: as good as alike
_TIME = 0.5  # how much a wrong step time weighs beside a wrong op profile


@dataclass(frozen=True, eq=False, repr=False)
class Representatives:
    """Steps that stand for a run, and what the run would be if it were as they are.

    Each phase is estimated by its own steps; noise is a group like the others. The time of every step is known, be
    it seen by a window or not: so an operation's time in phase h is its time per time of the step in the steps
    looked at, times the time of all steps of the phase (ratio estimator, Cochran 1977, section 6.10).

    Parameters
    ----------
    frame
        ``tpunb.schema.REPRESENTATIVES``: the steps, those of the longest phase first.
    profile
        ``tpunb.schema.REPRESENTED``: each operation's self time in the whole run, as estimated and as it was.
    time_ps
        Of all steps, as estimated from the times of these; that of steps not seen in full is the clock's.
    interval
        In which the time of all steps is in 95 of 100 draws; None where the steps were not drawn at random.
    time_error
        By how much `time_ps` is wrong, as a share of the time.
    steps
        How many steps the run has.
    missing
        Share of the time in phases of which no step is here: because none was seen in full, or because fewer steps
        were asked for than there are phases. Of the latter the others tell.
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
        """By how much the operations' times are wrong in sum, as a share of all their time: the L1 error, from 0."""
        off = (self.profile["self_ps"] - self.profile["true_ps"]).abs().sum()
        return int(off) / max(int(self.profile["true_ps"].sum()), 1)

    def __len__(self) -> int:
        return self.frame.height

    def __repr__(self) -> str:
        missing = f", {100 * self.missing:.1f} % of the time in phases without any" if self.missing else ""
        return (
            f"Representatives({len(self)} of {plural(self.steps, 'step')}, "
            f"op profile within {100 * self.error:.1f} %{missing})"
        )

    def to_pandas(self) -> pd.DataFrame:
        """Return `frame` as a pandas DataFrame (needs the extra ``pandas``)."""
        return to_pandas(self.frame)


@dataclass(frozen=True, eq=False)
class Group:
    """The steps of one phase, or of noise.

    Parameters
    ----------
    phase
        Its number.
    rows
        Of the steps seen in full, in order of time.
    steps, time
        How many steps it has, and for how many picoseconds they ran, be they seen or not.
    """

    phase: int
    rows: Ints
    steps: int
    time: float


@remembered
def _own(steps: Steps) -> tuple[csr_array, Floats]:
    """Return the self times of each step, (steps, ops), and their sum: they are the same for all phases."""
    own = op_matrix(steps).values("self_ps")
    return own, np.asarray(own.sum(axis=1, dtype=np.float64))


class Population:
    """All steps of a run in their phases, to choose some from.

    Parameters
    ----------
    steps
        Of the run.
    labelled
        Their frame with ``phase`` and ``distance``.
    """

    def __init__(self, steps: Steps, labelled: pl.DataFrame) -> None:
        self.labelled = labelled
        self.names = op_matrix(steps).ops
        self.own, self.whole = _own(steps)
        # a step of no time counts as one picosecond: its operations' time by the step's is a number then
        self.dur = labelled["dur_ps"].fill_null(0).clip(1).to_numpy().astype(np.float64)
        self.groups = self._groups()
        self._offsets: dict[tuple[int, ...], tuple[Floats, Floats]] = {}

    def _groups(self) -> list[Group]:
        full = (pl.col("seen") == "full").fill_null(False)
        rows = (
            self.labelled.select("phase", "start_ps", full=full, row=pl.int_range(pl.len()), dur=pl.Series(self.dur))
            .sort("start_ps", "row")
            .group_by("phase")
            .agg(pl.col("row").filter("full"), pl.len(), pl.col("dur").sum())
            .sort("dur", "phase", descending=[True, False])
        )
        return [Group(phase, np.array(of, dtype=np.int64), n, time) for phase, of, n, time in rows.iter_rows()]

    @cached_property
    def seen(self) -> list[Group]:
        """The groups with a step that was seen in full, longest first."""
        return [group for group in self.groups if len(group.rows)]

    @cached_property
    def truth(self) -> Floats:
        """Each operation's self time in the run; the steps of a phase that were not seen count as those that were."""
        return self.estimate([group.rows for group in self.seen])

    def estimate(self, chosen: Sequence[Ints]) -> Floats:
        """Return each operation's self time in the run, by the rows that are `chosen` of each group of `seen`."""
        rows = np.concatenate([*chosen, np.zeros(0, dtype=np.int64)])
        scale = [
            group.time / self.dur[own].sum() if len(own) else 0.0 for group, own in zip(self.seen, chosen, strict=True)
        ]
        return self._sums(rows, np.repeat(scale, [len(own) for own in chosen]))

    def _sums(self, rows: Ints, weight: Floats | None = None) -> Floats:
        """Return the self time of each operation in some steps, weighted."""
        return np.asarray(self.own.T @ np.bincount(rows, weight, minlength=self.own.shape[0]).astype(np.float64))

    def _dense(self, rows: Ints) -> Floats:
        """Return the self times of a few steps, (steps, ops)."""
        return np.asarray(self.own[rows].toarray(), dtype=np.float64)

    def counts(self, n: int | None) -> Ints:
        """Return how many steps to look at of each group of `seen`, `n` in all where there are as many.

        One each, and the others where they help most: by steps times spread (Neyman 1934), in whole numbers as Wright
        (2012, The American Statistician 66) shows to be best. Of fewer than one each, the longest groups.
        """
        many = np.ones(len(self.seen), dtype=np.int64)
        if n is None or n <= len(many) or not len(many):
            many[len(many) if n is None else n :] = 0
            return many
        spread = [group.steps * self._spread(group) for group in self.seen]
        more = [np.arange(1, min(len(group.rows), n)) for group in self.seen]
        gain = np.concatenate([own / np.sqrt(k * (k + 1)) for own, k in zip(spread, more, strict=True)])
        of = np.repeat(np.arange(len(many)), [len(k) for k in more])
        taken = np.argsort(-gain, kind="stable")[: n - len(many)]
        return many + np.bincount(of[taken], minlength=len(many))

    def homogeneity(self) -> float:
        """Return how much alike the steps of a phase are beside how unlike those of the run are, 0 to 1."""
        dur = np.where(self.whole > 0, self.dur, 0.0)
        phase = np.full(len(dur), -1, dtype=np.int64)
        for number, group in enumerate(self.seen):
            phase[group.rows] = number
        times = np.bincount(phase[phase >= 0], dur[phase >= 0], minlength=len(self.seen))
        whole_time = float(times.sum())
        if not whole_time:
            return 1.0
        told, centre = 0.0, np.zeros(self.names.height)
        for first, sums in root_sums(self.own, phase, dur / np.sqrt(self.whole.clip(1))):
            time = times[first : first + len(sums)]
            told += float(np.square(sums)[time > 0].sum(axis=1) @ (1 / time[time > 0]))
            centre += sums.sum(axis=0)
        scatter = whole_time - float(np.square(centre).sum()) / whole_time
        left = max(0.0, whole_time - told)
        return min(1.0, 1 - left / max(scatter, _QUIET * whole_time))

    def _spread(self, group: Group) -> float:
        """Return by how much the operations' times of a step depart from those of its phase, in picoseconds."""
        if len(group.rows) == 1:
            return 0.0
        rows = _evenly(group.rows, min(_SPREAD, self._most))
        own, dur = self._dense(rows), self.dur[rows]
        off = own - np.outer(dur, own.sum(axis=0) / dur.sum())
        return float(off.std(axis=0).sum() + 1e-9 * dur.mean())  # among steps all alike, by the time

    @property
    def _most(self) -> int:
        return max(1, min(_POOL, _POOL_NUMBERS // max(self.names.height, 1)))

    def best(self, group: Group, n: int) -> Ints:
        """Return the `n` rows of a group that stand for it best, the best first.

        Each is the one with which the operations' times of those chosen, by their step time, come closest to the
        group's; of equal ones the earliest.
        """
        if n == 0 or n == len(group.rows) or n > _GREEDY:
            return _evenly(group.rows, n)
        typical = group.time / group.steps
        target = self._sums(group.rows) / self.dur[group.rows].sum()
        whole = max(target.sum(), np.finfo(float).tiny)
        rows = _evenly(group.rows, max(self._most, n))
        dur, own = self.dur[rows] / typical, self._dense(rows) / (typical * whole)
        sum_dur, sum_own, chosen = 0.0, np.zeros(len(target)), np.zeros(0, dtype=np.int64)
        for k in range(1, n + 1):
            off = np.abs((sum_own + own) / (sum_dur + dur)[:, None] - target / whole).sum(axis=1)
            off += _TIME * np.abs((sum_dur + dur) / k - 1)
            off[chosen] = np.inf
            at = int(off.round(12).argmin())
            chosen = np.append(chosen, at)
            sum_dur, sum_own = sum_dur + dur[at], sum_own + own[at]
        return rows[chosen]

    def offsets(self, counts: Ints) -> tuple[Floats, Floats]:
        """Return how far below and above an estimate the truth is, at most, in 95 of 100 draws of so many steps.

        Of each operation's self time, and last of the time of all steps. We know the population that is drawn from,
        so that nothing is assumed of its shape: both are read from thousands of draws (of each phase's steps, where
        they are many, of a random part; what that part makes too narrow or too wide is set right by Cochran 1977,
        equation 2.9).
        """
        key = tuple(counts.tolist())
        if key not in self._offsets:
            off = self._off(counts)
            low = np.quantile(off, 0.975, axis=0, method="higher")
            self._offsets[key] = low, -np.quantile(off, 0.025, axis=0, method="lower")
        return self._offsets[key]

    def _off(self, counts: Ints) -> Floats:
        """Return by how much draws of so many steps are wrong: (draws, ops + 1), as `offsets` has it."""
        random = np.random.default_rng(0)
        d = self.names.height
        open_ = [(group, int(m)) for group, m in zip(self.seen, counts, strict=True) if m < len(group.rows)]
        draws = int(np.clip(_DRAWN_NUMBERS // ((d + 1) * (sum(m for _, m in open_) + 1)), *_DRAWS))
        off = np.zeros((draws, d + 1))
        for group, m in open_:
            n = len(group.rows)
            part = random.permutation(group.rows)[: self._most] if n > self._most else group.rows
            taken = min(m, max(1, len(part) // 2))
            dur, own = self.dur[part], self._dense(part)
            sum_dur, sum_own = np.zeros(draws), np.zeros((draws, d))
            for rows in _draws(len(part), taken, draws, random).T:
                sum_dur += dur[rows]
                sum_own += own[rows]
            # the variance of a mean of m of n steps is that of one step times (1 - m / n) / m
            narrower = np.sqrt((1 / m - 1 / n) / (1 / taken - 1 / len(part))) if len(part) > 1 else 1.0
            off[:, :d] += narrower * group.time * (sum_own / sum_dur[:, None] - own.sum(axis=0) / dur.sum())
            off[:, d] += narrower * len(group.rows) * (sum_dur / taken - dur.mean())
        return off


def _evenly(rows: Ints, n: int) -> Ints:
    """Return `n` of the rows, evenly spread; all where there are no more."""
    if n >= len(rows):
        return rows
    return rows[:0] if n < 1 else rows[((np.arange(n) + 0.5) * (len(rows) / n)).astype(np.int64)]


def _draws(n: int, m: int, draws: int, random: np.random.Generator) -> Ints:
    """Return `m` of the numbers below `n`, each time without replacement: (draws, m)."""
    if m == 1:
        return random.integers(n, size=(draws, 1))
    return np.concatenate(
        [random.random((len(some), n)).argpartition(m - 1, axis=1)[:, :m] for some in np.array_split(range(draws), 8)]
    )


def representative(of: Population, phase: int) -> pl.DataFrame:
    """Return the step that stands for a phase best, ``tpunb.schema.REPRESENTATIVES``; no row where none can."""
    return _frame(of, [(group, of.best(group, 1)) for group in of.seen if group.phase == phase])


def representatives(of: Population, n: int | None, seed: int | None) -> Representatives:
    """Return the steps that stand for a run: `n` of them, or one a phase; drawn at random where a seed is given."""
    counts = of.counts(n)
    if seed is None:
        chosen = [of.best(group, int(m)) for group, m in zip(of.seen, counts, strict=True)]
    else:
        random = np.random.default_rng(seed)
        chosen = [
            np.sort(random.choice(len(group.rows), m, replace=False)) for group, m in zip(of.seen, counts, strict=True)
        ]
        chosen = [group.rows[at] for group, at in zip(of.seen, chosen, strict=True)]
    some = [(group, own) for group, own in zip(of.seen, chosen, strict=True) if len(own)]
    left_out = len(some) < len(of.seen)
    offsets = of.offsets(counts) if seed is not None and not left_out else None
    # the phases of which no step was asked for are as the others
    fold = sum(group.time for group in of.seen) / max(sum(group.time for group, _ in some), 1)
    times = of.estimate(chosen) * fold
    steps = sum(len(group.rows) for group in of.seen) / max(sum(len(group.rows) for group, _ in some), 1)
    unseen = sum(group.time - float(of.dur[group.rows].sum()) for group in of.seen)
    whole = unseen + steps * sum(len(group.rows) * float(of.dur[own].mean()) for group, own in some)
    true = sum(group.time for group in of.seen)
    missing = 1 - sum(group.time for group, _ in some) / max(sum(group.time for group in of.groups), 1)
    return Representatives(
        frame=_frame(of, some),
        profile=_profile(of, times, offsets),
        time_ps=round(whole),
        interval=(max(0, int(whole - offsets[0][-1])), int(np.ceil(whole + offsets[1][-1]))) if offsets else None,
        time_error=abs(whole - true) / max(true, 1),
        steps=of.labelled.height,
        missing=missing if len(some) < len(of.groups) else 0.0,
    )


def _frame(of: Population, some: Sequence[tuple[Group, Ints]]) -> pl.DataFrame:
    rows = np.concatenate([*(own for _, own in some), np.zeros(0, dtype=np.int64)])
    weight = [group.steps / len(own) for group, own in some]
    frame = of.labelled[rows].with_columns(weight=np.repeat(weight, [len(own) for _, own in some]))
    return schema.check(frame, schema.REPRESENTATIVES, "representatives")


def _profile(of: Population, times: Floats, offsets: tuple[Floats, Floats] | None) -> pl.DataFrame:
    rows = of.names.with_columns(
        self_ps=times.round(),
        low_ps=np.floor((times - offsets[0][:-1]).clip(0)) if offsets else None,
        high_ps=np.ceil(times + offsets[1][:-1]) if offsets else None,
        true_ps=of.truth.round(),
    ).with_columns(share=pl.col("self_ps") / pl.col("self_ps").sum().clip(1).over("side"))
    rows = rows.sort("side", "self_ps", pl.col("op").cast(pl.String), descending=[False, True, False])
    return schema.check(rows, schema.REPRESENTED, "represented")
