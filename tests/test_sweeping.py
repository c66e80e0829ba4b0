"""``tp.sweep``: points in a process of their own, in rounds; those that fail cost nothing but themselves."""

import os
import signal
import threading
import time

import numpy as np
import polars as pl
import pytest
from plain_loops import add, added

from tpunb.errors import BadProfile, IncompatibleRuns
from tpunb.frames.sweep import Sweep
from tpunb.workloads import sweep_process, sweeping
from tpunb.workloads.sweeping import sweep

keras = pytest.importorskip("keras")


def dense(batch=32, width=8, compiled=True, fill=1.0):
    """Return a model and a batch."""
    import keras

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(width), keras.layers.Dense(1)])
    if compiled:
        model.compile("sgd", "mse")
    return model, (np.full((batch, 4), fill, "float32"), np.ones((batch, 1), "float32"))


@pytest.fixture
def few(monkeypatch):
    """Sweeps of two or three rounds."""
    monkeypatch.setattr(sweeping, "_MOST", 3)
    monkeypatch.setattr(sweeping, "_FEWEST", 2)


@pytest.fixture(scope="module")
def measured():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeping, "_MOST", 6)
        patch.setattr(sweeping, "_FEWEST", 6)
        return sweep(dense, budget=30, batch=[8, 64], width=[4, 512])


def test_every_point_is_a_row_in_the_order_of_the_grid(measured):
    frame = measured.frame
    assert frame.select("batch", "width").rows() == [(8, 4), (8, 512), (64, 4), (64, 512)]
    assert set(frame["state"]) == {"ok"}
    assert frame["weights"].to_list() == [4 * w + w + w + 1 for w in (4, 512, 4, 512)]
    assert frame["examples"].to_list() == frame["batch"].to_list()
    assert (frame["rounds"] >= 1).all()
    narrow = frame.filter(pl.col("rounds") >= 6)  # all, unless the machine is very slow
    assert (narrow["low_ps"] <= narrow["step_ps"]).all()
    assert (narrow["step_ps"] <= narrow["high_ps"]).all()
    assert frame.filter(pl.col("rounds") < 6)["low_ps"].count() == 0
    assert frame["joules"].to_list() == [None] * 4


def test_flops_are_those_of_the_matrix_products(measured):
    row = measured.frame.row(3, named=True)  # of batch 64, width 512
    forward = 2 * 64 * (4 * 512 + 512 * 1)
    assert row["flops"] == pytest.approx(3 * forward - 2 * 64 * 4 * 512)  # no gradient with respect to the input
    assert 0 < row["flops_util"] < 1.5
    assert row["device"].startswith("CPU")


def test_a_sweep_continues_where_its_file_ends(tmp_path, monkeypatch, few):
    path = tmp_path / "sweep.parquet"
    first = sweep(added, budget=20, step=add, into=path, size=[10, 1000]).frame
    monkeypatch.setattr(sweeping, "_MOST", 6)
    monkeypatch.setattr(sweeping, "_NARROW", 0)
    again = sweep(added, budget=20, step=add, into=path, size=[10, 1000]).frame
    assert (again["rounds"] > first["rounds"]).all()
    pairs = zip(again["rounds_ps"], first["rounds_ps"], strict=True)
    assert all(later[: len(before)].to_list() == before.to_list() for later, before in pairs)
    assert again["examples"].to_list() == first["examples"].to_list() == [10, 1000]
    assert Sweep.read(path).frame.equals(again)
    with pytest.raises(IncompatibleRuns, match="another grid"):
        sweep(added, step=add, into=path, size=[10, 1001])
    with pytest.raises(IncompatibleRuns, match="another grid or mode"):
        sweep(added, step=add, into=path, mode="predict", size=[10, 1000])


def test_points_that_fail_are_rows_and_cost_the_others_nothing(monkeypatch, few):
    monkeypatch.setattr(sweeping, "_PATIENCE_S", 4)
    kinds = ["sound", "ends", "hangs", "wrong", "large", "raises", "empty"]
    states = dict(sweep(added, budget=100, step=add, kind=kinds).frame.select("kind", "state").rows())
    assert states == {
        "sound": "ok",
        "ends": "failed: its process ended with code 3",
        "hangs": "failed: no answer in 4 s",
        "wrong": "failed: TypeError: build must return (model, data). Got 5 instead.",
        "large": "out of memory",
        "raises": "failed: ValueError: no such",
        "empty": "failed: TypeError: the data hold no batch",
    }


def test_a_process_that_takes_too_much_memory_is_ended(monkeypatch):
    monkeypatch.setattr(sweep_process, "SHARE", 1e-6)
    assert sweep(added, budget=30, step=add, kind="hangs").frame["state"].to_list() == ["out of memory"]


def test_latency_waits_for_each_prediction_and_needs_no_compiled_model(few):
    frame = sweep(dense, budget=30, mode="predict", watts=lambda: 50.0, compiled=[False, True]).frame
    assert frame["state"].to_list() == ["ok", "ok"]
    assert (frame["p95_ps"] >= frame["step_ps"] / 2).all()
    assert set(frame["mode"]) == {"predict"}


def test_a_model_that_cannot_be_trained_and_a_loss_that_is_no_number(few):
    found = sweep(dense, budget=30, compiled=[False, True], fill=[1.0, float("nan")])
    assert found.frame["state"].to_list() == [*["failed: TypeError: the model is not compiled"] * 2, "ok", "ok"]
    assert found.metadata == {"loss is not finite": "{'compiled': True, 'fill': nan}"}  # timed all the same


def test_a_loop_of_its_own_is_stepped(few):
    frame = sweep(added, budget=20, step=add, size=[10, 1000]).frame
    assert frame["state"].to_list() == ["ok", "ok"]
    assert frame["examples"].to_list() == [10, 1000]
    assert frame["weights"].to_list() == [None, None]


def test_what_a_budget_does_not_reach_is_said(few):
    states = sweep(added, budget=1e-3, step=add, size=[1, 2, 3]).frame["state"].to_list()
    assert sorted(states) == ["not reached", "not reached", "ok"]  # one is measured in any case


def test_a_point_that_outlasts_the_budget_is_not_reached(few, monkeypatch):
    monkeypatch.setattr(sweeping.random, "shuffle", lambda order: None)
    frame = sweep(added, budget=3, step=add, kind=["sound", "hangs"]).frame
    assert frame["state"].to_list() == ["ok", "not reached"]


@pytest.mark.skipif(os.name != "posix", reason="sends itself a signal")
def test_an_interrupt_keeps_what_was_measured(monkeypatch):
    reached, original = threading.Event(), sweeping._Measuring._round
    monkeypatch.setattr(sweeping, "_NARROW", 0)
    monkeypatch.setattr(sweeping, "_MOST", 10**6)
    monkeypatch.setattr(sweeping._Measuring, "_round", lambda self, *args: (original(self, *args), reached.set()))

    def interrupt():
        reached.wait(60)
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    assert sweep(added, budget=100, step=add, size=[8]).frame["state"].to_list() == ["ok"]


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
