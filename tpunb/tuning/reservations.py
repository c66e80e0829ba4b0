"""What holds for a pipeline as a whole: why it may not be rebuilt at all, or why nothing of it is proved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tpunb.frames.words import plain
from tpunb.tuning.purity import Purity
from tpunb.tuning.rewriting import Rewriting, owned, resources
from tpunb.tuning.stages import Stage, below, in_order

_WRITES = {"SnapshotDataset", "SnapshotDatasetV2", "SaveDataset", "SaveDatasetV2"}
_SERVED = ("DataServiceDataset", "DistributedSave")


def refusal(graph: Any, of: tuple[Stage, ...], purity: dict[str, Purity]) -> str | None:
    """Return why a pipeline may not be rebuilt: a copy of it would disturb the program's own; None where it may."""
    return next(_refusals(graph, of, purity), None)


def doubt(graph: Any, of: tuple[Stage, ...], purity: dict[str, Purity], options: Any) -> str | None:
    """Return why nothing of a pipeline is proved, only to be verified; None where there is no such reason."""
    return next(_doubts(graph, of, purity, options), None)


def immovable(graph: Any, of: tuple[Stage, ...], purity: dict[str, Purity]) -> str | None:
    """Return why an iterator's place cannot be moved to a rebuilt pipeline in the midst of a run; None where it can.

    That is, what the elements to come hang on is neither in the state of an iterator nor in how often it was begun.
    """
    return next(_immovables(graph, of, purity), None)


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
    yield from _cut_short(of)
    if options.deterministic is False or not all(map(in_order, graph.node)):
        yield "the pipeline leaves the order of its elements free (deterministic=False)"
    yield from _copied(graph)


def _copied(graph: Any) -> Iterator[str]:
    for node in graph.node:
        if node.op == "VarHandleOp":
            yield "a function reads a variable: rebuilt, it reads a copy of what the variable holds now"
        if node.op.startswith("MutableHashTable") or node.op.startswith("MutableDenseHashTable"):
            yield "a function reads a table that may change: rebuilt, it reads a copy of what the table holds now"


def _immovables(graph: Any, of: tuple[Stage, ...], purity: dict[str, Purity]) -> Iterator[str]:
    for stage in of:
        if purity[stage.node].draws:
            yield f"{stage.name} draws random numbers, and no position tells how many"
        if not stage.known:
            yield f"{stage.name} is a stage that tpunb does not know"
        if stage.kind == "cache":
            yield f"{stage.name} keeps what the first epoch made, and a copy would have to make it again"
        if _begins_by_itself(stage) and any(one.kind.startswith("shuffle") for one in below(stage, of)):
            yield f"{stage.name} stands above a shuffle, and no position tells how often that was begun"
    if any(node.op == "GeneratorDataset" for function in graph.library.function for node in function.node_def):
        yield "a Python generator feeds it, which cannot be wound back"
    yield from _copied(graph)


def _begins_by_itself(stage: Stage) -> bool:
    """Say whether a stage begins what lies below it, or not, at moments of its own."""
    return len(stage.inputs) > 1 and stage.kind not in ("zip", "enumerate")


_ENDS_EARLY = {"take", "take_while"}
_BEGINS_ANEW = {
    "cache",
    "concatenate",
    "repeat",
    "shuffle_and_repeat",
}  # what lies below, or not: as often as it is asked


def _cut_short(of: tuple[Stage, ...]) -> Iterator[str]:
    """Yield why later epochs may hang on how far was read ahead: a shuffle goes on each time that it is begun."""
    named = {stage.node: stage for stage in of}

    def within(stage: Stage) -> Iterator[Stage]:
        yield stage
        for node in stage.inputs:
            if node in named:
                yield from within(named[node])

    def ends_early(stage: Stage) -> bool:
        return stage.kind in _ENDS_EARLY or (len(stage.inputs) > 1 and stage.kind != "concatenate")

    for above in filter(ends_early, of):
        for stage in within(above):
            if stage.kind in _BEGINS_ANEW and any(one.kind.startswith("shuffle") for one in within(stage)):
                yield f"{above.name} may end before {stage.name} does, so that later orders hang on what was read ahead"
