"""Trainings by the Trainers of Hugging Face and Lightning, saved and resumed.

``python torch_trainers.py FOLDER NAME...``: each runs in processes forked from one that has imported the Trainers:
alone, saved, and resumed from each checkpoint. ``FOLDER/outcomes.json`` has, by name, what each of them computed.
"""

import json
import logging
import random
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from torch_resumed_loops import digest, forked

import tpunb as tp
from programs import quiet

ITEMS, BATCH = 44, 4


class Rows(torch.utils.data.Dataset):
    """Rows, with noise of the global generator or without."""

    def __init__(self, noise=0.0, named=False):
        self.noise, self.named = noise, named

    def __len__(self):
        return ITEMS

    def __getitem__(self, at):
        x = torch.linspace(0, at / ITEMS, 4)
        if self.noise:
            x = x + self.noise * torch.rand(4)
        return {"x": x, "labels": x.sum()} if self.named else (x, x.sum())


class Stream(torch.utils.data.IterableDataset):
    """The same rows, in order."""

    def __init__(self, named=False):
        self.rows = Rows(named=named)

    def __iter__(self):
        return (self.rows[at] for at in range(ITEMS))


def net():
    return torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.ReLU(), torch.nn.Linear(8, 1), torch.nn.Flatten(0)
    )


def hugging_face(folder, noise=0.0, stream=False, **more):
    """Train by Hugging Face's Trainer; return a digest of the weights, the logs and the loss."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, x, labels):
            guess = self.net(x)
            return {"loss": ((guess - labels) ** 2).mean(), "logits": guess}

    torch.manual_seed(0)
    options = {"per_device_train_batch_size": BATCH, "num_train_epochs": 2, "logging_steps": 4, **more}
    data = Stream(named=True) if stream else Rows(noise, named=True)
    trainer = quiet.hugging_face(folder, Model(), data, Rows(named=True), **options)
    result = trainer.train()
    timed = ("runtime", "per_second", "flos")
    logs = [
        {name: value for name, value in entry.items() if not name.endswith(timed)}
        for entry in trainer.state.log_history
    ]
    return [digest([trainer.model, trainer.optimizer, trainer.lr_scheduler]), logs, result.training_loss]


def lightning(folder, noise=0.0, stream=False, validation=False, workers=0, persistent=False, **more):
    """Train by Lightning's Trainer; return a digest of the weights, the last losses and what was logged at the end."""
    import lightning as pl
    import torchmetrics

    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.error, self.losses, self.means = net(), torchmetrics.MeanAbsoluteError(), [], []
            self.save_hyperparameters()

        def training_step(self, batch, number):
            guess = self.net(batch[0])
            loss = ((guess - batch[1]) ** 2).mean()
            self.error(guess, batch[1])
            self.log("loss", loss, on_step=True, on_epoch=True)
            self.log("error", self.error, on_step=False, on_epoch=True)
            self.losses.append(float(loss.detach()))
            return loss

        def validation_step(self, batch, number):
            self.log("valid", ((self.net(batch[0]) - batch[1]) ** 2).mean())

        def configure_optimizers(self):
            optimizer = torch.optim.Adam(self.parameters(), 0.01)
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "loss_epoch"}}

    pl.seed_everything(3, verbose=False)
    data = Stream() if stream else Rows(noise)
    loader = torch.utils.data.DataLoader(
        data, BATCH, shuffle=not stream, num_workers=workers, persistent_workers=persistent
    )
    model, trainer = Model(), quiet.lightning(folder, **{"max_epochs": 2, **more})
    trainer.fit(model, loader, torch.utils.data.DataLoader(Rows(), 11) if validation else None)
    logged = {name: float(value) for name, value in sorted(trainer.callback_metrics.items())}
    schedules = [each.scheduler for each in trainer.lr_scheduler_configs]
    return [digest([model, *trainer.optimizers, *schedules]), model.losses[-1:], logged, trainer.global_step]


KINDS = {
    "hugging face": (hugging_face, {}),
    "hugging face, noise": (hugging_face, {"noise": 0.1}),
    "hugging face, noise, workers": (hugging_face, {"noise": 0.1, "dataloader_num_workers": 2}),
    "hugging face, accumulated": (hugging_face, {"noise": 0.1, "gradient_accumulation_steps": 3}),
    "hugging face, evaluated": (hugging_face, {"eval_strategy": "epoch"}),
    "hugging face, stream": (hugging_face, {"stream": True, "max_steps": 18}),
    "lightning": (lightning, {}),
    "lightning, noise, workers": (lightning, {"noise": 0.1, "workers": 2}),
    "lightning, lasting workers": (lightning, {"workers": 2, "persistent": True}),
    "lightning, accumulated": (lightning, {"accumulate_grad_batches": 3}),
    "lightning, validated": (lightning, {"validation": True, "val_check_interval": 4}),
    "lightning, stream": (lightning, {"stream": True}),
    "lightning, steps": (lightning, {"max_steps": 18, "max_epochs": -1}),
}


def saved(folder, name, start=None):
    """Train and save, or train from a checkpoint; return the result, and what resuming reports."""
    warnings.simplefilter("ignore")
    function, options = KINDS[name]
    if start is not None:
        random.seed(1)
        torch.manual_seed(1)
        with tp.resume(start, exact=False) as resumed:
            result = function(folder / "own", **options)
        return [result, str(resumed)]
    with tp.checkpointing(folder / "saved", every=3):
        return [function(folder / "own", **options), ""]


def outcome(folder, name):
    """Train alone, saved, and from every third checkpoint."""
    folder.mkdir()
    function, options = KINDS[name]
    alone = forked(folder / "alone.json", lambda: [function(folder / "own", **options), ""])
    whole = forked(folder / "whole.json", saved, folder, name)
    found = list(tp.checkpoints(folder / "saved"))
    later = [[one.step, one.reason, *forked(folder / "later.json", saved, folder, name, one)] for one in found[::3]]
    return {"alone": alone[0], "whole": whole[0], "later": later}


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    np.random.seed(1)
    torch.set_num_threads(1)
    top, names, _ = Path(sys.argv[1]), sys.argv[2:], (tp.checkpointing, tp.resume, tp.checkpoints)
    if any(name.startswith("hugging") for name in names):
        from transformers import Trainer  # noqa: F401
    if any(name.startswith("lightning") for name in names):
        import lightning as _lightning  # noqa: F401
        import torchmetrics  # noqa: F401
    outcomes = {name: outcome(top / name.replace(" ", "-").replace(",", ""), name) for name in names}
    (top / "outcomes.json").write_text(json.dumps(outcomes))
