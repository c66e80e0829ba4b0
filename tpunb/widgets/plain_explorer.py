"""The explorer out of ipywidgets alone, ``TPUNB_WIDGETS=plain``: for front ends that cannot load others' widgets.

The same panel without a page of its own: its traits behind a list and a slider, its pictures drawn by the kernel.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import ipywidgets

from tpunb import pictures
from tpunb.widgets import exports, knobs
from tpunb.widgets.knobs import KNOBS
from tpunb.widgets.panel import told
from tpunb.widgets.tables import safe

if TYPE_CHECKING:
    from tpunb.frames import Phases
    from tpunb.widgets.explorer import PhaseExplorer


class PlainExplorer(ipywidgets.VBox):  # type: ignore[misc]  # ipywidgets carries no types
    """A :class:`PhaseExplorer` of a list, a slider and pictures; ``view`` is the panel itself.

    Parameters
    ----------
    view
        Its traits are the controls.

    >>> import tpunb as tp
    >>> from tpunb.testing import toy_steps
    >>> plain = PlainExplorer(tp.explore(toy_steps("aaabbb")))
    >>> plain.slider.value, plain.view.value
    (2, Phases(2 phases over 6 steps, DBSCAN(), top 3 cover 100.0%))
    """

    def __init__(self, view: PhaseExplorer) -> None:
        self.view = view
        titles = [(method["title"], method["word"]) for method in view._frame["methods"]]
        self.method = ipywidgets.Dropdown(options=titles, value=view.method, description="Method")
        self.slider: Any = None
        self.curve, self.shown, self.alert = ipywidgets.HTML(), ipywidgets.HTML(), ipywidgets.HTML()
        super().__init__()
        self.method.observe(self._picked, "value")
        view.observe(self._follow, "value")  # told last of all: the panel is whole
        self._follow()

    def _picked(self, change: Any) -> None:
        with _Heard(self.alert):
            self.view.method = change["new"]
        self.method.value = self.view.method  # as it was, where it was refused

    def _slid(self, parameter: str, change: Any) -> None:
        with _Heard(self.alert):
            setattr(self.view, parameter, change["new"])

    def _follow(self, _: Any = None) -> None:
        """Show the phases of now, and the slider of their method where it stands."""
        self.method.value = self.view.method
        knob, swept = KNOBS.get(self.view.method), self.view.swept
        if self._swept is not swept:
            self._swept = swept
            chart = knobs.chart(self.view.method, swept)
            self.curve.value = "" if chart is None else pictures.svg(chart)
            self.slider = None if knob is None else self._slider(knob, swept)
            controls = [self.method] if self.slider is None else [self.method, self.slider]
            self.children = [*controls, self.curve, self.alert, self.shown]
        if knob is not None and self.slider.value != (at := getattr(self.view, knob.parameter)):
            self.slider.value = at
        self.shown.value = exports.static(self.view.value)

    _swept: Phases | None = None  # what the curve is drawn of

    def _slider(self, knob: knobs.Knob, swept: Phases) -> Any:
        (least, most), at = knob.stops(swept), getattr(self.view, knob.parameter)
        kind = ipywidgets.FloatSlider if knob.step < 1 else ipywidgets.IntSlider
        ends = {"min": min(least, at), "max": max(most, at)}
        slider = kind(value=at, **ends, step=knob.step, description=knob.label)
        slider.style.description_width = "initial"
        slider.layout.width = "480px"
        slider.observe(partial(self._slid, knob.parameter), "value")
        return slider


class _Heard:
    """What goes wrong in a callback, said in the panel: front ends do not show it."""

    def __init__(self, alert: ipywidgets.HTML) -> None:
        self._alert = alert

    def __enter__(self) -> None:
        self._alert.value = ""

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        if isinstance(error, Exception):
            self._alert.value = f'<p role="alert">{safe(told(error))}</p>'
            return True
        return False
