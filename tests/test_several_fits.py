"""Several fits in a block: the one of the checkpoint is resumed, those before it are not trained again."""

import contextlib

import pytest
from test_exactness import BATCH, Losses, rows, seen, small, trained

from tpunb.checkpoint import checkpointing, checkpoints
from tpunb.checkpoint.resume import resume
from tpunb.errors import TpunbError

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")


def transferred(data, unfreeze=True):
    """Train a head, then the whole model with another optimizer; return the histories, the losses and the weights."""
    base = keras.layers.Dense(4, name="base", kernel_initializer="ones")
    base.trainable = not unfreeze
    made = small(base, keras.layers.Dropout(0.3))
    first = made.fit(data, epochs=2, verbose=0, callbacks=[Losses()])
    before = list(seen)
    base.trainable = True
    made.compile(keras.optimizers.Adam(0.01), "mse")
    second = made.fit(data, epochs=3, verbose=0, callbacks=[Losses()])
    return first.history, before, second.history, list(seen), [each.tolist() for each in made.get_weights()]


DATA = {
    "seeded shuffle": lambda: rows().shuffle(9, seed=3).batch(BATCH),
    "shuffle": lambda: rows().shuffle(9).batch(BATCH),
    "shuffle below a shuffle": lambda: (
        tf.data.Dataset.range(8)
        .shuffle(8, seed=1)
        .interleave(lambda at: rows().skip(4 * at).take(4), cycle_length=2)
        .shuffle(5, seed=1)
        .batch(BATCH)
    ),
}


@pytest.mark.parametrize("name", DATA)
def test_the_second_fit_of_a_block_resumes_exactly(tmp_path, name):
    with checkpointing(tmp_path, every=5):
        first, _, second, losses, weights = transferred(DATA[name]())
    found = checkpoints(tmp_path)
    assert [one.step for one in found] == [5, 5, 10, 10, 15, 15, 20]
    assert all(one.exact for one in found)
    for step in (5, 10, 20):
        one = tmp_path / ("tpunb-20" if step == 20 else f"tpunb-{step}-2")
        with resume(one):
            history, before, later, after, final = transferred(DATA[name]())
        assert history == first
        assert before == []
        assert after == losses[step:]
        assert final == weights
        assert later["loss"] == second["loss"][-len(later["loss"]) :]


def test_a_resumed_second_fit_can_be_saved_again(tmp_path):
    with checkpointing(tmp_path / "a", every=10):
        *_, weights = transferred(DATA["shuffle"]())
    with resume(tmp_path / "a/tpunb-10-2"), checkpointing(tmp_path / "b", every=5) as saving:
        transferred(DATA["shuffle"]())
    assert [one.step for one in saving.saved] == [15, 20]
    with resume(saving.saved[0]):
        *_, again = transferred(DATA["shuffle"]())
    assert again == weights


def test_an_interrupted_fit_counts(tmp_path):
    class Stops(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                raise KeyboardInterrupt

    def cell():
        made = small()
        with pytest.raises(KeyboardInterrupt) if first else contextlib.nullcontext():
            made.fit(rows().batch(BATCH), verbose=0, callbacks=[Stops()])
        return trained(rows().batch(BATCH), made)

    first = True
    with checkpointing(tmp_path, every=4):
        losses, _, weights = cell()
    first = False
    one = next(one for one in checkpoints(tmp_path) if one.step == 8)
    with resume(one):
        later, _, again = cell()
    assert (later, again) == (losses[-len(later) :], weights)


def test_a_fit_of_another_model_before_makes_a_checkpoint_inexact(tmp_path):
    def cell():
        made = small()
        made.name = "teacher"
        made.fit(rows().batch(BATCH), verbose=0)
        return trained(rows().batch(BATCH), epochs=1)

    with pytest.warns(UserWarning, match="an earlier fit of the block trained teacher"), checkpointing(tmp_path):
        cell()
    exact = {one.path.name: one.exact for one in checkpoints(tmp_path)}
    assert exact == {"tpunb-8": True, "tpunb-8-2": False}


def test_a_block_with_fewer_fits_is_an_error(tmp_path):
    with checkpointing(tmp_path, every=5):
        transferred(DATA["shuffle"]())
    with pytest.raises(TpunbError, match="the block called fit 1 time"), resume(tmp_path / "tpunb-5-2"):
        trained(rows().batch(BATCH))
