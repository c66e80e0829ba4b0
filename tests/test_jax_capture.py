"""A training loop of JAX is captured like one of TensorFlow, without TensorFlow."""

import json
import subprocess
import sys
from importlib.util import find_spec

import polars as pl
import pytest

import tpunb as tp
from tpunb import schema

pytestmark = pytest.mark.skipif(find_spec("jax") is None, reason="jax is not installed")

DEFAULT = """
import json, os, sys, time
os.environ["KERAS_BACKEND"] = "jax"
import tpunb as tp
import keras, numpy as np

class Stop(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = run.status.windows >= 4 or time.monotonic() > deadline

model = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(64), keras.layers.Dense(1)])
model.compile("sgd", "mse")
rows = np.ones((16_000, 64), "float32"), np.ones((16_000, 1), "float32")
deadline = time.monotonic() + 60
with tp.capture(sys.argv[1]) as run:
    model.fit(*rows, batch_size=32, epochs=10_000, verbose=0, callbacks=[Stop()])
print(json.dumps({"steps": run.status.steps}))
"""

LOOP = """
import json, sys
import tpunb as tp
from tpunb.profiler.capture import Schedule
import jax, jax.numpy as jnp

weights = jnp.ones((128, 128))
update = jax.jit(lambda w, x: w - 1e-4 * (x @ w), static_argnums=())
batches = [jnp.full((128, 128), i / 100) for i in range(50)]


def data(run, windows):
    goal = run.status.windows + windows
    while run.status.windows < goal:
        yield from batches


with tp.capture(sys.argv[1], schedule=Schedule.continuous(window=0.2), keep="phases") as run:
    number = 0
    for batch in data(run, 3):
        with run.step(number):
            weights = update(weights, batch).block_until_ready()
        number += 1
    for batch in run.batches(data(run, 3), kind="tune"):
        weights = update(weights, batch).block_until_ready()
print(json.dumps({"numbered": number, "steps": run.status.steps, "tensorflow": "tensorflow" in sys.modules}))
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
with tp.capture(sys.argv[1], schedule=Schedule.continuous(window=0.2)) as run:
    epochs = 0
    while run.status.windows < 3:
        model.fit(*rows, batch_size=32, verbose=0)
        epochs += 1
    model.evaluate(*rows, batch_size=32, verbose=0)
print(json.dumps({"steps": 100 * (epochs + 1), "tensorflow": "tensorflow" in sys.modules}))
"""


def trained(code, run):
    seen = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True, timeout=300)
    assert seen.returncode == 0, seen.stderr
    return json.loads(seen.stdout.splitlines()[-1])


def test_a_loop_of_jax_gives_the_same_frames_and_never_imports_tensorflow(tmp_path):
    report = trained(LOOP, tmp_path / "run")
    assert report["tensorflow"] is False
    profile = tp.load(tmp_path / "run")
    steps = tp.steps(profile)
    frame = steps.frame.sort("step")
    assert frame["step"].to_list() == list(range(report["steps"]))
    assert frame["kind"].to_list() == ["train" if n < report["numbered"] else "tune" for n in range(report["steps"])]
    assert frame.schema == schema.STEPS
    assert steps.ops.schema == schema.OPS
    assert profile.windows["error"].null_count() == profile.windows.height
    full = steps.full()
    assert set(full.frame["kind"]) == {"train", "tune"}
    assert len(full) >= 50
    on_device = full.ops.filter(pl.col("side") == "device")
    assert on_device["step"].n_unique() >= 0.9 * len(full)
    assert on_device["op"].cast(pl.String).str.contains("dot|fusion").any()
    assert set(full.devices["device"]) == {"/device:CPU:0"}
    assert full.frame["device_ps"].null_count() <= 0.1 * len(full)
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["framework"] == "jax"
    tuned = frame.filter(pl.col("kind") == "tune")
    assert tuned["input_ps"].null_count() == 0  # `steps` knows how long each waited for its data
    phases = tp.phases(steps)
    assert phases.coverage(len(phases.frame)) + phases.noise == pytest.approx(1.0)
    assert "device" in phases.top(3)["side"].to_list()
    check_that_xprof_opens(tmp_path / "run")


def test_keras_on_jax_has_phases_with_the_default_schedule(tmp_path):
    pytest.importorskip("keras")
    trained(DEFAULT, tmp_path / "run")
    profile = tp.load(tmp_path / "run")
    steps = tp.steps(profile)
    assert len(steps.full()) >= 20
    assert len(tp.phases(steps)) >= 1
    assert profile.overhead is not None
    first = steps.frame.filter(pl.col("step") == 0).row(0, named=True)  # compiles
    assert (profile.windows["start_ps"] - first["start_ps"] >= first["dur_ps"]).all()


def check_that_xprof_opens(run):
    """Of each phase a raw window was kept; XProf and we find in it what ran."""
    pytest.importorskip("xprof")
    from xprof_oracle import Oracle

    kept = sorted(run.glob("plugins/profile/*/*.xplane.pb"))
    kinds = set()
    for number, file in enumerate(kept):
        (aside := run.parent / f"xprof{number}").mkdir()
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
    report = trained(KERAS, tmp_path / "run")
    assert report["tensorflow"] is False
    steps = tp.steps(tp.load(tmp_path / "run"))
    assert sorted(steps.frame["step"]) == list(range(report["steps"]))
    assert steps.frame["kind"].value_counts().sort("kind").rows() == [("eval", 100), ("train", report["steps"] - 100)]
    full = steps.full()
    assert len(full) >= 50
    assert full.ops.filter(pl.col("side") == "device")["step"].n_unique() >= 0.5 * len(full)
    assert len(tp.phases(steps)) >= 1
