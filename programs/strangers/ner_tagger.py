"""BiLSTM sequence tagger with early stopping on dev accuracy (PyTorch)."""
import time

STARTED = time.perf_counter()
import argparse
import json
import os
import torch
import torch.nn.functional as F
from torch import nn

VOCAB, TAGS, LENGTH = 4000, 9, 40


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, 64)
        self.rnn = nn.LSTM(64, 96, batch_first=True, bidirectional=True)
        self.out = nn.Linear(192, TAGS)

    def forward(self, x):
        return self.out(self.rnn(self.emb(x))[0])


def synth(n, gen):
    x = torch.randint(0, VOCAB, (n, LENGTH), generator=gen)
    return x, (x + torch.roll(x, 1, 1)) % TAGS


@torch.no_grad()
def dev_accuracy(model, x, y, size=64):
    model.eval()
    hits = batches = 0
    for a, b in zip(x.split(size), y.split(size)):
        hits += (model(a).argmax(-1) == b).sum().item()
        batches += 1
    model.train()
    return hits / y.numel(), batches


def write_summary(repaired, **fields):
    path = os.environ.get("TRUTH_FILE")
    if not path:
        return
    fields["waste_line"] = ["ner_tagger.py:73"]
    fields["repaired"] = repaired
    fields["wall_s"] = round(time.perf_counter() - STARTED, 3)
    with open(path, "w") as f:
        json.dump(fields, f, indent=1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--repaired", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(5)
    x, y = synth(6000, gen)
    dev_x, dev_y = synth(640, gen)
    model = Tagger()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    steps, eval_batches, dev_s, evals, best = 200, 0, 0.0, 0, 0.0
    every = 50 if args.repaired else 4
    for step in range(steps):
        pick = torch.randint(0, len(x), (32,))
        loss = F.cross_entropy(model(x[pick]).flatten(0, 1), y[pick].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if (step + 1) % every == 0:
            t = time.perf_counter()
            acc, n = dev_accuracy(model, dev_x, dev_y)
            dev_s += time.perf_counter() - t
            evals += 1
            eval_batches += n
            best = max(best, acc)
    print(f"best dev accuracy {best:.3f}")
    surplus = 0.0 if args.repaired else dev_s * (1 - 4 / evals)
    write_summary(args.repaired, framework="pytorch", train_steps=steps, evaluation_steps=eval_batches,
                  waste="The full development set is evaluated after every fourth training step.",
                  wasted_s=round(surplus, 3),
                  remedy="Evaluate every fifty steps.")


if __name__ == "__main__":
    main()
