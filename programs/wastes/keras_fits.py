"""Programs of Keras with ``fit``, and of TensorFlow with loops of their own."""

from __future__ import annotations

import csv
import io
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from programs.wastes import program, rows, waste


def model_of(layers: int = 2, width: int = 256, **options: Any) -> Any:
    """Return a compiled model of Keras."""
    import keras

    hidden = [keras.layers.Dense(width, activation="relu") for _ in range(layers)]
    model = keras.Sequential([keras.Input((64,)), *hidden, keras.layers.Dense(1)])
    model.compile("adam", "mse", **options)
    return model


def fit(model: Any, examples: int, batch_size: int = 32, **options: Any) -> None:
    """Fit a model to examples in memory."""
    x = rows(examples)
    model.fit(x, x[:, :1], batch_size=batch_size, verbose=0, **options)


def train_step(model: Any) -> Any:
    """Return a step that is not compiled."""
    import tensorflow as tf

    optimizer, variables = model.optimizer, model.trainable_variables
    optimizer.build(variables)

    def step(x: Any, divisor: Any = 1.0) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2) / divisor
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return step


@program("program startup", r"divisor|Python")
def tensorflow_python_number(run: Any, repaired: bool) -> None:
    """Pass a number of the epoch to a compiled function."""
    import tensorflow as tf

    step, x = tf.function(train_step(model_of(4))), tf.constant(rows(32))
    for number in range(250):
        with run.step(number):
            divisor = 1.0 + number // 10
            float(step(x, tf.constant(divisor) if repaired else divisor))


@program("program startup", r"one model|once")
def keras_ten_models(run: Any, repaired: bool) -> None:
    """Build and fit ten models."""
    model = model_of()
    for _ in range(10):
        fit(model if repaired else model_of(), 320)


@program(None, "run_eagerly")
def keras_eager(run: Any, repaired: bool) -> None:
    """Leave eager execution on."""
    fit(model_of(6, run_eagerly=not repaired), 32 * 60)


@program("evaluation", "predict")
def keras_predicts_in_each_step(run: Any, repaired: bool) -> None:
    """Predict in a callback after each batch."""
    import keras

    x = rows(32)

    class Predicts(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if not repaired or batch % 30 == 0:
                self.model.predict(x, verbose=0)

    fit(model_of(), 32 * 60, callbacks=[Predicts()])


@program("callbacks", "Slow.on_train_batch_end", measures=True)
def keras_slow_callback(run: Any, repaired: bool) -> None:
    """Sleep in a callback after each batch."""
    import keras

    class Slow(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if not repaired or batch % 50 == 0:
                with waste():
                    time.sleep(0.02)

    fit(model_of(), 32 * 150, callbacks=[Slow()])


@program("data loading", r"generator|augment|batches")
def keras_augments_in_a_generator(run: Any, repaired: bool) -> None:
    """Turn, shift and blur each image of a batch in a generator of Python."""
    images = rows(256).reshape(256, 8, 8)

    def augment(images: Any) -> Any:
        return sum(np.roll(np.rot90(images, axes=(-2, -1)), shift, -1) for shift in range(4))

    def batches() -> Iterator[Any]:
        while True:
            x = augment(images) if repaired else np.stack([augment(image) for image in images])
            x = x.reshape(256, 64)
            yield x, x[:, :1]

    model_of().fit(batches(), steps_per_epoch=200, verbose=0)


@program("data loading", r"parallel|tp\.tune")
def tensorflow_reads_in_one_thread(run: Any, repaired: bool) -> None:
    """Read the batches from slow storage one after the other."""
    import tensorflow as tf

    step, x = tf.function(train_step(model_of(4))), tf.constant(rows(128))

    def read(number: Any) -> Any:
        time.sleep(0.04)
        return number

    data = tf.data.Dataset.range(150).map(
        lambda number: tf.numpy_function(read, [number], tf.int64), num_parallel_calls=8 if repaired else None
    )
    for _ in run.batches(data):
        float(step(x))


@program("data loading", r"cache|tp\.tune")
def keras_without_cache(run: Any, repaired: bool) -> None:
    """Decode the same examples in each of five epochs."""
    import tensorflow as tf

    def decode(number: Any) -> Any:
        return np.array([float(each) for each in ("0.25 " * 4000).split()][:64], "float32")

    def example(number: Any) -> Any:
        x = tf.ensure_shape(tf.numpy_function(decode, [number], tf.float32), (64,))
        return x, x[:1]

    data = tf.data.Dataset.range(1000).map(example)
    model_of().fit((data.cache() if repaired else data).batch(20), epochs=5, verbose=0)


@program("checkpoint save", r"[Ss]av")
def keras_saves_often(run: Any, repaired: bool) -> None:
    """Save the whole model after each fifth batch."""
    import keras

    with tempfile.TemporaryDirectory() as folder:
        saves = keras.callbacks.ModelCheckpoint(str(Path(folder, "{batch}.keras")), save_freq=100 if repaired else 5)
        fit(model_of(4, 512), 128 * 200, 128, callbacks=[saves])


@program("evaluation", r"[Ee]valuat|validat")
def keras_validates_often(run: Any, repaired: bool) -> None:
    """Validate on many batches after each of twelve short epochs."""
    x = rows(64 * 200)
    options = {"validation_data": (x, x[:, :1]), "validation_batch_size": 64, "validation_freq": 6 if repaired else 1}
    fit(model_of(4), 64 * 40, 64, epochs=12, **options)


@program("callbacks", r"Draws\.on_epoch_end", measures=True)
def keras_draws_each_epoch(run: Any, repaired: bool) -> None:
    """Draw the losses after each epoch."""
    import altair
    import keras
    import polars as pl

    class Draws(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if not repaired or epoch % 6 == 0:
                with waste():
                    points = pl.DataFrame({"step": range(4000), "loss": [logs["loss"]] * 4000})
                    for _ in range(8):
                        altair.Chart(points).mark_line().encode(x="step", y="loss").to_json()

    fit(model_of(4), 64 * 100, 64, epochs=12, callbacks=[Draws()])


@program("program startup", r"a new function|anew")
def tensorflow_function_in_a_loop(run: Any, repaired: bool) -> None:
    """Define the compiled step in the loop."""
    import tensorflow as tf

    step, x = train_step(model_of(3)), tf.constant(rows(32))
    compiled = tf.function(step)
    for number in range(25):
        with run.step(number):
            float((compiled if repaired else tf.function(step))(x))


@program("program startup", r"shape|length")
def tensorflow_lengths(run: Any, repaired: bool) -> None:
    """Pad each batch of sequences to the longest of that batch."""
    import tensorflow as tf

    step = tf.function(train_step(model_of(3)))
    for number in range(120):
        with run.step(number):
            float(step(tf.ones((64 if repaired else 4 + number % 30, 64))))


@program(None, r"tf\.function")
def tensorflow_without_function(run: Any, repaired: bool) -> None:
    """Take steps that are not compiled."""
    import tensorflow as tf

    step, x = train_step(model_of(6, 128)), tf.constant(rows(32))
    step = tf.function(step) if repaired else step
    for number in range(200):
        with run.step(number):
            float(step(x))


@program(None, r"steps_per_execution|batch size|batch_size|larger batch")
def keras_tiny_batches(run: Any, repaired: bool) -> None:
    """Fit a small model on batches of four examples."""
    fit(model_of(2, 32), 4 * 2000, 128 if repaired else 4)


@program("preparation", r"read_table|csv|cache prepared|load", measures=True)
def tensorflow_reads_a_table_first(run: Any, repaired: bool) -> None:
    """Parse a table in Python before the first step."""
    import tensorflow as tf

    def read_table() -> Any:
        with waste():
            table = csv.reader(io.StringIO((",".join(["0.25"] * 64) + "\n") * 150_000))
            return np.array([[float(each) for each in row] for row in table], "float32")

    x = tf.constant(rows(150_000) if repaired else read_table())
    step = tf.function(train_step(model_of(4, 512)))
    for number in range(200):
        with run.step(number):
            float(step(x[:256]))


@program()
def keras_healthy(run: Any, repaired: bool) -> None:
    """Fit a model for one epoch of many steps."""
    fit(model_of(4), 256 * 2500, 256)


@program()
def keras_healthy_validation(run: Any, repaired: bool) -> None:
    """Fit for three epochs with a small validation, and save the model at the end of each."""
    import keras

    x = rows(512)
    with tempfile.TemporaryDirectory() as folder:
        saves = keras.callbacks.ModelCheckpoint(str(Path(folder, "model.keras")))
        fit(model_of(6, 512), 256 * 200, 256, epochs=3, validation_data=(x, x[:, :1]), callbacks=[saves])


@program()
def keras_healthy_executions(run: Any, repaired: bool) -> None:
    """Fit with twenty steps in each execution."""
    fit(model_of(4, steps_per_execution=20), 256 * 2400, 256)


@program()
def tensorflow_healthy(run: Any, repaired: bool) -> None:
    """Train in a compiled loop over a data set that is cached and fetched ahead."""
    import tensorflow as tf

    step = tf.function(train_step(model_of(6, 512)))
    data = tf.data.Dataset.from_tensor_slices(rows(256 * 100)).cache().batch(256).prefetch(tf.data.AUTOTUNE)
    for number, x in enumerate(run.batches(data.repeat(5))):  # one iterator: to end one may wait for autotuning
        loss = step(x)
        if number % 100 == 99:
            print("loss", float(loss))
