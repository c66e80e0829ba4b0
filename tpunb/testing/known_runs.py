"""Trainings whose phases are known, to hold phase methods against."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tpunb import schema
from tpunb.frames import Steps

KINDS = ("warm-up", "steady", "summary", "checkpoint", "evaluation", "input stall")
"""The phases of a known run, by their number."""

_PAPER = 112_590  # steps of the longest run in the paper, ResNet on ImageNet
_CORRUPTED = 0.01  # of the steps
_BUCKETS = 8  # of sequence lengths


@dataclass(frozen=True, eq=False)
class KnownRun:
    """A training and what each of its steps was.

    Parameters
    ----------
    steps
        All of them seen in full.
    phase
        (steps,): the number of each in `KINDS`; -1 for a corrupted one.
    """

    steps: Steps
    phase: NDArray[np.int64]


def known_run(n: int = _PAPER, ops: int = 300, *, seed: int = 0, hard: bool = False) -> KnownRun:
    """Return a made-up training whose phases are known: warm-up, steady steps, and what comes between them.

    Every hundredth step of the paper's longest run writes summaries, three in 1,251 save a checkpoint, 98 in 5,004
    evaluate, and twice the input stalls for thousands of steps that run the very same operations. One step in a
    hundred is corrupted: it lacks some of its operations, and the times of the rest are anything. Shorter runs have
    as many of each as they have room for.

    Parameters
    ----------
    n
        Steps, 100 or more.
    ops
        Operations, 60 or more; two thirds on the device, the others on the host.
    seed
        Of every random number.
    hard
        Whether times vary as they do in the wild: sequences in eight lengths, times of host operations that vary by
        half and counts that are never the same, and a drift of the whole over the run.

    >>> run = known_run(200, 60)
    >>> len(run.steps), [KINDS[number] for number in sorted(set(run.phase.tolist()) - {-1})]
    (200, ['warm-up', 'steady', 'summary', 'checkpoint', 'evaluation', 'input stall'])
    """
    if n < 100 or ops < 60:
        raise ValueError(
            f"The n and ops parameters of known_run must be 100 and 60 or more. Got {n} and {ops} instead."
        )
    random = np.random.default_rng(seed)
    phase = _timetable(n)
    counts, micros = _typical(phase, ops, random)
    if hard:
        _harden(counts, micros, random)
    corrupted = random.choice(n, round(n * _CORRUPTED), replace=False)
    corrupted = corrupted[phase[corrupted] != KINDS.index("warm-up")]
    _corrupt(counts, micros, corrupted, random)
    known = phase.copy()
    known[corrupted] = -1
    return KnownRun(_as_steps(counts, micros, phase), known)


def _timetable(n: int) -> NDArray[np.int64]:
    """Return what each step is, corrupted ones aside."""
    every = min(n / _PAPER * 10, 1.0)  # short runs come to the same phases sooner
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
    """Return how often each op ran in each step, and for how many microseconds: like steps by 2 % unlike."""
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
            time[of["forward"][:2]] += 0.4 * time.sum()  # infeed and its kin
        rows = np.flatnonzero(phase == number)
        unlike = random.normal(0, 0.02, (len(rows), ops)) + random.normal(0, 0.01, (len(rows), 1))
        counts[rows], micros[rows] = count, time * np.exp(unlike).astype(np.float32)
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
"""Which operations there are, by share; those of the first two run on the device."""


def _harden(counts: NDArray[np.float32], micros: NDArray[np.float32], random: np.random.Generator) -> None:
    """Let times and counts vary as they do in the wild, in place."""
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
    """Take away 5 to 30 % of the operations of `rows`, and make the times of the others anything, in place."""
    for row in rows:
        ran = np.flatnonzero(counts[row])
        lost = random.choice(ran, max(1, round(len(ran) * random.uniform(0.05, 0.3))), replace=False)
        counts[row, lost] = micros[row, lost] = 0
        left = np.setdiff1d(ran, lost)
        counts[row, left] = np.maximum(1, np.round(counts[row, left] * random.uniform(0.5, 1.5, len(left))))
        micros[row, left] *= random.uniform(0.5, 3.0, len(left)).astype(np.float32)


def _as_steps(counts: NDArray[np.float32], micros: NDArray[np.float32], phase: NDArray[np.int64]) -> Steps:
    """Return the frames of steps that ran those operations, one after the other."""
    n, ops = counts.shape
    device = np.arange(ops) < round(ops * (_PARTS["forward"] + _PARTS["backward"]))
    names = [f"fusion_{i}" if on_device else f"Host{i}" for i, on_device in enumerate(device)]
    names[:2] = ["infeed", "infeed-done"]
    row, op = np.nonzero(counts)
    own = (micros[row, op].astype(np.float64) * 1e6).astype(np.int64)
    rows = pl.DataFrame(
        {
            "host": pl.repeat("known", len(row), eager=True),
            "step": row,
            "op": pl.Series(names, dtype=schema.OPS["op"]).gather(op),
            "side": pl.Series(np.where(device, "device", "host"), dtype=schema.OPS["side"]).gather(op),
            "category": pl.Series([None], dtype=schema.OPS["category"]).new_from_index(0, len(row)),
            "count": counts[row, op].astype(np.int64),
            "total_ps": own,
            "self_ps": own,
        }
    )
    on_device = np.bincount(row, own * device[op], minlength=n).astype(np.int64)
    infeed = np.bincount(row, own * (op < 2), minlength=n).astype(np.int64)
    dur = np.bincount(row, own, minlength=n).astype(np.int64)
    frame = pl.DataFrame(
        {
            "host": pl.repeat("known", n, eager=True),
            "step": np.arange(n),
            "mark": pl.Series(np.where(phase == KINDS.index("evaluation"), "test", "train")),
            "start_ps": np.cumsum(dur) - dur,
            "dur_ps": dur,
            "device_ps": on_device,
            "idle_ps": dur - on_device,
            "infeed_ps": infeed,
            "seen": pl.repeat("full", n, eager=True),
        }
    )
    return Steps(frame, rows, name="known run")
