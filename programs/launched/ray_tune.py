"""Train a small network in two trials of Ray Tune, one after the other."""

from pathlib import Path

import ray
import torch
from ray import tune
from truth import training

STEPS, BATCH, WIDTH = 60, 16, 256


def train(config: dict) -> None:
    """Train one trial."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
    optimizer = torch.optim.Adam(model.parameters(), config["lr"])
    with training() as stepped:
        for _ in range(STEPS):
            x = torch.rand(BATCH, WIDTH)
            loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            stepped()
    tune.report({"loss": loss.item()})


if __name__ == "__main__":
    ray.init(num_cpus=1, include_dashboard=False)
    tuner = tune.Tuner(
        train,
        param_space={"lr": tune.grid_search([1e-3, 1e-2])},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=tune.RunConfig(storage_path=str(Path.cwd()), verbose=0),
    )
    print(f"best {tuner.fit().get_best_result().metrics['loss']:.4f}")
