"""Finds state that a training step uses beyond the tracked variables, and that cannot be restored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tpunb.instrument.registry import Priority
from tpunb.instrument.tensorflow import DRAW_SEED, on_operations
from tpunb.text import plain
from tpunb.tfdata.effects import GENERATOR, draws_random_numbers
from tpunb.training.constants import compiled_step


class EagerStep:
    """State that eager steps use beyond the tracked variables, seen as they run."""

    def __init__(self) -> None:
        self.unsaved_seed = ""  # sentence on a random operation whose seed is not drawn from TensorFlow's global seed
        self._generator = ""
        self._changed: list[Any] = []  # handles of variables

    @contextmanager
    def watching(self, *, operations: bool) -> Iterator[None]:
        """Watch a step: the seeds that it draws, and all of its operations if asked for."""
        with ExitStack() as stack:
            DRAW_SEED.listen(self._drawing, Priority.CHECKPOINTS, stack)
            if operations:
                on_operations(self._note, stack)
            yield

    def hidden_state(self, tracked: Iterable[Any]) -> str:
        """Return a sentence that names state beyond the tracked variables, or ""."""
        if self._generator:
            return (
                f"the model draws random numbers with {self._generator}, whose state cannot be saved (use keras.random)"
            )
        handles = _handles(tracked)
        if any(id(handle) not in handles for handle in self._changed):
            return "the step changes a variable that is not one of the model (create it by add_weight in a layer)"
        return self.unsaved_seed

    def _drawing(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        import tensorflow as tf

        def get_seed(seed: Any) -> Any:
            drawn = original(seed)
            if tf.executing_eagerly() and (seed is not None or drawn == (None, None)):
                self.unsaved_seed = (
                    "an eager step draws random numbers with a seed of its own or none, whose state cannot be saved "
                    "(use keras.random, or tf.random without a seed after tf.random.set_seed)"
                )
            return drawn

        return get_seed

    def _note(self, op: Any, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None) -> None:
        name = op.decode() if isinstance(op, bytes) else str(op)
        if graph is None and name.startswith(GENERATOR):
            self._generator = name
        elif graph is None and name.startswith(("Assign", "ResourceApply", "ResourceScatter")):
            self._changed.append(inputs[0])


def _handles(tracked: Iterable[Any]) -> set[int]:
    return {
        id(getattr(part, "handle", None))
        for variable in tracked
        for part in (variable, getattr(variable, "value", None))
    }


def hidden_state(function: Any, iterator: Any, tracked: Iterable[Any]) -> str:
    """Return a sentence that names state of a ``train_function`` beyond the tracked variables, or "".

    The function is compiled for the iterator if necessary, and not run. An eager function gives "".
    """
    if (compiled := compiled_step(function, iterator)) is None:
        return ""
    graph = compiled.graph.as_graph_def()
    nodes = [*graph.node, *(node for part in graph.library.function for node in part.node_def)]
    if (node := next((node for node in nodes if draws_random_numbers(node.op)), None)) is not None:
        scope = "/".join(node.name.split("/")[:-2])  # the last two are those of the operation
        where = f" in {plain(scope)}" if scope else ""
        return f"the model draws random numbers with {node.op}{where}, whose state cannot be saved (use keras.random)"
    handles = _handles(tracked)
    untracked = next((variable for variable in compiled.variables if id(variable.handle) not in handles), None)
    if untracked is None:
        return ""
    name = plain(untracked.name)
    return f"the step uses {name}, which is not a variable of the model (create it by add_weight in a layer)"
