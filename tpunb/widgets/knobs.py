"""The slider of each method: what it moves, over which values, and the curve that it lies on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import altair as alt
import polars as pl
import polars.selectors as cs

from tpunb import charts
from tpunb.cluster import DBSCAN, HDBSCAN, OLS, KMeans, OLSPlus
from tpunb.errors import TpunbError
from tpunb.frames import PhaseMethod, Phases

METHODS: dict[str, Callable[[], PhaseMethod]] = {
    "dbscan": DBSCAN,
    "hdbscan": HDBSCAN,
    "kmeans": KMeans,
    "ols": OLS,
    "olsplus": OLSPlus,
}
"""The methods by the words that the magic and the panel have for them."""

TITLES = {"dbscan": "DBSCAN", "hdbscan": "HDBSCAN", "kmeans": "k-means", "ols": "OLS (the paper's scan)"}
TITLES |= {"olsplus": "OLSPlus"}


@dataclass(frozen=True)
class Knob:
    """One parameter of one method, chosen from one sweep.

    Parameters
    ----------
    method
        Its word.
    parameter
        Its name, which is that of the panel's trait and of the sweep that it is chosen from.
    label
        What it is called beside the slider.
    step
        From one stop of the slider to the next.
    chart
        Draws the sweep.
    least
        The first stop.
    """

    method: str
    parameter: str
    label: str
    step: float
    chart: Callable[[Phases], alt.TopLevelMixin]
    least: float

    def stops(self, swept: Phases) -> tuple[float, float]:
        """Return the first stop and the last."""
        if self.step < 1:
            return self.least, 1.0
        most = swept.sweeps[self.parameter][self.parameter].max()
        return self.least, max(self.least, most if isinstance(most, int) else 1)

    def of(self, method: PhaseMethod) -> Any:
        """Return the value that a method was made with; None where it chooses by itself."""
        return getattr(method, self.parameter)

    def chosen(self, phases: Phases) -> Any:
        """Return the value that was chosen, or given."""
        sweep = phases.sweeps.get(self.parameter)
        found = None if sweep is None else sweep.filter("chosen")[self.parameter]
        return self.of(phases.method) if found is None or found.is_empty() else found[0]

    def at(self, value: Any, base: PhaseMethod, swept: Phases) -> PhaseMethod:
        """Return the method with this value, all else as in the sweep that the slider lies on."""
        fixed = {}
        if self.method == "dbscan" and (eps := _eps(swept)) is not None:
            fixed = {"eps": eps}
        return replace(base, **{self.parameter: value}, **fixed)  # type: ignore[type-var]  # ours are dataclasses

    def free(self, base: PhaseMethod, phases: Phases) -> PhaseMethod:
        """Return the method that sweeps this parameter, for a curve where it was given."""
        if self.of(base) is None or self.method in ("ols", "olsplus"):
            return base  # it sweeps; the last two do so given or not
        fixed = {"eps": _eps(phases)} if self.method == "dbscan" else {}
        return replace(base, **{self.parameter: None}, **fixed)  # type: ignore[type-var]


def _eps(phases: Phases) -> float | None:
    """Return the distance that DBSCAN chose or was given."""
    sweep = phases.sweeps.get("eps")
    return getattr(phases.method, "eps", None) if sweep is None else float(sweep.filter("chosen")["eps"].item())


KNOBS = {
    knob.method: knob
    for knob in (
        Knob("dbscan", "min_samples", "min_samples (steps)", 1, charts.dbscan_noise, 1),
        Knob("kmeans", "k", "clusters, k", 1, charts.kmeans_elbow, 1),
        Knob("ols", "threshold", "similarity threshold", 0.01, charts.ols_phases, 0.0),
        Knob("olsplus", "ops", "similarity of the operations", 0.01, charts.olsplus_phases, 0.5),
    )
}
"""The knobs by their method's word; HDBSCAN has none, its condensed tree holds the answer."""


def word(method: PhaseMethod) -> str:
    """Return the word of a method, "" for a stranger's."""
    return next((name for name, kind in METHODS.items() if type(method) is kind), "")


def code(method: PhaseMethod) -> str:
    """Return the line of Python that cuts ``steps`` by a method.

    >>> code(OLS(0.8))
    'tp.phases(steps, tp.OLS(threshold=0.8))'
    """
    if word(method):
        return f"tp.phases(steps, tp.{method!r})"
    name = getattr(method, "__name__", repr(method))
    return f"tp.phases(steps, {'method' if name.startswith('<') else name})"  # as of a lambda


def chart(method: str, phases: Phases) -> alt.TopLevelMixin | None:
    """Return the curve that a method chose from, None where it has none."""
    draw = charts.hdbscan_tree if method == "hdbscan" else KNOBS[method].chart if method in KNOBS else None
    if draw is None:
        return None
    try:
        return draw(phases)
    except TpunbError:  # one step has no tree
        return None


def untitled(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a chart's spec without the run's name in its title: the panel says it."""
    title = next((part["title"] for part in [spec, *spec.get("vconcat", [])] if part.get("title")), None)
    if isinstance(title, dict):
        title["text"] = title["text"].partition(" · ")[0]
    return spec


def table(sweep: pl.DataFrame | None) -> dict[str, list[Any]] | None:
    """Return a curve or a tree as a table, some 60 rows at most; None of none."""
    if sweep is None:
        return None
    every = max(1, math.ceil(sweep.height / 60))
    kept = sweep.filter((pl.int_range(pl.len()) % every == 0) | pl.col("chosen")).drop("chosen")
    rounded = kept.with_columns(cs.float().fill_nan(None).round_sig_figs(4))
    return rounded.to_dict(as_series=False)
