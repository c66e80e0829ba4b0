"""Sentence classification with a bidirectional GRU; vocabulary, collate function, best-model tracking."""
import atexit
import copy
import json
import os
import random
import time
from collections import Counter
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader


@dataclass
class Config:
    epochs: int = 4
    batch_size: int = 32
    embed_dim: int = 64
    hidden: int = 96
    lr: float = 2e-3
    train_size: int = 2400
    val_size: int = 900
    eval_every: int = 10
    seed: int = 3


truth = dict(wasted_s=0.0, train_steps=0, evaluation_steps=0, wall_s=0.0)


def write_truth():
    path = os.environ.get("TRUTH_FILE")
    if path:
        with open(path, "w") as f:
            json.dump(truth, f)


atexit.register(write_truth)

POSITIVE = "good great lovely superb warm bright clever moving fresh sharp".split()
NEGATIVE = "bad dull awful cold flat tired clumsy noisy stale broken".split()
FILLER = [f"w{i}" for i in range(400)]


def make_sentences(n, rng):
    rows = []
    for _ in range(n):
        label = rng.random() < 0.5
        words = rng.choices(FILLER, k=rng.randint(12, 36))
        for _ in range(3):
            bank = (POSITIVE if label else NEGATIVE) if rng.random() < 0.8 else POSITIVE + NEGATIVE
            words.insert(rng.randrange(len(words)), rng.choice(bank))
        rows.append((" ".join(words), int(label)))
    return rows


class Vocab:
    def __init__(self, texts, min_count=2):
        counts = Counter(w for t in texts for w in t.split())
        self.itos = ["<pad>", "<unk>"] + sorted(w for w, c in counts.items() if c >= min_count)
        self.stoi = {w: i for i, w in enumerate(self.itos)}

    def encode(self, text):
        return torch.tensor([self.stoi.get(w, 1) for w in text.split()])

    def __len__(self):
        return len(self.itos)


def collate(batch):
    ids, labels = zip(*batch)
    lengths = torch.tensor([len(x) for x in ids])
    return pad_sequence(ids, batch_first=True), lengths, torch.tensor(labels)


class GRUClassifier(nn.Module):
    def __init__(self, vocab_size, cfg):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, cfg.embed_dim, padding_idx=0)
        self.gru = nn.GRU(cfg.embed_dim, cfg.hidden, batch_first=True, bidirectional=True)
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(2 * cfg.hidden, 2))

    def forward(self, ids, lengths):
        packed = pack_padded_sequence(self.embed(ids), lengths, batch_first=True, enforce_sorted=False)
        _, h = self.gru(packed)
        return self.head(torch.cat([h[0], h[1]], dim=1))


@torch.no_grad()
def evaluate(model, loader, criterion):
    model.eval()
    total, hits, count = 0.0, 0, 0
    for ids, lengths, labels in loader:
        out = model(ids, lengths)
        total += criterion(out, labels).item() * len(labels)
        hits += (out.argmax(1) == labels).sum().item()
        count += len(labels)
        truth["evaluation_steps"] += 1
    model.train()
    return total / count, hits / count


def train(cfg):
    rng = random.Random(cfg.seed)
    torch.manual_seed(cfg.seed)
    train_rows, val_rows = make_sentences(cfg.train_size, rng), make_sentences(cfg.val_size, rng)
    vocab = Vocab(t for t, _ in train_rows)
    encode = lambda rows: [(vocab.encode(t), y) for t, y in rows]
    train_loader = DataLoader(encode(train_rows), cfg.batch_size, shuffle=True, collate_fn=collate)
    val_loader = DataLoader(encode(val_rows), cfg.batch_size, collate_fn=collate)
    model = GRUClassifier(len(vocab), cfg)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    best, best_state = float("inf"), None
    begin = time.perf_counter()
    for epoch in range(cfg.epochs):
        for ids, lengths, labels in train_loader:
            loss = criterion(model(ids, lengths), labels)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            truth["train_steps"] += 1
            if truth["train_steps"] % cfg.eval_every == 0:
                t0 = time.perf_counter()
                val_loss, val_acc = evaluate(model, val_loader, criterion)
                print(f"step {truth['train_steps']:4d} train {loss.item():.4f} val {val_loss:.4f} acc {val_acc:.3f}")
                truth["wasted_s"] += time.perf_counter() - t0
        val_loss, val_acc = evaluate(model, val_loader, criterion)
        if val_loss < best:
            best, best_state = val_loss, copy.deepcopy(model.state_dict())
        print(f"epoch {epoch}: val {val_loss:.4f} acc {val_acc:.3f} best {best:.4f}")
    truth["wall_s"] = time.perf_counter() - begin
    model.load_state_dict(best_state)


if __name__ == "__main__":
    train(Config())
    write_truth()
