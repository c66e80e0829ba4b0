"""The explorer: a run on its time axis, cut into phases by a method whose slider lies on its own curve.

The panel's truth are its traits; a browser is optional. The page draws what the kernel has aggregated.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from traitlets import Dict, Enum, Float, Instance, Int, List, observe, validate

from tpunb import pictures
from tpunb.charts.live_curve import slid
from tpunb.charts.live_ribbon import Ribbon, layout, ribbon
from tpunb.charts.live_shares import live_coverage
from tpunb.cluster import phases as cut_into_phases
from tpunb.errors import Unlike, wrong
from tpunb.export import write
from tpunb.frames import PhaseMethod, Phases, Steps
from tpunb.frames.words import plain
from tpunb.saved_steps import Checkpoints, ends_of, steps_of
from tpunb.widgets import described, exports, knobs, second_run
from tpunb.widgets.knobs import KNOBS, METHODS
from tpunb.widgets.panel import Answer, Panel, Refused, asset, module, told
from tpunb.widgets.tables import ROWS

_FAR = 1e9  # seconds that a window may lie from the beginning of a run: thirty years
_OWN = "own"  # the word of a method that is none of ours
_PARAMETERS = {knob.parameter: word for word, knob in KNOBS.items()}


class PhaseExplorer(Panel):
    """A run seen and cut: every control is a trait, and ``value`` the phases that they give.

    To set a method's parameter chooses the method: ``view.threshold = 0.8`` cuts by ``OLS(0.8)``.

    Parameters
    ----------
    run
        Its steps, or its phases to begin with.
    method
        To begin with; ``DBSCAN()`` if None, or that of the phases.
    checkpoints
        The step of each, by its name; or the steps alone; or objects with a ``step``.
    other
        A second run to compare with: its steps, which are cut by the same method, or its phases.
    about
        Lines that stand above, and what went wrong, as (lines, warnings).

    Raises
    ------
    TypeError
        When an argument is something else.
    NoSteps
        When there is nothing to cut.

    >>> from tpunb.testing import toy_steps
    >>> view = PhaseExplorer(toy_steps("aaabbb"))
    >>> view.threshold = 0.0
    >>> view.value
    Phases(1 phase over 6 steps, OLS(threshold=0.0), top 3 cover 100.0%)
    """

    _esm = module("parts.js", "panel.js", "phase_facts.js", "second_run.js", "buttons.js", "explorer.js")
    _css = asset("explorer.css")

    method = Enum([*METHODS, _OWN], help="by what the steps are grouped").tag(sync=True)
    min_samples = Int(None, allow_none=True, help="of DBSCAN; None until it was used").tag(sync=True)
    k = Int(None, allow_none=True, help="of k-means; None until it was used").tag(sync=True)
    threshold = Float(None, allow_none=True, help="of OLS; None until it was used").tag(sync=True)
    ops = Float(None, allow_none=True, help="of OLSPlus; None until it was used").tag(sync=True)
    phase = Int(None, allow_none=True, help="the phase that stands out, if one does").tag(sync=True)
    window: List[Any] = List(
        default_value=None, allow_none=True, help="from and to, in seconds; the whole run if None"
    ).tag(sync=True)
    value = Instance(Phases, read_only=True, help="the phases as they are cut now")

    _frame = Dict(help="what never changes: titles, methods, charts without rows").tag(sync=True)
    _curve = Dict(help="the method's curve and its slider").tag(sync=True)
    _scene = Dict(help="what hangs on the window alone").tag(sync=True)
    _cut = Dict(help="the phases: rows of the ribbon, of the coverage, of the table").tag(sync=True)

    def __init__(
        self,
        run: Steps | Phases,
        *,
        method: PhaseMethod | None = None,
        checkpoints: Checkpoints | None = None,
        other: Steps | Phases | None = None,
        about: exports.About = ((), ()),
    ) -> None:
        if isinstance(run, Phases):
            first = run if method is None else cut_into_phases(run.steps, method)
        else:
            first = cut_into_phases(run, method)
        if other is not None and not isinstance(other, Steps | Phases):
            raise wrong("explore", "other", "be Steps or Phases", other)
        self.steps, self.other = first.steps, other
        self.checkpoints = steps_of(checkpoints)
        self._ribbon = Ribbon(self.steps)
        own = knobs.word(first.method) or _OWN
        self._base: dict[str, PhaseMethod] = {word: make() for word, make in METHODS.items()} | {own: first.method}
        self._first = {own: first}  # of each method, as it was given or chooses by itself
        self._swept: dict[str, Phases] = {}  # what its curve is drawn of
        self._told: tuple[Phases, dict[Any, dict[str, Any]]] = (first, {})  # what was told of a cut
        self.about = about
        self._plain: Any = None  # the same out of ipywidgets alone, where it was asked for
        self.unlike = False  # whether runs of other models are compared
        self.places = exports.Places()
        self._by_us = {"method", "phase", *_PARAMETERS}  # traits that we set ourselves: they ask for nothing
        super().__init__(method=own)
        self.set_trait("value", first)
        self._frame = self._framed()
        self._visit(own)
        self._draw_curve()
        self._show(first)
        self._by_us = set()

    @property
    def code(self) -> str:
        """The line of Python that gives this cut."""
        return knobs.code(self.value.method)

    @property
    def swept(self) -> Phases:
        """The phases whose sweep the method's curve is drawn of."""
        return self._swept.get(self.method, self._first[self.method])

    def details(self, phase: int | None = None) -> dict[str, Any]:
        """Return what one phase is, in words and rows: the one that stands out, or the longest, if None.

        Raises
        ------
        KeyError
            When no step is in that phase.
        """
        with self._turn:
            phase = self._shown if phase is None else phase
            return self._figures(phase) | self._reasons(phase)

    def _figures(self, phase: int) -> dict[str, Any]:
        return self._once(("figures", phase), lambda: described.describe(self.value, phase, self.checkpoints))

    def _reasons(self, phase: int) -> dict[str, Any]:
        return self._once(("reasons", phase), lambda: described.explain(self.value, phase))

    def _once(self, what: object, tell: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return what is told of the cut of now, found out once."""
        if self._told[0] is not self.value:
            self._told = (self.value, {})
        if what not in self._told[1]:
            self._told[1][what] = tell()
        return dict(self._told[1][what])

    @property
    def _shown(self) -> int:
        """The phase that is told of: the one that stands out, or the longest."""
        return self.value.longest.id if self.phase is None else self.phase

    def save_html(self, path: str | Path) -> Path:
        """Write the explorer as one file that needs neither a kernel nor a network, but for the sliders."""
        with self._turn:
            return write(Path(path), exports.page(self))

    def save_svg(self, path: str | Path) -> Path:
        """Write the ribbon as it is cut now."""
        return write(Path(path), exports.svg(self.value))

    def save_png(self, path: str | Path) -> Path:
        """Write the ribbon as it is cut now, on white, two pixels a point."""
        return write(Path(path), exports.png(self.value))

    def freeze(self) -> None:
        """Put pictures and tables where the panel is shown: a notebook saved then needs no kernel to show them."""
        with self._turn:
            self.places.freeze(exports.still(self))

    def view_bundle(self) -> dict[str, Any]:
        """Return what a front end shows the live panel by, by media type."""
        if os.environ.get("TPUNB_WIDGETS") == "plain":  # a front end that cannot load widgets of others
            from tpunb.widgets.plain_explorer import PlainExplorer

            self._plain = self._plain or PlainExplorer(self)
            data = self._plain._repr_mimebundle_()
        else:
            data, _ = super()._repr_mimebundle_() or ({}, {})
        return {kind: content for kind, content in data.items() if kind.startswith("application/")}

    def _repr_mimebundle_(self, **kwds: Any) -> Any:
        with self._turn:
            return {**exports.still(self), **self.view_bundle()}, {}

    def _ipython_display_(self) -> None:
        self.places.show(self)

    # What the traits may be

    def __setattr__(self, name: str, value: Any) -> None:
        if not self.has_trait(name):
            super().__setattr__(name, value)
            return
        with self._turn:
            super().__setattr__(name, value)
            if name in _PARAMETERS and value is not None and name not in self._by_us:
                self.method = _PARAMETERS[name]  # of a value that is there already traitlets tells nobody

    @validate(*_PARAMETERS)
    def _possible(self, proposal: Any) -> Any:
        name = proposal["trait"].name
        if proposal["value"] is not None and name not in self._by_us:
            try:
                METHODS[_PARAMETERS[name]](**{name: proposal["value"]})  # says what it must be
            except ValueError as error:
                raise Refused(str(error)) from None
        return proposal["value"]

    @validate("phase")
    def _there(self, proposal: Any) -> Any:
        phase = proposal["value"]
        if phase is not None and not (self.value.labels == phase).any():
            raise Refused(f"There is no phase {phase}; there are {sorted(self.value.frame['phase'].to_list())}.")
        return phase

    @validate("window")
    def _ordered(self, proposal: Any) -> Any:
        window = proposal["value"]
        if window is None:
            return None
        numbers = [end for end in window if isinstance(end, int | float) and abs(end) <= _FAR]
        if len(window) != 2 or len(numbers) != 2 or numbers[0] >= numbers[1]:
            raise Refused(f"The window must be [from, to] in seconds, from before to. Got {window!r} instead.")
        return [float(end) for end in window]

    # What follows from them

    @observe("method", *_PARAMETERS)
    def _asked_for(self, change: Any) -> None:
        if change["name"] in self._by_us:
            return
        with self._turn, self.hold_sync():
            with self._undone(change):
                self._set(method=_PARAMETERS.get(change["name"], change["new"]))  # the last that was asked for
                self._visit(self.method)
                found = self._cut_again()
                self._draw_curve()
            self._show(found)
            self.set_trait("value", found)  # last: who watches it sees a panel that is whole

    @observe("phase")
    def _stands_out(self, _: Any) -> None:
        if "phase" not in self._by_us and self.phase not in (None, *self._drawn):
            self._show(self.value)  # it was among the others

    @observe("window")
    def _zoomed(self, _: Any) -> None:
        with self._turn, self.hold_sync():
            within = None if self.window is None else (self.window[0], self.window[1])
            self._ribbon = Ribbon(self.steps, within)
            self._show(self.value)

    def _visit(self, word: str) -> None:
        """Let a method choose by itself when it is first asked for, and put its slider where it chose."""
        knob = KNOBS.get(word)
        if word not in self._base:
            raise Refused(f"No method of yours was given; there are {[*METHODS]}.")
        if word not in self._first:
            self._first[word] = cut_into_phases(self.steps, self._base[word])
        first = self._first[word]
        if knob is not None and word not in self._swept:
            free = knob.free(self._base[word], first)
            self._swept[word] = first if free == first.method else cut_into_phases(self.steps, free)
        if knob is not None and getattr(self, knob.parameter) is None:
            self._set(**{knob.parameter: knob.chosen(first)})

    def _draw_curve(self) -> None:
        if self._curve.get("method") != self.method:
            self._curve = {"method": self.method, **self._curved(KNOBS.get(self.method), self.swept)}

    def _cut_again(self) -> Phases:
        knob, first = KNOBS.get(self.method), self._first[self.method]
        if knob is None or getattr(self, knob.parameter) == knob.chosen(first):
            return first
        method = knob.at(getattr(self, knob.parameter), self._base[self.method], self._swept[self.method])
        return self.value if method == self.value.method else cut_into_phases(self.steps, method)

    def _show(self, found: Phases) -> None:
        if self.phase is not None and not (found.labels == self.phase).any():
            self._set(phase=None)
        if self._scene.get("edges") != [*self._ribbon.edges]:
            marks = self._ribbon.marks(ends_of(self.steps, self.checkpoints))
            tables = {"watched": self._ribbon.watched(), "checkpoints": marks}
            self._scene = {"edges": [*self._ribbon.edges], "tables": tables}
        tables = self._ribbon.rows(found, self.phase)
        self._drawn = tables["ranks"]["phase"]
        self._cut = {
            "number": self._cut.get("number", 0) + 1,
            "code": plain(knobs.code(found.method)),
            "headline": described.headline(found),
            "tables": json.dumps(tables, separators=(",", ":")),  # a text: the way of numbers is longer
            "phases": described.rows(found),
            "rest": max(found.frame.height - ROWS, 0),
            "top3": found.coverage(3),
            "at": None if self.method not in KNOBS else getattr(self, KNOBS[self.method].parameter),
        }

    @contextmanager
    def _undone(self, change: Any) -> Iterator[None]:
        """Set the traits back where what was asked for cannot be had."""
        method = self._curve["method"]
        try:
            yield
        except Exception:
            self._set(**{"method": method, change["name"]: change["old"]})
            raise

    def _set(self, **traits: Any) -> None:
        """Set traits of our own accord."""
        before, self._by_us = self._by_us, self._by_us | set(traits)
        try:
            for name, value in traits.items():
                setattr(self, name, value)
        finally:
            self._by_us = before

    # What the page is told, and may ask for

    def _framed(self) -> dict[str, Any]:
        own = [{"word": _OWN, "title": plain(repr(self._base[_OWN]))}] if _OWN in self._base else []
        return {
            "name": plain(self.steps.name or ""),
            "methods": [*own, *({"word": word, "title": knobs.TITLES[word]} for word in METHODS)],
            "ribbon": pictures.spec(ribbon(self._ribbon.hosts, watched=self.steps.windows.height > 0)),
            "coverage": pictures.spec(live_coverage()),
            "layout": layout(len(self._ribbon.hosts)),
            "lines": [plain(line) for line in self.about[0]],
            "warnings": [plain(line) for line in self.about[1]],
            "second": self.other is not None,
        }

    def _curved(self, knob: knobs.Knob | None, swept: Phases) -> dict[str, Any]:
        chart = knobs.chart(self.method, swept)
        if knob is None or chart is None:
            spec = None if chart is None else knobs.untitled(pictures.spec(chart))
            return {"spec": spec, "knob": None, "table": knobs.table(swept.sweeps.get("tree"))}
        least, most = knob.stops(swept)
        stops = {"parameter": knob.parameter, "label": knob.label, "least": least, "most": most, "step": knob.step}
        spec = slid(chart, knob.parameter, (least, most), knob.chosen(self._first[self.method]))
        return {"spec": knobs.untitled(spec), "knob": stops, "table": knobs.table(swept.sweeps[knob.parameter])}

    def answers(self) -> Mapping[str, Callable[..., Answer]]:
        """Return what the page may ask for."""
        return {
            **super().answers(),
            "figures": lambda: (self._figures(self._shown), []),
            "reasons": lambda: (self._reasons(self._shown), []),
            "phases": lambda: ({"phases": described.rows(self.value, described.PHASES)}, []),
            "compare": self._compared,
            "runs": lambda: ({"table": described.runs(self.value, self._ribbon.edges)}, []),
            "freeze": lambda: exports.frozen(self),
            "export": lambda kind: exports.export(self, kind),
        }

    def _compared(self, unlike: object = False) -> Answer:
        self.unlike = self.unlike or unlike is True
        try:
            return self._once(("compared", self.unlike), lambda: second_run.compared(self)), []
        except Unlike as error:  # said where the comparison would stand, with a button
            return {"error": told(error)}, []


def explore(
    steps: Steps | Phases,
    *,
    method: PhaseMethod | None = None,
    checkpoints: Checkpoints | None = None,
    other: Steps | Phases | None = None,
) -> PhaseExplorer:
    """Return the panel in which a run is seen and cut: :class:`PhaseExplorer`.

    Parameters
    ----------
    steps
        Of the run, or its phases.
    method
        To begin with.
    checkpoints
        The step of each, by its name; or the steps alone; or objects with a ``step``: marks on the ribbon.
    other
        A second run, beside the first: its steps or its phases.

    >>> from tpunb.testing import toy_steps
    >>> explore(toy_steps("aaabbb")).value
    Phases(2 phases over 6 steps, DBSCAN(), top 3 cover 100.0%)
    """
    return PhaseExplorer(steps, method=method, checkpoints=checkpoints, other=other)
