"""TensorFlow's own seed, put back."""

import pytest

from tpunb.resuming import tf_seeds

tf = pytest.importorskip("tensorflow")


def test_what_is_drawn_after_is_what_would_have_been_drawn():
    def drawn():
        tf.random.set_seed(3)  # as a program does, once
        tf.random.uniform([2])

    drawn()
    expected = tf.random.uniform([2]).numpy().tolist()
    drawn()
    state = tf_seeds.state()
    tf.random.set_seed(99)
    tf.random.uniform([5])
    tf_seeds.put_back(state)
    assert tf.random.uniform([2]).numpy().tolist() == expected
    tf.random.set_seed(None)
