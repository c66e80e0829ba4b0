"""Give the profiler to the program when it asks: a process has one, and the program comes before the capture.

While a window records, TensorFlow refuses the program's session and every later one; JAX fails when it is stopped.
Every way to profile within the process creates a session object of the library's C++ binding: its class is replaced.
"""

from __future__ import annotations

import os
import threading
import types
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

from tpunb.errors import warn_user
from tpunb.instrument.registry import Attribute, Library, Priority, loaded, replaced


@dataclass(frozen=True)
class Sessions:
    """Where the versions of a library have their profiler."""

    library: Library
    functions: tuple[tuple[Attribute, Attribute], ...]  # public ones that begin and end a session; the first that fit
    kind: Attribute | None = None  # the class of sessions in the C++ binding; without it, functions are wrapped
    begins: str = ""  # the method of a session that begins it
    ends: tuple[str, ...] = ()  # those that end it; so does its deletion
    keeps: tuple[str, ...] = ()  # where versions of the module keep the running session, or an object with it
    client: Attribute | None = None  # function of a client of profiler services, which blocks while it traces

    def classes(self) -> list[tuple[Any, str]]:
        """Return the place of the class of sessions; none if this version has no known one."""
        places = self.kind.places() if self.kind else []
        return [(owner, name) for owner, name in places if hasattr(getattr(owner, name), self.begins)]

    def free(self, session: object) -> None:
        """Clear the running session of the module if it is this one."""
        if session is None or self.kind is None:
            return
        for place in self.keeps:
            *path, name = place.split(".")
            holder = loaded(self.kind.home)
            for each in path:
                holder = getattr(holder, each, None)
            kept = getattr(holder, name, None)
            if session in (kept, getattr(kept, "_raw_session", None)):
                setattr(holder, name, None)


class ProfilerArbiter:
    """Report when the program's own profiler runs, while the block does; libraries are watched after their import.

    `on_profiler_start` is called before each start, in its thread, with the library's name, and returns when the
    profiler is free; `on_profiler_stop`, which must not block, once none runs any more, unless the block has ended.
    """

    def __init__(
        self,
        on_profiler_start: Callable[[str], None],
        on_profiler_stop: Callable[[], None],
        libraries: Sequence[Sessions],
    ) -> None:
        self._on_start, self._on_stop = on_profiler_start, on_profiler_stop
        self._libraries = libraries
        self._lock = threading.RLock()  # deleting a session may end it in the midst of anything
        self._running: set[object] = set()
        self._active = False
        self._undo = ExitStack()
        self._process = os.getpid()

    def __enter__(self) -> ProfilerArbiter:
        self._active = True
        for sessions in self._libraries:
            sessions.library.on_import(self._undo, partial(self._listen, sessions))
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._active = False
            self._undo.close()
            self._on_start, self._on_stop = lambda _: None, lambda: None  # the program may keep a replaced class

    def _listen(self, sessions: Sessions, stack: ExitStack) -> None:
        if places := sessions.classes():
            for owner, name in places:
                stack.enter_context(replaced(owner, name, self._session(sessions, getattr(owner, name))))
        else:
            for functions in sessions.functions:
                if all(function.places() for function in functions):
                    for function, role in zip(functions, ("begins", "ends"), strict=True):
                        self._wrap(function, sessions, lambda _: sessions.library.name, stack, **{role: True})
                    break
        if sessions.client is not None:
            self._wrap(sessions.client, sessions, lambda _: object(), stack, begins=True, ends=True)

    def _wrap(self, function: Attribute, sessions: Sessions, key_of: Any, stack: ExitStack, **role: bool) -> None:
        function.listen(lambda each: self._reporting(each, sessions, key_of, **role), Priority.CAPTURE, stack)

    def _session(self, sessions: Sessions, original: type) -> type:
        """Return a subclass of sessions that reports when they begin and end."""

        def method(name: str, **role: bool) -> Callable[..., Any]:
            return self._reporting(getattr(original, name), sessions, lambda args: id(args[0]), **role)

        methods: dict[str, Any] = {name: method(name, ends=True) for name in sessions.ends if hasattr(original, name)}
        methods |= {
            sessions.begins: method(sessions.begins, begins=True),
            "__del__": lambda session: self._stopped(id(session)),
            "__module__": original.__module__,
        }
        return types.new_class(original.__name__, (original,), exec_body=lambda body: body.update(methods))

    def _reporting(
        self,
        function: Callable[..., Any],
        sessions: Sessions,
        key_of: Callable[[tuple[Any, ...]], object],
        *,
        begins: bool = False,
        ends: bool = False,
    ) -> Callable[..., Any]:
        """Return a function that reports that it begins a session, ends it, or both."""

        @wraps(function)
        def reporting(*args: Any, **kwargs: Any) -> Any:
            key = key_of(args)
            again = key in self._running  # a second start of a running session, to be refused
            try:
                if begins:
                    self._free_profiler(sessions.library.name, key)
                return function(*args, **kwargs)
            except BaseException as error:
                # TensorFlow keeps a session that was refused, JAX one that never began: both would refuse later ones
                if begins or "ALREADY_EXISTS" in str(error):
                    sessions.free(next(iter(args), None))
                if begins and not again:
                    self._stopped(key)
                raise
            finally:
                if ends:
                    self._stopped(key)

        return reporting

    def _free_profiler(self, library: str, key: object) -> None:
        if os.getpid() != self._process:
            return
        with self._lock:
            if not self._active:
                return
            self._running.add(key)
        try:
            self._on_start(library)
        except Exception as error:  # noqa: BLE001  a failure of the capture must not stop the program's profiler
            warn_user(f"the capture could not free the profiler for {library}: {error!r}", RuntimeWarning, 2)

    def _stopped(self, key: object) -> None:
        if os.getpid() != self._process:
            return
        with self._lock:
            if key in self._running:
                self._running.discard(key)
                if not self._running and self._active:
                    self._on_stop()
