"""Costs of pipeline stages: seconds each works for one step, alone and without parallel calls.

The cost of a stage is the difference between measurements with it and without it; its processor time shows whether it
computes or waits for a disk, a network or a service.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tpunb.tfdata.graph import to_graph
from tpunb.tfdata.rewrite import PARALLEL_INPUT, Rewriting, use_new_resources
from tpunb.tfdata.stages import Stage
from tpunb.torchdata.loader import start_method
from tpunb.tuning.caching import dataset_up_to
from tpunb.tuning.grain import GrainPipeline
from tpunb.tuning.loader import STAGE, LoaderPipeline
from tpunb.tuning.parameters import Kind
from tpunb.tuning.pipeline import Pipeline

_LIMIT = 0.4
"""Seconds for which a stage is measured."""

_BATCHES = 3
"""Batches that suffice to measure a stage."""

_SEND = 5e-4
"""Seconds that a worker process takes to send a small batch, measured: a batch of less is faster without workers."""

_START, _IMPORT = {"fork": 0.03}, 2.0
"""Seconds to start a worker by forking, and in a new process that imports torch, measured on two cores."""

_STEADY = {"batch", "padded_batch", "map_and_batch", "map", "enumerate", "prefetch", "shuffle", "repeat", "zip"}
"""Kinds of stages that read the same number of elements for every batch."""


@dataclass(frozen=True)
class StageCost:
    """Cost of one stage."""

    stage: str  # its name, as in `Parameter.stage`
    seconds: float  # of the stage alone, for all elements of one step in sequence
    busy: float  # cores that the process kept busy meanwhile
    certain: bool = False  # every step takes these seconds: no stage above multiplies, selects or caches elements
    most: float = math.inf  # parallel calls, beyond which more take longer to start than they save

    @property
    def waits(self) -> bool:
        """Whether it waits more than it computes: then more calls than cores help."""
        return self.busy < 0.5


def stage_costs(pipeline: Pipeline | GrainPipeline | LoaderPipeline) -> tuple[StageCost, ...]:
    """Return the costs of the stages that call functions or read, in the order of the pipeline.

    Of a DataLoader, the first is a batch in one worker process, and the others are what takes its time.
    """
    if isinstance(pipeline, LoaderPipeline):
        reading = pipeline.reading
        whole = StageCost(STAGE, reading.seconds, reading.busy, most=_most_workers(pipeline))
        return whole, *(StageCost(name, seconds, reading.busy) for name, seconds in reading.parts.items())
    return _of_grain(pipeline) if isinstance(pipeline, GrainPipeline) else _of_tf(pipeline)


def _most_workers(pipeline: LoaderPipeline) -> float:
    """Return the workers with which an epoch takes least: each takes time to start, and all share the batches."""
    seconds, start = pipeline.reading.seconds, _START.get(start_method(pipeline.loader), _IMPORT)
    if seconds < _SEND:
        return 0.0
    return math.inf if pipeline.batches is None else math.sqrt(pipeline.batches * seconds / start)


def _of_tf(pipeline: Pipeline) -> tuple[StageCost, ...]:
    work = Rewriting.of_copy(to_graph(pipeline.dataset))
    use_new_resources(work, pipeline.entropy)
    _make_serial(work)
    needed, certain = _elements_per_batch(pipeline.stages, work), _certain(pipeline.stages)
    costs: list[StageCost] = []
    whole: dict[str, tuple[float, float]] = {}  # with all stages below: seconds, and processor seconds
    for stage in pipeline.stages:
        below = sum(whole[node][0] for node in stage.inputs), sum(whole[node][1] for node in stage.inputs)
        whole[stage.node] = below
        if stage.helper or not (stage.functions or not stage.inputs):
            continue
        measured = _measured(dataset_up_to(work, stage.node), needed[stage.node])
        wall, busy = whole[stage.node] = max(measured[0], below[0]), max(measured[1], below[1])
        seconds = wall - below[0]
        share = (busy - below[1]) / seconds if seconds > 0 else 1.0
        costs.append(StageCost(stage.name, seconds, share, stage.node in certain))
    return tuple(costs)


def _make_serial(work: Rewriting) -> None:
    """Make every stage produce one element at a time, on demand."""
    for node in work.graph.node:
        if node.op in PARALLEL_INPUT:
            work.set_number(node.name, PARALLEL_INPUT[node.op], 1)
        elif node.op == "PrefetchDataset":
            work.set_number(node.name, 1, 0)
        elif node.op.startswith("Shuffle"):
            work.set_number(node.name, 1, 1)  # its buffer is filled once, not at every step


def _elements_per_batch(stages: tuple[Stage, ...], work: Rewriting) -> dict[str, int]:
    """Return how many elements of each stage one batch of the whole needs, where the graph has it."""
    needed = {stages[-1].node: 1}
    for stage in reversed(stages):
        count = needed.setdefault(stage.node, 1)
        if "batch" in stage.kind and stage.kind != "unbatch":
            size = work.number(stage.node, -3 if stage.kind == "map_and_batch" else 1)
            count *= size if isinstance(size, int) and size > 0 else 1
        for node in stage.inputs:
            needed[node] = max(needed.get(node, 1), count)
    return needed


def _certain(stages: tuple[Stage, ...]) -> set[str]:
    """Return the stages of which every batch needs the same number of elements."""
    nodes = {stages[-1].node}
    for stage in reversed(stages):
        if stage.node in nodes and (stage.kind in _STEADY or stage.helper):
            nodes.update(stage.inputs)
    return nodes


def _measured(dataset: Any, needed: int) -> tuple[float, float]:
    """Return wall and processor seconds for some elements; 0 for an empty dataset."""
    import tensorflow as tf

    def step(iterator: Any, i: Any) -> Any:
        element = iterator.get_next()
        with tf.control_dependencies(tf.nest.flatten(element, expand_composites=True)):
            return i + 1

    def draw(iterator: Any, n: Any) -> Any:
        first = [tf.constant(0)]
        return tf.while_loop(lambda i: i < n, lambda i: (step(iterator, i),), first, parallel_iterations=1)

    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = options.autotune.enabled = False
    # the iterator is an argument: a function that held it would keep its threads reading ahead
    iterator, compiled = iter(dataset.with_options(options)), tf.function(draw)
    return _rated(lambda n: compiled(iterator, tf.constant(n)), needed, tf.errors.OpError)


def _of_grain(pipeline: GrainPipeline) -> tuple[StageCost, ...]:
    reads = [parameter for parameter in pipeline.parameters if parameter.kind is Kind.READ_THREADS]
    iterator = iter(pipeline.build({parameter.name: 0 for parameter in reads}))

    def draw(n: int) -> None:
        for _ in range(n):
            next(iterator)

    wall, busy = _rated(draw, 1, StopIteration)
    return tuple(StageCost(parameter.stage, wall, busy / wall if wall > 0 else 1.0) for parameter in reads)


def _rated(draw: Callable[[int], object], needed: int, end: type[Exception]) -> tuple[float, float]:
    """Return wall and processor seconds for `needed` elements, from drawing chunks of growing size."""
    count, chunk = 0, 1
    wall, busy = 0.0, 0.0
    try:
        draw(1)  # the first opens files, and compiles
        started, worked = time.perf_counter(), time.process_time()
        while wall < _LIMIT and count < _BATCHES * needed:
            draw(chunk)
            count += chunk
            wall, busy = time.perf_counter() - started, time.process_time() - worked
            fitting = int((_LIMIT - wall) / (wall / count)) if wall > 0 else chunk
            chunk = max(1, min(2 * chunk, _BATCHES * needed - count, fitting))
    except end:  # the data end or fail: trials report it
        pass
    return (wall / count * needed, busy / count * needed) if count else (0.0, 0.0)
