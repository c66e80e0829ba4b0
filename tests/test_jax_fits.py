"""Fits of Keras on JAX resume bit for bit in a new process, or their checkpoints say why not; and they are tuned."""

import json
import os
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
from warm_python import warm_python

FITS = Path(__file__).with_name("jax_fits.py")
QUICK = ("shuffled", "scheduled", "arrays", "grain", "by index")
SLOW = ("several a turn", "seeded", "repeated", "unknown length", "arrays in batches", "loader", "transferred")

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(
        any(find_spec(name) is None for name in ("jax", "grain", "keras", "tensorflow")), reason="jax is not installed"
    ),
]

REASONS = {
    "eager": "the step runs Python code each time (run_eagerly=True",
    "callback": "the step calls io_callback: what it returns or changes outside",
    "workers": "Batches: its workers leave batches to the next epoch",
    "by more than the index": "Beside.__getitem__ draws from the global generator of numpy.random (a batch must",
    "generator": "the Python generator feeds it, and cannot continue in the middle (give fit arrays, or a keras.utils",
    "distributed": "the training is distributed over devices (keras.distribution)",
}


def run(action, folder, *arguments, killed=False):
    command = [*warm_python(KERAS_BACKEND="jax"), FITS, action, folder, *arguments]
    environment = {**os.environ, "KERAS_BACKEND": "jax"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert ended.returncode == (-9 if killed else 0), ended.stderr[-3000:]


@pytest.fixture(scope="module")
def records(tmp_path_factory, request):
    """What was trained, in a process that was killed at its end, and what was resumed in another."""
    folder = tmp_path_factory.mktemp("fits")
    names = QUICK + SLOW * request.config.getoption("--slow")
    run("save", folder, *names, killed=True)
    run("resume", folder, *names)
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


@pytest.mark.parametrize("turn", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_a_model_on_jax_is_tuned_with_equal_outputs(tmp_path, turn):
    run("tune", tmp_path, turn)
    seen = json.loads((tmp_path / "tuned.json").read_text())
    assert seen["trials"] == [["default", True], *[["faster", True]] * 3]  # others, AUTOTUNE, and these once more
    assert seen["best"]
    assert seen["same"]
    assert seen["elements"][0] == seen["elements"][1]
    assert "Keras' fit on JAX takes arrays without a pipeline" in seen["refused"]
    assert seen["online"] == [["default", True], ["faster", True]], seen["headline"]
    assert seen["fits"][0] == seen["fits"][1]
