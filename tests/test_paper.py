"""The paper's figures as frames: of toy runs whose answers are visible, and beside what the paper printed."""

import dataclasses
import json
import tempfile
from pathlib import Path

import polars as pl
import pytest
import shipped_runs

import tpunb as tp
from tpunb.analysis import Device
from tpunb.studies.paper import (
    FASTER,
    OTHER_DATA,
    RecordedRun,
    curves,
    gains,
    observations,
    operators,
    published,
    recorded,
    utilisation,
    workload,
)
from tpunb.studies.paper.balances import V2, V3, V3_MEMORY
from tpunb.testing import toy_steps


def run(name, steps=None, **about):
    made = RecordedRun(name, workload(name), None, about, Path(name))
    object.__setattr__(made, "steps", steps if steps is not None else toy_steps("aaab"))
    return made


def known(**columns):
    """Four steps of 1, 1, 1 and 2 ms, of which some facts are known."""
    steps = toy_steps("aaab")
    frame = steps.frame.with_columns(
        *(pl.Series(name, values, dtype=steps.frame.schema[name]) for name, values in columns.items())
    )
    assert frame["dur_ps"].to_list() == [10**9, 10**9, 10**9, 2 * 10**9]
    return dataclasses.replace(steps, frame=frame)


MS = 10**9
UNKNOWN = dict.fromkeys(("idle_ps", "device_ps", "input_ps", "mxu_util", "flops_util"), [None] * 4)


def found(measure, *runs):
    return utilisation(runs).filter(pl.col("measure") == measure).select("run", "value", "how").rows()


# ---- Figures 10 to 13, 15 and 16


def test_idle_is_the_devices_where_there_is_one():
    steps = known(**{**UNKNOWN, "idle_ps": [0, 0, MS, 2 * MS], "input_ps": [MS] * 4})
    assert found("idle", run("bert-mrpc", steps)) == [("bert-mrpc", 0.6, "measured")]


def test_idle_is_the_wait_for_input_where_there_is_no_device():
    steps = known(**{**UNKNOWN, "input_ps": [0, 0, 0, MS]})
    table = utilisation([run("qanet-squad", steps)]).row(0, named=True)
    assert (table["run"], table["value"], table["how"]) == ("qanet-squad", 0.2, "measured")
    assert "waits for its input" in table["what"]


def test_what_is_not_known_is_null():
    assert [value for *_, value, _ in found("idle", run("bert-mrpc", known(**UNKNOWN)))] == [None]
    assert found("mxu", run("bert-mrpc", known(**UNKNOWN))) == [("bert-mrpc", None, "modelled")]
    assert utilisation([]).is_empty()


def test_the_matrix_unit_is_measured_where_the_hardware_counts():
    steps = known(**{**UNKNOWN, "mxu_util": [0.1, 0.1, 0.3, None], "flops_util": [0.9] * 4})
    (row,) = found("mxu", run("bert-mrpc", steps))
    assert (row[1], row[2]) == (pytest.approx(1 / 6), "measured")
    (row,) = found("mxu", run("bert-mrpc", known(**{**UNKNOWN, "flops_util": [0.5, 0.5, 0.5, 0.25]})))
    assert (row[1], row[2]) == (pytest.approx(0.4), "measured")


def test_it_is_modelled_from_the_programs_operations_where_nothing_counts():
    steps = known(**{**UNKNOWN, "kind": ["train", "train", "eval", "save"]})
    costs = {"train": {"flops": 2e9, "bytes": 1.0}, "eval": {"flops": 1e9, "bytes": 1.0}}
    # 5 GFLOP in 5 ms, on a machine that does 10 GFLOP in 5 ms
    (row,) = found("mxu", run("bert-mrpc", steps, cost=costs, matrix_flops=2e12))
    assert (row[1], row[2]) == (pytest.approx(0.5), "modelled")


# ---- balances


def balanced(name, width, form="naive", number=1, *, ms=(), seconds=10.0, device=None, **facts):
    """A run at a balance: of training steps of (duration, busy time of the device, wait for input) in ms."""
    steps = toy_steps("a" * max(len(ms), 1))
    starts = [sum(each[0] for each in ms[:place]) * MS for place in range(len(ms))]
    times = {"dur_ps": 0, "device_ps": 1, "input_ps": 2}
    columns = {column: [int(each[place] * MS) for each in ms] for column, place in times.items()}
    columns |= {"start_ps": starts, "kind": ["train"] * len(ms), "idle_ps": [int((a - b) * MS) for a, b, _ in ms]}
    frame = steps.frame.head(len(ms)).with_columns(
        pl.Series(column, values, dtype=steps.frame.schema[column]) for column, values in columns.items()
    )
    steps = dataclasses.replace(steps, frame=frame, ops=steps.ops.head(0), device=device)
    about = {"width": width, "balance": 64.0 / width, "form": form, "round": number, "seconds": seconds, **facts}
    return run(name, steps, **about)


def marked(tmp_path, *runs, marks):
    """The runs as in a folder whose plan has these marks."""
    home = Path(tempfile.mkdtemp(dir=tmp_path))
    (home / "plan.json").write_text(json.dumps({"marks": marks}))
    for each in runs:
        object.__setattr__(each, "folder", home / each.name)
    return runs


def value(frame, measure, **where):
    return frame.filter(measure=measure, **where).select("value", "low", "high").row(0)


def test_a_curve_has_the_shares_of_training_steps():
    core = Device("core", 1e12, 1e9, 1e12, "none")
    cost = {"cost": {"train": {"flops": 1e9, "bytes": 1e6, "roof_s": 0.002}}}
    # 40 ms, of which the device computes 10 and steps wait 24; run of 0.1 s, of which the device computes 0.01
    found = curves([balanced("bert-squad", 16, ms=[(10, 4, 5), (30, 6, 19)], seconds=0.1, device=core, **cost)])
    assert found.select("run", "balance", "width", "form", "mark").unique().rows() == [
        ("bert-squad", 4, 16, "naive", None)
    ]
    shares = {"idle": 0.75, "input": 0.6, "idle of the run": 0.9, "step_s": 0.02, "device_s": 0.005, "roof": 0.1}
    assert {measure: value(found, measure)[0] for measure in shares} == pytest.approx(shares)
    assert value(found, "mxu")[0] == pytest.approx(0.05)  # 2 GFLOP in 40 ms, of 40
    assert found["rounds"].unique().to_list() == [1]
    assert set(found["measure"]) == {*shares, "mxu", "goodput"}  # without operations there are no phases


def test_rounds_give_the_median_and_the_ends():
    runs = [
        balanced("bert-squad", 4, number=n, ms=[(10, busy, 0)], busy=busy == 9) for n, busy in enumerate((4, 9, 7), 1)
    ]
    found = curves(runs)
    assert value(found, "idle") == pytest.approx((0.3, 0.1, 0.6))
    assert found.filter(measure="idle").select("rounds", "busy").row(0) == (3, 1)


def test_a_run_without_a_device_has_no_figures():
    lost = balanced("bert-squad", 4, ms=[(10, 4, 0)])
    frame = lost.steps.frame.with_columns(device_ps=pl.lit(None, pl.Int64))
    object.__setattr__(lost, "steps", dataclasses.replace(lost.steps, frame=frame))
    assert curves([lost]).is_empty()
    assert curves([]).columns == curves([balanced("bert-squad", 4, ms=[(10, 4, 0)])]).columns


def test_gains_are_of_whole_runs_in_the_same_round():
    def runs(number, naive, tuned, output="a"):
        tuning = {"tuning_seconds": 9.0}
        return [
            balanced("qanet-squad", 8, "naive", number, seconds=naive, step_s=0.3, output="a"),
            balanced("qanet-squad", 8, "tuned", number, seconds=tuned, step_s=0.1, output=output, busy=True, **tuning),
        ]

    found = gains([*runs(1, 10.0, 5.0), *runs(2, 12.0, 8.0), *runs(3, 9.0, 10.0)])
    expected = ("qanet-squad", 8.0, 8, "tuned", None, 1.5, 0.9, 2.0, pytest.approx(3), 10.0, 8.0, 9.0, True, 3)
    assert found.rows() == [expected]
    assert gains([*runs(1, 10.0, 5.0), *runs(2, 12.0, 8.0, "b")])["equal"].to_list() == [False]
    assert gains([balanced("qanet-squad", 8, "naive", 1, seconds=1.0)]).is_empty()


def observed(tmp_path, *, v2=(10, 6, 3.5), v3=(7, 3, 3.5), less=(10, 6, 3.5), tuned=(5.0, 6.0, 5.5), light=(9.0,) * 3):
    """The observations from three rounds on a workload, each row a step in ms; runs of 10 s, and tuned ones."""
    runs, marks = [], {V2: 16, V3_MEMORY: 12, V3: 8}
    for number in (1, 2, 3):
        for width, ms in ((32, (20, 18, 1)), (16, v2), (12, v2), (8, v3)):
            runs.append(balanced("resnet-imagenet", width, number=number, ms=[ms], output="a"))
        runs.append(balanced("resnet-cifar10", 16, number=number, ms=[less], output="c"))
        for width, seconds in ((16, tuned[number - 1]), (8, 5.0), (32, light[number - 1])):
            ms = [(1, 1, 0)]
            runs.append(balanced("resnet-imagenet", width, "tuned", number, ms=ms, seconds=seconds, output="a"))
    runs = marked(tmp_path, *runs, marks=marks)
    rows = observations(curves(runs), gains(runs))
    return {row["observation"]: row for row in rows.iter_rows(named=True)}


def test_observations_that_agree(tmp_path):
    rows = observed(tmp_path)
    assert [rows[number]["agrees"] for number in (3, 4, 5)] == [True, True, True]
    assert rows[3]["value"] == pytest.approx(0.35)
    assert (rows[3]["paper"], rows[4]["paper"], rows[5]["paper"], rows[6]["paper"]) == (0.389, 1.12, 0.4353, None)
    assert rows[3]["sentence"] == (
        "Agrees: of 40.0 % of step time in which the device idles, steps wait 35.0 % for input."
    )
    assert (rows[4]["value"], rows[4]["low"], rows[4]["high"]) == pytest.approx((10 / 5.5, 10 / 6, 2.0))
    assert rows[4]["sentence"] == (
        "Agrees: tuning makes whole runs 1.11x as fast where the device idles 10 % of step time, "
        "1.82x at 40 %, 2.00x at 57 %."
    )
    assert rows[5]["value"] == pytest.approx(4 / 7)
    assert rows[5]["sentence"] == (
        "Agrees: the device idles 40.0 %, and 57.1 % if it computes 2.00x as fast (40.0 % with 1.5x); if waits stay, "
        "the growth in the paper is that by a device 1.21x as fast."
    )


def test_observations_that_do_not_agree(tmp_path):
    rows = observed(tmp_path, v2=(10, 6, 0.5), v3=(10, 8, 0.5), less=(10, 6, 0.5), tuned=(9.0, 11.0, 9.0))
    assert [rows[number]["agrees"] for number in (3, 4, 5, 6)] == [False] * 4
    assert all(row["sentence"].startswith("Does not agree: ") for row in rows.values())
    assert rows[6]["sentence"].endswith("idles as much within the range of the rounds: resnet-cifar10.")


def test_other_data_change_the_idle_time(tmp_path):
    row = observed(tmp_path, less=(10, 8, 1))[6]
    assert (row["value"], row["low"], row["high"]) == pytest.approx((-0.2, -0.2, -0.2))
    assert row["sentence"] == "Agrees: on other data of the same model the device idles less: resnet-cifar10."
    assert "idles more: resnet-cifar10" in observed(tmp_path, less=(10, 2, 1))[6]["sentence"]


def test_what_was_not_measured_is_left_out(tmp_path):
    runs = [balanced("resnet-imagenet", 16, ms=[(10, 6, 3)])]
    assert observations(curves(runs), gains(runs)).is_empty()
    runs = marked(tmp_path, balanced("resnet-imagenet", 16, ms=[(10, 6, 3)]), marks={V2: 16, V3: None})
    (row,) = observations(curves(runs), gains(runs)).rows(named=True)
    assert row["observation"] == 3


# ---- Tables II and III


def test_operators_by_run_and_method():
    steps = tp.steps(tp.sample("keras_cnn"))
    one, other = tp.phases(steps, lambda s: [0] * len(s)), tp.phases(steps, tp.OLS())
    table = operators({"a": {"one": one, "OLS": other}, "b": {"one": one}}, n=3)
    assert table.columns == ["side", "op", "a", "b", "total"]
    host = table.filter(pl.col("side") == "host")
    expected = one.top(3).filter(pl.col("side") == "host")["op"].cast(pl.String).to_list()
    assert host.filter(pl.col("b") == "one")["op"].sort().to_list() == sorted(expected)
    assert host["total"].is_sorted(descending=True)
    assert host["total"].sum() == 9, "three runs and methods, three operators each"
    assert operators({}).columns == ["side", "op", "total"]
    with pytest.raises(ValueError, match="n parameter of operators"):
        operators({}, n=0)


# ---- what the paper prints


def test_the_papers_numbers():
    assert dict(published("idle").select("device", "value").iter_rows()) == {"TPU v2": 0.3890, "TPU v3": 0.4353}
    means = published("mxu").filter(pl.col("run").is_null())
    assert dict(means.select("device", "value").iter_rows()) == {"TPU v2": 0.2272, "TPU v3": 0.1134}
    assert published("speed-up")["value"].item() == 1.12
    everything = published()
    assert everything["where"].str.starts_with("VI").all()
    assert everything["how"].unique().to_list() == ["published"]
    with pytest.raises(ValueError, match="the paper prints no 'joules'; it prints idle, mxu, coverage"):
        published("joules")


# ---- what the notebooks say of the runs that come with the package


def test_observation_1_a_limited_number_of_phases():
    found = shipped_runs.phases()
    assert {*found.filter(method="k-means")["phases"]} <= {5, 6, 7}
    ols = found.filter(method="OLS")
    assert (ols["phases"].min(), ols["phases"].max()) == (1, 9)
    assert {*ols.filter(pl.col("run").str.contains("bert"))["phases"]} == {1, 2}
    assert {*ols.filter(pl.col("at_one") >= 15)["run"]} == {"resnet-imagenet", "dcgan-cifar10"}


def test_observation_2_the_three_longest_cover_most():
    found = shipped_runs.phases()
    dbscan = found.filter(method="DBSCAN")
    assert (dbscan["coverage"] + dbscan["noise"]).to_list() == pytest.approx([1] * 9)
    assert (dbscan["coverage"] >= 0.97).all()
    assert found.filter(method="k-means")["coverage"].is_between(0.92, 0.975).all()
    ols = found.filter(method="OLS")
    again = pl.col("run").str.contains("dcgan|qanet|retinanet")
    assert ols.filter(again)["coverage"].is_between(0.74, 0.83).all()
    assert (ols.filter(~again)["coverage"] >= 0.96).all()


def test_to_decode_images_is_among_the_first_operators():
    names = ("dcgan-cifar10", "resnet-imagenet")
    table = operators({name: {"k-means": tp.phases(recorded(name).steps, tp.KMeans.paper())} for name in names})
    decoded = table.filter(pl.col("op").str.starts_with("Decode"))
    assert decoded["dcgan-cifar10"].is_not_null().any()
    assert decoded["resnet-imagenet"].is_not_null().any()


def test_five_workloads_are_shipped_over_six_balances_and_three_rounds():
    naive = shipped_runs.measured()[0].filter(measure="idle", form="naive")
    for name in OTHER_DATA:
        rows = naive.filter(run=name).sort("balance")
        assert len(rows) >= 6
        assert rows["balance"][0] == 1
        assert (rows["rounds"] >= 3).all()
    assert {mark for mark in naive["mark"] if mark} <= {*FASTER}


def test_marks_of_the_shipped_runs_are_what_they_are_named():
    naive = shipped_runs.measured()[0].filter(form="naive").drop_nulls("mark")
    device_s = naive.filter(measure="device_s").pivot("mark", index=["run"], values="value")
    idle = naive.filter(measure="idle", mark=V2).filter(pl.col("run").is_in([*OTHER_DATA]))
    busy = naive["busy"].sum() > 0  # then times are not those of the program alone
    assert busy or idle["value"].is_between(0.33, 0.45).all()
    assert busy or (device_s[V2] / device_s[V3]).drop_nulls().is_between(2.2, 3.3).all()


def test_all_forms_that_are_shipped_have_equal_output():
    found = shipped_runs.measured()[1]
    assert set(found["form"]) == {"hand-optimised", "tuned"}
    assert found["equal"].all()


def test_the_shipped_runs_say_which_cores_and_whether_the_machine_was_busy():
    for each in shipped_runs.balances():
        assert {"cores", "held", "busy", "times", "slower", "others"} <= set(each.metadata)
        assert each.metadata["seconds"] <= 25 or each.metadata["busy"]
        assert 1 <= each.metadata["times"] <= 3
