"""Distil a wide residual MLP into a small student (PyTorch)."""
import time

STARTED = time.perf_counter()
import argparse
import json
import os
import torch
import torch.nn.functional as F
from torch import nn

CLASSES, DIM = 20, 256


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.a, self.b = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return x + self.b(F.gelu(self.a(self.norm(x))))


def make_net(width, depth):
    return nn.Sequential(nn.Linear(DIM, width), *[Block(width) for _ in range(depth)], nn.Linear(width, CLASSES))


class Targets:
    def __init__(self, teacher, inputs, remember):
        self.teacher, self.inputs, self.seconds = teacher, inputs, 0.0
        self.table = None
        if remember:
            with torch.no_grad():
                self.table = torch.cat([teacher(c) for c in inputs.split(256)])

    def __call__(self, index, epoch):
        if self.table is not None:
            return self.table[index]
        t = time.perf_counter()
        with torch.no_grad():
            logits = self.teacher(self.inputs[index])
        if epoch > 0:
            self.seconds += time.perf_counter() - t
        return logits


def write_summary(repaired, **fields):
    path = os.environ.get("TRUTH_FILE")
    if not path:
        return
    fields["waste_line"] = ["distill_student.py:41"]
    fields["repaired"] = repaired
    fields["wall_s"] = round(time.perf_counter() - STARTED, 3)
    with open(path, "w") as f:
        json.dump(fields, f, indent=1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--repaired", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(0)
    inputs = torch.randn(4096, DIM)
    labels = (inputs @ torch.randn(DIM, CLASSES)).argmax(1)
    teacher = make_net(768, 4).eval()
    student = make_net(320, 3)
    targets = Targets(teacher, inputs, args.repaired)
    opt = torch.optim.AdamW(student.parameters(), lr=1e-3)
    steps = 0
    for epoch in range(11):
        for index in torch.randperm(len(inputs)).split(256):
            soft = targets(index, epoch)
            out = student(inputs[index])
            loss = F.cross_entropy(out, labels[index]) + 2.0 * F.kl_div(
                F.log_softmax(out / 2, 1), F.softmax(soft / 2, 1), reduction="batchmean")
            opt.zero_grad()
            loss.backward()
            opt.step()
            steps += 1
        print(f"epoch {epoch} loss {loss.item():.3f}")
    write_summary(args.repaired, framework="pytorch", train_steps=steps, evaluation_steps=None,
                  waste="The frozen teacher is run again on the same fixed inputs in every epoch.",
                  wasted_s=round(targets.seconds, 3),
                  remedy="Compute the teacher logits once and look them up by index.")


if __name__ == "__main__":
    main()
