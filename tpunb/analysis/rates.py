"""The rates that people compare: samples/s, tokens/s, TFLOP/s a device, MFU and HFU.

FLOPs are those of matrix products, convolutions and attention, as published formulas count them (Chowdhery and others:
PaLM, 2022, appendix B): a multiplication and an addition are two, and what the backward pass computes again is in HFU
alone. Nothing is taken from a formula of an architecture.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Literal, NamedTuple

import numpy as np
import polars as pl

from tpunb import schema
from tpunb.analysis.goodput import Goodput
from tpunb.analysis.roofline import peaks_of
from tpunb.analysis.run import Run, loaded, phases
from tpunb.costs import hlo_cost
from tpunb.costs.torch_cost import ATTENTION, EXPERTS, HEAVY
from tpunb.errors import TpunbError
from tpunb.frames import Phases, Profile, Steps
from tpunb.frames.conversion import Tabular
from tpunb.frames.hardware import Device
from tpunb.frames.hardware import device as device_named
from tpunb.frames.steps import RunEvents
from tpunb.instrument.sink import Signature, What
from tpunb.protobuf.table import Messages
from tpunb.step_stats.batch_size import Size, size_of, throughput
from tpunb.text import cut, percent, plain, plural

_BY_HAND = "tokens_per_step= gives them"
_COMPUTES_PRODUCTS = r"(?i)gemm|matmul|conv(_|olution)|attention|flash|fmha|triton_tem|cutlass"
_POLICIES = {"mixed_bfloat16": "bf16", "bfloat16": "bf16", "mixed_float16": "f16", "float16": "f16", "float64": "f64"}


@dataclass(frozen=True, eq=False, repr=False)
class Rates(Tabular):
    """Rates of a run and of its phases.

    Parameters
    ----------
    frame
        The training first, then each phase: ``tpunb.schema.RATES``.
    device
        Device whose peaks MFU and HFU are shares of, None if they are unknown.
    sources
        What samples, tokens and FLOPs were read from.
    reasons
        Why a rate is null, by its column.
    estimated
        Columns that hold for each step only if all batches are as the first.
    """

    frame: pl.DataFrame
    device: Device | None
    sources: Mapping[str, str]
    reasons: Mapping[str, str]
    estimated: frozenset[str] = frozenset()
    trained: int | None = None
    """Tokens of all training steps, outliers too; None if those of a step are unknown."""

    def __repr__(self) -> str:
        row = self.frame.row(0, named=True) if len(self) else {}
        found = [f"{row[name]:.4g} {name}" for name in ("samples_per_s", "tokens_per_s", "mfu") if row.get(name)]
        return f"Rates({', '.join(found) or '; '.join(self.reasons.values())})"


class _Part(NamedTuple):
    """FLOPs of a step on a device."""

    dtype: str | None
    attention: bool
    part: str | None
    flops: float


@dataclass(frozen=True)
class _Work:
    """FLOPs of the steps of a kind, the samples of the steps that they are of, and where they were read."""

    parts: list[_Part] = field(default_factory=list)
    samples: float | None = None
    source: str = ""
    why: str | None = None
    is_complete: bool = True  # else what is recomputed is not distinguished


def rates(
    run: Run,
    *,
    tokens_per_step: int | None = None,
    attention: Literal["full", "causal"] = "full",
    device: str | Device | None = None,
) -> Rates:
    """Return samples/s, tokens/s, FLOP/s a device, MFU and HFU of a run and of each of its phases.

    Parameters
    ----------
    run
        Path of a run, its Profile, Steps or Phases. FLOPs of compiled programs need the path or the Profile.
    tokens_per_step
        Tokens of a training step, of all hosts, in place of those of its batches.
    attention
        "full" counts all pairs of positions, as PaLM's appendix and nanoGPT do; "causal" half of them, as MaxText and
        torchtitan do.
    device
        Device whose peaks count, or its name; if None, that of the run. Peaks of a CPU are those that
        ``tp.analysis.machine.measured()`` or a roofline measured before.

    Raises
    ------
    TypeError, NoSteps
        As `tp.phases`.
    ValueError
        If `attention` or the name of the device is unknown.

    >>> from tpunb.testing import toy_steps
    >>> rates(toy_steps("aab")).reasons["samples_per_s"]
    'no fetch of a batch was seen; tokens_per_step= gives them'
    """
    found = loaded(run, "rates")
    profile = found if isinstance(found, Profile) else None
    return rates_of(phases(found), profile, tokens_per_step=tokens_per_step, attention=attention, device=device)


def rates_of(
    grouped: Phases,
    profile: Profile | None,
    *,
    tokens_per_step: int | None = None,
    attention: str = "full",
    device: str | Device | None = None,
    flops: bool = True,
) -> Rates:
    """Return the rates of phases, and of the profile that they are of, if that is known; with `flops` reads windows."""
    if attention not in ("full", "causal"):
        raise ValueError(f"The attention parameter of rates must be 'full' or 'causal'. Got {attention!r} instead.")
    chip, note = peaks_of(grouped.steps, measure=False) if device is None else (_named(device), None)
    events = None
    if profile is not None and profile.read_run_events is not None:
        with suppress(TpunbError):
            events = profile.run_events
    rows, reasons, sources = _sized(grouped, events, tokens_per_step)
    estimated = frozenset(f"{name}_per_s" for name, source in sources.items() if source.startswith("the first call"))
    training = rows.filter(pl.col("trains"))
    kinds = training["kind"].unique().to_list()
    programs, unread = cache(partial(_programs, profile)), _Work(why="FLOPs were not asked for")
    works = {
        kind: _work(str(kind), grouped.steps, events, programs) if flops else unread for kind in rows["kind"].unique()
    }
    parts = [
        ("train", None, training),
        *((grouped.names[of], of, rows.filter(phase=of)) for of in grouped.aggregates["phase"]),
    ]
    frame = pl.DataFrame(
        [_row(name, of, those, works, chip, attention, rows) for name, of, those in parts if len(those)],
        schema.RATES,
        orient="row",
    )
    main = works.get(kinds[0], _Work(why="no step trains")) if kinds else _Work(why="no step trains")
    if main.why:
        reasons |= dict.fromkeys(("model_flops", "flops", "flops_per_s", "mfu", "hfu"), main.why)
    elif chip is None:
        reasons |= dict.fromkeys(("mfu", "hfu"), str(note))
    if not main.is_complete and not main.why:
        again = "the statistics of the profiler do not distinguish what is computed again"
        reasons |= dict.fromkeys(("model_flops", "flops_per_s", "mfu"), again)
    sources |= {"flops": main.source} if main.source else {}
    of_training = rows.filter(pl.col("kind").is_in(kinds))["tokens"]
    trained = None if of_training.null_count() or not len(of_training) else int(of_training.sum())
    return Rates(frame, chip, sources, reasons, estimated, trained)


def _named(device: str | Device) -> Device:
    return device_named(device) if isinstance(device, str) else device


# -- samples and tokens ------------------------------------------------------------------------------------------------


def _sized(
    grouped: Phases, events: RunEvents | None, tokens_per_step: int | None
) -> tuple[pl.DataFrame, dict[str, str], dict[str, str]]:
    """Return the steps with samples and tokens, and whether they train; why these are null, and their sources."""
    kind = pl.col("kind").cast(pl.String)
    trains = (kind == "train") | kind.str.starts_with("train ")
    rows = grouped.labelled.select("host", "phase", "start_ps", "dur_ps", "samples", "tokens", "traced", kind=kind)
    if not rows.select(trains.any()).item():
        trains = kind == str(grouped.longest.steps["kind"].cast(pl.String)[0])
    rows = rows.with_columns(trains=trains & (pl.col("phase") >= 0))
    trained = pl.col("kind").is_in(rows.filter("trains")["kind"].unique().implode())  # outliers, too
    training, reasons, sources = rows.filter("trains"), dict[str, str](), dict[str, str]()
    if training["samples"].count():
        sources["samples"] = "fetched batches"
    if training["tokens"].count():
        sources["tokens"] = "ids in fetched batches"
    fetched = events is not None and (events.events["event"] == "fetch").any()
    if not sources and not fetched and events is not None and training["host"].n_unique() == 1:
        size, source = _of_calls(events, len(rows.filter(trained)))
        for name, count in zip(Size._fields, size, strict=True):
            if count is not None:
                rows = rows.with_columns(pl.when(trained).then(pl.lit(count)).alias(name))
                sources[name] = source
    if tokens_per_step is not None:
        each = tokens_per_step / max(training["host"].n_unique(), 1)
        rows = rows.with_columns(tokens=pl.when(trained).then(round(each)))
        sources["tokens"] = "tokens_per_step="
    none = f"no fetch of a batch was seen; {_BY_HAND}"
    if "samples" not in sources:
        unclear = "arrays of its batches differ in their first dimension"
        reasons["samples_per_s"] = unclear if fetched else none
    if "tokens" not in sources:
        unclear = f"no two-dimensional ids in its batches, or a mask of unclear meaning; {_BY_HAND}"
        reasons["tokens_per_s"] = unclear if fetched or "samples" in sources else none
    return rows, reasons, sources


def _of_calls(events: RunEvents, steps: int) -> tuple[Size, str]:
    """Return the size of a step by what was first called: a model of PyTorch, or a function of JAX that trains."""
    rows = events.events.filter(pl.col("event").is_in(["call", "gradient"]))
    counts = rows.group_by("event", "key").agg(pl.col("count").sum())
    count = {(event, key): number for event, key, number in counts.iter_rows()}
    signatures = {number: Signature(*texts) for _, number, *texts in events.signatures.rows()}
    for key, number in rows.filter(pl.col("event") == "call").drop_nulls("arrays").select("key", "arrays").iter_rows():
        signature, per_step = signatures.get(number), 0.0
        if signature is not None and key is None:  # of a model, whose gradients are taken for each of its batches
            per_step = count.get(("gradient", None), 0) / max(steps, 1)
        elif signature is not None:
            per_step, state = count["call", key] / max(steps, 1), {*_kinds(signature.returns)}
            taken = [kind for kind in _kinds(signature.takes) if kind not in state and "[" in kind and "[]" not in kind]
            signature = Signature("", ", ".join(f"{at}:{kind}" for at, kind in enumerate(taken)))
        size, times = size_of(signature), round(per_step)
        if size.samples and times >= 1 and abs(per_step - times) < 0.1 * times:
            sizes = (None if number is None else number * times for number in size)
            return Size(*sizes), f"the first call, {times} a step"
    return Size(None, None), ""


def _kinds(text: str) -> list[str]:
    """Return the kinds of arrays in a signature, without how often each is there."""
    return [re.sub(r"^\d+ ", "", kind) for kind in text.split(", ") if kind]


# -- FLOPs -------------------------------------------------------------------------------------------------------------


def _work(
    kind: str, steps: Steps, events: RunEvents | None, programs: Callable[[], Mapping[str, pl.DataFrame]]
) -> _Work:
    """Return the FLOPs of a step of a kind, by what shows them best."""
    frame = steps.frame.filter(pl.col("kind").cast(pl.String) == kind)
    if not steps.devices["flops"].count() and frame["flops"].count():
        dtype = _POLICIES.get(steps.metadata.get("dtype", ""), "f32")
        part = _Part(dtype, attention=False, part=None, flops=float(frame["flops"].max()))  # type: ignore[arg-type]
        return _Work([part], _number(frame["samples"].max()), "the graph of the step")
    if events is not None and (found := programs()):
        return _of_programs(kind, frame, found, events)
    if (of_operators := _of_operators(steps, frame)) is not None:
        return of_operators
    full = frame.filter(pl.col("traced") == "full").drop_nulls("flops")
    if len(full):
        devices = max(steps.devices.select("host", "device").n_unique(), 1) / max(steps.devices["host"].n_unique(), 1)
        part = _Part(None, attention=False, part=None, flops=float(full["flops"].mean()) / devices)  # type: ignore[arg-type]
        return _Work([part], _number(full["samples"].mean()), "the profiler", is_complete=False)
    return _Work(why="no raw window with the operators or the program of a whole step")


def _number(value: object) -> float | None:
    return None if value is None else float(value)  # type: ignore[arg-type]


def _programs(profile: Profile | None) -> dict[str, pl.DataFrame]:
    """Return the products of compiled programs by name, of several of a name those of the most FLOPs."""
    found = dict[str, pl.DataFrame]()
    if profile is None or profile.read_details is None:
        return found
    with suppress(TpunbError):
        rows = profile.protos
        of_host = rows.filter(pl.col("host").eq_missing(pl.lit(rows["host"].first())))
        for module, proto in of_host.select("module", "proto").iter_rows():
            products = hlo_cost.products(Messages.of(proto, source=module))
            if module not in found or products["flops"].sum() > found[module]["flops"].sum():
                found[module] = products
    return found


def _of_programs(
    kind: str, frame: pl.DataFrame, programs: Mapping[str, pl.DataFrame], events: RunEvents | None
) -> _Work:
    """Return the FLOPs of the programs that a step runs."""
    calls = _calls(kind, frame, events)
    if not calls:  # of a library whose calls are not recorded
        if kind != "train" or not frame["rule"].is_in(["keras"]).any():
            return _Work(why="which programs a step runs is not recorded")
        name = max(programs, key=lambda module: float(programs[module]["flops"].sum()))
        calls = {name: 1.0}
    parts, largest = list[_Part](), _number(frame["samples"].max())
    for function, times in calls.items():
        name = re.sub(r"\W", "_", function)
        module = next((of for of in (function, f"jit_{name}", f"pmap_{name}") if of in programs), None)
        if module is None:
            return _Work(why=f"no window holds the program of {cut(plain(function), 60)}")
        rows = programs[module]
        if (why := rows["unknown"].drop_nulls().first()) is not None:
            return _Work(why=f"the FLOPs of {cut(plain(module), 40)} are not counted: {cut(plain(str(why)), 60)}")
        parts += [_Part(dtype, attends, part, flops * times) for _, dtype, attends, part, flops, _ in rows.iter_rows()]
    if not parts:
        return _Work(why="its programs have no matrix products and no convolutions")
    named = {part.part for part in parts if part.flops}
    if {None, "recomputation"} <= named:
        return _Work(why="XLA left products without names, so that recomputed ones cannot be distinguished")
    is_one = sum(calls.values()) == 1
    return _Work(parts, largest if is_one else None, "compiled programs, by XLA's rules")


def _calls(kind: str, frame: pl.DataFrame, events: RunEvents | None) -> dict[str, float]:
    """Return how often a step of a kind calls each function of the program, if it does in most."""
    if events is None or frame.is_empty():
        return {}
    names = {number: What(*what) for _, number, *what in events.names.rows()}
    keys = dict(events.keys.select("id", "name").rows())
    starts = frame.select(at="start_ps", until=pl.col("start_ps") + pl.col("dur_ps")).sort("at")
    called = events.events.filter(pl.col("event") == "call", pl.col("key").is_not_null()).sort("end_ps")
    placed = called.join_asof(starts, left_on="end_ps", right_on="at").with_columns(
        of_kind=(pl.col("end_ps") <= pl.col("until")).fill_null(value=False)
    )
    times = dict[str, float]()
    for (key, what), rows in placed.group_by("key", "what", maintain_order=True):
        name = keys.get(key)
        function = names.get(what)
        if name is None or function is None or function.library != "jax" or function.is_part_of_steps:
            continue
        of_kind = int(rows.filter("of_kind")["count"].sum())
        per_step = int(rows["count"].sum()) / len(frame)
        if 2 * of_kind >= int(rows["count"].sum()) and per_step > 0.05:
            whole = round(per_step)
            times[name] = times.get(name, 0) + (whole if whole and abs(per_step - whole) < 0.2 * whole else per_step)
    return times


def _of_operators(steps: Steps, frame: pl.DataFrame) -> _Work | None:
    """Return the FLOPs of PyTorch's operators in the steps that were traced with their shapes; None without any."""
    layers = None
    with suppress(TpunbError):
        layers = steps.layers
    if layers is None or layers.is_empty() or "flops_source" not in layers.columns:
        return None
    full = frame.filter(pl.col("traced") == "full").select("host", "step", "samples")
    rows = layers.join(full, on=["host", "step"])
    category, name = pl.col("category").cast(pl.String), pl.coalesce("kernel", "op").cast(pl.String)
    products = rows.filter(category.is_in([*HEAVY, EXPERTS]), pl.col("flops_source").cast(pl.String) == "shapes")
    if products.is_empty():
        return None
    traced = products.select("host", "step").unique()
    rows = rows.join(traced, on=["host", "step"])
    strange = rows.filter(pl.col("flops").is_null(), pl.col("side") == "device", name.str.contains(_COMPUTES_PRODUCTS))
    if strange.height:
        return _Work(
            why=f"the FLOPs of the kernel {cut(plain(str(strange.select(name).item(0, 0))), 60)} are not counted"
        )
    parts = defaultdict[tuple[str | None, bool, str | None], float](float)
    columns = "category", "tf_op", "shape", "dtype", "part", "flops"
    for which, operator, shape, dtype, part, flops in products.select(
        pl.col(columns[:4]).cast(pl.String), *columns[4:]
    ).iter_rows():
        attends = which == ATTENTION or "bmm" in str(operator)
        again = 0.0
        if which == ATTENTION:
            flops, again = _whole(str(operator), str(shape), flops)
        parts[dtype, attends, part] += flops / len(traced)
        parts[dtype, attends, "recomputation"] += again / len(traced)
    samples = full.join(traced, on=["host", "step"])["samples"].mean()
    return _Work(
        [_Part(*of, flops) for of, flops in parts.items()], _number(samples), "operators of PyTorch, by shapes"
    )


def _whole(operator: str, shape: str, flops: float) -> tuple[float, float]:
    """Return the FLOPs of an attention for all pairs of positions, and apart those that its backward pass repeats.

    >>> forward = "f32[1,1,4,8] f32[1,1,4,8] f32[1,1,4,8] causal"
    >>> _whole("aten::_scaled_dot_product_flash_attention", forward, 2 * 10 * 16)
    (512.0, 0.0)
    """
    tensors = [[*map(int, dims.split(","))] for dims in re.findall(r"\[([\d,]+)\]", shape)]
    is_backward = operator.endswith("_backward")
    if len(tensors) < 3 + is_backward or min(map(len, tensors[: 3 + is_backward])) < 3:
        return flops, 0.0
    query, key, value = tensors[is_backward : 3 + is_backward]
    axis = 1 if operator.startswith("flash_attn") else -2
    queries, keys = query[axis], key[axis]
    if "causal" in shape:
        least = min(queries, keys)
        flops *= queries * keys / (least * (least + 1) // 2 + (queries - least) * keys)
    if not is_backward:
        return float(flops), 0.0
    wide, narrow = 3 * query[-1] + 2 * value[-1], 2 * query[-1] + 2 * value[-1]
    return flops * narrow / wide, flops * (wide - narrow) / wide


# -- rows --------------------------------------------------------------------------------------------------------------


def _row(
    name: str,
    phase: int | None,
    those: pl.DataFrame,
    works: Mapping[str, _Work],
    chip: Device | None,
    attention: str,
    rows: pl.DataFrame,
) -> tuple[object, ...]:
    """Return a row of RATES."""
    mean_ps = float(those["dur_ps"].mean() or 0)  # type: ignore[arg-type]
    sums = [None if those[size].null_count() else int(those[size].sum()) for size in Size._fields]
    per_s = those.select(throughput()).row(0)
    work = works[str(those["kind"][0])] if those["kind"].n_unique() == 1 else _Work(why="steps of several kinds")
    model = flops = mfu = hfu = None
    if not work.why and mean_ps > 0:
        scale = 1.0
        if work.samples and (mean := those["samples"].mean()) is not None:
            scale = float(mean) / work.samples  # type: ignore[arg-type]
        counted = _counted(work.parts, attention)
        flops = scale * sum(all_of for _, _, all_of in counted)
        model = scale * sum(of_model for _, of_model, _ in counted) if work.is_complete else None
        if chip is not None:
            peaks = [
                chip.peaks.get(_TYPES.get(str(dtype), str(dtype)), chip.peak_flops) / chip.cores
                for dtype, *_ in counted
            ]
            shares = [scale / mean_ps * 1e12 / peak for peak in peaks]
            mfu = sum(share * of_model for share, (_, of_model, _) in zip(shares, counted, strict=True))
            hfu = sum(share * all_of for share, (_, _, all_of) in zip(shares, counted, strict=True))
            mfu = mfu if work.is_complete else None
    per_second = None if model is None else model / mean_ps * 1e12
    return (phase, name, len(those), round(mean_ps), *sums, *per_s, model, flops, per_second, mfu, hfu)


_TYPES = {"s8": "int8", "u8": "int8", "f8e4m3fn": "fp8", "f8e5m2": "fp8", "f8e4m3fnuz": "fp8", "f8e5m2fnuz": "fp8"}


def _counted(parts: Iterable[_Part], attention: str) -> list[tuple[str | None, float, float]]:
    """Return data type, FLOPs of the model, and all FLOPs, of each type of products and of attention.

    XLA may merge what is recomputed with what it repeats, under the name of either, or leave it no name. A forward
    product has two in the backward pass, so where something is recomputed, either part follows from the other.
    """
    sums = defaultdict[tuple[str | None, bool], defaultdict[str | None, float]](lambda: defaultdict(float))
    for dtype, attends, part, flops in parts:
        sums[dtype, attends][part] += flops / (2 if attends and attention == "causal" else 1)
    recomputes = any(of["recomputation"] for of in sums.values())
    counted = []
    for (dtype, _), of in sums.items():
        again, model = of["recomputation"], sum(flops for part, flops in of.items() if part != "recomputation")
        if again:
            missing = max(0.0, of["backward"] / 2 - of["forward"])
            counted.append((dtype, model + min(again, missing), model + again))
        else:
            excess = max(0.0, of["backward"] - 2 * of["forward"]) if recomputes and of["forward"] else 0.0
            counted.append((dtype, model - excess, model))
    return counted


# -- for reports -------------------------------------------------------------------------------------------------------

_SHOWN = {  # name in reports and in trackers, column, and unit in which it is shown
    "samples/s": ("samples_per_second", "samples_per_s", 1.0),
    "tokens/s": ("tokens_per_second", "tokens_per_s", 1.0),
    "TFLOP/s a device": ("tflops_per_device", "flops_per_s", 1e12),
    "MFU": ("mfu", "mfu", 1.0),
    "HFU": ("hfu", "hfu", 1.0),
}
_LONGEST = 110  # characters of a reason


def rate_figures(found: Rates) -> dict[str, object]:
    """Return the rates of the training for a report: each with its base and source, null with a reason in "why"."""
    row = found.frame.row(0, named=True) if len(found) else dict.fromkeys(schema.RATES)
    content: dict[str, object] = {
        "base": f"step time of {plural(row['steps'] or 0, 'step')} of training, outliers left out"
    }
    whys, device = dict[str, list[str]](), "" if found.device is None else cut(plain(found.device.name), _LONGEST)
    for name, (_, column, unit) in _SHOWN.items():
        if (value := row[column]) is None:
            content[name], why = None, found.reasons.get(column, "it differs between steps")
            whys.setdefault(cut(plain(why), _LONGEST), []).append(name)
            continue
        number = float(f"{value / unit:.4g}")
        if column in ("mfu", "hfu"):
            content[name] = {"share": number, "base": f"peak of {device}", "evidence": "rates"}
        else:
            source = {"samples_per_s": "samples", "tokens_per_s": "tokens"}.get(column, "flops")
            figure = {"value": number, "unit": "1/s" if unit == 1 else "TFLOP/s", "evidence": "rates"}
            by = {"by": "estimate"} if column in found.estimated else {}
            content[name] = {**figure, "from": found.sources.get(source, ""), **by}
    return content | ({"why": {", ".join(names): why for why, names in whys.items()}} if whys else {})


def phase_rates(found: Rates) -> dict[int, dict[str, float]]:
    """Return the rates that are known of each phase, for a report, if there are several."""
    rows = [row for row in found.frame.iter_rows(named=True) if row["phase"] is not None]
    names = [(name, column, unit) for name, (_, column, unit) in _SHOWN.items() if name != "HFU"]
    return {
        row["phase"]: {
            name: float(f"{row[column] / unit:.4g}") for name, column, unit in names if row[column] is not None
        }
        for row in rows
        if len(rows) > 1
    }


def rate_lines(content: Mapping[str, Any]) -> list[str]:
    """Return the rates of a report as text."""
    texts = list[str]()
    for name, figure in content.items():
        if name in ("base", "why") or figure is None:
            continue
        if "share" in figure:
            texts.append(f"{percent(figure['share'])} {name}: of the {figure['base']}")
        else:
            value = figure["value"]
            number = f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
            texts.append(f"{number} {name}: {figure['from']}{', an estimate' * ('by' in figure)}")
    return [*texts, *(f"{names}: not known, {why}" for names, why in content.get("why", {}).items())]


def rate_metrics(report: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a report by the names of trackers, those of ml-goodput where it has one."""
    content, metrics = report["rates"] or {}, dict[str, float | None]()
    run, productive = report["run time"], report["productive"]
    if run is not None:
        metrics["workload/total_elapsed_time"] = run["value"]
        if productive["value"] is not None:
            metrics["workload/goodput_time"] = productive["value"]
            metrics["workload/badput_time"] = run["value"] - productive["value"]
        metrics["tpunb/goodput"] = productive["share"]
    if report["phases"]:
        metrics["tpunb/step_time"] = report["phases"][0]["step"]["value"]
    for name, (metric, _, _) in _SHOWN.items():
        figure = content.get(name) or {}
        metrics[f"tpunb/{metric}"] = figure.get("value", figure.get("share"))
    return {name: float(value) for name, value in metrics.items() if value is not None}


_SLICES = 48  # of a run, each with its rates


def rate_curves(grouped: Phases, found: Rates, run: Goodput | None) -> pl.DataFrame:
    """Return the rates of the training in equal slices of the run's time: of a column of RATES, or of "goodput".

    A slice in which no training step begins has none. What is not known of single steps changes as their time does.
    """
    rows = _sized(grouped, None, None)[0]
    end_ps = rows.select((pl.col("start_ps") + pl.col("dur_ps")).max()).item() or 1
    span_ps = max(end_ps, 0 if run is None else run.wall_ps)
    place = (pl.col("start_ps") * _SLICES // span_ps).clip(0, _SLICES - 1)
    steps = rows.filter("trains").group_by(place=place).agg(throughput(), step_ps=pl.col("dur_ps").mean())
    curves = pl.DataFrame({"place": range(_SLICES)}).join(steps, on="place", how="left", maintain_order="left")
    mean = found.frame.row(0, named=True) if len(found) else dict.fromkeys(schema.RATES)
    by_time = (mean["step_ps"] or 0) / pl.col("step_ps")
    curves = curves.with_columns(
        pl.col(name).fill_null(pl.lit(mean[name], pl.Float64) * by_time) for name in ("samples_per_s", "tokens_per_s")
    )
    return curves.with_columns(mfu=pl.lit(mean["mfu"], pl.Float64) * by_time, goodput=_productive(run, span_ps))


def _productive(run: Goodput | None, span_ps: int) -> pl.Series:
    """Return the productive share of each slice of a run, mean over hosts."""
    if run is None:
        return pl.Series([None] * _SLICES, dtype=pl.Float64)
    edges, until = np.linspace(0, span_ps, _SLICES + 1), np.zeros(_SLICES + 1)
    for _, rows in run.segments.sort("start_ps").group_by("host"):
        start, dur = (rows[name].to_numpy().astype(float) for name in ("start_ps", "dur_ps"))
        time = np.where((rows["account"] == "productive").to_numpy(), dur, 0).cumsum()
        until += np.interp(edges, np.append(start[:1], start + dur), np.append(0, time))
    return pl.Series(np.diff(until) / (span_ps / _SLICES) / run.hosts)


def run_cost(found: Rates, seconds: float, per_hour: float) -> tuple[float, float | None]:
    """Return what a run costs, and a million of its tokens, None if they are unknown."""
    if not 0 < per_hour < math.inf:
        raise ValueError(f"The per_hour parameter of cost must be above 0. Got {per_hour!r} instead.")
    whole = per_hour * seconds / 3600
    return whole, whole / found.trained * 1e6 if found.trained else None
