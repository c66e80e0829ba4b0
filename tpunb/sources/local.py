"""Our own process, by the profiler server of the framework that it uses."""

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
from tpunb.io.profiler_service import ProfilerClient, ServiceError
from tpunb.sources.frameworks import annotation, in_use, installed

_READY_S = 20.0
_COMPUTED = re.compile(rb"Pjit|PjRt")  # what JAX calls on the host when it computes
_REST = 8
_AGAIN_S = 0.5  # beyond a window's length, until a session that is not known must be over
_LOOK_S = 0.05  # how often we look whether a framework has come into use

_servers: dict[str, tuple[str, Any]] = {}
"""The profiler servers of this process: by framework, the address and what keeps it open."""

_of_the_parent: list[Any] = []


def _leave_to_the_parent() -> None:
    """Know of no server in a forked process; but let none go either, for their threads are not there to end them."""
    _of_the_parent.extend(_servers.values())
    _servers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_the_parent)


def serve(framework: str) -> str:
    """Return the address of this process's own profiler server of a framework, opened unless it is.

    It listens on a free port, is opened once a process, and stays. Both frameworks bind it to all interfaces of the
    machine and offer no other way; we reach it by loopback. A server of the program's own is none of our business.

    Raises
    ------
    CaptureBusy
        When it does not answer.
    """
    if framework not in _servers:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        address = f"127.0.0.1:{port}"
        server = _open[framework](port)
        client = ProfilerClient(address)
        try:
            client.wait_ready(_READY_S)
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
    """Open a server beside the one that ``jax.profiler.start_server`` allows, which stays the program's own."""
    library = import_module("jax._src.lib")
    profiler = getattr(library, "_profiler", None) or library.xla_client.profiler
    return profiler.start_server(port)  # which lives as long as what comes back


_open = {"tensorflow": _open_tensorflow, "jax": _open_jax}


def _devices(framework: str) -> list[str]:
    module = sys.modules[framework]
    if framework == "jax":
        return [str(device) for device in module.local_devices()]
    return [device.name for device in module.config.list_logical_devices()]


class Local:
    """Our own process, whichever framework it uses; one that comes into use later is waited for.

    Raises
    ------
    MissingExtra
        When started where neither TensorFlow nor JAX is installed.
    """

    def __init__(self) -> None:
        self._windows = 0
        self._session = ""
        self._clients: dict[str, ProfilerClient] = {}
        self._watching: ProfilerClient | None = None
        self._jax_rests = 0  # windows that are TensorFlow's, where both are in use
        self._stopped = threading.Event()
        self._facts: dict[str, Any] = {}

    def __repr__(self) -> str:
        return "Local()"

    def start(self) -> None:
        """Open the server of the framework in use, if there is one yet."""
        if not installed():
            raise MissingExtra(
                "neither tensorflow nor jax is installed", hint="pip install 'tpunb[tensorflow]' or 'tpunb[jax]'"
            )
        for framework in in_use()[:1]:
            self._client(framework)

    def facts(self) -> dict[str, Any]:
        """Return the framework that was watched last, its version and devices."""
        return dict(self._facts)

    def _client(self, framework: str) -> ProfilerClient:
        if framework not in self._clients:
            self._clients[framework] = ProfilerClient(serve(framework))
        version = sys.modules[framework].__version__
        self._facts = {"framework": framework, "framework_version": version, "devices": _devices(framework)}
        return self._clients[framework]

    def _likely(self, frameworks: tuple[str, ...]) -> str:
        """Return which of the frameworks in use to watch: of both JAX, unless it was lately seen to compute nothing.

        TensorFlow often stands beside JAX to read its data, and JAX in a notebook where it was used before.
        """
        if len(frameworks) == 1 or not self._jax_rests:
            return frameworks[0]
        self._jax_rests -= 1
        return frameworks[1]

    def window(self, seconds: float) -> bytes:
        """Watch for `seconds`; before that wait for a framework, as long as it takes."""
        self._stopped.clear()
        while not (frameworks := in_use()):
            if self._stopped.wait(_LOOK_S):
                raise TpunbError(
                    "neither TensorFlow nor JAX has come into use", hint="nothing else has a profiler that we know"
                )
        framework = self._likely(frameworks)
        try:
            data = self._ask(self._client(framework), seconds)
        except ServiceError as error:
            raise TpunbError(str(error)) from error
        finally:
            self._watching = None
        if framework == "jax":
            self._jax_rests = 0 if _COMPUTED.search(data) else _REST
        return data

    def _ask(self, client: ProfilerClient, seconds: float) -> bytes:
        """Ask for a window; for the first once more, where the service says that another session runs.

        Under load that has been seen of a server that was just opened, and of which nobody else knew.
        """
        self._windows += 1
        self._session = f"tpunb-{id(self):x}-{self._windows}"  # unique, so that `stop` ends this window alone
        self._watching = client
        try:
            return client.window(seconds, self._session)
        except ServiceError as error:
            if not error.busy or self._windows > 1 or self._stopped.wait(seconds + _AGAIN_S):
                raise
        return self._ask(client, seconds)

    def stop(self) -> None:
        """End the running window; it returns with what it has seen."""
        self._stopped.set()
        if (client := self._watching) is None:
            return
        try:
            client.terminate(self._session)
        except ServiceError as error:
            raise TpunbError(str(error)) from error

    def step(self, mark: str, number: int) -> AbstractContextManager[Any]:
        """Open the annotation of a step by the framework in use."""
        return annotation(mark, number)
