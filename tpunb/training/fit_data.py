"""The data of a ``fit``: its passes, the seeds of their shuffles, and the position in them, saved and restored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tpunb.instrument.keras import dataset_adapter
from tpunb.instrument.tensorflow import LIBRARY as TENSORFLOW
from tpunb.tfdata import position, rewrite
from tpunb.tfdata.graph import graph_or_none, too_large
from tpunb.tfdata.restored import (
    begin_again,
    buffered_bytes,
    explain_op,
    keeps_orders,
    late_shuffles,
    needs_ends,
    not_restored,
    only_checks,
    turns,
    unpositioned,
)
from tpunb.tfdata.variables import SeedStates
from tpunb.training import constants
from tpunb.training.fit_start import FitStart
from tpunb.training.passes import ArrayBatches, CountingDataset
from tpunb.training.positions import ITERATOR, Positions
from tpunb.training.py_dataset import PyDatasetBatches, PyDatasetState
from tpunb.training.state import DATA

_SHARED = (
    "another iterator began the seeded shuffle of the data during the fit (a callback, or validation); "
    "give it data of its own"
)
_SHARED_SEEDS = (
    "another iterator drew from a seed generator of the data during the fit (a random layer that other data use too)"
)


@dataclass(eq=False)
class FitData:
    """The data of a fit and the position in them."""

    start: FitStart | None = None
    reason: str = ""  # why the position cannot be saved
    owns_shuffles: bool = True  # no shuffle has a seed of the program, so that nothing else advances them
    fingerprint: str = ""  # of the constants in the data
    passes: CountingDataset = field(default_factory=lambda: CountingDataset(()))  # Keras draws its iterators from them
    positions: Positions = field(default_factory=Positions)  # that were written
    iterator: Any = None  # feeds the steps; None before the first
    drawn: int = 0  # batches taken from it
    due: bool = False  # the saved position is not restored yet
    py_datasets: list[PyDatasetState] = field(default_factory=list)  # whose batches it reads by index
    epochs: Any = None  # Keras' iterator over epochs
    used: int = 0  # iterators from which batches were taken
    _seeds: list[Any] = field(default_factory=list)  # of the shuffles that had none
    _shuffles: list[Any] = field(default_factory=list)  # of the program's data that others may begin too
    _begun: int = 0  # times that they had begun before
    _turns: int = 0  # most times that one of them begins in a pass; 0 if iterators do not hold how often they had
    _advanced: int = 0  # times that it has begun in earlier passes after their iterators were created
    _keeps_orders: bool = False  # a cache keeps the order of the first pass
    _needs_ends: bool = False  # each pass is to be read to its end
    _replaced: Any = None  # iterator that Keras still holds, and that feeds nothing
    _restored: Any = None  # kept alive: a position was read into its iterator

    def attach(self, epochs: Any, listened: Callable[[Any], Any]) -> None:
        """Take the data when Keras has prepared them; `listened` may replace a dataset by one with its elements."""
        self.epochs, dataset = epochs, epochs._distributed_dataset
        from_program = isinstance(epochs.data_adapter, dataset_adapter())
        self.reason = too_large(dataset) if from_program else ""
        graph = graph_or_none(dataset) if from_program and not self.reason else None
        arrays: Any = ArrayBatches.of(dataset, epochs.data_adapter)
        if not hasattr(dataset, "_inputs"):
            self.reason = (
                "the data are distributed over replicas, whose positions cannot be saved (train without a strategy)"
            )
        elif from_program and graph is None:
            self.reason = self.reason or "the graph of the data cannot be read: it is larger than 2 GB (read files)"
        elif arrays is not None:
            self._seed_arrays(arrays)
        elif hasattr(epochs.data_adapter, "py_dataset"):
            arrays = self._py_batches(dataset)
        elif hasattr(epochs.data_adapter, "generator"):
            self.reason = explain_op("GeneratorDataset")
        elif not from_program and position.ignores_external_state(dataset):
            self.reason = try_save(position.with_external_state_policy(dataset, "FAIL"))
        if graph is not None:
            dataset = listened(self._seed_dataset(dataset, graph))
            self._shuffles = position.seeded_shuffles(epochs._distributed_dataset)
        self.passes = epochs._distributed_dataset = arrays or CountingDataset(dataset)

    def _py_batches(self, dataset: Any) -> PyDatasetBatches | None:
        """Return the batches of a PyDataset by index; None if there is a reason against them."""
        adapter = self.epochs.data_adapter
        self.py_datasets = [state := PyDatasetState(adapter.py_dataset, self.epochs.steps_per_epoch)]
        self.reason, self.fingerprint = state.reason, f"{state.fingerprint()} {adapter.shuffle}"
        return None if self.reason else PyDatasetBatches(dataset, adapter, state)

    def _seed_arrays(self, arrays: ArrayBatches) -> None:
        self.fingerprint = arrays.fingerprint
        if arrays.needs_seed:
            self._seeds = self.start.metadata["seeds"] if self.start else [arrays.seed]
            self._check_seeds(1)
            (arrays.seed,) = self._seeds

    def _seed_dataset(self, dataset: Any, graph: Any) -> Any:
        """Return the dataset of a graph with seeds for its shuffles that had none."""
        self.fingerprint = constants.of_data(graph)
        drawn = SeedStates(dataset)
        are_written = not any(unpositioned(graph))
        self.reason = self.reason or not_restored(graph, dataset.options(), seeds=bool(drawn), positions=bool(drawn))
        unseeded = rewrite.unseeded_shuffles(graph)
        names = {node.name for node in unseeded}
        self.owns_shuffles = all(node.name in names for node in rewrite.shuffles(graph))
        self._seeds = self.start.metadata["seeds"] if self.start else position.present_seeds(graph)
        self._check_seeds(len(unseeded))
        self.positions = Positions(buffered_bytes(graph), drawn, are_written=are_written)
        checked, self._keeps_orders = only_checks(graph) or bool(drawn), keeps_orders(graph)
        begun, late = turns(graph, dataset.options()), late_shuffles(graph)
        self._needs_ends = needs_ends(graph, dataset.options())
        outer = [begun.get(node.name, 0) for node in rewrite.shuffles(graph) if node.name not in late]
        self._turns = max(outer, default=0) if all(number > 0 for number in outer) else 0
        dataset = rewrite.seed_shuffles(dataset, graph, self._seeds)
        if self.start is not None:
            dataset = rewrite.without_locks(dataset, graph)
        if checked and not self.reason:
            dataset = position.with_external_state_policy(dataset, "IGNORE")
        return dataset

    def _check_seeds(self, shuffles: int) -> None:
        if len(self._seeds) != shuffles:
            assert self.start is not None
            raise self.start.different_data(f"{len(self._seeds)} unseeded shuffles were saved, now {shuffles}")

    def begin_at_start(self) -> None:
        """Proceed to the pass in which the checkpoint was saved; its position is restored with the first batch."""
        assert self.start is not None
        self.due, saved = True, self.start.metadata
        drawn_again = saved["drawn"] > 0 and not self.start.has_iterator
        self.begin(saved["iterators"], saved.get("used_iterators", 0) - drawn_again)
        self.used = saved.get("used_iterators", 0) - saved["live"]
        if isinstance(self.passes, PyDatasetBatches):
            self.passes.begin_at(saved["position"], saved["drawn"])
        if self.epochs._num_batches is None:  # data of unknown length, which the first epoch has counted
            self.epochs._num_batches = saved["batches"]

    def begin(self, iterators: int, used: int) -> None:
        """Proceed in the orders of the data as if iterators had been created, and some of them used."""
        if self._keeps_orders and iterators and used:
            for _ in iter(self.passes):  # fills the cache in its order
                pass
            iterators, used = iterators - 1, used - 1
        self.passes.begin(iterators)
        self._advanced = used * (self._turns - 1)
        is_read = used and not isinstance(self.passes, ArrayBatches | PyDatasetBatches)
        if is_read and (graph := graph_or_none(self.passes.dataset)) is not None:
            begin_again(graph, self.passes.dataset.options(), used)

    def current(self, iterator: Any) -> Any:
        """Return the iterator that feeds the steps in place of Keras' own."""
        return self.iterator if iterator is self._replaced else iterator

    def step_batches(self, iterator: Any) -> Any:
        """Return an iterator in the form in which a step takes it."""
        return iterator

    def use(self, iterator: Any, *, check: bool) -> None:
        """Use a new iterator; of the first, `check` whether its position can be saved."""
        is_first, self.iterator, self.drawn = self.iterator is None, iterator, 0
        self.used += 1
        self.positions.begin()
        if is_first and self._shuffles and self._turns:
            before = self.passes.iterators + self._advanced
            self._begun = max(position.begun(iterator), default=before) - before
            saved = self._begun if self.start is None else self.start.metadata.get("begun", self._begun)
            if saved != self._begun:
                assert self.start is not None
                problem = f"its shuffle had begun {saved} times before the fit, now {self._begun}"
                raise self.start.different_data(problem)
        if is_first and check:
            self.reason = self.reason or self._try_save(iterator)

    def _try_save(self, iterator: Any) -> str:
        if isinstance(self.passes, PyDatasetBatches):
            return self.py_datasets[0].probe()
        is_drawn = isinstance(self.passes, ArrayBatches) or not self.positions.are_written
        return "" if is_drawn else try_save(iterator)

    def on_iterator(self, dataset: Any) -> None:
        """Note an iterator that is created over any dataset during the fit, and may begin a shuffle of its data."""
        if self.passes.is_creating or self.reason:
            return
        if self.positions.seeds.shares(dataset):
            self.reason = _SHARED_SEEDS
            return
        shuffles = {id(shuffle) for shuffle in self._shuffles}
        if any(id(shuffle) in shuffles for shuffle in position.seeded_shuffles(dataset)):
            self.reason = _SHARED

    def end_pass(self, iterator: Any) -> None:
        """Draw the end of a pass after its last batch, as TensorFlow does in advance: later orders depend on it."""
        if self._needs_ends and self.epochs._num_batches and self.epochs._steps_seen >= self.epochs._num_batches:
            next(iterator, None)

    def end_epoch(self) -> None:
        """Handle the end of an epoch."""
        self._replaced = None

    def replace(self, dataset: Any, iterator: Any) -> None:
        """Continue within an epoch with another dataset of the same elements, and an iterator at the same position.

        Its state does not fit the program's own dataset: a resumed fit draws the batches of the pass again.
        """
        self.passes = self.epochs._distributed_dataset = CountingDataset(dataset, self.passes.iterators)
        self._feed_from(iterator)
        self.positions.are_written = False

    def _feed_from(self, iterator: Any) -> None:
        if self.epochs._current_iterator is self.iterator:
            self.epochs._current_iterator = iterator
        elif self._replaced is None:  # with data of unknown length, Keras keeps it in a local variable
            self._replaced = self.iterator
        self.iterator = iterator

    @property
    def _kept(self) -> Any:
        """The iterator that the next epoch continues; None where Keras will create one."""
        return self.epochs._current_iterator if self.epochs.steps_per_epoch else None

    def write(self, folder: Path, *, within_epoch: bool) -> tuple[str, dict[str, Any]]:
        """Write the position; return why it cannot be restored, or "", and its metadata."""
        live = self.iterator if within_epoch else self._kept
        drawn = self.drawn if live is not None and live is self.iterator else 0
        unpositioned, facts = self.reason, {"seeds": self.positions.seeds.read()}
        if not unpositioned:
            unpositioned, written = self._write_position(folder, live, drawn)
            facts |= written
        return unpositioned, {
            **self.begun_passes,
            "iterators": self.passes.iterators - (live is not None),
            "live": live is not None,
            "drawn": drawn,
            "position": facts,
            "steps_seen": self.epochs._steps_seen,
            "batches": self.epochs._num_batches,
        }

    @property
    def begun_passes(self) -> dict[str, Any]:
        """Passes that have begun, and the seeds of their shuffles."""
        made, used = self.passes.iterators, self.used
        return {"iterators": made, "used_iterators": used, "begun": self._begun, "seeds": self._seeds}

    def _write_position(self, folder: Path, live: Any, drawn: int) -> tuple[str, dict[str, Any]]:
        if isinstance(self.passes, ArrayBatches):
            return self.passes.problem, {}
        if isinstance(self.passes, PyDatasetBatches):
            return self.passes.position(drawn)
        return self.positions.write(folder, live, drawn) if live is not None else ("", {})

    def restore(self, taken: int) -> None:
        """Restore the position of the iterator; if it was not saved, draw as many batches."""
        assert self.start is not None
        saved = self.start.metadata
        self.due = False
        if DATA in saved["holds"]:
            self.positions.seeds.assign(saved.get("position", {}).get("seeds", []))
        if not saved["live"]:
            return  # an epoch that begins with a new iterator
        self.epochs._steps_seen = saved["steps_seen"] + taken
        self.drawn = saved["drawn"]
        tf = TENSORFLOW.module()
        ended = (StopIteration,) if tf is None else (StopIteration, tf.errors.OpError)
        try:
            for _ in range(self._read_position(saved) if DATA in saved["holds"] else self.drawn):
                next(self.iterator)
        except ended as error:
            raise self.start.different_data(f"it ends before batch {self.drawn}") from error

    def _read_position(self, saved: Mapping[str, Any]) -> int:
        """Restore the position that was written; return how many batches are to be drawn after it."""
        assert self.start is not None
        if isinstance(self.passes, PyDatasetBatches):
            return 0 if "begun" in saved["position"] else self.drawn
        if isinstance(self.passes, ArrayBatches):
            self._feed_from(self.passes.pass_from(saved["iterators"], self.drawn))
            return 0
        if not self.start.has_iterator:
            self.positions.begin(seconds=saved["position"].get("seconds", 0))
            return self.drawn
        self._restored = rewrite.with_new_shuffles(self.passes.dataset)
        iterator = self.iterator if self._restored is self.passes.dataset else iter(self._restored)
        position.read(self.start.folder / ITERATOR, iterator)
        self._feed_from(iterator)
        draws: int = saved.get("position", {}).get("redraw", 0)
        self.positions.begin(self.start.folder, self.drawn - draws, saved.get("position", {}).get("seconds", 0))
        return draws


def try_save(data: Any) -> str:
    """Save the position in some data to a temporary folder; return why it cannot be saved, or ""."""
    with TemporaryDirectory() as folder:
        return position.write(Path(folder) / ITERATOR, iter(data))
