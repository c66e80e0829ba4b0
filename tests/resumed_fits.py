"""Fits that are saved and resumed by the same cell; as a program, it resumes them in a new process, and is killed."""

import hashlib
import json
import os
import random
import signal
import sys
import warnings
from pathlib import Path

import numpy as np

from tpunb.checkpoint import checkpointing, checkpoints
from tpunb.checkpoint.resume import resume
from tpunb.training import snapshot

SAMPLES, BATCH = 48, 4


def arrays():
    numbers = np.random.default_rng(7)
    return numbers.normal(size=(SAMPLES, 6)).astype("f"), numbers.normal(size=(SAMPLES, 1)).astype("f")


def rows():
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(arrays())


def interleaved():
    import tensorflow as tf

    x, y = map(tf.constant, arrays())
    part = tf.data.Dataset.range(4).interleave(
        lambda at: tf.data.Dataset.range(at * 12, at * 12 + 12), cycle_length=3, num_parallel_calls=2
    )
    return part.map(lambda at: (tf.gather(x, at), tf.gather(y, at)))


def odd(x, y):
    return x[0] > -0.5


def by_index():
    import keras

    class Batches(keras.utils.PyDataset):
        """Batches by an index, of rows that are permuted between epochs."""

        def __init__(self):
            super().__init__(workers=2)
            self.x, self.y = arrays()
            self.order = np.arange(SAMPLES)

        def __len__(self):
            return SAMPLES // BATCH

        def __getitem__(self, index):
            at = self.order[BATCH * index : BATCH * (index + 1)]
            return self.x[at], self.y[at]

        def on_epoch_end(self):
            np.random.shuffle(self.order)

    return Batches()


FITS = {
    "plain": (lambda: rows().batch(BATCH), {"linear": True}),
    "shuffled": (lambda: rows().shuffle(20).batch(BATCH), {}),
    "seeded": (lambda: rows().shuffle(20, seed=3).batch(BATCH).prefetch(2), {"linear": True}),
    "same order": (lambda: rows().shuffle(20, reshuffle_each_iteration=False).batch(BATCH), {"linear": True}),
    "repeated": (lambda: rows().shuffle(20).repeat().batch(BATCH), {"linear": True, "steps_per_epoch": 10}),
    "interleaved": (lambda: interleaved().shuffle(9).batch(BATCH), {"linear": True}),
    "unknown length": (lambda: rows().filter(odd).shuffle(20, seed=1).batch(BATCH), {"linear": True}),
    "several a turn": (lambda: rows().shuffle(20).batch(BATCH), {"steps_per_execution": 3}),
    "scheduled": (lambda: rows().shuffle(20).batch(BATCH), {"scheduled": True}),
    "validated": (lambda: rows().shuffle(20).batch(BATCH), {"validated": True}),
    "unbuilt": (lambda: rows().shuffle(20).batch(BATCH), {"unbuilt": True}),
    "augmented": (lambda: rows().shuffle(20).batch(BATCH), {"augmented": True, "linear": True}),
    "arrays": (None, {"linear": True, "shuffle": False}),
    "shuffled arrays": (None, {"linear": True}),
    "by index": (by_index, {"linear": True}),
}
"""By name: the data, and what else the fit is given."""

EVERY = {"repeated": 5, "unknown length": 3}
"""Steps from one checkpoint to the next, half an epoch or a third; of the others 6."""

QUICK = ("shuffled", "seeded", "repeated", "interleaved", "scheduled", "augmented", "shuffled arrays", "by index")
"""Those that are resumed at every run of the tests."""


def model(*, linear=False, unbuilt=False, augmented=False, steps_per_execution=1):
    """Return a model with random numbers; one that is not linear has normalization and more of them."""
    import keras

    known = [] if unbuilt else [keras.Input((6,))]
    layers = [keras.layers.Dropout(0.3), keras.layers.Dense(1)]
    if not linear:
        dense, normalized = keras.layers.Dense(8, activation="relu"), keras.layers.BatchNormalization()
        layers = [keras.layers.GaussianNoise(0.1), dense, normalized, *layers]
    if augmented:
        turned = [keras.layers.RandomFlip(), keras.layers.RandomTranslation(0.2, 0.2, seed=5), keras.layers.Flatten()]
        layers = [keras.layers.Reshape((2, 3, 1)), *turned, *layers]
    made = keras.Sequential([*known, *layers])
    rate = keras.optimizers.schedules.ExponentialDecay(1e-2, 10, 0.9)
    made.compile(
        keras.optimizers.Adam(1e-2 if unbuilt else rate),
        "mse",
        metrics=["mae"],
        steps_per_execution=steps_per_execution,
    )
    return made


def cell(name, *, epochs=3):
    """Train; return the losses by step, the history, and the final state."""
    import keras

    data, more = FITS[name]
    more = dict(more)
    scheduled, validated = (more.pop(key, False) for key in ("scheduled", "validated"))
    of_model = {key: more.pop(key) for key in ("linear", "unbuilt", "augmented", "steps_per_execution") if key in more}
    one = model(**of_model | {"unbuilt": True} if scheduled else of_model)
    losses, draws = [], []

    class Note(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            losses.append([self.params["epochs"], batch, float(logs["loss"]).hex(), float(logs["mae"]).hex()])
            draws.append([random.random(), float(np.random.random())])

    callbacks = [Note()]
    if scheduled:
        callbacks.append(keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5))
    if validated:
        more |= {"validation_data": rows().batch(8), "validation_freq": 2}
    x, y = arrays() if data is None else (data(), None)
    if data is None:
        more |= {"batch_size": BATCH}
    history = one.fit(x, y, epochs=epochs, verbose=0, callbacks=callbacks, **more)
    state = hashlib.sha256()
    for variable in [*one.variables, *one.optimizer.variables]:
        state.update(np.asarray(keras.ops.convert_to_numpy(variable)).tobytes())
    kept = {key: [float(value).hex() for value in values] for key, values in history.history.items()}
    return {"losses": losses, "draws": draws, "history": kept, "epochs": history.epoch, "state": state.hexdigest()}


def saved(folder, name):
    """Train and save; return the record."""
    with checkpointing(folder, every=EVERY.get(name, 6)):
        return cell(name)


def resumed(checkpoint, name):
    """Train from a checkpoint; return the record."""
    with resume(checkpoint):
        return cell(name)


def chosen(folder):
    """Return checkpoints of the end of the first epoch, and within the last."""
    found = checkpoints(folder)
    return [next(one for one in found if is_edge(one)), found[-2]]


def is_edge(checkpoint):
    return json.loads((checkpoint.path / "tpunb.json").read_text())["step_in_epoch"] == 0


def killed(folder):
    """Train and save, until the process is killed while it writes the second checkpoint."""
    original = snapshot.write_arrays

    def dies(aside, arrays):
        original(aside, arrays)
        if aside.name.startswith(".tpunb-12."):
            os.kill(os.getpid(), signal.SIGKILL)

    snapshot.write_arrays = dies
    saved(folder, "plain")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    top = Path(sys.argv[1])
    seen = {name: {one.path.name: resumed(one, name) for one in chosen(top / name)} for name in sys.argv[2:]}
    (top / "resumed.json").write_text(json.dumps(seen))
    killed(top / "killed")
