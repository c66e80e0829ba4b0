"""Profile workers by address: each has a profiler service, and all are profiled at once."""

from __future__ import annotations

import ipaddress
import math
import re
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from time import monotonic
from typing import Any
from uuid import uuid4

from tpunb.errors import TpunbError
from tpunb.profiler.limits import LIMITS
from tpunb.profiler.service_client import ProfilerClient, ServiceError
from tpunb.profiler.sources.frameworks import annotation

_NO_CREDENTIALS = "connect without a proxy, or tunnel with ssh -L: profilers accept no credentials"
_HINTS = {
    "UNAVAILABLE": "check that the training runs there and has opened its profiler server "
    "(jax.profiler.start_server(9012) or tf.profiler.experimental.server.start(9012)), and that its port is reachable",
    "UNAUTHENTICATED": _NO_CREDENTIALS,
    "PERMISSION_DENIED": _NO_CREDENTIALS,
    "UNIMPLEMENTED": "check the port: another service listens there",
    "DEADLINE_EXCEEDED": "check that its process is neither stopped nor out of memory",
    "RESOURCE_EXHAUSTED": "try shorter windows",
}
_BUSY = "end the other profiling there, in TensorBoard, XProf or the program itself"


@dataclass
class _Worker:
    """One worker and its state, which changes under the lock of its `Address`."""

    address: str
    failures: int = 0  # since its last response
    error: TpunbError | None = None  # the last
    rests_until: float = 0.0
    session: str | None = None  # of the pending call
    requested_at: float = 0.0
    ending: bool = False  # whether its window is being terminated

    @cached_property
    def client(self) -> ProfilerClient:
        """Its client, created when needed."""
        return ProfilerClient(self.address)

    @property
    def is_due(self) -> bool:
        """Whether it can be requested now."""
        return self.session is None and monotonic() >= self.rests_until

    def record(self, result: bytes | Exception) -> bytes | TpunbError:
        """Record the end of its call and return the response; after a failure it rests, each time twice as long."""
        self.session = None
        if isinstance(result, bytes) and result:
            self.failures, self.error, self.rests_until = 0, None, 0.0
            return result
        if isinstance(result, ServiceError):
            hint = _BUSY if result.busy else _HINTS.get(result.code)
            self.error = TpunbError(f"{self.address}: {result}", hint=hint)
        elif isinstance(result, Exception):
            self.error = TpunbError(f"{self.address}: {result!r}")
        else:
            self.error = TpunbError(f"{self.address}: its answer is empty", hint="check that it computes")
        self.failures += 1
        self.rests_until = monotonic() + min(2.0 ** (self.failures - 1), LIMITS.worker_rest_s)
        return self.error

    def no_window(self) -> TpunbError:
        """Return the error of a worker without a window."""
        now = monotonic()
        if self.session is not None:
            message = f"{self.address}: no answer yet, {now - self.requested_at:.0f} s after it was asked"
            return TpunbError(message, hint=_HINTS["DEADLINE_EXCEEDED"])
        due = max(1, math.ceil(self.rests_until - now))
        return TpunbError(f"{self.error}; asked again in {due} s", hint=self.error.hint if self.error else None)


class Address:
    """Workers by the addresses of their profiler services, all profiled at once.

    Failing workers are reported by name and retried with exponential backoff (1 to 60 s); the others do not wait for
    them.

    Parameters
    ----------
    addresses
        ``host:port``, with or without ``grpc://``; IPv6 addresses in brackets.

    >>> Address("grpc://10.0.0.2:8466", "[::1]:9012")
    Address('10.0.0.2:8466', '[::1]:9012')
    """

    def __init__(self, *addresses: str) -> None:
        self.addresses = _checked(addresses)
        self._workers = [_Worker(address) for address in self.addresses]
        self._changed = threading.Condition()
        self._name = uuid4().hex[:12]  # sessions of two notebooks must have different names
        self._windows = 0
        self._stopped_at: float | None = None  # when the running window was ended

    def __repr__(self) -> str:
        return f"Address({', '.join(map(repr, self.addresses))})"

    def start(self) -> None:
        """Wait until one worker answers; the others may come later.

        Raises
        ------
        TpunbError
            If none does within 20 seconds; at once if no address has a known host.
        """
        answers: list[object] = []
        for worker in self._workers:
            self._call(partial(_wait_ready, worker), answers.append)
        until = monotonic() + LIMITS.ready_s + LIMITS.poll_s
        with self._changed:
            while None not in answers:
                if len(answers) == len(self._workers) and all(isinstance(answer, OSError) for answer in answers):
                    hosts = ", ".join(_host(address) for address in self.addresses)
                    raise TpunbError(
                        f"{'unknown hosts' if len(answers) > 1 else 'unknown host'}: {hosts}",
                        hint="check the spelling, or give the IP address",
                    )
                if len(answers) == len(self._workers) or monotonic() >= until:
                    raise TpunbError(
                        f"no profiler service answered within {LIMITS.ready_s:g} s at {', '.join(self.addresses)}",
                        hint=_HINTS["UNAVAILABLE"],
                    )
                self._changed.wait(LIMITS.poll_s)

    def facts(self) -> dict[str, Any]:
        """Return the addresses of the workers."""
        return {"workers": list(self.addresses)}

    def window(self, seconds: float) -> dict[str, bytes | TpunbError]:
        """Profile all workers for `seconds` and return an XSpace or an error each, by address.

        Wait for a worker that never failed as long as it may collect, and for one that did hardly longer than for the
        others.
        """
        responses: dict[str, bytes | TpunbError] = {}

        def respond(worker: _Worker, result: bytes | Exception) -> None:
            responses[worker.address] = worker.record(result)

        with self._changed:
            self._stopped_at = None
            self._rest(seconds)
            requested = [worker for worker in self._workers if self._stopped_at is None and worker.is_due]
            self._windows += 1
            for worker in requested:
                worker.session, worker.requested_at = f"tpunb-{self._name}-{self._windows}", monotonic()
                call = partial(worker.client.window, seconds, worker.session, timeout=LIMITS.worker_collect_s)
                self._call(call, partial(respond, worker))
            self._gather(requested, responses, seconds)
            return {worker.address: responses.get(worker.address) or worker.no_window() for worker in self._workers}

    def programs(self) -> bytes:
        """Return an XSpace that holds the compiled programs of one worker: all workers of a job run the same."""
        for worker in self._workers:
            if worker.is_due and not worker.failures:
                with suppress(ServiceError):
                    session = f"tpunb-{self._name}-programs-{self._windows}"
                    return worker.client.programs(session, timeout=LIMITS.worker_programs_s)
        return b""

    def _call(self, call: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Call in a daemon thread, since a worker may never answer; pass the result or the exception to `done`."""

        def run() -> None:
            result: Any
            try:
                result = call()
            except Exception as error:  # noqa: BLE001  nothing else reports errors of this thread
                result = error
            with self._changed:
                done(result)
                self._changed.notify_all()

        threading.Thread(target=run, daemon=True, name="tpunb-worker").start()

    def _gather(self, requested: Sequence[_Worker], responses: dict[str, bytes | TpunbError], seconds: float) -> None:
        """Wait for workers that never failed, then briefly for the others."""
        trusted = [worker for worker in requested if not worker.failures]

        def complete() -> bool:
            if not trusted and any(isinstance(response, bytes) for response in responses.values()):
                return True
            return all(worker.address in responses for worker in trusted or requested)

        began = monotonic()
        # the calls' own deadline is a little earlier
        self._wait(complete, seconds + LIMITS.worker_collect_s + LIMITS.worker_trial_s)
        rest_s = 0.0 if self._stopped_at is not None else max(0.0, began + seconds - monotonic())
        self._wait(lambda: len(responses) == len(requested), rest_s + LIMITS.worker_trial_s)

    def _wait(self, complete: Callable[[], bool], seconds: float) -> None:
        """Wait until complete, for `seconds`, or until a window that was ended must have returned."""
        until = monotonic() + seconds
        while not complete():
            ends = until if self._stopped_at is None else min(until, self._stopped_at + LIMITS.worker_ended_s)
            if (left := ends - monotonic()) <= 0:
                return
            self._changed.wait(left)

    def _rest(self, seconds: float) -> None:
        """While all workers rest, wait for the first or for the window's length: the caller must not spin."""
        until = monotonic() + seconds
        while self._stopped_at is None and not any(worker.is_due for worker in self._workers):
            if (left := until - monotonic()) <= 0:
                return
            ends = [worker.rests_until - monotonic() for worker in self._workers if worker.session is None]
            self._changed.wait(max(0.0, min([left, *ends])))

    def stop(self) -> None:
        """End the running window on every worker at once; it returns what they have recorded.

        Raises
        ------
        TpunbError
            With the name of each worker that refused; a silent one is not waited for.
        """
        results: dict[str, Exception | None] = {}

        def ended(worker: _Worker, result: Exception | None) -> None:
            worker.ending = False
            results[worker.address] = result

        with self._changed:
            self._stopped_at = monotonic() if self._stopped_at is None else self._stopped_at
            self._changed.notify_all()
            ending = [worker for worker in self._workers if worker.session and not worker.ending]
            for worker in ending:
                worker.ending = True
                self._call(partial(worker.client.terminate, str(worker.session)), partial(ended, worker))
            self._changed.wait_for(lambda: len(results) == len(ending), LIMITS.worker_terminate_s)
            refused = [f"{address}: {error}" for address, error in results.items() if error is not None]
        if refused:
            raise TpunbError(f"not ended: {'; '.join(refused)}", hint="wait until the window ends by itself")

    step = staticmethod(annotation)


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _wait_ready(worker: _Worker) -> None:
    """Wait for a worker; `OSError` if its host has no address."""
    try:
        socket.getaddrinfo(_host(worker.address), None)
    except UnicodeError as error:  # a label of a name is too long
        raise OSError(str(error)) from error
    worker.client.wait_ready(LIMITS.ready_s)


def _checked(addresses: Sequence[str]) -> tuple[str, ...]:
    """Return valid addresses without ``grpc://``."""
    must = "The addresses parameter of Address must be"
    if not addresses:
        raise ValueError(f"{must} one 'host:port' or more. Got none instead.")
    checked = []
    for address in addresses:
        plain = address.removeprefix("grpc://").removesuffix("/") if isinstance(address, str) else ""
        if not _is_address(plain):
            raise ValueError(f"{must} 'host:port', such as '10.0.0.2:8466' or '[::1]:8466'. Got {address!r} instead.")
        if plain in checked:
            raise ValueError(f"{must} different ones. Got {address!r} twice instead.")
        checked.append(plain)
    return tuple(checked)


def _is_address(text: str) -> bool:
    match = re.fullmatch(r"(?:(?P<name>[A-Za-z0-9._-]+)|\[(?P<v6>[^\]]*)\]):(?P<port>[0-9]{1,5})", text)
    if match is None or not 1 <= int(match["port"]) <= 65535:
        return False
    try:
        return match["name"] is not None or bool(ipaddress.IPv6Address(match["v6"]))
    except ValueError:
        return False
