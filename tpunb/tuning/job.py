"""Jobs that can be run again: how a model and its data are made, and how one step is taken."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tpunb.errors import TpunbError, need, wrong_type
from tpunb.frames import Phase, Phases
from tpunb.instrument.keras import array_adapter
from tpunb.text import cut, plain
from tpunb.tfdata.python_functions import uses_of
from tpunb.torchdata.effects import digest as digest_of
from tpunb.torchdata.loader import is_loader
from tpunb.training.fit_state import build
from tpunb.training.hidden_state import hidden_state
from tpunb.training.jax_data import batches_of
from tpunb.training.jax_fit import PARTS, step_of
from tpunb.training.jax_fit import hidden_state as hidden_jax_state
from tpunb.training.seeds import ensured_keras_generator, keras_generator
from tpunb.training.state import TrainingState, contents, find_trackables, is_from, variables_of
from tpunb.tuning.grain import GrainPipeline, is_grain
from tpunb.tuning.loader import LoaderPipeline
from tpunb.tuning.parameters import Value
from tpunb.tuning.pipeline import Pipeline


class Training(Protocol):
    """What a trial needs of a program: executions of its steps, and its state, to be restored."""

    steps: int
    """Steps per execution."""

    def execute(self, iterator: Iterator[Any]) -> Any:
        """Run one execution on an iterator's next batches; StopIteration at the end of the data."""

    def state(self) -> Any:
        """Return the current state."""

    def restore(self, state: Any) -> None:
        """Restore a state."""

    def untracked_state(self, iterator: Iterator[Any]) -> str:
        """Return what a step depends on that `state` does not hold, or ""; no step is taken."""

    def seeded(self) -> AbstractContextManager[object]:
        """Create the seeds of random numbers for a block, so that `state` holds them."""

    def values(self, outputs: list[Any]) -> Iterator[NDArray[Any]]:
        """Yield the arrays in outputs and in the current state."""


@dataclass(frozen=True, repr=False)
class Job:
    """A training that can be run again.

    Parameters
    ----------
    build
        The pair (model, data), or a function that returns it, which is called once, when first needed: a compiled
        Keras model, and its ``tf.data.Dataset`` or a tuple of arrays (x, y), as ``fit`` takes them with batches of 32.
    step
        ``step(model, batch)`` for a custom loop: changes `model` in place, and returns the loss, or whatever must not
        change. `model` then is all that a step changes, of any kind: with PyTorch, a tuple of the module and its
        optimizer. Data may then be Grain's or a DataLoader too.

    Raises
    ------
    TypeError
        If `build` is neither a pair nor a function, or `step` is no function.

    >>> Job(lambda: (None, None))
    Job(<lambda>, not built yet)
    """

    build: Callable[[], tuple[Any, Any]] | tuple[Any, Any]
    step: Callable[[Any, Any], Any] | None = None

    def __post_init__(self) -> None:
        pair = "pass the model and its data as a pair: tp.tuning.Job((model, data))"
        if not isinstance(self.build, tuple) and not callable(self.build):
            raise wrong_type("Job", "build", "be (model, data), or a function that returns it", self.build, hint=pair)
        if self.step is not None and not callable(self.step):
            raise wrong_type("Job", "step", "be a function of a model and a batch", self.step, hint=pair)

    def __repr__(self) -> str:
        if "parts" not in vars(self) and not isinstance(self.build, tuple):
            return f"Job({plain(getattr(self.build, '__name__', 'build'))}, not built yet)"
        model, data = self.parts
        kind = "arrays" if are_arrays(self._given[1]) else "Grain" if is_grain(data) else "tf.data"
        kind = "DataLoader" if is_loader(data) else kind
        if self.step in (read, discard):
            return f"Job({kind}, read without a model)"
        name = getattr(model, "name", None)
        name = name if isinstance(name, str) else type(model).__name__
        return f"Job({plain(cut(name))}, {kind}, 1 model)"

    @cached_property
    def parts(self) -> tuple[Any, Any]:
        """The model and the data; of arrays, the dataset that Keras makes of them.

        Raises
        ------
        TypeError
            If `build` is no pair and does not return one, or the arrays cannot be batched.
        """
        model, data = self._given
        return model, batched(data, shuffle=False) if are_arrays(data) else data

    @cached_property
    def _given(self) -> tuple[Any, Any]:
        parts = self.build if isinstance(self.build, tuple) else self.build()
        if not isinstance(parts, tuple) or len(parts) != 2:
            raise wrong_type("Job", "build", "return (model, data)", type(parts))
        return parts

    @cached_property
    def pipeline(self) -> Pipeline | GrainPipeline | LoaderPipeline:
        """The data as adjustable parameters.

        Raises
        ------
        TypeError
            If the data are neither arrays nor of ``tf.data``, Grain or a DataLoader.
        TpunbError
            If their graph cannot be read.
        """
        if are_arrays(self._given[1]):
            return ArrayPipeline(self._given[1])
        data = self.parts[1]
        if not is_pipeline(data):
            must = "hold a tf.data.Dataset, data of Grain, a DataLoader, or a tuple of arrays (x, y) beside the model"
            raise wrong_type("Job", "build", must, data, hint="tp.tune(model, (x, y))")
        return pipeline_of(data)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the model's class and the parameters of the data, the same in another process.

        Raises
        ------
        TypeError, TpunbError
            As `pipeline` does.
        """
        parameters = [
            [each.name, str(each.current), str(each.domain), each.verdict] for each in self.pipeline.parameters
        ]
        facts = [type(self.parts[0]).__qualname__, getattr(self.step, "__qualname__", ""), parameters]
        return hashlib.blake2b(json.dumps(facts).encode(), digest_size=8).hexdigest()

    @cached_property
    def training(self) -> Training:
        """How one step is taken, and the state that it changes.

        Raises
        ------
        TypeError
            If there is no `step`, and the model is not a compiled Keras model.
        TpunbError
            If tuning does not support how Keras' ``fit`` would train it.
        """
        (model, data), _ = self.parts, self.pipeline  # of which the data are checked
        if self.step is not None:
            return _LoopTraining(model, self.step)
        if is_loader(data):
            raise TpunbError(
                "tuning a model on a DataLoader requires the step that trains it",
                hint="tp.tune(tp.tuning.Job(((model, optimizer), loader), step=step)), or tp.tune(loader) alone",
            )
        if is_grain(data):
            raise TpunbError(
                "Keras' fit on Grain data cannot be tuned",
                hint="Job(build, step=lambda model, batch: model.train_on_batch(*batch))",
            )
        if need("keras", extra="tensorflow").backend.backend() != "jax":
            return _KerasTraining(model, data.element_spec)
        if are_arrays(self._given[1]):
            raise TpunbError(
                "Keras' fit on JAX takes arrays without a pipeline: there is nothing to tune",
                hint="give a tf.data.Dataset",
            )
        return _JaxTraining(model, data.element_spec)


def as_job(job: Any, data: Any = None) -> Any:
    """Return the job of the arguments of `tune`: a `Job`, a model and its data, or data alone, which are only read."""
    if data is None:
        return Job((None, job), discard if is_loader(job) else read) if is_pipeline(job) else job
    if isinstance(job, Job):
        raise wrong_type("tune", "data", "be omitted: the Job holds its data", type(data).__name__)
    return Job((job, data))


def is_pipeline(data: object) -> bool:
    """Return whether data are of a library whose pipelines are tuned, without importing it."""
    return is_grain(data) or is_loader(data) or (hasattr(data, "element_spec") and hasattr(data, "options"))


def pipeline_of(data: Any) -> Pipeline | GrainPipeline | LoaderPipeline:
    """Return data of a library as adjustable parameters."""
    return LoaderPipeline(data) if is_loader(data) else GrainPipeline(data) if is_grain(data) else Pipeline(data)


def discard(model: None, batch: Any) -> None:
    """Do nothing: the step of a DataLoader alone, whose batches trials compare for any step."""


def read(model: None, batch: Any) -> NDArray[np.uint8]:
    """Return a digest of a batch: the step of data alone, so that trials compare the batches and keep none."""
    return np.frombuffer(digest_of(batch), np.uint8)


class _KerasTraining:
    """A compiled Keras model on TensorFlow, stepped as ``fit`` steps it, and built without reading a batch."""

    def __init__(self, model: Any, spec: Any) -> None:
        keras = need("keras", extra="tensorflow")
        if not isinstance(model, keras.Model) or not model.compiled:
            raise wrong_type("Job", "build", "return a compiled Keras model first, or step= be given", model)
        if keras.backend.backend() not in ("tensorflow", "jax"):
            raise TpunbError(
                f"Keras' fit on {keras.backend.backend()} cannot be tuned, only on TensorFlow and JAX",
                hint="pass a step function: Job(build, step=...)",
            )
        self.model = model
        self._check_devices()
        self.steps = int(model.steps_per_execution)
        strategy = getattr(model, "distribute_strategy", None)  # of one replica; its variables are made in its scope
        with nullcontext() if strategy is None else strategy.scope():
            build(model, spec)

    def _check_devices(self) -> None:
        if (replicas := self.model.distribute_strategy.num_replicas_in_sync) > 1:
            raise TpunbError(
                f"training on {replicas} replicas cannot be tuned",
                hint="tune it on one, and apply the values to the distributed run",
            )

    @property
    def _function(self) -> Any:
        return self.model.make_train_function() or self.model.train_function

    def execute(self, iterator: Iterator[Any]) -> Any:
        import tensorflow as tf

        try:
            return self._function(iterator)
        except tf.errors.OutOfRangeError:  # the end of the data, as in Keras
            raise StopIteration from None

    def state(self) -> TrainingState:
        return TrainingState.capture(variables_of(self.model))

    def restore(self, state: TrainingState) -> None:
        state.restore()

    def untracked_state(self, iterator: Iterator[Any]) -> str:
        seeds = keras_generator()
        tracked = [*variables_of(self.model), *([] if seeds is None else [seeds.state])]
        return hidden_state(self._function, iterator, tracked)

    @contextmanager
    def seeded(self) -> Iterator[None]:
        """Create global seeds for a block; a train function compiled with temporary ones is dropped afterwards."""
        fresh = self.model.train_function is None
        with ensured_keras_generator() as temporary:
            yield
        if temporary and fresh:
            self.model.train_function = None

    def values(self, outputs: list[Any]) -> Iterator[NDArray[Any]]:
        return contents(outputs, variables_of(self.model))


class _JaxTraining(_KerasTraining):
    """A compiled Keras model on JAX: between steps its state is that of Keras' loop, and its variables are empty."""

    _kept: Any = None  # state after the last step

    def execute(self, iterator: Iterator[Any]) -> Any:
        if self.model._jax_state_synced:
            self._keep(self.model._get_jax_state(**dict.fromkeys(PARTS, True), purge_model_variables=True))
        outputs, state = self._function(self._kept, batches_of(iterator))  # not kept: an iterator reads ahead
        self._keep(state)
        return outputs

    def state(self) -> TrainingState:
        self._sync()
        return super().state()

    def restore(self, state: TrainingState) -> None:
        self._sync()
        super().restore(state)

    def untracked_state(self, iterator: Iterator[Any]) -> str:
        self._sync()
        _, feed = self._function, batches_of(iterator)
        next(feed)
        return hidden_jax_state(step_of(self.model, feed.shapes))

    def values(self, outputs: list[Any]) -> Iterator[NDArray[Any]]:
        self._sync()
        return super().values(outputs)

    def _check_devices(self) -> None:
        import keras

        if keras.distribution.distribution() is not None:
            raise TpunbError(
                "a model distributed by keras.distribution cannot be tuned",
                hint="tune it on one device, and apply the values to the distributed run",
            )

    def _keep(self, state: Any) -> None:
        self._kept, self.model._jax_state = state, dict(zip(PARTS, state, strict=True))
        self.model._jax_state_synced = False

    def _sync(self) -> None:
        self.model.jax_state_sync()
        self._kept = self.model._jax_state = None


class _LoopTraining:
    """A model of any kind, stepped by a function: its variables are restored, of other objects a copy is trained."""

    steps = 1

    def __init__(self, model: Any, step: Callable[[Any, Any], Any]) -> None:
        self.model, self.step = model, step
        self._holders = find_trackables(model)
        _build_optimizers(self._holders)
        self._copy = self._copied(model)

    def execute(self, iterator: Iterator[Any]) -> Any:
        return self.step(self._copy, next(iterator))

    def state(self) -> tuple[TrainingState, Any]:
        return TrainingState.capture(self._variables), self._copied(self._copy)

    def restore(self, state: tuple[TrainingState, Any]) -> None:
        state[0].restore()
        self._copy = self._copied(state[1])

    def untracked_state(self, iterator: Iterator[Any]) -> str:
        """Return a module or an optimizer of torch that a step takes from outside; what else it changes is unknown."""
        uses = (use for use in uses_of(self.step) if is_from(use.value, "torch") and hasattr(use.value, "state_dict"))
        name = next((use.name for use in uses if use.value.state_dict()), None)
        hint = "pass it with the model, as in Job(((model, optimizer), loader), step=step)"
        return "" if name is None else f"the step uses {plain(name)!r} from outside ({hint})"

    def seeded(self) -> AbstractContextManager[object]:
        return ensured_keras_generator()  # a function of the program that is first compiled in the block keeps them

    def values(self, outputs: list[Any]) -> Iterator[NDArray[Any]]:
        shared = {id(holder) for holder in self._holders}
        return contents([outputs, _without(self._copy, shared)], self._variables)

    @property
    def _variables(self) -> list[Any]:
        return variables_of(*self._holders)

    def _copied(self, model: Any) -> Any:
        """Return a copy that shares the objects with variables."""
        return copy.deepcopy(model, {id(holder): holder for holder in self._holders})


def _without(value: Any, shared: set[int]) -> Any:
    """Return the contents of a value as lists, without the objects with variables."""
    if id(value) in shared:
        return None
    if isinstance(value, dict):
        value = list(value.values())
    return [_without(part, shared) for part in value] if isinstance(value, list | tuple) else value


def _build_optimizers(objects: list[Any]) -> None:
    """Create the variables of optimizers before the first step would."""
    trained = [
        variable for part in objects if not _is_optimizer(part) for variable in getattr(part, "trainable_variables", ())
    ]
    for part in (*objects, *(getattr(part, "optimizer", None) for part in objects)):
        if _is_optimizer(part) and not part.built and trained:
            part.build(trained)


def _is_optimizer(part: Any) -> bool:
    return hasattr(part, "apply_gradients") or (hasattr(part, "apply") and hasattr(part, "iterations"))


class FittedRun(Protocol):
    """A capture that has seen a fit, such as the `run` of ``tp.capture``."""

    @property
    def fitted(self) -> tuple[Any, Any] | None:
        """The model and the data of the last fit; None without any."""


def job_of(run: FittedRun) -> Job:
    """Return the job of the last ``fit`` in a capture, to be run again by ``tp.tune``.

    Parameters
    ----------
    run
        Capture that has seen the fit.

    Raises
    ------
    TpunbError
        If there was no fit, or its data are not a ``tf.data.Dataset``.
    """
    if run.fitted is None:
        raise TpunbError("the capture saw no fit", hint="fit a model in its block, or make a tp.tuning.Job(build)")
    model, data = run.fitted
    if not hasattr(data, "element_spec") or not hasattr(data, "options"):
        raise TpunbError(
            f"only a tf.data.Dataset can be tuned; fit was given {type(data).__name__}",
            hint="give fit a tf.data.Dataset",
        )
    job = Job(lambda: (model, data))
    _ = job.parts  # builds it now, so that its repr shows the model
    return job


_TOP = 5  # operations per phase and side (paper VI.B, Tables II and III)
_INPUT_OPS = (  # parts of the names of operations that feed the model or reshape its input
    *("reshape", "infeed", "outfeed", "fusion"),  # the paper's, from the most common pattern
    *("transfer", "copy", "linearize", "transpose", "input wait", "input pipeline", "getnext", "iterator"),
)
_PATTERN = 2  # kinds of input operations that make a pattern: a fusion alone occurs in every phase of a TPU
_SHARE = 0.5


def hot_phase(phases: Phases) -> Phase | None:
    """Return the longest phase whose tuning can pay; None if there is none (paper VII.B).

    Such a phase takes over half of the step time of all phases, input wait included, or its top operations feed the
    model (reshape, infeed, fusion, outfeed and the like). Outliers are no phase.

    >>> from tpunb.testing import toy_steps
    >>> from tpunb.cluster import phases
    >>> hot_phase(phases(toy_steps("aaabbb")))
    Phase(1, 'train', 3 steps, 66.7 % of step time without waits)
    """
    input_bound = _input_bound(phases)
    rows = phases.frame.filter(pl.col("phase") >= 0).sort("dur_ps", descending=True, maintain_order=True)
    for number, share in rows.select("phase", pl.col("dur_ps") / pl.col("dur_ps").sum()).iter_rows():
        if share > _SHARE or number in input_bound:
            return phases[number]
    return None


def _input_bound(phases: Phases) -> set[int]:
    """Return the phases whose top operations include several kinds of input operations."""
    name = pl.col("op").cast(pl.String).str.to_lowercase()
    kinds = [name.str.contains(word, literal=True).any().cast(pl.Int64).alias(word) for word in _INPUT_OPS]
    counted = phases.top(_TOP, sources=False).group_by("phase").agg(pl.sum_horizontal(kinds).alias("kinds"))
    return set(counted.filter(pl.col("kinds") >= _PATTERN)["phase"].to_list())


BATCH = 32
"""Rows of a batch, as in ``fit`` by default."""


def are_arrays(data: object) -> bool:
    """Return whether data are (x, y) or (x, y, sample weights)."""
    return isinstance(data, tuple) and len(data) in (2, 3)


def batched(data: tuple[Any, ...], *, shuffle: bool) -> Any:
    """Return the dataset from which ``fit(*data)`` takes its batches, in the order of the rows unless shuffled."""
    need("keras", extra="tensorflow")
    x, y, weights = (*data, None)[:3]
    try:
        return array_adapter()(x, y, weights, batch_size=BATCH, shuffle=shuffle).get_tf_dataset()
    except (ValueError, AttributeError, TypeError) as error:
        raise TypeError(f"The data of a Job must be a dataset, or a tuple of arrays: {error}") from error


class ArrayPipeline(Pipeline):
    """The batches of arrays as adjustable parameters, in the order of the rows, so that trials are alike."""

    def __init__(self, data: tuple[Any, ...]) -> None:
        super().__init__(batched(data, shuffle=False))

    def as_code(self, values: Mapping[str, Value]) -> str:
        """Return the lines of code that set these values: Keras makes the dataset, so no code of the program does."""
        return "data = tuning.apply((x, y))\nmodel.fit(data)  # in place of model.fit(x, y)" if values else ""


def shuffled(data: tuple[Any, ...], values: Mapping[str, Value]) -> Any:
    """Return the shuffled batches of arrays, as ``fit`` makes them, with other values."""
    pipeline = Pipeline(batched(data, shuffle=True))
    free = {parameter.name for parameter in pipeline.parameters if parameter.verdict != "locked"}
    return pipeline.in_place({name: value for name, value in values.items() if name in free})
