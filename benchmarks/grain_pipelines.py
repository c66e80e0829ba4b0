"""Ten pipelines of Grain with different bottlenecks, and what tuning gains on them beside the best of a grid.

Each is tuned by ``tpunb.tune`` with its default search, and read with each point of a grid of threads, buffers and
worker processes. Then the program's values, the best of the grid and what was found run in turns. `figures` returns:

``near_best``
    How many take at most 1 / 0.95 of the time of the grid's best, by the medians of ratios of the same turn; the same
    values take the same time.
``slower``
    How many take over 3 % longer than the program.
``changed``
    How many of the first batches differ from the program's, in all pipelines.
``search_s``
    Seconds of all tunings.

Worker processes import this module: it imports little.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import grain
import numpy as np
from beside_grid import in_turns, ratio, summary

ROWS, BATCH = 4_096, 8

BATCHES = 100
"""Batches that are compared."""

GRID = [(0, 1), (32, 64), (4, 64), (1, 16), (16, 64), (2, 16), (16, 500), (32, 500)]
"""Threads and buffers; with worker processes the first, third and fifth, where a pipeline takes them."""


@dataclass(frozen=True)
class Source:
    """Rows that take a while to read: seconds of waiting, more for every `rare`-th, and additions in Python."""

    wait: float = 0.0
    rare: tuple[int, float] = (1, 0.0)
    additions: int = 0

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: Any) -> Any:
        every, more = self.rare
        if wait := self.wait + (more if index % every == 0 else 0.0):  # not for 0, which would yield to other programs
            time.sleep(wait)
        add(self.additions)
        return np.full(64, index, np.float32)


def add(times: int) -> int:
    """Compute in Python, which holds the interpreter."""
    total = 0
    for number in range(times):
        total += number
    return total


def added(row: Any) -> Any:
    """Return a row after a computation in Python of about 1 ms."""
    add(25_000)
    return row + 1


def ordered(row: Any) -> Any:
    """Return a row after a computation in NumPy of about 1 ms, which releases the interpreter."""
    return row + np.sort(np.random.default_rng(int(row[0])).random(40_000))[:64].astype(np.float32)


def fetched(row: Any) -> Any:
    """Return a row after 1 ms of waiting."""
    time.sleep(0.001)
    return row * 2


def slept(_: None, batch: Any) -> Any:
    """Take a step of a model that needs 6 ms of a device."""
    time.sleep(0.006)
    return np.sum(batch)


def _read(source: Source, threads: int, buffer: int, *functions: Callable[[Any], Any]) -> Any:
    dataset = grain.MapDataset.source(source).shuffle(seed=7).repeat()
    for function in functions:
        dataset = dataset.map(function)
    return dataset.batch(BATCH).to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=buffer))


def _after(threads: int, buffer: int) -> Any:
    """Return rows that are read fast, and wait after reading, one by one."""
    dataset = grain.MapDataset.source(Source()).shuffle(seed=7).repeat().batch(BATCH)
    return dataset.to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=buffer)).map(
        lambda batch: fetched(fetched(fetched(batch)))
    )


def _loader(threads: int, buffer: int) -> Any:
    sampler = grain.samplers.IndexSampler(ROWS, grain.sharding.NoSharding(), shuffle=True, num_epochs=None, seed=7)
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=buffer)
    batch = grain.transforms.Batch(BATCH)
    return grain.DataLoader(data_source=Source(0.002), sampler=sampler, operations=[batch], read_options=options)


@dataclass(frozen=True)
class Recipe:
    """A pipeline: what limits it, how it is made, and a step that uses its batches, if any."""

    about: str
    data: Callable[[], Any]
    step: Callable[[Any, Any], Any] | None = None


RECIPES = {
    "source": Recipe("3 ms of waiting a row, read in the step", lambda: _read(Source(0.003), 0, 0)),
    "trickle": Recipe("the same, by one thread with room for one batch", lambda: _read(Source(0.003), 1, 1)),
    "narrow": Recipe("the same, by 16 threads with room for two batches", lambda: _read(Source(0.003), 16, 2)),
    "bursts": Recipe("0.3 ms of waiting, 60 ms every 64 rows", lambda: _read(Source(0.0003, (64, 0.06)), 1, 2)),
    "mixed": Recipe("2 ms of waiting, and 0.1 ms of Python", lambda: _read(Source(0.002, additions=2_500), 1, 4)),
    "python": Recipe("1 ms of Python a row, read in the step", lambda: _read(Source(), 0, 0, added)),
    "numpy": Recipe("1 ms of NumPy a row, by one thread", lambda: _read(Source(), 1, 1, ordered)),
    "memory": Recipe("rows in memory, by 16 threads", lambda: _read(Source(), 16, 500)),
    "after": Recipe("3 ms of waiting a batch, after reading", lambda: _after(16, 500)),
    "loader": Recipe("2 ms of waiting a row beside a model of 6 ms, grain.DataLoader", lambda: _loader(1, 1), slept),
}


def points(parameters: Iterable[Any]) -> list[dict[str, int]]:
    """Return the points of the grid for a pipeline."""
    free = {parameter.name for parameter in parameters if parameter.verdict != "locked"}
    made = [{"read threads": threads, "read buffer": buffer} for threads, buffer in GRID]
    if "worker processes" in free:
        made += [point | {"worker processes": 2, "worker buffer": 2} for point in made[::2][:3]]
    return made


def seconds(data: Any, step: Callable[[Any, Any], Any] | None, *, burst: int, window: float = 0.8) -> float:
    """Return the seconds of a batch and its step, after some batches; `burst` are made at once."""
    iterator, warm = iter(data), max(8, burst)
    try:
        for _ in range(warm):
            batch = next(iterator)
        taken, started = 0, time.perf_counter()
        while taken < 2 * warm or time.perf_counter() - started < window:
            batch = next(iterator)
            if step is not None:
                step(None, batch)
            taken += 1
        return (time.perf_counter() - started) / taken
    finally:
        close(iterator)


def changed(one: Any, other: Any, batches: int) -> int:
    """Return how many of the first batches of two datasets differ."""
    iterators = iter(one), iter(other)
    differ = sum(next(iterators[0]).tobytes() != next(iterators[1]).tobytes() for _ in range(batches))
    for iterator in iterators:
        close(iterator)
    return differ


def close(iterator: Any) -> None:
    """End what reads ahead."""
    getattr(iterator, "_iterator", iterator).close()


def timed(data: Any, step: Any) -> float:
    """Return the seconds of a batch of a pipeline and its step."""
    from tpunb.tuning.grain import GrainPipeline

    return seconds(data, step, burst=GrainPipeline(data).in_flight({}))


def measured(name: str, *, turns: int, budget: Any, most: int | None) -> dict[str, float]:
    """Return the figures of a pipeline; print what was found."""
    from absl import flags

    import tpunb as tp
    from tpunb.tuning.grain import GrainPipeline

    flags.FLAGS.mark_as_parsed()  # for worker processes
    recipe = RECIPES[name]
    print(f"{name}: {recipe.about}", flush=True)
    job = recipe.data() if recipe.step is None else tp.tuning.Job((None, recipe.data()), recipe.step)
    tuning = tp.tune(job, budget=budget)
    print(f"  tuned in {tuning.seconds:.1f} s: {tuning}", *tuning.messages[1:], sep="\n  ")
    pipeline = GrainPipeline(recipe.data())
    made = points(pipeline.parameters)[:most]
    grid = [pipeline.build(point) for point in made]
    costs = [timed(dataset, recipe.step) for dataset in grid]
    first = sorted(range(len(grid)), key=costs.__getitem__)[:3]
    again = in_turns({str(at): grid[at] for at in first}, lambda each: timed(each, recipe.step), 3)
    best = min(first, key=lambda at: statistics.median(again[str(at)]))
    data = {"program": recipe.data(), "grid": grid[best], "ours": tuning.apply(recipe.data())}
    taken = in_turns(data, lambda each: timed(each, recipe.step), turns)
    milliseconds = ", ".join(f"{which} {statistics.median(each) * 1e3:.2f} ms" for which, each in taken.items())
    same = _values(data["ours"]) == _values(grid[best])
    figures = {
        "of_best": 1.0 if same else ratio(taken, "grid"),
        "vs_program": ratio(taken, "program"),
        "changed": changed(recipe.data(), data["ours"], BATCHES),
        "search_s": tuning.seconds,
    }
    print(f"  {milliseconds}; best of {len(grid)} points: {made[best]}")
    print("  " + ", ".join(f"{figure} {value:.2f}" for figure, value in figures.items()), flush=True)
    return figures


def _values(data: Any) -> list[Any]:
    """Return the values of a pipeline; without threads or processes, their buffers have no effect."""
    from tpunb.tuning.grain import GrainPipeline

    numbers = [parameter.current for parameter in GrainPipeline(data).parameters]
    return [number for place, number in enumerate(numbers) if place % 2 == 0 or numbers[place - 1]]


def figures(
    names: Iterable[str] = tuple(RECIPES), *, turns: int = 5, budget: Any = None, most: int | None = None
) -> dict[str, Any]:
    """Return the figures of some pipelines, beside a grid of at most so many points."""
    found = {name: measured(name, turns=turns, budget=budget, most=most) for name in names}
    return summary(found)
