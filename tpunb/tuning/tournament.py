"""A tournament of parameter values: each proposal of a search races the best so far, within a budget (paper VII.B).

The program's values run first. AUTOTUNE for all parameters follows the first proposal: pipelines that wait are seldom
fast with it, so a good proposal spares it a long race. The winner has won against the program's values.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Generic, TypeVar

from tpunb.errors import brief, wrong_type
from tpunb.tuning.parameters import Value
from tpunb.tuning.racing import FEWEST_PAIRS, race
from tpunb.tuning.results import NARROW, SAME, Speedup, Trial
from tpunb.tuning.search import Search, Space, Values
from tpunb.tuning.trial import TrialError, TrialResult

_REPEATED = 100  # repeated proposals in a row that end a search

Key = frozenset[tuple[str, Value]]
Waits = TypeVar("Waits")


@dataclass(frozen=True)
class Budget:
    """Limits of a tuning: seconds, and trials (None for no limit)."""

    seconds: float = 60.0
    trials: int | None = None

    def __post_init__(self) -> None:
        check_seconds("seconds", "Budget", self.seconds)
        if self.trials is not None and (isinstance(self.trials, bool) or self.trials < 1):
            raise ValueError(f"The trials parameter of Budget must be 1 or more, or None. Got {self.trials!r} instead.")


def check_seconds(name: str, owner: str, seconds: object) -> None:
    """Raise a ValueError unless a parameter is a number of seconds above 0."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise ValueError(f"The {name} parameter of {owner} must be above 0 seconds. Got {brief(seconds)} instead.")


class Contest(ABC, Generic[Waits]):
    """Values that a search proposes, each raced once: in trials of their own, or in steps of a running training.

    What it waits for is yielded.
    """

    def __init__(self, first: Trial) -> None:
        self.trials = [first]
        self.tried: dict[Key, float | None] = {_key({}): first.seconds}  # seconds per step of values

    @abstractmethod
    def raced(self, values: dict[str, Value]) -> Generator[Waits, None, None]:
        """Race new values against the best so far, if there is time, and note them in `tried`."""

    @abstractmethod
    def is_over(self) -> bool:
        """Return whether to ask the search for no more values."""

    def proposed(self, search: Search, space: Space) -> Generator[Waits, None, None]:
        """Race what a search proposes, and AUTOTUNE after its first values."""
        proposals, repeated = search(space), 0
        try:
            values = next(proposals)
            while repeated < _REPEATED:
                key = _key(_changed(values, space))
                repeated = repeated + 1 if key in self.tried else 0
                yield from self.entered(values, space)
                if len(self.trials) == 2 and self.doubts_first():
                    yield from self.entered(space.autotune, space)
                if self.is_over():
                    return
                values = proposals.send(self.tried[key])
        except StopIteration:
            pass
        finally:
            proposals.close()

    def doubts_first(self) -> bool:
        """Return whether the first values that were proposed leave time and reason to try AUTOTUNE."""
        return True

    def entered(self, values: Values, space: Space) -> Generator[Waits, None, None]:
        """Race values, if they are new."""
        changed = _changed(values, space)
        if _key(changed) not in self.tried:
            yield from self.raced(changed)


class Tournament(Contest[Trial]):
    """Runs the trials that a search proposes; `winner` is the one that won against the program's values, or these."""

    def __init__(
        self,
        run: Callable[[Values], TrialResult],
        baseline: TrialResult,
        budget: Budget,
        *,
        clock: Callable[[], float] = time.perf_counter,
        started: float | None = None,
        grace: float = 1.0,
    ) -> None:
        self._run, self._digest, self._budget, self._clock = run, baseline.digest, budget, clock
        self._started = clock() if started is None else started
        self._spare: float | None = baseline.seconds  # spares the first race one run of the program's values
        super().__init__(Trial(0, {}, "default", baseline.seconds, equal=True, spent=baseline.spent))
        self._best = self.winner = self.trials[0]
        self._run_seconds = {_key({}): baseline.spent}  # of the last run of some values
        self._grace = grace  # budget until the end of the first race, by the budget
        self.exhausted = False
        """Whether the budget ended the search."""
        self.needed = 0.0
        """Seconds that the first race would have needed; 0 if it ran."""

    @property
    def speedup(self) -> Speedup:
        """Speed-up of `winner`."""
        ratio, low, high = self.winner.ratio, self.winner.low, self.winner.high
        return SAME if ratio is None or low is None or high is None else Speedup(ratio, low, high)

    def play(self, search: Search, space: Space) -> Generator[Trial, None, None]:
        """Yield finished trials: the program's values, the search's with AUTOTUNE, and the final race."""
        yield self.trials[0]
        yield from self.proposed(search, space)
        yield from self.entered(space.autotune, space)  # if the search proposed nothing
        if self._best is not self.winner and self._spent() + self._final_race() <= self._budget.seconds:
            final = self._raced(self._best.values, self.trials[0])
            if final.verdict == "faster":
                self.winner = final
            yield final

    def is_over(self) -> bool:
        """Return whether the budget ended the search."""
        return self.exhausted

    def raced(self, values: dict[str, Value]) -> Generator[Trial, None, None]:
        """Yield the trial of new values, if there is time."""
        if self.exhausted or not self._has_time():
            self.exhausted = True
            return
        trial = self._raced(values, self._best)
        self.tried[_key(values)] = trial.seconds
        if trial.verdict == "faster":
            if trial.against == 0:
                self.winner = trial
            self._best = trial
        yield trial

    def _raced(self, values: Values, against: Trial) -> Trial:
        """Return the trial of values in a race against another."""
        started = self._clock()
        trial = Trial(len(self.trials), dict(values), "failed", against=against.number)
        try:
            shown = math.inf if against.number else NARROW  # the interval against the program's values is reported
            pairs = self._pairs(against.values, values)
            result = race(pairs, narrow=shown)
        except _DifferentOutput:
            trial = replace(trial, verdict="different output", equal=False)
        except TrialError as error:
            trial = replace(trial, error=str(error))
        else:
            trial = trial.decided(result, against.seconds)
        trial = replace(trial, spent=self._clock() - started)
        self.trials.append(trial)
        return trial

    def _pairs(self, best: Values, candidate: Values) -> Iterator[tuple[float, float]]:
        """Yield pairs while there is time for another and for the final race."""
        seconds = self._seconds(candidate)  # if it fails, nothing else runs
        spare, self._spare = self._spare, None
        yield spare if spare is not None and not best else self._seconds(best), seconds
        for number in count(1):
            allowed = self._seconds_allowed() if number < FEWEST_PAIRS else self._budget.seconds
            final = self._final_race() if best else 0.0  # a race against the program's values is the final one
            if self._spent() + self._seconds_to_run(best, candidate) + final > allowed:
                return
            if number % 2:
                yield self._seconds(best), self._seconds(candidate)
            else:
                seconds = self._seconds(candidate)
                yield self._seconds(best), seconds

    def _seconds(self, values: Values) -> float:
        result = self._run(values)
        self._run_seconds[_key(values)] = result.spent
        if result.digest != self._digest:
            raise _DifferentOutput
        return result.seconds

    def _seconds_to_run(self, *values: Values) -> float:
        """Return the expected duration of one run each; new values take as long as the best."""
        best = self._run_seconds[_key(self._best.values)]
        return sum(self._run_seconds.get(_key(each), best) for each in values)

    def _final_race(self) -> float:
        """Return the expected duration of the final race; 0 if none is due."""
        due = self._best is not self.winner
        return due * FEWEST_PAIRS * self._seconds_to_run({}, self._best.values)

    def _spent(self) -> float:
        return self._clock() - self._started

    def _seconds_allowed(self) -> float:
        return self._budget.seconds * (self._grace if len(self.trials) == 1 else 1.0)

    def _has_time(self) -> bool:
        """Return whether the budget allows a race and the final one after it."""
        best, final = self._best.values, self._best.number > 0
        if self._budget.trials is not None and len(self.trials) + final >= self._budget.trials:
            return False
        seconds = FEWEST_PAIRS * (self._seconds_to_run(best, best) + final * self._seconds_to_run({}, best))
        spare = self._seconds_to_run({}) if self._spare is not None else 0.0
        needed = self._spent() + seconds - spare
        if needed > self._seconds_allowed() and len(self.trials) == 1:
            self.needed = needed
        return needed <= self._seconds_allowed()


class _DifferentOutput(Exception):
    """The output of a trial is not the program's."""


def _key(values: Values) -> Key:
    return frozenset(values.items())


def _changed(values: object, space: Space) -> dict[str, Value]:
    """Return the values that differ from the program's."""
    if not isinstance(values, Mapping):
        raise wrong_type("tune", "search", "yield mappings of parameter names to values", values)
    default = space.default
    return {name: value for name, value in values.items() if name not in default or value != default[name]}
