"""Pipelines with orders of all kinds; as a program, fits on them are resumed in a new process, or killed."""

import json
import os
import signal
import sys
import warnings
from pathlib import Path

import numpy as np
from exact_fits import BATCH, rows, sampled, trained, twice
from optional import lazy

from tpunb.checkpoint import checkpointing, checkpoints
from tpunb.checkpoint.resume import resume

keras, tf = lazy("keras"), lazy("tensorflow")

KEYS = "abc"


def csv(folder, **more):
    """Return the rows of CSV files as `make_csv_dataset` reads them."""
    for part in range(3):
        lines = [f"{part / 3},{at / 9},{at * part / 27},{at}" for at in range(9)]
        (folder / f"{part}.csv").write_text("\n".join(["a,b,c,y", *lines]))
    data = tf.data.experimental.make_csv_dataset(str(folder / "*.csv"), BATCH, label_name="y", **more)

    def columns(x, y):
        return tf.stack([tf.cast(x[key], "float32") for key in KEYS], 1), tf.cast(y, "float32")[:, None]

    return data.map(columns)


def pictures(folder, **more):
    """Return the two parts of a folder of pictures, as Keras reads it."""
    for at in range(32):
        file = folder / "ab"[at % 2] / f"{at}.png"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(tf.io.encode_png(np.full((1, 3, 1), 8 * at, "uint8")).numpy())
    more |= {"image_size": (1, 3), "color_mode": "grayscale", "batch_size": BATCH, "verbose": False}
    read = keras.utils.image_dataset_from_directory
    parts = [read(folder, validation_split=0.25, subset=each, **more) for each in ("training", "validation")]
    return [part.map(lambda x, y: (tf.reshape(x, (-1, 3)) / 255, tf.cast(y, "float32")[:, None])) for part in parts]


def tutorial(folder):
    """Return the data of TensorFlow's first tutorial on images."""
    training, validation = (part.cache() for part in pictures(folder, seed=123))
    return training.shuffle(1000).prefetch(tf.data.AUTOTUNE), {"validation_data": validation.prefetch(1)}


def split(**more):
    whole = rows().shuffle(32, reshuffle_each_iteration=False, **more)
    return whole.take(24).batch(BATCH), {"validation_data": whole.skip(24).batch(BATCH)}


def begun(data):
    """Return data of which a batch was looked at."""
    next(iter(data))
    return data


def files():
    parts = tf.data.Dataset.range(8).shuffle(8)
    return parts.interleave(lambda at: rows().skip(4 * at).take(4), cycle_length=2)


def validated(data, **more):
    return rows().batch(BATCH), {"validation_data": data.batch(3), **more}


def stopping():
    callbacks = [keras.callbacks.EarlyStopping(patience=2), keras.callbacks.ReduceLROnPlateau(patience=0)]
    return validated(rows(20).shuffle(9), callbacks=callbacks)


def permuted():
    order = np.random.permutation(32)  # no seed: drawn in the block
    return tf.data.Dataset.from_tensor_slices(tuple(tf.gather(part, order) for part in next(iter(rows().batch(32)))))


DATA = {
    "one order": lambda _: rows().shuffle(9, seed=3, reshuffle_each_iteration=False).batch(BATCH),
    "one order, no seed": lambda _: rows().shuffle(9, reshuffle_each_iteration=False).batch(BATCH),
    "split": lambda _: split(seed=42),
    "split, no seed": lambda _: split(),
    "repeat": lambda _: rows(16).shuffle(9, seed=3).repeat(2).batch(BATCH),
    "repeat of a map": lambda _: begun(rows(16).shuffle(9, seed=3).map(twice).repeat(2).batch(BATCH)),
    "repeats": lambda _: rows(12).shuffle(9, seed=1).map(twice).repeat(2).shuffle(5).batch(BATCH).repeat(2),
    "repeat of parts": lambda _: files().shuffle(5, seed=1).repeat(2).batch(8),
    "endless": lambda _: (files().shuffle(5).repeat().batch(BATCH), {"steps_per_epoch": 7}),
    "repeat, steps": lambda _: (rows(16).shuffle(9).repeat(9).batch(BATCH), {"steps_per_epoch": 7}),
    "unknown length": lambda _: rows().shuffle(9, seed=1).filter(lambda x, y: x[0] > -0.5).repeat(2).batch(BATCH),
    "cache": lambda _: rows().shuffle(9).batch(BATCH).cache(),
    "cache, seeded": lambda _: begun(rows().shuffle(9, seed=3).cache().batch(BATCH)),
    "cache and shuffle": lambda _: files().cache().shuffle(9, seed=1).batch(BATCH).prefetch(1),
    "cache and repeat": lambda _: (rows().shuffle(9, seed=3).cache().repeat().batch(BATCH), {"steps_per_epoch": 6}),
    "file": lambda folder: rows().cache(str(folder / "cache")).shuffle(9).batch(BATCH),
    "file of a shuffle": lambda folder: rows().shuffle(9).cache(str(folder / "cache")).batch(BATCH),
    "csv": lambda folder: csv(folder, num_epochs=1),
    "csv, endless": lambda folder: (csv(folder, num_parallel_reads=2), {"steps_per_epoch": 5}),
    "samples": lambda _: sampled().unbatch().take(9).map(twice).concatenate(rows(9)).batch(BATCH),
    "samples that end": lambda _: tf.data.Dataset.sample_from_datasets([rows().shuffle(9), rows().map(twice)]).batch(8),
    "zip": lambda _: (
        tf.data.Dataset.zip(rows().shuffle(9), rows().shuffle(5, seed=2)).map(lambda a, _: a).padded_batch(BATCH)
    ),
    "pictures": tutorial,
    "pictures, no seed": lambda folder: pictures(folder, seed=int(np.random.randint(99)))[0],
    "permuted": lambda _: permuted().shuffle(9).batch(BATCH),
    "validation": lambda _: validated(rows(20).shuffle(9)),
    "validation in part": lambda _: validated(rows(20).shuffle(9, seed=2), validation_steps=2),
    "validation at times": lambda _: validated(rows(20).shuffle(9).map(twice).repeat(2), validation_freq=2),
    "validation from a cache": lambda _: validated(rows(20).shuffle(9).cache()),
    "validation from csv": lambda folder: (rows().batch(BATCH), {"validation_data": csv(folder, num_epochs=1)}),
    "validation that stops": lambda _: stopping(),
}
"""By name, a function of an empty folder: the data, and what else the fit is given."""

QUICK = (
    *("one order", "split, no seed", "repeat of a map", "endless", "cache", "cache and shuffle", "file of a shuffle"),
    *("csv", "samples that end", "pictures", "permuted", "validation", "validation that stops"),
)
"""Those that are resumed at every run of the tests."""


def cell(name, folder, **more):
    data = DATA[name](folder)
    data, arguments = data if isinstance(data, tuple) else (data, {})
    return trained(data, **arguments, **more)


def dying(step):
    """Return a callback that kills the process at a step."""

    def count(batch, logs=None):
        if batch == step:
            os.kill(os.getpid(), signal.SIGKILL)

    return keras.callbacks.LambdaCallback(on_train_batch_begin=count)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    top, name, *dies = sys.argv[1:]
    folder, saved = Path(top) / "files", Path(top) / "saved"
    if dies:
        with checkpointing(saved, every=3):
            cell(name, folder, callbacks=[dying(int(dies[0]))])
    with resume(checkpoints(saved)[0]):
        (Path(top) / "resumed.json").write_text(json.dumps(cell(name, folder)))
