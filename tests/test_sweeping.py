"""``tp.sweep``: points in a process of their own, in rounds; those that fail cost nothing but themselves."""

import io
import os
import queue
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
from plain_loops import add, added

from tpunb.analysis import Device
from tpunb.errors import BadProfile, IncompatibleRuns
from tpunb.studies.sweeps import measuring, points, process
from tpunb.studies.sweeps.measuring import sweep
from tpunb.studies.sweeps.results import Sweep


def dense(batch=32, width=8, compiled=True, fill=1.0):
    """Return a model and a batch."""
    import keras

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(width), keras.layers.Dense(1)])
    if compiled:
        model.compile("sgd", "mse")
    return model, (np.full((batch, 4), fill, "float32"), np.ones((batch, 1), "float32"))


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Sweeps of two or three rounds, on a CPU of known peaks."""
    monkeypatch.setattr(measuring, "_MOST_ROUNDS", 3)
    monkeypatch.setattr(measuring, "_FEWEST_ROUNDS", 2)
    monkeypatch.setattr(measuring.machine, "measured", lambda: Device("CPU", 1e12, 1e10, 1e9, "test", dtype="f32"))


class HereProcess:
    """Stands for the process of the points: they are measured in this one; each answer takes a second."""

    limit = 1 << 60
    asked = 0
    interrupted_at = None

    def __init__(self, setup, watts=None):
        self.setup, self.points, self.watts = setup, {}, watts

    def start(self):
        pass

    def ask(self, request, patience):
        HereProcess.asked += 1
        if self.asked == self.interrupted_at:
            raise KeyboardInterrupt
        reply = points._reply(self.setup, self.points, request)
        return reply | {"watts": None if self.watts is None else self.watts()}

    def close(self):
        pass


@pytest.fixture
def here(monkeypatch):
    """Measure points in this process, by simulated clocks: a block of steps takes 1 ms."""
    blocks = count()
    monkeypatch.setattr(points, "time", SimpleNamespace(perf_counter=lambda: next(blocks) / 1e3))
    monkeypatch.setattr(measuring, "time", SimpleNamespace(monotonic=lambda: HereProcess.asked))
    monkeypatch.setattr(measuring, "PointProcess", HereProcess)
    return HereProcess


@pytest.mark.live
def test_every_point_is_a_row_in_the_order_of_the_grid(monkeypatch):
    pytest.importorskip("tensorflow")
    monkeypatch.setattr(measuring, "_MOST_ROUNDS", 6)
    monkeypatch.setattr(measuring, "_FEWEST_ROUNDS", 6)
    monkeypatch.setattr(measuring, "_ROUND_S", 0.01)
    frame = sweep(dense, budget=600, batch=[8, 64], width=[4, 512]).frame
    assert frame.select("batch", "width").rows() == [(8, 4), (8, 512), (64, 4), (64, 512)]
    assert set(frame["state"]) == {"ok"}
    assert frame["weights"].to_list() == [4 * w + w + w + 1 for w in (4, 512, 4, 512)]
    assert frame["examples"].to_list() == frame["batch"].to_list()
    assert frame["rounds"].to_list() == [6] * 4
    assert (frame["low_ps"] <= frame["step_ps"]).all()
    assert (frame["step_ps"] <= frame["high_ps"]).all()
    assert frame["joules"].to_list() == [None] * 4
    row = frame.row(3, named=True)  # of batch 64, width 512
    forward = 2 * 64 * (4 * 512 + 512 * 1)
    assert row["flops"] == pytest.approx(3 * forward - 2 * 64 * 4 * 512)  # no gradient with respect to the input
    assert row["flops_util"] == pytest.approx(row["flops"] / row["step_ps"], rel=1e-3)  # by 1 FLOP in 1 ps
    assert row["device"] == "CPU"


def test_fewer_than_six_rounds_have_no_interval(here):
    frame = sweep(added, step=add, size=[10, 1000]).frame
    assert frame.select("state", "rounds", "low_ps", "high_ps").unique().rows() == [("ok", 3, None, None)]
    assert (frame["step_ps"] > 0).all()
    assert frame["examples"].to_list() == [10, 1000]
    assert frame["weights"].to_list() == [None, None]


def test_a_sweep_continues_where_its_file_ends(tmp_path, monkeypatch, here):
    path = tmp_path / "sweep.parquet"
    first = sweep(added, step=add, into=path, size=[10, 1000]).frame
    monkeypatch.setattr(measuring, "_MOST_ROUNDS", 6)
    monkeypatch.setattr(measuring, "_NARROW", -1)
    again = sweep(added, step=add, into=path, size=[10, 1000]).frame
    assert (first["rounds"].to_list(), again["rounds"].to_list()) == ([3, 3], [6, 6])
    pairs = zip(again["rounds_ps"], first["rounds_ps"], strict=True)
    assert all(later[: len(before)].to_list() == before.to_list() for later, before in pairs)
    assert again["examples"].to_list() == first["examples"].to_list() == [10, 1000]
    assert Sweep.read(path).frame.equals(again)
    with pytest.raises(IncompatibleRuns, match="another grid"):
        sweep(added, step=add, into=path, size=[10, 1001])
    with pytest.raises(IncompatibleRuns, match="another grid or mode"):
        sweep(added, step=add, into=path, mode="predict", size=[10, 1000])


@pytest.mark.live
def test_points_that_fail_are_rows_and_cost_the_others_nothing():
    kinds = ["sound", "ends", "wrong", "large", "raises", "empty"]
    states = dict(sweep(added, budget=600, step=add, kind=kinds).frame.select("kind", "state").rows())
    assert states == {
        "sound": "ok",
        "ends": "failed: its process ended with code 3",
        "wrong": "failed: TypeError: build must return (model, data). Got 5 instead.",
        "large": "out of memory",
        "raises": "failed: ValueError: no such",
        "empty": "failed: TypeError: the data hold no batch",
    }


@pytest.mark.live
def test_a_point_without_an_answer_has_failed_and_costs_the_next_nothing(monkeypatch):
    monkeypatch.setattr(measuring.random, "shuffle", lambda order: None)
    ask = measuring.PointProcess.ask

    def asked(self, request, patience):
        return ask(self, request, 1 if request.values["kind"] == "hangs" else patience)

    monkeypatch.setattr(measuring.PointProcess, "ask", asked)
    states = sweep(added, step=add, kind=["hangs", "sound"]).frame["state"].to_list()
    assert states == ["failed: no answer in 1 s", "ok"]


def test_power_is_sampled_while_a_point_is_measured():
    answers = iter([queue.Empty, queue.Empty, {"state": "ok"}])

    def get(timeout):
        answer = next(answers)
        if answer is queue.Empty:
            raise queue.Empty
        return answer

    point = process.PointProcess(None, watts=iter([40.0, 60.0]).__next__)
    point.limit, point._replies = 1 << 60, SimpleNamespace(get=get)
    point._process = SimpleNamespace(stdin=io.BytesIO(), pid=os.getpid())
    assert point.ask(None, patience=60) == {"state": "ok", "watts": 50.0}


@pytest.mark.live
def test_a_process_that_takes_too_much_memory_is_ended(monkeypatch):
    monkeypatch.setattr(process, "SHARE", 1e-6)
    assert sweep(added, step=add, kind="hangs").frame["state"].to_list() == ["out of memory"]


@pytest.mark.live
def test_latency_waits_for_each_prediction_and_needs_no_compiled_model(here):
    pytest.importorskip("tensorflow")
    frame = sweep(dense, mode="predict", watts=lambda: 50.0, compiled=[False, True]).frame
    columns = ("state", "mode", "step_ps", "p95_ps", "joules")
    assert frame.select(columns).unique().rows() == [("ok", "predict", 10**9, 10**9, pytest.approx(0.05))]


@pytest.mark.live
def test_a_model_that_cannot_be_trained_and_a_loss_that_is_no_number(here):
    pytest.importorskip("tensorflow")
    found = sweep(dense, compiled=[False, True], fill=[1.0, float("nan")])
    assert found.frame["state"].to_list() == [*["failed: TypeError: the model is not compiled"] * 2, "ok", "ok"]
    assert found.metadata == {"loss is not finite": "{'compiled': True, 'fill': nan}"}  # timed all the same


def test_what_a_budget_does_not_reach_is_said(here):
    states = sweep(added, budget=0.5, step=add, size=[1, 2, 3]).frame["state"].to_list()
    assert sorted(states) == ["not reached", "not reached", "ok"]  # one is measured in any case


@pytest.mark.live
def test_a_point_that_outlasts_the_budget_is_not_reached(monkeypatch):
    monkeypatch.setattr(measuring.random, "shuffle", lambda order: None)
    frame = sweep(added, budget=3, step=add, kind=["sound", "hangs"]).frame
    assert frame["state"].to_list() == ["ok", "not reached"]


def test_an_interrupt_keeps_what_was_measured(monkeypatch, here):
    monkeypatch.setattr(here, "interrupted_at", here.asked + 4)
    frame = sweep(added, step=add, size=[8, 9]).frame
    assert sorted(frame.select("state", "rounds").rows()) == [("ok", 1), ("ok", 2)]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "The grid of sweep must have a point. No parameter was given."),
        ({"batch": []}, "The grid of sweep must have a point. The batch parameter has no values."),
        ({"bach": [1]}, "build has no parameter 'bach', only batch, width, compiled, fill. Did you mean 'batch'?"),
        ({"batch": [1], "mode": "fit"}, "The mode parameter of sweep must be 'train' or 'predict'. Got 'fit' instead."),
        ({"batch": [1], "budget": 0}, "The budget parameter of sweep must be above 0 seconds. Got 0 instead."),
    ],
)
def test_wrong_grids_are_refused_before_anything_runs(options, problem):
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the message is compared whole
        sweep(dense, **options)
    assert str(caught.value) == problem
    with pytest.raises(BadProfile, match="the parameter 'value' has the name of another column"):
        sweep(lambda value: None, value=[1])
    with pytest.raises(TypeError, match="must be a function of the parameters"):
        sweep(3, batch=[1])
