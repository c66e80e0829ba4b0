"""Keep a capture whole when the program forks: it stays with the parent, and its threads start before a fork.

The threads of profiler and service start while the first window is requested. A process forked at that moment copies
the C library with half-started threads, and may crash or hang as soon as it starts a thread of its own.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol

WAIT_S = 3.0
"""Longest wait of a fork for the first window; it waits once."""


class Capture(Protocol):
    """A capture that must survive forks."""

    settled: threading.Event
    """Set once its threads have started: the first window is over, or none is due soon."""

    def disown(self) -> None:
        """Become, in a forked process, a copy that records nothing."""


captures: weakref.WeakSet[Capture] = weakref.WeakSet()
"""The running captures of this process."""


def _before() -> None:
    for capture in list(captures):
        capture.settled.wait(WAIT_S)
        capture.settled.set()


def _in_child() -> None:
    for capture in list(captures):
        capture.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_child=_in_child)
