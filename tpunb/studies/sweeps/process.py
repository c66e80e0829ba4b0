"""The process in which the points of a sweep run: asked, watched, ended, and started again."""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil

from tpunb.studies.sweeps.points import Request, Setup

SHARE = 0.8
"""Share of the free memory that the process may take."""

_START_S = 120.0  # for its imports

_TICK_S = 0.1  # between two looks at its memory


class PointProcess:
    """A process that measures points, started when first asked; `watts` returns the power of the device now."""

    def __init__(self, setup: Setup, watts: Callable[[], float] | None = None) -> None:
        self._setup, self._watts = setup, watts
        self._process: subprocess.Popen[bytes] | None = None
        self._replies: queue.Queue[Any] = queue.Queue()
        self.limit = 0

    def ask(self, request: Request, patience: float) -> dict[str, Any]:
        """Return the reply to a request; of a process that ends, or exceeds its limits or `patience` s, the state."""
        if self._process is None:
            self.start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        power, asked = list[float](), time.monotonic()
        try:
            process.stdin.write(pickle.dumps(request))
            process.stdin.flush()
        except OSError:
            pass  # it has ended
        while True:
            try:
                reply = self._replies.get(timeout=_TICK_S)
            except queue.Empty:
                reply = self._trouble(process, time.monotonic() - asked > patience, patience)
            if reply is None:
                self.close()
                code = process.wait()
                cause = f"by signal {-code}" if code < 0 else f"with code {code}"
                return {"state": f"failed: its process ended {cause}"}
            if reply:
                return dict(reply) | {"watts": sum(power) / len(power) if power else None}
            if self._watts is not None:
                power.append(float(self._watts()))

    def _trouble(self, process: subprocess.Popen[bytes], is_late: bool, patience: float) -> dict[str, Any]:
        """End a process that takes too much memory or time; return the state of its point, or an empty one."""
        try:
            used = psutil.Process(process.pid).memory_info().rss
        except psutil.Error:
            return {}  # it has ended, as its replies will show
        if used <= self.limit and not is_late:
            return {}
        self.close()
        return {"state": "out of memory" if used > self.limit else f"failed: no answer in {patience:.0f} s"}

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def start(self) -> None:
        """Start the process, and wait until it has imported what it needs."""
        import cloudpickle

        free = psutil.virtual_memory().available
        self.limit = int(SHARE * free)
        replies: queue.Queue[Any] = queue.Queue()
        self._replies = replies
        self._process = process = subprocess.Popen(
            [sys.executable, "-c", "from tpunb.studies.sweeps.points import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=tempfile.TemporaryFile(),  # noqa: SIM115  closed with the process
            start_new_session=True,  # an interrupt of the cell is not for it
            env=os.environ | _environment(),
        )
        assert process.stdin is not None
        paths = [path or os.getcwd() for path in sys.path]  # noqa: PTH109
        process.stdin.write(pickle.dumps(paths) + cloudpickle.dumps(self._setup._replace(memory=free)))
        process.stdin.flush()

        def read() -> None:
            assert process.stdout is not None
            while True:
                try:
                    replies.put(pickle.load(process.stdout))
                except (EOFError, OSError, pickle.UnpicklingError):
                    replies.put(None)
                    return

        threading.Thread(target=read, daemon=True, name="tpunb sweep").start()
        replies.get(timeout=_START_S)  # it has begun: its imports are not the time of a point


def _environment() -> dict[str, str]:
    """Return what is added to the environment: the paths of imports, and Keras' backend of this process."""
    variables = {"PYTHONPATH": os.pathsep.join(path or "." for path in sys.path), "TF_CPP_MIN_LOG_LEVEL": "3"}
    keras = sys.modules.get("keras")
    if keras is not None and "KERAS_BACKEND" not in os.environ:
        variables["KERAS_BACKEND"] = keras.backend.backend()
    return variables
