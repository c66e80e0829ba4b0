"""Profile: what a profiler recorded of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from tpunb import links, schema
from tpunb.frames.steps import Steps
from tpunb.frames.words import count, not_kept, plural, short, to_pandas

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
class Profile:
    """What a profiler recorded: the events of raw captures, or the steps a capture stored.

    Parameters
    ----------
    name
        Of the run: its folder's or its file's.
    source
        Where it was read from.
    windows
        ``tpunb.schema.WINDOWS``: when the profiler watched, and why it did not.
    hardware
        ``tpunb.schema.HARDWARE``: the devices and their peaks.
    span_ps
        How long the run lasted, in picoseconds.
    origin_ns
        Nanoseconds since the epoch of the profile's time 0, or None where the source does not know.
    stored
        The steps a capture stored.
    read_events
        Decodes the raw events when they are asked for; None where none were kept.
    stored_clocks
        ``tpunb.schema.CLOCKS`` as a capture stored them; of raw captures they are read from the events.
    reused
        Whether the events came decoded from the cache.
    overhead
        By how much watching slowed the run, as the capture itself estimates it: 0.02 is 2 %; None where it does not.
    """

    name: str
    source: Path | str
    windows: pl.DataFrame
    hardware: pl.DataFrame
    span_ps: int
    origin_ns: int | None = None
    stored: Steps | None = None
    read_events: Callable[[], pl.DataFrame] | None = None
    stored_clocks: pl.DataFrame | None = None
    reused: bool = False
    overhead: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "windows", schema.check(self.windows, schema.WINDOWS, "windows"))
        object.__setattr__(self, "hardware", schema.check(self.hardware, schema.HARDWARE, "hardware"))

    @cached_property
    def events(self) -> pl.DataFrame:
        """The raw events, ``tpunb.schema.EVENTS``.

        Raises
        ------
        TpunbError
            When the capture kept statistics only.
        """
        if self.read_events is None:
            raise not_kept(self.name, "raw events")
        return schema.check(self.read_events(), schema.EVENTS, "events")

    @cached_property
    def clocks(self) -> pl.DataFrame:
        """How launches on the host and runs on the devices meet, and how far their clocks disagree.

        ``tpunb.schema.CLOCKS``, one row a device; none where nothing is known.
        """
        if self.stored_clocks is not None:
            return schema.check(self.stored_clocks, schema.CLOCKS, "clocks")
        return schema.empty(schema.CLOCKS) if self.read_events is None else links.clocks(self.events)

    @property
    def gaps(self) -> pl.DataFrame:
        """When no window watched: (host, start_ps, dur_ps), in order of time."""
        watched = self.windows.filter(pl.col("dur_ps") > 0).sort("host", "start_ps")
        hosts = self.windows["host"].unique(maintain_order=True).to_list() or [""]  # those never watched too
        edges = pl.concat(
            [
                watched.select("host", "start_ps", end_ps=pl.col("start_ps") + pl.col("dur_ps")),
                pl.DataFrame(
                    {
                        "host": hosts,
                        "start_ps": [self.span_ps] * len(hosts),
                        "end_ps": [self.span_ps] * len(hosts),
                    },
                    schema_overrides={"host": pl.String},
                ),
            ]
        ).sort("host", "start_ps")
        # the last window may begin when the run has just ended
        edges = edges.with_columns(pl.col("start_ps", "end_ps").clip(0, max(self.span_ps, 0)))
        before = pl.col("end_ps").cum_max().shift(1, fill_value=0).over("host")
        return edges.select("host", start_ps=before, dur_ps=pl.col("start_ps") - before).filter(pl.col("dur_ps") > 0)

    @property
    def observed(self) -> float:
        """Share of the run's time in which a window watched, mean over the hosts, 0 to 1."""
        hosts = max(self.windows["host"].n_unique(), 1)
        if self.span_ps <= 0:
            return 0.0
        return max(0.0, 1.0 - int(self.gaps["dur_ps"].sum()) / (self.span_ps * hosts))

    def __repr__(self) -> str:
        kinds: dict[str, int] = {}
        for device in self.hardware["device"]:
            kind = str(device).removeprefix("/device:").removeprefix("/host:").partition(":")[0]
            kinds[kind] = kinds.get(kind, 0) + 1
        parts = [plural(max(self.windows["host"].n_unique(), 1), "host")]
        parts += [plural(n, kind) for kind, n in sorted(kinds.items()) if kind != "CPU"]
        parts += [f"{count(int(self.windows['events'].sum()))} events", f"{short(self.span_ps / 1e12)} s"]
        parts += [f"{self.observed:.0%} of the run observed"]
        parts += ["reused"] if self.reused else []
        return f"Profile({self.name}, {', '.join(parts)})"

    def to_pandas(self) -> pd.DataFrame:
        """Return `windows` as a pandas DataFrame (needs the extra ``pandas``)."""
        return to_pandas(self.windows)
