"""Five-fold cross-validation of a credit score network (JAX, own AdamW)."""
import time

STARTED = time.perf_counter()
import argparse
import json
import os
import jax
import jax.numpy as jnp
import numpy as np

FOLDS, FEATURES, WIDTH, BATCH = 5, 40, 384, 512


def init(key, depth=6):
    sizes = [(FEATURES, WIDTH)] + [(WIDTH, WIDTH)] * depth + [(WIDTH, 1)]
    keys = jax.random.split(key, len(sizes))
    return [{"w": jax.random.normal(k, s) * np.sqrt(2 / s[0]), "b": jnp.zeros(s[1]), "scale": jnp.ones(s[1])}
            for k, s in zip(keys, sizes)]


def forward(params, x):
    for layer in params[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"]) * layer["scale"]
    return (x @ params[-1]["w"] + params[-1]["b"])[:, 0]


def bce(params, x, y):
    z = forward(params, x)
    return jnp.mean(jnp.maximum(z, 0) - z * y + jnp.log1p(jnp.exp(-jnp.abs(z))))


loss_and_grad = jax.jit(jax.value_and_grad(bce))
score = jax.jit(bce)


def adamw(params, m, v, grads, t):
    lr, wd = 1e-3, 1e-2
    m = jax.tree.map(lambda a, g: 0.9 * a + 0.1 * g, m, grads)
    v = jax.tree.map(lambda a, g: 0.999 * a + 0.001 * g ** 2, v, grads)
    params = jax.tree.map(
        lambda p, a, b: p - lr * (a / (1 - 0.9 ** t) / (jnp.sqrt(b / (1 - 0.999 ** t)) + 1e-8) + wd * p),
        params, m, v)
    return params, m, v


def write_summary(repaired, **fields):
    path = os.environ.get("TRUTH_FILE")
    if not path:
        return
    fields["waste_line"] = ["credit_kfold.py:39", "credit_kfold.py:40", "credit_kfold.py:42", "credit_kfold.py:77"]
    fields["repaired"] = repaired
    fields["wall_s"] = round(time.perf_counter() - STARTED, 3)
    with open(path, "w") as f:
        json.dump(fields, f, indent=1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--repaired", action="store_true")
    args = ap.parse_args()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5000, FEATURES)).astype(np.float32)
    y = (x @ rng.normal(size=FEATURES) + rng.normal(size=5000) > 0).astype(np.float32)
    update = jax.jit(adamw) if args.repaired else adamw
    fold_of = rng.integers(0, FOLDS, len(x))
    steps, evals, update_s = 0, 0, 0.0
    for fold in range(FOLDS):
        train, held = np.where(fold_of != fold)[0], np.where(fold_of == fold)[0][:900]
        params = init(jax.random.key(fold))
        m = jax.tree.map(jnp.zeros_like, params)
        v = jax.tree.map(jnp.zeros_like, params)
        for t in range(1, 41):
            pick = rng.choice(train, BATCH)
            loss, grads = jax.block_until_ready(loss_and_grad(params, x[pick], y[pick]))
            begin = time.perf_counter()
            params, m, v = jax.block_until_ready(update(params, m, v, grads, float(t)))
            update_s += time.perf_counter() - begin
            steps += 1
        evals += 1
        print(fold, float(loss), float(score(params, x[held], y[held])))
    write_summary(args.repaired, framework="jax", train_steps=steps, evaluation_steps=evals,
                  waste="The optimizer update runs operation by operation outside of jit.",
                  wasted_s=0.0 if args.repaired else round(update_s, 3), timer_s=round(update_s, 3),
                  remedy="Wrap the update in jax.jit.")


if __name__ == "__main__":
    main()
