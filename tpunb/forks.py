"""Captures and the processes that a program forks meanwhile: they stay the parent's, and begin before it forks.

While its first window is asked for, the threads of profiler and service begin. A process that is forked at that moment
is a copy of the C library with threads half made; now and then it crashes or hangs as soon as it starts one of its own.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol

WAIT_S = 3.0
"""How long a fork waits for the first window, at most and once."""


class Capture(Protocol):
    """What must know of forks."""

    settled: threading.Event
    """Its threads have begun: the first window is over, or none is near."""

    def disown(self) -> None:
        """Become the copy of a capture, in a forked process: one that records nothing."""


_running: weakref.WeakSet[Capture] = weakref.WeakSet()


def begun(capture: Capture) -> None:
    """Mind a capture that begins."""
    _running.add(capture)


def ended(capture: Capture) -> None:
    """Mind it no longer."""
    _running.discard(capture)


def _before() -> None:
    for capture in list(_running):
        capture.settled.wait(WAIT_S)
        capture.settled.set()


def _in_child() -> None:
    for capture in list(_running):
        capture.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_child=_in_child)
