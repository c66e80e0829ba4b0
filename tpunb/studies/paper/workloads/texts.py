"""Sentences and questions with the lengths of the real datasets, in a synthetic language.

Labels can be learned: each class has words that occur only in its texts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tpunb.studies.paper.workloads.records import example

_SYLLABLES = tuple(f"{first}{then}" for first in "bdfgklmnprstvz" for then in "aeiou")
_COMMON, _RARE = 700, 2300  # words in the vocabulary, and words that it has only in pieces
_CLASS_WORDS = 8  # words that mark a class or an answer
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


@dataclass(frozen=True)
class Sentences:
    """Sentences, or pairs of them, with a class: the shape of MRPC, MNLI and CoLA."""

    first: int  # mean number of words
    second: int  # and of the second sentence; 0 for none
    classes: int

    def records(self, numbers: np.random.Generator) -> Iterator[bytes]:
        """Yield records without end: ``text_a``, ``text_b`` and ``label``."""
        while True:
            label = int(numbers.integers(self.classes))
            first = _words(numbers, self.first)
            second = _words(numbers, self.second) if self.second else first
            marked = numbers.random(len(second)) < 0.5
            marked[numbers.integers(len(second))] = True
            class_words = _CLASS_WORDS * label + numbers.integers(_CLASS_WORDS, size=len(second))
            second[marked] = np.array(words())[class_words[marked]]
            texts = {"text_a": _sentence(first), "text_b": _sentence(second) if self.second else ""}
            yield example({**texts, "label": label})


@dataclass(frozen=True)
class Questions:
    """Questions on paragraphs that contain the answers: the shape of SQuAD; mean numbers of words."""

    question: int = 11
    context: int = 120

    def records(self, numbers: np.random.Generator) -> Iterator[bytes]:
        """Yield records without end: ``question``, ``context``, ``answer`` and ``answer_start``, in letters."""
        while True:
            context, question = _words(numbers, self.context), _words(numbers, self.question)
            begin = int(numbers.integers(1, len(context) - 3))
            end = begin + int(numbers.integers(1, 4))
            context[begin:end] = np.array(words())[numbers.integers(_CLASS_WORDS, size=end - begin)]
            question[numbers.integers(len(question))] = context[begin - 1]
            before, answer = " ".join(context[:begin]), " ".join(context[begin:end])
            texts = {"question": f"{' '.join(question)} ?", "context": f"{before} {answer} {_sentence(context[end:])}"}
            yield example({**texts, "answer": answer, "answer_start": len(before) + 1})


def _words(numbers: np.random.Generator, mean: int) -> Any:
    """Return about `mean` words with the frequencies of Zipf's law, without those that mark a class."""
    length = int(np.clip(numbers.normal(mean, mean / 3), 5, 3 * mean))
    ranks = np.searchsorted(_frequencies(), numbers.random(length))
    return np.array(words())[3 * _CLASS_WORDS + ranks]


@cache
def _frequencies() -> Any:
    """Return the cumulative frequencies of the words that mark no class."""
    summed = np.cumsum(1 / (np.arange(len(words()) - 3 * _CLASS_WORDS) + 3))
    return summed / summed[-1]


def _sentence(words: Any) -> str:
    return " ".join([*words, "."])


@cache
def words() -> tuple[str, ...]:
    """Return the words of the language: those that mark classes, then the others by frequency."""
    numbers = np.random.default_rng(0)
    distinct: dict[str, None] = {}
    while len(distinct) < _COMMON + _RARE:
        syllables = numbers.choice(_SYLLABLES, size=numbers.integers(1, 5))
        distinct["".join(syllables)] = None
    return tuple(distinct)


@cache
def vocabulary() -> tuple[str, ...]:
    """Return the tokens of the language: frequent words, and the pieces of all others."""
    letters = tuple("abcdefghijklmnopqrstuvwxyz0123456789")
    pieces = [*words()[:_COMMON], *".,?!'-", *letters, *_SYLLABLES]
    within = [f"##{piece}" for piece in (*letters, *_SYLLABLES)]
    return (*SPECIAL, *dict.fromkeys([*pieces, *within]))
