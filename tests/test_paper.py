"""The paper's figures as frames: of toy runs whose answers are visible, and beside what the paper printed."""

import dataclasses
from pathlib import Path

import polars as pl
import pytest

import tpunb as tp
from tpunb.hardware import Device
from tpunb.paper import on_devices, operators, published, speedups, utilisation
from tpunb.testing import toy_steps
from tpunb.workloads import Recording
from tpunb.workloads.recordings import parted


def run(name, steps=None, **about):
    workload, form = parted(name)
    made = Recording(name, workload, form, None, about, Path())
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
    steps = known(**{**UNKNOWN, "mark": ["train", "train", "test", "save"]})
    costs = {"train": {"flops": 2e9, "bytes": 1.0}, "eval": {"flops": 1e9, "bytes": 1.0}}
    # 5 GFLOP in 5 ms, on a machine that does 10 GFLOP in 5 ms
    (told,) = found("mxu", run("bert-mrpc", steps, cost=costs, matrix_flops=2e12))
    assert (told[2], told[3]) == (pytest.approx(0.5), "modelled")


# ---- Observation 5


def test_a_faster_device_waits_for_a_larger_share():
    steps = known(**{**UNKNOWN, "input_ps": [0, 0, 0, MS], "mark": ["train"] * 4})
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
    with pytest.raises(ValueError, match="no device is called 'TPU v0'"):
        on_devices([run("bert-mrpc")], ["TPU v0"])


# ---- Figure 14


def test_speed_ups_are_of_whole_trainings():
    table = speedups(
        [
            run("qanet-squad-naive", seconds=30.0),
            run("bert-mrpc", seconds=1.0),
            run("qanet-squad-tuned", seconds=20.0, tuning_seconds=4.0),
            run("retinanet-coco-naive", seconds=1.0),
        ]
    )
    assert table.rows() == [("qanet-squad", 1.5, "measured", 30.0, 20.0, 4.0)]


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
    with pytest.raises(ValueError, match="the paper prints no 'joules'; it does idle, mxu, coverage"):
        published("joules")
