"""Tokenisation of texts into words and WordPiece tokens, in TensorFlow operations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tpunb.studies.frameworks import tf
from tpunb.studies.paper.workloads.texts import SPECIAL, vocabulary

_PIECE_LETTERS = 12  # limit per piece
_PIECES = 6  # limit per word

LETTERS = 16
"""Letters that are read of a word."""


class Tokens:
    """Numbers of the tokens of a vocabulary, whose first is "[PAD]", with number 0."""

    def __init__(self, tokens: Sequence[str]) -> None:
        numbers = tf.range(len(tokens), dtype=tf.int32)
        pairs = tf.lookup.KeyValueTensorInitializer(tf.constant(tokens), numbers)
        self._table = tf.lookup.StaticHashTable(pairs, default_value=-1)
        self.unknown, self.begin, self.separator = (list(tokens).index(token) for token in SPECIAL[1:])

    def words(self, words: Any) -> Any:
        """Return the number of each word."""
        numbers = self._table.lookup(words)
        return tf.where(numbers < 0, self.unknown, numbers)

    def pieces(self, words: Any) -> Any:
        """Return the tokens of each word as a ragged row; the longest piece first. Other words are unknown."""
        sizes = tf.range(1, _PIECE_LETTERS + 1)
        rest, pieces, failed = words, [], tf.zeros_like(words, tf.bool)
        for number in range(_PIECES):
            length = tf.strings.length(rest)
            cuts = tf.tile(sizes[None], [tf.size(rest), 1])
            starts = tf.strings.substr(tf.tile(rest[:, None], [1, _PIECE_LETTERS]), tf.zeros_like(cuts), cuts)
            candidates = self._table.lookup(tf.strings.join(["##", starts]) if number else starts)
            size = tf.reduce_max(tf.where((candidates >= 0) & (sizes <= length[:, None]), sizes, 0), 1)
            longest = tf.gather(candidates, tf.maximum(size - 1, 0), batch_dims=1)
            pieces.append(tf.where(size > 0, longest, -1))
            failed |= (size == 0) & (length > 0)
            rest = tf.strings.substr(rest, size, length - size)
        unknown = tf.one_hot(0, _PIECES, on_value=self.unknown, off_value=-1, dtype=tf.int32)
        tokens = tf.where(failed[:, None], unknown, tf.stack(pieces, 1))
        return tf.ragged.boolean_mask(tokens, tokens >= 0)


def tokens_of(folder: Path, limit: int) -> Tokens:
    """Return the first `limit` tokens of ``vocab.txt`` in a folder of records, or of the synthetic language."""
    file = folder / "vocab.txt"
    tokens = file.read_text(encoding="utf-8").splitlines() if file.exists() else vocabulary()
    return Tokens(tokens[:limit])


def split(text: Any) -> Any:
    """Return the words and punctuation marks of a text, in lower case."""
    return tf.strings.split(tf.strings.regex_replace(tf.strings.lower(text), r"([[:punct:]])", r" \1 "))


def padded(values: Any, length: int) -> Any:
    """Return the first `length` values or rows, padded with zeros."""
    values = values[:length]
    missing = [[0, length - tf.shape(values)[0]]] + [[0, 0]] * (values.shape.rank - 1)
    return tf.ensure_shape(tf.pad(values, missing), [length, *values.shape[1:]])


def letters(words: Any) -> Any:
    """Return the letters of words as bytes, `LETTERS` each."""
    return tf.cast(tf.io.decode_raw(words, tf.uint8, fixed_length=LETTERS), tf.int32)
