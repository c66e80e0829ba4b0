"""Training programs with one waste each, or none, and what a verdict on them has to name.

A program is a function of the capture and of ``repaired``: without its waste, as a good action would have it. It
measures the waste itself where that is a block; elsewhere the repaired one tells how much it is. The wastes are those
of public guides, tutorials and questions about slow trainings.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any, NamedTuple

blocks_s: list[tuple[float, float]] = []  # begin since 1970, and length, of what programs measure


@contextmanager
def waste() -> Iterator[None]:
    """Measure the block."""
    time_s, begin_s = time.time(), time.perf_counter()
    try:
        yield
    finally:
        blocks_s.append((time_s, time.perf_counter() - begin_s))


def wasted_s(windows_s: Iterable[tuple[float, float]]) -> float:
    """Return the time of all blocks, without what windows add to it."""
    return untraced_s(blocks_s, windows_s)


def untraced_s(blocks: Iterable[tuple[float, float]], windows_s: Iterable[tuple[float, float]]) -> float:
    """Return the time of blocks; those within windows, begin and end, take no longer than the median of others."""
    measured, spans = [*blocks], [*windows_s]
    traced = [any(begin_s < high and begin_s + dur_s > low for low, high in spans) for begin_s, dur_s in measured]
    others = [dur_s for (_, dur_s), each in zip(measured, traced, strict=True) if not each]
    most_s = median(others) if others else math.inf
    return sum(min(dur_s, most_s) if each else dur_s for (_, dur_s), each in zip(measured, traced, strict=True))


class Program(NamedTuple):
    """A program, and what its verdict has to say."""

    train: Callable[[Any, bool], None]  # of the capture, and whether without the waste
    accounts: tuple[str, ...] = ()  # where the documentation puts the waste: one of them; empty if it may be anywhere
    words: str = ""  # a regular expression, found in the first sentence or the action; empty without a waste
    measures: bool = False  # whether it measures its waste


PROGRAMS: dict[str, Program] = {}


def program(account: str | None = None, words: str = "", *, measures: bool = False) -> Callable[..., Any]:
    """Add a program; more than one account is separated by ``|``."""

    def added(train: Callable[[Any, bool], None]) -> Callable[[Any, bool], None]:
        PROGRAMS[train.__name__] = Program(train, tuple(account.split("|")) if account else (), words, measures)
        return train

    return added


def rows(number: int, width: int = 64) -> Any:
    """Return examples."""
    import numpy as np

    return np.random.default_rng(0).random((number, width), "float32")
