"""TensorFlow: functions that it traces and calls, batches of tf.data, annotated steps, checkpoints, its profiler."""

from __future__ import annotations

import shutil
import sys
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import gettempdir
from time import monotonic_ns
from typing import Any
from uuid import uuid4

from tpunb.instrument.hooks import fetching, listen_to_annotations, listen_to_calls
from tpunb.instrument.keras import STEP_FUNCTION, called_as
from tpunb.instrument.profiler_sessions import Sessions
from tpunb.instrument.registry import Evidence, Hook, Library, Priority, around, loaded
from tpunb.instrument.sink import END_OF_DATA, NEW_FUNCTION, Sink, What
from tpunb.signals import DATA_END, Spent

LIBRARY = Library("tensorflow", "tensorflow", ("2.18", "2.21"))

# -- functions ---------------------------------------------------------------------------------------------------------

FUNCTION_CALL = LIBRARY.attribute(
    "tensorflow.python.eager.polymorphic_function.polymorphic_function",
    "Function.__call__",
    evidence=Evidence("call"),
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
        name, what = called_as(str(getattr(self, "__name__", "a function"))), What.of("tensorflow", function)
        sink.called(name, begun_ns, now_ns, None, what=what)
        return value

    FUNCTION_CALL.listen(around(call), Priority.CAPTURE, stack)


# -- batches -----------------------------------------------------------------------------------------------------------

ITERATOR_NEXT, NUMPY_NEXT = (
    LIBRARY.attribute(f"tensorflow.python.data.ops.{home}", path, evidence=Evidence("fetch", data="tf.data"))
    for home, path in (("iterator_ops", "OwnedIterator.__next__"), ("dataset_ops", "NumpyIterator.__next__"))
)


class _End:
    """What an iterator frees last: the time since it began to be freed is that of its end."""

    _is_exit = staticmethod(sys.is_finalizing)  # when modules are empty

    def __init__(self, sink: Sink, iterator: object) -> None:
        self._sink, self._begun_ns = sink, 0
        self._begins = weakref.ref(iterator, self._begin)

    def _begin(self, _: object) -> None:
        self._begun_ns = 0 if self._is_exit() else monotonic_ns()

    def __del__(self) -> None:
        if self._begun_ns and self._sink.is_training():
            spent = Spent("data loading", DATA_END, self._begun_ns, monotonic_ns())
            self._sink.clock.on_spent(spent, end_of=END_OF_DATA)


def _ending(sink: Sink, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method of an iterator that returns the next batch so that the time of its end is recorded."""

    def following(self: Any, *args: Any) -> Any:
        __tracebackhide__ = True
        if "_tpunb_end" not in vars(self):
            vars(self)["_tpunb_end"] = _End(sink, self)
        return original(self, *args)

    return following


def _eagerly(hook: Hook) -> Hook:
    """Return a hook that is left out within functions: as one is traced, nothing is fetched."""
    executing_eagerly = sys.modules["tensorflow"].executing_eagerly

    def hooked(original: Callable[..., Any]) -> Callable[..., Any]:
        eager = hook(original)

        def following(self: Any, *args: Any) -> Any:
            __tracebackhide__ = True
            return (eager if executing_eagerly() else original)(self, *args)

        return following

    return hooked


def _batches(sink: Sink, stack: ExitStack) -> None:
    """Record batches, and the time of an iterator's end."""
    for method in (ITERATOR_NEXT, NUMPY_NEXT):
        method.listen(_eagerly(fetching(sink, method)), Priority.CAPTURE, stack)
    ITERATOR_NEXT.listen(_eagerly(partial(_ending, sink)), Priority.CAPTURE, stack)


# -- steps that the program annotates ----------------------------------------------------------------------------------

TRACE = tuple(
    LIBRARY.attribute("tensorflow.python.profiler.trace", f"Trace.{name}")
    for name in ("__init__", "__enter__", "__exit__")
)


def _annotations(sink: Sink, stack: ExitStack) -> None:
    listen_to_annotations(sink, TRACE, stack)


# -- tracing -----------------------------------------------------------------------------------------------------------

CREATE_FUNCTION = LIBRARY.attribute(
    "tensorflow.python.eager.polymorphic_function.tracing_compilation",
    "_create_concrete_function",
    *("function_type", "type_context", "func_graph", "tracing_options"),
    evidence=Evidence("trace"),
)
GRADIENT = LIBRARY.attribute("tensorflow.python.eager.backprop", "GradientTape.gradient", evidence=Evidence("gradient"))
_OF_DATA = "Dataset_"  # begins the names of functions of tf.data
_PYTHON = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}  # operations that call it
_MOST_FUNCTIONS = 32  # of one name, that are known apart as they are traced again


def _traces(sink: Sink, stack: ExitStack) -> None:
    """Record tracings of the outermost functions, and which of these take gradients, or call Python in a step."""
    clock, traced, is_within, learns, of_data = sink.clock, _Traced(), [False], [False], [False]

    def note_python(graph: Any) -> None:
        with suppress(Exception):  # of internals that have changed
            if not of_data[0] and any(operation.type in _PYTHON for operation in graph.get_operations()):
                clock.metadata["python"] = "step"

    def differentiate(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        learns[0] = True
        return original(*args, **kwargs)

    def trace(
        original: Callable[..., Any], function_type: Any, type_context: Any, func_graph: Any, options: Any
    ) -> Any:
        if not clock.trains_here:
            return original(function_type, type_context, func_graph, options)
        if is_within[0]:
            value = original(function_type, type_context, func_graph, options)
            note_python(func_graph)
            return value
        what, reason = What(LIBRARY.name, "", str(getattr(options, "name", None) or "a function")), None
        with suppress(Exception):  # of internals that have changed: the training must continue
            reason = traced.reason(what.name, function_type, options)
        is_within[0], learns[0], of_data[0] = True, False, what.name.startswith(_OF_DATA)
        try:
            with clock.during("trace", what, reason):
                value = original(function_type, type_context, func_graph, options)
            note_python(func_graph)
            return value
        finally:
            is_within[0] = False
            if learns[0] and sink.is_training():
                sink.takes_gradients(what.name, what=what)

    CREATE_FUNCTION.listen(around(trace), Priority.CAPTURE, stack)
    GRADIENT.listen(around(differentiate), Priority.CAPTURE, stack)


class _Traced:
    """Functions that were traced, for the reason why one is traced again."""

    def __init__(self) -> None:
        self._last: dict[str, list[tuple[Any, Any]]] = {}  # by name, each with its last type

    def reason(self, name: str, function_type: Any, options: Any) -> str | None:
        """Return why a function is traced again, None for the first time."""
        living = [(each, last) for of, last in self._last.get(name, []) if (each := of()) is not None]
        before = next((last for each, last in living if each.function_cache is options.function_cache), None)
        is_new = name not in self._last
        others = [
            (weakref.ref(each), last) for each, last in living if each.function_cache is not options.function_cache
        ]
        self._last[name] = [*others[-_MOST_FUNCTIONS:], (weakref.ref(options), function_type)]
        if before is not None:
            return _changes(before, function_type)
        return None if is_new or name == STEP_FUNCTION or name.startswith(_OF_DATA) else NEW_FUNCTION


def _changes(before: Any, now: Any) -> str:
    """Return what differs in the arguments of two traces of one function."""
    try:
        old, new = before.parameters, now.parameters
        changed = [(name, old[name].type_constraint, new[name].type_constraint) for name in new if name in old]
        texts = [f"{name} = {_argument(kind)} (before: {_argument(was)})" for name, was, kind in changed if was != kind]
    except (AttributeError, TypeError, ValueError):  # internals that have changed
        texts = []
    return ", ".join(texts) or "other arguments"


def _argument(kind: Any) -> str:
    """Return dtypes and shapes of an argument of a trace, its number, or the type of another value of Python."""
    if hasattr(kind, "value"):
        return repr(kind.value) if isinstance(kind.value, bool | int | float) else type(kind.value).__name__
    nest = sys.modules["tensorflow"].nest
    specs = nest.flatten(getattr(kind, "element_spec", kind), expand_composites=True)
    return ", ".join(f"{spec.dtype.name}{spec.shape}" for spec in specs if hasattr(spec, "dtype")) or "another"


# -- checkpoints -------------------------------------------------------------------------------------------------------

CHECKPOINT_WRITE, CHECKPOINT_READ, *_OTHERS = FILES = tuple(
    LIBRARY.attribute(f"tensorflow.python.checkpoint.{home}", path, evidence=Evidence(event))
    for home, path, event in (
        ("checkpoint", "Checkpoint.write", "save"),
        ("checkpoint", "Checkpoint.read", "restore"),
        ("checkpoint", "Checkpoint.save", "save"),
        ("checkpoint_management", "CheckpointManager.save", "save"),
        ("checkpoint", "Checkpoint.restore", "restore"),
    )
)

# -- the first sign of a training --------------------------------------------------------------------------------------

TRAINS = (LIBRARY.attribute("tensorflow", "GradientTape.__init__"),)
"""What is called first where a process trains."""

# -- its profiler ------------------------------------------------------------------------------------------------------

SESSIONS = Sessions(
    LIBRARY,
    functions=(
        (
            LIBRARY.attribute("tensorflow", "profiler.experimental.start"),
            LIBRARY.attribute("tensorflow", "profiler.experimental.stop"),
        ),
    ),
    kind=LIBRARY.attribute("tensorflow.python.profiler.profiler_v2", "_pywrap_profiler.ProfilerSession", optional=True),
    begins="start",
    ends=("stop", "export_to_tb"),
    keeps=("_profiler",),
    client=LIBRARY.attribute("tensorflow.python.profiler.internal._pywrap_profiler_plugin", "trace", optional=True),
)


class Window:
    """A session of its profiler in this process, which opens no port."""

    def __init__(self) -> None:
        profiler = import_module("tensorflow.python.profiler.internal._pywrap_profiler")
        self._session, self._folder = profiler.ProfilerSession(), Path(gettempdir(), f"tpunb-{uuid4().hex}")
        self._session.start(str(self._folder), {})  # its defaults; 2.21 takes no numbers, and warns of each

    def collect(self) -> bytes:
        """End it; return its XSpace, which holds compiled programs."""
        try:
            self._folder.mkdir(0o700)
            self._session.export_to_tb()
            (path,) = self._folder.rglob("*.xplane.pb")
            return path.read_bytes()
        finally:
            self._session.stop()  # which returns no XSpace: where there can be no folder, it would go on
            shutil.rmtree(self._folder, ignore_errors=True)


def computes() -> bool:
    """Return whether the program has imported it and initialised its devices."""
    if LIBRARY.module() is None:
        return False
    context = getattr(loaded("tensorflow.python.eager.context"), "context_safe", None)
    if not callable(context):
        return True
    return bool(getattr(context(), "_initialized", True)) if context() is not None else False


def devices() -> list[str]:
    """Return the names of its devices."""
    return [device.name for device in sys.modules["tensorflow"].config.list_logical_devices()]


def annotation(kind: str, number: int) -> AbstractContextManager[Any]:
    """Return its annotation of a step."""
    trace: AbstractContextManager[Any] = sys.modules["tensorflow"].profiler.experimental.Trace(
        kind, step_num=number, _r=1
    )
    return trace


# -- what checkpoints and tuning need ----------------------------------------------------------------------------------

ITERATOR_CREATION = LIBRARY.attribute(ITERATOR_NEXT.home, "OwnedIterator._create_iterator", "dataset")
DRAW_SEED = LIBRARY.attribute("tensorflow.python.framework.random_seed", "get_seed")
FILE = LIBRARY.attribute("tensorflow.python.lib.io.file_io", "FileIO.__init__", "name", "mode")
SAVER = LIBRARY.attribute("tensorflow.python.checkpoint.checkpoint", "TrackableSaver.save", "file_prefix")


def on_operations(call: Callable[..., None], stack: ExitStack) -> None:
    """Call with each operation that runs eagerly, until the stack is closed."""
    callbacks = import_module("tensorflow.python.framework.op_callbacks")
    callbacks.add_op_callback(call)
    stack.callback(callbacks.remove_op_callback, call)


def eager_context() -> Any | None:
    """Return what holds the global seed; None before TensorFlow is imported, or if another object holds it."""
    make = getattr(LIBRARY.module("tensorflow.python.eager.context"), "context", lambda: None)
    context = make()
    return context if hasattr(context, "_seed") and hasattr(context, "_rng") else None


def iterator_kind() -> Any:
    """Return the class of iterators over datasets."""
    return import_module(ITERATOR_NEXT.home).OwnedIterator


def dataset_of(variant: Any, spec: Any) -> Any:
    """Return the dataset of a variant tensor."""
    return import_module(NUMPY_NEXT.home)._VariantDataset(variant, spec)


def op_def(name: str) -> Any:
    """Return the definition of an operation; None if no definition has this name."""
    return import_module("tensorflow.python.framework.op_def_registry").get(name)


def python_function(token: str) -> Any:
    """Return the Python function that an operation of a graph calls by a token."""
    return import_module("tensorflow.python.ops.script_ops")._py_funcs._funcs.get(token)


# ----------------------------------------------------------------------------------------------------------------------


def listen(sink: Sink, stack: ExitStack) -> None:
    """Listen to it until the stack is closed."""
    LIBRARY.on_import(stack, *(partial(part, sink) for part in (_calls, _batches, _annotations, _traces)))
    listen_to_calls(sink, FILES, stack)
