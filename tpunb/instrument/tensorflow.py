"""TensorFlow: functions that the program calls, batches of tf.data, steps that it annotates."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from time import monotonic_ns
from typing import Any

from tpunb.instrument.events import What
from tpunb.instrument.hooks import fetching, listen_to_annotations
from tpunb.instrument.registry import Library, Priority, around
from tpunb.instrument.sink import Sink
from tpunb.signals import Spent

LIBRARY = Library("tensorflow", "tensorflow", ("2.18", "2.21"))

# -- functions ---------------------------------------------------------------------------------------------------------

FUNCTION_CALL = LIBRARY.attribute(
    "tensorflow.python.eager.polymorphic_function.polymorphic_function", "Function.__call__"
)


def _calls(sink: Sink, stack: ExitStack) -> None:
    """Record calls of the outermost functions."""
    is_within, executing_eagerly = [False], sys.modules["tensorflow"].executing_eagerly

    def call(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if is_within[0] or not sink.is_training() or not executing_eagerly():
            return original(self, *args, **kwargs)
        begun_ns = monotonic_ns()
        is_within[0] = True
        try:
            value = original(self, *args, **kwargs)
        finally:
            is_within[0] = False
        now_ns, function = monotonic_ns(), getattr(self, "python_function", self)
        name, what = str(getattr(self, "__name__", "a function")), What.of("tensorflow", function)
        sink.called(name, begun_ns, now_ns, None, what=what)
        return value

    FUNCTION_CALL.listen(around(call), Priority.CAPTURE, stack)


# -- batches -----------------------------------------------------------------------------------------------------------

ITERATOR_NEXT = LIBRARY.attribute("tensorflow.python.data.ops.iterator_ops", "OwnedIterator.__next__")
NUMPY_NEXT = LIBRARY.attribute("tensorflow.python.data.ops.dataset_ops", "NumpyIterator.__next__")


class _End:
    """What an iterator frees last: the time since it began to be freed is that of its end."""

    def __init__(self, sink: Sink, iterator: object) -> None:
        self._sink, self._begun_ns = sink, 0
        self._begins = weakref.ref(iterator, self._begin)

    def _begin(self, _: object) -> None:
        self._begun_ns = monotonic_ns()

    def __del__(self) -> None:
        if self._begun_ns and self._sink.is_training():
            self._sink.clock.on_spent(Spent("data loading", "end of the data", self._begun_ns, monotonic_ns()))


def _ending(sink: Sink, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method of an iterator that returns the next batch so that the time of its end is recorded."""

    def following(self: Any, *args: Any) -> Any:
        __tracebackhide__ = True
        if "_tpunb_end" not in vars(self):
            vars(self)["_tpunb_end"] = _End(sink, self)
        return original(self, *args)

    return following


def _batches(sink: Sink, stack: ExitStack) -> None:
    """Record batches, and the time of an iterator's end."""
    for method in (ITERATOR_NEXT, NUMPY_NEXT):
        method.listen(fetching(sink, "tensorflow", "tf.data"), Priority.CAPTURE, stack)
    ITERATOR_NEXT.listen(partial(_ending, sink), Priority.CAPTURE, stack)


# -- steps that the program annotates ----------------------------------------------------------------------------------

TRACE = tuple(
    LIBRARY.attribute("tensorflow.python.profiler.trace", f"Trace.{name}")
    for name in ("__init__", "__enter__", "__exit__")
)


def _annotations(sink: Sink, stack: ExitStack) -> None:
    listen_to_annotations(sink, TRACE, stack)


# ----------------------------------------------------------------------------------------------------------------------


def listen(sink: Sink, stack: ExitStack) -> None:
    """Listen to it until the stack is closed."""
    LIBRARY.on_import(stack, *(partial(part, sink) for part in (_calls, _batches, _annotations)))
