"""Ten DataLoaders with different bottlenecks, and what tuning gains on them beside the best of a grid.

Each is tuned by ``tpunb.tune`` with its default search, and read with each point of a grid of workers and of batches
that they make ahead. Then the program's values, the best of the grid and what was found run in turns, whole epochs
each, with the start of the workers. `figures` returns:

``near_best``
    How many take at most 1 / 0.95 of the time of the grid's best, by the medians of ratios of the same turn.
``slower``
    How many take over 3 % longer than the program.
``changed``
    How many batches of two epochs differ from the program's, in all loaders.
``search_s``
    Seconds of all tunings.

``python benchmarks/loaders.py`` prints them as one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from beside_grid import in_turns, ratio, summary
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

WORKERS, AHEAD = (0, 1, 2, 4, 8, 16), (2, 4)
"""Points of the grid."""

BATCH = 8


class Rows(Dataset):  # type: ignore[type-arg]
    """Rows that take a while to make: seconds of waiting, and milliseconds of NumPy."""

    def __init__(self, rows: int, *, wait: float = 0.0, work: int = 0, width: int = 64) -> None:
        self.rows, self.wait, self.work, self.width = rows, wait, work, width

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.wait) if self.wait else None
        return decoded(index, self.work, self.width)


def decoded(index: int, work: int, width: int) -> Any:
    """Return a row after about 1 ms of computing for each unit of work."""
    row = np.full(width, index % 251, np.float32)
    for _ in range(work):
        row[:16] += np.sort(np.random.default_rng(index).random(60_000))[:16].astype(np.float32)
    return row


def padded(rows: list[Any]) -> Any:
    """Return a batch after about 20 ms of computing."""
    batch = torch.as_tensor(np.stack(rows))
    for _ in range(20):
        batch = batch + torch.as_tensor(decoded(int(batch[0, 0]), 1, batch.shape[1]))
    return batch


def slept(_: None, batch: Any) -> Any:
    """Take a step of a model that needs 8 ms of a device."""
    time.sleep(0.008)
    return batch.sum()


def shuffled(rows: Rows, batch_size: int = BATCH, **options: Any) -> DataLoader[Any]:
    """Return a loader that shuffles by a generator of its own."""
    return DataLoader(rows, batch_size, shuffle=True, generator=torch.Generator().manual_seed(7), **options)


def weighted() -> DataLoader[Any]:
    """Return a loader whose rows are drawn by weights."""
    sampler = WeightedRandomSampler([1.0, 2.0] * 320, 640, generator=torch.Generator().manual_seed(7))
    return DataLoader(Rows(640, wait=0.004), BATCH, sampler=sampler)


@dataclass(frozen=True)
class Recipe:
    """A loader: what limits it, how it is made, and a step that uses its batches, if any."""

    about: str
    data: Callable[[], DataLoader[Any]]
    step: Callable[[Any, Any], Any] | None = None


RECIPES = {
    "waiting": Recipe("4 ms of waiting a row", lambda: shuffled(Rows(1600, wait=0.004))),
    "decoding": Recipe("1 ms of NumPy a row", lambda: shuffled(Rows(3200, work=1))),
    "collation": Recipe("20 ms of computing in collation", lambda: shuffled(Rows(1200), collate_fn=padded)),
    "tiny": Recipe("rows of 64 numbers in memory", lambda: shuffled(Rows(40_000))),
    "large": Recipe("batches of 8 MB, 0.2 ms of waiting a row", lambda: shuffled(Rows(2400, wait=2e-4, width=262_144))),
    "tuned": Recipe("4 ms of waiting a row, by 16 workers", lambda: shuffled(Rows(8000, wait=0.004), num_workers=16)),
    "beside": Recipe("2 ms of waiting a row beside a model of 8 ms", lambda: shuffled(Rows(1600, wait=0.002)), slept),
    "one": Recipe("one row of 4 ms", lambda: shuffled(Rows(1, wait=0.004))),
    "many": Recipe("8 workers for rows in memory", lambda: shuffled(Rows(16_000), num_workers=8)),
    "weighted": Recipe("4 ms of waiting a row, drawn by weights", weighted),
}


def changed_to(data: DataLoader[Any], workers: int, ahead: int) -> DataLoader[Any]:
    """Return the same loader with other workers, written out."""
    options = {"num_workers": workers} | ({"prefetch_factor": ahead} if workers else {})
    sampled = {"batch_sampler": data.batch_sampler, "collate_fn": data.collate_fn, "generator": data.generator}
    return DataLoader(data.dataset, **sampled, **options)


def seconds(data: DataLoader[Any], step: Callable[[Any, Any], Any] | None, *, least: float = 1.5) -> float:
    """Return the seconds of a batch and its step, over whole epochs."""
    taken, started = 0, time.perf_counter()
    while time.perf_counter() - started < least:
        for batch in data:
            taken += 1
            if step is not None:
                step(None, batch)
    return (time.perf_counter() - started) / taken


def changed(one: DataLoader[Any], other: DataLoader[Any]) -> int:
    """Return how many batches of two epochs of two loaders differ."""
    pairs = [pair for _ in range(2) for pair in zip(one, other, strict=True)]
    return sum(not torch.equal(first, second) for first, second in pairs)


def measured(name: str, *, turns: int, budget: float | None, points: Iterable[tuple[int, int]]) -> dict[str, float]:
    """Return the figures of a loader; print what was found."""
    import tpunb as tp

    recipe = RECIPES[name]
    print(f"{name}: {recipe.about}", flush=True)
    job = recipe.data() if recipe.step is None else tp.tuning.Job((None, recipe.data()), recipe.step)
    tuning = tp.tune(job, budget=budget)
    print(f"  tuned in {tuning.seconds:.1f} s: {tuning}", *tuning.messages[1:], sep="\n  ")
    grid = {point: changed_to(recipe.data(), *point) for point in points}
    costs = {point: seconds(data, recipe.step, least=0.5) for point, data in grid.items()}
    first = sorted(costs, key=costs.__getitem__)[:3]
    again = in_turns(
        {str(point): grid[point] for point in first}, lambda each: seconds(each, recipe.step), max(turns // 2, 1)
    )
    best = min(first, key=lambda point: statistics.median(again[str(point)]))
    data = {"program": recipe.data(), "grid": grid[best], "ours": tuning.apply(recipe.data())}
    taken = in_turns(data, lambda each: seconds(each, recipe.step), turns)
    milliseconds = ", ".join(f"{which} {statistics.median(each) * 1e3:.2f} ms" for which, each in taken.items())
    figures = {
        "of_best": ratio(taken, "grid"),
        "vs_program": ratio(taken, "program"),
        "changed": changed(recipe.data(), tuning.apply(recipe.data())),
        "search_s": tuning.seconds,
    }
    print(f"  {milliseconds}; best of {len(grid)} points: workers, batches ahead of each = {best}")
    print("  " + ", ".join(f"{figure} {value:.2f}" for figure, value in figures.items()), flush=True)
    return figures


def figures(
    names: Iterable[str] = tuple(RECIPES),
    *,
    turns: int = 5,
    budget: float | None = None,
    points: Iterable[tuple[int, int]] = tuple(
        (workers, ahead) for workers in WORKERS for ahead in (AHEAD if workers else AHEAD[:1])
    ),
) -> dict[str, Any]:
    """Return the figures of all loaders."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there are more workers than cores
        found = {name: measured(name, turns=turns, budget=budget, points=points) for name in names}
    return summary(found)


def quick() -> dict[str, Any]:
    """Return coarse figures of one loader, in under half a minute."""
    return figures(["waiting"], turns=1, budget=15, points=[(0, 2), (8, 2)])


def main() -> None:
    """Print the figures."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="one loader, coarsely")
    options.add_argument("names", nargs="*", default=[*RECIPES], help="loaders; all by default")
    chosen = options.parse_args()
    torch.set_num_threads(1)  # as in workers
    print(json.dumps({"loader": quick() if chosen.quick else figures(chosen.names)}))


if __name__ == "__main__":
    main()
