"""Which parts of a tf.data pipeline a saved position is proved to restore: the one list, for resuming and for tuning.

A position holds the state of one iterator. TensorFlow tests that it restores the stages listed here; of a few others
the batches are drawn again. What an iterator does not hold is how often its shuffles had begun, and in which order a
cache keeps their elements: both follow from the number of passes if each is read to its end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain
from typing import Any

from tpunb.tfdata.effects import CHECKS, draws_random_numbers, effects_of, operations, scope_of
from tpunb.tfdata.python_functions import python_names
from tpunb.tfdata.rewrite import (
    Rewriting,
    begin_shuffles,
    is_reshuffling,
    kept_orders,
    unseeded_shuffles,
)
from tpunb.tfdata.stages import Stage, constant, is_deterministic, stages, upstream
from tpunb.tfdata.variables import CHANGES, drawing_stages

_KINDS = (
    "range from_tensors from_tensor_slices from_sparse_tensor_slices TFRecordDataset TextLineDataset CsvDataset "
    "FixedLengthRecordDataset random map filter batch padded_batch take skip shard zip enumerate prefetch shuffle "
    "shuffle_and_repeat take_while scan unbatch rebatch options flat_map interleave map_and_batch choose_from_datasets "
    "window group_by_window bucket_by_sequence_length unique assert_cardinality assert_next ignore_errors "
    "dense_to_sparse_batch sliding_window max_intra_op_parallelism private_thread_pool parse_example repeat "
    "concatenate cache"
)
RESTORED = frozenset(_KINDS.split())
"""Kinds of stages whose position is restored."""

_MOST = (
    "map batch padded_batch map_and_batch unbatch rebatch prefetch shuffle enumerate options scan filter flat_map "
    "interleave parallel_interleave window"
)
_KEEPS_ENDLESS = frozenset(_MOST.split())
_CALLS_IN_PARALLEL = {"map", "interleave", "parallel_interleave", "map_and_batch", "batch"}
_READS = "ReadVariableOp"
_STATELESS = "use tf.random.stateless_* with a seed from the element, such as its number by enumerate"
_UNTESTED = "the position in this stage is not proved to be restored (leave it out)"
_TO_ITS_END = _KEEPS_ENDLESS | {"repeat", "cache", "ignore_errors"}
"""Kinds of stages that read the one below to its end, if they are read to theirs."""
_REASONS = {
    "GeneratorDataset": "the Python generator{name} feeds it, and cannot continue in the middle (give fit arrays, or a "
    "keras.utils.PyDataset whose batches depend on their index)",
    "PyFunc": "it calls the Python function{name}, which may keep state (if it keeps none, pass stateful=False to "
    "tf.numpy_function)",
    "EagerPyFunc": "it calls the Python function{name} by tf.py_function, and may keep state (if it keeps none, use "
    "tf.numpy_function with stateful=False)",
    "RandomShuffle": "it is shuffled by an operation whose state cannot be saved (use Dataset.shuffle)",
    "DummySeedGenerator": "it contains a shuffle, whose state cannot be saved (shuffle before or after it)",
    _READS: "it reads a variable, whose value is not saved with the data (use a constant)",
    **dict.fromkeys(
        CHANGES,
        "{name} changes a variable{calls} (put random layers into the model, and keep no other state in a map)",
    ),
    "RngReadAndSkip": f"it draws from a tf.random.Generator{{calls}} ({_STATELESS})",
}


def explain_op(op: str, name: str = "", calls: str = "") -> str:
    """Return a sentence on an operation whose state cannot be saved, with the name of what uses it."""
    if (reason := _REASONS.get(op)) is None and draws_random_numbers(op):
        return f"it draws random numbers with {op} ({_STATELESS})"
    if reason is None:
        return f"{op}, an operation in it, has state that cannot be saved (leave it out)"
    named = {"name": name or "it", "calls": calls} if op in CHANGES else {"name": name and f" {name}"}
    return reason.format(**named)


def not_restored(graph: Any, options: Any, *, passes: bool = True, seeds: bool = False, positions: bool = True) -> str:
    """Return a sentence that names the first part of a graph that is not proved to be restored, or "".

    `passes`: whether later iterators matter too; `seeds`: whether states of seed generators are restored; `positions`:
    whether those of iterators are, or batches are drawn again.
    """
    functions = {function.signature.name: function for function in graph.library.function}
    changing = drawing_stages(graph) if seeds else ()
    reading = (
        each for each in stages(graph) if each not in changing and _READS in operations(functions, *each.functions)
    )
    reads = (f"{stage.name}: {explain_op(_READS)}" for stage in reading)
    positioned = unpositioned(graph) if positions else ()
    others = other_passes(graph, options, passes=passes)
    return next(
        chain(external_state(graph, seeds=seeds), positioned, unrestored_stages(graph, options), others, reads), ""
    )


def unseeded(graph: Any) -> str:
    """Return a sentence that names a shuffle without a seed, whose later order no iterator holds, or ""."""
    names = {node.name for node in unseeded_shuffles(graph)}
    needs = "it has no seed, which a later pass needs (give it one)"
    return next((f"{each.name}: {needs}" for each in stages(graph) if each.node in names), "")


def external_state(graph: Any, *, seeds: bool = False) -> Iterator[str]:
    """Yield a sentence for each stage with a function whose state no position holds; `seeds` as in `not_restored`."""
    functions = {function.signature.name: function for function in graph.library.function}
    restored = drawing_stages(graph) if seeds else ()
    for stage in stages(graph):
        op = effects_of(functions, *stage.functions).external_state
        is_parallel = op in CHANGES and stage.op.startswith("ParallelMap")
        if is_parallel or (op and stage not in restored):
            name = (
                scope_of(functions, stage.functions, op) if op in CHANGES else ", ".join(python_names(functions, stage))
            )
            op = "GeneratorDataset" if stage.kind == "from_generator" else op
            yield f"{stage.name}: {explain_op(op, name, ' in parallel calls' if is_parallel else '')}"


def unpositioned(graph: Any) -> Iterator[str]:
    """Yield a sentence for each stage whose position TensorFlow does not restore; its elements can be drawn again."""
    pipeline, nodes = stages(graph), {node.name: node for node in graph.node}
    for stage in pipeline:
        if stage.kind == "parallel_interleave":
            yield f"{stage.name}: TensorFlow loses elements when it restores this stage (use Dataset.interleave)"
        if stage.op == "CacheDataset" or (stage.op == "CacheDatasetV2" and _second_input(stage, nodes) != b""):
            yield f"{stage.name}: it caches in files, which a resumed run finds in another state (cache in memory)"
        if stage.kind == "choose_from_datasets" and not nodes[stage.node].attr["stop_on_empty_dataset"].b:
            by_node = {each.node: each for each in pipeline}
            if not all(
                _never_ends(by_node[each], by_node, nodes) for each in stage.inputs[1:]
            ):  # the first one chooses
                yield (
                    f"{stage.name}: after one of its datasets has ended, TensorFlow does not find its end again "
                    "(sample from datasets that repeat, or pass stop_on_empty_dataset=True)"
                )


def unrestored_stages(graph: Any, options: Any) -> Iterator[str]:
    """Yield a sentence for each stage whose elements are not proved to be those of the saved run."""
    nodes = {node.name: node for node in graph.node}
    for stage in stages(graph):
        if stage.kind not in RESTORED and stage.kind not in ("from_generator", "parallel_interleave"):
            yield f"{stage.name}: {_UNTESTED}"
        ordered = options.deterministic is not False and is_deterministic(nodes[stage.node])
        if stage.kind in _CALLS_IN_PARALLEL and not ordered:
            yield f"{stage.name}: the order of its elements is not deterministic (omit deterministic=False)"


def other_passes(graph: Any, options: Any, *, passes: bool = True) -> Iterator[str]:
    """Yield a sentence for each stage with which the orders of a pass do not follow from the number of passes."""
    pipeline, nodes = stages(graph), {node.name: node for node in graph.node}
    endless = not passes or _is_endless(graph)
    for stage in pipeline:
        if advances(nodes[stage.node]):
            yield from _begun_again(stage, pipeline, nodes, endless=endless)
    if not endless and not _is_optimized(options) and needs_ends(graph, options):
        yield "with these options, how often its shuffles begin is unknown (use the default ones of tf.data)"


def turns(graph: Any, options: Any) -> dict[str, int]:
    """Return how often shuffles begin in a pass that is read to its end, by node; without those below a cache.

    At the end of its last turn, a repeat makes one more iterator, unless TensorFlow joins it with the shuffle below.
    """
    pipeline, nodes, optimized = stages(graph), {node.name: node for node in graph.node}, _is_optimized(options)
    every = dict.fromkeys(sorted(_advancing(graph) - _below(pipeline, "cache")), 1)
    for name in [] if _is_endless(graph) else every:
        read, created = {name}, 1  # created: begun with each iterator
        for stage in pipeline:
            if read.isdisjoint(stage.inputs):
                continue
            read.add(stage.node)
            if stage.kind.startswith("shuffle"):
                created = 0
            elif stage.kind == "repeat" and (number := _second_input(stage, nodes)) != 1:
                every[name] = number * every[name] + created * (name not in stage.inputs or not optimized)
    return every


def needs_ends(graph: Any, options: Any) -> bool:
    """Return whether the order of a pass depends on whether the ones before were read to their end."""
    return keeps_orders(graph) or any(number > 1 for number in turns(graph, options).values())


def late_shuffles(graph: Any) -> list[str]:
    """Return the nodes of shuffles that begin with the first element: those that feed another shuffle."""
    return sorted(_below(stages(graph), "shuffle") & _advancing(graph))


def begin_again(graph: Any, options: Any, passes: int) -> None:
    """Begin the shuffles of a graph as passes do after their iterators are created."""
    late, each = late_shuffles(graph), turns(graph, options)
    begin_shuffles(graph, {name: passes * (number - (name not in late)) for name, number in each.items()})


def keeps_orders(graph: Any) -> bool:
    """Return whether a cache keeps the order of a first pass for later ones."""
    return bool(kept_orders(graph, _advancing(graph))) and not _is_endless(graph)


def _advancing(graph: Any) -> set[str]:
    return {node.name for node in graph.node if advances(node)}


def _below(pipeline: tuple[Stage, ...], kind: str) -> set[str]:
    """Return the nodes of the stages that feed one of a kind."""
    above = [stage for stage in pipeline if stage.kind.startswith(kind)]
    return {other.node for stage in above for other in upstream(stage, pipeline) if other is not stage}


def _is_optimized(options: Any) -> bool:
    """Return whether TensorFlow draws elements in advance, and joins stages, as it does by default."""
    rewrites = options.experimental_optimization
    chosen = rewrites.inject_prefetch, rewrites.apply_default_optimizations, rewrites.shuffle_and_repeat_fusion
    return False not in (options.autotune.enabled, *chosen)


def only_checks(graph: Any) -> bool:
    """Return whether TensorFlow takes for state what only checks numbers: functions with such and no variables."""
    functions = {function.signature.name: function for function in graph.library.function}
    ops = {op for stage in stages(graph) for op in operations(functions, *stage.functions)}
    return not ops.isdisjoint(CHECKS) and not any("Variable" in op or op.startswith("ResourceGather") for op in ops)


def buffered_bytes(graph: Any) -> int:
    """Return the bytes of the elements in the buffers of shuffles, as far as their shapes are known."""
    import tensorflow as tf

    work, total = Rewriting(graph), 0
    for stage in stages(graph):
        if stage.kind in ("shuffle", "shuffle_and_repeat"):
            types, shapes = work.element(stage.node)
            sizes = [math.prod(max(dim.size, 0) for dim in shape.dim) for shape in shapes.list.shape]
            widths = [tf.as_dtype(number).size for number in types.list.type]
            total += max(work.number(stage.node, 1) or 0, 0) * sum(map(math.prod, zip(sizes, widths, strict=True)))
    return total


def advances(node: Any) -> bool:
    """Return whether a node has another order each time that it begins."""
    return is_reshuffling(node) or node.op == "RandomDatasetV2"


def _begun_again(stage: Stage, pipeline: tuple[Stage, ...], nodes: dict[str, Any], *, endless: bool) -> Iterator[str]:
    """Yield the stages above a shuffle with which it may begin any number of times in a pass."""
    below = {stage.node: ""}  # with the stage that begins it again if it is read to its end
    for above in pipeline:  # each after those that it reads
        if not (read := [name for name in above.inputs if name in below]):
            continue
        below[above.node] = kept = next(filter(None, map(below.__getitem__, read)), "")
        if above.kind == "concatenate" and {*read} & {*above.inputs[1:]}:
            what = f"it contains a shuffle that begins when the part before it ends, {stage.name} (shuffle after it)"
            yield f"{above.name}: {what}"
        elif endless:
            continue
        elif above.kind == "cache" or (above.kind == "repeat" and _second_input(above, nodes) != 1):
            below[above.node] = kept or above.name
        elif kept and above.kind not in _TO_ITS_END:
            yield f"{above.name}: it may not read {kept} to its end, which begins {stage.name} again (shuffle after it)"


def _is_endless(graph: Any) -> bool:
    """Return whether one iterator serves a whole training."""
    pipeline = stages(graph)
    return _never_ends(
        pipeline[-1], {stage.node: stage for stage in pipeline}, {node.name: node for node in graph.node}
    )


def _never_ends(stage: Stage, pipeline: dict[str, Stage], nodes: dict[str, Any]) -> bool:
    """Return whether a dataset is an endless repeat, with stages above it that keep it endless."""
    while stage.kind in _KEEPS_ENDLESS:
        stage = pipeline[stage.inputs[-1]]  # the first input of enumerate counts
    if stage.kind in ("zip", "choose_from_datasets"):
        return all(_never_ends(pipeline[name], pipeline, nodes) for name in stage.inputs)
    return stage.kind == "random" or (stage.kind == "repeat" and _second_input(stage, nodes) == -1)


def _second_input(stage: Stage, nodes: dict[str, Any]) -> Any:
    return constant(nodes[nodes[stage.node].input[1].split(":")[0]])
