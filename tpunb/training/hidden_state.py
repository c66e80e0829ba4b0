"""Finds state that a compiled training step uses beyond the tracked variables, and that cannot be restored."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tpunb.text import plain
from tpunb.tfdata.effects import draws_random_numbers


def hidden_state(function: Any, iterator: Any, tracked: Iterable[Any]) -> str:
    """Return a sentence that names state of a ``train_function`` beyond the tracked variables, or "".

    The function is compiled for the iterator if necessary, and not run. An eager function gives "".
    """
    inner = (getattr(cell, "cell_contents", None) for cell in getattr(function, "__closure__", None) or ())
    step = next((part for part in (function, *inner) if hasattr(part, "get_concrete_function")), None)
    if step is None:
        return ""
    compiled = step.get_concrete_function(iterator)
    graph = compiled.graph.as_graph_def()
    nodes = [*graph.node, *(node for part in graph.library.function for node in part.node_def)]
    if (op := next((node.op for node in nodes if draws_random_numbers(node.op)), None)) is not None:
        return f"the model draws random numbers with {op}, whose state cannot be saved (use keras.random)"
    handles = {
        id(getattr(part, "handle", None))
        for variable in tracked
        for part in (variable, getattr(variable, "value", None))
    }
    untracked = next((variable for variable in compiled.variables if id(variable.handle) not in handles), None)
    return "" if untracked is None else f"the step uses {plain(untracked.name)}, which is not a variable of the model"
