"""Roofline of a run: the work of its device operations, beside the most that the device can do in that time.

The roof of an instruction is the larger of two times: its FLOPs at the peak of the device, and its bytes at the memory
bandwidth (Williams, Waterman, Patterson: Roofline, 2009). Sums are of instructions, each at its own roof.
"""

from __future__ import annotations

import polars as pl

from tpunb.analysis.libraries import library
from tpunb.errors import TpunbError, wrong
from tpunb.frames import Phases, Steps
from tpunb.frames.hardware import DEVICES, Device
from tpunb.frames.hardware import device as device_named
from tpunb.frames.roofline import WORK, Roofline
from tpunb.step_stats.aggregate import total
from tpunb.text import plain

_STEPS = {"run": "run", "phase": "phase", "step": "step"}
_OPERATIONS = {name: name for name in ("category", "layer", "part", "op", "library", "kernel")}
_BY = _STEPS | _OPERATIONS | {"instruction": "hlo_op"}
_OF_KERNELS = ("library", "kernel")
_WITH_PART = ("layer", "part", "op", "instruction")
_UNIT = ["program", "part", "hlo_op", "tf_op", "op", "category", "shape", "dtype", "device"]
"""What is compared with its own roof, as far as it is known: an instruction, or a device in a step."""
_DTYPES = {"s8": "int8", "u8": "int8"}


def roofline(data: Steps | Phases, by: str | None = None, *, device: str | Device | None = None) -> Roofline:
    """Return the work of a run's device operations, beside the most that its device can do in that time.

    Operations without a name at the level `by` are a row "unattributed", so time, FLOPs and bytes add up to the same at
    every level. An instruction that launches several GPU kernels counts as work of the longest.

    Parameters
    ----------
    data
        Steps or Phases of a run whose raw events were kept; of statistics only, which hold FLOPs and bytes of whole
        steps, for the levels "run", "phase" and "step".
    by
        Level of the rows: "phase" (requires Phases, and is their default), "run" (that of Steps), "step", "category",
        "layer", "part", "op", "instruction", "library" or "kernel".
    device
        Device whose peaks are the roof, or its name; by the run's metadata if None.

    Raises
    ------
    ValueError
        If `by` or the name of the device is unknown.
    TpunbError
        If the device of the run is unknown, the capture kept statistics only, or parts of steps are unknown.
    """
    steps = data.steps if isinstance(data, Phases) else data
    if not isinstance(steps, Steps):
        raise wrong("roofline", "data", "be Steps or Phases", data)
    by = by if by is not None else "phase" if isinstance(data, Phases) else "run"
    if by not in _BY:
        raise ValueError(f"The by parameter of roofline must be one of {', '.join(_BY)}. Got {by!r} instead.")
    if by == "phase" and not isinstance(data, Phases):
        raise wrong("roofline", "data", "be Phases for by='phase'", data)
    chip = _device_of(steps) if device is None else _device(device)
    statistics_only = steps.read_layers is None and by in _STEPS and steps.devices["flops"].count() > 0
    rows = _of_steps(steps) if statistics_only else _of_instructions(steps, by)
    rows = rows.with_columns(run=pl.lit(steps.name or "run"))
    if isinstance(data, Phases):
        labels = data.labelled.select("host", "step", phase=pl.col("phase").replace_strict(data.names, default=None))
        rows = rows.join(labels, on=["host", "step"], how="left")
    kernel = ["kernel"] if by in _OF_KERNELS else []
    unit = [*_UNIT, *kernel, *(["host", "step"] if statistics_only else [])]
    sums = [total(column) for column in ("count", "self_ps", "flops", "bytes")]
    firsts = [pl.col("flops_source").drop_nulls().first(), pl.col("share").first()]
    work = rows.group_by(*dict.fromkeys([_BY[by], *unit])).agg(*sums, *firsts)  # names become text when they are few
    known = pl.col(_BY[by]).is_not_null()
    of_result = pl.col("shape").cast(pl.String).str.extract(r"^\(*(\w+)\[")
    dtype = pl.coalesce(pl.col("dtype").cast(pl.String), of_result)
    work = work.with_columns(
        what=pl.col(_BY[by]).cast(pl.String).fill_null("unattributed"),
        program=pl.when(known & (by == "instruction")).then("program"),
        part=pl.when(known & (by in _WITH_PART)).then("part"),
        dtype=dtype.str.replace(r"^f8.*", "fp8").replace(_DTYPES),
    )
    return Roofline(work.select(pl.col(column).cast(dtype) for column, dtype in WORK.items()), chip, by)


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
    rows = steps.layers.filter(pl.col("side") == "device").with_columns(share=pl.lit(1.0), device=pl.lit(None))
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


def _with_library(rows: pl.DataFrame) -> pl.DataFrame:
    names = ["kernel", "hlo_op", "op", "category"]
    texts = rows.select(names).unique()
    libraries = [library(*row) for row in texts.cast(pl.String).rows()]
    found = texts.with_columns(library=pl.Series(libraries, dtype=pl.String))
    return rows.join(found, on=names, how="left", nulls_equal=True)


def _device(value: object) -> Device:
    if isinstance(value, Device):
        return value
    if not isinstance(value, str):
        raise wrong("roofline", "device", "be a Device or the name of one", value)
    return device_named(value)


def device_of(steps: Steps) -> Device | None:
    """Return the device measured for a run, or named by its metadata; None without known peaks."""
    if steps.device is not None:
        return steps.device
    kind = steps.metadata.get("device kind", "")
    return next((chip for chip in DEVICES.values() if chip.of_kind(kind)), None)


def _device_of(steps: Steps) -> Device:
    if (chip := device_of(steps)) is not None:
        return chip
    kind = steps.metadata.get("device kind", "")
    problem = f"no peaks of the device {plain(kind)!r}" if kind else "the run does not name its device"
    raise TpunbError(
        f"{problem}: roofline needs device=",
        hint="give its name, as in roofline(..., device='TPU v3'), "
        "or of this CPU device=tpunb.analysis.machine.measured()",
    )
