"""A profiler service on loopback that needs no framework: it replays windows, and misbehaves on request."""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import grpc

from tpunb.io.profiler_service import messages
from tpunb.testing.windows import crowded_window, toy_window
from tpunb.testing.wire import Wire

Misbehaviour = Literal["late", "empty", "over-size", "dies", "busy", "unauthorised", "silent"]
Windows = Iterable[bytes | str | PathLike[str]] | str | PathLike[str] | Callable[[float], bytes]

_SERVICE = "/tensorflow.ProfilerService"
_REQUESTS = {
    "Profile": "ProfileRequest",
    "Terminate": "TerminateRequest",
    "Monitor": "MonitorRequest",
    "StartContinuousProfiling": "ProfileRequest",
    "GetSnapshot": "GetSnapshotRequest",
    "StopContinuousProfiling": "StopContinuousProfilingRequest",
}
_CALLS_AT_ONCE = 64
_TAKEN = "Another profiling session active."
_MOST_EVENTS = 1_000_000  # of an answer to a request that names no limit


class Asked(NamedTuple):
    """One request, as it came in."""

    method: str
    duration_ms: int
    session_id: str


class ProfilerStandIn:
    """A server of tensorflow.ProfilerService at a port of 127.0.0.1, for as long as a ``with`` block lasts.

    It answers as the servers of TensorFlow and JAX do: a window comes when its time is over, or at a Terminate of its
    session, also one that came before; a second session while one runs is refused with ``INTERNAL: Another profiling
    session active.``; a continuous one gives snapshots.

    Parameters
    ----------
    windows
        What it answers: XSpaces as bytes, or ``*.xplane.pb`` files or a folder of them, in turn, again and again, as
        they are, with the times of then; or a function of the seconds watched, which may take its time. A `toy_window`
        of that time without an event unless given.
    port
        A free one unless given.
    misbehave
        One of these, or None to behave. It may be set, and unset, at any time as the attribute ``misbehave``.

        - ``"late"``: a window comes ``late_s`` seconds after its time (10 unless set); till then the profiler is taken.
        - ``"empty"``: an answer without an XSpace.
        - ``"over-size"``: a window of a quarter more events than were asked for, 22 bytes each.
        - ``"dies"``: the connection ends when half of a window has gone through, and nothing listens any more
          before `restart`.
        - ``"busy"``: sessions are refused as where another one runs.
        - ``"unauthorised"``: every call is refused with ``UNAUTHENTICATED``.
        - ``"silent"``: calls are accepted and never answered.

        The first four hold for windows that end while they are set, the others for calls that begin.
    instant
        Whether windows come at once instead of when their time is over, as a window of the time asked for.
    monitor
        What it answers to Monitor; ``UNIMPLEMENTED`` unless given, as on CPU and GPU.

    Attributes
    ----------
    address
        ``127.0.0.1:port``.
    asked
        The requests so far: method, duration_ms and session_id each.

    >>> from tpunb.io.profiler_service import ProfilerClient
    >>> with ProfilerStandIn([b"first", b"second"], instant=True) as server:
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
        monitor: str | None = None,
    ) -> None:
        self.port, self.instant, self.monitor = port, instant, monitor
        self.misbehave = misbehave
        self.asked: list[Asked] = []
        self._next = _answers(windows)
        self._came = threading.Condition()
        self._wire: Wire | None = None
        self._server: Any = None

    @property
    def misbehave(self) -> Misbehaviour | None:
        """What it does wrong now."""
        return self._misbehave

    @misbehave.setter
    def misbehave(self, how: Misbehaviour | None) -> None:
        if how is not None and how not in get_args(Misbehaviour):
            known = ", ".join(map(repr, get_args(Misbehaviour)))
            raise ValueError(
                f"The misbehave parameter of ProfilerStandIn must be one of {known} or None. Got {how!r} instead."
            )
        self._misbehave = how

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> ProfilerStandIn:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Listen."""
        self._server = grpc.server(ThreadPoolExecutor(_CALLS_AT_ONCE), handlers=[_Service(self)])
        behind = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        try:
            self._wire = Wire(self.port, behind)
        except OSError:
            self.stop()
            raise
        self.port = self._wire.port  # kept, for `restart`

    def stop(self) -> None:
        """End as a process that is killed: connections close, windows that run are lost, nothing listens."""
        wire, self._wire = self._wire, None
        server, self._server = self._server, None
        if wire is not None:
            wire.close()
        if server is not None:
            server.stop(0).wait()

    def restart(self) -> None:
        """Stop, if it runs, and listen again at the same port; no session is left."""
        self.stop()
        self.start()

    def wait_asked(self, times: int = 1, method: str = "Profile", *, timeout: float = 20.0) -> None:
        """Wait until `method` has been asked for so many times in all; `TimeoutError` after `timeout` seconds."""
        with self._came:
            if not self._came.wait_for(lambda: [one.method for one in self.asked].count(method) >= times, timeout):
                raise TimeoutError(f"{method} was asked for less than {times} times within {timeout:g} s: {self.asked}")

    def _note(self, asked: Asked) -> None:
        with self._came:
            self.asked.append(asked)
            self._came.notify_all()

    def _cut_after(self, count: int) -> None:
        if (wire := self._wire) is not None:
            wire.cut_after(count)


def _answers(windows: Windows | None) -> Callable[[float], bytes]:
    """Return the function of the seconds watched that answers."""
    if windows is None:
        return _nothing_seen
    if callable(windows):
        return windows
    if isinstance(windows, str | PathLike):
        path = Path(windows)
        windows = sorted(path.rglob("*.xplane.pb")) if path.is_dir() else [path]
    turns: Iterator[bytes | str | PathLike[str]] = itertools.cycle(listed := list(windows))
    if not listed:
        raise ValueError("The windows parameter of ProfilerStandIn must hold at least one window. Got none instead.")
    lock = threading.Lock()

    def answer(_: float) -> bytes:
        with lock:
            turn = next(turns)
        return turn if isinstance(turn, bytes) else Path(turn).read_bytes()

    return answer


def _nothing_seen(seconds: float) -> bytes:
    now = time.time_ns()
    return toy_window(now - round(seconds * 1e9), now)


class _Session(NamedTuple):
    """What watches now: a window, or a continuous session."""

    since: float
    request: Any
    continuous: bool


class _Service(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The calls of one life of a stand-in, and its one session."""

    def __init__(self, stand_in: ProfilerStandIn) -> None:
        self._stand_in = stand_in
        self._lock = threading.Lock()
        self._session: _Session | None = None
        self._ends: defaultdict[str, threading.Event] = defaultdict(threading.Event)  # set by Terminate

    def service(self, details: Any) -> Any:
        service, _, method = details.method.rpartition("/")
        if service != _SERVICE or method not in _REQUESTS:
            return None

        def respond(data: bytes, context: Any) -> bytes:
            return self._respond(method, data, context)

        return grpc.unary_unary_rpc_method_handler(respond)

    def _respond(self, method: str, data: bytes, context: Any) -> bytes:
        from google.protobuf.message import DecodeError

        try:
            request = messages()[_REQUESTS[method]].FromString(data)
        except DecodeError:
            context.abort(grpc.StatusCode.INTERNAL, "")
        told = {field.name: value for field, value in request.ListFields()}
        how = self._stand_in.misbehave
        with self._lock:  # who waited for this request finds its session begun
            self._stand_in._note(Asked(method, told.get("duration_ms", 0), told.get("session_id", "")))
            if how not in ("unauthorised", "silent") and _REQUESTS[method] == "ProfileRequest":
                self._begin(request, context, continuous=method == "StartContinuousProfiling")
        if how == "unauthorised":
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "Request had invalid authentication credentials.")
        if how == "silent":
            _gone(context).wait()
            return b""
        answer: bytes = getattr(self, f"_{method}")(request, context).SerializeToString()
        if self._stand_in.misbehave == "dies" and method in ("Profile", "GetSnapshot"):
            self._stand_in._cut_after(len(answer) // 2)
        return answer

    def _begin(self, request: Any, context: Any, *, continuous: bool) -> None:
        """Begin a session, or refuse to; the lock is held."""
        if continuous and self._session is not None and self._session.continuous:
            context.abort(grpc.StatusCode.ALREADY_EXISTS, "A profiling session is already running.")
        if self._session is not None or self._stand_in.misbehave == "busy":
            taken = f"Failed to create profiler session: {_TAKEN}" if continuous else _TAKEN
            context.abort(grpc.StatusCode.INTERNAL, taken)
        self._session = _Session(time.monotonic(), request, continuous)

    def _Profile(self, request: Any, context: Any) -> Any:  # noqa: N802  calls bear the names of the protocol
        session = self._session
        assert session is not None
        try:
            gone, ended = _gone(context), self._ends[request.session_id]
            if not context.add_callback(ended.set):
                ended.set()
            seconds = request.duration_ms / 1000
            if not self._stand_in.instant:
                ended.wait(seconds)
                seconds = time.monotonic() - session.since
            return self._collect(session, seconds, gone)
        finally:
            with self._lock:
                self._session = None
                self._ends.pop(request.session_id, None)

    def _collect(self, session: _Session, seconds: float, gone: threading.Event) -> Any:
        """Return the answer for what was watched these seconds."""
        how, response = self._stand_in.misbehave, messages()["ProfileResponse"]
        if how == "late":
            gone.wait(self._stand_in.late_s)
        if how == "empty" or gone.is_set():
            return response(empty_trace=True)
        if how == "over-size":
            now = time.time_ns()
            events = (session.request.max_events or _MOST_EVENTS) * 5 // 4
            return response(xspace=crowded_window(now - round(seconds * 1e9), now, events))
        return response(xspace=self._stand_in._next(seconds))

    def _Terminate(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._ends[request.session_id].set()
        return messages()["TerminateResponse"]()

    def _Monitor(self, request: Any, context: Any) -> Any:  # noqa: N802
        if self._stand_in.monitor is None:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "unimplemented.")
        return messages()["MonitorResponse"](data=self._stand_in.monitor)

    def _StartContinuousProfiling(self, request: Any, context: Any) -> Any:  # noqa: N802
        return messages()["ContinuousProfilingResponse"]()

    def _GetSnapshot(self, request: Any, context: Any) -> Any:  # noqa: N802
        with self._lock:
            session = self._the_continuous(context)
            now = time.monotonic()
            self._session = session._replace(since=now)
        return self._collect(session, now - session.since, _gone(context))

    def _StopContinuousProfiling(self, request: Any, context: Any) -> Any:  # noqa: N802
        with self._lock:
            self._the_continuous(context)
            self._session = None
        return messages()["StopContinuousProfilingResponse"]()

    def _the_continuous(self, context: Any) -> _Session:
        if self._session is None or not self._session.continuous:
            context.abort(grpc.StatusCode.NOT_FOUND, "No continuous profiling session found.")
        assert self._session is not None
        return self._session


def _gone(context: Any) -> threading.Event:
    """Return what is set when nobody waits for the answer any more."""
    gone = threading.Event()
    if not context.add_callback(gone.set):
        gone.set()
    return gone
