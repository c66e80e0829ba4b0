"""The explorer of ipywidgets alone, ``TPUNB_WIDGETS=plain``, for front ends that load no other packages' widgets.

A list of methods, a slider, and pictures drawn by the kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ipywidgets

from tpunb.charts import render
from tpunb.frames import Phases
from tpunb.text import format_error
from tpunb.widgets import exports, sliders
from tpunb.widgets.explorer_state import ExplorerState
from tpunb.widgets.html_tables import safe


class StaticExplorer(ipywidgets.VBox):  # type: ignore[misc]  # ipywidgets has no types
    """A list, a slider and pictures of an :class:`ExplorerState`.

    Parameters
    ----------
    state
        State to show first.
    choose
        Called with another clustering; what follows from it comes back through `show`.
    pictures
        Name of the pictures above, which are hidden: see :class:`tpunb.widgets.frontends.DisplayHandles`.
    """

    def __init__(self, state: ExplorerState, choose: Callable[[dict[str, Any]], None], pictures: str = "") -> None:
        self._choose = choose
        self._swept: Phases | None = None
        options = [(title, name) for name, title in state.methods.items()]
        self.method = ipywidgets.Dropdown(options=options, value=state.method, description="Method")
        self.slider: Any = None
        self.curve, self.phases, self.alert = ipywidgets.HTML(), ipywidgets.HTML(), ipywidgets.HTML()
        self.hiding = ipywidgets.HTML(f'<style>[data-tpunb="{pictures}"]{{display:none}}</style>')
        super().__init__()
        self.method.observe(lambda change: self._try({"method": change["new"]}), "value")
        self.show(state)

    def show(self, state: ExplorerState) -> None:
        """Show the phases of a state, and the slider of their method."""
        self._state = state
        self.method.value = state.method
        if self._swept is not state.swept:
            self._swept = state.swept
            chart = sliders.chart(state.swept)
            self.curve.value = "" if chart is None else render.svg(chart)
            self.slider = self._slider(state)
            controls = [self.method] if self.slider is None else [self.method, self.slider]
            self.children = [self.hiding, self.alert, self.phases, *controls, self.curve]
        if self.slider is not None and self.slider.value != state.position:
            self.slider.value = state.position
        self.phases.value = exports.static_html(state)

    def _slider(self, state: ExplorerState) -> Any:
        slider, at = state.slider, state.position
        if slider is None or state.limits is None:
            return None
        kind = ipywidgets.FloatSlider if slider.step < 1 else ipywidgets.IntSlider
        ends = {"min": min(state.limits[0], at), "max": max(state.limits[1], at)}
        control = kind(value=at, **ends, step=slider.step, description=slider.label)
        control.style.description_width = "initial"
        control.layout.width = "480px"
        choice = {"method": state.method}
        control.observe(lambda change: self._try({**choice, slider.parameter: change["new"]}), "value")
        return control

    def _try(self, clustering: dict[str, Any]) -> None:
        """Choose a clustering; front ends do not show what a callback raises, so the panel does."""
        self.alert.value = ""
        try:
            self._choose(clustering)
        except Exception as error:  # noqa: BLE001  shown in the panel
            self.method.value = self._state.method  # its own callback clears the alert
            self.alert.value = f'<p role="alert">{safe(format_error(error))}</p>'
