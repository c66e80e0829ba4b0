"""Calls of ``fit`` and loops of TensorFlow."""

from __future__ import annotations

import csv
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np

from programs.refuted import Clock, counted, healthy, wasteful

WIDTH, ROWS = 512, 128


def network(layers: int = 3, width: int = WIDTH) -> Any:
    """Return a model that is compiled to repeat its inputs."""
    import keras

    keras.utils.set_random_seed(0)
    hidden = [keras.layers.Dense(width, "relu") for _ in range(layers)]
    model = keras.Sequential([keras.layers.Input((width,)), *hidden])
    model.compile("adam", "mse")
    return model


def examples(batches: int, width: int = WIDTH) -> Any:
    """Return inputs."""
    return np.random.default_rng(0).random((batches * ROWS, width), "float32")


def counting(clock: Clock) -> Any:
    """Return a callback that counts batches by the hooks of Keras."""
    import keras

    def trained(batch: int, logs: Any) -> None:
        clock.steps += 1

    class Counting(keras.callbacks.LambdaCallback):
        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            clock.evaluations += 1

    return Counting(on_train_batch_end=trained)


@wasteful("data loading", words="__getitem__|sleep|input")
def keras_waits_for_a_sequence(clock: Clock) -> None:
    """Take batches from a sequence that sleeps before each."""
    import keras

    x = examples(1, 64)

    class Slow(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 30

        def __getitem__(self, index: int) -> Any:
            with clock.waste():
                time.sleep(0.06)
            return x, x

    network(1, 64).fit(Slow(workers=1, max_queue_size=4), epochs=2, verbose=0, callbacks=[counting(clock)])


def _sampled(number: int, pause_s: float, width: int, clock: Clock) -> Iterator[Any]:
    x = examples(20, width)
    for each in range(number):
        with clock.waste():
            time.sleep(pause_s)
        rows = x[each % 20 * ROWS :][:ROWS]
        yield rows, rows


@wasteful("data loading", words="_sampled|sleep|input")
def keras_waits_for_a_generator(clock: Clock) -> None:
    """Take batches from a generator that sleeps before each."""
    network(1, 64).fit(_sampled(60, 0.06, 64, clock), verbose=0, callbacks=[counting(clock)])


@wasteful("data loading", words="_sampled|sleep|input")
def keras_takes_batches_of_a_generator(clock: Clock) -> None:
    """Take batches from a generator that has them at once."""
    network(6).fit(_sampled(400, 0.0, WIDTH, clock), verbose=0, callbacks=[counting(clock)])


@wasteful(words="train_on_batch")
def keras_fits_one_batch_at_a_time(clock: Clock) -> None:
    """Call ``fit`` for each batch, as agents do after each move: it takes many times as long as the step."""
    model, x, counter = network(2, 64), examples(10, 64), counting(clock)
    for number in range(60):
        rows = x[number % 10 * ROWS :][:32]
        with clock.waste():
            model.fit(rows, rows, verbose=0, callbacks=[counter])


@healthy
def keras_trains_on_batches(clock: Clock) -> None:
    """Call ``train_on_batch`` for each batch."""
    model, x = network(6), examples(20)
    for number in range(300):
        rows = x[number % 20 * ROWS :][:ROWS]
        model.train_on_batch(rows, rows)
        clock.steps += 1


@counted
def keras_tests_on_batches(clock: Clock) -> None:
    """Call ``train_on_batch`` for each batch, and ``test_on_batch`` for held-out ones after each epoch."""
    model, x = network(), examples(20)
    for _ in range(10):
        for number in range(20):
            rows = x[number * ROWS :][:ROWS]
            model.train_on_batch(rows, rows)
            clock.steps += 1
        for number in range(5):
            rows = x[number * ROWS :][:ROWS]
            with clock.account("evaluation") if clock.evaluations else nullcontext():  # the first one is compiled
                model.test_on_batch(rows, rows)
            clock.evaluations += 1


@counted
def keras_stops_early(clock: Clock) -> None:
    """Validate after each epoch, and stop as soon as that gets no better by a tenth."""
    import keras

    x, stop = examples(20), keras.callbacks.EarlyStopping(min_delta=0.01, patience=1, start_from_epoch=6)
    validation = (x[: 5 * ROWS], x[: 5 * ROWS])
    arguments = {"batch_size": ROWS, "epochs": 12, "verbose": 0, "validation_data": validation}
    network(4).fit(x, x, callbacks=[stop, counting(clock)], **arguments)


@counted
def keras_cross_validates(clock: Clock) -> None:
    """Fit one model anew for each of four parts of the data, from its first weights, and evaluate it on that part."""
    model, x, counter = network(4), examples(20), counting(clock)
    first = model.get_weights()
    for fold in range(4):
        model.set_weights(first)
        held_out, rows = (
            x[fold * 5 * ROWS :][: 5 * ROWS],
            np.delete(x, np.s_[fold * 5 * ROWS : (fold + 1) * 5 * ROWS], 0),
        )
        model.fit(rows, rows, batch_size=ROWS, epochs=4, verbose=0, callbacks=[counter])
        model.evaluate(held_out, held_out, batch_size=ROWS, verbose=0, callbacks=[counter])


@counted
def keras_evaluates_first(clock: Clock) -> None:
    """Evaluate the untrained model, and validate after each epoch."""
    model, x, counter = network(4), examples(20), counting(clock)
    held_out = x[: 5 * ROWS]
    model.evaluate(held_out, held_out, batch_size=ROWS, verbose=0, callbacks=[counter])
    arguments = {"batch_size": ROWS, "epochs": 10, "verbose": 0, "callbacks": [counter]}
    model.fit(x, x, validation_data=(held_out, held_out), **arguments)


@counted
def keras_evaluates_training_data(clock: Clock) -> None:
    """Fit an epoch, then evaluate all that was trained on, again and again."""
    model, x, counter = network(4), examples(20), counting(clock)
    for _ in range(8):
        model.fit(x, x, batch_size=ROWS, verbose=0, callbacks=[counter])
        model.evaluate(x, x, batch_size=ROWS, verbose=0, callbacks=[counter])


@healthy
def keras_logs_each_step(clock: Clock) -> None:
    """Write a row of a table in each step, by a callback."""
    import keras

    model, x = network(6), examples(20)
    with tempfile.TemporaryFile("w") as file:
        table = csv.writer(file)
        log = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: table.writerow([batch, logs["loss"]])
        )
        model.fit(x, x, batch_size=ROWS, epochs=15, verbose=0, callbacks=[log, counting(clock)])


@healthy
def keras_warms_up_its_rate(clock: Clock) -> None:
    """Set the learning rate before each step, by a callback."""
    import keras

    model, x = network(6), examples(20)

    class WarmUp(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.model.optimizer.learning_rate = 1e-3 * min(1.0, clock.steps / 100)

    model.fit(x, x, batch_size=ROWS, epochs=15, verbose=0, callbacks=[WarmUp(), counting(clock)])


@counted
def keras_trains_in_two_stages(clock: Clock) -> None:
    """Fit an autoencoder, then a classifier on top of its frozen layers."""
    import keras

    model, x, counter = network(4), examples(20), counting(clock)
    model.fit(x, x, batch_size=ROWS, epochs=6, verbose=0, callbacks=[counter])
    model.trainable = False
    second = keras.Sequential([model, keras.layers.Dense(10)])
    second.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    second.fit(x, np.zeros(len(x)), batch_size=ROWS, epochs=6, verbose=0, callbacks=[counter])


@healthy
def keras_accumulates_gradients(clock: Clock) -> None:
    """Fit by an optimizer that updates after each fourth batch: a step of Keras is a batch."""
    import keras

    model, x = network(6), examples(20)
    model.compile(keras.optimizers.Adam(gradient_accumulation_steps=4), "mse")
    model.fit(x, x, batch_size=ROWS, epochs=15, verbose=0, callbacks=[counting(clock)])


@counted
def keras_moves_between_tasks(clock: Clock) -> None:
    """Train three batches of a task, then move the weights of before a little towards those of after: Reptile."""
    model, x = network(2, 256), examples(20, 256)
    for _ in range(60):
        before = model.get_weights()
        for number in range(3):
            rows = x[(clock.steps + number) % 20 * ROWS :][:ROWS]
            model.train_on_batch(rows, rows)
        clock.steps += 3
        after = model.get_weights()
        model.set_weights([one + 0.1 * (other - one) for one, other in zip(before, after, strict=True)])


@counted
def keras_acts_and_trains(clock: Clock) -> None:
    """Call the model for each move, and train on a batch of remembered ones after each: Q-learning."""
    model, memory = network(2, 64), [np.zeros(64, "float32")]
    random = np.random.default_rng(0)
    for number in range(400):
        state = memory[-1]
        move = np.asarray(model(state[None], training=False))[0]
        memory.append((0.9 * state + 0.1 * move + random.normal(size=64)).astype("float32"))
        if number >= 50:
            rows = np.stack([memory[each] for each in random.integers(0, len(memory), 64)])
            model.train_on_batch(rows, rows)
            clock.steps += 1


def _tape_step(model: Any, optimizer: Any) -> Any:
    import tensorflow as tf

    @tf.function
    def step(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(batch, training=True) - batch) ** 2)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return step


@counted
def tensorflow_updates_two_networks(clock: Clock) -> None:
    """Update generator and critic in each step, by functions of their own."""
    import keras
    import tensorflow as tf

    first, second = network(4), network(4)
    steps = [_tape_step(model, keras.optimizers.Adam()) for model in (first, second)]
    for _ in range(8):
        for batch in tf.data.Dataset.from_tensor_slices(examples(20)).batch(ROWS):
            for step in steps:
                float(step(batch))
            clock.steps += 1


@healthy
def tensorflow_accumulates_gradients(clock: Clock) -> None:
    """Add up the gradients of four batches, then apply them, by functions of their own."""
    import keras
    import tensorflow as tf

    model, optimizer = network(6), keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    totals = [tf.Variable(tf.zeros_like(variable)) for variable in model.trainable_variables]

    @tf.function
    def accumulate(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(batch, training=True) - batch) ** 2)
        for total, gradient in zip(totals, tape.gradient(loss, model.trainable_variables), strict=True):
            total.assign_add(gradient)
        return loss

    @tf.function
    def apply() -> None:
        optimizer.apply_gradients(zip(totals, model.trainable_variables, strict=True))
        for total in totals:
            total.assign(tf.zeros_like(total))

    for _ in range(15):
        for number, batch in enumerate(tf.data.Dataset.from_tensor_slices(examples(20)).batch(ROWS)):
            float(accumulate(batch))
            if number % 4 == 3:
                apply()
                clock.steps += 1


@counted
def tensorflow_evaluates_by_forward(clock: Clock) -> None:
    """Evaluate after each epoch by a function whose name says nothing."""
    import keras
    import tensorflow as tf

    model = network(4)
    step = _tape_step(model, keras.optimizers.Adam())
    data = tf.data.Dataset.from_tensor_slices(examples(20)).batch(ROWS)

    @tf.function
    def forward(batch: Any) -> Any:
        return tf.reduce_mean((model(batch, training=False) - batch) ** 2)

    for _ in range(8):
        for batch in data:
            float(step(batch))
            clock.steps += 1
        for batch in data.take(6):
            with clock.account("evaluation") if clock.evaluations else nullcontext():  # the first one is compiled
                float(forward(batch))
            clock.evaluations += 1
