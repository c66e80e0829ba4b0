"""Simulated pods: their files hold what the capture and the known truth say."""

import warnings

import numpy as np
import pod_tables
import polars as pl
import pytest
from pod_jobs import MS, TWO
from simulate.pod import DELAYS, Fault, pod
from simulate.step_program import step_program

import tpunb as tp
from tpunb.step_stats.merge_hosts import host_tables
from tpunb.testing import toy_steps

ONE_OF_EACH = [Fault(kind, (number,), 0.1, every=1 + number // 2) for number, kind in enumerate(DELAYS)]


def loaded(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tp.load(folder)


def test_the_step_of_a_capture_has_its_operations():
    found = step_program(toy_steps("bbb"), collectives=2, seed=3)
    sums = dict(found.runs.group_by("name").agg(pl.col("dur_ps").sum()).rows())
    assert sums == {name: pytest.approx(2 * MS // 12 * n, abs=n) for name, n in (("b0", 1), ("b1", 2), ("b2", 3))}
    assert sorted(found.runs["name"].to_list()) == ["b0", "b1", "b1", "b2", "b2", "b2"]
    assert found.runs["segment"].to_list() == [0, 0, 0, 1, 1, 1]
    assert found.collectives["op"].to_list() == ["all-reduce"] * 2
    assert found.collectives["dur_ps"].sum() == pytest.approx(0.05 * sum(sums.values()))
    drawn = step_program(toy_steps("bbb"), ops=40, collectives=1)
    assert (drawn.runs.height, set(drawn.runs["name"])) == (40, {"b0", "b1", "b2"})


def test_a_capture_that_joins_no_hosts_is_refused():
    with pytest.raises(tp.TpunbError, match="toy has no collectives") as caught:
        pod(toy_steps())
    assert caught.value.hint == "add some: step_program(capture, collectives=3)"
    with pytest.raises(tp.TpunbError, match="toy has no operations"):
        step_program(toy_steps("a", traced="n"))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hosts": 0}, "hosts parameter of pod must be an int of 1 or more"),
        ({"steps": 1.5}, "steps parameter"),
        ({"faults": [Fault("slow chip", (8,))]}, "must fit its hosts and operations"),
        ({"faults": [Fault("slow chip", (1,), device=4)]}, "must fit"),
        ({"faults": [Fault("slow chip", (1,), op="convolution")]}, "must fit"),
        ({"faults": [Fault("lightning", (1,))]}, "must fit"),
    ],
)
def test_a_wrong_pod_is_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        pod(TWO, **changed)


def by_op(steps, n):
    rows = steps.ops.filter(side="device").with_columns(pl.col("op").cast(pl.String))
    return dict(rows.group_by("op").agg(pl.col("self_ps").sum() / n).rows())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_one_host_without_faults_has_the_totals_of_the_capture(tmp_path, seed):
    capture = tp.steps(tp.sample("keras_cnn")).full()  # of a CPU: its operations run on the host
    pod(step_program(capture, collectives=3, seed=seed), hosts=1, folder=tmp_path, seed=seed)
    simulated = by_op(tp.steps(loaded(tmp_path)), 20 * 4)
    other = ["input pipeline", "input wait", "compile"]
    rows = capture.ops.filter(pl.col("category").cast(pl.String).is_in(other).fill_null(value=False).not_())
    rows = rows.with_columns(pl.col("op").cast(pl.String)).filter(pl.col("self_ps") > 0)
    trained = capture.frame.filter(kind="train")  # the kind with the most time
    rows = rows.join(trained, on=["host", "step"], how="semi")
    real = dict(rows.group_by("op").agg(pl.col("self_ps").sum() / len(trained)).rows())
    del simulated["all-reduce"]
    assert simulated == {op: pytest.approx(time, rel=0.01, abs=1) for op, time in real.items()}


def test_one_host_has_the_totals_of_a_real_capture_and_its_collectives(real_profiles, tmp_path):
    steps = tp.steps(loaded(real_profiles / "tpu_vllm-qwen3.trace.json.gz"), by="module")
    kind = steps.frame.sort("dur_ps")["kind"][-1]
    chosen = steps.frame.filter(kind=kind)
    pod(steps, hosts=1, chips=2, steps=10, folder=tmp_path)
    simulated = by_op(tp.steps(loaded(tmp_path)), 20)
    rows = steps.ops.filter(side="device").join(chosen, on=["host", "step"], how="semi").filter(pl.col("self_ps") > 0)
    real = dict(rows.select(pl.col("op").cast(pl.String), pl.col("self_ps") / 2).rows())
    assert simulated == {op: pytest.approx(time, rel=0.01) for op, time in real.items()}


def test_the_library_of_protobuf_reads_the_files(xplane_pb2, tmp_path):
    pod(TWO, hosts=2, chips=3, steps=4, folder=tmp_path)
    space = xplane_pb2.XSpace.FromString((tmp_path / "pod-0001.xplane.pb").read_bytes())
    assert space.hostnames == ["pod-0001"]
    devices = [plane for plane in space.planes if plane.name.startswith("/device")]
    assert [plane.name for plane in devices] == [f"/device:TPU:{chip}" for chip in range(3)]
    lines = {line.name: line.events for line in devices[0].lines}
    names = [devices[0].event_metadata[event.metadata_id].display_name for event in lines["XLA Ops"]]
    assert names == ["fusion.00", "fusion.01", "all-reduce.0", "fusion.10", "all-reduce.1"] * 4
    ends = [event.offset_ps + event.duration_ps for event in lines["XLA Ops"]]
    assert all(event.offset_ps >= end for event, end in zip(lines["XLA Ops"][1:], ends, strict=False))
    assert len(lines["XLA Modules"]) == 4


def test_files_hold_what_the_tables_say(tmp_path):
    simulated = pod(TWO, hosts=6, steps=40, seed=5, faults=ONE_OF_EACH, folder=tmp_path)
    files, tables = host_tables(tp.steps(loaded(tmp_path))), pod_tables.pod_tables(simulated)
    key = ["host", "step", "start_ps"]
    mine, theirs = (
        one.collectives.drop("program", "groups").with_columns(pl.col("host", "name", "device").cast(pl.String))
        for one in (files, tables)
    )
    assert mine.sort(key).equals(theirs.sort(key))
    for column in ("start_ps", "dur_ps"):
        assert files.frame.sort(key)[column].equals(tables.frame.sort(key)[column])
    for column in ("device_ps", "idle_ps", "collective_ps", "input_ps", "compile_ps"):
        differ = files.frame.sort(key)[column] - tables.frame.sort(key)[column]
        assert differ.abs().max() < 3_000_000  # of 10 ms: the jitter of the ends
    mine, theirs = (
        one.ops.filter(side="device").with_columns(pl.col("host", "op").cast(pl.String)) for one in (files, tables)
    )
    joined = mine.join(theirs, on=["host", "op", "count"], how="full", coalesce=True)
    assert joined.select(((pl.col("self_ps") / pl.col("self_ps_right")) - 1).abs().max()).item() < 0.005


def test_devices_wait_for_the_last_of_all_and_clocks_differ_as_known(tmp_path):
    simulated = pod(TWO, hosts=5, steps=30, seed=2, folder=tmp_path)
    rows = tp.steps(loaded(tmp_path)).collectives.with_columns(end=pl.col("start_ps") + pl.col("dur_ps"))
    truth = simulated.truth.with_columns(pl.col("drift_ppm") * 1e-6)
    rows = rows.join(truth, on="host").with_columns(
        true=(pl.col("end") - 5_000_000_000 - pl.col("offset_ps")) / (1 + pl.col("drift_ppm")),
    )
    spans = rows.group_by("step", "name").agg(
        pl.col("true").max() - pl.col("true").min(), pl.col("end").max() - pl.col("end").min()
    )
    assert spans["true"].max() < 3_000_000  # jitter of the ends, 0.5 us
    assert spans["end"].min() > 50_000_000  # clocks are off by 200 us
    last = rows.group_by("step", "name").agg(pl.col("host").sort_by("dur_ps").first(), pl.col("dur_ps").min())
    assert last["host"].n_unique() > 2
    assert last["dur_ps"].min() > 19_000_000  # at least a fifth of the 0.1 ms


@pytest.mark.parametrize("kind", DELAYS)
def test_the_cost_of_a_fault_is_its_share_of_the_steps(kind):
    simulated = pod(TWO, hosts=50, steps=200, faults=[Fault(kind, (7,), 0.3)])
    steps_ps = 200 * TWO.step_ps
    assert simulated.cost_ps(7) == pytest.approx(0.3 * steps_ps, rel=0.1)  # less what others delay without it
    assert simulated.cost_ps(6) == 0
    assert simulated.truth.filter(pl.col("fault").is_not_null()).select("host", "fault").rows() == [("pod-0007", kind)]


def test_equally_slow_hosts_hide_each_other():
    simulated = pod(TWO, hosts=50, steps=200, faults=[Fault("slow chip", (3, 4, 5), 0.3)])
    assert max(simulated.cost_ps(3), simulated.cost_ps(3, 4)) < 0.05 * simulated.cost_ps(3, 4, 5)


def test_a_slow_operation_is_slow_on_one_device_in_some_steps(tmp_path):
    simulated = pod(
        TWO, hosts=2, steps=10, faults=[Fault("slow chip", (1,), 0.2, device=2, op="fusion.10")], folder=tmp_path
    )
    events = tp.load(tmp_path).events.filter(pl.col("name") == "fusion.10", pl.col("host") == "pod-0001")
    means = dict(events.group_by(pl.col("plane").cast(pl.String)).agg(pl.col("dur_ps").mean()).rows())
    slow = means.pop("/device:TPU:2")
    assert slow - np.mean([*means.values()]) == pytest.approx(0.2 * TWO.step_ps, rel=0.1)
    assert simulated.cost_ps(1) == pytest.approx(2 * TWO.step_ps, rel=0.1)


def test_a_slow_operation_is_as_long_as_ever_in_other_steps(tmp_path):
    fault = Fault("slow chip", (1,), 0.1, every=5, op="fusion.10")
    pod(TWO, hosts=2, steps=10, faults=[fault], folder=tmp_path)
    events = tp.load(tmp_path).events.filter(pl.col("host") == "pod-0001", pl.col("plane") == "/device:TPU:0")
    durs = {
        name: events.filter(pl.col("name") == name)["dur_ps"].to_numpy() / MS for name in ("fusion.00", "fusion.10")
    }
    slow = np.arange(10) % 5 == 4
    assert durs["fusion.00"] == pytest.approx(3, rel=0.05)
    assert durs["fusion.10"][~slow] == pytest.approx(4, rel=0.05)
    assert durs["fusion.10"][slow] == pytest.approx(4 + 0.5 * TWO.step_ps / MS, rel=0.05)


def test_lost_files_are_lost_as_named(tmp_path):
    kinds = ["missing", "empty", "cut", "garbage", "doubled", "other run"]
    pod(TWO, hosts=8, steps=4, faults=[Fault(kind, (n,)) for n, kind in enumerate(kinds)], folder=tmp_path)
    with pytest.warns(UserWarning, match="5 files skipped"):
        profile = tp.load(tmp_path)
    lost = ["pod-0001", "pod-0002", "pod-0003", "pod-0004.copy", "pod-0005"]
    assert [name for name, _ in profile.skipped] == [f"{name}.xplane.pb" for name in lost]
    steps = tp.steps(profile).frame
    assert steps["host"].unique().sort().to_list() == ["pod-0004", "pod-0006", "pod-0007"]
    assert set(steps["step"]) == {0, 1, 2, 3}
    other = tp.steps(tp.load(tmp_path / "pod-0005.xplane.pb")).frame
    assert other["step"].to_list() == [1_000_000 + n for n in range(4)]
    assert (tmp_path / "pod-0001.xplane.pb").stat().st_size == 0
    assert not (tmp_path / "pod-0000.xplane.pb").exists()


def test_a_seed_gives_the_same_files(tmp_path):
    for name in ("a", "b"):
        pod(TWO, hosts=2, seed=4, faults=[Fault("pause", (1,))], folder=tmp_path / name)
    assert len({(tmp_path / name / "pod-0001.xplane.pb").read_bytes() for name in ("a", "b")}) == 1
