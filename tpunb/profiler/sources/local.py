"""Profile this process, by the profiler server of the framework that it uses."""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

from tpunb.errors import CaptureBusy, MissingExtra, TpunbError
from tpunb.frames.hardware import this_cpu
from tpunb.profiler.limits import LIMITS
from tpunb.profiler.service_client import ProfilerClient, ServiceError
from tpunb.profiler.sources import jax_gpu
from tpunb.profiler.sources.frameworks import NotInUse, annotation, in_use, installed
from tpunb.profiler.sources.torch import Torch, usable

_COMPUTED = re.compile(rb"Pjit|PjRt")  # host events of JAX when it computes

_servers: dict[str, tuple[str, Any]] = {}
"""The profiler servers of this process by framework: address, and the object that keeps it open."""

_of_the_parent: list[Any] = []


def _leave_to_the_parent() -> None:
    """Forget the servers in a forked process, but keep them referenced: the threads to close them do not exist."""
    _of_the_parent.extend(_servers.values())
    _servers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_the_parent)


def serve(framework: str) -> str:
    """Return the address of this process's profiler server for a framework; open it, until the process ends, if needed.

    Both frameworks bind it to all interfaces and offer no alternative. A server that the program opened is not used.
    """
    if framework not in _servers:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        address = f"127.0.0.1:{port}"
        server = _open[framework](port)
        client = ProfilerClient(address)
        try:
            client.wait_ready(LIMITS.ready_s)
        except ServiceError as error:
            raise CaptureBusy(
                f"the profiler server of {framework}: {error}", hint="try again: its port was taken"
            ) from error
        finally:
            client.close()
        _servers[framework] = (address, server)
    return _servers[framework][0]


def _open_tensorflow(port: int) -> None:
    sys.modules["tensorflow"].profiler.experimental.server.start(port)


def _open_jax(port: int) -> Any:
    """Open a server beside the one that ``jax.profiler.start_server`` allows, which stays the program's."""
    library = import_module("jax._src.lib")
    profiler = getattr(library, "_profiler", None) or library.xla_client.profiler
    return profiler.start_server(port)  # open as long as the returned object exists


_open = {"tensorflow": _open_tensorflow, "jax": _open_jax}


def _devices(framework: str) -> list[str]:
    module = sys.modules[framework]
    if framework == "jax":
        return [str(device) for device in module.local_devices()]
    return [device.name for device in module.config.list_logical_devices()]


class Local:
    """The process itself, whichever framework it uses; wait for one that is used later.

    `Torch` takes the windows while neither TensorFlow nor JAX is in use and the program has imported PyTorch.

    Raises
    ------
    MissingExtra
        On start, if neither TensorFlow nor JAX nor PyTorch is installed.
    """

    def __init__(self) -> None:
        self._windows = 0
        self._session = ""
        self._clients: dict[str, ProfilerClient] = {}
        self._active: ProfilerClient | None = None
        self._jax_rests = 0  # windows left to TensorFlow, if both are in use
        self._stopped = threading.Event()
        self._facts: dict[str, Any] = {}
        self._torch = Torch()

    def __repr__(self) -> str:
        return "Local()"

    def start(self) -> None:
        """Open the server of the framework in use, if there is one yet."""
        if not installed():
            raise MissingExtra(
                "neither tensorflow nor jax nor torch is installed",
                hint="pip install 'tpunb[tensorflow]' or 'tpunb[jax]'",
            )
        self._torch.silence()
        for framework in in_use()[:1]:
            self._client(framework)

    def facts(self) -> dict[str, Any]:
        """Return the framework that was profiled last, its version and devices, and the CPU."""
        return dict(self._facts)

    def _client(self, framework: str) -> ProfilerClient:
        if framework not in self._clients:
            self._clients[framework] = ProfilerClient(serve(framework))
        version = sys.modules[framework].__version__
        facts = {"framework": framework, "framework_version": version, "devices": _devices(framework)}
        self._facts = facts | {"cpu": this_cpu()}
        return self._clients[framework]

    def _choose(self, frameworks: tuple[str, ...]) -> str:
        """Return the framework to profile: of both JAX, unless its last window showed no computation."""
        # TensorFlow often reads the data of JAX, and JAX may have been used earlier in a notebook
        if len(frameworks) == 1 or not self._jax_rests:
            return frameworks[0]
        self._jax_rests -= 1
        return frameworks[1]

    def announce(self, reason: str) -> None:
        """Say why the next window is requested."""
        self._torch.announce(reason)

    def window(self, seconds: float) -> bytes:
        """Profile for `seconds`, once a framework is in use.

        Raises
        ------
        NotInUse
            When `stop` is called before.
        TpunbError
            When the profiler refuses.
        """
        self._stopped.clear()
        while not (frameworks := in_use()):
            if usable():
                self._facts = self._torch.facts()
                return self._torch.window(seconds)
            if self._stopped.wait(LIMITS.import_look_s):
                raise NotInUse
        framework = self._choose(frameworks)
        try:
            client = self._client(framework)
            profiler = jax_gpu.binding() if framework == "jax" else None
            if profiler is None:
                data = self._request(client, seconds)
            else:
                data = jax_gpu.window(profiler, seconds, self._torch.between, self._stopped)
        except ServiceError as error:
            raise TpunbError(str(error)) from error
        finally:
            self._active = None
        if framework == "jax":
            self._jax_rests = 0 if _COMPUTED.search(data) else LIMITS.jax_rest_windows
        return data

    def _request(self, client: ProfilerClient, seconds: float) -> bytes:
        """Request a window; retry the first once: under load, a new server reports a session that nobody opened."""
        self._windows += 1
        self._session = f"tpunb-{id(self):x}-{self._windows}"  # unique, so that `stop` ends this window alone
        self._active = client
        try:
            return client.window(seconds, self._session)
        except ServiceError as error:
            if not error.busy or self._windows > 1 or self._stopped.wait(seconds + LIMITS.busy_retry_s):
                raise
        return self._request(client, seconds)

    def programs(self) -> bytes:
        """Return an XSpace that holds the compiled programs of the framework that was profiled last."""
        client = self._clients.get(self._facts.get("framework", ""))
        try:
            return b"" if client is None else client.programs(f"tpunb-{id(self):x}-programs-{self._windows}")
        except ServiceError as error:
            raise TpunbError(str(error)) from error

    def stop(self) -> None:
        """End the running window; it returns what it has recorded."""
        self._stopped.set()
        self._torch.stop()
        if (client := self._active) is None:
            return
        try:
            client.terminate(self._session)
        except ServiceError as error:
            raise TpunbError(str(error)) from error

    def boundary(self) -> None:
        """Do what is due between steps; for the thread that trains."""
        self._torch.boundary()

    @property
    def is_due(self) -> bool:
        """Whether a session waits for a boundary."""
        return self._torch.is_due

    def step(self, kind: str, number: int) -> AbstractContextManager[Any]:
        """Annotate a step by every framework in use."""
        return annotation(kind, number) if in_use() else self._torch.step(kind, number)
