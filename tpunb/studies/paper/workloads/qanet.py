"""QANet (Yu et al., 2018): separable convolutions and self-attention over a question and its context."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tpunb.studies.frameworks import keras
from tpunb.studies.paper.workloads.records import Decode
from tpunb.studies.paper.workloads.sizes import Plan, between
from tpunb.studies.paper.workloads.text_input import word_vectors, words_and_letters
from tpunb.studies.paper.workloads.texts import Questions
from tpunb.studies.paper.workloads.wordpiece import LETTERS, tokens_of
from tpunb.studies.paper.workloads.workload import WorkloadSpec

_EPOCHS, _EPOCH_STEPS, _BATCH = 5, 20_000, 32
_BYTES = 256
_EMBEDDING_CONVOLUTIONS, _MODEL_CONVOLUTIONS = (4, 7), (2, 5)  # per block, and kernel size
_PASSES = 3  # over the model encoder

Layer = Callable[..., Any]


@dataclass(frozen=True)
class Size:
    """Size of the model."""

    hidden: int  # width of the encoders
    heads: int
    blocks: int  # of the model encoder
    context: int  # words that are read, as `question`
    question: int
    vocabulary: int  # rows of the word embedding
    word: int  # width of an embedding, as `letter`
    letter: int  # 0: the words come as vectors
    patch: int = 1  # words of the context of which the model reads the mean
    dropout: float = 0.1

    @classmethod
    def at(cls, scale: float) -> Size:
        """Return the size at a scale, up to that of QANet's paper at 1.

        >>> size = Size.at(1)
        >>> size.hidden, size.heads, size.blocks, size.context, size.question, size.vocabulary
        (128, 8, 7, 400, 50, 90000)
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

    @classmethod
    def beside_input(cls, width: int) -> Size:
        """Return the size for an input pipeline that embeds the words, as that of the paper's program does."""
        lengths = {"context": 400, "question": 50, "vocabulary": 1024, "word": 300, "letter": 0, "patch": 50}
        return cls(2 * width, heads=1, blocks=1, **lengths, dropout=0.0)


@dataclass(frozen=True)
class QANet(WorkloadSpec):
    """QANet on SQuAD, or on a share of it."""

    SIZE: ClassVar[type[Size]] = Size
    UNIT: ClassVar[int] = 128
    RUN: ClassVar[Plan] = Plan(192, epochs=2, epoch_steps=20, eval_steps=4, examples=512)

    data: Questions
    examples: int  # of training, in all of SQuAD
    share: float = 1.0  # of the dataset that is read; an epoch has that share of the steps (paper VI.C)

    def facts(self) -> Mapping[str, object]:
        """Return the parameters in Table I."""
        plan = self.plan(1)
        return {"train batch size": plan.batch, "steps per epoch": plan.epoch_steps, "num epochs": plan.epochs}

    def plan(self, scale: float) -> Plan:
        """Return the plan: batch, steps and examples grow with the scale."""
        batch = between(8, _BATCH, scale)
        steps = round(between(80, _EPOCH_STEPS, scale) * self.share)
        examples = round(between(512, self.examples, scale) * self.share)
        return Plan(batch, _EPOCHS, steps, between(10, 10_570 // _BATCH, scale), examples)

    def decode(self, scale: float, split: str, seed: int, folder: Path) -> Decode:
        """Return the function from a record to input and target."""
        size = self.size(scale)
        tokens = tokens_of(folder, size.vocabulary)
        if size.letter:
            return words_and_letters(tokens, size.context, size.question)
        vectors = np.random.default_rng(0).normal(size=(size.vocabulary, size.word)).astype("float32")
        return word_vectors(tokens, size.context, size.question, vectors)

    def model(self, scale: float) -> Any:
        """Return the compiled model."""
        crossentropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = keras.optimizers.Adam(1e-3, beta_1=0.8, epsilon=1e-7, global_clipnorm=5.0)
        model = span(self.size(scale))
        model.compile(optimizer, {"start": crossentropy, "end": crossentropy})
        return model


def span(size: Size) -> Any:
    """Return QANet: logits ``start`` and ``end`` of shape (batch, words of the context)."""
    inputs, embedded, masks = (_embedded if size.letter else _given_vectors)(size)
    encode = _encoder(size, 1, *_EMBEDDING_CONVOLUTIONS, "embedding")
    context, question = (encode(embedded[name], masks[name]) for name in embedded)
    hidden = _attended(context, question, masks["context"], masks["question"])
    hidden = keras.layers.Conv1D(size.hidden, 1, use_bias=False, name="attended")(hidden)
    model = _encoder(size, size.blocks, *_MODEL_CONVOLUTIONS, "model")
    passes = []
    for _ in range(_PASSES):
        hidden = model(hidden, masks["context"])
        passes.append(hidden)
    logits = {
        name: _pointer(keras.ops.concatenate([passes[0], other], axis=-1), masks["context"], name)
        for name, other in (("start", passes[1]), ("end", passes[2]))
    }
    if size.patch > 1:
        logits = {name: keras.ops.repeat(each, size.patch, axis=1) for name, each in logits.items()}
    return keras.Model(inputs, logits, name="qanet")


def _embedded(size: Size) -> tuple[dict[str, Any], ...]:
    """Return the inputs, and by text the embedded words and their mask."""
    lengths = {"context": size.context, "question": size.question}
    inputs = {name: keras.Input((length,), dtype="int32", name=name) for name, length in lengths.items()}
    for name, length in lengths.items():
        inputs[f"{name}_letters"] = keras.Input((length, LETTERS), dtype="int32", name=f"{name}_letters")
    embed, masks = _embedding(size), {name: keras.ops.not_equal(inputs[name], 0) for name in lengths}
    return inputs, {name: embed(inputs[name], inputs[f"{name}_letters"]) for name in lengths}, masks


def _given_vectors(size: Size) -> tuple[dict[str, Any], ...]:
    """Return the inputs, and by text the vectors, of which the mean of each patch is read, and their mask."""
    lengths = {"context": size.context, "question": size.question}
    inputs = {name: keras.Input((length, size.word), name=name) for name, length in lengths.items()}
    patches = {"context": size.patch, "question": size.patch // 2}  # questions are short
    pooled = {name: keras.layers.AveragePooling1D(patches[name])(vectors) for name, vectors in inputs.items()}
    narrow = keras.layers.Conv1D(size.hidden, 1, use_bias=False, name="embedded")
    masks = {name: keras.ops.any(keras.ops.not_equal(each, 0.0), axis=-1) for name, each in pooled.items()}
    return inputs, {name: narrow(each) for name, each in pooled.items()}, masks


def _embedding(size: Size) -> Layer:
    """Return the embedding of words by number and letters, with two highway layers on top."""
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
        spelt = keras.ops.max(spelling(letters(spelled)), axis=2)
        hidden = keras.layers.Dropout(size.dropout)(keras.ops.concatenate([words(numbers), spelt], axis=-1))
        for gate, change in highways:
            share = gate(hidden)
            hidden = share * change(hidden) + (1 - share) * hidden
        return narrow(hidden)

    return embed


def _encoder(size: Size, blocks: int, convolutions: int, kernel: int, name: str) -> Layer:
    """Return a function of hidden states and mask: residual convolutions, self-attention and feed-forward."""
    residuals: list[tuple[Any, Layer, bool]] = []  # normalisation, layer, whether it takes the mask
    for number in range(blocks):
        at = f"{name}_{number}"
        parts: list[Layer] = [
            keras.layers.SeparableConv1D(
                size.hidden, kernel, padding="same", activation="relu", name=f"{at}_convolution_{i}"
            )
            for i in range(convolutions)
        ]
        parts += [
            keras.layers.MultiHeadAttention(size.heads, size.hidden // size.heads, name=f"{at}_attention"),
            _chain(keras.layers.Dense(size.hidden, activation="relu"), keras.layers.Dense(size.hidden)),
        ]
        residuals += [(keras.layers.LayerNormalization(), part, part is parts[convolutions]) for part in parts]
    starts = range(0, len(residuals), convolutions + 2)

    def encode(hidden: Any, mask: Any) -> Any:
        for number, (norm, part, attends) in enumerate(residuals):
            if number in starts:
                hidden = hidden + _positions(hidden.shape[1], size.hidden)
            normed = norm(hidden)
            added = part(normed, normed, attention_mask=mask[:, None, :]) if attends else part(normed)
            hidden = hidden + keras.layers.Dropout(size.dropout)(added)
        return hidden

    return encode


def _chain(first: Layer, then: Layer) -> Layer:
    return lambda hidden: then(first(hidden))


def _attended(context: Any, question: Any, context_mask: Any, question_mask: Any) -> Any:
    """Return the context with context-to-question and question-to-context attention, by trilinear similarity."""
    ops = keras.ops
    width = context.shape[-1]
    of_context = keras.layers.Dense(1, use_bias=False, name="likeness_context")(context)
    of_question = keras.layers.Dense(1, use_bias=False, name="likeness_question")(question)
    weighted = keras.layers.EinsumDense("bcd,d->bcd", (None, width), name="likeness_product")(context)
    similarity = of_context + ops.transpose(of_question, (0, 2, 1)) + ops.einsum("bcd,bqd->bcq", weighted, question)
    to_question = ops.softmax(_masked(similarity, question_mask[:, None, :]), axis=2)
    to_context = ops.softmax(_masked(similarity, context_mask[:, :, None]), axis=1)
    answered = ops.matmul(to_question, question)
    back = ops.matmul(ops.matmul(to_question, ops.transpose(to_context, (0, 2, 1))), context)
    return ops.concatenate([context, answered, context * answered, context * back], axis=-1)


def _pointer(hidden: Any, mask: Any, name: str) -> Any:
    """Return a logit per word of the context; padding gets a very low one."""
    logits = keras.layers.Dense(1, use_bias=False, name=name)(hidden)
    return _masked(logits[..., 0], mask)


def _masked(logits: Any, mask: Any) -> Any:
    return keras.ops.where(mask, logits, -1e9)


def _positions(length: int, width: int) -> Any:
    """Return sinusoidal position encodings, float32 of shape (length, width)."""
    angles = np.arange(length)[:, None] / 10_000 ** (np.arange(width // 2) / (width // 2))
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype("float32")
