"""Tunes a running training in place: the steps that are measured are steps of the training, with other values.

A position holds for any values, so the training changes its values between two steps, keeps its place in the data, and
wastes no step. Before values are used, batches from the present position on show that they give the same ones, bit for
bit; then blocks of steps race, in turns, against the best values so far.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tpunb.signals import spending
from tpunb.text import format_error
from tpunb.tuning.parameters import Parameter, Value
from tpunb.tuning.racing import MOST_PAIRS, Race, RaceResult
from tpunb.tuning.results import SAME, Journal, Message, Trial, Tuning
from tpunb.tuning.search import BUFFERS, Search, Space, StepCosts, Values
from tpunb.tuning.stage_costs import StageCost
from tpunb.tuning.tournament import Contest

SAMPLE = 3, 8
"""Least and most batches that are drawn from a copy of the data."""

WARM, WINDOW = 6, 6
"""Executions after a change of values that are not measured, since they empty or fill buffers, and those that are."""

RACE = 6 * (WARM + WINDOW)
"""Executions that a fit must have left: those of a race."""

SWITCH = 0.15
"""Expected seconds of a change of values, before there has been one."""

FIRST = 20
"""Steps of a training before the first check."""

_AGAIN = 1.5  # steps of the next check, by those of the one before
_SOON, _ENOUGH = 0.2, 1.0  # seconds of so many steps before the first check, and of half as many
_WAITS = 1.15
_HIDDEN = 1.5  # times the data alone: a step of the model's, if batches are made ahead
_LEAST_MODEL_SHARE = 0.05  # of a step, if the data take all of it
_SHARE = 0.3  # of the seconds left, for the batches of the program's values
_PATIENCE, _HICCUP = 1.5, 0.25  # limit of a block: by the time of the best values, and seconds more
_PROMISING = 1.1  # ratio of the pairs so far, below which a race is given up
_DEEPEST = 4
_CORES = os.cpu_count() or 1

END = b"end"
"""The fingerprint that stands for the end of an epoch."""

_Course = Generator[None, None, None]


@dataclass(frozen=True)
class Sample:
    """Batches from the present position on: their fingerprints, seconds of each, and cores kept busy."""

    steps: int  # of the training before them
    batches: tuple[bytes, ...]
    seconds: float
    busy: float

    @classmethod
    def of(cls, steps: int, batches: list[bytes], seconds: list[float], begun: float, worked: float) -> Sample:
        """Return the sample that ends now, by the seconds of its batches, and the two clocks at its begin."""
        busy = (time.process_time() - worked) / max(time.perf_counter() - begun, 1e-9)
        return cls(steps, tuple(batches), statistics.fmean(seconds[len(seconds) // 2 :] or [0.0]), busy)


def timed(batches: Iterator[Any], seconds: list[float]) -> Iterator[Any]:
    """Yield batches, and append the time that each took."""
    while True:
        started = time.perf_counter()
        try:
            batch = next(batches)
        except StopIteration:
            return
        seconds.append(time.perf_counter() - started)
        yield batch


class Feed(ABC):
    """The data of a running training, whose values change at any place within an epoch, and how they are tuned.

    `aside` accounts for what the training waits for, if not as between two steps.
    """

    pipeline: Any
    steps = 0  # of the training
    step_in_epoch = 0  # since the begin of an epoch, or another interruption
    steps_left: int | None = None  # or expected; None if unknown
    within_epoch = False  # whether there is a position
    turn = 1  # steps of an execution
    used = 0.0  # seconds of drawing samples that the training need not draw again
    aside: Callable[[], AbstractContextManager[None]] | None = partial(spending, "tuning")

    def __init__(self) -> None:
        self.timer, self.done = StepTimer(), False
        self.pending: Message | None = None  # why it is not tuned yet
        self.live: LiveTuning | None = None  # while it is tuned
        self.announced = self.failed = False
        self._first = self._next = 0

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters whose values may change."""
        return tuple(self.pipeline.parameters)

    @abstractmethod
    def obstacle(self) -> Message | None:
        """Return why it cannot be tuned."""

    @abstractmethod
    def sampled(self, values: Values, limit: float, *, batches: int = SAMPLE[1]) -> Sample:
        """Return batches from the present position on with some values, as many as fit into a limit of seconds."""

    @abstractmethod
    def switch(self, values: Values) -> None:
        """Continue with some values."""

    @abstractmethod
    def stages(self, seconds: float, busy: float) -> tuple[StageCost, ...]:
        """Return the costs of the stages, if a batch takes some seconds in which some cores are busy."""

    def as_code(self, values: Values) -> str:
        """Return the lines of code that set some values."""
        return str(self.pipeline.as_code(values))

    def difference(self) -> str | None:
        """Return why values changed the batches, if it is known."""
        return None

    def block(self, values: Values) -> tuple[int, int]:
        """Return executions after a change to values that are not measured, and those that are."""
        return WARM, WINDOW

    def is_due(self) -> bool:
        """Return whether to check it now; then again after half as many steps more."""
        taken, seconds = self.steps - self._first, self.timer.before
        least = _SOON if taken >= FIRST else _ENOUGH
        if taken < max(self._next, FIRST / 2) or not seconds or seconds < least:
            return False
        self._next = round(_AGAIN * taken)
        return True

    def least_seconds(self, step: float) -> float:
        """Return the least seconds that a tuning takes."""
        return 3 * SWITCH

    def execution(self, step: float) -> float:
        """Return the seconds of an execution."""
        return step * self.turn

    def rest(self, step: float) -> float:
        """Return the seconds of the rest of the training; infinite if its end is unknown."""
        return math.inf if self.steps_left is None else self.steps_left * step


class StepTimer:
    """Times steps, except the first of each epoch."""

    def __init__(self) -> None:
        self._before: list[float] = []
        self._busy: list[float] = []  # cores, in each of these
        self._after: list[float] = []
        self._swapped = False
        self._last: tuple[int, float, float] | None = None  # steps, and seconds of the clock and the processors

    def record(self, step: int, *, within_epoch: bool, follows: bool = True) -> None:
        """Record the number of steps taken so far; the time since the last is one of steps if it `follows`."""
        now, worked = time.perf_counter(), time.process_time()
        if follows and self._last is not None and step > self._last[0]:
            taken, wall = step - self._last[0], now - self._last[1]
            times = self._after if self._swapped else self._before
            times += [wall / taken] * taken
            if not self._swapped:
                self._busy += [(worked - self._last[2]) / max(wall, 1e-9)] * taken
        self._last = (step, now, worked) if within_epoch else None

    def pause(self) -> None:
        """Exclude the time since the last step."""
        if self._last is not None:
            self._last = self._last[0], time.perf_counter(), time.process_time()

    def swap(self, changed: bool = True) -> None:
        """Count the following steps as after the change, or before it."""
        self._swapped = changed

    @property
    def before(self) -> float:
        """Seconds of all steps before the change."""
        return sum(self._before)

    def recent(self, steps: int) -> tuple[float, float]:
        """Return the median seconds of the last steps before the change, and of the cores kept busy."""
        return statistics.median(self._before[-steps:]), statistics.median(self._busy[-steps:])

    @property
    def step(self) -> float:
        """Median seconds per step before the change."""
        return statistics.median(self._before) if self._before else 0.0

    @property
    def saved(self) -> float:
        """Seconds saved by the steps after the change."""
        return len(self._after) * self.step - sum(self._after)


class LiveTuning(Contest[None]):
    """A tuning in place; `advance` continues it after each step.

    `recent`: seconds per step of the program's values, and the busy cores meanwhile. `left`: function from the seconds
    that tuning would save to those for which the training may still wait. `aside`: context for what it waits for.
    """

    def __init__(
        self,
        feed: Feed,
        search: Search,
        *,
        recent: tuple[float, float],
        left: Callable[[float], float],
        aside: Callable[[], AbstractContextManager[object]],
        journal: Journal,
    ) -> None:
        self._feed, self._search = feed, search
        self._recent, self._left, self._aside, self.journal = recent, left, aside, journal
        self._steps = feed.turn
        self._started, self._switch_seconds = time.perf_counter(), SWITCH
        self.values: dict[str, Value] = {}
        """Values with which the training runs."""
        self.best: dict[str, Value] = {}
        self.messages: list[Message] = [Message("tuned at", {"steps": feed.steps})]
        super().__init__(Trial(0, {}, "default", recent[0], equal=True))
        self._champion = self.trials[0]
        self._seconds = recent[0]  # per step, of the best values
        self._reference: Sample | None = None
        self._course = self.course()

    def advance(self) -> bool:
        """Continue after a step; return whether the tuning has ended."""
        try:
            next(self._course)
        except StopIteration:
            return True
        except Exception as error:  # noqa: BLE001  the training must continue
            self.messages.append(Message("error", {"error": format_error(error)}))
            return True
        return False

    @property
    def tuning(self) -> Tuning:
        """The result so far."""
        trials, spent = tuple(self.trials), time.perf_counter() - self._started
        speedup = Tuning(trials).speedups[self._champion.number] if self.best else None
        code = self._feed.as_code(self.best) if self.best else ""
        messages = [*self.messages]
        if self.best and speedup is not None:
            messages.append(Message("winner", {"values": dict(self.best), "speedup": [*speedup]}))
        elif len(trials) > 1:
            messages.append(Message("none faster", {"trials": len(trials) - 1}))
        return Tuning(trials, dict(self.best), speedup or SAME, tuple(messages), spent, code)

    def course(self) -> _Course:
        """Yield until a step has been taken."""
        self.journal.record(self.trials[0])
        reference = yield from self._referenced()
        if (costs := self._costs(reference)) is not None:
            space = Space.of(self._feed.parameters, lambda: costs, cores=_CORES, deepest=_DEEPEST)
            yield from self.proposed(self._search, space)

    def _referenced(self) -> Generator[None, None, Sample]:
        """Return the batches that the best values give at the present position; near an epoch's end, in the next."""
        while self._reference is None or self._reference.steps != self._feed.steps:
            yield from self._in_epoch()
            with self._aside():
                self._reference = self._feed.sampled(self.best, _SHARE * self._left(0.0))
            if len(self._reference.batches) <= SAMPLE[0] and self._reference.batches[-1] == END:
                self._reference = None
                while self._feed.within_epoch:
                    yield
        return self._reference

    def _costs(self, reference: Sample) -> StepCosts | None:
        """Return the costs of a step, all of the data's for each stage; None if no values can make it much faster."""
        step, busy = self._recent
        data, parameters = reference.seconds, self._feed.parameters
        ahead = any(parameter.kind in BUFFERS and parameter.current != 0 for parameter in parameters)
        hidden = ahead and data * _HIDDEN < step  # behind the work of the model
        least = _LEAST_MODEL_SHARE * step
        model = step if hidden else least if ahead else max(step - data, least)
        facts = {"step": step, "data": data}
        if step < _WAITS * model:
            self.messages.append(Message("data keep up", facts))
            return None
        if _WAITS * busy > _CORES:
            self.messages.append(Message("compute-bound", {"step": step, "busy": busy, "cores": _CORES}))
            return None
        self.messages.append(Message("data", facts))
        return StepCosts(model, self._feed.stages(data, reference.busy))

    def is_over(self) -> bool:
        """Return whether no other race fits into the rest; the first is always run."""
        return len(self.tried) > 1 and not self._is_worth_it()

    def doubts_first(self) -> bool:
        """Return whether the first values that were proposed leave time and reason to try AUTOTUNE."""
        return not self.best and self._is_worth_it()

    def _is_worth_it(self) -> bool:
        """Return whether another race fits into the rest of the fit, and of what it may wait."""
        left = self._feed.steps_left
        pause = 2 * SAMPLE[0] * self._seconds * self._steps + 3 * self._switch_seconds
        return pause <= self._left(0.0) and (left is None or left >= RACE * self._steps)

    def raced(self, values: dict[str, Value]) -> _Course:
        """Add the trial of values in a race against the best so far; the fit then runs with those that won."""
        started = time.perf_counter()
        best = dict(self.best)
        trial = Trial(len(self.trials), values, "failed", against=self._champion.number)
        try:
            reference = yield from self._referenced()
            with self._aside():
                limit = _PATIENCE * len(reference.batches) * reference.seconds + _HICCUP
                sample = self._feed.sampled(values, limit, batches=len(reference.batches))
            if sample.batches == reference.batches[: len(sample.batches)]:
                result = yield from self._pairs(values, best)
                trial = trial.decided(result, self._seconds)
            else:
                trial = replace(trial, verdict="different output", equal=False, error=self._feed.difference())
        except Exception as error:  # noqa: BLE001  whatever it is, the values do not suit this program
            trial = replace(trial, error=format_error(error))
        trial = replace(trial, spent=time.perf_counter() - started)
        self.trials.append(trial)
        self.tried[frozenset(values.items())] = trial.seconds
        self.journal.record(trial)
        if trial.verdict == "faster" and trial.seconds is not None:
            self.best, self._champion, self._seconds = values, trial, trial.seconds
        yield from self._run_with(self.best)

    def _pairs(self, values: Values, best: Values) -> Generator[None, None, RaceResult]:
        """Return the result of a race in blocks of steps, of which the first is lost at once by slower values."""
        race = Race()
        baseline = self._seconds if not best else (yield from self._block(best))
        result = race.add(baseline, (yield from self._block(values)))
        if result.ratio < 1:
            return replace(result, decision="not faster")
        while result.decision == "undecided" and result.pairs < MOST_PAIRS and self._pays(result):
            first, second = (values, best) if result.pairs % 2 else (best, values)
            seconds = (yield from self._block(first)), (yield from self._block(second))
            result = race.add(*(reversed(seconds) if first is values else seconds))
        return result

    def _pays(self, result: RaceResult) -> bool:
        """Return whether the training may wait for another pair, by what it would save if the gain is half of it."""
        steps = self._feed.steps if self._feed.steps_left is None else self._feed.steps_left
        saving = steps * self._seconds * (1 - 1 / math.sqrt(result.ratio))
        return result.ratio > _PROMISING and self._left(saving) > 2 * self._switch_seconds

    def _block(self, values: Values) -> Generator[None, None, float]:
        """Return the seconds per step of a block with some values; of a much slower one, those until it is ended."""
        warm, window = self._feed.block(values)
        warm = 0 if values == self.values else warm
        yield from self._run_with(values)
        started, steps = time.perf_counter(), self._feed.steps
        limit = _PATIENCE * (warm + window) * self._steps * self._seconds + _HICCUP
        taken = 0
        while taken < warm + window:
            yield
            now = time.perf_counter()
            if self._feed.step_in_epoch <= self._steps:  # an epoch has ended, or begun: its first step fills buffers
                started, steps, taken = now, self._feed.steps, min(taken, warm)
                continue
            taken += 1
            if taken == warm:
                started, steps = now, self._feed.steps
            elif now - started > limit:
                break
        return max(time.perf_counter() - started, 1e-9) / max(self._feed.steps - steps, 1)

    def _run_with(self, values: Values) -> _Course:
        """Continue the training with some values, at the same place."""
        if values == self.values:
            return
        yield from self._in_epoch()
        with self._aside():
            started = time.perf_counter()
            self._feed.switch(values)
            self.values = dict(values)
            self._switch_seconds = max(self._switch_seconds, time.perf_counter() - started)

    def _in_epoch(self) -> _Course:
        """Yield until the training is within an epoch."""
        while not self._feed.within_epoch:
            yield
