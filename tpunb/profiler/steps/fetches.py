"""Batches that the program fetches: from PyTorch's DataLoader, Grain, tf.data and Hugging Face's datasets."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack
from functools import partial
from time import monotonic_ns
from typing import Any

from tpunb.instrument.registry import around, wrapped
from tpunb.profiler.loop import Loop
from tpunb.signals import Spent


def _fetching(
    loop: Loop, data: str, stream: Callable[[Any], Hashable], original: Callable[..., Any]
) -> Callable[..., Any]:
    """Return the method of an iterator over a kind of data that returns the next batch so that its time is recorded."""
    clock = loop.clock

    def fetch(self: Any, *args: Any) -> Any:
        __tracebackhide__ = True
        if not loop.is_training():  # of a thread that prepares data
            return original(self, *args)
        clock.metadata.setdefault("data", data)
        if clock.loads:  # within another fetch
            return original(self, *args)
        start_ns, over = clock.enter("data loading"), False
        try:
            return original(self, *args)
        except StopIteration:
            over = True
            raise
        finally:
            loop.fetched(stream(self), start_ns, clock.leave(), over=over)

    return fetch


def _patch(loop: Loop, stack: ExitStack, kind: type, data: str, stream: Callable[[Any], Hashable] = id) -> None:
    if "__next__" in vars(kind):
        stack.enter_context(wrapped(kind, "__next__", partial(_fetching, loop, data, stream)))


def _torch(loop: Loop, stack: ExitStack) -> None:
    loader = sys.modules["torch"].utils.data.dataloader
    _patch(
        loop, stack, loader._BaseDataLoaderIter, "DataLoader", lambda batches: id(getattr(batches, "_dataset", batches))
    )

    def start(original: Callable[[Any], Any], self: Any) -> Any:
        __tracebackhide__ = True
        if not loop.is_training():
            return original(self)
        workers = getattr(self, "num_workers", 0) > 0
        of_tensors = type(getattr(self, "dataset", None)) is sys.modules["torch"].utils.data.TensorDataset
        data = "DataLoader with workers" if workers else "TensorDataset" if of_tensors else "DataLoader"
        loop.clock.metadata.setdefault("data", data)
        if loop.clock.loads:
            return original(self)
        anew = workers and not getattr(self, "persistent_workers", True)
        with loop.clock.within("data loading", "start of workers" if anew else "start of a DataLoader"):
            return original(self)

    stack.enter_context(wrapped(loader.DataLoader, "__iter__", around(start)))


def _grain(loop: Loop, stack: ExitStack) -> None:
    """Patch each kind of Grain's iterators: they draw from each other, of which the outermost counts."""
    for module, name in (
        ("grain._src.python.dataset.dataset", "DatasetIterator"),
        ("grain._src.python.data_loader", "DataLoaderIterator"),
    ):
        base = getattr(sys.modules.get(module), name, None)
        for kind in dict.fromkeys(_subclasses(base)) if base is not None else ():
            _patch(loop, stack, kind, "Grain")


def _subclasses(kind: Any) -> Iterator[Any]:
    yield kind
    for each in kind.__subclasses__():
        yield from _subclasses(each)


class _End:
    """What an iterator frees last: the time since it began to be freed is that of its end."""

    def __init__(self, loop: Loop, iterator: object) -> None:
        self._loop, self._begun_ns = loop, 0
        self._begins = weakref.ref(iterator, self._begin)

    def _begin(self, _: object) -> None:
        self._begun_ns = monotonic_ns()

    def __del__(self) -> None:
        if self._begun_ns and self._loop.is_training():
            self._loop.clock.on_spent(Spent("data loading", "end of the data", self._begun_ns, monotonic_ns()))


def _ending(loop: Loop, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method of an iterator that returns the next batch so that the time of its end is recorded."""

    def following(self: Any, *args: Any) -> Any:
        __tracebackhide__ = True
        if "_tpunb_end" not in vars(self):
            vars(self)["_tpunb_end"] = _End(loop, self)
        return original(self, *args)

    return following


def _tensorflow(loop: Loop, stack: ExitStack) -> None:
    data = sys.modules.get("tensorflow.python.data.ops.iterator_ops")
    if (kind := getattr(data, "OwnedIterator", None)) is not None:
        _patch(loop, stack, kind, "tf.data")
        stack.enter_context(wrapped(kind, "__next__", partial(_ending, loop)))
    data = sys.modules.get("tensorflow.python.data.ops.dataset_ops")
    for name in ("NumpyIterator", "_NumpyIterator"):
        if isinstance(kind := getattr(data, name, None), type):
            _patch(loop, stack, kind, "tf.data")


class _Batches:
    """Batches of a generator."""

    def __init__(self, batches: Iterator[Any], of: object) -> None:
        self.batches, self.of = batches, of

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> Any:
        return next(self.batches)


def _datasets(loop: Loop, stack: ExitStack) -> None:
    """Patch the methods of Hugging Face's data sets, which are generators."""
    module = sys.modules["datasets"]
    following = _fetching(loop, "datasets", lambda batches: id(batches.of), _Batches.__next__)
    timed = type("Batches", (_Batches,), {"__next__": following})

    def drawing(original: Callable[..., Any]) -> Callable[..., Any]:
        def patched(self: Any, *args: Any, **kwargs: Any) -> Any:
            batches = original(self, *args, **kwargs)
            return batches if loop.clock.loads or not loop.is_training() else timed(batches, self)

        return patched

    for kind in (module.Dataset, module.IterableDataset):
        for name in ("__iter__", "iter"):
            if name in vars(kind):
                stack.enter_context(wrapped(kind, name, drawing))


PATCHES = {"torch": _torch, "grain": _grain, "tensorflow": _tensorflow, "datasets": _datasets}
