"""Adjustable parameters of an input pipeline: what each sets, its values, and whether they may change the output."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from numbers import Integral

from tpunb.errors import TpunbError, brief
from tpunb.tfdata.effects import Verdict
from tpunb.tfdata.graph import AUTOTUNE

Value = int | bool | str


class Kind(Enum):
    """What a parameter sets: the words that end its name, and a template of the code that sets it.

    Code that starts with ``options`` belongs to the pipeline's options. No code: the kind is locked, or its pipeline
    writes the code.
    """

    CALLS = "parallel calls", "ds = ds.{method}({function}, num_parallel_calls={value})"
    COPY = "parallel copy", "options.experimental_optimization.parallel_batch = {value}  # for all batch stages"
    BUFFER = "buffer", "ds = ds.prefetch({value})"
    PREFETCH = "prefetch", "ds = ds.prefetch({value})"
    POOL = "private threads", "options.threading.private_threadpool_size = {value}"
    READ_THREADS = "threads", ""
    ELEMENTS = "buffer", ""
    PROCESSES = "processes", ""
    WORKERS = "workers", ""
    PREFETCH_FACTOR = "prefetch factor", ""
    PINNED = "pinned memory", ""
    PERSISTENT = "persistent workers", ""
    START = "start method", ""
    BATCH_SIZE = "size", ""
    CYCLE = "cycle length", ""
    BLOCK = "block length", ""
    STAGE = "", ""

    def __init__(self, label: str, code: str) -> None:
        self.label, self.code = label, code


@dataclass(frozen=True)
class Parameter:
    """An adjustable parameter of a pipeline.

    Attributes
    ----------
    kind
        What it sets.
    stage
        The stage it belongs to, counted from the source: "map:1(parse)"; "end", "options", "worker" or "loader" for
        parameters of the whole pipeline.
    current
        Its value in the program.
    domain
        Candidate values, the current one included; empty if locked.
    verdict
        "safe": its values provably keep the output. "verify": trials compare the outputs. "locked": it stays as it is.
    reason
        The reason for the verdict, in one sentence.
    """

    kind: Kind
    stage: str
    current: Value
    domain: tuple[Value, ...]
    verdict: Verdict
    reason: str

    @property
    def name(self) -> str:
        """Stage and kind in words, unique within the pipeline: "map:1(parse) parallel calls"."""
        return f"{self.stage} {self.kind.label}".strip()

    def check(self, value: Value) -> Value:
        """Return a valid value: one of the domain, or an integer within its range.

        Raises
        ------
        TpunbError
            If the parameter is locked and the value is not the current one.
        ValueError
            If the value is invalid.
        """
        if type(value) is type(self.current) and value == self.current:
            return value
        if self.verdict == "locked":
            raise TpunbError(f"{self.name} is locked at {self.current!r}: {self.reason}", hint="omit it")
        if any(type(value) is type(candidate) and value == candidate for candidate in self.domain):
            return value
        numbers = [int(n) for n in self.domain if _is_integer(n) and n != AUTOTUNE]
        if numbers and _is_integer(value) and min(numbers) <= int(value) <= max(numbers):
            return int(value)
        allowed = f"one of {', '.join(map(repr, self.domain))}"
        if numbers:
            auto = f" or {AUTOTUNE} (AUTOTUNE)" if AUTOTUNE in self.domain else ""
            allowed = f"an integer from {min(numbers)} to {max(numbers)}{auto}"
        raise ValueError(f"The value of {self.name!r} must be {allowed}. Got {brief(value)} instead.")


DEPENDENCES: dict[Kind, dict[Kind, Callable[[int], int]]] = {
    Kind.READ_THREADS: {Kind.ELEMENTS: lambda threads: threads},  # a thread reads only if there is room for its element
    Kind.WORKERS: {Kind.PREFETCH_FACTOR: lambda workers: 1, Kind.PERSISTENT: lambda workers: 0},  # which only they have
    Kind.PROCESSES: {Kind.ELEMENTS: lambda processes: 2},  # with room for one, a process waits until it is taken
}
"""Parameters that limit what another one of their stage gains, and their least value by the value of that one.

Searches move both (`search.joined`).
"""


def changes(parameters: Iterable[Parameter], values: Mapping[str, Value]) -> dict[Parameter, Value]:
    """Return the values that differ from the current ones, checked, in the order of the parameters."""
    by_name = {parameter.name: parameter for parameter in parameters}
    if unknown := sorted(set(values) - set(by_name)):
        raise ValueError(f"no parameter is named {unknown[0]!r}; there are {', '.join(map(repr, by_name)) or 'none'}")
    checked = {parameter: parameter.check(values[name]) for name, parameter in by_name.items() if name in values}
    return {parameter: value for parameter, value in checked.items() if value != parameter.current}


def call_counts(current: int, limit: int | None) -> tuple[int, ...]:
    """Return candidate numbers of parallel calls: up to 8 per core and `limit`, AUTOTUNE last.

    >>> call_counts(3, limit=4)[-2:]
    (4, -1)
    """
    cores = os.cpu_count() or 1
    counts = {1, 2, cores, 2 * cores, 4 * cores, 8 * cores, 8, 16, current or 1} - {AUTOTUNE}
    return (*sorted({min(n, limit or n) for n in counts}), AUTOTUNE)


def buffer_sizes(current: int) -> tuple[int, ...]:
    """Return candidate sizes of a prefetch buffer: 0 (none) first, AUTOTUNE last.

    >>> buffer_sizes(3)
    (0, 1, 2, 3, 4, 8, 16, -1)
    """
    return (*sorted({0, 1, 2, 4, 8, 16, current} - {AUTOTUNE}), AUTOTUNE)


def pool_sizes(current: int) -> tuple[int, ...]:
    """Return candidate sizes of a private thread pool; 0 is the pool that all pipelines share."""
    cores = os.cpu_count() or 1
    return tuple(sorted({0, cores, 4 * cores, 16 * cores, current}))


def _is_integer(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
