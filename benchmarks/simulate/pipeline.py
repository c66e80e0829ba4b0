"""Simulate a training with pipeline parallelism: one forward and one backward pass at a time (1F1B), as a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

TRANSFER_S, GATHER_S, SCATTER_S, OPTIMIZER_S = 0.001, 0.02, 0.05, 0.01
FORWARD_S = 0.1  # of a backward computation twice as much
Row = tuple[int, int, int, str, float, float]


@dataclass(frozen=True)
class Pipeline:
    """A job of `stages` x `ranks` workers; factors multiply the time of computation."""

    stages: int = 4
    ranks: int = 3
    microbatches: int = 8
    steps: int = 12
    worker: dict[tuple[int, int], float] | None = None  # factor by (stage, data-parallel rank)
    stage: dict[int, float] | None = None
    sequence: float = 0.0  # standard deviation of the logarithm of the work of a microbatch
    jitter: float = 0.01
    seed: int = 0

    def table(self) -> pl.DataFrame:
        """Return the operations; ranks are numbered by stage, then data-parallel rank."""
        random, rows = np.random.default_rng(self.seed), list[tuple[int, *Row]]()
        for step in range(self.steps):
            rows += [(step, *row) for row in _step(*self._times(random))]
        names = ["step", "rank", "stage", "dp_rank", "optype", "start", "duration"]
        frame = pl.DataFrame([(step, s * self.ranks + d, s, d, *rest) for step, s, d, *rest in map(_short, rows)],
                             schema=names, orient="row")  # fmt: skip
        ends = frame.group_by("step").agg(length=(pl.col("start") + pl.col("duration")).max()).sort("step")
        begins = ends.select("step", begin=pl.col("length").cum_sum().shift(fill_value=0))
        return frame.join(begins, on="step").with_columns(pl.col("start") + pl.col("begin")).drop("begin")

    def step_s(self) -> float:
        """Return the mean step time."""
        table = self.table()
        return (table["start"] + table["duration"]).max() / self.steps

    def _times(self, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return the times of forward and backward computations: (stages, ranks, microbatches)."""
        shape = self.stages, self.ranks, self.microbatches
        factor = np.ones(shape) * np.exp(random.normal(0, self.sequence, shape[1:]))
        for (stage, rank), slower in (self.worker or {}).items():
            factor[stage, rank] *= slower
        for stage, slower in (self.stage or {}).items():
            factor[stage] *= slower
        forward, backward = (factor * np.exp(random.normal(0, self.jitter, shape)) for _ in range(2))
        return FORWARD_S * forward, 2 * FORWARD_S * backward


def _short(row: tuple[int, *Row]) -> tuple[int, int, int, str, float, float]:
    step, stage, rank, _, kind, start, duration = row
    return step, stage, rank, kind, start, duration


def _step(forward: np.ndarray, backward: np.ndarray) -> Iterator[Row]:
    """Yield (stage, rank, microbatch, type, start, duration) of the operations of one step."""
    stages, ranks, n = forward.shape
    ends = np.full((2, *forward.shape), np.nan)
    arrived = np.full((2, *forward.shape), np.nan)
    free = np.full((stages, ranks), GATHER_S)
    left = {(s, d): [*_order(stages - 1 - s, n)] for s in range(stages) for d in range(ranks)}
    for s, d in left:
        yield s, d, 0, "params-all-gather", 0.0, GATHER_S
    while any(left.values()):
        for (s, d), queue in left.items():
            while queue:
                back, m = queue[0]
                source = s + 1 if back else s - 1
                begin = free[s, d]
                if 0 <= source < stages:
                    if np.isnan(sent := ends[back, source, d, m]):
                        break
                    posted, before = (ends[back, s, d, m - 1], arrived[back, s, d, m - 1]) if m else (0.0, 0.0)
                    arrived[back, s, d, m] = max(sent, posted, before) + TRANSFER_S
                    name, start = ("forward", "backward")[back], max(posted, before)
                    yield s, d, m, f"{name}-recv", start, arrived[back, s, d, m] - start
                    start = max(sent, before)
                    yield source, d, m, f"{name}-send", start, arrived[back, s, d, m] - start
                    begin = max(begin, arrived[back, s, d, m])
                took = (backward if back else forward)[s, d, m]
                yield s, d, m, ("forward", "backward")[back] + "-compute", begin, took
                ends[back, s, d, m] = free[s, d] = begin + took
                queue.pop(0)
    for s, d in left:
        scattered = free[s].max() + SCATTER_S
        yield s, d, 0, "grads-reduce-scatter", free[s, d], scattered - free[s, d]
        yield s, d, 0, "optimizer", scattered, OPTIMIZER_S


def _order(warm: int, n: int) -> Iterator[tuple[int, int]]:
    """Yield (whether backward, microbatch) of a worker that runs `warm` forward passes ahead."""
    yield from ((0, m) for m in range(min(warm, n)))
    for m in range(n):
        yield from [(0, m + warm)] if m + warm < n else []
        yield (1, m)
