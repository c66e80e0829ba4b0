"""Programs after the documentation of Hugging Face's and Lightning's Trainer, which train without ``run.batches``."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset, random_split

from programs import Script, labels, program, quiet, tokens
from programs.torch_pages import classes, pictures, rows

Step = Callable[[float], None]

if HAS_TRAINERS := bool(find_spec("transformers") and find_spec("lightning")):
    import lightning
    import transformers
    from lightning.pytorch.callbacks import EarlyStopping
    from transformers import EarlyStoppingCallback, TrainerCallback


def hugging_face(folder: Path, step: Step, model: Any, data: Any, held: Any = None, **more: Any) -> list[Any]:
    """Train by ``Trainer.train``; return the parts that are compared."""

    class Steps(TrainerCallback):
        """Count the steps."""

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            step(float("nan"))

    callbacks = more.pop("callbacks", [])
    options = {"per_device_train_batch_size": 8, "logging_steps": 3} | more
    trainer = quiet.hugging_face(folder, model, data, held, callbacks=[*callbacks, Steps()], **options)
    trainer.train()
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return [model, trainer.optimizer, trainer.lr_scheduler, torch.tensor(logged)]


def fitted(folder: Path, step: Step, model: Any, *data: Any, callbacks: tuple[Any, ...] = (), **more: Any) -> list[Any]:
    """Train by ``lightning.Trainer.fit``; return the parts that are compared."""

    class Steps(lightning.Callback):
        """Count the steps of optimizers."""

        taken = None

        def on_train_batch_start(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
            self.taken = trainer.global_step if self.taken is None else self.taken

        def on_train_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
            for _ in range(trainer.global_step - self.taken):
                step(float("nan"))
            self.taken = trainer.global_step

    trainer = quiet.lightning(folder, callbacks=[*callbacks, Steps()], **more)
    trainer.fit(model, *data)
    return [model, *trainer.optimizers, *(each.scheduler for each in trainer.lr_scheduler_configs)]


if HAS_TRAINERS:

    @program("Trainer, random crops", "torch")
    def hf_image_classification(folder: Path) -> Script:
        """Classify food (https://huggingface.co/docs/transformers/tasks/image_classification)."""

        class Food(Dataset):
            def __len__(self) -> int:
                return 48

            def __getitem__(self, at: int) -> Any:
                image = pictures(48, 12, 3)[at]
                top, left = torch.randint(0, 5, (2,)).tolist()
                return {"pixel_values": image[:, top : top + 8, left : left + 8], "labels": int(labels()[at])}

        def train(step: Step) -> list[Any]:
            config = transformers.ViTConfig(
                **{"image_size": 8, "patch_size": 4, "hidden_size": 16, "num_hidden_layers": 1, "num_labels": 3},
                **{"num_attention_heads": 2, "intermediate_size": 16},
            )
            model = transformers.ViTForImageClassification(config)
            more = {"gradient_accumulation_steps": 2, "warmup_steps": 2, "num_train_epochs": 3, "learning_rate": 5e-3}
            return hugging_face(folder, step, model, Food(), **more)

        return Script(train)

    @program("Trainer, dynamic padding, evaluation, early stopping", "torch")
    def hf_sequence_classification(folder: Path) -> Script:
        """Classify reviews (https://huggingface.co/docs/transformers/tasks/sequence_classification)."""

        def train(step: Step) -> list[Any]:
            config = transformers.BertConfig(
                **{"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
                **{"intermediate_size": 16, "max_position_embeddings": 8, "num_labels": 3},
            )
            data = [
                {"input_ids": row, "attention_mask": [1] * 6, "labels": int(label)}
                for row, label in zip(tokens().tolist(), labels(), strict=True)
            ]
            best = {"eval_strategy": "epoch", "metric_for_best_model": "eval_loss", "greater_is_better": False}
            more = {"num_train_epochs": 3, "weight_decay": 0.01, "callbacks": [EarlyStoppingCallback(2)], **best}
            model = transformers.BertForSequenceClassification(config)
            return hugging_face(folder, step, model, data, data[:16], dataloader_num_workers=2, **more)

        return Script(train)

    @program("Trainer, stream, number of steps", "torch")
    def hf_language_modeling(folder: Path) -> Script:
        """Model a language (https://huggingface.co/docs/transformers/tasks/language_modeling)."""

        class Blocks(torch.utils.data.IterableDataset):
            def __iter__(self) -> Any:
                for row in tokens(60).tolist():
                    yield {"input_ids": row, "labels": row}

        def train(step: Step) -> list[Any]:
            config = transformers.GPT2Config(vocab_size=20, n_positions=8, n_embd=16, n_layer=1, n_head=2)
            model = transformers.GPT2LMHeadModel(config)
            return hugging_face(folder, step, model, Blocks(), max_steps=18, lr_scheduler_type="cosine")

        return Script(train)

    @program("Lightning, random split", "torch")
    def lightning_autoencoder(folder: Path) -> Script:
        """Encode digits (https://lightning.ai/docs/pytorch/stable/starter/introduction.html)."""

        class AutoEncoder(lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.encoder = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))
                self.decoder = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 64))

            def training_step(self, batch: Any, number: int) -> Any:
                x = batch[0].flatten(1)
                loss = functional.mse_loss(self.decoder(self.encoder(x)), x)
                self.log("train_loss", loss)
                return loss

            def configure_optimizers(self) -> Any:
                return torch.optim.Adam(self.parameters(), lr=1e-3)

        def train(step: Step) -> list[Any]:
            lightning.seed_everything(1, verbose=False)
            data, _ = random_split(TensorDataset(pictures(), classes()), [40, 8])
            loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=2)
            return fitted(folder, step, AutoEncoder(), loader, max_epochs=2)

        return Script(train)

    @program("Lightning, validation, early stopping, schedule", "torch")
    def lightning_classifier(folder: Path) -> Script:
        """Stop early (https://lightning.ai/docs/pytorch/stable/common/early_stopping.html)."""

        class Classifier(lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(0.2), nn.Linear(16, 3))

            def training_step(self, batch: Any, number: int) -> Any:
                loss = functional.cross_entropy(self.net(batch[0]), batch[1])
                self.log("train_loss", loss, on_step=True, on_epoch=True)
                return loss

            def validation_step(self, batch: Any, number: int) -> None:
                self.log("val_loss", functional.cross_entropy(self.net(batch[0]), batch[1]))

            def configure_optimizers(self) -> Any:
                optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
                plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
                return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "train_loss_epoch"}}

        def train(step: Step) -> list[Any]:
            data = TensorDataset(pictures(), classes())
            loaders = DataLoader(data, batch_size=8, shuffle=True), DataLoader(data, batch_size=16)
            stop = EarlyStopping("val_loss", patience=2)
            options = {"max_epochs": 3, "accumulate_grad_batches": 2, "val_check_interval": 0.5}
            return fitted(folder, step, Classifier(), *loaders, callbacks=(stop,), **options)

        return Script(train)

    @program("Lightning, two optimizers by hand", "torch")
    def lightning_manual(folder: Path) -> Script:
        """Optimize by hand (https://lightning.ai/docs/pytorch/stable/model/manual_optimization.html)."""

        class Rivals(lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.automatic_optimization = False
                self.generator, self.judge = nn.Linear(4, 5), nn.Sequential(nn.Linear(5, 1), nn.Flatten(0))

            def training_step(self, batch: Any, number: int) -> None:
                first, second = self.optimizers()
                fake = self.generator(torch.randn(len(batch[0]), 4))
                ones = torch.ones(len(fake))
                right = functional.binary_cross_entropy_with_logits(self.judge(batch[0]), ones)
                wrong = functional.binary_cross_entropy_with_logits(self.judge(fake.detach()), 0 * ones)
                second.zero_grad()
                self.manual_backward(right + wrong)
                second.step()
                first.zero_grad()
                self.manual_backward(functional.binary_cross_entropy_with_logits(self.judge(fake), ones))
                first.step()

            def configure_optimizers(self) -> Any:
                options: dict[str, Any] = {"lr": 1e-3, "betas": (0.5, 0.999)}
                models = self.generator, self.judge
                return [torch.optim.Adam(model.parameters(), **options) for model in models]

        def train(step: Step) -> list[Any]:
            return fitted(folder, step, Rivals(), DataLoader(rows(), batch_size=8, shuffle=True), max_epochs=3)

        return Script(train)
