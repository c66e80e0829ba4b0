"""The explorer: a run on its time axis, grouped into phases by a method with a slider over its own curve.

The panel's traits hold its state; a browser is optional. The page draws what the kernel has aggregated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import ipywidgets
from traitlets import Dict, Instance, Int, List, Unicode, default, observe, validate

from tpunb.analysis.run import OfRun, Run, loaded
from tpunb.analysis.run import phases as grouped
from tpunb.analysis.run import steps as steps_of
from tpunb.analysis.step_trace import open_trace
from tpunb.charts import render
from tpunb.charts.timeline_rows import Timeline
from tpunb.cluster import METHODS
from tpunb.cluster.assign import check, method_of
from tpunb.errors import IncompatibleRuns
from tpunb.frames import Phases, Profile, Steps
from tpunb.frames.conversion import write_atomically
from tpunb.frames.nearest import StepSource, checkpoint_steps
from tpunb.frames.phases import PhaseMethod
from tpunb.io import cache
from tpunb.io.formats import run_at
from tpunb.text import format_error, plain
from tpunb.widgets import exports, phase_view, second_run, sliders
from tpunb.widgets.explorer_state import ExplorerState, Messages, ungrouped
from tpunb.widgets.frontends import DisplayHandles, only_ipywidgets
from tpunb.widgets.panel import Answer, Panel, Refused, no_such, packed
from tpunb.widgets.table import safe

_FAR = 1e9  # seconds from the start of a run: thirty years
_CUSTOM = "own"  # name of a method of the user's
_SLOW_S = 1.0  # of loading and grouping, from which on what is drawn is kept
_PARAMETERS = ("min_samples", "k", "threshold", "ops")
_LOOK = ("_frame", "_curve", "_axis", "_clusters", "clustering")  # the page's traits that phases decide


class _Parameter:
    """A method's parameter as an attribute of the panel: reads and sets the trait ``clustering``."""

    def __init__(self, method: str) -> None:
        self._method = method

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, view: PhaseExplorer | None, owner: type | None = None) -> Any:
        return self if view is None else view._position(self._method)

    def __set__(self, view: PhaseExplorer, value: Any) -> None:
        if value is not None or view._position(self._method) is not None:
            view._choose({"method": self._method, self._name: value})


def _out_of_order(ends: object) -> Refused:
    return Refused(f"The time range must be [from, to] in seconds, from before to. Got {ends!r} instead.")


class PhaseExplorer(Panel, OfRun):
    """A run in its phases: every control is a trait or a property, and ``value`` the phases that they give.

    A method's parameter, set as a property, selects the method: ``view.threshold = 0.8`` groups by ``OLS(0.8)``. Steps
    are grouped when the phases are first needed, or right after the panel is shown.

    >>> from tpunb.testing import toy_steps
    >>> view = PhaseExplorer(toy_steps("aaabbb"))
    >>> view.threshold = 0.0
    >>> view.value
    Phases(1 phase over 6 steps, OLS(threshold=0.0), top 3 cover 100.0 % of step time without waits)
    """

    _esm, _css = packed(exports.SCRIPT), exports.STYLE

    clustering: Dict[str, Any] = Dict(help="method and its slider's value").tag(sync=True)
    phase = Int(None, allow_none=True, help="selected phase").tag(sync=True)
    account = Unicode(None, allow_none=True, help="selected account").tag(sync=True)
    time_range: List[Any] = List(default_value=None, allow_none=True, help="seconds that are shown").tag(sync=True)
    value = Instance(Phases, read_only=True, help="the phases")

    min_samples = _Parameter("dbscan")
    k = _Parameter("kmeans")
    threshold = _Parameter("ols")
    ops = _Parameter("olsplus")

    _frame = Dict(help="what never changes: titles, methods, charts without rows").tag(sync=True)
    _curve = Dict(help="the method's curve and its slider").tag(sync=True)
    _axis = Dict(help="what depends on the time range alone").tag(sync=True)
    _clusters = Dict(help="the phases: rows of the timeline, of the coverage, of the table").tag(sync=True)

    def __init__(
        self,
        run: Run,
        *,
        method: PhaseMethod | str | None = None,
        checkpoints: StepSource | None = None,
        other: Run | None = None,
        messages: Messages = ((), ()),
        profile: Profile | None = None,
        folded: bool = False,
    ) -> None:
        run = loaded(run, "explore") if isinstance(run, OfRun) else run
        compared = None if other is None else loaded(other, "explore", "other")
        self._given: dict[str, Any] = {
            "checkpoints": checkpoint_steps(checkpoints),
            "other": steps_of(compared) if isinstance(compared, Profile) else compared,
            "messages": messages,
            "profile": profile,
            "folded": folded,
        }
        self._methods: dict[str, PhaseMethod] = {word: make() for word, make in METHODS.items()}
        self._first: dict[str, Phases] = {}  # by method: as it was given, or chooses by itself
        self._swept: dict[str, Phases] = {}  # by method: phases whose sweep is its curve
        self._positions: dict[str, Any] = {}  # by method: value of its slider
        self.displays = DisplayHandles()
        self._static_explorer: Any = None  # of ipywidgets alone, where it was asked for
        self._grouped: ExplorerState | None = None
        self._look: dict[str, Any] = {"clustering": {}}  # the page's traits until then
        ready = isinstance(run, Phases) and method is None
        self._run, self._method = run, run.method if isinstance(run, Phases) and ready else method_of(method)
        later = not ready and bool(sliders.name_of(self._method))  # a method of the user's may fail, and does so here
        self._folder = run_at(run) if later and isinstance(run, str | PathLike) else None
        self._entry = self._drawn_entry()
        self._kept = (self._entry and cache.get_drawn(self._entry)) or {}
        if self._kept:
            self._look = self._kept["look"]
        else:
            found = self._profiled(run)
            self._is_whole = not (isinstance(found, Profile) and (found.skipped or found.notes))
            self._run = found if isinstance(found, Phases) else steps_of(found)
            if later:
                check(steps_of(self._run))
                self._look = ungrouped(steps_of(self._run))
        state = None if later else self._group()
        self._look.setdefault("_frame", {})["pictures"] = self.displays.name
        super().__init__()
        if state is not None:
            self._show(state)

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and name != "displays" and not hasattr(type(self), name):
            settings = ", ".join(("method", *_PARAMETERS, "phase", "account", "time_range"))
            raise Refused(f"The explorer has no setting {name!r}; set one of {settings}.")
        if name == "phase" and isinstance(value, str):
            raise no_such("phase", value, [f"{number} ({each})" for number, each in sorted(self.value.names.items())])
        if name == "time_range" and not isinstance(value, list | tuple | None):
            raise _out_of_order(value)
        super().__setattr__(name, value)

    def _drawn_entry(self) -> Path | None:
        """Return where the cache keeps what is drawn of a run folder; None for other runs."""
        if self._folder is None or self._given["other"] is not None:
            return None
        return cache.drawn_entry(self._folder, repr(self._method), self._given["checkpoints"])

    @property
    def _state(self) -> ExplorerState:
        """Everything that is shown but what is selected; the steps are grouped when it is first needed."""
        if self._grouped is None:
            with self._turn:
                return self._grouped or self._show(self._group())
        return self._grouped

    def _profiled(self, run: Run) -> Run:
        """Return a run as it is loaded, whose profile is kept for its rates."""
        found = loaded(run, "explore")
        if isinstance(found, Profile):
            self._given["profile"] = found
        return found

    def _group(self) -> ExplorerState:
        """Return the state of the first method."""
        run = self._profiled(self._run)
        first = run if isinstance(run, Phases) and run.method is self._method else grouped(run, self._method)
        name = sliders.name_of(first.method) or _CUSTOM
        self._methods[name], self._first[name] = first.method, first
        custom = {_CUSTOM: plain(repr(first.method))} if name == _CUSTOM else {}
        return ExplorerState(
            phases=first,
            swept=self._sweep(name),
            method=name,
            methods=custom | {word: sliders.title_of(word) for word in METHODS},
            timeline=Timeline(first.steps),
            **self._given,
        )

    def get_state(self, key: Any = None, drop_defaults: bool = False) -> Any:
        """Return the page's traits; before steps are grouped, what steps alone give."""
        if key is not None or self._grouped is not None:
            return super().get_state(key, drop_defaults)
        return super().get_state({*self.keys} - {*self._look}, drop_defaults) | self._look

    @property
    def method(self) -> str:
        """The name of the phase method: a key of `tpunb.cluster.METHODS`, or "own"."""
        return self._state.method

    @method.setter
    def method(self, name: str) -> None:
        self._choose({"method": name})

    @property
    def state(self) -> ExplorerState:
        """Everything that is shown, as one value."""
        return replace(self._state, phase=self.phase, account=self.account)

    @property
    def made_of(self) -> Phases:  # type: ignore[override]
        """What verbs read of it: the phases that are shown."""
        return self.value

    @property
    def steps(self) -> Steps:
        """The steps of the run."""
        return self._state.steps

    @property
    def code(self) -> str:
        """The line of Python that gives these phases."""
        return self._state.code

    def details(self, phase: int | None = None) -> dict[str, Any]:
        """Return what the panel shows of a phase: the given one, the selected one, or the longest."""
        with self._turn:
            number = self.state.shown_phase if phase is None else phase
            return self._state.figures(number) | self._state.reasons(number)

    def save(self, path: str | Path) -> Path:
        """Write the explorer as one file without sliders, which needs neither a kernel nor a network."""
        with self._turn:
            return write_atomically(Path(path), exports.page(self.state))

    def save_svg(self, path: str | Path) -> Path:
        """Write the timeline of the phases as an SVG."""
        return write_atomically(Path(path), exports.svg(self.value))

    def save_png(self, path: str | Path) -> Path:
        """Write the timeline of the phases as a PNG, on white, two pixels a point."""
        return write_atomically(Path(path), exports.png(self.value))

    def to_static(self) -> None:
        """Replace the shown panel by pictures and tables, which a saved notebook shows without a kernel."""
        with self._turn:
            self.displays.update(exports.static_bundle(self.state))

    def view_bundle(self) -> dict[str, Any]:
        """Return the live panel by media type."""
        if only_ipywidgets():
            data = self._plain_view()._repr_mimebundle_()
        else:
            data, _ = super()._repr_mimebundle_() or ({}, {})
        return {kind: content for kind, content in data.items() if kind.startswith("application/")}

    def _plain_view(self) -> Any:
        """Return the panel of ipywidgets alone."""
        if self._static_explorer is None:
            panel = StaticExplorer(self.state, self._choose, self.displays.name)
            self.observe(lambda _: panel.show(self.state), "value")
            self._static_explorer = panel
        return self._static_explorer

    def _position(self, method: str) -> Any:
        """Return the value of a method's slider; None if it was not shown."""
        return self._state.position if method == self.method else self._positions.get(method)

    def _choose(self, clustering: dict[str, Any]) -> None:
        with self._turn:
            self.clustering = clustering

    def _repr_mimebundle_(self, **kwds: Any) -> Any:
        with self._turn:
            still = exports.static_bundle(self.state, live=True)
            return {**still, **self.view_bundle()}, {}

    def _ipython_display_(self) -> None:
        with self._turn:
            if self._kept and self._grouped is None:
                self._pictures(self.displays.show, self._kept["still"], self.view_bundle())
                return
            begun, pending = time.monotonic(), self._grouped is None
            text = self._look["_frame"]["pending"] if pending else plain(repr(self.value))
            first = {"text/html": f"<p>{safe(text if pending else self.value.headline)}</p>", "text/plain": text}
            self._pictures(self.displays.show, first, self.view_bundle())
            self.error = ""
            try:
                state = self.state
                took = time.monotonic() - begun
                still = exports.static_bundle(state, live=True)  # takes a second, while the panel is drawn above it
            except BaseException as error:
                self.error = format_error(error)
                raise
            self._pictures(self.displays.redraw, still)
            if pending and self._entry is not None and took > _SLOW_S:
                self._keep(self._entry, still)

    def _pictures(self, show: Callable[..., None], still: dict[str, str], *panel: dict[str, Any]) -> None:
        show(still | {"text/html": self.displays.marked(still["text/html"])}, *panel)

    def _keep(self, entry: Path, still: dict[str, str]) -> None:
        """Keep what is drawn of a run folder in the cache, unless its files changed or could not all be read."""
        asked = self.answers()
        try:
            answers = {
                name: (asked[name]() or ({},))[0] for name in ("figures", "reasons", "accounts", "hints", "rates")
            }
        except Exception:  # noqa: BLE001  the page shows it when it asks
            return
        if self._drawn_entry() == entry and self._is_whole:
            cache.put_drawn(entry, {"look": self.get_state(_LOOK), "still": still, "answers": answers})

    def prepare(self) -> None:
        """Group the steps before the page changes anything."""
        self._state  # noqa: B018

    # Values of the traits

    @default("value")
    def _first_value(self) -> Phases:
        return self._state.phases

    @default("clustering")
    def _first_clustering(self) -> dict[str, Any]:
        return self._state.clustering

    @validate("clustering")
    def _valid_clustering(self, proposal: Any) -> dict[str, Any]:
        wanted, methods = dict(proposal["value"]), self._state.methods
        name = wanted.pop("method", None)
        if name not in methods:
            raise Refused(f"The method of clustering must be one of {[*methods]}. Got {name!r} instead.")
        method = self._methods[name]
        slider = sliders.slider_of(method)
        if unknown := [key for key in wanted if slider is None or key != slider.parameter]:
            raise Refused(f"{type(method).__name__} has no slider for {unknown[0]}.")
        if slider is None:
            return {"method": name}
        value = wanted.get(slider.parameter, self._position(name))
        if value is not None:
            try:
                value = sliders.checked(slider, method, value)
            except (TypeError, ValueError) as error:
                raise Refused(str(error)) from None
        return {"method": name, slider.parameter: value}

    @validate("phase")
    def _valid_phase(self, proposal: Any) -> Any:
        phase = proposal["value"]
        if phase is not None and not (self.value.labels == phase).any():
            raise no_such("phase", phase, sorted(self.value.names))
        return phase

    @validate("account")
    def _valid_account(self, proposal: Any) -> Any:
        account = proposal["value"]
        names = self._state.accounts().get("names", [])
        if account not in (None, *names):
            raise no_such("account", account, names)
        return account

    @validate("time_range")
    def _valid_time_range(self, proposal: Any) -> Any:
        ends = proposal["value"]
        if ends is None:
            return None
        numbers = [end for end in ends if isinstance(end, int | float) and abs(end) <= _FAR]
        if len(ends) != 2 or len(numbers) != 2 or numbers[0] >= numbers[1]:
            raise _out_of_order(ends)
        return [float(end) for end in ends]

    # What follows from them

    @observe("clustering")
    def _clustering_changed(self, _: Any) -> None:
        with self._turn, self.hold_sync():
            if self.clustering == self._state.clustering:
                return  # set by the panel itself
            try:
                self._show(self._clustered(self.clustering))
            except Exception:
                self.clustering = self._state.clustering
                raise

    @observe("phase")
    def _phase_changed(self, _: Any) -> None:
        if self.phase not in (None, *self._drawn):
            self._show(self._state)  # it was drawn as one of the others

    @observe("time_range")
    def _time_range_changed(self, _: Any) -> None:
        with self._turn, self.hold_sync():
            ends = None if self.time_range is None else (self.time_range[0], self.time_range[1])
            self._show(replace(self._state, timeline=Timeline(self.steps, ends)))

    def _clustered(self, clustering: Mapping[str, Any]) -> ExplorerState:
        """Return the state of another clustering."""
        name, method = clustering["method"], self._methods[clustering["method"]]
        swept, phases = self._sweep(name), self._first[name]
        slider = sliders.slider_of(method)
        value = None if slider is None else clustering[slider.parameter]
        if slider is not None and value is not None and value != sliders.position(slider, phases):
            method = sliders.moved(slider, method, value, swept)
            same = method == self.value.method
            phases = self.value if same else grouped(self.steps, method)
        return replace(self._state, phases=phases, swept=swept, method=name, _results={})

    def _sweep(self, name: str) -> Phases:
        """Return the phases whose sweep is a method's curve; the method chooses by itself when first used."""
        method = self._methods[name]
        if name not in self._first:
            self._first[name] = grouped(self.steps, method)
        if name not in self._swept:
            first = self._first[name]
            free = sliders.sweeping(method, first)
            self._swept[name] = first if free is method else grouped(first.steps, free)
        return self._swept[name]

    def _show(self, state: ExplorerState) -> ExplorerState:
        """Show a state; ``value`` changes last, so that its observers see the panel complete."""
        phase = self.phase if self.phase is not None and (state.phases.labels == self.phase).any() else None
        drawn = replace(state, phase=phase)
        curve = state.curve() if self._curve.get("method") != state.method else self._curve
        axis = state.axis() if self._axis.get("edges") != [*state.edges] else self._axis
        clusters = {"number": self._clusters.get("number", 0) + 1, **drawn.clusters()}
        self._drawn = drawn.rows["ranks"]["phase"]
        self._grouped = state
        if state.slider is not None:
            self._positions[state.method] = state.position
        with self.hold_sync():
            self.phase, self.clustering = phase, state.clustering
            if not self._frame:
                self._frame = {**state.frame(), "pictures": self.displays.name}
            self._curve, self._axis, self._clusters = curve, axis, clusters
        if self.value is not state.phases:  # the first is the trait's default
            self.set_trait("value", state.phases)
        return state

    # What the page may ask for

    def answers(self) -> Mapping[str, Callable[..., Answer | None]]:
        """Return the page's questions and their answers."""
        kept = self._kept.get("answers", {}) if self._grouped is None else {}
        return {
            **super().answers(),
            "figures": lambda: (self._state.figures(self.state.shown_phase), []),
            "reasons": lambda: (self._state.reasons(self.state.shown_phase), []),
            "accounts": lambda account=None: (replace(self._state, account=account).accounts(), []),
            "rates": lambda: ({"rates": self._state.rates}, []),
            "hints": lambda: ({"phases": phase_view.hints(self.value)}, []),
            "phases": lambda: ({"table": phase_view.phase_table(self.value, phase_view.PHASES)}, []),
            "compare": self._compare,
            "runs": lambda: ({"table": phase_view.runs(self.value, self._state.edges)}, []),
            "to_static": self.to_static,
            "open_trace": lambda: ({"text": repr(open_trace(self.value, self.state.shown_phase))}, []),
            "export": lambda kind: exports.export(self.state, kind),
            **{name: lambda account=None, answer=answer: (answer, []) for name, answer in kept.items()},
        }

    def _compare(self, allow_different_models: object = False) -> Answer:
        if allow_different_models is True:
            self._grouped = replace(self._state, allow_different_models=True)
        try:
            return second_run.compared(self._state), []
        except IncompatibleRuns as error:  # shown in place of the comparison, with a button
            return {"error": format_error(error)}, []


def explore(
    run: Run,
    *,
    method: PhaseMethod | str | None = None,
    checkpoints: StepSource | None = None,
    other: Run | None = None,
) -> PhaseExplorer:
    """Return the explorer of a run: :class:`PhaseExplorer`.

    Parameters
    ----------
    run
        Path of the run, its Profile, Steps or Phases.
    method
        Phase method to begin with, or its name; ``DBSCAN()`` if None, or that of the phases.
    checkpoints
        Step of each checkpoint by name; or the steps alone; or objects with a ``step``: marks on the timeline.
    other
        An earlier run to compare with: changes are of `run` against it. Its steps are grouped by the same method,
        unless it is Phases.

    Raises
    ------
    TypeError
        When an argument is of another type.
    NoSteps
        When there are no steps.

    >>> from tpunb.testing import toy_steps
    >>> explore(toy_steps("aaabbb")).value
    Phases(2 phases over 6 steps, DBSCAN(), top 3 cover 100.0 % of step time without waits)
    """
    return PhaseExplorer(run, method=method, checkpoints=checkpoints, other=other)


class StaticExplorer(ipywidgets.VBox):  # type: ignore[misc]  # ipywidgets has no types
    """A list, a slider and pictures of a state; `choose` is called with another clustering, `pictures` are hidden."""

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
