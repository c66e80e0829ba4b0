"""Tunes the input pipelines of running trainings: fits of Keras, and loops over a DataLoader (paper VII).

The output is the same as without.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from tpunb.errors import need, wrong_type
from tpunb.instrument import keras, torch
from tpunb.signals import spending
from tpunb.step_stats.numbering import TUNING_STEP
from tpunb.text import format_error, plain, plural
from tpunb.training import keras_hooks
from tpunb.training.fit_state import Fit
from tpunb.tuning.live import FIRST, RACE, WINDOW, Feed, LiveTuning, StepTimer
from tpunb.tuning.live_keras import FitFeed
from tpunb.tuning.live_torch import LoaderFeed, watch
from tpunb.tuning.model_based import model_based
from tpunb.tuning.parameters import Value
from tpunb.tuning.results import Journal, Message, Tuning, format_values
from tpunb.tuning.search import Search
from tpunb.tuning.tournament import check_seconds
from tpunb.tuning.tuner import SHARE

_SAVED = 0.2  # of the seconds that the rest of the training would save, which a race may take
_PAUSE = 0.005  # of tuning that is not counted as a part of a step


class Run(Protocol):
    """A capture around the trainings: a `tpunb.profiler.capture.Run`."""

    def between(self, kind: str) -> AbstractContextManager[None]:
        """Record a block between two steps as a separate step."""


class Online:
    """Tuning of the trainings of a block: `tuned` makes it.

    `tuning` and `values` are of the last training that was tuned, `messages` also say why nothing was tried; the
    training waited `seconds`.
    """

    def __init__(self, search: Search, budget: float | None, folder: Path | None, run: Run | None) -> None:
        self._search, self._budget, self.folder, self.run = search, budget, folder, run
        self._started = time.perf_counter()
        self._total: float | None = None  # seconds of the whole block
        self.tuning: Tuning | None = None
        self.values: dict[str, Value] = {}
        self.messages: list[Message] = []
        self.seconds = 0.0
        self._timers: list[StepTimer] = []
        self._fit: FitFeed | None = None
        self._loaders: list[LoaderFeed] = []

    def __repr__(self) -> str:
        result = "nothing was tried"
        if self.tuning is not None:
            result = repr(self.tuning).removeprefix("Tuning(").removesuffix(")")
        return f"Online({result}, {self.seconds:.1f} s)"

    # -- events of trainings ---------------------------------------------------------------------------------------

    def on_data(self, fit: Fit, data: Any) -> Any:
        """Return the data of a fit in a form whose position any values can restore, if nothing else depends on it."""
        self._end_fit()
        self._fit = FitFeed(fit, data, exclusive=fit.start is None and fit.listeners == (self,))
        return self._fit.data

    def on_begin(self, fit: Fit) -> None:
        """Start to watch a fit."""
        if self._fit is None or self._fit.fit is not fit:
            self._end_fit()
            self._fit = FitFeed(fit, None, exclusive=False)
        self._fit.begin()
        self._timers.append(self._fit.timer)

    def on_end(self, fit: Fit, place: str, *, kept: Path | None = None) -> None:
        """Do nothing: a later fit ends the tuning of this one."""

    def note_total(self, kind: str, counts: dict[str, int]) -> None:
        """Do nothing: tuning ends with its own block."""

    def on_step(self, fit: Fit, *, repeated: bool) -> None:
        """Tune the fit, if it is time."""
        if (feed := self._fit) is None:
            return
        feed.follow()
        feed.timer.record(feed.steps, within_epoch=feed.within_epoch)
        try:
            if feed.live is not None:
                self._advance(feed)
            elif feed.within_epoch and not feed.done and feed.is_due():
                self._begin(feed)
        except Exception as error:  # noqa: BLE001  what else listens to the fit goes on
            feed.done, feed.live = True, None
            self.report_error(error)

    def on_batch(self, feed: LoaderFeed, *, follows: bool) -> bool:
        """Tune a DataLoader as its next batch is asked for, if it is time; return whether it may still be tuned.

        The batch `follows` one of the same epoch.
        """
        if feed not in self._loaders:
            self._loaders.append(feed)
            self._timers.append(feed.timer)
        feed.timer.record(feed.steps, within_epoch=True, follows=follows)
        if feed.failure and not feed.failed:
            feed.done = feed.failed = True
            if feed.live is not None:
                feed.live.best = {}
                self._end(feed)
            self._report("error", error=feed.failure)
        elif feed.live is not None:
            self._advance(feed)
        elif not feed.done and all(other.live is None for other in self._loaders) and feed.is_due():
            self._begin(feed)
        return not feed.done

    # -- one training ----------------------------------------------------------------------------------------------

    def _begin(self, feed: Feed) -> None:
        """Begin to tune a training, if it is worth it."""
        step, busy = feed.timer.recent(max(WINDOW * feed.turn, FIRST // 2))
        feed.pending = self._refusal(feed) or self._obstacle(feed, step)
        if feed.pending is None:
            feed.live = LiveTuning(
                feed,
                self._search,
                recent=(step, busy),
                left=partial(self._left, feed),
                aside=feed.aside or self._aside,
                journal=Journal(self.folder),
            )
            self._advance(feed)

    def _advance(self, feed: Feed) -> None:
        """Continue a tuning after a step."""
        started, live, used = time.perf_counter(), feed.live, feed.used
        assert live is not None
        feed.done = live.advance()
        self.seconds += time.perf_counter() - started - (feed.used - used)
        feed.timer.swap(bool(live.values))
        if time.perf_counter() - started > _PAUSE:
            feed.timer.pause()
        if feed.done:
            self._end(feed)

    def _end(self, feed: Feed) -> None:
        """Report the result of a tuning."""
        live, feed.live = feed.live, None
        assert live is not None
        if not feed.done:
            feed.done = True
            live.messages.append(Message("fit ends", {"rest": feed.rest(feed.timer.step)}))
        tuning = live.tuning
        if live.best or not self.values:
            self.tuning, self.values = tuning, dict(live.best)
        self.messages += tuning.messages
        live.journal.end(tuning)

    def _refusal(self, feed: Feed) -> Message | None:
        """Return why a training cannot be tuned."""
        refusal = feed.obstacle()
        if refusal is not None:
            feed.done = True
            self.messages.append(refusal)
        return refusal

    def _obstacle(self, feed: Feed, step: float) -> Message | None:
        """Return why a training is not worth tuning, or not yet."""
        budget, rest, races = self._left(feed), feed.rest(step), RACE * feed.execution(step)
        needed = feed.least_seconds(step)
        if budget < needed:
            return Message("budget too small", {"budget": max(budget, 0.0), "needed": needed})
        if rest < races:
            return Message("fit too short", {"rest": rest, "needed": races})
        if not feed.announced:
            feed.announced = True
            self._report("needs", needed=needed, budget=budget)
        return None

    def _left(self, feed: Feed, saving: float = 0.0) -> float:
        """Return the seconds left of the budget, or of shares of the run so far and expected, and of what it saves."""
        if self._budget is not None:
            return self._budget - self.seconds
        so_far = time.perf_counter() - self._started
        expected = so_far + (feed.steps_left or 0) * feed.timer.step
        return SHARE * expected + _SAVED * saving - self.seconds

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Account for what the training waits for."""
        with spending("tuning"), self.run.between(TUNING_STEP) if self.run is not None else nullcontext():
            yield

    # -- the block -------------------------------------------------------------------------------------------------

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
        feed, self._fit = self._fit, None
        if feed is not None and feed.live is not None:
            self._end(feed)
        elif feed is not None and not feed.done:
            ended = Message("not tuned", {"reason": "the fit ended before its steps were measured"})
            self.messages.append(feed.pending or feed.refusal or ended)

    def _end_loaders(self) -> None:
        """Report what became of the DataLoaders: of one that was not tuned, if no other was."""
        for feed in self._loaders:
            feed.ended = True
            if feed.live is not None:
                self._end(feed)
        if not self.messages and self._loaders:
            longest = max(self._loaders, key=lambda feed: (feed.timer.before, feed.steps))
            alternates = longest.steps > 1 and not longest.timer.before
            other = "another DataLoader is read between its batches"
            reason = other if alternates else "the training ended before its steps were measured"
            self.messages.append(longest.pending or Message("not tuned", {"reason": reason}))

    @property
    def headline(self) -> str:
        """The result in one line: run time without and with tuning, or why it stayed as it is."""
        sentences = " ".join(map(str, self.messages))
        if not self.values or self.tuning is None:
            return plain(f"Tuning changed nothing. {sentences or 'No fit was seen.'}")
        gain = f"steps {self.tuning.speedup.sentence}, output equal: {format_values(self.values)}"
        if self._total is None:
            return plain(f"Tuned: {gain}.")
        without = self._total - self.seconds + sum(timer.saved for timer in self._timers)
        return plain(f"Tuned: about {without:.1f} s → {self._total:.1f} s, tuning included; {gain}.")

    @property
    def facts(self) -> list[str]:
        """Trials and duration of the tuning, in at most one line."""
        if self.tuning is None:
            return []
        return [f"tuning: {plural(len(self.tuning.trials), 'trial')}, {self.seconds:.1f} s"]


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
    of Lightning, or of your own. Each is tuned once, by measured steps of its own with other values. Values that win a
    race take over at the same element, within an epoch; weights, losses and what callbacks see are the same to the last
    bit. If that is impossible, nothing is tried, and `Online.messages` give the reason. Python functions in the data
    are also called for batches that are compared.

    Parameters
    ----------
    search
        Generator function of proposals, as of `tpunb.tuning.tuner.tune`.
    budget
        Seconds for all trainings of the block; by default 5 % of the run so far and expected.
    folder
        Folder to which trials are written.
    run
        Capture around the block: it records the time of the tuning as an account.

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
