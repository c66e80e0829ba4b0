"""MLP-Mixer on synthetic patches, pure JAX + optax."""
import time
T0 = time.perf_counter()
import argparse, json, os, sys
import jax
import jax.numpy as jnp
import numpy as np
import optax

ap = argparse.ArgumentParser()
ap.add_argument("--repaired", action="store_true")
ap.add_argument("--steps", type=int, default=40)
args = ap.parse_args()
waste = 0.0
P, C, DEPTH, BATCH = 16, 96, 10, 64


def dense(key, i, o):
    return {"w": jax.random.normal(key, (i, o)) / np.sqrt(i), "b": jnp.zeros(o)}


def init(key):
    keys = iter(jax.random.split(key, 100))
    return {"embed": dense(next(keys), 12, C),
            "blocks": [{"ln1": {"scale": jnp.ones(C), "bias": jnp.zeros(C)}, "t1": dense(next(keys), P, 64),
                        "t2": dense(next(keys), 64, P), "ln2": {"scale": jnp.ones(C), "bias": jnp.zeros(C)},
                        "c1": dense(next(keys), C, 192), "c2": dense(next(keys), 192, C)} for _ in range(DEPTH)],
            "head": dense(next(keys), C, 5)}


def apply_dense(p, x):
    return x @ p["w"] + p["b"]


def norm(p, x):
    x = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
    return x * p["scale"] + p["bias"]


def forward(params, x):
    x = apply_dense(params["embed"], x)
    for b in params["blocks"]:
        h = jnp.swapaxes(norm(b["ln1"], x), 1, 2)
        h = apply_dense(b["t2"], jax.nn.gelu(apply_dense(b["t1"], h)))
        x = x + jnp.swapaxes(h, 1, 2)
        x = x + apply_dense(b["c2"], jax.nn.gelu(apply_dense(b["c1"], norm(b["ln2"], x))))
    return apply_dense(params["head"], x.mean(1))


def loss_fn(params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(forward(params, x), y).mean()


rng = np.random.default_rng(0)
proto = rng.normal(size=(5, P, 12))
Y = rng.integers(0, 5, 4096)
X = (proto[Y] + 2 * rng.normal(size=(4096, P, 12))).astype("float32")
params = init(jax.random.PRNGKey(0))
optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(1e-3, args.steps)))
opt_state = optimizer.init(params)
grad_fn = jax.jit(jax.value_and_grad(loss_fn))
evaluate = jax.jit(lambda p, x, y: (forward(p, x).argmax(-1) == y).mean())


def update_params(params, opt_state, grads):
    updates, opt_state = optimizer.update(grads, opt_state, params)
    params = optax.apply_updates(params, updates)
    return params, opt_state


if args.repaired:
    update_params = jax.jit(update_params)
steps = evals = 0
for step in range(args.steps):
    idx = rng.integers(0, 3840, BATCH)
    loss, grads = grad_fn(params, X[idx], Y[idx])
    jax.block_until_ready(grads)
    t = time.perf_counter()
    params, opt_state = update_params(params, opt_state, grads)
    jax.block_until_ready(params)
    waste += time.perf_counter() - t
    steps += 1
    if step % 20 == 19:
        accs = []
        for i in range(3840, 4096, BATCH):
            accs.append(float(evaluate(params, X[i:i + BATCH], Y[i:i + BATCH])))
            evals += 1
        print(f"step {step} loss {float(loss):.4f} acc {np.mean(accs):.3f}")

if os.environ.get("TRUTH_FILE"):
    with open(os.environ["TRUTH_FILE"], "w") as f:
        json.dump({"train_steps": steps, "evaluation_steps": evals, "wasted_s": waste}, f)
