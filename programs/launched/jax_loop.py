"""Train a small network with JAX on processes of ``jax.distributed``: ``jax_loop.py PROCESS PROCESSES PORT``."""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from truth import training

STEPS, BATCH, WIDTH = 60, 64, 256
process, processes, port = map(int, sys.argv[1:])
jax.distributed.initialize(f"localhost:{port}", processes, process)
mesh = Mesh(np.array(jax.devices()), "data")
by_process = NamedSharding(mesh, PartitionSpec("data"))
weights = jax.device_put(np.eye(WIDTH, dtype="f"), NamedSharding(mesh, PartitionSpec()))


@jax.jit
def train_step(weights: Any, rows: Any) -> Any:
    """Return the weights after a step of gradient descent, and the loss."""
    loss, gradient = jax.value_and_grad(lambda weights: jnp.mean((jnp.tanh(rows @ weights) - rows) ** 2))(weights)
    return weights - 0.1 * gradient, loss


random = np.random.default_rng(process)
with training(process) as stepped:
    for _ in range(STEPS):
        batch = random.random((BATCH, WIDTH), "f")
        rows = jax.make_array_from_process_local_data(by_process, batch)
        weights, loss = train_step(weights, rows)
        loss.block_until_ready()
        stepped()
print(f"process {process} of {processes}: loss {loss:.4f}\n", end="", flush=True)  # in one write
