"""Advantage actor-critic for a water-tank controller (JAX)."""
import time

STARTED = time.perf_counter()
import argparse
import json
import os
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

ENVS, HORIZON, ACTIONS = 64, 64, 5


class Tank:
    """One simulated tank."""

    def __init__(self, seed):
        self.seed = seed
        self.reset()

    def reset(self):
        self.level, self.target, self.clock = 0.3 + 0.01 * (self.seed % 40), 0.5, 0
        return self.observe()

    def observe(self):
        phase = 0.1 * self.clock + self.seed
        return [self.level, self.target, self.level - self.target, math.sin(phase), math.cos(phase)]

    def step(self, action):
        inflow = 0.02 * action
        for _ in range(28):
            outflow = 0.03 * math.sqrt(max(self.level, 0.0)) * (1 + 0.3 * math.sin(0.1 * self.clock + self.seed))
            self.level = min(max(self.level + (inflow - outflow) / 28, 0.0), 1.5)
        self.clock += 1
        return self.observe(), -abs(self.level - self.target)


class TankArray:
    """All tanks at once."""

    def __init__(self, n):
        self.seed = np.arange(n)
        self.reset()

    def reset(self):
        self.level, self.clock = 0.3 + 0.01 * (self.seed % 40), 0
        return self.observe()

    def observe(self):
        phase = 0.1 * self.clock + self.seed
        target = np.full(len(self.seed), 0.5)
        return np.stack([self.level, target, self.level - target, np.sin(phase), np.cos(phase)], 1).astype(np.float32)

    def step(self, action):
        inflow = 0.02 * action
        wave = 1 + 0.3 * np.sin(0.1 * self.clock + self.seed)
        for _ in range(28):
            self.level = np.clip(self.level + (inflow - 0.03 * np.sqrt(self.level) * wave) / 28, 0.0, 1.5)
        self.clock += 1
        return self.observe(), -np.abs(self.level - 0.5)


class TankList:
    def __init__(self, n):
        self.tanks = [Tank(i) for i in range(n)]

    def reset(self):
        return np.array([t.reset() for t in self.tanks], np.float32)

    def step(self, actions):
        results = [tank.step(int(a)) for tank, a in zip(self.tanks, actions)]
        return np.array([r[0] for r in results], np.float32), np.array([r[1] for r in results])


def init(key):
    k = jax.random.split(key, 4)
    return {"h1": jax.random.normal(k[0], (5, 256)) * 0.4, "h2": jax.random.normal(k[1], (256, 256)) * 0.06,
            "pi": jax.random.normal(k[2], (256, ACTIONS)) * 0.01, "v": jax.random.normal(k[3], (256, 1)) * 0.01}


def net(p, obs):
    h = jnp.tanh(jnp.tanh(obs @ p["h1"]) @ p["h2"])
    return h @ p["pi"], (h @ p["v"])[..., 0]


@jax.jit
def act(params, obs, key):
    key, sub = jax.random.split(key)
    return jax.random.categorical(sub, net(params, obs)[0]), key


def objective(params, obs, actions, returns):
    logits, value = net(params, obs)
    logp = jnp.take_along_axis(jax.nn.log_softmax(logits), actions[..., None], -1)[..., 0]
    adv = returns - value
    entropy = -jnp.sum(jax.nn.softmax(logits) * jax.nn.log_softmax(logits), -1)
    return jnp.mean(-logp * jax.lax.stop_gradient(adv) + 0.5 * adv ** 2 - 0.01 * entropy)


@partial(jax.jit, donate_argnums=0)
def learn(params, obs, actions, rewards):
    def back(carry, r):
        carry = r + 0.95 * carry
        return carry, carry
    returns = jax.lax.scan(back, jnp.zeros(rewards.shape[1]), rewards, reverse=True)[1]
    for _ in range(3):
        grads = jax.grad(objective)(params, obs, actions, returns)
        params = jax.tree.map(lambda p, g: p - 0.01 * g, params, grads)
    return params


def write_summary(repaired, **fields):
    path = os.environ.get("TRUTH_FILE")
    if not path:
        return
    fields["waste_line"] = ["actor_critic_tank.py:75", "actor_critic_tank.py:142"]
    fields["repaired"] = repaired
    fields["wall_s"] = round(time.perf_counter() - STARTED, 3)
    with open(path, "w") as f:
        json.dump(fields, f, indent=1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--repaired", action="store_true")
    args = ap.parse_args()
    params = init(jax.random.key(0))
    key = jax.random.key(1)
    envs = TankArray(ENVS) if args.repaired else TankList(ENVS)
    updates, env_s = 60, 0.0
    for update in range(updates):
        obs = envs.reset()
        store = [], [], []
        for _ in range(HORIZON):
            action, key = act(params, obs, key)
            action = np.asarray(action)
            t = time.perf_counter()
            after, reward = envs.step(action)
            env_s += time.perf_counter() - t
            for s, value in zip(store, (obs, action, reward.astype(np.float32))):
                s.append(value)
            obs = after
        params = jax.block_until_ready(learn(params, *(np.stack(s) for s in store)))
        if update % 20 == 0:
            print(update, float(np.mean(store[2])))
    write_summary(args.repaired, framework="jax", train_steps=updates, evaluation_steps=None,
                  waste="The simulated environments are stepped one after another in Python.",
                  wasted_s=0.0 if args.repaired else round(env_s, 3), timer_s=round(env_s, 3),
                  remedy="Step all environments together with array operations.")


if __name__ == "__main__":
    main()
