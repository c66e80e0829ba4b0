"""Small programs, each written anew after a public page: the layers, data and loop of the page, at toy size.

Each module has the programs of one source. A program is a function of an empty folder that returns a `Training`, whose
``fit`` the benchmark calls, a `Loop`, a training loop of its own, a `Script`, which trains as a whole, or `Steps`, a
loop over ``run.batches``. Its docstring ends with the address of its page in parentheses. All data are synthetic, of
the shapes of the page.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

if (found := find_spec("datasets")) is not None and found.origin is None:
    sys.modules["datasets"] = None  # type: ignore[assignment]  # a folder of this project, no library of that name


@dataclass(frozen=True)
class Training:
    """Call of ``fit``: its model, its data and its other arguments."""

    model: Any
    data: Any
    epochs: int = 2
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Loop:
    """Training loop without ``fit``.

    Attributes
    ----------
    parts
        What `tp.checkpoint.save` saves, by name.
    step
        ``step(parts)`` takes one step and returns its loss; it replaces trees of arrays in `parts`.
    steps
        Number of steps.
    """

    parts: dict[str, Any]
    step: Callable[[dict[str, Any]], Any]
    steps: int = 18


@dataclass(frozen=True)
class Script:
    """Training of PyTorch as a whole.

    Attributes
    ----------
    train
        ``train(step)`` trains, calls ``step(loss)`` after each step, and returns what is compared: parts with a
        ``state_dict``, or tensors.
    """

    train: Callable[[Callable[[float], None]], list[Any]]


@dataclass(frozen=True)
class Steps:
    """Training loop over the batches of ``run.batches``.

    Attributes
    ----------
    state
        What ``run.batches`` saves, by name.
    data
        What it reads.
    step
        ``step(state, batch)`` takes one step and returns its loss; it changes `state`, or what is in it.
    epochs
        Number of passes over the data.
    """

    state: dict[str, Any]
    data: Any
    step: Callable[[dict[str, Any], Any], Any]
    epochs: int = 3


@dataclass(frozen=True)
class Program:
    """A program, and what tells it from the others.

    Attributes
    ----------
    operations
        Sequence of its dataset operations, from the source.
    tags
        "tune": it is also tuned. "own step": its training step is its own. "callback": a callback has state. "torch":
        it trains with PyTorch. "nnx": it is a loop of Flax NNX.
    """

    make: Callable[[Path], Training | Loop | Script | Steps]
    operations: str
    tags: frozenset[str]

    @property
    def name(self) -> str:
        """Name of the function."""
        return self.make.__name__

    @property
    def page(self) -> str:
        """Address of the page."""
        match = re.search(r"\((\S+)\)\.$", (self.make.__doc__ or "").strip())
        assert match, f"{self.name} names no page"
        return match[1]


PROGRAMS: dict[str, Program] = {}
"""Programs by name."""


def program(operations: str, *tags: str) -> Callable[[Callable[[Path], Any]], Callable[[Path], Any]]:
    """Register a function as a program."""

    def register(make: Callable[[Path], Any]) -> Callable[[Path], Any]:
        PROGRAMS[make.__name__] = Program(make, operations, frozenset(tags))
        return make

    return register


# -- synthetic data ------------------------------------------------------------------------------------------


def images(count: int = 48, side: int = 8, channels: int = 1) -> Any:
    """Return images with values from 0 to 1."""
    return np.random.default_rng(1).random((count, side, side, channels), dtype="float32")


def labels(count: int = 48, classes: int = 3) -> Any:
    """Return class numbers."""
    return np.random.default_rng(2).integers(0, classes, count)


def table(count: int = 48, columns: int = 5) -> tuple[Any, Any]:
    """Return rows of numbers, and a number to predict for each."""
    x = np.random.default_rng(3).normal(size=(count, columns)).astype("float32")
    return x, x.sum(1, keepdims=True) ** 2


def tokens(count: int = 48, length: int = 6, vocabulary: int = 20) -> Any:
    """Return sequences of token numbers from 1."""
    return np.random.default_rng(4).integers(1, vocabulary, (count, length))


def texts(count: int = 48) -> list[str]:
    """Return lines of words."""
    line = "the a film was is not very good bad long short fun dull plot cast"
    words = np.array(line.split(" "))
    dice = np.random.default_rng(5)
    return [" ".join(dice.choice(words, dice.integers(4, 9))) for _ in range(count)]


def text_files(folder: Path, parts: int = 3) -> list[str]:
    """Return files with lines of words."""
    lines = texts()
    for number in range(parts):
        (folder / f"part{number}.txt").write_text("\n".join(lines[number::parts]))
    return [str(folder / f"part{number}.txt") for number in range(parts)]


def csv_file(folder: Path, columns: int = 5) -> str:
    """Return a CSV file: a header, the label, and columns of numbers."""
    x, y = table(96, columns)
    lines = [",".join(["label", *(f"c{at}" for at in range(columns))])]
    lines += [",".join(f"{value:.4f}" for value in (*target, *row)) for row, target in zip(x, y, strict=True)]
    (folder / "rows.csv").write_text("\n".join(lines))
    return str(folder / "rows.csv")
