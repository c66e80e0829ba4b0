"""Effects of a pipeline's functions beyond computing from their input, by their operations in TensorFlow's registry.

Stateless operations and reads are safe; calls and loops are judged by the functions they call; Python must be verified;
random numbers, state and unknown operations are not allowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tpunb.instrument.tensorflow import op_def

Verdict = Literal["safe", "verify", "locked"]

PYTHON = {"PyFunc", "EagerPyFunc", "PyFuncStateless"}
_PRINTS = {"PrintV2", "Print"}
_READS = (
    "ReadVariableOp ResourceGather ResourceGatherNd VariableShape VarIsInitializedOp LookupTableFind LookupTableFindV2 "
    "LookupTableSize LookupTableSizeV2 LookupTableExport LookupTableExportV2"
)
_CALLS = "StatefulPartitionedCall If While Case ReduceDataset DatasetToSingleElement"
_SOURCES = (
    "RangeDataset TensorDataset TensorSliceDataset SparseTensorSliceDataset TFRecordDataset TFRecordDatasetV2 "
    "TextLineDataset FixedLengthRecordDataset FixedLengthRecordDatasetV2 CSVDataset CSVDatasetV2 LMDBDataset "
    "GeneratorDataset CacheDatasetV2 DummyMemoryCache"
)
CHECKS = frozenset({"CheckNumerics", "CheckNumericsV2"})
"""Operations that fail for some numbers and do nothing else; TensorFlow refuses to save a position above them."""
_HARMLESS = CHECKS | set(f"{_READS} {_CALLS} {_SOURCES} Assert StatelessRandomGetAlg".split())
"""Operations that are stateful in the registry only since what they read or call may be."""

_DRAWS = ("Random", "Sample", "Multinomial", "TruncatedNormal", "SeedGenerator", "CandidateSampler")
GENERATOR = ("Rng", "StatefulRandom", "StatefulUniform", "StatefulStandard", "StatefulTrunc")  # tf.random.Generator
_STILL_PARALLEL = {"Assert", "If", "While"}  # stateful operations with which tf.data still calls a map in parallel


@dataclass(frozen=True)
class Effects:
    """Effects of a function beyond computing from its input: the names of the operations, each sorted."""

    draws: tuple[str, ...] = ()  # random numbers
    keeps: tuple[str, ...] = ()  # state, or changes state outside
    prints: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    python: tuple[str, ...] = ()
    registered: bool = False  # an operation is stateful in TensorFlow's registry, even if harmless

    @property
    def is_auto_parallel(self) -> bool:
        """Whether tf.data itself calls it in parallel if the program does not say."""
        return not self.registered and not self.unknown

    @property
    def external_state(self) -> str:
        """An operation whose state the position of an iterator does not hold; "" if there is none."""
        ops = (*self.python, *self.draws, *self.keeps, *self.unknown)
        return next((op for op in ops if op != "PyFuncStateless" and "Dataset" not in op), "")

    @property
    def verdict(self) -> Verdict:
        """Whether parallel or earlier calls keep the output."""
        if self.draws or self.keeps or self.prints or self.unknown:
            return "locked"
        return "verify" if self.python else "safe"

    @property
    def reason(self) -> str:
        """Reason for the verdict."""
        if self.draws:
            return f"its function draws random numbers ({', '.join(self.draws)}), which depend on the order of calls"
        if self.keeps:
            return f"its function keeps or changes state ({', '.join(self.keeps)})"
        if self.unknown:
            return f"its function contains operations unknown to TensorFlow's registry ({', '.join(self.unknown)})"
        if self.prints:
            return f"its function prints ({', '.join(self.prints)}), and the order of its lines would change"
        if self.python:
            return f"its function runs Python ({', '.join(self.python)}), which cannot be analysed"
        return "its function computes from its input alone"


def effects_of(functions: dict[str, Any], *names: str) -> Effects:
    """Return the effects of functions, by name in the library of a GraphDef, and of all that they call."""
    ops: dict[str, set[str]] = {"draws": set(), "keeps": set(), "prints": set(), "unknown": set(), "python": set()}
    registered = False
    for op in operations(functions, *names):
        registered = registered or (op not in _STILL_PARALLEL and getattr(op_def(op), "is_stateful", False))
        if (effect := _effect(op)) is not None:
            ops[effect].add(op)
    return Effects(**{effect: tuple(sorted(each)) for effect, each in ops.items()}, registered=registered)


def draws_random_numbers(op: str) -> bool:
    """Return whether an operation draws from a random state, its own or that of a ``tf.random.Generator``."""
    return op.startswith(GENERATOR) or _effect(op) == "draws"


def scope_of(functions: dict[str, Any], names: Iterable[str], op: str) -> str:
    """Return the scope of an operation in functions, without the models around it: the name of a layer, or ""."""
    nodes = (node for name in names if name in functions for node in functions[name].node_def if node.op == op)
    return next((node.name.rpartition("/")[0].rpartition("/")[2] for node in nodes), "")


def called_functions(node: Any) -> list[str]:
    """Return the names of the functions that a node calls."""
    lists = (value.list.func for value in node.attr.values() if value.WhichOneof("value") == "list")
    single = [value.func.name for value in node.attr.values() if value.WhichOneof("value") == "func"]
    return single + [function.name for functions in lists for function in functions]


def operations(functions: Mapping[str, Any], *names: str) -> Iterator[str]:
    """Yield the operations of functions and of all that they call; a missing function by its name."""
    yield from (getattr(node, "op", node) for node in nodes_of(functions, *names))


def nodes_of(functions: Mapping[str, Any], *names: str) -> Iterator[Any]:
    """Yield the nodes of functions and of all that they call; the name of a missing function."""
    todo, seen = [*names], set(names)
    while todo:
        name = todo.pop()
        if name not in functions:
            yield name
            continue
        for node in functions[name].node_def:
            further = called_functions(node)
            if node.op in functions:  # a call in the old form: the function's name in place of an operation
                further.append(node.op)
            else:
                yield node
            todo += [other for other in further if other not in seen]
            seen.update(further)


def _effect(op: str) -> str | None:
    """Return the field of `Effects` for an operation; None for a pure one."""
    if op in PYTHON:
        return "python"
    definition = op_def(op)
    if definition is None:
        return "unknown"
    if op.startswith(("Shuffle", "Random")) and "Dataset" in op:  # stateless in the registry, but they draw
        return "draws"
    if not definition.is_stateful or op in _HARMLESS:
        return None
    if op in _PRINTS:
        return "prints"
    return "draws" if any(word in op for word in _DRAWS) else "keeps"
