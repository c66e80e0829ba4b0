"""Steps: what ran in each step of a run, and where its time went."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl

from tpunb import schema
from tpunb.frames.words import not_kept, plural, to_pandas

if TYPE_CHECKING:
    import pandas as pd


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
    read_layers
        Reduces the raw events to `layers` when they are asked for; None where none were kept.
    about
        What ran, as far as it is known: "model", "weights", "dtype", "optimizer", "batch", "device kind".
    """

    frame: pl.DataFrame
    ops: pl.DataFrame
    devices: pl.DataFrame = field(default_factory=lambda: schema.empty(schema.DEVICES))
    windows: pl.DataFrame = field(default_factory=lambda: schema.empty(schema.WINDOWS))
    name: str = ""
    read_layers: Callable[[], pl.DataFrame] | None = None
    about: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        frame = schema.check(self.frame, schema.STEPS, "steps").sort("host", "start_ps", "step")
        object.__setattr__(self, "frame", frame)
        # in one piece: columns of millions of rows are read as arrays again and again
        object.__setattr__(self, "ops", schema.check(self.ops, schema.OPS, "ops").rechunk())
        object.__setattr__(self, "devices", schema.check(self.devices, schema.DEVICES, "devices"))
        object.__setattr__(self, "windows", schema.check(self.windows, schema.WINDOWS, "windows"))

    @cached_property
    def layers(self) -> pl.DataFrame:
        """From step to layer to framework op to HLO instruction: ``tpunb.schema.LAYERS``.

        Raises
        ------
        TpunbError
            When the capture kept statistics only.
        """
        if self.read_layers is None:
            raise not_kept(self.name, "layers")
        rows = schema.check(self.read_layers(), schema.LAYERS, "layers")
        return rows.join(self.frame.select("host", "step"), on=["host", "step"], how="semi", maintain_order="left")

    def __len__(self) -> int:
        return self.frame.height

    def __repr__(self) -> str:
        full = self.frame.filter(pl.col("seen") == "full").height
        return f"Steps({plural(len(self), 'step')}, {plural(self.ops['op'].n_unique(), 'op')}, {full} seen in full)"

    def full(self) -> Steps:
        """Return the steps that were seen in full, with their operations."""
        return self._full

    @cached_property
    def _full(self) -> Steps:  # once: what methods find out of steps, they remember by them
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
        return to_pandas(self.frame)
