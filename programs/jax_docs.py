"""Programs after the documentation of JAX, Flax and Grain, with parameters as trees of arrays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grain.python as grain
import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf

from programs import Loop, images, labels, program, table

Slices = tf.data.Dataset.from_tensor_slices


def layers(key: Any, *sizes: int) -> list[tuple[Any, Any]]:
    """Return weights and biases of dense layers."""
    keys = jax.random.split(key, len(sizes))
    pairs = zip(keys, sizes, sizes[1:], strict=False)
    return [(jax.random.normal(each, (n, m)) * 0.1, jnp.zeros(m)) for each, n, m in pairs]


def predict(params: Any, x: Any) -> Any:
    """Return logits."""
    *hidden, (w, b) = params
    for weights, bias in hidden:
        x = jax.nn.relu(x @ weights + bias)
    return x @ w + b


def entropy(params: Any, x: Any, y: Any) -> Any:
    """Return the mean cross entropy."""
    return -jnp.mean(jnp.sum(jax.nn.log_softmax(predict(params, x)) * jax.nn.one_hot(y, 3), -1))


@jax.jit
def descend(params: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Return the parameters after a step of gradient descent, and the loss."""
    loss, gradients = jax.value_and_grad(entropy)(params, x, y)
    return jax.tree.map(lambda value, gradient: value - 0.1 * gradient, params, gradients), loss


def descent(batches: Any, convert: Callable[[Any], Any] = tuple, **parts: Any) -> Loop:
    """Return a loop of gradient descent over batches of flat images and labels."""

    def step(parts: dict[str, Any]) -> Any:
        x, y = convert(next(parts["batches"]))
        parts["params"], loss = descend(parts["params"], x, y)
        return loss

    return Loop({"params": layers(jax.random.key(0), 64, 8, 3), "batches": batches, **parts}, step)


def to_numpy(batch: Any) -> Any:
    """Return a batch of tf.data as arrays."""
    return tuple(part.numpy() for part in batch)


def pairs() -> tuple[Any, Any]:
    """Return flat images and labels."""
    return images().reshape(48, 64), labels()


@program("from_tensor_slices batch prefetch repeat", "own step")
def jax_neural_network(folder: Path) -> Loop:
    """Feed JAX from tf.data (https://docs.jax.dev/en/latest/notebooks/neural_network_with_tfds_data.html)."""
    return descent(iter(Slices(pairs()).batch(8).prefetch(1).repeat()), to_numpy)


@program("batches that NumPy draws", "own step")
def jax_data_loading(folder: Path) -> Loop:
    """Draw batches in Python (https://docs.jax.dev/en/latest/notebooks/Neural_Network_and_Data_Loading.html)."""

    class Loader:
        """Random batches; its state is the number drawn."""

        def __init__(self) -> None:
            self.at = 0

        def __next__(self) -> tuple[Any, Any]:
            chosen = np.random.default_rng(self.at).permutation(48)[:8]
            self.at += 1
            return pairs()[0][chosen], pairs()[1][chosen]

        def get_state(self) -> dict[str, int]:
            """Return the number of batches drawn."""
            return {"at": self.at}

        def set_state(self, state: dict[str, int]) -> None:
            """Continue after that many."""
            self.at = state["at"]

    return descent(Loader())


@program("from_tensor_slices map shuffle batch repeat take prefetch", "own step")
def flax_mnist(folder: Path) -> Loop:
    """Train with Adam written out (https://flax.readthedocs.io/en/latest/mnist_tutorial.html)."""

    @jax.jit
    def adam(params: Any, moments: Any, x: Any, y: Any) -> tuple[Any, Any, Any]:
        loss, gradients = jax.value_and_grad(entropy)(params, x, y)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments["first"], gradients)
        second = jax.tree.map(lambda m, g: 0.999 * m + 0.001 * g * g, moments["second"], gradients)
        params = jax.tree.map(lambda p, m, v: p - 0.01 * m / (jnp.sqrt(v) + 1e-8), params, first, second)
        return params, {"first": first, "second": second}, loss

    def step(parts: dict[str, Any]) -> Any:
        x, y = to_numpy(next(parts["batches"]))
        parts["params"], parts["moments"], loss = adam(parts["params"], parts["moments"], x, y)
        return loss

    params = layers(jax.random.key(0), 64, 8, 3)
    zeros = jax.tree.map(jnp.zeros_like, params)
    scaled = Slices(pairs()).map(lambda x, y: (x / 2, y)).shuffle(40, seed=0).batch(8, drop_remainder=True)
    moments = {"first": zeros, "second": zeros}
    return Loop({"params": params, "moments": moments, "batches": iter(scaled.repeat().take(30).prefetch(1))}, step)


@program("from_tensor_slices map filter repeat shuffle padded_batch prefetch", "own step")
def flax_language_model(folder: Path) -> Loop:
    """Filter, shuffle and pad examples (https://flax.readthedocs.io/en/latest/guides/gemma.html)."""
    rows = Slices(pairs()).map(lambda x, y: (x * 0.5, y)).filter(lambda x, y: tf.reduce_mean(x) > 0.2).repeat()
    return descent(iter(rows.shuffle(20, seed=3).padded_batch(6).prefetch(1)), to_numpy)


@program("grain: source shuffle repeat batch", "own step")
def grain_dataset(folder: Path) -> Loop:
    """Read a shuffled source with Grain (https://google-grain.readthedocs.io/en/latest/tutorials/dataset_basic_tutorial.html)."""
    x, y = pairs()
    source = [{"x": row, "y": label} for row, label in zip(x, y, strict=True)]
    data = grain.MapDataset.source(source).shuffle(seed=10).repeat().batch(batch_size=8).to_iter_dataset()
    return descent(iter(data), lambda batch: (batch["x"], batch["y"]))


@program("grain: source shuffle repeat random_map batch", "own step")
def grain_augmentation(folder: Path) -> Loop:
    """Add noise by Grain's seeds (https://google-grain.readthedocs.io/en/latest/tutorials/dataset_advanced_tutorial.html)."""
    x, y = pairs()
    source = [{"x": row, "y": label} for row, label in zip(x, y, strict=True)]

    def noisy(row: dict[str, Any], dice: np.random.Generator) -> dict[str, Any]:
        return {**row, "x": row["x"] + dice.normal(size=64).astype("float32")}

    data = grain.MapDataset.source(source).seed(3).shuffle().repeat().random_map(noisy).batch(8).to_iter_dataset()
    return descent(iter(data), lambda batch: (batch["x"], batch["y"]))


@program("no dataset: keys", "own step")
def jax_stateful(folder: Path) -> Loop:
    """Split a key in each step (https://docs.jax.dev/en/latest/stateful-computations.html)."""
    x, y = table()

    @jax.jit
    def update(params: Any, key: Any) -> tuple[Any, Any, Any]:
        key, noise = jax.random.split(key)
        shifted = x + jax.random.normal(noise, x.shape)
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((shifted @ w - y) ** 2))(params)
        return params - 0.01 * gradient, key, loss

    def step(parts: dict[str, Any]) -> Any:
        parts["params"], parts["key"], loss = update(parts["params"], parts["key"])
        return loss

    return Loop({"params": jnp.zeros((5, 1)), "key": jax.random.PRNGKey(0)}, step)
