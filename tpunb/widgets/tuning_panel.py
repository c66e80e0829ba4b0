"""The tuning panel: a phase and its checkpoint, the knobs with their verdicts, trials as they arrive.

The panel's truth are its traits and methods; a browser is optional. Training runs in a thread of its own, never in a
callback. Trials are on disk: the panel of another kernel shows them again.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from traitlets import Dict, Enum, Float, Instance, Int, List, Unicode, observe, validate

from tpunb import charts, pictures
from tpunb.checkpoint import Checkpoints
from tpunb.cluster import advise
from tpunb.errors import TpunbError, wrong
from tpunb.frames import Phases
from tpunb.frames.words import plain
from tpunb.tuning.carried import carried
from tpunb.tuning.contest import Budget
from tpunb.tuning.hot import hot
from tpunb.tuning.job import Job
from tpunb.tuning.model_based import model_based
from tpunb.tuning.nouns import Journal, Tuning
from tpunb.tuning.optuna_search import optuna_search
from tpunb.tuning.search import Search, hill_climb
from tpunb.tuning.state import State
from tpunb.tuning.tuner import Tuner
from tpunb.widgets import described, exports, tuning_rows
from tpunb.widgets.panel import Answer, Panel, Refused, asset, module, told
from tpunb.widgets.tables import block
from tpunb.widgets.trial_starts import Start, saved_of, start_of
from tpunb.widgets.tuning_thread import TuningThread

FOLDER = "tuning"
"""Where trials are written if nothing else is said: in the folder that the notebook works in."""

_SEARCHES: dict[str, Callable[[], Search]] = {"model": lambda: model_based, "hill climb": lambda: hill_climb}
if find_spec("optuna") is not None:
    _SEARCHES["optuna"] = optuna_search

T = TypeVar("T")

_FACTS = {"Steps", "Time", "Step", "Idle", "Waits for input"}  # of a phase, that say whether its data hold it up
_OWN = "own"  # the word of a search that is none of ours
_AT_WORK = ("running", "stopping")


class TuningPanel(Panel):
    """A job and how it is tuned: controls in, ``value`` out.

    Parameters
    ----------
    job
        What is run. It is built here, in the thread of the caller.
    phases
        Of a run of it: which is tuned can be picked. None for the beginning of the job.
    saved
        Checkpoints of that run, or the folder where they lie.
    search
        What is tried, by its word ("model", "hill climb", "optuna" where it is installed), or a function as of
        `tpunb.tuning.tuner.tune`.
    budget
        Seconds, or a `Budget` of seconds and trials; 60 s if None.
    folder
        Where trials are written, and looked for: those of an earlier kernel are shown at once.

    Raises
    ------
    TypeError, ValueError
        When an argument is none of these.
    TpunbError
        When the data of the job cannot be taken apart.
    """

    _esm = module("parts.js", "panel.js", "tuning_panel.js")
    _css = asset("explorer.css") + asset("tuning_panel.css")

    phase = Int(None, allow_none=True, help="that is tuned; None for the beginning of the job").tag(sync=True)
    budget = Float(60.0, help="seconds that a tuning may take").tag(sync=True)
    search = Unicode("model", help="the word of what is tried").tag(sync=True)
    state = Enum(["ready", *_AT_WORK, "done", "failed"], "ready", read_only=True, help="of the tuning")
    trials: List[Any] = List(read_only=True, help="those of this tuning so far, a row each")
    value = Instance(Tuning, allow_none=True, read_only=True, help="what the last tuning found")

    _frame = Dict(help="what never changes: the job, its knobs, the phases").tag(sync=True)
    _start = Dict(help="what hangs on the phase alone").tag(sync=True)
    _run = Dict(help="how the tuning stands").tag(sync=True)

    def __init__(
        self,
        job: Job,
        phases: Phases | None = None,
        saved: Checkpoints | str | os.PathLike[str] | None = None,
        *,
        search: str | Search = "model",
        budget: float | Budget | None = None,
        folder: str | os.PathLike[str] = FOLDER,
    ) -> None:
        self.job, self.phases, self.saved = _job(job), _phases(phases), saved_of(saved)
        self.folder = Path(folder)
        self.places = exports.Places()
        self.failure: Exception | None = None
        limits = budget if isinstance(budget, Budget) else Budget() if budget is None else Budget(budget)
        self._most = limits.trials
        self._searches = dict(_SEARCHES)
        word = search if isinstance(search, str) else _OWN
        if not isinstance(search, str):
            self._searches[_OWN] = _own(search)
        self._knobs = _unmoved(lambda: job.pipeline).knobs
        self._carry, self._made_in = carried(), threading.get_ident()
        self._thread: TuningThread | None = None
        self._begun = 0.0
        self._found = Tuning(())  # what is shown: of a tuning that runs, as far as it came
        self._notes: list[str] = []  # of what lay in the folder
        super().__init__(budget=float(limits.seconds), search=word)
        self._frame = self._framed()
        if phases is None:
            self._picked()
        else:
            self.phase = (hot(phases) or phases.longest).id
        self._take_up()

    def __repr__(self) -> str:
        found = f", {self.value!r}" if self.value is not None else ""
        return f"TuningPanel({self.job!r}, {self.state}{found})"

    # What it does

    def run(self) -> None:
        """Start a tuning in a thread of its own, and come back at once.

        The thread has what Keras keeps for each thread (its generator of random numbers, its policy of precision) of
        the thread that the panel was made in; called there, as it is now.

        Raises
        ------
        TpunbError
            When one runs already.
        """
        with self._turn:
            if threading.get_ident() == self._made_in:
                self._carry = carried()
            self._thread = TuningThread(self._tuner, carry=self._carry, heard=self._heard, ended=self._end)
            self._found, self.failure, self._begun = Tuning(()), None, time.perf_counter()
            self._notes = []
            self._thread.start()  # first: who watches the state may raise, and the thread ends by itself
            self._tell("running")

    def stop(self) -> None:
        """End the tuning after the trial that runs now; the job is then what it was before."""
        with self._turn:
            if self.state == "running" and self._thread is not None:
                self._thread.stop()
                self._tell("stopping")

    def wait(self, timeout: float | None = None) -> Tuning | None:
        """Return what the tuning found, once it is over; None where none ran.

        Raises
        ------
        TimeoutError
            After so many seconds.
        Exception
            What the tuning itself ended with.
        """
        if self._thread is not None:
            self._thread.join(timeout)
        if self.failure is not None:
            raise self.failure
        return self.value

    def apply(self, data: Any) -> Any:
        """Return the program's data with the values that won; as they are, where those of the program stay.

        Raises
        ------
        TpunbError
            When no tuning is over yet; and as `Tuning.apply`.
        """
        if self.value is None:
            hint = "wait() for its end, or stop() it" if self.state in _AT_WORK else "run() one first"
            raise TpunbError("no tuning is over yet", hint=hint)
        return self.value.apply(data)

    @property
    def start(self) -> Start:
        """Where trials start, and why."""
        phase = None if self.phases is None or self.phase is None else self.phases[self.phase]
        return start_of(self.job, phase, self.saved)

    def freeze(self) -> None:
        """Put tables and a picture where the panel is shown: a notebook saved then needs no kernel to show them."""
        with self._turn:
            self.places.freeze(self.still())

    def still(self) -> dict[str, str]:
        """Return what a front end shows without a kernel, by media type."""
        shown = tuning_rows.tables(self._knobs, self._found)
        drawn = pictures.image(charts.trials(self._found)) if self._found.trials else ""
        lines = [plain(repr(self.job)), *self._found.said]
        notes = [*self._notes, *([] if self.failure is None else [told(self.failure)])]
        return {
            "text/html": block(self._run["headline"], lines, notes, shown, drawn),
            "text/plain": plain(repr(self)),
        }

    def _repr_mimebundle_(self, **kwds: Any) -> Any:
        with self._turn:
            data, _ = super()._repr_mimebundle_() or ({}, {})
            plain_only = os.environ.get("TPUNB_WIDGETS") == "plain"  # a front end that cannot load widgets of others
            live = {kind: part for kind, part in data.items() if kind.startswith("application/") and not plain_only}
            return {**self.still(), **live}, {}

    def _ipython_display_(self) -> None:
        self.places.show(self)

    # The thread

    def _tuner(self) -> Tuner:
        search, limits = self._searches[self.search](), Budget(self.budget, self._most)
        return Tuner(self.job, self.start.checkpoint, search, limits, Journal(self.folder))

    def _heard(self, so_far: Tuning) -> None:
        with self._turn:
            self._found = so_far
            self._tell(self.state)

    def _end(self, found: Tuning, failure: Exception | None) -> None:
        with self._turn:
            self._found, self.failure = found, failure
            self._tell("done" if failure is None else "failed")

    # What the traits may be

    @validate("phase")
    def _there(self, proposal: Any) -> Any:
        phase = proposal["value"]
        if phase is None:
            return None
        known = [] if self.phases is None else sorted(self.phases.frame["phase"].to_list())
        if phase not in known:
            raise Refused(f"There is no phase {phase}; there are {known or 'none'}.")
        return phase

    @validate("budget")
    def _some(self, proposal: Any) -> Any:
        if not 0 < proposal["value"] < math.inf:
            raise Refused(f"The budget must be above 0 seconds. Got {proposal['value']!r} instead.")
        return proposal["value"]

    @validate("search")
    def _known(self, proposal: Any) -> Any:
        if proposal["value"] not in self._searches:
            raise Refused(f"There is no search {proposal['value']!r}; there are {sorted(self._searches)}.")
        return proposal["value"]

    @observe("phase")
    def _picked(self, _: Any = None) -> None:
        """Tell of the phase that is tuned, and where its trials start."""
        facts, bounds = [], []
        if self.phases is not None and self.phase is not None:
            every = described.describe(self.phases, self.phase, {})["facts"]
            facts = [fact for fact in every if fact[0] in _FACTS and fact[1] != "not known"]
            bounds = described.advised(advise(self.phases).filter(phase=self.phase))
        self._start = {"facts": [*facts, ["Trials start", self.start.said]], "bounds": bounds}

    # What the page is told, and may ask for

    def _take_up(self) -> None:
        """Show what lies in the folder, where it is of this pipeline."""
        try:
            found = Tuning.read(self.folder)
        except TpunbError as error:
            if error.__cause__ is not None:  # else there is none
                self._notes = [told(error)]
            self._tell("ready")
            return
        if found.of == self.job.fingerprint:
            self._found = found
            self._notes = [f"What is shown is from an earlier tuning, in the folder {plain(str(self.folder))}."]
            self._tell("done")
        else:
            self._notes = [f"{plain(str(self.folder))} holds trials of another job: those of a run replace them."]
            self._tell("ready")

    def _framed(self) -> dict[str, Any]:
        rows = [] if self.phases is None else described.rows(self.phases, described.PHASES)
        return {
            "job": plain(repr(self.job)),
            "folder": plain(str(self.folder)),
            "knobs": tuning_rows.knob_rows(self._knobs),
            "refusal": plain(getattr(self.job.pipeline, "refusal", None) or ""),
            "phases": [{name: row[name] for name in ("phase", "name", "share", "steps")} for row in rows],
            "searches": [*self._searches],
        }

    def _tell(self, state: str) -> None:
        """Show how the tuning stands; who watches the traits is told last, of a panel that is whole."""
        found = self._found
        rows = tuning_rows.trial_rows(found)
        self._run = {
            "state": state,
            "headline": tuning_rows.headline(state, found),
            "said": [*map(plain, found.said)],
            "notes": self._notes,
            "failed": "" if self.failure is None else told(self.failure),
            "trials": rows,
            "chart": tuning_rows.drawn(found),
            "chosen": {name: tuning_rows.value_of(value) for name, value in found.best.items()},
            "refused": tuning_rows.refusals(found),
            "code": found.as_code() if state == "done" or state == "failed" else "",
            "since": time.perf_counter() - self._begun if state in _AT_WORK else None,
        }
        over = state in ("done", "failed")
        self.set_trait("value", found if over else None)
        self.set_trait("trials", rows)
        self.set_trait("state", state)

    def answers(self) -> Mapping[str, Callable[..., Answer]]:
        """Return what the page may ask for."""
        return {
            **super().answers(),
            "run": lambda: self._done(self.run),
            "stop": lambda: self._done(self.stop),
            "freeze": lambda: self._done(self.freeze),
        }

    @staticmethod
    def _done(what: Callable[[], None]) -> Answer:
        what()
        return {}, []


def tuning_panel(
    job: Job,
    phases: Phases | None = None,
    saved: Checkpoints | str | os.PathLike[str] | None = None,
    *,
    search: str | Search = "model",
    budget: float | Budget | None = None,
    folder: str | os.PathLike[str] = FOLDER,
) -> TuningPanel:
    """Return the panel in which a job is tuned: :class:`TuningPanel`.

    Parameters
    ----------
    job
        What is run.
    phases
        Of a run of it: the phase that is tuned can be picked. None for the beginning of the job.
    saved
        Checkpoints of that run, or the folder where they lie.
    search
        What is tried: "model", "hill climb", "optuna" where it is installed, or a function.
    budget
        Seconds, or a `Budget` of seconds and trials; 60 s if None.
    folder
        Where trials are written, and looked for: "tuning" in the folder that the notebook works in, if nothing is said.
    """
    return TuningPanel(job, phases, saved, search=search, budget=budget, folder=folder)


def _job(job: Job) -> Job:
    if not isinstance(job, Job):
        raise wrong("tuning_panel", "job", "be a Job", job, hint="tp.Job(build), where build() returns (model, data)")
    return job


def _phases(phases: Phases | None) -> Phases | None:
    if phases is not None and not isinstance(phases, Phases):
        raise wrong("tuning_panel", "phases", "be Phases, or None", phases)
    return phases


def _own(search: Search) -> Callable[[], Search]:
    if not callable(search):
        raise wrong("tuning_panel", "search", "be a word, or a function of a space that yields proposals", search)
    return lambda: search


def _unmoved(make: Callable[[], T]) -> T:
    """Return what is made; building may draw random numbers, and seed them."""
    before = State.of(())
    try:
        return make()
    finally:
        before.put_back()
