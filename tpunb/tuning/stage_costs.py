"""Costs of pipeline stages: seconds each works for one step, alone and without parallel calls.

The cost of a stage is the difference between measurements with it and without it; its processor time shows whether it
computes or waits for a disk, a network or a service.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpunb.tfdata.graph import from_graph, to_graph
from tpunb.tfdata.rewrite import PARALLEL_INPUT, Rewriting, use_new_resources
from tpunb.tfdata.stages import Stage
from tpunb.tuning.grain import GrainPipeline
from tpunb.tuning.loader import STAGE, LoaderPipeline
from tpunb.tuning.parameters import Kind
from tpunb.tuning.pipeline import Pipeline

_LIMIT = 0.4  # seconds for which a stage is measured
_COMPILING = 0.1  # seconds to compile what draws the elements of a stage
_BATCHES = 3  # batches that suffice to measure a stage
_MOST_BATCHES = 100  # batches of Grain in which stages are measured
_STEADY = {"batch", "padded_batch", "map_and_batch", "map", "enumerate", "prefetch", "shuffle", "repeat", "zip"}
"""Kinds of stages that read the same number of elements for every batch."""


@dataclass(frozen=True)
class StageCost:
    """Cost of one stage."""

    stage: str  # its name, as in `Parameter.stage`
    seconds: float  # of the stage alone, for all elements of one step in sequence
    busy: float  # cores that the process kept busy meanwhile
    certain: bool = False  # every step takes these seconds: no stage above multiplies, selects or caches elements
    elements: float = 1.0  # of the stage, for one step
    parts: tuple[StageCost, ...] = ()  # of what reads: the stages that it runs
    most: float = math.inf  # parallel calls, beyond which more take longer to start than they save

    @property
    def waits(self) -> bool:
        """Whether it waits more than it computes: then more calls than cores help."""
        return self.busy < 0.5


def stage_costs(pipeline: Pipeline | GrainPipeline | LoaderPipeline) -> tuple[StageCost, ...]:
    """Return the costs of the stages that call functions or read, in the order of the pipeline.

    Of a DataLoader, it is that of a batch in one worker process.
    """
    if isinstance(pipeline, LoaderPipeline):
        reading = pipeline.reading
        parts = tuple(StageCost(name, seconds, reading.busy) for name, seconds in reading.parts.items())
        return (StageCost(STAGE, reading.seconds, reading.busy, parts=parts, most=pipeline.most_workers),)
    return _of_grain(pipeline) if isinstance(pipeline, GrainPipeline) else _of_tf(pipeline)


def most_seconds(pipeline: Pipeline | GrainPipeline | LoaderPipeline) -> float:
    """Return the seconds that measuring the costs of stages takes at most, if no element takes as long."""
    if not isinstance(pipeline, Pipeline):
        return _LIMIT
    return (_LIMIT + _COMPILING) * sum(_is_measured(stage) for stage in pipeline.stages)


def _is_measured(stage: Stage) -> bool:
    return not stage.helper and bool(stage.functions or not stage.inputs)


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
        if not _is_measured(stage):
            continue
        measured = _measured(_dataset_up_to(work, stage.node), needed[stage.node])
        wall, busy = whole[stage.node] = max(measured[0], below[0]), max(measured[1], below[1])
        seconds = wall - below[0]
        share = (busy - below[1]) / seconds if seconds > 0 else 1.0
        costs.append(StageCost(stage.name, seconds, share, stage.node in certain, needed[stage.node]))
    return tuple(costs)


def _dataset_up_to(work: Rewriting, node: str) -> Any:
    """Return the dataset that ends in a node."""
    import tensorflow as tf

    part = Rewriting.of_copy(work.graph)
    part.ends_in = node
    types, shapes = part.element(node)
    spec = tuple(
        tf.TensorSpec(tf.TensorShape(shape), tf.as_dtype(kind))
        for kind, shape in zip(types.list.type, shapes.list.shape, strict=True)
    )
    return from_graph(part.graph, spec if len(spec) > 1 else spec[0])


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
    """Return the cost of each read, then of later stages, timed in the same batches; none if processes make them."""
    if any(each.kind is Kind.PROCESSES and each.current and not each.domain for each in pipeline.parameters):
        return ()
    dataset, meters = pipeline.metered()
    iterator, drawn = iter(dataset), 0
    try:
        next(iterator)  # opens files
        for meter in meters:
            meter.reset()
        started, before = time.perf_counter(), _thread_seconds()
        while time.perf_counter() - started < _LIMIT and drawn < _MOST_BATCHES:
            next(iterator)
            drawn += 1
    except StopIteration:
        pass
    finally:
        getattr(iterator, "close", lambda: None)()  # its threads and worker processes
    if not drawn:
        return ()
    worked, queued = (after - earlier for after, earlier in zip(_thread_seconds(), before, strict=True))
    free = worked / (worked + queued) if worked > 0 else 1.0  # of the time in which it could have computed
    costs: dict[str, list[StageCost]] = {}
    for meter in meters:
        (wall, busy), kind = meter.alone, meter.stage.partition(":")[0]
        share = min(busy / wall / free, 1.0) if wall > 0 else 1.0
        cost = StageCost(meter.stage, wall / drawn, share, kind in _STEADY, meter.elements / drawn)
        costs.setdefault(meter.read, []).append(cost)
    after = costs.pop("", [])
    return (*(_sum(read, parts) for read, parts in costs.items()), *after)


def _thread_seconds() -> tuple[float, float]:
    """Return the seconds in which this thread computed, and waited for a core; these are 0 if the system keeps none."""
    try:
        worked, queued, _ = map(int, Path("/proc/thread-self/schedstat").read_text().split())
    except (OSError, ValueError):
        return time.thread_time(), 0.0
    return worked / 1e9, queued / 1e9


def _sum(stage: str, parts: list[StageCost]) -> StageCost:
    seconds = sum(part.seconds for part in parts)
    busy = sum(part.busy * part.seconds for part in parts)
    return StageCost(stage, seconds, busy / seconds if seconds > 0 else 1.0, parts=tuple(parts))


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
