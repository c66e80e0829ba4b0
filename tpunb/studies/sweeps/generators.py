"""Networks of any size for sweeps: compiled Keras models, on any backend, and synthetic data.

The parameters follow ParaDnn (Wang, Wei, Brooks, 2019, https://arxiv.org/abs/1907.10701). Each function returns a model
and endless batches, all equal, drawn with a fixed seed: data that cost nothing, so that a sweep measures the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from tpunb.errors import check_whole
from tpunb.studies.frameworks import keras, tf

VOCABULARY = 1000
"""Number of tokens of `rnn` and `transformer`."""

_CELLS = {"rnn": "SimpleRNN", "lstm": "LSTM", "gru": "GRU"}
_EXPANSION = {"residual": 1, "bottleneck": 4}  # filters of a block's result by those of its 3x3 convolution


def fc(
    *,
    layers: int = 4,
    nodes: int = 512,
    input: int = 2000,  # noqa: A002
    output: int = 1000,
    batch: int = 64,
) -> tuple[Any, Any]:
    """Return a fully connected classifier and its data.

    Parameters
    ----------
    layers
        Number L of hidden layers, with ReLU.
    nodes
        Units N of each.
    input
        Features I of an example.
    output
        Number O of classes.
    batch
        Examples of a step.

    Returns
    -------
    (keras.Model, tf.data.Dataset or keras.utils.PyDataset)
        Of ``I N + N + (L - 1) (N² + N) + N O + O`` weights.

    Raises
    ------
    ValueError
        If a parameter is no integer of 1 or more.
    """
    _sizes("fc", layers=layers, nodes=nodes, input=input, output=output, batch=batch)
    dense = keras.layers.Dense
    stack = [keras.layers.Input((input,)), *(dense(nodes, "relu") for _ in range(layers)), dense(output)]
    return _compiled(keras.Sequential(stack)), _batches((batch, input), output, (batch,))


def cnn(
    kind: Literal["residual", "bottleneck"] = "bottleneck",
    *,
    blocks: int | Sequence[int] = (3, 4, 6, 3),
    filters: int = 64,
    image: int = 224,
    classes: int = 1000,
    batch: int = 64,
) -> tuple[Any, Any]:
    """Return a residual network (He et al. 2016) and its images; by default it is ResNet-50.

    Parameters
    ----------
    kind
        "residual" for blocks of two 3x3 convolutions, "bottleneck" for 1x1, 3x3 and 1x1 with four times the filters.
    blocks
        Number of blocks in each group; of one number, four groups have that many.
    filters
        Filters of the first group; each group doubles them and halves the image.
    image
        Height and width of an image of three channels, in pixels.
    classes
        Number of classes.
    batch
        Examples of a step.

    Returns
    -------
    (keras.Model, tf.data.Dataset or keras.utils.PyDataset)

    Raises
    ------
    ValueError
        If `kind` is neither, or another parameter is no integer of 1 or more.
    """
    if kind not in _EXPANSION:
        raise ValueError(f"The kind parameter of cnn must be one of {', '.join(_EXPANSION)}. Got {kind!r} instead.")
    groups = [blocks] * 4 if isinstance(blocks, int) else [*blocks]
    _sizes("cnn", filters=filters, image=image, classes=classes, batch=batch)
    for number in groups or [0]:
        _sizes("cnn", blocks=number)
    inputs = keras.layers.Input((image, image, 3))
    x = _convolved(inputs, filters, 7, 2)
    x = keras.layers.MaxPooling2D(3, 2, padding="same")(x)
    for group, number in enumerate(groups):
        for block in range(number):
            x = _block(x, kind, filters * 2**group, 2 if group and not block else 1)
    logits = keras.layers.Dense(classes)(keras.layers.GlobalAveragePooling2D()(x))
    return _compiled(keras.Model(inputs, logits)), _batches((batch, image, image, 3), classes, (batch,))


def rnn(
    *,
    cell: Literal["rnn", "lstm", "gru"] = "lstm",
    layers: int = 1,
    size: int = 128,
    length: int = 50,
    embedding: int = 100,
    batch: int = 64,
) -> tuple[Any, Any]:
    """Return a recurrent network that predicts the token after a sequence, and its sequences.

    Parameters
    ----------
    cell
        "rnn" for a simple one, "lstm" or "gru".
    layers
        Number L of recurrent layers.
    size
        Units S of each.
    length
        Tokens of a sequence.
    embedding
        Width E of the vector of a token.
    batch
        Examples of a step.

    Returns
    -------
    (keras.Model, tf.data.Dataset or keras.utils.PyDataset)
        Of ``V E + sum(G S (inputs + S + b)) + S V + V`` weights: V is `VOCABULARY`, inputs are E, then S; a simple
        cell, an LSTM and a GRU have 1, 4 and 3 gates G, each with b = 1, 1 and 2 biases.

    Raises
    ------
    ValueError
        If `cell` is of no kind above, or another parameter is no integer of 1 or more.
    """
    if cell not in _CELLS:
        raise ValueError(f"The cell parameter of rnn must be one of {', '.join(_CELLS)}. Got {cell!r} instead.")
    _sizes("rnn", layers=layers, size=size, length=length, embedding=embedding, batch=batch)
    recurrent = getattr(keras.layers, _CELLS[cell])
    stack = [recurrent(size, return_sequences=number < layers) for number in range(1, layers + 1)]
    tokens = keras.layers.Input((length,), dtype="int32"), keras.layers.Embedding(VOCABULARY, embedding)
    model = keras.Sequential([*tokens, *stack, keras.layers.Dense(VOCABULARY)])
    return _compiled(model), _batches((batch, length), VOCABULARY, (batch,), tokens=True)


def transformer(
    *, layers: int = 2, width: int = 128, heads: int = 4, length: int = 64, batch: int = 16
) -> tuple[Any, Any]:
    """Return a causal transformer that predicts each next token, and its sequences.

    Blocks normalise first and have a hidden layer of four times their width. Positions are known by the causal mask.

    Parameters
    ----------
    layers
        Number L of blocks.
    width
        Width W of the vector of a token.
    heads
        Number of attention heads; it divides `width`.
    length
        Tokens of a sequence.
    batch
        Examples of a step.

    Returns
    -------
    (keras.Model, tf.data.Dataset or keras.utils.PyDataset)
        Of ``L (12 W² + 13 W) + 2 W + 2 V W + V`` weights: V is `VOCABULARY`.

    Raises
    ------
    ValueError
        If a parameter is no integer of 1 or more, or `heads` does not divide `width`.
    """
    _sizes("transformer", layers=layers, width=width, heads=heads, length=length, batch=batch)
    if width % heads:
        raise ValueError(f"The heads parameter of transformer must divide width. Got {heads} for {width} instead.")
    norm, dense = keras.layers.LayerNormalization, keras.layers.Dense
    inputs = keras.layers.Input((length,), dtype="int32")
    x = keras.layers.Embedding(VOCABULARY, width)(inputs)
    for _ in range(layers):
        y = norm()(x)
        x = x + keras.layers.MultiHeadAttention(heads, width // heads)(y, y, use_causal_mask=True)
        x = x + dense(width)(dense(4 * width, "gelu")(norm()(x)))
    model = keras.Model(inputs, dense(VOCABULARY)(norm()(x)))
    return _compiled(model), _batches((batch, length), VOCABULARY, (batch, length), tokens=True)


def _sizes(owner: str, **values: object) -> None:
    for name, value in values.items():
        check_whole(owner, name, value, 1)


def _compiled(model: Any) -> Any:
    model.compile("rmsprop", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def _convolved(x: Any, filters: int, kernel: int, stride: int = 1, *, relu: bool = True) -> Any:
    x = keras.layers.Conv2D(filters, kernel, stride, padding="same", use_bias=False)(x)
    x = keras.layers.BatchNormalization()(x)
    return keras.layers.ReLU()(x) if relu else x


def _block(x: Any, kind: str, filters: int, stride: int) -> Any:
    """Return a block with its shortcut, which is a projection where the shape changes."""
    out, y = filters * _EXPANSION[kind], x
    if kind == "bottleneck":
        y = _convolved(_convolved(y, filters, 1), filters, 3, stride)
        y = _convolved(y, out, 1, relu=False)
    else:
        y = _convolved(_convolved(y, filters, 3, stride), out, 3, relu=False)
    if stride > 1 or x.shape[-1] != out:
        x = _convolved(x, out, 1, stride, relu=False)
    return keras.layers.ReLU()(x + y)


def _batches(shape: tuple[int, ...], classes: int, labels: tuple[int, ...], *, tokens: bool = False) -> Any:
    """Return endless equal batches: a ``tf.data.Dataset`` on TensorFlow, else a ``keras.utils.PyDataset``."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, VOCABULARY, shape, dtype=np.int32) if tokens else rng.standard_normal(shape, dtype=np.float32)
    batch = x, rng.integers(0, classes, labels, dtype=np.int32)
    if keras.backend.backend() == "tensorflow":
        return tf.data.Dataset.from_tensors(batch).repeat()

    base: Any = keras.utils.PyDataset

    class Batches(base):  # type: ignore[misc]
        num_batches = None  # endless

        def __getitem__(self, index: int) -> Any:
            return batch

    return Batches()
