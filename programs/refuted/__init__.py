"""Trainings on which tpunb was wrong once, and trainings of the same kinds, with what is true of them.

A program is a function of a `Clock`, with which it counts its steps and measures where its time goes; the clock knows
nothing of tpunb. No program marks its steps. What a program wastes stands in one function or block of its own.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

from programs.wastes import untraced_s

Train = Callable[["Clock"], None]
LEAST_CAUSE = 0.1  # share of run time from which a waste has to be named: what takes less is not in the first sentence
_WASTES = _WASTE, _WAIT = "waste", "wait"
MOST_HEALTHY = 0.05  # share of run time up to which a program with a waste is healthy


class Clock:
    """Counts and measures what a program does.

    Attributes
    ----------
    steps
        Training steps; None if a step is not defined.
    evaluations
        Batches that are evaluated; None if that is not defined.
    """

    def __init__(self) -> None:
        self.steps: int | None = 0
        self.evaluations: int | None = 0
        self._blocks: dict[str, list[tuple[float, float]]] = {}  # begin since 1970, and length, by account
        self._begin_s = time.perf_counter()

    @contextmanager
    def account(self, name: str) -> Iterator[None]:
        """Measure a block as time of an account."""
        time_s, begin_s = time.time(), time.perf_counter()
        try:
            yield
        finally:
            self._blocks.setdefault(name, []).append((time_s, time.perf_counter() - begin_s))

    def waste(self) -> AbstractContextManager[None]:
        """Measure a block that is wasted."""
        return self.account(_WASTE)

    def waited_for(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield batches, and count the time until each is there as wasted, in windows, too: they add nothing to it."""
        iterator = iter(batches)
        while True:
            with self.account(_WAIT):
                batch = next(iterator, self)
            if batch is self:
                break
            yield batch

    def seconds(self, windows_s: Iterable[tuple[float, float]]) -> dict[str, float]:
        """Return the time by account, without what windows of a profiler, begin and end, add to it."""
        spans = [*windows_s]
        return {name: untraced_s(blocks, spans) for name, blocks in self._blocks.items() if name not in _WASTES}

    def wasted_s(self, windows_s: Iterable[tuple[float, float]]) -> float:
        """Return the time that is wasted, in the same way."""
        waited_s = sum(dur_s for _, dur_s in self._blocks.get(_WAIT, []))
        return waited_s + untraced_s(self._blocks.get(_WASTE, []), windows_s)

    @property
    def wasted(self) -> float:
        """Share of the time since the clock was made that is wasted."""
        return self.wasted_s([]) / (time.perf_counter() - self._begin_s)


class Program(NamedTuple):
    """A program, and what is known of it before it runs."""

    train: Train
    accounts: tuple[str, ...] = ()  # that its waste may belong to; empty if it may be anywhere
    words: str = ""  # a regular expression for the cause of its waste; empty without one
    healthy: bool | None = None  # None if nothing is known of wastes

    def run(self) -> dict[str, Any]:
        """Train; return what is true, by the keys of ``tests/judged_runs.py``: values, or functions of the windows."""
        clock = Clock()
        self.train(clock)
        wasted = clock.wasted
        cause = {"accounts": list(self.accounts), "words": self.words} if wasted >= LEAST_CAUSE else None
        return {
            "steps": clock.steps,
            "evaluations": clock.evaluations,
            "accounts": clock.seconds,
            "cause": cause,
            "wasted_s": clock.wasted_s if cause else None,
            "healthy": wasted < MOST_HEALTHY if self.words else self.healthy,
        }


PROGRAMS: dict[str, Program] = {}


def counted(train: Train) -> Train:
    """Register a program of which only its counts, and the accounts that it measures, are known."""
    PROGRAMS[train.__name__] = Program(train)
    return train


def healthy(train: Train) -> Train:
    """Register a program that wastes nothing."""
    PROGRAMS[train.__name__] = Program(train, healthy=True)
    return train


def wasteful(*accounts: str, words: str) -> Callable[[Train], Train]:
    """Register a program that wastes time: in one of these accounts, with words for the cause."""

    def register(train: Train) -> Train:
        PROGRAMS[train.__name__] = Program(train, accounts, words)
        return train

    return register


def drawn(losses: list[float], until_s: float) -> str:
    """Draw a curve again and again for some seconds."""
    image, begin_s = io.StringIO(), time.perf_counter()
    while time.perf_counter() - begin_s < until_s:
        points = " ".join(f"{number},{100 * loss:.3f}" for number, loss in enumerate(losses))
        image.write(f'<polyline points="{points}"/>')
    return image.getvalue()
