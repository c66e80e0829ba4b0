"""Reduce the windows of a capture in a process of its own.

What reduces them takes a second to load, and 110,000 objects that each collection of garbage visits. In the process of
the training it would hold the interpreter lock meanwhile, and while it reads the traces of PyTorch, which are text.
"""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import psutil

from tpunb.errors import TpunbError
from tpunb.profiler.limits import LIMITS
from tpunb.profiler.step_clock import StepRecord
from tpunb.profiler.windows import ReducedWindow, WindowResponse

_CODE = """
import os
if hasattr(os, "fork") and os.fork():  # no child of the program, which may wait for all of its children
    os._exit(0)
import sys
sys.path[:] = {paths!r}
from tpunb.profiler import reducer_process
reducer_process.main({process})
"""

_STATE = "hardware", "local_worker", "phase", "phases"


class ReducerProcess:
    """A `Reducer` in a process of its own, for one thread; EOFError or OSError once that has ended."""

    def __init__(self, host: str, origin_ns: int) -> None:
        self.host, self.origin_ns = host, origin_ns
        self.hardware: dict[str, list[dict[str, Any]]] = {}
        self.local_worker: str | None = None
        self.phase: int | None = None
        self.phases = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process, which loads what reduces windows."""
        if "python" not in os.path.basename(sys.executable or "").lower() or getattr(sys, "frozen", False):  # noqa: PTH119
            raise FileNotFoundError("this process runs no Python interpreter that can be started again")
        paths = [path or os.getcwd() for path in sys.path]  # noqa: PTH109
        command = [sys.executable, "-I", "-c", _CODE.format(paths=paths, process=os.getpid())]
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        # an interrupt of the program is not for it
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=null, start_new_session=True)
        if hasattr(os, "fork"):
            self._process.wait()
        self._send(self.host, self.origin_ns)

    def _send(self, *request: object) -> None:
        if self._process is None or self._process.stdin is None:
            raise EOFError("the process that reduces windows has ended")
        pickle.dump(request, self._process.stdin, pickle.HIGHEST_PROTOCOL)
        self._process.stdin.flush()

    def _ask(self, name: str, *arguments: object) -> Any:
        """Return what a method of the reducer returns, and take over its state."""
        self._send(name, arguments)
        assert self._process is not None
        assert self._process.stdout is not None
        answer, state = pickle.load(self._process.stdout)
        vars(self).update(zip(_STATE, state, strict=True))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def reduce(self, response: WindowResponse, records: Sequence[StepRecord]) -> ReducedWindow:
        """Return the statistics of a window, as `Reducer.reduce`."""
        workers = {
            worker: TpunbError(str(data)) if isinstance(data, TpunbError) else data  # of a source of the program
            for worker, data in response.workers.items()
        }
        reduced: ReducedWindow = self._ask("reduce", replace(response, workers=workers), records)
        of_hosts = {worker or self.host: data for worker, data in workers.items() if isinstance(data, bytes)}
        reduced.raw = {host: of_hosts[host] for host in reduced.raw}
        return reduced

    def programs(self, data: bytes, ran: Mapping[int, set[str]]) -> dict[int, tuple[str, bytes]]:
        """Return programs that an XSpace holds, as `Reducer.programs`; none once the process has ended."""
        with suppress(EOFError, OSError):
            return self._ask("programs", data, ran)  # type: ignore[no-any-return]
        return {}

    def end(self) -> None:
        """End the process, whatever it does; for any thread."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError, ValueError):
                self._process.stdin.close()

    def close(self) -> None:
        """End the process, and release what is left of it."""
        self.end()
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()
            self._process.wait()
        self._process = None


def main(program: int) -> None:
    """Answer the requests of a capture in the process `program`, until it ends."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):  # a library may print
        os.dup2(null, stream)
    with suppress(OSError, AttributeError):  # of Windows
        os.nice(LIMITS.reducer_nice)
    received: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def receive() -> None:
        with suppress(Exception):
            while True:
                received.put(pickle.load(requests))
        os._exit(0)

    threading.Thread(target=receive, daemon=True).start()
    from tpunb.io import xplane
    from tpunb.profiler.reducer import Reducer

    xplane.warm()
    reducer = Reducer(*received.get())
    while True:
        try:
            name, arguments = received.get(timeout=LIMITS.reducer_look_s)
        except queue.Empty:
            if not psutil.pid_exists(program):  # a process that it forked may hold the pipe
                os._exit(0)
            continue
        try:
            answer = getattr(reducer, name)(*arguments)
            if isinstance(answer, ReducedWindow):
                answer.raw = dict.fromkeys(answer.raw, b"")
        except Exception as error:  # noqa: BLE001  raised in the capture
            answer = RuntimeError(f"{type(error).__name__}: {error}")
        pickle.dump((answer, [getattr(reducer, each) for each in _STATE]), replies, pickle.HIGHEST_PROTOCOL)
        replies.flush()
