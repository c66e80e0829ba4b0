"""Judges a pipeline as a whole: whether it may be rebuilt, moved in mid-run, and trusted without comparing outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tpunb.text import plain
from tpunb.tfdata.effects import Effects, scope_of
from tpunb.tfdata.restored import explain_op, unrestored_stages
from tpunb.tfdata.rewrite import Rewriting, shared_resources
from tpunb.tfdata.stages import Stage, is_deterministic, upstream

_WRITES = {"SnapshotDataset", "SnapshotDatasetV2", "SaveDataset", "SaveDatasetV2"}
_REMOTE = ("DataServiceDataset", "DistributedSave")
_ENDS_EARLY = {"take", "take_while"}
_RESTARTS_INPUT = {"cache", "concatenate", "repeat", "shuffle_and_repeat"}


def rebuild_obstacles(graph: Any, stages: tuple[Stage, ...], effects: Mapping[str, Effects]) -> Iterator[str]:
    """Yield why a rebuilt copy of a pipeline would disturb the program's own."""
    work, functions = Rewriting(graph), {function.signature.name: function for function in graph.library.function}
    for stage in stages:
        effect = effects[stage.node]
        for op in effect.keeps[:1]:
            yield f"{stage.name}: {explain_op(op, scope_of(functions, stage.functions, op))}"
        if effect.unknown:
            yield f"{stage.name} contains an operation unknown to TensorFlow's registry ({plain(effect.unknown[0])})"
        if stage.op in _WRITES:
            yield f"{stage.name} writes files, and a copy would write the same ones (write them before the training)"
        if stage.op.startswith(_REMOTE):
            yield f"{stage.name} runs on a tf.data service, outside this process"
        if stage.op == "CacheDataset" or (stage.op == "CacheDatasetV2" and work.number(stage.node, 1) != b""):
            yield f"{stage.name} caches in files, and a copy would write the same ones (cache in memory)"
        if stage.op == "RandomDatasetV2":
            yield f"{stage.name} draws other random numbers in every epoch, and a copy would restart them"
    for node in shared_resources(graph):
        yield f"{plain(node.op)} holds an unsupported resource of the process"


def doubts(graph: Any, stages: tuple[Stage, ...], effects: Mapping[str, Effects], options: Any) -> Iterator[str]:
    """Yield why the outputs of a rebuilt pipeline must be compared."""
    for stage in stages:
        effect = effects[stage.node]
        if effect.python:
            yield f"{stage.name} runs Python, which cannot be analysed"
        if effect.draws:
            yield f"{stage.name} draws random numbers"
        if not stage.supported:
            yield f"{stage.name} is an unknown stage"
    yield from _read_ahead(stages)
    if options.deterministic is False or not all(map(is_deterministic, graph.node)):
        yield "the order of elements in the pipeline is not deterministic (deterministic=False)"
    yield from _copied_state(graph)


def move_obstacles(
    graph: Any, stages: tuple[Stage, ...], effects: Mapping[str, Effects], options: Any
) -> Iterator[str]:
    """Yield why an iterator cannot continue in a rebuilt pipeline in mid-run.

    It cannot if the next elements depend on state outside the iterator, other than the number of iterators before it.
    """
    for stage in stages:
        if effects[stage.node].draws:
            yield f"{stage.name} draws random numbers, and no position holds how many"
        if stage.kind == "cache":
            yield f"{stage.name} keeps the elements of the first epoch, and a copy would compute them again"
        starts_inputs = len(stage.inputs) > 1 and stage.kind not in ("zip", "enumerate")
        if starts_inputs and any(other.kind.startswith("shuffle") for other in upstream(stage, stages)):
            yield f"{stage.name} reads a shuffle, and no position holds how often it has begun"
    if any(node.op == "GeneratorDataset" for function in graph.library.function for node in function.node_def):
        yield "a Python generator feeds it, which cannot be rewound"
    yield from unrestored_stages(graph, options)
    yield from _copied_state(graph)


def _copied_state(graph: Any) -> Iterator[str]:
    for node in graph.node:
        if node.op == "VarHandleOp":
            yield "a function reads a variable: a rebuilt pipeline reads a copy of its present value"
        if node.op.startswith(("MutableHashTable", "MutableDenseHashTable")):
            yield "a function reads a mutable table: a rebuilt pipeline reads a copy of its present contents"


def _read_ahead(stages: tuple[Stage, ...]) -> Iterator[str]:
    """Yield why later orders may depend on how far was read ahead: a shuffle advances each time that it begins."""
    for above in stages:
        if above.kind not in _ENDS_EARLY and (len(above.inputs) < 2 or above.kind == "concatenate"):
            continue
        for stage in upstream(above, stages):
            if stage.kind in _RESTARTS_INPUT and any(
                other.kind.startswith("shuffle") for other in upstream(stage, stages)
            ):
                yield f"{above.name} may end before {stage.name} does, so that later orders depend on reading ahead"
