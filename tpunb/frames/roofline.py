"""Roofline: the work that was done, beside the most that the device can do."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import polars as pl

from tpunb import schema
from tpunb.frames.conversion import Tabular
from tpunb.frames.hardware import Device
from tpunb.frames.hardware import device as device_named
from tpunb.text import duration, plural

WORK: schema.Schema = {
    **{name: schema.ROOFLINE[name] for name in ("what", "program", "part", "count", "self_ps", "flops", "bytes")},
    **dict.fromkeys(["category", "dtype", "flops_source"], pl.String()),
    "share": pl.Float64(),  # of the self time, whose FLOPs are known
}
"""One row per instruction of a row of a roofline, or per device and step: what is compared with its own roof."""

_ASYNCHRONOUS = r"^(copy-|async-|send|recv|all-|collective|reduce-scatter|ragged-)"
_ENOUGH = 0.9  # share of self time with known work for a utilisation


@dataclass(frozen=True, eq=False, repr=False)
class Roofline(Tabular):
    """Work, time and headroom of the operations of devices.

    Parameters
    ----------
    work
        Work and time of instructions: :data:`WORK`.
    device
        Device whose peaks are the roof. A device of a profile has ``1 / device.cores`` of them.
    by
        Level of the rows: "run", "phase", "step", "category", "layer", "part", "op", "instruction", "library" or
        "kernel", or "point" of a sweep.
    measured_on
        Name of the device that was measured, if `device` is another, for which the times are modelled.
    """

    work: pl.DataFrame
    device: Device
    by: str
    measured_on: str | None = None
    frame: pl.DataFrame = field(init=False)
    """One row per thing of the level `by`, most headroom first: ``tpunb.schema.ROOFLINE``."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "work", schema.check(self.work, WORK, "work"))
        object.__setattr__(self, "frame", self._rows())

    def _rows(self) -> pl.DataFrame:
        sums = [
            pl.when(pl.col(name).count() > 0).then(pl.col(name).sum())
            for name in ("count", "self_ps", "flops", "bytes")
        ]
        rows = self._at_the_roof.group_by("what", "program", "part").agg(*sums, *_summary())
        rows = rows.sort("headroom_ps", "self_ps", "what", descending=True, nulls_last=True)
        return schema.check(rows, schema.ROOFLINE, "roofline")

    @property
    def utilisation(self) -> tuple[float, float] | None:
        """Share of the peak FLOP/s that was reached, 0 to 1, as (low, high); None if too little work is known.

        Of instructions that claim more than the roof, the FLOPs are left out of the first figure, and counted at the
        roof in the second. The base of both is the peak in the self time of instructions whose work is known: of
        ``flops_time_share`` of all, which must be 0.9 or more.
        """
        known, time = self._at_the_roof.filter("known"), int(self.work["self_ps"].sum())
        measured = int(known["self_ps"].sum())
        if not measured or float((known["self_ps"] * known["share"]).sum()) < _ENOUGH * time:
            return None
        above = pl.col("roof_ps") > pl.col("self_ps")
        at_most = pl.col("compute_ps") * pl.when(above).then(pl.col("self_ps") / pl.col("roof_ps")).otherwise(1)
        low, high = (
            known.select(part.sum()).item() / measured for part in (pl.col("compute_ps").filter(~above), at_most)
        )
        return low, max(low, min(high, 1.0))

    def on(self, other: Device | str) -> Roofline:
        """Model the same work on another device: each instruction at the efficiency that was measured.

        The self time of an instruction is scaled by the time at the roof of the other device over that of this one;
        time of unknown work, and waits for asynchronous copies and collectives, stay. ``flops_time_share`` is the share
        of the modelled time that was scaled.

        One chip takes the place of one chip: where profiles list the cores of a chip as devices, as for TPU v2 and v3,
        each has its share of the other chip, so ``device.cores`` stays.

        Parameters
        ----------
        other
            Device, or its name in ``tpunb.analysis.DEVICES``.

        Raises
        ------
        ValueError
            If there is no device of that name.
        """
        chip = replace(device_named(other) if isinstance(other, str) else other, cores=self.device.cores)
        ratio = (_roof(chip) / _roof(self.device)).fill_nan(1.0)
        time = pl.when(_counted() & ~_outside()).then((pl.col("self_ps") * ratio).round().cast(pl.Int64))
        source = self.measured_on or self.device.name
        return Roofline(self.work.with_columns(self_ps=pl.coalesce(time, "self_ps")), chip, self.by, source)

    @cached_property
    def _at_the_roof(self) -> pl.DataFrame:
        """Work with the time of each row at the roof, and why it may exceed that."""
        time = pl.col("self_ps")
        rows = self.work.with_columns(
            dtype=_dtype(self.device),
            outside=_outside(),
            known=_counted() & ~_outside(),  # waiting for what continues elsewhere has no roof and no headroom
            compute_ps=_compute(self.device) * 1e12,
            memory_ps=_memory(self.device) * 1e12,
        ).with_columns(roof_ps=pl.max_horizontal("compute_ps", "memory_ps"))
        times = (pl.col("compute_ps") / time).round(1).cast(pl.String)
        why = (
            pl.when("outside")
            .then(pl.lit("asynchronous copy or collective: it continues outside its self time"))
            .when(pl.col("compute_ps") <= time)
            .then(pl.lit("data in a cache or on-chip memory"))
            .when((pl.col("category") == "custom-call").fill_null(value=False))
            .then(pl.format("custom call whose author's estimate exceeds the peak {} times", times))
            .otherwise(
                pl.format(
                    "FLOPs exceed the peak of {} {} times: other data type or device, or work outside its events",
                    "dtype",
                    times,
                )
            )
        )
        return rows.with_columns(
            above=pl.when(pl.col("roof_ps") > time).then(why),
            least_ps=pl.when("known").then(pl.min_horizontal("roof_ps", "self_ps")),
        )

    @property
    def device_label(self) -> str:
        """Name of the device, and whether its times are modelled."""
        return self.device.name + (f", modelled from {self.measured_on}" if self.measured_on else "")

    def __repr__(self) -> str:
        parts = [f"{plural(len(self), 'row')} by {self.by}", self.device_label]
        time, headroom = int(self.frame["self_ps"].sum()), self.frame["headroom_ps"].drop_nulls()
        room = f"headroom {duration(int(headroom.sum()))} of {duration(time)} self time"
        unknown = "no FLOPs and bytes known" if len(self) else "no operations on devices"
        parts += [room if len(headroom) else unknown]
        return f"Roofline({', '.join(parts)})"


def _counted() -> pl.Expr:
    return pl.col("flops").is_not_null() & pl.col("bytes").is_not_null()


def _outside() -> pl.Expr:
    return pl.col("category").str.contains(_ASYNCHRONOUS).fill_null(value=False)


def _dtype(device: Device) -> pl.Expr:
    """Return the data type whose peak is the roof."""
    return pl.when(pl.col("dtype").is_in([*device.peaks])).then("dtype").otherwise(pl.lit(device.dtype))


def _compute(device: Device) -> pl.Expr:
    """Return the time of the FLOPs at the peak, in seconds."""
    peaks = {name: peak / device.cores for name, peak in device.peaks.items()}
    peak = pl.col("dtype").replace_strict(peaks, default=device.peak_flops / device.cores, return_dtype=pl.Float64)
    return pl.when(_counted()).then(pl.col("flops") / peak)


def _memory(device: Device) -> pl.Expr:
    """Return the time of the bytes in the fastest memory that holds those of one run, in seconds."""
    bandwidth = pl.lit(device.bandwidth)
    for level in reversed(device.levels):
        held = pl.col("bytes") <= level.capacity * pl.max_horizontal("count", 1)
        bandwidth = pl.when(held).then(level.bandwidth).otherwise(bandwidth)
    return pl.when(_counted()).then(pl.col("bytes") / (bandwidth / device.cores))


def _roof(device: Device) -> pl.Expr:
    return pl.max_horizontal(_compute(device), _memory(device))


def _summary() -> list[pl.Expr]:
    """Return the figures of a row of ``tpunb.schema.ROOFLINE``, of the instructions whose work is known."""
    time, flops, bytes_, roof, least, covered = (
        pl.when(pl.col("known").any()).then(of.filter("known").sum())
        for of in (
            *(pl.col(name) for name in ("self_ps", "flops", "bytes", "roof_ps", "least_ps")),
            pl.col("self_ps") * pl.col("share"),
        )
    )
    of_memory = pl.col("roof_ps").filter(pl.col("memory_ps") > pl.col("compute_ps")).sum()
    sources = pl.col("flops_source").drop_nulls().unique()
    excess = (pl.col("roof_ps") - pl.col("self_ps")).filter(pl.col("above").is_not_null())
    return [
        (covered.fill_null(0) / _above_zero(pl.col("self_ps").sum())).alias("flops_time_share"),
        (flops / _above_zero(time) * 1e12).alias("rate"),
        (flops / _above_zero(bytes_)).alias("intensity"),
        pl.when(roof > 0)
        .then(pl.when(of_memory > roof / 2).then(pl.lit("memory")).otherwise(pl.lit("compute")))
        .alias("bound"),
        pl.col("dtype").filter(pl.col("flops") > 0).sort_by(pl.col("flops").filter(pl.col("flops") > 0)).last(),
        (flops / _above_zero(roof) * 1e12).alias("attainable"),
        (least / _above_zero(time)).alias("efficiency"),
        (time - least).round().cast(pl.Int64).alias("headroom_ps"),
        pl.when(sources.len() > 1).then(pl.lit("several")).otherwise(sources.first()).alias("flops_source"),
        pl.col("above").drop_nulls().sort_by(excess, descending=True).first(),
    ]


def _above_zero(value: pl.Expr) -> pl.Expr:
    return pl.when(value > 0).then(value)
