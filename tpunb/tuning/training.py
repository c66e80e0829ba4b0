"""One step of training as the program itself takes it: Keras' ``fit`` on TensorFlow, or a function of one's own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from tpunb.errors import TpunbError, need, wrong
from tpunb.resuming import keras_seeds
from tpunb.resuming.building import build
from tpunb.resuming.hidden_state import hidden_state
from tpunb.tuning.state import State, digest, global_seeds, holders, variables_of


class Training(Protocol):
    """What a trial needs of a program: a turn of steps, and its state, to be put back."""

    steps: int
    """That one turn takes."""

    def turn(self, iterator: Iterator[Any]) -> Any:
        """Take a turn on an iterator's next batch, or batches; return what it tells, which may still be computed.

        Raises
        ------
        StopIteration
            When the iterator has no more.
        """

    def state(self) -> Any:
        """Return the state as it is now."""

    def put_back(self, state: Any) -> None:
        """Make the state what it was."""

    def hidden(self, iterator: Iterator[Any]) -> str:
        """Return what a step depends on that `state` does not know, in a sentence, or ""; no step is taken."""

    def seeded(self) -> AbstractContextManager[None]:
        """Have what random numbers need in the block, so that `state` knows of it."""

    def digest(self, told: list[Any]) -> str:
        """Return a digest of what turns told and of the state after them."""


class KerasTraining:
    """A compiled Keras model, stepped as ``fit`` steps it.

    What of it is not built yet is built, as ``fit`` would, without a batch being drawn.

    Parameters
    ----------
    model
        A compiled model, on TensorFlow.
    spec
        The ``element_spec`` of its data.

    Raises
    ------
    TypeError
        When it is no compiled Keras model.
    TpunbError
        Keras runs on another backend, or on several replicas; or the model cannot be built from the specification.
    """

    def __init__(self, model: Any, spec: Any) -> None:
        keras = need("keras", extra="tensorflow")
        if not isinstance(model, keras.Model) or not model.compiled:
            raise wrong("Job", "build", "return a compiled Keras model first, or step= be given", model)
        if keras.backend.backend() != "tensorflow":
            raise TpunbError(
                f"Keras runs on {keras.backend.backend()}: its fit is tuned on TensorFlow",
                hint="give Job(build, step=...), a step of your own",
            )
        if model.distribute_strategy.num_replicas_in_sync > 1:
            raise TpunbError(
                f"the model trains on {model.distribute_strategy.num_replicas_in_sync} replicas",
                hint="tune it on one, and give the run on several what was found",
            )
        self.model = model
        self.steps = int(model.steps_per_execution)
        build(model, spec)

    def __repr__(self) -> str:
        return f"KerasTraining({self.model.name})"

    def turn(self, iterator: Iterator[Any]) -> Any:
        """Take `steps` steps; return the loss and the metrics."""
        import tensorflow as tf

        try:
            return (self.model.make_train_function() or self.model.train_function)(iterator)
        except tf.errors.OutOfRangeError:  # the end of the data, as Keras takes it too
            raise StopIteration from None

    def state(self) -> State:
        """Return its weights, optimizer, metrics and seeds, and all random numbers, as they are now."""
        return State.of(variables_of(self.model))

    def put_back(self, state: State) -> None:
        """Make them what they were."""
        state.put_back()

    def hidden(self, iterator: Iterator[Any]) -> str:
        """Return what its compiled step depends on beyond its variables and seeds."""
        function = self.model.make_train_function() or self.model.train_function
        seeds = keras_seeds.generator()
        known = [*variables_of(self.model), *([] if seeds is None else [seeds.state])]
        return hidden_state(function, iterator, known)

    @contextmanager
    def seeded(self) -> Iterator[None]:
        """Have global seeds in the block; a step that was first compiled with such as are then gone is forgotten."""
        fresh = self.model.train_function is None
        with global_seeds() as made:
            yield
        if made and fresh:
            self.model.train_function = None

    def digest(self, told: list[Any]) -> str:
        """Return a digest of losses and metrics, and of all variables after them."""
        return digest(told, variables_of(self.model))


class LoopTraining:
    """A model of any kind, stepped by a function: ``step(model, batch)`` changes it in place, and returns the loss.

    Of Keras' and TensorFlow's objects, in lists and mappings too, the variables are put back. Of anything else a copy
    is trained, and the program's own stays as it is. What `step` changes beyond its model is not known here.

    Parameters
    ----------
    model
        All that a step changes: a model with its optimizer, a mapping of arrays, ...
    step
        The function.
    """

    steps = 1

    def __init__(self, model: Any, step: Callable[[Any, Any], Any]) -> None:
        self.model, self.step = model, step
        self._holders = holders(model)
        _build_optimizers(self._holders)
        self._at_work = self._copy(model)

    def __repr__(self) -> str:
        return f"LoopTraining({getattr(self.step, '__name__', 'step')})"

    def turn(self, iterator: Iterator[Any]) -> Any:
        """Take one step; return what it returns."""
        return self.step(self._at_work, next(iterator))

    def state(self) -> tuple[State, Any]:
        """Return the values of its variables and a copy of the rest, as they are now."""
        return State.of(self._variables), self._copy(self._at_work)

    def put_back(self, state: tuple[State, Any]) -> None:
        """Make them what they were."""
        state[0].put_back()
        self._at_work = self._copy(state[1])

    def hidden(self, iterator: Iterator[Any]) -> str:
        """Return nothing: what a function of one's own depends on is not known here."""
        return ""

    @contextmanager
    def seeded(self) -> Iterator[None]:
        """Have global seeds in the block. A function of the program's own that is first compiled in it keeps them."""
        with global_seeds():
            yield

    def digest(self, told: list[Any]) -> str:
        """Return a digest of what steps returned, of all variables after them, and of all else that the model holds."""
        held = {id(holder) for holder in self._holders}
        return digest([told, _without(self._at_work, held)], self._variables)

    @property
    def _variables(self) -> list[Any]:
        every = [variable for holder in self._holders for variable in variables_of(holder)]
        return list({id(variable): variable for variable in every}.values())

    def _copy(self, model: Any) -> Any:
        """Return a copy that shares what holds variables."""
        return copy.deepcopy(model, {id(holder): holder for holder in self._holders})


def _without(value: Any, held: set[int]) -> Any:
    """Return what lies in a value, as lists, less what holds variables."""
    if id(value) in held:
        return None
    if isinstance(value, dict):
        value = list(value.values())
    return [_without(part, held) for part in value] if isinstance(value, list | tuple) else value


def _build_optimizers(found: list[Any]) -> None:
    """Make the variables of optimizers that have none yet: at the first step it would be too late to know them."""
    trained = [variable for one in found for variable in getattr(one, "trainable_variables", ()) if not _steps(one)]
    for one in (*found, *(getattr(one, "optimizer", None) for one in found)):
        if _steps(one) and not one.built and trained:
            one.build(trained)


def _steps(one: Any) -> bool:
    return hasattr(one, "apply_gradients") or (hasattr(one, "apply") and hasattr(one, "iterations"))
