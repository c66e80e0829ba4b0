"""How long each stage of a pipeline works for one step, were it alone and called once at a time.

A stage is measured with all below it, and those below it without; the difference is its own. What the process computes
meanwhile tells whether the stage computes, or waits: for a disk, a network, a service.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tpunb.tuning.dataset_graph import back, there
from tpunb.tuning.grain_pipeline import GrainPipeline
from tpunb.tuning.pipeline import Pipeline
from tpunb.tuning.rewriting import PARALLEL_INPUT, Rewriting, resources_of_its_own
from tpunb.tuning.stages import Stage

LIMIT = 0.4
"""Seconds for which a stage is measured."""

_BATCHES = 3
"""Batches after which a stage is measured well enough."""

_STEADY = {"batch", "padded_batch", "map_and_batch", "map", "enumerate", "prefetch", "shuffle", "repeat", "zip"}
"""Kinds of stages that take as much from below for every batch."""


@dataclass(frozen=True)
class Load:
    """What one stage takes for a step.

    Attributes
    ----------
    stage
        Its name, as in the names of knobs.
    seconds
        Of its own, for all elements of a step's batch, one after the other.
    busy
        Share of them in which the process computed: 1 is one core all the time.
    certain
        Whether every step takes them, as far as the graph tells: nothing above makes several elements of one, takes
        some of several, or keeps them.
    """

    stage: str
    seconds: float
    busy: float
    certain: bool = False

    @property
    def waits(self) -> bool:
        """Whether it waits more than it computes: then more calls than there are cores help."""
        return self.busy < 0.5


def loads(pipeline: Pipeline | GrainPipeline, *, limit: float = LIMIT) -> tuple[Load, ...]:
    """Return the loads of the stages that call functions or read, those below first.

    Parameters
    ----------
    pipeline
        That is measured: its data are read anew, the program's own iterators are not touched.
    limit
        Seconds a stage.
    """
    return _of_grain(pipeline, limit) if isinstance(pipeline, GrainPipeline) else _of_tf(pipeline, limit)


def _of_tf(pipeline: Pipeline, limit: float) -> tuple[Load, ...]:
    work = Rewriting.of_copy(there(pipeline.dataset))
    resources_of_its_own(work, pipeline.entropy)
    _make_plain(work)
    needed, certain = _elements_a_batch(pipeline.stages, work), _certain(pipeline.stages)
    found: list[Load] = []
    whole: dict[str, tuple[float, float]] = {}  # with all below it: seconds, and those of the processors
    for stage in pipeline.stages:
        below = [sum(whole[node][at] for node in stage.inputs) for at in (0, 1)]
        whole[stage.node] = below[0], below[1]
        if stage.helper or not (stage.functions or not stage.inputs):
            continue
        work.ends_in = stage.node
        wall, busy = _measured(_prefix(work, stage.node), needed[stage.node], limit)
        whole[stage.node] = max(wall, below[0]), max(busy, below[1])
        own = whole[stage.node][0] - below[0]
        busy = (whole[stage.node][1] - below[1]) / own if own > 0 else 1.0
        found.append(Load(stage.name, own, busy, stage.node in certain))
    return tuple(found)


def _make_plain(work: Rewriting) -> None:
    """Let every stage make one element at a time, and none ahead."""
    for node in work.graph.node:
        if node.op in PARALLEL_INPUT:
            work.set_number(node.name, PARALLEL_INPUT[node.op], 1)
        elif node.op == "PrefetchDataset":
            work.set_number(node.name, 1, 0)
        elif node.op.startswith("Shuffle"):
            work.set_number(node.name, 1, 1)  # its buffer is filled once, not at every step


def _elements_a_batch(of: tuple[Stage, ...], work: Rewriting) -> dict[str, int]:
    """Return how many elements of each stage one batch of the whole takes, as far as the graph tells."""
    needed = {of[-1].node: 1}
    for stage in reversed(of):
        own = needed.setdefault(stage.node, 1)
        if "batch" in stage.kind and stage.kind != "unbatch":
            size = work.number(stage.node, -3 if stage.kind == "map_and_batch" else 1)
            own *= size if isinstance(size, int) and size > 0 else 1
        for node in stage.inputs:
            needed[node] = max(needed.get(node, 1), own)
    return needed


def _certain(of: tuple[Stage, ...]) -> set[str]:
    """Return the stages of which every batch of the whole takes as much."""
    found = {of[-1].node}
    for stage in reversed(of):
        if stage.node in found and (stage.kind in _STEADY or stage.helper):
            found.update(stage.inputs)
    return found


def _prefix(work: Rewriting, node: str) -> Any:
    """Return the dataset that ends in a node, as it is written: nothing of it is made faster by TensorFlow."""
    import tensorflow as tf

    types, shapes = work.element(node)
    spec = tuple(
        tf.TensorSpec(None if shape.unknown_rank else [d.size if d.size >= 0 else None for d in shape.dim], kind)
        for kind, shape in zip(types.list.type, shapes.list.shape, strict=True)
    )
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    options.autotune.enabled = False
    return back(work.graph, spec if len(spec) > 1 else spec[0]).with_options(options)


def _measured(dataset: Any, needed: int, limit: float) -> tuple[float, float]:
    """Return the seconds of so many elements, by the clock and by the processors; 0 where there are none."""
    import tensorflow as tf

    def one(iterator: Any, i: Any) -> Any:
        element = iterator.get_next()
        with tf.control_dependencies(tf.nest.flatten(element, expand_composites=True)):
            return i + 1

    def draw(iterator: Any, n: Any) -> Any:
        first = [tf.constant(0)]
        return tf.while_loop(lambda i: i < n, lambda i: (one(iterator, i),), first, parallel_iterations=1)

    # the iterator is an argument: a function that held it would keep its threads reading ahead
    iterator, compiled = iter(dataset), tf.function(draw)
    return _rated(lambda n: compiled(iterator, tf.constant(n)), needed, limit, tf.errors.OpError)


def _of_grain(pipeline: GrainPipeline, limit: float) -> tuple[Load, ...]:
    names = [knob.name for knob in pipeline.knobs if knob.name.endswith("read threads")]
    iterator = iter(pipeline.build(dict.fromkeys(names, 0)))

    def draw(n: int) -> None:
        for _ in range(n):
            next(iterator)

    wall, busy = _rated(draw, 1, limit, StopIteration)
    return tuple(Load(name.removesuffix(" threads"), wall, busy / wall if wall > 0 else 1.0) for name in names)


def _rated(draw: Callable[[int], object], needed: int, limit: float, over: type[Exception]) -> tuple[float, float]:
    """Return the seconds of `needed` elements, by the clock and by the processors, from drawing more and more."""
    count, chunk = 0, 1
    try:
        draw(1)  # the first opens files, and compiles
        begun, worked = time.perf_counter(), time.process_time()
        wall, busy = 0.0, 0.0
        while wall < limit and count < _BATCHES * needed:
            draw(chunk)
            count += chunk
            wall, busy = time.perf_counter() - begun, time.process_time() - worked
            fitting = int((limit - wall) / (wall / count)) if wall > 0 else chunk
            chunk = max(1, min(2 * chunk, _BATCHES * needed - count, fitting))
    except over:  # the data end, or fail: trials will tell
        pass
    return (wall / count * needed, busy / count * needed) if count else (0.0, 0.0)
