"""Keras' thread-local state in another thread: its random numbers and its precision."""

import threading

import pytest
from optional import lazy
from slow_jobs import noisy, reading

from tpunb.errors import TpunbError
from tpunb.tuning.job import Job
from tpunb.tuning.thread_locals import copy_thread_locals
from tpunb.tuning.trial import TrialRunner

keras = lazy("keras")


def in_a_thread(call):
    """Return the result of a call in another thread."""
    results = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    thread.join()
    return results[0]


@pytest.fixture
def policy():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    yield "mixed_bfloat16"
    keras.config.set_dtype_policy(before)


def test_the_precision_policy_is_that_of_the_calling_thread(policy):
    restore = copy_thread_locals()
    assert in_a_thread(lambda: keras.config.dtype_policy().name) != policy  # why it must be carried
    assert in_a_thread(lambda: (restore(), keras.config.dtype_policy().name)[1]) == policy


def test_layer_names_are_counted_per_thread():
    keras.layers.Dense(1)
    restore = copy_thread_locals()
    in_a_thread(lambda: (restore(), [keras.layers.Dense(1) for _ in range(5)]))
    here = keras.layers.Dense(1).name
    assert int(keras.layers.Dense(1).name.split("_")[-1]) == int(here.split("_")[-1]) + 1
    restore = copy_thread_locals()
    assert in_a_thread(lambda: (restore(), keras.layers.Dense(1).name)[1]) == keras.layers.Dense(1).name


@pytest.mark.live
def test_trials_in_a_thread_leave_nothing_behind():
    def losses(model):
        return model.fit(reading(), epochs=1, verbose=0).history["loss"]

    def drawing():
        model = noisy()
        keras.random.normal((1,))  # the generator of this thread is there
        return model

    fresh = losses(drawing())
    model = drawing()
    job, restore = Job(lambda: (model, reading())), copy_thread_locals()

    def trials():
        restore()
        with TrialRunner(job, sizes=(1, 2)) as runner:
            baseline = runner.calibrate()
            return baseline.digest, runner.trial({}).digest

    one, two = in_a_thread(trials)
    assert one == two
    assert losses(model) == fresh


def test_an_unsupported_version_of_keras_raises(monkeypatch):
    from keras.src.backend.common import global_state

    monkeypatch.delattr(global_state, "GLOBAL_STATE_TRACKER")
    with pytest.raises(TpunbError, match="the thread-local state of Keras") as caught:
        copy_thread_locals()
    assert caught.value.hint
