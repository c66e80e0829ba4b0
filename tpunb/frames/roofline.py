"""Roofline: the work that was done, beside the most that the device can do."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from tpunb import schema
from tpunb.frames.conversion import Tabular
from tpunb.frames.hardware import Device
from tpunb.text import duration, plural


@dataclass(frozen=True, eq=False, repr=False)
class Roofline(Tabular):
    """Work, time and headroom of the operations of devices.

    Parameters
    ----------
    frame
        One row per thing of the level `by`, most headroom first: ``tpunb.schema.ROOFLINE``.
    device
        Device whose peaks are the roof.
    by
        Level of the rows: "run", "phase", "category", "layer", "op" or "instruction".
    """

    frame: pl.DataFrame
    device: Device
    by: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "frame", schema.check(self.frame, schema.ROOFLINE, "roofline"))

    def __repr__(self) -> str:
        parts = [f"{plural(len(self), 'row')} by {self.by}", self.device.name]
        time, headroom = int(self.frame["self_ps"].sum()), self.frame["headroom_ps"].drop_nulls()
        room = f"headroom {duration(int(headroom.sum()))} of {duration(time)} self time"
        unknown = "no FLOPs and bytes known" if len(self) else "no operations on devices"
        parts += [room if len(headroom) else unknown]
        return f"Roofline({', '.join(parts)})"
