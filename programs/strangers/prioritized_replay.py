"""DQN with prioritized replay (after PyTorch's DQN tutorial) on CartPole."""
import argparse, json, random, time
import gymnasium as gym, numpy as np, torch, torch.nn as nn

args = argparse.ArgumentParser(); args.add_argument("--repaired", action="store_true"); args = args.parse_args()
WASTE = 0.0; TRAIN = 0
random.seed(0); torch.manual_seed(0); rng = np.random.default_rng(0)

class ListReplay:
    def __init__(self, size): self.rows, self.priorities, self.size = [], [], size
    def push(self, row):
        if len(self.rows) == self.size: self.rows.pop(0); self.priorities.pop(0)
        self.rows.append(row); self.priorities.append(max(self.priorities, default=1.0))
    def sample(self, n):
        p = np.array(self.priorities) ** 0.6; p /= p.sum()
        idx = rng.choice(len(self.rows), n, p=p)
        return idx, [self.rows[i] for i in idx]
    def update(self, idx, errors):
        for i, e in zip(idx, errors): self.priorities[i] = abs(float(e)) + 1e-3

class ArrayReplay:
    def __init__(self, size): self.rows, self.size, self.n, self.head, self.top = [None] * size, size, 0, 0, 1.0; self.p = np.zeros(size)
    def push(self, row):
        self.rows[self.head] = row; self.p[self.head] = self.top; self.head = (self.head + 1) % self.size; self.n = min(self.n + 1, self.size)
    def sample(self, n):
        c = np.cumsum(self.p[:self.n]); idx = np.searchsorted(c, rng.random(n) * c[-1])
        return idx, [self.rows[j] for j in idx]
    def update(self, idx, errors):
        p = (np.abs(errors) + 1e-3) ** 0.6; self.top = max(self.top, p.max()); self.p[idx] = p

env = gym.make("CartPole-v1"); replay = (ArrayReplay if args.repaired else ListReplay)(20_000)
net = lambda: nn.Sequential(nn.Linear(4, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))
policy, target = net(), net(); target.load_state_dict(policy.state_dict())
optimizer = torch.optim.AdamW(policy.parameters(), 1e-3, amsgrad=True)

# a warm start with 12,000 random moves
state, _ = env.reset(seed=0)
def move(action):
    global state, WASTE
    nxt, reward, done, cut, _ = env.step(action)
    t = time.perf_counter(); replay.push((state, action, reward, nxt, done)); WASTE += time.perf_counter() - t
    state = env.reset()[0] if done or cut else nxt
for _ in range(12_000): move(env.action_space.sample())

WARM, WASTE = WASTE, 0.0
PUSH = 0.0
for step in range(3000):
    with torch.no_grad():
        action = env.action_space.sample() if random.random() < 0.1 else int(policy(torch.from_numpy(state)[None]).argmax())
    t = WASTE; move(action); PUSH += WASTE - t
    t = time.perf_counter(); idx, rows = replay.sample(128); WASTE += time.perf_counter() - t
    s, a, r, n, d = (torch.from_numpy(np.array(c)) for c in zip(*rows))
    with torch.no_grad(): goal = r.float() + 0.99 * target(n).max(1).values * ~d
    q = policy(s).gather(1, a[:, None]).squeeze(1); error = q - goal
    loss = nn.functional.huber_loss(q, goal); optimizer.zero_grad(); loss.backward()
    torch.nn.utils.clip_grad_value_(policy.parameters(), 100); optimizer.step(); TRAIN += 1
    t = time.perf_counter(); replay.update(idx, error.detach().numpy()); WASTE += time.perf_counter() - t
    if step % 200 == 0: target.load_state_dict(policy.state_dict())
with open(__import__("os").environ["TRUTH_FILE"], "w") as file:
    json.dump({"train_steps": TRAIN, "evaluation_steps": 0, "wasted_s": round(WASTE, 2)}, file)
