"""Whether the steps of a run are slower than those of another for certain: an interval that holds for repeated runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np
import polars as pl

from tpunb.analysis.compare import Comparison
from tpunb.analysis.time_line import BUSY
from tpunb.errors import wrong_type
from tpunb.frames import Phases
from tpunb.frames.op_matrix import Floats
from tpunb.step_stats import batch_means
from tpunb.text import percent, plural

_FEWEST = (
    20  # steps of a phase in each run, and of them those beside no window; fewer are not compared, or with windows
)
_WARM_UP = 0.05  # share of a run's steps that is left out at its start
_CLIP = 2.0  # robust standard deviations from the median of its phase that a step counts as, at most
_LEAST_COVERED = 0.5  # share of the step time of either run in phases that are compared
_STRETCHES = 4  # of a run, whose differences show how much a run differs from the next
_BETWEEN = (
    0.004  # relative standard deviation of equal runs on an idle machine; benchmarks/report.py shows whether it holds
)
_FULL = 0.9  # share of the processors in use from which a program waits for others; chosen
_UPPER = 0.995  # quantile of a 99 % interval: a false alarm costs more than an open answer
_POWER = 1.28  # standard errors from the aim of the steps that would decide: in nine of ten pairs they do
_MOST_STEPS = 10_000_000


@dataclass(frozen=True)
class Slowdown:
    """Step time of run b by that of run a, and whether b is slower for certain.

    Parameters
    ----------
    ratio, low, high
        Ratio of step times with its 99 % interval, which holds for repeated runs; None if too little can be compared.
    mean_low
        Lower end of the interval of the ratio of mean step times, in which rare slow steps count in full.
    limit
        Slow-down that matters, such as 0.03.
    steps
        Steps of a and of b that are compared.
    covered
        Share of the step time in the phases that are compared, 0 to 1; of the run with the smaller one.
    busy
        Whether other programs filled the processors during a and during b: a slower one of these may be due to them.
    needed
        Steps of each run that would decide; None if it is decided, or if equal runs differ too much.
    """

    ratio: float | None
    low: float | None
    high: float | None
    mean_low: float | None
    limit: float
    steps: tuple[int, int]
    covered: float
    busy: tuple[bool, bool] = (False, False)
    needed: int | None = None

    @property
    def slower(self) -> bool | None:
        """True: slower, and the limit is not ruled out; False: a slow-down by the limit is ruled out; None: unknown."""
        if self.ratio is None or self.low is None or self.high is None or self.mean_low is None:
            return None
        if self.high < 1 + self.limit >= self.mean_low:
            return None if self.busy[0] else False
        return True if (self.low > 1 or self.mean_low > 1 + self.limit) and not self.busy[1] else None

    @property
    def sentence(self) -> str:
        """The answer and its reason in one line."""
        limit, compared = percent(self.limit, None), f"{self.steps[0]:,} and {plural(self.steps[1], 'step')}"
        if self.ratio is None or self.low is None or self.high is None or self.mean_low is None:
            fewest = plural(_FEWEST, "step")
            return f"Unknown: only {percent(self.covered)} of step time is in phases with {fewest} in both runs."
        low, high = (_signed(end) for end in (self.low, self.high))
        change = f"step time {_signed(self.ratio)} % [{low}, {high}], {compared}"
        if self.slower is False:
            return f"Not slower by {limit}: {change}."
        if self.slower is None:
            more = "equal runs differ by more: raise the limit"
            if any(self.busy):
                run = "b" if self.busy[1] else "a"
                more = f"other programs filled the processors in run {run}: repeat it without them"
            elif self.needed is not None:
                more = f"about {self.needed:,} steps of each would decide"
            return f"Unknown whether slower by {limit}: {change}; {more}."
        if self.low <= 1:
            return f"Slower: mean step time by {_signed(self.mean_low)} % at least, in some of the steps; {change}."
        return f"Slower: {change}; limit {limit}."

    @property
    def content(self) -> dict[str, Any]:
        """The answer as Python values: ``docs/report.md`` describes each."""
        ends = {"value": self.ratio, "low": self.low, "high": self.high, "mean_low": self.mean_low}
        figures = {name: None if end is None else round(end, 5) for name, end in ends.items()}
        return {
            "format": 1,
            "slower": self.slower,
            "sentence": self.sentence,
            "limit": {"share": self.limit, "base": "step time of a"},
            "ratio": {**figures, "unit": "1", "base": "step time of a", "confidence": 2 * _UPPER - 1},
            "steps": dict(zip("ab", self.steps, strict=True)),
            "covered": {"share": round(self.covered, 4), "base": "step time"},
            "busy": dict(zip("ab", self.busy, strict=True)),
            "needed": self.needed,
        }


def slowdown(comparison: Comparison, limit: float = 0.03) -> Slowdown:
    """Return whether run b is slower than run a, from the step times of their matched phases.

    The logarithms of step times are averaged, each phase weighted by its time in both runs. Steps in and beside windows
    and the start of a run are left out; a step counts as two robust standard deviations from the median of its phase at
    most. The variance has three parts: batch means of the steps of these two runs (`tpunb.analysis.compare`), what
    quarters of a run differ by beyond that, and what equal runs differ by on an idle machine.

    Parameters
    ----------
    comparison
        Two runs, by `tp.compare`.
    limit
        Slow-down that matters: 0.03 for 3 %.

    Raises
    ------
    TypeError
        If the comparison is something else.
    ValueError
        If the limit is not a number above 0.

    >>> from tpunb.analysis import compare
    >>> from tpunb.testing import toy_steps
    >>> slowdown(compare(toy_steps("a" * 60), toy_steps("a" * 60))).sentence
    'Not slower by 3 %: step time +0.0 % [-1.4, +1.5], 57 and 57 steps.'
    """
    if not isinstance(comparison, Comparison):
        raise wrong_type("slowdown", "comparison", "be what tp.compare returns", comparison)
    if isinstance(limit, bool) or not isinstance(limit, Real) or not 0 < float(limit) < math.inf:
        raise ValueError(f"The limit parameter of slowdown must be a number above 0. Got {limit!r} instead.")
    pairs = comparison.frame.select("phase_a", "phase_b").rows()
    a, b = (_steps(run, [pair[side] for pair in pairs]) for side, run in enumerate((comparison.a, comparison.b)))
    ran = _numerous(a, b)
    quiet = _numerous(a.filter("quiet"), b.filter("quiet"))  # pairs; of others, steps beside windows count too
    whole = [int(run["dur_ps"].sum()) for run in (a, b)]
    chosen = pl.col("pair").is_in(ran) & (pl.col("quiet") | ~pl.col("pair").is_in(quiet))
    compared = [run.filter(pl.col("pair").is_in(ran)).group_by("pair").agg(pl.col("dur_ps").sum()) for run in (a, b)]
    covered = min(int(run["dur_ps"].sum()) / max(of, 1) for run, of in zip(compared, whole, strict=True))
    a, b = a.filter(chosen), b.filter(chosen)
    if covered < _LEAST_COVERED:
        return Slowdown(None, None, None, None, float(limit), (a.height, b.height), covered)
    weights = pl.concat(compared).group_by("pair").agg(pl.col("dur_ps").sum())
    weights = weights.select("pair", weight=pl.col("dur_ps") / pl.col("dur_ps").sum())
    weights = weights.join(a.group_by("pair").agg(mean_ps=pl.col("dur_ps").mean()), on="pair")
    change, width, needed = _change(*(_series(run, weights, _clipped()) for run in (a, b)), math.log1p(limit))
    of_mean, mean_width, _ = _change(*(_series(run, weights, pl.col("dur_ps") / pl.col("mean_ps")) for run in (a, b)))
    busy = _is_busy(comparison.a), _is_busy(comparison.b)
    ends = (math.exp(end) for end in (change, change - width, change + width))
    found = Slowdown(*ends, 1 + of_mean - mean_width, float(limit), (a.height, b.height), covered, busy)
    return found if any(busy) or found.slower is not None else replace(found, needed=needed)


def _steps(run: Phases, phases: list[int]) -> pl.DataFrame:
    """Return (pair, start_ps, dur_ps, quiet) of a job's steps in order of time, without those at its start."""
    traced = (pl.col("traced") != "none").cast(pl.Int8)
    beside = [traced.shift(n, fill_value=0).over("host") for n in (-1, 0, 1)]
    rows = run.labelled.sort("host", "start_ps").with_columns(quiet=pl.max_horizontal(beside) == 0)
    rows = rows.group_by("step", maintain_order=True).agg(
        pl.col("phase").first(), pl.col("start_ps").min(), pl.col("dur_ps").mean(), pl.col("quiet").all()
    )
    pairs = pl.DataFrame({"phase": phases, "pair": range(len(phases))}, schema={"phase": pl.Int64, "pair": pl.Int64})
    rows = rows.filter(pl.col("dur_ps") > 0).join(pairs, on="phase", how="left").sort("start_ps", "step")
    return rows.slice(round(_WARM_UP * rows.height))


def _numerous(a: pl.DataFrame, b: pl.DataFrame) -> list[int]:
    """Return the pairs of phases with enough steps in both runs."""
    enough = (run.drop_nulls("pair").group_by("pair").len().filter(pl.col("len") >= _FEWEST) for run in (a, b))
    return sorted(set.intersection(*({*run["pair"]} for run in enough)))


def _clipped() -> pl.Expr:
    log = pl.col("dur_ps").log()
    middle = log.median().over("pair")
    most = _CLIP * 1.4826 * (log - middle).abs().median().over("pair")
    return log.clip(middle - most, middle + most)


def _series(run: pl.DataFrame, weights: pl.DataFrame, value: pl.Expr) -> tuple[float, Floats]:
    """Return the mean of a value, phases by their weights, and by how much each step is off, in order of time."""
    rows = run.join(weights, on="pair", maintain_order="left").with_columns(value=value)
    share = pl.col("weight") * pl.len() / pl.len().over("pair")
    off = pl.col("value") - pl.col("value").mean().over("pair")
    mean, off_ps = rows.select((pl.col("value") * share).mean()).item(), rows.select(off * share).to_series()
    return float(mean), np.asarray(off_ps.to_numpy(), dtype=np.float64)


def _change(a: tuple[float, Floats], b: tuple[float, Floats], limit: float = 0.0) -> tuple[float, float, int | None]:
    """Return the change from a to b, half of its interval, and the steps of each that would decide on a limit."""
    from scipy.special import stdtrit

    parts = []  # variance and degrees of freedom
    for _, off in (a, b):
        means = batch_means.means(off)
        error = float(batch_means.error(means, len(off)))
        between = float(np.var([stretch.mean() for stretch in np.array_split(off, _STRETCHES)], ddof=1))
        parts += [(error, len(means) - 1), (max(between - _STRETCHES * error, 0.0), _STRETCHES - 1)]
    sampled, fixed = sum(variance for variance, _ in parts), 2 * _BETWEEN**2
    free = (sampled + fixed) ** 2 / max(sum(variance**2 / n for variance, n in parts), 1e-30)  # Welch 1947
    change, quantile = b[0] - a[0], float(stdtrit(min(free, 1e6), _UPPER))
    # standard error: for equal runs and those slower by the limit, and for this change to be unlike one of these
    aim = min(limit / (quantile + _POWER), max(limit - change, change) / quantile)
    steps = min(len(a[1]), len(b[1])) * sampled / (aim**2 - fixed) if aim**2 > fixed else math.inf
    return change, quantile * math.sqrt(sampled + fixed), math.ceil(steps) if steps <= _MOST_STEPS else None


def _is_busy(run: Phases) -> bool:
    """Return whether other programs filled the processors."""
    if run.steps.wall is None:
        return False
    used = (
        run.steps.wall.load.select(others=pl.col("machine_cpu") - pl.col("cpu"), machine="machine_cpu")
        .drop_nulls()
        .mean()
    )
    others, machine = used.row(0)
    return others is not None and others > BUSY and machine > _FULL


def _signed(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f}"
