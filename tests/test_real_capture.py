"""Captures of real programs by the real profiler service, without fakes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest
from stand_in import xspace
from test_capture import facts

import tpunb as tp
from tpunb.profiler.capture import Schedule

pytest.importorskip("tensorflow")


def test_a_real_keras_fit_is_captured_whole(tmp_path):
    import keras
    import numpy as np

    model = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(256), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rows = np.ones((3200, 64), "float32"), np.ones((3200, 1), "float32")
    with tp.capture(tmp_path / "run", schedule=Schedule.continuous(window=0.5)) as run:
        model.fit(*rows, batch_size=32, epochs=4, validation_data=rows, verbose=0)
    profile = tp.load(run)
    steps = tp.steps(profile)
    assert steps.frame["step"].to_list() == list(range(800))
    assert steps.frame["kind"].value_counts().sort("kind").rows() == [("eval", 400), ("train", 400)]
    assert len(steps.full()) > 80
    assert "MatMul" in steps.full().ops["op"]
    assert steps.metadata == {
        **{"model": "Sequential of 2 Dense", "weights": "16897", "dtype": "float32", "optimizer": "SGD"},
        **{"batch": "32", "device kind": "CPU"},
    }
    assert profile.windows["error"].null_count() == profile.windows.height
    phases = tp.phases(steps)
    assert 0 < phases.coverage(3) <= 1
    assert not phases.top(3).is_empty()


def test_the_default_schedule_traces_training_and_evaluation_of_a_short_fit(tmp_path):
    import keras
    import numpy as np

    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):  # both kinds are traced long before, on a quiet machine
            self.model.stop_training = run.status.windows >= 5 or time.monotonic() > deadline

    model = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(256), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rows = np.ones((16_000, 64), "float32"), np.ones((16_000, 1), "float32")
    deadline = time.monotonic() + 60
    with tp.capture(tmp_path / "run") as run:
        model.fit(*rows, batch_size=32, epochs=10_000, validation_data=rows, verbose=0, callbacks=[Stop()])
    profile = tp.load(run)
    steps = tp.steps(profile)
    full = dict(steps.full().frame.group_by("kind").len().iter_rows())
    assert full["train"] >= 20
    assert full["eval"] >= 20
    assert profile.overhead is not None
    assert profile.overhead_interval[0] <= profile.overhead <= profile.overhead_interval[1]
    first = steps.frame.filter(pl.col("step") == 0).row(0, named=True)  # compiles
    begins = profile.windows["start_ps"] - first["start_ps"]
    assert (begins >= first["dur_ps"]).all()


def test_a_real_loop_without_keras_is_captured(tmp_path):
    import tensorflow as tf

    weight = tf.Variable(tf.ones((64, 64)))

    @tf.function
    def train_step(x):
        return tf.matmul(x, weight)

    with tp.capture(tmp_path / "run", schedule=Schedule.continuous(window=0.3)) as run:
        end, done = time.monotonic() + 1.5, 0  # long enough for a window, however slow its beginning
        while time.monotonic() < end:
            with run.step(done):
                train_step(tf.ones((64, 64)))
            done += 1
    steps = tp.steps(tp.load(run))
    assert steps.frame["step"].to_list() == list(range(done))
    top = steps.ops.filter(pl.col("op") == "MatMul")
    assert top["step"].n_unique() > 20
    assert "train_step" not in steps.ops["op"]  # the name of the user's function is no operation


BODY = """
import sys, time, numpy as np
from tpunb.profiler.capture import Schedule
import tpunb as tp, tensorflow as tf
with tp.capture(sys.argv[1], schedule=Schedule.continuous(window=0.5)) as run:
    for i in range(100_000):
        with run.step(i):
            tf.matmul(tf.ones((64, 64)), tf.ones((64, 64)))
            time.sleep(0.002)
        if i == 20:
            print("running", flush=True)
"""


def running(folder):
    process = subprocess.Popen(
        [sys.executable, "-c", BODY, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout.readline().strip() == "running"
    deadline = time.monotonic() + 60
    while not list(Path(folder).glob("parts/*[1-9]")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process


@pytest.mark.slow
def test_a_killed_process_leaves_a_run_that_loads(tmp_path):
    process = running(tmp_path / "run")
    os.kill(process.pid, signal.SIGKILL)
    process.wait(20)
    profile = tp.load(tmp_path / "run")
    assert facts(tmp_path / "run")["state"] == "running"
    assert len(tp.steps(profile).full()) > 10
    assert len(tp.phases(tp.steps(profile))) >= 1


@pytest.mark.slow
def test_an_interrupt_from_outside_ends_the_run_in_order(tmp_path):
    process = running(tmp_path / "run")
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(60) == -signal.SIGINT
    assert facts(tmp_path / "run")["state"] == "ended by KeyboardInterrupt"
    assert len(tp.steps(tp.load(tmp_path / "run")).full()) > 10


SPIN = """
import sys, threading, time
import tpunb as tp
from tpunb.profiler.capture import Schedule

data = open(sys.argv[1], "rb").read()
class Canned:
    def __init__(self): self.left = 3; self.done = threading.Event()
    def start(self): pass
    def facts(self): return {}
    def window(self, seconds):
        if self.left == 0:
            self.done.wait(30); raise tp.TpunbError("no more")
        self.left -= 1
        return data
    def stop(self): self.done.set()
    def step(self, kind, number):
        from contextlib import nullcontext
        return nullcontext()

longest = 0.0
with tp.capture(sys.argv[2], source=Canned(), schedule=Schedule.continuous(window=0.05)) as run:
    last = time.perf_counter()
    end = last + 4
    while last < end:
        now = time.perf_counter()
        longest = max(longest, now - last)
        last = now
print(longest)
"""


def big_window():
    """The bytes of a window of 150,000 events, as a second of small training steps has."""
    now = time.time_ns()
    steps = [(i, now + i * 2_000_000, now + (i + 1) * 2_000_000) for i in range(500)]
    names = [f"StatefulPartitionedCall/layer_{i}/Op{i}:Op{i % 60}" for i in range(300)]
    ops = [(name, begin + i * 6000, begin + i * 6000 + 5000) for _, begin, _ in steps for i, name in enumerate(names)]
    return xspace(now, now + 1_000_000_000, steps, ops)


def test_decoding_never_holds_the_gil_for_long(tmp_path):
    (tmp_path / "window.pb").write_bytes(big_window())
    longest = []
    for attempt in range(4):  # the machine's own hiccups differ from run to run; a held GIL does not
        seen = subprocess.run(
            [sys.executable, "-c", SPIN, str(tmp_path / "window.pb"), str(tmp_path / f"run{attempt}")],
            capture_output=True,
            text=True,
            check=True,
        )
        longest.append(float(seen.stdout))
        assert (tp.load(tmp_path / f"run{attempt}").windows["events"] > 100_000).sum() == 3, (
            "the windows were not decoded"
        )
        if longest[-1] < 0.05:
            return
    raise AssertionError(f"a spinning thread stood still for {[f'{s * 1e3:.0f} ms' for s in longest]}")
