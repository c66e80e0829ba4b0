"""Orders of stages that may be exchanged: shuffle and map, a cache put between them, map and batch.

A shuffle chooses by place, never by content: of n elements it gives the same permutation whatever they hold. So a map
that gives one element for each, and always the same, may stand before it or after it. Before it the results may be kept
in a cache too, if they are the same in every epoch and there is room for them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tpunb.errors import TpunbError
from tpunb.frames.words import plural
from tpunb.tuning.dataset_graph import back
from tpunb.tuning.elementwise import elementwise
from tpunb.tuning.knob import Knob, Value, Verdict
from tpunb.tuning.purity import Purity
from tpunb.tuning.rewriting import Rewriting, exchange_with_batch, insert_cache, move_above, move_below
from tpunb.tuning.stages import Stage, below, flag, in_order

AS_WRITTEN = "as written"
REFUSED: Verdict = "refused"
_ROOM = 0.5  # of the memory that is free, for one cache
_IN_MEMORY = {"range", "from_tensor_slices", "from_tensors", "from_sparse_tensor_slices"}
_VARYING = {"random", "choose_from_datasets", "load", "from_generator"}

Change = Callable[[Rewriting], None]


@dataclass(frozen=True)
class Order:
    """A knob whose values are orders of stages, and what each but the present one changes.

    `unfused` are the values with which tf.data must be kept from fusing a shuffle and the repeat above it: the two in
    one draw another order.
    """

    knob: Knob
    changes: dict[Value, Change]
    unfused: frozenset[Value] = frozenset()


def orders(graph: Any, of: tuple[Stage, ...], purity: dict[str, Purity]) -> list[Order]:
    """Return the orders that a pipeline's stages may take, in the order in which they are to be changed.

    No two of them exclude each other: a map that one shuffle may pass has its place by that order alone, and a cache
    above a map that takes batches keeps batches.

    Parameters
    ----------
    graph
        The pipeline's GraphDef.
    of
        Its stages, as `tpunb.tuning.stages.stages` gives them.
    purity
        What the functions of each stage do, by node.
    """
    reading = _Reading(Rewriting(graph), of, purity)
    found = [order for stage in of if stage.op == "ShuffleDatasetV3" for order in _around_shuffle(reading, stage)]
    found += [order for stage in of if stage.op == "BatchDatasetV2" for order in _before_batch(reading, stage)]
    return found + list(_caches(reading))


class _Reading:
    """A pipeline as the orders look at it; `taken` are the maps whose place the order of a shuffle decides."""

    def __init__(self, work: Rewriting, of: tuple[Stage, ...], purity: dict[str, Purity]) -> None:
        self.work, self.of, self.purity = work, of, purity
        self.by_node = {stage.node: stage for stage in of}
        self.readers: dict[str, list[Stage]] = {}
        for stage in of:
            for name in stage.inputs:
                self.readers.setdefault(name, []).append(stage)
        self.taken: set[str] = set()

    def movable(self, stage: Stage) -> bool:
        """Say whether a stage gives one element for each, always the same, and its place is still open."""
        node = self.work.nodes[stage.node]
        return (
            stage.kind == "map"
            and not stage.helper
            and self.purity[stage.node].verdict == "proved"
            and flag(node, "preserve_cardinality")
            and in_order(node)
            and stage.node not in self.taken
        )

    def reader(self, stage: Stage) -> Stage | None:
        """Return the stage that reads this one, where it is one alone."""
        readers = self.readers.get(stage.node, [])
        return readers[0] if len(readers) == 1 else None

    def repeated(self, stage: Stage) -> bool:
        """Say whether a repeat reads a stage, options aside."""
        reader = self.reader(stage)
        while reader is not None and reader.kind == "options":
            reader = self.reader(reader)
        return reader is not None and reader.kind == "repeat"

    def maps_above(self, stage: Stage) -> list[Stage]:
        found, current = [], self.reader(stage)
        while current is not None and self.movable(current):
            found.append(current)
            current = self.reader(current)
        return found

    def maps_below(self, stage: Stage) -> list[Stage]:
        found, current = [], self.by_node[stage.inputs[0]]
        while self.movable(current) and self.reader(current) is not None:
            found.append(current)
            current = self.by_node[current.inputs[0]]
        return found

    def varies(self, stage: Stage) -> str | None:
        """Return why a stage may not give the same elements in the same order in every epoch; None where it does."""
        for other in below(stage, self.of):
            node = self.work.nodes[other.node]
            if not other.known or other.kind in _VARYING:
                return f"{other.name} may give others in every epoch"
            if other.kind.startswith("shuffle") and flag(node, "reshuffle_each_iteration"):
                return f"{other.name} gives another order in every epoch"
            if other.functions and self.purity[other.node].verdict != "proved":
                return f"{other.name} may give others in every epoch: {self.purity[other.node].why}"
            if not in_order(node):
                return f"{other.name} is free in its order"
        return None

    def unkept(self, stage: Stage, *, under: Stage | None = None) -> str | None:
        """Return why what a stage gives cannot be kept in memory; None where it can.

        Under a shuffle it is asked of the elements before they are shuffled: `under` is the stage below that shuffle.
        """
        return self.varies(under or stage) or _no_room(self.work, stage.node)


def _around_shuffle(reading: _Reading, shuffle: Stage) -> Iterator[Order]:
    """Yield the order of a shuffle and the maps around it, where there is a choice."""
    source = reading.by_node[shuffle.inputs[0]]
    above, under = reading.maps_above(shuffle), reading.maps_below(shuffle)
    changes: dict[Value, Change] = {}
    unfused: set[Value] = set()
    notes: list[str] = []
    if (above or under) and reading.repeated(shuffle):
        notes.append("it stays right below its repeat, with which tf.data fuses it")
        above, under = [], []
    elif above and reading.repeated(above[-1]):
        if any(other.kind == "shuffle" and reading.repeated(other) for other in reading.of):
            above = above[:-1]  # to keep this one from being fused would change the other
        else:
            unfused = {f"after {above[-1].name}", f"after {above[-1].name}, cached"}

    def cached(value: str, held: Stage, steps: list[Change], why: str | None) -> None:
        if why is None:
            changes[value] = partial(_all, [*steps, partial(insert_cache, below=held.node)])
        else:
            notes.append(f"no cache {value.split(',')[0]}, since {why}")

    if source.kind != "cache" and source.kind not in _IN_MEMORY:
        cached("cached before it", source, [], reading.unkept(source))
    for mapped in above:
        move: Change = partial(move_above, moved=shuffle.node, target=mapped.node)
        changes[f"after {mapped.name}"] = move
        cached(f"after {mapped.name}, cached", mapped, [move], reading.unkept(mapped, under=source))
    for mapped in under:
        changes[f"before {mapped.name}"] = partial(move_below, moved=shuffle.node, target=mapped.node)
    if not changes and not notes:
        return
    reading.taken.update(stage.node for stage in (*above, *under))
    why = "a shuffle chooses by place, so that a pure map gives the same before and after it"
    knob = _knob(f"{shuffle.name} order", shuffle, AS_WRITTEN, changes, "; ".join([why, *notes]))
    yield Order(knob, changes, frozenset(unfused))


def _caches(reading: _Reading) -> Iterator[Order]:
    """Yield a cache above each run of maps that no other order places."""
    for stage in reading.of:
        reader = reading.reader(stage)
        if not reading.movable(stage) or (reader is not None and (reading.movable(reader) or reader.kind == "cache")):
            continue
        name, why = f"{stage.name} cached", reading.unkept(stage)
        if why is not None:
            yield Order(Knob(name, stage.name, False, (), "refused", f"a cache here is no help: {why}"), {})
            continue
        changes: dict[Value, Change] = {True: partial(insert_cache, below=stage.node)}
        why = "what is cached is the same in every epoch, and there is room for it"
        yield Order(_knob(name, stage, False, changes, why), changes)


def _before_batch(reading: _Reading, batch: Stage) -> Iterator[Order]:
    """Yield the exchange of a batch and the map right below it."""
    mapped = reading.by_node[batch.inputs[0]]
    if mapped.kind != "map" or mapped.helper:
        return
    name = f"{batch.name} before {mapped.name}"
    why = _not_exchanged(reading, mapped)
    verdict, reason = _elementwise(reading, mapped) if why is None else (REFUSED, why)
    if verdict == "refused":
        yield Order(Knob(name, batch.name, False, (), verdict, f"not for a whole batch at once: {reason}"), {})
        return
    changes: dict[Value, Change] = {True: partial(exchange_with_batch, mapped=mapped.node, batch=batch.node)}
    yield Order(Knob(name, batch.name, False, (False, True), verdict, reason), changes)


def _not_exchanged(reading: _Reading, mapped: Stage) -> str | None:
    if mapped.node in reading.taken:
        return "where the map stands, the order of its shuffle decides"
    purity = reading.purity[mapped.node]
    if purity.verdict != "proved":
        return purity.why
    return (
        None if reading.movable(mapped) and reading.reader(mapped) is not None else "more than one stage reads the map"
    )


def _elementwise(reading: _Reading, mapped: Stage) -> tuple[Verdict, str]:
    work = reading.work
    try:
        _, shapes = work.element(work.below(mapped.node))
    except TpunbError as error:
        return "refused", str(error)
    if any(shape.unknown_rank or any(dim.size < 0 for dim in shape.dim) for shape in shapes.list.shape):
        return "refused", "elements may be of different shapes"
    function = next(one for one in work.graph.library.function if one.signature.name == mapped.functions[0])
    return elementwise(function, [len(shape.dim) for shape in shapes.list.shape])


def _knob(name: str, stage: Stage, present: Value, changes: dict[Value, Change], why: str) -> Knob:
    domain = (present, *changes) if changes else ()
    return Knob(name, stage.name, present, domain, "proved" if changes else "refused", why)


def _all(changes: list[Change], work: Rewriting) -> None:
    for change in changes:
        change(work)


def _no_room(work: Rewriting, node: str) -> str | None:
    """Return why a stage's elements cannot be kept in memory; None where they can."""
    try:
        each, count = _bytes_each(work, node), _count(work, node)
    except TpunbError as error:
        return str(error)
    if count < 0:
        return "the number of its elements is " + ("infinite" if count == -1 else "unknown")
    if each is None:
        return "the size of its elements is unknown"
    free = _free_bytes()
    if count * each > _ROOM * free:
        return f"{plural(count, 'element')} of {each / 1e6:.3g} MB do not fit beside what else is in memory"
    return None


def _count(work: Rewriting, node: str) -> int:
    """Return how many elements a stage gives; -1 for no end, -2 where nobody knows."""
    import tensorflow as tf

    part = Rewriting.of_copy(work.graph)
    part.ends_in = node
    types, shapes = part.element(node)
    spec = tuple(
        tf.TensorSpec(shape, tf.as_dtype(dtype))
        for shape, dtype in zip(shapes.list.shape, types.list.type, strict=True)
    )
    return int(tf.data.experimental.cardinality(back(part.graph, spec)))


def _bytes_each(work: Rewriting, node: str) -> int | None:
    """Return how many bytes an element of a stage takes; None where its shape or its texts leave that open."""
    import tensorflow as tf

    types, shapes = work.element(node)
    total = 0
    for shape, dtype in zip(shapes.list.shape, types.list.type, strict=True):
        count = tf.TensorShape(shape).num_elements()
        if count is None or not tf.as_dtype(dtype).size:
            return None
        total += count * tf.as_dtype(dtype).size
    return total


def _free_bytes() -> int:
    """Return how much memory is free; of Linux also what it would give back."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 0  # nobody tells: no cache
