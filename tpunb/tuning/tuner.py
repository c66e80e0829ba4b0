"""Tunes the input pipeline of a job by short trials, its output unchanged (paper VII.B)."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from contextlib import closing

from tpunb.checkpoint import Checkpoint
from tpunb.errors import wrong
from tpunb.frames import Phases
from tpunb.frames.words import plural
from tpunb.tuning.contest import Budget, Contest
from tpunb.tuning.hot import hot
from tpunb.tuning.job import Job
from tpunb.tuning.loads import loads
from tpunb.tuning.model_based import model_based
from tpunb.tuning.nouns import Journal, Trial, Tuning, in_words
from tpunb.tuning.place import Midst
from tpunb.tuning.search import Needs, Search, Space
from tpunb.tuning.trial import Outcome, Track

WAITS = 1.15
"""A step that takes less than so many times the model alone, or its work on all cores, hardly waits."""

SHARE = 0.05
"""Of a run, where no budget is given."""

_CORES = os.cpu_count() or 1


def tune(
    job: Job,
    *,
    start: Checkpoint | None = None,
    search: Search | None = None,
    budget: float | Budget | None = None,
    phases: Phases | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> Tuning:
    """Return the values of a job's input pipeline with which it is fastest, its output the same to the last bit.

    Every trial runs a few steps from the same place. Values win that a race of pairs has shown to be faster than the
    program's own; where none are, those stay. The job's model, its random numbers and its data are afterwards what
    they were before.

    Parameters
    ----------
    job
        What is run.
    start
        A checkpoint of its ``fit``, of `tpunb.resuming.checkpointing`; None for the beginning.
    search
        What is tried: a generator of proposals; `tpunb.tuning.model_based.model_based` if None.
    budget
        Seconds, or a `Budget` of seconds and trials. If None, 5 % of the run that `phases` are of, else 60 s.
    phases
        Of a run of this job: they tell how long it takes, and which phase is worth tuning.
    folder
        Where trials are written as they arrive: `Tuning.read` finds them there.

    Raises
    ------
    TypeError, ValueError
        When an argument is none of these.
    TpunbError
        When the checkpoint does not hold all that a trial needs, or the job cannot be run as ``fit`` would.
    """
    tuner = Tuner(job, start, search or model_based, _budget(budget, phases), Journal(folder))
    if phases is not None:
        tuner.said.append(_about(phases))
    for _ in tuner.trials():
        pass
    return tuner.tuning


class Tuner:
    """A tuning that runs: trials as they arrive, and what is found so far.

    Parameters
    ----------
    job, start, search, budget
        As of `tune`.
    journal
        Where trials are written.

    Attributes
    ----------
    why_closed
        What is said where its trials are closed before their end.
    """

    def __init__(
        self, job: Job, start: Checkpoint | Midst | None, search: Search, budget: Budget, journal: Journal | None = None
    ) -> None:
        if not callable(search):
            raise wrong("tune", "search", "be a function of a space that yields proposals", search)
        self._track = Track(job, start)
        self._search, self._budget, self._journal = search, budget, journal or Journal(None)
        self._begun = time.perf_counter()
        self._contest: Contest | None = None
        self.said: list[str] = []
        self.why_closed = "It was stopped before its end."
        self.tuning = Tuning(())

    def trials(self) -> Generator[Trial, None, None]:
        """Yield trials as they are over; to close it ends the tuning, with what was found by then."""
        self._begun = time.perf_counter()
        try:
            with self._track:
                yield from self._trials()
        except GeneratorExit:
            self.said.append(self.why_closed)
            raise
        finally:
            self.tuning = self._found()
            self._journal.end(self.tuning)

    def _trials(self) -> Generator[Trial, None, None]:
        pipeline = self._track.pipeline
        self._journal.begin(self._track.job.fingerprint)
        if self._track.refusal is not None:
            self.said.append(f"Nothing was tried: {self._track.refusal}.")
            return
        if hidden := self._track.hidden:
            self.said.append(f"Nothing was tried: {hidden}, and a trial could not put it back.")
            return
        default = self._default()
        if default is None:
            return
        self._contest = Contest(self._track, default, self._budget, begun=self._begun)
        model = self._track.alone()
        if why := _bound(default, model):
            self._journal.note(self._contest.trials[0])
            yield self._contest.trials[0]
            self.said.append(f"Nothing to gain: {why}.")
            return
        self.said.append(f"A step takes {_ms(default.seconds)}, the model alone {_ms(model)}.")
        if self._track.why_slow:
            self.said.append(f"Every trial draws what lies before it again: {self._track.why_slow}.")
        space = Space.of(pipeline.knobs, lambda: Needs(model, loads(pipeline)), cores=_CORES, deepest=self._track.warm)
        with closing(self._contest.run(self._search, space)) as trials:
            for trial in trials:
                self._journal.note(trial)
                yield trial
        self._tell(self._contest)

    def _default(self) -> Outcome | None:
        """Return what the program's own values tell; None where they do not give the same output twice."""
        one, two = self._track.settle(), self._track.run({})
        if one.digest != two.digest:
            self.said.append(
                "Nothing was tried: with the values as they are, the same steps gave two outputs, so that it cannot "
                "be seen whether others change it."
            )
            return None
        return min(one, two, key=lambda outcome: outcome.seconds)

    def _tell(self, contest: Contest) -> None:
        best, tried = contest.best, len(contest.trials) - 1
        if contest.over:
            self.said.append(f"The budget was over after {plural(tried, 'trial')}.")
        if best.number == 0:
            self.said.append(f"Of {plural(tried, 'trial')} none was shown to be faster: the values stay as they are.")
            return
        ratio, low, high = contest.speedup
        gain = f"{ratio:.2f} times as fast, between {low:.2f} and {high:.2f}"
        self.said.append(f"{in_words(best.values)}: {gain}, and the same output.")

    def _found(self) -> Tuning:
        spent = time.perf_counter() - self._begun
        if self._contest is None:
            return Tuning((), said=tuple(self.said), seconds=spent)
        best = dict(self._contest.best.values)
        code = self._track.pipeline.as_code(best) if best else ""
        trials = tuple(self._contest.trials)
        return Tuning(trials, best, self._contest.speedup, tuple(self.said), spent, code)


def _budget(budget: float | Budget | None, phases: Phases | None) -> Budget:
    if isinstance(budget, Budget):
        return budget
    if budget is not None:
        if isinstance(budget, bool) or not isinstance(budget, int | float) or not budget > 0:
            raise ValueError(f"The budget parameter of tune must be above 0 seconds. Got {budget!r} instead.")
        return Budget(float(budget))
    if phases is None:
        return Budget()
    if not isinstance(phases, Phases):
        raise wrong("tune", "phases", "be Phases", phases)
    ran = int(phases.frame["dur_ps"].sum()) / 1e12
    return Budget(SHARE * ran) if ran > 0 else Budget()


def _about(phases: Phases) -> str:
    """Return which phase is worth tuning, in a sentence."""
    found = hot(phases)
    if found is None:
        return "No phase takes over half of the time, or most of its time for its data."
    return f"Phase {found.id} is worth tuning: it takes {found.share:.0%} of the time."


def _bound(default: Outcome, model: float) -> str:
    """Return why no values can make a step much shorter, in words; "" where some might."""
    if default.seconds < WAITS * model:
        alone = f"a step takes {_ms(default.seconds)}, the model alone {_ms(model)}"
        return f"{alone}, so that it hardly waits for its data"
    if WAITS * default.busy > _CORES:
        return f"a step takes {_ms(default.seconds)}, and keeps {default.busy:.1f} of {plural(_CORES, 'core')} busy"
    return ""


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
