"""Post-OCR correction as token classification with the Hugging Face Trainer, metric: character error rate."""
import time
T0 = time.perf_counter()
import argparse, json, os, sys, tempfile
import numpy as np
import torch
from datasets import Dataset
from transformers import BertConfig, BertForTokenClassification, Trainer, TrainerCallback, TrainingArguments, set_seed

ap = argparse.ArgumentParser()
ap.add_argument("--repaired", action="store_true")
ap.add_argument("--steps", type=int, default=60)
args = ap.parse_args()
count = {"waste": 0.0, "steps": 0, "evals": 0}
set_seed(0)
VOCAB, LENGTH = 60, 96


def make(n, seed):
    rng = np.random.default_rng(seed)
    clean = np.cumsum(rng.integers(0, 4, (n, LENGTH)), 1) % VOCAB
    noisy = np.where(rng.random(clean.shape) < .15, rng.integers(0, VOCAB, clean.shape), clean)
    return Dataset.from_dict({"input_ids": noisy, "labels": clean, "attention_mask": np.ones_like(clean)})


def levenshtein(a, b):
    prev = list(range(len(b) + 1))
    for i, ca in enumerate(a, 1):
        cur = [i]
        for j, cb in enumerate(b, 1):
            cur.append(min(prev[j] + 1, cur[j - 1] + 1, prev[j - 1] + (ca != cb)))
        prev = cur
    return prev[-1]


def cer(pred, ref):
    total = edits = 0
    for p, r in zip(pred, ref):
        edits += levenshtein(p.tolist(), r.tolist())
        total += len(r)
    return edits / total


def cer_vectorised(pred, ref):
    """the same dynamic programme, by anti-diagonals over all pairs at once"""
    n, la = pred.shape
    lb = ref.shape[1]
    prev = np.tile(np.arange(lb + 1), (n, 1))
    offs = np.arange(lb + 1)
    for i in range(1, la + 1):
        cand = np.empty_like(prev)
        cand[:, 0] = i
        cand[:, 1:] = np.minimum(prev[:, 1:] + 1, prev[:, :-1] + (pred[:, i - 1:i] != ref))
        prev = np.minimum.accumulate(cand - offs, axis=1) + offs
    return prev[:, -1].sum() / ref.size


def compute_metrics(p):
    pred, ref = p.predictions.argmax(-1), p.label_ids
    t = time.perf_counter()
    value = cer_vectorised(pred, ref) if args.repaired else cer(pred, ref)
    count["waste"] += time.perf_counter() - t
    return {"cer": float(value), "accuracy": float((pred == ref).mean())}


class Count(TrainerCallback):
    def on_step_end(self, *a, **k):
        count["steps"] += 1

    def on_prediction_step(self, *a, **k):
        count["evals"] += 1


model = BertForTokenClassification(BertConfig(vocab_size=VOCAB, hidden_size=96, num_hidden_layers=2,
                                              num_attention_heads=4, intermediate_size=256, num_labels=VOCAB))
targs = TrainingArguments(os.path.join(tempfile.mkdtemp(), "out"), max_steps=args.steps, per_device_train_batch_size=16,
                          per_device_eval_batch_size=32, eval_strategy="steps", eval_steps=6, save_strategy="no",
                          logging_steps=15, report_to="none", use_cpu=True, disable_tqdm=True, learning_rate=1e-3)
trainer = Trainer(model, targs, train_dataset=make(2400, 0), eval_dataset=make(320, 1),
                  compute_metrics=compute_metrics, callbacks=[Count()])
trainer.train()

if os.environ.get("TRUTH_FILE"):
    with open(os.environ["TRUTH_FILE"], "w") as f:
        json.dump({"train_steps": count["steps"], "evaluation_steps": count["evals"], "wasted_s": count["waste"]}, f)
