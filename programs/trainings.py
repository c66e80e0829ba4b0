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


def by_keras(width: int, batch: int = BATCH, layers: int = LAYERS, **fit: Any) -> Train:
    """Return the training of a Keras model: dense layers of one width, Adam, batches from tf.data."""
    import keras
    import tensorflow as tf

    rng = np.random.default_rng(0)
    rows = rng.random((8 * batch, width), "float32"), rng.integers(0, 10, 8 * batch)
    data = tf.data.Dataset.from_tensor_slices(rows).repeat().batch(batch).prefetch(2)
    options = tf.data.Options()
    options.autotune.enabled = False  # nothing to tune, and ending its thread may double the time of `fit`
    data = data.with_options(options)
    dense = [keras.layers.Dense(width, "relu") for _ in range(layers)]
    model = keras.Sequential([keras.Input((width,)), *dense, keras.layers.Dense(10)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    return lambda steps, _: model.fit(data, steps_per_epoch=steps, shuffle=False, verbose=0, **fit)


def by_torch(width: int, batch: int = BATCH, layers: int = LAYERS) -> Train:
    """Return the training of such a model in PyTorch: a custom loop over a DataLoader, which marks no steps."""
    import torch

    torch.set_num_threads(1)
    dense = [layer for _ in range(layers) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    model = torch.nn.Sequential(*dense)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rows = torch.utils.data.TensorDataset(torch.ones(8 * batch, width))

    def train(steps: int, _: Run | None) -> None:
        while steps > 0:
            for (inputs,) in torch.utils.data.DataLoader(rows, batch_size=batch):
                optimizer.zero_grad()
                model(inputs).square().mean().backward()
                optimizer.step()
                steps -= 1

    return train


def by_jax(width: int, batch: int = BATCH, layers: int = LAYERS) -> Train:
    """Return the training of such a model in JAX: compiled gradient descent in a custom loop."""
    import jax

    rows, first = jax.numpy.ones((batch, width)), jax.numpy.stack([jax.numpy.eye(width)] * layers)

    def loss(weights: Any) -> Any:
        return (reduce(lambda out, weight: jax.nn.relu(out @ weight), weights, rows) ** 2).mean()

    step = jax.jit(lambda weights: weights - jax.grad(loss)(weights) / 100)

    def train(steps: int, run: Run | None) -> None:
        weights = first
        for number in range(steps):
            with run.step(number) if run else nullcontext():
                weights = step(weights).block_until_ready()

    return train
