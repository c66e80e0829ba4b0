"""What phases are worth, beside how much of the time they cover, and what sets each apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import polars as pl

from tpunb import schema
from tpunb.cluster import features, phasing
from tpunb.cluster.groups import Groups
from tpunb.errors import TpunbError, whole, wrong
from tpunb.frames import PhaseMethod, Phases, Representatives, Steps
from tpunb.frames.op_matrix import Floats, Ints, op_matrix
from tpunb.frames.words import plural

_PART = 0.8  # of the hosts, windows or steps are in a draw: fewer would lose rare phases
_MOST = 20_000  # steps in a draw
_NOTHING = 1e-9  # of a squared distance: what is left of a difference of nothing
_SEVERAL = 5  # hosts, or windows, that can be drawn from


def agreement(steps: Steps, methods: Sequence[PhaseMethod] | Mapping[str, PhaseMethod]) -> pl.DataFrame:
    """Return how far methods agree on which steps belong together: ``tpunb.schema.AGREEMENT``, one row a pair.

    Over the steps seen in full. Adjusted for chance, both scores are 1.0 where two methods say the same, and about
    0 where they have nothing in common (Rand index: Hubert and Arabie 1985; mutual information: Vinh et al. 2010).

    Parameters
    ----------
    steps
        To group.
    methods
        Two or more, or such by the names that they shall have; by what they call themselves else.

    Raises
    ------
    TypeError
        When `steps` are none, or `methods` is one.
    ValueError
        When there are fewer than two methods.

    >>> from tpunb.cluster import DBSCAN, OLS
    >>> from tpunb.testing import toy_steps
    >>> agreement(toy_steps("aaabbb"), [DBSCAN(), OLS()]).row(0)
    ('DBSCAN()', 'OLS()', 1.0, 1.0, 1.0)
    """
    from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score

    if not isinstance(steps, Steps):
        raise wrong("agreement", "steps", "be Steps", steps, hint="tp.steps(profile)")
    if not isinstance(methods, Mapping | Sequence) or isinstance(methods, str):
        hint = "agreement(steps, [tp.DBSCAN(), tp.OLS()])"
        raise wrong("agreement", "methods", "be two methods or more", methods, hint=hint)
    named = methods.items() if isinstance(methods, Mapping) else [(repr(method), method) for method in methods]
    if len(named) < 2:
        raise ValueError(f"The methods parameter of agreement must be two methods or more. Got {len(named)} instead.")
    found = [(name, phasing.phases(steps.full(), method).labels.to_numpy()) for name, method in named]
    rows = []
    for (a, one), (b, other) in combinations(found, 2):
        inside = (one >= 0) & (other >= 0)
        ari_inside = float(adjusted_rand_score(one[inside], other[inside])) if inside.any() else None
        ari = float(adjusted_rand_score(one, other))
        rows.append((a, b, ari, float(adjusted_mutual_info_score(one, other)), ari_inside))
    return pl.DataFrame(rows, schema=schema.AGREEMENT, orient="row")


@dataclass(frozen=True)
class Stability:
    """Whether the phases are found again in a part of the steps.

    Parameters
    ----------
    ari
        Mean adjusted Rand index between the phases and those found again, on the steps that both know; 1.0 is the
        same, 0 what chance does. None where it cannot be told.
    low, high
        Between which 95 of 100 draws are.
    draws
        How many were made.
    of
        What each draw was of: "4 of 5 hosts", "20000 of 112590 steps".
    why
        It cannot be told; "" where it can.
    """

    ari: float | None
    low: float | None
    high: float | None
    draws: int
    of: str
    why: str = ""

    def __str__(self) -> str:
        if self.ari is None:
            return f"unknown: {self.why}"
        return f"{self.ari:.2f} [{self.low:.2f}, {self.high:.2f}] (ARI, {plural(self.draws, 'draw')} of {self.of})"


def stability(phases: Phases, *, draws: int = 20, seed: int = 0) -> Stability:
    """Return whether the same method finds the same phases in parts of the steps (Ben-Hur et al. 2002).

    Each part is four fifths of the hosts where there are five or more, else of the windows, else of the steps seen in
    full; of more than 20,000 steps, as many of them. A part on which the method gives up does not count.

    Parameters
    ----------
    phases
        With the method that found them.
    draws
        Parts, 1 or more.
    seed
        Of the draws.

    Raises
    ------
    ValueError
        When `draws` is less than 1.

    >>> import tpunb as tp
    >>> from tpunb.testing import toy_steps
    >>> stability(tp.phases(toy_steps("aaaaabbbbb"))).ari
    1.0
    """
    from sklearn.metrics import adjusted_rand_score

    _check(phases, "stability")
    draws = whole("stability", "draws", draws, 1)
    full = phases.steps.full()
    name, unit = _units(full)
    n = len(np.unique(unit))
    of = f"{max(1, round(n * _PART))} of {n} {name}"
    if len(full) < 2:
        return Stability(None, None, None, 0, of, f"{plural(len(full), 'step')} seen in full")
    labels = phases.fitted.to_numpy()
    random = np.random.default_rng(seed)
    scores, why = [], ""
    for _ in range(draws):
        rows = _part(unit, random)
        of = f"{_MOST} of {len(full)} steps" if len(rows) == _MOST else of
        try:
            found = phases.method(_only(full, rows))
        except TpunbError as error:
            why = str(error)
            continue
        scores.append(float(adjusted_rand_score(labels[rows], list(found))))
    if not scores:
        return Stability(None, None, None, 0, of, why)
    low, high = np.quantile(scores, [0.025, 0.975])
    return Stability(float(np.mean(scores)), float(low), float(high), len(scores), of)


def _check(phases: object, owner: str) -> None:
    if not isinstance(phases, Phases):
        raise wrong(owner, "phases", "be Phases", phases, hint="tp.phases(steps)")


def _units(full: Steps) -> tuple[str, Ints]:
    """Return what to draw from, and to which of these each step belongs."""
    host = full.frame["host"].rank("dense").to_numpy().astype(np.int64)
    if host.max(initial=0) >= _SEVERAL:
        return "hosts", host
    began = full.windows.filter(pl.col("error").is_null()).select("host", "start_ps", "window").sort("start_ps")
    window = (
        full.frame.select("host", "start_ps", row=pl.int_range(pl.len()))
        .sort("start_ps")
        .join_asof(began, on="start_ps", by="host", check_sortedness=False)
        .sort("row")
        .select(pl.struct("host", "window").rank("dense"))
        .to_series()
        .to_numpy()
        .astype(np.int64)
    )
    if window.max(initial=0) >= _SEVERAL:
        return "windows", window
    return "steps", np.arange(len(full))


def _part(unit: Ints, random: np.random.Generator) -> Ints:
    """Return the rows of a draw, in order."""
    names = np.unique(unit)
    drawn = random.choice(names, max(1, round(len(names) * _PART)), replace=False)
    rows = np.flatnonzero(np.isin(unit, drawn))
    return rows if len(rows) <= _MOST else np.sort(random.choice(rows, _MOST, replace=False))


def _only(full: Steps, rows: Ints) -> Steps:
    """Return some of the steps, with their operations."""
    ops = op_matrix(full)
    begin, length = ops.indptr[rows], np.diff(ops.indptr)[rows]
    entries = np.arange(length.sum()) + np.repeat(begin - np.cumsum(length) + length, length)
    return replace(full, frame=full.frame[rows], ops=ops.told[ops.order[entries]])


@dataclass(frozen=True, eq=False, repr=False)
class Quality:
    """What phases are worth: how much of the time they cover, and beside it what that is worth.

    Parameters
    ----------
    phases
        Which.
    stability
        Whether they are found again in parts of the steps.
    representatives
        One step a phase, and how wrong they are about the run.
    """

    phases: Phases
    stability: Stability
    representatives: Representatives

    @property
    def frame(self) -> pl.DataFrame:
        """One row a phase: ``tpunb.schema.PHASES``."""
        return self.phases.frame

    @property
    def coverage(self) -> float:
        """Share of the time in the three longest phases, 0 to 1."""
        return self.phases.coverage(3)

    @property
    def homogeneity(self) -> float:
        """How much of what sets the steps apart the phases tell, 0 to 1."""
        return self.phases.homogeneity

    @property
    def noise(self) -> float:
        """Share of the time that is noise, 0 to 1."""
        return self.phases.noise

    def __repr__(self) -> str:
        few, n = self.representatives, plural(len(self.phases), "phase")
        return "\n".join(
            [
                f"Quality({n} over {plural(len(self.phases.steps), 'step')}, {self.phases.method!r})",
                f"  top 3 cover      {self.coverage:.1%} of the time",
                f"  homogeneity      {self.homogeneity:.2f}",
                f"  noise            {self.noise:.1%} of the time",
                f"  stability        {self.stability}",
                f"  representatives  {len(few)}: op profile within {few.error:.1%}, time within {few.time_error:.1%}",
            ]
        )


def assess(phases: Phases, *, draws: int = 10, seed: int = 0) -> Quality:
    """Return what phases are worth, whole: coverage alone calls anything good.

    Parameters
    ----------
    phases
        To judge.
    draws, seed
        As in :func:`stability`, which takes the most of the time.

    >>> import tpunb as tp
    >>> from tpunb.testing import toy_steps
    >>> assess(tp.phases(toy_steps("aaaaabbbbb")))
    Quality(2 phases over 10 steps, DBSCAN())
      top 3 cover      100.0% of the time
      homogeneity      1.00
      noise            0.0% of the time
      stability        1.00 [1.00, 1.00] (ARI, 10 draws of 8 of 10 steps)
      representatives  2: op profile within 0.0%, time within 0.0%
    """
    _check(phases, "assess")
    return Quality(phases, stability(phases, draws=draws, seed=seed), phases.representatives())


def apart(phases: Phases, n: int = 5) -> pl.DataFrame:
    """Return what sets each phase apart from the rest of the run, by operations: ``tpunb.schema.APART``.

    In the space that its method works in (else the default one) the distance from the mean of the phase to the mean
    of all other steps is a sum over columns: its square is that of each column's difference times the loadings. Here
    are the `n` columns that add most. Noise is no phase, but part of the rest.

    Parameters
    ----------
    phases
        To explain.
    n
        Columns a phase at most, 1 or more.

    Raises
    ------
    ValueError
        When `n` is less than 1.

    >>> import tpunb as tp
    >>> from tpunb.testing import toy_steps
    >>> apart(tp.phases(toy_steps("aaabbb")), n=1).select("phase", "op", "inside_ps", "outside_ps").rows()
    [(0, 'step time', 1000000000, 2000000000), (1, 'step time', 2000000000, 1000000000)]
    """
    _check(phases, "apart")
    n = whole("apart", "n", n, 1)
    full = phases.steps.full()
    labels = phases.fitted.to_numpy()
    of = Groups.of(labels)
    if not of.known.any() or of.size[of.known][0] == len(full):  # no phase, or no rest
        return schema.empty(schema.APART)
    space = features.space(full, _features(phases.method))
    ops = op_matrix(full).ops.height
    ran, spent = (of.spread(phases.totals, name, ops) for name in ("ran", "spent_ps"))
    inside, outside = of.means(np.hstack([of.sums(full, fold, ran) for fold in space.folds]))
    place, column, rank, share = _most_apart(space, inside, outside, n)
    at = place, _figure(space, ops)[column]
    dur = full.frame["dur_ps"].fill_null(0).to_numpy()
    inside_ps, outside_ps = of.means(np.column_stack([spent, np.bincount(of.group, dur)]))
    inside_ran, outside_ran = of.means(np.column_stack([ran, of.size]))
    rows = space.columns[column].with_columns(
        phase=of.found[of.known][place],
        rank=rank,
        share=share,
        inside_ps=inside_ps[at].round(),
        outside_ps=outside_ps[at].round(),
        inside_ran=inside_ran[at],
        outside_ran=outside_ran[at],
    )
    return schema.check(rows, schema.APART, "apart")


def _features(method: PhaseMethod) -> features.Features:
    """Return the space that a method works in; the default one where it names none."""
    named: features.Features = getattr(method, "features", "default")
    try:
        features.check(named, "apart")
    except (TypeError, ValueError):  # a method of someone else's, that means something else by the word
        return "default"
    return named


def _most_apart(space: features.Space, inside: Floats, outside: Floats, n: int) -> tuple[Ints, Ints, Ints, Floats]:
    """Return (phase, column, rank, share) of the `n` columns that add most to the distance of each phase."""
    told: list[tuple[Ints, Ints, Ints, Floats]] = []
    for place, gap in enumerate(inside - outside):
        added = gap * (space.loadings @ (gap @ space.loadings))
        whole = float(added.sum())
        most = np.argsort(-added, kind="stable")[:n]
        most = most[added[most] > _NOTHING * max(whole, _NOTHING)]
        told.append((np.full(len(most), place), most, np.arange(1, len(most) + 1), added[most] / max(whole, _NOTHING)))
    phase, column, rank, share = (np.concatenate(values) for values in zip(*told, strict=True))
    return phase, column, rank, share


def _figure(space: features.Space, ops: int) -> Ints:
    """Return the operation behind each column of a space; of the step time, the number after the last."""
    return np.concatenate(
        [
            np.full(fold.width, ops) if fold.block == "step_time" else np.flatnonzero(fold.column >= 0)
            for fold in space.folds
        ]
    )
