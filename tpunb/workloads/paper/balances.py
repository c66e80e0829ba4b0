"""The paper's Observations 3 to 6 and Figures 10 to 16, from runs at balances of input and device."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import polars as pl

from tpunb.analysis.goodput import goodput
from tpunb.cluster import phases
from tpunb.frames.hardware import device
from tpunb.text import percent
from tpunb.workloads.paper.figures import mxu
from tpunb.workloads.paper.tables import published
from tpunb.workloads.recordings import NAIVE, TUNED, RecordedRun

V2, V3_MEMORY, V3 = "TPU v2", "TPU v3, if memory bounds it", "TPU v3"
_V2, _V3 = device("TPU v2"), device("TPU v3")
FASTER = {V2: 1.0, V3_MEMORY: _V3.bandwidth / _V2.bandwidth, V3: _V3.peak_flops / _V2.peak_flops}
"""Marked balances: where the naive program idles as the paper's on TPU v2, and with a device so many times faster."""

OTHER_DATA = {
    "bert-squad": ("bert-mrpc", "bert-mnli", "bert-cola"),
    "dcgan-cifar10": ("dcgan-mnist",),
    "qanet-squad": ("qanet-squad-half",),
    "retinanet-coco": ("retinanet-coco-half",),
    "resnet-imagenet": ("resnet-cifar10",),
}
"""Workloads recorded at balances, one of each model, and the same models on other data."""

PLAN = "plan.json"
"""File beside the runs of a workload at balances, with the widths of its marks."""

_KEY = ["run", "balance", "width", "form", "mark", "measure"]
_SCHEMA = {"run": pl.String, "balance": pl.Float64, "width": pl.Int64, "form": pl.String, "mark": pl.String}
_RANGE = {"value": pl.col("value").median(), "low": pl.col("value").min(), "high": pl.col("value").max()}


def curves(runs: Iterable[RecordedRun]) -> pl.DataFrame:
    """Return what runs at balances measured, over rounds.

    Parameters
    ----------
    runs
        Runs as `tpunb.workloads.recorded_balances` reads them.

    Returns
    -------
    DataFrame
        One row per run, balance, form of its input pipeline and measure: ``run``, the name of its workload;
        ``balance`` and ``width`` of the model; ``form``; ``mark``, a key of `FASTER`, or null; ``measure``; ``value``,
        the median over rounds; ``low`` and ``high``, the least and the greatest; ``rounds``, and ``busy``, how many of
        them the machine was busy in. Measures are shares of the time of training steps: "idle", in which the device
        computes nothing, "input", in which a step waits for its batch, "mxu", FLOP/s by the peak of the device, "roof",
        the time that the operations take at its roof; shares of the run: "idle of the run", "goodput" and "coverage"
        of the three longest phases; their number "phases"; seconds of a step: "step_s", "device_s".
    """
    rows = [
        (*facts, measure, value, bool(run.metadata.get("busy")))
        for run in runs
        for facts in [_facts(run)]
        for measure, value in _measures(run).items()
        if value is not None
    ]
    schema = _SCHEMA | {"measure": pl.String, "value": pl.Float64, "busy": pl.Boolean}
    frame = pl.DataFrame(rows, schema=schema, orient="row").group_by(_KEY, maintain_order=True)
    return frame.agg(**_RANGE, rounds=pl.len(), busy=pl.col("busy").sum()).sort("run", "balance", "form", "measure")


def _facts(run: RecordedRun) -> tuple[str, float, int, str, str | None]:
    width = int(run.metadata["width"])
    mark = next((mark for mark, of in _marks(run.folder.parent).items() if of == width), None)
    return run.workload.name, float(run.metadata["balance"]), width, str(run.metadata["form"]), mark


@cache
def _marks(folder: Path) -> dict[str, int]:
    file = folder / PLAN
    return dict(json.loads(file.read_text(encoding="utf-8"))["marks"]) if file.exists() else {}


def _measures(run: RecordedRun) -> dict[str, float | None]:
    """Return the figures of a run by measure."""
    frame = run.steps.full().frame.drop_nulls("device_ps")
    train = frame.filter(kind="train").select(pl.col("dur_ps", "device_ps", "input_ps").cast(pl.Float64))
    if train.is_empty():
        return {}
    step, busy, wait = (train[name].fill_null(0).mean() for name in ("dur_ps", "device_ps", "input_ps"))
    assert isinstance(step, float)
    assert isinstance(busy, float)
    assert isinstance(wait, float)
    roof_s = run.costs["train"].roof_s if "train" in run.costs else None
    by_kind = frame.group_by("kind").agg(pl.col("device_ps").mean())
    computed = float(run.steps.frame.select("kind").join(by_kind, on="kind", how="left")["device_ps"].sum())
    figures = {
        "idle": 1 - busy / step,
        "input": wait / step,
        "mxu": mxu(run)[0],
        "roof": None if roof_s is None else roof_s * 1e12 / step,
        "idle of the run": max(1 - computed / 1e12 / run.metadata["seconds"], 0.0),
        "goodput": goodput(run.profile).ratio,
        "step_s": step / 1e12,
        "device_s": busy / 1e12,
    }
    if run.steps.ops.is_empty():  # of repeated rounds
        return figures
    grouped = phases(run.steps)
    return figures | {"phases": float(len(grouped)), "coverage": grouped.coverage(3)}


def gains(runs: Iterable[RecordedRun]) -> pl.DataFrame:
    """Return how much faster whole runs are in other forms than the naive one, and that their output is equal.

    Returns
    -------
    DataFrame
        One row per run, balance and form: ``run``, ``balance``, ``width``, ``form``, ``mark``; ``value``, ``low`` and
        ``high``, the time of the naive run by that in this form, in the same round: median, least and greatest;
        ``naive_s`` and ``seconds``, medians of both; ``tuning_s``, seconds of the tuning before, or null; ``equal``,
        whether losses, metrics and final weights of all rounds are equal, bit for bit; ``busy``, as in `curves`.
    """
    facts = {"round": pl.Int64, "seconds": pl.Float64, "output": pl.String, "tuning_s": pl.Float64, "busy": pl.Boolean}
    names = ("round", "seconds", "output", "tuning_seconds", "busy")
    rows = [(*_facts(run), *(run.metadata.get(name) for name in names)) for run in runs]
    frame = pl.DataFrame(rows, schema=_SCHEMA | facts, orient="row")
    naive = frame.filter(form=NAIVE).select("run", "width", "round", naive_s="seconds", naive="output")
    pairs = frame.filter(pl.col("form") != NAIVE).join(naive, on=["run", "width", "round"])
    pairs = pairs.with_columns(value=pl.col("naive_s") / pl.col("seconds"))
    medians = {name: pl.col(name).median() for name in ("naive_s", "seconds", "tuning_s")}
    equal = pl.concat_list("output", "naive").list.explode(keep_nulls=True, empty_as_null=True).n_unique() == 1
    grouped = pairs.group_by(_KEY[:-1], maintain_order=True)
    return grouped.agg(**_RANGE, **medians, equal=equal, busy=pl.col("busy").sum()).sort("run", "balance", "form")


def observations(measured: pl.DataFrame, faster: pl.DataFrame) -> pl.DataFrame:
    """Return Observations 3 to 6 of the paper, each with a measured figure, the paper's, and a sentence.

    Parameters
    ----------
    measured
        Frame from `curves`, of runs at all marks.
    faster
        Frame from `gains`.

    Returns
    -------
    DataFrame
        One row per observation: ``observation``, ``figure``, its ``value``, ``low`` and ``high`` here, ``paper``, the
        value in the paper, ``agrees``, and ``sentence``. Without such runs the values are null.
    """
    naive = measured.filter(form=NAIVE)
    rows = [_preparation(naive), _efficiency(naive, faster), _faster(naive), _datasets(naive)]
    numbers = dict.fromkeys(("value", "low", "high", "paper"), pl.Float64)
    schema = {"observation": pl.Int64, "figure": pl.String, **numbers, "agrees": pl.Boolean, "sentence": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row")


_Row = tuple[int, str, float | None, float | None, float | None, float, bool | None, str]
_Range = tuple[float, float, float]


def _mean(frame: pl.DataFrame, **of: str) -> _Range | None:
    """Return the mean over workloads of a value and its ends; None without rows."""
    rows = frame.filter(**of)
    means = rows.select(pl.col("value", "low", "high").mean()).row(0)
    return None if None in means else means


def _idle(device_: str) -> float:
    return float(published("idle").filter(device=device_)["value"].item())


def _said(agrees: bool) -> str:
    return "Agrees" if agrees else "Does not agree"


def _of_curves(naive: pl.DataFrame) -> pl.DataFrame:
    return naive.filter(pl.col("run").is_in([*OTHER_DATA]))


def _preparation(naive: pl.DataFrame) -> _Row:
    figure, paper = "wait for input by step time, where the device idles as on TPU v2", _idle(V2)
    naive = _of_curves(naive).filter(mark=V2)
    wait, idle = _mean(naive, measure="input"), _mean(naive, measure="idle")
    if wait is None or idle is None:
        return 3, figure, None, None, None, paper, None, "Not measured."
    agrees = wait[1] > idle[0] / 2
    most = "most" if agrees else "less than half"
    text = f"{_said(agrees)}: steps wait for their input for {percent(wait[0], 1)} of their time, {most} of the"
    return 3, figure, *wait, paper, agrees, f"{text} {percent(idle[0], 1)} in which the device idles."


def _efficiency(naive: pl.DataFrame, faster: pl.DataFrame) -> _Row:
    figure, paper = "speed-up of whole runs by tuning, at that balance", float(published("speed-up")["value"].item())
    tuned = faster.filter(form=TUNED)
    at = [_mean(tuned.filter(pl.col("mark").eq_missing(pl.lit(mark)))) for mark in (None, V2, V3)]
    widths = tuned.select("run", "width")
    idle = naive.filter(measure="idle").join(widths, on=["run", "width"], how="semi")
    shares = [_mean(idle.filter(pl.col("mark").eq_missing(pl.lit(mark)))) for mark in (None, V2, V3)]
    if (gain := at[1]) is None:
        return 4, figure, None, None, None, paper, None, "Not measured."
    agrees = gain[1] > 1 and (at[0] is None or gain[0] > at[0][0])
    parts = [
        f"{value[0]:.2f}x where the device idles {percent(share[0], 0)}"
        for value, share in zip(at, shares, strict=True)
        if value is not None and share is not None
    ]
    return 4, figure, *gain, paper, agrees, f"{_said(agrees)}: tuning makes whole runs {', '.join(parts)} of step time."


def _faster(naive: pl.DataFrame) -> _Row:
    figure, paper = f"idle by step time with {FASTER[V3]:.2f}x faster compute", _idle(V3)
    idle = _of_curves(naive).filter(measure="idle")
    before, memory, after = (_mean(idle, mark=mark) for mark in FASTER)
    if before is None or after is None:
        return 5, figure, None, None, None, paper, None, "Not measured."
    agrees = after[1] > before[2]
    enough = paper / (1 - paper) / (_idle(V2) / (1 - _idle(V2)))
    grows = "grows from" if agrees else "does not grow from"
    between = "" if memory is None else f", {percent(memory[0], 1)} with {FASTER[V3_MEMORY]:.1f}x"
    text = f"{_said(agrees)}: idle time {grows} {percent(before[0], 1)} to {percent(after[0], 1)}{between};"
    return 5, figure, *after, paper, agrees, f"{text} with the same waits, the paper's growth is that of {enough:.2f}x."


def _datasets(naive: pl.DataFrame) -> _Row:
    figure, paper = "idle by step time on other data less that on its own, least and most", 0.0
    idle = naive.filter(measure="idle", mark=V2)
    found = {}
    for run, others in OTHER_DATA.items():
        own = idle.filter(run=run)
        for row in idle.filter(pl.col("run").is_in(others)).iter_rows(named=True) if len(own) else ():
            (base,) = own.iter_rows(named=True)
            apart = row["low"] > base["high"] or row["high"] < base["low"]
            found[row["run"]] = row["value"] - base["value"] if apart else 0.0
    if not found:
        return 6, figure, None, None, None, paper, None, "Not measured."
    groups = [
        ("more", [run for run, change in found.items() if change > 0]),
        ("less", [run for run, change in found.items() if change < 0]),
        ("as much", [run for run, change in found.items() if change == 0]),
    ]
    agrees = any(found.values())
    parts = "; ".join(f"{how}: {', '.join(names)}" for how, names in groups if names)
    changes = sorted(found.values())
    middle = changes[len(changes) // 2]
    text = f"{_said(agrees)}: at one balance, other data leave the device idle {parts}."
    return 6, figure, middle, changes[0], changes[-1], paper, agrees, text
