"""Custom loops of TensorFlow and JAX: saved with the position in their data, and restored bit for bit."""

import random

import numpy as np
import pytest

from tpunb.checkpoint import checkpointing, checkpoints, restore, save
from tpunb.checkpoint.resume import resume
from tpunb.errors import TpunbError

STEPS, CUT = 24, 10


class TensorFlow:
    """A loop with dropout, an optimizer, random numbers of every kind and reshuffled data."""

    def __init__(self):
        import keras
        import tensorflow as tf

        self.tf = tf
        self.model = keras.Sequential([keras.Input((3,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
        self.optimizer = keras.optimizers.Adam(0.01)
        self.optimizer.build(self.model.trainable_variables)
        self.dice = tf.random.Generator.from_seed(5)
        self.seeds = keras.random.SeedGenerator(3)
        self.keras = keras
        rows = np.arange(36, dtype="f").reshape(12, 3)
        self.data = iter(tf.data.Dataset.from_tensor_slices(rows).shuffle(12, seed=1).repeat().batch(4))

    def parts(self):
        return {name: getattr(self, name) for name in ("model", "optimizer", "dice", "seeds", "data")}

    def step(self):
        x = next(self.data) + self.dice.normal((4, 3)) + self.keras.random.normal((4, 3), seed=self.seeds)
        with self.tf.GradientTape() as tape:
            loss = self.tf.reduce_mean(self.model(x, training=True) ** 2) * (1 + random.random() + np.random.random())
        weights = self.model.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return float(loss).hex()


@pytest.mark.live
def test_a_tensorflow_loop_resumes_exactly(tmp_path):
    whole = TensorFlow()
    losses = []
    for step in range(STEPS):
        if step == CUT:
            saved = save(tmp_path, step, **whole.parts())
        losses.append(whole.step())
    assert (saved.step, saved.exact) == (CUT, True)
    assert saved.holds == ("weights", "optimizer", "data position", "random state")
    again = TensorFlow()
    for _ in range(3):
        again.step()
    assert restore(checkpoints(tmp_path)[0], **again.parts()) == {}
    assert [again.step() for _ in range(CUT, STEPS)] == losses[CUT:]
    for one, other in zip(whole.model.variables, again.model.variables, strict=True):
        np.testing.assert_array_equal(one, other)


def batches(threads):
    grain = pytest.importorskip("grain.python")
    data = grain.MapDataset.range(30).shuffle(seed=2).repeat().batch(4)
    return iter(data.to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=2 * threads)))


@pytest.mark.live
@pytest.mark.parametrize("threads", [1, 4])
def test_a_jax_loop_resumes_exactly(tmp_path, threads):
    jax = pytest.importorskip("jax")
    pytest.importorskip("orbax.checkpoint")
    jnp = jax.numpy

    @jax.jit
    def step(state, batch):
        key = jax.random.fold_in(state["key"], state["at"])
        noise = jax.random.normal(key, (4,))
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((batch * w[0] + w[1] + noise) ** 2))(
            state["params"]["w"]
        )
        momentum = 0.9 * state["opt_state"] + gradient
        w = state["params"]["w"] - 1e-4 * momentum
        half = state["params"]["half"] + loss.astype(jnp.bfloat16)
        return {**state, "params": {"w": w, "half": half}, "opt_state": momentum, "at": state["at"] + 1}, loss

    def begun():
        params = {"w": jnp.ones(2), "half": jnp.zeros((), jnp.bfloat16)}
        return {"params": params, "opt_state": jnp.zeros(2), "key": jax.random.key(0), "at": jnp.zeros((), int)}

    state, data, losses = begun(), batches(threads), []
    for number in range(STEPS):
        if number == CUT:
            saved = save(tmp_path, number, state=state, data=data)
        state, loss = step(state, next(data))
        losses.append(float(loss).hex())
    assert (saved.exact, saved.step, saved.kind) == (True, CUT, "tpunb")
    other, data = begun(), batches(1)
    other, again = restore(tmp_path / "tpunb-10", state=other, data=data)["state"], []
    for _ in range(CUT, STEPS):
        other, loss = step(other, next(data))
        again.append(float(loss).hex())
    assert again == losses[CUT:]
    for one, two in zip(jax.tree.leaves(state), jax.tree.leaves(other), strict=True):
        assert one.dtype == two.dtype
        assert (one == two).all()


def test_a_single_array_is_a_part(tmp_path):
    jax = pytest.importorskip("jax")
    pytest.importorskip("orbax.checkpoint")
    saved = save(tmp_path, 1, weights=jax.numpy.arange(3), key=jax.random.key(5))
    trees = restore(saved, weights=jax.numpy.zeros(3, int), key=jax.random.key(0))
    assert trees["weights"].tolist() == [0, 1, 2]
    assert trees["key"] == jax.random.key(5)


class Batches:
    """An iterator with a state of bytes, as in Grain's loader."""

    def __init__(self, at=0):
        self.at = at

    def __next__(self):
        self.at += 1
        return self.at

    def get_state(self):
        return bytes([self.at])

    def set_state(self, state):
        (self.at,) = state


def test_an_iterator_state_of_bytes_is_restored(tmp_path):
    again = Batches()
    restore(save(tmp_path, 3, data=Batches(at=200)), data=again)
    assert again.at == 200


def test_a_checkpoint_without_data_is_not_exact(tmp_path):
    keras = pytest.importorskip("keras")
    saved = save(tmp_path, 0, model=keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
    assert (saved.exact, saved.reason) == (False, "no iterator over the data was given")
    assert saved.holds == ("weights", "random state")


def test_data_whose_position_cannot_be_saved_warn(tmp_path):
    tf = pytest.importorskip("tensorflow")
    data = tf.data.Dataset.range(9).map(lambda at: at + tf.random.uniform((), maxval=3, dtype=tf.int64))
    count = tf.Variable(5)
    with pytest.warns(UserWarning, match="it draws random numbers with RandomUniformInt"):
        saved = save(tmp_path, 1, count=count, data=iter(data))
    assert saved.holds == ("weights", "random state")
    count.assign(0)
    with pytest.raises(
        TpunbError, match="tpunb-1 cannot be resumed exactly: map:1: it draws random numbers with RandomUniformInt"
    ):
        restore(saved, count=count, data=iter(data))
    restore(saved, exact=False, count=count, data=iter(data))
    assert int(count) == 5


def test_different_parts_are_an_error(tmp_path):
    saved = save(tmp_path, 1, data=Batches())
    with pytest.raises(TpunbError, match=r"tpunb-1 holds data \(state\); got none"):
        restore(saved)
    with pytest.raises(TpunbError, match="is a checkpoint of a custom loop, not of fit"), resume(saved):
        pass
    with pytest.raises(ValueError, match="The step parameter of save must be an int of 0 or more"):
        save(tmp_path, -1, data=Batches())
    with pytest.raises(ValueError, match="must name what to save"):
        save(tmp_path, 1)


def test_a_different_tree_is_an_error(tmp_path):
    pytest.importorskip("orbax.checkpoint")
    saved = save(tmp_path, 1, state={"a": np.ones(3)})
    with pytest.raises(TpunbError, match="was saved with a different tree"):
        restore(saved, state={"b": np.ones(3)})


@pytest.mark.live
def test_a_checkpoint_of_fit_is_an_error(tmp_path):
    keras = pytest.importorskip("keras")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with checkpointing(tmp_path) as saved:
        model.fit(np.ones((4, 2)), np.ones(4), shuffle=False, verbose=0)
    with pytest.raises(TpunbError, match="is a checkpoint of fit, not of a custom loop"):
        restore(saved.saved[0], model=model)
