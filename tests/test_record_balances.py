"""The script that records runs at balances: what it records, where it stops, and what it keeps."""

import importlib.util
import json
import os
import random
import subprocess
import sys
import tomllib
from pathlib import Path

import polars as pl
import pytest
from stand_in import StandIn
from warm_python import warm_python

import tpunb as tp
from tpunb.studies.paper import WORKLOADS
from tpunb.studies.paper.balances import FASTER, OTHER_DATA, V2, V3, V3_MEMORY
from tpunb.studies.paper.workloads.balance import Cores

SCRIPT = Path(__file__).parents[1] / "datasets" / "sample_profiles" / "record_balances.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("record_balances", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["record_balances"] = module
    spec.loader.exec_module(module)
    return module


WAIT_MS = 20.0  # of each step for its input


def device_ms(width):
    return 0.5 * width


@pytest.fixture
def recorded(script, monkeypatch, tmp_path):
    """Return a function that begins a session in one folder, whose runs have known times; and what it recorded."""
    runs = []

    def record(self, point):
        target = self.folder / str(point)
        if (target / "about.toml").exists():
            return
        runs.append(point)
        target.mkdir(parents=True)
        device = device_ms(point.width)
        text = f"width = {point.width}\nstep_s = {(WAIT_MS + device) / 1e3}\ndevice_s = {device / 1e3}\n"
        (target / "about.toml").write_text(text)

    monkeypatch.setattr(script.Session, "record", record)
    monkeypatch.setattr(script.Session, "_probe", lambda self: 1.0)
    monkeypatch.setattr(script, "pin", lambda: Cores(0, 1, 2))
    monkeypatch.setattr(script.machine, "measured", lambda: None)
    monkeypatch.setattr(script.os, "sched_setaffinity", lambda *_: None, raising=False)

    def begin(name="resnet-imagenet"):
        return script.Session(name, tmp_path, script.Options(), tmp_path / "scratch"), runs

    return begin


def test_widths_go_from_the_unit_to_one(script):
    assert script.widths(96) == [96, 39, 15, 6, 2, 1]
    assert script.widths(4) == [4, 3, 2, 1]
    for workload in WORKLOADS.values():
        found = script.widths(workload.spec.UNIT)
        assert (found[0], found[-1]) == (workload.spec.UNIT, 1)
        assert len(found) == 6


def test_marked_widths_idle_and_compute_as_marked(recorded):
    session, _ = recorded()
    session.round(1)
    # waits of 20 ms are 38.9 % beside 31.4 ms of computing: that of width 63; 1.5 and 2.73 times as fast: 42 and 23
    assert session.plan["marks"] == {V2: 63, V3_MEMORY: 42, V3: 23}
    assert json.loads((session.folder / "plan.json").read_text())["marks"] == session.plan["marks"]


def test_a_mark_beyond_the_widths_is_none(recorded, monkeypatch):
    monkeypatch.setitem(globals(), "device_ms", lambda width: 100.0 * width)
    session, _ = recorded()
    session.round(1)
    assert session.plan["marks"] == {V2: None, V3_MEMORY: None, V3: None}


def test_runs_are_packed_into_one_file_and_back(script, tmp_path):
    run = tmp_path / "balances" / "bert-squad" / "run-1" / "parts"
    run.mkdir(parents=True)
    (run / "steps.parquet").write_bytes(bytes(range(256)))
    (run.parents[1] / "plan.json").write_text("{}")
    script.main(["--to", str(tmp_path), "--pack"])
    assert [path.name for path in tmp_path.iterdir()] == ["balances.parquet"]
    script.unpack(tmp_path / "balances.parquet", tmp_path)
    assert (run / "steps.parquet").read_bytes() == bytes(range(256))
    assert (run.parents[1] / "plan.json").read_text() == "{}"


def test_three_forms_run_at_three_balances_and_other_data_at_two(script, recorded):
    session, runs = recorded()
    for number in (1, 2, 3):
        session.round(number)
    of_round = [(point.name, point.width, point.form) for point in runs if point.round == 2]
    assert len(of_round) == len({*of_round})
    naive = {width for name, width, form in of_round if form == "naive" and name == "resnet-imagenet"}
    curve = script.widths(WORKLOADS["resnet-imagenet"].spec.UNIT)
    assert naive == {*curve, 63, 42, 23}
    for form in ("hand-optimised", "tuned"):
        assert {width for _, width, other in of_round if other == form} == {curve[1], 63, 23}
    assert {(width, form) for name, width, form in of_round if name == "resnet-cifar10"} == {
        (63, "naive"),
        (23, "naive"),
    }
    forms = [form for _, width, form in of_round if width == 63]
    assert len(forms) == 4  # one after the other, and the other data
    assert [width for _, width, _ in of_round].count(63) == 4
    places = [place for place, (_, width, _) in enumerate(of_round) if width == 63]
    assert places == [*range(places[0], places[0] + 4)]
    # in each round, in another order
    orders = [[point.width for point in runs if point.round == number][:12] for number in (2, 3)]
    assert orders[0] != orders[1]


def test_forms_are_not_compared_where_the_paper_does_not(recorded):
    session, runs = recorded("bert-squad")
    session.round(1)
    assert {point.form for point in runs} == {"naive"}
    others = {point.name for point in runs} - {"bert-squad"}
    assert others == {*OTHER_DATA["bert-squad"]}


def test_a_recording_continues_where_it_stopped(recorded):
    session, runs = recorded()
    session.round(1)
    random.Random(0).shuffle(runs)
    lost = runs[:3]
    for point in lost:
        (session.folder / str(point) / "about.toml").unlink()
        (session.folder / str(point)).rmdir()
    runs.clear()
    again, _ = recorded()
    again.round(1)
    assert {*map(str, runs)} == {*map(str, lost)}
    assert again.plan["marks"] == session.plan["marks"]


class Busy(Exception):
    pass


@pytest.mark.parametrize(("slow", "times", "busy"), [([], 1, False), ([1], 2, False), ([1, 2, 3, 4], 3, True)])
def test_a_run_on_a_busy_machine_is_repeated_at_most_twice(script, monkeypatch, tmp_path, slow, times, busy):
    session = object.__new__(script.Session)
    session.folder, session.scratch, session.options = tmp_path / "runs", tmp_path, script.Options()
    session._chip, session._costs, tries = None, {("dcgan-mnist", 4): {}}, []
    with tp.capture(tmp_path / "run", source=StandIn(), keep="none") as run, run.step(0):
        pass

    def once(point, model, state, data):
        tries.append(point)
        return {"seconds": 1.0, "busy": len(tries) in slow}

    monkeypatch.setattr(session, "_model", lambda point: (None, None), raising=False)
    monkeypatch.setattr(session, "_data", lambda point: None, raising=False)
    monkeypatch.setattr(session, "_once", once, raising=False)
    point = script.Point("dcgan-mnist", 4, "naive", 2)
    session.record(point)
    about = tomllib.loads((tmp_path / "runs" / str(point) / "about.toml").read_text())
    assert (about["name"], about["times"], about["busy"], len(tries)) == (str(point), times, busy, times)
    session.record(point)
    assert len(tries) == times  # it exists


def test_statistics_alone_are_kept(script, tmp_path):
    with tp.capture(tmp_path / "run", source=StandIn(), keep="all") as run:
        for number in range(3):
            with run.step(number):
                pass
    parts = tmp_path / "run" / "parts" / "00000"
    parts.mkdir(parents=True, exist_ok=True)
    for name in ("programs", "ops"):
        (parts / f"{name}.parquet").write_bytes(b"none")
    for with_ops in (True, False):
        script._keep_statistics(tmp_path / "run", tmp_path / f"kept-{with_ops}", with_ops=with_ops)
        names = {path.name for path in (tmp_path / f"kept-{with_ops}").rglob("*") if path.is_file()}
        assert ("ops.parquet" in names) == with_ops
        tables = (
            *("ops", "ticks", "spans", "load", "windows", "stacks", "stack_stalls", "stack_samples", "steps"),
            *("events", "names", "places", "keys", "signatures"),
        )
        assert names <= {f"{table}.parquet" for table in tables} | {"run.json"}
    facts = json.loads((tmp_path / "kept-False" / "run.json").read_text())
    assert (facts["name"], facts["options"]["keep"]) == ("kept-False", "none")


def events(*rows):
    columns = ("line", "hlo_op", "start_ps", "dur_ps")
    frame = pl.DataFrame(rows, schema=columns, orient="row")
    return frame.with_columns(pl.col("line", "hlo_op").cast(pl.Categorical))


def test_overlap_is_the_share_of_computing_beside_input(script):
    computing = [("tf_Compute/1", "dot.1", 0, 60), ("tf_Compute/1", "dot.2", 50, 50)]  # 100 in all
    other = ("python", None, 0, 1000)
    assert script.overlap(events(*computing, other, ("tf_data_private_threadpool/7", None, 40, 20))) == 0.2
    assert script.overlap(events(*computing, ("tf_data_private_threadpool/7", None, 100, 20))) == 0
    assert script.overlap(events(*computing, other)) is None  # input works in the thread that asks for it
    assert script.overlap(events(other)) is None


def test_what_a_faster_device_is():
    assert [FASTER[mark] for mark in (V2, V3_MEMORY, V3)] == [1.0, 1.5, pytest.approx(123 / 45)]


TWO = hasattr(os, "sched_setaffinity") and len(os.sched_getaffinity(0)) > 1


@pytest.mark.slow
@pytest.mark.skipif(not TWO, reason="needs two cores, and affinity calls")
def test_a_run_is_recorded_and_read_with_its_device_apart_from_its_host(tmp_path):
    pytest.importorskip("tensorflow")
    code = """
import sys
from dataclasses import replace
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import record_balances as script
from tpunb.frames.hardware import Device
from tpunb.studies.paper.workloads.dcgan import Dcgan
script.machine.measured = lambda: Device("CPU", 1e11, 1e10, 1e9, "test")
script._PROBES = 3
Dcgan.RUN = replace(Dcgan.RUN, batch=128, examples=256)
session = script.Session("dcgan-cifar10", Path(sys.argv[2]) / "balances", script.Options(0.2, 1), Path(sys.argv[3]))
for form in ("naive", "hand-optimised"):
    session.record(script.Point("dcgan-cifar10", 1, form, 1))
"""
    env = os.environ | {"PYTHONPATH": str(SCRIPT.parents[2]), "XLA_FLAGS": "--xla_backend_optimization_level=0"}
    (tmp_path / "scratch").mkdir()
    arguments = [str(SCRIPT.parent), str(tmp_path), str(tmp_path / "scratch")]
    subprocess.run([*warm_python(), "-c", code, *arguments], env=env, check=True, timeout=600)
    naive, hand = sorted(tp.studies.paper.recorded_balances(tmp_path), key=lambda run: run.metadata["form"] != "naive")
    for run in (naive, hand):
        assert run.workload.name == "dcgan-cifar10"
        assert (run.metadata["width"], run.metadata["balance"], run.metadata["held"]) == (1, 1600.0, True)
        full = run.steps.full().frame.filter(kind="train")
        assert len(full) >= 3
        assert (full["device_ps"] > 0).all()
        assert (full["device_ps"] <= full["dur_ps"]).all()
        assert run.costs["train"].flops > run.costs["eval"].flops > 0
        assert run.steps.device.peak_flops == 1e11
    assert naive.metadata["output"] == hand.metadata["output"]
    assert hand.metadata["overlap"] is not None
    found = tp.studies.paper.curves([naive, hand])
    assert found.filter(measure="idle")["value"].is_between(0, 1).all()
    assert tp.studies.paper.gains([naive, hand])["equal"].to_list() == [True]
