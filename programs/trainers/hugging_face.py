"""Train a network with the Trainer of Hugging Face's Transformers, with a callback."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from transformers import Trainer, TrainerCallback

from programs import quiet
from programs.trainers import Truth, plain_torch, reduced, truth_of, work

BATCH = plain_torch.BATCH


class Rows(plain_torch.Rows):
    """Examples by name."""

    def __getitem__(self, index: int) -> Any:
        x, label = super().__getitem__(index)
        return {"x": x, "labels": label}


class Model(torch.nn.Module):
    """A network that returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = plain_torch.network()

    def forward(self, x: Any, labels: Any) -> Any:
        """Return loss and logits."""
        logits = self.layers(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


class Hooks(TrainerCallback):
    """What the program does after each step."""

    def __init__(self, truth: Truth) -> None:
        self.truth = truth

    def on_step_end(self, args: Any, state: Any, control: Any, *, model: Any, **_: Any) -> None:
        """Waste time, or read the parameters."""
        truth = self.truth
        with truth("hook"):
            work(truth.seconds("hook"))
        if truth.waste == "read":
            with truth("read"):
                [reduced(weights.detach().numpy()) for weights in model.parameters()]
        truth.stepped()


class MeasuredTrainer(Trainer):
    """A trainer whose saves are measured."""

    truth: Truth

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        with self.truth("save"):
            return super()._save_checkpoint(*args, **kwargs)


def main(arguments: Sequence[str]) -> None:
    """Train, and write the truth."""
    truth = truth_of(arguments)
    options: dict[str, Any] = {"per_device_train_batch_size": BATCH, "num_train_epochs": 1, "learning_rate": 1e-4}
    options |= {"save_strategy": "steps" if truth.waste == "save" else "no", "save_steps": truth.save_every}
    torch.set_num_threads(1)
    data, hooks = Rows(truth, in_thread=True), [Hooks(truth)]
    trainer = quiet.hugging_face(
        truth.folder, Model(), data, callbacks=hooks, kind=MeasuredTrainer, logging_strategy="no", **options
    )
    trainer.truth = truth
    with truth.training():
        truth.own_s["training"] = trainer.train().metrics["train_runtime"]
    truth.write(trainer.state.global_step)


if __name__ == "__main__":
    main(sys.argv[1:])
