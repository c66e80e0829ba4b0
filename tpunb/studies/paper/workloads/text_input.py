"""Input of the text models: records are parsed, tokenised, joined and padded."""

from __future__ import annotations

from typing import Any

from tpunb.studies.frameworks import tf
from tpunb.studies.paper.workloads.records import Decode
from tpunb.studies.paper.workloads.wordpiece import LETTERS, Tokens, letters, padded, split


def sentence_pairs(tokens: Tokens, length: int) -> Decode:
    """Return the function from a record of `Sentences` to BERT's input, int32 of (length,), and a label."""

    def tokenise(_: Any, record: Any) -> tuple[Any, Any]:
        text = tf.io.FixedLenFeature([], tf.string)
        schema = {"text_a": text, "text_b": text, "label": tf.io.FixedLenFeature([], tf.int64)}
        parsed = tf.io.parse_single_example(record, schema)
        first, second = (tokens.pieces(split(parsed[name])).flat_values for name in ("text_a", "text_b"))
        room = length - 3
        first = first[: tf.maximum(room - tf.size(second), room // 2)]
        second = second[: room - tf.size(first)]
        return _joined(tokens, first, second, length), tf.cast(parsed["label"], tf.int32)

    return tokenise


def paragraphs(tokens: Tokens, length: int) -> Decode:
    """Return the function from a record of `Questions` to BERT's input and the answer's span.

    Of a long paragraph a window around the answer is read; the original BERT reads all windows in turn.
    """

    def tokenise(_: Any, record: Any) -> tuple[Any, Any]:
        parsed = _question(record)
        question = tokens.pieces(split(parsed["question"])).flat_values[: length // 2]
        context = tokens.pieces(split(parsed["context"]))
        words = tf.minimum(_answer(parsed), tf.cast(context.nrows(), tf.int32) - 1)
        span = tf.stack([tf.gather(context.row_starts(), words[0]), tf.gather(context.row_limits(), words[1]) - 1])
        span, context = tf.cast(span, tf.int32), context.flat_values
        room = length - 3 - tf.size(question)
        window = tf.clip_by_value(span[0] - room // 2, 0, tf.maximum(tf.size(context) - room, 0))
        context = context[window : window + room]
        span = tf.minimum(span - window + tf.size(question) + 2, length - 1)
        return _joined(tokens, question, context, length), {"start": span[0], "end": span[1]}

    return tokenise


def words_and_letters(tokens: Tokens, context: int, question: int) -> Decode:
    """Return the function from a record of `Questions` to QANet's input and the answer's span.

    Words are int32 of (context,) and (question,), their letters have one more axis.
    """
    sizes = {"context": context, "question": question}

    def tokenise(_: Any, record: Any) -> tuple[Any, Any]:
        parsed = _question(record)
        words = {name: split(parsed[name]) for name in sizes}
        numbers = {name: padded(tokens.words(words[name]), size) for name, size in sizes.items()}
        spelled = {name: tf.ensure_shape(letters(words[name]), [None, LETTERS]) for name in sizes}
        spelt = {f"{name}_letters": padded(spelled[name], size) for name, size in sizes.items()}
        span = tf.minimum(_answer(parsed), context - 1)
        return {**numbers, **spelt}, {"start": span[0], "end": span[1]}

    return tokenise


def word_vectors(tokens: Tokens, context: int, question: int, vectors: Any) -> Decode:
    """Return the function from a record of `Questions` to the float32 vectors of its words and the span.

    `vectors` has one row per token.
    """
    sizes = {"context": context, "question": question}

    def look_up(_: Any, record: Any) -> tuple[Any, Any]:
        parsed = _question(record)
        numbers = {name: tokens.words(split(parsed[name])) for name in sizes}
        span = tf.minimum(_answer(parsed), context - 1)
        of_words = {name: padded(tf.gather(vectors, numbers[name]), size) for name, size in sizes.items()}
        return of_words, {"start": span[0], "end": span[1]}

    return look_up


def _question(record: Any) -> Any:
    text = tf.io.FixedLenFeature([], tf.string)
    features = {"question": text, "context": text, "answer": text, "answer_start": tf.io.FixedLenFeature([], tf.int64)}
    return tf.io.parse_single_example(record, features)


def _answer(parsed: Any) -> Any:
    """Return the numbers of the first and last word of the answer in the context."""
    start = tf.cast(parsed["answer_start"], tf.int32)
    first = tf.size(split(tf.strings.substr(parsed["context"], 0, start, unit="UTF8_CHAR")))
    return tf.stack([first, first + tf.maximum(tf.size(split(parsed["answer"])), 1) - 1])


def _joined(tokens: Tokens, first: Any, second: Any, length: int) -> dict[str, Any]:
    """Return [CLS] first [SEP] second [SEP] and their segments; an empty second part has no [SEP]."""
    end = tf.fill([tf.cast(tf.size(second) > 0, tf.int32)], tokens.separator)
    start = tf.concat([[tokens.begin], first, [tokens.separator]], 0)
    segments = tf.concat([tf.zeros_like(start), tf.ones_like(second), tf.ones_like(end)], 0)
    return {"tokens": padded(tf.concat([start, second, end], 0), length), "segments": padded(segments, length)}
