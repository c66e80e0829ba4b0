"""The explorer out of ipywidgets alone, ``TPUNB_WIDGETS=plain``: for front ends that cannot load others' widgets.

The same panel without a page of its own: its traits behind a list and a slider, its pictures drawn by the kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ipywidgets

from tpunb import pictures
from tpunb.widgets import exports, knobs
from tpunb.widgets.knobs import KNOBS
from tpunb.widgets.panel import told
from tpunb.widgets.tables import safe

if TYPE_CHECKING:
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
        self.slider: Any = ipywidgets.IntSlider()
        self.curve, self.shown = ipywidgets.HTML(), ipywidgets.HTML()
        self.alert = ipywidgets.HTML()
        super().__init__()
        self.method.observe(self._picked, "value")
        view.observe(self._show, "value")
        self._turn()

    def _picked(self, change: Any) -> None:
        with self._heard():
            self.view.method = change["new"]
            self._turn()

    def _slid(self, change: Any) -> None:
        with self._heard():
            setattr(self.view, KNOBS[self.view.method].parameter, change["new"])

    def _turn(self) -> None:
        """Put the slider of the method in place."""
        knob, swept = KNOBS.get(self.view.method), self.view.swept
        children = [self.method, self.curve, self.alert, self.shown]
        if knob is not None:
            least, most = knob.stops(swept)
            kind = ipywidgets.FloatSlider if knob.step < 1 else ipywidgets.IntSlider
            at = getattr(self.view, knob.parameter)
            self.slider = kind(value=at, min=least, max=max(most, at), step=knob.step, description=knob.label)
            self.slider.style.description_width = "initial"
            self.slider.observe(self._slid, "value")
            children.insert(1, self.slider)
        chart = knobs.chart(self.view.method, swept)
        self.curve.value = "" if chart is None else pictures.svg(chart)
        self.children = children
        self._show()

    def _show(self, _: Any = None) -> None:
        self.shown.value = exports.static(self.view.value)

    def _heard(self) -> _Heard:
        return _Heard(self.alert)


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
