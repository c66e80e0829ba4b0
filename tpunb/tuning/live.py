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
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tpunb.errors import wrong_type
from tpunb.text import format_error
from tpunb.tfdata import position
from tpunb.training.fit_state import Fit
from tpunb.tuning.job import Job
from tpunb.tuning.parameters import Kind, Parameter, Value
from tpunb.tuning.pipeline import Pipeline
from tpunb.tuning.position import saveable
from tpunb.tuning.racing import MOST_PAIRS, Race, RaceResult
from tpunb.tuning.results import SAME, Journal, Message, Trial, Tuning
from tpunb.tuning.search import BUFFERS, Search, Space, StepCosts, Values
from tpunb.tuning.stage_costs import StageCost

SAMPLE = 3, 8
"""Least and most batches that are drawn from a copy of the data."""

WARM, WINDOW = 6, 6
"""Executions after a change of values that are not measured, since they empty or fill buffers, and those that are."""

RACE = 6 * (WARM + WINDOW)
"""Executions that a fit must have left: those of a race."""

SWITCH = 0.15
"""Expected seconds of a change of values, before there has been one."""

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


class Feed(Protocol):
    """The data of a running training, whose values change at any place within an epoch."""

    @property
    def steps(self) -> int:
        """Steps of the training."""

    @property
    def step_in_epoch(self) -> int:
        """Steps since the begin of an epoch, or another interruption."""

    @property
    def steps_left(self) -> int | None:
        """Steps that are left, or expected; None if unknown."""

    @property
    def turn(self) -> int:
        """Steps of an execution."""

    @property
    def used(self) -> float:
        """Seconds of drawing samples that the training need not draw again."""

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters whose values may change."""

    @property
    def within_epoch(self) -> bool:
        """Whether there is a position."""

    def obstacle(self) -> str:
        """Return why the values cannot change, or ""."""

    def sampled(self, values: Values, limit: float, *, batches: int = SAMPLE[1]) -> Sample:
        """Return batches from the present position on with some values, as many as fit into a limit of seconds."""

    def switch(self, values: Values) -> None:
        """Continue with some values."""

    def as_code(self, values: Values) -> str:
        """Return the lines of code that set some values."""

    def stages(self, seconds: float, busy: float) -> tuple[StageCost, ...]:
        """Return the costs of the stages, if a batch takes some seconds in which some cores are busy."""

    def difference(self) -> str | None:
        """Return why values changed the batches, if it is known."""

    def block(self, values: Values) -> tuple[int, int]:
        """Return executions after a change to values that are not measured, and those that are."""


class KerasFeed:
    """The data of a fit, `saveable` ones of `Pipeline.in_place`."""

    used = 0.0

    def __init__(self, fit: Fit, job: Job) -> None:
        self._fit, self._job = fit, job

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline of the data."""
        pipeline = self._job.pipeline
        assert isinstance(pipeline, Pipeline)
        return pipeline

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Those of the pipeline."""
        return self.pipeline.parameters

    def stages(self, seconds: float, busy: float) -> tuple[StageCost, ...]:
        """Return the costs of the stages, any of which may take all of a batch's."""
        calls = [parameter for parameter in self.parameters if parameter.kind is Kind.CALLS]
        return tuple(StageCost(parameter.stage, seconds, busy) for parameter in calls)

    def difference(self) -> str | None:
        """Return None: a difference is not explained."""
        return None

    def obstacle(self) -> str:
        """Return "", as the fit has been checked."""
        return ""

    def as_code(self, values: Values) -> str:
        """Return the lines of code that set some values."""
        return self.pipeline.as_code(values)

    @property
    def steps(self) -> int:
        """Steps of the optimizer."""
        return self._fit.steps

    @property
    def step_in_epoch(self) -> int:
        """Steps since the begin of the epoch."""
        return self._fit.step_in_epoch

    @property
    def steps_left(self) -> int | None:
        """Steps left in the fit."""
        return self._fit.steps_left

    @property
    def turn(self) -> int:
        """Steps of an execution."""
        return int(self._fit.model.steps_per_execution)

    @property
    def within_epoch(self) -> bool:
        """Whether there is a position."""
        return self._fit.cursor is not None

    def block(self, values: Values) -> tuple[int, int]:
        """Return the executions of a block: before the measurement, and in it."""
        return WARM, WINDOW

    def switch(self, values: Values) -> None:
        """Continue with some values at the same element."""
        iterator = self._copy(values)
        later = saveable(self.pipeline.in_place(values))  # continues the program's shuffles
        self._fit.data.replace(later, iterator, "the pipeline was tuned in the midst of the fit")

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
            drawn.append(position.fingerprint(batch))
        busy = (time.process_time() - worked) / max(time.perf_counter() - begun, 1e-9)
        return Sample(self._fit.steps, tuple(drawn), statistics.fmean(seconds[len(seconds) // 2 :] or [0.0]), busy)

    def _copy(self, values: Values) -> Any:
        """Return an iterator over the data with some values, at the present position."""
        stand = self._fit.cursor
        assert stand is not None
        state = position.state_of(stand.iterator)
        iterator = iter(saveable(self.pipeline.build(values)))
        position.set_state(iterator, state)
        return iterator


class LiveTuning:
    """A tuning in place: ``next(course)`` after each step.

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
        self.trials = [Trial(0, {}, "default", recent[0], equal=True)]
        self._champion = self.trials[0]
        self._seconds = recent[0]  # per step, of the best values
        self._reference: Sample | None = None

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
        """Yield until a step has been taken, to the end of the tuning."""
        self.journal.record(self.trials[0])
        reference = yield from self._referenced()
        if (costs := self._costs(reference)) is not None:
            space = Space.of(self._feed.parameters, lambda: costs, cores=_CORES, deepest=_DEEPEST)
            yield from self._proposed(space)

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

    def _proposed(self, space: Space) -> _Course:
        """Race the proposals of the search, and AUTOTUNE if its first one is not faster."""
        proposals = self._search(space)
        seen: dict[frozenset[tuple[str, Value]], float | None] = {frozenset(): self._seconds}
        try:
            values = next(proposals)
            while len(seen) < 2 or self._is_worth_it():
                cost = yield from self._entered(values, space, seen)
                if len(self.trials) == 2 and not self.best and self._is_worth_it():
                    yield from self._entered(space.autotune, space, seen)
                values = proposals.send(cost)
        except StopIteration:
            pass
        finally:
            proposals.close()

    def _entered(
        self, proposed: Values, space: Space, seen: dict[frozenset[tuple[str, Value]], float | None]
    ) -> Generator[None, None, float | None]:
        if not isinstance(proposed, Mapping):
            raise wrong_type("tune", "search", "yield mappings of parameter names to values", proposed)
        default = space.default
        values = {name: value for name, value in proposed.items() if name not in default or value != default[name]}
        key = frozenset(values.items())
        if key not in seen:
            yield from self._raced(values)
            seen[key] = self.trials[-1].seconds
        return seen[key]

    def _is_worth_it(self) -> bool:
        """Return whether another race fits into the rest of the fit, and of what it may wait."""
        left = self._feed.steps_left
        pause = 2 * SAMPLE[0] * self._seconds * self._steps + 3 * self._switch_seconds
        return pause <= self._left(0.0) and (left is None or left >= RACE * self._steps)

    def _raced(self, values: Values) -> _Course:
        """Add the trial of values in a race against the best so far; the fit then runs with those that won."""
        started = time.perf_counter()
        best, against = dict(self.best), self._champion
        trial = Trial(len(self.trials), dict(values), "failed", against=against.number)
        try:
            reference = yield from self._referenced()
            with self._aside():
                limit = _PATIENCE * len(reference.batches) * reference.seconds + _HICCUP
                sample = self._feed.sampled(values, limit, batches=len(reference.batches))
            if sample.batches == reference.batches[: len(sample.batches)]:
                result = yield from self._pairs(values, best)
                low, high = (None if math.isnan(end) else end for end in (result.low, result.high))
                seconds = self._seconds / result.ratio
                trial = replace(trial, verdict=result.decision, seconds=seconds, equal=True, pairs=result.pairs)
                trial = replace(trial, ratio=result.ratio, low=low, high=high)
            else:
                trial = replace(trial, verdict="different output", equal=False, error=self._feed.difference())
        except Exception as error:  # noqa: BLE001  whatever it is, the values do not suit this program
            trial = replace(trial, error=format_error(error))
        trial = replace(trial, spent=time.perf_counter() - started)
        self.trials.append(trial)
        self.journal.record(trial)
        if trial.verdict == "faster" and trial.seconds is not None:
            self.best, self._champion, self._seconds = dict(values), trial, trial.seconds
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
