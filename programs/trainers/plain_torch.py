"""Train a network with PyTorch alone, in a loop over a DataLoader."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from torch.utils.data import DataLoader, Dataset

from programs.trainers import Truth, reduced, truth_of, work

WIDTH, BATCH = 512, 16
LARGE = 4_000_000  # numbers of a state that is saved


class Rows(Dataset):
    """Examples that take time to read."""

    def __init__(self, truth: Truth, *, in_thread: bool) -> None:
        self.truth, self.in_thread = truth, in_thread

    def __len__(self) -> int:
        return self.truth.steps * BATCH

    def __getitem__(self, index: int) -> Any:
        self.read()
        return torch.full((WIDTH,), index / 100), index % 10

    def read(self) -> None:
        """Take the time that an example takes."""
        if self.in_thread:
            with self.truth("data"):
                time.sleep(self.truth.seconds("data", 1 / BATCH))
        else:
            time.sleep(self.truth.seconds("data", 4 / BATCH))  # two workers, and the training computes meanwhile


def network() -> Any:
    """Return a perceptron."""
    wide, narrow = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(3 * WIDTH, WIDTH)
    return torch.nn.Sequential(wide, torch.nn.ReLU(), narrow, torch.nn.ReLU(), torch.nn.Linear(WIDTH, 10))


def norms(truth: Truth, model: Any) -> list[float]:
    """Return the largest value of each parameter, in Python."""
    with truth("read"):
        return [reduced(weights.detach().numpy()) for weights in model.parameters()]


def main(arguments: Sequence[str], workers: int = 0) -> None:
    """Train, and write the truth."""
    truth = truth_of(arguments)
    torch.manual_seed(0)
    torch.set_num_threads(1)  # of two, one waits for the other on a busy machine
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    data = DataLoader(Rows(truth, in_thread=workers == 0), batch_size=BATCH, num_workers=workers)
    average, losses = torch.zeros(LARGE), []
    with truth.training():
        for x, y in data if workers == 0 else truth.fetches(iter(data)):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            with truth("hook"):
                work(truth.seconds("hook"))
            if truth.waste == "read":
                norms(truth, model)
            if truth.saves_after(len(losses) - 1):
                with truth("save"):
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "average": average}
                    torch.save(state, truth.folder / f"step-{len(losses)}.pt")
            truth.stepped()
    steps = {int(state["step"]) for state in optimizer.state.values()}
    truth.write(steps.pop(), in_thread=workers == 0)


if __name__ == "__main__":
    main(sys.argv[1:])
