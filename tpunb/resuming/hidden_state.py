"""What a compiled step of training depends on beyond the variables that are known: it could not be put back."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from tpunb.frames.words import plain

_DRAWS = re.compile(
    r"Random|TruncatedNormal|ParameterizedTruncated|Multinomial|Stateful(Random|Uniform|Standard|Trunc)|Rng"
)


def hidden_state(function: Any, iterator: Any, known: Iterable[Any]) -> str:
    """Return what a step keeps to itself, in a sentence that names it, or "".

    Parameters
    ----------
    function
        A model's ``train_function``: it is compiled if it was not, and not run. Of one that is not compiled nothing is
        told.
    iterator
        Over data as it takes them.
    known
        Variables of Keras or TensorFlow whose values are kept.
    """
    inner = (getattr(cell, "cell_contents", None) for cell in getattr(function, "__closure__", None) or ())
    step = next((one for one in (function, *inner) if hasattr(one, "get_concrete_function")), None)
    if step is None:
        return ""
    compiled = step.get_concrete_function(iterator)
    graph = compiled.graph.as_graph_def()
    nodes = [*graph.node, *(node for one in graph.library.function for node in one.node_def)]
    if (op := next((node.op for node in nodes if _DRAWS.match(node.op)), None)) is not None:
        return f"the model draws by {op}, which keeps a state of its own (keras.random does not)"
    handles = {id(getattr(getattr(one, "value", one), "handle", None)) for one in known}
    handles |= {id(getattr(one, "handle", None)) for one in known}
    strange = next((one for one in compiled.variables if id(one.handle) not in handles), None)
    return "" if strange is None else f"the step uses {plain(strange.name)}, which is no variable of the model"
