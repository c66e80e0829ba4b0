"""Profile this process by ``torch.profiler``: a session of its own for each window, over all threads.

PyTorch has no profiler service, so the session runs in the thread of the capture. It records other threads only with
``profile_all_threads``, which versions before 2.7 lack (pytorch pull request 143659).
"""

from __future__ import annotations

import math
import os
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tpunb.errors import MissingExtra, TpunbError
from tpunb.instrument import torch
from tpunb.profiler.limits import LIMITS
from tpunb.profiler.sources.between_steps import BetweenSteps
from tpunb.profiler.sources.frameworks import NotInUse, facts_of
from tpunb.text import format_error


class Modules:
    """Spans of the modules of PyTorch that run, which its profiler records, named as it does with stacks.

    Each call from outside in an evaluation, which may have no steps that end a window, calls `on_evaluation`.
    """

    def __init__(self, on_evaluation: Callable[[], None] = lambda: None) -> None:
        self._on_evaluation = on_evaluation
        self._names = dict[int, str]()  # by id: a module of the program may have no hash
        self._counts = Counter[str]()
        self._open = threading.local()
        self._hooks = list[Any]()

    def start(self, *, spans: bool) -> None:
        """Add hooks to all modules; for the thread that trains, between two steps."""
        thread = threading.get_ident()
        with suppress(AttributeError, ImportError):  # versions without a part of it
            from torch import is_grad_enabled
            from torch._C._profiler import _RecordFunctionFast as Span  # not an operator, which tracing would record

            def turn(*_: Any) -> None:
                if not is_grad_enabled() and threading.get_ident() == thread and not self._stack():
                    self._on_evaluation()

            def enter(of: Any, _: Any) -> None:
                turn()
                if not self._hooks:  # that was the end of the window
                    return
                name = self._names.get(id(of)) or self._named(of)
                span = Span(name)
                span.__enter__()
                self._stack().append((name, span))

            def leave(of: Any, _: Any, __: Any) -> None:
                stack = self._stack()
                if stack and stack[-1][0] == self._names.get(id(of)):
                    stack.pop()[1].__exit__(None, None, None)

            self._hooks.append(torch.add_module_hook("register_module_forward_pre_hook", enter if spans else turn))
            if spans:
                self._hooks.append(torch.add_module_hook("register_module_forward_hook", leave, always_call=True))

    def _named(self, module: Any) -> str:
        kind = type(module).__name__
        self._names[id(module)] = name = f"nn.Module: {kind}_{self._counts[kind]}"
        self._counts[kind] += 1
        return name

    def _stack(self) -> list[tuple[str, Any]]:
        stack: list[tuple[str, Any]] = self._open.__dict__.setdefault("stack", [])
        return stack

    def stop(self) -> None:
        """Remove the hooks."""
        while self._hooks:
            self._hooks.pop()()


class Torch:
    """The process itself, by the profiler of PyTorch; wait until the program has imported it.

    Raises
    ------
    MissingExtra
        On start, if PyTorch is not installed.
    """

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._tracing = False
        self._windows = self._evaluations = 0
        self._shapes = self._starts = False
        self._longest_s = math.inf  # window, whose trace is not too large
        self.between = BetweenSteps()

    def __repr__(self) -> str:
        return "Torch()"

    def start(self) -> None:
        """Check that PyTorch is installed; it is not imported."""
        if not torch.LIBRARY.is_installed:
            raise MissingExtra("torch is not installed", hint="pip install torch")
        self.silence()

    @staticmethod
    def silence() -> None:
        """Let its profiler, which reads the level as it begins, print nothing, unless the program says otherwise."""
        os.environ.setdefault("KINETO_LOG_LEVEL", "100")

    def facts(self) -> dict[str, Any]:
        """Return its version, its devices and the CPU."""
        return {} if torch.LIBRARY.module() is None else facts_of(torch)

    def announce(self, reason: str) -> None:
        """Let a first window, or the first of a phase, record shapes and modules; at the start it ends early."""
        self._shapes = reason == "new phase" or not self._windows
        self._starts = reason == "start" and not self._windows

    def window(self, seconds: float) -> bytes:
        """Profile for `seconds` and return the Chrome trace.

        Raises
        ------
        NotInUse
            When `stop` is called before PyTorch has been imported, or its profiler is not available.
        TpunbError
            When its profiler fails after the first window.
        """
        self._stopped.clear()
        while not torch.profiles_all_threads() or torch.is_importing():
            if self._stopped.wait(LIMITS.import_look_s):
                raise NotInUse
        modules = Modules(self._evaluates)
        try:
            probes = not self._windows and self.between.boundaries > 1
            # a step shows how large the trace of a window is
            data = self._trace(0.0, modules, spans=False) if probes else b""
            if not (probes and self._stopped.is_set()):
                data = self._trace(min(seconds, self._longest_s), modules, spans=self._shapes)
            self._windows += 1
            return data
        except NotInUse:
            raise
        except Exception as error:
            if not self._windows:  # the program may profile
                raise NotInUse from error
            raise TpunbError(f"the profiler of PyTorch failed: {format_error(error)}") from error
        finally:
            modules.stop()  # the program may have been interrupted

    def _evaluates(self) -> None:
        """Do what is due where a model is called in an evaluation; for the thread that trains."""
        self._evaluations += 1
        self.between.turn()

    def _trace(self, seconds: float, modules: Modules, *, spans: bool) -> bytes:
        session = torch.profiler_session(shapes=self._shapes)

        def start() -> tuple[float, int]:
            if (
                self._stopped.is_set() and self.between.boundaries
            ):  # the program ends: Python may not wait for the end of a session
                raise NotInUse
            with warnings.catch_warnings():  # in the program's thread, which sets no filters meanwhile
                warnings.simplefilter("ignore")
                session.start()
            # what torch.compile has made holds only without hooks: a first step would show whether it is used
            if self.between.boundaries > 1 and not torch.compiles():
                modules.start(spans=spans)
            return time.monotonic(), self.between.boundaries

        def stop() -> tuple[float, int]:
            ended_s, boundaries = time.monotonic(), self.between.boundaries
            modules.stop()
            session.stop()
            return ended_s, boundaries

        # that of all threads must not begin or end while one computes (the comment on ``addGlobalCallback`` in
        # record_function.h): it ends the process, once in ten trainings
        begun_s, before = self.between.call(start, self._stopped)
        self._evaluations = 0
        self._tracing = True
        try:
            while (left_s := begun_s + seconds - time.monotonic()) > 0 and not self._has_enough(begun_s, before):
                if self._stopped.wait(min(left_s, LIMITS.plan_s)):
                    break
        finally:
            self._tracing = False
            ended_s, after = self.between.call(stop, self._stopped)
        with TemporaryDirectory(prefix="tpunb-") as folder:
            path = Path(folder, "window.json")
            session.export_chrome_trace(str(path))
            data = path.read_bytes()
        if after > before:
            fewest_s = LIMITS.fewest_steps * (ended_s - begun_s) / (after - before)
            self._longest_s = max(LIMITS.largest_trace * (ended_s - begun_s) / max(len(data), 1), fewest_s)
        return data

    def _has_enough(self, begun_s: float, boundaries: int) -> bool:
        """Return whether a first window, which may be due before any step was timed, has enough steps or calls."""
        steps = self.between.boundaries - boundaries + self._evaluations
        long = time.monotonic() - begun_s >= LIMITS.shortest_window_s
        return self._starts and long and steps >= LIMITS.enough_steps + LIMITS.cut_steps

    def boundary(self) -> None:
        """Do what is due between steps; for the thread that trains."""
        self.between.boundary()

    @property
    def is_due(self) -> bool:
        """Whether a session waits for a boundary."""
        return self.between.is_due

    def stop(self) -> None:
        """End the running window; it returns what it has recorded."""
        self._stopped.set()

    def step(self, kind: str, number: int) -> AbstractContextManager[Any]:
        """Annotate a step in the window, as ``torch.profiler`` names steps; nothing in a profile of the program."""
        if not self._tracing:
            return nullcontext()
        return torch.annotation(kind, number)
