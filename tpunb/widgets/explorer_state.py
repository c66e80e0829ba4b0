"""State of the explorer as one frozen value: what the live panel, saved pages and pictures show."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from tpunb import charts
from tpunb.analysis import advise, hosts
from tpunb.analysis.advice import candidates
from tpunb.analysis.goodput import Goodput
from tpunb.analysis.rates import rates_of
from tpunb.analysis.stragglers import Hosts
from tpunb.analysis.verdict import Verdict, verdict
from tpunb.charts import render
from tpunb.charts.accounts import account_rows, folded
from tpunb.charts.curves import with_slider
from tpunb.charts.style import GREY
from tpunb.charts.timeline import live_timeline
from tpunb.charts.timeline_rows import LANE, Timeline, layout
from tpunb.cluster import SliderSpec
from tpunb.frames import Phases, Profile, Steps
from tpunb.frames.nearest import checkpoint_times
from tpunb.text import coverage, phases_over, plain, plural
from tpunb.widgets import face, phase_view, sliders
from tpunb.widgets.table import ROWS

T = TypeVar("T")

Messages = tuple[Sequence[str], Sequence[str]]
"""Lines on how phases were found, and warnings above a panel."""


def ungrouped(steps: Steps) -> dict[str, Any]:
    """Return what the page gets before the steps are grouped: their timeline in one colour."""
    timeline = Timeline(steps)
    hosts = len(timeline.hosts)
    return {
        "_frame": {
            "name": plain(steps.name or ""),
            "pending": f"Grouping {plural(len(steps), 'step')} into phases …",
            "timeline": {"height": LANE * hosts - 4, "description": "The steps of the run on its time axis."},
            "layout": layout(hosts) | {"shades": [GREY]},
            "accounts": steps.wall is not None and steps.wall.span_ps > 0,
        },
        "_axis": {"edges": [*timeline.edges]},
        "_clusters": {"tables": json.dumps(timeline.rows(None), separators=(",", ":"))},
        "_curve": {},
        "clustering": {},
    }


@dataclass(frozen=True, eq=False)
class ExplorerState:
    """Everything that the explorer shows; `swept` are the phases whose sweep is the curve over the slider."""

    phases: Phases
    swept: Phases
    method: str
    methods: Mapping[str, str]
    timeline: Timeline
    checkpoints: Mapping[str, int] = field(default_factory=dict)
    other: Steps | Phases | None = None
    profile: Profile | None = None
    messages: Messages = ((), ())
    phase: int | None = None
    account: str | None = None
    allow_different_models: bool = False
    folded: bool = False
    _results: dict[Any, Any] = field(default_factory=dict)  # of these phases, shared by states that differ otherwise

    @property
    def steps(self) -> Steps:
        """Steps of the run."""
        return self.phases.steps

    @property
    def edges(self) -> tuple[float, float]:
        """First and last second that are shown."""
        return self.timeline.edges

    @property
    def slider(self) -> SliderSpec | None:
        """Slider of the method; None without one."""
        return sliders.slider_of(self.phases.method)

    @property
    def clustering(self) -> dict[str, Any]:
        """The method's name, and its slider's parameter and value."""
        if self.slider is None:
            return {"method": self.method}
        return {"method": self.method, self.slider.parameter: self.position}

    @property
    def position(self) -> Any:
        """Value of the slider; None without one."""
        return None if self.slider is None else sliders.position(self.slider, self.phases)

    @property
    def limits(self) -> tuple[float, float] | None:
        """First and last position of the slider; None without one."""
        return None if self.slider is None else sliders.limits(self.slider, self.swept)

    @property
    def code(self) -> str:
        """Line of Python that gives these phases."""
        return plain(sliders.code(self.phases.method))

    @property
    def shown_phase(self) -> int:
        """The selected phase, or the longest."""
        return self.phases.longest.id if self.phase is None else self.phase

    def once(self, key: object, compute: Callable[[], T]) -> T:
        """Return a result about the phases, computed the first time."""
        if key not in self._results:
            self._results[key] = compute()
        result: T = self._results[key]
        return result

    def figures(self, phase: int) -> dict[str, Any]:
        """Return the facts and operations of a phase."""
        return dict(self.once(("figures", phase), lambda: phase_view.describe(self.phases, phase, self.checkpoints)))

    def reasons(self, phase: int) -> dict[str, Any]:
        """Return the distinguishing operations, the bottlenecks and the explained variance; slower than `figures`."""
        return dict(self.once(("reasons", phase), lambda: phase_view.explain(self.phases, phase)))

    @property
    def goodput(self) -> Goodput | None:
        """Goodput of these phases, or None if there is no record of the wall time."""
        return self.once("goodput", lambda: phase_view.goodput_of(self.phases))

    @property
    def verdict(self) -> Verdict | None:
        """The verdict on the run; None without a record of its wall time."""
        return self.once("verdict", lambda: verdict(self.phases))

    @property
    def answer(self) -> face.Node | None:
        """The verdict with its remedy and what weakens it; None without a record of the wall time."""
        judged, weak = self.verdict, phase_view.warnings(self.goodput)
        if self.profile is not None and self.profile.standing is not None:
            weak = [
                f"The training {self.profile.standing._replace(place=None)}; standing.json has what each thread did.",
                *weak,
            ]
        return None if judged is None else face.answer(judged, weak, self.steps)

    @property
    def spent(self) -> face.Node | None:
        """The bar of accounts; None without a record of the wall time."""
        advice = candidates(self.phases).drop_nulls("action")
        return None if self.goodput is None else face.spent(self.goodput, advice)

    @property
    def rates(self) -> face.Node:
        """The rates of the run, each with its course; slow where they are read from windows."""
        return self.once("rates", lambda: face.rates(self.phases, self.goodput, rates_of(self.phases, self.profile)))

    @property
    def todo(self) -> face.Node:
        """The advice beside that of the verdict."""
        worth = phase_view.worth(advise(self.phases).drop_nulls("saves_ps"), self.phases)
        return self.once("todo", lambda: face.todo(worth, self.verdict))

    @property
    def hosts(self) -> Hosts | None:
        """Hosts of the job, or None unless some wait for others."""
        tables = self.steps.by_host
        found = None if tables is None or (tables.frame["traced"] != "full").all() else hosts(self.steps)
        return None if found is None or not found.frame["costs_ps"].count() else found

    @property
    def notes(self) -> tuple[list[str], list[str]]:
        """Lines on the measurement, and warnings beside what weakens the answer."""
        lines, warnings = self.messages
        weak = phase_view.warnings(self.goodput)
        return [*lines], [line for line in dict.fromkeys(warnings) if line not in weak]

    # What the page gets, as values of JSON

    def frame(self) -> dict[str, Any]:
        """Return what never changes: titles, methods, charts without rows."""
        hosts = self.timeline.hosts
        return {
            "name": plain(self.steps.name or ""),
            "methods": [{"name": name, "title": title} for name, title in self.methods.items()],
            "timeline": render.spec(live_timeline(hosts, windows=self.steps.windows.height > 0)),
            "layout": layout(len(hosts)),
            "hosts": None if (found := self.hosts) is None else render.spec(charts.hosts(found)),
            "answer": self.answer,
            "accounts": None if self.goodput is None else {"bar": self.spent, **self.accounts()},
            "lines": [plain(line) for line in self.notes[0]],
            "warnings": [plain(line) for line in self.notes[1]],
            "second": self.other is not None,
            "whole": [*self.timeline.whole],
            "folded": self.folded,
        }

    def accounts(self) -> dict[str, Any]:
        """Return advice; and the accounts, with the time, details and stalls of the selected one."""
        run = self.goodput
        if run is None:
            return {"advice": self.todo}
        chosen = None if self.account is None else phase_view.describe_goodput(run, self.account, self.timeline)
        return {"advice": self.todo, "names": account_rows(run)["account"].to_list(), "selected": chosen}

    def curve(self) -> dict[str, Any]:
        """Return the method's curve and its slider."""
        slider, limits, chart = self.slider, self.limits, sliders.chart(self.swept)
        sweep = self.swept.sweeps.get("tree" if slider is None else slider.parameter)
        curve: dict[str, Any] = {
            "method": self.method,
            "spec": None,
            "slider": None,
            "table": sliders.sweep_table(sweep),
        }
        if slider is not None and limits is not None:
            stops = {"least": limits[0], "most": limits[1], "step": slider.step}
            curve["slider"] = {"parameter": slider.parameter, "label": slider.label, **stops}
            if chart is not None:
                curve["spec"] = with_slider(chart, slider.parameter, limits, self.position)
        elif chart is not None:
            curve["spec"] = render.spec(chart)
        return curve

    def axis(self) -> dict[str, Any]:
        """Return what depends on the time range alone: windows, checkpoints, accounts, step times, marks."""
        run = None if self.goodput is None else folded(self.goodput)
        marks = checkpoint_times(self.steps, self.checkpoints)
        return {"edges": [*self.edges], "tables": self.timeline.axis(marks, None if run is None else run.segments)}

    @cached_property
    def rows(self) -> dict[str, Any]:
        """The rows of the timeline."""
        return dict(self.timeline.rows(self.phases, self.phase))

    def clusters(self) -> dict[str, Any]:
        """Return the phases: rows of the timeline, of the coverage and of the table."""
        return {
            "code": self.code,
            "headline": phases_over(len(self.phases), len(self.steps)),
            "tables": json.dumps(self.rows, separators=(",", ":")),  # text: faster than numbers through a trait
            "table": phase_view.phase_table(self.phases),
            "rest": max(len(self.phases.names) - ROWS, 0),
            "top": coverage(self.phases.coverage(3)),
            "position": self.position,
        }
