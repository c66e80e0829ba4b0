"""Where a capture's windows come from: a source starts, gives one window after another, stops, and marks steps."""

from __future__ import annotations

import socket
import sys
from contextlib import AbstractContextManager
from typing import Any, Protocol

from tpunb.errors import CaptureBusy, TpunbError, need
from tpunb.io.profiler_service import ProfilerClient, ServiceError

_READY_SECONDS = 20.0


class Source(Protocol):
    """Where windows come from."""

    def start(self) -> dict[str, Any]:
        """Get ready; return facts for ``run.json``: framework, version, devices."""

    def window(self, seconds: float) -> bytes:
        """Watch for `seconds` and return an XSpace; `TpunbError` with one line of why it cannot."""

    def stop(self) -> None:
        """End the window that is being watched, if there is one."""

    def step(self, mark: str, number: int) -> AbstractContextManager[Any]:
        """Mark a step in the profile."""


class Local:
    """Our own process, by TensorFlow's own profiler server.

    The server is opened once a process, on a free port, and stays. TensorFlow binds it to all interfaces of the
    machine and offers no other way; we reach it by loopback.
    """

    _address: str | None = None  # of the one server of this process

    def __init__(self) -> None:
        self._session = ""
        self._windows = 0

    def start(self) -> dict[str, Any]:
        """Open the server, unless this process has one already, and wait until it answers."""
        tf = need("tensorflow", extra="tensorflow")
        address = Local._address
        if address is None:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            tf.profiler.experimental.server.start(port)
            address = f"127.0.0.1:{port}"
        self._client = ProfilerClient(address)
        try:
            self._client.wait_ready(_READY_SECONDS)
        except ServiceError as error:
            raise CaptureBusy(f"TensorFlow's profiler server: {error}", hint="try again: its port was taken") from error
        Local._address = address
        devices = [device.name for device in tf.config.list_logical_devices()]
        return {"framework": "tensorflow", "framework_version": tf.__version__, "devices": devices}

    def window(self, seconds: float) -> bytes:
        """Ask for one window."""
        self._windows += 1
        self._session = f"tpunb-{id(self):x}-{self._windows}"  # unique, so that `stop` ends this window alone
        try:
            return self._client.window(seconds, self._session)
        except ServiceError as error:
            raise TpunbError(str(error)) from error

    def stop(self) -> None:
        """End the running window; it returns with what it has seen."""
        try:
            self._client.terminate(self._session)
        except ServiceError as error:
            raise TpunbError(str(error)) from error

    def step(self, mark: str, number: int) -> AbstractContextManager[Any]:
        """Open TensorFlow's annotation of a step."""
        trace: AbstractContextManager[Any] = sys.modules["tensorflow"].profiler.experimental.Trace(
            mark, step_num=number, _r=1
        )
        return trace
