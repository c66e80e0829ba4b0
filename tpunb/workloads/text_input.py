"""What the text models read: records parsed, tokenised, put together and padded."""

from __future__ import annotations

from typing import Any

from tpunb.workloads.records import Decode
from tpunb.workloads.wordpiece import LETTERS, Tokens, letters, padded, split


def sentence_pairs(tokens: Tokens, length: int) -> Decode:
    """Return what turns a record of `tpunb.workloads.texts.Sentences` into BERT's input and a label.

    The input is ``tokens`` and ``segments``, int32 of shape (length,): [CLS] first [SEP] second [SEP].
    """
    import tensorflow as tf

    def tokenise(_: Any, record: Any) -> tuple[Any, Any]:
        text = tf.io.FixedLenFeature([], tf.string)
        features = {"text_a": text, "text_b": text, "label": tf.io.FixedLenFeature([], tf.int64)}
        told = tf.io.parse_single_example(record, features)
        first, second = (tokens.pieces(split(told[name])).flat_values for name in ("text_a", "text_b"))
        room = length - 3
        first = first[: tf.maximum(room - tf.size(second), room // 2)]
        second = second[: room - tf.size(first)]
        return _joined(tokens, first, second, length), tf.cast(told["label"], tf.int32)

    return tokenise


def paragraphs(tokens: Tokens, length: int) -> Decode:
    """Return what turns a record of `tpunb.workloads.texts.Questions` into BERT's input and the span of the answer.

    The span is ``start`` and ``end``, its first and last token. Of a paragraph that is too long, a window with the
    answer is read; BERT's own program reads all windows, one after another.
    """
    import tensorflow as tf

    def tokenise(_: Any, record: Any) -> tuple[Any, Any]:
        told = _question(record)
        question = tokens.pieces(split(told["question"])).flat_values[: length // 2]
        context = tokens.pieces(split(told["context"]))
        words = tf.minimum(_answer(told), tf.cast(context.nrows(), tf.int32) - 1)
        span = tf.stack([tf.gather(context.row_starts(), words[0]), tf.gather(context.row_limits(), words[1]) - 1])
        span, context = tf.cast(span, tf.int32), context.flat_values
        room = length - 3 - tf.size(question)
        window = tf.clip_by_value(span[0] - room // 2, 0, tf.maximum(tf.size(context) - room, 0))
        context = context[window : window + room]
        span = tf.minimum(span - window + tf.size(question) + 2, length - 1)
        return _joined(tokens, question, context, length), {"start": span[0], "end": span[1]}

    return tokenise


def words_and_letters(tokens: Tokens, context: int, question: int) -> Decode:
    """Return what turns a record of `tpunb.workloads.texts.Questions` into QANet's input and the span of the answer.

    The input is ``context`` and ``question``, int32 of so many words, and their letters: ``context_letters`` and
    ``question_letters``, each of one more axis. The span is ``start`` and ``end``, its first and last word.
    """
    import tensorflow as tf

    sizes = {"context": context, "question": question}

    def tokenise(_: Any, record: Any) -> tuple[Any, Any]:
        told = _question(record)
        words = {name: split(told[name]) for name in sizes}
        numbers = {name: padded(tokens.words(words[name]), size) for name, size in sizes.items()}
        spelled = {name: tf.ensure_shape(letters(words[name]), [None, LETTERS]) for name in sizes}
        spelt = {f"{name}_letters": padded(spelled[name], size) for name, size in sizes.items()}
        span = tf.minimum(_answer(told), context - 1)
        return {**numbers, **spelt}, {"start": span[0], "end": span[1]}

    return tokenise


def _question(record: Any) -> Any:
    import tensorflow as tf

    text = tf.io.FixedLenFeature([], tf.string)
    features = {"question": text, "context": text, "answer": text, "answer_start": tf.io.FixedLenFeature([], tf.int64)}
    return tf.io.parse_single_example(record, features)


def _answer(told: Any) -> Any:
    """Return which words of the context the answer is: the first and the last."""
    import tensorflow as tf

    letters_before = tf.cast(told["answer_start"], tf.int32)
    before = tf.strings.substr(told["context"], 0, letters_before, unit="UTF8_CHAR")
    first = tf.size(split(before))
    return tf.stack([first, first + tf.maximum(tf.size(split(told["answer"])), 1) - 1])


def _joined(tokens: Tokens, first: Any, second: Any, length: int) -> dict[str, Any]:
    """Return [CLS] first [SEP] second [SEP], the last part only where there is one, and which part is which."""
    import tensorflow as tf

    end = tf.fill([tf.cast(tf.size(second) > 0, tf.int32)], tokens.separator)
    begun = tf.concat([[tokens.begin], first, [tokens.separator]], 0)
    segments = tf.concat([tf.zeros_like(begun), tf.ones_like(second), tf.ones_like(end)], 0)
    return {"tokens": padded(tf.concat([begun, second, end], 0), length), "segments": padded(segments, length)}
