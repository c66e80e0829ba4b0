"""dm-haiku + optax: a small MLP-Mixer on uint8 pictures (after haiku's examples/mnist.py)."""
import time
T0 = time.perf_counter()
import argparse, json, os
from typing import NamedTuple
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax

CLASSES = 10


class State(NamedTuple):
    params: hk.Params
    avg_params: hk.Params
    opt_state: optax.OptState


def pictures(n, seed):
    rng = np.random.default_rng(seed)
    protos = np.random.default_rng(0).integers(60, 190, (CLASSES, 32, 32, 3))
    y = rng.integers(0, CLASSES, n).astype(np.int32)
    noise = rng.integers(-60, 60, (n, 32, 32, 3), dtype=np.int16)
    return np.clip(protos[y] + noise, 0, 255).astype(np.uint8), y


def net_fn(images):
    x = hk.Conv2D(96, 4, stride=4)(images)
    x = x.reshape(x.shape[0], -1, x.shape[-1])
    for _ in range(3):
        h = hk.LayerNorm(-1, True, True)(x).swapaxes(1, 2)
        x = x + hk.nets.MLP([128, x.shape[1]])(h).swapaxes(1, 2)
        x = x + hk.nets.MLP([256, x.shape[2]])(hk.LayerNorm(-1, True, True)(x))
    return hk.Linear(CLASSES)(x.mean(1))


class Batches:
    """Normalised float batches of a uint8 data set."""

    def __init__(self, images, labels, batch, ready):
        self.images, self.labels, self.batch, self.rng = images, labels, batch, np.random.default_rng(8)
        self.normalised = self.normalise() if ready else None
        self.seconds = 0.0

    def normalise(self):
        return (jnp.array(self.images, dtype=jnp.float32) / 255.0 - 0.5) / 0.25

    def sample(self):
        idx = self.rng.integers(0, len(self.labels), self.batch)
        if self.normalised is not None:
            return self.normalised[idx], self.labels[idx]
        t = time.perf_counter()
        x = self.normalise()[idx].block_until_ready()
        self.seconds += time.perf_counter() - t
        return x, self.labels[idx]

    def in_order(self):
        x = (self.images.astype(np.float32) / 255.0 - 0.5) / 0.25
        for i in range(0, len(x), self.batch):
            yield x[i:i + self.batch], self.labels[i:i + self.batch]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--repaired", action="store_true", help="normalise the data set once")
    ap.add_argument("--steps", type=int, default=120)
    opt = ap.parse_args()
    net = hk.without_apply_rng(hk.transform(net_fn))
    tx = optax.adam(1e-3)
    train, valid = Batches(*pictures(6000, 1), 64, opt.repaired), Batches(*pictures(640, 2), 64, False)
    params = net.init(jax.random.PRNGKey(0), np.zeros((1, 32, 32, 3), np.float32))
    state = State(params, params, tx.init(params))

    def loss_fn(params, x, y):
        return optax.softmax_cross_entropy_with_integer_labels(net.apply(params, x), y).mean()

    @jax.jit
    def update(state, x, y):
        loss, grads = jax.value_and_grad(loss_fn)(state.params, x, y)
        updates, opt_state = tx.update(grads, state.opt_state)
        params = optax.apply_updates(state.params, updates)
        return State(params, optax.incremental_update(params, state.avg_params, 0.01), opt_state), loss

    @jax.jit
    def accuracy(params, x, y):
        return (net.apply(params, x).argmax(-1) == y).mean()

    evaluated = 0
    for step in range(1, opt.steps + 1):
        state, loss = jax.block_until_ready(update(state, *train.sample()))
        if step % 50 == 0:
            accs = [float(accuracy(state.avg_params, x, y)) for x, y in valid.in_order()]
            evaluated += len(accs)
            print(f"step {step} loss {float(loss):.4f} acc {np.mean(accs):.3f}", flush=True)
    jax.block_until_ready(state)
    if os.environ.get("TRUTH_FILE"):
        json.dump({"wall_s": time.perf_counter() - T0, "wasted_s": train.seconds,
                   "train_steps": int(optax.tree_utils.tree_get(state.opt_state, "count")), "evaluation_steps": evaluated,
                   "what": "every batch copies and normalises the whole data set and then takes 64 rows of it "
                           "(Batches.normalise, haiku_mixer.py:48, from sample :55)"},
                  open(os.environ["TRUTH_FILE"], "w"))


if __name__ == "__main__":
    main()
