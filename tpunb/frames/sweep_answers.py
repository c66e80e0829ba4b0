"""Answers of a sweep: saturation, sensitivity, speedup."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

import numpy as np
import polars as pl

from tpunb.frames.conversion import Tabular
from tpunb.text import cut, percent, plain, plural


@dataclass(frozen=True, eq=False, repr=False)
class Saturation(Tabular):
    """The smallest value of a parameter that reaches nearly the best throughput.

    Parameters
    ----------
    frame
        One row per combination of the other parameters: their columns, then ``tpunb.schema.SATURATION``.
    parameter
        Name of the parameter.
    within
        Share of the best throughput that may be lost.
    """

    frame: pl.DataFrame
    parameter: str
    within: float

    @property
    def value(self) -> float | None:
        """Median over the combinations, the larger of the middle two; None if no two values ran."""
        value = self.frame["value"].quantile(0.5, "higher")
        return None if value is None else int(value) if value == int(value) else value

    @property
    def rising(self) -> bool | None:
        """Whether `value` is the largest that ran, in half or more of the rows that have it; None if no two ran."""
        rising = self.frame.filter(pl.col("value") == self.value)["rising"]
        return sum(rising) * 2 >= len(rising) if len(rising) else None

    @property
    def sentences(self) -> tuple[str, ...]:
        """The answer, each part in one sentence without its full stop."""
        if self.value is None:
            return (f"{plain(self.parameter)}: fewer than two values ran",)
        at = self.frame.filter(pl.col("value") == self.value)
        count = self.frame["value"].count()
        base = f" (median of {plural(count, 'combination')} of the other parameters)" if count > 1 else ""
        name = f"{plain(self.parameter)} {self.value:,}"
        first = (
            f"{name} is the largest measured, and throughput still rises{base}"
            if self.rising
            else f"{name} is enough{base}"
        )
        if (below := at.select(pl.col("below").max()).item()) is None:
            return (first,)
        away = at.filter(pl.col("below") == below)["given_away"]
        return first, f"at {below:,.10g} you give away {percent(median(away) or 0.0)}"

    def __repr__(self) -> str:
        return f"Saturation({'; '.join(self.sentences)})"


@dataclass(frozen=True, eq=False, repr=False)
class Sensitivity(Tabular):
    """A standardised linear regression of a column of a sweep on its parameters.

    Parameters
    ----------
    frame
        One row per term: ``tpunb.schema.SENSITIVITY``.
    of
        Name of the column.
    r_squared
        Share of the variance of the column that the regression explains, 0 to 1.
    log
        Whether the regression is of logarithms.
    """

    frame: pl.DataFrame
    of: str
    r_squared: float
    log: bool

    def __repr__(self) -> str:
        terms = ", ".join(f"{plain(term)} {weight:.3f}" for term, weight in self.frame.drop_nulls().rows())
        return (
            f"Sensitivity({self.of}{' (logarithms)' if self.log else ''}: {cut(terms, 200)}; R² {self.r_squared:.3f})"
        )


@dataclass(frozen=True, eq=False, repr=False)
class Speedup(Tabular):
    """The throughput of one sweep by that of another, at the points that both ran.

    Parameters
    ----------
    frame
        One row per point: the columns of its parameters, then ``tpunb.schema.SPEEDUP``.
    this, other
        Device, and framework with its version, of each sweep.
    rank_correlation
        Spearman's rank correlation of FLOPs and time of this sweep, at these points; None for fewer than three.
    differences
        What was allowed to differ and does, each with its values.
    """

    frame: pl.DataFrame
    this: tuple[str, str]
    other: tuple[str, str]
    rank_correlation: float | None
    differences: tuple[str, ...] = ()

    @property
    def geometric_mean(self) -> float:
        """Geometric mean of the ratios."""
        return float(np.exp(np.log(self.frame["ratio"].to_numpy()).mean()))

    @property
    def interval(self) -> tuple[float, float] | None:
        """Geometric means of the lower and of the upper ends; None if a point has no interval."""
        if self.frame["low"].null_count():
            return None
        low, high = (float(np.exp(np.log(self.frame[name].to_numpy()).mean())) for name in ("low", "high"))
        return low, high

    @property
    def sentences(self) -> tuple[str, ...]:
        """The answer, each part in one sentence without its full stop."""
        this, other = (f"{device} with {software}" for device, software in (self.this, self.other))
        low, high = self.interval or (None, None)
        mean, count = f"{self.geometric_mean:.2f}", plural(len(self), "point")
        between = "" if low is None else f", interval {low:.2f} to {high:.2f}"
        base = f"geometric mean of {count}{between}"
        if low is None or high is None:
            first = f"{this} has {mean} times the examples per second of {other} ({base}, no interval)"
        elif low <= 1 <= high:
            first = f"{this} and {other} are not distinguishable: ratio {mean} ({base})"
        else:
            first = f"{this} is {'faster' if low > 1 else 'slower'} than {other}: ratio {mean} ({base})"
        ratios = self.frame["ratio"].to_numpy()
        spread = f"ratios from {ratios.min():.2f} to {ratios.max():.2f}, {(ratios < 1).sum():,} of {count} below 1"
        unequal = self.this[1] != self.other[1]
        if unequal or "not recorded" in self.this[1]:
            software = "the software differs" if unequal else "the software may differ"
            return first, spread, f"{software}, so the ratio is not of the devices alone", *self.differences
        return first, spread, *self.differences

    def __str__(self) -> str:
        return "; ".join(self.sentences)

    def __repr__(self) -> str:
        return f"Speedup({self.sentences[0]})"

    def _repr_html_(self) -> str:
        return f"<p>{escape(str(self))}</p>{self.frame._repr_html_()}"


def median(values: pl.Series) -> float | None:
    """Return the median of the values that are not null."""
    values = values.drop_nulls()
    return float(np.median(values.to_numpy())) if len(values) else None
