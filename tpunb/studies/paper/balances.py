"""The paper's Observations 3 to 6 and Figures 10 to 16, from runs at balances of input and device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import polars as pl

from tpunb.analysis.goodput import goodput
from tpunb.cluster import phases
from tpunb.frames.hardware import device
from tpunb.studies.paper.figures import mxu
from tpunb.studies.paper.recordings import NAIVE, TUNED, RecordedRun
from tpunb.studies.paper.tables import published
from tpunb.text import percent

_V2, _V3 = device("TPU v2"), device("TPU v3")
V2, V3_MEMORY, V3 = "idle as TPU v2", "1.5x as fast", "2.73x as fast"
FASTER = {V2: 1.0, V3_MEMORY: _V3.bandwidth / _V2.bandwidth, V3: _V3.peak_flops / _V2.peak_flops}
"""Marked balances: where the naive program idles as the paper's on TPU v2, and with a device so many times as fast."""

OTHER_DATA = {
    "bert-squad": ("bert-mrpc", "bert-mnli", "bert-cola"),
    "dcgan-cifar10": ("dcgan-mnist",),
    "qanet-squad": ("qanet-squad-half",),
    "retinanet-coco": ("retinanet-coco-half",),
    "resnet-imagenet": ("resnet-cifar10",),
}
"""Workloads recorded at balances, one of each model, and the same models on other data."""

_KEY = ["run", "balance", "width", "form", "mark", "measure"]
_SCHEMA = {"run": pl.String, "balance": pl.Float64, "width": pl.Int64, "form": pl.String, "mark": pl.String}
_RANGE = {"value": pl.col("value").median(), "low": pl.col("value").min(), "high": pl.col("value").max()}


def curves(runs: Iterable[RecordedRun]) -> pl.DataFrame:
    """Return what runs measured, as `tpunb.studies.paper.recorded_balances` reads them, over rounds.

    Returns
    -------
    DataFrame
        One row per run, balance, form of its input pipeline and measure: ``run``, the name of its workload;
        ``balance`` and ``width`` of the model; ``form``; ``mark``, a key of `FASTER`, or null; ``measure``; ``value``,
        the median over rounds; ``low`` and ``high``, the least and the greatest; ``rounds``, and ``busy``, how many of
        them the machine was busy in. Measures are shares of the median training step, since the first steps of such a
        short run take long: "idle", in which the device computes nothing, "input", in which a step waits for its batch,
        "roof", the time of the operations at its roof; of all steps "mxu", FLOP/s by the peak of the device; of the run
        "idle of the run", "goodput", "coverage" of the three longest "phases", of which it is the number; seconds of a
        step: "step_s", "device_s".
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
    about = run.metadata
    return run.workload.name, float(about["balance"]), int(about["width"]), str(about["form"]), run.mark


def _measures(run: RecordedRun) -> dict[str, float | None]:
    """Return the figures of a run by measure."""
    frame = run.steps.full().frame.drop_nulls("device_ps")
    train = frame.filter(kind="train").select("dur_ps", "device_ps", pl.col("input_ps").fill_null(0))
    if train.is_empty():
        return {}
    step, busy, wait = train.median().row(0)
    roof_s = run.costs["train"].roof_s if "train" in run.costs else None
    by_kind = frame.group_by("kind").agg(pl.col("device_ps").mean())
    computed = float(run.steps.frame.select("kind").join(by_kind, on="kind", how="left")["device_ps"].sum())
    grouped = phases(run.steps)
    figures = {
        "idle": 1 - busy / step,
        "input": wait / step,
        "mxu": mxu(run)[0],
        "roof": None if roof_s is None else roof_s * 1e12 / step,
        "idle of the run": max(1 - computed / 1e12 / run.metadata["seconds"], 0.0),
        "goodput": goodput(grouped).ratio,
        "step_s": step / 1e12,
        "device_s": busy / 1e12,
    }
    if run.steps.ops.is_empty():  # of repeated rounds
        return figures
    return figures | {"phases": float(len(grouped)), "coverage": grouped.coverage(3)}


def gains(runs: Iterable[RecordedRun]) -> pl.DataFrame:
    """Return how much faster whole runs are in other forms than the naive one, and whether their output is equal.

    Returns
    -------
    DataFrame
        One row per run, balance and other form, as in `curves`: ``value``, ``low`` and ``high``, the time of the naive
        run by that in this form, in the same round; ``step``, the same of median training steps, the median over
        rounds; ``naive_s`` and ``seconds``, medians of whole runs; ``tuning_s``, seconds of the tuning before, or null;
        ``equal``, whether losses, metrics and final weights are, bit for bit; ``busy``.
    """
    facts: dict[str, Any] = {"round": pl.Int64, **dict.fromkeys(("seconds", "step_s", "tuning_s"), pl.Float64)}
    facts |= {"output": pl.String, "busy": pl.Boolean}
    names = ("round", "seconds", "step_s", "tuning_seconds", "output", "busy")
    rows = [(*_facts(run), *(run.metadata.get(name) for name in names)) for run in runs]
    frame = pl.DataFrame(rows, schema=_SCHEMA | facts, orient="row")
    naive = frame.filter(form=NAIVE).select(
        "run", "width", "round", naive_s="seconds", naive_step_s="step_s", naive="output"
    )
    pairs = frame.filter(pl.col("form") != NAIVE).join(naive, on=["run", "width", "round"])
    pairs = pairs.with_columns(
        value=pl.col("naive_s") / pl.col("seconds"), step=pl.col("naive_step_s") / pl.col("step_s")
    )
    medians = {name: pl.col(name).median() for name in ("step", "naive_s", "seconds", "tuning_s")}
    equal = pl.concat_list("output", "naive").list.explode(keep_nulls=True, empty_as_null=True).n_unique() == 1
    grouped = pairs.group_by(_KEY[:-1], maintain_order=True)
    return grouped.agg(**_RANGE, **medians, equal=equal, busy=pl.col("busy").sum()).sort("run", "balance", "form")


def observations(measured: pl.DataFrame, faster: pl.DataFrame) -> pl.DataFrame:
    """Return Observations 3 to 6 of the paper, judged by `curves` and `gains` of runs at all marks.

    Returns
    -------
    DataFrame
        One row per observation that was measured: ``observation``; ``figure``, its ``value``, ``low`` and ``high``
        here, ``paper``, the value in the paper, or null; ``agrees``; ``sentence``.
    """
    naive = measured.filter(form=NAIVE)
    runs = naive.filter(pl.col("run").is_in([*OTHER_DATA]))
    rows = [_preparation(runs), _efficiency(runs, faster.filter(form=TUNED)), _faster(runs), _datasets(naive)]
    numbers = dict.fromkeys(("value", "low", "high", "paper"), pl.Float64)
    schema = {"observation": pl.Int64, "figure": pl.String, **numbers, "agrees": pl.Boolean, "sentence": pl.String}
    return pl.DataFrame([row for row in rows if row is not None], schema=schema, orient="row")


_Row = tuple[int, str, float, float, float, float | None, bool, str]


def _mean(frame: pl.DataFrame, mark: str | None) -> tuple[float, float, float] | None:
    """Return the mean over workloads of a value and its ends at a mark; None without rows."""
    rows = frame.filter(pl.col("mark").eq_missing(pl.lit(mark)))
    return None if rows.is_empty() else rows.select(pl.col("value", "low", "high").mean()).row(0)


def _idle(of: str) -> float:
    return float(published("idle").filter(device=of)["value"].item())


def _judged(agrees: bool, text: str) -> tuple[bool, str]:
    return agrees, f"{'Agrees' if agrees else 'Does not agree'}: {text}."


def _preparation(naive: pl.DataFrame) -> _Row | None:
    figure = "wait for input by step time, where the device idles as on TPU v2 (paper: idle time)"
    wait, idle = (_mean(naive.filter(measure=measure), V2) for measure in ("input", "idle"))
    if wait is None or idle is None:
        return None
    text = (
        f"of {percent(idle[0], 1)} of step time in which the device idles, steps wait {percent(wait[0], 1)} for input"
    )
    return 3, figure, *wait, _idle("TPU v2"), *_judged(wait[1] > idle[0] / 2, text)


def _efficiency(naive: pl.DataFrame, tuned: pl.DataFrame) -> _Row | None:
    figure, marks = "speed-up of whole runs by tuning, where the device idles as on TPU v2", (None, V2, V3)
    idle = naive.filter(measure="idle").join(tuned, on=["run", "width"], how="semi")
    gain, share = ([_mean(frame, mark) for mark in marks] for frame in (tuned, idle))
    light, here, _ = gain
    if here is None:
        return None
    measured = [(faster[0], idles[0]) for faster, idles in zip(gain, share, strict=True) if faster and idles]
    (least, at), *more = measured
    text = f"tuning makes whole runs {least:.2f}x as fast where the device idles {percent(at, 0)} of step time"
    text = ", ".join([text, *(f"{faster:.2f}x at {percent(idles, 0)}" for faster, idles in more)])
    agrees = here[1] > 1 and (light is None or here[0] > light[0])
    paper = float(published("speed-up")["value"].item())
    return 4, figure, *here, paper, *_judged(agrees, text)


def _faster(naive: pl.DataFrame) -> _Row | None:
    figure = f"idle by step time, with {FASTER[V3]:.2f}x the speed of the device that idles as on TPU v2"
    before, memory, after = (_mean(naive.filter(measure="idle"), mark) for mark in FASTER)
    if before is None or after is None:
        return None
    device_s = naive.drop_nulls("mark").filter(measure="device_s").pivot("mark", index="run", values="value")
    measured = device_s.select((pl.col(V2) / pl.col(V3)).mean()).item()
    enough = _idle("TPU v3") / (1 - _idle("TPU v3")) / (_idle("TPU v2") / (1 - _idle("TPU v2")))
    between = "" if memory is None else f" ({percent(memory[0], 1)} with {FASTER[V3_MEMORY]:.1f}x)"
    text = (
        f"the device idles {percent(before[0], 1)}, and {percent(after[0], 1)} if it computes {measured:.2f}x as fast"
    )
    text += f"{between}; if waits stay, the growth in the paper is that by a device {enough:.2f}x as fast"
    return 5, figure, *after, _idle("TPU v3"), *_judged(after[1] > before[2], text)


def _datasets(naive: pl.DataFrame) -> _Row | None:
    figure, idle = "change of idle by step time on other data: median, least and most", naive.filter(measure="idle")
    by_run = {}
    for run, others in OTHER_DATA.items():
        for base in idle.filter(run=run, mark=V2).iter_rows(named=True):
            for other in idle.filter(pl.col("run").is_in(others), mark=V2).iter_rows(named=True):
                apart = other["low"] > base["high"] or other["high"] < base["low"]
                by_run[other["run"]] = other["value"] - base["value"] if apart else 0.0
    if not by_run:
        return None
    groups = {
        "more": [run for run, change in by_run.items() if change > 0],
        "less": [run for run, change in by_run.items() if change < 0],
        "as much within the range of the rounds": [run for run, change in by_run.items() if change == 0],
    }
    text = "; ".join(f"{how}: {', '.join(names)}" for how, names in groups.items() if names)
    changes = sorted(by_run.values())
    ends = changes[len(changes) // 2], changes[0], changes[-1]
    return 6, figure, *ends, None, *_judged(any(changes), f"on other data of the same model the device idles {text}")
