"""A client of tensorflow.ProfilerService: windows of profile, as XSpace bytes in memory.

TensorFlow's and JAX's own profiler servers speak it, as the profiler of a Cloud TPU does. The messages are
declared here, in a descriptor pool of our own: no framework is imported, and none of theirs can clash with them.
Field numbers are those of tensorflow/core/profiler (tsl/profiler/protobuf), version 1 of ProfileOptions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import grpc

HOST_LEVEL = 2
"""Host tracer level: 1 has no operation names, 3 has every one at three times the cost."""

_SERVICE = "/tensorflow.ProfilerService"
_MESSAGES = {
    "ProfileOptions": [
        ("include_dataset_ops", 1, "bool"),
        ("host_tracer_level", 2, "uint32"),
        ("device_tracer_level", 3, "uint32"),
        ("python_tracer_level", 4, "uint32"),
        ("version", 5, "uint32"),
        ("enable_hlo_proto", 7, "bool"),
        ("duration_ms", 9, "uint64"),
    ],
    "ProfileRequest": [
        ("duration_ms", 1, "uint64"),
        ("max_events", 2, "uint64"),
        ("opts", 4, "ProfileOptions"),
        ("session_id", 6, "string"),
        ("emit_xspace", 9, "bool"),
    ],
    # the XSpace stays bytes: on the wire a message and its bytes are one and the same
    "ProfileResponse": [("empty_trace", 7, "bool"), ("xspace", 8, "bytes")],
    "TerminateRequest": [("session_id", 1, "string")],
    "TerminateResponse": [],
    "MonitorRequest": [("duration_ms", 1, "uint64"), ("monitoring_level", 2, "int32"), ("timestamp", 3, "bool")],
    "MonitorResponse": [("data", 1, "string")],
    "ContinuousProfilingResponse": [],
    "GetSnapshotRequest": [],
    "StopContinuousProfilingRequest": [],
    "StopContinuousProfilingResponse": [],
}

_ANSWERS = {
    "Profile": "ProfileResponse",
    "Terminate": "TerminateResponse",
    "Monitor": "MonitorResponse",
    "StartContinuousProfiling": "ContinuousProfilingResponse",
    "ContinuousProfiling": "ContinuousProfilingResponse",
    "GetSnapshot": "ProfileResponse",
    "GetSnapShot": "ProfileResponse",
    "StopContinuousProfiling": "StopContinuousProfilingResponse",
}
"""What each call answers with."""

_START = ("StartContinuousProfiling", "ContinuousProfiling")  # newest first: what servers of some versions call it
_SNAPSHOT = ("GetSnapshot", "GetSnapShot")
_STOP = ("StopContinuousProfiling",)


@cache
def messages() -> dict[str, Any]:
    """Return the classes of the messages by their names."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="tpunb/profiler_service.proto", package="tensorflow", syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind in fields:
            field = message.field.add(name=field_name, number=number, label=kinds.LABEL_OPTIONAL)
            if kind in _MESSAGES:
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".tensorflow.{kind}"
            else:
                field.type = getattr(kinds, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"tensorflow.{name}")) for name in _MESSAGES
    }


class ServiceError(Exception):
    """The profiler service refused or did not answer: one line of why.

    Parameters
    ----------
    message
        The line.
    code
        The name of the gRPC status, as ``"UNAVAILABLE"``, ``"UNAUTHENTICATED"``, ``"PERMISSION_DENIED"``,
        ``"UNIMPLEMENTED"``, ``"DEADLINE_EXCEEDED"``.
    """

    def __init__(self, message: str, *, code: str = "UNKNOWN") -> None:
        super().__init__(message)
        self.code = code

    @property
    def busy(self) -> bool:
        """Whether somebody else profiles there now: later the same call may do."""
        # servers say it by INTERNAL and these words, and by a code of its own where a session goes on and on
        return self.code == "ALREADY_EXISTS" or "another profiling session" in str(self).lower()


class ProfilerClient:
    """Talk to the profiler service at ``host:port``.

    Parameters
    ----------
    address
        ``host:port``, with or without ``grpc://``.
    """

    def __init__(self, address: str) -> None:
        options = [
            ("grpc.max_receive_message_length", -1),  # it is 4 MB by default; a window is easily ten times that
            ("grpc.enable_http_proxy", 0),
            # a service that comes back is found within seconds, not minutes
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 2000),
        ]
        self._channel = grpc.insecure_channel(address.removeprefix("grpc://"), options)
        self._calls = {name: self._call(name, messages()[answer].FromString) for name, answer in _ANSWERS.items()}
        self._answered: dict[tuple[str, ...], str] = {}  # of the names of one call: the one that the service knows

    def _call(self, name: str, read: Callable[[bytes], Any]) -> Any:
        return self._channel.unary_unary(
            f"{_SERVICE}/{name}",
            request_serializer=_serialized,
            response_deserializer=read,
        )

    def _ask(self, name: str, request: Any, timeout: float) -> Any:
        try:
            return self._calls[name](request, timeout=timeout)
        except grpc.RpcError as error:
            raise ServiceError(_reason(error), code=error.code().name) from None

    def _ask_any(self, names: tuple[str, ...], request: Any, timeout: float) -> Any:
        """Ask by the first name that the service knows, from then on by that one first."""
        for name in sorted(names, key=lambda name: name != self._answered.get(names)):
            try:
                answer = self._ask(name, request, timeout)
            except ServiceError as error:
                if error.code != "UNIMPLEMENTED":
                    raise
            else:
                self._answered[names] = name
                return answer
        raise _unknown(names)

    def _knows(self, name: str) -> bool:
        """Whether the service has that call; what is sent is no message, and refused before anything is done."""
        try:
            self._channel.unary_unary(f"{_SERVICE}/{name}")(b"\xff", timeout=10)
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise ServiceError(_reason(error), code=error.code().name) from None
            return error.code() is not grpc.StatusCode.UNIMPLEMENTED
        return True

    def wait_ready(self, timeout: float) -> None:
        """Wait until the service takes calls; `ServiceError` after `timeout` seconds."""
        ready = grpc.channel_ready_future(self._channel)
        try:
            ready.result(timeout=timeout)
        except grpc.FutureTimeoutError:
            ready.cancel()
            message = f"no profiler service answered within {timeout:g} s"
            raise ServiceError(message, code="UNAVAILABLE") from None

    def window(self, seconds: float, session: str, *, timeout: float = 60.0) -> bytes:
        """Watch for `seconds` and return the XSpace; blocks until it is collected.

        Parameters
        ----------
        seconds
            How long the service records.
        session
            A name of this window alone, for `terminate`.
        timeout
            Seconds the collection may take beyond `seconds`.

        Raises
        ------
        ServiceError
            With the service's own reason, in one line.
        """
        request = _profile_request(seconds, session)
        return bytes(self._ask("Profile", request, seconds + timeout).xspace)

    def terminate(self, session: str) -> None:
        """End a running window now; its `window` returns with what it has seen so far."""
        self._ask("Terminate", messages()["TerminateRequest"](session_id=session), 10)

    def monitor(self, level: int = 1, *, seconds: float = 1.0) -> str:
        """Return what the service says of the last moments: how busy the device was, in words and lines of its own.

        Cloud TPUs answer it; the servers of TensorFlow and JAX on CPU and GPU do not.

        Parameters
        ----------
        level
            1 costs next to nothing; 2 tells more, of steps and the device.
        seconds
            How long the service looks.

        Raises
        ------
        ServiceError
            Of code ``UNIMPLEMENTED`` where the service does not know how.
        """
        request = messages()["MonitorRequest"](duration_ms=_milliseconds(seconds), monitoring_level=level)
        return str(self._ask("Monitor", request, seconds + 30).data)

    def start_continuous(self, session: str = "tpunb") -> None:
        """Begin to watch until `stop_continuous`; meanwhile the service gives no windows.

        Raises
        ------
        ServiceError
            Of code ``UNIMPLEMENTED`` also where the service could begin but not end it: it would watch for ever.
        """
        if not any(map(self._knows, _STOP)):
            raise _unknown(_STOP)
        self._ask_any(_START, _profile_request(0, session), 30)

    def snapshot(self, *, timeout: float = 60.0) -> bytes:
        """Return the XSpace of what was watched since `start_continuous` or the last snapshot, and watch on.

        Watching stops while the service collects: between two snapshots there is a gap, as between two windows.
        """
        return bytes(self._ask_any(_SNAPSHOT, messages()["GetSnapshotRequest"](), timeout).xspace)

    def stop_continuous(self) -> None:
        """End what `start_continuous` began; what was watched since the last snapshot is lost."""
        self._ask_any(_STOP, messages()["StopContinuousProfilingRequest"](), 30)

    def close(self) -> None:
        """Close the channel; a window still running fails."""
        self._channel.close()


def _unknown(names: tuple[str, ...]) -> ServiceError:
    return ServiceError(f"UNIMPLEMENTED: the service has no {' or '.join(names)}", code="UNIMPLEMENTED")


def _serialized(request: Any) -> bytes:
    return bytes(request.SerializeToString())


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _profile_request(seconds: float, session: str) -> Any:
    """Return the request for a window; of 0 seconds for one without end."""
    kinds = messages()
    milliseconds = _milliseconds(seconds) if seconds else 0
    options = kinds["ProfileOptions"](
        version=1,  # with version 0 the service ignores the levels
        include_dataset_ops=True,
        host_tracer_level=HOST_LEVEL,
        device_tracer_level=1,
        python_tracer_level=0,
        enable_hlo_proto=False,
        duration_ms=milliseconds,  # the length that counts
    )
    return kinds["ProfileRequest"](
        duration_ms=milliseconds, max_events=1_000_000, opts=options, session_id=session, emit_xspace=True
    )


def _reason(error: Any) -> str:
    details = " ".join(str(error.details() or "").split())[:300]
    return f"{error.code().name}: {details}" if details else str(error.code().name)
