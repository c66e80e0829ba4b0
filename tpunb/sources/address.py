"""Workers at their addresses: each with a profiler service, all watched side by side."""

from __future__ import annotations

import ipaddress
import math
import queue
import re
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from time import monotonic
from typing import Any
from uuid import uuid4

from tpunb.errors import TpunbError
from tpunb.io.profiler_service import ProfilerClient, ServiceError
from tpunb.sources.frameworks import annotation

_READY_S = 20.0  # until the first worker has to answer
_COLLECT_S = 60.0  # how long a worker may collect beyond its window
_TRIAL_S = 2.0  # how long the others wait for one that failed before
_ENDED_S = 15.0  # how long a window that was ended early may take to come back
_TERMINATE_S = 2.0  # how long `stop` waits for the workers to hear of it
_MOST_REST_S = 60.0
_TURN_S = 0.2  # waits are cut into turns: one without end in the main thread hears no interrupt

_HINTS = {
    "UNAVAILABLE": "does the training run there, has it opened its profiler server, as jax.profiler.start_server(9012) "
    "or tf.profiler.experimental.server.start(9012) do, and may this machine reach that port?",
    "UNAUTHENTICATED": "profilers are reached without credentials: go around the proxy, or tunnel with ssh -L",
    "PERMISSION_DENIED": "profilers are reached without credentials: go around the proxy, or tunnel with ssh -L",
    "UNIMPLEMENTED": "another service listens there: check the port",
    "DEADLINE_EXCEEDED": "it takes calls and does not answer: is its process stopped, or out of memory?",
    "RESOURCE_EXHAUSTED": "try shorter windows",
}
_BUSY = "end the other profiling there, in TensorBoard, XProf or the program itself"


@dataclass
class _Worker:
    """One worker, and how it has behaved; all but the address changes under the lock of its `Address`."""

    address: str
    failures: int = 0  # since it last answered
    error: TpunbError | None = None  # the last one
    rests_until: float = 0.0
    session: str | None = None  # of the call that it has not answered yet
    asked_at: float = 0.0
    ending: bool = False  # whether it is being told to end

    @cached_property
    def client(self) -> ProfilerClient:
        """Its client, once it is asked for."""
        return ProfilerClient(self.address)

    def note(self, answer: bytes | TpunbError) -> None:
        """Take in how its call ended: one that failed rests, each time twice as long."""
        self.session = None
        if isinstance(answer, bytes):
            self.failures, self.error, self.rests_until = 0, None, 0.0
            return
        self.failures += 1
        self.error = answer
        self.rests_until = monotonic() + min(2.0 ** (self.failures - 1), _MOST_REST_S)

    def why_not(self) -> TpunbError:
        """Return why there is no window of it this time."""
        now = monotonic()
        if self.session is not None:
            told = f"{self.address}: no answer yet, {now - self.asked_at:.0f} s after it was asked"
            return TpunbError(told, hint=_HINTS["DEADLINE_EXCEEDED"])
        due = max(1, math.ceil(self.rests_until - now))
        return TpunbError(f"{self.error}; asked again in {due} s", hint=self.error.hint if self.error else None)


class Address:
    """Workers by the addresses of their profiler services, all watched at once.

    A worker that fails is reported by its name and the others go on. It is asked again after a rest that grows from 1
    to 60 seconds, and the others wait for it no longer until it has answered.

    Parameters
    ----------
    addresses
        ``host:port``, with or without ``grpc://``; an IPv6 address in brackets.

    >>> Address("grpc://10.0.0.2:8466", "[::1]:9012")
    Address('10.0.0.2:8466', '[::1]:9012')
    """

    def __init__(self, *addresses: str) -> None:
        self.addresses = _checked(addresses)
        self._workers = [_Worker(address) for address in self.addresses]
        self._changed = threading.Condition()
        self._name = uuid4().hex[:12]  # sessions of two notebooks must not be taken for one another
        self._windows = 0
        self._stopped_at: float | None = None  # when the window that is being watched was ended

    def __repr__(self) -> str:
        return f"Address({', '.join(map(repr, self.addresses))})"

    def start(self) -> None:
        """Wait until one worker answers; the others may come later.

        Raises
        ------
        TpunbError
            When none does, after 20 seconds.
        """
        answers: queue.SimpleQueue[ServiceError | None] = queue.SimpleQueue()
        for worker in self._workers:
            _aside(_knock, worker, answers)
        until = monotonic() + _READY_S + _TURN_S
        silent = 0
        while silent < len(self._workers) and monotonic() < until:
            try:
                if answers.get(timeout=_TURN_S) is None:
                    return
            except queue.Empty:
                continue
            silent += 1
        raise TpunbError(
            f"no profiler service answered within {_READY_S:g} s at {', '.join(self.addresses)}",
            hint=_HINTS["UNAVAILABLE"],
        )

    def facts(self) -> dict[str, Any]:
        """Return the addresses of the workers."""
        return {"workers": list(self.addresses)}

    def window(self, seconds: float) -> dict[str, bytes | TpunbError]:
        """Watch all workers for `seconds` and return an XSpace each by address, or why there is none.

        A worker that never failed is waited for as long as it may collect; one that did, hardly longer than the others.
        """
        answers: dict[str, bytes | TpunbError] = {}
        with self._changed:
            self._stopped_at = None
            self._rest(seconds)
            asked = [worker for worker in self._workers if self._stopped_at is None and _is_due(worker)]
            self._windows += 1
            for worker in asked:
                worker.session, worker.asked_at = f"tpunb-{self._name}-{self._windows}", monotonic()
                _aside(self._ask, worker, seconds, answers)
            self._gather(asked, answers, seconds)
            return {worker.address: answers.get(worker.address) or worker.why_not() for worker in self._workers}

    def _ask(self, worker: _Worker, seconds: float, answers: dict[str, bytes | TpunbError]) -> None:
        """Ask one worker, in a thread of its own, which may outlast the window."""
        answer: bytes | TpunbError
        try:
            answer = worker.client.window(seconds, str(worker.session), timeout=_COLLECT_S)
            if not answer:
                answer = TpunbError(f"{worker.address}: its answer is empty", hint="is anything computed there?")
        except ServiceError as error:
            hint = _BUSY if error.busy else _HINTS.get(error.code)
            answer = TpunbError(f"{worker.address}: {error}", hint=hint)
        except Exception as error:  # noqa: BLE001  in this thread nobody else would hear of it
            answer = TpunbError(f"{worker.address}: {error!r}")
        with self._changed:
            worker.note(answer)
            answers[worker.address] = answer
            self._changed.notify_all()

    def _gather(self, asked: Sequence[_Worker], answers: dict[str, bytes | TpunbError], seconds: float) -> None:
        """Wait for the answers: for those that never failed, then a moment for the others."""
        trusted = [worker for worker in asked if not worker.failures]

        def come() -> bool:
            if not trusted and any(isinstance(answer, bytes) for answer in answers.values()):
                return True
            return all(worker.address in answers for worker in trusted or asked)

        began = monotonic()
        self._wait(come, seconds + _COLLECT_S + _TRIAL_S)  # the calls' own deadline is a little earlier
        still_watching = 0.0 if self._stopped_at is not None else max(0.0, began + seconds - monotonic())
        self._wait(lambda: len(answers) == len(asked), still_watching + _TRIAL_S)

    def _wait(self, over: Callable[[], bool], seconds: float) -> None:
        """Wait until it is over, `seconds` have passed, or the window was ended and its time to come back too."""
        until = monotonic() + seconds
        while not over():
            ends = until if self._stopped_at is None else min(until, self._stopped_at + _ENDED_S)
            if (left := ends - monotonic()) <= 0:
                return
            self._changed.wait(left)

    def _rest(self, seconds: float) -> None:
        """With all at rest let the window's time pass, or the rest's: whoever asks for the next one does not spin."""
        until = monotonic() + seconds
        while self._stopped_at is None and not any(map(_is_due, self._workers)) and (left := until - monotonic()) > 0:
            ends = [worker.rests_until - monotonic() for worker in self._workers if worker.session is None]
            self._changed.wait(max(0.0, min([left, *ends])))

    def stop(self) -> None:
        """End the running window on every worker at once; it returns with what they have seen.

        Raises
        ------
        TpunbError
            With the name of each worker that refused; one that keeps silent is not waited for.
        """
        said: dict[str, str | None] = {}
        with self._changed:
            self._stopped_at = monotonic() if self._stopped_at is None else self._stopped_at
            self._changed.notify_all()
            ending = [worker for worker in self._workers if worker.session and not worker.ending]
            for worker in ending:
                worker.ending = True
                _aside(self._end, worker, str(worker.session), said)
            self._changed.wait_for(lambda: len(said) == len(ending), _TERMINATE_S)
            refused = [f"{address}: {reason}" for address, reason in said.items() if reason is not None]
        if refused:
            raise TpunbError(f"not ended: {'; '.join(refused)}", hint="its window ends by itself")

    def _end(self, worker: _Worker, session: str, said: dict[str, str | None]) -> None:
        reason = None
        try:
            worker.client.terminate(session)
        except ServiceError as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001  in this thread nobody else would hear of it
            reason = repr(error)
        with self._changed:
            worker.ending = False
            said[worker.address] = reason
            self._changed.notify_all()

    def step(self, mark: str, number: int) -> AbstractContextManager[Any]:
        """Open the annotation of a step by the framework that this process uses."""
        return annotation(mark, number)


def _checked(addresses: Sequence[str]) -> tuple[str, ...]:
    """Return addresses without ``grpc://``, or raise for one that is none."""
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
    found = re.fullmatch(r"(?:(?P<name>[A-Za-z0-9._-]+)|\[(?P<v6>[^\]]*)\]):(?P<port>[0-9]{1,5})", text)
    if found is None or not 1 <= int(found["port"]) <= 65535:
        return False
    try:
        return found["name"] is not None or bool(ipaddress.IPv6Address(found["v6"]))
    except ValueError:
        return False


def _is_due(worker: _Worker) -> bool:
    return worker.session is None and monotonic() >= worker.rests_until


def _knock(worker: _Worker, answers: queue.SimpleQueue[ServiceError | None]) -> None:
    try:
        worker.client.wait_ready(_READY_S)
    except ServiceError as error:
        answers.put(error)
    else:
        answers.put(None)


def _aside(target: Callable[..., None], *args: Any) -> None:
    """Start a thread that the end of the program does not wait for: a worker may never answer it."""
    threading.Thread(target=target, args=args, daemon=True, name="tpunb-worker").start()
