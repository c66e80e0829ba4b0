"""Datasets of Keras by an index: of batches that depend on it alone, or on state beside it, which is named."""

import random
from random import randint

import keras
import numpy as np
import tensorflow as tf
from exact_fits import BATCH
from scipy.ndimage import zoom

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


class Hidden(Rows):
    """Batches that change in a way that the byte code does not show."""

    def __getitem__(self, index):
        return tf.random.normal((BATCH, 3)), np.zeros((BATCH, 1))


def changed(data, **attributes):
    vars(data).update(attributes)
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
