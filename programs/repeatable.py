"""Ten training programs of a fixed number of seconds, and the phases that each has."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tpunb.profiler.capture import Run

BATCH = 32


class Program(NamedTuple):
    """A training, and the numbers of its phases by kind: any of several sets is right."""

    train: Callable[[Run, float, Path], None]  # run, seconds, folder
    phases: tuple[dict[str, int], ...]
    backend: str = "tensorflow"


def _images(side: int, *, rows: int = 1024) -> Any:
    import tensorflow as tf

    rng = np.random.default_rng(0)
    data = rng.random((rows, side, side, 3), "float32"), rng.integers(0, 10, rows)
    return tf.data.Dataset.from_tensor_slices(data).shuffle(256, seed=0).batch(BATCH).prefetch(2)


def _convnet(*extra: Any) -> Any:
    import keras
    from keras import layers

    body = [layers.Conv2D(16, 3, activation="relu"), layers.MaxPooling2D(), layers.Conv2D(32, 3, activation="relu")]
    head = [layers.GlobalAveragePooling2D(), layers.Dropout(0.2), layers.Dense(10)]
    model = keras.Sequential([keras.Input((None, None, 3)), *body, *extra, *head])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


def _until(seconds: float, *, epoch: bool = False) -> Any:
    """Return a callback that ends `fit` after so many seconds, at the end of a step or of an epoch."""
    import keras

    end_s = time.perf_counter() + seconds

    class Until(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training |= not epoch and time.perf_counter() > end_s

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training |= time.perf_counter() > end_s

    return Until()


def _fit(model: Any, data: Any, seconds: float, *callbacks: Any, validation: Any = None) -> None:
    until = _until(seconds, epoch=validation is not None)
    model.fit(data, epochs=10**6, validation_data=validation, callbacks=[until, *callbacks], verbose=0)


def keras_convnet(run: Run, seconds: float, folder: Path) -> None:
    """Fit once, with validation."""
    _fit(_convnet(), _images(32, rows=4096), seconds, validation=_images(32, rows=2048))


def with_layer(run: Run, seconds: float, folder: Path) -> None:
    """Fit the same with one more layer, which normalises batches."""
    import keras

    model = _convnet(keras.layers.BatchNormalization())
    _fit(model, _images(32, rows=4096), seconds, validation=_images(32, rows=2048))


def transformer(run: Run, seconds: float, folder: Path) -> None:
    """Fit a block of attention over tokens."""
    import keras
    import tensorflow as tf
    from keras import layers

    rng = np.random.default_rng(0)
    rows = rng.integers(0, 1000, (2048, 64)), rng.integers(0, 2, 2048)
    tokens = keras.Input((64,), dtype="int32")
    x = layers.Embedding(1000, 64)(tokens)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 16, dropout=0.1)(x, x))
    x = layers.LayerNormalization()(x + layers.Dense(64)(layers.Dense(256, "gelu")(x)))
    model = keras.Model(tokens, layers.Dense(2)(layers.GlobalAveragePooling1D()(x)))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    _fit(model, tf.data.Dataset.from_tensor_slices(rows).shuffle(512, seed=0).batch(BATCH), seconds)


def gan(run: Run, seconds: float, folder: Path) -> None:
    """Take steps of a discriminator and of a generator in turn."""
    import keras
    import tensorflow as tf
    from keras import layers

    make = keras.Sequential(
        [
            keras.Input((64,)),
            layers.Dense(7 * 7 * 32, "relu"),
            layers.Reshape((7, 7, 32)),
            *(layers.Conv2DTranspose(width, 4, 2, "same", activation="relu") for width in (32, 16)),
            layers.Conv2D(1, 3, padding="same", activation="tanh"),
        ]
    )
    judge = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            *(layers.Conv2D(width, 4, 2, "same", activation="leaky_relu") for width in (16, 32)),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    optimizers = [keras.optimizers.Adam(1e-4), keras.optimizers.SGD(1e-4)]
    for optimizer, model in zip(optimizers, (judge, make), strict=True):
        optimizer.build(model.trainable_variables)

    @tf.function
    def train_judge(images: Any) -> None:
        fake = make(tf.random.normal((BATCH, 64)))
        with tf.GradientTape() as tape:
            error = loss(tf.ones((BATCH, 1)), judge(images)) + loss(tf.zeros((BATCH, 1)), judge(fake))
        variables = judge.trainable_variables
        optimizers[0].apply(tape.gradient(error, variables), variables)

    @tf.function
    def train_make() -> None:
        variables = make.trainable_variables
        with tf.GradientTape() as tape:
            error = loss(tf.ones((BATCH, 1)), judge(make(tf.random.normal((BATCH, 64)))))
        optimizers[1].apply(tape.gradient(error, variables), variables)

    images = tf.constant(np.random.default_rng(0).random((BATCH, 28, 28, 1), "float32"))
    end_s = time.perf_counter() + seconds
    for number in itertools.takewhile(lambda _: time.perf_counter() < end_s, itertools.count()):
        with run.step(number):
            train_make() if number % 2 else train_judge(images)


def resizing(run: Run, seconds: float, folder: Path) -> None:
    """Fit images of three sizes, one after the other."""
    model = _convnet()
    for side in (16, 32, 64):
        _fit(model, _images(side).repeat(), seconds / 3)


def buckets(run: Run, seconds: float, folder: Path) -> None:
    """Fit batches of sequences of three lengths, in random order."""
    import keras
    import tensorflow as tf
    from keras import layers

    def batches() -> Iterator[tuple[Any, Any]]:
        rng = np.random.default_rng(0)
        while True:
            length = rng.choice([64, 256, 1024])
            yield rng.random((BATCH, length, 16), "float32"), rng.integers(0, 2, BATCH)

    spec = tf.TensorSpec((BATCH, None, 16)), tf.TensorSpec((BATCH,), tf.int64)
    data = tf.data.Dataset.from_generator(batches, output_signature=spec).prefetch(4)
    body = [layers.Conv1D(64, 5, activation="relu") for _ in range(2)]
    model = keras.Sequential([keras.Input((None, 16)), *body, layers.GlobalAveragePooling1D(), layers.Dense(2)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    _fit(model, data, seconds)


def jax_loop(run: Run, seconds: float, folder: Path) -> None:
    """Take a compiled step in a loop."""
    import jax

    rows, weights = jax.numpy.ones((64, 512)), [jax.numpy.eye(512)] * 4

    def loss(weights: Any) -> Any:
        out = rows
        for weight in weights:
            out = jax.nn.relu(out @ weight)
        return (out**2).mean()

    @jax.jit
    def step(weights: Any) -> Any:
        return [weight - 0.01 * slope for weight, slope in zip(weights, jax.grad(loss)(weights), strict=True)]

    end_s = time.perf_counter() + seconds
    for number in itertools.takewhile(lambda _: time.perf_counter() < end_s, itertools.count()):
        with run.step(number):
            weights = jax.block_until_ready(step(weights))


def keras_jax(run: Run, seconds: float, folder: Path) -> None:
    """Fit a Keras model on JAX, with validation."""
    import keras
    from keras import layers

    rng = np.random.default_rng(0)
    rows = rng.random((8192, 256), "float32"), rng.integers(0, 10, 8192)
    body = [layers.Dense(512, "relu") for _ in range(3)]
    model = keras.Sequential([keras.Input((256,)), *body, layers.Dense(10)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    until = _until(seconds, epoch=True)
    model.fit(*rows, batch_size=64, epochs=10**6, validation_split=0.25, callbacks=[until], verbose=0)


def stalls(run: Run, seconds: float, folder: Path) -> None:
    """Fit an input that waits 0.2 s for every 64th batch."""
    import tensorflow as tf

    def slow(number: Any, row: Any) -> Any:
        time.sleep(0.2 if number % 64 == 63 else 0)
        return row

    def delayed(number: Any, row: tuple[Any, Any]) -> tuple[Any, Any]:
        images, labels = row
        images = tf.ensure_shape(tf.numpy_function(slow, [number, images], tf.float32), images.shape)
        return images, labels

    _fit(_convnet(), _images(32).repeat().enumerate().map(delayed), seconds)
    gc.collect()  # an iterator that calls Python may hang as the interpreter ends, without a capture too


def checkpoints(run: Run, seconds: float, folder: Path) -> None:
    """Save a checkpoint every 50 steps."""
    import keras

    saved = keras.callbacks.ModelCheckpoint(folder / "step-{batch}.weights.h5", save_weights_only=True, save_freq=50)
    _fit(_convnet(), _images(32).repeat(), seconds, saved)


def evaluations(run: Run, seconds: float, folder: Path) -> None:
    """Fit an epoch and evaluate, in turn."""
    model, data, held = _convnet(), _images(32, rows=2048), _images(32)
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        model.fit(data, verbose=0)
        model.evaluate(held, verbose=0)


_TRAIN, _TRAIN_AND_EVAL = {"train": 1}, {"train": 1, "eval": 1}

PROGRAMS = {
    "keras_convnet": Program(keras_convnet, (_TRAIN_AND_EVAL,)),
    "transformer": Program(transformer, (_TRAIN,)),
    "gan": Program(gan, ({"train": 2},)),
    "resizing": Program(resizing, ({"train": 3},)),
    "buckets": Program(buckets, ({"train": 3},)),
    "jax_loop": Program(jax_loop, (_TRAIN,)),
    "keras_jax": Program(keras_jax, (_TRAIN_AND_EVAL,), "jax"),
    "stalls": Program(stalls, (_TRAIN, {"train": 2})),  # steps that wait are outliers, or a phase
    "checkpoints": Program(checkpoints, ({"train": 2},)),
    "evaluations": Program(evaluations, (_TRAIN_AND_EVAL,)),
}

VARIANTS = {"keras_convnet": ("with_layer", Program(with_layer, (_TRAIN_AND_EVAL,)), "SquaredDifference")}
"""Programs with one more layer: name, program, and a part of the names of operations that only that layer has."""
