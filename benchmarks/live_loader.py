"""What tuning the DataLoader of a running training gains, tuning included, in trainers that do not know of it.

``python benchmarks/live_loader.py [--quick] [--trainers loop,hugging_face,lightning] [--seconds 60]``: the same fit of
about so many seconds runs plainly and in a block of ``tp.tuning.tuned()``, in turns. Its images are read one by one,
which takes 5 ms of waiting each, as from a disk in a network, or 5 ms of computing; the model is small, with dropout.
Trainers that are not installed are left out. ``--quick`` runs a fit of 12 s of the loop. The last line is one JSON
object; of each trainer and kind of transform, such as ``hugging_face waits``:

``speedup``
    Seconds of the plain fit by those of the tuned one, from start to end; ``plain_s`` and ``tuned_s``.
``equal``
    Whether losses, weights, and the global generators of torch, NumPy and Python are the same to the last bit.
``values``
    What the tuning chose.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import tpunb as tp

BATCH = 16
ITEM_S = 0.005

Result = tuple[Any, ...]


class Images(Dataset[Any]):
    """Images, and a transform that takes its time."""

    def __init__(self, count: int, kind: str) -> None:
        self.count, self.kind = count, kind
        generator = torch.Generator().manual_seed(1)
        self.pixels = torch.rand(64, 3, 32, 32, generator=generator)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        x = self.pixels[index % 64] + index / self.count
        if self.kind == "waits":
            time.sleep(ITEM_S)
        else:
            ends = time.thread_time() + ITEM_S
            while time.thread_time() < ends:
                np.sort(x.numpy(), axis=None)
        return {"x": x, "labels": index % 10}


class Model(torch.nn.Module):
    """A small network with dropout, which returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        layers = torch.nn.Flatten(), torch.nn.Linear(3072, 64), torch.nn.ReLU(), torch.nn.Dropout(0.3)
        self.layers = torch.nn.Sequential(*layers, torch.nn.Linear(64, 10))

    def forward(self, x: Any, labels: Any) -> Any:
        """Return loss and logits."""
        logits = self.layers(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def loop(model: Model, data: Images) -> list[float]:
    """Train by a loop."""
    optimizer, losses = torch.optim.AdamW(model.parameters()), []
    model.train()
    for batch in DataLoader(data, batch_size=BATCH, shuffle=True):
        loss = model(**batch)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def hugging_face(model: Model, data: Images) -> list[float]:
    """Train with the Trainer of Transformers."""
    from transformers import Trainer, TrainingArguments

    with tempfile.TemporaryDirectory() as folder:
        options = TrainingArguments(
            folder,
            per_device_train_batch_size=BATCH,
            num_train_epochs=1,
            save_strategy="no",
            logging_steps=20,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        trainer = Trainer(model, options, train_dataset=data)
        trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def lightning(model: Model, data: Images) -> list[float]:
    """Train with the Trainer of Lightning."""
    import lightning

    losses: list[float] = []

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = model

        def training_step(self, batch: Any, number: int) -> Any:
            loss = self.network(**batch)["loss"]
            losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(accelerator="cpu", devices=1, max_epochs=1, enable_model_summary=False, **quiet)
    trainer.fit(Module(), DataLoader(data, batch_size=BATCH, shuffle=True))
    return losses


TRAINERS: dict[str, tuple[str, Callable[[Model, Images], list[float]]]] = {
    "loop": ("torch", loop),
    "hugging_face": ("transformers", hugging_face),
    "lightning": ("lightning", lightning),
}
"""Trainers, and the packages that they need."""


def fitted(
    train: Callable[[Model, Images], list[float]], kind: str, count: int, block: Any
) -> tuple[float, Result, Any]:
    """Return the seconds of a fit in a block, all that it came to, and what the block gives."""
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    model, data = Model(), Images(count, kind)
    started = time.perf_counter()
    with block as found:
        losses = train(model, data)
    seconds = time.perf_counter() - started
    weights = [weight.detach().numpy().tobytes() for weight in model.parameters()]
    return seconds, (losses, weights, torch.rand(1).item(), np.random.rand(), random.random()), found


def compared(name: str, kind: str, seconds: float) -> dict[str, Any]:
    """Return what tuning gains in a fit, and whether it comes out the same."""
    train, count = TRAINERS[name][1], round(seconds / ITEM_S / BATCH) * BATCH
    fitted(train, kind, BATCH, nullcontext())  # imports, which draw random numbers
    plain_s, plain, _ = fitted(train, kind, count, nullcontext())
    tuned_s, tuned, online = fitted(train, kind, count, tp.tuning.tuned())
    print(f"{name}, {kind}: {online.headline}", *(f"    {message}" for message in online.messages), sep="\n")
    if online.tuning is not None:
        print(f"    {online.tuning.as_code()}")
    figures = {"plain_s": round(plain_s, 1), "tuned_s": round(tuned_s, 1), "speedup": round(plain_s / tuned_s, 2)}
    return {**figures, "equal": plain == tuned, "values": online.values}


def main() -> None:
    """Run the comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--trainers", default="loop,hugging_face,lightning")
    parser.add_argument("--kinds", default="waits,computes")
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    torch.set_num_threads(1)
    names = ["loop"] if options.quick else options.trainers.split(",")
    kinds = ["waits"] if options.quick else options.kinds.split(",")
    seconds = 12.0 if options.quick else options.seconds
    installed = [name for name in names if find_spec(TRAINERS[name][0]) is not None]
    report = {f"{name} {kind}": compared(name, kind, seconds) for name in installed for kind in kinds}
    print(json.dumps(report))


if __name__ == "__main__":
    sys.exit(main())
