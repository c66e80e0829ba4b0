"""Thirty questions on six runs, answered from the JSON of the report alone; the frames are the oracle."""

import json
from functools import cache
from pathlib import Path

import polars as pl
import pytest

import tpunb as tp
from tpunb.analysis.advice import advise
from tpunb.analysis.goodput import totals
from tpunb.analysis.verdict import verdict

SAMPLES = Path(__file__).parents[1] / "datasets" / "sample_profiles"
RUNS = ("keras_cnn", "keras_transformer", "pod", "bert-cola", "resnet-imagenet", "dcgan-mnist")


@cache
def run(name):
    """Return the parsed JSON, and the phases that it is about."""
    phases = tp.phases(SAMPLES / name)
    return json.loads(tp.report(phases).to_json()), phases


def account(report, name):
    """Return the range of an account's share: if it is not listed, it is below the last that is, or below 1 %."""
    shares = {each["account"]: each["time"]["share"] for each in report["accounts"]}
    most = shares.get(name, min(shares.values()) if "accounts" in report.get("left out", {}) else 0.01)
    return shares.get(name, 0.0), most


def account_of(phases, name):
    return tp.goodput(phases).time_ps(name) / tp.goodput(phases).wall_ps


def first_op(phases):
    top = phases.top(1, sources=False).filter(pl.col("phase") == phases.longest.id)
    return top.sort("side")["op"].cast(pl.String).to_list()


QUESTIONS = {
    "which phase is longest": (
        lambda r: r["phases"][0]["name"],
        lambda p: p.frame["name"][0],
    ),
    "how long is its median step": (
        lambda r: r["phases"][0]["step"]["value"],
        lambda p: p.frame["step_ps"][0] / 1e12,
    ),
    "what is the goodput": (
        lambda r: r["productive"]["share"],
        lambda p: tp.goodput(p).ratio,
    ),
    "which account takes most beside training": (
        lambda r: next(each["account"] for each in r["accounts"] if each["account"] != "productive"),
        lambda p: totals(tp.goodput(p)).filter(pl.col("account") != "productive")["account"][0],
    ),
    "what does waiting for input cost": (
        lambda r: account(r, "data loading"),
        lambda p: account_of(p, "data loading"),
    ),
    "what do checkpoints cost": (
        lambda r: account(r, "checkpoint save"),
        lambda p: account_of(p, "checkpoint save"),
    ),
    "how many steps were there, and how many traced": (
        lambda r: (r["run"]["steps"], r["run"]["traced"]),
        lambda p: (len(p.steps), len(p.steps.full())),
    ),
    "how long did it run": (
        lambda r: r["run time"]["value"],
        lambda p: p.steps.wall.span_ps / 1e12,
    ),
    "is it healthy": (
        lambda r: r["verdict"]["healthy"],
        lambda p: verdict(p).healthy,
    ),
    "what first": (
        lambda r: r["verdict"]["action"],
        lambda p: verdict(p).action,
    ),
    "what does the first action save at most": (
        lambda r: max((each["saves"]["value"] for each in r["actions"] if each["saves"]), default=None),
        lambda p: next((saves / 1e12 for saves in advise(p)["saves_ps"].drop_nulls()), None),
    ),
    "which operation takes most of the longest phase": (
        lambda r: r["operations"][0]["operation"],
        lambda p: first_op(p)[-1],
    ),
    "which place in the program slows steps": (
        lambda r: next(
            (
                each["causes"][0]["cause"]
                for each in r["accounts"]
                if each["account"] == "step time deviation" and "causes" in each
            ),
            None,
        ),
        lambda p: next(
            iter(
                totals(tp.goodput(p), "detail")
                .filter(pl.col("account") == "step time deviation", pl.col("share") >= 0.01)
                .drop_nulls("detail")["detail"]
            ),
            None,
        ),
    ),
    "on which device": (
        lambda r: r["run"].get("device"),
        lambda p: p.steps.metadata.get("device kind"),
    ),
    "on how many hosts": (
        lambda r: r["run"]["hosts"],
        lambda p: p.steps.frame["host"].n_unique(),
    ),
    "how many steps are outliers": (
        lambda r: sum(each["steps"] for each in r["phases"] if each["phase"] == -1),
        lambda p: p.frame.filter(phase=-1)["steps"].sum(),
    ),
    "how much of the longest phase's step is waiting for input": (
        lambda r: r["phases"][0].get("input", {}).get("share"),
        lambda p: p.frame["input"][0],
    ),
    "how much memory did it need at most": (
        lambda r: r["memory"]["host"] and r["memory"]["host"]["value"],
        lambda p: tp.goodput(p).load["rss_bytes"].max(),
    ),
    "were devices traced": (
        lambda r: "time of devices, apart from the host's" not in [each["what"] for each in r["unknown"]],
        lambda p: p.steps.devices.height > 0,
    ),
}
ASKED = [
    (name, question) for number, question in enumerate(QUESTIONS) for name in (RUNS[number % 6], RUNS[(number + 3) % 6])
]


def test_thirty_questions_on_six_runs():
    assert len(ASKED) >= 30
    assert {name for name, _ in ASKED} == {*RUNS}


@pytest.mark.parametrize(("name", "question"), ASKED)
def test_the_json_answers_as_the_frames_do(name, question):
    report, phases = run(name)
    answer, oracle = (each(of) for each, of in zip(QUESTIONS[question], (report, phases), strict=True))
    if isinstance(answer, tuple) and isinstance(oracle, float):
        assert answer[0] - 1e-4 <= oracle <= answer[1] + 1e-4
    elif isinstance(oracle, float):
        assert answer == pytest.approx(oracle, rel=1e-3, abs=1e-4)
    else:
        assert answer == oracle
