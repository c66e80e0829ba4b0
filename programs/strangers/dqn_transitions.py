"""Double DQN on a small self-written cart-pole with stacked observations."""
import atexit
import json
import math
import os
import random
import time
from collections import deque, namedtuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

CONFIG = {
    "env_steps": 1800, "warmup": 200, "batch": 128, "gamma": 0.99, "lr": 5e-4, "stack": 6,
    "capacity": 10000, "target_sync": 200, "eps_start": 1.0, "eps_end": 0.05, "eps_decay": 600, "hidden": 256,
}
STATS = {"wasted_s": 0.0, "train_steps": 0, "evaluation_steps": 0, "wall_s": 0.0}
RANGES = np.array([2.4, 3.0, 0.21, 3.0], dtype=np.float32)
Transition = namedtuple("Transition", "state action reward next_state done")


def at_exit():
    if "TRUTH_FILE" in os.environ:
        json.dump(STATS, open(os.environ["TRUTH_FILE"], "w"))


def scaled(obs):
    """Bring position, speed, angle and angular speed to comparable ranges."""
    return (obs.reshape(*obs.shape[:-1], -1, 4) / RANGES).reshape(obs.shape)


class CartPole:
    def __init__(self, stack, rng):
        self.rng, self.frames = rng, deque(maxlen=stack)

    def reset(self):
        self.s = self.rng.uniform(-0.05, 0.05, size=4)
        self.t = 0
        for _ in range(self.frames.maxlen):
            self.frames.append(self.s)
        return self.observation()

    def observation(self):
        return np.concatenate(self.frames).astype(np.float32)

    def step(self, action):
        x, v, th, w = self.s
        force = 10.0 if action == 1 else -10.0
        tmp = (force + 0.05 * w * w * math.sin(th)) / 1.1
        acc_th = (9.8 * math.sin(th) - math.cos(th) * tmp) / (0.5 * (4 / 3 - 0.1 * math.cos(th) ** 2 / 1.1))
        acc_x = tmp - 0.05 * acc_th * math.cos(th) / 1.1
        self.s = np.array([x + 0.02 * v, v + 0.02 * acc_x, th + 0.02 * w, w + 0.02 * acc_th])
        self.t += 1
        self.frames.append(self.s)
        done = abs(self.s[0]) > 2.4 or abs(self.s[2]) > 0.21
        return self.observation(), 1.0, done, self.t >= 300


class ReplayMemory:
    def __init__(self, capacity, obs_dim):
        self.memory = deque([], maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, batch_size):
        states, actions, rewards, next_states, dones = [], [], [], [], []
        for t in random.sample(self.memory, batch_size):
            states.append(torch.tensor(scaled(t.state)))
            actions.append(torch.tensor(t.action))
            rewards.append(torch.tensor(t.reward))
            next_states.append(torch.tensor(scaled(t.next_state)))
            dones.append(torch.tensor(float(t.done)))
        return tuple(map(torch.stack, (states, actions, rewards, next_states, dones)))

    def __len__(self):
        return len(self.memory)


class DuelingQ(nn.Module):
    def __init__(self, obs, actions, hidden):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(obs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.value, self.advantage = nn.Linear(hidden, 1), nn.Linear(hidden, actions)

    def forward(self, x):
        h = self.trunk(x)
        a = self.advantage(h)
        return self.value(h) + a - a.mean(dim=1, keepdim=True)


class Agent:
    def __init__(self, obs_dim, cfg):
        self.cfg = cfg
        self.online, self.target = (DuelingQ(obs_dim, 2, cfg["hidden"]) for _ in range(2))
        self.target.load_state_dict(self.online.state_dict())
        self.optimizer = torch.optim.AdamW(self.online.parameters(), lr=cfg["lr"])
        self.memory = ReplayMemory(cfg["capacity"], obs_dim)

    def act(self, obs, step):
        c = self.cfg
        eps = c["eps_end"] + (c["eps_start"] - c["eps_end"]) * math.exp(-step / c["eps_decay"])
        if random.random() < eps:
            return random.randrange(2)
        with torch.no_grad():
            return int(self.online(torch.from_numpy(scaled(obs))[None]).argmax())

    def learn(self):
        tick = time.perf_counter()
        s, a, r, s2, d = self.memory.sample(self.cfg["batch"])
        STATS["wasted_s"] += time.perf_counter() - tick
        q = self.online(s).gather(1, a[:, None]).squeeze(1)
        with torch.no_grad():
            best = self.online(s2).argmax(1, keepdim=True)
            target = r + self.cfg["gamma"] * (1 - d) * self.target(s2).gather(1, best).squeeze(1)
        loss = F.smooth_l1_loss(q, target)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(self.online.parameters(), 100)
        self.optimizer.step()
        STATS["train_steps"] += 1
        if STATS["train_steps"] % self.cfg["target_sync"] == 0:
            self.target.load_state_dict(self.online.state_dict())


def main(cfg):
    random.seed(0), torch.manual_seed(0)
    env = CartPole(cfg["stack"], np.random.default_rng(0))
    agent = Agent(4 * cfg["stack"], cfg)
    returns, ret, obs = [], 0.0, env.reset()
    begin = time.perf_counter()
    for step in range(cfg["env_steps"]):
        action = agent.act(obs, step)
        nxt, reward, done, truncated = env.step(action)
        agent.memory.push(obs, action, reward, nxt, done)
        ret, obs = ret + reward, nxt
        if done or truncated:
            returns.append(ret)
            ret, obs = 0.0, env.reset()
        if len(agent.memory) >= cfg["warmup"]:
            agent.learn()
    STATS["wall_s"] = time.perf_counter() - begin
    print(f"{len(returns)} episodes, mean return of the last 20: {np.mean(returns[-20:]):.1f}")


if __name__ == "__main__":
    atexit.register(at_exit)
    main(CONFIG)
    at_exit()
