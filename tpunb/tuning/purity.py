"""Whether a function of a pipeline computes from its input alone: by the operations it is made of.

A function that does may be called in parallel, early, or in another place of the chain. Every operation of it and of
the functions it calls is looked up in TensorFlow's registry: one that keeps no state is pure; of those that do, reading
tables, variables and files is let be, calls and loops are judged by the functions they call, and Python is to be
verified, for nobody can see into it. What draws random numbers, what keeps state and what is unknown is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tpunb.tuning.dataset_graph import op_def
from tpunb.tuning.knob import Verdict

_PYTHON = {"PyFunc", "EagerPyFunc", "PyFuncStateless"}
# stateful by the registry: only since what they read, or what they call, may be
_READS = {
    "ReadVariableOp",
    "ResourceGather",
    "ResourceGatherNd",
    "VariableShape",
    "VarIsInitializedOp",
    "LookupTableFind",
    "LookupTableFindV2",
    "LookupTableSize",
    "LookupTableSizeV2",
    "LookupTableExport",
    "LookupTableExportV2",
}
_CALLS = {"StatefulPartitionedCall", "If", "While", "Case", "ReduceDataset", "DatasetToSingleElement"}
_SOURCES = {
    "RangeDataset",
    "TensorDataset",
    "TensorSliceDataset",
    "SparseTensorSliceDataset",
    "TFRecordDataset",
    "TFRecordDatasetV2",
    "TextLineDataset",
    "FixedLengthRecordDataset",
    "FixedLengthRecordDatasetV2",
    "CSVDataset",
    "CSVDatasetV2",
    "LMDBDataset",
    "GeneratorDataset",
    "CacheDatasetV2",
    "DummyMemoryCache",
}
_CHECKS = {"Assert", "CheckNumerics", "CheckNumericsV2", "StatelessRandomGetAlg"}
_PRINTS = {"PrintV2", "Print"}
_HARMLESS = _READS | _CALLS | _SOURCES | _CHECKS


_OVERLOOKED = {"Assert", "If", "While"}
"""Of the stateful ones, those that do not keep tf.data from calling a map in parallel."""


@dataclass(frozen=True)
class Purity:
    """What a function does beyond computing from its input: the names of the operations, each sorted."""

    draws: tuple[str, ...] = ()  # random numbers
    keeps: tuple[str, ...] = ()  # state of its own, or changes what is outside
    prints: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    python: tuple[str, ...] = ()
    registered: bool = False  # whether TensorFlow's registry calls an operation stateful, harmless though it be

    @property
    def is_made_parallel(self) -> bool:
        """Whether tf.data itself calls it in parallel where the program says nothing: what the registry calls pure."""
        return not self.registered and not self.unknown

    @property
    def verdict(self) -> Verdict:
        """Whether calling it in parallel or earlier leaves the output as it was."""
        if self.draws or self.keeps or self.prints or self.unknown:
            return "refused"
        return "to be verified" if self.python else "proved"

    @property
    def why(self) -> str:
        """The verdict's reason."""
        if self.draws:
            return f"its function draws random numbers ({', '.join(self.draws)}), which follow the order of its calls"
        if self.keeps:
            return f"its function keeps or changes state ({', '.join(self.keeps)})"
        if self.unknown:
            return f"its function holds what TensorFlow's registry does not know ({', '.join(self.unknown)})"
        if self.prints:
            return f"its function prints ({', '.join(self.prints)}), and its lines would come in another order"
        if self.python:
            return f"its function runs Python ({', '.join(self.python)}), which nobody can see into"
        return "its function computes from its input alone"


def purity(functions: dict[str, Any], *names: str) -> Purity:
    """Return what some functions, and all they call, do beyond computing from their input.

    Parameters
    ----------
    functions
        The library of a GraphDef: name -> FunctionDef.
    names
        The functions to look at.
    """
    found: dict[str, set[str]] = {"draws": set(), "keeps": set(), "prints": set(), "unknown": set(), "python": set()}
    registered = False
    for op in _ops(functions, names):
        registered = registered or (op not in _OVERLOOKED and getattr(op_def(op), "is_stateful", False))
        if (kind := _kind(op)) is not None:
            found[kind].add(op)
    return Purity(**{kind: tuple(sorted(ops)) for kind, ops in found.items()}, registered=registered)


def called(node: Any) -> list[str]:
    """Return the names of the functions that a node calls."""
    lists = (value.list.func for value in node.attr.values() if value.WhichOneof("value") == "list")
    one = [value.func.name for value in node.attr.values() if value.WhichOneof("value") == "func"]
    return one + [function.name for functions in lists for function in functions]


def _ops(functions: dict[str, Any], names: tuple[str, ...]) -> Iterator[str]:
    """Yield the operations of some functions and of all they call; a function that is not there by its name."""
    todo, seen = [*names], set(names)
    while todo:
        name = todo.pop()
        if name not in functions:
            yield name
            continue
        for node in functions[name].node_def:
            further = called(node)
            if node.op in functions:  # a call in the old form: the function's name stands for an operation
                further.append(node.op)
            else:
                yield node.op
            todo += [other for other in further if other not in seen]
            seen.update(further)


def _kind(op: str) -> str | None:
    """Return which field of `Purity` an operation belongs to; None for one that is pure."""
    if op in _PYTHON:
        return "python"
    known = op_def(op)
    if known is None:
        return "unknown"
    if op.startswith(("Shuffle", "Random")) and "Dataset" in op:  # of the registry's pure ones, these draw all the same
        return "draws"
    if not known.is_stateful or op in _HARMLESS:
        return None
    if op in _PRINTS:
        return "prints"
    drawing = ("Random", "Sample", "Multinomial", "TruncatedNormal", "SeedGenerator", "CandidateSampler")
    return "draws" if any(word in op for word in drawing) else "keeps"
