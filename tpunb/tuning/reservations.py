"""What holds for a pipeline as a whole: why it may not be rebuilt at all, or why nothing of it is proved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tpunb.frames.words import plain
from tpunb.tuning.purity import Purity
from tpunb.tuning.rewriting import Rewriting, owned, resources
from tpunb.tuning.stages import Stage, in_order

_WRITES = {"SnapshotDataset", "SnapshotDatasetV2", "SaveDataset", "SaveDatasetV2"}
_SERVED = ("DataServiceDataset", "DistributedSave")


def refusal(graph: Any, of: tuple[Stage, ...], purity: dict[str, Purity]) -> str | None:
    """Return why a pipeline may not be rebuilt: a copy of it would disturb the program's own; None where it may."""
    return next(_refusals(graph, of, purity), None)


def doubt(graph: Any, of: tuple[Stage, ...], purity: dict[str, Purity], options: Any) -> str | None:
    """Return why nothing of a pipeline is proved, only to be verified; None where there is no such reason."""
    return next(_doubts(graph, of, purity, options), None)


def _refusals(graph: Any, of: tuple[Stage, ...], purity: dict[str, Purity]) -> Iterator[str]:
    work = Rewriting(graph)
    for stage in of:
        done = purity[stage.node]
        if done.keeps:
            yield f"{stage.name} keeps or changes state ({', '.join(done.keeps)}), and a copy would have its own"
        if done.unknown:
            yield f"{stage.name} holds what TensorFlow's registry does not know ({plain(done.unknown[0])})"
        if stage.op in _WRITES:
            yield f"{stage.name} writes files, and a copy would write the same ones"
        if stage.op.startswith(_SERVED):
            yield f"{stage.name} runs on a tf.data service, beyond this process"
        if stage.op == "CacheDataset" or (stage.op == "CacheDatasetV2" and work.number(stage.node, 1) != b""):
            yield f"{stage.name} caches in files, and a copy would write the same ones"
        if stage.op == "RandomDatasetV2":
            yield f"{stage.name} draws other random numbers in every epoch, and a copy would begin anew"
    for node, at in resources(graph):
        if not owned(node, at):
            yield f"{plain(node.op)} holds a resource of the process that tpunb does not know"


def _doubts(graph: Any, of: tuple[Stage, ...], purity: dict[str, Purity], options: Any) -> Iterator[str]:
    for stage in of:
        done = purity[stage.node]
        if done.python:
            yield f"{stage.name} runs Python, which nobody can see into"
        if done.draws:
            yield f"{stage.name} draws random numbers"
        if not stage.known:
            yield f"{stage.name} is a stage that tpunb does not know"
    if options.deterministic is False or not all(map(in_order, graph.node)):
        yield "the pipeline leaves the order of its elements free (deterministic=False)"
    for node in graph.node:
        if node.op == "VarHandleOp":
            yield "a function reads a variable: rebuilt, it reads a copy of what the variable holds now"
        if node.op.startswith("MutableHashTable") or node.op.startswith("MutableDenseHashTable"):
            yield "a function reads a table that may change: rebuilt, it reads a copy of what the table holds now"
