"""Captures of real programs by the real profiler service, without fakes."""

import signal
import subprocess
import time
from contextlib import suppress

import polars as pl
import pytest
from capture_loops import facts, traced
from optional import lazy
from stand_in import xspace
from warm_python import NOTEBOOK, warm_python

import tpunb as tp
from tpunb.frames.hardware import this_cpu
from tpunb.profiler.capture import Schedule

pytestmark = pytest.mark.live
tf = lazy("tensorflow")


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A fit with evaluations by the default schedule, until steps of both kinds are traced."""
    keras = pytest.importorskip("keras")
    import numpy as np

    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            full, overhead = run._session.scheduler._full, run.status.overhead
            traced = full["train"] >= 20 and full["eval"] >= 20 and overhead is not None
            self.model.stop_training = traced or time.monotonic() > until

    model = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(256), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rows = np.ones((3200, 64), "float32"), np.ones((3200, 1), "float32")
    until = time.monotonic() + 600  # windows of a slow machine are rare, within their budget
    with tp.capture(tmp_path_factory.mktemp("fitted") / "run") as run:
        fit = model.fit(*rows, batch_size=32, epochs=10_000, validation_data=rows, verbose=0, callbacks=[Stop()])
    return run, len(fit.epoch)


def test_a_real_keras_fit_is_captured_whole(fitted):
    run, epochs = fitted
    profile = tp.load(run)
    steps = tp.steps(profile)
    assert steps.frame["step"].to_list() == list(range(200 * epochs))
    assert steps.frame["kind"].to_list() == (["train"] * 100 + ["eval"] * 100) * epochs
    assert "MatMul" in steps.full().ops["op"]
    facts = {name: text for name, text in steps.metadata.items() if not name.endswith("processors")}
    assert facts == {
        **{"model": "Sequential of 2 Dense", "weights": "16897", "dtype": "float32", "optimizer": "SGD"},
        **{"batch": "32", "data": "arrays", "device kind": "CPU", "cpu": this_cpu()},
    }
    assert profile.windows["error"].null_count() == profile.windows.height
    phases = tp.phases(steps)
    assert 0 < phases.coverage(3) <= 1
    assert not phases.top(3).is_empty()


def test_the_default_schedule_traces_training_and_evaluation_of_a_short_fit(fitted):
    profile = tp.load(fitted[0])
    steps = tp.steps(profile)
    full = dict(steps.full().frame.group_by("kind").len().iter_rows())
    assert full["train"] >= 20
    assert full["eval"] >= 20
    assert profile.overhead is not None
    assert profile.overhead_interval[0] <= profile.overhead <= profile.overhead_interval[1]
    first = steps.frame.filter(pl.col("step") == 0).row(0, named=True)  # compiles, and gets a window after 10 s only
    within = profile.windows.filter(
        pl.col("start_ps").is_between(first["start_ps"], first["start_ps"] + first["dur_ps"])
    )
    assert (within["start_ps"] >= 9e12).all()


def test_a_real_loop_without_keras_is_captured(tmp_path):
    weight = tf.Variable(tf.ones((64, 64)))

    @tf.function
    def train_step(x):
        return tf.matmul(x, weight)

    with tp.capture(tmp_path / "run", schedule=Schedule.continuous(window=0.3)) as run:
        until, done = time.monotonic() + 120, 0
        while traced(run) < 20:
            assert time.monotonic() < until, run.status
            with run.step(done):
                train_step(tf.ones((64, 64)))
            done += 1
    steps = tp.steps(tp.load(run))
    assert steps.frame["step"].to_list() == list(range(done))
    assert "MatMul" in steps.full().ops["op"]
    assert "train_step" not in steps.ops["op"]  # the name of the user's function is no operation


BODY = """
import sys, time
from tpunb.profiler.capture import Schedule
import tpunb as tp, tensorflow as tf
x = tf.ones((64, 64))  # TensorFlow 2.21 crashes if an interrupt arrives as it makes one of a shape
with tp.capture(sys.argv[1], schedule=Schedule.continuous(window=0.2)) as run:
    printed = False
    for i in range(1_000_000):
        with run.step(i):
            tf.matmul(x, x)
            time.sleep(0.002)
        if run._session.recorder.full and not printed:
            printed = True
            print("traced", flush=True)
"""


def test_an_interrupt_from_outside_ends_the_run_in_order(tmp_path):
    command = [*warm_python(), "-c", BODY, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as program:
        assert program.stdout.readline() == "traced\n"
        for _ in range(3):  # Python drops a signal that arrives in a finalizer
            program.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                program.wait(60)
                break
        program.kill()
    assert program.returncode == -signal.SIGINT
    assert facts(tmp_path / "run")["state"] == "ended by KeyboardInterrupt"
    assert len(tp.steps(tp.load(tmp_path / "run")).full()) >= 1


SPIN = """
import sys, time
from contextlib import nullcontext
import tpunb as tp
from tpunb.profiler.capture import Schedule


class Canned:
    '''A source whose windows are there at once.'''

    def __init__(self): self.data = open(sys.argv[1], "rb").read()
    def start(self): pass
    def facts(self): return {}
    def window(self, seconds): return self.data
    def stop(self): pass
    def step(self, kind, number): return nullcontext()


def others_s():
    '''CPU time of the threads that reduce windows.'''
    return time.process_time() - time.thread_time()


work, stretches = [], []  # of each window, and the longest of it in which this thread stood still
with tp.capture(sys.argv[2], source=Canned(), schedule=Schedule.continuous(window=0.05)) as run:
    recorder, last_s = run._session.recorder, others_s()
    while len(work) < 50 and (not work or min(stretches) > 0.15 * min(work)):
        windows, begin_s, longest_s, ended = recorder.windows, last_s, 0, False
        while not ended:
            assert not recorder.failed, run.status
            ended, now_s = recorder.windows > windows, others_s()
            longest_s, last_s = max(longest_s, now_s - last_s), now_s
        work.append(last_s - begin_s)
        stretches.append(longest_s)
print(min(stretches) / min(work))
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
    command = [*warm_python(NOTEBOOK), "-c", SPIN, str(tmp_path / "window.pb"), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    assert tp.load(tmp_path / "run").windows["events"].min() > 100_000, "the windows were not decoded"
    assert float(done.stdout) <= 0.15, "of the work on a window, for which another thread stood still"
