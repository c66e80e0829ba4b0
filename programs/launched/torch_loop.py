"""Train a small network with PyTorch on ranks: of a launcher, or of processes that this program starts."""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from truth import training

WIDTH = 256
RANKS = {
    "RANK": "WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE",
    "SLURM_PROCID": "SLURM_NTASKS",
}
"""Variables of launchers: the rank of a process, and the number of ranks."""


class Rows(Dataset):
    """Examples, which one rank may read slowly."""

    def __init__(self, count: int, read_s: float) -> None:
        self.count, self.read_s = count, read_s

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if self.read_s:
            time.sleep(self.read_s)
        row = torch.full((WIDTH,), (index % 97) / 97)
        return row, row.sum().reshape(1)


def augment(batch: Any, seconds: float) -> Any:
    """Change a batch in Python for so long."""
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        batch = batch + 0.0
    return batch


def train(rank: int, size: int, options: argparse.Namespace) -> None:
    """Train one rank of a job."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    slow_s = options.slow_ms / 1e3 if rank == options.slow else 0.0
    places = {place: slow_s if place == options.place else 0.0 for place in ("data", "compute", "hook")}
    model: Any = torch.nn.Sequential(torch.nn.Linear(WIDTH, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
    rows = Rows(size * options.steps * options.batch, places["data"] / options.batch)
    sampler = None
    if size > 1:
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", str(options.port))
        dist.init_process_group("gloo", rank=rank, world_size=size)
        sampler = DistributedSampler(rows)
        model = model if options.reduce else torch.nn.parallel.DistributedDataParallel(model)
    data = DataLoader(rows, batch_size=options.batch, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    fails = rank == options.fail and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
    with training(rank) as stepped:
        for step, (x, y) in enumerate(data):
            if fails and step == options.steps // 2:
                raise RuntimeError(f"rank {rank} fails once")
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(augment(x, places["compute"])), y)
            loss.backward()
            if size > 1 and options.reduce:
                for weights in model.parameters():
                    dist.all_reduce(weights.grad)
                    weights.grad /= size
            optimizer.step()
            time.sleep(places["hook"])
            stepped()
    if size > 1:
        dist.barrier()
        dist.destroy_process_group()
    print(f"rank {rank} of {size}: loss {loss.item():.4f}\n", end="", flush=True)  # in one write


def start(options: argparse.Namespace) -> None:
    """Start the ranks in processes of their own, and wait for them."""
    if options.start == "torch":
        torch.multiprocessing.spawn(train, args=(options.ranks, options), nprocs=options.ranks)
        return
    context = torch.multiprocessing.get_context(options.start)
    ranks = [context.Process(target=train, args=(rank, options.ranks, options)) for rank in range(options.ranks)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    raise SystemExit(max(abs(process.exitcode or 0) for process in ranks))


def main() -> None:
    """Train as the options and the launcher ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--start", choices=("torch", "fork", "spawn", "forkserver"), help="how to start ranks")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--port", type=int, default=29500)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--reduce", action="store_true", help="average gradients in the loop, without DDP")
    parser.add_argument("--fail", type=int, help="rank that fails once, of an elastic job")
    parser.add_argument("--slow", type=int, help="rank that is slower than the others")
    parser.add_argument("--slow-ms", type=float, default=20.0, help="milliseconds by which each of its steps is slower")
    parser.add_argument("--place", choices=("data", "compute", "hook"), default="data", help="where it is slower")
    options, _ = parser.parse_known_args()  # launchers add theirs
    if options.start:
        start(options)
        return
    variable = next((name for name in RANKS if name in os.environ), None)
    rank, size = (int(os.environ[variable]), int(os.environ[RANKS[variable]])) if variable else (0, 1)
    train(rank, size, options)


if __name__ == "__main__":
    main()
