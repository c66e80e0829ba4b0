"""Several fits in a block: the one of the checkpoint is resumed, those before it are not trained again."""

import contextlib

import numpy as np
import pytest
from exact_fits import BATCH, noting, rows, small, trained
from optional import lazy

from tpunb.checkpoint import checkpointing, checkpoints
from tpunb.checkpoint.resume import resume
from tpunb.errors import TpunbError

keras, tf = lazy("keras"), lazy("tensorflow")
pytestmark = pytest.mark.live


def transferred(data):
    """Train a head, then the whole model with another optimizer; return the histories, the losses and the weights."""
    base = keras.layers.Dense(4, name="base", kernel_initializer="ones")
    base.trainable = False
    made = small(base, keras.layers.Dropout(0.3))
    before, losses = [], []
    first = made.fit(data, epochs=2, verbose=0, callbacks=[noting(before)])
    base.trainable = True
    made.compile(keras.optimizers.Adam(0.01), "mse")
    second = made.fit(data, epochs=3, verbose=0, callbacks=[noting(losses)])
    return first.history, before, second.history, losses, [each.tolist() for each in made.get_weights()]


DATA = {
    "shuffle": lambda: rows().shuffle(9).batch(BATCH),
    "seeded shuffle below a shuffle": lambda: (
        tf.data.Dataset.range(8)
        .shuffle(8, seed=1)
        .interleave(lambda at: rows().skip(4 * at).take(4), cycle_length=2)
        .shuffle(5, seed=1)
        .batch(BATCH)
    ),
}


@pytest.fixture(scope="module", params=DATA)
def whole(request, tmp_path_factory):
    """The data, the folder of the checkpoints, and what was trained."""
    data, folder = DATA[request.param], tmp_path_factory.mktemp("whole")
    with checkpointing(folder, every=5):
        return data, folder, transferred(data())


def test_the_second_fit_of_a_block_resumes_exactly(whole):
    data, folder, (first, _, second, losses, weights) = whole
    found = checkpoints(folder)
    assert [one.step for one in found] == [5, 5, 10, 10, 15, 15, 20]
    assert all(one.exact for one in found)
    for step, name in ((5, "tpunb-5-2"), (20, "tpunb-20")):
        with resume(folder / name):
            history, before, later, after, final = transferred(data())
        assert history == first
        assert before == []
        assert after == losses[step:]
        assert final == weights
        assert later["loss"] == second["loss"][-len(later["loss"]) :]


@pytest.mark.parametrize("whole", ["shuffle"], indirect=True)
def test_a_resumed_second_fit_can_be_saved_again(whole, tmp_path):
    data, folder, (*_, weights) = whole
    with resume(folder / "tpunb-10-2"), checkpointing(tmp_path, every=5) as saving:
        transferred(data())
    assert [one.step for one in saving.saved] == [15, 20]
    with resume(saving.saved[0]):
        *_, again = transferred(data())
    assert again == weights


@pytest.mark.parametrize("whole", ["shuffle"], indirect=True)
def test_a_block_with_fewer_fits_is_an_error(whole):
    _, folder, _ = whole
    with pytest.raises(TpunbError, match="the block called fit 1 time"), resume(folder / "tpunb-5-2"):
        made = small(keras.layers.Dense(4), keras.layers.Dropout(0.3))
        made.fit(rows().shuffle(9).batch(BATCH), epochs=2, verbose=0)


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


def test_what_follows_a_skipped_fit_sees_the_model_that_it_trained(tmp_path):
    def cell():
        teacher, student = small(), small()
        history = teacher.fit(rows().batch(BATCH), verbose=0)
        x = np.concatenate([x for x, _ in rows().batch(BATCH)])
        taught = tf.data.Dataset.from_tensor_slices((x, teacher.predict(x, verbose=0))).batch(BATCH)
        losses, _, weights = trained(taught, student, epochs=2)
        return history.history, [each.tolist() for each in teacher.get_weights()], losses, weights

    with checkpointing(tmp_path, every=5):
        history, teacher, losses, weights = cell()
    one = checkpoints(tmp_path)[-1]
    with resume(one) as resumed:
        again = cell()
    assert (again[0], again[1], again[3]) == (history, teacher, weights)
    assert again[2] == losses[one.step :]
    assert str(resumed).startswith(f"resumed exactly at step {one.step}")


def test_a_history_is_whole_in_a_resumed_fit(tmp_path):
    def cell():
        return small().fit(rows().batch(BATCH), epochs=3, verbose=0)

    with checkpointing(tmp_path, every=5):
        whole = cell()
    with resume(checkpoints(tmp_path)[-1]):
        again = cell()
    assert (again.history, again.epoch) == (whole.history, whole.epoch)


def test_without_room_for_its_end_a_fit_is_not_skipped(tmp_path):
    def cell():
        small().fit(rows().batch(BATCH), verbose=0)
        small().fit(rows().batch(BATCH), verbose=0)

    with checkpointing(tmp_path, every=5, ends_gb=0):
        cell()
    first, *_, last = checkpoints(tmp_path)
    with resume(first):
        cell()
    with pytest.raises(TpunbError, match=r"test_several_fits.py:\d+ would run without .*\(.*ends_gb"), resume(last):
        pass
