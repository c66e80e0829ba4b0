"""A client of tensorflow.ProfilerService: windows of profile, as XSpace bytes in memory.

The messages are declared here, in a descriptor pool of their own, so that no framework is imported and no version
conflicts. Field numbers are those of tensorflow/core/profiler (tsl/profiler/protobuf), version 1 of ProfileOptions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

from tpunb.profiler.limits import LIMITS

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
    # the XSpace stays bytes: a message and its bytes are the same on the wire
    "ProfileResponse": [("empty_trace", 7, "bool"), ("xspace", 8, "bytes")],
    "TerminateRequest": [("session_id", 1, "string")],
    "TerminateResponse": [],
}


@cache
def messages() -> dict[str, Any]:
    """Return the classes of the messages by name."""
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
    """The profiler service refused a call or did not respond; `code` is the name of the gRPC status."""

    def __init__(self, message: str, *, code: str = "UNKNOWN") -> None:
        super().__init__(message)
        self.code = code

    @property
    def busy(self) -> bool:
        """Whether another session profiles there now: the same call may succeed later."""
        # servers answer INTERNAL with these words, or ALREADY_EXISTS beside a continuous session
        return self.code == "ALREADY_EXISTS" or "another profiling session" in str(self).lower()


class ProfilerClient:
    """Client of the profiler service at ``host:port``, with or without ``grpc://``."""

    def __init__(self, address: str) -> None:
        import grpc  # only for workers: a capture of this process needs none

        options = [
            ("grpc.max_receive_message_length", -1),  # 4 MB by default; a window is easily ten times that
            ("grpc.enable_http_proxy", 0),
            # reconnect to a restarted service within seconds, not minutes
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 2000),
        ]
        self._channel = grpc.insecure_channel(address.removeprefix("grpc://"), options)

    def _call(
        self, name: str, request: Any, timeout: float, late: tuple[float, Callable[[], None]] | None = None
    ) -> Any:
        """Call the service; if it has not answered after some seconds, `late` also calls a function then."""
        import grpc

        kinds = messages()
        call = self._channel.unary_unary(
            f"{_SERVICE}/{name}",
            request_serializer=kinds[f"{name}Request"].SerializeToString,
            response_deserializer=kinds[f"{name}Response"].FromString,
        )
        try:
            if late is None or not threading.main_thread().is_alive():  # at exit, no thread starts for a future
                return call(request, timeout=timeout)
            answer = call.future(request, timeout=timeout)
            try:
                return answer.result(timeout=late[0])
            except grpc.FutureTimeoutError:
                late[1]()
            return answer.result()
        except grpc.RpcError as error:
            code, details = str(error.code().name), " ".join(str(error.details() or "").split())[:300]
            raise ServiceError(f"{code}: {details}" if details else code, code=code) from None

    def wait_ready(self, timeout: float) -> None:
        """Wait until the service accepts calls; raise `ServiceError` after `timeout` seconds."""
        import grpc

        ready = grpc.channel_ready_future(self._channel)
        try:
            ready.result(timeout=timeout)
        except grpc.FutureTimeoutError:
            ready.cancel()
            message = f"no profiler service answered within {timeout:g} s"
            raise ServiceError(message, code="UNAVAILABLE") from None

    def window(self, seconds: float, session: str, *, timeout: float = 60.0) -> bytes:
        """Profile for `seconds` and return the XSpace, whose collection may take `timeout` seconds more.

        A window that does not end in time is terminated: it lasts no longer than twice its length, or a second more.
        `session` is the unique name of this window for `terminate`; `ServiceError` has the service's reason.
        """

        def end() -> None:
            with suppress(ServiceError):  # it may have just ended, and be collected
                self.terminate(session)

        late = seconds + LIMITS.late_share * max(seconds, 1.0), end
        return bytes(self._call("Profile", _profile_request(seconds, session), seconds + timeout, late).xspace)

    def programs(self, session: str, *, timeout: float = 20.0) -> bytes:
        """Return an XSpace without events that holds the compiled programs of the process; raises as `window`."""
        return bytes(self._call("Profile", _profile_request(0.001, session, programs=True), timeout).xspace)

    def terminate(self, session: str) -> None:
        """End a running window now; its `window` returns what it has recorded so far."""
        self._call("Terminate", messages()["TerminateRequest"](session_id=session), 10)

    def close(self) -> None:
        """Close the channel; a running window fails."""
        self._channel.close()


def _profile_request(seconds: float, session: str, *, programs: bool = False) -> Any:
    kinds = messages()
    milliseconds = max(1, round(seconds * 1000))
    options = kinds["ProfileOptions"](
        version=1,  # with version 0 the service ignores the levels
        include_dataset_ops=True,
        host_tracer_level=0 if programs else LIMITS.host_tracer_level,
        device_tracer_level=0 if programs else 1,
        python_tracer_level=0,
        enable_hlo_proto=programs,  # all of the process, each time: too much for every window
        duration_ms=milliseconds,  # the length that counts
    )
    return kinds["ProfileRequest"](
        duration_ms=milliseconds, max_events=LIMITS.most_events, opts=options, session_id=session, emit_xspace=True
    )
