"""Rewrites the graph of a pipeline: other parameters, a prefetch at the end, other shuffle seeds.

Every function that takes a `Rewriting` changes its GraphDef. Whether a change keeps the output is judged elsewhere.
"""

from __future__ import annotations

import glob
import os
import random
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from tpunb.errors import TpunbError
from tpunb.instrument.tensorflow import op_def
from tpunb.tfdata.graph import AUTOTUNE, from_graph, graph_or_none
from tpunb.tfdata.stages import Stage, constant, flag, is_dataset_op, stages, upstream

# operation -> its input with the number of parallel calls
PARALLEL_INPUT = {
    "ParallelMapDatasetV2": -1,
    "ParallelInterleaveDatasetV2": -1,
    "ParallelInterleaveDatasetV3": -1,
    "ParallelInterleaveDatasetV4": -1,
    "ParallelBatchDataset": 2,
    "MapAndBatchDataset": -2,
}
# operation -> its input with the cycle length
CYCLE_INPUT = {
    "InterleaveDataset": -2,
    "ParallelInterleaveDatasetV2": -3,
    "ParallelInterleaveDatasetV3": -3,
    "ParallelInterleaveDatasetV4": -5,
}
# operation -> its input with a resource of the process: a generator of shuffle seeds, a cache in memory
_RESOURCE_INPUT = {
    "ShuffleDatasetV3": 4,
    "ShuffleAndRepeatDatasetV2": 5,
    "RandomDatasetV2": 2,
    "CacheDatasetV2": 2,
}
# operation -> the first of its two inputs with a seed
_SEED_INPUT = {"ShuffleDatasetV3": 2, "ShuffleAndRepeatDatasetV2": 2, "RandomDataset": 0, "RandomDatasetV2": 0}
SHUFFLES = ("ShuffleDatasetV3", "ShuffleAndRepeatDatasetV2")
_RESHUFFLES, _REDRAWS = "reshuffle_each_iteration", "rerandomize_each_iteration"


class Rewriting:
    """A dataset's GraphDef, with its nodes by name."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.nodes = {node.name: node for node in self.graph.node}

    @classmethod
    def of_copy(cls, graph: Any) -> Rewriting:
        """Return the rewriting of a copy of a graph."""
        copied = type(graph)()
        copied.CopyFrom(graph)
        return cls(copied)

    @property
    def ends_in(self) -> str:
        """Name of the last stage, whose elements are the dataset's."""
        return str(self._end().input[0]).split(":")[0]

    @ends_in.setter
    def ends_in(self, name: str) -> None:
        self._end().input[0] = name

    def add(self, op: str, *inputs: str) -> Any:
        """Return a new node; the same changes in the same order give the same names."""
        name = f"tpunb/{op}_{sum(other.startswith('tpunb/') for other in self.nodes)}"
        node = self.graph.node.add(name=name, op=op, input=inputs)
        self.nodes[name] = node
        return node

    def const(self, value: object, dtype: Any = None) -> str:
        """Return the name of a new constant; an int is of 64 bits by default."""
        import tensorflow as tf

        default = tf.string if isinstance(value, str) else tf.bool if isinstance(value, bool) else tf.int64
        proto = tf.make_tensor_proto(value, dtype or default)
        node = self.add("Const")
        node.attr["dtype"].type = proto.dtype
        node.attr["value"].tensor.CopyFrom(proto)
        return str(node.name)

    def number(self, node: str, at: int) -> Any:
        """Return the value of a node's input if it is a constant, else None."""
        return constant(self.nodes[self.nodes[node].input[at].split(":")[0]])

    def set_number(self, node: str, at: int, value: int) -> None:
        """Set a node's input to a constant of the same type."""
        import tensorflow as tf

        present = self.nodes[self.nodes[node].input[at].split(":")[0]]
        dtype = tf.as_dtype(present.attr["dtype"].type) if present.op == "Const" else tf.int64
        self.nodes[node].input[at] = self.const(value, dtype)

    def below(self, node: str) -> str:
        """Return the first dataset that a node reads."""
        return str(self.nodes[node].input[0]).split(":")[0]

    def element(self, name: str) -> tuple[Any, Any]:
        """Return the types and shapes of a dataset's elements: two list attributes with one entry per component."""
        node = self.nodes[name]
        if node.op == "OptionsDataset":
            return self.element(self.below(name))
        types = next((node.attr[key] for key in ("output_types", "Toutput_types") if key in node.attr), None)
        if types is None or "output_shapes" not in node.attr:
            raise TpunbError(f"the types and shapes of the elements of {node.op} are unknown")
        return types, node.attr["output_shapes"]

    def set_element(self, name: str, element: tuple[Any, Any]) -> None:
        """Set the types and shapes of a dataset's elements."""
        attr = self.nodes[name].attr
        key = "Toutput_types" if "Toutput_types" in attr else "output_types"
        attr[key].CopyFrom(element[0])
        attr["output_shapes"].CopyFrom(element[1])

    def _end(self) -> Any:
        return next(node for node in self.graph.node if node.op == "_Retval")


def shuffles(graph: Any) -> list[Any]:
    """Return the nodes of a graph with a generator of seeds: shuffles, and random numbers that are drawn anew."""
    return [node for node in graph.node if node.op in (*SHUFFLES, "RandomDatasetV2")]


def is_reshuffling(node: Any) -> bool:
    """Return whether a node is a shuffle with another order in each epoch."""
    return node.op in SHUFFLES and flag(node, _RESHUFFLES)


def unseeded_shuffles(graph: Any) -> list[Any]:
    """Return the shuffles and random sources without a seed: no iterator state holds their later epochs."""
    work, seeded = Rewriting(graph), [node for node in graph.node if node.op in _SEED_INPUT]
    inputs = {node.name: range(_SEED_INPUT[node.op], _SEED_INPUT[node.op] + 2) for node in seeded}
    return [node for node in seeded if all(work.number(node.name, at) == 0 for at in inputs[node.name])]


def seed_shuffles(dataset: Any, graph: Any, seeds: Sequence[int | Sequence[int]]) -> Any:
    """Return a dataset whose unseeded shuffles have seeds; itself, if there are none. Changes its graph.

    So have the random choices of ``sample_from_datasets``, which differ in each epoch as they do without a seed. A
    cache in memory of shuffled elements is filled anew. A seed is one number, or both.
    """
    unseeded, work = unseeded_shuffles(graph), Rewriting(graph)
    caches = [work.nodes[stage.node] for stage in kept_orders(graph, {node.name for node in unseeded})]
    _renew_resources(work, [node for node in caches if node.op == "CacheDatasetV2"])
    for node, seed in zip(unseeded, seeds, strict=True):
        _set_seeds(node, *map(work.const, [seed, seed >> 31] if isinstance(seed, int) else seed))
        if node.op == "RandomDataset":
            node.op = "RandomDatasetV2"
            node.attr[_REDRAWS].b = True
            node.input.append("")
        _renew_resources(work, [node])
    return from_graph(graph, dataset.element_spec) if unseeded else dataset


def with_new_shuffles(dataset: Any) -> Any:
    """Return a dataset whose shuffles do not advance those of `dataset`; itself, if it has none.

    Restoring a position begins the shuffles that ended before it once more.
    """
    graph = graph_or_none(dataset)
    if graph is None or not shuffles(graph):
        return dataset
    _renew_resources(Rewriting(graph), shuffles(graph))
    return from_graph(graph, dataset.element_spec)


def kept_orders(graph: Any, shuffled: Set[str]) -> list[Stage]:
    """Return the caches that keep the order of shuffles, by their nodes."""
    pipeline = stages(graph)
    caches = [stage for stage in pipeline if stage.kind == "cache"]
    return [stage for stage in caches if any(below.node in shuffled for below in upstream(stage, pipeline))]


def begin_shuffles(graph: Any, times: Mapping[str, int]) -> None:
    """Advance the generators of shuffles of a graph, by their nodes, as if each had begun some more times."""
    for name, number in times.items():
        dataset = with_generator(graph, name)
        for _ in range(number):
            iter(dataset)


def with_generator(graph: Any, name: str) -> Any:
    """Return a small dataset that draws its seeds from the generator of a shuffle of a graph."""
    import tensorflow as tf

    small = tf.data.Dataset.range(1).shuffle(1, seed=1)
    redrawn = tf.data.Dataset.random(seed=1, rerandomize_each_iteration=True)
    given = Rewriting(graph)
    node, template = given.nodes[name], redrawn if given.nodes[name].op == "RandomDatasetV2" else small
    work = Rewriting(graph_or_none(template))
    (other,) = shuffles(work.graph)
    at = _RESOURCE_INPUT[node.op]
    generator = given.nodes[node.input[at].split(":")[0]].attr["value"]
    work.nodes[other.input[at].split(":")[0]].attr["value"].CopyFrom(generator)
    return from_graph(work.graph, template.element_spec)


def without_locks(dataset: Any, graph: Any) -> Any:
    """Return a dataset whose caches in files are others where a killed process has left a lock. Changes its graph."""
    work, locked = Rewriting(graph), False
    for node in [node for node in graph.node if node.op in ("CacheDataset", "CacheDatasetV2")]:
        file = Path(os.fsdecode(work.number(node.name, 1) or b""))
        if file.name and [*file.parent.glob(f"{glob.escape(file.name)}*.lockfile")]:
            node.input[1], locked = work.const(f"{file}.tpunb-{os.getpid()}"), True
    return from_graph(graph, dataset.element_spec) if locked else dataset


def use_new_resources(work: Rewriting, entropy: int) -> None:
    """Give a pipeline new shuffle seeds and caches, which iterating it advances and fills instead of the program's.

    Stages that shared one still share one. The same `entropy` gives unseeded shuffles the same order in every epoch.
    """
    dice = random.Random(entropy)
    nodes = [node for node in work.graph.node if is_reshuffling(node) or node.op == "CacheDatasetV2"]
    drawn = {node.name: (dice.getrandbits(31) + 1, dice.getrandbits(31)) for node in filter(is_reshuffling, nodes)}
    for node in unseeded_shuffles(work.graph):
        if node.name in drawn:
            _set_seeds(node, *map(work.const, drawn[node.name]))
    _renew_resources(work, nodes)


def _renew_resources(work: Rewriting, nodes: Sequence[Any]) -> None:
    """Replace the resources of nodes by new ones; those that share a resource share the new one."""
    created: dict[bytes, str] = {}
    for node in nodes:
        at = _RESOURCE_INPUT[node.op]
        shared = work.nodes.get(node.input[at].split(":")[0])
        key = b"" if shared is None else shared.attr["value"].SerializeToString(deterministic=True)
        if key not in created:
            created[key] = _add_cache(work) if node.op == "CacheDatasetV2" else _add_seed_generator(work, node)
        node.input[at] = created[key]


def _add_seed_generator(work: Rewriting, node: Any) -> str:
    again, at = work.const(flag(node, _RESHUFFLES) or flag(node, _REDRAWS)), _SEED_INPUT[node.op]
    return str(work.add("AnonymousSeedGenerator", *node.input[at : at + 2], again).name)


def _set_seeds(node: Any, *seeds: str) -> None:
    at = _SEED_INPUT[node.op]
    node.input[at : at + 2] = seeds


def _add_cache(work: Rewriting) -> str:
    return str(work.add("AnonymousMemoryCache").name)


def make_parallel(work: Rewriting, name: str, calls: int) -> None:
    """Replace a map or an interleave by its parallel form, with the elements in the same order."""
    node = work.nodes[name]
    if node.op == "MapDataset":
        node.op = "ParallelMapDatasetV2"
        node.input.insert(len(_data_inputs(node)), work.const(calls))
    elif node.op == "InterleaveDataset":
        node.op = "ParallelInterleaveDatasetV4"
        at = len(_data_inputs(node))
        node.input[at:at] = [work.const(AUTOTUNE), work.const(AUTOTUNE), work.const(calls)]
    else:
        work.set_number(name, PARALLEL_INPUT[node.op], calls)
        return
    node.attr["deterministic"].s = b"true"
    valid = {attr.name for attr in op_def(node.op).attr}
    for attr in [attr for attr in node.attr if attr not in valid and not attr.startswith("_")]:
        del node.attr[attr]


def _data_inputs(node: Any) -> list[str]:
    return [name for name in node.input if not name.startswith("^")]


def insert_prefetch(work: Rewriting, size: int) -> None:
    """Append a prefetch to the pipeline; one of size 0 passes its elements through."""
    below = work.ends_in
    node = work.add("PrefetchDataset", below, work.const(size))
    node.attr["slack_period"].i = 0
    node.attr["legacy_autotune"].b = False
    work.set_element(node.name, work.element(below))
    work.ends_in = node.name


def keep_prefetch_order(work: Rewriting) -> None:
    """Give prefetch buffers that tf.data sizes at least one place from the start.

    While a buffer has none, elements bypass it, and those put into its first places arrive after them.
    """
    for node in work.graph.node:
        if node.op == "PrefetchDataset":
            node.attr["buffer_size_min"].i = max(1, node.attr["buffer_size_min"].i)


def shared_resources(graph: Any) -> Iterator[Any]:
    """Yield the dataset nodes that read a resource of the process which `use_new_resources` does not replace."""
    import tensorflow as tf

    resource = tf.resource.as_datatype_enum
    constants = {node.name for node in graph.node if node.op == "Const" and node.attr["dtype"].type == resource}
    for node in filter(lambda node: is_dataset_op(node.op), graph.node):
        read = {at for at, name in enumerate(node.input) if name.split(":")[0] in constants}
        if read - {_RESOURCE_INPUT.get(node.op)}:
            yield node
