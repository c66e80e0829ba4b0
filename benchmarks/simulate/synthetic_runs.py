"""Synthetic runs with ground-truth phases, to evaluate phase methods on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tpunb import schema
from tpunb.frames import Steps

KINDS = ("warm-up", "steady", "summary", "checkpoint", "evaluation", "input stall")
"""Phases of a synthetic run, by number."""

_PAPER = 112_590  # steps of the longest run in the paper, ResNet on ImageNet
_CORRUPTED = 0.01  # share of the steps
_BUCKETS = 8  # sequence lengths


@dataclass(frozen=True, eq=False)
class SyntheticRun:
    """Steps of a training, and the ground truth of their phases.

    Parameters
    ----------
    steps
        Steps, all traced in full.
    phase
        Index into `names` of each step, of shape (steps,); -1 for corrupted steps.
    names
        Name that a person would give each phase.
    """

    steps: Steps
    phase: NDArray[np.int64]
    names: tuple[str, ...] = KINDS


def synthetic_run(n: int = _PAPER, ops: int = 300, *, seed: int = 0, hard: bool = False) -> SyntheticRun:
    """Return a synthetic training with warm-up, steady steps, and the phases between them.

    As in the paper's longest run, every hundredth step writes summaries, three in 1,251 save a checkpoint, and 98 in
    5,004 evaluate; twice the input stalls for thousands of steps that run the same operations. One step in a hundred is
    corrupted: it lacks some operations, and the times of the others are random. In shorter runs these are more
    frequent, so that each phase occurs.

    Parameters
    ----------
    n
        Number of steps, at least 100.
    ops
        Number of operations, at least 60; two thirds run on the device, the others on the host.
    seed
        Seed of all random numbers.
    hard
        Whether times vary as in real runs: sequences of eight lengths, host operations with a spread of 50 % and
        varying counts, and a drift over the run.

    >>> run = synthetic_run(200, 60)
    >>> len(run.steps), [KINDS[number] for number in sorted(set(run.phase.tolist()) - {-1})]
    (200, ['warm-up', 'steady', 'summary', 'checkpoint', 'evaluation', 'input stall'])
    """
    if n < 100 or ops < 60:
        raise ValueError(
            f"The n and ops parameters of synthetic_run must be at least 100 and 60. Got {n} and {ops} instead."
        )
    random = np.random.default_rng(seed)
    phase = _timetable(n)
    counts, micros = _typical(phase, ops, random)
    if hard:
        _harden(counts, micros, random)
    corrupted = random.choice(n, round(n * _CORRUPTED), replace=False)
    corrupted = corrupted[phase[corrupted] != KINDS.index("warm-up")]
    _corrupt(counts, micros, corrupted, random)
    truth = phase.copy()
    truth[corrupted] = -1
    device = round(ops * (_PARTS["forward"] + _PARTS["backward"]))
    named = [*(f"fusion_{i}" for i in range(device)), *(f"Host{i}" for i in range(device, ops))]
    named[:2] = ["infeed", "infeed-done"]
    kinds = np.where(phase == KINDS.index("evaluation"), "eval", "train")
    return SyntheticRun(as_steps(counts, micros, kinds, named), truth)


def _timetable(n: int) -> NDArray[np.int64]:
    """Return the phase of each step, before corruption."""
    every = min(n / _PAPER * 10, 1.0)  # phases are more frequent in short runs
    phase = np.full(n, KINDS.index("steady"))
    for begin, end in ((0.178, 0.204), (0.622, 0.657)):
        phase[round(begin * n) : round(end * n)] = KINDS.index("input stall")
    summary = max(10, round(100 * every))
    phase[summary - 1 :: summary] = KINDS.index("summary")
    for start in range(max(33, round(1250 * every)), n, max(34, round(1251 * every))):
        phase[start : start + 3] = KINDS.index("checkpoint")
    for start in range(max(60, round(5003 * every)), n, max(90, round(5004 * every))):
        phase[start : start + max(10, round(98 * every))] = KINDS.index("evaluation")
    phase[: max(8, round(30 * every))] = KINDS.index("warm-up")
    return phase


def _typical(
    phase: NDArray[np.int64], ops: int, random: np.random.Generator
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return count and microseconds of each op in each step; steps of a phase differ by 2 %."""
    n = len(phase)
    edges = np.round(np.cumsum([0, *_PARTS.values()]) * ops).astype(int)
    of = {name: np.arange(edges[i], edges[i + 1]) for i, name in enumerate(_PARTS)}
    train = np.concatenate([of["forward"], of["backward"], of["feed"]])
    calls = random.integers(1, 12, ops).astype(np.float32)
    calls[random.choice(ops, ops // 30, replace=False)] *= 20
    micros_a_call = random.lognormal(3.0, 1.4, ops).astype(np.float32)
    runs = {
        "warm-up": (np.concatenate([of["warm-up"], of["forward"][: ops // 5]]), 8.0),
        "steady": (train, 1.0),
        "summary": (np.concatenate([train, of["summary"]]), 1.0),
        "checkpoint": (np.concatenate([train, of["checkpoint"]]), 1.0),
        "evaluation": (np.concatenate([of["forward"], of["evaluation"]]), 1.0),
        "input stall": (train, 1.0),
    }
    counts, micros = np.zeros((n, ops), np.float32), np.zeros((n, ops), np.float32)
    for number, kind in enumerate(KINDS):
        ran, times = runs[kind]
        count, time = np.zeros(ops, np.float32), np.zeros(ops, np.float32)
        count[ran] = calls[ran]
        time[ran] = calls[ran] * micros_a_call[ran] * times
        if kind == "checkpoint":
            time[of["checkpoint"]] *= 30
        if kind == "input stall":
            time[of["forward"][:2]] += 0.4 * time.sum()  # infeed and infeed-done
        rows = np.flatnonzero(phase == number)
        noise = random.normal(0, 0.02, (len(rows), ops)) + random.normal(0, 0.01, (len(rows), 1))
        counts[rows], micros[rows] = count, time * np.exp(noise).astype(np.float32)
    return counts, micros


_PARTS = {
    "forward": 0.4667,
    "backward": 0.2,
    "feed": 0.1333,
    "evaluation": 0.0267,
    "summary": 0.04,
    "checkpoint": 0.0667,
    "warm-up": 0.0666,
}
"""Shares of the operations; those of the first two run on the device."""


def _harden(counts: NDArray[np.float32], micros: NDArray[np.float32], random: np.random.Generator) -> None:
    """Vary times and counts as in real runs, in place."""
    n, ops = counts.shape
    device = round(ops * (_PARTS["forward"] + _PARTS["backward"]))
    host = np.arange(device, round(ops * 0.9333))
    micros[:, host] *= np.exp(random.normal(0, 0.5, (n, len(host)))).astype(np.float32)
    polled = np.arange(round(device * 0.9), device)
    more = random.poisson(1.0, (n, len(polled))).astype(np.float32) * (counts[:, polled] > 0)
    counts[:, polled] += more
    micros[:, polled] *= 1 + 0.2 * more
    length = np.linspace(0.8, 1.2, _BUCKETS)[random.integers(0, _BUCKETS, n)]
    micros[:, :device] *= length.astype(np.float32)[:, None]
    drift = 1 + 0.05 * np.sin(np.arange(n) * (12.5 / n))
    micros *= drift.astype(np.float32)[:, None]


def _corrupt(
    counts: NDArray[np.float32], micros: NDArray[np.float32], rows: NDArray[np.int64], random: np.random.Generator
) -> None:
    """Remove 5 to 30 % of the operations of `rows` and randomise the times of the others, in place."""
    for row in rows:
        ran = np.flatnonzero(counts[row])
        lost = random.choice(ran, max(1, round(len(ran) * random.uniform(0.05, 0.3))), replace=False)
        counts[row, lost] = micros[row, lost] = 0
        left = np.setdiff1d(ran, lost)
        counts[row, left] = np.maximum(1, np.round(counts[row, left] * random.uniform(0.5, 1.5, len(left))))
        micros[row, left] *= random.uniform(0.5, 3.0, len(left)).astype(np.float32)


def as_steps(
    counts: NDArray[np.float32], micros: NDArray[np.float32], kinds: NDArray[np.str_], names: list[str]
) -> Steps:
    """Return consecutive steps of these kinds: counts and microseconds of each op in each step, and the ops' names.

    The first two are the infeed. Names in lower case are ops of the device.
    """
    n = len(counts)
    device = np.array([name.islower() for name in names])
    row, op = np.nonzero(counts)
    self_ps = (micros[row, op].astype(np.float64) * 1e6).astype(np.int64)
    rows = pl.DataFrame(
        {
            "host": pl.repeat("synthetic", len(row), eager=True),
            "step": row,
            "op": pl.Series(names, dtype=schema.OPS["op"]).gather(op),
            "side": pl.Series(np.where(device, "device", "host"), dtype=schema.OPS["side"]).gather(op),
            "category": pl.Series([None], dtype=schema.OPS["category"]).new_from_index(0, len(row)),
            "count": counts[row, op].astype(np.int64),
            "total_ps": self_ps,
            "self_ps": self_ps,
        }
    )
    on_device = np.bincount(row, self_ps * device[op], minlength=n).astype(np.int64)
    infeed = np.bincount(row, self_ps * (op < 2), minlength=n).astype(np.int64)
    dur = np.bincount(row, self_ps, minlength=n).astype(np.int64)
    frame = pl.DataFrame(
        {
            "host": pl.repeat("synthetic", n, eager=True),
            "step": np.arange(n),
            "kind": pl.Series(kinds),
            "start_ps": np.cumsum(dur) - dur,
            "dur_ps": dur,
            "device_ps": on_device,
            "idle_ps": dur - on_device,
            "infeed_ps": infeed,
            "traced": pl.repeat("full", n, eager=True),
        }
    )
    return Steps(frame, rows, name="synthetic run")
