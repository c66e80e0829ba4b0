"""Train a small network on two workers of Ray Train."""

from pathlib import Path

import ray
import ray.train.torch
import torch
from ray.train import RunConfig, ScalingConfig
from torch.utils.data import DataLoader, TensorDataset
from truth import training

STEPS, BATCH, WIDTH = 60, 16, 256


def train(config: dict) -> None:
    """Train one worker."""
    torch.manual_seed(0)
    rows = torch.rand(STEPS * BATCH * ray.train.get_context().get_world_size(), WIDTH)
    data = ray.train.torch.prepare_data_loader(
        DataLoader(TensorDataset(rows, rows.sum(1, keepdim=True)), batch_size=BATCH)
    )
    layers = torch.nn.Sequential(torch.nn.Linear(WIDTH, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
    model = ray.train.torch.prepare_model(layers)
    optimizer = torch.optim.Adam(model.parameters(), config["lr"])
    with training(ray.train.get_context().get_world_rank()) as stepped:
        for x, y in data:
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            stepped()
    ray.train.report({"loss": loss.item()})


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False)
    scaling = ScalingConfig(num_workers=2, use_gpu=False)
    trainer = ray.train.torch.TorchTrainer(
        train,
        train_loop_config={"lr": 1e-3},
        scaling_config=scaling,
        run_config=RunConfig(storage_path=str(Path.cwd())),
    )
    print("error:", trainer.fit().error)
