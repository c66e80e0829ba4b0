"""Training programs with one waste each, or none, and what a verdict on them has to name.

A program is a function of the capture and of ``repaired``: without its waste, as a good action would have it. It
measures the waste itself where that is a block; elsewhere the repaired one tells how much it is. The wastes are those
of public guides, tutorials and questions about slow trainings.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

wasted_s = [0.0]


@contextmanager
def waste() -> Iterator[None]:
    """Measure the block."""
    begin_s = time.perf_counter()
    try:
        yield
    finally:
        wasted_s[0] += time.perf_counter() - begin_s


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
