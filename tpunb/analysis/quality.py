"""Quality of phases: agreement of methods, stability, explained variance, and distinguishing operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tpunb import schema
from tpunb.analysis.representatives import Representatives, representatives
from tpunb.cluster import assign, features
from tpunb.cluster.recorded import incidental
from tpunb.errors import TpunbError, check_whole, wrong_type
from tpunb.frames import Phases, Steps
from tpunb.frames.cache import memoised
from tpunb.frames.op_matrix import Floats, Ints, factorize, op_matrix
from tpunb.frames.phases import PhaseMethod
from tpunb.text import phases_over, plural, share_of_steps

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_PART = 0.8  # share of the hosts, windows or steps in a draw: fewer would lose rare phases
_MOST_DRAWN = 20_000  # steps in a draw
_ROUNDING = 1e-9  # of a squared distance
_SEVERAL = 5  # fewest hosts or windows to draw from


def label_agreement(
    steps: Steps, methods: Sequence[PhaseMethod | str] | Mapping[str, PhaseMethod | str]
) -> pl.DataFrame:
    """Return how far methods agree on phases, one row per pair: ``tpunb.schema.LABEL_AGREEMENT``.

    Over the steps traced in full. Both scores are adjusted for chance: 1.0 for equal phases, about 0 for unrelated ones
    (Rand index: Hubert and Arabie 1985; mutual information: Vinh et al. 2010).

    Parameters
    ----------
    steps
        Steps to group.
    methods
        Two methods or more, or their names, such as "ols"; in a mapping, by your names.

    Raises
    ------
    TypeError
        If `steps` are not steps, or `methods` is one method.
    ValueError
        If there are fewer than two methods.

    >>> from tpunb.cluster import DBSCAN, OLS
    >>> from tpunb.testing import toy_steps
    >>> label_agreement(toy_steps("aaabbb"), [DBSCAN(), OLS()]).row(0)
    ('DBSCAN()', 'OLS()', 1.0, 1.0, 1.0)
    """
    from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score

    if not isinstance(steps, Steps):
        raise wrong_type("label_agreement", "steps", "be Steps", steps, hint="tp.steps(profile)")
    if not isinstance(methods, Mapping | Sequence) or isinstance(methods, str):
        hint = "label_agreement(steps, [tp.DBSCAN(), tp.OLS()])"
        raise wrong_type("label_agreement", "methods", "be two methods or more", methods, hint=hint)
    named = methods.items() if isinstance(methods, Mapping) else [(_title(method), method) for method in methods]
    if len(named) < 2:
        raise ValueError(
            f"The methods parameter of label_agreement must be two methods or more. Got {len(named)} instead."
        )
    labels = [(name, assign.phases(steps.full(), method).labels.to_numpy()) for name, method in named]
    rows = []
    for (name_a, a), (name_b, b) in combinations(labels, 2):
        inside = (a >= 0) & (b >= 0)
        ari_inside = float(adjusted_rand_score(a[inside], b[inside])) if inside.any() else None
        ari, ami = float(adjusted_rand_score(a, b)), float(adjusted_mutual_info_score(a, b))
        rows.append((name_a, name_b, ari, ami, ari_inside))
    return pl.DataFrame(rows, schema=schema.LABEL_AGREEMENT, orient="row")


def _title(method: PhaseMethod | str) -> str:
    return method if isinstance(method, str) else repr(method)


@dataclass(frozen=True)
class Stability:
    """Agreement of phases with those found in parts of the steps."""

    ari: float | None  # mean adjusted Rand index on the common steps: 1.0 for equal phases, 0 for chance
    low: float | None  # ends of the interval that covers 95 of 100 draws
    high: float | None
    draws: int
    of: str  # size of a draw: "4 of 5 hosts", "20000 of 112590 steps"
    reason: str = ""  # why it is unknown

    def __str__(self) -> str:
        if self.ari is None:
            return f"unknown: {self.reason}"
        return f"{self.ari:.2f} [{self.low:.2f}, {self.high:.2f}] (ARI, {plural(self.draws, 'draw')} of {self.of})"


def stability(phases: Phases, *, draws: int = 20, seed: int = 0) -> Stability:
    """Measure whether the method finds the same phases in parts of the steps (Ben-Hur et al. 2002).

    Each part is four fifths of the hosts if there are five or more, else of the windows, else of the steps traced in
    full, and at most 20,000 steps. Parts on which the method fails do not count.

    Parameters
    ----------
    phases
        Phases with their method.
    draws
        Number of parts, 1 or more.
    seed
        Seed of the draws.

    Raises
    ------
    ValueError
        If `draws` is less than 1.

    >>> import tpunb as tp
    >>> from tpunb.testing import toy_steps
    >>> stability(tp.phases(toy_steps("aaaaabbbbb"))).ari
    1.0
    """
    from sklearn.metrics import adjusted_rand_score

    _check(phases, "stability")
    draws = check_whole("stability", "draws", draws, 1)
    full = phases.steps.full()
    name, unit = _units(full)
    n = len(np.unique(unit))
    of = f"{max(1, round(n * _PART))} of {n} {name}"
    if len(full) < 2:
        return Stability(None, None, None, 0, of, f"{plural(len(full), 'step')} traced in full")
    labels = phases.fitted.to_numpy()
    random = np.random.default_rng(seed)
    scores, reason = [], ""
    for _ in range(draws):
        rows = _draw(unit, random)
        of = f"{_MOST_DRAWN} of {len(full)} steps" if len(rows) == _MOST_DRAWN else of
        try:
            part = phases.method(_select(full, rows))
        except TpunbError as error:
            reason = str(error)
            continue
        scores.append(float(adjusted_rand_score(labels[rows], list(part))))
    if not scores:
        return Stability(None, None, None, 0, of, reason)
    low, high = np.quantile(scores, [0.025, 0.975])
    return Stability(float(np.mean(scores)), float(low), float(high), len(scores), of)


def _check(phases: object, owner: str) -> None:
    if not isinstance(phases, Phases):
        raise wrong_type(owner, "phases", "be Phases", phases, hint="tp.phases(steps)")


def _units(full: Steps) -> tuple[str, Ints]:
    """Return what to draw, and the unit of each step."""
    host = full.frame["host"].rank("dense").to_numpy().astype(np.int64)
    if host.max(initial=0) >= _SEVERAL:
        return "hosts", host
    starts = full.windows.filter(pl.col("error").is_null()).select("host", "start_ps", "window").sort("start_ps")
    window = (
        full.frame.select("host", "start_ps", row=pl.int_range(pl.len()))
        .sort("start_ps")
        .join_asof(starts, on="start_ps", by="host", check_sortedness=False)
        .sort("row")
        .select(pl.struct("host", "window").rank("dense"))
        .to_series()
        .to_numpy()
        .astype(np.int64)
    )
    if window.max(initial=0) >= _SEVERAL:
        return "windows", window
    return "steps", np.arange(len(full))


def _draw(unit: Ints, random: np.random.Generator) -> Ints:
    """Return the rows of a draw, in order."""
    names = np.unique(unit)
    drawn = random.choice(names, max(1, round(len(names) * _PART)), replace=False)
    rows = np.flatnonzero(np.isin(unit, drawn))
    return rows if len(rows) <= _MOST_DRAWN else np.sort(random.choice(rows, _MOST_DRAWN, replace=False))


def _select(full: Steps, rows: Ints) -> Steps:
    """Return the steps of these rows, with their operations."""
    ops = op_matrix(full)
    begin, length = ops.indptr[rows], np.diff(ops.indptr)[rows]
    entries = np.arange(length.sum()) + np.repeat(begin - np.cumsum(length) + length, length)
    return replace(full, frame=full.frame[rows], ops=ops.table[ops.order[entries]])


@dataclass(frozen=True, eq=False, repr=False)
class Quality:
    """Coverage of phases, and the measures to read beside it.

    Parameters
    ----------
    phases
        Phases that were assessed.
    stability
        Agreement with the phases of parts of the steps.
    representatives
        One step per phase, with the error of the run estimated from them.
    """

    phases: Phases
    stability: Stability
    representatives: Representatives

    @property
    def frame(self) -> pl.DataFrame:
        """One row per phase: ``tpunb.schema.PHASES``."""
        return self.phases.frame

    @property
    def coverage(self) -> float:
        """Share of step time without waits in the three longest phases, 0 to 1."""
        return self.phases.coverage(3)

    @property
    def explained_variance(self) -> float | None:
        """Share of the variance between steps that the phases explain, 0 to 1; None if there is only one."""
        return self.phases.explained_variance

    @property
    def confidence(self) -> float | None:
        """Confidence in the phases, 0 to 1, or None if unknown."""
        return self.phases.confidence

    @property
    def noise(self) -> float:
        """Share of step time without waits in outliers, 0 to 1."""
        return self.phases.noise

    def __repr__(self) -> str:
        few, over = self.representatives, phases_over(len(self.phases), len(self.phases.steps))
        values = (self.explained_variance, self.confidence)
        variance, confidence = ("undefined" if value is None else f"{value:.2f}" for value in values)
        errors = f"op profile within {few.error:.1%}, time within {few.time_error:.1%}"
        return "\n".join(
            [
                f"Quality({over}, {self.phases.method!r})",
                f"  top 3 cover         {share_of_steps(self.coverage)}",
                f"  explained variance  {variance}",
                f"  outliers            {share_of_steps(self.noise)}",
                f"  stability           {self.stability}",
                f"  confidence          {confidence}",
                f"  representatives     {len(few)}: {errors}",
            ]
        )


def assess(phases: Phases, *, draws: int = 10, seed: int = 0) -> Quality:
    """Measure the quality of phases: coverage alone calls anything good.

    Parameters
    ----------
    phases
        Phases to assess.
    draws, seed
        Draws of :func:`stability`, which takes most of the time.

    >>> import tpunb as tp
    >>> from tpunb.testing import toy_steps
    >>> assess(tp.phases(toy_steps("aaaaabbbbb")))
    Quality(2 phases over 10 steps, DBSCAN())
      top 3 cover         100.0 % of step time without waits
      explained variance  1.00
      outliers            0.0 % of step time without waits
      stability           1.00 [1.00, 1.00] (ARI, 10 draws of 8 of 10 steps)
      confidence          1.00
      representatives     2: op profile within 0.0%, time within 0.0%
    """
    _check(phases, "assess")
    return Quality(phases, stability(phases, draws=draws, seed=seed), representatives(phases))


def distinguishing_ops(phases: Phases, n: int = 5) -> pl.DataFrame:
    """Return the operations that distinguish each phase from the other steps: ``tpunb.schema.DISTINGUISHING_OPS``.

    In the feature space of its method (else the default one) the squared distance from the mean of the phase to the
    mean of all other steps is a sum over columns: each column's difference times the loadings. The `n` columns that add
    most are returned. Outliers are among the other steps. Operations that the profiler may have skipped
    (:mod:`tpunb.cluster.recorded`) are averaged over the steps that have them, and their share of the steps is null.

    Parameters
    ----------
    phases
        Phases to explain.
    n
        Most columns per phase, 1 or more.

    Raises
    ------
    ValueError
        If `n` is less than 1.

    >>> import tpunb as tp
    >>> from tpunb.testing import toy_steps
    >>> distinguishing_ops(tp.phases(toy_steps("aaabbb")), n=1).select("phase", "op", "inside_ps", "outside_ps").rows()
    [(0, 'step time', 1000000000, 2000000000), (1, 'step time', 2000000000, 1000000000)]
    """
    from tpunb.frames import phase_sums

    _check(phases, "distinguishing_ops")
    n = check_whole("distinguishing_ops", "n", n, 1)
    full = phases.steps.full()
    ids, group = factorize(phases.fitted.to_numpy())
    size, phase = np.bincount(group, minlength=len(ids)), ids >= 0
    if not phase.any() or size[phase][0] == len(full):  # no phase, or no other steps
        return pl.DataFrame(schema=schema.DISTINGUISHING_OPS)
    space = features.space(full, _features(phases.method))
    ops = op_matrix(full).ops.height

    def means(sums: Floats) -> tuple[Floats, Floats]:
        """Return the mean of each column of (groups, columns) over the steps of each phase, and over all others."""
        inside, steps = sums[phase], size[phase, None]
        return inside / steps, (sums.sum(axis=0) - inside) / (size.sum() - steps)

    def column_sums(fold: features.Fold) -> Floats:
        """Return the sums of the columns that the space keeps of a block, by group."""
        kept = np.flatnonzero(fold.column >= 0)
        sums = ran if fold.block == "presence" else phase_sums.sums(_block(full, fold.block), group, len(ids))
        less = fold.mean[kept] * ran[:, kept] if fold.block == "log_self" else 0.0
        return np.asarray((sums[:, kept] - less) * fold.weight[kept])

    ran, spent = np.zeros((2, len(ids), ops))
    at = np.searchsorted(ids, phases.totals["phase"]), phases.totals["column"].to_numpy()
    ran[at], spent[at] = phases.totals["ran"], phases.totals["spent_ps"]
    inside, outside = means(np.hstack([column_sums(fold) for fold in space.folds]))
    place, column, rank, share = _largest(space, inside, outside, n)
    at = place, _op_of_column(space, ops)[column]
    dur = full.frame["dur_ps"].fill_null(0).to_numpy()
    times, ran_shares = means(np.column_stack([spent, np.bincount(group, dur)])), means(np.column_stack([ran, size]))
    skipped = np.append(incidental(full), False)
    measures: dict[str, Floats] = {}
    for where, time, ran_share in zip(("inside", "outside"), times, ran_shares, strict=True):
        # steps without a record of an operation that the profiler may skip say nothing about it
        measures[f"{where}_ps"] = np.where(skipped, time / np.where(ran_share > 0, ran_share, np.nan), time)[at].round()
        measures[f"{where}_ran"] = np.where(skipped & (ran_share < 1), np.nan, ran_share)[at]
    rows = space.columns[column].with_columns(
        *(pl.Series(name, values, nan_to_null=True) for name, values in measures.items()),
        phase=ids[phase][place],
        rank=rank,
        share=share,
    )
    return schema.check(rows, schema.DISTINGUISHING_OPS, "distinguishing_ops")


@memoised
def _block(full: Steps, name: str) -> csr_array:  # 4 bytes per entry: much less than the operations themselves
    return features.BLOCKS[name](op_matrix(full), full)


def _features(method: PhaseMethod) -> features.Features:
    """Return the feature space of a method; the default one if it has none."""
    names: features.Features = getattr(method, "features", "default")
    try:
        features.check(names, "distinguishing_ops")
    except (TypeError, ValueError):  # a user's method, whose attribute is something else
        return "default"
    return names


def _largest(space: features.Space, inside: Floats, outside: Floats, n: int) -> tuple[Ints, Ints, Ints, Floats]:
    """Return (phase, column, rank, share) of the `n` columns that add most to the distance of each phase."""
    parts: list[tuple[Ints, Ints, Ints, Floats]] = []
    for place, gap in enumerate(inside - outside):
        added = gap * (space.loadings @ (gap @ space.loadings))
        total = max(float(added.sum()), _ROUNDING)
        most = np.argsort(-added, kind="stable")[:n]
        most = most[added[most] > _ROUNDING * total]
        parts.append((np.full(len(most), place), most, np.arange(1, len(most) + 1), added[most] / total))
    phase, column, rank, share = (np.concatenate(values) for values in zip(*parts, strict=True))
    return phase, column, rank, share


def _op_of_column(space: features.Space, ops: int) -> Ints:
    """Return the operation of each column of a space; of the step time, the number after the last operation."""
    return np.concatenate(
        [
            np.full(fold.width, ops) if fold.block == "step_time" else np.flatnonzero(fold.column >= 0)
            for fold in space.folds
        ]
    )
