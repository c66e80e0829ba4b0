"""Trainings as people write them, each with a waste in one place, measured there.

A program is a module with ``main(arguments)``, and runs alone, too: ``python plain_jax.py --waste hook --steps 50
--folder F`` writes ``F/truth.json``. It does not import tpunb. Its wastes are:

``data``
    Time to produce an example: in the dataset, generator or source.
``hook``
    Time in a callback or hook, or in a function called after each step.
``save``
    Checkpoints of a large state, or with a slow function of the user in them, five times.
``read``
    The parameters converted to NumPy and reduced in Python after each step.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

PLACES = ("data", "hook", "save", "read")
WASTE_S = 0.012  # per step
SAVES = 5
PRODUCTS = "TRAINERS_PRODUCTS"  # variable of the environment: products that are added to each step
LINES = 3  # from the beginning of a measured block to where it wastes time


class Truth:
    """What a training wastes, and its steps, by its own clock.

    Parameters
    ----------
    waste
        Place of the waste, of `PLACES`, or None.
    steps
        Number of steps to train.
    folder
        Where the program may write.
    """

    def __init__(self, waste: str | None, steps: int, folder: Path) -> None:
        self.waste, self.steps, self.folder = waste, steps, folder
        self.injected_s = dict.fromkeys(PLACES, 0.0)
        self.lines: dict[str, list[tuple[str, int, int]]] = {}
        self.own_s: dict[str, float] = {}  # that the trainer logs: of its training, of its waits for input
        self.wall_s = 0.0
        self._ends: list[float] = []
        self._inside = False
        self._products = int(os.environ.get(PRODUCTS, "0"))

    @contextmanager
    def __call__(self, place: str) -> Iterator[None]:
        """Measure the block, in which the program wastes time in this place; blocks within count as part of it."""
        if self._inside:
            yield
            return
        frame = sys._getframe(2)  # that of the block; the one between is contextlib's
        first = frame.f_lineno
        self.lines[place] = [(Path(frame.f_code.co_filename).name, first, first + LINES), *FUNCTIONS]
        self._inside, begin_s = True, time.perf_counter()
        try:
            yield
        finally:
            self.injected_s[place] += time.perf_counter() - begin_s
            self._inside = False

    def seconds(self, place: str, share: float = 1.0) -> float:
        """Return how long to sleep in a place, for a share of a step."""
        return WASTE_S * share * (self.waste == place)

    def saves_after(self, step: int) -> bool:
        """Return whether a checkpoint is due after this step, of which the first is 0."""
        return self.waste == "save" and (step + 1) % self.save_every == 0

    @property
    def save_every(self) -> int:
        """Steps from one save to the next."""
        return max(1, self.steps // SAVES)

    def fetches(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield batches, and measure the wait for each, where other threads or processes prepare them."""
        while True:
            with self("data"):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def stepped(self) -> None:
        """Record the end of a step, for the program's own step times, and compute what is added to each."""
        self._ends.append(time.perf_counter())
        product(self._products)

    @contextmanager
    def training(self) -> Iterator[None]:
        """Measure the call that trains."""
        begin_s = time.perf_counter()
        try:
            yield
        finally:
            self.wall_s = time.perf_counter() - begin_s

    def write(self, steps: int, *, in_thread: bool = True) -> None:
        """Write ``truth.json``, with the number of steps by the trainer's counter.

        Unless data are loaded `in_thread`, no line of the training's thread shows where they wait.
        """
        lines = {place: line for place, line in self.lines.items() if place != "data" or in_thread}
        times_s = [end - begin for begin, end in zip(self._ends, self._ends[1:], strict=False)]
        truth = {
            "steps": steps,
            "wall_s": self.wall_s,
            "injected_s": self.injected_s,
            "lines": lines,
            "step_s": times_s,
            "own_s": self.own_s,
        }
        (self.folder / "truth.json").write_text(json.dumps(truth))


def truth_of(arguments: Sequence[str]) -> Truth:
    """Return what the arguments of a program ask for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--waste", choices=["none", *PLACES], default="none")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--folder", type=Path, default=Path())
    options = parser.parse_args(arguments)
    return Truth(None if options.waste == "none" else options.waste, options.steps, options.folder.resolve())


def product(times: int, width: int = 256) -> None:
    """Multiply matrices so many times."""
    a = np.ones((width, width), "float32") if times else None
    for _ in range(times):
        np.dot(a, a)


def work(seconds: float) -> int:
    """Compute in pure Python for a time; return how often."""
    until_s, times = time.perf_counter() + seconds, 0
    while time.perf_counter() < until_s:
        times += 1
    return times


def reduced(array: Any, rows: int = 40_000) -> float:
    """Return the largest absolute value of some numbers of an array, in Python: a few milliseconds."""
    return max(map(abs, array.reshape(-1)[:rows].tolist()))


FUNCTIONS = [
    (Path(__file__).name, code.co_firstlineno, max(line for *_, line in code.co_lines() if line))
    for code in (work.__code__, reduced.__code__)
]
"""File and lines of what a measured block may call."""
