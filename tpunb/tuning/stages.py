"""The stages of a pipeline, read from its graph: each with a name that people can find in their own code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tpunb.frames.words import cut, plain
from tpunb.tuning.purity import called

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

_METHODS = "flat_map|map|filter|interleave|take_while|scan|map_with_state"  # whose functions are the program's own
_UNTOLD = {"lambda", "fn", "func", "partial", "ABCMeta"}  # names that say nothing
_ENDLESS = 2**63 - 1


@dataclass(frozen=True)
class Stage:
    """One dataset of a pipeline's graph.

    Attributes
    ----------
    node
        Its node's name in the graph.
    kind
        The method of ``tf.data.Dataset`` that makes it ("map"), its class, or for what is unknown the operation.
    number
        How many stages lie between it and its farthest source, itself included; a source has 0.
    branch
        Where it lies when several inputs meet above it: "2" or "1.2", "" where none do.
    functions
        The functions it calls, by their names in the graph.
    inputs
        The nodes of the datasets it reads.
    known
        Whether its kind is one that this module knows.
    label
        The name of its function in the program, "" where it has none.
    """

    node: str
    op: str
    kind: str
    number: int
    branch: str
    functions: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    known: bool = True
    label: str = ""
    helper: bool = field(default=False)  # made by TensorFlow as a part of the stage above it

    @property
    def name(self) -> str:
        """What people call it: "map:1", "map:1(parse)", and within the second input of a zip "2/map:1(parse)"."""
        where = f"{self.branch}/" if self.branch else ""
        return f"{where}{self.kind}:{self.number}" + (f"({self.label})" if self.label else "")


def stages(graph: Any) -> tuple[Stage, ...]:
    """Return the stages of a dataset's graph, each after those it reads; the one it ends in is the last."""
    nodes = {node.name: node for node in graph.node}
    root = next(node for node in graph.node if node.op == "_Retval").input[0]
    found: dict[str, Stage] = {}
    above: dict[str, str] = {}

    def inputs(node: Any) -> list[str]:
        names = [name.split(":")[0] for name in node.input if not name.startswith("^")]
        return [name for name in names if is_dataset_op(nodes[name].op)]

    def visit(name: str, branch: str) -> None:
        todo = [(name, branch, False)]
        while todo:  # chains may be longer than Python's stack
            name, branch, ready = todo.pop()
            if name in found:
                continue
            node, below = nodes[name], inputs(nodes[name])
            if ready:
                found[name] = _stage(node, nodes, branch, tuple(found[other] for other in below), above.get(name, ""))
                continue
            todo.append((name, branch, True))
            for other, where in reversed(list(zip(below, _branches(node, nodes, below, branch), strict=True))):
                above.setdefault(other, node.op)
                todo.append((other, where, False))

    visit(root.split(":")[0], "")
    return tuple(found.values())


def is_dataset_op(op: str) -> bool:
    """Say whether an operation makes a dataset, by its name."""
    return re.search(r"Dataset(V\d+)?$", op) is not None and not op.startswith("DatasetTo")


def constant(node: Any) -> Any:
    """Return the value of a Const node that holds one number, flag or text; None for any other node."""
    import tensorflow as tf

    if node.op != "Const" or node.attr["dtype"].type in (tf.resource.as_datatype_enum, tf.variant.as_datatype_enum):
        return None
    value = tf.make_ndarray(node.attr["value"].tensor)
    return value.item() if value.shape == () else None


def flag(node: Any, name: str) -> bool:
    """Return an attribute of a node that is true or false; one that it lacks is false, and is not made by asking."""
    return name in node.attr and bool(node.attr[name].b)


def in_order(node: Any) -> bool:
    """Say whether a stage gives its elements in their order, as far as its own node tells."""
    return "deterministic" not in node.attr or node.attr["deterministic"].s != b"false"


def below(stage: Stage, of: tuple[Stage, ...]) -> Iterator[Stage]:
    """Yield a stage and all it reads from, directly or not."""
    by_node = {other.node: other for other in of}
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
    if _enumerates(node, nodes, inputs):
        return [_join(branch, "count"), branch]
    if node.op == "DirectedInterleaveDataset":
        return [_join(branch, "choice"), *(_join(branch, str(i)) for i in range(1, len(inputs)))]
    return [_join(branch, str(i)) for i in range(1, len(inputs) + 1)]


def _join(branch: str, further: str) -> str:
    return f"{branch}.{further}" if branch else further


def _enumerates(node: Any, nodes: dict[str, Any], inputs: list[str]) -> bool:
    """Say whether a zip is what ``enumerate`` makes: its first input counts without end."""
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
    part = helper or kind == "from_generator"  # of the stage below or above it, and not counted
    number = max((stage.number for stage in inputs), default=-1) + (not part)
    return Stage(
        node=node.name,
        op=node.op,
        kind=kind or plain(node.op),
        number=number,
        branch=branch,
        functions=tuple(called(node)),
        inputs=tuple(stage.node for stage in inputs),
        known=kind is not None,
        label=label,
        helper=helper,
    )


def _label(node: Any) -> str:
    """Return the name of a node's first function, or of the class it is an object of; "" for a lambda."""
    match = re.match(rf"__inference_Dataset_(?:{_METHODS})_(.+)_\d+$", (called(node) or [""])[0])
    name = match[1] if match else ""
    if name.startswith("class"):  # an object that is called: its class, with the module before it
        name = name.rpartition(".")[2]
    return "" if name in _UNTOLD else plain(cut(name, 32))
