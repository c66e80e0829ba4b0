"""Trainings that waste time on purpose, each waste measured where it is injected: in Keras, TensorFlow and JAX."""

from __future__ import annotations

import ctypes
import gc
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tpunb.profiler.capture import Run

WIDTH, BATCH, SHAPE_AFTER = 256, 32, 24  # rows of a batch, of a batch of the second shape
SHORT_S, FIRST_S = 0.15, 1.2  # a stall that the capture should see, and one before the usual step time is known
_usleep = ctypes.PyDLL(None).usleep  # holds the interpreter lock, other than time.sleep


class Injected(NamedTuple):
    """A waste: what it belongs to, its time, and where it is in this file."""

    account: str | None
    detail: str | None
    seconds: float
    stalls: bool  # whether the capture should have sampled it
    function: str
    lines: tuple[int, int]


class Waste:
    """What a program wastes; nothing if it is off, apart from the work that it measures."""

    def __init__(self, *, on: bool) -> None:
        self.on = on
        self.injected: list[Injected] = []
        self.run: Run | None = None
        self.converted = 0  # first line of the function that AutoGraph converted
        self._measures = False

    @contextmanager
    def __call__(self, account: str, detail: str | None = None, *, stalls: bool = True) -> Iterator[None]:
        """Measure the block as time of this account, unless a block around it is measured."""
        frame = sys._getframe(2)  # that of the block; the one between is contextlib's
        settled = self.run is not None and self.run.status.steps > 1
        outer, self._measures = self._measures, True
        code, begin = frame.f_code, time.perf_counter()
        first = frame.f_lineno if code.co_filename == __file__ else self.converted
        try:
            yield
        finally:
            seconds = time.perf_counter() - begin
            self._measures = outer
            seen = stalls and self.on and seconds > (SHORT_S if settled else FIRST_S)
            self.injected.append(
                Injected(
                    *(None if outer else account, detail, seconds, seen),
                    *(code.co_name.removeprefix("tf__"), (first, first + 3)),
                )
            )

    def seconds(self) -> Counter[tuple[str, str | None]]:
        """Return the seconds by account, and by account and detail."""
        total: Counter[tuple[str, str | None]] = Counter()
        for account, detail, seconds, *_ in self.injected:
            for key in {(account, None), (account, detail)} if account else ():
                total[key] += seconds
        return total

    def sleep(self, seconds: float) -> float:
        """Return the seconds to sleep."""
        return seconds * self.on


Program = Callable[[Run, Waste, Path], None]


def rows(batch: int = BATCH) -> tuple[np.ndarray, np.ndarray]:
    """Return a batch of samples and targets."""
    return np.ones((batch, WIDTH), "float32"), np.zeros((batch, 1), "float32")


# -- Keras, on any backend -----------------------------------------------------------------------------------------


def by_keras(run: Run, waste: Waste, folder: Path) -> None:
    """Fit twice with slow callbacks, input, saves and tracing, evaluate and predict between."""
    import keras

    class Slow(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            with waste("callbacks", "Slow.on_train_begin"):
                time.sleep(waste.sleep(0.2))

        def on_train_end(self, logs: Any = None) -> None:
            with waste("callbacks", "Slow.on_train_end"):
                time.sleep(waste.sleep(0.2))

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            with waste("callbacks", "Slow.on_epoch_begin"):
                time.sleep(waste.sleep(0.2))

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            with waste("callbacks", "Slow.on_epoch_end"):
                _usleep(int(waste.sleep(400_000)))
            with waste("checkpoint save"):
                self.model.save_weights(folder / "slow.weights.h5")

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch == 30:
                with waste("callbacks", "Slow.on_train_batch_begin"):
                    time.sleep(waste.sleep(0.2))

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 20:
                with waste("callbacks", "Slow.on_train_batch_end"):
                    time.sleep(waste.sleep(0.2))

        def on_test_begin(self, logs: Any = None) -> None:
            with waste("callbacks", "Slow.on_test_begin"):
                time.sleep(waste.sleep(0.2))

        def on_test_end(self, logs: Any = None) -> None:
            with waste("callbacks", "Slow.on_test_end"):
                time.sleep(waste.sleep(0.2))

        def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch == 5:
                with waste("callbacks", "Slow.on_test_batch_begin"):
                    time.sleep(waste.sleep(0.2))

        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 5:
                with waste("callbacks", "Slow.on_test_batch_end"):
                    time.sleep(waste.sleep(0.2))

        def on_predict_begin(self, logs: Any = None) -> None:
            with waste("callbacks", "Slow.on_predict_begin"):
                time.sleep(waste.sleep(0.2))

        def on_predict_end(self, logs: Any = None) -> None:
            with waste("callbacks", "Slow.on_predict_end"):
                time.sleep(waste.sleep(0.2))

        def on_predict_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch == 5:
                with waste("callbacks", "Slow.on_predict_batch_begin"):
                    time.sleep(waste.sleep(0.2))

        def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 5:
                with waste("callbacks", "Slow.on_predict_batch_end"):
                    time.sleep(waste.sleep(0.2))

    def slow_loss(target: Any, output: Any) -> Any:  # runs in Python when it is traced, not in each step
        with waste("program startup"):
            time.sleep(waste.sleep(0.4))
        return (target - output) ** 2

    class Model(keras.Sequential):
        steps, first = 0, False

        def make_train_function(self, force: bool = False) -> Any:
            before = self.train_function
            super().make_train_function(force)
            if self.train_function is not before:
                self.train_function = self.held_up(self.train_function)
            return self.train_function

        def make_test_function(self, force: bool = False) -> Any:
            before = self.test_function
            super().make_test_function(force)
            if self.test_function is not before:
                self.test_function = self.slowed(self.test_function)
            return self.test_function

        def make_predict_function(self, force: bool = False) -> Any:
            before = self.predict_function
            super().make_predict_function(force)
            if self.predict_function is not before:
                self.predict_function = self.timed(self.predict_function)
            return self.predict_function

        def held_up(self, function: Any) -> Any:
            function = self.timed(function)

            def train(*data: Any) -> Any:
                self.steps += 1
                if self.steps % 40 == 0:
                    with waste("step time deviation"):
                        time.sleep(waste.sleep(0.3))
                return function(*data)

            return train

        def slowed(self, function: Any) -> Any:
            function = self.timed(function)

            def test(*data: Any) -> Any:
                with waste("evaluation", stalls=False):
                    time.sleep(waste.sleep(0.1))
                return function(*data)

            return test

        def timed(self, function: Any) -> Any:
            def first(*data: Any) -> Any:
                if not self.first:
                    return function(*data)
                self.first = False
                with waste("program startup", stalls=False):  # the tracing, which stalls, and the compilation
                    return function(*data)

            return first

    def load(number: Any) -> Any:
        with waste("data loading"):
            time.sleep(waste.sleep(0.3))
        return number

    data, plain = _keras_data(load, slow=range(40, 1000, 45))
    quiet: dict[str, Any] = {"verbose": 0, "shuffle": False}
    with waste("preparation"):
        time.sleep(waste.sleep(1.3))
    model = Model([keras.Input((WIDTH,)), keras.layers.Dense(WIDTH, "relu"), keras.layers.Dense(1)])
    model.compile("sgd", slow_loss, jit_compile=keras.backend.backend() == "jax")
    model.first = True
    model.fit(data(), epochs=2, steps_per_epoch=45, callbacks=[Slow()], **quiet)
    with waste("preparation"):
        time.sleep(waste.sleep(0.3))
    with waste("checkpoint restore"):
        model.load_weights(folder / "slow.weights.h5")
    model.first = True
    model.evaluate(plain(BATCH), steps=10, callbacks=[Slow()], verbose=0)
    model.first = True
    model.predict(plain(BATCH), steps=10, callbacks=[Slow()], verbose=0)
    model.first = True  # for the other shape
    model.fit(plain(SHAPE_AFTER), steps_per_epoch=45, callbacks=[Slow()], **quiet)


Load = Callable[[Any], Any]
"""Stalls, and returns its argument: the number of a batch."""


def _keras_data(load: Load, slow: range) -> tuple[Callable[[], Any], Callable[[int], Any]]:
    """Return datasets with some slow batches and without, from tf.data on TensorFlow, of Python elsewhere."""
    import keras

    if keras.backend.backend() == "tensorflow":
        return lambda: tf_data(BATCH, load, slow), lambda batch: tf_data(batch, load, range(0))

    def generate(batch: int, slow: range) -> Iterator[Any]:
        for number in count():
            if number in slow:
                load(number)
            yield rows(batch)

    return lambda: generate(BATCH, slow), lambda batch: generate(batch, range(0))


def tf_data(batch: int, load: Load, slow: range) -> Any:
    """Return an endless dataset that calls a function for slow batches, and prefetches none."""
    import tensorflow as tf

    x, y = (tf.constant(values) for values in rows(batch))

    def loaded(number: Any) -> Any:
        is_slow = tf.reduce_any(number == tf.constant([*slow] or [-1], tf.int64))
        after = tf.cond(is_slow, lambda: tf.numpy_function(load, [number], tf.int64), lambda: number)
        with tf.control_dependencies([after]):
            return tf.identity(x), tf.identity(y)

    options = tf.data.Options()
    options.autotune.enabled = False  # which would insert a prefetch
    return tf.data.Dataset.range(1 << 40).map(loaded).with_options(options)


# -- loops of one's own --------------------------------------------------------------------------------------------


def by_function(run: Run, waste: Waste, folder: Path) -> None:
    """Train in a loop over a dataset with a tf.function."""
    import tensorflow as tf

    weights = tf.Variable(tf.eye(WIDTH))

    @tf.function
    def train(x: Any, y: Any) -> None:
        with waste("program startup"):
            time.sleep(waste.sleep(0.6))
        weights.assign_sub(1e-9 * tf.reduce_mean(x @ weights - y) * weights)

    waste.converted = train.python_function.__code__.co_firstlineno

    def load(number: Any) -> Any:
        with waste("data loading"):
            time.sleep(waste.sleep(0.4))
        return number

    checkpoint = tf.train.Checkpoint(weights=weights)
    with waste("preparation"):
        time.sleep(waste.sleep(1.3))
    for number, batch in enumerate(run.batches(tf_data(BATCH, load, range(30, 250, 50)).take(250))):
        if number in (60, 110, 160):
            with waste("step time deviation"):
                time.sleep(waste.sleep(0.5))
        if number in (70, 120):
            with waste("step time deviation"):
                _usleep(int(waste.sleep(500_000)))
        if number % 50 == 40:
            with waste("checkpoint save", stalls=False):
                checkpoint.write(folder / "tf" / str(number))
        with waste("program startup", stalls=False) if number == 0 else nullcontext():
            train(*batch)
    with waste("checkpoint restore", stalls=False):
        checkpoint.read(folder / "tf" / str(240))
    with waste("program code"):
        time.sleep(waste.sleep(0.5))
    for number, batch in enumerate(run.batches(tf_data(SHAPE_AFTER, load, range(0)).take(50))):
        with waste("program startup", stalls=False) if number == 0 else nullcontext():
            train(*batch)


def by_jax(run: Run, waste: Waste, folder: Path) -> None:
    """Train in a loop with a compiled function of JAX, first by number, then over batches."""
    import jax

    gc.disable()  # no collections but those below

    @jax.jit
    def train(weights: Any, x: Any) -> Any:
        with waste("program startup"):
            time.sleep(waste.sleep(0.6))
        return weights - 1e-9 * (x @ weights).mean() * weights

    with waste("preparation"):
        time.sleep(waste.sleep(1.2))
        pile = [[] for _ in range(600_000 if waste.on else 10)]
    weights = jax.numpy.eye(WIDTH)
    x, shorter = (jax.numpy.asarray(rows(size)[0]) for size in (BATCH, SHAPE_AFTER))
    for number in range(300):
        with run.step(number):
            if number in (50, 100, 150):
                with waste("step time deviation"):
                    time.sleep(waste.sleep(0.4))
            if number in (60, 110):
                with waste("step time deviation"):
                    _usleep(int(waste.sleep(400_000)))
            if number in (125, 145, 165):
                with waste("step time deviation", "garbage collection", stalls=False):
                    gc.collect()
            with waste("program startup", stalls=False) if number in (0, 200) else nullcontext():
                weights = train(weights, x if number < 200 else shorter).block_until_ready()
        if number in (80, 130, 220):
            with waste("program code"):
                time.sleep(waste.sleep(0.4))
        if number == 230:
            with waste("program code"):
                _usleep(int(waste.sleep(400_000)))
        if number % 100 == 99:
            _save_by_orbax(weights, waste, folder / f"orbax-{number}")
    del pile
    gc.enable()
    with waste("program code"):
        time.sleep(waste.sleep(0.4))
    for _ in run.batches(_python_batches(waste)):
        weights = train(weights, x).block_until_ready()


def _python_batches(waste: Waste) -> Iterator[int]:
    for number in range(100):
        if number % 40 == 20:
            with waste("data loading"):
                time.sleep(waste.sleep(0.4))
        yield number


def _save_by_orbax(weights: Any, waste: Waste, folder: Path) -> None:
    from orbax import checkpoint

    with waste("checkpoint save", stalls=False), checkpoint.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder, {"weights": weights})
        checkpointer.wait_until_finished()


PROGRAMS: dict[str, Program] = {"keras": by_keras, "keras_jax": by_keras, "function": by_function, "jax": by_jax}
