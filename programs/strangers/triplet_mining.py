"""Metric learning on digits: batch-hard triplet loss (Hermans et al. 2017), plain PyTorch."""
import time
T0 = time.perf_counter()
import argparse, json, os, sys
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

ap = argparse.ArgumentParser()
ap.add_argument("--repaired", action="store_true")
ap.add_argument("--steps", type=int, default=100)
args = ap.parse_args()
waste = 0.0
torch.manual_seed(0)
np.random.seed(0)


class Embedder(nn.Module):
    def __init__(self, width=1024, dim=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                                 nn.Linear(width, dim))

    def forward(self, x):
        return F.normalize(self.net(x), dim=1)


def mine_hard(dist, labels):
    """hardest positive and hardest negative of each anchor"""
    n = len(labels)
    pos, neg = [], []
    for a in range(n):
        best_p, best_n = a, -1
        dp, dn = -1.0, 1e9
        for j in range(n):
            if j == a:
                continue
            d = dist[a, j].item()
            if labels[j] == labels[a]:
                if d > dp:
                    dp, best_p = d, j
            elif d < dn:
                dn, best_n = d, j
        pos.append(best_p)
        neg.append(best_n)
    return torch.tensor(pos), torch.tensor(neg)


def mine_hard_fixed(dist, labels):
    same = labels[:, None] == labels[None, :]
    pos = dist.masked_fill(~same, -1).argmax(1)
    neg = dist.masked_fill(same, 1e9).argmin(1)
    return pos, neg


mine = mine_hard_fixed if args.repaired else mine_hard
X, y = load_digits(return_X_y=True)
Xtr, Xte, ytr, yte = train_test_split(X.astype("float32") / 16, y, random_state=0)
Xtr, Xte = torch.from_numpy(Xtr), torch.from_numpy(Xte)
ytr, yte = torch.from_numpy(ytr), torch.from_numpy(yte)
model = Embedder()
opt = torch.optim.Adam(model.parameters(), lr=3e-4)
steps = evals = 0


@torch.no_grad()
def recall_at_1():
    global evals
    model.eval()
    embs = []
    for i in range(0, len(Xte), 64):
        embs.append(model(Xte[i:i + 64]))
        evals += 1
    e = torch.cat(embs)
    d = torch.cdist(e, e)
    d.fill_diagonal_(1e9)
    model.train()
    return (yte[d.argmin(1)] == yte).float().mean().item()


for step in range(args.steps):
    idx = torch.randint(0, len(Xtr), (96,))
    xb, yb = Xtr[idx], ytr[idx]
    emb = model(xb)
    with torch.no_grad():
        dist = torch.cdist(emb, emb)
    t = time.perf_counter()
    p, n = mine(dist, yb)
    waste += time.perf_counter() - t
    loss = F.triplet_margin_loss(emb, emb[p], emb[n], margin=0.3)
    opt.zero_grad()
    loss.backward()
    opt.step()
    steps += 1
    if step % 25 == 24:
        print(f"step {step} loss {loss.item():.4f} recall@1 {recall_at_1():.4f}")

if os.environ.get("TRUTH_FILE"):
    with open(os.environ["TRUTH_FILE"], "w") as f:
        json.dump({"train_steps": steps, "evaluation_steps": evals, "wasted_s": waste}, f)
