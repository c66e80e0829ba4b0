"""The nouns that flow through the house: Profile, Steps, Phases.

Each is frozen and holds Polars frames; their columns are listed in :mod:`tpunb.schema`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from tpunb import export, schema
from tpunb.errors import TpunbError, need

if TYPE_CHECKING:
    import pandas as pd


def _to_pandas(frame: pl.DataFrame) -> pd.DataFrame:
    need("pandas", extra="pandas")
    need("pyarrow", extra="pandas")
    return frame.to_pandas()


def _plural(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


@dataclass(frozen=True, eq=False, repr=False)
class Steps:
    """One row a (host, step), and the operations that ran in it.

    Parameters
    ----------
    frame
        ``tpunb.schema.STEPS``, sorted by host and start.
    ops
        ``tpunb.schema.OPS``: one row a (host, step, op, side).
    devices
        ``tpunb.schema.DEVICES``: the figures of `frame` a device.
    windows
        ``tpunb.schema.WINDOWS``: when the profiler watched.
    name
        Of the run, for titles.
    """

    frame: pl.DataFrame
    ops: pl.DataFrame
    devices: pl.DataFrame = field(default_factory=lambda: schema.empty(schema.DEVICES))
    windows: pl.DataFrame = field(default_factory=lambda: schema.empty(schema.WINDOWS))
    name: str = ""

    def __post_init__(self) -> None:
        frame = schema.check(self.frame, schema.STEPS, "steps").sort("host", "start_ps", "step")
        object.__setattr__(self, "frame", frame)
        object.__setattr__(self, "ops", schema.check(self.ops, schema.OPS, "ops"))
        object.__setattr__(self, "devices", schema.check(self.devices, schema.DEVICES, "devices"))
        object.__setattr__(self, "windows", schema.check(self.windows, schema.WINDOWS, "windows"))

    def __len__(self) -> int:
        return self.frame.height

    def __repr__(self) -> str:
        full = self.frame.filter(pl.col("seen") == "full").height
        return f"Steps({_plural(len(self), 'step')}, {_plural(self.ops['op'].n_unique(), 'op')}, {full} seen in full)"

    def full(self) -> Steps:
        """Return the steps that were seen in full, with their operations."""
        if (self.frame["seen"] == "full").all():
            return self
        frame = self.frame.filter(pl.col("seen") == "full")
        key = frame.select("host", "step")
        return replace(
            self,
            frame=frame,
            ops=self.ops.join(key, on=["host", "step"], how="semi"),
            devices=self.devices.join(key, on=["host", "step"], how="semi"),
        )

    def to_pandas(self) -> pd.DataFrame:
        """Return `frame` as a pandas DataFrame (needs the extra ``pandas``)."""
        return _to_pandas(self.frame)


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
    """

    name: str
    source: Path
    windows: pl.DataFrame
    hardware: pl.DataFrame
    span_ps: int
    origin_ns: int | None = None
    stored: Steps | None = None
    read_events: Callable[[], pl.DataFrame] | None = None

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
            raise TpunbError(
                f"{self.name} holds no raw events: its capture kept statistics only",
                hint="capture with keep='all' (in the magic: --keep all) to keep the raw windows",
            )
        return schema.check(self.read_events(), schema.EVENTS, "events")

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
        parts = [_plural(max(self.windows["host"].n_unique(), 1), "host")]
        parts += [_plural(n, kind) for kind, n in sorted(kinds.items()) if kind != "CPU"]
        parts += [f"{_count(int(self.windows['events'].sum()))} events", f"{_short(self.span_ps / 1e12)} s"]
        return f"Profile({self.name}, {', '.join(parts)}, {self.observed:.0%} of the run observed)"

    def to_pandas(self) -> pd.DataFrame:
        """Return `windows` as a pandas DataFrame (needs the extra ``pandas``)."""
        return _to_pandas(self.windows)


def _count(n: int) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if n >= size:
            return f"{_short(n / size)}{letter}"
    return str(n)


def _short(number: float) -> str:
    return f"{number:.3g}" if number < 999.5 else f"{number:.0f}"  # never 1.23e+03


def _check_count(n: int, method: str) -> None:
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n < 2**31:
        raise ValueError(f"The n parameter of {method} must be an int of 1 or more. Got {n!r} instead.")


PhaseMethod = Callable[[Steps], Sequence[int]]
"""A phase method: the steps seen in full in, one label a step out, -1 for noise."""


class Labels(list[int]):
    """One label a step, with every sweep the choice was made from.

    Parameters
    ----------
    labels
        One int a step, -1 for noise.
    sweeps
        Frames by the name of the parameter that was swept; the column ``chosen`` marks the choice.
    """

    def __init__(self, labels: Sequence[int], sweeps: Mapping[str, pl.DataFrame] | None = None) -> None:
        super().__init__(int(label) for label in labels)
        self.sweeps = dict(sweeps or {})


@dataclass(frozen=True)
class Phase:
    """One phase: its number, its steps and its share of the run's time.

    Parameters
    ----------
    id
        The label; -1 is noise.
    steps
        The rows of ``Steps.frame`` in the phase.
    share
        Of the time of all steps, 0 to 1.
    """

    id: int
    steps: pl.DataFrame
    share: float

    def __repr__(self) -> str:
        name = "noise" if self.id < 0 else f"phase {self.id}"
        return f"Phase({name}, {_plural(self.steps.height, 'step')}, {self.share:.1%} of the time)"


@dataclass(frozen=True, eq=False, repr=False)
class Phases:
    """Steps grouped into phases.

    Parameters
    ----------
    steps
        What was grouped.
    labels
        One label a row of ``steps.frame``; -1 is noise.
    method
        The method that gave them.
    distance
        Of each step to the centre of its phase, in feature space; null where the step was not seen in full.
    sweeps
        Every sweep a choice was made from, by the name of the parameter.
    """

    steps: Steps
    labels: pl.Series
    method: PhaseMethod
    distance: pl.Series
    sweeps: Mapping[str, pl.DataFrame] = field(default_factory=dict)

    @cached_property
    def labelled(self) -> pl.DataFrame:
        """``steps.frame`` with the columns ``phase`` and ``distance``."""
        return self.steps.frame.with_columns(
            self.labels.cast(pl.Int64).alias("phase"), self.distance.cast(pl.Float64).alias("distance")
        )

    @cached_property
    def frame(self) -> pl.DataFrame:
        """One row a phase, longest first: ``tpunb.schema.PHASES``."""
        whole = max(self.steps.frame["dur_ps"].sum(), 1)
        marks = (
            self.labelled.group_by("phase", "mark")
            .len()
            .drop_nulls("mark")
            .sort("len", "mark", descending=[True, False])
            .group_by("phase", maintain_order=True)
            .agg(pl.col("mark").str.join(", ").alias("marks"))
        )

        def known(column: str) -> pl.Expr:
            return pl.when(pl.col(column).count() > 0).then(pl.col(column).sum()).alias(column)

        rows = self.labelled.group_by("phase").agg(
            pl.len().alias("steps"),
            (pl.col("seen") == "full").sum().alias("full"),
            pl.col("step").sort_by("start_ps").first().alias("first_step"),
            pl.col("start_ps").min(),
            pl.col("dur_ps").sum(),
            (pl.col("dur_ps").sum() / whole).alias("share"),
            pl.col("dur_ps").median().round().alias("step_ps"),
            known("device_ps"),
            known("idle_ps"),
        )
        rows = rows.join(marks, on="phase", how="left").sort("dur_ps", "phase", descending=[True, False])
        return schema.check(rows, schema.PHASES, "phases")

    def __len__(self) -> int:
        return self.labels.filter(self.labels >= 0).n_unique()

    def __iter__(self) -> Iterator[Phase]:
        return (self[phase] for phase in self.frame["phase"])

    def __getitem__(self, phase: int) -> Phase:
        """Return one phase by its label.

        Raises
        ------
        KeyError
            When no step bears that label.
        """
        known = isinstance(phase, int) and not isinstance(phase, bool)
        row = self.frame.filter(pl.col("phase") == phase) if known else self.frame.clear()
        if row.is_empty():
            raise KeyError(f"no phase {phase!r}; there are {sorted(self.frame['phase'].to_list())}")
        steps = self.steps.frame.filter(self.labels == phase)
        return Phase(int(phase), steps, row["share"].item())

    def __repr__(self) -> str:
        return (
            f"Phases({_plural(len(self), 'phase')} over {_plural(len(self.steps), 'step')}, {self.method!r}, "
            f"top 3 cover {self.coverage(3):.1%})"
        )

    @property
    def longest(self) -> Phase:
        """The phase with the largest share of the time; noise only where there is nothing else."""
        real = self.frame.filter(pl.col("phase") >= 0)
        return self[(real if real.height else self.frame)["phase"][0]]

    def coverage(self, n: int = 3) -> float:
        """Return the share of the time of all steps in the `n` longest phases, 0 to 1.

        Noise counts as a group of its own (paper VI.A, Figures 7 to 9).
        """
        _check_count(n, "coverage")
        return float(self.frame["share"].head(n).sum())

    def top(self, n: int = 5) -> pl.DataFrame:
        """Return the `n` most time-consuming operations of each phase, host and device apart.

        By self time in the steps seen in full (paper VI.B, Tables II and III): ``tpunb.schema.TOP``.
        """
        _check_count(n, "top")
        full = self.labelled.filter(pl.col("seen") == "full").select("host", "step", "phase")
        rows = (
            self.steps.ops.join(full, on=["host", "step"], how="inner")
            .group_by("phase", "side", "op")
            .agg(pl.col("count", "total_ps", "self_ps").sum())
            .with_columns(share=pl.col("self_ps") / pl.col("self_ps").sum().clip(1).over("phase", "side"))
            .sort("phase", "side", "self_ps", "op", descending=[False, False, True, False])
            .with_columns(rank=pl.int_range(1, pl.len() + 1).over("phase", "side"))
            .filter(pl.col("rank") <= n)
        )
        return schema.check(rows, schema.TOP, "top")

    def representatives(self, n: int = 1) -> pl.DataFrame:
        """Return the `n` steps nearest each phase's centre: ``steps.frame`` with ``phase`` and ``distance``.

        Only steps seen in full are candidates. Noise has no centre and no representative.
        """
        _check_count(n, "representatives")
        return (
            self.labelled.filter((pl.col("phase") >= 0) & pl.col("distance").is_not_null())
            .sort("phase", "distance", "start_ps")
            .group_by("phase", maintain_order=True)
            .head(n)
        )

    def to_chrome_trace(self, path: str | os.PathLike[str]) -> Path:
        """Write the phases as a trace for chrome://tracing and Perfetto (paper IV.B, Figure 3).

        Time runs as it ran: one track of the windows in which the profiler watched, one of the phases.
        """
        return export.chrome_trace(Path(path), self.labelled, self.frame, self.top(5), self.steps.windows)

    def to_csv(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write ``phases.csv`` and the operations of each phase, host and device apart, into `folder`."""
        every = self.top(max(self.steps.ops.height, 1))
        return export.csv(Path(folder), self.frame, every)

    def to_pandas(self) -> pd.DataFrame:
        """Return `frame` as a pandas DataFrame (needs the extra ``pandas``)."""
        return _to_pandas(self.frame)
