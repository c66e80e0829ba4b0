"""JAX: functions that it compiles and calls, arrays that the program waits for, annotated steps, its profiler.

JAX calls its hook after calls on its fast path alone; others, the first among them, go through a function in Python.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import cache, partial
from importlib import import_module
from time import monotonic_ns
from typing import Any

from tpunb.instrument.hooks import listen_to_annotations
from tpunb.instrument.profiler_sessions import Sessions
from tpunb.instrument.registry import Evidence, Library, Priority, around, loaded, wrapped
from tpunb.instrument.sink import NEW_FUNCTION, Signature, Sink, What

LIBRARY = Library("jax", "jax", ("0.4.35", "0.12.0"))

_FIRST_CALLS = 3  # of a function, whose arrays are described
_LEAVES = 16  # of a result, of which the smallest is kept
_SMALL_LEAF = 1024  # elements of an array that is kept while it is computed
_HOST_TRACER_LEVEL = 2  # 1 lacks names of operations, 3 has all of them at three times the cost

# -- calls of functions ------------------------------------------------------------------------------------------------

PYTHON_CALL = LIBRARY.attribute(
    *("jax._src.pjit", "_run_python_pjit", "p", "args_flat", "fun"), evidence=Evidence("call")
)


def _calls(sink: Sink, stack: ExitStack) -> None:
    """Record calls of functions, with what the first of each take and return."""
    jax, clock = sys.modules["jax"], sink.clock
    hook: Any = getattr(sys.modules.get("jax._src.api"), "_post_hook_state", None)
    _leave_frames_out(getattr(sys.modules.get("jax._src.source_info_util"), "register_exclusion", None))
    array, tracer, leaves = jax.Array, jax.core.Tracer, jax.tree_util.tree_leaves
    misses = _Misses()
    states = _States()

    def result(out: Any) -> Any:
        """Return an array to wait for: all of a result are done at once, and a small one takes no memory meanwhile."""
        if isinstance(out, array):
            return out
        smallest, size = None, 0
        for leaf in reversed(leaves(out)[-_LEAVES:]):
            if isinstance(leaf, array):
                if smallest is None or leaf.size < size:
                    smallest, size = leaf, leaf.size
                if size <= _SMALL_LEAF:
                    break
        return smallest

    def on_call(function: Any, name: object, begun_ns: int, now_ns: int, inputs: Any, out: Any) -> None:
        try:
            first = result(out)
            if isinstance(first, tracer):  # this is a call within a function that is traced
                return
            signature, home = None, str(getattr(function, "__module__", ""))
            if name is None:
                name = _name_within(function)
                home = _homes.get(name, home)
            name = str(name or "a function")
            what = What("jax", home, getattr(function, "__qualname__", name))
            if not what.is_part_of_steps and not states.are_clear(name):
                taken, returned = leaves(inputs), leaves(out)
                signature = Signature.of(taken, returned, states.repeats(name, taken, returned))
            sink.called(name, begun_ns, now_ns, first, what=what, signature=signature)
        except Exception as error:  # noqa: BLE001  must never reach the training
            sink.fail(error)

    if hasattr(hook, "set_global") and hasattr(hook, "get_local"):

        def after_call(function: Any, inputs: Any, out: Any) -> None:
            if sink.is_training():
                now_ns = monotonic_ns()
                on_call(function, getattr(function, "__name__", None), now_ns, now_ns, inputs, out)

        _hook_calls(hook, sys.modules.get("jax._src.config"), after_call, stack)

    def python_call(slow: Callable[..., Any], p: Any, args_flat: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        begun_ns = monotonic_ns()
        # the name that the fast path has: a partial function, or an object that is called, has none itself
        name = getattr(p, "params", {}).get("name") or getattr(function, "__name__", None)
        before, clock.again = clock.again, (str(name), misses.reason(name, function, args_flat))
        try:
            value = slow(p, args_flat, function, *args, **kwargs)
        finally:
            clock.again = before
        if sink.is_training():
            on_call(function, name, begun_ns, monotonic_ns(), args_flat, value[0])
        return value

    PYTHON_CALL.listen(around(python_call), Priority.CAPTURE, stack)


@cache
def _leave_frames_out(exclude: Callable[[str], None] | None) -> None:
    """Let the line of an operation be that of the program, not that of a function around its call."""
    if exclude is not None:
        exclude(__file__)
        exclude(around.__code__.co_filename)


_homes = dict[str, str]()
"""Modules of functions that were traced, by name: the last of each."""


def _name_within(function: Any) -> str:
    """Return the name of a function that JAX calls as it takes gradients outside of all; it has no such attribute."""
    with suppress(Exception):  # of internals that have changed
        return str(function.__getstate__()["function_name"])
    return ""


class _Misses:
    """Functions and arguments that JAX has compiled for, for the reason why it compiles again."""

    def __init__(self) -> None:
        self._last: dict[tuple[object, object], tuple[Any, list[str]]] = {}  # by name and code

    def reason(self, name: object, function: Any, inputs: Any) -> str | None:
        """Return why a function is compiled again, None for the first time; one made anew is the same."""
        with suppress(Exception):  # a function that cannot be referred to, or arguments of another kind
            if any(isinstance(leaf, sys.modules["jax"].core.Tracer) for leaf in inputs):
                return None  # a part of what is compiled now
            now = [f"{leaf.dtype}{[*leaf.shape]}" for leaf in inputs if hasattr(leaf, "shape")]
            key = name, function.__code__
            of, before = self._last.get(key, (None, now))
            self._last[key] = weakref.ref(function), now
            if of is None:
                return None
            changed = [f"{new} (before: {old})" for old, new in zip(before, now, strict=False) if old != new]
            if changed or len(before) != len(now):
                return ", ".join(changed[:2]) or "another number of arguments"
            return "another static argument" if of() is function else NEW_FUNCTION
        return None


class _States:
    """What functions took and returned in their first calls: one that takes the same state again updates none."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, list[Any], list[Any]]] = {}  # calls, taken, returned

    def are_clear(self, name: str) -> bool:
        """Return whether no more calls need to be looked at."""
        return self._last.get(name, (0,))[0] >= _FIRST_CALLS

    def repeats(self, name: str, taken: list[Any], returned: list[Any]) -> str | None:
        """Return "taken" if a function took the state of its last call, or "returned" if what that returned."""
        calls, *before = self._last.get(name, (0, [], []))
        # arrays of other libraries may not be referred to
        taken, made = ([leaf for leaf in each if type(leaf).__weakrefoffset__] for each in (taken, returned))
        kinds = {*map(_kind, returned)} - {None}  # of a state, if it returns one
        state = [leaf for leaf in taken if _kind(leaf) in kinds]
        made = [leaf for leaf in made if _kind(leaf)]
        self._last[name] = calls + 1, [*map(weakref.ref, state)], [*map(weakref.ref, made)]
        took, gave = ({id(ref()) for ref in refs} for refs in before)
        now = {id(leaf) for leaf in state}
        return "returned" if gave & now else "taken" if took and took <= now else None


def _kind(leaf: Any) -> tuple[object, object] | None:
    return None if getattr(leaf, "size", 1) <= 1 else (getattr(leaf, "shape", None), getattr(leaf, "dtype", None))


def _hook_calls(hook: Any, config: Any, after_call: Callable[[Any, Any, Any], None], stack: ExitStack) -> None:
    """Add to the hook of JAX, which finds NaNs; whenever that is switched, JAX sets the hook anew."""
    active = [after_call]
    stack.callback(active.clear)

    def added(jax_hook: Any) -> Any:
        def ours(function: Any, args: Any, kwargs: Any, out: Any) -> None:
            if jax_hook is not None:
                jax_hook(function, args, kwargs, out)
            for call in active:
                call(function, (args, kwargs), out)

        ours.jax_hook = jax_hook  # type: ignore[attr-defined]
        return ours

    def add(get: Callable[[], Any], put: Callable[[Any], None]) -> None:
        jax_hook = get()
        if jax_hook is None or (
            callable(jax_hook) and not hasattr(jax_hook, "jax_hook")
        ):  # else it is not set in this thread
            put(added(jax_hook))

    def remove(get: Callable[[], Any], put: Callable[[Any], None]) -> None:
        if hasattr(jax_hook := get(), "jax_hook"):
            put(jax_hook.jax_hook)

    places = (hook.get_global, hook.set_global), (hook.get_local, hook.set_local)
    for place in places:
        add(*place)
        stack.callback(remove, *place)
    for name in ("debug_nans", "debug_infs"):
        for attribute, place in zip(("_update_global_hook", "_update_thread_local_hook"), places, strict=True):
            if callable(getattr(state := getattr(config, name, None), attribute, None)):

                def switching(switch: Callable[[Any], None], place: Any = place) -> Callable[[Any], None]:
                    def switched(value: Any) -> None:
                        switch(value)
                        add(*place)

                    return switched

                stack.enter_context(wrapped(state, attribute, switching))


# -- functions that take gradients -------------------------------------------------------------------------------------

VJP = LIBRARY.attribute("jax", "vjp")
TRACE = LIBRARY.attribute("jax._src.pjit", "_infer_params", evidence=Evidence("trace"))


def _gradients(sink: Sink, stack: ExitStack) -> None:
    """Record which functions take gradients: as one is traced, or another that calls it."""
    learns, learning = [False], set[str]()  # whether what is traced now does; functions that do

    def differentiate(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        value = original(*args, **kwargs)
        learns[0] = learns[0] or sink.is_training()  # only now: what it has called takes none
        return value

    def trace(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not sink.is_training():
            return original(*args, **kwargs)
        outer, learns[0] = learns[0], False
        try:
            found = original(*args, **kwargs)
            name = found[0].params["name"]
            with suppress(Exception):  # of arguments that have changed
                _homes[name] = str(getattr(args[0], "__module__", ""))
            if learns[0] or name in learning:  # it was traced before
                learning.add(name)
                sink.takes_gradients(name, what=What.of("jax", args[0]))
                outer = True
            return found
        finally:
            learns[0] = outer

    VJP.listen(around(differentiate), Priority.CAPTURE, stack)
    TRACE.listen(around(trace), Priority.CAPTURE, stack)


# -- waits for arrays --------------------------------------------------------------------------------------------------

WAITS = (
    LIBRARY.attribute("jax", "block_until_ready"),
    LIBRARY.attribute("jax._src.array", "ArrayImpl.block_until_ready"),
    LIBRARY.attribute("jax._src.array", "ArrayImpl._value"),
)


def _waits(sink: Sink, stack: ExitStack) -> None:
    """Record when the program has waited for an array, or read it."""
    clock = sink.clock

    def waiting(original: Callable[..., Any]) -> Callable[..., Any]:
        what = What.of(LIBRARY.name, original)

        def wait(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            begun_ns = monotonic_ns()
            value = original(*args, **kwargs)
            if sink.is_training():
                clock.in_flight.returned(now_ns := monotonic_ns())
                clock.events.add("wait", what, None, begun_ns, now_ns)
            return value

        return wait

    for attribute in WAITS:
        attribute.listen(waiting, Priority.CAPTURE, stack)


# -- steps that the program annotates ----------------------------------------------------------------------------------

ANNOTATION = tuple(
    LIBRARY.attribute("jax.profiler", f"StepTraceAnnotation.{name}") for name in ("__init__", "__enter__", "__exit__")
)


def _annotations(sink: Sink, stack: ExitStack) -> None:
    listen_to_annotations(sink, ANNOTATION, stack)


# -- compilation -------------------------------------------------------------------------------------------------------

_COMPILES = "/jax/core/compile/"  # begins the names of its events of tracing, lowering and compilation
WORKS = tuple(  # internals, for those who see them in stacks alone
    LIBRARY.attribute(home, path, optional=True, evidence=Evidence(event))
    for home, path, event in (
        ("jax._src.pjit", "_resolve_and_lower", "trace"),
        ("jax._src.interpreters.pxla", "MeshComputation.compile", "compile"),
    )
)


def _cache(config: Any) -> str:
    """Return which programs are kept for later runs: "all", "slow" ones, or "none"."""
    if not getattr(config, "jax_compilation_cache_dir", None) or not getattr(config, "jax_enable_compilation_cache", 1):
        return "none"
    return "slow" if getattr(config, "jax_persistent_cache_min_compile_time_secs", 0) > 0 else "all"


def _compilations(sink: Sink, stack: ExitStack) -> None:
    """Record what it traces, lowers and compiles, and whether it keeps that."""
    jax, clock = sys.modules["jax"], sink.clock

    def on_event(event: str, duration: float, **facts: Any) -> None:
        if event.startswith(_COMPILES):
            now_ns, work = monotonic_ns(), event.removeprefix(_COMPILES)
            kind = "compile" if "compile" in work else "trace" if "trace" in work else "lower"
            name = str(facts.get("fun_name") or "a function")
            again, reason = clock.again
            if kind == "compile":
                clock.metadata["cache"] = _cache(jax.config)
            what, start_ns = What(LIBRARY.name, "", name), now_ns - round(duration * 1e9)
            clock.past(kind, what, start_ns, now_ns, reason if again in (name, name[4:-1]) else None)  # or "jit(f)"

    def unregister() -> None:
        public = getattr(jax.monitoring, "unregister_event_duration_listener", None)
        private = getattr(loaded("jax._src.monitoring"), "_unregister_event_duration_listener_by_callback", None)
        if (remove := public or private) is not None:
            with suppress(AssertionError, ValueError):  # the program has removed all
                remove(on_event)

    jax.monitoring.register_event_duration_secs_listener(on_event)
    stack.callback(unregister)


# -- the first signs of a training -------------------------------------------------------------------------------------

TRAINS = (
    LIBRARY.attribute("jax", "grad"),
    LIBRARY.attribute("jax", "value_and_grad"),
    LIBRARY.attribute("jax", "distributed.initialize"),
)
"""What is called first where a process trains."""


def process_group() -> tuple[int, int] | None:
    """Return rank and size of the group of processes that the program has initialised; None without one."""
    with suppress(Exception):  # internals that have changed
        state = sys.modules["jax._src.distributed"].global_state  # other looks at it would start the devices
        if state.client is not None and state.num_processes > 1:
            return state.process_id, state.num_processes
    return None


# -- its profiler ------------------------------------------------------------------------------------------------------

SESSIONS = Sessions(
    LIBRARY,
    functions=(
        (  # of versions that have a class of sessions
            LIBRARY.attribute("jax", "profiler.ProfileSession.start", optional=True),
            LIBRARY.attribute("jax", "profiler.ProfileSession.stop", optional=True),
        ),
        (LIBRARY.attribute("jax", "profiler.start_trace"), LIBRARY.attribute("jax", "profiler.stop_trace")),
    ),
    kind=LIBRARY.attribute("jax._src.profiler", "_profiler.ProfilerSession", optional=True),
    begins="__init__",
    ends=("stop", "stop_and_export", "stop_and_get_profile_data"),
    keeps=("_profile_state.profile_session", "_profile_state.session"),  # up to JAX 0.11, and from 0.12 on
)


class Window:
    """A session of its profiler in this process, which opens no port; `programs` are all that it has compiled."""

    def __init__(self, *, programs: bool = False) -> None:
        library = import_module("jax._src.lib")
        profiler = getattr(library, "_profiler", None) or library.xla_client.profiler
        options = profiler.ProfileOptions()
        # compiled programs are all of the process, each time: too much for every window
        options.include_dataset_ops, options.enable_hlo_proto = True, programs
        options.host_tracer_level, options.python_tracer_level = 0 if programs else _HOST_TRACER_LEVEL, 0
        if hasattr(options, "raise_error_on_start_failure"):  # a version without it refuses as the session ends
            options.raise_error_on_start_failure = True
        self._session = profiler.ProfilerSession(options)

    def collect(self) -> bytes:
        """End it; return its XSpace."""
        return bytes(self._session.stop())


def computes() -> bool:
    """Return whether the program has imported it and initialised its devices."""
    if LIBRARY.module() is None:
        return False
    check = getattr(loaded("jax._src.xla_bridge"), "backends_are_initialized", None)
    return bool(check()) if callable(check) else True  # unknown in this version: assume it once it is imported


def devices() -> list[str]:
    """Return the names of its devices in this process."""
    return [str(device) for device in sys.modules["jax"].local_devices()]


def on_gpu() -> bool:
    """Return whether it computes on GPUs."""
    return any(device.platform == "gpu" for device in sys.modules["jax"].local_devices())


def annotation(kind: str, number: int) -> AbstractContextManager[Any]:
    """Return its annotation of a step."""
    trace: AbstractContextManager[Any] = sys.modules["jax"].profiler.StepTraceAnnotation(kind, step_num=number)
    return trace


# ----------------------------------------------------------------------------------------------------------------------


def listen(sink: Sink, stack: ExitStack) -> None:
    """Listen to it until the stack is closed."""
    LIBRARY.on_import(
        stack, *(partial(part, sink) for part in (_calls, _gradients, _waits, _annotations, _compilations))
    )
