"""A simulated pod: hosts that wait for each other at collectives, with faults whose cost is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from simulate.step_program import StepProgram, step_program
from tpunb.errors import check_whole
from tpunb.frames import Profile, Steps
from tpunb.text import plural

DELAYS = ("slow chip", "slow input", "pause", "late start", "compile")
"""Faults that delay a host."""

LOSSES = ("missing", "empty", "cut", "garbage", "doubled", "other run")
"""Faults of the file of a host."""

_HOST, _CHIP, _OP = 0.004, 0.002, 0.01  # deviations of the speed of a host, a chip, a run of an operation
_INPUT = 0.02  # mean input wait of sound hosts as a share of a step; it varies by a tenth
_OFFSET_PS, _DRIFT_PPM, _JITTER_PS = 200e6, 2.0, 0.5e6  # of clocks; of the end of a collective
_PAUSED = 0.05  # share of the steps that a pause delays
_LEAST = 0.2  # part of a collective that is never wait

Floats = npt.NDArray[Any]


@dataclass(frozen=True)
class Fault:
    """What is wrong with some hosts of a pod, which are equally slow.

    `kind` is one of `DELAYS` or `LOSSES`, `share` the extra time as a share of the step without faults, mean over
    steps; it comes in every step, every second one, ... (`every`), a pause in 5 % of the steps. `device` is the number
    of a slow chip, `op` its slow operation, all by default.
    """

    kind: str
    hosts: tuple[int, ...]
    share: float = 0.1
    every: int = 1
    device: int = 0
    op: str | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Pod:
    """A simulated pod with known truth, in picoseconds of true time."""

    program: StepProgram
    faults: tuple[Fault, ...]
    arrivals: Floats
    """Time from the first end of the collective before to the arrival, (hosts, chips, steps, collectives)."""
    sound: Mapping[int, Floats]
    """The same of each delayed host without its faults."""
    slow: Mapping[int, Floats]
    """What slow chips add to these arrivals."""
    waits: Mapping[str, Floats]
    """Time before the launch of a step by cause, "input", "compile" or "host": (hosts, steps) each."""
    late_ends: Floats
    """How much later than the first a host sees the end of a collective, (hosts, steps, collectives)."""
    offset_ps: Floats
    """What the clock of each host shows at time 0."""
    drift_ppm: Floats
    """How fast it gains."""

    @property
    def hosts(self) -> list[str]:
        """Names of the hosts, by number."""
        return [f"pod-{number:04d}" for number in range(len(self.arrivals))]

    @cached_property
    def latest(self) -> Floats:
        """Arrival of the last chip of each host, (hosts, steps, collectives)."""
        return np.asarray(self.arrivals.max(axis=1))

    @cached_property
    def transfers(self) -> Floats:
        """Time of each collective from the last arrival to its first end: its duration less waits within a host."""
        waits = (self.latest - self.arrivals.mean(axis=1) + self.late_ends).mean(axis=(0, 1), dtype=np.float64)
        durations = self.program.collectives["dur_ps"].to_numpy()
        return np.asarray(np.maximum(durations - waits, _LEAST * durations))

    def ends(self, without: Sequence[int] = ()) -> Floats:
        """Return the first end of each collective, (steps, collectives), with the faults of some hosts taken away."""
        latest = self.latest
        if without:
            latest = latest.copy()
            latest[[*without]] = [self.sound[host].max(axis=0) for host in without]
        lasts = latest.max(axis=0).astype(np.float64) + self.transfers
        return np.asarray(lasts.cumsum().reshape(lasts.shape))

    def cost_ps(self, *hosts: int) -> float:
        """Return the time that the pod gains when simulated again without the faults of these hosts."""
        return float(self.ends()[-1, -1] - self.ends([host for host in hosts if host in self.sound])[-1, -1])

    @property
    def truth(self) -> pl.DataFrame:
        """One row per host: ``host``, ``fault`` (or null), ``cost_ps``, ``offset_ps``, ``drift_ppm``."""
        kinds = [[fault.kind for fault in self.faults if host in fault.hosts] for host in range(len(self.hosts))]
        return pl.DataFrame(
            {
                "host": self.hosts,
                "fault": pl.Series([", ".join(kind) or None for kind in kinds], dtype=pl.String),
                "cost_ps": [round(self.cost_ps(host)) for host in range(len(self.hosts))],
                "offset_ps": np.rint(self.offset_ps).astype(np.int64),
                "drift_ppm": self.drift_ppm,
            }
        )

    def __repr__(self) -> str:
        hosts, chips, steps, collectives = self.arrivals.shape
        kinds = ", ".join(fault.kind for fault in self.faults) or "no fault"
        size = f"{plural(hosts, 'host')} x {plural(chips, 'chip')}"
        return f"Pod({size}, {plural(steps, 'step')} of {plural(collectives, 'collective')}, {kinds})"


def pod(
    capture: Profile | Steps | StepProgram,
    *,
    hosts: int = 8,
    chips: int = 4,
    steps: int = 20,
    seed: int = 0,
    faults: Sequence[Fault] = (),
    folder: Path | str | None = None,
) -> Pod:
    """Simulate a pod whose devices run the step of one real capture and wait for each other at its collectives.

    Parameters
    ----------
    capture
        Profile or steps that names and durations of operations are drawn from, or a step of :func:`step_program`.
    hosts, chips, steps
        Number of hosts, of devices of each, and of steps.
    seed
        Seed of all random numbers.
    faults
        What is wrong with some hosts.
    folder
        Where to write an XPlane file of each host; no files by default.

    Raises
    ------
    TpunbError
        If the capture has no operations or no collectives.
    ValueError
        If a number is not an integer of 1 or more, or the pod lacks the host, device or operation of a fault.

    >>> from tpunb.testing import toy_steps
    >>> simulated = pod(step_program(toy_steps(), collectives=2), faults=[Fault("slow input", (3,), 0.2)])
    >>> simulated, round(simulated.cost_ps(3) / float(simulated.ends().max()), 2)
    (Pod(8 hosts x 4 chips, 20 steps of 2 collectives, slow input), 0.16)
    """
    shape = [check_whole("pod", name, n, 1) for name, n in (("hosts", hosts), ("chips", chips), ("steps", steps))]
    program = capture if isinstance(capture, StepProgram) else step_program(capture, seed=seed)
    for fault in faults:
        known = fault.kind in DELAYS + LOSSES and {*fault.hosts} <= {*range(hosts)} and 0 <= fault.device < chips
        if not known or not _slow_runs(program, fault).any():
            raise ValueError(f"The faults parameter of pod must fit its hosts and operations. Got {fault} instead.")
    rng = np.random.default_rng(seed)
    arrivals, waits, late_ends = _sound(program, (*shape, program.collectives.height), rng)
    clocks = rng.normal(0, _OFFSET_PS, hosts), rng.normal(0, _DRIFT_PPM, hosts)
    delays = [(fault, host) for fault in faults if fault.kind in DELAYS for host in fault.hosts]
    sound = {host: arrivals[host].copy() for _, host in delays}
    slow = {host: np.zeros_like(arrivals[host]) for _, host in delays}
    for fault, host in delays:
        extra = _extra(fault, steps, rng) * program.step_ps
        if fault.kind == "slow chip":
            longer = _slow_runs(program, fault) * program.runs["dur_ps"].to_numpy()
            of_segment = np.bincount(program.runs["segment"], longer, program.collectives.height)
            slow[host][fault.device] += extra[:, None] * of_segment / longer.sum()
        else:
            waits[{"slow input": "input", "compile": "compile"}.get(fault.kind, "host")][host] += extra
            arrivals[host, ..., 0] += extra
    for host, extra in slow.items():
        arrivals[host] += extra
    simulated = Pod(program, tuple(faults), arrivals, sound, slow, waits, late_ends, *clocks)
    if folder is not None:
        from simulate.pod_files import write

        write(simulated, Path(folder))
    return simulated


def _sound(
    program: StepProgram, shape: tuple[int, ...], rng: np.random.Generator
) -> tuple[Floats, dict[str, Floats], Floats]:
    """Return the arrivals of sound hosts, their waits before each step, and how late they see the ends."""
    hosts, chips, steps, n = shape
    segment, durs = (program.runs[name].to_numpy() for name in ("segment", "dur_ps"))
    speed = np.exp(rng.normal(0, _HOST, hosts))[:, None] * np.exp(rng.normal(0, _CHIP, (hosts, chips)))
    speed = (speed / speed.mean()).astype(np.float32)[:, :, None, None]
    arrivals = rng.standard_normal(shape, np.float32)
    arrivals *= (_OP * np.sqrt(np.bincount(segment, durs**2, n))).astype(np.float32)
    arrivals += speed * np.bincount(segment, durs, n).astype(np.float32)
    late_ends = np.abs(rng.standard_normal((hosts, steps, n), np.float32)) * np.float32(_JITTER_PS)
    arrivals += before(late_ends)[:, None]
    mean = _INPUT * program.step_ps
    waits = {name: np.zeros((hosts, steps)) for name in ("input", "compile", "host")}
    waits["input"] += np.abs(rng.normal(mean, mean / 10, (hosts, steps)))
    arrivals[..., 0] += waits["input"][:, None]
    return arrivals, waits, late_ends


def slow_time(pod: Pod, host: int) -> Floats:
    """Return the extra time of each run on slow chips of a host, (chips, steps, runs)."""
    segment, durs = (pod.program.runs[name].to_numpy() for name in ("segment", "dur_ps"))
    slow = np.zeros(len(durs))
    for fault in (fault for fault in pod.faults if fault.kind == "slow chip" and host in fault.hosts):
        slow = np.maximum(slow, _slow_runs(pod.program, fault) * durs)
    share = slow / np.maximum(np.bincount(segment, slow), 1)[segment]
    return np.asarray(pod.slow.get(host, np.zeros_like(pod.arrivals[host]))[..., segment] * share)


def before(ends: Floats) -> Floats:
    """Return the value of the collective before each, over steps; 0 for the first."""
    flat = ends.reshape(*ends.shape[:-2], -1)
    return np.concatenate([np.zeros_like(flat[..., :1]), flat[..., :-1]], axis=-1).reshape(ends.shape)


def launched(pod: Pod, host: int | slice) -> Floats:
    """Return the time from the end of the collective before to the next run, (..., steps, collectives)."""
    since = before(pod.late_ends[host]).astype(np.float64)
    since[..., 0] += sum(waits[host] for waits in pod.waits.values())
    return since


def _slow_runs(program: StepProgram, fault: Fault) -> npt.NDArray[np.bool_]:
    """Return which runs of the step a slow chip is slow in."""
    if fault.op is None:
        return np.ones(program.runs.height, bool)
    return np.asarray(program.runs.select(pl.any_horizontal(pl.col("name", "op") == fault.op)).to_series())


def _extra(fault: Fault, steps: int, rng: np.random.Generator) -> Floats:
    """Return the extra time of each step as a share of a step."""
    ran = np.arange(steps) % fault.every == fault.every - 1
    if fault.kind == "pause":
        ran = rng.permutation(steps) < max(round(_PAUSED * steps), 1)
    return np.asarray(ran * fault.share * steps / max(ran.sum(), 1))
