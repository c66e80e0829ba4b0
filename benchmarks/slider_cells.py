"""What the cells of the slider's notebook say: the run, the panel, and what a user of JupyterChart writes instead."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import wraps
from itertools import pairwise
from typing import Any

import altair as alt
import ipywidgets
from simulate.synthetic_runs import synthetic_run

import tpunb as tp
from tpunb import charts
from tpunb.widgets import sliders

TOOK: list[float] = []
"""Milliseconds of the callbacks since they were last asked for."""


def timed(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a callback that notes how long it takes."""

    @wraps(call)
    def timing(*given: Any) -> Any:
        begin = time.perf_counter()
        try:
            return call(*given)
        finally:
            TOOK.append((time.perf_counter() - begin) * 1e3)

    return timing


def taken() -> list[float]:
    """Return how long the callbacks took since this was last asked, in milliseconds."""
    told = TOOK.copy()
    TOOK.clear()
    return told


def training(ops: int) -> tp.Steps:
    """Return the steps of the paper's longest run, made up."""
    return synthetic_run(n=112_590, ops=ops, seed=21, hard=True).steps


def explorer(steps: tp.Steps) -> Any:
    """Return the panel as a user has it, but that what it does with each change of the page is timed."""
    view = tp.explore(steps)
    view.set_state = timed(view.set_state)
    return view


def busiest(changes: Sequence[float], stops: Sequence[float], width: int) -> tuple[int, int]:
    """Return the first and the last place in `stops`, at most `width` apart, that lie about most changes.

    A change is the stop from which on the cut is another than before.

    >>> busiest([5, 7, 8], [1, 2, 3, 4, 5, 6, 7, 8, 9], 3)
    (3, 6)
    """
    width = min(width, len(stops) - 1)
    within = [sum(stops[at] < change <= stops[at + width] for change in changes) for at in range(len(stops) - width)]
    first = within.index(max(within))
    return first, first + width


def stops(view: Any, moves: int) -> tuple[list[float], int, int]:
    """Return all stops of the panel's slider, and the first and the last place where the keys go."""
    slider, (least, most) = view.state.slider, view.state.limits
    every = [round(least + at * slider.step, 6) for at in range(round((most - least) / slider.step) + 1)]
    columns = [curve.column for curve in slider.curves]
    rows = view.state.swept.sweeps[slider.parameter].select(slider.parameter, *columns).rows()
    changes = [now[0] for before, now in pairwise(rows) if before[1:] != now[1:]]
    return every, *busiest(changes, every, moves // 2)


def beside(view: Any, moves: int) -> Any:
    """Return what a user of JupyterChart writes in place of the panel: the same cuts, the same slider, one chart."""
    alt.JupyterChart.enable_offline()
    declared, steps, swept = view.state.slider, view.steps, view.state.swept
    every, first, _ = stops(view, moves)

    def drawn(value: float) -> alt.TopLevelMixin:
        return charts.timeline(tp.phases(steps, sliders.moved(declared, swept.method, value, swept)))

    def moved(change: Any) -> None:
        chart.chart = drawn(change["new"])

    kind = ipywidgets.FloatSlider if declared.step < 1 else ipywidgets.IntSlider
    slider = kind(value=every[first], min=every[0], max=every[-1], step=declared.step, description=declared.parameter)
    chart = alt.JupyterChart(drawn(slider.value))
    slider.observe(timed(moved), "value")
    return ipywidgets.VBox([slider, chart]).add_class(f"beside-{view.method}")
