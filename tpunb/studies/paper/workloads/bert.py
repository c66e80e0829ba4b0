"""BERT (Devlin et al., 2019): a transformer encoder with a head for classes or for the span of an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tpunb.studies.frameworks import keras
from tpunb.studies.paper.workloads.records import Decode
from tpunb.studies.paper.workloads.sizes import Plan, between, rate
from tpunb.studies.paper.workloads.text_input import paragraphs, sentence_pairs
from tpunb.studies.paper.workloads.texts import Questions, Sentences
from tpunb.studies.paper.workloads.wordpiece import tokens_of
from tpunb.studies.paper.workloads.workload import WorkloadSpec

_EPOCHS, _BATCH = 3, 32
_HEAD = 64  # width of an attention head, at any scale


@dataclass(frozen=True)
class Size:
    """Size of the model."""

    layers: int
    hidden: int  # width; that of a feed-forward layer is four times as much
    heads: int
    vocabulary: int  # rows of the embedding, as `positions`
    positions: int
    length: int = 128  # tokens of an input
    dropout: float = 0.1

    @classmethod
    def at(cls, scale: float) -> Size:
        """Return the size at a scale, up to BERT-Base at 1; the length is that of Table I.

        >>> Size.at(1)
        Size(layers=12, hidden=768, heads=12, vocabulary=30522, positions=512, length=128, dropout=0.1)
        """
        hidden = between(128, 768, scale, of=_HEAD)
        return cls(
            layers=between(2, 12, scale),
            hidden=hidden,
            heads=hidden // _HEAD,
            vocabulary=between(1024, 30522, scale),
            positions=between(128, 512, scale),
        )

    @classmethod
    def beside_input(cls, width: int) -> Size:
        """Return the size with two layers, without dropout: most of a narrow step on a CPU is its random numbers."""
        return cls(2, 2 * width, 2, vocabulary=1024, positions=128, dropout=0.0)


@dataclass(frozen=True)
class Bert(WorkloadSpec):
    """BERT on one dataset."""

    SIZE: ClassVar[type[Size]] = Size
    UNIT: ClassVar[int] = 176
    RUN: ClassVar[Plan] = Plan(16, epochs=2, epoch_steps=20, eval_steps=4, examples=256)

    data: Sentences | Questions
    examples: int  # of training
    small: int  # steps of an epoch at scale 0

    def facts(self) -> Mapping[str, object]:
        """Return the parameters in Table I."""
        return {
            "max seq length": Size.at(1).length,
            "train batch size": self.plan(1).batch,
            "learning rate": _learning_rate(1),
            "num train epochs": self.plan(1).epochs,
        }

    def plan(self, scale: float) -> Plan:
        """Return the plan: batch, steps and examples grow with the scale. It evaluates once, at the end."""
        batch = between(16, _BATCH, scale)
        steps = between(self.small, self.examples // _BATCH, scale)
        examples = between(self.small * 16, self.examples, scale)
        return Plan(batch, _EPOCHS, steps, max(1, steps // 4), examples, eval_every=_EPOCHS)

    def decode(self, scale: float, split: str, seed: int, folder: Path) -> Decode:
        """Return the function from a record to input and target."""
        size = self.size(scale)
        tokens = tokens_of(folder, size.vocabulary)
        prepare = sentence_pairs if isinstance(self.data, Sentences) else paragraphs
        return prepare(tokens, size.length)

    def model(self, scale: float) -> Any:
        """Return the compiled model."""
        crossentropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        decay = keras.optimizers.schedules.PolynomialDecay(_learning_rate(scale), self.plan(scale).steps, 0.0)
        optimizer = keras.optimizers.AdamW(decay, weight_decay=0.01, global_clipnorm=1.0)
        if isinstance(self.data, Sentences):
            model = classifier(self.size(scale), self.data.classes)
            model.compile(optimizer, crossentropy, metrics=["accuracy"])
        else:
            model = span(self.size(scale))
            model.compile(optimizer, {"start": crossentropy, "end": crossentropy})
        return model


def classifier(size: Size, classes: int) -> Any:
    """Return BERT as a classifier: logits of shape (batch, classes)."""
    inputs, hidden = _encoder(size)
    pooled = keras.layers.Dense(size.hidden, activation="tanh", name="pooler", **_init())(hidden[:, 0])
    pooled = keras.layers.Dropout(size.dropout)(pooled)
    logits = keras.layers.Dense(classes, name="classes", **_init())(pooled)
    return keras.Model(inputs, logits, name="bert_classifier")


def span(size: Size) -> Any:
    """Return BERT for answer spans: logits ``start`` and ``end`` of shape (batch, length)."""
    inputs, hidden = _encoder(size)
    logits = keras.layers.Dense(2, name="span", **_init())(hidden)
    return keras.Model(inputs, {"start": logits[..., 0], "end": logits[..., 1]}, name="bert_span")


def _encoder(size: Size) -> tuple[Any, Any]:
    """Return the inputs, and hidden states of shape (batch, length, hidden)."""
    shape = (size.length,)
    inputs = {name: keras.Input(shape, dtype="int32", name=name) for name in ("tokens", "segments")}
    tokens = inputs["tokens"]
    positions = keras.ops.cumsum(keras.ops.ones_like(tokens), axis=1) - 1
    hidden = (
        _embedding(size.vocabulary, size.hidden, "token_embedding")(tokens)
        + _embedding(2, size.hidden, "segment_embedding")(inputs["segments"])
        + _embedding(size.positions, size.hidden, "position_embedding")(positions)
    )
    hidden = keras.layers.Dropout(size.dropout)(_norm("embedding_norm")(hidden))
    mask = keras.ops.not_equal(tokens, 0)[:, None, :]
    for number in range(size.layers):
        hidden = _layer(hidden, mask, size, f"layer_{number}")
    return inputs, hidden


def _layer(hidden: Any, mask: Any, size: Size, name: str) -> Any:
    """Return the hidden states after one layer: attention and feed-forward, both residual and normalised."""
    attention = keras.layers.MultiHeadAttention(
        size.heads, size.hidden // size.heads, dropout=size.dropout, name=f"{name}_attention", **_init()
    )
    attended = keras.layers.Dropout(size.dropout)(attention(hidden, hidden, attention_mask=mask))
    hidden = _norm(f"{name}_attention_norm")(hidden + attended)
    wide = keras.layers.Dense(4 * size.hidden, activation="gelu", name=f"{name}_wide", **_init())(hidden)
    narrow = keras.layers.Dense(size.hidden, name=f"{name}_narrow", **_init())(wide)
    return _norm(f"{name}_norm")(hidden + keras.layers.Dropout(size.dropout)(narrow))


def _embedding(rows: int, hidden: int, name: str) -> Any:
    return keras.layers.Embedding(rows, hidden, embeddings_initializer=_normal(), name=name)


def _norm(name: str) -> Any:
    return keras.layers.LayerNormalization(epsilon=1e-12, name=name)


def _init() -> dict[str, Any]:
    return {"kernel_initializer": _normal()}


def _normal() -> Any:
    return keras.initializers.TruncatedNormal(stddev=0.02)


def _learning_rate(scale: float) -> float:
    """Return the highest learning rate; the small model is not pre-trained and trains for few steps."""
    return rate(1e-3, 2e-5, scale)
