"""Sliders of phase methods: their limits and positions, the method at a position, and the curve above them."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass, replace
from numbers import Real
from typing import Any

import altair as alt
import polars as pl
import polars.selectors as cs

from tpunb import charts
from tpunb.cluster import METHODS, SliderSpec
from tpunb.errors import TpunbError
from tpunb.frames import Phases
from tpunb.frames.phases import PhaseMethod
from tpunb.widgets.table import Table, table

_ROWS = 60  # of a curve as a table


def slider_of(method: PhaseMethod) -> SliderSpec | None:
    """Return the slider that a method's class declares; None without one."""
    slider = getattr(method, "slider", None)
    return slider if isinstance(slider, SliderSpec) and is_dataclass(method) else None


def limits(slider: SliderSpec, swept: Phases) -> tuple[float, float]:
    """Return the first and the last position."""
    most: Any = slider.most
    if most is None:
        sweep = swept.sweeps.get(slider.parameter)
        most = None if sweep is None else sweep[slider.parameter].max()
    return slider.least, max(slider.least, slider.least if most is None else most)


def position(slider: SliderSpec, phases: Phases) -> Any:
    """Return the parameter's value: the given one, or the one chosen from the sweep."""
    given = getattr(phases.method, slider.parameter)
    return _choice(slider.parameter, phases) if given is None else given


def checked(slider: SliderSpec, method: PhaseMethod, value: Any) -> Any:
    """Return a value as the method holds it, or raise the method's ValueError or TypeError."""
    if slider.step < 1 and isinstance(value, Real) and not isinstance(value, bool):
        value = float(value)  # JavaScript sends 1.0 as 1
    return getattr(replace(method, **{slider.parameter: value}), slider.parameter)  # type: ignore[type-var]


def moved(slider: SliderSpec, method: PhaseMethod, value: Any, swept: Phases) -> PhaseMethod:
    """Return the method at a position, all other parameters as in the sweep."""
    return replace(method, **{slider.parameter: value}, **_fixed(slider, swept))  # type: ignore[type-var]


def sweeping(method: PhaseMethod, phases: Phases) -> PhaseMethod:
    """Return the method that sweeps its slider's parameter; `method` itself where it does, or has no slider."""
    slider = slider_of(method)
    if slider is None or getattr(method, slider.parameter) is None:
        return method
    defaults = {field.name: field.default for field in fields(method)}  # type: ignore[arg-type]
    if defaults[slider.parameter] is not None:  # it sweeps whatever was given
        return method
    return moved(slider, method, None, phases)


def _fixed(slider: SliderSpec, phases: Phases) -> dict[str, Any]:
    return {name: value for name in slider.fixed if (value := _choice(name, phases)) is not None}


def _choice(parameter: str, phases: Phases) -> Any:
    """Return the value that a sweep chose; without a sweep the method's own."""
    sweep = phases.sweeps.get(parameter)
    chosen = [] if sweep is None else sweep[parameter].filter(sweep["chosen"]).to_list()
    return chosen[0] if chosen else getattr(phases.method, parameter, None)


def name_of(method: PhaseMethod) -> str:
    """Return the name of a method in `METHODS`; "" for a method of the user's."""
    return next((name for name, kind in METHODS.items() if type(method) is kind), "")


def title_of(method: str) -> str:
    """Return what a method of `METHODS` is called on the panel."""
    return str(getattr(METHODS[method], "title", METHODS[method].__name__))


def code(method: PhaseMethod) -> str:
    """Return the line of Python that groups ``steps`` by a method.

    >>> from tpunb.cluster import OLS
    >>> code(OLS(0.8))
    'tp.phases(steps, tp.OLS(threshold=0.8))'
    """
    if name_of(method):
        return f"tp.phases(steps, tp.{method!r})"
    name = getattr(method, "__name__", repr(method))
    return f"tp.phases(steps, {'method' if name.startswith('<') else name})"  # a lambda has no name


def chart(phases: Phases) -> alt.TopLevelMixin | None:
    """Return the curve that the phases' method chose from; None without one."""
    slider = slider_of(phases.method)
    phases = replace(phases, steps=replace(phases.steps, name=""))  # the panel's title has the run's name
    try:
        if slider is not None and slider.curves and slider.parameter in phases.sweeps:
            return charts.sweep_curve(phases)
        return charts.hdbscan_tree(phases) if "tree" in phases.sweeps else None
    except TpunbError:  # one step has no tree
        return None


def sweep_table(sweep: pl.DataFrame | None) -> Table | None:
    """Return a curve or a tree as a table of some 60 rows at most; None without one."""
    if sweep is None:
        return None
    every = max(1, math.ceil(sweep.height / _ROWS))
    kept = sweep.filter((pl.int_range(pl.len()) % every == 0) | pl.col("chosen")).drop("chosen")
    rows = kept.with_columns(cs.float().fill_nan(None).round_sig_figs(4)).rows()
    return table("Sweep curve", [name.replace("_", " ") for name in kept.columns], (map(_cell, row) for row in rows))


def _cell(value: object) -> str:
    return "yes" if value is True else "–" if value is None or value is False else str(value)
