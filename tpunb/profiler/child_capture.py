"""Capture each Python process of ``tpunb run`` that imports a framework.

``tpunb run`` copies this file as ``sitecustomize.py`` into a folder that it puts first on ``PYTHONPATH``. It may be the
interpreter of another environment: until a framework is imported, the standard library alone is, and no failure here
ends the program.

A process that a captured program starts is mostly a worker: its capture begins as it trains. What a process was is
decided afterwards, by what it recorded: `tpunb.io.job_folder`.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import re
import sys
import time
from contextlib import ExitStack, suppress
from itertools import count
from typing import Any

FRAMEWORKS = ("jax", "keras", "tensorflow", "torch")
HOOK, REQUEST = "sitecustomize", "request.json"
ANCESTOR = "TPUNB_RUN_ANCESTOR"
TRIAL = "TPUNB_TRIAL"  # set in a process that tries a remedy
QUIET = "KINETO_LOG_LEVEL"  # what PyTorch's profiler prints; the capture sets it
"""Variable with process, rank and state of the process that started this one: "program" or "command" (a library's)
if it is captured, else ""."""

_RANKS = {  # the variables of a process' rank, with those of their number
    "RANK": "WORLD_SIZE",
    "JAX_PROCESS_ID": "JAX_NUM_PROCESSES",
    "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK": "PMI_SIZE",
    "SLURM_PROCID": "SLURM_NTASKS",
    "LOCAL_RANK": "WORLD_SIZE",  # alone in the ranks that Lightning starts
}
_ALONE = {"SLURM_PROCID", "LOCAL_RANK"}  # without a number of processes: a batch script has the first, too
_WORKER = re.compile(r"--multiprocessing-fork|from multiprocessing\.\w+ import|\bloky\b")
_JOBS = "hydra.core.utils"  # runs the jobs of a search, mostly one after the other in a process


def rank() -> str:
    """Return the rank of this process in its job by its environment, "" if it is alone."""
    return process_group()[0]


def process_group() -> tuple[str, str]:
    """Return rank and number of processes by the environment, "" for what is unknown, or if there is one."""
    for name, size in _RANKS.items():
        number = os.environ.get(size, "1" if name in _ALONE else "")
        on_first_node = name != "LOCAL_RANK" or os.environ.get("NODE_RANK", "0") == "0"
        if (value := os.environ.get(name, "")).isdecimal() and number != "1" and on_first_node:
            return str(int(value)), number
    return "", ""


class FrameworkFinder:
    """Finder of modules that begins the capture as the first framework is imported, or in a worker as it trains."""

    def __init__(self, hook: str) -> None:
        self._hook = hook
        self._process, self._rank = os.getpid(), rank()
        ancestor, self._ancestor_rank, self._ancestor = os.environ.get(ANCESTOR, "::").split(":")
        if ancestor == str(self._process):  # before os.exec
            self._ancestor = ""
        self._is_spawned = any(map(_WORKER.search, sys.orig_argv))
        if not self._is_spawned and self._ancestor == "":
            self._announce("")
        self._begun, self._is_forked, self._in_job = False, False, False
        self._imported_ns = 0  # when the first framework was imported
        self._imported: list[str] = []  # frameworks
        self._capture, self._jobs = ExitStack(), ExitStack()
        self._run: Any = None
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._on_fork)

    def _announce(self, state: str) -> None:
        os.environ[ANCESTOR] = f"{self._process}:{self._rank}:{state}"

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        """Return the spec that the finders behind have for a library, with a loader that reports its import."""
        if name not in (*FRAMEWORKS, _JOBS) or self not in sys.meta_path:  # a finder of the program may call it
            return None
        behind = sys.meta_path[sys.meta_path.index(self) + 1 :]  # finders before this one may ask it again
        others = (getattr(finder, "find_spec", None) for finder in behind)
        spec = next((spec for find in others if find is not None and (spec := find(name, path, target))), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader, self)
        return spec

    def on_framework(self) -> None:
        """Begin the capture as a framework is imported, unless this process must train first."""
        self._imported_ns = self._imported_ns or time.monotonic_ns()
        if not self._may_be_worker():
            self.begin()

    def begin(self) -> None:
        """Begin the capture, unless it has begun."""
        if self._begun:
            return
        self._begun = True
        try:
            self._begin()
        except Exception as error:  # noqa: BLE001  the program must continue
            self._report(error)

    def _may_be_worker(self) -> bool:
        """Return whether a captured program has started this process, without a rank of its own."""
        if rank() not in ("", self._ancestor_rank):
            return False
        return (
            self._is_forked
            or self._is_spawned
            or self._ancestor == "program"
            or (self._ancestor != "" and _is_command())
        )

    def _on_fork(self) -> None:
        """Become the finder of a process without a capture: only that of the parent continues."""
        self._of_parent = self._capture, self._run  # to leave its block would end its run
        self._capture, self._run, self._begun, self._is_forked = ExitStack(), None, False, True
        self._ancestor_rank = self._rank
        if self._imported:
            self._imported_ns = time.monotonic_ns()
            for name in self._imported:
                self._watch(name)

    def _watch(self, framework: str) -> None:
        """Begin the capture at the first call of a framework that trains."""
        with suppress(Exception):  # an environment without the package; the program must continue
            for function in importlib.import_module(f"tpunb.instrument.{framework}").TRAINS:
                function.before_next(self.begin)

    def _begin(self) -> None:
        from types import SimpleNamespace

        variables, registry = dict(os.environ), importlib.import_module("tpunb.instrument.registry")
        in_fork = self._is_forked and registry.loaded("polars") is not None
        # by name: the package knows this module, and not the other way round
        capture: Any = importlib.import_module("tpunb.profiler.capture")
        capture_arguments = importlib.import_module("tpunb.profiler.options").capture_arguments
        with open(os.path.join(self._hook, REQUEST), encoding="utf-8") as file:  # noqa: PTH118, PTH123  as light as can be
            request = json.load(file)
        parent = os.environ.get(ANCESTOR, "::").split(":")[0] if self._is_spawned or self._is_forked else ""
        self._process, self._rank = os.getpid(), rank()
        place = self._place(request["folder"])
        capture.of_program[:] = [capture.ProgramCapture(self._imported_ns, parent, in_fork)]
        options = capture_arguments(SimpleNamespace(**request["options"]))
        if self._is_forked:
            capture.forget_parent()
        if in_fork:
            options |= {"schedule": capture.Schedule.ticks(), "stacks": False}
        self._run = self._capture.enter_context(capture.capture(place, **options))
        if TRIAL in os.environ:
            importlib.import_module("tpunb.training.tried_process").begin(self._capture, self._run)
        self._run._session.defers = True
        for variable in os.environ.keys() - variables.keys() - {QUIET}:  # set by libraries that only the capture needs
            del os.environ[variable]
        os.environ.update(variables)
        capture.on_other_capture.append(self.end)
        with open(os.path.join(self._hook, os.path.basename(place)), "w", encoding="utf-8") as file:  # noqa: PTH118, PTH119, PTH123
            file.write(str(self._run.path))
        atexit.register(self.end)
        importlib.import_module("tpunb.instrument.python").at_exit_of_worker(self.end)
        self._announce("command" if _is_command() else "program")

    def _place(self, folder: str) -> str:
        """Return the run folder of this process within that of the job, which no other process has."""
        for number in map(str, count(1)):
            name = f"process{number}"
            if self._rank:
                name = f"rank{self._rank}" + (f".{number}" if number != "1" else "")
            place = f"{folder}/{name}"
            if not os.path.exists(place):  # noqa: PTH110
                with suppress(FileExistsError), open(os.path.join(self._hook, name), "x"):  # noqa: PTH118, PTH123
                    return place
        raise AssertionError  # of infinitely many numbers one is free

    def _on_job(self) -> None:
        """End the capture of the job before this one, and begin another: each is a run."""
        if self._in_job and self._run is not None:
            self.end()
            self._begun, self._imported_ns = False, time.monotonic_ns()
            self.begin()
        self._in_job = True

    def on_import(self, module: Any) -> None:
        """Record the framework from its first use on, and end the capture before what it does at the exit."""
        name = module.__name__
        if name == _JOBS:
            importlib.import_module("tpunb.instrument.hydra").before_each_job(self._on_job, self._jobs)
            return
        self._imported.append(name)
        if not self._begun:
            self._watch(name)
        elif self._run is not None and os.getpid() == self._process:
            importlib.import_module("tpunb.instrument.registry").check_imports(name)
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
    """Loader of a library that begins the capture before a framework, and leaves no trace in the module."""

    def __init__(self, loader: Any, finder: FrameworkFinder) -> None:
        self._loader, self._finder = loader, finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        if spec.name in FRAMEWORKS:
            self._finder.on_framework()
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        with suppress(Exception):  # the program must continue
            self._finder.on_import(module)


def _is_command() -> bool:
    """Return whether the main program is a library's, such as ``torchrun``, not the user's."""
    import sysconfig

    name = "__main__"
    if sys.argv[:1] == ["-m"]:  # the package of the main module is being imported
        name = sys.orig_argv[sys.orig_argv.index("-m") + 1].partition(".")[0]
    file = getattr(sys.modules.get(name), "__file__", None)
    places = [sysconfig.get_path(name) for name in ("scripts", "purelib", "platlib", "stdlib")]
    return file is not None and os.path.abspath(file).startswith(tuple(f"{place}{os.sep}" for place in places))  # noqa: PTH100


def _start(hook: str) -> None:
    """Watch the imports of this process, and run the ``sitecustomize`` that this one hides."""
    sys.path[:] = [path for path in sys.path if path != hook]
    if TRIAL in os.environ:
        try:
            importlib.import_module("tpunb.training.tried_process").guard()
        except BaseException as error:  # noqa: BLE001  without it the program might write what it must not
            print(f"tpunb: a trial cannot begin: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
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
