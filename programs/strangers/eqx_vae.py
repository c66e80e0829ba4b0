"""beta-VAE on digits with Equinox, KL warm-up."""
import time
T0 = time.perf_counter()
import argparse, json, os, sys
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

ap = argparse.ArgumentParser()
ap.add_argument("--repaired", action="store_true")
ap.add_argument("--epochs", type=int, default=8)
args = ap.parse_args()
WARMUP = 8


class VAE(eqx.Module):
    enc: eqx.nn.MLP
    dec: eqx.nn.MLP

    def __init__(self, key):
        k1, k2 = jax.random.split(key)
        self.enc = eqx.nn.MLP(64, 32, 512, 3, activation=jax.nn.gelu, key=k1)
        self.dec = eqx.nn.MLP(16, 64, 512, 3, activation=jax.nn.gelu, key=k2)

    def __call__(self, x, key):
        mu, logvar = jnp.split(self.enc(x), 2)
        z = mu + jnp.exp(.5 * logvar) * jax.random.normal(key, mu.shape)
        return self.dec(z), mu, logvar


def loss_fn(model, x, key, beta):
    rec, mu, logvar = jax.vmap(model)(x, jax.random.split(key, len(x)))
    kl = -.5 * (1 + logvar - mu ** 2 - jnp.exp(logvar)).sum(-1)
    return (((rec - x) ** 2).sum(-1) + beta * kl).mean()


optimizer = optax.chain(optax.clip_by_global_norm(1.), optax.adamw(5e-4))


@eqx.filter_jit
def make_step(model, opt_state, x, key, beta):
    loss, grads = eqx.filter_value_and_grad(loss_fn)(model, x, key, beta)
    updates, opt_state = optimizer.update(grads, opt_state, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, updates), opt_state, loss


@eqx.filter_jit
def evaluate(model, x, key):
    return loss_fn(model, x, key, jnp.asarray(1.0))


X = (load_digits().data / 16).astype("float32")
train, test = X[:1500], X[1500:1800 - 9]
model = VAE(jax.random.PRNGKey(0))
opt_state = optimizer.init(eqx.filter(model, eqx.is_array))
key = jax.random.PRNGKey(1)
rng = np.random.default_rng(0)
steps = evals = 0
new_beta, same_beta, last = [], [], None
for epoch in range(args.epochs):
    beta = min(1.0, (epoch + 1) / WARMUP)
    if args.repaired:
        beta = jnp.asarray(beta)
    perm = rng.permutation(len(train))
    for i in range(0, 1500, 100):
        key, k = jax.random.split(key)
        t = time.perf_counter()
        model, opt_state, loss = make_step(model, opt_state, train[perm[i:i + 100]], k, beta)
        loss.block_until_ready()
        (same_beta if i else new_beta).append(time.perf_counter() - t)
        steps += 1
    vals = []
    for i in range(0, len(test), 97):
        vals.append(float(evaluate(model, test[i:i + 97], key)))
        evals += 1
    if epoch % 4 == 3:
        print(f"epoch {epoch} beta {float(beta):.2f} loss {float(loss):.3f} val {np.mean(vals):.3f}")

waste = sum(new_beta[1:]) - (len(new_beta) - 1) * float(np.median(same_beta))
if os.environ.get("TRUTH_FILE"):
    with open(os.environ["TRUTH_FILE"], "w") as f:
        json.dump({"train_steps": steps, "evaluation_steps": evals, "wasted_s": waste}, f)
