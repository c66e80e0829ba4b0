"""Signals between modules that must not import each other; called in the sender's thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")

NEW_ITERATOR, DATA_END = "a new iterator at the end of an epoch", "end of the data"
WORKERS_START = "start of workers"
"""Details of time in data loading with causes of its own."""
STEP_TIMES_ONLY = "step times only"
"""In the message of a window that waited in vain for a supported framework."""
UNSURE = "computing, or waiting for code in other threads"
"""Detail of time in "other" within steps, of which stacks from outside do not show what it was."""


class Signal(Generic[T]):
    """Call every connected receiver with each value sent; any thread may connect and send.

    >>> numbers, signal = [], Signal()
    >>> with signal.connect(numbers.append):
    ...     signal.send(3)
    >>> numbers, signal.receivers
    ([3], ())
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self.receivers: tuple[Callable[[T], None], ...] = ()

    @contextmanager
    def connect(self, receiver: Callable[[T], None]) -> Iterator[None]:
        """Call `receiver` with each value sent while the block runs."""
        with self._lock:
            self.receivers = (*self.receivers, receiver)
        try:
            yield
        finally:
            with self._lock:
                at = self.receivers.index(receiver)
                self.receivers = self.receivers[:at] + self.receivers[at + 1 :]

    def send(self, value: T) -> None:
        """Call the receivers that are connected now, in the order of their connection."""
        for receiver in self.receivers:
            receiver(value)


class Spent(NamedTuple):
    """A stretch of time of known cause, by the monotonic clock."""

    account: str
    detail: str | None
    start_ns: int
    end_ns: int


window_reducers: list[Callable[..., Any]] = []
"""The function of the capture that reduces a window, for readers, which must not import it: ``tpunb`` hands it in."""

phase_opened: Signal[int] = Signal()
"""The online scan of a capture has found a new phase: its number."""
resumed: Signal[str] = Signal()
"""A block of ``tp.resume`` has ended: a sentence with the steps verified. A running capture is connected."""
spent: Signal[Spent] = Signal()
"""Time went into an account of ``tpunb.schema.ACCOUNTS``. A running capture is connected."""


@contextmanager
def spending(account: str, detail: str | None = None) -> Iterator[None]:
    """Send the time that the block takes as `spent`, also if it fails."""
    start_ns = time.monotonic_ns()
    try:
        yield
    finally:
        spent.send(Spent(account, detail, start_ns, time.monotonic_ns()))
