"""Roofline of a run: the work of its device operations, beside the most that the device can do in that time.

The roof of an instruction is the larger of two times: its FLOPs at the peak of the device, and its bytes at the memory
bandwidth (Williams, Waterman, Patterson: Roofline, 2009). Sums are of instructions, each at its own roof.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass, field, replace
from functools import cached_property

import polars as pl

from tpunb import schema
from tpunb.analysis import machine
from tpunb.analysis.run import OfRun, Run, loaded, phases
from tpunb.analysis.run import steps as steps_of
from tpunb.errors import TpunbError, wrong_type
from tpunb.frames import Phases, Steps
from tpunb.frames.conversion import Tabular
from tpunb.frames.hardware import DEVICES, Device, this_cpu
from tpunb.frames.hardware import device as device_named
from tpunb.step_stats.aggregate import total
from tpunb.text import duration, plain, plural

WORK: schema.Schema = {
    **{name: schema.ROOFLINE[name] for name in ("what", "program", "part", "count", "self_ps", "flops", "bytes")},
    **dict.fromkeys(["category", "dtype", "flops_source", "call"], pl.String()),  # of PyTorch: operator and operands
    "recomputed": pl.Boolean(),  # whether a forward pass ran it again
    "share": pl.Float64(),  # of the self time, whose FLOPs are known
}
"""One row per instruction of a row of a roofline, or per device and step: what is compared with its own roof."""

_ASYNCHRONOUS = r"^(copy-|async-|send|recv|all-|collective|reduce-scatter|ragged-)"
_ENOUGH = 0.9  # share of self time with known work for a utilisation


@dataclass(frozen=True, eq=False, repr=False)
class Roofline(Tabular, OfRun):
    """Work, time and headroom of the operations of devices.

    Parameters
    ----------
    work
        Work and time of instructions: :data:`WORK`.
    device
        Device whose peaks are the roof. A device of a profile has ``1 / device.cores`` of them. None if its peaks are
        unknown: what is derived from them is null then.
    by
        Level of the rows: "run", "phase", "step", "category", "layer", "module", "part", "op", "instruction",
        "library" or "kernel", or "point" of a sweep.
    measured_on
        Name of the device that was measured, if `device` is another, for which the times are modelled.
    note
        Where the peaks are from if they were measured, or why there are none.
    """

    work: pl.DataFrame
    device: Device | None
    by: str
    measured_on: str | None = None
    note: str | None = None
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
        if self.device is None:
            of_peaks = ("bound", "attainable", "efficiency", "headroom_ps", "above")
            rows = rows.with_columns(pl.lit(None, schema.ROOFLINE[name]).alias(name) for name in of_peaks)
        rows = rows.sort("headroom_ps", "self_ps", "what", descending=True, nulls_last=True)
        return schema.check(rows, schema.ROOFLINE, "roofline")

    @property
    def utilisation(self) -> tuple[float, float] | None:
        """Share of the peak FLOP/s that was reached, 0 to 1, as (low, high); None without peaks or enough known work.

        Of instructions that claim more than the roof, the FLOPs are left out of the first figure, and counted at the
        roof in the second. The base of both is the peak in the self time of instructions whose work is known: of
        ``flops_time_share`` of all, which must be 0.9 or more.
        """
        counted, time = self._at_the_roof.filter("counted"), int(self.work["self_ps"].sum())
        measured = int(counted["self_ps"].sum())
        if self.device is None or not measured or float((counted["self_ps"] * counted["share"]).sum()) < _ENOUGH * time:
            return None
        above = pl.col("roof_ps") > pl.col("self_ps")
        at_most = pl.col("compute_ps") * pl.when(above).then(pl.col("self_ps") / pl.col("roof_ps")).otherwise(1)
        low, high = (
            counted.select(part.sum()).item() / measured for part in (pl.col("compute_ps").filter(~above), at_most)
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
        TpunbError
            If the peaks of this device are unknown.
        """
        if self.device is None:
            raise TpunbError(
                f"unknown peaks cannot be modelled on another device: {self.note}",
                hint="give the device of the run, as in roofline(..., device='TPU v3')",
            )
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
            counted=_counted() & ~_outside(),  # waiting for what continues elsewhere has no roof and no headroom
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
            least_ps=pl.when("counted").then(pl.min_horizontal("roof_ps", "self_ps")),
        )

    def calls(self) -> pl.DataFrame:
        """Return PyTorch's calls of one operator on equal shapes in each row, their times at the roof as one sum.

        Columns ``what``, ``call``, ``category``, ``dtype``, ``recomputed``, ``count`` and ``self_ps`` are those of
        `work`; ``roof_ps``, ``compute_ps`` and ``memory_ps`` are null where FLOPs or bytes are unknown.
        """
        times = (total(name) for name in ("count", "self_ps", "roof_ps", "compute_ps", "memory_ps"))
        rows = self._at_the_roof.filter(pl.col("call").is_not_null())
        return rows.group_by("what", "call", "category", "dtype", "recomputed").agg(*times)

    @property
    def device_label(self) -> str:
        """Name of the device, and whether its times are modelled."""
        name = "unknown peaks" if self.device is None else self.device.name
        return name + (f", modelled from {self.measured_on}" if self.measured_on else "")

    def __repr__(self) -> str:
        parts = [f"{plural(len(self), 'row')} by {self.by}", self.device_label]
        time, headroom = int(self.frame["self_ps"].sum()), self.frame["headroom_ps"].drop_nulls()
        room = f"headroom {duration(int(headroom.sum()))} of {duration(time)} self time"
        unknown = "no FLOPs and bytes known" if len(self) else "no operations on devices"
        parts += [duration(time) + " self time" if self.device is None else room if len(headroom) else unknown]
        return f"Roofline({', '.join(parts)}{f'; {self.note}' if self.note else ''})"


def _counted() -> pl.Expr:
    return pl.col("flops").is_not_null() & pl.col("bytes").is_not_null()


def _outside() -> pl.Expr:
    return pl.col("category").str.contains(_ASYNCHRONOUS).fill_null(value=False)


def _dtype(device: Device | None) -> pl.Expr:
    """Return the data type whose peak is the roof."""
    if device is None:
        return pl.col("dtype")
    return pl.when(pl.col("dtype").is_in([*device.peaks])).then("dtype").otherwise(pl.lit(device.dtype))


def _compute(device: Device | None) -> pl.Expr:
    """Return the time of the FLOPs at the peak, in seconds."""
    if device is None:
        return pl.lit(None, pl.Float64)
    peaks = {name: peak / device.cores for name, peak in device.peaks.items()}
    peak = pl.col("dtype").replace_strict(peaks, default=device.peak_flops / device.cores, return_dtype=pl.Float64)
    return pl.when(_counted()).then(pl.col("flops") / peak)


def _memory(device: Device | None) -> pl.Expr:
    """Return the time of the bytes in the fastest memory that holds those of one run, in seconds."""
    if device is None:
        return pl.lit(None, pl.Float64)
    bandwidth = pl.lit(device.bandwidth)
    for level in reversed(device.levels):
        fits = pl.col("bytes") <= level.capacity * pl.max_horizontal("count", 1)
        bandwidth = pl.when(fits).then(level.bandwidth).otherwise(bandwidth)
    return pl.when(_counted()).then(pl.col("bytes") / (bandwidth / device.cores))


def _roof(device: Device) -> pl.Expr:
    return pl.max_horizontal(_compute(device), _memory(device))


def _summary() -> list[pl.Expr]:
    """Return the figures of a row of ``tpunb.schema.ROOFLINE``, of the instructions whose work is known."""
    time, flops, bytes_, roof, least, covered = (
        pl.when(pl.col("counted").any()).then(of.filter("counted").sum())
        for of in (
            *(pl.col(name) for name in ("self_ps", "flops", "bytes", "roof_ps", "least_ps")),
            pl.col("self_ps") * pl.col("share"),
        )
    )
    of_memory = pl.col("roof_ps").filter(pl.col("memory_ps") > pl.col("compute_ps")).sum()
    sources = pl.col("flops_source").drop_nulls().unique()
    excess = (pl.col("roof_ps") - pl.col("self_ps")).filter(pl.col("above").is_not_null())
    return [
        _ratio(covered.fill_null(0), pl.col("self_ps").sum()).alias("flops_time_share"),
        (_ratio(flops, time) * 1e12).alias("rate"),
        _ratio(flops, bytes_).alias("intensity"),
        pl.when(roof > 0)
        .then(pl.when(of_memory > roof / 2).then(pl.lit("memory")).otherwise(pl.lit("compute")))
        .alias("bound"),
        pl.col("dtype").filter(pl.col("flops") > 0).sort_by(pl.col("flops").filter(pl.col("flops") > 0)).last(),
        (_ratio(flops, roof) * 1e12).alias("attainable"),
        _ratio(least, time).alias("efficiency"),
        (time - least).round().cast(pl.Int64).alias("headroom_ps"),
        pl.when(sources.len() > 1).then(pl.lit("several")).otherwise(sources.first()).alias("flops_source"),
        pl.col("above").drop_nulls().sort_by(excess, descending=True).first(),
    ]


def _ratio(numerator: pl.Expr, denominator: pl.Expr) -> pl.Expr:
    return pl.when(denominator > 0).then(numerator / denominator)


_STEPS = {"run": "run", "phase": "phase", "step": "step"}
_OPERATIONS = {name: name for name in ("category", "layer", "module", "part", "op", "library", "kernel")}
_BY = _STEPS | _OPERATIONS | {"instruction": "hlo_op"}
_OF_KERNELS = ("library", "kernel")
_WITH_PART = ("layer", "part", "op", "instruction")
_UNIT = ["program", "part", "hlo_op", "tf_op", "op", "category", "shape", "dtype", "device"]
"""What is compared with its own roof, as far as it is known: an instruction, or a device in a step."""
_DTYPES = {"s8": "int8", "u8": "int8"}


def roofline(run: Run, by: str | None = None, *, device: str | Device | None = None) -> Roofline:
    """Return the work of a run's device operations, beside the most that its device can do in that time.

    Operations without a name at the level `by` are a row "unattributed", so time, FLOPs and bytes add up to the same at
    every level. An instruction that launches several GPU kernels counts as work of the longest; the work of an operator
    of PyTorch is divided among its kernels by their time.

    Parameters
    ----------
    run
        Path of a run whose raw events were kept, its Profile, Steps or Phases; of statistics only, which hold FLOPs
        and bytes of whole steps, for the levels "run", "phase" and "step".
    by
        Level of the rows: "phase" (the default for Phases), "run" (for all else), "step", "category", "layer", "module"
        (kind of the innermost scope of a layer, such as "Conv2d"), "part", "op", "instruction" (of PyTorch: operator
        and shapes), "library" or "kernel".
    device
        Device whose peaks are the roof, or its name. If None, by the run's metadata; the peaks of a CPU are measured if
        `tp.capture` recorded the run on this machine, and kept for the user. Without peaks the columns that need them
        are null, and ``note`` has the reason.

    Raises
    ------
    TypeError
        If `run` is something else.
    ValueError
        If `by` or the name of the device is unknown.
    TpunbError
        If the capture kept statistics only, or parts of steps are unknown.
    """
    found = loaded(run, "roofline")
    by = by if by is not None else "phase" if isinstance(found, Phases) else "run"
    if by not in _BY:
        raise ValueError(f"The by parameter of roofline must be one of {', '.join(_BY)}. Got {by!r} instead.")
    grouped = phases(found) if by == "phase" or isinstance(found, Phases) else None
    steps = steps_of(found) if grouped is None else grouped.steps
    chip, note = peaks_of(steps) if device is None else (_device(device), None)
    statistics_only = steps.read_layers is None and by in _STEPS and steps.devices["flops"].count() > 0
    rows = _of_steps(steps) if statistics_only else _of_instructions(steps, by)
    rows = rows.with_columns(run=pl.lit(steps.name or "run"))
    rows = _with_level(rows, by)
    if grouped is not None:
        phase = pl.col("phase").replace_strict(grouped.names, default=None)
        labels = grouped.labelled.select("host", "step", phase=phase)
        rows = rows.join(labels, on=["host", "step"], how="left")
    kernel = ["kernel"] if by in _OF_KERNELS else []
    unit = [*_UNIT, *kernel, *(["host", "step"] if statistics_only else [])]
    sums = [total(column) for column in ("count", "self_ps", "flops", "bytes")]
    firsts = [pl.col("flops_source").drop_nulls().first(), pl.col("share").first()]
    work = rows.group_by(*dict.fromkeys([_BY[by], *unit])).agg(*sums, *firsts)  # names become text when they are few
    named = pl.col(_BY[by]).is_not_null()
    of_result = pl.col("shape").cast(pl.String).str.extract(r"^\(*(\w+)\[")
    dtype = pl.coalesce(pl.col("dtype").cast(pl.String), of_result)
    work = work.with_columns(
        what=pl.col(_BY[by]).cast(pl.String).fill_null("unattributed"),
        program=pl.when(named & (by == "instruction")).then("program"),
        part=pl.when(named & (by in _WITH_PART)).then("part"),
        dtype=dtype.str.replace(r"^f8.*", "fp8").replace(_DTYPES),
        call=pl.concat_str(_operator(), pl.lit(" "), "shape"),
        recomputed=(pl.col("part") == "recomputation").fill_null(value=False),
    )
    work = work.select(pl.col(column).cast(dtype) for column, dtype in WORK.items())
    return Roofline(work, chip, by, note=note).about(found)


def _of_steps(steps: Steps) -> pl.DataFrame:
    """Return the work of each device in each step that was traced in full."""
    return steps.full().devices.select(
        *("host", "step", "flops", "bytes"),
        count=pl.lit(1),
        self_ps="device_ps",
        flops_source=pl.when(pl.col("flops").is_not_null()).then(pl.lit("profiler")),
        share=pl.col("flops_time_share").fill_null(1.0),
        **{name: pl.lit(None, pl.String) for name in _UNIT if name != "device"},
        device="device",
    )


def _of_instructions(steps: Steps, by: str) -> pl.DataFrame:
    """Return the work of each instruction in each step, of each of its kernels for their levels."""
    layers, of_device = steps.layers, pl.col("side") == "device"
    if not layers.select(of_device.any()).item():  # PyTorch on a CPU
        of_device = pl.col("op").cast(pl.String).str.contains("::", literal=True)
    rows = layers.filter(of_device).with_columns(share=pl.lit(1.0), device=pl.lit(None))
    if "part" not in rows.columns:
        rows = rows.with_columns(part=pl.lit(None, pl.String))
    if by == "part" and rows["part"].null_count() == len(rows):
        problem = "the layers of the run have no part: neither programs nor framework ops name forward and backward"
        raise TpunbError(problem, hint="keep the programs of the run, or choose by='layer'")
    if by == "library":
        rows = _with_library(rows)
    if by in _OF_KERNELS or not rows["kernel"].count():
        return rows
    # every kernel of an instruction runs once in each of its runs, or more often
    events = pl.col("hlo_op").is_null() | pl.col("kernel").is_null()
    first = ["flops_source", "share", "layer", "shape", "dtype", "device"]
    runs = (
        rows.filter(~events)
        .group_by("host", "step", *(name for name in _UNIT if name not in first))
        .agg(
            pl.col("count").min(),
            pl.col("self_ps").sum(),
            *map(total, ["flops", "bytes"]),
            *(pl.col(name).drop_nulls().first() for name in first),
        )
    )
    return pl.concat([rows.filter(events), runs], how="diagonal")


def _with_level(rows: pl.DataFrame, by: str) -> pl.DataFrame:
    """Add the names of a level that layers do not have, and those of PyTorch's operators to theirs."""
    names = {
        "module": pl.col("layer").cast(pl.String).str.extract(r"([^/]+?)(_\d+)?$"),
        "op": pl.coalesce(_operator(), pl.col("op").cast(pl.String)),
        "instruction": pl.coalesce(pl.col("hlo_op").cast(pl.String), pl.concat_str(_operator(), pl.lit(" "), "shape")),
    }
    return rows.with_columns(names[by].alias(_BY[by])) if by in names else rows


def _operator() -> pl.Expr:
    """Return PyTorch's operator."""
    name = pl.col("tf_op").cast(pl.String)
    return pl.when(name.str.contains("::")).then(name)


def _with_library(rows: pl.DataFrame) -> pl.DataFrame:
    names = ["kernel", "hlo_op", "op", "category"]
    texts = rows.select(names).unique()
    libraries = [library(*row) for row in texts.cast(pl.String).rows()]
    named = texts.with_columns(library=pl.Series(libraries, dtype=pl.String))
    return rows.join(named, on=names, how="left", nulls_equal=True)


def _device(value: object) -> Device:
    if isinstance(value, Device):
        return value
    if not isinstance(value, str):
        raise wrong_type("roofline", "device", "be a Device or the name of one", value)
    return device_named(value)


def device_of(steps: Steps) -> Device | None:
    """Return the device measured for a run, or named by its metadata; None without known peaks."""
    if steps.device is not None:
        return steps.device
    kind = steps.metadata.get("device kind", "")
    return next((chip for chip in DEVICES.values() if chip.of_kind(kind)), None)


def peaks_of(steps: Steps, *, measure: bool = True) -> tuple[Device | None, str | None]:
    """Return the device of a run, and where its peaks are from or why they are unknown; `measure` those of a CPU."""
    if (chip := device_of(steps)) is not None:
        return chip, None
    if (cpu := steps.metadata.get("cpu")) is not None:
        if cpu == this_cpu() and {*steps.frame["host"].unique().cast(pl.String)} == {socket.gethostname()}:
            if measure or (cpu_device := machine.found()) is not None:
                return machine.kept() if measure else (cpu_device, "peaks of this CPU measured earlier")
            return None, "the peaks of this CPU are not measured: tp.analysis.machine.measured() does it in 5 s"
        return None, f"no peaks of {plain(cpu)} of another machine{_GIVEN}"
    kind = steps.metadata.get("device kind", "")
    reason = f"no peaks of the device {plain(kind)!r}" if kind else "the run does not name its device"
    return None, reason + _GIVEN


_GIVEN = "; device= gives them"

_LIBRARIES = {
    "NCCL": r"nccl|rccl",
    "cuDNN": r"cudnn|xmma_(fprop|dgrad|wgrad)|(fprop|dgrad|wgrad)_|_(fprop|dgrad|wgrad)|implicit_convolve|winograd",
    "MIOpen": r"miopen|^igemm_|gridwise_|^im\w*2col",
    "hipBLAS": r"^cijk_|rocblas|hipblas",
    "cuBLAS": r"cublas|^(volta|turing|ampere|hopper|maxwell|sm\d+)_.*gemm|gemmsn_|gemv2|nvjet|splitkreduce|xmma_gemm",
    "CUTLASS": r"cutlass",
    "FlashAttention": r"flash|fmha",
    "cuFFT": r"cufft|^(regular|vector)_fft",
    "CUB": r"\bcub::|\bthrust::",
    "oneDNN": r"onednn|^_mkl|dnnl",
    "XNNPACK": r"xnn_|xnnpack",
    "YNNPACK": r"ynn_|ynnpack",
    "PyTorch": r"\bat::native|\bat_cuda_detail",
    "TensorFlow": r"^(void )?tensorflow::",
    "Eigen": r"^(void )?eigen::",
    "Triton": r"triton",
}
_PATTERNS = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in _LIBRARIES.items()}
_LONGEST = 500  # characters of a name that are matched


def library(kernel: str | None, hlo_op: str | None, op: str | None = None, category: str | None = None) -> str | None:
    """Return the library of an operation by the names of its GPU kernel, HLO instruction and op, or None.

    >>> library("volta_sgemm_128x64_nn", "cublas-gemm.1"), library(None, "loop_fusion.3"), library("my_kernel", None)
    ('cuBLAS', 'XLA', None)
    """
    for name in (kernel, hlo_op, op):
        for owner, pattern in _PATTERNS.items():
            if name and pattern.search(name[:_LONGEST]):
                return owner
    return "XLA" if hlo_op and category != "custom-call" else None
