"""A fake profiler service on loopback: it replays windows, and misbehaves on request. It needs no framework."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import grpc

from tpunb.profiler.service_client import messages
from tpunb.testing.builders import crowded_window, toy_window

_T = TypeVar("_T")

Misbehaviour = Literal["late", "empty", "over-size", "dies", "busy", "unauthorised", "silent"]
Windows = Iterable[bytes | str | PathLike[str]] | str | PathLike[str] | Callable[[float], bytes]

_CALLS_AT_ONCE = 64


class Asked(NamedTuple):
    """One request."""

    method: str
    duration_ms: int
    session_id: str


class FakeProfiler:
    """A server of ``tensorflow.ProfilerService`` on 127.0.0.1, to be used in a ``with`` block.

    It responds like the servers of TensorFlow and JAX: a window is returned when its time is over or its session is
    terminated, before or during the window; a second session is refused with ``INTERNAL: Another profiling session
    active.``

    Parameters
    ----------
    windows
        Responses: XSpaces as bytes, ``*.xplane.pb`` files, or a folder of them, repeated in turn without changing their
        times; or a function of the profiled seconds, which may take its time. By default an empty `toy_window` of that
        time.
    port
        Port to listen on; a free one by default.
    misbehave
        One of these, or None to behave. The attribute ``misbehave`` may be set at any time.

        - ``"late"``: a window is returned ``late_s`` seconds after its time (default 10); until then the profiler is
          busy.
        - ``"empty"``: a response without an XSpace.
        - ``"over-size"``: a window of 25 % more events than requested, 22 bytes each.
        - ``"dies"``: the connection closes after half of a window, and the port is closed until `restart`.
        - ``"busy"``: sessions are refused, as during another session.
        - ``"unauthorised"``: every call is refused with ``UNAUTHENTICATED``.
        - ``"silent"``: calls are accepted and never answered.

        The first four apply to windows that end while they are set, the others to calls that begin.
    instant
        Whether windows are returned at once, as windows of the requested time.

    Attributes
    ----------
    address
        ``127.0.0.1:port``.
    asked
        Requests so far: method, duration_ms and session_id each.

    >>> from tpunb.profiler.service_client import ProfilerClient
    >>> with FakeProfiler([b"first", b"second"], instant=True) as server:
    ...     client = ProfilerClient(server.address)
    ...     [client.window(1.0, f"session-{i}") for i in range(3)]
    ...     server.asked[0]
    ...     client.close()
    [b'first', b'second', b'first']
    Asked(method='Profile', duration_ms=1000, session_id='session-0')
    """

    late_s = 10.0

    def __init__(
        self,
        windows: Windows | None = None,
        *,
        port: int = 0,
        misbehave: Misbehaviour | None = None,
        instant: bool = False,
    ) -> None:
        self.port, self.instant = port, instant
        self.misbehave = misbehave
        self.asked: list[Asked] = []
        self._next = _answers(windows)
        self._arrived = threading.Condition()
        self._proxy: _Proxy | None = None
        self._server: Any = None

    @property
    def misbehave(self) -> Misbehaviour | None:
        """The current misbehaviour, or None."""
        return self._misbehave

    @misbehave.setter
    def misbehave(self, value: Misbehaviour | None) -> None:
        if value is not None and value not in get_args(Misbehaviour):
            allowed = ", ".join(map(repr, get_args(Misbehaviour)))
            raise ValueError(
                f"The misbehave parameter of FakeProfiler must be one of {allowed} or None. Got {value!r} instead."
            )
        self._misbehave = value

    @property
    def address(self) -> str:
        """Address of the service."""
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> FakeProfiler:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start listening."""
        self._server = grpc.server(ThreadPoolExecutor(_CALLS_AT_ONCE), handlers=[_Service(self).handler()])
        behind = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        try:
            self._proxy = _Proxy(self.port, behind)
        except OSError:
            self.stop()
            raise
        self.port = self._proxy.port  # `restart` uses the same

    def stop(self) -> None:
        """Stop like a killed process: connections close, running windows are lost, the port is closed."""
        proxy, self._proxy = self._proxy, None
        server, self._server = self._server, None
        if proxy is not None:
            proxy.close()
        if server is not None:
            server.stop(0).wait()

    def restart(self) -> None:
        """Stop and listen again at the same port, without any session."""
        self.stop()
        self.start()

    def wait_asked(self, times: int = 1, method: str = "Profile", *, timeout: float = 60.0) -> None:
        """Wait until `method` was requested `times` times in all; `TimeoutError` after `timeout` seconds."""
        with self._arrived:
            if not self._arrived.wait_for(lambda: sum(it.method == method for it in self.asked) >= times, timeout):
                raise TimeoutError(f"{method} was requested less than {times} times in {timeout:g} s: {self.asked}")


def _answers(windows: Windows | None) -> Callable[[float], bytes]:
    """Return the function of the profiled seconds that returns the next window."""
    if windows is None:
        return _empty_window
    if callable(windows):
        return windows
    if isinstance(windows, str | PathLike):
        path = Path(windows)
        windows = sorted(path.rglob("*.xplane.pb")) if path.is_dir() else [path]
    turns: Iterator[bytes | str | PathLike[str]] = itertools.cycle(listed := list(windows))
    if not listed:
        raise ValueError("The windows parameter of FakeProfiler must hold at least one window. Got none instead.")
    lock = threading.Lock()

    def answer(_: float) -> bytes:
        with lock:
            turn = next(turns)
        return turn if isinstance(turn, bytes) else Path(turn).read_bytes()

    return answer


def _empty_window(seconds: float) -> bytes:
    now = time.time_ns()
    return toy_window(now - round(seconds * 1e9), now)


class _Service:
    """The calls of a fake profiler from `start` to `stop`, and its one session."""

    def __init__(self, fake: FakeProfiler) -> None:
        self._fake = fake
        self._lock = threading.Lock()
        self._busy = False
        self._ends: defaultdict[str, threading.Event] = defaultdict(threading.Event)  # set by Terminate

    def handler(self) -> Any:
        """Return the gRPC handler of its calls."""
        kinds = messages()
        calls = {
            name: grpc.unary_unary_rpc_method_handler(
                call, kinds[f"{name}Request"].FromString, kinds[f"{name}Response"].SerializeToString
            )
            for name, call in (("Profile", self._profile), ("Terminate", self._terminate))
        }
        return grpc.method_handlers_generic_handler("tensorflow.ProfilerService", calls)

    def _accept(self, asked: Asked, context: Any) -> None:
        """Note a request; refuse it or begin its session, as the fake behaves."""
        misbehaviour = self._fake.misbehave
        with self._lock:  # `wait_asked` returns after the session has begun
            with self._fake._arrived:
                self._fake.asked.append(asked)
                self._fake._arrived.notify_all()
            if misbehaviour == "unauthorised":
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "Request had invalid authentication credentials.")
            if asked.method == "Profile" and misbehaviour != "silent":
                if self._busy or misbehaviour == "busy":
                    context.abort(grpc.StatusCode.INTERNAL, "Another profiling session active.")
                self._busy = True
        if misbehaviour == "silent":
            _gone(context).wait()
            context.abort(grpc.StatusCode.CANCELLED, "")

    def _profile(self, request: Any, context: Any) -> Any:
        self._accept(Asked("Profile", request.duration_ms, request.session_id), context)
        since = time.monotonic()
        try:
            gone, ended = _gone(context), self._ends[request.session_id]
            if not context.add_callback(ended.set):
                ended.set()
            seconds = request.duration_ms / 1000
            if not self._fake.instant:
                ended.wait(seconds)
                seconds = time.monotonic() - since
            return self._collect(request, seconds, gone)
        finally:
            with self._lock:
                self._busy = False
                self._ends.pop(request.session_id, None)

    def _collect(self, request: Any, seconds: float, gone: threading.Event) -> Any:
        """Return the response for a window of some seconds."""
        misbehaviour, kind = self._fake.misbehave, messages()["ProfileResponse"]
        if misbehaviour == "late":
            gone.wait(self._fake.late_s)
        if misbehaviour == "empty" or gone.is_set():
            return kind(empty_trace=True)
        if misbehaviour == "over-size":
            now = time.time_ns()
            return kind(xspace=crowded_window(now - round(seconds * 1e9), now, request.max_events * 5 // 4))
        response = kind(xspace=self._fake._next(seconds))
        if misbehaviour == "dies" and (proxy := self._fake._proxy) is not None:
            proxy.left = response.ByteSize() // 2
        return response

    def _terminate(self, request: Any, context: Any) -> Any:
        self._accept(Asked("Terminate", 0, request.session_id), context)
        self._ends[request.session_id].set()
        return messages()["TerminateResponse"]()


def _gone(context: Any) -> threading.Event:
    """Return an event that is set when the client no longer waits."""
    gone = threading.Event()
    if not context.add_callback(gone.set):
        gone.set()
    return gone


class _Proxy:
    """Pass bytes between clients of `port` and the server at `behind`, until closed or cut within a response."""

    def __init__(self, port: int, behind: int) -> None:
        self._behind = behind
        self.left: int | None = None  # bytes that still go to clients before the connections close
        self._writers: set[asyncio.StreamWriter] = set()
        self._connections: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tpunb-proxy", daemon=True)
        self._thread.start()
        try:
            self._server = self._run(asyncio.start_server(self._connect, "127.0.0.1", port))
        except OSError:
            self._end()
            raise
        self.port: int = self._server.sockets[0].getsockname()[1]

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def close(self) -> None:
        """Cut now, and end the thread."""
        if self._thread.is_alive():
            self._run(self._finish())
            self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _finish(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()  # also if the other side has not read everything
        await asyncio.gather(*self._connections)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Join a client's connection to a new one to the server, until either ends."""
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._behind)
        self._writers |= {writer, to_server}
        try:
            await asyncio.gather(self._pass(reader, to_server), self._pass(from_server, writer, to_client=True))
        finally:
            self._writers -= {writer, to_server}
            self._connections.discard(task)

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, to_client: bool = False
    ) -> None:
        with suppress(ConnectionError):  # the first side to hang up ends both directions
            while chunk := await reader.read(1 << 16):
                if to_client and self.left is not None:
                    chunk = chunk[: self.left]
                    self.left -= len(chunk)
                writer.write(chunk)
                await writer.drain()
                if self.left == 0:
                    self._server.close()
                    for each in self._writers:
                        each.close()  # after the bytes written so far
        writer.close()
