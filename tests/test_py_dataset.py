"""Fits of a Keras PyDataset: resumed bit for bit where batches depend on their index, else inexact with the reason."""

import random
import warnings
from random import randint

import numpy as np
import pytest
from scipy.ndimage import zoom
from test_exactness import BATCH, refuses, resumes, rows, saved, trained

from tpunb.checkpoint import checkpointing, checkpoints
from tpunb.checkpoint.resume import resume
from tpunb.errors import TpunbError
from tpunb.training import py_dataset
from tpunb.training.py_dataset import PyDatasetState

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

COUNT = 7
"""Batches."""


class Rows(keras.utils.PyDataset):
    """Batches of rows by their indices, with noise by the index of the batch."""

    def __init__(self, scale=1, **more):
        super().__init__(**more)
        self.x = scale * np.random.default_rng(7).normal(size=(COUNT * BATCH, 3)).astype("f")
        self.indices = np.arange(len(self.x))

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        x = self.x[self.at(index)] + np.random.default_rng(index).normal(size=(BATCH, 3)).astype("f")
        return x, x[:, :1]

    def at(self, index):
        return self.indices[BATCH * index : BATCH * (index + 1)]


class Permuted(Rows):
    """Rows that are permuted between epochs, with random numbers of four kinds."""

    def __init__(self, **more):
        super().__init__(**more)
        self.dice, self.old, self.python = np.random.default_rng(3), np.random.RandomState(4), random.Random(5)
        self.seen = []

    def on_epoch_end(self):
        self.indices = np.arange(len(self.x))
        np.random.shuffle(self.indices)
        self.permute()

    def permute(self):
        for dice in (self.dice, self.old, self.python):
            dice.shuffle(self.indices)
        self.seen.append(int(self.indices[0]))


class Endless(Rows):
    """Batches without an end."""

    num_batches = None

    def __getitem__(self, index):
        return super().__getitem__(index % COUNT)


class Labelled(Rows):
    """Rows with classes."""

    def __getitem__(self, index):
        return super().__getitem__(index)[0], np.arange(BATCH) % 2


def seeded(data, **more):
    random.seed(1)
    np.random.seed(1)
    return trained(data, **more)


def validated_by_itself():
    data = Permuted()
    return seeded(data, validation_data=data)


CELLS = {
    "shuffled": lambda: seeded(Rows()),
    "permuted": lambda: seeded(Permuted()),
    "by workers": lambda: seeded(Permuted(workers=3, max_queue_size=2)),
    "one iterator": lambda: seeded(Rows(), steps_per_epoch=5, epochs=4),
    "endless": lambda: seeded(Endless(), steps_per_epoch=5),
    "weighted": lambda: seeded(Labelled(), class_weight={0: 1.0, 1: 3.0}),
    "validated": lambda: seeded(Rows(), validation_data=Permuted(), validation_freq=2, epochs=4),
    "validated by itself": validated_by_itself,
}


@pytest.mark.filterwarnings("error::UserWarning:tpunb")
@pytest.mark.parametrize("name", CELLS)
def test_batches_by_index_resume_exactly(tmp_path, name):
    resumes(tmp_path, CELLS[name], every=4)


@pytest.mark.parametrize("name", ["shuffled", "by workers"])
def test_a_saved_fit_is_the_one_that_is_not_saved(tmp_path, name):
    assert saved(tmp_path, CELLS[name]) == CELLS[name]()


def test_a_resumed_fit_reads_no_batch_before_its_position(tmp_path, monkeypatch):
    read, original = [], np.random.default_rng
    saved(tmp_path, lambda: seeded(Rows(), shuffle=False, epochs=1))
    monkeypatch.setattr(np.random, "default_rng", lambda seed: read.append(seed) or original(seed))
    with resume(tmp_path / "tpunb-6"):
        seeded(Rows(), shuffle=False, epochs=1)
    assert read == [7, 0, 1, 6], "7 for the rows, 0 and 1 for the types of the batches"


def test_other_data_are_an_error(tmp_path):
    saved(tmp_path, CELLS["shuffled"])
    for cell in (
        lambda: seeded(Rows(scale=2)),
        lambda: seeded(Rows(), shuffle=False),
        lambda: seeded(rows(28).batch(BATCH)),
    ):
        with pytest.raises(TpunbError, match="was saved with a different dataset"), resume(tmp_path / "tpunb-3"):
            cell()


FILES, DICE, LAYER = ["a", "b"], random.Random(3), keras.layers.Dropout(0.5)
roll = DICE.randint


class Rolling(Rows):
    def at(self, index):
        return super().at(randint(0, index))


class Noisy(Rows):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + np.random.normal(), y


class Layered(Rows):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return LAYER(x, training=True), y


class Counting(Rows):
    def at(self, index):
        self.calls = index
        return super().at(index)


class Appending(Rows):
    def at(self, index):
        self.files.append(index)
        return super().at(index)


class PassedOn(Rows):
    def __getitem__(self, index):
        return Rows.__getitem__(self, index)


class Rolled(Rows):
    def on_epoch_end(self):
        self.indices = np.roll(self.indices, roll(1, 3))


class Choosing(Rows):
    def on_epoch_end(self):
        self.read = random.choice([np.sin, np.cos])


class Zoomed(Rows):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return zoom(x, 1), y


class Shuffling(Rows):
    def on_epoch_end(self):
        random.shuffle(FILES)


class Beginning(Rows):
    def on_epoch_begin(self):
        self.indices = self.indices[::-1]


def having(value, kind=Rows):
    data = kind()
    data.files = value
    return data


STATES = {
    "Rolling.__getitem__ draws from the global generator of 'randint' (a batch must depend on its index only": Rolling,
    "Noisy.__getitem__ draws from the global generator of numpy.random (a batch must": Noisy,
    "Layered.__getitem__ uses 'LAYER' (Dropout), which may have state (keep numbers, text and arrays there": Layered,
    "Counting.__getitem__ changes 'self.calls' (": Counting,
    "Appending.__getitem__ changes 'self.files' (": lambda: having([], Appending),
    "PassedOn.__getitem__ uses 'self' (PassedOn), which may have state (": PassedOn,
    "Rolled.on_epoch_end draws random numbers from 'roll' (keep it in an attribute)": Rolled,
    "the attribute Choosing.read (ufunc) cannot be saved (keep numbers, text, arrays": lambda: changed(
        Choosing(), read=np.sin
    ),
    "Shuffling.on_epoch_end may change 'FILES' (keep it in an attribute)": Shuffling,
    "Beginning may change while its batches are read (use on_epoch_end": Beginning,
    "Rows.files (Dropout) may have state (keep": lambda: having(LAYER),
    "Rows.files (list) may have state (keep": lambda: having([object()]),
    "Rows.files (method) may have state (keep": lambda: having(roll),
    "the attribute Permuted.dice (list_iterator) cannot be saved (keep": lambda: changed(Permuted(), dice=iter([1])),
    "Permuted.dice, Permuted.indices, Permuted.old, Permuted.python, Permuted.seen: too large to be saved": lambda: (
        changed(Permuted(), indices=np.zeros(10**6))
    ),
}


def changed(data, **attributes):
    vars(data).update(attributes)
    return data


@pytest.mark.parametrize("reason", STATES)
def test_state_beside_the_index_is_named_with_a_way_out(reason):
    assert PyDatasetState(STATES[reason](), None).reason.startswith(reason)


@pytest.mark.parametrize("value", [np.ones(3), {"a": [1, ("b", None)]}, {1, 2}, print, np, int, 2j, tf.constant(1)])
def test_numbers_text_arrays_and_functions_are_no_state(value):
    assert PyDatasetState(having(value, Zoomed), None).reason == ""


def test_a_py_dataset_with_state_is_refused_and_read_as_before(tmp_path):
    refuses(tmp_path, lambda: trained(Noisy(), epochs=1), "Noisy.__getitem__ draws from the global generator of numpy")
    with pytest.raises(TpunbError, match="cannot be resumed exactly: Noisy"), resume(tmp_path / "tpunb-3"):
        trained(Noisy())
    with resume(tmp_path / "tpunb-3", exact=False):
        losses, *_ = trained(Noisy(), epochs=1)
    assert len(losses) == COUNT - 3


class Hidden(Rows):
    """Batches that change in a way that the byte code does not show."""

    def __getitem__(self, index):
        return tf.random.normal((BATCH, 3)), np.zeros((BATCH, 1))


@pytest.mark.parametrize("seed", [None, 3])
def test_the_first_batch_is_read_twice(tmp_path, seed):
    tf.random.set_seed(seed)
    before = random.getstate()
    reason = PyDatasetState(Hidden(), None).probe()
    assert reason.startswith("Hidden.__getitem__ is not the same when it is called again (a batch must depend")
    assert PyDatasetState(Rows(), None).probe() == ""
    assert random.getstate() == before


def test_workers_that_read_for_the_next_epoch_are_refused():
    assert "its workers leave batches to the next epoch" in PyDatasetState(Rows(workers=2), 5).reason
    assert PyDatasetState(Rows(workers=2), COUNT).reason == ""
    assert "may change while its batches are read" in PyDatasetState(Permuted(), 5).reason


def generated():
    while True:
        yield np.ones((BATCH, 3)), np.ones((BATCH, 1))


VALIDATIONS = {
    "validation_data: Noisy.__getitem__ draws": lambda: {"validation_data": Noisy()},
    "validation_data: Python code feeds it (generator; give arrays or a tf.data.Dataset)": lambda: {
        "validation_data": generated(),
        "validation_steps": 2,
    },
}


@pytest.mark.parametrize("reason", VALIDATIONS)
def test_validation_by_python_code_with_state_is_inexact(tmp_path, reason):
    refuses(tmp_path, lambda: trained(rows().batch(BATCH), epochs=2, **VALIDATIONS[reason]()), reason)


def test_an_unexpected_keras_makes_a_checkpoint_inexact(tmp_path, monkeypatch):
    monkeypatch.setattr(py_dataset.PyDatasetBatches, "_order", lambda batches: iter(range(COUNT)))
    with warnings.catch_warnings(), checkpointing(tmp_path, every=3):
        warnings.simplefilter("ignore")
        trained(Rows(), epochs=1)
    assert {one.step: one.exact for one in checkpoints(tmp_path)} == {3: False, 6: False}
