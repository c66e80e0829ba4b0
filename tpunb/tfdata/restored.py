"""Which parts of a tf.data pipeline a saved position is proved to restore: the one list, for resuming and for tuning.

A position holds the state of one iterator. TensorFlow tests that it restores the stages listed here. What an iterator
does not hold is how often its shuffles had begun: that can be counted only if each pass begins them once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain
from typing import Any

from tpunb.tfdata.effects import CHECKS, draws_random_numbers, effects_of, operations, scope_of
from tpunb.tfdata.python_functions import python_names
from tpunb.tfdata.rewrite import Rewriting, is_reshuffling, unseeded_shuffles
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

_KEEPS_ENDLESS = {"map", "batch", "padded_batch", "unbatch", "prefetch", "shuffle", "enumerate", "options", "scan"}
_CALLS_IN_PARALLEL = {"map", "interleave", "parallel_interleave", "map_and_batch", "batch"}
_READS = "ReadVariableOp"
_STATELESS = "use tf.random.stateless_* with a seed from the element, such as its number by enumerate"
_UNTESTED = "the position in this stage is not proved to be restored (leave it out)"
_UNPROVED = {
    "parallel_interleave": "TensorFlow loses elements when it restores this stage (use Dataset.interleave; in place of "
    "make_csv_dataset, tf.data.experimental.CsvDataset)",
}
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


def not_restored(graph: Any, options: Any, *, passes: bool = True, seeds: bool = False) -> str:
    """Return a sentence that names the first part of a graph that is not proved to be restored, or "".

    `passes`: whether later iterators matter too; `seeds`: whether states of seed generators are restored.
    """
    functions = {function.signature.name: function for function in graph.library.function}
    changing = drawing_stages(graph) if seeds else ()
    reading = (
        each for each in stages(graph) if each not in changing and _READS in operations(functions, *each.functions)
    )
    reads = (f"{stage.name}: {explain_op(_READS)}" for stage in reading)
    return next(chain(external_state(graph, seeds=seeds), unrestored_stages(graph, options, passes=passes), reads), "")


def varies(graph: Any, options: Any) -> str:
    """Return a sentence that names what may give a dataset other elements in another pass, or ""."""
    drawing = {node.name for node in graph.node if advances(node)} | {node.name for node in unseeded_shuffles(graph)}
    differs = "its order differs in each pass (do not shuffle it; functions of Keras take shuffle=False)"
    drawn = (f"{stage.name}: {differs}" for stage in stages(graph) if stage.node in drawing)
    return next(chain(drawn, external_state(graph), unrestored_stages(graph, options)), "")


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


def unrestored_stages(graph: Any, options: Any, *, passes: bool = True) -> Iterator[str]:
    """Yield a sentence for each stage that is not proved to be restored, whatever its functions do."""
    pipeline, nodes = stages(graph), {node.name: node for node in graph.node}
    for stage in pipeline:
        if stage.kind not in RESTORED and stage.kind != "from_generator":
            yield f"{stage.name}: {_UNPROVED.get(stage.kind, _UNTESTED)}"
        if stage.op == "CacheDataset" or (stage.op == "CacheDatasetV2" and _second_input(stage, nodes) != b""):
            yield f"{stage.name}: it caches in files, which a resumed run finds in another state (cache in memory)"
        if stage.kind == "choose_from_datasets" and not nodes[stage.node].attr["stop_on_empty_dataset"].b:
            chosen = [each for each in pipeline if each.node in stage.inputs[1:]]  # the first one chooses
            if not all(_never_ends(each, pipeline, nodes) for each in chosen):
                yield (
                    f"{stage.name}: after one of its datasets has ended, TensorFlow does not find its end again "
                    "(sample from datasets that repeat, or pass stop_on_empty_dataset=True)"
                )
        ordered = options.deterministic is not False and is_deterministic(nodes[stage.node])
        if stage.kind in _CALLS_IN_PARALLEL and not ordered:
            yield f"{stage.name}: the order of its elements is not deterministic (omit deterministic=False)"
    endless = not passes or _is_endless(pipeline, nodes)
    for stage in pipeline:
        if advances(nodes[stage.node]):
            yield from _begun_again(stage, pipeline, endless)


def late_shuffles(graph: Any) -> list[str]:
    """Return the nodes of shuffles that begin with the first element: those that feed another shuffle."""
    pipeline, nodes = stages(graph), {node.name: node for node in graph.node}
    above = [stage for stage in pipeline if stage.kind.startswith("shuffle")]
    lower = {other.node for stage in above for other in upstream(stage, pipeline) if other is not stage}
    return [name for name in sorted(lower) if advances(nodes[name])]


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


def _begun_again(stage: Stage, pipeline: tuple[Stage, ...], endless: bool) -> Iterator[str]:
    """Yield the stages above a shuffle that begin it late, more than once a pass, or in the first pass only."""
    below = {stage.node}
    for above in pipeline:  # each after those that it reads
        if not below.intersection(above.inputs):
            continue
        below.add(above.node)
        if above.kind == "repeat" and not endless:
            yield f"{above.name}: it begins {stage.name} more than once in a pass (put repeat before the shuffle)"
        elif above.kind == "concatenate" and below.intersection(above.inputs[1:]):
            what = f"it contains a shuffle that begins when the part before it ends, {stage.name} (shuffle after it)"
            yield f"{above.name}: {what}"
        elif above.kind == "cache":
            way_out = "shuffle after cache; functions of Keras that read folders shuffle unless shuffle=False"
            yield f"{above.name}: it keeps the order of {stage.name} in the first pass ({way_out})"


def _is_endless(pipeline: tuple[Stage, ...], nodes: dict[str, Any]) -> bool:
    """Return whether one iterator serves a whole training: every repeat is endless, and nothing ends it."""
    repeats = [stage for stage in pipeline if stage.kind == "repeat"]
    ends = {"take", "take_while", "zip", "enumerate", "assert_cardinality", "concatenate"}
    last = {name for stage in pipeline if stage.kind in ends for name in stage.inputs}
    ended = any(stage in repeats for stage in pipeline if stage.node in last for stage in upstream(stage, pipeline))
    return not ended and all(_second_input(stage, nodes) == -1 for stage in repeats)


def _never_ends(stage: Stage, pipeline: tuple[Stage, ...], nodes: dict[str, Any]) -> bool:
    """Return whether a dataset is an endless repeat, with stages above it that keep it endless."""
    while stage.kind in _KEEPS_ENDLESS:
        stage = next(each for each in pipeline if each.node == stage.inputs[0])
    return stage.kind == "random" or (stage.kind == "repeat" and _second_input(stage, nodes) == -1)


def _second_input(stage: Stage, nodes: dict[str, Any]) -> Any:
    return constant(nodes[nodes[stage.node].input[1].split(":")[0]])
