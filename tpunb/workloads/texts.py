"""Sentences and questions with the lengths of the real datasets, in a made-up language whose labels can be learned.

As in the real datasets, some words give the answer away: each class has some of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tpunb.workloads.records import example

_SYLLABLES = tuple(f"{first}{then}" for first in "bdfgklmnprstvz" for then in "aeiou")
_COMMON, _RARE = 700, 2300  # words that the vocabulary holds whole, and words that it holds in pieces
_OWN = 8  # words that a class has of its own, or that are answers
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
PAD, UNKNOWN, BEGIN, SEPARATOR = range(4)


@dataclass(frozen=True)
class Sentences:
    """Sentences, or pairs of them, each of a class: the shape of MRPC, MNLI and CoLA.

    Attributes
    ----------
    first, second
        Words of the sentences on average; no second one where that is 0.
    classes
        How many labels there are.
    """

    first: int
    second: int
    classes: int

    def records(self, numbers: np.random.Generator) -> Iterator[bytes]:
        """Yield records without end: ``text_a``, ``text_b`` and ``label``."""
        while True:
            label = int(numbers.integers(self.classes))
            first = _words(numbers, self.first)
            second = _words(numbers, self.second) if self.second else first
            told = numbers.random(len(second)) < 0.5
            told[numbers.integers(len(second))] = True
            own = _OWN * label + numbers.integers(_OWN, size=len(second))
            second[told] = np.array(words())[own[told]]
            texts = {"text_a": _sentence(first), "text_b": _sentence(second) if self.second else ""}
            yield example({**texts, "label": label})


@dataclass(frozen=True)
class Questions:
    """Questions on paragraphs that hold the answers: the shape of SQuAD.

    Attributes
    ----------
    question, context
        Words of them on average.
    """

    question: int = 11
    context: int = 120

    def records(self, numbers: np.random.Generator) -> Iterator[bytes]:
        """Yield records without end: ``question``, ``context``, ``answer`` and ``answer_start``, its first letter."""
        while True:
            context, question = _words(numbers, self.context), _words(numbers, self.question)
            begin = int(numbers.integers(1, len(context) - 3))
            end = begin + int(numbers.integers(1, 4))
            context[begin:end] = np.array(words())[numbers.integers(_OWN, size=end - begin)]
            question[numbers.integers(len(question))] = context[begin - 1]
            before, answer = " ".join(context[:begin]), " ".join(context[begin:end])
            texts = {"question": f"{' '.join(question)} ?", "context": f"{before} {answer} {_sentence(context[end:])}"}
            yield example({**texts, "answer": answer, "answer_start": len(before) + 1})


def _words(numbers: np.random.Generator, mean: int) -> Any:
    """Return words, some `mean` of them, the first of the language the most frequent (Zipf), no class's own."""
    length = int(np.clip(numbers.normal(mean, mean / 3), 5, 3 * mean))
    ranks = np.searchsorted(_frequencies(), numbers.random(length))
    return np.array(words())[3 * _OWN + ranks]


@cache
def _frequencies() -> Any:
    """Return how likely a word is one of the first, second, ... of those that no class has for itself, summed up."""
    summed = np.cumsum(1 / (np.arange(len(words()) - 3 * _OWN) + 3))
    return summed / summed[-1]


def _sentence(some: Any) -> str:
    return " ".join([*some, "."])


@cache
def words() -> tuple[str, ...]:
    """Return the words of the language: those of the classes first, then the others as they are frequent."""
    numbers = np.random.default_rng(0)
    found: dict[str, None] = {}
    while len(found) < _COMMON + _RARE:
        syllables = numbers.choice(_SYLLABLES, size=numbers.integers(1, 5))
        found["".join(syllables)] = None
    return tuple(found)


@cache
def vocabulary() -> tuple[str, ...]:
    """Return the tokens of the language: whole words, and pieces from which all other words can be put together."""
    letters = tuple("abcdefghijklmnopqrstuvwxyz0123456789")
    pieces = [*words()[:_COMMON], *".,?!'-", *letters, *_SYLLABLES]
    within = [f"##{piece}" for piece in (*letters, *_SYLLABLES)]
    return (*SPECIAL, *dict.fromkeys([*pieces, *within]))
