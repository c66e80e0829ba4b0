"""Custom loops that are saved through `batches`, killed at a step and resumed: as a program, in a new process."""

import json
import os
import sys
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import numpy as np

import tpunb as tp
from tpunb.checkpoint import checkpoints

ROWS = np.random.default_rng(7).normal(size=(48, 4)).astype("f")
BATCHES = ROWS.reshape(12, 4, 4)
EVERY, EPOCHS = 5, 3


def _slices():
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(ROWS)


def _grain(seed):
    import grain.python as grain

    return grain.MapDataset.source(ROWS).shuffle(seed=seed)


DATA = {
    "list": lambda: list(BATCHES),
    "array": lambda: BATCHES,
    "tf.data": lambda: _slices().shuffle(48).batch(4),
    "tf.data, seeded": lambda: _slices().shuffle(48, seed=3).batch(4).prefetch(2),
    "tf.data, two shuffles": lambda: _slices().shuffle(20).map(lambda x: 2 * x).shuffle(9).batch(4),
    "grain": lambda: _grain(2).batch(4),
    "grain iterator": lambda: iter(_grain(2).repeat(EPOCHS).batch(4).to_iter_dataset()),
}


@cache
def compiled():
    """Return a compiled step of Adam."""
    import jax
    import jax.numpy as jnp

    def loss_of(params, batch, key):
        noisy = batch + jax.random.normal(key, batch.shape)
        return jnp.mean((noisy @ params["w"] + params["half"].astype("float32")) ** 2)

    @jax.jit
    def step(params, opt_state, batch, key):
        loss, gradients = jax.value_and_grad(loss_of)(params, batch, key)
        count, mean, square = opt_state
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, gradients)
        square = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, square, gradients)
        moved = jax.tree.map(lambda p, m, v: p - 0.01 * m / (1e-8 + jnp.sqrt(v)), params, mean, square)
        return moved, (count + 1, mean, square), loss

    return step


def begun():
    """Return the state with which a training begins."""
    import jax
    import jax.numpy as jnp

    params = {"w": jnp.ones((4, 4)), "half": jnp.zeros((), jnp.bfloat16)}
    zeros = jax.tree.map(jnp.zeros_like, params)
    return {
        "params": params,
        "opt_state": (jnp.zeros((), int), zeros, zeros),
        "key": jax.random.key(3),
        "rate": np.float32(1),
    }


def train(data, run=None, *, epochs=EPOCHS, die=None):
    """Train; return the losses of each step, and the state."""
    import jax
    import jax.numpy as jnp

    step, state, losses = compiled(), begun(), []
    for _ in range(epochs):
        for batch in (run or tp.testing.null_run).batches(data, state=state):
            state["key"], key = jax.random.split(state["key"])
            scaled = jnp.asarray(batch) * state["rate"]
            state["params"], state["opt_state"], loss = step(state["params"], state["opt_state"], scaled, key)
            losses.append(float(loss).hex())
            if len(losses) == die:
                os._exit(9)
        state["rate"] = np.float32(state["rate"] * 0.5)
    return losses, state


def leaves(state):
    """Return the bits of a state."""
    import jax

    plain = {**state, "key": jax.random.key_data(state["key"])}
    return [np.asarray(leaf).tobytes().hex() for leaf in jax.tree.leaves(plain)]


def cell(folder, name, *, die=None):
    """Train from the last checkpoint in a folder, if there is one; return the losses and the state."""
    import jax  # noqa: F401  before the blocks: without Keras, they need no TensorFlow

    resumed = None
    with ExitStack() as stack:
        if folder.exists() and (found := checkpoints(folder)):
            resumed = stack.enter_context(tp.resume(found[-1]))
        stack.enter_context(tp.checkpointing(folder, every=EVERY))
        losses, state = train(DATA[name](), die=die)
    return losses, leaves(state), str(resumed)


if __name__ == "__main__":
    top, name = Path(sys.argv[1]), sys.argv[2]
    if len(sys.argv) > 3:
        cell(top, name, die=int(sys.argv[3]))
    (top / "resumed.json").write_text(json.dumps([*cell(top, name), "tensorflow" in sys.modules]))
