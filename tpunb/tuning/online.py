"""Tunes the input pipeline of a ``fit`` that runs, between two of its steps, and lets it go on with what is found.

Section VII of the paper, in one cell: the program is watched until it is in the phase that takes most of its time;
there trials run from where it stands (`tpunb.tuning.tuner`); then the model is put back, and the data go on from the
same element with the values that won. What comes out is what would have come out without.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from tpunb.cluster import OLS, phases
from tpunb.errors import NoSteps, wrong
from tpunb.frames.words import plain
from tpunb.io import load
from tpunb.resuming import keras_fit
from tpunb.resuming.fits import Fit
from tpunb.stepping import steps
from tpunb.tuning.contest import FEWEST, Budget
from tpunb.tuning.hot import hot
from tpunb.tuning.job import Job
from tpunb.tuning.knob import Value
from tpunb.tuning.model_based import model_based
from tpunb.tuning.nouns import Journal, Tuning, in_words
from tpunb.tuning.pace import Pace
from tpunb.tuning.pipeline import Pipeline
from tpunb.tuning.place import Midst, TfPlace, movable
from tpunb.tuning.refused import in_words as error_in_words
from tpunb.tuning.search import Search
from tpunb.tuning.trial import turns
from tpunb.tuning.tuner import SHARE, Tuner

MARK = "tune"
"""Of the step as which a capture notes the tuning."""

_FIRST = 20  # steps of a fit before the first look at its phases
_AGAIN = 1.5  # times the steps of one look, at the next
_SECONDS = 1.0  # of training before the first look
_TRIED = 5  # turns to see how long one takes
_SWAPPED = "the pipeline was tuned in the midst of the fit"


class Run(Protocol):
    """A capture around the fit: a `tpunb.recorder.Run`."""

    def __fspath__(self) -> str:
        """Return where it is read from."""

    def between(self, mark: str) -> AbstractContextManager[None]:
        """Mark what a block does between two steps."""


class Online:
    """A tuning of the fits of a block: `tuned` makes it.

    Parameters
    ----------
    search, budget, folder, run
        As of `tuned`.

    Attributes
    ----------
    tuning
        What was found; None where nothing was tried. Of several fits, by the last that was tuned.
    values
        With which that fit went on; none where its own stayed.
    said
        What there is to tell, in sentences: also why nothing was tried.
    seconds
        That watching and tuning took, while the training waited.
    pace
        Of the steps before and after.
    """

    def __init__(self, search: Search, budget: float | None, folder: Path | None, run: Run | None) -> None:
        self._search, self._budget, self.folder, self.run = search, budget, folder, run
        self._begun = time.perf_counter()
        self._took: float | None = None  # the whole block
        self.tuning: Tuning | None = None
        self.values: dict[str, Value] = {}
        self.said: list[str] = []
        self.seconds = 0.0
        self.pace = Pace()
        self._fit: _Tunable | None = None

    def __repr__(self) -> str:
        found = (
            "nothing was tried" if self.tuning is None else repr(self.tuning).removeprefix("Tuning(").removesuffix(")")
        )
        return f"Online({found}, {self.seconds:.1f} s)"

    # -- what a fit tells ------------------------------------------------------------------------------------------

    def taken(self, fit: Fit, data: Any) -> Any:
        """Return the data of a fit in the form whose position any values can read; as they are, where there is none."""
        self._end()
        self._fit = _Tunable(fit, data, alone=fit.start is None and fit.listeners == (self,))
        return self._fit.data

    def begun(self, fit: Fit) -> None:
        """Begin to watch a fit."""
        if self._fit is None or self._fit.fit is not fit:
            self._end()
            self._fit = _Tunable(fit, None, alone=False)
        self.pace.begin()

    def stepped(self, fit: Fit, *, anew: bool) -> None:
        """Tune the fit, if it is time."""
        self.pace.note(fit.steps, within=fit.step_in_epoch > 0)
        now = self._fit
        if now is None or now.over or not fit.step_in_epoch or not now.is_due(self.pace):
            return
        begun = time.perf_counter()
        try:
            now.why = self._why_not(now)
            if not now.why and self._is_hot(now):
                now.over = True
                with self.run.between(MARK) if self.run is not None else nullcontext():
                    self._tune(now, begun)
        except Exception as error:  # noqa: BLE001  the training must go on
            now.over = True
            self.said.append(f"Tuning ended early, and the training went on as it was: {error_in_words(error)}.")
        finally:
            self.seconds += time.perf_counter() - begun
            self.pace.pause()

    def close(self) -> None:
        """Take notice that the block has ended."""
        self._end()
        self._took = time.perf_counter() - self._begun

    def _end(self) -> None:
        """Say of the fit before why nothing was tried."""
        if self._fit is not None and not self._fit.over:
            self.said.append(f"Nothing was tried: {self._fit.why or self._fit.refusal or 'the fit was over before'}.")
        self._fit = None

    # -- when ------------------------------------------------------------------------------------------------------

    def _why_not(self, now: _Tunable) -> str:
        """Return why a fit cannot be tuned, at least not yet; or ""."""
        if now.refusal:
            now.over = True
            self.said.append(f"Nothing was tried: {now.refusal}.")
            return now.refusal
        if now.fit.hidden:
            now.over = True
            self.said.append(f"Nothing was tried: {now.fit.hidden}, and a trial could not put it back.")
            return now.fit.hidden
        budget, needed, rest = self._left(now), now.least(self.pace.step), now.rest(self.pace.step)
        if rest < needed:
            return f"what is left of the fit takes {rest:.1f} s, and to try anything about {needed:.1f} s"
        if budget >= needed:
            return ""
        what = f"{SHARE:.0%} of the run" if self._budget is None else "what is left of the budget"
        return (
            f"{what}, {max(budget, 0):.1f} s, is too little: it would take about {needed:.1f} s; "
            "--tune-budget, or budget=, gives it more"
        )

    def _left(self, now: _Tunable) -> float:
        """Return the seconds that may be spent: what was given, or a share of the run so far and expected."""
        if self._budget is not None:
            return self._budget - self.seconds
        so_far = time.perf_counter() - self._begun
        return SHARE * (so_far + (now.fit.left or 0) * self.pace.step) - self.seconds

    def _is_hot(self, now: _Tunable) -> bool:
        """Say whether the fit is in a phase that is worth tuning (paper VII.B); without a capture, once it is warm."""
        if self.run is None:
            return True
        now.why = "no phase took over half of the time, or most of its time for its data"
        try:
            found = phases(steps(load(self.run)), OLS())
        except NoSteps:
            now.why = "no step was seen in full"
            return False
        phase = hot(found)
        if phase is None or int(found.labels[-1]) != phase.id:
            return False
        now.said = f"Phase {phase.id} is worth tuning: it takes {phase.share:.0%} of the time so far."
        return True

    # -- the tuning ------------------------------------------------------------------------------------------------

    def _tune(self, now: _Tunable, begun: float) -> None:
        """Try values from where the fit stands, and let it go on with those that win."""
        with TemporaryDirectory(prefix="tpunb-") as folder:
            place = now.place(Path(folder))
            if place.why:
                self.said.append(f"Nothing was tried: the position in the data cannot be saved. {place.why}.")
                return
            left = Budget(max(self._left(now) - (time.perf_counter() - begun), 1e-3))
            midst = Midst(now.fit.steps, place, now.turn(self.pace.step))
            self.values = {}
            tuner = Tuner(now.job, midst, self._search, left, Journal(self.folder))
            tuner.said += [f"Tuned after {now.fit.steps:,} steps.", *filter(None, [now.said])]
            try:
                self._try(tuner, now)
            finally:
                self.tuning = tuner.tuning
                self.said += tuner.tuning.said
            if tuner.tuning.best:
                now.go_on(place, tuner.tuning.best)
                self.values = dict(tuner.tuning.best)
                self.pace.swap()

    def _try(self, tuner: Tuner, now: _Tunable) -> None:
        """Run trials while what is left of the fit takes longer than another of them."""
        best = math.inf
        with closing(tuner.trials()) as trials:
            for trial in trials:
                if trial.verdict in ("default", "faster") and trial.seconds is not None:
                    best = min(best, trial.seconds)
                if now.rest(best) < trial.spent:
                    tuner.why_closed = f"What is left of the fit would take {now.rest(best):.1f} s: less than a trial."
                    return

    @property
    def facts(self) -> list[str]:
        """What there is to tell of it when all is over, in a few lines; the values that were chosen first."""
        if self.tuning is None:
            return [plain(f"tuning while it ran: {' '.join(self.said) or 'no fit was seen'}")]
        chosen = "the values stay as they are"
        if self.values:
            ratio, low, high = self.tuning.speedup
            chosen = f"{in_words(self.values)}, {ratio:.2f} times as fast ({low:.2f} to {high:.2f})"
        lines = [f"tuning while it ran: {chosen}; {len(self.tuning.trials)} trials, {self.seconds:.1f} s"]
        if not self.values:
            lines.append(" ".join(self.said))
        elif self._took is not None:
            before = self._took - self.seconds + self.pace.saved
            lines.append(f"{self._took:.1f} s in all, tuning included; at the pace before: about {before:.1f} s")
        return [plain(line) for line in lines]


class _Tunable:
    """A fit that may be tuned.

    Parameters
    ----------
    fit
        That runs.
    data
        The program's own dataset; None where it is none.
    alone
        Whether nobody else depends on how the data are made.
    """

    def __init__(self, fit: Fit, data: Any, *, alone: bool) -> None:
        self.fit, self.data, self.over, self.why, self.said = fit, data, False, "", ""
        self.job = Job(lambda: (fit.model, data))
        self._first, self._next = fit.steps, 0
        self._rebuilt = False
        self.refusal = "its data are no tf.data.Dataset that could be looked into: give fit one"
        if data is None:
            return
        try:
            self.refusal = self._pipeline.refusal or self._pipeline.immovable or ""
            if not self.refusal and alone:
                self.data, self._rebuilt = movable(self._pipeline.in_place({})), True
            elif not self.refusal and not fit.owns_shuffles:
                self.refusal = (
                    "it is saved or resumed meanwhile, and how often its shuffle was begun is not known: "
                    "leave out its seed, or tp.checkpointing"
                )
        except Exception as error:  # noqa: BLE001  the fit must go on
            self.refusal = error_in_words(error)

    @property
    def _pipeline(self) -> Pipeline:
        pipeline = self.job.pipeline
        assert isinstance(pipeline, Pipeline)
        return pipeline

    def is_due(self, pace: Pace) -> bool:
        """Say whether it is time to look; after that, only when half as many steps again were taken."""
        taken = self.fit.steps - self._first
        if taken < max(self._next, _FIRST) or pace.seconds < _SECONDS:
            return False
        self._next = round(_AGAIN * taken)
        return True

    def least(self, step: float) -> float:
        """Return the seconds that it takes to find anything: the program's own values twice, and one race."""
        turn = self.turn(step)
        stand = self.fit.stand
        again = 0 if self._rebuilt or stand is None else stand.drawn  # to reach the place
        return (_TRIED + (2 + 2 * FEWEST) * sum(turns(turn))) * turn + again * step

    def turn(self, step: float) -> float:
        """Return the seconds of a turn, of as many steps as Keras takes at once."""
        return step * int(self.fit.model.steps_per_execution)

    def rest(self, step: float) -> float:
        """Return how long the rest of the fit takes, at so many seconds a step; infinite where nobody knows its end."""
        return math.inf if self.fit.left is None else self.fit.left * step

    def place(self, folder: Path) -> TfPlace:
        """Return where the fit stands."""
        stand = self.fit.stand
        assert stand is not None
        live = stand.iterator if self._rebuilt else None
        return TfPlace(self._pipeline, folder, begun=stand.begun, drawn=stand.drawn, iterator=live)

    def go_on(self, place: TfPlace, values: Mapping[str, Value]) -> None:
        """Let the fit go on from a place with other values."""
        self.fit.feed_from(place.later(values), place.feed(values).iterator, _SWAPPED)


@contextmanager
def tuned(
    *,
    search: Search | None = None,
    budget: float | None = None,
    folder: str | os.PathLike[str] | None = None,
    run: Run | None = None,
) -> Iterator[Online]:
    """Tune every unmodified ``model.fit(data, ...)`` of the block while it runs; its output stays the same.

    Each is tuned once: in the phase that takes most of its time, where a capture tells that, else after some steps.
    The training waits meanwhile. Values that win a race are taken over at the same element, in the midst of an epoch;
    weights, losses and whatever callbacks see are bit for bit what they would have been. Where that cannot be had,
    nothing is tried, and `Online.said` tells why. A Python function in the data is called by trials too.

    Parameters
    ----------
    search
        What is tried, as of `tpunb.tuning.tuner.tune`.
    budget
        Seconds for all fits of the block; 5 % of the run so far and expected, if None.
    folder
        Where trials are written.
    run
        The capture around the block, whose phases are looked at and which marks the tuning as a step of its own.

    Raises
    ------
    TypeError, ValueError
        When an argument is none of these.
    TpunbError
        Keras runs on another backend than TensorFlow, or its inside is not known to this version.
    """
    if search is not None and not callable(search):
        raise wrong("tuned", "search", "be a function of a space that yields proposals", search)
    if budget is not None and (isinstance(budget, bool) or not isinstance(budget, int | float) or not budget > 0):
        raise ValueError(f"The budget parameter of tuned must be above 0 seconds. Got {budget!r} instead.")
    online = Online(search or model_based, budget, None if folder is None else Path(folder), run)
    with ExitStack() as stack:
        stack.enter_context(keras_fit.listening(online))
        stack.callback(online.close)
        yield online
