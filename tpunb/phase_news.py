"""News of a run in progress: its online scan has opened a phase. Whoever captures tells; whoever saves hears."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_tellers = 0
_hearers: list[Callable[[int], None]] = []


@contextmanager
def telling() -> Iterator[Callable[[int], None]]:
    """Give the function that tells of a phase by its number, for as long as a capture runs; any thread may call it.

    >>> numbers = []
    >>> with telling() as tell, heard(numbers.append):
    ...     tell(3)
    >>> numbers, is_told()
    ([3], False)
    """
    global _tellers
    with _lock:
        _tellers += 1
    try:
        yield _tell
    finally:
        with _lock:
            _tellers -= 1


@contextmanager
def heard(hear: Callable[[int], None]) -> Iterator[None]:
    """Call `hear` with the number of each phase that is opened while the block runs, in the thread that tells."""
    with _lock:
        _hearers.append(hear)
    try:
        yield
    finally:
        with _lock:
            _hearers.remove(hear)


def is_told() -> bool:
    """Say whether a capture runs that would tell."""
    return _tellers > 0


def _tell(phase: int) -> None:
    with _lock:
        hearers = list(_hearers)
    for hear in hearers:
        hear(phase)
