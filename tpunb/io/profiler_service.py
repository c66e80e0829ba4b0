"""A client of tensorflow.ProfilerService: one window of profile, as XSpace bytes in memory.

TensorFlow's and JAX's own profiler servers speak it, as the profiler of a Cloud TPU does. The messages are
declared here, in a descriptor pool of our own: no framework is imported, and none of theirs can clash with them.
Field numbers are those of tensorflow/core/profiler (tsl/profiler/protobuf), version 1 of ProfileOptions.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import grpc

HOST_LEVEL = 2
"""Host tracer level: 1 has no operation names, 3 has every one at three times the cost."""

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
}


@cache
def _messages() -> dict[str, Any]:
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
    """The profiler service refused or did not answer: one line of why."""


class ProfilerClient:
    """Talk to the profiler service at ``host:port``.

    Parameters
    ----------
    address
        ``host:port``, with or without ``grpc://``.
    """

    def __init__(self, address: str) -> None:
        # the default limit on an answer is 4 MB; a window is easily ten times that
        options = [("grpc.max_receive_message_length", -1), ("grpc.enable_http_proxy", 0)]
        self._channel = grpc.insecure_channel(address.removeprefix("grpc://"), options)
        self._profile = self._call("Profile")
        self._terminate = self._call("Terminate")

    def _call(self, name: str) -> Any:
        return self._channel.unary_unary(
            f"/tensorflow.ProfilerService/{name}",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=_messages()[f"{name}Response"].FromString,
        )

    def wait_ready(self, timeout: float) -> None:
        """Wait until the service takes calls; `ServiceError` after `timeout` seconds."""
        try:
            grpc.channel_ready_future(self._channel).result(timeout=timeout)
        except grpc.FutureTimeoutError:
            raise ServiceError(f"no profiler service answered within {timeout:g} s") from None

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
        kinds = _messages()
        milliseconds = max(1, round(seconds * 1000))
        options = kinds["ProfileOptions"](
            version=1,  # with version 0 the service ignores the levels
            include_dataset_ops=True,
            host_tracer_level=HOST_LEVEL,
            device_tracer_level=1,
            python_tracer_level=0,
            enable_hlo_proto=False,
            duration_ms=milliseconds,  # the length that counts
        )
        request = kinds["ProfileRequest"](
            duration_ms=milliseconds, max_events=1_000_000, opts=options, session_id=session, emit_xspace=True
        )
        try:
            return bytes(self._profile(request, timeout=seconds + timeout).xspace)
        except grpc.RpcError as error:
            raise ServiceError(_reason(error)) from None

    def terminate(self, session: str) -> None:
        """End a running window now; its `window` returns with what it has seen so far."""
        request = _messages()["TerminateRequest"](session_id=session)
        try:
            self._terminate(request, timeout=10)
        except grpc.RpcError as error:
            raise ServiceError(_reason(error)) from None

    def close(self) -> None:
        """Close the channel; a window still running fails."""
        self._channel.close()


def _reason(error: Any) -> str:
    details = " ".join(str(error.details() or "").split())[:300]
    return f"{error.code().name}: {details}" if details else str(error.code().name)
