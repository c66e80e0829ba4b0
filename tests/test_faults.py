"""Faults inside saving and tuning: the training ends as it does without them."""

import contextlib
import functools
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from slow_jobs import at_hand, little
from test_exactness import BATCH, rows, small, trained
from test_online import Chosen, Won, others

from tpunb.checkpoint import checkpointing, checkpoints
from tpunb.checkpoint.formats import native
from tpunb.checkpoint.resume import policy
from tpunb.tfdata import position, rewrite
from tpunb.training import constants, fit_data, fit_state, passes, positions, seeds, snapshot, state
from tpunb.tuning import live, online, pipeline, results, trial, tuner
from tpunb.tuning import position as trial_position
from tpunb.tuning.search import StepCosts

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

SAVING = (
    *((fit_state, name) for name in ("varies", "CallbackState", "hidden_state", "to_numpy", "variables_of_step")),
    *((fit_data, name) for name in ("graph_or_none", "not_restored", "try_save", "too_large", "buffered_bytes")),
    *((fit_state.Fit, name) for name in ("_other_training", "ended")),
    *((positions.Positions, name) for name in ("begin", "write", "moved")),
    *(
        (fit_state.Fit, name)
        for name in ("attach", "begin_epoch", "end_epoch", "_use", "_begin_turn", "_notify", "on_iterator")
    ),
    *((fit_state.Fit, name) for name in ("write", "hidden_state", "unsaved_beside", "_listened")),
    *((fit_data.FitData, name) for name in ("attach", "use", "end_epoch", "write", "on_iterator")),
    *((rewrite, name) for name in ("unseeded_shuffles", "draw_seeds", "seed_shuffles", "shuffles")),
    *((position, name) for name in ("write", "ignores_external_state", "begun", "seeded_shuffles")),
    *((seeds, name) for name in ("keras_generator", "host_random_state", "tensorflow_random_state")),
    *((snapshot, name) for name in ("write", "write_arrays", "read_metadata")),
    *((policy.Saving, name) for name in ("on_data", "on_begin", "on_step", "_is_due", "_save")),
    *((constants, name) for name in ("of_data", "of_step", "compiled_step")),
    (native, "save"),
    (state, "variables_of"),
)
TUNING = (
    *(
        (online.Online, name)
        for name in ("on_data", "on_begin", "on_step", "_obstacle", "_left", "_tune", "_try_values", "_try")
    ),
    *((online._TunableFit, name) for name in ("__init__", "_prepared", "is_due", "position", "rest")),
    *((online, name) for name in ("Tuner", "TfPosition", "LivePosition", "saveable", "Budget", "Journal")),
    *((pipeline.Pipeline, name) for name in ("__init__", "build", "in_place", "_built", "parameters")),
    *((trial.TrialRunner, name) for name in ("__init__", "__enter__", "__exit__", "calibrate")),
    *((trial_position.TfPosition, name) for name in ("source", "_built")),
    *((fit_data.FitData, name) for name in ("replace", "_feed_from", "cursor")),
    *((fit_state.Fit, name) for name in ("cursor", "steps_left")),
    (tuner.Tuner, "trials"),
    (position, "read"),
)


LIVE = (
    *((online.Online, name) for name in ("_begin_live", "_advance", "_live_obstacle", "_end_live", "_aside")),
    *((live.LiveTuning, name) for name in ("course", "_referenced", "_raced", "_pairs", "_block", "_run_with")),
    *((live.LiveTuning, name) for name in ("_copy", "_sampled", "tuning")),
    *((live, name) for name in ("saveable", "LiveTuning")),
    *((position, name) for name in ("state_of", "set_state", "fingerprint")),
    *((results.Journal, name) for name in ("__init__", "record", "end")),
    *((fit_data.FitData, name) for name in ("replace", "_feed_from", "cursor")),
    *((fit_state.Fit, name) for name in ("cursor", "steps_left")),
    (online, "Journal"),
)


def breaks(*_, **__):
    raise RuntimeError("injected")


def parameters(places):
    """Return the places as parameters of a test; most run with the slow tests only."""
    ids = [f"{owner.__name__.rpartition('.')[2]}.{name}" for owner, name in places]
    marks = [() if at % 6 == 0 else pytest.mark.slow for at in range(len(places))]
    return [pytest.param(place, id=name, marks=mark) for place, name, mark in zip(places, ids, marks, strict=True)]


def fault(patch, place):
    """Replace a function, a method or a property by one that fails."""
    owner, name = place
    is_property = isinstance(vars(owner)[name], property | functools.cached_property)
    patch.setattr(owner, name, property(breaks) if is_property else breaks)


@pytest.fixture(scope="module")
def whole():
    tf.random.set_seed(None)
    return trained(rows().shuffle(9, seed=1).batch(BATCH), epochs=2, validation_data=rows().batch(8))


@pytest.mark.parametrize("place", parameters(SAVING))
def test_a_fault_in_saving_does_not_affect_the_training(tmp_path, monkeypatch, whole, place):
    fault(monkeypatch, place)
    data, held = rows().shuffle(9, seed=1).batch(BATCH), rows().batch(8)
    with warnings.catch_warnings(record=True) as caught, checkpointing(tmp_path, every=3):
        warnings.simplefilter("always")
        assert trained(data, epochs=2, validation_data=held) == whole
    assert sum("injected" in str(one.message) for one in caught) <= 1


@pytest.mark.parametrize("name", ["of", "fingerprint", "pass_from"])
def test_a_fault_in_saving_arrays_does_not_affect_the_training(tmp_path, monkeypatch, name):
    def arrays():
        x, y = map(np.array, zip(*rows().as_numpy_iterator(), strict=True))
        tf.random.set_seed(5)
        return trained(x, y=y, batch_size=BATCH, epochs=2)

    plain = arrays()
    fault(monkeypatch, (passes.ArrayBatches, name))
    with warnings.catch_warnings(), checkpointing(tmp_path, every=3):
        warnings.simplefilter("ignore")
        assert arrays() == plain
    tf.random.set_seed(None)
    assert not any(one.exact for one in checkpoints(tmp_path))


def tuned_fit():
    tf.random.set_seed(None)
    return trained(at_hand().shuffle(9, seed=1), little(), epochs=2)


@pytest.fixture(scope="module")
def untuned():
    tf.random.set_seed(None)
    return tuned_fit()


@pytest.mark.parametrize("place", parameters(TUNING))
def test_a_fault_in_tuning_does_not_affect_the_training(monkeypatch, untuned, place):
    monkeypatch.setattr(online, "_FIRST", 5)
    monkeypatch.setattr(online, "_SECONDS", 0)
    monkeypatch.setattr(online._TunableFit, "is_live", False)  # as if it were saved too
    if place[0] is not tuner.Tuner:  # values are chosen that do not pay
        monkeypatch.setattr(online, "Tuner", Chosen)
        monkeypatch.setattr(online._TunableFit, "rest", lambda fit, step: 1e6)
    fault(monkeypatch, place)
    with warnings.catch_warnings(record=True) as caught, online.tuned(budget=1e6) as found:
        warnings.simplefilter("always")
        assert tuned_fit() == untuned
    messages = [*(str(one.message) for one in caught), *map(str, found.messages)]
    assert sum("injected" in one for one in messages) <= 1
    assert not any("injected" in one for one in messages) or not found.values or place[1] == "_feed_from"


@pytest.fixture
def in_place(monkeypatch):
    """Other values win a race of single steps, whatever they gain."""
    for name, value in {"_FIRST": 5, "_SECONDS": 0, "_SOON": 0, "_ENOUGH": 1e6, "model_based": others}.items():
        monkeypatch.setattr(online, name, value)
    monkeypatch.setattr(online._TunableFit, "rest", lambda fit, step: 1e6)
    monkeypatch.setattr(live.LiveTuning, "_costs", lambda tuning, reference: StepCosts(1.0))
    for name, value in {"Race": Won, "WARM": 1, "WINDOW": 1}.items():
        monkeypatch.setattr(live, name, value)


@pytest.mark.parametrize("place", parameters(LIVE))
def test_a_fault_in_tuning_in_place_does_not_affect_the_training(tmp_path, monkeypatch, untuned, in_place, place):
    fault(monkeypatch, place)
    with warnings.catch_warnings(record=True) as caught, online.tuned(budget=1e6, folder=tmp_path) as found:
        warnings.simplefilter("always")
        assert tuned_fit() == untuned
    messages = [*(str(one.message) for one in caught), *map(str, found.messages)]
    assert sum("injected" in one for one in messages) <= 2  # a fault at its end, and one before


def test_without_a_fault_values_take_over_in_place(untuned, in_place):
    with online.tuned(budget=1e6) as found:
        assert tuned_fit() == untuned
    assert found.values


def test_without_a_fault_other_values_take_over(monkeypatch, untuned):
    monkeypatch.setattr(online, "_FIRST", 5)
    monkeypatch.setattr(online, "_SECONDS", 0)
    monkeypatch.setattr(online, "Tuner", Chosen)
    monkeypatch.setattr(online._TunableFit, "is_live", False)
    monkeypatch.setattr(online._TunableFit, "rest", lambda fit, step: 1e6)
    with online.tuned(budget=1e6) as found:
        assert tuned_fit() == untuned
    assert found.values


def test_data_that_are_written_to_files_are_trained_on(tmp_path):
    def data(folder):
        return rows().shuffle(9, seed=1).snapshot(str(tmp_path / folder)).batch(BATCH)

    plain = trained(data("plain"), epochs=2)
    with warnings.catch_warnings(), checkpointing(tmp_path / "saved", every=3):
        warnings.simplefilter("ignore")
        assert trained(data("other"), epochs=2) == plain
    one = checkpoints(tmp_path / "saved")[0]
    assert (one.step, one.exact) == (3, False)
    assert "snapshot" in one.reason.lower()


def mirrored(count, how):
    """Train with replicas, plainly, saved or tuned; return the result and the checkpoints."""
    with tf.distribute.MirroredStrategy([f"CPU:{at}" for at in range(count)]).scope():
        model = small()
    with warnings.catch_warnings(), how as one:
        warnings.simplefilter("ignore")
        return trained(rows().shuffle(9, seed=1).batch(8), model, epochs=2), one


def train_with_replicas(folder, count):
    plain, _ = mirrored(count, contextlib.nullcontext())
    again, saving = mirrored(count, checkpointing(folder, every=3))
    assert again == plain
    assert [one.step for one in saving.saved] == [3, 6]
    assert not any(one.exact for one in saving.saved)
    again, found = mirrored(count, online.tuned(budget=1e6))
    assert again == plain
    assert "Not tuned" in str(found.messages[0])


def test_a_training_with_one_replica_is_saved_and_tuned(tmp_path):
    train_with_replicas(tmp_path, 1)


@pytest.mark.slow
def test_a_training_with_two_replicas_is_saved_and_tuned(tmp_path):
    code = f"""
import sys
import tensorflow as tf
device = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * 2)
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_faults import train_with_replicas
train_with_replicas({str(tmp_path)!r}, 2)
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
