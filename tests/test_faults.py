"""Faults inside saving and tuning: the training ends as it does without them."""

import contextlib
import functools
import subprocess
import warnings
from pathlib import Path

import numpy as np
import pytest
from exact_fits import BATCH, rows, small, trained
from forced_tuning import force
from optional import lazy
from slow_jobs import at_hand, reused
from warm_python import warm_python

from tpunb.checkpoint import checkpointing, checkpoints
from tpunb.checkpoint.formats import native
from tpunb.checkpoint.resume import policy
from tpunb.tfdata import position, rewrite
from tpunb.training import callbacks, constants, fit_data, fit_state, passes, positions, seeds, snapshot
from tpunb.tuning import live, live_keras, online, pipeline, results
from tpunb.tuning import position as trial_position

tf = lazy("tensorflow")

pytestmark = pytest.mark.live

SAVING = (
    *(
        (fit_state, name)
        for name in (
            "not_restored",
            "CallbackState",
            "hidden_state",
            "to_numpy",
            "variables_of_step",
        )
    ),
    *((fit_data, name) for name in ("graph_or_none", "not_restored", "needs_ends", "try_save", "too_large")),
    (fit_data, "buffered_bytes"),
    (fit_state.Fit, "ended"),
    *((positions.Positions, name) for name in ("begin", "write", "moved")),
    *(
        (fit_state.Fit, name)
        for name in ("attach", "begin_epoch", "end_epoch", "_use", "_begin_turn", "_notify", "on_iterator")
    ),
    *((fit_state.Fit, name) for name in ("write", "hidden_state", "unsaved_beside", "varying", "_listened")),
    *((fit_data.FitData, name) for name in ("attach", "use", "end_epoch", "write", "on_iterator")),
    *((rewrite, name) for name in ("unseeded_shuffles", "seed_shuffles", "shuffles")),
    *((position, name) for name in ("write", "begun", "seeded_shuffles")),
    *((seeds, name) for name in ("keras_generator", "host_random_state", "tensorflow_random_state")),
    *((native, name) for name in ("save", "write", "read_metadata")),
    *((policy.Saving, name) for name in ("on_data", "on_begin", "on_step", "_is_due", "_save")),
    *((constants, name) for name in ("of_data", "of_step", "compiled_step")),
    (snapshot, "write_arrays"),
    (callbacks, "variables_of"),
)
TUNING = (
    *((online.Online, name) for name in ("on_data", "on_begin", "on_step", "_obstacle", "_refusal", "_left")),
    *((online.Online, name) for name in ("_begin", "_advance", "_end", "_aside")),
    *((live_keras.FitFeed, name) for name in ("__init__", "_prepared", "begin", "follow", "obstacle")),
    *((live_keras.FitFeed, name) for name in ("least_seconds", "_copy", "sampled", "switch")),
    *((live.Feed, name) for name in ("is_due", "rest")),
    *((live.LiveTuning, name) for name in ("advance", "course", "_referenced", "raced", "_pairs", "_block")),
    *((live.LiveTuning, name) for name in ("_run_with", "tuning")),
    *((live_keras, name) for name in ("Pipeline", "state_of", "set_state", "digest")),
    *((pipeline.Pipeline, name) for name in ("__init__", "build", "in_place", "_built", "parameters")),
    *((results.Journal, name) for name in ("__init__", "record", "end")),
    *((fit_data.FitData, name) for name in ("replace", "_feed_from")),
    (fit_state.Fit, "steps_left"),
    *((online, name) for name in ("Journal", "LiveTuning", "FitFeed")),
)
SAVED_TOO = (
    *((online.Online, name) for name in ("on_data", "on_step", "_begin", "_advance", "_end")),
    *((live_keras, name) for name in ("late_shuffles", "TfPosition")),
    *((live_keras.FitFeed, name) for name in ("_prepared", "_copy", "sampled", "switch")),
    *((trial_position.TfPosition, name) for name in ("source", "_reached", "_by_reading")),
    (fit_data.FitData, "replace"),
    *((trial_position, name) for name in ("state_of", "set_state")),
)


def parameters(places):
    """Return the places as parameters of a test; most run with the slow tests only."""
    ids = [f"{owner.__name__.rpartition('.')[2]}.{name}" for owner, name in places]
    marks = [() if at % 6 == 0 else pytest.mark.slow for at in range(len(places))]
    return [pytest.param(place, id=name, marks=mark) for place, name, mark in zip(places, ids, marks, strict=True)]


def fault(patch, place):
    """Replace a function, a method or a property by one that fails; return a list of its calls."""
    (owner, name), calls = place, []

    def breaks(*given, **more):
        calls.append(True)
        raise RuntimeError("injected")

    is_property = isinstance(vars(owner)[name], property | functools.cached_property)
    patch.setattr(owner, name, property(breaks) if is_property else breaks)
    return calls


@pytest.fixture(scope="module")
def whole():
    tf.random.set_seed(None)
    return trained(rows().shuffle(9, seed=1).batch(BATCH), epochs=2, validation_data=rows().batch(8))


@pytest.mark.parametrize("place", parameters(SAVING))
def test_a_fault_in_saving_does_not_affect_the_training(tmp_path, monkeypatch, whole, place):
    calls = fault(monkeypatch, place)
    data, held = rows().shuffle(9, seed=1).batch(BATCH), rows().batch(8)
    with warnings.catch_warnings(record=True) as caught, checkpointing(tmp_path, every=3):
        warnings.simplefilter("always")
        assert trained(data, epochs=2, validation_data=held) == whole
    assert calls
    assert sum("injected" in str(one.message) for one in caught) <= 1


@pytest.mark.parametrize("name", ["of", "fingerprint", "pass_from"])
def test_a_fault_in_saving_arrays_does_not_affect_the_training(tmp_path, monkeypatch, name):
    def arrays():
        x, y = map(np.array, zip(*rows().as_numpy_iterator(), strict=True))
        tf.random.set_seed(5)
        return trained(x, y=y, batch_size=BATCH, epochs=2)

    plain = arrays()
    calls = fault(monkeypatch, (passes.ArrayBatches, name))
    with warnings.catch_warnings(), checkpointing(tmp_path, every=3):
        warnings.simplefilter("ignore")
        assert arrays() == plain
    assert calls
    assert not any(one.exact for one in checkpoints(tmp_path))


def tuned_fit(data=None):
    model = reused()
    tf.random.set_seed(None)  # which `reused` set
    return trained(at_hand().shuffle(9, seed=1) if data is None else data, model, epochs=2)


@pytest.fixture
def unseeded(monkeypatch):
    """Data whose shuffle gets the same seed in every fit; with one of its own it might have been begun elsewhere."""
    monkeypatch.setattr(position, "present_seeds", lambda graph: [7 for _ in rewrite.unseeded_shuffles(graph)])
    return lambda: at_hand().shuffle(9)


@pytest.fixture(scope="module")
def untuned():
    return tuned_fit()


def messages_of(caught, found):
    """Return what was warned of, and what tuning reports."""
    return [*(str(one.message) for one in caught), *map(str, found.messages)]


@pytest.mark.parametrize("place", parameters(TUNING))
def test_a_fault_in_tuning_does_not_affect_the_training(tmp_path, monkeypatch, untuned, place):
    force(monkeypatch, 5)
    calls = fault(monkeypatch, place)
    with warnings.catch_warnings(record=True) as caught, online.tuned(budget=1e6, folder=tmp_path) as found:
        warnings.simplefilter("always")
        assert tuned_fit() == untuned
    assert calls
    assert sum("injected" in one for one in messages_of(caught, found)) <= 2  # a fault at its end, and one before


@pytest.mark.parametrize("place", parameters(SAVED_TOO))
def test_a_fault_in_tuning_does_not_affect_a_training_that_is_saved(tmp_path, monkeypatch, unseeded, place):
    with checkpointing(tmp_path / "plain", every=4):
        plain = tuned_fit(unseeded())
    force(monkeypatch, 5)
    calls = fault(monkeypatch, place)
    with warnings.catch_warnings(record=True) as caught, online.tuned(budget=1e6) as found:
        warnings.simplefilter("always")
        with checkpointing(tmp_path / "tuned", every=4):
            assert tuned_fit(unseeded()) == plain
    assert calls
    assert sum("injected" in one for one in messages_of(caught, found)) <= 2


@pytest.mark.parametrize("is_saved", [True, False])
def test_without_a_fault_other_values_take_over(tmp_path, monkeypatch, untuned, unseeded, is_saved):
    force(monkeypatch, 5)
    with online.tuned(budget=1e6) as found, checkpointing(tmp_path) if is_saved else contextlib.nullcontext():
        assert is_saved or tuned_fit() == untuned
        assert not is_saved or tuned_fit(unseeded())
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
    subprocess.run([*warm_python(), "-c", code], check=True, capture_output=True)
