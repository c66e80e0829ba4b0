"""Hugging Face's data sets: the batches that they load."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import update_wrapper
from typing import Any

from tpunb.instrument.hooks import fetching
from tpunb.instrument.registry import Evidence, Library
from tpunb.instrument.sink import Sink

LIBRARY = Library("datasets", "datasets", ("4.0", "4.0"))

DRAWS = tuple(
    LIBRARY.attribute("datasets", f"{kind}.{name}", evidence=Evidence("fetch", data="datasets"))
    for kind in ("Dataset", "IterableDataset")
    for name in ("__iter__", "iter")
)
"""Its methods that load batches, which are generators."""


class _Batches:
    """Batches of a generator."""

    def __init__(self, batches: Iterator[Any], of: object) -> None:
        self.batches, self.of = batches, of

    def __iter__(self) -> _Batches:
        return self


def listen(sink: Sink, stack: ExitStack) -> None:
    """Listen to all that it loads until the stack is closed."""
    fetches = fetching(sink, DRAWS[0], lambda batches: id(batches.of))

    def drawing(original: Callable[..., Any]) -> Callable[..., Any]:
        next_batch = update_wrapper(lambda batches: next(batches.batches), original)
        timed = type("Batches", (_Batches,), {"__next__": fetches(next_batch)})

        def draw(self: Any, *args: Any, **kwargs: Any) -> Any:
            batches = original(self, *args, **kwargs)
            return batches if sink.clock.loads or not sink.is_training() else timed(batches, self)

        return draw

    for method in DRAWS:
        stack.enter_context(method.listening(drawing))
