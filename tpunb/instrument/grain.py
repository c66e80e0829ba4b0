"""Grain: the batches that it loads."""

from __future__ import annotations

from contextlib import ExitStack

from tpunb.instrument.hooks import fetching
from tpunb.instrument.registry import Evidence, Library
from tpunb.instrument.sink import Sink

LIBRARY = Library("grain", "grain", ("0.2", "0.2.18"))

# kinds of iterators draw from each other, of which the outermost counts
DATASET_NEXT, LOADER_NEXT = (
    LIBRARY.attribute(
        *(f"grain._src.python.{home}", f"{kind}.__next__"),
        subclasses=True,
        evidence=Evidence("fetch", "Iterator.__next__", "Grain"),
    )
    for home, kind in (("dataset.dataset", "DatasetIterator"), ("data_loader", "DataLoaderIterator"))
)


def listen(sink: Sink, stack: ExitStack) -> None:
    """Listen to each kind of its iterators until the stack is closed."""
    for method in (DATASET_NEXT, LOADER_NEXT):
        stack.enter_context(method.listening(fetching(sink, method)))
