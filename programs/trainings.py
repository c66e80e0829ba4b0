"""Trainings of any size, with dense layers of one width: in Keras on TensorFlow, in JAX, and in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import reduce
from typing import Any

import numpy as np

from tpunb.profiler.capture import Run

BATCH, LAYERS = 64, 4

Train = Callable[[int, "Run | None"], None]
"""Trains for some steps; a custom loop marks them with the run."""


def by_keras(width: int) -> Train:
    """Return the training of a Keras model: dense layers of one width, Adam, batches from tf.data."""
    import keras
    import tensorflow as tf

    rng = np.random.default_rng(0)
    rows = rng.random((8 * BATCH, width), "float32"), rng.integers(0, 10, 8 * BATCH)
    data = tf.data.Dataset.from_tensor_slices(rows).repeat().batch(BATCH).prefetch(2)
    options = tf.data.Options()
    options.autotune.enabled = False  # nothing to tune, and ending its thread may double the time of `fit`
    data = data.with_options(options)
    layers = [keras.layers.Dense(width, "relu") for _ in range(LAYERS)]
    model = keras.Sequential([keras.Input((width,)), *layers, keras.layers.Dense(10)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    return lambda steps, _: model.fit(data, steps_per_epoch=steps, shuffle=False, verbose=0)


def by_torch(width: int) -> Train:
    """Return the training of such a model in PyTorch: a custom loop over a DataLoader, which marks no steps."""
    import torch

    torch.set_num_threads(1)
    layers = [layer for _ in range(LAYERS) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rows = torch.utils.data.TensorDataset(torch.ones(8 * BATCH, width))

    def train(steps: int, _: Run | None) -> None:
        while steps > 0:
            for (batch,) in torch.utils.data.DataLoader(rows, batch_size=BATCH):
                optimizer.zero_grad()
                model(batch).square().mean().backward()
                optimizer.step()
                steps -= 1

    return train


def by_jax(width: int) -> Train:
    """Return the training of such a model in JAX: compiled gradient descent in a custom loop."""
    import jax

    rows, first = jax.numpy.ones((BATCH, width)), jax.numpy.stack([jax.numpy.eye(width)] * LAYERS)

    def loss(weights: Any) -> Any:
        return (reduce(lambda out, weight: jax.nn.relu(out @ weight), weights, rows) ** 2).mean()

    step = jax.jit(lambda weights: weights - jax.grad(loss)(weights) / 100)

    def train(steps: int, run: Run | None) -> None:
        weights = first
        for number in range(steps):
            with run.step(number) if run else nullcontext():
                weights = step(weights).block_until_ready()

    return train
