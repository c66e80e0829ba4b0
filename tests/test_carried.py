"""What Keras keeps for each thread is there in another: its random numbers and its precision."""

import threading

import pytest
from slow_jobs import reading

from tpunb.errors import TpunbError
from tpunb.tuning.carried import carried
from tpunb.tuning.job import Job
from tpunb.tuning.trial import Track

keras = pytest.importorskip("keras")


def in_a_thread(call):
    """What a call gives in a thread of its own."""
    told = []
    thread = threading.Thread(target=lambda: told.append(call()))
    thread.start()
    thread.join()
    return told[0]


@pytest.fixture
def policy():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    yield "mixed_bfloat16"
    keras.config.set_dtype_policy(before)


def test_the_policy_of_precision_is_that_of_the_thread_it_was_asked_in(policy):
    carry = carried()
    assert in_a_thread(lambda: keras.config.dtype_policy().name) != policy  # why it must be carried
    assert in_a_thread(lambda: (carry(), keras.config.dtype_policy().name)[1]) == policy


def test_names_that_the_other_thread_gives_are_its_own():
    keras.layers.Dense(1)
    carry = carried()
    in_a_thread(lambda: (carry(), [keras.layers.Dense(1) for _ in range(5)]))
    here = keras.layers.Dense(1).name
    assert int(keras.layers.Dense(1).name.split("_")[-1]) == int(here.split("_")[-1]) + 1
    carry = carried()
    assert in_a_thread(lambda: (carry(), keras.layers.Dense(1).name)[1]) == keras.layers.Dense(1).name


class Noise(keras.layers.Layer):
    """Adds random numbers of Keras' own generator, which each thread has for itself."""

    def call(self, x, training=False):
        return x + keras.random.normal(keras.ops.shape(x)) if training else x


def noisy():
    keras.utils.set_random_seed(5)
    keras.random.normal((1,))  # the generator of this thread is there
    model = keras.Sequential([keras.Input((4,)), Noise(), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model


def test_trials_in_a_thread_leave_nothing_behind():
    def losses(model):
        return model.fit(reading(), epochs=1, verbose=0).history["loss"]

    fresh = losses(noisy())
    model = noisy()
    job, carry = Job(lambda: (model, reading())), carried()

    def trials():
        carry()
        with Track(job, warm=1, window=2) as track:
            return track.run({}).digest, track.run({}).digest

    one, two = in_a_thread(trials)
    assert one == two
    assert losses(model) == fresh


def test_a_keras_that_keeps_it_otherwise_is_told(monkeypatch):
    from keras.src.backend.common import global_state

    monkeypatch.delattr(global_state, "GLOBAL_STATE_TRACKER")
    with pytest.raises(TpunbError, match="keeps the state of a thread otherwise") as caught:
        carried()
    assert caught.value.hint
