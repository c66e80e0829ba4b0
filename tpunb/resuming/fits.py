"""One call of Keras' ``fit``: where it stands, what its next step depends on, and how that is put back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Protocol

import numpy as np

from tpunb.checkpoint.nouns import DATA, METRICS, OPTIMIZER, RANDOM, WEIGHTS
from tpunb.errors import TpunbError
from tpunb.resuming import datasets, folders, keras_seeds
from tpunb.resuming.building import build
from tpunb.resuming.callbacks import remembered, remind
from tpunb.resuming.hidden_state import hidden_state

ITERATOR = "iterator"
"""The name that the files of a ``tf.data`` iterator share."""

Turn = tuple[int, int, Any]
"""Of Keras' loop over an epoch: the first and the last step of the turn, and the iterator that feeds them."""


class Start(NamedTuple):
    """Where a fit goes on from: a checkpoint's folder, and what is told there."""

    folder: Path
    about: Mapping[str, Any]


class Stand(NamedTuple):
    """Where a fit stands in its data."""

    iterator: Any  # that feeds the next step
    begun: int  # how often its data were begun before
    drawn: int  # batches of the iterator


class Listener(Protocol):
    """Whom a fit tells of itself."""

    def taken(self, fit: Fit, data: Any) -> Any:
        """Return the dataset that the fit is to take: its own, or the same elements made in another way.

        Of the program's own datasets alone; nothing was drawn from it, and its shuffles have seeds.
        """

    def begun(self, fit: Fit) -> None:
        """Take notice that a fit begins: its data are known, and nothing was drawn from them."""

    def stepped(self, fit: Fit, *, anew: bool) -> None:
        """Take notice that steps were taken; `anew` where none was since the last notice, but an epoch has ended.

        What `Fit.fill` writes now is what the next step begins with.
        """


class Counted:
    """A dataset that counts how often it was begun: each time its shuffles go on to another order."""

    def __init__(self, dataset: Any, begun: int = 0) -> None:
        self.dataset, self.begun = dataset, begun

    def __iter__(self) -> Iterator[Any]:
        self.begun += 1
        return iter(self.dataset)


@dataclass(eq=False)
class Fit:
    """A call of ``fit``, and where it stands.

    Parameters
    ----------
    model
        Which is trained.
    number
        How many were before it in the same block.
    listeners
        Whom it tells.
    start
        Where it goes on from, if anywhere.
    """

    model: Any
    number: int
    listeners: Sequence[Listener]
    start: Start | None = None
    epoch: int = 0
    step_in_epoch: int = 0
    steps: int = 0  # that the optimizer has taken
    why: str = ""  # the position in its data cannot be saved
    callbacks: tuple[Any, ...] = ()
    _epochs: Any = None  # Keras' own, over the data
    _data: Counted = field(default_factory=lambda: Counted(()))
    _seeds: list[int] = field(default_factory=list)  # of the shuffles that had none
    _iterator: Any = None  # that feeds the steps
    _drawn: int = 0  # batches of it
    _replaced: Any = None  # another, that Keras still holds
    _aside: Any = None  # the data into which a position was read
    _shuffles: bool = False  # there are shuffles with a seed of the program's own
    _state_due: bool = False  # what was saved is still to be put back
    _data_due: bool = False
    _told: int = -1  # the steps of the last notice

    def attach(self, epochs: Any) -> None:
        """Take the data of the fit as soon as they are known, before anything is drawn from them."""
        if self._epochs is not None:
            return
        self._epochs, dataset = epochs, epochs._distributed_dataset
        users_own = isinstance(epochs.data_adapter, _adapter())
        graph = datasets.graph_of(dataset) if users_own else None
        if users_own and graph is None:
            self.why = "the data cannot be looked into (their graph is over 2 GB, or distributed)"
        elif datasets.is_told_to_ignore(dataset):
            self.why = datasets.kept(graph) if users_own else _saved_aside(datasets.strict(dataset))
        if graph is not None:
            self.why = self.why or datasets.begun_late(graph)
            self._shuffles = datasets.reshuffles(graph)
        if graph is not None and datasets.unseeded(graph):
            self._seeds = self.start.about["seeds"] if self.start else datasets.draw_seeds(graph)
            dataset = self._seeded(dataset, graph)
        if graph is not None:
            for listener in self.listeners:
                dataset = listener.taken(self, dataset)
        self._data = epochs._distributed_dataset = Counted(dataset)
        self.steps = 0 if self.model.optimizer is None else int(self.model.optimizer.iterations)
        if self.start is not None:
            self._go_on(self.start.about, dataset)

    def _seeded(self, dataset: Any, graph: Any) -> Any:
        try:
            return datasets.seeded(dataset, graph, self._seeds)
        except ValueError as error:
            raise self._other_data(f"{len(self._seeds)} shuffles without a seed were saved") from error

    def _go_on(self, about: Mapping[str, Any], dataset: Any) -> None:
        self._state_due = self._data_due = True
        build(self.model, dataset.element_spec)
        for _ in range(about["iterators"]):
            iter(self._data)
        self.epoch, self.step_in_epoch, self.steps = about["epoch"], about["step_in_epoch"], about["step"]
        if self._epochs._num_batches is None:  # data of unknown length, which the first epoch has found out
            self._epochs._num_batches = about["batches"]

    def begin_epoch(self, epoch: int, callbacks: Sequence[Any]) -> None:
        """Take notice that an epoch begins, before its callbacks do: they may set the learning rate."""
        self.epoch = epoch
        if not self.callbacks and self.start is not None:
            remind(callbacks, self.start.about["callbacks"])
        self.callbacks = tuple(callbacks)
        if self._state_due and self.step_in_epoch == 0:
            self.put_back()

    def turns(self, epochs: Any, original: Callable[[Any], Iterator[Turn]]) -> Iterator[Turn]:
        """Yield the turns of an epoch as Keras does; of a resumed one, from where it was saved.

        The turns before are Keras' own too, and not handed on: they draw nothing.
        """
        resumed = self.step_in_epoch if self._data_due else 0
        for first, last, own in original(epochs):
            iterator = self._iterator if own is self._replaced else own
            if first < resumed:
                continue
            if self._data_due and first > resumed:
                raise self._other_data(f"step {resumed} of the epoch begins no turn: steps_per_execution is another")
            if self._state_due:
                self.put_back(metrics=True)
            if iterator is not self._iterator:
                self._take(iterator)
            if self._data_due:
                self._go_on_in_data(last + 1 - first)
                iterator = self._iterator
            yield first, last, iterator
            del own, iterator  # others may take their place now, and these are to end
            self.steps += last + 1 - first
            self._drawn += last + 1 - first
            self.step_in_epoch = last + 1
            if self.step_in_epoch < (epochs.steps_per_epoch or epochs._num_batches or np.inf):
                self._tell()

        if self._data_due:
            raise self._other_data(f"the epoch has no step {resumed}")

    def _take(self, iterator: Any) -> None:
        """Take an iterator of which nothing is drawn; of the first, see whether its position can be saved."""
        first, self._iterator, self._drawn = self._iterator is None, iterator, 0
        if first and self.listeners:
            self.why = self.why or _saved_aside(iterator)
            for listener in self.listeners:
                listener.begun(self)

    def end_epoch(self, epoch: int) -> None:
        """Take notice that an epoch has ended and its callbacks have run."""
        self.epoch, self.step_in_epoch, self._replaced = epoch + 1, 0, None
        self._tell()

    def _tell(self) -> None:
        anew, self._told = self._told == self.steps, self.steps
        for listener in self.listeners:
            listener.stepped(self, anew=anew)

    @property
    def _live(self) -> Any:
        """The iterator that the next step draws from; None where it will be a new one."""
        if self.step_in_epoch:
            return self._iterator
        return self._epochs._current_iterator if self._epochs.steps_per_epoch else None

    @property
    def left(self) -> int | None:
        """How many steps are still to come; None where that is not known."""
        epochs = next((one.params.get("epochs") for one in self.callbacks if getattr(one, "params", None)), None)
        steps = self._epochs.num_batches
        return None if epochs is None or steps is None else (epochs - self.epoch) * steps - self.step_in_epoch

    @property
    def stand(self) -> Stand | None:
        """Where it stands in its data, within an epoch; None where the next step may begin them anew."""
        if not self.step_in_epoch:
            return None
        return Stand(self._iterator, self._data.begun - 1, self._drawn)

    def feed_from(self, dataset: Any, iterator: Any, why: str) -> None:
        """Go on with other data that give the same elements, within an epoch.

        Parameters
        ----------
        dataset
            That later epochs begin.
        iterator
            Of it, that stands where the fit's own does.
        why
            The position in it is none that the program's own data know, in a sentence.
        """
        self._data = self._epochs._distributed_dataset = Counted(dataset, self._data.begun)
        self._put(iterator)
        self.why = self.why or why

    def _put(self, iterator: Any) -> None:
        """Let another iterator feed the epoch."""
        if self._epochs._current_iterator is self._iterator:
            self._epochs._current_iterator = iterator
        else:  # of data of unknown length, Keras keeps it to itself
            self._replaced = self._iterator
        self._iterator = iterator

    @property
    def owns_shuffles(self) -> bool:
        """Whether nobody else begins the shuffles of its data: there are none, or all were given seeds here."""
        return not self._shuffles

    def fill(self, folder: Path) -> dict[str, Any]:
        """Write all that the next step depends on; return what is to be told of it."""
        variables = {kind: folders.values(some) for kind, some in self._variables().items()}
        folders.write_arrays(folder, variables)
        self.why = self.why or self.hidden
        live, why = self._live, self.why
        if live is not None and not why:
            why = datasets.write(folder / ITERATOR, live)
        kinds = [kind for kind in (WEIGHTS, OPTIMIZER, METRICS) if variables[kind]]
        return {
            "holds": [*kinds, RANDOM, *[DATA] * (not why)],
            "exact": not why,
            "why": why,
            "fit": self.number,
            "epoch": self.epoch,
            "step_in_epoch": self.step_in_epoch,
            "iterators": self._data.begun - (live is not None),
            "live": live is not None,
            "drawn": self._drawn if live is not None and live is self._iterator else 0,
            "steps_seen": self._epochs._steps_seen,
            "batches": self._epochs._num_batches,
            "seeds": self._seeds,
            "callbacks": remembered(self.callbacks),
            "global_seed": bool(variables[RANDOM]),
            "random": folders.random_state(),
        }

    def put_back(self, *, metrics: bool = False) -> None:
        """Put the variables and random states back as they were saved; metrics only within an epoch."""
        assert self.start is not None
        folder, about = self.start
        now = self._variables(global_seed=about["global_seed"])
        if not metrics:
            del now[METRICS]
        saved = folders.read_arrays(folder, {kind: folders.values(some) for kind, some in now.items()})
        for kind, some in now.items():
            for variable, value in zip(some, saved[kind], strict=True):
                variable.assign(value)
        folders.set_random_state(about["random"])
        self._state_due = False

    @property
    def is_due(self) -> bool:
        """Whether what was saved is still to be put back."""
        return self._state_due

    @cached_property
    def hidden(self) -> str:
        """What the step depends on beyond what is saved, in a sentence, or ""; known once a step was taken."""
        if self._iterator is None:
            return ""
        known = [one for some in self._variables().values() for one in some]
        return hidden_state(self.model.train_function, self._iterator, known)

    def _variables(self, *, global_seed: bool | None = None) -> dict[str, list[Any]]:
        """Return the variables that the next step depends on; Keras' own seed where there is one, or as it is asked."""
        seeds = keras_seeds.make() if global_seed else keras_seeds.generator()
        return {
            WEIGHTS: list(self.model.variables),
            OPTIMIZER: list(getattr(self.model.optimizer, "variables", ())),
            METRICS: list(self.model.metrics_variables),
            RANDOM: [] if seeds is None or global_seed is False else [seeds.state],
        }

    def _go_on_in_data(self, taken: int) -> None:
        """Put the iterator where it was; where that could not be saved, by drawing what was drawn."""
        import tensorflow as tf

        assert self.start is not None
        folder, about = self.start
        self._data_due = False
        if not about["live"]:
            return  # an epoch that begins with a new iterator
        self._epochs._steps_seen = about["steps_seen"] + taken
        self._drawn = about["drawn"]
        if about["exact"]:
            self._aside = datasets.apart(self._data.dataset)
            iterator = self._iterator if self._aside is self._data.dataset else iter(self._aside)
            datasets.read(folder / ITERATOR, iterator)
            self._put(iterator)
            return
        try:
            for _ in range(self._drawn):
                next(self._iterator)
        except (tf.errors.OpError, StopIteration) as error:
            raise self._other_data(f"{self._drawn} batches were drawn, and are not here") from error

    def _other_data(self, what: str) -> TpunbError:
        assert self.start is not None
        return TpunbError(
            f"{self.start.folder.name} is of other data: {what}", hint="run the same cell as when it was saved"
        )


def _adapter() -> type:
    from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

    known: type = TFDatasetAdapter
    return known


def _saved_aside(data: Any) -> str:
    """Return why the position in some data cannot be saved, by doing it, or ""."""
    with TemporaryDirectory() as folder:
        return datasets.write(Path(folder) / ITERATOR, iter(data))
