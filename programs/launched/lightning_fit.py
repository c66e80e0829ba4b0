"""Train a small network on two devices with Lightning, which starts the second rank unless a launcher did."""

import sys
import time
from collections.abc import Callable
from typing import Any

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset
from truth import training

STEPS, BATCH, WIDTH = 60, 16, 256


class Network(lightning.LightningModule):
    """A perceptron, one rank of which may be slow after each step."""

    def __init__(self, slow: int | None, stepped: Callable[[], None]) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(WIDTH, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
        self.slow, self.stepped = slow, stepped

    def training_step(self, batch: Any, index: int) -> Any:
        """Return the loss of a batch."""
        x, y = batch
        return torch.nn.functional.mse_loss(self.layers(x), y)

    def on_train_batch_end(self, outputs: Any, batch: Any, index: int) -> None:
        """Log a step, as long as the slow rank takes for it."""
        if self.global_rank == self.slow:
            time.sleep(0.02)
        self.stepped()

    def configure_optimizers(self) -> Any:
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), 1e-3)


def main() -> None:
    """Train, with a slow rank if one is named."""
    lightning.seed_everything(0, verbose=False)
    torch.set_num_threads(1)
    rows = torch.rand(2 * STEPS * BATCH, WIDTH)
    data = DataLoader(TensorDataset(rows, rows.sum(1, keepdim=True)), batch_size=BATCH)
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    with training(trainer.global_rank) as stepped:
        trainer.fit(Network(int(sys.argv[1]) if len(sys.argv) > 1 else None, stepped), data)
    print(f"rank {trainer.global_rank}: {trainer.global_step} steps\n", end="", flush=True)


if __name__ == "__main__":
    main()
