"""Record what frameworks do beside steps: tracing and compilation, checkpoints, garbage collection."""

from __future__ import annotations

import gc
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

from tpunb.instrument.keras import running_method
from tpunb.instrument.registry import Hook, wrapped
from tpunb.instrument.sink import NEW_FUNCTION
from tpunb.instrument.torch import is_compiling
from tpunb.profiler.limits import LIMITS
from tpunb.profiler.sources.frameworks import loaded
from tpunb.profiler.step_clock import StepClock
from tpunb.schema import PEERS
from tpunb.signals import Spent
from tpunb.text import cut, plain

_SAVES, _RESTORES, _EVALUATES = "checkpoint save", "checkpoint restore", "evaluation"
_FILES: dict[str, dict[str | None, dict[str, str]]] = {
    "tensorflow.python.checkpoint.checkpoint": {
        "Checkpoint": {"save": _SAVES, "write": _SAVES, "restore": _RESTORES, "read": _RESTORES}
    },
    "tensorflow.python.checkpoint.checkpoint_management": {"CheckpointManager": {"save": _SAVES}},
    "orbax.checkpoint.checkpoint_manager": {
        "CheckpointManager": {"save": _SAVES, "wait_until_finished": _SAVES, "restore": _RESTORES}
    },
    "orbax.checkpoint.experimental.v1._src.training.checkpointer": {
        "Checkpointer": {"load": _RESTORES, "load_checkpointables": _RESTORES}
    },
    "orbax.checkpoint._src.checkpointers.checkpointer": {"Checkpointer": {"save": _SAVES, "restore": _RESTORES}},
    "orbax.checkpoint._src.checkpointers.async_checkpointer": {
        "AsyncCheckpointer": {"save": _SAVES, "wait_until_finished": _SAVES}
    },
    "keras.src.saving.saving_lib": {None: {"load_model": _RESTORES}},
    "torch": {None: {"save": _SAVES, "load": _RESTORES}},
    "safetensors.torch": {None: {"save_file": _SAVES, "save_model": _SAVES, "load_model": _RESTORES}},
    "transformers.trainer": {
        "Trainer": {"_save_checkpoint": _SAVES, "save_model": _SAVES, "evaluate": _EVALUATES, "predict": _EVALUATES}
    },
    "lightning.pytorch.trainer.trainer": {"Trainer": {"save_checkpoint": _SAVES}},
    "lightning.pytorch.loops.evaluation_loop": {"_EvaluationLoop": {"run": _EVALUATES}},
}
"""Accounts of functions, by module and class; saving in the background counts as far as the program waits for it."""

_PEERS = {
    "torch.distributed": (
        *("init_process_group", "destroy_process_group", "new_group", "barrier", "monitored_barrier", "Work.wait"),
        *("all_reduce", "all_reduce_coalesced", "reduce", "broadcast", "broadcast_object_list", "all_gather"),
        *("all_gather_coalesced", "all_gather_into_tensor", "all_gather_object", "gather", "gather_object", "scatter"),
        *("scatter_object_list", "all_to_all", "all_to_all_single", "reduce_scatter", "reduce_scatter_tensor"),
    ),
    # as a DistributedDataParallel is made
    "torch.nn.parallel.distributed": ("_verify_param_shape_across_processes", "_sync_module_states"),
}
"""Functions in which a rank waits for the others, by module."""

_HANDLER = "transformers.trainer_callback"  # calls the callbacks of its Trainer
_PROFILER = "lightning.pytorch.profilers.profiler"  # has a context for each hook that Lightning calls
_HOOK = re.compile(r"\[(?:Callback|LightningModule)\](\w+).*\.(on_\w+)$")  # in its name
_POSITION = "tpunb.tfdata.position"  # writes positions in data, of saves and trials that send spans of their own
_TRACING = "tensorflow.python.eager.polymorphic_function.tracing_compilation"
_KERAS_STEP = "multi_step_on_iterator"  # Keras' name of the function that a method calls
_JAX = "/jax/core/compile/"  # begins the names of JAX' events of tracing, lowering and compilation


class FrameworkSpans:
    """Send spans to a clock while the block runs, of frameworks as soon as they are imported."""

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock
        self._stack = ExitStack()
        self._lock = threading.Lock()
        self._open = True
        self._patched: set[str] = set()
        self._traced: dict[str, list[tuple[Any, Any]]] = {}  # functions of TensorFlow by name, each with its last type
        self._tracing = False
        self._collecting_ns = 0

    def __enter__(self) -> FrameworkSpans:
        gc.callbacks.append(self._on_collection)
        self.patch_loaded()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ValueError):  # the program has removed it
            gc.callbacks.remove(self._on_collection)
        with self._lock:
            self._open = False
        self._stack.close()

    def patch_loaded(self) -> None:
        """Patch what has been imported since the last call."""
        for name in {*_FILES, *_PEERS, _TRACING, _HANDLER, _PROFILER, "jax"} - self._patched:
            if loaded(name) is not None:
                with self._lock:
                    if self._open and name not in self._patched:
                        self._patched.add(name)
                        self._patch(name, sys.modules[name])
        if self._patched & {*_PEERS}:  # the program may have the function that begins a group by another name
            self._find_peers()

    def _patch(self, name: str, module: Any) -> None:
        if name == "jax":
            module.monitoring.register_event_duration_secs_listener(self._on_event)
            self._stack.callback(_unregister, module, self._on_event)
        elif name == _TRACING:
            self._wrap(module, "_create_concrete_function", self._timed_trace)
        elif name == _HANDLER:
            self._wrap(module.CallbackHandler, "call_event", self._timed_callbacks)
        elif name == _PROFILER:
            self._wrap(module.Profiler, "profile", self._timed_hook)
        elif name in _PEERS:
            for path in _PEERS[name]:
                of_class, _, function = path.rpartition(".")
                detail = "DistributedDataParallel" if path.startswith("_") else path
                of = getattr(module, of_class, None) if of_class else module
                self._wrap(of, function, partial(self._timed_call, detail))
        else:
            for owner, functions in _FILES[name].items():
                for function, account in functions.items():
                    place = module if owner is None else getattr(module, owner, None)
                    if place is not None:
                        hook = partial(self._timed, account, f"{owner}.{function}" if owner else function)
                        self._wrap(place, function, hook)

    def _wrap(self, owner: Any, name: str, hook: Hook) -> None:
        if getattr(owner, name, None) is not None:
            self._stack.enter_context(wrapped(owner, name, hook))

    def _timed(self, account: str, detail: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def function(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            ours = sys._getframe(2).f_globals.get("__name__") == _POSITION
            if detail == "AsyncCheckpointer.save":
                self._clock.metadata["saves"] = "background"
            # of functions that call each other, the outer one is what the program does
            if ours or not self._clock.trains_here or self._clock.is_in(account):
                return original(*args, **kwargs)
            with self._clock.within(account, detail):
                return original(*args, **kwargs)

        return function

    def _find_peers(self) -> None:
        """Let the clock know once the process is one of several ranks."""
        distributed: Any = sys.modules.get("torch.distributed")
        with suppress(AttributeError, RuntimeError, ValueError):  # a build without it, or a group that has ended
            if distributed.is_initialized() and distributed.get_world_size() > 1:  # it may be gone when steps are taken
                self._clock.has_peers = True

    def _timed_call(self, detail: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function in which the ranks of a job wait for each other."""
        clock, begins, compiling = self._clock, detail == "init_process_group", is_compiling()

        def function(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            if compiling():
                return original(*args, **kwargs)
            # the outer one of functions that call each other is what the program does
            if not (clock.has_peers or begins) or not clock.trains_here or clock.is_in(PEERS):
                return original(*args, **kwargs)
            start_ns, worked_ns = clock.enter(PEERS), time.thread_time_ns()
            try:
                return original(*args, **kwargs)
            finally:
                wait_ns, end_ns = clock.waited(start_ns, worked_ns), clock.leave()
                clock.on_spent(Spent(PEERS, detail, end_ns - wait_ns, end_ns))
                if begins:
                    self._find_peers()

        return function

    def _timed_callbacks(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method of Hugging Face's Trainer that calls one hook of all callbacks, with the time of each."""

        def call_event(handler: Any, event: str, *args: Any, **kwargs: Any) -> Any:
            callbacks = handler.callbacks
            if not self._clock.trains_here or type(callbacks) is not list:
                return original(handler, event, *args, **kwargs)
            handler.callbacks = timed = _Callbacks(callbacks, self._clock, event)
            try:
                return original(handler, event, *args, **kwargs)
            finally:
                if handler.callbacks is timed:
                    callbacks[:] = list.copy(timed)  # a callback may add another
                    handler.callbacks = callbacks

        return call_event

    def _timed_hook(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method of Lightning that is the context of each action of its Trainer."""

        @contextmanager
        def profile(profiler: Any, action: str) -> Iterator[Any]:
            match = _HOOK.match(action) if self._clock.trains_here else None
            within = self._clock.within("callbacks", f"{match[1]}.{match[2]}") if match else nullcontext()
            with within, original(profiler, action) as value:
                yield value

        return profile

    def _timed_trace(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return TensorFlow's tracing of a function, timed where it is not within another."""

        def trace(function_type: Any, type_context: Any, func_graph: Any, options: Any) -> Any:
            if self._tracing or not self._clock.trains_here:
                return original(function_type, type_context, func_graph, options)
            self._tracing = True
            name = str(getattr(options, "name", None) or "a function")
            reason = None
            with suppress(Exception):  # of internals that have changed: the training must continue
                reason = self._reason(name, function_type, options)
            if name == _KERAS_STEP and (method := running_method()):
                name = f"the step of {method}"
            try:
                with self._clock.within("program startup", _detail("tracing", name, reason)):
                    return original(function_type, type_context, func_graph, options)
            finally:
                self._tracing = False

        return trace

    def _reason(self, name: str, function_type: Any, options: Any) -> str | None:
        """Return why a function of TensorFlow is traced again, None for the first time."""
        living = [(each, last) for of, last in self._traced.get(name, []) if (each := of()) is not None]
        before = next((last for each, last in living if each.function_cache is options.function_cache), None)
        seen = name in self._traced
        rest = [(weakref.ref(each), last) for each, last in living if each.function_cache is not options.function_cache]
        self._traced[name] = [*rest[-LIMITS.functions :], (weakref.ref(options), function_type)]
        if before is not None:
            return _changes(before, function_type)
        return NEW_FUNCTION if seen and name != _KERAS_STEP and not name.startswith("Dataset_") else None

    def _on_event(self, event: str, duration: float, **facts: Any) -> None:
        if event.startswith(_JAX):
            work = event.removeprefix(_JAX).removesuffix("_duration").replace("_", " ")
            work = "compiling" if "compile" in work else "tracing" if "trace" in work else "lowering"
            now_ns = time.monotonic_ns()
            name = str(facts.get("fun_name") or "a function")
            again, reason = self._clock.again
            detail = _detail(work, name, reason if again in (name, name[4:-1]) else None)  # "f" and "jit(f)"
            self._clock.on_spent(Spent("program startup", detail, now_ns - round(duration * 1e9), now_ns))

    def _on_collection(self, phase: str, facts: dict[str, int]) -> None:
        if phase == "start":
            self._collecting_ns = time.monotonic_ns()
        else:
            now_ns = time.monotonic_ns()
            if now_ns - self._collecting_ns >= LIMITS.shortest_span_ns:  # most take microseconds
                detail = f"generation {facts.get('generation')}"
                self._clock.on_spent(Spent("garbage collection", detail, self._collecting_ns, now_ns))


class _Callbacks(list[Any]):
    """Callbacks that are timed while their handler goes through them."""

    def __init__(self, callbacks: list[Any], clock: StepClock, hook: str) -> None:
        super().__init__(callbacks)
        self._clock, self._hook = clock, hook

    def __iter__(self) -> Iterator[Any]:
        return self._clock.calls(list.__iter__(self), self._hook)


def _detail(work: str, name: str, reason: str | None) -> str:
    """Return what a framework does with a function, and the reason if it does so again."""
    return cut(f"{work} {name}") + (f" again for {cut(plain(reason), 120)}" if reason else "")


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


def _unregister(jax: Any, listener: Callable[..., None]) -> None:
    public = getattr(jax.monitoring, "unregister_event_duration_listener", None)
    private = getattr(sys.modules.get("jax._src.monitoring"), "_unregister_event_duration_listener_by_callback", None)
    if (unregister := public or private) is not None:
        with suppress(AssertionError, ValueError):  # the program has removed all
            unregister(listener)
