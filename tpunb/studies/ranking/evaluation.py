"""Evaluation of cost models beside simple rules and the repeat ceiling, on graphs that they were not fitted to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import numpy as np
import polars as pl

from tpunb.errors import TpunbError
from tpunb.studies.ranking.columns import EVALUATION
from tpunb.studies.ranking.measured import Floats, Measured
from tpunb.studies.ranking.metrics import kendall, random_error, top_error
from tpunb.text import percent, plural

TOP = (1, 3, 5, 10)
METHODS = ("model", "bytes moved", "largest tile", "default", "AUTO", "random", "repeat ceiling")
_SPLITS = {
    "graph": "leave one graph out",
    "kernel": "leave one kernel out",
    "family": "leave one family of graphs out",
    "configuration": "fit to half of the configurations of the same graph, 20 times",
}
_HALVES, _RESAMPLES = 20, 2000

Judged = tuple[Any, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """How well methods order configurations.

    Parameters
    ----------
    features, by
        Features of the model, and what was left out.
    graphs
        A row for each graph and method: ``JUDGED``.
    """

    features: str
    by: str
    graphs: pl.DataFrame

    @property
    def frame(self) -> pl.DataFrame:
        """Means over graphs with 95 % intervals, by method: ``EVALUATION``."""
        rows = []
        for method in METHODS:
            of = (
                self.graphs.filter(pl.col("method") == method)
                .group_by("name", maintain_order=True)
                .agg(pl.col("tau", *(f"top{k}" for k in TOP)).mean())
            )
            if len(of):
                row: dict[str, Any] = {"method": method, "graphs": len(of)}
                for name in ("tau", *(f"top{k}" for k in TOP)):
                    row |= dict(zip((name, f"{name}_low", f"{name}_high"), _mean(of[name]), strict=True))
                rows.append(row)
        return pl.DataFrame(rows, schema=EVALUATION)

    @property
    def split(self) -> str:
        """What was left out, in words."""
        return _SPLITS[self.by]

    def __str__(self) -> str:
        rows = {row["method"]: row for row in self.frame.rows(named=True)}
        model, ceiling = rows["model"], rows.get("repeat ceiling")
        graphs, tau = plural(model["graphs"], "graph"), _interval(model, "tau", "{:.2f}")
        parts = [f"{self.split}, {graphs}, from the {self.features}: tau {tau}"]
        if ceiling and ceiling["tau"] is not None:
            parts[0] += f" of a repeat ceiling {ceiling['tau']:.2f}"
        parts.append(f"best of the first 3 {percent(model['top3'], None)} off the fastest")
        others = {"default": "default", "bytes moved": "by bytes moved", "largest tile": "by the largest tile"}
        parts += [f"{text} {percent(rows[name]['top3'], None)}" for name, text in others.items() if name in rows]
        return ", ".join(parts)

    def __repr__(self) -> str:
        return f"Evaluation({self})"

    def _repr_html_(self) -> str:
        return f"<p>{escape(str(self))}</p>{self.frame._repr_html_()}"


def splits(graphs: Sequence[Measured], by: str) -> Iterator[tuple[list[Measured], Measured]]:
    """Yield the graphs to fit to and one to judge; one graph is on both sides by "configuration" alone."""
    if by not in _SPLITS:
        raise ValueError(f"The by parameter of evaluate must be one of {', '.join(_SPLITS)}. Got {by!r} instead.")
    rankable = [each for each in graphs if len(each) > 1 and np.ptp(each.times) > 0]
    if by == "configuration":
        for each in rankable:
            for seed in range(_HALVES if each.nothing_to_rank is None and len(each) >= 8 else 0):
                drawn = np.random.default_rng(seed).permutation(len(each))
                yield [_part(each, drawn[: len(each) // 2])], _part(each, drawn[len(each) // 2 :])
        return
    groups = [each.family if by == "family" else each.name for each in rankable]
    if len({*groups}) < 2:
        raise TpunbError(f"one {by} only: nothing is left to fit to", hint="add others, or choose by='configuration'")
    for each, group in zip(rankable, groups, strict=True):
        yield [other for other, its in zip(rankable, groups, strict=True) if its != group], each


def _part(measured: Measured, rows: Any) -> Measured:
    inputs = {name: values[rows] for name, values in measured.inputs.items()}
    numbers = None if measured.numbers is None else measured.numbers[rows]
    return replace(measured, frame=measured.frame[rows], inputs=inputs, programs=(), numbers=numbers)


def judged(measured: Measured, predicted: Floats) -> list[Judged]:
    """Return the rows of a graph in ``JUDGED``: of the model, and of each rule that applies."""
    times, frame = measured.times, measured.frame
    orders: dict[str, Any] = {"model": predicted}
    if frame["bytes"].null_count() == 0:
        orders["bytes moved"] = frame["bytes"].to_numpy()
    if frame["tile"].null_count() == 0:
        orders["largest tile"] = -frame["tile"].to_numpy()
    rows = [
        (method, kendall(order, times) or 0.0, *(top_error(order, times, k) for k in TOP))
        for method, order in orders.items()
    ]
    for method, column in (("default", "default"), ("AUTO", "auto")):
        chosen = times[frame[column].fill_null(value=False).to_numpy()]
        if not chosen.size and method == "default" and frame["default_ps"].null_count() == 0:
            chosen = np.array([np.median(frame["default_ps"].to_numpy())])
        if chosen.size:
            rows.append((method, None, *[max(0.0, float(chosen[0] / times.min() - 1))] * len(TOP)))
    rows.append(("random", 0.0, *(random_error(times, k) for k in TOP)))
    if measured.halves is not None:
        pairs = (measured.halves, measured.halves[::-1])
        errors = (float(np.mean([top_error(a, b, k) for a, b in pairs])) for k in TOP)
        rows.append(("repeat ceiling", kendall(*measured.halves) or 0.0, *errors))
    return [(measured.name, measured.family, method, len(times), *values) for method, *values in rows]


def _mean(values: pl.Series) -> tuple[float | None, float | None, float | None]:
    """Return the mean over graphs, and the ends of its 95 % interval by resampling them."""
    numbers = values.drop_nulls().to_numpy()
    if not numbers.size:
        return None, None, None
    drawn = np.random.default_rng(0).integers(0, numbers.size, (_RESAMPLES, numbers.size))
    low, high = np.quantile(numbers[drawn].mean(axis=1), (0.025, 0.975)) if numbers.size > 1 else (None, None)
    return float(numbers.mean()), low, high


def _interval(row: dict[str, Any], name: str, form: str) -> str:
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return form.format(row[name]) + (f" [{form.format(low)}, {form.format(high)}]" if low is not None else "")
