"""Train a network with the Trainer of Lightning, with a callback."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

import lightning
import torch
from torch.utils.data import DataLoader

from programs import quiet
from programs.trainers import Truth, plain_torch, reduced, truth_of, work

warnings.filterwarnings("ignore", module="lightning")


class Model(lightning.LightningModule):
    """A classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = plain_torch.network()

    def training_step(self, batch: Any, number: int) -> Any:
        """Return the loss."""
        x, label = batch
        return torch.nn.functional.cross_entropy(self.layers(x), label)

    def configure_optimizers(self) -> Any:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), 1e-4)


class Hooks(lightning.Callback):
    """What the program does after each step."""

    def __init__(self, truth: Truth) -> None:
        self.truth = truth

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, number: int) -> None:
        """Waste time, read the parameters, or save."""
        truth = self.truth
        with truth("hook"):
            work(truth.seconds("hook"))
        if truth.waste == "read":
            with truth("read"):
                [reduced(weights.detach().numpy()) for weights in module.parameters()]
        if truth.saves_after(number):
            with truth("save"):
                trainer.save_checkpoint(truth.folder / f"step-{number}.ckpt")
        truth.stepped()


def main(arguments: Sequence[str]) -> None:
    """Train, and write the truth."""
    truth = truth_of(arguments)
    torch.set_num_threads(1)
    trainer = quiet.lightning(truth.folder, devices=1, max_epochs=1, callbacks=[Hooks(truth)], profiler="simple")
    data = DataLoader(plain_torch.Rows(truth, in_thread=True), batch_size=plain_torch.BATCH)
    with truth.training():
        trainer.fit(Model(), data)
    durations = trainer.profiler.recorded_durations
    truth.own_s["training"] = sum(durations["run_training_epoch"])
    truth.own_s["input"] = sum(durations["[_TrainingEpochLoop].train_dataloader_next"])
    truth.write(trainer.global_step)


if __name__ == "__main__":
    main(sys.argv[1:])
