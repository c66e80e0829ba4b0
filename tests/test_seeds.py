"""Random state of the process: Python, NumPy, Keras' global seed generator, TensorFlow's global seed."""

import random

import numpy as np
import pytest
from optional import lazy

from tpunb.errors import TpunbError
from tpunb.training import seeds
from tpunb.training.seeds import RandomState

keras, tf = lazy("keras"), lazy("tensorflow")


@pytest.fixture(autouse=True)
def _restored_generator():
    before = seeds.keras_generator()
    yield
    seeds.forget_keras_generator()
    if before is not None:
        seeds.make_keras_generator().state.assign(before.state)


def test_keras_creates_its_generator_at_the_first_draw():
    seeds.forget_keras_generator()
    assert seeds.keras_generator() is None
    keras.random.normal((1,))
    assert seeds.keras_generator() is seeds.make_keras_generator()


def test_keras_seeds_its_generator_from_pythons_random_numbers():
    def made(seed):
        seeds.forget_keras_generator()
        random.seed(seed)
        return keras.ops.convert_to_numpy(seeds.make_keras_generator().state).tolist()

    assert made(3) == made(3) != made(4)


def test_a_keras_with_another_generator_is_not_supported(monkeypatch):
    from keras.src.random import seed_generator

    monkeypatch.delattr(seed_generator, "GLOBAL_SEED_GENERATOR")
    with pytest.raises(TpunbError, match=r"global seed generator of Keras .* is not supported"):
        seeds.keras_generator()
    monkeypatch.undo()


def test_tensorflow_draws_the_same_numbers_after_a_restore():
    def seed_and_draw():
        tf.random.set_seed(3)  # as a program does, once
        tf.random.uniform([2])

    seed_and_draw()
    expected = tf.random.uniform([2]).numpy().tolist()
    seed_and_draw()
    state = RandomState.capture()
    tf.random.set_seed(99)
    tf.random.uniform([5])
    state.restore()
    assert tf.random.uniform([2]).numpy().tolist() == expected
    tf.random.set_seed(None)


def test_python_numpy_and_keras_draw_the_same_numbers_after_a_restore():
    def draw():
        return random.random(), np.random.rand(), float(keras.random.uniform(()))

    seeds.make_keras_generator()
    state = RandomState.capture()
    expected = draw()
    draw()
    state.restore()
    assert draw() == expected


def test_a_generator_that_keras_creates_later_is_removed_by_a_restore():
    seeds.forget_keras_generator()
    state = RandomState.capture()
    keras.random.normal((1,))
    state.restore()
    assert seeds.keras_generator() is None
