"""The windows of a capture: what a source responds, what is left of that, and which are kept as they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from tpunb import schema
from tpunb.errors import TpunbError
from tpunb.frames import Steps
from tpunb.profiler.limits import LIMITS
from tpunb.profiler.step_clock import StepRecord

LOCAL = ""
"""The worker name of this process in the windows of a source that profiles nothing else."""


@dataclass(frozen=True)
class WindowResponse:
    """The response of a source to a request: an XSpace, or the error, by worker."""

    number: int
    reason: str
    requested_ns: int
    received_ns: int
    workers: Mapping[str, bytes | TpunbError]
    lead_ns: int = 0  # of the system clock, by which profilers record, over the monotonic clock


@dataclass
class ReducedWindow:
    """The statistics of a window, in the run's time."""

    windows: list[dict[str, Any]] = field(default_factory=list)  # rows of WINDOWS
    steps: dict[str, Steps] = field(default_factory=dict)  # by host
    scanned: Steps | None = None  # of the worker whose phases are scanned
    clocks: list[pl.DataFrame] = field(default_factory=list)
    raw: dict[str, bytes] = field(default_factory=dict)  # by host
    ran: dict[str, pl.DataFrame] = field(default_factory=dict)  # instructions of programs by host: (program, hlo_op)
    full: Counter[str] = field(default_factory=Counter)  # fully traced steps by kind
    phases: Counter[int] = field(default_factory=Counter)  # and by phase
    paces: Counter[tuple[int, int]] = field(default_factory=Counter)  # and by phase and pace
    opened: bool = False  # whether it ends in a phase that no earlier window saw
    undersampled: bool = False  # whether it ends in a phase with few traced steps so far
    messages: list[str] = field(default_factory=list)  # errors and warnings of the profiler

    @property
    def traced_ps(self) -> int:
        """The time that the profiler recorded: the longest of the workers."""
        return max((row["dur_ps"] for row in self.windows), default=0)

    @property
    def events(self) -> int:
        """The number of events of the largest worker."""
        return max((row["events"] for row in self.windows), default=0)

    @property
    def step_ps(self) -> float:
        """The median time of a fully traced step; 0 without any."""
        if self.scanned is None or not len(full := self.scanned.full()):
            return 0.0
        return float(full.frame.select(pl.col("dur_ps").median()).item())

    @property
    def queue_ps(self) -> int:
        """The lag of the devices behind the host."""
        return max((delay for clocks in self.clocks for delay in clocks["delay_ps"].drop_nulls()), default=0)

    def tables(self) -> dict[str, pl.DataFrame]:
        """Return its tables by the names of a part's files."""
        tables = {"windows": pl.DataFrame(self.windows, schema=schema.WINDOWS)}
        if self.steps:
            tables["steps"] = pl.concat([steps.frame for steps in self.steps.values()])
            tables["ops"] = pl.concat([steps.ops for steps in self.steps.values()])
            tables["devices"] = pl.concat([steps.devices for steps in self.steps.values()])
            tables["clocks"] = pl.concat(self.clocks)
        return tables


def window_facts(response: WindowResponse, records: Sequence[StepRecord]) -> dict[str, Any]:
    """Return, for JSON, a window without its data, and the steps of the host clock that may overlap it."""
    workers = {worker: str(data) if isinstance(data, TpunbError) else None for worker, data in response.workers.items()}
    return {**vars(response), "workers": workers, "records": records}


class RawWindowPolicy:
    """Choose the raw windows to keep: one per phase and pace, the first with enough steps of it; without any the first.

    Steps of one phase of the online scan at two paces are two phases later.
    """

    def __init__(self) -> None:
        self._best: dict[Hashable, tuple[int, int]] = {}  # by phase: steps, window

    def offer(self, window: int, phases: Mapping[Any, int]) -> tuple[bool, list[int]]:
        """Return whether to keep a window, and the kept windows that it replaces; `phases` has steps by phase."""
        before = {kept for _, kept in self._best.values()}
        if phases:
            self._best.pop(None, None)
        elif not self._best:
            self._best[None] = 0, window
        for phase, steps in phases.items():
            most, _ = self._best.get(phase, (0, -1))
            if most < min(steps, LIMITS.enough_steps):
                self._best[phase] = steps, window
        after = {kept for _, kept in self._best.values()}
        return window in after, sorted(before - after)
