"""The tuning panel: a phase and its checkpoint, the parameters with their verdicts, trials as they finish.

The panel's state is in its traits and methods; a browser is optional. Training runs in a thread, never in a callback.
Trials are written to disk, so the panel of another kernel shows them again.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from traitlets import Dict, Enum, Float, Instance, Int, List, Unicode, observe, validate

from tpunb import charts
from tpunb.analysis.advice import tried_on
from tpunb.charts import render
from tpunb.checkpoint import Checkpoints
from tpunb.errors import TpunbError, wrong_type
from tpunb.frames import Phases
from tpunb.text import format_error, plain, plural, share_of_steps
from tpunb.training.seeds import RandomState
from tpunb.tuning.job import Job, hot_phase
from tpunb.tuning.model_based import model_based
from tpunb.tuning.results import Journal, Trial, Tuning
from tpunb.tuning.search import Search, hill_climb, optuna_search
from tpunb.tuning.thread_locals import copy_thread_locals
from tpunb.tuning.tournament import Budget
from tpunb.tuning.tried import JobTrials
from tpunb.tuning.tuner import Tuner
from tpunb.widgets import phase_view, tuning_view
from tpunb.widgets.frontends import DisplayHandles, only_ipywidgets
from tpunb.widgets.panel import Answer, Panel, Refused, asset, module, no_such, packed
from tpunb.widgets.table import STYLE, block
from tpunb.widgets.tuning_view import TrialStart

_ONE_AT_A_TIME = threading.Lock()  # two would slow each other down, and share random numbers


class TuningThread:
    """A tuning that runs beside the cells of a notebook; TpunbError if another one runs in this kernel.

    `make` is called here, where its errors are raised; `set_thread_locals` and the callbacks in the thread.
    """

    def __init__(
        self,
        make: Callable[[], Tuner | JobTrials],
        *,
        set_thread_locals: Callable[[], None],
        on_trial: Callable[[Tuning], None],
        on_end: Callable[[Tuning, Exception | None], None],
    ) -> None:
        if not _ONE_AT_A_TIME.acquire(blocking=False):
            raise TpunbError("a tuning runs in this kernel", hint="stop() its panel, or wait() for its end")
        try:
            self._tuner = make()
        except BaseException:
            _ONE_AT_A_TIME.release()
            raise
        self._set_thread_locals, self._on_trial, self._on_end = set_thread_locals, on_trial, on_end
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="tpunb-tuning", daemon=True)

    def start(self) -> None:
        """Start, once."""
        self._thread.start()

    def stop(self) -> None:
        """End after the current trial."""
        self._stopped.set()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end; raise TimeoutError after `timeout` seconds."""
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"the tuning still runs after {timeout:g} s")

    def _work(self) -> None:
        failure: Exception | None = None
        try:
            self._set_thread_locals()
            self._run()
        except Exception as error:  # noqa: BLE001  nobody else would see it
            failure = error
        except BaseException as error:  # noqa: BLE001  a program may call sys.exit()
            failure = TpunbError(f"the tuning was ended by {type(error).__name__}")
        try:
            self._on_end(self._tuner.tuning, failure)
        finally:
            _ONE_AT_A_TIME.release()

    def _run(self) -> None:
        finished: list[Trial] = []
        with closing(self._tuner.trials()) as trials:
            for trial in trials:
                finished += [trial] if isinstance(trial, Trial) else []
                self._on_trial(Tuning(tuple(finished), messages=tuple(self._tuner.messages)))
                if self._stopped.is_set():
                    return


FOLDER = "tuning"
"""Default folder of the trials, in the folder of the notebook."""

_SEARCHES: dict[str, Callable[[], Search]] = {"model": lambda: model_based, "hill climb": lambda: hill_climb}
if find_spec("optuna") is not None:
    _SEARCHES["optuna"] = optuna_search

_FACTS = {"Steps", "Time", "Share", "Step", "Idle", "Input wait"}  # of a phase, about its input
_CUSTOM = "custom"
_ACTIVE = ("running", "stopping")


class TuningPanel(Panel):
    """A job and its tuning: controls in, ``value`` out. :func:`tuning_panel` documents the parameters."""

    _esm = packed(module("parts.js", "panel.js", "tuning_panel.js"))
    _css = STYLE + asset("explorer.css") + asset("tuning_panel.css")

    phase = Int(None, allow_none=True, help="phase to tune; None for the beginning of the job").tag(sync=True)
    budget = Float(60.0, help="seconds of a tuning").tag(sync=True)
    search = Unicode("model", help="name of the search").tag(sync=True)
    state = Enum(["ready", *_ACTIVE, "done", "failed"], "ready", read_only=True, help="state of the tuning")
    trials: List[Any] = List(read_only=True, help="finished trials of this tuning, one row each")
    value = Instance(Tuning, allow_none=True, read_only=True, help="result of the last tuning")

    _frame = Dict(help="what never changes: job, parameters, phases").tag(sync=True)
    _start = Dict(help="what depends on the phase alone").tag(sync=True)
    _run = Dict(help="progress of the tuning").tag(sync=True)

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
        if not isinstance(job, Job):
            raise wrong_type(
                "tuning_panel", "job", "be a Job", job, hint="tp.tuning.Job(build), where build() returns (model, data)"
            )
        if phases is not None and not isinstance(phases, Phases):
            raise wrong_type("tuning_panel", "phases", "be Phases, or None", phases)
        if not callable(search) and not isinstance(search, str):
            raise wrong_type(
                "tuning_panel", "search", "be a name, or a function of a space that yields proposals", search
            )
        self.job, self.phases, self.saved = job, phases, tuning_view.checkpoints_of(saved)
        self.folder = Path(folder)
        self.places = DisplayHandles()
        self.failure: Exception | None = None
        limits = budget if isinstance(budget, Budget) else Budget() if budget is None else Budget(budget)
        self._most = limits.trials
        self._searches = dict(_SEARCHES)
        if not isinstance(search, str):
            self._searches[_CUSTOM] = lambda: search
        random = RandomState.capture()
        try:
            self._parameters = job.pipeline.parameters
        finally:  # building a job may draw random numbers, and seed them
            random.restore()
        self._thread_locals, self._made_in = copy_thread_locals(), threading.get_ident()
        self._thread: TuningThread | None = None
        self._started = 0.0
        self._shown = Tuning(())  # the result so far
        self._remedies = tuning_view.remedies(phases)
        tried = [] if phases is None else tried_on(phases.steps)
        self._tried = {(each["cause"], each["action"]): plain(each["outcome"]) for each in tried}
        self._notes: list[str] = []  # about the trials in the folder
        super().__init__(budget=float(limits.seconds), search=search if isinstance(search, str) else _CUSTOM)
        self._frame = self._framed()
        if phases is None:
            self._show_start()
        else:
            self.phase = (hot_phase(phases) or phases.longest).id
        self._read_folder()

    def __repr__(self) -> str:
        value = f", {self.value!r}" if self.value is not None else ""
        return f"TuningPanel({self.job!r}, {self.state}{value})"

    # Actions

    def run(self) -> None:
        """Start a tuning in a thread, and return at once; TpunbError if one runs.

        The thread has Keras' thread-local state (random number generator, precision policy) of the thread that made the
        panel; called there, its current state.
        """
        self._begin(self._tuner, self._on_trial, Tuning(()))

    def try_remedy(self, number: int = 0) -> None:
        """Start to try a remedy of the run on steps of the job in a thread, as `run` does; `value.tried` will have it.

        Raises
        ------
        TpunbError
            If there is no remedy of this number, or a tuning runs.
        """
        shown, remedy = self._shown, self._remedies[number : number + 1] if number >= 0 else self._remedies[:0]
        self._begin(
            lambda: JobTrials(self.job, remedy, self.start.checkpoint, self.budget, self.phases, shown),
            lambda _: None,
            shown,
        )

    def _begin(self, make: Callable[[], Tuner | JobTrials], on_trial: Callable[[Tuning], None], shown: Tuning) -> None:
        with self._turn:
            if threading.get_ident() == self._made_in:
                self._thread_locals = copy_thread_locals()
            self._thread = TuningThread(
                make, set_thread_locals=self._thread_locals, on_trial=on_trial, on_end=self._on_end
            )
            self._shown, self.failure, self._started = shown, None, time.perf_counter()
            self._notes = []
            self._thread.start()  # first: observers of the state may raise, and the thread ends by itself
            self._update("running")

    def stop(self) -> None:
        """End the tuning after the current trial; the job is then what it was before."""
        with self._turn:
            if self.state == "running" and self._thread is not None:
                self._thread.stop()
                self._update("stopping")

    def wait(self, timeout: float | None = None) -> Tuning | None:
        """Return the result of the tuning when it ends, None if none ran; raise its error, or TimeoutError."""
        if self._thread is not None:
            self._thread.join(timeout)
        if self.failure is not None:
            raise self.failure
        return self.value

    def apply(self, data: Any) -> Any:
        """Return the program's data with the values that won; unchanged if the program's values stay."""
        if self.value is None:
            hint = "wait() for its end, or stop() it" if self.state in _ACTIVE else "run() one first"
            raise TpunbError("no tuning has ended yet", hint=hint)
        return self.value.apply(data)

    @property
    def start(self) -> TrialStart:
        """Where trials start, and why."""
        phase = None if self.phases is None or self.phase is None else self.phases[self.phase]
        return tuning_view.trial_start(self.job, phase, self.saved)

    def freeze(self) -> None:
        """Replace the panel by tables and a picture, which a saved notebook shows without a kernel."""
        with self._turn:
            self.places.update(self.still())

    def still(self) -> dict[str, str]:
        """Return what a front end shows without a kernel, by media type."""
        tables = tuning_view.tables(self._parameters, self._shown)
        tables += [tuning_view.remedy_table(self._remedies, self._tried)] * bool(self._remedies.height)
        image = render.image(charts.trials(self._shown)) if self._shown.trials else ""
        lines = [plain(text) for text in (repr(self.job), *map(str, self._shown.messages))]
        notes = [*self._notes, *([] if self.failure is None else [format_error(self.failure)])]
        return {
            "text/html": block([self._run["headline"], *lines], notes, image, tables, []),
            "text/plain": plain(repr(self)),
        }

    def _live(self) -> dict[str, Any]:
        """Return the panel by media type, where the front end shows it."""
        data, _ = super()._repr_mimebundle_() or ({}, {})
        return {} if only_ipywidgets() else {kind: data[kind] for kind in data if kind.startswith("application/")}

    def _pictures(self) -> dict[str, str]:
        """Return what a front end shows until the panel lives."""
        still = self.still()
        return still | {"text/html": self.places.marked(still["text/html"])}

    def _repr_mimebundle_(self, **kwds: Any) -> Any:
        with self._turn:
            return {**self.still(), **self._live()}, {}

    def _ipython_display_(self) -> None:
        with self._turn:
            live = self._live()
            self.places.show(self._pictures() if live else self.still(), live or None)

    # The thread

    def _tuner(self) -> Tuner:
        search, limits = self._searches[self.search](), Budget(self.budget, self._most)
        return Tuner(self.job, self.start.checkpoint, search, limits, Journal(self.folder))

    def _on_trial(self, so_far: Tuning) -> None:
        with self._turn:
            self._shown = so_far
            self._update(self.state)

    def _on_end(self, tuning: Tuning, failure: Exception | None) -> None:
        with self._turn:
            self._shown, self.failure = tuning, failure
            self._tried |= {(each.cause, each.action): plain(each.outcome) for each in tuning.tried}
            self._update("done" if failure is None else "failed")
            self.places.redraw(self._pictures())

    # Valid traits

    @validate("phase")
    def _valid_phase(self, proposal: Any) -> Any:
        phase = proposal["value"]
        numbers = [] if self.phases is None else sorted(self.phases.frame["phase"].to_list())
        if phase is not None and phase not in numbers:
            raise no_such("phase", phase, numbers)
        return phase

    @validate("budget")
    def _valid_budget(self, proposal: Any) -> Any:
        if not 0 < proposal["value"] < math.inf:
            raise Refused(f"The budget must be above 0 seconds. Got {proposal['value']!r} instead.")
        return proposal["value"]

    @validate("search")
    def _valid_search(self, proposal: Any) -> Any:
        if proposal["value"] not in self._searches:
            raise no_such("search", proposal["value"], sorted(self._searches))
        return proposal["value"]

    @observe("phase")
    def _show_start(self, _: Any = None) -> None:
        """Show the phase that is tuned, and where its trials start."""
        facts, bounds = [], []
        if self.phases is not None and self.phase is not None:
            every = phase_view.describe(self.phases, self.phase, {})["facts"]["rows"]
            facts = [fact for fact in every if fact[0] in _FACTS]
            found = phase_view.bottlenecks(self.phases, self.phase)
            bounds = [found] if found["rows"] else []
        self._start = {"facts": [*facts, ["Trial start", self.start.text]], "bounds": bounds}

    # The page

    def _read_folder(self) -> None:
        """Show the trials in the folder, if they are of this pipeline."""
        folder, state = plain(str(self.folder)), "ready"
        try:
            tuning = Tuning.read(self.folder)
        except TpunbError as error:
            if error.__cause__ is not None:  # else there are none
                self._notes = [format_error(error)]
        else:
            if tuning.fingerprint == self.job.fingerprint:
                self._shown, state = tuning, "done"
                self._notes = [f"These are trials of an earlier tuning, from the folder {folder}."]
            else:
                self._notes = [f"The folder {folder} holds trials of another job; a run replaces them."]
        self._update(state)

    def _framed(self) -> dict[str, Any]:
        columns = ["phase", "name", "share", "steps"]
        rows = [] if self.phases is None else self.phases.frame.head(phase_view.PHASES)[columns].rows()
        return {
            "job": plain(repr(self.job)),
            "pictures": self.places.name,
            "folder": plain(str(self.folder)),
            "refusal": plain(self.job.pipeline.refusal or ""),
            "phases": [
                {"phase": phase, "text": f"{name}: {share_of_steps(share)}, {plural(steps, 'step')}"}
                for phase, name, share, steps in rows
            ],
            "searches": [*self._searches],
        }

    def _update(self, state: str) -> None:
        """Show the progress; observers of the public traits are notified last."""
        tuning, ended = self._shown, state in ("done", "failed")
        rows = tuning_view.trial_rows(tuning)
        self._run = {
            "state": state,
            "headline": tuning_view.headline(state, tuning),
            "messages": [plain(str(message)) for message in tuning.messages],
            "notes": self._notes,
            "failed": "" if self.failure is None else format_error(self.failure),
            "parameters": tuning_view.parameter_table(self._parameters, tuning),
            "trials": tuning_view.trial_table(tuning),
            "rejected": tuning_view.rejected_table(tuning),
            "remedies": tuning_view.remedy_table(self._remedies, self._tried)["rows"],
            "chart": tuning_view.chart_spec(tuning),
            "code": tuning.as_code() if ended else "",
            "since": time.perf_counter() - self._started if state in _ACTIVE else None,
        }
        self.set_trait("value", tuning if ended else None)
        self.set_trait("trials", rows)
        self.set_trait("state", state)

    def answers(self) -> Mapping[str, Callable[..., Answer | None]]:
        """Return the page's requests."""
        return {**super().answers(), "run": self.run, "try": self.try_remedy, "stop": self.stop, "freeze": self.freeze}


def tuning_panel(
    job: Job,
    phases: Phases | None = None,
    saved: Checkpoints | str | os.PathLike[str] | None = None,
    *,
    search: str | Search = "model",
    budget: float | Budget | None = None,
    folder: str | os.PathLike[str] = FOLDER,
) -> TuningPanel:
    """Return a panel that tunes a job: :class:`TuningPanel`.

    Parameters
    ----------
    job
        Job to tune. It is built here, in the caller's thread.
    phases
        Phases of a run of it, of which one is tuned; None for the beginning of the job.
    saved
        Checkpoints of that run, or their folder.
    search
        Name of the search: "model", "hill climb", or "optuna" if installed; or a function as of
        `tpunb.tuning.tuner.tune`.
    budget
        Seconds, or a `Budget` of seconds and trials; 60 s by default.
    folder
        Folder of the trials: those of an earlier kernel are shown at once.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid.
    TpunbError
        If the data of the job cannot be read.
    """
    return TuningPanel(job, phases, saved, search=search, budget=budget, folder=folder)
