"""Input-bound jobs: each read sleeps, and the model is small."""

import random
import threading
import time

import exact_fits
import numpy as np
from optional import lazy

from tpunb.tuning.job import Job

keras, tf = lazy("keras"), lazy("tensorflow")

SLEEP = 0.004
"""Seconds per read."""


def fetch(i):
    time.sleep(SLEEP)
    return np.sin(np.arange(4, dtype="f") + np.float32(i))


def with_label(x):
    return x, tf.reduce_sum(x, keepdims=True)


def fetched(i):
    return with_label(tf.ensure_shape(tf.numpy_function(fetch, [i], tf.float32), [4]))


def reading(n=64, batch=4):
    """Return batches of what a sleeping Python function reads."""
    return tf.data.Dataset.range(n).map(fetched, num_parallel_calls=1).batch(batch)


def shuffled(n=64, batch=4):
    return tf.data.Dataset.range(n).shuffle(16).map(fetched, num_parallel_calls=1).batch(batch)


def at_hand(n=64, batch=4):
    """Return batches for which nothing is waited."""
    rows = np.random.default_rng(1).normal(size=(n, 4)).astype("f")
    return tf.data.Dataset.from_tensor_slices(rows).map(with_label).batch(batch)


TWO_READERS = {"map:1(read) parallel calls": 8, "options private threads": 8}
"""With which two are sure to meet in `broken`: the threads that all pipelines share may have but one to spare."""

_reading = threading.Lock()
"""Held by the one who reads from `broken`."""


def broken(n=512, batch=4):
    """Return batches of a function that fails when it is called by several threads at once.

    Trials of it must be longer than what is read ahead as a position is saved, of which a busy machine has more.
    """

    def alone(i):
        if not _reading.acquire(blocking=False):
            raise ValueError("no more than one reader")
        try:
            time.sleep(0.05 if i % 8 == 0 else SLEEP)  # the others of a batch come meanwhile, on a busy machine too
            return np.full(4, i, "f")
        finally:
            _reading.release()

    def read(i):
        return with_label(tf.ensure_shape(tf.numpy_function(alone, [i], tf.float32), [4]))

    return tf.data.Dataset.range(n).map(read, num_parallel_calls=1).batch(batch)


def counting(n=64, batch=4):
    """Return batches of a function that remembers how often it was called."""
    calls = []

    def count(i):
        calls.append(i)
        return np.full(4, len(calls), "f")

    def read(i):
        return with_label(tf.ensure_shape(tf.numpy_function(count, [i], tf.float32), [4]))

    return tf.data.Dataset.range(n).map(read, num_parallel_calls=1).batch(batch)


def little(units=8):
    keras.utils.set_random_seed(5)
    layers = [keras.Input((4,)), keras.layers.Dense(units), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
    model = keras.Sequential(layers, name="little")
    model.compile(keras.optimizers.Lion(0.01), "mse")  # its steps are bounded, whatever the data
    return model


def _compiled():
    model = little()
    model.make_train_function()  # trials drop one that they have made
    return model


def reused():
    """Return a `little` model in its first state, with the seed that it was made with."""
    model = exact_fits.reused(_compiled)
    keras.utils.set_random_seed(5)
    return model


def everything(model):
    """Return all that the next step depends on, as plain values."""
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    return [variable.numpy().tolist() for variable in variables], random.getstate(), np.random.get_state()[1].tolist()


def job(data=reading, **sizes):
    return Job(lambda: (reused(), data(**sizes)))


def noisy():
    """Return a model that draws from Keras' global seed generator, which is not there before it first does."""

    class Noise(keras.layers.Layer):
        def call(self, x, training=False):
            return x + keras.random.normal(keras.ops.shape(x)) if training else x

    keras.backend.clear_session()
    keras.utils.set_random_seed(5)
    model = keras.Sequential([keras.Input((4,)), Noise(), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model
