"""Scaling: MLPerf logs with their traps, captures of several sizes, and the fit of the serial share."""

import json
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

import tpunb as tp
from tpunb import schema
from tpunb.charts import render
from tpunb.errors import MissingExtra, ProfileNotFound, TpunbError, install
from tpunb.frames.steps import WallClock
from tpunb.studies.scaling import Scaling, charts, columns, mlperf_runs
from tpunb.studies.scaling import analysis as scaling
from tpunb.studies.scaling.logs import _by_date, _Event
from tpunb.testing import toy_steps

IN_ROUND = {"0.6.0": 1_558_000_000, "4.0.0": 1_709_000_000}  # May 2019, February 2024


def old(s, key, value=None, **about):
    return f":::MLL {s:.3f} {key}: {json.dumps({'value': value, 'metadata': about})}"


def new(s, key, value=None, **about):
    return ":::MLLOG " + json.dumps({"time_ms": round(s * 1000), "key": key, "value": value, "metadata": about})


def a_run(line=new, *, at=None, block=10.0, status="success", batch=400, blocks=4, startup=60.0, extra=()):
    """Return the lines of a run: startup, blocks of 4 epochs of 1,000 images, of which the first takes 5 s longer."""
    t = at if at is not None else IN_ROUND["0.6.0" if line is old else "4.0.0"]
    starts = [t + startup + (5 if i else 0) + block * i for i in range(blocks + 1)]
    lines = [line(0, "submission_benchmark", "resnet"), line(0, "submission_platform", "no-such-tpu-4096")]
    lines += [line(t, "init_start"), line(t + 1, "global_batch_size", batch), line(t + 2, "train_samples", 1000)]
    lines += [line(t + startup, "run_start")]
    for number, (start, end) in enumerate(pairwise(starts)):
        lines.append(line(start, "block_start", first_epoch_num=4 * number, epoch_count=4))
        lines.append(line(end, "eval_accuracy", 0.1 * number, epoch_num=4 * number + 4))
    if status is not None:
        lines.append(line(starts[-1], "run_stop", status=status))
    return [*lines, *extra]


def write(folder, runs, *, system="pod-8", benchmark="resnet", chips=4, cores=2):
    """Write logs as a submitter does; names of systems count cores."""
    place = folder / "results" / system / benchmark
    place.mkdir(parents=True, exist_ok=True)
    (folder / "systems").mkdir(exist_ok=True)
    for number, lines in enumerate(runs):
        (place / f"result_{number}.txt").write_text("\n".join(lines))
    if chips is not None:
        about = {"submitter": "us", "number_of_nodes": "2", "accelerators_per_node": str(chips // 2)}
        (folder / "systems" / f"{system}.json").write_text(json.dumps(about | {"accelerator_core_count": str(cores)}))
    return folder


def only(scaling):
    return scaling.frame.row(0, named=True)


# logs


@pytest.mark.parametrize("line", [old, new])
def test_a_log_gives_the_figures_of_its_run(tmp_path, line):
    result = scaling.mlperf(write(tmp_path, [a_run(line)]))
    row = only(result)
    assert (row["benchmark"], row["system"], row["submitter"], row["series"]) == ("resnet", "pod-8", "us", "pod-N")
    assert row["ruleset"] == ("0.6.0" if line is old else "4.0.0")
    assert (row["chips"], row["cores"]) == (4, 8)  # by the description, not by the name or the platform
    assert row["minutes"] == pytest.approx(45 / 60)  # run_start to run_stop
    assert (row["block_s"], row["examples_per_s_per_chip"]) == (pytest.approx(10), pytest.approx(100))
    assert row["step_ps"] == pytest.approx(1e12)  # 400 images at 400 images/s
    assert row["startup_minutes"] == pytest.approx(1)
    assert row["startup_share"] == pytest.approx(60 / 45)
    assert (row["to_quality"], row["unit"]) == (16, "epochs")
    assert row["evaluation_minutes"] is None  # the log marks none
    assert result.notes == ()


def test_blocks_that_overlap_count_from_start_to_start_and_evaluations_by_their_order(tmp_path):
    t = IN_ROUND["0.6.0"]
    lines = [old(t, "init_start"), old(t + 5, "run_start"), old(t, "global_batch_size", 64)]
    for i in range(5):  # a block begins every 8 s; it is evaluated in 3 s while the next trains
        lines.append(old(t + 5 + 8 * i, "block_start", first_epoch_num=i + 1, epoch_count=1))
        lines.append(old(t + 5 + 8 * i + 9, "eval_start", epoch_num=i + 1))
        lines.append(old(t + 5 + 8 * i + 12, "eval_stop", epoch_num=max(i, 1)))  # numbered wrongly, as some logs are
        lines.append(old(t + 5 + 8 * i + 14, "block_stop", first_epoch_num=i + 1))
    lines.append(old(t + 5 + 48, "run_stop", status="success"))
    row = only(scaling.mlperf(write(tmp_path, [lines], benchmark="transformer")))
    assert row["block_s"] == 8
    assert row["evaluation_minutes"] == pytest.approx(5 * 3 / 60)
    assert row["examples_per_s"] is None  # its epoch_num counts evaluations, not epochs
    assert (row["to_quality"], row["unit"]) == (None, None)


def test_evaluations_that_begin_with_their_training_are_unknown(tmp_path):
    t = IN_ROUND["4.0.0"] + 60
    spans = [(new(t + 10 * i, "eval_start"), new(t + 10 * i + 12, "eval_stop")) for i in range(4)]
    row = only(scaling.mlperf(write(tmp_path, [a_run(extra=[line for span in spans for line in span])])))
    assert row["evaluation_minutes"] is None
    assert row["block_s"] == pytest.approx(10)


def test_blocks_of_the_usual_length_count(tmp_path):
    t = IN_ROUND["4.0.0"] + 105
    longer = [new(t, "block_start", first_epoch_num=16, epoch_count=40), new(t + 99, "block_start", first_epoch_num=56)]
    row = only(scaling.mlperf(write(tmp_path, [a_run(extra=longer)])))
    assert row["examples_per_s"] == pytest.approx(400)


def test_lines_that_several_processes_write_count_once(tmp_path):
    lines = a_run()
    doubled = lines + [f"Processing {line}" for line in lines if "block_start" in line]
    assert only(scaling.mlperf(write(tmp_path, [doubled])))["block_s"] == pytest.approx(10)


def test_tokens_are_no_examples_and_the_official_factor_stays_apart(tmp_path):
    t, tokens = IN_ROUND["4.0.0"], 2048 * 24
    lines = [new(t, "init_start"), new(t, "global_batch_size", 12), new(t, "max_sequence_length", 2048)]
    lines += [new(t + 60, "run_start"), new(t + 900, "train_samples", 7 * tokens)]  # not the size of the data
    for i in range(7):  # the first block has no block_start
        lines.append(new(t + 90 + 20 * i, "eval_accuracy", 2.7, epoch_num=tokens * (i + 1)))
        lines.append(new(t + 90 + 20 * i, "block_start", epoch_count=tokens, first_epoch_num=tokens * (i + 1)))
    lines.append(new(t + 210, "run_stop", status="success"))
    folder = write(tmp_path, [lines], benchmark="gpt3")
    (folder / "results/pod-8/gpt3/scaling.json").write_text('{"scaling_factor": 1.25}')
    row = only(scaling.mlperf(folder))
    assert row["examples_per_s"] == pytest.approx(24 / 20)  # sequences
    assert (row["to_quality"], row["unit"]) == (7 * tokens, "tokens")
    assert (row["minutes"], row["official_factor"]) == (2.5, 1.25)


def test_the_best_and_the_worst_run_are_dropped_and_an_abort_is_the_worst(tmp_path):
    def minutes(*runs):
        row = only(
            scaling.mlperf(write(tmp_path / str(len(runs)) / runs[-1][1], [a_run(block=b, status=s) for b, s in runs]))
        )
        return row["minutes"] and round(60 * row["minutes"] - 5), row["runs"], row["unfinished"], row["scored"]

    fine = [(float(block), "success") for block in (10, 12, 14, 16)]
    assert minutes(*fine, (99.0, "success")) == (4 * 14, 5, 0, 3)
    assert minutes(*fine, (2.0, "aborted")) == (4 * 14, 5, 1, 3)
    assert minutes(*fine[:3], (2.0, "abort"), (3.0, "success")) == (4 * 12, 5, 1, 3)
    assert minutes(*fine[:2], (2.0, "aborted"), (3.0, "abort")) == (None, 4, 2, None)
    assert minutes(*fine[:2]) == (4 * 11, 2, 0, 2)  # two have no best and worst
    assert minutes((10.0, "aborted")) == (None, 1, 1, None)


def test_a_run_without_an_end_did_not_finish(tmp_path):
    result = scaling.mlperf(write(tmp_path, [a_run(), a_run(), a_run(status=None)]))
    assert result.runs["status"].to_list() == ["success", "success", "not finished"]
    assert (only(result)["minutes"], only(result)["unfinished"]) == (0.75, 1)
    assert only(result)["step_ps"] == pytest.approx(1e12)


scores = st.lists(st.floats(1, 100), max_size=45)


@given(scores, st.integers(0, 6), st.sampled_from(["resnet", "unet3d"]))
@examples(60)
def test_minutes_are_the_official_olympic_mean(times, unfinished, benchmark):
    summary = pytest.importorskip("mlperf_logging.result_summarizer.result_summarizer")
    drop = 4 if benchmark == "unet3d" else 1
    if len(times) + unfinished <= 2 * drop or not times:
        return  # too few runs for an official score
    rows = [{"benchmark": benchmark, "status": "success", "minutes": each} for each in times]
    rows += [{"benchmark": benchmark, "status": "aborted", "minutes": 0.1}] * unfinished
    row = only(Scaling(pl.DataFrame(rows, schema=columns.SCALING_RUNS)))
    if unfinished > drop:
        assert row["minutes"] is None
    else:
        padded = [*times, *[1e9] * unfinished]  # "dropped scores have higher score value than the rest"
        assert row["minutes"] == pytest.approx(summary._compute_olympic_average(padded, 0, drop))


# bad input


def test_a_bad_line_is_left_out_and_named(tmp_path):
    broken = [
        ':::MLLOG {"time_ms": 1',
        ':::MLLOG {"key": "run_stop"}',
        ":::MLLOG 7",
        new(-5, "run_stop"),
        "no line of it",
    ]
    result = scaling.mlperf(write(tmp_path, [a_run(extra=broken)]))
    assert only(result)["minutes"] == pytest.approx(0.75)
    (note,) = result.notes
    assert note.startswith("results/pod-8/resnet/result_0.txt: 4 bad lines left out, the first: ")
    assert "\n" not in note
    assert note in str(result)


def test_two_runs_in_one_log_are_two_runs(tmp_path):
    later = IN_ROUND["4.0.0"] + 5000
    result = scaling.mlperf(write(tmp_path, [a_run() + a_run(at=later, block=20.0)]))
    assert result.notes == ("results/pod-8/resnet/result_0.txt: 2 runs",)
    assert result.runs["minutes"].to_list() == [pytest.approx(45 / 60), pytest.approx(85 / 60)]
    assert result.runs["run"].to_list() == [f"results/pod-8/resnet/result_0.txt ({n})" for n in (1, 2)]
    assert result.runs["startup_minutes"].to_list() == [1, 1]


def test_a_log_in_which_runs_cannot_be_told_apart_is_left_out(tmp_path):
    restarted = a_run(status=None) + a_run(at=IN_ROUND["4.0.0"] + 5000)
    result = scaling.mlperf(write(tmp_path, [a_run(), restarted]))
    assert len(result.runs) == 1
    (note,) = result.notes
    assert note.endswith("result_1.txt: left out: a second run_start before the run_stop of the first run")


def test_rulesets_stay_apart(tmp_path):
    folder = tmp_path / "training_results_v4.0" / "us"
    write(folder, [a_run(), a_run(), a_run(), a_run(old, block=20.0)])
    write(folder, [a_run(block=6.0)], system="pod-16", chips=8)
    result = scaling.mlperf(folder)
    columns = ("ruleset", "chips", "runs", "base_chips", "efficiency")
    assert result.frame.select(columns).rows() == [
        ("0.6.0", 4, 1, 4, 1),
        ("4.0.0", 4, 3, 4, 1),
        ("4.0.0", 8, 1, 4, pytest.approx(10 / 6 / 2)),
    ]
    (note,) = result.notes
    assert note.endswith("result_3.txt: is of ruleset 0.6.0, unlike its folder's 4.0.0")
    assert scaling.mlperf(folder, ruleset="4.0.0").frame["ruleset"].unique().to_list() == ["4.0.0"]  # mixed where asked


def test_the_ruleset_is_found_by_the_name_of_a_folder_before_the_date(tmp_path):
    assert only(scaling.mlperf(write(tmp_path / "results_v3.1", [a_run()])))["ruleset"] == "3.1.0"
    assert only(scaling.mlperf(write(tmp_path / "results_v9.9", [a_run()])))["ruleset"] == "4.0.0"
    assert only(scaling.mlperf(write(tmp_path / "mine", [a_run(at=1_600_000_000)])))["ruleset"] == "1.0.0"  # 2020
    assert _by_date([[_Event(3e9, "", None, None, {})]]) == "6.1.0"


def test_a_folder_without_logs_and_wrong_arguments(tmp_path):
    with pytest.raises(ProfileNotFound, match=r"no MLPerf run in .*: 0 text files without lines of :::MLLOG") as caught:
        scaling.mlperf(tmp_path / "nowhere")
    assert caught.value.hint == "give a folder of files result_*.txt, as mllog writes them"
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(ProfileNotFound, match="1 text file without"):
        scaling.mlperf(tmp_path)
    write(tmp_path / "b", [[new(5, "init_start")]])
    with pytest.raises(ProfileNotFound, match=r"result_0.txt: left out: no run_start"):
        scaling.mlperf(tmp_path / "b")
    folder = write(tmp_path / "c", [a_run()])
    with pytest.raises(ValueError, match=r"must name systems of \['pod-8'\]\. Got 'pod-9' instead"):
        scaling.mlperf(folder, chips={"pod-9": 4})
    with pytest.raises(ValueError, match=r"chips\['pod-8'\] parameter of mlperf must be an int of 1 or more"):
        scaling.mlperf(folder, chips={"pod-8": 0})
    with pytest.raises(ValueError, match=r"ruleset parameter of mlperf must be one of 0.6.0.*'7.0.0'"):
        scaling.mlperf(folder, ruleset="7.0.0")


def test_chips_are_unknown_without_a_description_unless_given(tmp_path):
    folder = write(tmp_path, [a_run()], chips=None)
    row = only(scaling.mlperf(folder))
    assert (row["chips"], row["cores"], row["examples_per_s_per_chip"], row["base_chips"]) == (None,) * 4
    assert row["examples_per_s"] == pytest.approx(400)
    assert only(scaling.mlperf(folder, chips={"pod-8": 4}))["examples_per_s_per_chip"] == pytest.approx(100)
    (folder / "systems/pod-8.json").write_text('{"number_of_nodes": "-"')
    result = scaling.mlperf(folder)
    assert only(result)["chips"] is None
    assert result.notes[0].startswith("pod-8.json is no JSON: JSONDecodeError")


def test_logs_in_one_folder_need_no_layout(tmp_path):
    (tmp_path / "mine").mkdir()
    for number in range(3):
        (tmp_path / "mine" / f"{number}.log").write_text("\n".join(a_run()))
    row = only(scaling.mlperf(tmp_path, chips={"mine": 2}))
    assert (row["system"], row["runs"], row["chips"]) == ("mine", 3, 2)


def test_a_missing_parser_names_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlperf_logging", None)
    with pytest.raises(MissingExtra, match="mlperf_logging is not installed") as caught:
        scaling.mlperf(tmp_path)
    assert caught.value.hint == install("mlperf")


value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["value", "metadata"]), inner, max_size=2)
    ),
    max_leaves=4,
)
KEYS = ["run_start", "run_stop", "init_start", "block_start", "eval_start", "eval_stop", "eval_accuracy", "status"]
KEYS += ["global_batch_size", "train_samples", "max_sequence_length", "submission_benchmark"]
about = st.dictionaries(st.sampled_from(["first_epoch_num", "epoch_num", "epoch_count", "status"]), value, max_size=3)
json_line = st.fixed_dictionaries(
    {"time_ms": st.floats(0, 1e12) | value, "key": st.sampled_from(KEYS), "value": value | st.just("resnet")},
    optional={"metadata": about | value},
).map(lambda fields: ":::MLLOG " + json.dumps(fields))
old_line = st.builds(
    lambda s, key, fields: f":::MLL {s} {key}: {json.dumps(fields)}",
    st.floats(0, 2e9) | st.sampled_from(["1.2.3", "0.0"]),
    st.sampled_from(KEYS),
    st.fixed_dictionaries({"value": value, "metadata": about}) | value,
)


@given(st.lists(json_line, max_size=8) | st.lists(old_line | st.text(max_size=20), max_size=8))
@examples(100)
def test_any_lines_give_runs_or_no_run(tmp_path_factory, lines):
    folder = tmp_path_factory.mktemp("logs") / "resnet"
    folder.mkdir()
    (folder / "result_0.txt").write_text("\n".join([*lines, new(1e9, "run_start")]), encoding="utf-8", errors="replace")
    try:
        result = scaling.mlperf(folder)
    except ProfileNotFound:
        return
    frame = result.frame
    assert frame.schema == columns.SCALING
    assert len(frame) >= 1
    assert not frame.select(pl.col(pl.Float64).is_nan().any()).row(0).count(True)
    assert all("\n" not in note for note in result.notes)
    str(result), repr(result), result._repr_html_()


# sizes


def runs_of(sizes, **common):
    """Return a Scaling of (chips, batch, images per second) with one run each."""
    rows = [
        {"benchmark": "resnet", "system": f"pod-{2 * chips}", "chips": chips, "batch": batch, "status": "success"}
        | {"examples_per_s": rate, "step_ps": round(batch / rate * 1e12), "minutes": 1000 / rate, **common}
        for chips, batch, rate in sizes
    ]
    return Scaling(pl.DataFrame(rows, schema=columns.SCALING_RUNS))


def test_efficiency_is_against_the_smallest_and_the_batch_names_the_kind_of_scaling():
    frame = runs_of(
        [(64, 2048, 2500.0), (8, 512, 400.0), (16, 1024, 800.0), (32, 1024, 1400.0), (128, 2048, 3200.0)]
    ).frame
    assert frame["chips"].to_list() == [8, 16, 32, 64, 128]
    assert frame["batch_scaling"].to_list() == [None, "weak", "strong", "weak", "strong"]
    assert frame["base_chips"].to_list() == [8] * 5
    assert frame["efficiency"].to_list() == [1, 1, 0.875, 0.78125, 0.5]
    assert frame["speedup"].to_list() == [1, 2, 3.5, 6.25, 8]
    assert runs_of([(8, 512, 400.0), (32, 1024, 1600.0)]).frame["batch_scaling"].to_list() == [None, "mixed"]


def test_kinds_of_systems_have_bases_of_their_own():
    names = ["tpu-v3-32", "tpu-v3-128", "tpu-v4-512-TF", "dgx_n2_ngc21.05", "dgx_n16_ngc21.05"]
    rows = pl.DataFrame(
        [{"benchmark": "b", "system": name, "chips": 2**i, "status": "success"} for i, name in enumerate(names)],
        schema=columns.SCALING_RUNS,
    )
    frame = Scaling(rows).frame.sort("chips")
    assert frame["series"].to_list() == ["tpu-v3-N"] * 2 + ["tpu-v4-N-TF"] + ["dgx_nN_ngc21.05"] * 2
    assert frame["base_chips"].to_list() == [1, 1, 4, 8, 8]


def test_a_filter_selects_runs():
    sizes = runs_of([(8, 512, 400.0), (16, 512, 700.0)])
    assert sizes.filter(pl.col("chips") > 8).frame["efficiency"].to_list() == [1]
    assert len(sizes.filter(benchmark="ssd").frame) == 0
    assert str(sizes) == "resnet pod-N: 8 to 16 chips, 1.8 times as fast to quality, 88 % of the throughput per chip"
    assert str(sizes.filter(chips=8)) == "resnet pod-N: 8 chips"
    assert repr(sizes) == "Scaling(2 sizes of resnet, 2 runs)"


# captures


def capture(ms, *, batch="64", host="a", wall=None, kind="TPU v4", first_ms=90):
    """Return Steps of durations in ms after a first step of `first_ms`."""
    durs = [round(each * 1e9) for each in (first_ms, *ms)]
    toy = toy_steps("a" * len(durs), host=host)
    frame = toy.frame.with_columns(dur_ps=pl.Series(durs))
    facts = {"model": "Net", "device kind": kind, **({} if batch is None else {"batch": batch})}
    return replace(toy, frame=frame, metadata=facts, wall=wall)


def test_captures_of_several_sizes_are_rows():
    frame = scaling.points({8: capture([10, 12, 50]), 16: capture([6, 6, 6])}).frame
    assert frame.select("benchmark", "system", "chips", "batch", "runs").rows() == [
        ("Net", "TPU v4", 8, 64, 1),
        ("Net", "TPU v4", 16, 64, 1),
    ]
    assert frame["step_ps"].to_list() == [12 * 10**9, 6 * 10**9]  # medians, without the first step
    assert frame["examples_per_s_per_chip"].to_list() == [pytest.approx(64 / 0.012 / 8), pytest.approx(64 / 0.006 / 16)]
    assert frame["efficiency"].to_list() == [1, pytest.approx(1)]
    assert frame["batch_scaling"].to_list() == [None, "strong"]
    assert frame["minutes"].null_count() == 2  # no quality was reached
    assert frame["startup_share"].null_count() == 2


def test_the_slowest_host_counts_and_evaluation_is_no_training():
    toy = capture([10, 10, 10])
    both = pl.concat([toy.frame, toy.frame.with_columns(host=pl.lit("b"), dur_ps=pl.col("dur_ps") * 2)])
    assert only(scaling.points({8: replace(toy, frame=both)}))["step_ps"] == 20 * 10**9
    kinds = pl.Series(["train", "train", "eval", "eval"])
    mixed = replace(toy, frame=toy.frame.with_columns(kind=kinds, dur_ps=pl.Series([9, 3, 70, 80]) * 10**9))
    assert only(scaling.points({8: mixed}))["step_ps"] == 3 * 10**9


def test_startup_of_a_capture_is_by_its_wall_time():
    s = 10**12
    spans = pl.DataFrame([("a", 0, 6 * s, "program startup", "compiling")], schema=schema.SPANS, orient="row")
    wall = WallClock(16 * s, complete=True, spans=spans)
    timed = capture([2000] * 4, first_ms=2000, wall=wall)
    timed = replace(timed, frame=timed.frame.with_columns(start_ps=(6 + 2 * pl.int_range(5, dtype=pl.Int64)) * s))
    row = only(scaling.points({4: timed}))
    assert (row["startup_minutes"], row["startup_share"]) == (pytest.approx(0.1), pytest.approx(0.6))


def test_batches_are_given_by_size_or_unknown():
    captures = {8: capture([10], batch=None), 16: capture([10], batch=None)}
    unknown = scaling.points(captures).frame
    assert unknown["efficiency"].null_count() == unknown["batch_scaling"].null_count() == 2
    assert unknown["step_ps"].to_list() == [10**10] * 2
    weak = scaling.points(captures, batch={8: 64, 16: 128}).frame
    assert (weak["batch_scaling"][1], weak["efficiency"].to_list()) == ("weak", [1, 1])
    assert scaling.points(captures, batch=64).frame["efficiency"].to_list() == [1, 0.5]
    other = scaling.points({8: capture([10]), 16: capture([5], kind="TPU v5p")}).frame
    assert other["base_chips"].sort().to_list() == [8, 16]  # devices of two kinds are not compared


@pytest.mark.parametrize("captures", [3, {8: "steps"}, {8: [toy_steps("a"), None]}])
def test_captures_of_something_else_are_refused(captures):
    with pytest.raises(TypeError, match="captures parameter of points must be"):
        scaling.points(captures)


@pytest.mark.parametrize(
    ("captures", "batch"), [({0: toy_steps("a")}, None), ({8.5: toy_steps("a")}, 4), ({8: toy_steps("a")}, 0)]
)
def test_sizes_and_batches_are_whole_numbers(captures, batch):
    with pytest.raises(ValueError, match="must be an int of 1 or more"):
        scaling.points(captures, batch=batch)


# fit


def law(serial_ms, divided_ms, chips=(8, 16, 32, 64), runs=1, spread=0.0, seed=0):
    random = np.random.default_rng(seed)
    sizes = {
        n: [capture([(serial_ms + divided_ms / n) * random.normal(1, spread)]) for _ in range(runs)] for n in chips
    }
    return scaling.points(sizes)


def test_a_fit_finds_the_law_and_predicts_each_size_from_the_others():
    fit = scaling.fit(law(5, 800))
    assert fit.serial_ps == pytest.approx(5e9, rel=1e-6)
    assert fit.divided_ps == pytest.approx(800e9, rel=1e-6)
    assert fit.serial_share == pytest.approx(5 / 17.5, rel=1e-6)  # of the step on 64 chips
    assert fit.interval is None  # one run of each size
    assert fit.step_ps(128) == pytest.approx(11.25e9, rel=1e-6)
    assert fit.frame["error"].abs().max() < 1e-6
    assert fit.frame["fitted"].all()
    assert str(fit) == "28.6 % of the step on 64 chips is serial, 5 ms"
    assert repr(fit) == f"ScalingFit({fit})"


def test_a_size_left_out_is_predicted_from_the_fit():
    fit = scaling.fit(law(5, 800), sizes=(8, 64))
    assert fit.frame["fitted"].to_list() == [True, False, False, True]
    assert fit.frame["predicted_ps"].to_list() == [None, 55 * 10**9, 30 * 10**9, None]
    slow = law(5, 800).runs.with_columns(pl.when(chips=16).then(pl.col("step_ps") * 2).otherwise("step_ps"))
    assert scaling.fit(Scaling(slow), sizes=(8, 64)).frame["error"][1] == pytest.approx(-0.5)
    left_out = scaling.fit(Scaling(slow)).frame
    assert left_out["predicted_ps"][1] == pytest.approx(55e9)  # by the three others


def test_the_interval_holds_the_serial_share_by_the_spread_of_the_runs():
    truth = 5 / 17.5
    hits = 0
    for seed in range(30):
        fit = scaling.fit(law(5, 800, runs=4, spread=0.03, seed=seed))
        low, high = fit.interval
        assert low < fit.serial_share < high
        hits += low <= truth <= high
    assert hits >= 26  # 28 are expected; 25 or fewer come in 2 % of such experiments
    assert "(" in str(fit)


def test_more_than_linear_gain_is_a_negative_serial_share():
    fit = scaling.fit(law(-1, 800))
    assert fit.serial_share == pytest.approx(-1 / 11.5)


def test_fits_that_are_impossible_say_why():
    two = Scaling(pl.concat([law(5, 800).runs, runs_of([(8, 64, 400.0)]).runs]))
    with pytest.raises(TpunbError, match="a fit is of one benchmark and ruleset on one kind of system; these are 2"):
        scaling.fit(two)
    with pytest.raises(
        TpunbError, match="a fit requires all of its sizes, two or more: the step time is known of 1 size"
    ):
        scaling.fit(law(5, 800, chips=(8,)))
    with pytest.raises(TpunbError, match=r"is known of 1 size of one batch among \[8, 9\]"):
        scaling.fit(law(5, 800), sizes=(8, 9))
    with pytest.raises(TpunbError, match=r"is known of 1 size of one batch among \[8, 16\]"):
        scaling.fit(runs_of([(8, 64, 400.0), (16, 128, 800.0)]), sizes=[8, 16])
    with pytest.raises(TpunbError, match="is known of 0 sizes"):
        scaling.fit(runs_of([]))
    with pytest.raises(TypeError, match="scaling parameter of fit must be a Scaling"):
        scaling.fit(3)


def test_the_batch_with_most_sizes_is_fitted():
    sizes = runs_of([(8, 64, 400.0), (16, 128, 800.0), (32, 128, 1500.0), (64, 128, 2500.0)])
    assert scaling.fit(sizes).frame["chips"].to_list() == [16, 32, 64]


# published results


@pytest.fixture(scope="module")
def published():
    return tp.studies.scaling.published()


def test_the_published_runs_are_those_of_the_logs(published, real_profiles):
    read = scaling.mlperf(real_profiles.parent / "seeds/mlperf/logs")
    keys = ["ruleset", "benchmark", "chips", "run"]
    assert read.notes == ()
    assert read.runs.sort(keys).equals(published.runs.sort(keys))
    assert mlperf_runs.RUNS.stat().st_size < 60_000
    assert pl.read_parquet_metadata(mlperf_runs.RUNS)["licence"] == "Apache-2.0"


MINUTES = {
    "resnet": [42.19, 11.22, 6.86, 3.85, 2.30, 1.28],
    "ssd": [12.61, 3.88, 2.76, 1.79, 1.34, 1.21],
    "transformer": [10.20, 3.85, 2.82, 1.58, 1.05, 0.85],
}


def test_all_published_logs_are_read(published):
    counts = published.runs.group_by("ruleset").len().sort("ruleset").rows()
    assert counts == [("0.6.0", 185), ("0.7.0", 30), ("3.1.0", 3), ("4.0.0", 12)]
    assert published.runs["status"].value_counts().sort("status").rows() == [("aborted", 1), ("success", 229)]
    one = published.filter(pl.col("run").str.contains("8192-TF/ssd/result_0"))
    assert one.runs["minutes"].item() > 900  # a paused run
    assert published.filter(benchmark="ssd", system="tpu-v3-8192-TF").frame["minutes"].item() == pytest.approx(
        0.462, abs=1e-3
    )


@pytest.mark.parametrize("benchmark", MINUTES)
def test_minutes_of_round_0_6(published, benchmark):
    frame = published.filter(benchmark=benchmark, ruleset="0.6.0").frame
    assert frame["cores"].to_list() == [32, 128, 256, 512, 1024, 2048]
    assert frame["chips"].to_list() == [16, 64, 128, 256, 512, 1024]
    assert frame["minutes"].to_list() == [pytest.approx(each, abs=0.01) for each in MINUTES[benchmark]]


def test_resnet_loses_a_third_of_its_throughput_per_chip(published):
    resnet = published.filter(benchmark="resnet", ruleset="0.6.0")
    frame = resnet.frame
    rates = frame["examples_per_s_per_chip"].round()
    assert (rates[0], rates[-1]) == (1952, 1268)
    assert frame["efficiency"][-1] == pytest.approx(0.65, abs=0.005)
    assert frame["batch_scaling"].to_list() == [None, "weak", "weak", "strong", "strong", "strong"]
    assert frame["startup_share"][-1] == pytest.approx(2.7, abs=0.05)
    fit = scaling.fit(resnet, sizes=(128, 1024))
    errors = fit.frame.filter(~pl.col("fitted"))
    assert errors["chips"].to_list() == [256, 512]
    assert errors["error"].abs().max() < 0.12
    assert fit.interval[0] < fit.serial_share < fit.interval[1]


def test_gpt3_keeps_its_throughput_per_chip(published):
    frame = published.filter(benchmark="gpt3", ruleset="4.0.0").frame
    assert frame["chips"].to_list() == [512, 1024, 1536, 6144]  # names of folders count cores
    assert frame["block_s"].to_list() == [pytest.approx(each, abs=0.05) for each in (285.8, 141.8, 95.6, 23.9)]
    assert frame["efficiency"][-1] == pytest.approx(0.997, abs=0.001)
    assert frame["minutes"].to_list() == [pytest.approx(each, abs=0.01) for each in (114.79, 56.95, 39.34, 12.20)]
    assert frame["official_factor"].to_list() == [
        None,
        None,
        pytest.approx(1.0104, abs=1e-4),
        pytest.approx(1.0223, abs=1e-4),
    ]
    assert frame["startup_minutes"].round(1).to_list()[::3] == [2.0, 9.7]
    assert frame["startup_share"][-1] == pytest.approx(0.8, abs=0.03)
    v5e = published.filter(ruleset="3.1.0").frame.row(0, named=True)
    assert (v5e["chips"], v5e["minutes"]) == (4096, pytest.approx(44.68485, abs=1e-5))


def test_chips_of_round_0_7_are_unknown_unless_given(published, real_profiles):
    folder = real_profiles.parent / "seeds/mlperf/logs/mlperf_v0.7"
    assert published.filter(ruleset="0.7.0").frame["chips"].null_count() == 6
    given = scaling.mlperf(folder, chips={"tpu-v4-16-TF": 8}).filter(benchmark="resnet", system="tpu-v4-16-TF").frame
    assert given["examples_per_s_per_chip"].item() == pytest.approx(3478, abs=1)


def test_dates_alone_give_the_rulesets_of_the_published_logs(published, real_profiles):
    logs = real_profiles.parent / "seeds/mlperf/logs"
    for ruleset, run in published.runs.filter(pl.col("ruleset") != "0.6.0").select("ruleset", "run").rows():
        ms = json.loads(next(line for line in Path(logs / run).read_text().splitlines() if "init_start" in line)[9:])
        assert _by_date([[_Event(ms["time_ms"] / 1000, "", None, None, {})]]) == ruleset


def test_the_door():
    assert tp.studies.scaling.points is scaling.points
    assert tp.studies.scaling.mlperf is scaling.mlperf


# chart


def drawn(chart, column):
    """Return the values of a column in the first panel."""
    tables = chart.to_dict()["datasets"]
    return [row[column] for row in next(iter(tables.values()))]


def test_the_chart_has_an_ideal_line_efficiency_and_startup():
    sizes = runs_of([(8, 512, 400.0), (16, 512, 700.0), (64, 512, 1600.0)], startup_minutes=0.5)
    chart = charts.scaling(sizes)
    assert drawn(chart, "ideal") == [2.5, 1.25, 0.3125]  # minutes of 8 chips, by the chips
    assert [panel.layer[-1].encoding.y.shorthand for panel in chart.vconcat] == [
        "minutes:Q",
        "efficiency:Q",
        "startup_share:Q",
    ]
    assert (
        "resnet on 16 chips, 1.43 min, mean of 1 of 1 run, 700 examples/s, 88 % of the throughput per chip on 8, "
        "batch 512, startup 35 % of the time after it" in chart.description
    )
    rates = charts.scaling(sizes, value="examples_per_s")
    assert drawn(rates, "ideal") == [400, 800, 3200]
    assert "<svg" in render.svg(rates)


def test_what_is_unknown_has_no_panel():
    chart = charts.scaling(scaling.points({8: capture([10], batch=None), 16: capture([5])}, batch={8: 4}))
    assert len(chart.vconcat) == 2  # throughput and efficiency; no quality was reached, no startup recorded
    assert "Net on 8 chips, 400 examples/s" in chart.description


def test_benchmarks_are_lines_of_their_own_and_names_are_made_safe():
    more = runs_of([(8, 512, 400.0), (16, 512, 700.0)], benchmark="b<\u202e")
    both = Scaling(
        pl.concat([runs_of([(8, 64, 9.0)]).runs, more.runs, more.runs.with_columns(ruleset=pl.lit("1.0.0"))])
    )
    assert sorted({*drawn(charts.scaling(both), "of")}) == ["b<\ufffd", "b<\ufffd 1.0.0", "resnet"]


def test_charts_that_are_impossible_say_why():
    with pytest.raises(TpunbError, match="cannot show sizes without known chips and examples per second"):
        charts.scaling(runs_of([]))
    names = [runs_of([(8, 64, 9.0)], benchmark=f"b{n}").runs for n in range(13)]
    with pytest.raises(TpunbError, match="cannot show 13 benchmarks"):
        charts.scaling(Scaling(pl.concat(names)))
    with pytest.raises(TypeError, match="sizes parameter of scaling must be a Scaling"):
        charts.scaling(3)
    with pytest.raises(ValueError, match="value parameter of scaling must be one of minutes, examples_per_s"):
        charts.scaling(runs_of([]), value="chips")
