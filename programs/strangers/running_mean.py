"""flax.nnx: a convolutional regressor whose progress line shows the running mean of the loss."""
import json
import time

BEGAN = time.perf_counter()
import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

REPAIRED = os.environ.get("REPAIRED") == "1"
WASTED = 0.0


class Net(nnx.Module):
    def __init__(self, rngs):
        self.conv1 = nnx.Conv(1, 16, (3, 3), strides=2, rngs=rngs)
        self.conv2 = nnx.Conv(16, 32, (3, 3), strides=2, rngs=rngs)
        self.conv3 = nnx.Conv(32, 64, (3, 3), strides=2, rngs=rngs)
        self.norm = nnx.LayerNorm(64, rngs=rngs)
        self.out = nnx.Linear(64, 2, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.conv1(x))
        x = nnx.relu(self.conv2(x))
        x = nnx.relu(self.conv3(x)).mean((1, 2))
        return self.out(self.norm(x))


def blobs(count, seed, size=32):
    rng = np.random.default_rng(seed)
    centre = rng.uniform(4, size - 4, (count, 2)).astype(np.float32)
    grid = np.stack(np.meshgrid(np.arange(size), np.arange(size), indexing="ij"), -1)
    distance = ((grid[None] - centre[:, None, None]) ** 2).sum(-1)
    images = np.exp(-distance / 8) + 0.1 * rng.standard_normal((count, size, size))
    return images[..., None].astype(np.float32), centre / size


@nnx.jit
def train_step(model, optimizer, x, y):
    def loss_fn(model):
        return ((model(x) - y) ** 2).mean()
    loss, grads = nnx.value_and_grad(loss_fn)(model)
    optimizer.update(model, grads)
    return loss


@nnx.jit
def eval_step(model, x, y):
    return jnp.sqrt(((model(x) - y) ** 2).mean())


class Progress:
    """Losses so far and their mean, as for a progress bar."""

    def __init__(self):
        self.losses = []
        self.total = 0.0

    def add(self, loss):
        if REPAIRED:
            self.losses.append(float(loss))
            self.total += self.losses[-1]
            return self.total / len(self.losses)
        self.losses.append(loss)
        return float(jnp.array(self.losses).mean())


def main(epochs=6, batch=448, count=14336):
    global WASTED
    images, targets = blobs(count, 0)
    valid_x, valid_y = (jnp.asarray(a) for a in blobs(384, 1))
    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)
    rng = np.random.default_rng(2)
    progress = Progress()
    steps = 0
    for epoch in range(epochs):
        order = rng.permutation(count)
        for rows in np.split(order, count // batch):
            loss = train_step(model, optimizer, images[rows], targets[rows])
            loss.block_until_ready()
            began = time.perf_counter()
            shown = progress.add(loss)
            WASTED += time.perf_counter() - began
            steps += 1
        print(f"epoch {epoch} mean loss {shown:.4f} valid {eval_step(model, valid_x, valid_y):.4f}", flush=True)
    truth = {"train_steps": steps, "evaluation_steps": None, "wasted_s": WASTED}
    with open(os.environ["TRUTH_FILE"], "w") as file:
        json.dump(truth, file)


main()
