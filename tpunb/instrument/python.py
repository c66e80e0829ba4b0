"""Python: its files, its garbage collections, and what ends a process that `multiprocessing` started."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import ExitStack, suppress
from time import monotonic_ns

from tpunb.instrument.registry import Library, loaded
from tpunb.instrument.sink import Sink, What

LIBRARY = Library("python", "python", ("3.11", "3.14"))

OPENS = tuple(LIBRARY.attribute(home, "open") for home in ("builtins", "io"))
MOVES = tuple(LIBRARY.attribute("os", name) for name in ("rename", "replace"))

_GENERATIONS = [What("python", "gc", f"generation {number}") for number in range(3)]


def listen(sink: Sink, stack: ExitStack) -> None:
    """Record garbage collections until the stack is closed."""
    clock, begun_ns = sink.clock, [0]

    def on_collection(phase: str, facts: dict[str, int]) -> None:
        if phase == "start":
            begun_ns[0] = monotonic_ns()
        else:
            clock.past("collect", _GENERATIONS[facts["generation"]], begun_ns[0], monotonic_ns())

    def remove() -> None:
        with suppress(ValueError):  # the program has removed it
            gc.callbacks.remove(on_collection)

    gc.callbacks.append(on_collection)
    stack.callback(remove)


def at_exit_of_worker(call: Callable[[], None]) -> None:
    """Call a function as a process of `multiprocessing` ends, which calls nothing else at its exit."""
    if (util := loaded("multiprocessing.util")) is not None:
        util.Finalize(None, call, exitpriority=100)
