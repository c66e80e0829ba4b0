"""Stages of a pipeline, read from its graph; their names lead to the program's code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tpunb.text import cut, plain
from tpunb.tfdata.effects import called_functions

_KINDS = {
    "TensorSlice": "from_tensor_slices",
    "Tensor": "from_tensors",
    "SparseTensorSlice": "from_sparse_tensor_slices",
    "TFRecord": "TFRecordDataset",
    "TextLine": "TextLineDataset",
    "FixedLengthRecord": "FixedLengthRecordDataset",
    "DirectedInterleave": "choose_from_datasets",
    "LegacyParallelInterleave": "parallel_interleave",
    "MapAndBatch": "map_and_batch",
    "BucketBySequenceLength": "bucket_by_sequence_length",
    "ParseExample": "parse_example",
    "CSV": "CsvDataset",
    "LMDB": "LMDBDataset",
}
_PLAIN = (
    "Range Random Map Batch PaddedBatch Repeat Take Skip Shard Filter TakeWhile Scan FlatMap Interleave GroupByWindow "
    "GroupByReducer Unbatch Window Unique Zip Concatenate Prefetch Cache Shuffle ShuffleAndRepeat Options Rebatch "
    "IgnoreErrors AssertCardinality AssertNext DenseToSparseBatch SlidingWindow Load MaxIntraOpParallelism "
    "PrivateThreadPool"
)
_KINDS |= {name: re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for name in _PLAIN.split()}

_METHODS = "flat_map|map|filter|interleave|take_while|scan|map_with_state"  # with functions of the program
_MEANINGLESS = {"lambda", "fn", "func", "partial", "ABCMeta"}
_ENDLESS = 2**63 - 1


@dataclass(frozen=True)
class Stage:
    """One dataset of a pipeline's graph."""

    node: str  # its name in the graph
    op: str
    kind: str  # method of tf.data.Dataset that creates it ("map"), its class, or for an unknown stage the operation
    number: int  # of stages to its farthest source, itself included; a source has 0
    branch: str  # of a stage above with several inputs: "2" or "1.2"; "" without one
    functions: tuple[str, ...] = ()  # that it calls, by their names in the graph
    inputs: tuple[str, ...] = ()  # nodes of the datasets that it reads
    supported: bool = True  # its kind is known
    label: str = ""  # name of its function in the program
    helper: bool = False  # created by TensorFlow as a part of the stage above it

    @property
    def name(self) -> str:
        """Name in messages: "map:1", "map:1(parse)", in the second input of a zip "2/map:1(parse)"."""
        where = f"{self.branch}/" if self.branch else ""
        return f"{where}{self.kind}:{self.number}" + (f"({self.label})" if self.label else "")


def stages(graph: Any) -> tuple[Stage, ...]:
    """Return the stages of a dataset's graph, each after those that it reads."""
    nodes = {node.name: node for node in graph.node}
    root = next(node for node in graph.node if node.op == "_Retval").input[0]
    done: dict[str, Stage] = {}
    above: dict[str, str] = {}

    def inputs(node: Any) -> list[str]:
        names = [name.split(":")[0] for name in node.input if not name.startswith("^")]
        return [name for name in names if is_dataset_op(nodes[name].op)]

    todo = [(root.split(":")[0], "", False)]
    while todo:  # chains may be longer than Python's stack
        name, branch, ready = todo.pop()
        if name in done:
            continue
        node, below = nodes[name], inputs(nodes[name])
        if ready:
            done[name] = _stage(node, nodes, branch, tuple(done[other] for other in below), above.get(name, ""))
            continue
        todo.append((name, branch, True))
        for other, where in reversed(list(zip(below, _branches(node, nodes, below, branch), strict=True))):
            above.setdefault(other, node.op)
            todo.append((other, where, False))
    return tuple(done.values())


def is_dataset_op(op: str) -> bool:
    """Return whether an operation creates a dataset, by its name."""
    return re.search(r"Dataset(V\d+)?$", op) is not None and not op.startswith("DatasetTo")


def constant(node: Any) -> Any:
    """Return the value of a Const node with one number, flag or text; None for any other node."""
    import tensorflow as tf

    if node.op != "Const" or node.attr["dtype"].type in (tf.resource.as_datatype_enum, tf.variant.as_datatype_enum):
        return None
    value = tf.make_ndarray(node.attr["value"].tensor)
    return value.item() if value.shape == () else None


def flag(node: Any, name: str) -> bool:
    """Return a boolean attribute of a node; a missing one is false, and is not created."""
    return name in node.attr and bool(node.attr[name].b)


def is_deterministic(node: Any) -> bool:
    """Return whether the node of a stage asks for elements in order."""
    return "deterministic" not in node.attr or node.attr["deterministic"].s != b"false"


def upstream(stage: Stage, pipeline: tuple[Stage, ...]) -> Iterator[Stage]:
    """Yield a stage of a pipeline and all stages that it reads, directly or not."""
    by_node = {other.node: other for other in pipeline}
    todo, seen = [stage.node], {stage.node}
    while todo:
        current = by_node[todo.pop()]
        yield current
        todo += [name for name in current.inputs if name not in seen]
        seen.update(current.inputs)


def _branches(node: Any, nodes: dict[str, Any], inputs: list[str], branch: str) -> list[str]:
    """Return the branch of each input of a node."""
    if len(inputs) < 2:
        return [branch] * len(inputs)
    prefix = f"{branch}." if branch else ""
    if _enumerates(node, nodes, inputs):
        return [f"{prefix}count", branch]
    first = ["choice"] * (node.op == "DirectedInterleaveDataset")
    return [f"{prefix}{name}" for name in (*first, *range(1, len(inputs) + 1 - len(first)))]


def _enumerates(node: Any, nodes: dict[str, Any], inputs: list[str]) -> bool:
    """Return whether a zip is an ``enumerate``: its first input counts without end."""
    first = nodes[inputs[0]]
    return (
        node.op == "ZipDataset"
        and len(inputs) == 2
        and first.op == "RangeDataset"
        and constant(nodes[first.input[1]]) == _ENDLESS
    )


def _stage(node: Any, nodes: dict[str, Any], branch: str, inputs: tuple[Stage, ...], above: str) -> Stage:
    stem = re.sub(r"Dataset(V\d+)?$", "", node.op)
    kind = _KINDS.get(stem) or _KINDS.get(stem.removeprefix("Parallel"))
    label = _label(node)
    helper = node.op == "OptionsDataset" or (
        kind == "map"
        and ((label == "normalize" and above.startswith(("Unbatch", "Rebatch"))) or label.startswith("select_dataset_"))
    )
    if inputs and _enumerates(node, nodes, [stage.node for stage in inputs]):
        kind = "enumerate"
    if label == "flat_map_fn" and [stage.kind for stage in inputs] == ["from_tensors"]:
        kind, label = "from_generator", ""
    part = helper or kind == "from_generator"  # of the stage below or above it: not counted
    number = max((stage.number for stage in inputs), default=-1) + (not part)
    return Stage(
        node=node.name,
        op=node.op,
        kind=kind or plain(node.op),
        number=number,
        branch=branch,
        functions=tuple(called_functions(node)),
        inputs=tuple(stage.node for stage in inputs),
        supported=kind is not None,
        label=label,
        helper=helper,
    )


def _label(node: Any) -> str:
    """Return the name of a node's first function, or of the class of a callable object; "" for a lambda."""
    match = re.match(rf"__inference_Dataset_(?:{_METHODS})_(.+)_\d+$", (called_functions(node) or [""])[0])
    name = match[1] if match else ""
    if name.startswith("class"):  # a callable object: its module and class
        name = name.rpartition(".")[2]
    return "" if name in _MEANINGLESS else plain(cut(name, 32))
