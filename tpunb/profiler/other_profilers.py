"""Give the profiler to the program when it asks: a process has one, and the program comes before the capture.

While a window records, TensorFlow refuses the program's session and every later one; JAX fails when it is stopped.
Every way to profile within the process creates a session object of the framework's C++ binding: its class is patched.
"""

from __future__ import annotations

import os
import sys
import threading
import types
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial, wraps
from operator import attrgetter
from typing import Any

from tpunb.errors import warn_user
from tpunb.instrument.registry import replaced, watching, wrapped


@dataclass(frozen=True)
class _Framework:
    """Where supported versions of a framework have their profiler."""

    name: str
    module: str  # that implements the public functions
    binding: str  # its name for the C++ binding with its ProfilerSession
    begins: str  # the method of a session that begins it
    ends: tuple[str, ...]  # those that end it; so does its deletion
    keeps: tuple[str, ...]  # where versions of the module keep the running session, or an object with it
    public: str  # the public functions' namespace in the framework
    start: str
    stop: str
    session: str = ""  # the public class of sessions, in versions that have one; the functions call its start and stop
    client: str = ""  # the binding of a client of profiler services, which blocks in its `trace`

    def sessions(self) -> Any | None:
        """Return the C++ binding; None if this version has no known one."""
        binding = getattr(sys.modules.get(self.module), self.binding, None)
        kind = getattr(binding, "ProfilerSession", None)
        return binding if isinstance(kind, type) and hasattr(kind, self.begins) else None

    def free(self, session: object) -> None:
        """Clear the running session of the module if it is this one."""
        if session is None:
            return
        for place in self.keeps:
            *path, name = place.split(".")
            holder = sys.modules.get(self.module)
            for each in path:
                holder = getattr(holder, each, None)
            kept = getattr(holder, name, None)
            if session in (kept, getattr(kept, "_raw_session", None)):
                setattr(holder, name, None)


_FRAMEWORKS = (
    _Framework(
        "tensorflow",
        module="tensorflow.python.profiler.profiler_v2",
        binding="_pywrap_profiler",
        begins="start",
        ends=("stop", "export_to_tb"),
        keeps=("_profiler",),
        public="profiler.experimental",
        start="start",
        stop="stop",
        client="tensorflow.python.profiler.internal._pywrap_profiler_plugin",
    ),
    _Framework(
        "jax",
        module="jax._src.profiler",
        binding="_profiler",
        begins="__init__",
        ends=("stop", "stop_and_export", "stop_and_get_profile_data"),
        keeps=("_profile_state.profile_session", "_profile_state.session"),  # up to JAX 0.11, and from 0.12 on
        public="profiler",
        start="start_trace",
        stop="stop_trace",
        session="ProfileSession",
    ),
    _Framework(
        "torch",
        module="torch.autograd.profiler",
        binding="",  # sessions have no class: functions begin and end them
        begins="",
        ends=(),
        keeps=(),
        public="autograd.profiler",
        start="_prepare_profiler",
        stop="_disable_profiler",
    ),
)


class ProfilerArbiter:
    """Report when the program's own profiler runs, while the block does; frameworks are patched after their import.

    `on_profiler_start` is called before each start, in its thread, with the framework's name, and returns when the
    profiler is free; `on_profiler_stop`, which must not block, once none runs any more, unless the block has ended.
    """

    def __init__(self, on_profiler_start: Callable[[str], None], on_profiler_stop: Callable[[], None]) -> None:
        self._on_start, self._on_stop = on_profiler_start, on_profiler_stop
        self._lock = threading.RLock()  # deleting a session may end it in the midst of anything
        self._running: set[object] = set()
        self._active = False
        self._undo = ExitStack()
        self._process = os.getpid()

    def __enter__(self) -> ProfilerArbiter:
        self._active = True
        for each in _FRAMEWORKS:
            self._undo.enter_context(watching(each.name, partial(self._patch, each)))
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._active = False
            self._undo.close()
            self._on_start, self._on_stop = lambda _: None, lambda: None  # the program may keep a patched class

    def _patch(self, framework: _Framework, stack: ExitStack) -> None:
        binding = framework.sessions()
        if binding is not None:
            patched = self._session(framework, binding.ProfilerSession)
            stack.enter_context(replaced(binding, "ProfilerSession", patched))
        else:
            self._replace_functions(framework, stack)
        client = sys.modules.get(framework.client)
        if callable(getattr(client, "trace", None)):
            self._wrap(stack, client, "trace", framework, lambda args: object(), begins=True, ends=True)

    def _wrap(self, stack: ExitStack, holder: Any, name: str, framework: _Framework, key_of: Any, **role: bool) -> None:
        stack.enter_context(wrapped(holder, name, lambda each: self._reporting(each, framework, key_of, **role)))

    def _session(self, framework: _Framework, original: type) -> type:
        """Return a subclass of sessions that reports when they begin and end."""

        def method(name: str, **role: bool) -> Callable[..., Any]:
            return self._reporting(getattr(original, name), framework, lambda args: id(args[0]), **role)

        methods: dict[str, Any] = {name: method(name, ends=True) for name in framework.ends if hasattr(original, name)}
        methods |= {
            framework.begins: method(framework.begins, begins=True),
            "__del__": lambda session: self._stopped(id(session)),
            "__module__": original.__module__,
        }
        return types.new_class(original.__name__, (original,), exec_body=lambda body: body.update(methods))

    def _replace_functions(self, framework: _Framework, stack: ExitStack) -> None:
        """Patch the public functions of a version without a known session class."""
        try:
            users = attrgetter(framework.public)(sys.modules[framework.name])
            if framework.session and hasattr(users, framework.session):
                users = getattr(users, framework.session)
                start, stop = users.start, users.stop
            else:
                start, stop = getattr(users, framework.start), getattr(users, framework.stop)
        except AttributeError:
            return  # a version without a profiler
        for function, role in ((start, "begins"), (stop, "ends")):
            name = function.__name__
            for holder in (users, sys.modules.get(function.__module__)):
                if getattr(holder, name, None) is function:
                    self._wrap(stack, holder, name, framework, lambda args: framework.name, **{role: True})

    def _reporting(
        self,
        function: Callable[..., Any],
        framework: _Framework,
        key_of: Callable[[tuple[Any, ...]], object],
        *,
        begins: bool = False,
        ends: bool = False,
    ) -> Callable[..., Any]:
        """Return `function` patched to report that it begins a session, ends it, or both."""

        @wraps(function)
        def patched(*args: Any, **kwargs: Any) -> Any:
            key = key_of(args)
            again = key in self._running  # a second start of a running session, to be refused
            try:
                if begins:
                    self._free_profiler(framework.name, key)
                return function(*args, **kwargs)
            except BaseException as error:
                # TensorFlow keeps a session that was refused, JAX one that never began: both would refuse later ones
                if begins or "ALREADY_EXISTS" in str(error):
                    framework.free(next(iter(args), None))
                if begins and not again:
                    self._stopped(key)
                raise
            finally:
                if ends:
                    self._stopped(key)

        return patched

    def _free_profiler(self, framework: str, key: object) -> None:
        if os.getpid() != self._process:
            return
        with self._lock:
            if not self._active:
                return
            self._running.add(key)
        try:
            self._on_start(framework)
        except Exception as error:  # noqa: BLE001  a failure of the capture must not stop the program's profiler
            warn_user(f"the capture could not free the profiler for {framework}: {error!r}", RuntimeWarning, 2)

    def _stopped(self, key: object) -> None:
        if os.getpid() != self._process:
            return
        with self._lock:
            if key in self._running:
                self._running.discard(key)
                if not self._running and self._active:
                    self._on_stop()
