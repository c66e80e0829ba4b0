"""Records of DLIO (MLPerf Storage): steps, accounts and utilisation, and the official figures of a submission."""

import contextlib
import json
import os
import random
from pathlib import Path

import polars as pl
import pytest
from test_damaged import flipped

import tpunb as tp
from tpunb.errors import BadProfile, ProfileNotFound, TpunbError

LOADS = ([2.0, 0.1, 0.3], [1.0, 0.2, 0.1])  # of two processes in seconds; each computes for 1 s
STATS = {
    "1": {
        "block1": {"start": "2024-09-02T10:00:00.5", "end": "2024-09-02T10:00:07.5"},
        "ckpt1": {"start": "2024-09-02T10:00:07.5", "end": "2024-09-02T10:00:08"},
    },
    "2": {"block1": {"start": "2024-09-02T10:00:09.5", "end": "2024-09-02T10:00:16"}},
}


def output(loads, compute=1.0, epochs=2, **more):
    times = {
        "load": {"block1": loads},
        "proc": {"block1": [load + compute for load in loads]},
        "compute": {"block1": [compute] * len(loads)},
    }
    return {str(epoch + 1): times for epoch in range(epochs)} | {"hostname": "node"} | more


def saved(folder, outputs, stats=STATS, processes=None):
    if processes is not None:
        (folder / "summary.json").write_text(json.dumps({"num_accelerators": processes}))
    for rank, content in outputs.items():
        (folder / f"{rank}_output.json").write_text(content if isinstance(content, str) else json.dumps(content))
    if stats is not None:
        (folder / "per_epoch_stats.json").write_text(json.dumps(stats))
    return folder


@pytest.fixture
def two(tmp_path):
    return saved(tmp_path, dict(enumerate(map(output, LOADS))))


def seconds(frame, *names):
    return frame.select((pl.col(f"{name}_ps") / 1e12).round(6) for name in names).rows()


def test_all_processes_wait_for_the_slowest_in_each_step(two):
    steps = tp.steps(two)
    assert steps.frame["host"].unique().sort().to_list() == ["rank0@node", "rank1@node"]
    rank0 = steps.frame.filter(host="rank0@node")
    assert rank0["step"].to_list() == [*range(6)]
    assert seconds(rank0, "start", "dur", "input", "device", "collective") == [
        (0, 3, 2, 1, 0), (3, 1.2, 0.1, 1, 0.1), (4.2, 1.3, 0.3, 1, 0),
        (9, 3, 2, 1, 0), (12, 1.2, 0.1, 1, 0.1), (13.2, 1.3, 0.3, 1, 0),
    ]  # fmt: skip


def test_utilisation_is_computation_without_the_first_step(two):
    frame = tp.analysis.accelerator_utilisation(two)
    assert frame["epoch"].to_list() == ["epoch 1", "epoch 2"] * 2
    assert frame["utilisation"].to_list() == pytest.approx([2 / (7 - 3), 2 / (6.5 - 3), 2 / (7 - 2), 2 / (6.5 - 2)])
    columns = ("dur", "first", "compute", "input", "barrier", "unrecorded")
    assert seconds(frame.head(1), *columns) == [(7, 3, 2, 0.4, 0.1, 1.5)]
    assert tp.analysis.accelerator_utilisation(tp.phases(two)).equals(frame)


def test_accounts_of_each_process_add_up(two):
    run = tp.goodput(tp.load(two))
    assert run.wall_ps == 15.5e12
    times = run.frame.group_by("host").agg(pl.col("time_ps").sum())
    assert times["time_ps"].to_list() == [run.wall_ps] * 2
    assert run.time_ps("checkpoint save") == 0.5e12
    loading = dict(run.frame.filter(account="data loading").group_by("host").agg(pl.col("time_ps").sum() / 1e12).rows())
    assert loading == pytest.approx({"rank0@node": 2 * sum(LOADS[0]), "rank1@node": 2 * sum(LOADS[1])}, abs=1e-6)


@pytest.mark.filterwarnings("ignore:no wall time")
def test_a_process_that_is_slow_to_load_is_named(tmp_path):
    loads = {rank: [0.1 + 0.001 * ((7 * step + 3 * rank) % 11) for step in range(40)] for rank in range(8)}
    loads[5] = [load + 0.05 for load in loads[5]]
    found = tp.hosts(saved(tmp_path, {rank: output(each, epochs=1) for rank, each in loads.items()}, stats=None))
    assert found.frame.filter("named").select("host", "cause", "recurrence").rows() == [
        ("rank5@node", "input", "every step")
    ]


@pytest.mark.parametrize("stats", [None, "{"])
def test_without_wall_times_steps_are_known_and_utilisation_is_not(tmp_path, stats):
    folder = saved(tmp_path, dict(enumerate(map(output, LOADS))), stats=None)
    if stats is not None:
        (folder / "per_epoch_stats.json").write_text(stats)
    with pytest.warns(UserWarning, match=r"no wall time of all epochs in per_epoch_stats\.json"):
        steps = tp.steps(folder)
    assert seconds(steps.frame.head(4).tail(1), "start") == [(5.5,)]
    with pytest.raises(TpunbError, match="has no wall time of epochs"):
        tp.analysis.accelerator_utilisation(steps)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"1": {"load"', "not JSON"),
        ("[1]", "a JSON list instead of an object by epoch"),
        (json.dumps({"hostname": "node"}), "no epoch with load, proc and compute times"),
        (json.dumps({"1": {"proc": {"block1": [1.0, 2.0]}, "load": {"block1": [1.0]}}}), "do not match"),
        (json.dumps(output([-1.0])), "a time is no number from 0"),
        (json.dumps(output(["x"], compute="y")), "do not match"),
    ],
)
def test_damaged_files_are_skipped_with_the_reason(tmp_path, content, reason):
    folder = saved(tmp_path, {0: output(LOADS[0]), 1: content, 2: output(LOADS[1])})
    with pytest.warns(UserWarning, match=f"1_output.json: .*{reason}"):
        profile = tp.load(folder)
    assert profile.skipped[0][0] == "1_output.json"
    assert tp.steps(profile).frame["host"].n_unique() == 2
    with pytest.raises(BadProfile, match=reason):
        tp.load(folder / "1_output.json")


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("placeholder", ["0", "1"])
def test_wall_times_may_be_of_each_process(tmp_path, placeholder):
    block = STATS["1"]["block1"]
    stats = STATS | {"1": {"block1": block, "load_ckpt1": STATS["1"]["ckpt1"], "save_ckpt1": STATS["1"]["ckpt1"]}}
    saved(tmp_path, dict(enumerate(map(output, LOADS))), stats=None)
    for rank in "01":
        content = '{"later": "here"}' if rank == placeholder else json.dumps(stats)
        (tmp_path / f"{rank}_per_epoch_stats.json").write_text(content)
    profile = tp.load(tmp_path)
    assert (profile.span_ps, profile.notes) == (15.5e12, ())
    run = tp.goodput(profile)
    assert (run.wall_ps, {*run.frame["account"]} >= {"checkpoint save"}) == (15.5e12, True)
    accounts = profile.stored.wall.spans.filter(pl.col("start_ps") == 7e12)["account"]
    assert {*accounts} == {"checkpoint save", "checkpoint restore"}


def test_process_0_alone_has_the_wall_time_of_the_run(tmp_path):
    saved(tmp_path, {0: output(LOADS[0]), 1: '{"later": "here"}'}, stats=None, processes=2)
    (tmp_path / "0_per_epoch_stats.json").write_text(json.dumps(STATS))
    with pytest.warns(UserWarning, match="1_output.json: no epoch with load, proc and compute times"):
        profile = tp.load(tmp_path)
    assert profile.windows["host"].to_list() == ["rank0@node"]
    utilisation = tp.analysis.accelerator_utilisation(profile)["utilisation"].to_list()
    assert utilisation == pytest.approx([2 / (7 - 3), 2 / (6.5 - 3)])


def test_a_missing_process_and_one_that_ends_early_are_noted(tmp_path):
    profile = tp.load(saved(tmp_path, {0: output(LOADS[0]), 2: output(LOADS[1][:2])}))
    assert profile.skipped == (("1_output.json", "no file of this process"),)
    assert profile.notes == ("1 rank with fewer steps than others: rank2@node",)
    assert len(tp.steps(profile).frame) == 6 + 4
    assert tp.analysis.accelerator_utilisation(profile)["utilisation"].is_null().to_list() == [False] * 2 + [True] * 2
    assert "1 lost" in str(tp.hosts(profile))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("processes", "absent", "notes"),
    [
        (4, ["1_output.json", "3_output.json"], ()),
        (2, ["1_output.json"], ("2_output.json is of another run: summary.json has 2 processes",)),
        ("many", ["1_output.json"], ()),
    ],
)
def test_the_summary_says_how_many_processes_there_were(tmp_path, processes, absent, notes):
    profile = tp.load(saved(tmp_path, {0: output(LOADS[0]), 2: output(LOADS[1])}, processes=processes))
    assert [name for name, _ in profile.skipped] == absent
    assert profile.notes == notes
    assert tp.load(tmp_path / "2_output.json").skipped == ()


def test_the_wait_for_the_first_batch_after_a_checkpoint_is_unknown(tmp_path):
    content = output(LOADS[0], epochs=1)
    for name, values in {"load": [0.2], "proc": [1.5, 1.2], "compute": [1.0, 1.0]}.items():
        content["1"][name]["block2"] = values
    wall = {"start": "2024-09-02T10:00:08.5", "end": "2024-09-02T10:00:11"}  # from the first batch on
    folder = saved(tmp_path, {0: content}, stats={"1": STATS["1"] | {"block2": wall}})
    steps = tp.steps(folder)
    assert seconds(steps.frame.tail(2), "start", "dur", "input") == [(7.5, 1.5, None), (9, 1.2, 0.2)]
    frame = tp.analysis.accelerator_utilisation(steps)
    assert seconds(frame.tail(1), "dur", "first", "unrecorded") == [(2.5, 1.5, 0.3)]
    assert frame["utilisation"].to_list() == [2 / (7 - 3), 1 / (2.5 - 1.5)]
    content["1"]["load"]["block1"] = content["1"]["load"]["block1"][1:]
    saved(tmp_path, {0: content})
    with pytest.raises(BadProfile, match="block1: load, proc and compute do not match"):
        tp.load(folder)


def test_processes_do_not_wait_for_each_other_in_an_evaluation(tmp_path):
    contents = {}
    for rank, loads in enumerate(LOADS):
        contents[rank] = output(loads, epochs=1)
        for name, values in output(loads)["1"].items():
            contents[rank]["1"][name] = values | {"eval": values["block1"]}
    wall = {"start": "2024-09-02T10:00:08", "end": "2024-09-02T10:00:14"}
    steps = tp.steps(saved(tmp_path, contents, stats={"1": STATS["1"] | {"eval": wall}}))
    rank1 = steps.frame.filter(host="rank1@node", kind="eval")
    assert seconds(rank1, "start", "dur", "collective") == [(7.5, 2, 0), (9.5, 1.2, 0), (10.7, 1.1, 0)]
    assert tp.analysis.accelerator_utilisation(steps)["epoch"].to_list() == ["epoch 1"] * 2
    assert steps.collectives["step"].unique().sort().to_list() == [0, 1, 2]


def test_folders_of_several_runs_and_lists_are_refused(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        saved(tmp_path / name, {0: output(LOADS[0])})
    with pytest.raises(ProfileNotFound, match="holds results of 2 runs of DLIO"):
        tp.load(tmp_path)
    with pytest.raises(TpunbError, match="is a table of DLIO"):
        tp.load([tmp_path / "a" / "0_output.json"])


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_damaged_records_end_in_a_profile_or_an_error(tmp_path):
    path, rng = saved(tmp_path, {0: output(LOADS[0])}) / "0_output.json", random.Random(0)
    whole = path.read_bytes()
    for number in range(100):
        path.write_bytes(flipped(whole, rng) if number % 3 else whole[: rng.randrange(len(whole))])
        with contextlib.suppress(BadProfile):
            tp.steps(tp.load(path))


def test_the_official_figures_of_a_submission():
    if not os.environ.get("TPUNB_DATA"):
        pytest.skip("TPUNB_DATA is unset: real captures are not part of the project")
    folder = Path(os.environ["TPUNB_DATA"]) / "answers" / "storage" / "unet3d_h100_15x"
    official = json.loads((folder / "summary.json").read_text())["metric"]["train_au_percentage"]
    phases = tp.phases(folder)
    frame = tp.analysis.accelerator_utilisation(phases)
    ours = frame.group_by("epoch", maintain_order=True).agg(pl.col("utilisation").mean() * 100)["utilisation"]
    assert ours.to_list() == pytest.approx(official, abs=0.03)
    assert len(phases.steps) == 42_825
    assert phases.frame["steps"].to_list() == [15 * 5 * 570, 15 * 5]  # what differs is the first step of each epoch
    assert not tp.hosts(phases).frame["named"].any()
