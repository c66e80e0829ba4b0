"""DQN with prioritised replay on a vector world, flax.nnx."""
import time
T0 = time.perf_counter()
import argparse, json, os, sys
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

ap = argparse.ArgumentParser()
ap.add_argument("--repaired", action="store_true")
ap.add_argument("--steps", type=int, default=1800)
args = ap.parse_args()
waste = 0.0
OBS, ACT, BATCH, CAP = 24, 4, 128, 40000
rng = np.random.default_rng(0)
A = rng.normal(size=(ACT, OBS, OBS)) * .18
goal = rng.normal(size=OBS)


def env_step(s, a):
    s2 = np.tanh(A[a] @ s + .3 * s + .1 * rng.normal(size=OBS))
    return s2, float(-np.abs(s2 - goal).mean()), rng.random() < .02


class PrioritisedReplay:
    """list of transitions, each with its priority"""
    def __init__(self):
        self.memory, self.priority = [], []

    def add(self, *transition):
        self.memory.append(transition)
        self.priority.append(max(self.priority[-100:], default=1.0))
        if len(self.memory) > CAP:
            self.memory.pop(0)
            self.priority.pop(0)

    def sample(self, n):
        scaled = [p ** 0.6 for p in self.priority]
        total = sum(scaled)
        probs = [p / total for p in scaled]
        idx = np.random.choice(len(self.memory), n, p=probs)
        cols = zip(*[self.memory[i] for i in idx])
        return idx, [np.array(c, dtype="int32" if k == 1 else "float32") for k, c in enumerate(cols)]

    def update(self, idx, errors):
        for i, e in zip(idx, errors):
            self.priority[i] = float(abs(e)) + 1e-3


class ArrayReplay:
    def __init__(self):
        self.n = self.at = 0
        self.cols = [np.zeros((CAP, OBS), "float32"), np.zeros(CAP, "int32"), np.zeros(CAP, "float32"),
                     np.zeros((CAP, OBS), "float32"), np.zeros(CAP, "float32")]
        self.scaled = np.zeros(CAP)

    def add(self, *transition):
        for col, v in zip(self.cols, transition):
            col[self.at] = v
        self.scaled[self.at] = 1.0
        self.at, self.n = (self.at + 1) % CAP, min(self.n + 1, CAP)

    def sample(self, n):
        c = np.cumsum(self.scaled[:self.n])
        idx = np.minimum(np.searchsorted(c, np.random.rand(n) * c[-1]), self.n - 1)
        return idx, [col[idx] for col in self.cols]

    def update(self, idx, errors):
        self.scaled[idx] = (np.abs(errors) + 1e-3) ** 0.6


class Q(nnx.Module):
    def __init__(self, rngs):
        self.l1, self.l2 = nnx.Linear(OBS, 512, rngs=rngs), nnx.Linear(512, 512, rngs=rngs)
        self.l3 = nnx.Linear(512, ACT, rngs=rngs)

    def __call__(self, x):
        return self.l3(nnx.relu(self.l2(nnx.relu(self.l1(x)))))


q, target = Q(nnx.Rngs(0)), Q(nnx.Rngs(0))
opt = nnx.Optimizer(q, optax.adam(3e-4), wrt=nnx.Param)


@nnx.jit
def train_step(q, target, opt, s, a, r, s2, d):
    goal_q = r + .97 * (1 - d) * target(s2).max(-1)

    def loss_fn(m):
        err = jnp.take_along_axis(m(s), a[:, None], 1)[:, 0] - goal_q
        return (err ** 2).mean(), err
    (loss, err), grads = nnx.value_and_grad(loss_fn, has_aux=True)(q)
    opt.update(q, grads)
    return loss, err


@nnx.jit
def act(q, s):
    return q(s).argmax(-1)


replay = ArrayReplay() if args.repaired else PrioritisedReplay()
np.random.seed(0)
s = rng.normal(size=OBS)
for _ in range(CAP - 1000):  # random exploration before learning
    a = int(rng.integers(ACT))
    s2, r, d = env_step(s, a)
    replay.add(s, a, r, s2, float(d))
    s = rng.normal(size=OBS) if d else s2
steps = evals = 0
print(f"collected {time.perf_counter() - T0:.1f} s")
for step in range(args.steps):
    a = int(act(q, jnp.asarray(s, jnp.float32))) if rng.random() > .1 else int(rng.integers(ACT))
    s2, r, d = env_step(s, a)
    replay.add(s, a, r, s2, float(d))
    s = rng.normal(size=OBS) if d else s2
    t = time.perf_counter()
    idx, batch = replay.sample(BATCH)
    waste += time.perf_counter() - t
    loss, err = train_step(q, target, opt, *batch)
    replay.update(idx, np.asarray(err))
    steps += 1
    if step % 50 == 49:
        nnx.update(target, nnx.state(q))
    if step % 300 == 299:
        print(f"step {step} loss {float(loss):.4f}")

if os.environ.get("TRUTH_FILE"):
    with open(os.environ["TRUTH_FILE"], "w") as f:
        json.dump({"train_steps": steps, "evaluation_steps": evals, "wasted_s": waste}, f)
