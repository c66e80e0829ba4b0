"""A pipeline's graph, changed: other parameters, other order, a cache or a prefetch put in.

Every function here changes a GraphDef that is the caller's own copy. Whether a change leaves the output as it was is
not asked here: `tpunb.tuning.pipeline` and `tpunb.tuning.orders` answer for that.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from tpunb.errors import TpunbError
from tpunb.tuning.dataset_graph import memory_cache, op_def, seed_generator
from tpunb.tuning.knob import AUTOTUNE
from tpunb.tuning.stages import constant, flag, is_dataset_op

# operation -> which of its inputs says how many calls run in parallel
PARALLEL_INPUT = {
    "ParallelMapDatasetV2": -1,
    "ParallelInterleaveDatasetV2": -1,
    "ParallelInterleaveDatasetV3": -1,
    "ParallelInterleaveDatasetV4": -1,
    "ParallelBatchDataset": 2,
    "MapAndBatchDataset": -2,
}
# operation -> which of its inputs is the cycle length
CYCLE_INPUT = {
    "InterleaveDataset": -2,
    "ParallelInterleaveDatasetV2": -3,
    "ParallelInterleaveDatasetV3": -3,
    "ParallelInterleaveDatasetV4": -5,
}
# operation -> which of its inputs is a generator of shuffle seeds, and which attribute says that it draws anew
_SEEDS_INPUT = {
    "ShuffleDatasetV3": (4, 2, "reshuffle_each_iteration"),
    "ShuffleAndRepeatDatasetV2": (5, 2, "reshuffle_each_iteration"),
}
_CACHE_INPUT = {"CacheDatasetV2": 2}


class Rewriting:
    """A dataset's GraphDef with its nodes by name, and what its changes must keep alive."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.nodes = {node.name: node for node in self.graph.node}
        self.kept: list[Any] = []

    @classmethod
    def of_copy(cls, graph: Any) -> Rewriting:
        """Return the rewriting of a copy: the graph itself stays as it is."""
        copied = type(graph)()
        copied.CopyFrom(graph)
        return cls(copied)

    @property
    def ends_in(self) -> str:
        """The node whose elements are the dataset's."""
        return str(self._end().input[0]).split(":")[0]

    @ends_in.setter
    def ends_in(self, name: str) -> None:
        self._end().input[0] = name

    def add(self, op: str, *inputs: str) -> Any:
        """Return a new node, named so that the same changes give the same names again."""
        name = f"tpunb/{op}_{sum(other.startswith('tpunb/') for other in self.nodes)}"
        node = self.graph.node.add(name=name, op=op, input=inputs)
        self.nodes[name] = node
        return node

    def const(self, value: object, dtype: Any = None) -> str:
        """Return the name of a new constant; a whole number is of 64 bits."""
        import tensorflow as tf

        dtype = dtype or (tf.string if isinstance(value, str) else tf.int64)
        return self._const_of(tf.make_tensor_proto(value, dtype))

    def number(self, node: str, at: int) -> Any:
        """Return the value of a node's input, where it is a constant; else None."""
        return constant(self.nodes[self.nodes[node].input[at].split(":")[0]])

    def set_number(self, node: str, at: int, value: int) -> None:
        """Give a node's input another value, of the same type."""
        import tensorflow as tf

        known = self.nodes[self.nodes[node].input[at].split(":")[0]]
        dtype = tf.as_dtype(known.attr["dtype"].type) if known.op == "Const" else tf.int64
        self.nodes[node].input[at] = self.const(value, dtype)

    def below(self, node: str) -> str:
        """Return the dataset that a node reads first."""
        return str(self.nodes[node].input[0]).split(":")[0]

    def readers(self, name: str) -> Iterator[tuple[Any, int]]:
        """Yield every node that reads another, and which of its inputs that is."""
        for node in self.graph.node:
            for at, read in enumerate(node.input):
                if read.split(":")[0] == name:
                    yield node, at

    def put_above(self, name: str, node: Any) -> None:
        """Let all that read a node read another, new one; which itself reads the old."""
        for reader, at in list(self.readers(name)):
            if reader.name != node.name:
                reader.input[at] = node.name

    def element(self, name: str) -> tuple[Any, Any]:
        """Return the types and shapes of a dataset's elements, as attributes: two lists of one entry a component.

        Raises
        ------
        TpunbError
            When its node does not tell.
        """
        node = self.nodes[name]
        if node.op == "OptionsDataset":
            return self.element(self.below(name))
        types = next((node.attr[key] for key in ("output_types", "Toutput_types") if key in node.attr), None)
        if types is None or "output_shapes" not in node.attr:
            raise TpunbError(f"TensorFlow does not tell what the elements of {node.op} are")
        return types, node.attr["output_shapes"]

    def set_element(self, name: str, element: tuple[Any, Any]) -> None:
        """Declare the types and shapes of a dataset's elements."""
        attr = self.nodes[name].attr
        key = "Toutput_types" if "Toutput_types" in attr else "output_types"
        attr[key].CopyFrom(element[0])
        attr["output_shapes"].CopyFrom(element[1])

    def _end(self) -> Any:
        return next(node for node in self.graph.node if node.op == "_Retval")

    def _const_of(self, proto: Any) -> str:
        node = self.add("Const")
        node.attr["dtype"].type = proto.dtype
        node.attr["value"].tensor.CopyFrom(proto)
        return str(node.name)


def resources_of_its_own(work: Rewriting, entropy: int) -> None:
    """Give a pipeline its own shuffle seeds and caches: the user's neither advance nor fill when it is iterated.

    Stages that shared one go on sharing one. Seeds that do not change from one iteration to the next stay shared.
    A shuffle without a seed gets one from `entropy`: the same entropy gives the same order in every epoch.
    """
    fresh: dict[bytes, Any] = {}
    dice = random.Random(entropy)
    for node in work.graph.node:
        if node.op in _SEEDS_INPUT:
            at, seed, anew = _SEEDS_INPUT[node.op]
            if not flag(node, anew):
                continue
            drawn = (dice.getrandbits(31) + 1, dice.getrandbits(31))
            given = (work.number(node.name, seed) or 0, work.number(node.name, seed + 1) or 0)
            seeds = given if any(given) else drawn
            _replace(work, node, at, fresh, lambda seeds=seeds: seed_generator(*seeds, reshuffle=True))
        elif node.op in _CACHE_INPUT:
            _replace(work, node, _CACHE_INPUT[node.op], fresh, memory_cache)


def _replace(work: Rewriting, node: Any, at: int, fresh: dict[bytes, Any], make: Any) -> None:
    held = work.nodes[node.input[at].split(":")[0]].attr["value"].tensor
    key = held.SerializeToString(deterministic=True)
    if key not in fresh:
        fresh[key], kept = make()
        work.kept.append(kept)
    held.CopyFrom(fresh[key])


def make_parallel(work: Rewriting, name: str, calls: int) -> None:
    """Turn a map or an interleave into its parallel form, the elements in the order they had."""
    node = work.nodes[name]
    if node.op == "MapDataset":
        node.op = "ParallelMapDatasetV2"
        node.input.insert(len(_data_inputs(node)), work.const(calls))
    elif node.op == "InterleaveDataset":
        node.op = "ParallelInterleaveDatasetV4"
        further = [work.const(AUTOTUNE), work.const(AUTOTUNE), work.const(calls)]
        for at, other in enumerate(further, len(_data_inputs(node))):
            node.input.insert(at, other)
    else:
        work.set_number(name, PARALLEL_INPUT[node.op], calls)
        return
    node.attr["deterministic"].s = b"true"
    known = {attr.name for attr in op_def(node.op).attr}
    for attr in [attr for attr in node.attr if attr not in known and not attr.startswith("_")]:
        del node.attr[attr]


def _data_inputs(node: Any) -> list[str]:
    return [name for name in node.input if not name.startswith("^")]


def insert_prefetch(work: Rewriting, size: int) -> None:
    """Put a prefetch at the end of the pipeline; one of size 0 passes its elements through."""
    below = work.ends_in
    node = work.add("PrefetchDataset", below, work.const(size))
    node.attr["slack_period"].i = 0
    node.attr["legacy_autotune"].b = False
    work.set_element(node.name, work.element(below))
    work.ends_in = node.name


def keep_order_ahead(work: Rewriting) -> None:
    """Let a prefetch whose buffer tf.data sizes have one place from the start.

    While such a buffer has none, who asks for an element takes it past the buffer; where it gets its first places at
    that moment, elements that are put there meanwhile come after one that was to follow them.
    """
    for node in work.graph.node:
        if node.op == "PrefetchDataset":
            node.attr["buffer_size_min"].i = max(1, node.attr["buffer_size_min"].i)


def insert_cache(work: Rewriting, below: str) -> None:
    """Put a cache in memory above a stage."""
    proto, kept = memory_cache()
    work.kept.append(kept)
    node = work.add("CacheDatasetV2", below, work.const(""), work._const_of(proto))
    work.set_element(node.name, work.element(below))
    work.put_above(below, node)


def move_above(work: Rewriting, moved: str, target: str) -> None:
    """Move a stage that hands its elements on as they are to right above another, which lies above it."""
    element = _copies(work.element(target))
    lower, node = work.below(moved), work.nodes[moved]
    for reader, at in list(work.readers(moved)):
        reader.input[at] = lower
    work.put_above(target, node)
    node.input[0] = target
    work.set_element(moved, element)


def move_below(work: Rewriting, moved: str, target: str) -> None:
    """Move a stage that hands its elements on as they are to right below another, which lies below it."""
    lower, node = work.below(moved), work.nodes[moved]
    for reader, at in list(work.readers(moved)):
        reader.input[at] = lower
    node.input[0] = work.below(target)
    work.nodes[target].input[0] = moved
    work.set_element(moved, _copies(work.element(node.input[0].split(":")[0])))


def exchange_with_batch(work: Rewriting, mapped: str, batch: str) -> None:
    """Let a map that lies right below a batch take whole batches: batch first, then map."""
    whole = _copies(work.element(batch))
    source, first = work.below(mapped), work.nodes[mapped]
    size = next(shape.dim[0].size for shape in whole[1].list.shape)
    for reader, at in list(work.readers(batch)):
        reader.input[at] = mapped
    work.nodes[batch].input[0] = source
    first.input[0] = batch
    types, shapes = _copies(work.element(source))
    for shape in shapes.list.shape:
        inner = list(shape.dim)
        del shape.dim[:]
        shape.dim.add(size=size)
        shape.dim.extend(inner)
    work.set_element(batch, (types, shapes))
    work.set_element(mapped, whole)


def _copies(element: tuple[Any, Any]) -> tuple[Any, Any]:
    copies = [type(part)() for part in element]
    for copy, part in zip(copies, element, strict=True):
        copy.CopyFrom(part)
    return copies[0], copies[1]


def resources(graph: Any) -> Iterator[tuple[Any, int]]:
    """Yield every dataset's node that holds a resource of the process, and which of its inputs that is."""
    import tensorflow as tf

    held = {
        node.name
        for node in graph.node
        if node.op == "Const" and node.attr["dtype"].type == tf.resource.as_datatype_enum
    }
    for node in graph.node:
        if is_dataset_op(node.op):
            yield from ((node, at) for at, name in enumerate(node.input) if name.split(":")[0] in held)


def owned(node: Any, at: int) -> bool:
    """Say whether a resource that a node reads is one that `resources_of_its_own` knows."""
    return _CACHE_INPUT.get(node.op) == at or _SEEDS_INPUT.get(node.op, (None,))[0] == at
