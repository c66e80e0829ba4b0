"""The paper's figures as frames: of toy runs whose answers are visible, and beside what the paper printed."""

import dataclasses
from pathlib import Path

import polars as pl
import pytest

import tpunb as tp
from tpunb.analysis import Device
from tpunb.testing import toy_steps
from tpunb.workloads import WORKLOADS, RecordedRun, recorded
from tpunb.workloads.paper import on_devices, operators, published, speedups, utilisation
from tpunb.workloads.record import COMPARED
from tpunb.workloads.recordings import FORMS, parted


def run(name, steps=None, **about):
    workload, form = parted(name)
    made = RecordedRun(name, workload, form, None, about, Path())
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
    return utilisation(runs).filter(pl.col("measure") == measure).select("run", "form", "value", "how").rows()


# ---- Figures 10 to 13, 15 and 16


def test_idle_is_the_devices_where_there_is_one():
    steps = known(**{**UNKNOWN, "idle_ps": [0, 0, MS, 2 * MS], "input_ps": [MS] * 4})
    assert found("idle", run("bert-mrpc", steps)) == [("bert-mrpc", None, 0.6, "measured")]


def test_idle_is_the_wait_for_input_where_there_is_no_device():
    steps = known(**{**UNKNOWN, "input_ps": [0, 0, 0, MS]})
    table = utilisation([run("qanet-squad-naive", steps)]).row(0, named=True)
    assert (table["run"], table["form"], table["value"], table["how"]) == ("qanet-squad", "naive", 0.2, "measured")
    assert "waits for its input" in table["what"]


def test_what_is_not_known_is_null():
    assert [value for *_, value, _ in found("idle", run("bert-mrpc", known(**UNKNOWN)))] == [None]
    assert found("mxu", run("bert-mrpc", known(**UNKNOWN))) == [("bert-mrpc", None, None, "modelled")]
    assert utilisation([]).is_empty()


def test_the_matrix_unit_is_measured_where_the_hardware_counts():
    steps = known(**{**UNKNOWN, "mxu_util": [0.1, 0.1, 0.3, None], "flops_util": [0.9] * 4})
    (told,) = found("mxu", run("bert-mrpc", steps))
    assert (told[2], told[3]) == (pytest.approx(1 / 6), "measured")
    (told,) = found("mxu", run("bert-mrpc", known(**{**UNKNOWN, "flops_util": [0.5, 0.5, 0.5, 0.25]})))
    assert (told[2], told[3]) == (pytest.approx(0.4), "measured")


def test_it_is_modelled_from_the_programs_operations_where_nothing_counts():
    steps = known(**{**UNKNOWN, "kind": ["train", "train", "eval", "save"]})
    costs = {"train": {"flops": 2e9, "bytes": 1.0}, "eval": {"flops": 1e9, "bytes": 1.0}}
    # 5 GFLOP in 5 ms, on a machine that does 10 GFLOP in 5 ms
    (told,) = found("mxu", run("bert-mrpc", steps, cost=costs, matrix_flops=2e12))
    assert (told[2], told[3]) == (pytest.approx(0.5), "modelled")


# ---- Observation 5


def test_a_faster_device_waits_for_a_larger_share():
    steps = known(**{**UNKNOWN, "input_ps": [0, 0, 0, MS], "kind": ["train"] * 4})
    # each step computes 1 GFLOP in 1 ms: at the peak of the machine
    about = {"cost": {"train": {"flops": 1e9, "bytes": 1e6}}, "matrix_flops": 1e12}
    faster = Device("faster", 4e12, 1e9, 1e12, "none")
    narrow = Device("narrow", 4e12, 1e9, 2e9, "none")  # 1 MB takes it 0.5 ms
    table = on_devices([run("bert-mrpc", steps, **about)], [faster, narrow])
    assert table.rows() == [
        ("bert-mrpc", "as it ran", pytest.approx(0.2), "measured"),
        ("bert-mrpc", "faster", pytest.approx(0.5), "modelled"),
        ("bert-mrpc", "narrow", pytest.approx(1 / 3), "modelled"),
    ]


def test_what_costs_nobody_knows_is_not_modelled():
    table = on_devices([run("bert-mrpc", known(**{**UNKNOWN, "input_ps": [MS] * 4}))], ["TPU v3"])
    assert table["value"].to_list() == [pytest.approx(0.8), None]
    with pytest.raises(ValueError, match="unknown device 'TPU v0'"):
        on_devices([run("bert-mrpc")], ["TPU v0"])


# ---- Figure 14


def test_speed_ups_are_those_of_pairs_of_trials():
    table = speedups(
        [
            run("qanet-squad-naive", seconds=30.0),
            run("bert-mrpc", seconds=1.0),
            run("qanet-squad-tuned", seconds=20.0, tuning_seconds=4.0, speedup=[1.5, 1.4, 1.6], values=["ds.map()"]),
            run("retinanet-coco-naive", seconds=1.0),
        ]
    )
    stays = {"seconds": 1.0, "tuning_seconds": 1.0, "speedup": [1.0, 1.0, 1.0], "values": []}
    same = speedups([run("bert-mrpc-naive", **stays), run("bert-mrpc-tuned", **stays)])
    assert same.rows() == [("bert-mrpc", 1.0, None, None, "measured", 1.0, 1.0, 1.0)]
    assert table.rows() == [("qanet-squad", 1.5, 1.4, 1.6, "measured", 30.0, 20.0, 4.0)]


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

NAMES = [name for name, one in WORKLOADS.items() if not one.reduced]


@pytest.fixture(scope="module")
def cut():
    """The phases of each run of Table I by the paper's methods."""
    methods = {"k-means": tp.KMeans.paper(), "DBSCAN": tp.DBSCAN.paper(), "OLS": tp.OLS(0.7)}
    steps = {name: recorded(name).steps for name in NAMES}
    return {by: {name: tp.phases(one, method) for name, one in steps.items()} for by, method in methods.items()}


def at_one(phases):
    return phases.sweeps["threshold"].filter(pl.col("threshold") == 1.0)["phases"].item()


def test_observation_1_a_limited_number_of_phases(cut):
    assert {len(one) for one in cut["k-means"].values()} <= {5, 6, 7}
    counts = {name: len(one) for name, one in cut["OLS"].items()}
    assert (min(counts.values()), max(counts.values())) == (1, 9)
    assert {count for name, count in counts.items() if "bert" in name} == {1, 2}
    assert {name for name, one in cut["OLS"].items() if at_one(one) >= 15} == {"resnet-imagenet", "dcgan-cifar10"}


def test_observation_2_the_three_longest_cover_most(cut):
    assert all(one.coverage(3) + one.noise == pytest.approx(1) for one in cut["DBSCAN"].values())
    assert all(one.coverage(3) >= 0.97 for one in cut["DBSCAN"].values())
    assert all(0.92 <= one.coverage(3) <= 0.975 for one in cut["k-means"].values())
    of_ols = {name: one.coverage(3) for name, one in cut["OLS"].items()}
    again = {name for name in NAMES if name.split("-")[0] in ("dcgan", "qanet", "retinanet")}
    assert all(0.74 <= of_ols[name] <= 0.83 for name in again)
    assert all(of_ols[name] >= 0.96 for name in {*NAMES} - again)


def test_observations_3_and_5_of_idle_time():
    table = on_devices(map(recorded, NAMES), ["TPU v2", "TPU v3"]).pivot("form", index="run", values="value")
    assert table["as it ran"].is_between(0.005, 0.03).all()
    assert (table["TPU v3"] > table["TPU v2"]).all()
    assert [round(table[name].mean(), 2) for name in ("TPU v2", "TPU v3")] == [0.43, 0.53]


def test_to_decode_images_is_among_the_first_operators(cut):
    table = operators({name: {"k-means": cut["k-means"][name]} for name in ("dcgan-cifar10", "resnet-imagenet")})
    decoded = table.filter(pl.col("op").str.starts_with("Decode"))
    assert decoded["dcgan-cifar10"].is_not_null().any()
    assert decoded["resnet-imagenet"].is_not_null().any()


def test_observation_6_the_dataset_matters():
    def found(measure, *names):
        return utilisation(map(recorded, names)).filter(measure=measure)["value"]

    longer = found("idle", "qanet-squad-half", "retinanet-coco-half") - found("idle", "qanet-squad", "retinanet-coco")
    assert longer.is_between(0, 0.015).all()
    assert -0.015 < (found("idle", "resnet-cifar10") - found("idle", "resnet-imagenet")).item() < 0
    assert found("mxu", "dcgan-cifar10", "dcgan-mnist").round(2).to_list() == [0.41, 0.24]


def test_figures_14_to_16_nothing_to_gain_on_two_cores():
    forms = [recorded(f"{name}-{form}") for name in COMPARED for form in FORMS]
    assert speedups(forms)["value"].to_list() == [1.0, 1.0, 1.0]
    said = {run.workload.name: run.metadata["tuning"][-1] for run in forms if run.form == "tuned"}
    assert all(said[name].startswith("Nothing to gain") for name in ("qanet-squad", "resnet-imagenet"))
    assert said["retinanet-coco"].endswith("none was shown to be faster: the values stay as they are.")
