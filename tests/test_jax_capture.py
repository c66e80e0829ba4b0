"""A training loop of JAX is captured like one of TensorFlow, without TensorFlow."""

import json
import sys
from importlib.util import find_spec

import polars as pl
import pytest
from recorded_runs import loops_of_jax, trained
from warm_python import warm_python

import tpunb as tp
from tpunb import schema
from tpunb.instrument import jax as jax_library

pytestmark = [pytest.mark.live, pytest.mark.skipif(find_spec("jax") is None, reason="jax is not installed")]

DEFAULT = """
import sys, time
import tpunb as tp
import keras, numpy as np

class Stop(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        traced = run._session.scheduler._full["train"] >= 20 and run.status.overhead is not None
        self.model.stop_training = traced or time.monotonic() > until

assert keras.config.backend() == "jax"
model = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(64), keras.layers.Dense(1)])
model.compile("sgd", "mse")
rows = np.ones((1600, 64), "float32"), np.ones((1600, 1), "float32")
until = time.monotonic() + 120
with tp.capture(sys.argv[1]) as run:
    model.fit(*rows, batch_size=32, epochs=10_000, verbose=0, callbacks=[Stop()])
"""

KERAS = """
import json, os, sys
os.environ["KERAS_BACKEND"] = "jax"
import tpunb as tp
from tpunb.profiler.capture import Schedule
import keras, numpy as np

model = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(64), keras.layers.Dense(1)])
model.compile("sgd", "mse")
rows = np.ones((3200, 64), "float32"), np.ones((3200, 1), "float32")
with tp.capture(sys.argv[1] + "/run", schedule=Schedule.continuous(window=0.2)) as run:
    epochs = 0
    while run._session.scheduler._full["train"] < 20:
        model.fit(*rows, batch_size=32, verbose=0)
        epochs += 1
    model.evaluate(*rows, batch_size=32, verbose=0)
report = {"steps": 100 * (epochs + 1), "tensorflow": "tensorflow" in sys.modules}
with open(sys.argv[1] + "/report.json", "w") as file:
    json.dump(report, file)
"""


def test_a_loop_of_jax_gives_the_same_frames_and_never_imports_tensorflow(tmp_path):
    folder = loops_of_jax()
    report = json.loads((folder / "report.json").read_text())
    assert report["tensorflow"] is False
    profile = tp.load(folder / "run")
    steps = tp.steps(profile)
    frame = steps.frame.sort("step")
    assert frame["step"].to_list() == list(range(report["steps"]))
    assert frame["kind"].to_list() == ["train" if n < report["train"] else "tune" for n in range(report["steps"])]
    assert frame.schema == schema.STEPS
    assert steps.ops.schema == schema.OPS
    assert profile.windows["error"].null_count() == profile.windows.height
    full = steps.full()
    assert set(full.frame["kind"]) == {"train", "tune"}
    on_device = full.ops.filter(pl.col("side") == "device")
    computing = full.frame.filter(pl.col("device_ps").is_not_null())
    assert set(computing["step"]) == set(on_device["step"])
    assert len(computing) >= len(full) / 2  # the device computes a step's dispatch later, beyond a window's end
    assert set(computing["kind"]) == {"train", "tune"}
    assert on_device["op"].cast(pl.String).str.contains("dot|fusion").any()
    assert set(full.devices["device"]) == {"/device:CPU:0"}
    facts = json.loads((folder / "run" / "run.json").read_text())
    assert facts["framework"] == "jax"
    tuned = frame.filter(pl.col("kind") == "tune")
    assert tuned["input_ps"].null_count() == 0  # `steps` knows how long each waited for its data
    phases = tp.phases(steps)
    assert phases.coverage(len(phases.frame)) + phases.noise == pytest.approx(1.0)
    assert "device" in phases.top(3)["side"].to_list()


def test_keras_on_jax_has_phases_with_the_default_schedule(tmp_path):
    pytest.importorskip("keras")
    trained(DEFAULT, tmp_path / "run", warm_python(KERAS_BACKEND="jax"))
    profile = tp.load(tmp_path / "run")
    steps = tp.steps(profile)
    assert len(steps.full()) >= 20
    assert len(tp.phases(steps)) >= 1
    assert profile.overhead is not None
    first = steps.frame.filter(pl.col("step") == 0).row(0, named=True)  # compiles, and gets a window after 10 s only
    within = profile.windows.filter(
        pl.col("start_ps").is_between(first["start_ps"], first["start_ps"] + first["dur_ps"])
    )
    assert (within["start_ps"] >= 9e12).all()


def test_the_raw_windows_of_both_phases_are_kept_and_xprof_finds_our_steps_in_them(tmp_path):
    pytest.importorskip("xprof")
    from xprof_oracle import Oracle

    run = loops_of_jax() / "run"
    kept = sorted(run.glob("plugins/profile/*/*.xplane.pb"))
    kinds = set()
    for number, file in enumerate(kept):
        (aside := tmp_path / f"xprof{number}").mkdir()
        theirs = set(Oracle.of(file, aside).steps["step"])
        recorded = {f"{kind} {step}" for kind, step in tp.steps(tp.load(file)).frame.select("kind", "step").iter_rows()}
        assert theirs
        assert theirs <= recorded
        kinds |= {step.partition(" ")[0] for step in theirs}
    assert kinds == {"train", "tune"}
    assert tp.load(run / "plugins" / "profile").windows.height == len(kept)  # the run is a logdir


@pytest.mark.slow
def test_keras_on_jax_is_captured_like_keras_on_tensorflow(tmp_path):
    pytest.importorskip("keras")
    trained(KERAS, tmp_path, [sys.executable])
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["tensorflow"] is False
    steps = tp.steps(tp.load(tmp_path / "run"))
    assert sorted(steps.frame["step"]) == list(range(report["steps"]))
    assert steps.frame["kind"].value_counts().sort("kind").rows() == [("eval", 100), ("train", report["steps"] - 100)]
    full = steps.full()
    assert len(full) >= 20
    assert full.ops.filter(pl.col("side") == "device")["step"].n_unique() >= len(full) / 2
    assert len(tp.phases(steps)) >= 1


def test_operations_are_of_the_lines_of_the_program_not_of_the_function_around_its_calls():
    jax = pytest.importorskip("jax")
    source_info = pytest.importorskip("jax._src.source_info_util")
    with tp.capture(schedule=tp.Schedule.ticks()):
        jax.jit(lambda x: x + 1)(1.0)
        assert not source_info.is_user_filename(jax_library.__file__)
    assert source_info.is_user_filename(__file__)
