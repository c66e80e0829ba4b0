"""Fits of arrays: resumed bit for bit, in Keras' order or in one of the same distribution."""

import json

import numpy as np
import pytest
from exact_fits import BATCH, resumes, saved, small, trained
from optional import lazy

from tpunb.checkpoint import checkpointing
from tpunb.checkpoint.resume import resume
from tpunb.errors import TpunbError
from tpunb.training import constants
from tpunb.training.passes import ArrayBatches

keras, tf = lazy("keras"), lazy("tensorflow")
pytestmark = pytest.mark.live

COUNT = 22  # five batches and a part of one


def arrays(count=COUNT):
    x = np.random.default_rng(7).normal(size=(count, 3)).astype("f")
    return x, x[:, :1]


def fitted(*data, seed=None, **more):
    """Train; return the losses of every step, the history and the weights."""
    tf.random.set_seed(seed)
    x, y = data or arrays()
    return trained(x, y=y, **{"batch_size": BATCH} | more)


def two_inputs():
    left, right = keras.Input((3,), name="left"), keras.Input((3,), name="right")
    made = keras.Model([left, right], keras.layers.Dense(1)(keras.layers.concatenate([left, right])))
    made.compile("sgd", "mse")
    return made


CELLS = {
    "shuffled": fitted,
    "in order": lambda: fitted(shuffle=False),
    "within batches": lambda: fitted(shuffle="batch"),
    "global seed": lambda: fitted(seed=5),
    "global seed within batches": lambda: fitted(seed=5, shuffle="batch"),
    "whole batches": lambda: fitted(*arrays(20), epochs=4),
    "weighted samples, by name": lambda: fitted(
        {"left": arrays()[0], "right": -arrays()[0]},
        arrays()[1],
        model=two_inputs(),
        sample_weight=np.arange(COUNT, dtype="f"),
    ),
    "weighted classes of tensors": lambda: fitted(
        *map(tf.constant, (arrays()[0], np.arange(COUNT) % 2)), class_weight={0: 1.0, 1: 3.0}
    ),
    "split": lambda: fitted(validation_split=0.3, epochs=4),
    "validated": lambda: fitted(validation_data=arrays(9)),
    "one iterator": lambda: fitted(steps_per_epoch=4, epochs=5),
}


@pytest.mark.parametrize("name", CELLS)
def test_arrays_resume_exactly(tmp_path, name):
    resumes(tmp_path, CELLS[name])


def test_several_steps_a_turn_resume_exactly(tmp_path):
    def cell():
        return fitted(model=small(steps_per_execution=2))

    losses, _, weights = saved(tmp_path, cell, every=2)
    for step, turns in ((2, 8), (10, 4)):
        with resume(tmp_path / f"tpunb-{step}"):
            later, _, final = cell()
        assert later == losses[-turns:]
        assert final == weights


def samples(shuffle, seed=None):
    """Return the samples of three epochs, as the model sees them."""
    tf.random.set_seed(seed)
    read = []

    class Reading(keras.Model):
        def train_step(self, data):
            read.append(data[0].numpy().ravel().tolist())
            return {"loss": 0.0}

    made = Reading()
    made.compile(run_eagerly=True)
    made.fit(np.arange(COUNT), np.arange(COUNT), batch_size=BATCH, epochs=3, shuffle=shuffle, verbose=0)
    return [np.concatenate(read[at : at + 6]).tolist() for at in (0, 6, 12)]


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("shuffle", [True, "batch"])
def test_the_order_is_of_the_same_distribution(tmp_path, shuffle):
    with checkpointing(tmp_path):
        first, second, third = samples(shuffle)
    assert sorted(first) == sorted(second) == sorted(third) == list(range(COUNT))
    assert len({tuple(each) for each in (first, second, third)}) == 3
    if shuffle == "batch":
        for each in (first, second, third):
            assert [sorted(each[at : at + BATCH]) for at in range(0, 20, BATCH)] == [
                list(range(at, at + BATCH)) for at in range(0, 20, BATCH)
            ]
    with checkpointing(tmp_path):
        assert samples(shuffle) != [first, second, third]


@pytest.mark.parametrize("shuffle", [True, "batch", False])
def test_a_program_with_a_global_seed_keeps_its_order(tmp_path, shuffle):
    plain = samples(shuffle, seed=5)
    with checkpointing(tmp_path):
        assert samples(shuffle, seed=5) == plain


def test_a_position_in_arrays_is_a_seed_and_two_numbers(tmp_path):
    saved(tmp_path, fitted)
    about = json.loads((tmp_path / "tpunb-9" / "tpunb.json").read_text())
    assert (about["iterators"], about["drawn"], len(about["seeds"])) == (2, 3, 1)
    assert sorted(about["files"]) == ["variables.npz"]


def test_other_arrays_are_an_error(tmp_path):
    x, y = arrays()
    saved(tmp_path, lambda: fitted(seed=5))
    different = "was saved with a different dataset"
    for other, message in (
        (lambda: fitted(x + 1, y, seed=5), different),
        (lambda: fitted(batch_size=5, seed=5), different),
        (lambda: fitted(shuffle=False, seed=5), different),
        (lambda: fitted(seed=6), different),
        (fitted, "0 unseeded shuffles were saved, now 1"),
    ):
        with pytest.raises(TpunbError, match=message), resume(tmp_path / "tpunb-3"):
            other()


def test_a_resumed_fit_of_arrays_reads_nothing_again(tmp_path, monkeypatch):
    starts = []
    original = ArrayBatches.pass_from

    def pass_from(batches, number, start=0):
        starts.append((number, start))
        return original(batches, number, start)

    saved(tmp_path, fitted)
    monkeypatch.setattr(ArrayBatches, "pass_from", pass_from)
    with resume(tmp_path / "tpunb-9"):
        fitted()
    assert starts[:2] == [(2, 0), (2, 3)]


def test_large_arrays_are_sampled_for_their_fingerprint():
    whole = np.zeros((1000, 1000), "f")
    other = whole.copy()
    other[-1] = 1
    prints = [constants.of_arrays([tf.constant(each)], "") for each in (whole, whole, other, whole[:999])]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3
    assert constants.of_arrays([tf.constant(["a"])], "") != constants.of_arrays([tf.constant(["b"])], "")
