"""Windows of JAX and TensorFlow: sessions of their profilers in this process, which open no port.

XLA's profiler leaves CUPTI as a session ends. Where another thread launches a CUDA graph meanwhile, that ends the
process: jax issue 40260; on an H100 with JAX 0.11 two of three captured trainings, within the first windows. Of eight
with sessions that begin and end between steps it ended none. On GPUs the thread that trains therefore begins and ends
the sessions of JAX.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

from tpunb.errors import TpunbError
from tpunb.instrument import jax
from tpunb.profiler.limits import LIMITS
from tpunb.profiler.sources.between_steps import BetweenSteps
from tpunb.text import format_error

T = TypeVar("T")

_PROGRAMS = b"\x12\x0e/host:metadata"  # the name of the plane of compiled programs, with tag and size

_open: list[Any] = []
"""Sessions that no step ended: one that is garbage collected ends in any thread."""

_in_profiler = threading.Lock()
"""Held while a thread runs in a profiler: if it returns to an interpreter that has ended, the process is aborted."""


@atexit.register
def _wait_for_profiler() -> None:
    if _in_profiler.acquire(timeout=LIMITS.exit_s):
        _in_profiler.release()


def _forget_threads() -> None:
    """Free the lock in a forked process, which lacks the thread that holds it."""
    global _in_profiler
    _in_profiler = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


def window(framework: ModuleType, seconds: float, between: BetweenSteps, stopped: threading.Event) -> bytes:
    """Profile for `seconds`, or until `stopped`; return the XSpace, which for TensorFlow holds compiled programs."""
    session = _call(framework, framework.Window, between, stopped)
    _open.append(session)
    stopped.wait(seconds)

    def end() -> bytes:
        _open.remove(session)
        return bytes(session.collect())

    return _call(framework, end, between, stopped)


def programs_of_jax(between: BetweenSteps, stopped: threading.Event) -> bytes:
    """Return an XSpace without events that holds the compiled programs of JAX."""
    return _call(jax, lambda: jax.Window(programs=True).collect(), between, stopped)


def split_programs(data: bytes) -> tuple[bytes, bytes]:
    """Return an XSpace without its compiled programs, and one of these alone; for few planes, without numba."""
    start = 0
    while start < len(data):
        tag, size_at = _varint(data, start)
        size, body = _varint(data, size_at)
        stop = body + size
        if tag & 7 != 2 or stop > len(data):  # an XSpace has no fields but messages and texts: it is damaged
            break
        name_at = _varint(data, body + 1)[1] if data[body : body + 1] == b"\x08" else body  # after its id
        if tag >> 3 == 1 and data.startswith(_PROGRAMS, name_at):
            return data[:start] + data[stop:], data[start:stop]
        start = stop
    return data, b""


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a whole number of protobuf, and the position after it."""
    value = shift = 0
    for at in range(at, min(at + 10, len(data))):  # noqa: B020
        value |= (data[at] & 0x7F) << shift
        if data[at] < 0x80:
            return value, at + 1
        shift += 7
    return value, len(data)


def _call(framework: ModuleType, function: Callable[[], T], between: BetweenSteps, stopped: threading.Event) -> T:
    """Return what a function of a profiler returns; of JAX on a GPU, the thread that trains calls it."""

    def call() -> T:
        with _in_profiler:
            return function()

    try:
        return between.call(call, stopped, anywhere=False) if framework is jax and jax.on_gpu() else call()
    except TpunbError:
        raise
    except Exception as error:  # of the binding
        raise TpunbError(f"the profiler of {framework.LIBRARY.name} failed: {format_error(error)}") from error
