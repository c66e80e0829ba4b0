"""Character language model with dm-haiku (GRU); prints generated text while training."""
import time
T0 = time.perf_counter()
import argparse, json, os, sys
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

ap = argparse.ArgumentParser()
ap.add_argument("--repaired", action="store_true")
ap.add_argument("--steps", type=int, default=120)
args = ap.parse_args()
waste = 0.0
BATCH, T, HIDDEN, SAMPLE = 48, 48, 256, 20
text = load_digits.__doc__ + np.linalg.svd.__doc__ + np.einsum.__doc__
chars = sorted(set(text))
ids = np.array([chars.index(c) for c in text], "int32")
split = int(.9 * len(ids))


def net_fn(x):
    core = hk.GRU(HIDDEN)
    h = hk.Embed(len(chars), 64)(x)
    out, _ = hk.dynamic_unroll(core, h, core.initial_state(x.shape[0]), time_major=False)
    return hk.Linear(len(chars))(out)


net = hk.without_apply_rng(hk.transform(net_fn))
params = net.init(jax.random.PRNGKey(0), ids[None, :T])
optimizer = optax.adam(2e-3)
opt_state = optimizer.init(params)


def loss_fn(params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(net.apply(params, x), y).mean()


@jax.jit
def update(params, opt_state, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    updates, opt_state = optimizer.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss


eval_loss = jax.jit(loss_fn)
apply_fixed = jax.jit(net.apply)


def generate(params, prompt, rng):
    """draw SAMPLE characters, one after the other"""
    seq = [chars.index(c) for c in prompt]
    for _ in range(SAMPLE):
        if args.repaired:
            window = np.zeros((1, len(prompt) + SAMPLE), "int32")
            window[0, :len(seq)] = seq
            logits = apply_fixed(params, window)[0, len(seq) - 1]
        else:
            logits = net.apply(params, jnp.array([seq]))[0, -1]
        p = np.asarray(jax.nn.softmax(logits), "float64")
        seq.append(int(rng.choice(len(chars), p=p / p.sum())))
    return "".join(chars[i] for i in seq)


def batch(rng, lo, hi):
    start = rng.integers(lo, hi - T - 1, BATCH)
    win = ids[start[:, None] + np.arange(T + 1)]
    return win[:, :-1], win[:, 1:]


rng = np.random.default_rng(0)
steps = evals = 0
for step in range(args.steps):
    params, opt_state, loss = update(params, opt_state, *batch(rng, 0, split))
    steps += 1
    if step % 40 == 39:
        val = []
        for _ in range(3):
            val.append(float(eval_loss(params, *batch(rng, split, len(ids)))))
            evals += 1
        t = time.perf_counter()
        sample = generate(params, "The ", rng)
        waste += time.perf_counter() - t
        print(f"step {step} loss {float(loss):.3f} val {np.mean(val):.3f} sample {sample!r}")

if os.environ.get("TRUTH_FILE"):
    with open(os.environ["TRUTH_FILE"], "w") as f:
        json.dump({"train_steps": steps, "evaluation_steps": evals, "wasted_s": waste}, f)
