"""State of one call of Keras' ``fit``: its position, what its next step depends on, saving and restoring it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from tpunb.errors import TpunbError
from tpunb.signals import spending
from tpunb.tfdata import position, rewrite
from tpunb.tfdata.graph import graph_or_none
from tpunb.training import seeds, snapshot
from tpunb.training.callbacks import callback_counters, restore_counters
from tpunb.training.hidden_state import hidden_state
from tpunb.training.model_build import build
from tpunb.training.state import DATA, METRICS, RANDOM, assign, to_numpy, variables_by_part

_ITERATOR = "iterator"
"""Prefix of the files of a ``tf.data`` iterator."""

CheckpointPath = str | os.PathLike[str]

Turn = tuple[int, int, Any]
"""First and last step of a turn in Keras' loop over an epoch, and the iterator that feeds it."""


class FitStart(NamedTuple):
    """Checkpoint from which a fit starts."""

    folder: Path
    metadata: Mapping[str, Any]

    @classmethod
    def read(cls, checkpoint: CheckpointPath) -> Self:
        """Return the start that a checkpoint of `tpunb.checkpointing` is."""
        folder = Path(checkpoint)
        metadata = snapshot.read_metadata(folder)
        if "fit" not in metadata:
            raise TpunbError(
                f"{folder.name} is a checkpoint of a custom loop, not of fit",
                hint="restore it with tpunb.checkpoint.restore",
            )
        return cls(folder, metadata)

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

    def seed_shuffles(self, dataset: Any) -> Any:
        """Return a dataset whose unseeded shuffles have the seeds that the fit gave them."""
        graph = graph_or_none(dataset)
        return dataset if graph is None else rewrite.seed_shuffles(dataset, graph, self.metadata["seeds"])


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


class CountingDataset:
    """A dataset that counts its iterators: with each, its shuffles proceed to another order."""

    def __init__(self, dataset: Any, iterators: int = 0) -> None:
        self.dataset, self.iterators = dataset, iterators

    def __iter__(self) -> Iterator[Any]:
        self.iterators += 1
        return iter(self.dataset)


@dataclass(eq=False)
class Fit:
    """A call of ``fit`` and its position."""

    model: Any
    number: int  # of fits before it in the same block
    listeners: Sequence[Listener]
    start: FitStart | None = None  # checkpoint from which it starts
    epoch: int = 0
    step_in_epoch: int = 0
    steps: int = 0  # that the optimizer has taken
    reason: str = ""  # why the position in its data cannot be saved
    callbacks: tuple[Any, ...] = ()
    owns_shuffles: bool = True  # the program seeded none of them, so that nothing else advances them
    restore_due: bool = False  # the saved state is not restored yet
    _epochs: Any = None  # Keras' iterator over epochs
    _data: CountingDataset = field(default_factory=lambda: CountingDataset(()))
    _seeds: list[int] = field(default_factory=list)  # of the shuffles that had none
    _iterator: Any = None  # feeds the steps
    _drawn: int = 0  # batches taken from it
    _replaced: Any = None  # iterator that Keras still holds, and that feeds nothing
    _restored_data: Any = None  # kept alive: a position was read into its iterator
    _data_due: bool = False
    _notified: int = -1  # steps at the last event

    def attach(self, epochs: Any) -> None:
        """Take the data of the fit when Keras has prepared them, before anything is drawn."""
        from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

        if self._epochs is not None:
            return
        self._epochs, dataset = epochs, epochs._distributed_dataset
        from_program = isinstance(epochs.data_adapter, TFDatasetAdapter)
        graph = graph_or_none(dataset) if from_program else None
        if from_program and graph is None:
            self.reason = "the graph of the data cannot be read (larger than 2 GB, or distributed)"
        elif position.ignores_external_state(dataset):
            strict = position.with_external_state_policy(dataset, "FAIL")
            self.reason = position.external_state(graph) if from_program else _try_save(strict)
        if graph is not None:
            self.reason = self.reason or position.late_shuffle(graph)
            unseeded = rewrite.unseeded_shuffles(graph)
            self.owns_shuffles = len(unseeded) == len(rewrite.shuffles(graph))
            self._seeds = self.start.metadata["seeds"] if self.start else rewrite.draw_seeds(graph)
            if len(self._seeds) != len(unseeded):
                raise self._different_data(f"{len(self._seeds)} unseeded shuffles were saved, now {len(unseeded)}")
            dataset = rewrite.seed_shuffles(dataset, graph, self._seeds)
            for listener in self.listeners:
                dataset = listener.on_data(self, dataset)
        self._data = epochs._distributed_dataset = CountingDataset(dataset)
        self.steps = 0 if self.model.optimizer is None else int(self.model.optimizer.iterations)
        if self.start is not None:
            self._begin_at(self.start.metadata, dataset)

    def _begin_at(self, metadata: Mapping[str, Any], dataset: Any) -> None:
        self.restore_due = self._data_due = True
        build(self.model, dataset.element_spec)
        for _ in range(metadata["iterators"]):
            iter(self._data)
        self.epoch, self.step_in_epoch, self.steps = metadata["epoch"], metadata["step_in_epoch"], metadata["step"]
        if self._epochs._num_batches is None:  # data of unknown length, which the first epoch has counted
            self._epochs._num_batches = metadata["batches"]

    def begin_epoch(self, epoch: int, callbacks: Sequence[Any]) -> None:
        """Handle the begin of an epoch, before its callbacks: they may set the learning rate."""
        self.epoch = epoch
        if not self.callbacks and self.start is not None:
            restore_counters(callbacks, self.start.metadata["callbacks"])
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
            if self._data_due and first > resumed:
                raise self._different_data(f"step {resumed} is not the first of a turn (steps_per_execution)")
            if self.restore_due:
                self.restore(metrics=True)
            if iterator is not self._iterator:
                self._use(iterator)
            if self._data_due:
                with spending("resuming", "position in the data"):
                    self._restore_data(last + 1 - first)
                iterator = self._iterator
            yield first, last, iterator
            del current, iterator  # they may have been replaced, and are to be freed
            self.steps += last + 1 - first
            self._drawn += last + 1 - first
            self.step_in_epoch = last + 1
            if self.step_in_epoch < (epochs.steps_per_epoch or epochs._num_batches or np.inf):
                self._notify()

        if self._data_due:
            raise self._different_data(f"the epoch has no step {resumed}")

    def _use(self, iterator: Any) -> None:
        """Use a new iterator; of the first, check whether its position can be saved."""
        is_first, self._iterator, self._drawn = self._iterator is None, iterator, 0
        if is_first and self.listeners:
            self.reason = self.reason or _try_save(iterator)
            for listener in self.listeners:
                listener.on_begin(self)

    def end_epoch(self, epoch: int) -> None:
        """Handle the end of an epoch, after its callbacks."""
        self.epoch, self.step_in_epoch, self._replaced = epoch + 1, 0, None
        self._notify()

    def _notify(self) -> None:
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
        else:  # with data of unknown length, Keras keeps it in a local variable
            self._replaced = self._iterator
        self._iterator = iterator

    def write(self, folder: Path) -> dict[str, Any]:
        """Write everything that the next step depends on; return its metadata."""
        variables = {part: to_numpy(each) for part, each in _variables(self.model).items()}
        snapshot.write_arrays(folder, variables)
        self.reason = self.reason or self.hidden_state
        live, reason = self._live_iterator, self.reason
        if live is not None and not reason:
            reason = position.write(folder / _ITERATOR, live)
        parts = [part for part, values in variables.items() if values and part != RANDOM]
        return {
            "holds": [*parts, RANDOM, *[DATA] * (not reason)],
            "exact": not reason,
            "why": reason,
            "fit": self.number,
            "epoch": self.epoch,
            "step_in_epoch": self.step_in_epoch,
            "iterators": self._data.iterators - (live is not None),
            "live": live is not None,
            "drawn": self._drawn if live is not None and live is self._iterator else 0,
            "steps_seen": self._epochs._steps_seen,
            "batches": self._epochs._num_batches,
            "seeds": self._seeds,
            "callbacks": callback_counters(self.callbacks),
            "global_seed": bool(variables[RANDOM]),
            "random": seeds.host_random_state(),
        }

    def restore(self, *, metrics: bool = False) -> None:
        """Restore the saved variables and random state; metrics only within an epoch."""
        assert self.start is not None
        with spending("checkpoint restore", "tpunb"):
            self.start.restore(self.model, metrics=metrics)
        self.restore_due = False

    @cached_property
    def hidden_state(self) -> str:
        """Sentence that names state of the step that is not saved, or ""; known after the first step."""
        if self._iterator is None:
            return ""
        tracked = [variable for each in _variables(self.model).values() for variable in each]
        return hidden_state(self.model.train_function, self._iterator, tracked)

    def _restore_data(self, taken: int) -> None:
        """Restore the position of the iterator; if it was not saved, draw as many batches."""
        import tensorflow as tf

        assert self.start is not None
        folder, metadata = self.start
        self._data_due = False
        if not metadata["live"]:
            return  # an epoch that begins with a new iterator
        self._epochs._steps_seen = metadata["steps_seen"] + taken
        self._drawn = metadata["drawn"]
        if metadata["exact"]:
            self._restored_data = rewrite.with_own_shuffles(self._data.dataset)
            iterator = self._iterator if self._restored_data is self._data.dataset else iter(self._restored_data)
            position.read(folder / _ITERATOR, iterator)
            self._feed_from(iterator)
            return
        try:
            for _ in range(self._drawn):
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


def _try_save(data: Any) -> str:
    """Save the position in some data to a temporary folder; return why it cannot be saved, or ""."""
    with TemporaryDirectory() as folder:
        return position.write(Path(folder) / _ITERATOR, iter(data))
