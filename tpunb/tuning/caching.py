"""Where a cache in memory may follow the maps of a pipeline: the same elements every epoch, and memory to hold them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psutil

from tpunb.errors import TpunbError
from tpunb.text import plural
from tpunb.tfdata.effects import Effects
from tpunb.tfdata.graph import from_graph
from tpunb.tfdata.rewrite import Rewriting
from tpunb.tfdata.stages import Stage, flag, is_deterministic, upstream

_MEMORY_SHARE = 0.5  # of the free memory, for one cache
_VARYING = {"random", "choose_from_datasets", "load", "from_generator"}


def cache_places(graph: Any, stages: tuple[Stage, ...], purity: dict[str, Effects]) -> Iterator[tuple[Stage, str]]:
    """Yield the last map of each chain of safe maps, and why no cache may follow it; "" if one may."""
    work = Rewriting(graph)

    def is_safe_map(stage: Stage) -> bool:
        safe = purity[stage.node].verdict == "safe"
        return stage.kind == "map" and not stage.helper and safe and is_deterministic(work.nodes[stage.node])

    for stage in filter(is_safe_map, stages):
        readers = [other for other in stages if stage.node in other.inputs]
        if not (len(readers) == 1 and (is_safe_map(readers[0]) or readers[0].kind == "cache")):
            yield stage, _varies(work, stage, stages, purity) or _no_room(work, stage.node)


def _varies(work: Rewriting, stage: Stage, stages: tuple[Stage, ...], purity: dict[str, Effects]) -> str:
    """Return why epochs may differ in a stage's elements or their order; "" if they do not."""
    for other in upstream(stage, stages):
        node = work.nodes[other.node]
        if not other.supported or other.kind in _VARYING:
            return f"{other.name} may give different elements in every epoch"
        if other.kind.startswith("shuffle") and flag(node, "reshuffle_each_iteration"):
            return f"{other.name} reshuffles in every epoch"
        if other.functions and purity[other.node].verdict != "safe":
            return f"{other.name} may give different elements in every epoch: {purity[other.node].reason}"
        if not is_deterministic(node):
            return f"{other.name} is not deterministic"
    return ""


def _no_room(work: Rewriting, node: str) -> str:
    """Return why a stage's elements do not fit in memory; "" if they do."""
    import tensorflow as tf

    try:
        dataset = dataset_up_to(work, node)
    except TpunbError as error:
        return str(error)
    specs, count = tf.nest.flatten(dataset.element_spec), int(dataset.cardinality())
    if count < 0:
        return f"the number of its elements is {'infinite' if count == -1 else 'unknown'}"
    if not all(spec.shape.num_elements() is not None and spec.dtype.size for spec in specs):  # strings have no size
        return "the size of its elements is unknown"
    size = sum(spec.shape.num_elements() * spec.dtype.size for spec in specs)
    if count * size > _MEMORY_SHARE * _free_bytes():
        return f"{plural(count, 'element')} of {size / 1e6:.3g} MB do not fit in half of the free memory"
    return ""


def dataset_up_to(work: Rewriting, node: str) -> Any:
    """Return the dataset that ends in a node; raise a TpunbError if its elements are unknown."""
    import tensorflow as tf

    part = Rewriting.of_copy(work.graph)
    part.ends_in = node
    types, shapes = part.element(node)
    spec = tuple(
        tf.TensorSpec(tf.TensorShape(shape), tf.as_dtype(kind))
        for kind, shape in zip(types.list.type, shapes.list.shape, strict=True)
    )
    return from_graph(part.graph, spec if len(spec) > 1 else spec[0])


def _free_bytes() -> int:
    """Return the free memory, including what the system would reclaim."""
    return int(psutil.virtual_memory().available)
