"""A tf.data pipeline as adjustable parameters, read from the program's dataset."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import chain
from typing import Any

from tpunb.errors import TpunbError
from tpunb.text import plain, plural
from tpunb.tfdata.effects import Effects, Verdict, effects_of, scope_of
from tpunb.tfdata.graph import AUTOTUNE, check_dataset, from_graph, to_graph
from tpunb.tfdata.python_functions import functions_with_state
from tpunb.tfdata.restored import explain_op, other_passes, turns, unpositioned, unrestored_stages
from tpunb.tfdata.rewrite import (
    CYCLE_INPUT,
    PARALLEL_INPUT,
    Rewriting,
    insert_prefetch,
    keep_prefetch_order,
    make_parallel,
    shared_resources,
    use_new_resources,
)
from tpunb.tfdata.stages import Stage, flag, is_deterministic, stages, upstream
from tpunb.tuning.parameters import Kind, Parameter, Value, buffer_sizes, call_counts, changes, pool_sizes

Setter = Callable[[Rewriting, Any], None]

# parameters that change the output, by the kind of stage: its input, its kind and the reason
_LOCKED = {
    "shuffle": (1, Kind.ELEMENTS, "the buffer size decides the order of the elements"),
    "shuffle_and_repeat": (1, Kind.ELEMENTS, "the buffer size decides the order of the elements"),
    "batch": (1, Kind.BATCH_SIZE, "the batch size changes the training"),
    "padded_batch": (1, Kind.BATCH_SIZE, "the batch size changes the training"),
}
_CALLING = {"map", "interleave", "parallel_interleave", "map_and_batch"}
_BATCHES = {"BatchDatasetV2", "ParallelBatchDataset", "PaddedBatchDatasetV2"}
_ASYNCHRONOUS = {"map_and_batch", "interleave", "parallel_interleave", "prefetch"}


class Pipeline:
    """The adjustable parameters of a ``tf.data.Dataset``, and the same dataset with other values.

    The dataset is read, never iterated, and the program's code stays as it is. A built dataset has shuffle seeds and
    caches of its own, so iterating it does not advance the program's shuffles. It starts where a new dataset of the
    same program would. A shuffle without a seed gets a fixed order, the same for all values.

    Parameters
    ----------
    dataset
        Dataset of the program.

    Raises
    ------
    TpunbError
        If it embeds too large arrays, cannot be serialised, or this version of TensorFlow is not supported.

    Examples
    --------
    >>> import tensorflow as tf
    >>> pipeline = Pipeline(tf.data.Dataset.range(4).map(lambda x: 2 * x).batch(2))
    >>> [parameter.name for parameter in pipeline.parameters if parameter.verdict == "safe"][:2]
    ['map:1 parallel calls', 'batch:2 parallel copy']
    >>> [batch.tolist() for batch in pipeline.build({"map:1 parallel calls": 2}).as_numpy_iterator()]
    [[0, 2], [4, 6]]
    """

    def __init__(self, dataset: Any) -> None:
        self.entropy = secrets.randbits(62)  # seeds shuffles without a seed; the same number gives the same orders
        self.dataset = check_dataset(dataset)  # kept: its Python functions live as long as it does
        self._graph = to_graph(dataset)
        self.stages: tuple[Stage, ...] = stages(self._graph)
        library = {function.signature.name: function for function in self._graph.library.function}
        self._purity: dict[str, Effects] = {stage.node: effects_of(library, *stage.functions) for stage in self.stages}
        self._options = dataset.options()
        self.refusal: str | None = next(rebuild_obstacles(self._graph, self.stages, self._purity), None)
        self.immovable: str | None = next(move_obstacles(self._graph, self.stages, self._purity, self._options), None)
        self._doubt = next(doubts(self._graph, self.stages, self._purity, self._options), None)

    def __repr__(self) -> str:
        adjustable = sum(parameter.verdict != "locked" for parameter in self.parameters)
        parameters = f"{adjustable} of {plural(len(self.parameters), 'parameter')} adjustable"
        return f"Pipeline({plural(len(self.stages), 'stage')}, {parameters})"

    @cached_property
    def unsafe(self) -> tuple[str, ...]:
        """Sentences that name Python functions in the data that keep state, and are not safe to call in parallel."""
        return tuple(functions_with_state(self._graph, self.stages))

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """All parameters in the order of the stages; those that would change the output are locked."""
        return tuple(self._setters)

    def in_place(self, values: Mapping[str, Value]) -> Any:
        """Return what `build` does, but with the program's shuffle seeds and caches: iterating it advances them."""
        return self._built(self._rewriting(), changes(self.parameters, values))

    def build(self, values: Mapping[str, Value]) -> Any:
        """Return a ``tf.data.Dataset`` with the same elements and other parameter values.

        Parameters
        ----------
        values
            Values by parameter name; others stay as they are. A checkpoint of an iterator restores into a build of any
            values.

        Raises
        ------
        ValueError
            If a name or a value is invalid.
        TpunbError
            If a locked parameter would change, or the pipeline cannot be rebuilt.
        """
        work = self._rewriting()
        changed = changes(self.parameters, values)
        use_new_resources(work, self.entropy)
        return self._built(work, changed)

    def in_flight(self, values: Mapping[str, Value]) -> int:
        """Return how many batches are made at once: about one, whose elements are made in parallel."""
        return 1

    def as_code(self, values: Mapping[str, Value]) -> str:
        """Return the lines that set values: those of stages in the chain, then the options and the end of the pipeline.

        Raises
        ------
        ValueError, TpunbError
            As `build` does.
        """
        by_name = {stage.name: stage for stage in self.stages if not stage.helper}
        chain: list[str] = []
        options: dict[Kind, Value] = {}  # one line for all stages
        end: list[str] = []
        for parameter, value in changes(self.parameters, values).items():
            kind, stage = parameter.kind, by_name.get(parameter.stage)
            if kind.code.startswith("options"):
                options[kind] = max(value, options.get(kind, value))
            elif stage is None:
                end.append(_line(kind, value))
            else:
                branch = f", of input {stage.branch}" if stage.branch else ""
                code = _line(kind, value, method=stage.kind, function=_function(stage))
                chain.append(f"{code}  # stage {stage.number} from the source{branch}")
        lines = [_line(kind, value) for kind, value in options.items()]
        if lines:
            lines = ["options = tf.data.Options()", *lines, "ds = ds.with_options(options)"]
        return "\n".join([*chain, *lines, *end])

    def _rewriting(self) -> Rewriting:
        if self.refusal is not None:
            raise TpunbError(f"this pipeline cannot be rebuilt: {self.refusal}", hint="set its parameters in its code")
        return Rewriting.of_copy(self._graph)

    def _built(self, work: Rewriting, changed: Mapping[Parameter, Value]) -> Any:
        """Return the dataset of a graph after setting its parameters."""
        options = type(self._options)()
        for parameter, setter in self._setters.items():
            if parameter.kind is Kind.POOL and parameter in changed:
                options.threading.private_threadpool_size = changed[parameter]
            if setter is not None:
                setter(work, changed.get(parameter, parameter.current))
        keep_prefetch_order(work)
        built = from_graph(work.graph, self.dataset.element_spec).with_options(self._options.merge(options))
        built._tpunb_kept = self.dataset
        return built

    @cached_property
    def _setters(self) -> dict[Parameter, Setter | None]:
        """Each parameter with the function that sets it in a graph, current values included; None for locked ones."""
        return dict(self._read())

    def _read(self) -> Iterator[tuple[Parameter, Setter | None]]:
        work = Rewriting(self._graph)
        for stage in self.stages:
            if not stage.helper:
                yield from self._of_stage(work, stage)
        if self._last.kind != "prefetch":
            size, reason = AUTOTUNE if self._prefetched() else 0, "a buffer at the end keeps the order"
            yield self._parameter(Kind.PREFETCH, "end", size, buffer_sizes(size), reason), insert_prefetch
        pool, reason = self._options.threading.private_threadpool_size or 0, "threads do not decide the elements"
        yield self._parameter(Kind.POOL, "options", pool, pool_sizes(pool), reason), None

    def _parameter(
        self, kind: Kind, stage: str, current: Value, domain: tuple[Value, ...], reason: str, verdict: Verdict = "safe"
    ) -> Parameter:
        """Return a parameter, its verdict limited by what holds for the whole pipeline."""
        if self.refusal is not None:
            verdict, reason = "locked", self.refusal
        elif verdict == "safe" and self._doubt is not None:
            verdict, reason = "verify", f"{reason}; but {self._doubt}"
        return Parameter(kind, stage, current, domain if verdict != "locked" else (), verdict, reason)

    def _locked(self, kind: Kind, stage: Stage, current: Any, reason: str) -> tuple[Parameter, None]:
        current = current if isinstance(current, int) else ""
        return self._parameter(kind, stage.name, current, (), reason, "locked"), None

    @property
    def _last(self) -> Stage:
        return next(stage for stage in reversed(self.stages) if not stage.helper)

    def _of_stage(self, work: Rewriting, stage: Stage) -> Iterator[tuple[Parameter, Setter | None]]:
        node = stage.node
        if stage.kind in _CALLING or stage.op in PARALLEL_INPUT:
            yield self._calls(work, stage)
        if stage.op in _BATCHES:
            current, reason = flag(work.nodes[node], "parallel_copy"), "how a batch is copied does not change it"
            copy = self._parameter(Kind.COPY, stage.name, current, (False, True), reason)
            yield copy, lambda work, value: setattr(work.nodes[node].attr["parallel_copy"], "b", value)
        if stage.kind == "prefetch" and isinstance(size := work.number(node, 1), int):
            domain, reason = buffer_sizes(size), "a buffer keeps the order"
            buffer = self._parameter(Kind.BUFFER, stage.name, size, domain, reason)
            yield buffer, lambda work, value: work.set_number(node, 1, value)
        if stage.kind in _LOCKED:
            at, kind, reason = _LOCKED[stage.kind]
            yield self._locked(kind, stage, work.number(node, at), reason)
        if stage.op in CYCLE_INPUT:
            at, reason = CYCLE_INPUT[stage.op], "the order of the files decides the order of the elements"
            yield self._locked(Kind.CYCLE, stage, work.number(node, at), reason)
            yield self._locked(Kind.BLOCK, stage, work.number(node, at + 1), reason)
        if not stage.supported:
            yield self._locked(Kind.STAGE, stage, None, "tpunb does not support this stage")

    def _calls(self, work: Rewriting, stage: Stage) -> tuple[Parameter, Setter | None]:
        """Return the parameter for the parallel calls of a stage, and its setter."""
        effects = self._purity[stage.node]
        verdict, reason = effects.verdict, effects.reason
        at = PARALLEL_INPUT.get(stage.op)
        current = self._default_calls(stage, work.nodes[stage.node]) if at is None else work.number(stage.node, at)
        interleaves = stage.op in CYCLE_INPUT
        limit = work.number(stage.node, CYCLE_INPUT[stage.op]) if interleaves else None
        if interleaves and verdict == "safe":
            reason = f"{reason}, and the order of the files is kept"
        if not stage.functions:
            reason = "batches are made in order, however many at once"
        if not isinstance(current, int) or (interleaves and not (isinstance(limit, int) and limit > 0)):
            return self._locked(Kind.CALLS, stage, 1, "the number of calls is computed in the pipeline, not constant")
        if at is None and stage.op not in ("MapDataset", "InterleaveDataset"):
            return self._locked(Kind.CALLS, stage, current, "this deprecated operation has no parallel form")
        parameter = self._parameter(Kind.CALLS, stage.name, current, call_counts(current, limit), reason, verdict)
        if parameter.verdict == "locked":
            return parameter, None
        return parameter, lambda work, calls: make_parallel(work, stage.node, calls)

    def _default_calls(self, stage: Stage, node: Any) -> int:
        """Return the parallel calls of a stage whose program sets none: tf.data decides for pure maps."""
        pure = self._purity[stage.node].is_auto_parallel and not flag(node, "force_synchronous")
        return AUTOTUNE if stage.kind == "map" and pure and self._optimizes("map_parallelization") else 1

    def _optimizes(self, optimization: str) -> bool:
        """Return whether one of tf.data's default optimizations is on."""
        enabled = getattr(self._options.experimental_optimization, optimization) is not False
        return enabled and self._options.autotune.enabled is not False

    def _prefetched(self) -> bool:
        """Return whether tf.data itself adds a prefetch at the end: not after an asynchronous stage."""
        last = self._last
        if last.kind == "batch":  # it is fused with a map below it
            last = next(stage for stage in self.stages if stage.node == last.inputs[0])
        ahead = last.kind in _ASYNCHRONOUS or (last.kind == "map" and self._purity[last.node].is_auto_parallel)
        return self._optimizes("inject_prefetch") and not ahead


def _line(kind: Kind, value: Value, **words: str) -> str:
    return kind.code.format(value="tf.data.AUTOTUNE" if value == AUTOTUNE else value, **words)


def _function(stage: Stage) -> str:
    """Return the first arguments of a stage's call."""
    named = stage.label.isidentifier() and not stage.label[0].isupper()  # a class would need its instance
    if not named or stage.kind not in ("map", "interleave"):
        return "..."
    return f"{stage.label}, ..." if stage.kind == "interleave" else stage.label


_WRITES = {"SnapshotDataset", "SnapshotDatasetV2", "SaveDataset", "SaveDatasetV2"}
_REMOTE = ("DataServiceDataset", "DistributedSave")
_ENDS_EARLY = {"take", "take_while"}
_RESTARTS_INPUT = {"cache", "concatenate", "repeat", "shuffle_and_repeat"}


def rebuild_obstacles(graph: Any, stages: tuple[Stage, ...], effects: Mapping[str, Effects]) -> Iterator[str]:
    """Yield why a rebuilt copy of a pipeline would disturb the program's own."""
    work, functions = Rewriting(graph), {function.signature.name: function for function in graph.library.function}
    for stage in stages:
        effect = effects[stage.node]
        for op in effect.keeps[:1]:
            yield f"{stage.name}: {explain_op(op, scope_of(functions, stage.functions, op))}"
        if effect.unknown:
            yield f"{stage.name} contains an operation unknown to TensorFlow's registry ({plain(effect.unknown[0])})"
        if stage.op in _WRITES:
            yield f"{stage.name} writes files, and a copy would write the same ones (write them before the training)"
        if stage.op.startswith(_REMOTE):
            yield f"{stage.name} runs on a tf.data service, outside this process"
        if stage.op == "CacheDataset" or (stage.op == "CacheDatasetV2" and work.number(stage.node, 1) != b""):
            yield f"{stage.name} caches in files, and a copy would write the same ones (cache in memory)"
        if stage.op == "RandomDatasetV2":
            yield f"{stage.name} draws other random numbers in every epoch, and a copy would restart them"
    for node in shared_resources(graph):
        yield f"{plain(node.op)} holds an unsupported resource of the process"


def doubts(graph: Any, stages: tuple[Stage, ...], effects: Mapping[str, Effects], options: Any) -> Iterator[str]:
    """Yield why the outputs of a rebuilt pipeline must be compared."""
    for stage in stages:
        effect = effects[stage.node]
        if effect.python:
            yield f"{stage.name} runs Python, which cannot be analysed"
        if effect.draws:
            yield f"{stage.name} draws random numbers"
        if not stage.supported:
            yield f"{stage.name} is an unknown stage"
    yield from _read_ahead(stages)
    if options.deterministic is False or not all(map(is_deterministic, graph.node)):
        yield "the order of elements in the pipeline is not deterministic (deterministic=False)"
    yield from _copied_state(graph)


def move_obstacles(
    graph: Any, stages: tuple[Stage, ...], effects: Mapping[str, Effects], options: Any
) -> Iterator[str]:
    """Yield why an iterator cannot continue in a rebuilt pipeline in mid-run.

    It cannot if the next elements depend on state outside the iterator, other than the number of iterators before it.
    """
    for stage in stages:
        if effects[stage.node].draws:
            yield f"{stage.name} draws random numbers, and no position holds how many"
        if stage.kind == "cache":
            yield f"{stage.name} keeps the elements of the first epoch, and a copy would compute them again"
        starts_inputs = len(stage.inputs) > 1 and stage.kind not in ("zip", "enumerate")
        if starts_inputs and any(other.kind.startswith("shuffle") for other in upstream(stage, stages)):
            yield f"{stage.name} reads a shuffle, and no position holds how often it has begun"
    if any(node.op == "GeneratorDataset" for function in graph.library.function for node in function.node_def):
        yield "a Python generator feeds it, which cannot be rewound"
    if any(number > 1 for number in turns(graph, options).values()):
        yield "a repeat begins a shuffle more than once in a pass, and no position holds how often"
    yield from chain(unpositioned(graph), unrestored_stages(graph, options), other_passes(graph, options))
    yield from _copied_state(graph)


def _copied_state(graph: Any) -> Iterator[str]:
    for node in graph.node:
        if node.op == "VarHandleOp":
            yield "a function reads a variable: a rebuilt pipeline reads a copy of its present value"
        if node.op.startswith(("MutableHashTable", "MutableDenseHashTable")):
            yield "a function reads a mutable table: a rebuilt pipeline reads a copy of its present contents"


def _read_ahead(stages: tuple[Stage, ...]) -> Iterator[str]:
    """Yield why later orders may depend on how far was read ahead: a shuffle advances each time that it begins."""
    for above in stages:
        if above.kind not in _ENDS_EARLY and (len(above.inputs) < 2 or above.kind == "concatenate"):
            continue
        for stage in upstream(above, stages):
            if stage.kind in _RESTARTS_INPUT and any(
                other.kind.startswith("shuffle") for other in upstream(stage, stages)
            ):
                yield f"{above.name} may end before {stage.name} does, so that later orders depend on reading ahead"
