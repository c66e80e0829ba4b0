"""Variables that a tf.data pipeline changes: states of seed generators, as those of Keras' random layers in a map.

A position does not hold them. It is restored with their values where the order of the calls is that of the elements:
in sequential maps, each with variables of its own, and nothing above that leaves elements behind. Data that shuffle are
rebuilt from their graph, which gives them copies of the variables: these cannot be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tpunb.instrument.tensorflow import op_def
from tpunb.tfdata.effects import CHECKS, operations
from tpunb.tfdata.graph import graph_or_none, read_datasets
from tpunb.tfdata.rewrite import shuffles
from tpunb.tfdata.stages import Stage, stages, upstream

CHANGES = frozenset({"AssignVariableOp", "AssignAddVariableOp", "RngReadAndSkip"})
"""Operations that change a variable, as drawing from a seed generator does."""

_ALLOWED = {*CHANGES, *CHECKS, "ReadVariableOp", "StatelessRandomGetAlg", "Assert", "If", "While"}
_KINDS = "map batch padded_batch prefetch shuffle shuffle_and_repeat repeat options unbatch filter"
_ABOVE = frozenset(_KINDS.split())  # kinds of stages that take all elements of the one below in every pass


def drawing_stages(graph: Any) -> tuple[Stage, ...]:
    """Return the maps that change variables of their own in the order of the elements; none if another stage may."""
    import tensorflow as tf

    functions = {function.signature.name: function for function in graph.library.function}
    pipeline = stages(graph)
    used = {stage: set(operations(functions, *stage.functions)) for stage in pipeline if stage.functions}
    if shuffles(graph) or any(_is_refused(op) for ops in used.values() for op in ops):
        return ()
    drawing = tuple(stage for stage, ops in used.items() if any(op == "ReadVariableOp" or op in CHANGES for op in ops))
    for stage in drawing:
        function = functions[stage.functions[0]]
        given = {arg.name for arg in function.signature.input_arg if arg.type == tf.resource.as_datatype_enum}
        changed = {node.input[0] for node in function.node_def if node.op in CHANGES}
        if stage.op != "MapDataset" or given != changed:
            return ()
    below = {stage.node for stage in drawing}
    above = [each for each in pipeline if any(other.node in below for other in upstream(each, pipeline))]
    return () if any(each.kind not in _ABOVE for each in above) else drawing


def _is_refused(op: str) -> bool:
    definition = op_def(op)
    return definition is None or (definition.is_stateful and op not in _ALLOWED)


class SeedStates:
    """States of the seed generators that the maps of a dataset change; none if they cannot be restored."""

    def __init__(self, dataset: Any = None) -> None:
        graph = None if dataset is None else graph_or_none(dataset)
        self._handles = [] if graph is None or not drawing_stages(graph) else _handles(dataset)

    def __bool__(self) -> bool:
        return bool(self._handles)

    def shares(self, dataset: Any) -> bool:
        """Return whether a dataset changes one of them too."""
        return bool(self) and not {id(each) for each in self._handles}.isdisjoint(map(id, _handles(dataset)))

    def read(self) -> list[list[int]]:
        """Return the values."""
        import tensorflow as tf

        read = (tf.raw_ops.ReadVariableOp(resource=each, dtype=_type(each).dtype) for each in self._handles)
        return [value.numpy().tolist() for value in read]

    def assign(self, values: Sequence[Sequence[int]]) -> None:
        """Assign values."""
        import tensorflow as tf

        for handle, value in zip(self._handles, values, strict=True):
            typed = np.array(value, tf.as_dtype(_type(handle).dtype).as_numpy_dtype)
            tf.raw_ops.AssignVariableOp(resource=handle, value=typed)


def _handles(dataset: Any) -> list[Any]:
    """Return the handles of variables that functions of a dataset hold; none if one is no seed's state or is shared."""
    import tensorflow as tf

    handles = list[Any]()
    for part in read_datasets(dataset):
        captured = [each for function in part._functions() for each in function.function.captured_inputs]
        handles += [each for each in captured if each.dtype == tf.resource]
    is_state = all(
        (kind := _type(each)) is not None and tf.as_dtype(kind.dtype).is_integer and len(kind.shape.dim) == 1
        for each in handles
    )
    return handles if is_state and len({id(each) for each in handles}) == len(handles) else []


def _type(handle: Any) -> Any:
    """Return the type and shape of the variable of a handle; None if it is not one."""
    data = getattr(handle, "_handle_data", None)
    return data.shape_and_type[0] if data is not None and data.is_set else None
