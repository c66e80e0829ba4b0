"""Tunes the input pipeline of a running training (paper VII).

In place, by steps of the training itself (`LiveTuning`); a ``fit`` of Keras that is also saved or resumed, by trials
between two of its steps in the phase that takes most of the time, after which the model is restored, and the data
continue at the same element with the values that won. The output is the same as without.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from tpunb.cluster import OLS, phases
from tpunb.errors import NoSteps, need, wrong_type
from tpunb.instrument import keras, torch
from tpunb.io import load
from tpunb.signals import spending
from tpunb.step_stats.numbering import TUNING_STEP
from tpunb.step_stats.reduce import steps
from tpunb.text import format_error, plain, plural
from tpunb.tfdata import position as data_position
from tpunb.tfdata.graph import graph_or_none
from tpunb.tfdata.restored import late_shuffles
from tpunb.training import keras_hooks
from tpunb.training.fit_state import Fit
from tpunb.training.state import TrainingState, variables_of
from tpunb.tuning.job import Job, hot_phase
from tpunb.tuning.live import END, FIRST, RACE, SAMPLE, WINDOW, Feed, LiveTuning, Sample, StepTimer
from tpunb.tuning.live_torch import LoaderFeed, watch
from tpunb.tuning.model_based import model_based
from tpunb.tuning.parameters import Kind, Value
from tpunb.tuning.pipeline import Pipeline
from tpunb.tuning.position import LivePosition, TfPosition, saveable
from tpunb.tuning.results import Journal, Message, Tuning, format_values
from tpunb.tuning.search import Search, Values
from tpunb.tuning.stage_costs import StageCost
from tpunb.tuning.tournament import Budget, check_seconds
from tpunb.tuning.tuner import SHARE, Tuner, least_seconds

_SAVED = 0.2  # of the seconds that the rest of the fit would save, which a race may take
_PAUSE = 0.005  # of tuning that is not counted as a part of a step


class Run(Protocol):
    """A capture around the fit: a `tpunb.profiler.capture.Run`."""

    def __fspath__(self) -> str:
        """Return the path to load it from."""

    def between(self, kind: str) -> AbstractContextManager[None]:
        """Record a block between two steps as a separate step."""


class Online:
    """Tuning of the fits of a block: `tuned` makes it.

    `tuning` and `values` are of the last fit that was tuned, `messages` also say why nothing was tried; the training
    waited `seconds`.
    """

    def __init__(self, search: Search, budget: float | None, folder: Path | None, run: Run | None) -> None:
        self._search, self._budget, self.folder, self.run = search, budget, folder, run
        self._started = time.perf_counter()
        self._total: float | None = None  # seconds of the whole block
        self.tuning: Tuning | None = None
        self.values: dict[str, Value] = {}
        self.messages: list[Message] = []
        self.seconds = 0.0
        self.timer = StepTimer()
        self._fit: _TunableFit | None = None
        self._loaders: list[LoaderFeed] = []

    def __repr__(self) -> str:
        result = "nothing was tried"
        if self.tuning is not None:
            result = repr(self.tuning).removeprefix("Tuning(").removesuffix(")")
        return f"Online({result}, {self.seconds:.1f} s)"

    # -- events of a fit -------------------------------------------------------------------------------------------

    def on_data(self, fit: Fit, data: Any) -> Any:
        """Return the data of a fit in a form whose position any values can restore, if there is one."""
        self._end_fit()
        self._fit = _TunableFit(fit, data, self.timer, exclusive=fit.start is None and fit.listeners == (self,))
        return self._fit.data

    def on_begin(self, fit: Fit) -> None:
        """Start to watch a fit."""
        if self._fit is None or self._fit.fit is not fit:
            self._end_fit()
            self._fit = _TunableFit(fit, None, self.timer, exclusive=False)
        self.timer.start()

    def on_end(self, fit: Fit, place: str, *, kept: Path | None = None) -> None:
        """Do nothing: a later fit ends the tuning of this one."""

    def note_total(self, kind: str, counts: dict[str, int]) -> None:
        """Do nothing: tuning ends with its own block."""

    def on_step(self, fit: Fit, *, repeated: bool) -> None:
        """Tune the fit, if it is time."""
        self.timer.record(fit.steps, within_epoch=fit.step_in_epoch > 0)
        current = self._fit
        if current is None or current.done:
            return
        if current.course is not None:
            self._advance(current)
            return
        if not fit.step_in_epoch or not current.is_due():
            return
        if current.is_live:
            self._begin_live(current)
            return
        started = time.perf_counter()
        try:
            current.pending = self._obstacle(current) or self._phase_obstacle(current)
            if current.pending is None:
                current.done = True
                with self._aside():
                    self._tune(current, started)
        except Exception as error:  # noqa: BLE001  the training must continue
            current.done = True
            self._report("error", error=format_error(error))
        finally:
            self.seconds += time.perf_counter() - started
            self.timer.pause()

    def on_batch(self, feed: LoaderFeed, *, follows: bool) -> bool:
        """Tune a DataLoader as its next batch is asked for, if it is time; return whether it may still be tuned.

        The batch `follows` one of the same epoch.
        """
        if feed not in self._loaders:
            self._loaders.append(feed)
        feed.timer.record(feed.steps, within_epoch=True, follows=follows)
        if feed.failure and not feed.failed:
            feed.done = feed.failed = True
            if feed.live is not None:
                feed.live.best = {}
                self._end_live(feed)
            self._report("error", error=feed.failure)
        elif feed.course is not None:
            self._advance(feed)
        elif not feed.done and all(other.course is None for other in self._loaders) and feed.is_due():
            self._begin_live(feed)
        return not feed.done

    def _begin_live(self, current: Feed) -> None:
        """Begin to tune the training in place, if it is worth it."""
        step, busy = current.timer.recent(max(WINDOW * current.turn, FIRST // 2))
        current.pending = self._refusal(current) or self._live_obstacle(current, step)
        if current.pending is None and not current.done:
            current.live = LiveTuning(
                current,
                self._search,
                recent=(step, busy),
                left=partial(self._left, current),
                aside=current.aside or self._aside,
                journal=Journal(self.folder),
            )
            current.course = current.live.course()
            self._advance(current)

    def _advance(self, current: Feed) -> None:
        """Continue a tuning in place after a step."""
        started, live, used = time.perf_counter(), current.live, current.used
        assert live is not None
        assert current.course is not None
        try:
            next(current.course)
        except StopIteration:
            current.done = True
        except Exception as error:  # noqa: BLE001  the training must continue
            current.done = True
            live.messages.append(Message("error", {"error": format_error(error)}))
        finally:
            self.seconds += time.perf_counter() - started - (current.used - used)
            current.timer.swap(bool(live.values))
            if time.perf_counter() - started > _PAUSE:
                current.timer.pause()
            if current.done:
                self._end_live(current)

    def _end_live(self, current: Feed) -> None:
        """Report the result of a tuning in place."""
        live, current.live, current.course = current.live, None, None
        assert live is not None
        if not current.done:
            current.done = True
            live.messages.append(Message("fit ends", {"rest": current.rest(current.timer.step)}))
        tuning = live.tuning
        if live.best or not self.values:
            self.tuning, self.values = tuning, dict(live.best)
        self.messages += tuning.messages
        live.journal.end(tuning)

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Account for what the training waits for."""
        with spending("tuning"), self.run.between(TUNING_STEP) if self.run is not None else nullcontext():
            yield

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Take the time of the block in place of that since this was made."""
        self._started = time.perf_counter()
        try:
            yield
        finally:
            self._total = time.perf_counter() - self._started

    def close(self) -> None:
        """End the block."""
        self.guarded(self._end_fit)
        self.guarded(self._end_loaders)
        if self._total is None:
            self._total = time.perf_counter() - self._started

    def guarded(self, action: Callable[..., object], *args: Any) -> None:
        """Report an error of an action."""
        try:
            action(*args)
        except Exception as error:  # noqa: BLE001  the program must continue
            self.report_error(error)

    def report_error(self, error: Exception) -> None:
        """Report an error of tuning."""
        message = Message("error", {"error": format_error(error)})
        if message not in self.messages:
            self.messages.append(message)

    def _report(self, code: str, **facts: Any) -> None:
        self.messages.append(Message(code, facts))

    def _end_fit(self) -> None:
        """Report what became of the last fit."""
        if self._fit is not None and self._fit.live is not None:
            self._end_live(self._fit)
        elif self._fit is not None and not self._fit.done:
            ended = Message("not tuned", {"reason": "the fit ended before its steps were measured"})
            self.messages.append(self._fit.pending or self._fit.refusal or ended)
        self._fit = None

    def _end_loaders(self) -> None:
        """Report what became of the DataLoaders: of one that was not tuned, if no other was."""
        for feed in self._loaders:
            feed.ended = True
            if feed.live is not None:
                self._end_live(feed)
        if not self.messages and self._loaders:
            longest = max(self._loaders, key=lambda feed: (feed.timer.before, feed.steps))
            alternates = longest.steps > 1 and not longest.timer.before
            other = "another DataLoader is read between its batches"
            reason = other if alternates else "the training ended before its steps were measured"
            self.messages.append(longest.pending or Message("not tuned", {"reason": reason}))

    # -- when to tune ----------------------------------------------------------------------------------------------

    def _refusal(self, current: Feed) -> Message | None:
        """Return why a training cannot be tuned."""
        refusal = current.obstacle()
        if refusal is not None:
            current.done = True
            self.messages.append(refusal)
        return refusal

    def _live_obstacle(self, current: Feed, step: float) -> Message | None:
        """Return why a training is not tuned in place, or not yet."""
        budget, rest, races = self._left(current), current.rest(step), RACE * current.execution(step)
        needed = current.least_live(step)
        if budget < needed:
            return Message("budget too small", {"budget": max(budget, 0.0), "needed": needed})
        if rest < races:
            return Message("fit too short", {"rest": rest, "needed": races})
        if not current.announced:
            current.announced = True
            self._report("needs", needed=needed, budget=budget)
        return None

    def _obstacle(self, current: _TunableFit) -> Message | None:
        """Return why a fit cannot be tuned, or not yet."""
        if refusal := self._refusal(current):
            return refusal
        step = self.timer.step
        budget, needed, rest = self._left(current), current.least_seconds(step), current.rest(step)
        if rest < needed:
            return Message("fit too short", {"rest": rest, "needed": needed})
        if budget >= needed:
            return None
        return Message("budget too small", {"budget": max(budget, 0.0), "needed": needed})

    def _left(self, current: Feed, saving: float = 0.0) -> float:
        """Return the seconds left of the budget, or of shares of the run so far and expected, and of what it saves."""
        if self._budget is not None:
            return self._budget - self.seconds
        so_far = time.perf_counter() - self._started
        expected = so_far + (current.steps_left or 0) * current.timer.step
        return SHARE * expected + _SAVED * saving - self.seconds

    def _phase_obstacle(self, current: _TunableFit) -> Message | None:
        """Return why the fit is not in a phase worth tuning (paper VII.B); None without a capture."""
        if self.run is None:
            return None
        try:
            grouped = phases(steps(load(self.run)), OLS())
        except NoSteps:
            return Message("not tuned", {"reason": "no step was fully traced"})
        phase = hot_phase(grouped)
        in_phases = grouped.labels.filter(grouped.labels >= 0)  # the last traced step is often an outlier
        if phase is None or int(in_phases[-1]) != phase.id:
            return Message("no hot phase")
        current.phase = Message("hot phase", {"phase": phase.name, "share": phase.share})
        return None

    # -- the tuning ------------------------------------------------------------------------------------------------

    def _tune(self, current: _TunableFit, started: float) -> None:
        """Try values from the fit's position, and continue it with those that win."""
        current.fit.sync()
        state = TrainingState.capture(variables_of(current.fit.model))
        try:
            self._try_values(current, started)
        except BaseException:  # of the trials, or of what restores the model after them
            state.restore()
            raise

    def _try_values(self, current: _TunableFit, started: float) -> None:
        with TemporaryDirectory(prefix="tpunb-") as folder:
            position = current.position(Path(folder))
            if position.obstacle:
                self._report("position", reason=position.obstacle)
                return
            left = Budget(max(self._left(current) - (time.perf_counter() - started), 1e-3))
            live = LivePosition(current.fit.steps, position, current.execution(self.timer.step))
            self.values = {}
            tuner = Tuner(current.job, live, self._search, left, Journal(self.folder))
            tuner.messages += [Message("tuned at", {"steps": current.fit.steps}), *filter(None, [current.phase])]
            try:
                self._try(tuner, current)
            finally:
                self.tuning = tuner.tuning
                self.messages += tuner.tuning.messages
            if best := tuner.tuning.best:
                current.continue_with(best, position.source(best).iterator)
                self.values = dict(best)
                self.timer.swap()

    def _try(self, tuner: Tuner, current: _TunableFit) -> None:
        """Run trials while the rest of the fit takes longer than another one."""
        best = math.inf
        with closing(tuner.trials()) as trials:
            for trial in trials:
                if trial.verdict in ("default", "faster") and trial.seconds is not None:
                    best = min(best, trial.seconds)
                if current.rest(best) < trial.spent:
                    tuner.closing = Message("fit ends", {"rest": current.rest(best)})
                    return

    @property
    def headline(self) -> str:
        """The result in one line: run time without and with tuning, or why it stayed as it is."""
        sentences = " ".join(map(str, self.messages))
        if not self.values or self.tuning is None:
            return plain(f"Tuning changed nothing. {sentences or 'No fit was seen.'}")
        gain = f"steps {self.tuning.speedup.sentence}, output equal: {format_values(self.values)}"
        if self._total is None:
            return plain(f"Tuned: {gain}.")
        timers = [self.timer, *(feed.timer for feed in self._loaders)]
        without = self._total - self.seconds + sum(timer.saved for timer in timers)
        return plain(f"Tuned: about {without:.1f} s → {self._total:.1f} s, tuning included; {gain}.")

    @property
    def facts(self) -> list[str]:
        """Trials and duration of the tuning, in at most one line."""
        if self.tuning is None:
            return []
        return [f"tuning: {plural(len(self.tuning.trials), 'trial')}, {self.seconds:.1f} s"]


class _TunableFit(Feed):
    """A fit that may be tuned; `exclusive` if nothing else depends on how its data are made."""

    aside = None

    def __init__(self, fit: Fit, data: Any, timer: StepTimer, *, exclusive: bool) -> None:
        self.fit, self.data = fit, data
        self.phase: Message | None = None
        self.job = Job(lambda: (fit.model, data))
        super().__init__(timer)
        self._rebuilt = False
        other = fit.data.reason or "its data are not a tf.data.Dataset (arrays and Python code have no values to tune)"
        reason = other if data is None else self._prepared(exclusive)
        self.refusal = Message("not tuned", {"reason": reason}) if reason else None

    def obstacle(self) -> Message | None:
        """Return why it cannot be tuned."""
        if self.refusal is None and self.fit.hidden_state:
            return Message("untracked state", {"state": self.fit.hidden_state})
        return self.refusal

    def least_live(self, step: float) -> float:
        """Return the least seconds that a tuning in place takes; batches of the sample are drawn again."""
        return (SAMPLE[0] + 1) * self.execution(step) + super().least_live(step)

    def _prepared(self, exclusive: bool) -> str:
        """Rebuild the data in a form whose position can be moved; return why they cannot, or ""."""
        try:
            if reason := self.pipeline.refusal or self.pipeline.immovable:
                is_only_moved = self.pipeline.refusal is None
                return f"{reason}; tp.tune(model, data) may tune it before the fit" if is_only_moved else reason
            if self.pipeline.unsafe:
                return f"{self.pipeline.unsafe[0]}: trials would change what it returns"
            if exclusive:
                self.data, self._rebuilt = saveable(self.pipeline.in_place({})), True
            elif not self.fit.data.owns_shuffles:
                return (
                    "it is also saved or resumed, and how often its shuffle was started is unknown: "
                    "omit the shuffle's seed, or tp.checkpointing"
                )
            elif late := late_shuffles(graph_or_none(self.data)):
                return f"it is also saved or resumed, and {late[0]} begins with the first element only"
        except Exception as error:  # noqa: BLE001  the fit must continue
            return format_error(error)
        return ""

    @property
    def pipeline(self) -> Pipeline:
        pipeline = self.job.pipeline
        assert isinstance(pipeline, Pipeline)
        return pipeline

    @property
    def steps(self) -> int:  # type: ignore[override]
        return self.fit.steps

    @property
    def step_in_epoch(self) -> int:  # type: ignore[override]
        return self.fit.step_in_epoch

    @property
    def steps_left(self) -> int | None:  # type: ignore[override]
        return self.fit.steps_left

    @property
    def turn(self) -> int:  # type: ignore[override]
        return int(self.fit.model.steps_per_execution)

    @property
    def within_epoch(self) -> bool:  # type: ignore[override]
        return self.fit.cursor is not None

    def stages(self, seconds: float, busy: float) -> tuple[StageCost, ...]:
        """Return the costs of the stages, any of which may take all of a batch's."""
        calls = [parameter for parameter in self.parameters if parameter.kind is Kind.CALLS]
        return tuple(StageCost(parameter.stage, seconds, busy) for parameter in calls)

    def switch(self, values: Values) -> None:
        """Continue with some values at the same element."""
        self.continue_with(values, self._copy(values))

    def continue_with(self, values: Values, iterator: Any) -> None:
        """Continue with some values, and an iterator at the same element."""
        later = saveable(self.pipeline.in_place(values))  # continues the program's shuffles
        self.fit.data.replace(later, iterator, "the pipeline was tuned in the midst of the fit")

    def sampled(self, values: Values, limit: float, *, batches: int = SAMPLE[1]) -> Sample:
        """Return batches of a copy of the data."""
        drawn: list[bytes] = []
        seconds: list[float] = []
        iterator = self._copy(values)
        begun, worked = time.perf_counter(), time.process_time()
        while len(seconds) < batches and (len(seconds) < SAMPLE[0] or time.perf_counter() - begun < limit):
            started = time.perf_counter()
            try:
                batch = next(iterator)
            except StopIteration:
                drawn.append(END)
                break
            seconds.append(time.perf_counter() - started)
            drawn.append(data_position.fingerprint(batch))
        return Sample.of(self.steps, drawn, seconds, begun, worked)

    def _copy(self, values: Values) -> Any:
        """Return an iterator over the data with some values, at the present position."""
        stand = self.fit.cursor
        assert stand is not None
        state = data_position.state_of(stand.iterator)
        iterator = iter(saveable(self.pipeline.build(values)))
        data_position.set_state(iterator, state)
        return iterator

    @property
    def is_live(self) -> bool:  # type: ignore[override]
        """Whether it is tuned in place: nothing else depends on how its data are made."""
        return self._rebuilt

    def least_seconds(self, step: float) -> float:
        """Return the least duration of a tuning, including reading the data up to the position again."""
        stand = self.fit.cursor
        again = 0 if self._rebuilt or stand is None else stand.drawn
        return least_seconds(self.execution(step)) + again * step

    def position(self, folder: Path) -> TfPosition:
        """Return the position of the fit in its data."""
        stand = self.fit.cursor
        assert stand is not None
        live = stand.iterator if self._rebuilt else None
        return TfPosition(self.pipeline, folder, begun=stand.iterators, drawn=stand.drawn, iterator=live)


@contextmanager
def tuned(
    *,
    search: Search | None = None,
    budget: float | None = None,
    folder: str | os.PathLike[str] | None = None,
    run: Run | None = None,
) -> Iterator[Online]:
    """Tune the trainings of the block while they run, unmodified; their output stays the same.

    These are each ``model.fit(data, ...)`` of Keras, and loops over a DataLoader of PyTorch: of Hugging Face's Trainer,
    of Lightning, or of your own. Each is tuned once, by measured steps of its own with other values, or by trials if it
    is also saved or resumed. Values that win a race take over at the same element, within an epoch; weights, losses and
    what callbacks see are the same to the last bit. If that is impossible, nothing is tried, and `Online.messages` give
    the reason. Trials also call the Python functions in the data.

    Parameters
    ----------
    search
        Generator function of proposals, as of `tpunb.tuning.tuner.tune`.
    budget
        Seconds for all fits of the block; by default 5 % of the run so far and expected.
    folder
        Folder to which trials are written.
    run
        Capture around the block: it gives the phases, and records the time of the tuning as an account.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid.
    MissingExtra
        If neither Keras nor PyTorch is installed.
    TpunbError
        If Keras runs on another backend than TensorFlow and JAX, or this version of Keras is not supported.
    """
    if search is not None and not callable(search):
        raise wrong_type("tuned", "search", "be a function of a space that yields proposals", search)
    if budget is not None:
        check_seconds("budget", "tuned", budget)
    online = Online(search or model_based, budget, None if folder is None else Path(folder), run)
    if find_spec("torch") is None:
        need("keras", extra="tensorflow")
    if keras.LIBRARY.module() is not None:  # refused before anything runs
        keras.check_fit()
    with ExitStack() as stack:
        stack.callback(online.close)
        watched = partial(watch, on_batch=online.on_batch, on_error=online.report_error)
        torch.LIBRARY.on_import(stack, partial(online.guarded, watched))
        fits = partial(keras_hooks.listening, online)
        keras.LIBRARY.on_import(stack, partial(online.guarded, lambda block: block.enter_context(fits())))
        yield online
