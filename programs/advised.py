"""Programs with one waste each, and with what is advised against it, done by hand and nothing else.

A program is a function of ``by_hand``: whether it does what the advice says. They are those of tutorials and questions
about slow trainings. `REMEDIES` has the change that `tpunb try` applies to each.
"""

from __future__ import annotations

import gc
import os
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from programs.wastes import rows
from programs.wastes.jax_loops import perceptron
from programs.wastes.keras_fits import fit as fit_keras
from programs.wastes.keras_fits import model_of, train_step
from programs.wastes.torch_loops import Examples, batch, fit, network, ones

Trained = Callable[[bool], None]
REMEDIES: dict[str, str] = {}
"""Value of a ``tpunb.instrument.remedies.Trial``, by the name of a program."""


def advised(remedy: str) -> Callable[[Trained], Trained]:
    """Add a program."""

    def added(train: Trained) -> Trained:
        REMEDIES[train.__name__] = remedy
        return train

    return added


# -- PyTorch -----------------------------------------------------------------------------------------------------------


def loaded(by_hand: bool, data: Any, batch_size: int, epochs: int = 1) -> None:
    """Train on a DataLoader, by hand with two workers."""
    from torch.utils.data import DataLoader

    options = {"num_workers": 2, "persistent_workers": True} if by_hand else {}
    loader, model = DataLoader(data, batch_size=batch_size, **options), network(256)
    for _ in range(epochs):
        fit(model, loader)


@advised("workers")
def torch_reads_slow_storage(by_hand: bool) -> None:
    """Wait for storage in each example."""

    def read(index: int) -> Any:
        time.sleep(0.004)
        return ones(index)

    loaded(by_hand, Examples(1600, read), 16)


@advised("workers")
def torch_unpacks_examples(by_hand: bool) -> None:
    """Decompress each example, as those of an archive."""
    packed = zlib.compress(np.random.default_rng(0).integers(0, 4, 2_500_000, "uint8").tobytes())

    def read(index: int) -> Any:
        return np.frombuffer(zlib.decompress(packed)[:64], "uint8").astype("float32")

    loaded(by_hand, Examples(1000, read), 16)


@advised("workers")
def torch_takes_spectra(by_hand: bool) -> None:
    """Take the spectrogram of each sound, in each of two epochs."""
    sound = np.random.default_rng(0).normal(size=(600, 1024))

    def read(index: int) -> Any:
        return np.log1p(np.abs(np.fft.rfft(sound * np.hanning(1024)))).mean(0)[:64].astype("float32")

    loaded(by_hand, Examples(800, read), 16, epochs=2)


@advised("workers")
def torch_parses_rows(by_hand: bool) -> None:
    """Parse the text of each example."""
    text = ",".join(["0.5"] * 50_000)

    def read(index: int) -> Any:
        return np.array([float(each) for each in text.split(",")][:64], "float32")

    loaded(by_hand, Examples(1600, read), 32)


@advised("kept_workers")
def torch_starts_workers_in_short_epochs(by_hand: bool) -> None:
    """Start workers anew, by spawning, as on Windows and macOS, in each of four epochs."""
    from torch.utils.data import DataLoader

    options = {"num_workers": 2, "multiprocessing_context": "spawn", "persistent_workers": by_hand}
    loader, model = DataLoader(Examples(320, ones), batch_size=16, **options), network()
    for _ in range(4):
        fit(model, loader)


@advised("kept_workers")
def torch_forks_workers_in_many_epochs(by_hand: bool) -> None:
    """Start workers anew, by forking, in each of sixty epochs."""
    from torch.utils.data import DataLoader

    loader = DataLoader(Examples(160, ones), batch_size=32, num_workers=2, persistent_workers=by_hand)
    model = network()
    for _ in range(60):
        fit(model, loader)


@advised("rows_at_once")
def torch_loads_rows_one_by_one(by_hand: bool) -> None:
    """Read a tensor in memory row by row with a DataLoader."""
    from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

    data, model = TensorDataset(batch(60_000)), network(256)
    batches = BatchSampler(SequentialSampler(data), 512, drop_last=False)
    loader = DataLoader(data, sampler=batches, batch_size=None) if by_hand else DataLoader(data, batch_size=512)
    for _ in range(15):
        fit(model, (x for (x,) in loader))


@advised("rows_at_once")
def torch_loads_pairs_in_random_order(by_hand: bool) -> None:
    """Read examples and targets in memory one by one, shuffled in each epoch."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    x, model = batch(40_000), network(256)
    loader = DataLoader(TensorDataset(x, x[:, 0]), batch_size=256, shuffle=True)
    for _ in range(12):
        order = torch.randperm(len(x)) if by_hand else None
        slices = (order[at : at + 256] for at in range(0, len(x), 256)) if by_hand else ()
        fit(model, (x[each] for each in slices) if by_hand else (each for each, _ in loader))


@advised("no_anomaly_detection")
def torch_leaves_anomalies_on(by_hand: bool) -> None:
    """Leave the detection of anomalies on, for the whole program."""
    import torch

    torch.autograd.set_detect_anomaly(not by_hand)
    fit(network(32, 12), [batch(8)] * 1600)


@advised("no_anomaly_detection")
def torch_detects_anomalies_in_a_block(by_hand: bool) -> None:
    """Train in a block that detects anomalies."""
    import torch

    with torch.autograd.set_detect_anomaly(not by_hand):
        fit(network(64, 20), [batch(8)] * 900)


@advised("all_threads")
def torch_sets_one_thread(by_hand: bool) -> None:
    """Set the number of threads to one."""
    import torch

    threads, model = torch.get_num_threads(), network(1024, 3)  # which sets one
    if by_hand:
        torch.set_num_threads(threads)
    fit(model, [batch(512)] * 150)


@advised("no_collect")
def torch_collects_in_each_step(by_hand: bool) -> None:
    """Collect garbage after each step, as against a lack of memory."""

    def after(number: int, loss: float) -> None:
        if not by_hand:
            gc.collect()

    kept = [{"number": number} for number in range(100_000)]
    fit(network(256), [batch(64)] * 40, after)
    del kept


def saved(by_hand: bool, names: int) -> None:
    """Save a model with a large table after each step, by hand after each tenth, under so many names in turn."""
    import torch

    model = network(256)
    model.register_buffer("table", torch.zeros(12_000_000))
    with tempfile.TemporaryDirectory() as folder:

        def save(number: int, loss: float) -> None:
            if not by_hand or number % 10 == 9:
                torch.save(model.state_dict(), Path(folder, f"{number % names}.pt"))

        fit(model, [batch(256)] * 150, save)


@advised("rare_saves")
def torch_saves_after_each_step(by_hand: bool) -> None:
    """Save the last model after each step."""
    saved(by_hand, 1)


@advised("rare_saves")
def torch_keeps_each_best_model(by_hand: bool) -> None:
    """Save the three best models, whenever one is better, which is always."""
    saved(by_hand, 3)


# -- JAX ---------------------------------------------------------------------------------------------------------------


@advised("wrapped_once")
def jax_wraps_in_each_step(by_hand: bool) -> None:
    """Compile a lambda in each step."""
    import jax
    import jax.numpy as jnp

    def wrapped() -> Any:
        return jax.jit(lambda weights: weights - 1e-3 * jnp.tanh(weights @ weights))

    once, weights = wrapped(), jnp.ones((64, 64))
    for _ in range(120):
        weights = (once if by_hand else wrapped())(weights)
        jax.block_until_ready(weights)


@advised("wrapped_once")
def jax_defines_the_step_in_the_loop(by_hand: bool) -> None:
    """Define and compile the step in the loop over batches."""
    import jax

    update, weights = perceptron(4, 64)

    def wrapped() -> Any:
        def step(weights: Any, x: Any) -> Any:
            return update(weights, x)

        return jax.jit(step)

    once, x = wrapped(), jax.numpy.ones((32, 64))
    for _ in range(60):
        weights, loss = (once if by_hand else wrapped())(weights, x)
        float(loss)


@advised("no_collect")
def jax_collects_in_each_tenth_step(by_hand: bool) -> None:
    """Collect garbage in each tenth step."""
    import jax

    step, weights = perceptron(4, 128)
    step, x = jax.jit(step), jax.numpy.ones((32, 128))
    kept = [[number] for number in range(1_000_000)]
    for number in range(400):
        weights, loss = step(weights, x)
        float(loss)
        if number % 10 == 0 and not by_hand:
            gc.collect()
    del kept


@advised("no_collection")
def jax_makes_objects_in_each_step(by_hand: bool) -> None:
    """Make many objects in each step, beside a million that are kept."""
    import jax

    if by_hand:
        gc.disable()
    step, weights = perceptron(4, 128)
    step, x = jax.jit(step), jax.numpy.ones((32, 128))
    kept: list[Any] = []
    for number in range(900):
        weights, loss = step(weights, x)
        value = float(loss)
        kept += [{"step": number, "loss": [value]} for _ in range(4000)]


@advised("single_precision")
def jax_trains_in_double(by_hand: bool) -> None:
    """Train in double precision."""
    import jax

    jax.config.update("jax_enable_x64", not by_hand)
    step, weights = perceptron(layers=4, width=512)
    kind, step = "float32" if by_hand else "float64", jax.jit(step)
    weights, x = [each.astype(kind) for each in weights], rows(256, 512).astype(kind)
    for _ in range(500):
        weights, loss = step(weights, x)
        float(loss)


@advised("kept_programs")
def jax_compiles_many_losses(by_hand: bool) -> None:
    """Compile the gradients of forty losses, and take few steps."""
    import jax
    import jax.numpy as jnp

    if by_hand:
        jax.config.update("jax_compilation_cache_dir", os.environ["ADVISED_PROGRAMS"])
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)

    def gradient_of(number: int) -> Any:
        def loss_of(weights: Any) -> Any:
            x, _ = jax.lax.scan(lambda x, _: (jnp.tanh(jnp.sort(x) @ weights + number), None), weights, length=8)
            return jnp.linalg.norm(x)

        gradient = jax.value_and_grad(loss_of)
        gradient.__name__ = f"loss_{number}"
        return jax.jit(gradient)

    gradients, weights = [gradient_of(number) for number in range(40)], jnp.eye(64)
    for _ in range(3):
        for gradient in gradients:
            loss, change = gradient(weights)
            weights = weights - 1e-3 * change
        float(loss)


# -- TensorFlow and Keras ----------------------------------------------------------------------------------------------


@advised("wrapped_once")
def tensorflow_compiles_in_the_loop(by_hand: bool) -> None:
    """Define the compiled step in the loop."""
    import tensorflow as tf

    step, x = train_step(model_of(3)), tf.constant(rows(32))
    compiled = tf.function(step)
    for _ in range(40):
        float((compiled if by_hand else tf.function(step))(x))


@advised("parallel_maps")
def tensorflow_reads_one_by_one(by_hand: bool) -> None:
    """Read the batches from slow storage one after the other."""
    import tensorflow as tf

    step, x = tf.function(train_step(model_of(4))), tf.constant(rows(128))

    def read(number: Any) -> Any:
        time.sleep(0.04)
        return number

    parallel = tf.data.AUTOTUNE if by_hand else None
    data = tf.data.Dataset.range(200).map(lambda n: tf.numpy_function(read, [n], tf.int64), num_parallel_calls=parallel)
    for _ in data.prefetch(tf.data.AUTOTUNE) if by_hand else data:
        float(step(x))


@advised("parallel_maps")
def keras_reads_one_by_one(by_hand: bool) -> None:
    """Read examples from slow storage one after the other, and fit a model to batches of them."""
    import tensorflow as tf

    def read(number: Any) -> Any:
        time.sleep(0.005)
        return np.full(64, 0.5, "float32")

    def example(number: Any) -> Any:
        x = tf.ensure_shape(tf.numpy_function(read, [number], tf.float32), (64,))
        return x, x[:1]

    parallel = tf.data.AUTOTUNE if by_hand else None
    data = tf.data.Dataset.range(1200).map(example, num_parallel_calls=parallel).batch(16)
    model_of(2).fit(data.prefetch(tf.data.AUTOTUNE) if by_hand else data, verbose=0)


@advised("steps_per_call")
def keras_trains_on_tiny_batches(by_hand: bool) -> None:
    """Fit a small model on small batches of arrays."""
    fit_keras(model_of(1, 16, steps_per_execution=16 if by_hand else 1), 4 * 8000, 4)


@advised("compiled")
def keras_runs_eagerly(by_hand: bool) -> None:
    """Leave eager execution on."""
    fit_keras(model_of(6, run_eagerly=not by_hand), 32 * 250)


@advised("compiled")
def keras_runs_functions_eagerly(by_hand: bool) -> None:
    """Leave the eager execution of all functions on."""
    import tensorflow as tf

    tf.config.run_functions_eagerly(not by_hand)
    fit_keras(model_of(6), 32 * 250)


@advised("called_model")
def keras_predicts_each_batch(by_hand: bool) -> None:
    """Predict in a callback after each batch."""
    import keras

    x = rows(32)

    class Predicts(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model(x, training=False) if by_hand else self.model.predict(x, verbose=0)

    fit_keras(model_of(), 32 * 120, callbacks=[Predicts()])


@advised("rare_evaluation")
def keras_validates_each_epoch(by_hand: bool) -> None:
    """Validate on many batches after each of fifteen short epochs."""
    x = rows(64 * 400)
    options = {"validation_data": (x, x[:, :1]), "validation_batch_size": 64, "validation_freq": 5 if by_hand else 1}
    fit_keras(model_of(4), 64 * 40, 64, epochs=15, **options)


@advised("rare_saves")
def keras_saves_after_each_epoch(by_hand: bool) -> None:
    """Save a large model after each of forty short epochs."""
    import keras

    class Saves(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if not by_hand or epoch % 10 == 9:
                self.model.save(Path(folder, "model.keras"))

    with tempfile.TemporaryDirectory() as folder:
        fit_keras(model_of(4, 1024), 64 * 4, 64, epochs=40, callbacks=[Saves()])


@advised("pydataset_workers")
def keras_waits_in_a_pydataset(by_hand: bool) -> None:
    """Wait for storage in each batch of a PyDataset."""
    import keras

    options = {"workers": 4, "use_multiprocessing": True, "max_queue_size": 16} if by_hand else {}
    model_of().fit(_pydataset(keras)(**options), verbose=0)


def _pydataset(keras: Any) -> Any:
    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 150

        def __getitem__(self, index: int) -> Any:
            time.sleep(0.04)
            x = rows(32)
            return x, x[:, :1]

    return Batches


@advised("single_precision")
def keras_trains_in_double(by_hand: bool) -> None:
    """Train in double precision."""
    import keras

    keras.config.set_floatx("float32" if by_hand else "float64")
    fit_keras(model_of(4, 1024), 256 * 100, 256)
