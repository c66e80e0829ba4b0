"""Plain JAX: a residual MLP on tabular data, SGD with momentum, warm-up and cosine by epoch."""
import json
import time

BEGAN = time.perf_counter()
import math
import os
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

REPAIRED = os.environ.get("REPAIRED") == "1"
WASTED = 0.0
EPOCHS, PER_EPOCH, BATCH, WIDTH, DEPTH = 11, 120, 192, 256, 4


def init(key, features, classes):
    keys = jax.random.split(key, DEPTH + 2)
    dense = lambda k, a, b: {"w": jax.random.normal(k, (a, b)) / math.sqrt(a), "b": jnp.zeros(b)}
    return {"in": dense(keys[0], features, WIDTH),
            "blocks": [{**dense(k, WIDTH, WIDTH), "scale": jnp.ones(WIDTH)} for k in keys[1:-1]],
            "out": dense(keys[-1], WIDTH, classes)}


def apply(params, x):
    x = x @ params["in"]["w"] + params["in"]["b"]
    for block in params["blocks"]:
        h = (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + 1e-5) * block["scale"]
        x = x + jax.nn.gelu(h @ block["w"] + block["b"])
    return x @ params["out"]["w"] + params["out"]["b"]


def loss_fn(params, x, y):
    logp = jax.nn.log_softmax(apply(params, x))
    return -jnp.take_along_axis(logp, y[:, None], 1).mean()


def update(params, velocity, x, y, rate, momentum=0.9):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    norm = jnp.sqrt(sum(jnp.vdot(g, g) for g in jax.tree.leaves(grads)))
    clip = jnp.minimum(1.0, 1.0 / (norm + 1e-6))
    velocity = jax.tree.map(lambda v, g: momentum * v + clip * g, velocity, grads)
    params = jax.tree.map(lambda p, v: p - rate * v, params, velocity)
    return params, velocity, loss


if REPAIRED:
    train_step = jax.jit(update, static_argnames=("momentum",))
else:
    train_step = jax.jit(update, static_argnames=("rate", "momentum"))


@jax.jit
def accuracy(params, x, y):
    return (apply(params, x).argmax(-1) == y).mean()


def rate_of(epoch):
    if epoch < 3:
        return 0.05 * (epoch + 1) / 3
    return 0.05 * 0.5 * (1 + math.cos(math.pi * (epoch - 3) / (EPOCHS - 3)))


def main():
    global WASTED
    rng = np.random.default_rng(0)
    features = rng.standard_normal((PER_EPOCH * BATCH, 64), dtype=np.float32)
    labels = (features @ rng.standard_normal((64, 8))).argmax(1)
    valid_x, valid_y = jnp.asarray(features[:512]), jnp.asarray(labels[:512])
    params = init(jax.random.key(0), 64, 8)
    velocity = jax.tree.map(jnp.zeros_like, params)
    steps = 0
    for epoch in range(EPOCHS):
        rate = rate_of(epoch)
        order = rng.permutation(len(features))
        times = []
        for start in range(0, len(order), BATCH):
            rows = order[start:start + BATCH]
            began = time.perf_counter()
            params, velocity, loss = train_step(params, velocity, features[rows], labels[rows], rate)
            loss.block_until_ready()
            times.append(time.perf_counter() - began)
            steps += 1
        if epoch:
            WASTED += times[0] - float(np.median(times))
        print(f"epoch {epoch} rate {rate:.4f} loss {loss:.3f} valid {accuracy(params, valid_x, valid_y):.3f}", flush=True)
    truth = {"train_steps": steps, "evaluation_steps": None, "wasted_s": WASTED}
    with open(os.environ["TRUTH_FILE"], "w") as file:
        json.dump(truth, file)


main()
