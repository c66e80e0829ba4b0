"""The contest for the best values: each that a search proposes races the best so far, within a budget (paper VII.B).

The program's own values run first and stay the best until others have won a race. AUTOTUNE everywhere comes after the
first proposal, whatever the search does: what waits is seldom fast with AUTOTUNE, so that a good proposal spares it the
long race against the program's own. What wins in the end has won against those, not only against others.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Protocol

from tpunb.errors import wrong
from tpunb.tuning.knob import Value
from tpunb.tuning.nouns import SAME, Speedup, Trial
from tpunb.tuning.race import alternating, race
from tpunb.tuning.refused import Refused
from tpunb.tuning.search import Search, Space, Values
from tpunb.tuning.trial import Outcome

FEWEST, MOST = 3, 6
"""Pairs of a race."""

Key = frozenset[tuple[str, Value]]
"""Values, whatever their order."""

_REPEATED = 100
"""Proposals in a row that were known already, after which a search is at its end."""


@dataclass(frozen=True)
class Budget:
    """What tuning may take: seconds, and trials (None for as many as there is time for)."""

    seconds: float = 60.0
    trials: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.seconds, bool) or not isinstance(self.seconds, int | float) or not self.seconds > 0:
            raise ValueError(f"The seconds parameter of Budget must be above 0. Got {self.seconds!r} instead.")
        if self.trials is not None and (isinstance(self.trials, bool) or self.trials < 1):
            raise ValueError(f"The trials parameter of Budget must be 1 or more, or None. Got {self.trials!r} instead.")


class Tried(Protocol):
    """What can be tried: `tpunb.tuning.trial.Track` is."""

    def run(self, values: Mapping[str, Value]) -> Outcome:
        """Return what a trial of some values tells, or raise `Refused`."""


class Contest:
    """Runs the trials of a search.

    Parameters
    ----------
    track
        Runs one.
    default
        What the program's own values told.
    budget
        For all of it; what was spent since `begun` counts.
    clock
        Seconds.
    begun
        When the clock began to count; now, if None.
    """

    def __init__(
        self,
        track: Tried,
        default: Outcome,
        budget: Budget,
        *,
        clock: Callable[[], float] = time.perf_counter,
        begun: float | None = None,
    ) -> None:
        self._track, self._digest, self._budget, self._clock = track, default.digest, budget, clock
        self._begun = clock() if begun is None else begun
        self._fresh: float | None = default.seconds  # spares the first race one run of it
        first = Trial(0, {}, "default", default.seconds, equal=True, spent=default.spent)
        self.trials = [first]
        self._best = self._proved = first
        self._took = {_key({}): default.spent}  # seconds of one run of values, the last time
        self._costs: dict[Key, float | None] = {_key({}): default.seconds}
        self.over = False  # the budget is

    @property
    def best(self) -> Trial:
        """The trial that has won against the program's own values, or is they."""
        return self._proved

    @property
    def speedup(self) -> Speedup:
        """Of `best`."""
        best = self._proved
        if best.ratio is None or best.low is None or best.high is None:
            return SAME
        return Speedup(best.ratio, best.low, best.high)

    def run(self, search: Search, space: Space) -> Generator[Trial, None, None]:
        """Yield trials as they are over: the program's own values, the search's with AUTOTUNE, and a last race."""
        yield self.trials[0]
        yield from self._propose(search, space)
        yield from self._entered(space.autotune, space)  # where a search had nothing to propose
        if self._best is not self._proved and self._spent() + self._last_race() <= self._budget.seconds:
            last = self._tried(self._best.values, self.trials[0])
            if last.verdict == "faster":
                self._proved = last
            yield last

    def _propose(self, search: Search, space: Space) -> Iterator[Trial]:
        proposals, known = search(space), 0
        try:
            values = next(proposals)
            while known < _REPEATED:
                key = _key(_changed(values, space))
                known = known + 1 if key in self._costs else 0
                yield from self._entered(values, space)
                if len(self.trials) == 2:
                    yield from self._entered(space.autotune, space)
                if self.over:
                    return
                values = proposals.send(self._costs[key])
        except StopIteration:
            pass
        finally:
            proposals.close()

    def _entered(self, values: Values, space: Space) -> Iterator[Trial]:
        """Yield the trial of values, unless they are known or there is no time."""
        changed = _changed(values, space)
        if (key := _key(changed)) in self._costs or self.over:
            return
        if not self._has_time():
            self.over = True
            return
        trial = self._tried(changed, self._best)
        self._costs[key] = trial.seconds
        if trial.verdict == "faster":
            if trial.against == 0:
                self._proved = trial
            self._best = trial
        yield trial

    def _tried(self, values: Values, against: Trial) -> Trial:
        """Return the trial of a race with another."""
        begun = self._clock()
        trial = Trial(len(self.trials), dict(values), "refused", against=against.number)
        try:
            raced = race(self._pairs(against.values, values), fewest=FEWEST, most=MOST)
        except _OtherOutput:
            trial = replace(trial, verdict="other output", equal=False)
        except Refused as error:
            trial = replace(trial, error=str(error))
        else:
            low, high = (None if math.isnan(end) else end for end in (raced.low, raced.high))
            seconds = None if against.seconds is None else against.seconds / raced.ratio
            trial = replace(trial, verdict=raced.decision, seconds=seconds, equal=True)
            trial = replace(trial, ratio=raced.ratio, low=low, high=high, pairs=raced.pairs)
        trial = replace(trial, spent=self._clock() - begun)
        self.trials.append(trial)
        return trial

    def _pairs(self, present: Values, other: Values) -> Iterator[tuple[float, float]]:
        """Yield pairs while there is time for another, and for the last race."""
        first = self._seconds(other)  # what is refused is refused before anything else runs
        fresh, self._fresh = self._fresh, None
        known = fresh if fresh is not None and not present else self._seconds(present)
        rest = alternating(lambda: self._seconds(present), lambda: self._seconds(other))
        for pair in chain([(known, first)], rest):
            yield pair
            last = 0.0 if not present else self._last_race()  # which is against the program's own values
            if self._spent() + self._run_of(present) + self._run_of(other) + last > self._budget.seconds:
                return

    def _seconds(self, values: Values) -> float:
        outcome = self._track.run(values)
        self._took[_key(values)] = outcome.spent
        if outcome.digest != self._digest:
            raise _OtherOutput
        return outcome.seconds

    def _run_of(self, values: Values) -> float:
        """Return the seconds that a run of some values takes; of new ones as those of the best."""
        return self._took.get(_key(values), self._took[_key(self._best.values)])

    def _last_race(self) -> float:
        """Return the seconds that the last race will take, where one is due: of the best with the program's own."""
        due = self._best is not self._proved
        return due * FEWEST * (self._run_of({}) + self._run_of(self._best.values))

    def _spent(self) -> float:
        return self._clock() - self._begun

    def _has_time(self) -> bool:
        """Say whether there is time and room for a race, and then for the last one."""
        room = self._budget.trials is None or len(self.trials) + (self._best.number > 0) < self._budget.trials
        race = 2 * FEWEST * self._run_of(self._best.values)
        last = FEWEST * (self._run_of({}) + self._run_of(self._best.values)) if self._best.number else 0.0
        return room and self._spent() + race + last <= self._budget.seconds


class _OtherOutput(Exception):
    """A trial whose output is not the program's."""


def _key(values: Values) -> Key:
    return frozenset(values.items())


def _changed(values: object, space: Space) -> dict[str, Value]:
    """Return the values that are not the program's own."""
    if not isinstance(values, Mapping):
        raise wrong("tune", "search", "yield mappings of knobs to values", values)
    default = space.default
    return {name: value for name, value in values.items() if name not in default or value != default[name]}
