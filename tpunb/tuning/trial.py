"""Trials: short runs of a job, all from the same place, with different values of its pipeline (paper VII.B).

A trial restores the state and the position in the data, runs warm-up executions that fill the buffers, times a window
of executions, and digests the outputs. Jobs whose trials of the same values differ cannot be tuned.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from tpunb.errors import TpunbError, wrong_type
from tpunb.text import format_error, plain, plural
from tpunb.torchdata.effects import digest as digest_of
from tpunb.training.fit_start import CheckpointPath, FitStart
from tpunb.training.seeds import RandomState
from tpunb.training.state import arrays, digest
from tpunb.tuning.grain import GrainPipeline
from tpunb.tuning.job import Job
from tpunb.tuning.loader import LoaderPipeline
from tpunb.tuning.parameters import Value
from tpunb.tuning.pipeline import Pipeline
from tpunb.tuning.position import BatchSource, Beginning, LoaderSource, TfPosition

WARMUP = 8
"""Executions before the window: they empty, or fill, buffers of as many batches."""

_SECONDS, _FEWEST_EXECUTIONS, _MOST_EXECUTIONS = 0.5, 3, 100
"""Duration of a window with the current values, and limits of its executions."""

_MODEL_EXECUTIONS = 10  # executions of a window of the model alone

SIZING = 3, 3
"""Warm-up and window of the trial that chooses the sizes; of slow executions, it is like the others."""

_SHORT, _RETIMED = 0.15, 0.2  # seconds of a window that is timed once more after the output, and of that second one

BURSTS = 2
"""Bursts of batches in a window, of a pipeline that makes more at once than the warm-up takes: after one burst."""
_AHEAD = 1.0  # seconds for which batches that workers have made ahead are used up before the window
_SLOW = 0.3  # seconds per execution from which the warm-up is shorter
_PATIENCE, _HICCUP = 5, 2.0  # limit of a trial's duration: by the program's values, and at least, in seconds


class TrialError(TpunbError):
    """A trial raised an error: its values cannot be used (paper VII.A)."""


@dataclass(frozen=True)
class TrialResult:
    """Result of one trial."""

    seconds: float  # per step, in the window
    digest: str  # of losses, metrics and the final state
    spent: float  # seconds of the whole trial
    busy: float = 0.0  # cores that this process kept busy in the window


class TrialRunner:
    """A job at one place of its run: ``with TrialRunner(job) as runner: result = runner.calibrate()``.

    It starts at a checkpoint of its ``fit``, or at the beginning (None). After the block all state is what it was
    before. The sizes of a trial, executions before its window and in it, follow from the time of one, unless given.
    """

    def __init__(
        self,
        job: Job,
        start: CheckpointPath | None = None,
        *,
        sizes: tuple[int, int] | None = None,
    ) -> None:
        if not isinstance(job, Job):
            hint = "tp.tune(model, data), or tp.tune(tp.tuning.Job(build)), where build() returns (model, data)"
            raise wrong_type("tune", "job", "be a Job, or a model followed by its data", job, hint=hint)
        self.job, self.start = job, _checked(job, start)
        self.sizes, self._short = sizes or SIZING, 0.0
        self._is_sized, self._limit = sizes is not None, math.inf
        self._proved: dict[frozenset[tuple[str, Value]], tuple[str, int]] = {}
        """Digests of values whose batches are compared while nothing is timed, and the batches made ahead."""
        self._execution = 0.0  # seconds
        self.keeps = 0
        """Of the executions of a trial, each of this number whose outputs are kept, with the state after all."""
        self.values: list[NDArray[Any]] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(RandomState.capture().restore)  # build() may draw random numbers, and seed them
            self.pipeline: Pipeline | GrainPipeline | LoaderPipeline = self.job.pipeline
            self.training = self.job.training
            program = self.training.state()
            stack.callback(lambda: self.training.restore(program))
            stack.enter_context(self.training.seeded())
            if self.pipeline.refusal is None:  # else there is nothing to try
                self.position = self._positioned()
            self._state = self.training.state()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __repr__(self) -> str:
        where = "its beginning" if self.start is None else f"step {self.start.step}"
        return f"TrialRunner({self.job!r} at {where})"

    def untracked_state(self) -> str:
        """Return the state of a step that a trial could not restore; "" for none."""
        with closing(self.position.source({})) as source:
            return self.training.untracked_state(source.iterator)

    def sample(self) -> tuple[float, float]:
        """Return the seconds of an execution, the mean of two after one that compiles, and those of a trial besides."""
        started = time.perf_counter()
        self.training.restore(self._state)
        with closing(self.position.source({})) as source:
            opened = time.perf_counter()
            executions = _timed(lambda: source.execute(self.training), 1, 2)
            done = time.perf_counter()
            digest(self.training.values(executions.outputs))
        self._execution = executions.seconds
        return self._execution, time.perf_counter() - started - (done - opened)

    def calibrate(self) -> TrialResult:
        """Return the result of the program's values, in a trial of sizes that are chosen by a first short one."""
        if not self._is_sized:
            first = self._run({}, *SIZING)
            self.sizes, self._short = trial_sizes(first.seconds * self.training.steps), _SHORT
            if self.sizes == SIZING:
                return first
        return self.trial({})

    def trial(self, values: Mapping[str, Value]) -> TrialResult:
        """Return the result of a trial; raise a `TrialError` if it fails or takes five times the program's time."""
        limit = self._limit if values else math.inf
        try:
            result = self._run(values, *self.sizes, short=self._short, limit=limit)
        except Exception as error:  # noqa: BLE001  whatever it is, the values do not suit this program
            line = format_error(error)
        else:
            if not values:
                self._limit = max(_PATIENCE * result.spent, _HICCUP)
            return result
        raise TrialError(line)  # without its cause, whose frames would keep the iterator reading ahead

    def model_only_seconds(self) -> float:
        """Return the seconds per step of the model alone, on one batch in memory.

        It is the minimum of three windows, since other load on the machine only adds.
        """
        self.training.restore(self._state)
        source, window = BatchSource(*self._one_batch()), _model_executions(self._execution)
        started, least = time.perf_counter(), math.inf
        for warmup in (3, 1, 1):
            least = min(least, _timed(lambda: source.execute(self.training), warmup, window).seconds)
            if time.perf_counter() - started > _SECONDS:
                break
        return least / self.training.steps

    def first_difference(self, values: Mapping[str, Value], batches: int) -> int | None:
        """Return the first batch that differs from the program's, without training; None if all are equal."""
        digests = []
        for each in (values, {}):
            self.training.restore(self._state)
            with closing(self.position.source(each)) as source:
                source.batches_digest()  # none is needed
                digests.append([digest_of(source.draw()) for _ in range(batches)])
        pairs = enumerate(zip(*digests, strict=True), 1)
        return next((number for number, (tuned, program) in pairs if tuned != program), None)

    def _run(
        self, values: Mapping[str, Value], warmup: int, window: int, *, short: float = 0.0, limit: float = math.inf
    ) -> TrialResult:
        """Return the result of a trial; time windows shorter than `short` once more."""
        started = time.perf_counter()
        self.training.restore(self._state)
        with closing(self.position.source(values)) as source:

            def timed(warmup: int, window: int) -> _Timed:
                return _timed(lambda: source.execute(self.training), warmup, window, limit=limit)

            burst, key = self.pipeline.in_flight(values), frozenset(values.items())
            if key in self._proved:
                shown, burst = self._proved[key]
            else:
                result = timed(warmup, window)
                outputs, batches = result.outputs, source.batches_digest()
                shown = digest(self.training.values([*outputs, batches]))
                if self.keeps:
                    kept = self.training.values([*outputs[self.keeps - 1 :: self.keeps], batches])
                    self.values = [*map(np.array, kept)]
                enough = min(math.ceil(_RETIMED / result.seconds), _MOST_EXECUTIONS)
            if isinstance(source, LoaderSource):  # batches that are already made are used up before the window
                if key not in self._proved:
                    burst = min(burst, math.ceil(_AHEAD / result.seconds))
                    if values:
                        self._proved[key] = shown, burst
                window = max(window, BURSTS * burst)
                result = timed(max(burst, 2), window)
                if window * result.seconds < short:
                    window = min(math.ceil(_RETIMED / result.seconds), _MOST_EXECUTIONS)
                    result = timed(2, window)
                result = result._replace(seconds=source.epoch_seconds(result.seconds, window))
            elif short and burst > warmup:
                result = timed(burst, max(BURSTS * burst, enough))
            elif window * result.seconds < short:
                result = timed(warmup, enough)
        return TrialResult(result.seconds / self.training.steps, shown, time.perf_counter() - started, result.busy)

    def _one_batch(self) -> tuple[Any, Any]:
        """Return an endless dataset of one batch in memory, and an iterator over it."""
        with closing(self.position.source({})) as source:  # at the beginning a shuffle fills its buffer first
            batch = next(chain(source.iterator, source.dataset))
        if not isinstance(self.pipeline, Pipeline):
            return (), repeat(batch)
        import tensorflow as tf

        endless = tf.data.experimental.to_variant(tf.data.Dataset.from_tensors(batch).repeat())
        dataset = tf.data.experimental.from_variant(endless, source.dataset.element_spec)
        return dataset, iter(dataset)

    def _positioned(self) -> TfPosition | Beginning:
        """Restore the training state of the start, and return the position in the data."""
        if not isinstance(self.pipeline, Pipeline):
            return Beginning(self.pipeline)
        if self.start is None:
            return TfPosition(self.pipeline)
        model, data = self.job.parts
        self.start.restore(model)
        pipeline, metadata = Pipeline(self.start.seed_shuffles(data)), self.start.metadata
        return TfPosition(pipeline, begun=metadata["iterators"], drawn=metadata["drawn"])


def trial_sizes(seconds: float) -> tuple[int, int]:
    """Return the executions of a trial before its window and in it, by the seconds of one.

    >>> trial_sizes(0.05), trial_sizes(1.0)
    ((8, 10), (3, 3))
    """
    window = _SECONDS / max(seconds, 1e-6)
    return SIZING[0] if seconds > _SLOW else WARMUP, round(min(max(window, _FEWEST_EXECUTIONS), _MOST_EXECUTIONS))


def _model_executions(seconds: float) -> int:
    """Return the executions of a window of the model alone, by the seconds of one."""
    return round(min(max(_SECONDS / max(seconds, 1e-6), _FEWEST_EXECUTIONS), _MODEL_EXECUTIONS))


def model_seconds(execution: float) -> float:
    """Return the most seconds that it takes to time the model alone, by those of an execution with its data."""
    return max(2 * _SECONDS, (_FEWEST_EXECUTIONS + _model_executions(execution)) * execution)


def _checked(job: Job, start: CheckpointPath | None) -> FitStart | None:
    """Return the start of the trials, if a job can be restored to it exactly."""
    if start is None:
        return None
    if not isinstance(start, str | os.PathLike):
        raise wrong_type("tune", "start", "be a checkpoint of tpunb.checkpoints(dir), or None", start)
    fit = FitStart.read(start)
    if job.step is not None:
        raise TpunbError(
            f"trials cannot start from {plain(fit.folder.name)}: it is of fit, and the job is a custom loop",
            hint="omit start=: a custom loop is tuned from its beginning",
        )
    return fit


class _Timed(NamedTuple):
    """Timing of executions: seconds each and busy cores in the window, and the outputs of all."""

    seconds: float
    busy: float
    outputs: list[Any]


def _timed(execute: Callable[[], Any], warmup: int, window: int, *, limit: float = math.inf) -> _Timed:
    """Return the timing of executions; raise if one begins after `limit` seconds."""
    outputs: list[Any] = []
    first = time.perf_counter()

    def run(executions: int) -> None:
        for _ in range(executions):
            if time.perf_counter() - first > limit:
                raise TpunbError(f"{plural(len(outputs), 'execution')} took over {limit:.3g} s: much too slow")
            outputs.append(execute())
        for _ in arrays(outputs[-1:]):  # waits until they are computed
            pass

    run(warmup)
    started, worked = time.perf_counter(), time.process_time()
    run(window)
    wall = time.perf_counter() - started
    return _Timed(wall / window, (time.process_time() - worked) / max(wall, 1e-9), outputs)
