"""Fits of Keras on JAX resume bit for bit in a new process, or their checkpoints say why not; and they are tuned."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

FITS = Path(__file__).with_name("jax_fits.py")
QUICK = ("shuffled", "scheduled", "arrays", "grain", "by index")
SLOW = ("several a turn", "seeded", "repeated", "unknown length", "arrays in batches", "loader", "transferred")

pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("jax", "grain", "keras", "tensorflow")), reason="jax is not installed"
)

REASONS = {
    "eager": "the step runs Python code each time (run_eagerly=True",
    "callback": "the step calls io_callback: what it returns or changes outside",
    "workers": "Batches: its workers leave batches to the next epoch",
    "by more than the index": "Beside.__getitem__ draws from the global generator of numpy.random (a batch must",
    "generator": "the Python generator feeds it, and cannot continue in the middle (give fit arrays, or a keras.utils",
    "distributed": "the training is distributed over devices (keras.distribution)",
}


def run(folder, *arguments, killed=False):
    cached = {  # equal programs are compiled once
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    command, environment = [sys.executable, FITS, *arguments], {**os.environ, "KERAS_BACKEND": "jax", **cached}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == (-9 if killed else 0), ended.stderr[-3000:]


@pytest.fixture(scope="module")
def records(tmp_path_factory, request):
    """What was trained, in a process that was killed at its end, and what was resumed in another."""
    folder = tmp_path_factory.mktemp("fits")
    names = QUICK + SLOW * request.config.getoption("--slow")
    run(folder, "save", folder, *names, killed=True)
    run(folder, "resume", folder, *names)
    return json.loads((folder / "whole.json").read_text()), json.loads((folder / "resumed.json").read_text())


def is_rest_of(later, whole):
    """Whether a resumed run has the last steps, epochs and variables of a whole one."""
    history = {name: values[len(values) - len(later["history"][name]) :] for name, values in whole["history"].items()}
    steps = len(later["losses"])
    return (later["losses"], later["history"], later["state"]) == (
        whole["losses"][len(whole["losses"]) - steps :],
        history,
        whole["state"],
    )


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_a_fit_resumes_bit_for_bit_in_another_process(records, name):
    saved, resumed = records[0]["saved"][name], records[1]
    assert saved["reasons"] == [""]
    for step in (saved["steps"][0], saved["steps"][-2]):
        later = resumed[f"{name} {step}"]
        assert is_rest_of(later, saved), step
        assert 0 < len(later["losses"]) < len(saved["losses"])
        assert later["verified"] == len(later["losses"])


def test_a_saved_fit_is_the_one_that_is_not_saved(records):
    assert len(records[0]["plain"]) > 1
    for name, plain in records[0]["plain"].items():
        assert is_rest_of(plain, records[0]["saved"][name]), name
        assert len(plain["losses"]) == len(records[0]["saved"][name]["losses"])


def test_a_killed_fit_continues_to_the_same_end(records):
    later = records[1]["killed 15"]
    assert is_rest_of(later, records[0]["saved"]["by index"])
    assert len(later["losses"]) == len(records[0]["saved"]["by index"]["losses"]) - 15


@pytest.mark.parametrize("name", REASONS)
def test_what_is_not_proved_is_inexact_and_says_why(records, name):
    (reason,) = records[0]["inexact"][name]["reasons"]
    assert reason.startswith(REASONS[name])
    assert len(records[0]["inexact"][name]["losses"]) == 12


def test_an_inexact_fit_continues_with_the_batches_that_were_left(records):
    assert is_rest_of(records[1]["callback"], records[0]["inexact"]["callback"])
    assert len(records[1]["callback"]["losses"]) == 2


def test_other_data_are_an_error(records):
    assert "tpunb-5 was saved with a different dataset: its position cannot be restored" in records[1]["other"]


TUNED = """
import json, os, sys, time
os.environ["KERAS_BACKEND"] = "jax"
import keras, numpy as np, tensorflow as tf
import tpunb as tp
from tpunb.tuning import tuned

def read(x):
    time.sleep(0.005)
    return x

def slow(x):
    x = tf.ensure_shape(tf.numpy_function(read, [x], "float32", stateful=False), (3,))
    return x, x[:1]

def cell(steps):
    keras.utils.set_random_seed(1)
    rows = np.random.default_rng(0).normal(size=(64, 3)).astype("f")
    data = tf.data.Dataset.from_tensor_slices(rows).shuffle(64, seed=2).repeat().map(slow).batch(2)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    model.compile("adam", "mse", steps_per_execution=int(sys.argv[1]))
    return model, data, lambda: model.fit(data, epochs=1, steps_per_epoch=steps, verbose=0)

def weights(model):
    return [float(value) for variable in model.get_weights() for value in variable.ravel()]

model, data, _ = cell(0)
before = weights(model)
tuning = tp.tune(model, data, budget=20)
trials = [[trial.verdict, trial.equal] for trial in tuning.trials]
same = before == weights(model)
made = cell(0)[1], tuning.apply(cell(0)[1])
elements = [[x.numpy().tolist() for x, _ in data.take(9)] for data in made]
try:
    tp.tune(model, (np.ones((9, 3)), np.ones((9, 1))))
except tp.TpunbError as error:
    refused = str(error)

model, _, fit = cell(300)
whole = [fit().history, weights(model)]
model, _, fit = cell(300)
with tuned(budget=10) as online:
    inside = [fit().history, weights(model)]
print(json.dumps({"trials": trials, "best": bool(tuning.best), "same": same, "elements": elements, "refused": refused,
    "online": online.headline, "tried": [trial.equal for trial in online.tuning.trials], "fits": [whole, inside]}))
sys.stdout.flush()
os._exit(0)  # TensorFlow may wait at the exit, forever, for iterators that call Python
"""


@pytest.mark.parametrize("turn", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_model_on_jax_is_tuned_with_equal_outputs(turn):
    ended = subprocess.run([sys.executable, "-c", TUNED, str(turn)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    seen = json.loads(ended.stdout.splitlines()[-1])
    assert len(seen["trials"]) > 1
    assert all(equal for verdict, equal in seen["trials"])
    assert seen["best"], seen["trials"]
    assert seen["same"]
    assert seen["elements"][0] == seen["elements"][1]
    assert "Keras' fit on JAX takes arrays without a pipeline" in seen["refused"]
    assert len(seen["tried"]) > 1, seen["online"]
    assert all(seen["tried"]), seen["online"]
    assert seen["fits"][0] == seen["fits"][1]
