"""Train a network with JAX alone, in a loop over a generator."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from programs.trainers import Truth, reduced, truth_of

WIDTH, BATCH, LAYERS = 512, 256, 4
LARGE = 4_000_000  # numbers of a state that is saved


def loss_of(params: Any, x: Any, y: Any) -> Any:
    """Return the mean squared error."""
    for weights in params[:-1]:
        x = jax.nn.relu(x @ weights)
    return jnp.mean((x @ params[-1] - y) ** 2)


@jax.jit
def update(params: Any, x: Any, y: Any) -> Any:
    """Return the parameters after a step of gradient descent, and the loss."""
    loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
    return jax.tree.map(lambda value, gradient: value - 1e-3 * gradient, params, gradients), loss


def batches(truth: Truth) -> Iterator[Any]:
    """Yield random batches, which take time to make."""
    rng = np.random.default_rng(0)
    for _ in range(truth.steps):
        x = rng.random((BATCH, WIDTH), "float32")
        with truth("data"):
            time.sleep(truth.seconds("data"))
        yield x, x[:, :1]


def log(truth: Truth, losses: list[float]) -> None:
    """Append the mean of the last losses."""
    with truth("hook"):
        time.sleep(truth.seconds("hook"))
    losses.append(sum(losses[-10:]) / 10)


def norms(truth: Truth, params: Any) -> list[float]:
    """Return the largest value of each parameter, in Python."""
    jax.block_until_ready(params)
    with truth("read"):
        return [reduced(np.asarray(weights)) for weights in params]


def main(arguments: Sequence[str]) -> None:
    """Train, and write the truth."""
    truth = truth_of(arguments)
    keys = jax.random.split(jax.random.key(0), LAYERS)
    params = [jax.random.normal(key, (WIDTH, WIDTH)) * 0.05 for key in keys] + [jnp.zeros((WIDTH, 1))]
    average = jnp.zeros(LARGE)
    checkpointer, losses, steps = ocp.StandardCheckpointer(), [], 0
    with truth.training():
        for x, y in batches(truth):
            params, loss = update(params, x, y)
            losses.append(float(loss))
            steps += 1
            log(truth, losses)
            if truth.waste == "read":
                norms(truth, params)
            if truth.saves_after(steps - 1):
                with truth("save"):
                    checkpointer.save(truth.folder / f"step-{steps}", {"params": params, "average": average})
                    checkpointer.wait_until_finished()
            truth.stepped()
    checkpointer.close()
    truth.write(steps)


if __name__ == "__main__":
    main(sys.argv[1:])
