"""Profile: the profiler's record of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from tpunb import schema
from tpunb.errors import TpunbError, not_kept
from tpunb.frames.conversion import to_pandas
from tpunb.frames.standing import Standing
from tpunb.frames.steps import RunEvents, Steps
from tpunb.text import count, plural, short

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
class Profile:
    """Record of a run: the events of raw captures, or the steps that a capture stored.

    Parameters
    ----------
    name
        Name of the run: that of its folder or file.
    source
        Path or URL that it was read from.
    windows
        Capture windows, failed ones included: ``tpunb.schema.WINDOWS``.
    hardware
        Devices and their peaks: ``tpunb.schema.HARDWARE``.
    span_ps
        Duration of the run in picoseconds.
    origin_ns
        Time 0 of the profile in nanoseconds since the epoch; None if unknown.
    stored
        Steps that a capture stored.
    read_events
        Function that decodes the raw events on access; None if none were kept.
    read_batches
        Functions that decode the raw events of a few hosts each; empty if all are decoded at once.
    read_details
        Function that decodes another frame of the raw files on access, by its name: "instructions", "buffers",
        "counters", "memory", "messages", "calls", "protos"; None if none were kept.
    stored_clocks
        ``tpunb.schema.CLOCKS`` that a capture stored.
    read_clocks
        Function from raw events to ``tpunb.schema.CLOCKS``; None if they are stored or unknown.
    reused
        Whether the decoded events came from the cache.
    overhead
        Time lost to windows and checkpoints, of the run time without, estimated: 0.02 is 2 %; None if unknown.
    overhead_interval
        Ends of its 95 % interval; None if unknown.
    skipped
        Files that could not be used, each with the reason; of a run, raw windows that were damaged when read.
    notes
        What readers of the files left out or changed, each with its count, and jumps of the clock in a run.
    misfits
        Attributes that the program's versions of libraries lack, a line each: what these show was not recorded; or
        what else was not, each with a tab and what shows it.
    state
        "running", "finished", "cut" if the process was killed, or how the run ended otherwise; of other profiles None.
    standing
        What was seen of a training that stands still, or did until it was killed; else None.
    given
        Names of operations whose work the caller of ``tp.load`` gave.
    is_cut
        Whether a file ends before the run does, which may be observed less than `observed`.
    """

    name: str
    source: Path | str
    windows: pl.DataFrame
    hardware: pl.DataFrame
    span_ps: int
    origin_ns: int | None = None
    stored: Steps | None = None
    read_events: Callable[[], pl.DataFrame] | None = None
    read_batches: Sequence[Callable[[], pl.DataFrame]] = ()
    read_details: Callable[[str], pl.DataFrame] | None = None
    read_run_events: Callable[[], RunEvents] | None = None
    stored_clocks: pl.DataFrame | None = None
    read_clocks: Callable[[pl.DataFrame], pl.DataFrame] | None = None
    reused: bool = False
    overhead: float | None = None
    overhead_interval: tuple[float, float] | None = None
    skipped: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
    misfits: Sequence[str] = ()
    given: frozenset[str] = frozenset()
    is_cut: bool = False
    state: str | None = None
    standing: Standing | None = None
    cached_steps: list[Steps] = field(default_factory=list, init=False, repr=False, compare=False)  # of `stored`

    def __post_init__(self) -> None:
        object.__setattr__(self, "windows", schema.check(self.windows, schema.WINDOWS, "windows"))
        object.__setattr__(self, "hardware", schema.check(self.hardware, schema.HARDWARE, "hardware"))

    @cached_property
    def events(self) -> pl.DataFrame:
        """The raw events, ``tpunb.schema.EVENTS``.

        Raises
        ------
        TpunbError
            If the capture kept statistics only.
        """
        if self.read_events is None:
            raise self._not_kept("raw events")
        return schema.check(self.read_events(), schema.EVENTS, "events")

    @cached_property
    def run_events(self) -> RunEvents:
        """What libraries were asked to do in the run; raises TpunbError of what no capture recorded."""
        if self.read_run_events is None:
            raise self._not_kept("events of libraries")
        return self.read_run_events()

    def batches(self) -> Iterator[pl.DataFrame]:
        """Yield `events` of a few hosts at a time, so that many hosts need not fit into memory together."""
        if "events" in self.__dict__ or not self.read_batches:
            yield self.events
            return
        for read in self.read_batches:
            yield schema.check(read(), schema.EVENTS, "events")

    @cached_property
    def instructions(self) -> pl.DataFrame:
        """Shape, source line and replica groups of HLO instructions, ``tpunb.schema.INSTRUCTIONS``.

        Source paths begin after ``site-packages`` or ``dist-packages``; of others the name of the file is kept. Like
        `counters` and `memory`, it is read from the raw files on access.

        Raises
        ------
        TpunbError
            If the capture kept statistics only, or a raw file cannot be read again.
        """
        return self._details("instructions")

    @cached_property
    def buffers(self) -> pl.DataFrame:
        """Memory of compiled programs by instruction and layer, ``tpunb.schema.BUFFERS``; raises as `instructions`.

        Sums over buffers count memory that is used again several times; `allocation_bytes` of each allocation once is
        what a run of the program needs.
        """
        return self._details("buffers")

    @cached_property
    def protos(self) -> pl.DataFrame:
        """Compiled programs as messages, ``tpunb.schema.PROTOS``; raises as `instructions`, empty if unknown."""
        return self._details("protos")

    @cached_property
    def counters(self) -> pl.DataFrame:
        """Samples of hardware counters, ``tpunb.schema.COUNTERS``; raises as `instructions`, empty if unknown."""
        return self._details("counters")

    @cached_property
    def memory(self) -> pl.DataFrame:
        """Memory in use after each allocation, ``tpunb.schema.MEMORY``; raises as `instructions`, empty if unknown."""
        return self._details("memory")

    @cached_property
    def messages(self) -> pl.DataFrame:
        """Messages of NCCL's kernels, ``tpunb.schema.MESSAGES``; raises as `instructions`, empty if unknown."""
        return self._details("messages")

    @cached_property
    def calls(self) -> pl.DataFrame:
        """Operators of PyTorch behind kernels, ``tpunb.schema.CALLS``; raises as `instructions`, empty if unknown."""
        return self._details("calls")

    def _details(self, kind: str) -> pl.DataFrame:
        if self.read_details is None:
            raise self._not_kept(kind)
        return self.read_details(kind)

    def _not_kept(self, what: str) -> TpunbError:
        return not_kept(self.name, what, job=self.stored is not None and self.stored.by_host is not None)

    @cached_property
    def clocks(self) -> pl.DataFrame:
        """Launch delay and clock skew of each device, ``tpunb.schema.CLOCKS``; empty if unknown."""
        if self.stored_clocks is not None:
            return schema.check(self.stored_clocks, schema.CLOCKS, "clocks")
        if self.read_events is None or self.read_clocks is None:
            return pl.DataFrame(schema=schema.CLOCKS)
        return self.read_clocks(self.events)

    @property
    def gaps(self) -> pl.DataFrame:
        """Time between windows: (host, start_ps, dur_ps), in order of host and time."""
        windows = self.windows.filter(pl.col("dur_ps") > 0)
        windows = windows.select("host", "start_ps", end_ps=pl.col("start_ps") + pl.col("dur_ps"))
        hosts = self.windows["host"].unique(maintain_order=True).to_list() or [""]  # hosts without a window too
        end = pl.DataFrame({"host": hosts}, schema={"host": pl.String})
        end = end.with_columns(start_ps=pl.lit(self.span_ps, pl.Int64), end_ps=pl.lit(self.span_ps, pl.Int64))
        edges = pl.concat([windows, end]).sort("host", "start_ps")
        # the last window may begin when the run has just ended
        edges = edges.with_columns(pl.col("start_ps", "end_ps").clip(0, max(self.span_ps, 0)))
        before = pl.col("end_ps").cum_max().shift(1, fill_value=0).over("host")
        return edges.select("host", start_ps=before, dur_ps=pl.col("start_ps") - before).filter(pl.col("dur_ps") > 0)

    @property
    def observed(self) -> float:
        """Share of run time inside a window, mean over the hosts, 0 to 1."""
        hosts = max(self.windows["host"].n_unique(), 1)
        if self.span_ps <= 0:
            return 0.0
        return max(0.0, 1.0 - int(self.gaps["dur_ps"].sum()) / (self.span_ps * hosts))

    def __repr__(self) -> str:
        devices = (str(device).removeprefix("/device:").removeprefix("/host:") for device in self.hardware["device"])
        kinds = Counter(device.partition(":")[0] for device in devices)
        parts = [plural(max(self.windows["host"].n_unique(), 1), "host")]
        parts += [plural(n, kind) for kind, n in sorted(kinds.items()) if kind != "CPU"]
        parts += [f"{count(int(self.windows['events'].sum()))} events", f"{short(self.span_ps / 1e12)} s"]
        parts += ["cut" if self.is_cut else f"{self.observed:.0%} of the run observed"]
        parts += [f"{plural(len(self.skipped), 'file')} skipped"] if self.skipped else []
        parts += ["reused"] if self.reused else []
        return f"Profile({self.name}, {', '.join(parts)})"

    def to_pandas(self) -> pd.DataFrame:
        """Convert `windows` to a pandas DataFrame (requires the extra ``pandas``)."""
        return to_pandas(self.windows)


def device_kinds(hardware: pl.DataFrame) -> str:
    """Return the kinds of devices in ``tpunb.schema.HARDWARE``, CPUs left out; "" if there are none.

    >>> device_kinds(pl.DataFrame({"kind": ["TPU v2", "CPU", "TPU v2"]}))
    'TPU v2'
    """
    return " and ".join(sorted({*hardware["kind"].drop_nulls()} - {"CPU"}))
