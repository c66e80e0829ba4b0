"""Sentiment of reviews with a transformer encoder; reviews of very different length."""
import json
import time

BEGAN = time.perf_counter()
import math
import os

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

REPAIRED = os.environ.get("REPAIRED") == "1"
VOCAB = 4000


class Reviews(Dataset):
    def __init__(self, count, seed):
        rng = np.random.default_rng(seed)
        lengths = np.clip(rng.lognormal(3.4, 0.35, count).astype(int), 8, 200)
        lengths[rng.integers(0, count)] = 128  # one long review
        self.labels = rng.integers(0, 2, count)
        self.texts = []
        for length, label in zip(lengths, self.labels):
            words = rng.integers(10, VOCAB, length)
            words[: max(1, length // 8)] = 2 + label
            self.texts.append(torch.from_numpy(words))
        self.longest = max(len(t) for t in self.texts)

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return self.texts[index], int(self.labels[index])


class Collate:
    def __init__(self, longest):
        self.longest = longest

    def __call__(self, items):
        texts, labels = zip(*items)
        width = max(len(t) for t in texts) if REPAIRED else self.longest
        ids = torch.zeros(len(texts), width, dtype=torch.long)
        for row, text in zip(ids, texts):
            row[: len(text)] = text
        return ids, torch.tensor(labels)


class Classifier(nn.Module):
    def __init__(self, dim=96, heads=4, depth=2):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim, padding_idx=0)
        layer = nn.TransformerEncoderLayer(dim, heads, 3 * dim, 0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(dim, 2)
        table = torch.zeros(256, dim)
        angle = torch.arange(256)[:, None] * torch.exp(torch.arange(0, dim, 2) * (-math.log(1e4) / dim))
        table[:, 0::2], table[:, 1::2] = torch.sin(angle), torch.cos(angle)
        self.register_buffer("table", table)

    def forward(self, ids):
        mask = ids == 0
        x = self.encoder(self.embed(ids) + self.table[: ids.shape[1]], src_key_padding_mask=mask)
        x = x.masked_fill(mask[..., None], 0).sum(1) / (~mask).sum(1, keepdim=True)
        return self.head(x)


def run_epoch(model, loader, optimizer=None, schedule=None):
    model.train(optimizer is not None)
    losses, right, seen = [], 0, 0
    with torch.set_grad_enabled(optimizer is not None):
        for ids, labels in loader:
            scores = model(ids)
            loss = nn.functional.cross_entropy(scores, labels)
            if optimizer is not None:
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
            losses.append(loss.detach())
            right += (scores.detach().argmax(1) == labels).sum()
            seen += len(labels)
    return torch.stack(losses).mean().item(), right.item() / seen, len(losses)


def main(epochs=4, batch=32):
    torch.manual_seed(0)
    train, valid = Reviews(1024, 0), Reviews(128, 1)
    loaders = [DataLoader(train, batch, shuffle=True, collate_fn=Collate(train.longest)),
               DataLoader(valid, 2 * batch, collate_fn=Collate(valid.longest))]
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, epochs * len(loaders[0]))
    steps, best = 0, 0.0
    for epoch in range(epochs):
        loss, accuracy, count = run_epoch(model, loaders[0], optimizer, schedule)
        steps += count
        _, score, _ = run_epoch(model, loaders[1])
        print(f"epoch {epoch}: loss {loss:.3f} train {accuracy:.3f} valid {score:.3f}", flush=True)
        if score > best:
            best = score
            torch.save({"model": model.state_dict(), "epoch": epoch}, os.environ["TRUTH_FILE"] + ".pt")
    truth = {"train_steps": steps, "evaluation_steps": None, "wasted_s": None}
    with open(os.environ["TRUTH_FILE"], "w") as file:
        json.dump(truth, file)


if __name__ == "__main__":
    main()
