"""The report on a run: its JSON by the schema, its size, its evidence, and its agreement with the summary."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import polars as pl
import pytest
from optional_schema import errors
from run_parts import begun, finished, tables

import tpunb as tp
from tpunb.analysis.goodput import totals
from tpunb.testing import toy_steps

ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / "datasets" / "sample_profiles"
SCHEMA = json.loads((ROOT / "docs" / "report.schema.json").read_text())
RECORDED = ["keras_cnn", "keras_transformer", "pod", "bert-cola", "resnet-imagenet"]
RUNS = {name: lambda name=name: tp.phases(SAMPLES / name) for name in RECORDED} | {
    "h100": lambda: tp.phases(ROOT / "tests" / "data" / "h100"),
    "toy": lambda: tp.phases(toy_steps("aaabbbz")),
    "one step": lambda: tp.phases(toy_steps("a")),
    "clock only": lambda: tp.phases(toy_steps("aaabbb", traced="ffnffp")),
    "many phases": lambda: tp.phases(toy_steps("abcdefghijklmnopqrstuvwxyz" * 3), lambda steps: [*range(26)] * 3),
}


@cache
def phases_of(name):
    return RUNS[name]()


@cache
def report_of(name):
    return tp.report(phases_of(name))


def figures(value):
    """Yield every object with a figure in a report."""
    if isinstance(value, dict):
        if {"value", "share", "evidence"} & {*value}:
            yield value
        for each in value.values():
            yield from figures(each)
    elif isinstance(value, list):
        for each in value:
            yield from figures(each)


@pytest.mark.parametrize("name", RUNS)
def test_the_json_is_of_the_schema_in_4_kb(name):
    report = report_of(name)
    text = report.to_json()
    assert json.loads(text) == report.content
    assert len(text.encode()) <= 4000
    assert errors(report.content, SCHEMA) == []


@pytest.mark.parametrize("name", RUNS)
def test_every_figure_has_a_unit_or_a_base_and_its_evidence(name):
    report = report_of(name)
    found = [*figures(report.content)]
    assert found
    for figure in found:
        assert figure.get("unit") in {"s", "B", "1/s", "TFLOP/s"} or "base" in figure
        assert ("share" in figure) == ("base" in figure)
        assert report.evidence(figure["evidence"]).height >= 0


@pytest.mark.parametrize("name", RUNS)
def test_summary_and_report_agree(name):
    report, summary = report_of(name), tp.summary(phases_of(name))
    shown = repr(summary)
    if report.content["run time"] is None:
        assert summary.goodput is None
        return
    assert report.content["verdict"]["sentence"] in shown
    assert report.content["verdict"]["sentence"] in report.to_text()
    by_account = dict(totals(summary.goodput).select("account", "time_ps").iter_rows())
    for each in report.content["accounts"]:
        assert each["time"]["value"] == pytest.approx(by_account[each["account"]] / 1e12, rel=1e-3)
    assert report.content["productive"]["share"] == pytest.approx(summary.goodput.ratio, abs=1e-4)
    assert [row["name"] for row in report.content["phases"]] == summary.phases.frame["name"].to_list()[
        : len(report.content["phases"])
    ]


def test_entries_beyond_4_kb_that_concern_least_are_counted():
    from tpunb.analysis.report import _fitted

    def entries(share):
        return [{"name": "x" * 300, "time": {"share": share - 0.01 * number}} for number in range(6)]

    content = {"phases": entries(0.5), "accounts": entries(0.9), "actions": entries(0.3), "operations": entries(0.2)}
    fitted = _fitted({**content, "unknown": [{"what": "x" * 300}] * 2})
    assert len(json.dumps(fitted).encode()) <= 4200
    assert fitted["left out"] == {"actions": 5, "operations": 5, "phases": 5}
    assert (len(fitted["accounts"]), len(fitted["unknown"])) == (6, 2)


def test_evidence_is_the_frame_behind_a_figure():
    phases = phases_of("keras_cnn")
    report = report_of("keras_cnn")
    assert report.evidence("phases").equals(phases.frame)
    assert report.evidence("accounts").equals(tp.goodput(phases).frame)
    with pytest.raises(ValueError, match="must be one of phases, actions, operations, rates, kinds, accounts"):
        report.evidence("nothing")


def test_markdown_and_text_have_the_same_lines():
    report = report_of("keras_cnn")
    shown = report.to_markdown().replace("**", "").replace("- ", "  ").splitlines()
    assert shown == str(report).splitlines()  # none of its names is markup
    assert report._repr_markdown_() == report.to_markdown()
    assert repr(report).startswith("Report(keras_cnn: ")


def test_names_of_the_program_are_plain_text():
    from dataclasses import replace

    steps = replace(toy_steps("aab"), name="evil\x1b[31m\nname" + "y" * 500, metadata={"model": "\x07bell"})
    report = tp.report(steps)
    assert all(line.isprintable() for line in str(report).splitlines())
    assert len(report.content["run"]["name"]) <= 110


def test_goodput_below_a_share():
    report = report_of("keras_cnn")
    assert report.is_below(0.3) == (False, "goodput 35.6 % of run time is not below 30 %")
    assert report.is_below(0.8) == (True, "goodput 35.6 % of run time is below 80 %")
    assert tp.report(toy_steps("aab")).is_below(0.5)[0] is None


def test_a_run_without_steps_has_its_accounts(tmp_path):
    writer = begun(tmp_path / "run")
    writer.facts({"state": "finished", "span_ps": 10**12})
    writer.close()
    report = tp.report(tmp_path / "run")
    assert report.content["verdict"]["sentence"].startswith("No steps were found: ")
    assert (report.content["verdict"]["healthy"], report.content["run"]["steps"]) == (None, 0)
    assert errors(report.content, SCHEMA) == []
    assert report.is_below(0.5)[0] is None


def test_a_run_that_is_being_written_is_reported_so_far(tmp_path):
    writer = begun(tmp_path / "run")
    writer.part(0, tables(0, 1, 2))
    what = "the rest of the run: it is still being written"
    assert what in [each["what"] for each in tp.report(tmp_path / "run").content["unknown"]]
    writer.facts({"name": "toy", "state": "finished"})
    writer.close()
    assert what not in [each["what"] for each in tp.report(tmp_path / "run").content["unknown"]]
    finished(tmp_path / "other")
    assert not (tmp_path / "other" / ".lock").exists()


def test_wrong_arguments():
    with pytest.raises(TypeError, match="The run parameter of report must be the path of a run"):
        tp.report(3)


def test_the_phases_of_several_hosts_share_the_time_of_one():
    hosts = [toy_steps("aaabbb", host=name) for name in ("a", "b")]
    both = replace(hosts[0], frame=pl.concat(each.frame for each in hosts), ops=pl.concat(each.ops for each in hosts))
    content = tp.report(tp.phases(both, lambda steps: [0, 0, 0, 1, 1, 1])).content
    assert content["run"]["hosts"] == 2
    assert sum(each["time"]["share"] for each in content["phases"]) == pytest.approx(1.0, abs=1e-3)
    assert all(each["saves"] is None or each["saves"]["share"] <= 1 for each in content["actions"])


@pytest.mark.parametrize("name", RUNS)
def test_a_verdict_is_healthy_where_its_sentence_says_so(name):
    judged = tp.analysis.verdict(phases_of(name))
    assert judged is None or judged.healthy == judged.sentence.startswith("Healthy")


@pytest.mark.parametrize(
    ("name", "share", "base"),
    [
        ("tpu-v6e-4_jax_host-offload.xplane.pb", 21_492_671_104 / 33_550_237_696, "31.2 GiB of device 1"),
        ("gpu-mi300x_jax08_gemm.xplane.pb", 738_197_504 / 154_606_239_744, "144 GiB of GPU_0_bfc"),
    ],
)
def test_memory_of_the_fullest_device(real_profiles, name, share, base):
    report = tp.report(real_profiles / name)
    device = report.content["memory"]["device"]
    assert (device["share"], device["base"]) == (pytest.approx(share, abs=1e-4), base)
    assert device["value"] == report.evidence("memory")["bytes"][0]
    assert f"% of {base})" in str(report)


def test_memory_without_a_record_is_not_known():
    assert tp.report(toy_steps("aab")).content["memory"] == {"host": None, "device": None}
