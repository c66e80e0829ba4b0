"""Graph convolutional network for node classification on a stochastic block model (full batch, plain torch)."""
import argparse
import atexit
import json
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {"wasted_s": 0.0, "train_steps": 0, "evaluation_steps": 0, "wall_s": 0.0}


@atexit.register
def save_truth():
    if os.environ.get("TRUTH_FILE"):
        with open(os.environ["TRUTH_FILE"], "w") as f:
            json.dump(TRUTH, f)


class Graph:
    def __init__(self, nodes, classes, features, degree, seed):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(classes, (nodes,), generator=g)
        count = nodes * degree
        a = torch.randint(nodes, (4 * count,), generator=g)
        b = torch.randint(nodes, (4 * count,), generator=g)
        same = self.y[a] == self.y[b]
        keep = torch.rand(4 * count, generator=g) < torch.where(same, 0.7, 0.1)
        a, b = a[keep][:count], b[keep][:count]
        centres = torch.randn(classes, features, generator=g)
        self.x = 0.5 * centres[self.y] + 1.5 * torch.randn(nodes, features, generator=g)
        self.adj = self.normalise(torch.cat([a, b, torch.arange(nodes)]), torch.cat([b, a, torch.arange(nodes)]), nodes)
        order = torch.randperm(nodes, generator=g)
        self.train, self.valid, self.test = order.split([nodes // 5, nodes // 5, nodes - 2 * (nodes // 5)])

    @staticmethod
    def normalise(row, col, n):
        """Symmetric normalisation D^-1/2 (A + I) D^-1/2, stored once as CSR."""
        adj = torch.sparse_coo_tensor(torch.stack([row, col]), torch.ones(len(row)), (n, n)).coalesce()
        (row, col), val = adj.indices(), adj.values()
        deg = torch.zeros(n).index_add_(0, row, val)
        val = val * deg[row].rsqrt() * deg[col].rsqrt()
        return torch.sparse_coo_tensor(torch.stack([row, col]), val, (n, n)).coalesce().to_sparse_csr()


class GCNLayer(nn.Module):
    def __init__(self, nin, nout):
        super().__init__()
        self.lin = nn.Linear(nin, nout)

    def forward(self, adj, x):
        return adj @ self.lin(x)


class GCN(nn.Module):
    def __init__(self, nin, hidden, classes, dropout):
        super().__init__()
        self.layers = nn.ModuleList([GCNLayer(nin, hidden), GCNLayer(hidden, hidden), GCNLayer(hidden, classes)])
        self.dropout = dropout

    def forward(self, adj, x):
        for layer in self.layers[:-1]:
            x = F.dropout(F.relu(layer(adj, x)), self.dropout, self.training)
        return self.layers[-1](adj, x)


class EarlyStopping:
    def __init__(self, patience):
        self.patience, self.best, self.bad, self.state = patience, 0.0, 0, None

    def __call__(self, value, model):
        if value > self.best:
            self.best, self.bad = value, 0
            self.state = {k: v.clone() for k, v in model.state_dict().items()}
        else:
            self.bad += 1
        return self.bad >= self.patience


@torch.no_grad()
def evaluate(model, graph, index):
    model.eval()
    logits = model(graph.adj, graph.x)[index]
    model.train()
    TRUTH["evaluation_steps"] += 1
    return (logits.argmax(1) == graph.y[index]).float().mean().item()


def run(args):
    torch.manual_seed(args.seed)
    graph = Graph(args.nodes, 7, 96, args.degree, args.seed)
    model = GCN(96, args.hidden, 7, 0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-4)
    stopper = EarlyStopping(patience=50)
    begin = time.perf_counter()
    for epoch in range(1, args.epochs + 1):
        optimizer.zero_grad()
        out = model(graph.adj, graph.x)
        loss = F.cross_entropy(out[graph.train], graph.y[graph.train])
        loss.backward()
        optimizer.step()
        TRUTH["train_steps"] += 1
        if epoch % 25 == 0:
            acc = evaluate(model, graph, graph.valid)
            print(f"epoch {epoch} loss {loss.item():.4f} valid {acc:.3f}")
            if stopper(acc, model):
                break
    TRUTH["wall_s"] = time.perf_counter() - begin
    model.load_state_dict(stopper.state)
    print("test accuracy", round(evaluate(model, graph, graph.test), 3))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=6000)
    parser.add_argument("--degree", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=96)
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    run(parser.parse_args())
    save_truth()
