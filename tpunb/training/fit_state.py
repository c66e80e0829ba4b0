"""State of one call of Keras' ``fit``: its position, what its next step depends on, saving and restoring it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tpunb.errors import TpunbError, warn_user
from tpunb.instrument.registry import replaced
from tpunb.instrument.tensorflow import LIBRARY as TENSORFLOW
from tpunb.signals import spending
from tpunb.text import format_error, plain
from tpunb.tfdata.graph import graph_or_none, too_large
from tpunb.tfdata.position import present_seeds
from tpunb.tfdata.restored import needs_ends, not_restored
from tpunb.training import constants, seeds, snapshot
from tpunb.training.block import Guarded
from tpunb.training.callbacks import CallbackState, restore_callbacks
from tpunb.training.files import guard
from tpunb.training.fingerprints import Fingerprints, Resumed
from tpunb.training.fit_data import FitData
from tpunb.training.fit_start import EndedFit, FitStart, variables_of_step
from tpunb.training.hidden_state import EagerStep, hidden_state
from tpunb.training.py_dataset import PyDatasetState
from tpunb.training.state import DATA, RANDOM, is_from, optimizers_of, to_numpy

_CALLBACKS = "callbacks"  # part of the arrays that callbacks keep
_UNFROZEN = "a callback changed which variables are trainable"
_UNFREEZE = "fit again after the change, in a block of its own"

_EARLIER = "validation_data: an earlier fit of the block began its seeded shuffle (give it a shuffle of its own)"

Turn = tuple[int, int, Any]
"""First and last step of a turn in Keras' loop over an epoch, and the iterator that feeds it."""


class Listener(Protocol):
    """Receiver of a fit's events."""

    def on_data(self, fit: Fit, data: Any) -> Any:
        """Return the dataset for the fit to use: `data`, or one with the same elements.

        Called for the program's own datasets only, before the first element is drawn; their shuffles have seeds.
        """

    def on_begin(self, fit: Fit) -> None:
        """Handle the begin of a fit; its data are known, and nothing was drawn from them."""

    def on_end(self, fit: Fit, place: str, *, kept: Path | None = None) -> None:
        """Handle the end of a fit at a line of the program; `kept` is its state on disk, if it was skipped."""

    def on_step(self, fit: Fit, *, repeated: bool) -> None:
        """Handle the end of steps; `repeated` if no step was taken since the last call, but an epoch has ended.

        What `Fit.write` writes now is what the next step begins with.
        """

    def note_total(self, kind: str, counts: dict[str, int]) -> None:
        """Note, at the end of the block, how often it trained and how many steps were taken."""


@dataclass(eq=False)
class Fit(Guarded):
    """A call of ``fit`` and its position."""

    guards = "saving and tuning"

    model: Any
    number: int  # of fits before it in the same block
    listeners: Sequence[Listener]
    start: FitStart | None = None  # checkpoint from which it starts
    validation: tuple[Any, int | None] = (None, None)  # its data and steps
    past: EndedFit | None = None  # itself, if it ended before the checkpoint of a later fit and is not trained again
    before: tuple[EndedFit, ...] = ()  # fits of the block
    epoch: int = 0
    step_in_epoch: int = 0
    steps: int = 0  # that the optimizer has taken
    callbacks: tuple[Any, ...] = ()
    restore_due: bool = False  # the saved state is not restored yet
    data: FitData = field(init=False)
    validating: FitData | None = None  # those of validation, if they are a tf.data.Dataset, once they were read
    _optimizer: Any = None  # of the model at the begin
    _is_built: bool = True  # all variables exist
    _is_restored: bool = False  # a step has begun
    _notified: int = -1  # steps at the last event
    _eager: EagerStep | None = None  # what the steps of an eager model do
    _trainable: list[bool] | None = None  # variables for which the step was compiled

    def __post_init__(self) -> None:
        self.data = FitData(self.start)

    def must_end(self, error: Exception) -> bool:
        """Return whether an error is to end the training, as each is before the state of a checkpoint is restored."""
        return super().must_end(error) or (self.start is not None and not self._is_restored)

    def attach(self, epochs: Any) -> None:
        """Take the data of the fit when Keras has prepared them, before anything is drawn."""
        if self.data.epochs is not None:
            return
        self._optimizer = self.model.optimizer
        self.data.attach(epochs, self._listened)
        self.steps = 0 if self.model.optimizer is None else int(to_numpy([self.model.optimizer.iterations])[0])
        if self.start is not None:
            self._begin_at(self.start.metadata)
        elif self.past is not None:
            self.data.begin(self.past.iterators, self.past.used)

    def _listened(self, dataset: Any) -> Any:
        for listener in self.listeners:
            dataset = self.guarded(listener.on_data, self, dataset, default=dataset)
        return dataset

    def _begin_at(self, saved: Mapping[str, Any]) -> None:
        self.restore_due = True
        self._is_built = self._build()
        with spending("resuming", "position in the data"):
            self.data.begin_at_start()
        self.epoch, self.step_in_epoch, self.steps = saved["epoch"], saved["step_in_epoch"], saved["step"]

    def _build(self) -> bool:
        """Create the variables of the model; return whether all of them exist."""
        saved = {} if self.start is None else self.start.metadata
        return build(self.model, self.data.passes.dataset.element_spec, saved.get("optimized", ()))

    def sync(self) -> None:
        """Have the variables hold the state of the steps."""

    def ended(self) -> EndedFit:
        """Return what remains of the fit after its end."""
        return self.past or EndedFit(self.data.passes.iterators, self.data.used)

    def begin_epoch(self, epoch: int, callbacks: Sequence[Any]) -> None:
        """Handle the begin of an epoch, before its callbacks: they may set the learning rate."""
        self.epoch = epoch
        if not self.callbacks:
            self.restore_callbacks(callbacks)
        self.callbacks = tuple(callbacks)
        if self.restore_due and self.step_in_epoch == 0:
            self.restore()

    def restore_callbacks(self, callbacks: Sequence[Any]) -> None:
        """Restore the state of callbacks and PyDatasets, if the fit starts from a checkpoint."""
        if self.start is not None:
            arrays = snapshot.read_part(self.start.folder, _CALLBACKS)
            datasets = [each.dataset for each in (*self.data.py_datasets, *self._py_validation)]
            restore_callbacks([*callbacks, *datasets], self.start.metadata["callbacks"], arrays)

    def turns(self, epochs: Any, original: Callable[[Any], Iterator[Turn]]) -> Iterator[Turn]:
        """Yield the turns of an epoch as Keras does; of a resumed epoch, those after the checkpoint.

        Keras makes the earlier turns too, and draws nothing in them; they are skipped.
        """
        resumed = self.step_in_epoch if self.data.due else 0
        for first, last, current in original(epochs):
            iterator = self.data.current(current)
            if first < resumed:
                continue
            iterator = self.guarded(self._begin_turn, first, last, iterator, default=iterator)
            with ExitStack() as watching:
                if self.model.run_eagerly:
                    self.guarded(self._watch_step, watching)
                iterator = self.data.step_batches(iterator)
                if self.guarded(self.fingerprints.begin_step, self.steps, first, last, iterator, default=False):
                    iterator = self.fingerprints.draw(iterator)  # not guarded: errors are those of the data
                yield first, last, iterator
            del current, iterator  # they may have been replaced, and are to be freed
            self.steps += last + 1 - first
            self.data.drawn += last + 1 - first
            self.step_in_epoch = last + 1
            self._end_turn()
            self.guarded(self.data.end_pass, self.data.iterator)
            if self.step_in_epoch < (epochs.steps_per_epoch or epochs._num_batches or np.inf):
                self.guarded(self._notify)

        if self.data.due and self.start is not None:
            raise self.start.different_data(f"the epoch has no step {resumed}")

    def _begin_turn(self, first: int, last: int, iterator: Any) -> Any:
        """Restore what is due; return the iterator that feeds the turn."""
        if self.data.due and self.start is not None and first > self.step_in_epoch:
            problem = f"step {self.step_in_epoch} is not the first of a turn (steps_per_execution)"
            raise self.start.different_data(problem)
        if self.restore_due:
            self.restore(metrics=True)
        if iterator is not self.data.iterator:
            self._use(iterator)
        if self.data.due:
            with spending("resuming", "position in the data"):
                self.data.restore(last + 1 - first)
        if self.start is not None and not self._is_restored and self.start.metadata["exact"]:
            if self.start.metadata.get("trainable") not in (None, _trainable(self.model)):
                problem = f"{self.start.folder.name} cannot be resumed: {_UNFROZEN}"
                raise TpunbError(problem, hint=_UNFREEZE)
            self._check_constants(self.start.metadata.get("constants", {}))
        self._is_restored = True
        guard.resume_writes()
        return self.data.iterator

    def _end_turn(self) -> None:
        """Check what is known only after a step."""

    @cached_property
    def fingerprints(self) -> Fingerprints:
        """Fingerprints of its steps, which are compared with those of the saved run."""
        return Fingerprints(None if self.start is None else self.start.resumed)

    @cached_property
    def _constants(self) -> dict[str, str]:
        """Fingerprints of the constants in the data and the step."""
        step = "" if self.data.iterator is None else constants.of_step(self.model.train_function, self.data.iterator)
        return {"dataset": self.data.fingerprint, "model": step}

    def _check_constants(self, saved: Mapping[str, str]) -> None:
        """Raise an error if the program computes with other constants than when it was saved."""
        for part, present in self._constants.items():
            self._check_constant(part, saved, present)

    def _check_constant(self, part: str, saved: Mapping[str, str], present: str) -> None:
        if saved.get(part, present) != present:
            assert self.start is not None
            raise TpunbError(
                f"{self.start.folder.name} was saved with a different {part}: its constants differ (arrays, names "
                "of files, or what adapt computed)",
                hint="begin the cell with keras.utils.set_random_seed(1), or give a seed to what is random before fit",
            )

    def _use(self, iterator: Any) -> None:
        is_first = self.data.iterator is None
        self.data.use(iterator, check=bool(self.listeners))
        if is_first:
            for listener in self.listeners:
                self.guarded(listener.on_begin, self)

    def on_iterator(self, dataset: Any) -> None:
        """Note an iterator that is created over any dataset during the fit, and may begin a shuffle of its data."""
        for data in filter(None, (self.data, self.validating)):
            data.on_iterator(dataset)

    def validation_turns(self, epochs: Any, original: Callable[[Any], Iterator[Turn]]) -> Iterator[Turn]:
        """Yield the turns of a validation as Keras does, in the order that the saved run gave it."""
        self.guarded(self._begin_validation, epochs)
        for first, last, iterator in original(epochs):
            if self.validating is not None and first == 0:
                self.guarded(self._use_validation, self.validating, iterator)
            yield first, last, iterator
            if self.validating is not None:
                self.guarded(self.validating.end_pass, iterator)

    def _begin_validation(self, epochs: Any) -> None:
        """Take the data of validation when Keras first reads them."""
        if self.validating is None and (start := self._validation_start) is not None:
            validating = type(self.data)(start)
            validating.attach(epochs, lambda dataset: dataset)
            validating.used = start.metadata["used_iterators"]
            validating.begin(start.metadata["iterators"], validating.used)
            self.validating = validating

    @cached_property
    def _validation_start(self) -> FitStart | None:
        """The passes over a dataset of validation that were made, and its seeds; None without one."""
        saved = None if self.start is None else self.start.metadata.get("validation")
        if self.start is not None and saved is not None:
            return self.start._replace(metadata=saved)
        if (graph := self._validation_graph) is None:
            return None
        return FitStart(Path(), {"seeds": present_seeds(graph), "iterators": 0, "used_iterators": 0}, Resumed(0))

    @cached_property
    def _validation_graph(self) -> Any:
        """The graph of a dataset of validation; None without one, or where it cannot be read."""
        data = self.validation[0]
        return None if not hasattr(data, "element_spec") or too_large(data) else graph_or_none(data)

    def _use_validation(self, validating: FitData, iterator: Any) -> None:
        try:
            validating.use(validating.current(iterator), check=False)
        except TpunbError as error:
            warn_user(f"results of validation may differ: {error}", stacklevel=2)
        validating.iterator = ()  # its buffers are to be freed

    def end_epoch(self, epoch: int) -> None:
        """Handle the end of an epoch, after its callbacks."""
        self.epoch, self.step_in_epoch = epoch + 1, 0
        self.data.end_epoch()
        self.guarded(self.fingerprints.write)
        self.guarded(self._notify)

    def _notify(self) -> None:
        if self._trainable is None:
            self._trainable = _trainable(self.model)
        repeated, self._notified = self._notified == self.steps, self.steps
        for listener in self.listeners:
            listener.on_step(self, repeated=repeated)

    @property
    def steps_left(self) -> int | None:
        """Number of steps to come; None if it is not known."""
        epochs = next((each.params.get("epochs") for each in self.callbacks if getattr(each, "params", None)), None)
        steps = self.data.epochs.num_batches
        return None if epochs is None or steps is None else (epochs - self.epoch) * steps - self.step_in_epoch

    def write(self, folder: Path) -> dict[str, Any]:
        """Write everything that the next step depends on; return its metadata."""
        self.sync()
        variables = {part: to_numpy(each) for part, each in variables_of_step(self.model).items()}
        callbacks = CallbackState(self.callbacks, self.model, [*self.data.py_datasets, *self._py_validation])
        snapshot.write_arrays(folder, {**variables, _CALLBACKS: callbacks.arrays})
        unpositioned, place = self.data.write(folder, within_epoch=self.step_in_epoch > 0)
        reason = unpositioned or self.hidden_state or callbacks.unsaved
        if self.model.optimizer is not self._optimizer:
            reason = reason or "the model was compiled again during the fit (compile it between two fits instead)"
        reason = reason or self._read_validation(self.varying)
        validation = self._validation_start and self._validation_start.metadata
        if self.validating is not None:
            validation = self.validating.begun_passes
        if not reason and self._trainable not in (None, _trainable(self.model)):
            reason = f"{_UNFROZEN} ({_UNFREEZE})"
        parts = [part for part, values in variables.items() if values and part != RANDOM]
        return {
            "holds": [*parts, RANDOM, *[DATA] * (not unpositioned)],
            "exact": not reason,
            "why": reason,
            "fit": self.number,
            "ended": [asdict(each) for each in self.before],
            "epoch": self.epoch,
            "step_in_epoch": self.step_in_epoch,
            **place,
            "constants": self._constants,
            "trainable": self._trainable,
            "optimized": _optimized(self.model),
            "validation": validation,
            "varying": self.varying,
            "fingerprints": self.fingerprints.name,
            "callbacks": callbacks.values,
            "global_seed": bool(variables[RANDOM]),
            "random": seeds.host_random_state(),
            "tensorflow_random": seeds.tensorflow_random_state(),
        }

    def restore(self, *, metrics: bool = False) -> None:
        """Restore the saved variables and random state; metrics only within an epoch."""
        assert self.start is not None
        with spending("checkpoint restore", "tpunb"):
            if not self._is_built:
                import tensorflow as tf

                constants.compiled_step(
                    self.model.train_function, tf.data.IteratorSpec(self.data.passes.dataset.element_spec)
                )
            self.start.restore(self.model, metrics=metrics)
        self.restore_due = False

    @property
    def unsaved_beside(self) -> str:
        """Sentence that names state beside the training data that cannot be saved, or ""; known before a step."""
        return self._read_validation(self.varying) or CallbackState(self.callbacks, self.model).unsaved

    @property
    def varying(self) -> str:
        """Sentence that says why the results of validation may be others in a resumed run, or ""."""
        if self._unsaved_validation or self.validating is None:
            return self._unsaved_validation
        is_later = bool(self.before) and self.validating.begun_passes["begun"] != 0
        return self.validating.reason or _EARLIER * is_later

    def _read_validation(self, varying: str) -> str:
        """Return why the training depends on a validation that varies for a reason, or ""."""
        import keras

        if not varying:
            return ""
        names = [_reader(callback) for callback in self.callbacks]
        names += ["the model's test_step"] * (type(self.model).test_step is not keras.Model.test_step)
        is_shared = self._validation_graph is not None and self.data.positions.seeds.shares(self.validation[0])
        names += ["the data of the training"] * is_shared
        reader = next(filter(None, names), "")
        return f"{varying}; {plain(reader)} may use its results" if reader else ""

    @cached_property
    def _unsaved_validation(self) -> str:
        """Sentence that says why a validation after a checkpoint may give other results, or ""."""
        (data, _), tf = self.validation, TENSORFLOW.module()
        if self._py_validation:
            reason = self._py_validation[0].probe()
            return f"validation_data: {reason}" if reason else ""
        if hasattr(data, "__next__") or hasattr(data, "sampler"):  # a generator, or a DataLoader of PyTorch
            return f"validation_data: Python code feeds it ({type(data).__name__}; give arrays or a tf.data.Dataset)"
        if tf is None or not isinstance(data, tf.data.Dataset):
            return ""
        if (graph := self._validation_graph) is None:
            return "validation_data: its graph cannot be read"
        reason = not_restored(graph, data.options(), positions=False)
        if self.validation[1] is not None and needs_ends(graph, data.options()):
            reason = reason or "validation_steps may not read it to its end, on which its order depends (omit it)"
        return f"validation_data: {reason}" if reason else ""

    @cached_property
    def _py_validation(self) -> list[PyDatasetState]:
        """The PyDataset for validation, if there is one."""
        data, steps = self.validation
        return [PyDatasetState(data, steps)] if hasattr(data, "num_batches") and is_from(data, "keras") else []

    @cached_property
    def hidden_state(self) -> str:
        """Sentence that names state of the step that is not saved, or ""; known after the first step."""
        if self.data.iterator is None:
            return ""
        tracked = [variable for each in variables_of_step(self.model).values() for variable in each]
        if self._eager is not None:
            return self._eager.hidden_state(tracked)
        return hidden_state(self.model.train_function, self.data.iterator, tracked)

    def _watch_step(self, stack: ExitStack) -> None:
        """Watch the eager operations of the first step, and in all steps the seeds that they draw."""
        first, self._eager = self._eager is None, self._eager or EagerStep()
        stack.enter_context(self._eager.watching(operations=first))
        self.__dict__.pop("hidden_state", None)


def _trainable(model: Any) -> list[bool]:
    """Return which variables of a model are trainable: a compiled step updates those that were, whatever changes."""
    return [bool(getattr(variable, "trainable", False)) for variable in model.variables]


def _optimized(model: Any) -> list[list[int]]:
    """Return which variables of a model each of its optimizers was built for; -1 for those of another model."""
    numbers = {id(variable): at for at, variable in enumerate(model.variables)}
    every = (getattr(each, "_trainable_variables", ()) for each in optimizers_of(model))
    return [[numbers.get(id(variable), -1) for variable in variables] for variables in every]


def _reader(callback: Any) -> str:
    """Return the name of a callback, or of its method, that may use the results of validation; "" for no use."""
    kind, monitored = type(callback), str(getattr(callback, "monitor", ""))
    if monitored.startswith("val_") and getattr(callback, "save_best_only", True):
        return kind.__name__
    defined = {name for each in kind.__mro__ if not each.__module__.startswith("keras.") for name in vars(each)}
    every = defined | ({*vars(callback)} if kind.__name__ == "LambdaCallback" else set())
    used = next((name for name in _OF_VALIDATION if name in every), "")
    return used and f"{kind.__name__}.{used}"


_OF_VALIDATION = (  # methods of callbacks that are called with, or during, a validation
    *("on_epoch_end", "on_train_end", "on_test_begin", "on_test_end", "on_test_batch_begin", "on_test_batch_end"),
)


def build(model: Any, spec: Any, optimized: Sequence[Sequence[int]] = ()) -> bool:
    """Create the variables of a compiled model, its optimizers and metrics, as the first batch of ``fit`` would.

    `optimized`: numbers of the variables for which each optimizer is built. Return False if some may be missing: of a
    model without ``call``, or whose ``train_step`` calls it in another way.
    """
    import keras
    import tensorflow as tf

    def symbol(part: Any) -> Any:
        return keras.KerasTensor(tuple(part.shape), part.dtype.name)

    specs, pairs = tf.nest.flatten(spec), list(zip(optimizers_of(model), optimized, strict=False))
    partial = [(each, numbers) for each, numbers in pairs if not each.built and numbers and -1 not in numbers]
    try:
        with ExitStack() as stack:
            for optimizer, _ in partial:
                stack.enter_context(replaced(optimizer, "built", True))  # Keras would build it for all variables
            if all(isinstance(part, tf.TensorSpec) and part.shape.rank is not None for part in specs):
                model._symbolic_build(data_batch=tf.nest.map_structure(symbol, spec))
            elif not model.built:
                raise ValueError("the shape of its data is unknown")
        for optimizer, numbers in partial:
            optimizer.build([model.variables[number] for number in numbers])
        if model.optimizer is not None and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
    except (AttributeError, LookupError, TypeError, ValueError, RuntimeError, NotImplementedError) as error:
        is_custom = type(model).train_step is not keras.Model.train_step or type(model).call is keras.Model.call
        if model.variables and is_custom:
            return False
        raise TpunbError(
            f"{model.name} cannot be built: {format_error(error)}", hint="call it on a batch once"
        ) from error
    return all(getattr(each, "built", True) for each in optimizers_of(model))
