"""Tunes the input pipeline of a job by short trials, without changing its output (paper VII.B)."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

from tpunb.errors import wrong_type
from tpunb.frames import Phases
from tpunb.text import format_error
from tpunb.training.fit_start import CheckpointPath
from tpunb.tuning.grain import GrainPipeline
from tpunb.tuning.job import Job, as_job, hot_phase, read
from tpunb.tuning.loader import LoaderPipeline
from tpunb.tuning.model_based import CALLS, model_based
from tpunb.tuning.racing import FEWEST_PAIRS
from tpunb.tuning.results import Journal, Message, Trial, Tuning
from tpunb.tuning.search import Search, Space, StepCosts
from tpunb.tuning.stage_costs import StageCost, most_seconds, stage_costs
from tpunb.tuning.tournament import Budget, Tournament, check_seconds
from tpunb.tuning.trial import BURSTS, SIZING, TrialResult, TrialRunner, model_seconds, trial_sizes
from tpunb.tuning.tried import JobTrials

WAITS = 1.15
"""Step time by that of the model alone, or of its work on all cores, below which a step hardly waits."""

SHARE = 0.05
"""Default budget, as a share of the run."""

_PROOF, _FEWEST_COMPARED = 0.1, 8
"""Share of the budget in which the winner's batches are compared once more, and the least number of them."""
_GRACE = 1.25  # budget of the first race by the budget: it runs, though trials take longer than was announced
_SHOWN = 0.02  # share of the work of all stages from which the cost of one is reported
_CORES = os.cpu_count() or 1


def tune(
    job: Any,
    data: Any = None,
    *,
    start: CheckpointPath | None = None,
    search: Search | None = None,
    budget: float | Budget | None = None,
    phases: Phases | None = None,
    folder: str | os.PathLike[str] | None = None,
    remedies: Any = None,
) -> Tuning:
    """Return the fastest values of a job's input pipeline, with the same output to the last bit.

    It prints at once how many seconds it needs; if the budget is below, it ends at once.
    Every trial runs a few steps from the same place. Values win if a race of pairs shows that they are faster than the
    program's own; otherwise these stay. Afterwards the job's model, its random numbers and its data are what they were
    before.

    Parameters
    ----------
    job
        `Job` to tune; a compiled Keras model, with its data; or a pipeline alone, of ``tf.data``, Grain or PyTorch's
        DataLoader: its batches are read and compared.
    data
        The model's ``tf.data.Dataset``, or its arrays (x, y): ``tune(model, data)`` is ``tune(Job((model, data)))``.
    start
        Checkpoint of its ``fit``, of `tpunb.checkpoint.checkpointing`; None for the beginning.
    search
        Generator function of proposals; `tpunb.tuning.model_based.model_based` by default.
    budget
        Seconds, or a `Budget` of seconds and trials; by default 5 % of the run of `phases`, or 60 s without.
    phases
        Phases of a run of this job: they give its duration, and the phase to tune.
    folder
        Folder to which trials are written as they finish, for `Tuning.read`.
    remedies
        Remedies to try in place of values: True for the advice on `phases`, rows of ``tp.advise``, or ids of causes.
        Steps of the job run in turns without and with each, on a model and data that it builds anew; `Tuning.tried`
        says what a step saves, and whether losses and parameters are equal. The run of `phases` keeps it.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid.
    TpunbError
        If the checkpoint does not hold all state that a trial needs, or the job cannot be run as ``fit`` would.
    """
    if remedies is not None:
        limits = Budget() if budget is None else _budget(budget, None)
        tried = JobTrials(as_job(job, data), remedies, start, limits.seconds, phases)
        for each in tried.trials():
            print(each, flush=True)
        return tried.tuning
    tuner = Tuner(as_job(job, data), start, search or model_based, _budget(budget, phases), Journal(folder))
    if phases is not None:
        phase = hot_phase(phases)
        if phase is None:
            tuner.report("no hot phase")
        else:
            tuner.report("hot phase", phase=phase.name, share=phase.share)
    tuner.announce = lambda sentence: print(sentence, flush=True)
    for _ in tuner.trials():
        pass
    return tuner.tuning


def least_seconds(execution: float, besides: float = 0.0, burst: int = 1) -> float:
    """Return the least duration of a tuning: the model alone, a trial for sizes, a baseline, its repeat, and one race.

    `execution` and `besides` are the seconds of an execution, and of a trial besides; `burst` batches are made at once.
    """
    trials = 1 + 2 * FEWEST_PAIRS  # the race has the repeat of the baseline
    warmup, window = trial_sizes(execution)
    executions = sum(SIZING) + trials * (warmup + window + (burst > warmup) * (1 + BURSTS) * burst)
    return executions * execution + (1 + trials) * besides + model_seconds(execution)


class Tuner:
    """A running tuning: trials as they finish, and the result so far."""

    def __init__(
        self,
        job: Job,
        start: CheckpointPath | None,
        search: Search,
        budget: Budget,
        journal: Journal | None = None,
    ) -> None:
        if not callable(search):
            raise wrong_type("tune", "search", "be a function of a space that yields proposals", search)
        self._runner = TrialRunner(job, start)
        self._search, self._budget, self._journal = search, budget, journal or Journal(None)
        self._started = time.perf_counter()
        self._tournament: Tournament | None = None
        self.messages: list[Message] = []
        self.announce: Callable[[str], object] = lambda sentence: None
        """Receives a sentence with the seconds needed, before the first trial."""
        self.tuning = Tuning(())

    def report(self, code: str, **facts: Any) -> None:
        """Add an event."""
        self.messages.append(Message(code, facts))

    def trials(self) -> Generator[Trial, None, None]:
        """Yield finished trials; closing it ends the tuning, with the result so far."""
        self._started = time.perf_counter()
        try:
            with self._runner:
                yield from self._trials()
        except GeneratorExit:
            self.report("stopped")
            raise
        finally:
            self.tuning = self._result()
            self._journal.end(self.tuning)

    def _trials(self) -> Generator[Trial, None, None]:
        runner = self._runner
        self._journal.start(runner.job.fingerprint)
        for reason in runner.pipeline.unsafe:
            self.report("unsafe", reason=reason)
        if runner.pipeline.refusal is not None:
            self.report("not tuned", reason=runner.pipeline.refusal)
            return
        if state := runner.untracked_state():
            self.report("untracked state", state=state)
            return
        costs = most_seconds(runner.pipeline) if self._search is model_based else 0.0
        least = least_seconds(*runner.sample(), runner.pipeline.in_flight({}))
        if self._is_too_short(least + costs, announced=True):
            return
        default = self._default()
        if default is None or self._is_too_short((2 * FEWEST_PAIRS - 1) * default.spent, grace=_GRACE):
            return
        kept = 1 - _PROOF if isinstance(runner.pipeline, LoaderPipeline) else 1.0
        budget = replace(self._budget, seconds=kept * self._budget.seconds)
        tournament = self._tournament = Tournament(runner.trial, default, budget, started=self._started, grace=_GRACE)
        model = runner.model_only_seconds()
        bound = _bound(default, model)
        self.messages.append(bound or Message("step", {"step": default.seconds, "model": model}))
        if bound is not None:
            self._journal.record(tournament.trials[0])
            yield tournament.trials[0]
            return
        if runner.position.obstacle:
            self.report("slow start", reason=runner.position.obstacle)
        space = Space.of(
            runner.pipeline.parameters,
            lambda: StepCosts(model, self._stage_costs(default)),
            cores=_CORES,
            deepest=runner.sizes[0],
        )
        with closing(tournament.play(self._search, space)) as trials:
            for trial in trials:
                self._journal.record(trial)
                yield trial
        if self._is_proved(tournament):
            self._report_winner(tournament)

    def _is_proved(self, tournament: Tournament) -> bool:
        """Compare the batches of a DataLoader's winning values over more of an epoch; if one differs, nothing wins."""
        runner, winner = self._runner, tournament.winner
        if not isinstance(runner.pipeline, LoaderPipeline) or winner.number == 0:
            return True
        epoch = runner.pipeline.batches
        seconds = tournament.trials[0].seconds or math.inf
        batches = max(round(_PROOF * self._budget.seconds / seconds), _FEWEST_COMPARED)
        batches = min(batches, epoch + 1) if epoch else batches  # the first of the next epoch shows its order
        try:
            different = runner.first_difference(winner.values, batches)
        except Exception as error:  # noqa: BLE001  whatever it is, the values do not suit this program
            tournament.trials[winner.number] = replace(winner, verdict="failed", error=format_error(error))
            tournament.winner = tournament.trials[0]
            return True
        if different is None:
            self.report("compared", batches=batches, epoch=f"{epoch:,}" if epoch else "an unknown number")
            return True
        self.report("different batches", batches=different, values=dict(winner.values))
        tournament.trials[winner.number] = replace(winner, verdict="different output", equal=False)
        tournament.winner = tournament.trials[0]
        return False

    def _stage_costs(self, default: TrialResult) -> tuple[StageCost, ...]:
        """Measure the costs of the stages, and report those that take a share of the whole; else those of a step."""
        costs: tuple[StageCost, ...] = ()
        try:
            costs = stage_costs(self._runner.pipeline)
        except Exception as error:  # noqa: BLE001  trials show whether the data fail
            self.report("stages unknown", error=format_error(error))
        if not costs:
            calls = [each for each in self._runner.pipeline.parameters if each.kind in CALLS]
            return tuple(StageCost(each.stage, default.seconds, min(default.busy, 1.0)) for each in calls)
        parts = [part for cost in costs for part in cost.parts or (cost,)]
        least = _SHOWN * sum(part.seconds for part in parts)
        shown = {part.stage: [part.seconds, part.elements] for part in parts if part.seconds > least}
        if shown:
            self.report("stages", stages=shown)
        return costs

    def _is_too_short(self, seconds: float, *, announced: bool = False, grace: float = 1.0) -> bool:
        """Return whether the budget ends before some more seconds; report these, or that it does."""
        needed, budget = time.perf_counter() - self._started + seconds, self._budget.seconds
        if announced:
            self.report("needs", needed=needed, budget=budget)
            self.announce(str(self.messages[-1]))
        if needed <= grace * budget:
            return False
        self.report("budget too small", budget=budget, needed=needed)
        return True

    def _default(self) -> TrialResult | None:
        """Return the result of the program's values; None if its outputs are not repeatable."""
        first, second = self._runner.calibrate(), self._runner.trial({})
        if first.digest != second.digest:
            self.report("not repeatable")
            self._report_varying()
            return None
        return min(first, second, key=lambda result: result.seconds)

    def _report_varying(self) -> None:
        """Name the stage of Grain that makes the output differ, if it is found."""
        pipeline, stage = self._runner.pipeline, ""
        if isinstance(pipeline, GrainPipeline):
            with suppress(Exception):  # it only explains
                stage = pipeline.varying(lambda element: read(None, element).tobytes())
        if stage:
            self.report("varying", stage=stage)

    def _report_winner(self, tournament: Tournament) -> None:
        winner, tried = tournament.winner, len(tournament.trials) - 1
        if any(trial.verdict == "different output" for trial in tournament.trials):
            self._report_varying()
        if tournament.needed:
            self.report("budget too small", budget=self._budget.seconds, needed=tournament.needed)
            return
        if tournament.exhausted:
            self.report("budget spent", trials=tried)
        if winner.number == 0:
            self.report("none faster", trials=tried)
        else:
            self.report("winner", values=dict(winner.values), speedup=[*tournament.speedup])

    def _result(self) -> Tuning:
        spent, messages = time.perf_counter() - self._started, tuple(self.messages)
        if self._tournament is None:
            return Tuning((), messages=messages, seconds=spent)
        best = dict(self._tournament.winner.values)
        code = self._runner.pipeline.as_code(best) if best else ""
        return Tuning(tuple(self._tournament.trials), best, self._tournament.speedup, messages, spent, code)


def _budget(budget: float | Budget | None, phases: Phases | None) -> Budget:
    if isinstance(budget, Budget):
        return budget
    if budget is not None:
        check_seconds("budget", "tune", budget)
        return Budget(float(budget))
    if phases is None:
        return Budget()
    if not isinstance(phases, Phases):
        raise wrong_type("tune", "phases", "be Phases", phases)
    ran = int(phases.frame["dur_ps"].sum()) / 1e12
    return Budget(SHARE * ran) if ran > 0 else Budget()


def _bound(default: TrialResult, model: float) -> Message | None:
    """Return why no values can make a step much faster; None if some may."""
    if default.seconds < WAITS * model:
        return Message("model-bound", {"step": default.seconds, "model": model})
    if WAITS * default.busy > _CORES:
        return Message("compute-bound", {"step": default.seconds, "busy": default.busy, "cores": _CORES})
    return None
