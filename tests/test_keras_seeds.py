"""Keras' global seed generator."""

import random

import pytest

from tpunb.errors import TpunbError
from tpunb.resuming import keras_seeds

keras = pytest.importorskip("keras")


@pytest.fixture(autouse=True)
def _as_it_was():
    before = keras_seeds.generator()
    yield
    keras_seeds.forget()
    if before is not None:
        keras_seeds.make().state.assign(before.state)


def test_it_is_there_once_something_draws():
    keras_seeds.forget()
    assert keras_seeds.generator() is None
    keras.random.normal((1,))
    assert keras_seeds.generator() is keras_seeds.make()


def test_it_is_made_by_pythons_random_numbers():
    def made(seed):
        keras_seeds.forget()
        random.seed(seed)
        return keras.ops.convert_to_numpy(keras_seeds.make().state).tolist()

    assert made(3) == made(3) != made(4)


def test_a_keras_that_keeps_it_otherwise_is_told(monkeypatch):
    from keras.src.random import seed_generator

    monkeypatch.delattr(seed_generator, "GLOBAL_SEED_GENERATOR")
    with pytest.raises(TpunbError, match="keeps its seeds otherwise than tpunb knows"):
        keras_seeds.generator()
    monkeypatch.undo()
