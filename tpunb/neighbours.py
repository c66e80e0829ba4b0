"""Gives way to the program's own profiler: a process has one at a time, and it is the program's before it is ours.

While a window of ours runs, TensorFlow refuses ``tf.profiler.experimental.start`` and keeps the session that it
refused, so that every later start fails; JAX takes the trace and fails when it is stopped. Every way to profile from
within the process, Keras' ``TensorBoard(profile_batch=...)`` and ``tf.summary.trace_on`` among them, makes one session
object of the framework's C++ binding, so that is where we listen, however the program got hold of the function.
"""

from __future__ import annotations

import os
import sys
import threading
import types
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import wraps
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from operator import attrgetter
from typing import Any


@dataclass(frozen=True)
class _Framework:
    """Where a framework's profiler is, in the versions that we know."""

    name: str
    module: str  # of the public functions' own code
    binding: str  # the name that this module has for the C++ binding with its ProfilerSession
    begins: str  # the method of a session that begins it
    ends: tuple[str, ...]  # those that end it; so does letting go of it
    keeps: str  # where the module keeps the running session
    public: str  # where users find the functions, from the framework's own module
    start: str
    stop: str
    client: str = ""  # the binding of a client of profiler services, which blocks in its `trace`

    def sessions(self) -> Any | None:
        """Return the C++ binding; None where this version has none that we know."""
        binding = getattr(sys.modules.get(self.module), self.binding, None)
        kind = getattr(binding, "ProfilerSession", None)
        return binding if isinstance(kind, type) and hasattr(kind, self.begins) else None

    def kept(self) -> object:
        """Return the session that the module takes for the running one."""
        try:
            return attrgetter(self.keeps)(sys.modules.get(self.module))
        except AttributeError:
            return None

    def free(self) -> None:
        """Let the module take none for the running one."""
        *path, name = self.keeps.split(".")
        holder = sys.modules[self.module]
        setattr(attrgetter(*path)(holder) if path else holder, name, None)


_FRAMEWORKS = (
    _Framework(
        "tensorflow",
        module="tensorflow.python.profiler.profiler_v2",
        binding="_pywrap_profiler",
        begins="start",
        ends=("stop", "export_to_tb"),
        keeps="_profiler",
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
        keeps="_profile_state.profile_session",
        public="profiler",
        start="start_trace",
        stop="stop_trace",
    ),
)


class Neighbours:
    """Tells when the program's own profiler runs, while the block does.

    Frameworks that are imported during the block are listened to from their import on; none is imported here.
    Afterwards all is as it was. A profiler that is left running at the end of the block is never told as stopped. In a
    forked process nothing is told.

    Parameters
    ----------
    give_way
        Called before each start of the program's profiler, in the thread that starts it, with the framework's name;
        returns when the profiler is free.
    go_on
        Called once no profiler of the program's runs any more; must not block.
    """

    def __init__(self, give_way: Callable[[str], None], go_on: Callable[[], None]) -> None:
        self._give_way, self._go_on = give_way, go_on
        self._lock = threading.RLock()  # letting go of a session may end it in the midst of anything
        self._running: set[object] = set()
        self._inside = False
        self._hooked: set[str] = set()
        self._undo = ExitStack()
        self._process = os.getpid()

    def __enter__(self) -> Neighbours:
        self._inside = True
        arrivals = _Arrivals({framework.name: self._listener(framework) for framework in _FRAMEWORKS})
        sys.meta_path.insert(0, arrivals)
        self._undo.callback(arrivals.leave)
        self.look()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside = False
            self._undo.close()

    def look(self) -> None:
        """Listen to frameworks that were in the midst of their import when the block began."""
        for framework in _FRAMEWORKS:
            module = None if framework.name in self._hooked else sys.modules.get(framework.name)
            if module is not None and not getattr(module.__spec__, "_initializing", False):
                self._listen(framework)

    def _listener(self, framework: _Framework) -> Callable[[], None]:
        return lambda: self._listen(framework)

    def _listen(self, framework: _Framework) -> None:
        with self._lock:
            if not self._inside or framework.name in self._hooked:
                return
            self._hooked.add(framework.name)
            binding = framework.sessions()
            if binding is not None:
                self._replace(binding, "ProfilerSession", self._session(framework, binding.ProfilerSession))
            else:
                self._replace_functions(framework)
            client = sys.modules.get(framework.client)
            if callable(trace := getattr(client, "trace", None)):
                self._replace(client, "trace", self._call(framework, trace))

    def _replace(self, holder: Any, name: str, new: Any) -> None:
        original = getattr(holder, name)

        def put_back() -> None:
            if getattr(holder, name, None) is new:  # else someone replaced ours in turn
                setattr(holder, name, original)

        setattr(holder, name, new)
        self._undo.callback(put_back)

    def _session(self, framework: _Framework, original: type) -> type:
        """Return the class of sessions that tell us when they begin and end."""
        begin = getattr(original, framework.begins)

        @wraps(begin)
        def beginning(session: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return self._start(framework.name, id(session), begin, session, *args, **kwargs)
            except BaseException:
                if framework.kept() is session:  # TensorFlow keeps what it refused
                    framework.free()
                raise

        def ending(name: str) -> Callable[..., Any]:
            end = getattr(original, name)

            @wraps(end)
            def method(session: Any, *args: Any, **kwargs: Any) -> Any:
                try:
                    return end(session, *args, **kwargs)
                except Exception as error:
                    # JAX's way to say that the session never began; it would keep it, and refuse every later one
                    if "ALREADY_EXISTS" in str(error) and framework.kept() is session:
                        framework.free()
                    raise
                finally:
                    self._stopped(id(session))

            return method

        methods: dict[str, Any] = {name: ending(name) for name in framework.ends if hasattr(original, name)}
        methods |= {
            framework.begins: beginning,
            "__del__": lambda session: self._stopped(id(session)),
            "__module__": original.__module__,
        }
        return types.new_class(original.__name__, (original,), exec_body=lambda body: body.update(methods))

    def _replace_functions(self, framework: _Framework) -> None:
        """Listen at the public functions, where there is no session class that we know."""
        try:
            users = attrgetter(framework.public)(sys.modules[framework.name])
            start, stop = getattr(users, framework.start), getattr(users, framework.stop)
        except AttributeError:
            return  # a version without a profiler

        @wraps(start)
        def started(*args: Any, **kwargs: Any) -> Any:
            return self._start(framework.name, framework.name, start, *args, **kwargs)

        @wraps(stop)
        def stopped(*args: Any, **kwargs: Any) -> Any:
            try:
                return stop(*args, **kwargs)
            finally:
                self._stopped(framework.name)

        pairs: list[tuple[Any, Any]] = [(start, started), (stop, stopped)]
        for function, ours in pairs:
            name = function.__name__
            for home in (users, sys.modules.get(function.__module__)):
                if getattr(home, name, None) is function:
                    self._replace(home, name, ours)

    def _call(self, framework: _Framework, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return `original`, which profiles for as long as it runs."""

        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            key = object()
            try:
                return self._start(framework.name, key, original, *args, **kwargs)
            finally:
                self._stopped(key)

        return call

    def _start(self, who: str, key: object, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Give way, then start; what fails to start does not run."""
        again = key in self._running  # a second start, to be refused, of what goes on
        try:
            self._starting(who, key)
            return original(*args, **kwargs)
        except BaseException:
            if not again:
                self._stopped(key)
            raise

    def _starting(self, who: str, key: object) -> None:
        if os.getpid() != self._process:
            return
        with self._lock:
            if not self._inside:
                return
            self._running.add(key)
        try:
            self._give_way(who)
        except Exception as broken:  # noqa: BLE001  a failure of ours is not to stop the program's profiler
            warnings.warn(f"the capture did not give way to {who}: {broken!r}", RuntimeWarning, stacklevel=2)

    def _stopped(self, key: object) -> None:
        if os.getpid() != self._process:
            return
        with self._lock:
            if key in self._running:
                self._running.discard(key)
                if not self._running and self._inside:
                    self._go_on()


class _Arrivals(MetaPathFinder):
    """Calls back once a module of one of these names has been imported; it finds none itself."""

    def __init__(self, calls: dict[str, Callable[[], None]]) -> None:
        self._calls = calls

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return what the other finders find, with a loader that calls back."""
        if fullname not in self._calls:
            return None
        others = (finder for finder in list(sys.meta_path) if finder is not self)
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Arriving(spec.loader, self._calls[fullname])
        return spec

    def leave(self) -> None:
        """Stop looking."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)


class _Arriving(Loader):
    """Loads a module as its own loader does, leaves no trace in it, and calls back when it is whole."""

    def __init__(self, loader: Any, call: Callable[[], None]) -> None:
        self._loader, self._call = loader, call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> types.ModuleType | None:
        """Return the module, or None for the usual one."""
        module: types.ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Run the module's code."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._call()
