"""News between rooms that do not know each other: who tells, tells all who hear at that moment, in its own thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class News(Generic[T]):
    """One kind of news; any thread may tell or hear.

    >>> numbers, news = [], News()
    >>> with news.told() as tell, news.heard(numbers.append):
    ...     tell(3)
    >>> numbers, news.is_told
    ([3], False)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tellers = 0
        self._hearers: list[Callable[[T], None]] = []

    @contextmanager
    def told(self) -> Iterator[Callable[[T], None]]:
        """Give the function that tells, for as long as somebody would."""
        with self._lock:
            self._tellers += 1
        try:
            yield self._tell
        finally:
            with self._lock:
                self._tellers -= 1

    @contextmanager
    def heard(self, hear: Callable[[T], None]) -> Iterator[None]:
        """Call `hear` with what is told while the block runs, in the thread that tells."""
        with self._lock:
            self._hearers.append(hear)
        try:
            yield
        finally:
            with self._lock:
                self._hearers.remove(hear)

    @property
    def is_told(self) -> bool:
        """Whether there is somebody who would tell."""
        return self._tellers > 0

    def _tell(self, what: T) -> None:
        with self._lock:
            hearers = list(self._hearers)
        for hear in hearers:
            hear(what)


opened: News[int] = News()
"""The online scan of a capture has opened a phase: its number. Whoever saves hears."""
saved: News[float] = News()
"""A checkpoint was saved: the seconds it took. Whoever captures hears."""


@contextmanager
def saving() -> Iterator[None]:
    """Tell how long the block takes, which saves; also where it fails."""
    begun = time.perf_counter()
    try:
        yield
    finally:
        with saved.told() as tell:
            tell(time.perf_counter() - begun)
