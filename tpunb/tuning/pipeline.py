"""A tf.data pipeline as values that can be changed, read from the program's own dataset."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from typing import Any

from tpunb.errors import TpunbError, whole
from tpunb.tuning.dataset_graph import back, is_dataset, there
from tpunb.tuning.knob import AUTOTUNE, Knob, Value, Verdict, buffers, calls, checked, strictest, threads
from tpunb.tuning.orders import Order, orders
from tpunb.tuning.pasting import as_code
from tpunb.tuning.purity import Purity, purity
from tpunb.tuning.reservations import doubt, immovable, refusal
from tpunb.tuning.rewriting import (
    CYCLE_INPUT,
    PARALLEL_INPUT,
    Rewriting,
    insert_prefetch,
    keep_order_ahead,
    make_parallel,
    resources_of_its_own,
)
from tpunb.tuning.stages import Stage, flag, stages

END_PREFETCH = "end prefetch"
THREADS = "options private threads"

# what changes the output, by the kind of stage: which input, what it is called, and why it stays
_FIXED: dict[str, tuple[int, str, str]] = {
    "shuffle": (1, "buffer", "another buffer gives another order of the elements"),
    "shuffle_and_repeat": (1, "buffer", "another buffer gives another order of the elements"),
    "batch": (1, "size", "another batch size gives other batches, and another training"),
    "padded_batch": (1, "size", "another batch size gives other batches, and another training"),
}
_BATCHES = {"BatchDatasetV2", "ParallelBatchDataset", "PaddedBatchDatasetV2"}
_ASYNCHRONOUS = {"map_and_batch", "interleave", "parallel_interleave", "prefetch"}


class Pipeline:
    """The adjustable parameters of a ``tf.data.Dataset``, and the same dataset with others.

    The dataset is read, never iterated, and the program's code stays as it is. What is built has shuffle seeds and
    caches of its own: to iterate it does not advance the shuffle of the program. It begins where a dataset newly made
    by the same program would. A shuffle without a seed has an order of its own, the same whatever the values are.

    Parameters
    ----------
    dataset
        The program's dataset.
    entropy
        A whole number from which shuffles without a seed get theirs; drawn from the system where it is left out. It is
        kept as `entropy`: the same one gives the same orders in another process.

    Raises
    ------
    TpunbError
        When it holds too large arrays, cannot be serialised, or TensorFlow keeps datasets otherwise than known.

    Examples
    --------
    >>> import tensorflow as tf
    >>> pipeline = Pipeline(tf.data.Dataset.range(4).map(lambda x: 2 * x).batch(2))
    >>> [knob.name for knob in pipeline.knobs if knob.verdict == "proved"][:2]
    ['map:1 parallel calls', 'batch:2 parallel copy']
    >>> [batch.tolist() for batch in pipeline.build({"map:1 parallel calls": 2}).as_numpy_iterator()]
    [[0, 2], [4, 6]]
    """

    def __init__(self, dataset: Any, *, entropy: int | None = None) -> None:
        self.entropy = secrets.randbits(62) if entropy is None else whole("Pipeline", "entropy", entropy, 0)
        self.dataset = is_dataset(dataset)  # kept: its Python functions live as long as it does
        self._graph = there(dataset)
        self.stages: tuple[Stage, ...] = stages(self._graph)
        library = {function.signature.name: function for function in self._graph.library.function}
        self._purity: dict[str, Purity] = {stage.node: purity(library, *stage.functions) for stage in self.stages}
        self._options = dataset.options()
        self.refusal: str | None = refusal(self._graph, self.stages, self._purity)
        self.immovable: str | None = immovable(self._graph, self.stages, self._purity)
        self._doubt = doubt(self._graph, self.stages, self._purity, self._options)

    def __repr__(self) -> str:
        free = sum(knob.verdict != "refused" for knob in self.knobs)
        return f"Pipeline({len(self.stages)} stages, {free} of {len(self.knobs)} knobs free)"

    @cached_property
    def knobs(self) -> tuple[Knob, ...]:
        """Every adjustable parameter, in the order of the stages, what changes the output too: as refused."""
        found = [knob for knob, _ in self._parameters]
        return tuple(self._reserved(knob) for knob in (*found, *(order.knob for order in self._orders)))

    @property
    def canonical(self) -> Any:
        """The dataset with its present values, in the one graph shape of every `build`.

        An iterator checkpoint of it restores into what any values build, except other orders of stages.
        """
        return self.build({})

    def in_place(self, values: Mapping[str, Value]) -> Any:
        """Return what `build` does, on the program's own shuffle seeds and caches: to iterate it goes on with them."""
        return self._built(self._rewriting(), checked(self.knobs, values))

    def build(self, values: Mapping[str, Value]) -> Any:
        """Return a ``tf.data.Dataset`` that gives the same elements, with other parameters.

        Parameters
        ----------
        values
            Names of knobs and their values; those left out stay as they are.

        Raises
        ------
        ValueError
            When there is no such knob, or the value is none that it takes.
        TpunbError
            When a refused knob would change, or the pipeline may not be rebuilt.
        """
        work = self._rewriting()
        changed = checked(self.knobs, values)
        resources_of_its_own(work, self.entropy)
        return self._built(work, changed)

    def as_code(self, values: Mapping[str, Value]) -> str:
        """Return the lines that give a program these values, to be pasted; comments where no method has a parameter.

        Raises
        ------
        ValueError, TpunbError
            As `build` does.
        """
        changed = checked(self.knobs, values)
        return as_code(self.stages, changed, unfused=self._unfused(changed))

    def _rewriting(self) -> Rewriting:
        if self.refusal is not None:
            raise TpunbError(
                f"this pipeline is not rebuilt: {self.refusal}", hint="set its parameters by hand, in its code"
            )
        return Rewriting.of_copy(self._graph)

    def _built(self, work: Rewriting, changed: Mapping[str, Value]) -> Any:
        """Return the dataset of a graph, its parameters set."""
        for knob, change in self._parameters:
            if change is not None:
                change(work, changed.get(knob.name, knob.present))
        for order in self._orders:
            if order.knob.name in changed:
                order.changes[changed[order.knob.name]](work)
        keep_order_ahead(work)
        built = back(work.graph, self.dataset.element_spec).with_options(self._options_with(changed))
        built._tpunb_kept = (self.dataset, work.kept)
        return built

    def _options_with(self, changed: Mapping[str, Value]) -> Any:
        """Return the dataset's options with what the values ask of them."""
        further = type(self._options)()
        if THREADS in changed:
            further.threading.private_threadpool_size = changed[THREADS]
        if self._unfused(changed):
            further.experimental_optimization.shuffle_and_repeat_fusion = False
        return self._options.merge(further)

    def _unfused(self, changed: Mapping[str, Value]) -> bool:
        return any(changed.get(order.knob.name) in order.unfused for order in self._orders)

    def _reserved(self, knob: Knob) -> Knob:
        """Return a knob as the pipeline as a whole allows it."""
        verdict, why = knob.verdict, knob.why
        if self.refusal is not None:
            verdict, why = "refused", self.refusal
        elif verdict == "proved" and self._doubt is not None:
            verdict, why = strictest(verdict, "to be verified"), f"{why}; but {self._doubt}"
        domain = knob.domain if verdict != "refused" else ()
        return Knob(knob.name, knob.stage, knob.present, domain, verdict, why)

    @cached_property
    def _orders(self) -> list[Order]:
        return orders(self._graph, self.stages, self._purity) if self.refusal is None else []

    @cached_property
    def _parameters(self) -> list[tuple[Knob, Any]]:
        """Each knob of a parameter, with what sets it in a graph (from its present value too); None for none."""
        work = Rewriting(self._graph)
        found = [pair for stage in self.stages if not stage.helper for pair in self._of_stage(work, stage)]
        if self._last.kind != "prefetch":
            present = AUTOTUNE if self._prefetched() else 0
            why = "a buffer at the end keeps what is ready, in order"
            knob = Knob(END_PREFETCH, "end", present, buffers(present), "proved", why)
            found.append((knob, insert_prefetch))
        pool = self._options.threading.private_threadpool_size or 0
        why = "which threads work does not change what they give"
        found.append((Knob(THREADS, "options", pool, threads(pool), "proved", why), None))
        return found

    @property
    def _last(self) -> Stage:
        return next(stage for stage in reversed(self.stages) if not stage.helper)

    def _of_stage(self, work: Rewriting, stage: Stage) -> Iterator[tuple[Knob, Any]]:
        if stage.kind in ("map", "interleave", "parallel_interleave", "map_and_batch") or stage.op in PARALLEL_INPUT:
            yield self._calls(work, stage)
        if stage.op in _BATCHES:
            present = flag(work.nodes[stage.node], "parallel_copy")
            why = "how a batch is copied together does not change it"
            knob = Knob(f"{stage.name} parallel copy", stage.name, present, (False, True), "proved", why)
            yield knob, partial(_set_flag, node=stage.node)
        if stage.kind == "prefetch" and isinstance(size := work.number(stage.node, 1), int):
            knob = Knob(f"{stage.name} buffer", stage.name, size, buffers(size), "proved", "a buffer keeps the order")
            yield knob, partial(_set_number, node=stage.node, at=1)
        if stage.kind in _FIXED:
            at, what, why = _FIXED[stage.kind]
            yield _fixed(f"{stage.name} {what}", stage, work.number(stage.node, at), why)
        if stage.op in CYCLE_INPUT:
            at = CYCLE_INPUT[stage.op]
            why = "which files are read in turn is the order of the elements"
            yield _fixed(f"{stage.name} cycle length", stage, work.number(stage.node, at), why)
            yield _fixed(f"{stage.name} block length", stage, work.number(stage.node, at + 1), why)
        if not stage.known:
            yield _fixed(stage.name, stage, None, "tpunb does not know this stage")

    def _calls(self, work: Rewriting, stage: Stage) -> tuple[Knob, Any]:
        """Return the knob of how many calls of a stage run in parallel, and what sets it."""
        verdict, why = self._purity[stage.node].verdict, self._purity[stage.node].why
        at = PARALLEL_INPUT.get(stage.op)
        present = self._unwritten(stage, work.nodes[stage.node]) if at is None else work.number(stage.node, at)
        most = None
        if stage.op in CYCLE_INPUT:
            most = work.number(stage.node, CYCLE_INPUT[stage.op])
            verdict, why = (verdict, f"{why}, and files stay in their turn") if verdict == "proved" else (verdict, why)
        if not stage.functions:
            why = "batches are made in order, however many at once"
        if not isinstance(present, int) or (stage.op in CYCLE_INPUT and not (isinstance(most, int) and most > 0)):
            verdict, why, present = "refused", "how many calls there are is computed, not written", 1
        if not self._convertible(work, stage):
            verdict, why = "refused", "its old form is not known in parallel"
        domain = calls(present, most) if verdict != "refused" else ()
        knob = Knob(f"{stage.name} parallel calls", stage.name, present, domain, verdict, why)
        return knob, partial(_set_calls, node=stage.node) if verdict != "refused" else None

    def _convertible(self, work: Rewriting, stage: Stage) -> bool:
        return stage.op in PARALLEL_INPUT or stage.op in ("MapDataset", "InterleaveDataset")

    def _unwritten(self, stage: Stage, node: Any) -> int:
        """Return how many calls run in parallel where the program says nothing: of pure maps, tf.data decides."""
        pure = self._purity[stage.node].is_made_parallel and not flag(node, "force_synchronous")
        return AUTOTUNE if stage.kind == "map" and pure and self._tuned("map_parallelization") else 1

    def _tuned(self, optimization: str) -> bool:
        """Say whether one of tf.data's own optimizations, on by default, is on."""
        wanted = getattr(self._options.experimental_optimization, optimization) is not False
        return wanted and self._options.autotune.enabled is not False

    def _prefetched(self) -> bool:
        """Say whether tf.data itself puts a prefetch at the end: not above what works ahead already."""
        last = self._last
        if last.kind == "batch":  # it is fused with a map below it
            last = next(stage for stage in self.stages if stage.node == last.inputs[0])
        ahead = last.kind in _ASYNCHRONOUS or (last.kind == "map" and self._purity[last.node].is_made_parallel)
        return self._tuned("inject_prefetch") and not ahead


def _fixed(name: str, stage: Stage, present: Any, why: str) -> tuple[Knob, None]:
    verdict: Verdict = "refused"
    return Knob(name, stage.name, present if isinstance(present, int) else "", (), verdict, why), None


def _set_calls(work: Rewriting, value: int, *, node: str) -> None:
    make_parallel(work, node, value)


def _set_number(work: Rewriting, value: int, *, node: str, at: int) -> None:
    work.set_number(node, at, value)


def _set_flag(work: Rewriting, value: bool, *, node: str) -> None:
    work.nodes[node].attr["parallel_copy"].b = value
