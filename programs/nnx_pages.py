"""Programs after pages on Flax NNX, with Optax and Grain: loops over ``run.batches`` that change modules in place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grain.python as grain
import jax
import jax.numpy as jnp
import numpy as np
import optax
import tensorflow as tf
from flax import nnx

from programs import Steps, images, labels, program, table, tokens


def entropy(logits: Any, y: Any) -> Any:
    """Return the mean cross entropy."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


@nnx.jit(static_argnames="loss_of")
def descend(model: Any, optimizer: Any, metrics: Any, loss_of: Callable[..., Any], *batch: Any) -> Any:
    """Take a step of gradient descent in place; return its loss."""
    loss, gradients = nnx.value_and_grad(loss_of)(model, *batch)
    optimizer.update(model, gradients)
    metrics.update(loss=loss)
    return loss


def descent(model: Any, tx: Any, data: Any, loss_of: Callable[..., Any], **parts: Any) -> Steps:
    """Return a loop of gradient descent over batches, which are tuples."""
    state = {"model": model, "optimizer": nnx.Optimizer(model, tx, wrt=nnx.Param), **parts}
    state["metrics"] = nnx.MultiMetric(loss=nnx.metrics.Average("loss"))

    def step(state: dict[str, Any], batch: Any) -> Any:
        arrays = [jnp.asarray(np.asarray(part)) for part in batch]
        return descend(state["model"], state["optimizer"], state["metrics"], loss_of, *arrays)

    return Steps(state, data, step)


class Convolutions(nnx.Module):
    """A convolution, dropout and a dense layer."""

    def __init__(self, rngs: Any) -> None:
        self.conv = nnx.Conv(1, 4, kernel_size=(3, 3), rngs=rngs)
        self.drop, self.dense = nnx.Dropout(0.2, rngs=rngs), nnx.Linear(64, 3, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        """Return logits."""
        x = nnx.avg_pool(nnx.relu(self.conv(x)), window_shape=(2, 2), strides=(2, 2))
        return self.dense(self.drop(x.reshape(len(x), -1)))


@program("nnx: tf.data", "nnx")
def nnx_mnist(folder: Path) -> Steps:
    """Train convolutions on tf.data (https://flax.readthedocs.io/en/latest/mnist_tutorial.html#training)."""
    data = tf.data.Dataset.from_tensor_slices((images(), labels())).shuffle(20).batch(8, drop_remainder=True)

    def loss(model: Any, x: Any, y: Any) -> Any:
        return entropy(model(x), y)

    return descent(Convolutions(nnx.Rngs(0)), optax.adamw(5e-3, 0.9), data.prefetch(1), loss)


class Block(nnx.Module):
    """A dense layer, normalisation by batch and dropout."""

    def __init__(self, rngs: Any) -> None:
        self.linear, self.norm = nnx.Linear(5, 8, rngs=rngs), nnx.BatchNorm(8, rngs=rngs)
        self.drop, self.out = nnx.Dropout(0.3, rngs=rngs), nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        """Return a prediction for each row."""
        return self.out(nnx.relu(self.drop(self.norm(self.linear(x)))))


def squares(model: Any, x: Any, y: Any) -> Any:
    """Return the mean squared error."""
    return jnp.mean((model(x) - y) ** 2)


@program("nnx: a list", "nnx")
def nnx_basics(folder: Path) -> Steps:
    """Train a block with batch statistics (https://flax.readthedocs.io/en/latest/nnx_basics.html)."""
    batches = list(zip(*(part.reshape(6, 8, -1) for part in table()), strict=True))
    return descent(Block(nnx.Rngs(1)), optax.adam(1e-3), batches, squares)


@program("nnx: grain dataset", "nnx")
def nnx_randomness(folder: Path) -> Steps:
    """Draw noise from streams of a seed (https://flax.readthedocs.io/en/latest/guides/randomness.html)."""
    x, y = table()
    data = grain.MapDataset.source(list(zip(x, y, strict=True))).shuffle(seed=3).batch(8)
    rngs = nnx.Rngs(0, noise=jax.random.key(7))
    made = descent(Block(nnx.Rngs(2)), optax.sgd(1e-3, momentum=0.9), data, squares, rngs=rngs)

    def step(state: dict[str, Any], batch: Any) -> Any:
        rows, targets = batch
        return made.step(state, (rows + state["rngs"].noise.normal(rows.shape), targets))

    return Steps(made.state, made.data, step)


@program("nnx: a list, split and merged", "nnx")
def nnx_functional(folder: Path) -> Steps:
    """Split modules into graph and state (https://flax.readthedocs.io/en/latest/guides/performance.html)."""
    model = Block(nnx.Rngs(3))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    graph, state = nnx.split((model, optimizer))

    @jax.jit
    def take(state: Any, x: Any, y: Any) -> tuple[Any, Any]:
        model, optimizer = nnx.merge(graph, state)
        loss, gradients = nnx.value_and_grad(squares)(model, x, y)
        optimizer.update(model, gradients)
        return nnx.state((model, optimizer)), loss

    def step(parts: dict[str, Any], batch: Any) -> Any:
        parts["state"], loss = take(parts["state"], *batch)
        return loss

    return Steps({"state": state}, list(zip(*(part.reshape(6, 8, -1) for part in table()), strict=True)), step)


class Decoder(nnx.Module):
    """Embeddings, causal attention and logits."""

    def __init__(self, rngs: Any) -> None:
        self.embed = nnx.Embed(20, 8, rngs=rngs)
        self.attend = nnx.MultiHeadAttention(2, 8, dropout_rate=0.1, deterministic=False, decode=False, rngs=rngs)
        self.norm, self.head = nnx.LayerNorm(8, rngs=rngs), nnx.Linear(8, 20, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        """Return logits of the next tokens."""
        embedded = self.embed(x)
        return self.head(self.norm(embedded + self.attend(embedded, mask=nnx.make_causal_mask(x))))


@program("nnx: grain loader", "nnx")
def nnx_minigpt(folder: Path) -> Steps:
    """Train a language model from a loader (https://docs.jaxstack.ai/en/latest/JAX_for_LLM_pretraining.html)."""
    source = list(tokens())
    sampler = grain.IndexSampler(len(source), shuffle=True, seed=4, shard_options=grain.NoSharding(), num_epochs=3)
    loader = grain.DataLoader(data_source=source, sampler=sampler, operations=[grain.Batch(8, drop_remainder=True)])

    def loss(model: Any, rows: Any) -> Any:
        return entropy(model(rows[:, :-1]), rows[:, 1:])

    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 4, 18)
    made = descent(
        Decoder(nnx.Rngs(5)), optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule)), loader, loss
    )
    return Steps(made.state, iter(loader), lambda state, rows: made.step(state, (rows,)), epochs=1)


class Autoencoder(nnx.Module):
    """A variational autoencoder that draws its code from a stream of its own."""

    def __init__(self, rngs: Any) -> None:
        self.encode, self.decode = nnx.Linear(64, 8, rngs=rngs), nnx.Linear(4, 64, rngs=rngs)
        self.noise = rngs.noise.fork()

    def __call__(self, x: Any) -> tuple[Any, Any, Any]:
        """Return a reconstruction, means and logarithms of deviations."""
        mean, scale = jnp.split(self.encode(x), 2, axis=-1)
        return self.decode(mean + jnp.exp(scale) * self.noise.normal(mean.shape)), mean, scale


@program("nnx: grain iterator", "nnx")
def nnx_vae(folder: Path) -> Steps:
    """Train a variational autoencoder (https://docs.jaxstack.ai/en/latest/digits_vae.html)."""
    rows = list(images().reshape(-1, 64))
    data = grain.MapDataset.source(rows).shuffle(seed=6).repeat(3).batch(8).to_iter_dataset()

    def loss(model: Any, x: Any) -> Any:
        again, mean, scale = model(x)
        return jnp.mean((again - x) ** 2) + 0.01 * jnp.mean(mean**2 + jnp.exp(scale) - scale)

    made = descent(Autoencoder(nnx.Rngs(0, noise=1)), optax.adam(1e-2), iter(data), loss)
    return Steps(made.state, made.data, lambda state, rows: made.step(state, (rows,)), epochs=1)
