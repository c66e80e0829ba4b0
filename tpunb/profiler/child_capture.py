"""Capture each Python process of ``tpunb run`` that imports a framework.

``tpunb run`` copies this file as ``sitecustomize.py`` into a folder that it puts first on ``PYTHONPATH``. It may be the
interpreter of another environment: until a framework is imported, the standard library alone is, and no failure here
ends the program.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import re
import sys
from contextlib import ExitStack, suppress
from itertools import count
from typing import Any

FRAMEWORKS = ("jax", "keras", "tensorflow", "torch")
HOOK, REQUEST = "sitecustomize", "request.json"
ANCESTOR = "TPUNB_RUN_ANCESTOR"
QUIET = "KINETO_LOG_LEVEL"  # what PyTorch's profiler prints; the capture sets it
"""Variable with process, rank and state ("captures" or "") of the process that started this one."""

_RANKS = {  # the variables of a process' rank, with those of their number
    "RANK": "WORLD_SIZE",
    "JAX_PROCESS_ID": "JAX_NUM_PROCESSES",
    "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE",
    "SLURM_PROCID": "SLURM_NTASKS",
}
_WORKER = re.compile(r"--multiprocessing-fork|from multiprocessing\.\w+ import|\bloky\b")


def rank() -> str:
    """Return the rank of this process in its job, "" if it is alone."""
    for name, size in _RANKS.items():
        alone = "1" if name == "SLURM_PROCID" else ""  # a batch script has this variable too
        if (value := os.environ.get(name, "")).isdecimal() and os.environ.get(size, alone) != "1":
            return str(int(value))
    return ""


def run_of(folder: str, name: str) -> str:
    """Return the run folder of a process by its name in the job.

    >>> run_of("runs/bert", "1"), run_of("runs/bert", "2"), run_of("runs/bert", "rank0")
    ('runs/bert', 'runs/bert-2', 'runs/bert/rank0')
    """
    if name.startswith("rank"):
        return f"{folder}/{name}"
    return folder if name == "1" else f"{folder}-{name}"


class FrameworkFinder:
    """Finder of modules that begins the capture as the first framework is imported."""

    def __init__(self, hook: str) -> None:
        self._hook = hook
        self._process, self._rank = os.getpid(), rank()
        ancestor, self._ancestor_rank, self._state = os.environ.get(ANCESTOR, "::").split(":")
        self._is_worker = any(map(_WORKER.search, sys.orig_argv))
        self._is_worker |= self._state != "" and ancestor != str(self._process)  # not after os.exec
        if not self._is_worker:
            self._announce("")
        self._begun = False
        self._capture = ExitStack()
        self._run: Any = None

    def _announce(self, state: str) -> None:
        os.environ[ANCESTOR] = f"{self._process}:{self._rank}:{state}"

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        """Return the spec that the finders behind have for a framework, with a loader that reports its import."""
        if name not in FRAMEWORKS or self not in sys.meta_path:  # the program may call it in a finder of its own
            return None
        behind = sys.meta_path[sys.meta_path.index(self) + 1 :]  # finders before this one may ask it again
        others = (getattr(finder, "find_spec", None) for finder in behind)
        spec = next((spec for find in others if find is not None and (spec := find(name, path, target))), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader, self)
        return spec

    def begin(self) -> None:
        """Begin the capture, unless this process is a worker or has begun it."""
        if self._begun or self._captured_elsewhere():
            return
        self._begun = True
        try:
            self._begin()
        except Exception as error:  # noqa: BLE001  the program must continue
            self._report(error)

    def _captured_elsewhere(self) -> bool:
        """Return whether this process works for another one, and has no rank of its own."""
        forked = os.getpid() != self._process
        other = self._rank if forked else self._ancestor_rank
        return (forked or self._is_worker) and rank() in ("", other)

    def _begin(self) -> None:
        from types import SimpleNamespace

        variables = dict(os.environ)
        from tpunb.profiler import capture
        from tpunb.profiler.options import capture_arguments

        with open(os.path.join(self._hook, REQUEST), encoding="utf-8") as file:  # noqa: PTH118, PTH123  as light as can be
            request = json.load(file)
        self._process, self._rank = os.getpid(), rank()
        name = self._name(request["folder"])
        arguments = capture_arguments(SimpleNamespace(**request["options"]))
        self._run = self._capture.enter_context(capture.capture(run_of(request["folder"], name), **arguments))
        self._run._session.defers = True
        for variable in os.environ.keys() - variables.keys() - {QUIET}:  # set by libraries that only the capture needs
            del os.environ[variable]
        os.environ.update(variables)
        capture.on_other_capture.append(self.end)
        with open(os.path.join(self._hook, name), "w", encoding="utf-8") as file:  # noqa: PTH118, PTH123
            file.write(str(self._run.path))
        atexit.register(self.end)
        self._announce("captures")

    def _name(self, folder: str) -> str:
        """Return the name of this process in the job: its rank, or a number that no other process has."""
        if self._rank:
            return f"rank{self._rank}"
        for number in map(str, count(1)):
            if number == "1" or not os.path.exists(run_of(folder, number)):  # noqa: PTH110
                with suppress(FileExistsError), open(os.path.join(self._hook, number), "x"):  # noqa: PTH118, PTH123
                    return number
        raise AssertionError  # of infinitely many numbers one is free

    def on_import(self, module: Any) -> None:
        """Record the framework from its first use on, and end the capture before what it does at the exit."""
        if self._run is not None and os.getpid() == self._process:
            module.__spec__._initializing = False  # as the import system sets it in a moment
            sys.modules["tpunb.profiler.capture"].on_import()
            atexit.unregister(self.end)
            atexit.register(self.end)

    def end(self) -> None:
        """End the capture as the program ended: with an exception, or without."""
        if self._run is None or os.getpid() != self._process:
            return
        self._run = None
        error = getattr(sys, "last_value", None)
        try:
            self._capture.__exit__(*(None, None, None) if error is None else (type(error), error, None))
        except BaseException as failure:  # noqa: BLE001  nobody is left to catch it
            if failure is not error:
                self._report(failure)

    def _report(self, error: BaseException) -> None:
        line = f"{type(error).__name__}: {error}".partition("\n")[0]
        with suppress(Exception):
            from tpunb.text import format_error

            line = format_error(error)
        if sys.__stderr__ is not None:
            with suppress(OSError, ValueError):  # it may be closed
                print(f"tpunb: the capture of process {os.getpid()} failed: {line}", file=sys.__stderr__, flush=True)


class _Loader:
    """Loader of a framework that begins the capture before, and leaves no trace in the module."""

    def __init__(self, loader: Any, finder: FrameworkFinder) -> None:
        self._loader, self._finder = loader, finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        self._finder.begin()
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        with suppress(Exception):  # the program must continue
            self._finder.on_import(module)


def _start(hook: str) -> None:
    """Watch the imports of this process, and run the ``sitecustomize`` that this one hides."""
    sys.path[:] = [path for path in sys.path if path != hook]
    with suppress(Exception):  # the program must continue
        sys.meta_path.insert(0, FrameworkFinder(hook))
    this = sys.modules.pop(HOOK)
    try:
        importlib.import_module(HOOK)
    except ModuleNotFoundError as error:
        if error.name != HOOK:
            raise
        sys.modules[HOOK] = this


if __name__ == HOOK:
    _start(os.path.dirname(__file__))  # noqa: PTH120
