"""Texts into numbers with TensorFlow's operations, as a part of an input pipeline: words, and pieces of words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tpunb.workloads.texts import SPECIAL, vocabulary

_LONGEST = 12  # letters of a piece
_PIECES = 6  # of a word; what is longer is cut

LETTERS = 16
"""Of a word, where its letters are read; what is longer is cut."""


class Tokens:
    """The numbers of a vocabulary's tokens.

    Parameters
    ----------
    known
        The vocabulary; it begins with "[PAD]", which is number 0.
    """

    def __init__(self, known: Sequence[str]) -> None:
        import tensorflow as tf

        places = tf.range(len(known), dtype=tf.int32)
        pairs = tf.lookup.KeyValueTensorInitializer(tf.constant(known), places)
        self._table = tf.lookup.StaticHashTable(pairs, default_value=-1)
        self.unknown, self.begin, self.separator = (list(known).index(token) for token in SPECIAL[1:])

    def words(self, words: Any) -> Any:
        """Return the number of each word, as a whole."""
        import tensorflow as tf

        places = self._table.lookup(words)
        return tf.where(places < 0, self.unknown, places)

    def pieces(self, words: Any) -> Any:
        """Return the tokens of each word, a ragged row each: at every place the longest piece there is.

        A word with a letter that is in no piece is unknown.
        """
        import tensorflow as tf

        sizes = tf.range(1, _LONGEST + 1)
        rest, found, lost = words, [], tf.zeros_like(words, tf.bool)
        for number in range(_PIECES):
            length = tf.strings.length(rest)
            cuts = tf.tile(sizes[None], [tf.size(rest), 1])
            starts = tf.strings.substr(tf.tile(rest[:, None], [1, _LONGEST]), tf.zeros_like(cuts), cuts)
            places = self._table.lookup(tf.strings.join(["##", starts]) if number else starts)
            size = tf.reduce_max(tf.where((places >= 0) & (sizes <= length[:, None]), sizes, 0), 1)
            place = tf.gather(places, tf.maximum(size - 1, 0), batch_dims=1)
            found.append(tf.where(size > 0, place, -1))
            lost |= (size == 0) & (length > 0)
            rest = tf.strings.substr(rest, size, length - size)
        unknown = tf.one_hot(0, _PIECES, on_value=self.unknown, off_value=-1, dtype=tf.int32)
        tokens = tf.where(lost[:, None], unknown, tf.stack(found, 1))
        return tf.ragged.boolean_mask(tokens, tokens >= 0)


def tokens_of(folder: Path, most: int) -> Tokens:
    """Return the tokens for the records of a folder: of its ``vocab.txt``, a token a line, else of the made language.

    Parameters
    ----------
    folder
        Where the records lie.
    most
        How many tokens the model knows.
    """
    own = folder / "vocab.txt"
    known = own.read_text(encoding="utf-8").splitlines() if own.exists() else vocabulary()
    return Tokens(known[:most])


def split(text: Any) -> Any:
    """Return the words of a text, in small letters; signs are words of their own."""
    import tensorflow as tf

    return tf.strings.split(tf.strings.regex_replace(tf.strings.lower(text), r"([[:punct:]])", r" \1 "))


def padded(values: Any, length: int) -> Any:
    """Return the first of some values, or of rows of such, with zeros behind them up to `length`."""
    import tensorflow as tf

    values = values[:length]
    missing = [[0, length - tf.shape(values)[0]]] + [[0, 0]] * (values.shape.rank - 1)
    return tf.ensure_shape(tf.pad(values, missing), [length, *values.shape[1:]])


def letters(words: Any) -> Any:
    """Return the letters of words as bytes, `LETTERS` each."""
    import tensorflow as tf

    return tf.cast(tf.io.decode_raw(words, tf.uint8, fixed_length=LETTERS), tf.int32)
