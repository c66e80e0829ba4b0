"""Small runs whose phases a person would name: what phase methods and their confidence are tested on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from simulate.synthetic_runs import SyntheticRun, as_steps
from tpunb.frames.op_matrix import Floats, Ints

_FORWARD, _BACKWARD = slice(0, 36), slice(36, 60)  # operations of the device, those of experts after them
_FEED, _EVALUATE, _SAVE = slice(-30, -10), slice(-10, -7), slice(-7, None)  # operations of the host
_OPS, _HOST, _EXPERTS = 90, 30, 64
_HOST_NOISE = 7  # times the scatter of times on the device
_RARE, _RARE_MICROS = 2, 1.0  # host operations of hardly any time that one step in five lacks


@dataclass
class _Plan:
    """Program of each step, and the microseconds of every operation in each program."""

    phase: Ints
    programs: Floats
    names: tuple[str, ...] = ("train",)
    pace: Floats | float = 1.0  # factor of the times of each step
    ran: NDArray[np.bool_] | bool = True  # operations of its program that each step ran
    noise: float = 0.03  # scatter of an operation's time on the device, as a share of it
    ops: bool = True  # whether operations are known, or step times alone


def scenario(name: str, *, seed: int = 0) -> SyntheticRun:
    """Return a small run of known phases.

    Operations vary by 3 % on the device and by 20 % on the host from step to step; one step in five lacks two host
    operations of hardly any time.

    Parameters
    ----------
    name
        Name of the run, a key of `SCENARIOS`.
    seed
        Seed of all random numbers.

    Raises
    ------
    ValueError
        If there is no such run.

    >>> run = scenario("60 steps of two kinds")
    >>> len(run.steps), [run.names[number] for number in sorted(set(run.phase.tolist()))]
    (60, ['train', 'evaluation'])
    """
    if name not in SCENARIOS:
        raise ValueError(f"The name parameter of scenario must be one of {[*SCENARIOS]}. Got {name!r} instead.")
    random = np.random.default_rng(seed)
    plan = SCENARIOS[name](random)
    typical = plan.programs[plan.phase]
    n, d = typical.shape
    noise = random.normal(0, plan.noise, (n, d)) + random.normal(0, plan.noise / 2, (n, 1))
    noise[:, -_HOST:] *= _HOST_NOISE
    micros = typical * np.exp(noise) * np.broadcast_to(plan.pace, n)[:, None] * plan.ran
    rare = np.arange(d)[_FEED][:_RARE]
    micros[:, rare] = (random.random((n, _RARE)) > 0.2) * _RARE_MICROS
    kinds = np.array(["eval" if name == "evaluation" else "train" for name in plan.names])[plan.phase]
    named = [*(f"fusion_{i}" for i in range(d - _HOST)), *(f"Host{i}" for i in range(_HOST))]
    named[:2], named[-7:] = ["infeed", "infeed-done"], ["SaveV2", *(f"MergeV2Checkpoints_{i}" for i in range(6))]
    steps = as_steps((micros > 0).astype(np.float32), micros.astype(np.float32), kinds, named)
    waits = np.array(["input" in name for name in plan.names])[plan.phase]
    wait = pl.Series(np.where(waits, steps.frame["infeed_ps"], 0))
    frame = steps.frame.with_columns(input_ps=wait) if waits.any() else steps.frame
    ops = steps.ops if plan.ops else steps.ops.clear()
    return SyntheticRun(replace(steps, frame=frame, ops=ops), plan.phase, plan.names)


def _programs(random: np.random.Generator) -> dict[str, Floats]:
    """Return the microseconds of each operation in a step of each name."""
    times = np.append(random.lognormal(4.5, 1, _OPS - _HOST), random.lognormal(3, 1, _HOST))
    train, evaluation, checkpoint = times.copy(), times.copy(), times.copy()
    train[_EVALUATE] = train[_SAVE] = evaluation[_BACKWARD] = evaluation[_SAVE] = checkpoint[_EVALUATE] = 0
    checkpoint[_SAVE] *= train.sum() / checkpoint[_SAVE].sum() / 2
    waiting = train.copy()
    waiting[:2] += train.sum() * 0.4
    return {"train": train, "evaluation": evaluation, "checkpoint": checkpoint, "train (input-bound)": waiting}


def _of(random: np.random.Generator, phase: Ints, *names: str) -> _Plan:
    programs = _programs(random)
    return _Plan(phase, np.stack([programs[name] for name in names]), names)


def _equal(n: int) -> Callable[[np.random.Generator], _Plan]:
    return lambda random: _of(random, np.zeros(n, np.int64), "train")


def _table(random: np.random.Generator) -> _Plan:
    """Three steps of an XProf table: step times of 313.5 ms with a scatter of 0.1 %, without operations."""
    program = np.zeros((1, _OPS))
    program[0, 0] = 313_500.0
    return _Plan(np.zeros(3, np.int64), program, noise=0.001, ops=False)


def _two_kinds(random: np.random.Generator) -> _Plan:
    return _of(random, np.repeat([0, 1, 0, 1], [20, 10, 20, 10]), "train", "evaluation")


def _checkpoints(random: np.random.Generator) -> _Plan:
    phase = np.zeros(1000, np.int64)
    phase[49::50] = 2
    phase[np.arange(1000) % 250 >= 230] = 1
    return _of(random, phase, "train", "evaluation", "checkpoint")


def _stalls(random: np.random.Generator) -> _Plan:
    phase = np.repeat([0, 1, 0, 1, 0], [250, 40, 300, 60, 250])
    return _of(random, phase, "train", "train (input-bound)")


def _twenty(random: np.random.Generator) -> _Plan:
    """Twenty programs in turn, each of 25 of the device's operations."""
    programs = np.stack([_programs(random)["train"]] * 20)
    for program in programs:
        program[random.choice(_OPS - _HOST, 35, replace=False)] = 0
    return _Plan(np.tile(np.arange(20), 500), programs, tuple(f"program {number}" for number in range(20)))


def _routing(random: np.random.Generator) -> _Plan:
    """Training and evaluation in which each step runs eight of 64 experts."""
    plan = _of(random, np.tile(np.repeat([0, 1], [90, 10]), 6), "train", "evaluation")
    n = len(plan.phase)
    chosen = random.random((n, _EXPERTS)).argsort(axis=1) < 8
    plan.programs = np.insert(plan.programs, [_OPS - _HOST] * _EXPERTS, 100.0, axis=1)
    plan.ran = np.insert(np.ones((n, _OPS), np.bool_), [_OPS - _HOST] * _EXPERTS, chosen, axis=1)
    return plan


def _slowdown(random: np.random.Generator) -> _Plan:
    plan = _equal(1000)(random)
    plan.pace = np.linspace(1, 1.6, 1000)
    return plan


def _buckets(random: np.random.Generator) -> _Plan:
    """Batches of three lengths in random order, each twice as long as the one before."""
    train = _programs(random)["train"]
    programs = np.stack([np.concatenate([train[:-_HOST] * factor, train[-_HOST:]]) for factor in (1, 2, 4)])
    return _Plan(random.choice(3, 900), programs, ("train short", "train", "train long"))


SCENARIOS: dict[str, Callable[[np.random.Generator], _Plan]] = {
    "3 step times": _table,
    "5 equal steps": _equal(5),
    "10 equal steps": _equal(10),
    "60 equal steps": _equal(60),
    "2,000 equal steps": _equal(2000),
    "60 steps of two kinds": _two_kinds,
    "checkpoints and evaluation": _checkpoints,
    "input stalls": _stalls,
    "20 programs": _twenty,
    "changing routing": _routing,
    "slow-down": _slowdown,
    "bucketed lengths": _buckets,
}
"""Runs of :func:`scenario` by name."""
