"""Datasets of ``tf.data`` whose position can be saved, and what keeps others from it.

Their graphs are read through TensorFlow's public raw operations.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tpunb.errors import TpunbError

_STATEFUL = re.compile(r"(\w+) (?:is stateful|does not support checkpointing)")
_WHERE = re.compile(r"\{\{.*?\}\}|\[Op:.*")  # in which of TensorFlow's own functions
_WHAT = {
    "GeneratorDataset": "a Python function (from_generator) feeds it",
    "PyFunc": "a Python function (from_generator, numpy_function, or a Keras PyDataset) feeds it",
    "EagerPyFunc": "a Python function (py_function) feeds it",
    "RandomShuffle": "arrays are shuffled by an operation without a state that can be saved",
    "DummySeedGenerator": "a shuffle stands inside interleave or flat_map",
    "RngReadAndSkip": "a tf.random.Generator is drawn from in it",
}
_KEPT = "an operation in it keeps a state of its own"
_KEEPS = re.compile(
    r"(Eager)?PyFunc\Z|Random(?!Dataset)|TruncatedNormal|ParameterizedTruncated|Multinomial|Rng|Stateful(?!Partitioned)|"
    r"SampleDistorted|DummySeedGenerator|Assign|LookupTable(Insert|Remove|Import)"
)
_IGNORE = 1  # external_state_policy: what is stateful is found when an iterator is saved
_SEEDED = ("ShuffleDatasetV3", "ShuffleAndRepeatDatasetV2")
_SEED, _GENERATOR = {"ShuffleDatasetV3": 2, "ShuffleAndRepeatDatasetV2": 2}, {"ShuffleDatasetV3": 4}
_GENERATOR["ShuffleAndRepeatDatasetV2"] = 5


def graph_of(dataset: Any) -> Any:
    """Return the graph of a dataset; None where it has none, or one of over 2 GB."""
    import tensorflow as tf

    try:
        variant = tf.data.experimental.to_variant(dataset)
        graph = tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=_IGNORE).numpy()
        return tf.compat.v1.GraphDef.FromString(graph)
    except (tf.errors.OpError, AttributeError, TypeError, ValueError):
        return None


def write(prefix: Path, iterator: Any) -> str:
    """Write the position of an iterator, or a variable of TensorFlow; return why it cannot be, or ""."""
    import tensorflow as tf

    try:
        tf.train.Checkpoint(iterator=iterator).write(str(prefix))
    except (tf.errors.OpError, ValueError, TypeError) as error:  # the last two: distributed data
        for half in prefix.parent.glob(f"{prefix.name}.*"):
            half.unlink()
        return stateful(error)
    return ""


def read(prefix: Path, iterator: Any) -> None:
    """Put an iterator where it was when `write` wrote it.

    Raises
    ------
    TpunbError
        When it is over other data.
    """
    import tensorflow as tf

    try:
        tf.train.Checkpoint(iterator=iterator).read(str(prefix)).assert_consumed()
    except (tf.errors.OpError, AssertionError, ValueError) as error:
        told = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TpunbError(
            f"{prefix.parent.name} is of other data: {told}", hint="run the same cell as when it was saved"
        ) from error


def stateful(error: Exception) -> str:
    """Return what TensorFlow says of an operation that keeps a state, in a sentence that names it."""
    import tensorflow as tf

    if not isinstance(error, tf.errors.OpError):
        return "data distributed over replicas have no position that can be saved"
    if found := _STATEFUL.search(str(error)):
        return f"{found[1]}: {_WHAT.get(found[1], _KEPT)}"
    told = _WHERE.sub("", str(error.message).partition("\n")[0]).strip()
    return told or type(error).__name__


def is_told_to_ignore(dataset: Any) -> bool:
    """Say whether a dataset's options let its position be saved although an operation in it keeps a state."""
    import tensorflow as tf

    policy = tf.data.experimental.ExternalStatePolicy
    try:
        return dataset.options().experimental_external_state_policy in (policy.IGNORE, policy.WARN)
    except AttributeError:
        return False


def strict(dataset: Any) -> Any:
    """Return the dataset with TensorFlow's own check of what keeps a state."""
    import tensorflow as tf

    options = tf.data.Options()
    options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.FAIL
    return dataset.with_options(options)


def kept(graph: Any) -> str:
    """Return which operation of a graph keeps a state, as far as the names of such are known, or ""."""
    if graph is None:
        return "the data are told to ignore what keeps a state, and cannot be looked into"
    ops = [node.op for function in graph.library.function for node in function.node_def]
    found = next((op for op in ops if _KEEPS.match(op)), None)
    return f"{found}: {_WHAT.get(found, _KEPT)}" if found else ""


def unseeded(graph: Any) -> list[Any]:
    """Return the shuffles of a graph without a seed: the order of their later passes is in no iterator's state."""
    nodes = {node.name: node for node in graph.node}
    return [node for node in graph.node if node.op in _SEEDED and not any(_constants(nodes, node))]


def reshuffles(graph: Any) -> bool:
    """Say whether a graph has a shuffle with a seed: its order hangs on how often it was begun, by whomever."""
    return len(unseeded(graph)) < sum(node.op in _SEEDED for node in graph.node)


def _constants(nodes: Any, node: Any) -> Iterator[int]:
    import tensorflow as tf

    first = _SEED[node.op]
    for name in node.input[first : first + 2]:
        constant = nodes.get(name)
        known = constant is not None and constant.op == "Const"
        yield int(tf.make_ndarray(constant.attr["value"].tensor)) if known else 1


def draw_seeds(graph: Any) -> list[int]:
    """Return a seed for each shuffle that has none, drawn as TensorFlow would: from the system, not from our state."""
    return [secrets.randbelow(2**62) + 1 for _ in unseeded(graph)]


def seeded(dataset: Any, graph: Any, seeds: Iterable[int]) -> Any:
    """Return the dataset with seeds for its shuffles that have none: the same elements, in an order to be had again.

    Raises
    ------
    ValueError
        When there are not as many seeds as such shuffles.
    """
    import tensorflow as tf

    for number, (node, seed) in enumerate(zip(unseeded(graph), seeds, strict=True)):
        first = _SEED[node.op]
        names = [
            _constant(graph, f"tpunb_seed_{number}_{at}", value, tf.int64)
            for at, value in enumerate((seed, seed >> 31))
        ]
        node.input[first : first + 2] = names
        again = _constant(graph, f"tpunb_again_{number}", bool(node.attr["reshuffle_each_iteration"].b), tf.bool)
        generator = graph.node.add(name=f"tpunb_generator_{number}", op="AnonymousSeedGenerator")
        generator.input.extend([*names, again])
        node.input[_GENERATOR[node.op]] = generator.name
    variant = tf.raw_ops.DatasetFromGraph(graph_def=graph.SerializeToString())
    return tf.data.experimental.from_variant(variant, dataset.element_spec)


def apart(dataset: Any) -> Any:
    """Return the dataset with seed generators of its own; itself, where its shuffles draw from none.

    To read a position begins the data once more, where a shuffle was over already and is not in it. Read into this,
    it leaves the generators of the dataset itself where they are.
    """
    import tensorflow as tf

    graph = graph_of(dataset)
    nodes = [] if graph is None else [node for node in graph.node if node.op in _SEEDED]
    if not nodes:
        return dataset
    for number, node in enumerate(nodes):
        generator = graph.node.add(name=f"tpunb_apart_{number}", op="AnonymousSeedGenerator")
        again = _constant(graph, f"tpunb_anew_{number}", bool(node.attr["reshuffle_each_iteration"].b), tf.bool)
        first = _SEED[node.op]
        generator.input.extend([*node.input[first : first + 2], again])
        node.input[_GENERATOR[node.op]] = generator.name
    variant = tf.raw_ops.DatasetFromGraph(graph_def=graph.SerializeToString())
    return tf.data.experimental.from_variant(variant, dataset.element_spec)


def begun_late(graph: Any) -> str:
    """Return why no position tells the order of later epochs: a shuffle begins when another part is over; or ""."""
    nodes = {node.name: node for node in graph.node}
    for node in graph.node:
        if node.op == "ConcatenateDataset" and any(_shuffles(nodes, name) for name in node.input[1:]):
            return "ConcatenateDataset: a shuffle stands in a part of it that begins when the one before is over"
    return ""


def _shuffles(nodes: Any, name: str) -> bool:
    """Say whether a shuffle that draws anew lies in a node, or below it."""
    todo = [name]
    while todo:
        node = nodes.get(todo.pop().split(":")[0].removeprefix("^"))
        if node is not None:
            if node.op in _SEEDED and node.attr["reshuffle_each_iteration"].b:
                return True
            todo += node.input
    return False


def _constant(graph: Any, name: str, value: Any, kind: Any) -> str:
    import tensorflow as tf

    node = graph.node.add(name=name, op="Const")
    node.attr["dtype"].type = kind.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, kind))
    return name
