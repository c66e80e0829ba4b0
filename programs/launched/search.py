"""Train a small network for each value of a search: ``search.py optuna``, or by Hydra ``search.py -m +lr=0.1,0.01``."""

import sys

import torch
from truth import training

STEPS, BATCH, WIDTH = 60, 64, 256


def train(rate: float) -> float:
    """Return the loss after a training with a learning rate."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
    optimizer = torch.optim.Adam(model.parameters(), rate)
    with training() as stepped:
        for _ in range(STEPS):
            x = torch.rand(BATCH, WIDTH)
            loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            stepped()
    print(f"rate {rate:.4f}: loss {loss.item():.4f}")
    return loss.item()


if __name__ == "__main__":
    if sys.argv[1:] == ["optuna"]:
        import optuna

        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(0))
        study.optimize(lambda trial: train(trial.suggest_float("lr", 1e-4, 1e-2, log=True)), n_trials=3)
    else:
        import hydra

        hydra.main(version_base=None)(lambda config: train(config.lr))()
