"""State of one call of Keras' ``fit``: its position, what its next step depends on, saving and restoring it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import numpy as np

from tpunb.errors import TpunbError
from tpunb.signals import spending
from tpunb.text import format_error, plain
from tpunb.tfdata import position, rewrite
from tpunb.tfdata.graph import graph_or_none, too_large
from tpunb.tfdata.restored import buffered_bytes, late_shuffles, not_restored, only_checks, varies
from tpunb.training import constants, seeds, snapshot
from tpunb.training.callbacks import CallbackState, restore_callbacks
from tpunb.training.fingerprints import Diverged, Fingerprints, OnDivergence, Resumed
from tpunb.training.hidden_state import EagerStep, hidden_state
from tpunb.training.model_build import build
from tpunb.training.passes import ArrayBatches, CountingDataset
from tpunb.training.positions import ITERATOR, Positions
from tpunb.training.state import DATA, METRICS, RANDOM, WEIGHTS, assign, to_numpy, variables_by_part

_CALLBACKS = "callbacks"
"""Part of the arrays that callbacks keep."""

_UNFROZEN = "a callback changed which variables are trainable"
_UNFREEZE = "fit again after the change, in a block of its own"

T = TypeVar("T")

CheckpointPath = str | os.PathLike[str]

Turn = tuple[int, int, Any]
"""First and last step of a turn in Keras' loop over an epoch, and the iterator that feeds it."""


class FitStart(NamedTuple):
    """Checkpoint from which a fit starts."""

    folder: Path
    metadata: Mapping[str, Any]
    resumed: Resumed

    @classmethod
    def read(cls, checkpoint: CheckpointPath, on_divergence: OnDivergence = "warn") -> Self:
        """Return the start that a checkpoint of `tpunb.checkpointing` is."""
        folder = Path(checkpoint)
        metadata = snapshot.read_metadata(folder)
        if "fit" not in metadata:
            raise TpunbError(
                f"{folder.name} is a checkpoint of a custom loop, not of fit",
                hint="restore it with tpunb.checkpoint.restore",
            )
        return cls(folder, metadata, Resumed.read(folder, metadata, on_divergence))

    @property
    def step(self) -> int:
        """Number of steps that the optimizer had taken."""
        step: int = self.metadata["step"]
        return step

    def restore(self, model: Any, *, metrics: bool = True) -> None:
        """Restore the variables of a model, its metrics only where asked for, and the random state."""
        variables = _variables(model, global_seed=self.metadata["global_seed"])
        if not metrics:
            del variables[METRICS]
        values = snapshot.read_arrays(self.folder, {part: to_numpy(each) for part, each in variables.items()})
        for part, each in variables.items():
            assign(each, values[part])
        seeds.set_host_random_state(self.metadata["random"])
        seeds.set_tensorflow_random_state(self.metadata.get("tensorflow_random"))

    def seed_shuffles(self, dataset: Any) -> Any:
        """Return a dataset whose unseeded shuffles have the seeds that the fit gave them."""
        graph = graph_or_none(dataset)
        return dataset if graph is None else rewrite.seed_shuffles(dataset, graph, self.metadata["seeds"])


@dataclass(frozen=True)
class EndedFit:
    """What remains of a fit that has ended: a later one of its block that is resumed does not train it again."""

    history: dict[str, list[float]] = field(default_factory=dict)  # as Keras' History holds it
    epochs: list[int] = field(default_factory=list)
    iterators: int = 0  # created from its data
    used: int = 0  # from which batches were taken
    model: Any = None  # its variables, kept to compare them; not saved

    @property
    def metadata(self) -> dict[str, Any]:
        """Attributes as JSON values."""
        return {name: value for name, value in vars(self).items() if name != "model"}


class DataCursor(NamedTuple):
    """Position of a fit in its data."""

    iterator: Any  # feeds the next step
    iterators: int  # created from the data before it
    drawn: int  # batches taken from it


class Listener(Protocol):
    """Receiver of a fit's events."""

    def on_data(self, fit: Fit, data: Any) -> Any:
        """Return the dataset for the fit to use: `data`, or one with the same elements.

        Called for the program's own datasets only, before the first element is drawn; their shuffles have seeds.
        """

    def on_begin(self, fit: Fit) -> None:
        """Handle the begin of a fit; its data are known, and nothing was drawn from them."""

    def on_step(self, fit: Fit, *, repeated: bool) -> None:
        """Handle the end of steps; `repeated` if no step was taken since the last call, but an epoch has ended.

        What `Fit.write` writes now is what the next step begins with.
        """


@dataclass(eq=False)
class Fit:
    """A call of ``fit`` and its position."""

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
    reason: str = ""  # why the position in its data cannot be saved
    callbacks: tuple[Any, ...] = ()
    owns_shuffles: bool = True  # the program seeded none of them, so that nothing else advances them
    restore_due: bool = False  # the saved state is not restored yet
    failed: bool = False  # saving and tuning have ended with an error
    _epochs: Any = None  # Keras' iterator over epochs
    _optimizer: Any = None  # of the model at the begin
    _data: CountingDataset = field(default_factory=lambda: CountingDataset(()))
    _seeds: list[int] = field(default_factory=list)  # of the shuffles that had none
    positions: Positions = field(default_factory=Positions)
    _iterator: Any = None  # feeds the steps
    _drawn: int = 0  # batches taken from it
    _shuffles: list[Any] = field(default_factory=list)  # of the program's data that others may begin too
    _data_constants: str = ""  # fingerprint
    _begun: int = 0  # times that they had begun before
    _used: int = 0  # iterators from which batches were taken
    _replaced: Any = None  # iterator that Keras still holds, and that feeds nothing
    _restored_data: Any = None  # kept alive: a position was read into its iterator
    _data_due: bool = False
    _is_built: bool = True  # all variables exist
    _is_restored: bool = False  # a step has begun
    _notified: int = -1  # steps at the last event
    _eager: EagerStep | None = None  # what the steps of an eager model do
    _trainable: list[bool] | None = None  # variables for which the step was compiled

    def guarded(self, action: Callable[..., T], *args: Any, default: T) -> T:
        """Call a part of saving or tuning; an error in it is reported once, and the training continues without.

        Before the state of a checkpoint is restored, errors are raised: the training would be another one. So are
        warnings that the program's filters turn into errors, and a divergence from the saved run.
        """
        if self.failed:
            return default
        try:
            return action(*args)
        except Exception as error:
            if isinstance(error, Warning | Diverged) or (self.start is not None and not self._is_restored):
                raise
            self.failed = True
            warnings.warn(
                f"saving and tuning ended with an error, and training continues: {format_error(error)}", stacklevel=2
            )
            return default

    def attach(self, epochs: Any) -> None:
        """Take the data of the fit when Keras has prepared them, before anything is drawn."""
        from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

        if self._epochs is not None:
            return
        self._epochs, dataset = epochs, epochs._distributed_dataset
        self._optimizer = self.model.optimizer
        from_program = isinstance(epochs.data_adapter, TFDatasetAdapter)
        self.reason = too_large(dataset) if from_program else ""
        graph = graph_or_none(dataset) if from_program and not self.reason else None
        arrays = ArrayBatches.of(dataset, epochs.data_adapter)
        if from_program and graph is None:
            self.reason = self.reason or "the graph of the data cannot be read (larger than 2 GB, or distributed)"
        elif arrays is not None:
            self._data_constants = arrays.fingerprint
            if arrays.needs_seed:
                self._seeds = self.start.metadata["seeds"] if self.start else [arrays.seed]
                self._check_seeds(1)
                (arrays.seed,) = self._seeds
        elif (fed := getattr(epochs.data_adapter, "py_dataset", None)) is not None:
            self.reason = (
                f"{plain(type(fed).__name__)}: a Keras PyDataset feeds it, whose Python code may have state "
                "(give fit arrays or a tf.data.Dataset)"
            )
        elif not from_program and position.ignores_external_state(dataset):
            self.reason = _try_save(position.with_external_state_policy(dataset, "FAIL"))
        if graph is not None:
            self._data_constants = constants.of_data(graph)
            self.reason = self.reason or not_restored(graph, dataset.options())
            unseeded = rewrite.unseeded_shuffles(graph)
            names = {node.name for node in unseeded}
            self.owns_shuffles = all(node.name in names for node in rewrite.shuffles(graph))
            self._seeds = self.start.metadata["seeds"] if self.start else rewrite.draw_seeds(graph)
            self._check_seeds(len(unseeded))
            self.positions, checked = Positions(buffered_bytes(graph)), only_checks(graph)
            dataset = rewrite.seed_shuffles(dataset, graph, self._seeds)
            if checked and not self.reason:
                dataset = position.with_external_state_policy(dataset, "IGNORE")
            for listener in self.listeners:
                dataset = self.guarded(listener.on_data, self, dataset, default=dataset)
        self._shuffles = position.seeded_shuffles(epochs._distributed_dataset) if graph is not None else []
        self._data = epochs._distributed_dataset = arrays or CountingDataset(dataset)
        self.steps = 0 if self.model.optimizer is None else int(to_numpy([self.model.optimizer.iterations])[0])
        if self.start is not None:
            self._begin_at(self.start.metadata, dataset)
        elif self.past is not None:
            self._begin_data(dataset, self.past.iterators, self.past.used)

    def _check_seeds(self, shuffles: int) -> None:
        if len(self._seeds) != shuffles:
            raise self._different_data(f"{len(self._seeds)} unseeded shuffles were saved, now {shuffles}")

    def _begin_at(self, metadata: Mapping[str, Any], dataset: Any) -> None:
        self.restore_due = self._data_due = True
        self._is_built = build(self.model, dataset.element_spec)
        drawn_again = metadata["drawn"] > 0 and not self._is_written
        self._begin_data(dataset, metadata["iterators"], metadata.get("used_iterators", 0) - drawn_again)
        self._used = metadata.get("used_iterators", 0) - metadata["live"]
        self.epoch, self.step_in_epoch, self.steps = metadata["epoch"], metadata["step_in_epoch"], metadata["step"]
        if self._epochs._num_batches is None:  # data of unknown length, which the first epoch has counted
            self._epochs._num_batches = metadata["batches"]

    def _begin_data(self, dataset: Any, iterators: int, used: int) -> None:
        """Proceed in the orders of the data as if iterators had been created, and some of them used."""
        self._data.begin(iterators)
        graph = None if isinstance(self._data, ArrayBatches) else graph_or_none(dataset)
        if graph is not None and (late := late_shuffles(graph)):
            rewrite.begin_shuffles(graph, late, used)

    def ended(self, history: Any) -> EndedFit:
        """Return what remains of the fit after its end."""
        if self.past is not None:
            return replace(self.past, model=self.model)
        numbers = {name: values for name, values in history.history.items() if not any(map(np.ndim, values))}
        logs = {name: [float(value) for value in values] for name, values in numbers.items()}
        return EndedFit(logs, list(history.epoch), self._data.iterators, self._used, self.model)

    @property
    def _other_training(self) -> str:
        """Sentence that names training by another optimizer in this fit, or of another model before it, or ""."""
        present = {id(variable) for variable in variables_by_part(self.model)[WEIGHTS]}
        others = [each.model for each in self.before if each.model is not None]
        apart = (one for one in others if any(id(each) not in present for each in variables_by_part(one)[WEIGHTS]))
        if self.model.optimizer is not self._optimizer:
            return "the model was compiled again during the fit (compile it between two fits instead)"
        if (other := next(apart, None)) is None:
            return ""
        return f"an earlier fit of the block trained {plain(other.name)}, not a part of this model (use another block)"

    @property
    def _is_written(self) -> bool:
        """Whether the checkpoint has the state of an iterator."""
        assert self.start is not None
        return any(self.start.folder.glob(f"{ITERATOR}.*"))

    def begin_epoch(self, epoch: int, callbacks: Sequence[Any]) -> None:
        """Handle the begin of an epoch, before its callbacks: they may set the learning rate."""
        self.epoch = epoch
        if not self.callbacks and self.start is not None:
            arrays = snapshot.read_part(self.start.folder, _CALLBACKS)
            restore_callbacks(callbacks, self.start.metadata["callbacks"], arrays)
        self.callbacks = tuple(callbacks)
        if self.restore_due and self.step_in_epoch == 0:
            self.restore()

    def turns(self, epochs: Any, original: Callable[[Any], Iterator[Turn]]) -> Iterator[Turn]:
        """Yield the turns of an epoch as Keras does; of a resumed epoch, those after the checkpoint.

        Keras makes the earlier turns too, and draws nothing in them; they are skipped.
        """
        resumed = self.step_in_epoch if self._data_due else 0
        for first, last, current in original(epochs):
            iterator = self._iterator if current is self._replaced else current
            if first < resumed:
                continue
            iterator = self.guarded(self._begin_turn, first, last, iterator, default=iterator)
            with ExitStack() as watching:
                if self.model.run_eagerly:
                    self.guarded(self._watch_step, watching, default=None)
                if self.guarded(self.fingerprints.begin_step, self.steps, first, last, iterator, default=False):
                    iterator = self.fingerprints.draw(iterator)  # not guarded: errors are those of the data
                yield first, last, iterator
            del current, iterator  # they may have been replaced, and are to be freed
            self.steps += last + 1 - first
            self._drawn += last + 1 - first
            self.step_in_epoch = last + 1
            if self.step_in_epoch < (epochs.steps_per_epoch or epochs._num_batches or np.inf):
                self.guarded(self._notify, default=None)

        if self._data_due:
            raise self._different_data(f"the epoch has no step {resumed}")

    def _begin_turn(self, first: int, last: int, iterator: Any) -> Any:
        """Restore what is due; return the iterator that feeds the turn."""
        if self._data_due and first > self.step_in_epoch:
            problem = f"step {self.step_in_epoch} is not the first of a turn (steps_per_execution)"
            raise self._different_data(problem)
        if self.restore_due:
            self.restore(metrics=True)
        if iterator is not self._iterator:
            self._use(iterator)
        if self._data_due:
            with spending("resuming", "position in the data"):
                self._restore_data(last + 1 - first)
        if self.start is not None and not self._is_restored and self.start.metadata["exact"]:
            if self.start.metadata.get("trainable") not in (None, _trainable(self.model)):
                problem = f"{self.start.folder.name} cannot be resumed: {_UNFROZEN}"
                raise TpunbError(problem, hint=_UNFREEZE)
            self._check_constants(self.start.metadata.get("constants", {}))
        self._is_restored = True
        return self._iterator

    @cached_property
    def fingerprints(self) -> Fingerprints:
        """Fingerprints of its steps, which are compared with those of the saved run."""
        return Fingerprints(None if self.start is None else self.start.resumed)

    @cached_property
    def _constants(self) -> dict[str, str]:
        """Fingerprints of the constants in the data and the step."""
        step = "" if self._iterator is None else constants.of_step(self.model.train_function, self._iterator)
        return {"dataset": self._data_constants, "model": step}

    def _check_constants(self, saved: Mapping[str, str]) -> None:
        """Raise an error if the program computes with other constants than when it was saved."""
        assert self.start is not None
        for part, present in self._constants.items():
            if saved.get(part, present) != present:
                raise TpunbError(
                    f"{self.start.folder.name} was saved with a different {part}: its constants differ (arrays, names "
                    "of files, or what adapt computed)",
                    hint="give random parts before fit a seed (a shuffle before adapt, a split by permutation)",
                )

    def _use(self, iterator: Any) -> None:
        """Use a new iterator; of the first, check whether its position can be saved."""
        is_first, self._iterator, self._drawn = self._iterator is None, iterator, 0
        self._used += 1
        self.positions.begin()
        if is_first and self._shuffles:
            self._begun = max(position.begun(iterator), default=self._data.iterators) - self._data.iterators
            saved = self._begun if self.start is None else self.start.metadata.get("begun", self._begun)
            if saved != self._begun:
                raise self._different_data(f"its shuffle had begun {saved} times before the fit, now {self._begun}")
        if is_first and self.listeners:
            self.reason = self.reason or ("" if isinstance(self._data, ArrayBatches) else _try_save(iterator))
            for listener in self.listeners:
                self.guarded(listener.on_begin, self, default=None)

    def on_iterator(self, dataset: Any) -> None:
        """Note an iterator that is created over any dataset during the fit, and may begin a shuffle of its data."""
        if self._data.is_creating or not self._shuffles or self.reason:
            return
        own = {id(shuffle) for shuffle in self._shuffles}
        if any(id(shuffle) in own for shuffle in position.seeded_shuffles(dataset)):
            self.reason = (
                "another iterator began the seeded shuffle of the data during the fit (a callback, or validation); "
                "give it data of its own"
            )

    def end_epoch(self, epoch: int) -> None:
        """Handle the end of an epoch, after its callbacks."""
        self.epoch, self.step_in_epoch, self._replaced = epoch + 1, 0, None
        self.guarded(self.fingerprints.write, default=None)
        self.guarded(self._notify, default=None)

    def _notify(self) -> None:
        if self._trainable is None:
            self._trainable = _trainable(self.model)
        repeated, self._notified = self._notified == self.steps, self.steps
        for listener in self.listeners:
            listener.on_step(self, repeated=repeated)

    @property
    def _live_iterator(self) -> Any:
        """The iterator that feeds the next step; None if Keras will create one."""
        if self.step_in_epoch:
            return self._iterator
        return self._epochs._current_iterator if self._epochs.steps_per_epoch else None

    @property
    def steps_left(self) -> int | None:
        """Number of steps to come; None if it is not known."""
        epochs = next((each.params.get("epochs") for each in self.callbacks if getattr(each, "params", None)), None)
        steps = self._epochs.num_batches
        return None if epochs is None or steps is None else (epochs - self.epoch) * steps - self.step_in_epoch

    @property
    def cursor(self) -> DataCursor | None:
        """Position in the data within an epoch; None between epochs."""
        if not self.step_in_epoch:
            return None
        return DataCursor(self._iterator, self._data.iterators - 1, self._drawn)

    def replace_data(self, dataset: Any, iterator: Any, reason: str) -> None:
        """Continue within an epoch with another dataset of the same elements, and an iterator at the same position.

        `reason` says why positions in it cannot be restored into the program's own dataset.
        """
        self._data = self._epochs._distributed_dataset = CountingDataset(dataset, self._data.iterators)
        self._feed_from(iterator)
        self.reason = self.reason or reason

    def _feed_from(self, iterator: Any) -> None:
        if self._epochs._current_iterator is self._iterator:
            self._epochs._current_iterator = iterator
        elif self._replaced is None:  # with data of unknown length, Keras keeps it in a local variable
            self._replaced = self._iterator
        self._iterator = iterator

    def write(self, folder: Path) -> dict[str, Any]:
        """Write everything that the next step depends on; return its metadata."""
        variables = {part: to_numpy(each) for part, each in _variables(self.model).items()}
        callbacks = CallbackState(self.callbacks, self.model)
        snapshot.write_arrays(folder, {**variables, _CALLBACKS: callbacks.arrays})
        live, unpositioned, facts = self._live_iterator, self.reason, dict[str, Any]()
        drawn = self._drawn if live is not None and live is self._iterator else 0
        if isinstance(self._data, ArrayBatches):
            unpositioned = unpositioned or self._data.problem
        elif live is not None and not unpositioned:
            unpositioned, facts = self.positions.write(folder, live, drawn)
        reason = (
            unpositioned or self._other_training or self.hidden_state or self._unsaved_validation or callbacks.unsaved
        )
        if not reason and self._trainable != _trainable(self.model):
            reason = f"{_UNFROZEN} ({_UNFREEZE})"
        parts = [part for part, values in variables.items() if values and part != RANDOM]
        return {
            "holds": [*parts, RANDOM, *[DATA] * (not unpositioned)],
            "exact": not reason,
            "why": reason,
            "fit": self.number,
            "ended": [each.metadata for each in self.before],
            "epoch": self.epoch,
            "step_in_epoch": self.step_in_epoch,
            "iterators": self._data.iterators - (live is not None),
            "used_iterators": self._used,
            "begun": self._begun,
            "constants": self._constants,
            "trainable": self._trainable,
            "fingerprints": self.fingerprints.name,
            "live": live is not None,
            "drawn": drawn,
            "position": facts,
            "steps_seen": self._epochs._steps_seen,
            "batches": self._epochs._num_batches,
            "seeds": self._seeds,
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
                    self.model.train_function, tf.data.IteratorSpec(self._data.dataset.element_spec)
                )
            self.start.restore(self.model, metrics=metrics)
        self.restore_due = False

    @property
    def unsaved_beside(self) -> str:
        """Sentence that names state beside the training data that cannot be saved, or ""; known before a step."""
        return self._unsaved_validation or CallbackState(self.callbacks, self.model).unsaved

    @cached_property
    def _unsaved_validation(self) -> str:
        """Sentence that says why a validation after a checkpoint may give other results, or ""."""
        import tensorflow as tf

        data, steps = self.validation
        if not isinstance(data, tf.data.Dataset):
            return ""
        if steps is not None and int(data.cardinality()) != steps:
            return "validation_data: with validation_steps, a validation continues where the one before it ended"
        graph = graph_or_none(data)
        reason = "its graph cannot be read" if graph is None else varies(graph, data.options())
        return f"validation_data: {reason}" if reason else ""

    @cached_property
    def hidden_state(self) -> str:
        """Sentence that names state of the step that is not saved, or ""; known after the first step."""
        if self._iterator is None:
            return ""
        tracked = [variable for each in _variables(self.model).values() for variable in each]
        if self._eager is not None:
            return self._eager.hidden_state(tracked)
        return hidden_state(self.model.train_function, self._iterator, tracked)

    def _watch_step(self, stack: ExitStack) -> None:
        """Watch the eager operations of the first step, and in all steps the seeds that they draw."""
        first, self._eager = self._eager is None, self._eager or EagerStep()
        stack.enter_context(self._eager.watching(operations=first))
        self.__dict__.pop("hidden_state", None)

    def _restore_data(self, taken: int) -> None:
        """Restore the position of the iterator; if it was not saved, draw as many batches."""
        import tensorflow as tf

        assert self.start is not None
        folder, metadata = self.start.folder, self.start.metadata
        self._data_due = False
        if not metadata["live"]:
            return  # an epoch that begins with a new iterator
        self._epochs._steps_seen = metadata["steps_seen"] + taken
        self._drawn = metadata["drawn"]
        draws, is_positioned = self._drawn, DATA in metadata["holds"]
        if is_positioned and isinstance(self._data, ArrayBatches):
            self._feed_from(self._data.pass_from(metadata["iterators"], self._drawn))
            return
        if is_positioned and self._is_written:
            self._restored_data = rewrite.with_own_shuffles(self._data.dataset)
            iterator = self._iterator if self._restored_data is self._data.dataset else iter(self._restored_data)
            position.read(folder / ITERATOR, iterator)
            self._feed_from(iterator)
            draws = metadata.get("position", {}).get("redraw", 0)
            self.positions.begin(folder, self._drawn - draws, metadata.get("position", {}).get("seconds", 0))
        elif is_positioned:
            self.positions.begin(seconds=metadata["position"]["seconds"])
        try:
            for _ in range(draws):
                next(self._iterator)
        except (tf.errors.OpError, StopIteration) as error:
            raise self._different_data(f"it ends before batch {self._drawn}") from error

    def _different_data(self, problem: str) -> TpunbError:
        assert self.start is not None
        return TpunbError(
            f"{self.start.folder.name} was saved with a different dataset: {problem}",
            hint="run the same cell as when it was saved",
        )


def _variables(model: Any, *, global_seed: bool | None = None) -> dict[str, list[Any]]:
    """Return the variables of the next step by part; Keras' global seed if there is one, or as `global_seed` asks."""
    generator = seeds.make_keras_generator() if global_seed else seeds.keras_generator()
    has_seed = generator is not None and global_seed is not False
    return {**variables_by_part(model), RANDOM: [generator.state] if has_seed else []}


def _trainable(model: Any) -> list[bool]:
    """Return which variables of a model are trainable: a compiled step updates those that were, whatever changes."""
    return [bool(getattr(variable, "trainable", False)) for variable in model.variables]


def _try_save(data: Any) -> str:
    """Save the position in some data to a temporary folder; return why it cannot be saved, or ""."""
    with TemporaryDirectory() as folder:
        return position.write(Path(folder) / ITERATOR, iter(data))
