"""QANet (Yu et al., 2018): separable convolutions and self-attention over a question and the text that answers it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tpunb.errors import need
from tpunb.workloads.records import Decode
from tpunb.workloads.scaling import Plan, between
from tpunb.workloads.text_input import words_and_letters
from tpunb.workloads.texts import Questions
from tpunb.workloads.wordpiece import LETTERS, tokens_of

_EPOCHS, _EPOCH_STEPS, _BATCH = 5, 20_000, 32
_DROPOUT = 0.1
_BYTES = 256
_EMBEDDING_CONVOLUTIONS, _MODEL_CONVOLUTIONS = (4, 7), (2, 5)  # how many of a block, and their kernel
_PASSES = 3  # over the same blocks

Layer = Callable[..., Any]


@dataclass(frozen=True)
class Size:
    """How large the model is.

    Attributes
    ----------
    hidden, heads, blocks
        Of the encoders, and of the blocks that read context and question together.
    context, question
        Words of each that are read.
    vocabulary, word, letter
        Rows of the embedding of words, and the widths of both embeddings.
    """

    hidden: int
    heads: int
    blocks: int
    context: int
    question: int
    vocabulary: int
    word: int
    letter: int

    @classmethod
    def at(cls, scale: float) -> Size:
        """Return the size at a scale, up to the one of QANet's paper at 1.

        >>> Size.at(1)
        Size(hidden=128, heads=8, blocks=7, context=400, question=50, vocabulary=90000, word=300, letter=200)
        """
        return cls(
            hidden=between(64, 128, scale, of=32),
            heads=between(2, 8, scale, of=2),
            blocks=between(1, 7, scale),
            context=between(128, 400, scale),
            question=between(24, 50, scale),
            vocabulary=between(1024, 90_000, scale),
            word=between(48, 300, scale),
            letter=between(16, 200, scale),
        )


@dataclass(frozen=True)
class QANet:
    """QANet on SQuAD, or on a share of it: what `tpunb.workloads.Workload` asks of a recipe.

    Attributes
    ----------
    texts
        What the dataset holds.
    examples
        Of its training data.
    share
        Of the dataset that is read; an epoch has that share of the steps (paper VI.C).
    """

    texts: Questions
    examples: int
    share: float = 1.0

    def facts(self) -> Mapping[str, object]:
        """Return its parameters, as in Table I."""
        plan = self.plan(1)
        return {"train batch size": plan.batch, "steps per epoch": plan.epoch_steps, "num epochs": plan.epochs}

    def plan(self, scale: float) -> Plan:
        """Return how long it trains: what grows with the scale is the batch, the steps and the examples."""
        batch = between(8, _BATCH, scale)
        steps = round(between(80, _EPOCH_STEPS, scale) * self.share)
        examples = round(between(512, self.examples, scale) * self.share)
        return Plan(batch, _EPOCHS, steps, between(10, 10_570 // _BATCH, scale), examples)

    def made(self, scale: float) -> Questions:
        """Return what makes records: texts of the real lengths at any scale."""
        return self.texts

    def decode(self, scale: float, split: str, seed: int, folder: Path) -> Decode:
        """Return what turns a record into input and target."""
        size = Size.at(scale)
        return words_and_letters(tokens_of(folder, size.vocabulary), size.context, size.question)

    def model(self, scale: float) -> Any:
        """Return the compiled model."""
        keras = need("keras", extra="tensorflow")
        crossentropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = keras.optimizers.Adam(1e-3, beta_1=0.8, epsilon=1e-7, global_clipnorm=5.0)
        model = span(Size.at(scale))
        model.compile(optimizer, {"start": crossentropy, "end": crossentropy})
        return model


def span(size: Size) -> Any:
    """Return QANet: logits ``start`` and ``end`` of shape (batch, words of the context)."""
    import keras

    lengths = {"context": size.context, "question": size.question}
    inputs = {name: keras.Input((length,), dtype="int32", name=name) for name, length in lengths.items()}
    for name, length in lengths.items():
        inputs[f"{name}_letters"] = keras.Input((length, LETTERS), dtype="int32", name=f"{name}_letters")
    embed, encode = _embedding(size), _encoder(size, 1, *_EMBEDDING_CONVOLUTIONS, "embedding")
    seen = {name: keras.ops.not_equal(inputs[name], 0) for name in lengths}
    context, question = (encode(embed(inputs[name], inputs[f"{name}_letters"]), seen[name]) for name in lengths)
    hidden = _attended(context, question, seen["context"], seen["question"])
    hidden = keras.layers.Conv1D(size.hidden, 1, use_bias=False, name="attended")(hidden)
    model = _encoder(size, size.blocks, *_MODEL_CONVOLUTIONS, "model")
    passes = []
    for _ in range(_PASSES):
        hidden = model(hidden, seen["context"])
        passes.append(hidden)
    logits = {
        name: _pointer(keras.ops.concatenate([passes[0], other], axis=-1), seen["context"], name)
        for name, other in (("start", passes[1]), ("end", passes[2]))
    }
    return keras.Model(inputs, logits, name="qanet")


def _embedding(size: Size) -> Layer:
    """Return what embeds words by their numbers and their letters: two highway layers above both."""
    import keras

    words = keras.layers.Embedding(size.vocabulary, size.word, name="words")
    letters = keras.layers.Embedding(_BYTES, size.letter, name="letters")
    spelling = keras.layers.Conv2D(size.letter, (1, 5), padding="same", activation="relu", name="spelling")
    width = size.word + size.letter
    highways = [
        (
            keras.layers.Dense(width, activation="sigmoid", name=f"gate_{number}"),
            keras.layers.Dense(width, activation="relu", name=f"highway_{number}"),
        )
        for number in range(2)
    ]
    narrow = keras.layers.Conv1D(size.hidden, 1, use_bias=False, name="embedded")

    def embed(numbers: Any, spelled: Any) -> Any:
        heard = keras.ops.max(spelling(letters(spelled)), axis=2)
        hidden = keras.layers.Dropout(_DROPOUT)(keras.ops.concatenate([words(numbers), heard], axis=-1))
        for gate, change in highways:
            opened = gate(hidden)
            hidden = opened * change(hidden) + (1 - opened) * hidden
        return narrow(hidden)

    return embed


def _encoder(size: Size, blocks: int, convolutions: int, kernel: int, name: str) -> Layer:
    """Return encoder blocks: convolutions, self-attention and feed-forward, each normed first and then added.

    What is returned is called on hidden states and which of them count; each call shares the weights.
    """
    import keras

    residuals: list[tuple[Any, Layer, bool]] = []  # norm, what is added, whether it asks which states count
    for number in range(blocks):
        at = f"{name}_{number}"
        parts: list[Layer] = [
            keras.layers.SeparableConv1D(
                size.hidden, kernel, padding="same", activation="relu", name=f"{at}_convolution_{one}"
            )
            for one in range(convolutions)
        ]
        parts += [
            keras.layers.MultiHeadAttention(size.heads, size.hidden // size.heads, name=f"{at}_attention"),
            _chained(keras.layers.Dense(size.hidden, activation="relu"), keras.layers.Dense(size.hidden)),
        ]
        residuals += [(keras.layers.LayerNormalization(), part, part is parts[convolutions]) for part in parts]
    starts = range(0, len(residuals), convolutions + 2)

    def encode(hidden: Any, seen: Any) -> Any:
        for number, (norm, part, attends) in enumerate(residuals):
            if number in starts:
                hidden = hidden + _positions(hidden.shape[1], size.hidden)
            normed = norm(hidden)
            added = part(normed, normed, attention_mask=seen[:, None, :]) if attends else part(normed)
            hidden = hidden + keras.layers.Dropout(_DROPOUT)(added)
        return hidden

    return encode


def _chained(first: Layer, then: Layer) -> Layer:
    return lambda hidden: then(first(hidden))


def _attended(context: Any, question: Any, context_seen: Any, question_seen: Any) -> Any:
    """Return the context with what of the question belongs to each word, and what of the context to that.

    The likeness of a word of either is trilinear: a weighed sum of both and of their product.
    """
    import keras

    ops = keras.ops
    width = context.shape[-1]
    of_context = keras.layers.Dense(1, use_bias=False, name="likeness_context")(context)
    of_question = keras.layers.Dense(1, use_bias=False, name="likeness_question")(question)
    weighed = keras.layers.EinsumDense("bcd,d->bcd", (None, width), name="likeness_product")(context)
    likeness = of_context + ops.transpose(of_question, (0, 2, 1)) + ops.einsum("bcd,bqd->bcq", weighed, question)
    to_question = ops.softmax(_only(likeness, question_seen[:, None, :]), axis=2)
    to_context = ops.softmax(_only(likeness, context_seen[:, :, None]), axis=1)
    asked = ops.matmul(to_question, question)
    back = ops.matmul(ops.matmul(to_question, ops.transpose(to_context, (0, 2, 1))), context)
    return ops.concatenate([context, asked, context * asked, context * back], axis=-1)


def _pointer(hidden: Any, seen: Any, name: str) -> Any:
    """Return a logit for each word of the context, as good as none where there is no word."""
    import keras

    logits = keras.layers.Dense(1, use_bias=False, name=name)(hidden)
    return _only(logits[..., 0], seen)


def _only(logits: Any, seen: Any) -> Any:
    import keras

    return keras.ops.where(seen, logits, -1e9)


def _positions(length: int, width: int) -> Any:
    """Return sines and cosines of each position, float32 of shape (length, width)."""
    angles = np.arange(length)[:, None] / 10_000 ** (np.arange(width // 2) / (width // 2))
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype("float32")
