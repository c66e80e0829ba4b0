"""Fits of Keras on JAX that are saved and resumed by the same cell, or tuned: run with ``KERAS_BACKEND=jax``."""

import json
import os
import signal
import sys
import time
import warnings
from contextlib import nullcontext
from pathlib import Path

import forced_tuning
import grain
import jax
import keras
import numpy as np
import pytest
import tensorflow as tf

import tpunb as tp
from tpunb.checkpoint import checkpointing, checkpoints
from tpunb.checkpoint.resume import resume
from tpunb.errors import TpunbError
from tpunb.training import seeds
from tpunb.tuning import tournament, trial, tuned, tuner

backend = jax.default_backend
SAMPLES, BATCH, EVERY = 48, 4, 5
"""Rows, rows of a batch, and steps from one checkpoint to the next; an epoch has 12 steps."""

X = np.random.default_rng(7).normal(size=(SAMPLES, 6)).astype("f")
Y = (X[:, :1] > 0).astype("f")


def rows():
    return tf.data.Dataset.from_tensor_slices((X, Y))


def changed(data, **attributes):
    for name, value in attributes.items():
        setattr(data, name, value)
    return data


def grained():
    source = grain.MapDataset.source(list(zip(X, Y, strict=True)))
    return source.shuffle(seed=5).map(lambda row: (2 * row[0], row[1])).batch(BATCH)


def loaded():
    sampler = grain.samplers.IndexSampler(SAMPLES, shard_options=grain.sharding.NoSharding(), shuffle=True, seed=3)
    operations = [grain.transforms.Batch(BATCH)]
    source = list(zip(X, Y, strict=True))
    return grain.DataLoader(data_source=source, sampler=sampler, operations=operations, worker_count=0)


class Batches(keras.utils.PyDataset):
    """Batches by an index, of rows that are permuted between epochs."""

    def __init__(self):
        super().__init__()
        self.x, self.y, self.order, self.dice = X, Y, np.arange(SAMPLES), np.random.default_rng(3)

    def __len__(self):
        return SAMPLES // BATCH

    def __getitem__(self, index):
        at = self.order[BATCH * index : BATCH * (index + 1)]
        return self.x[at], self.y[at]

    def on_epoch_end(self):
        self.dice.shuffle(self.order)


class Beside(Batches):
    """Batches that depend on more than their index."""

    def __getitem__(self, index):
        return super().__getitem__(np.random.randint(0, 4))


def generated():
    while True:
        yield X[:BATCH], Y[:BATCH]


def model(*layers, hidden=True, built=True, auc=False, **more):
    if hidden:
        dense = keras.layers.Dense(8, activation="relu")
        layers = *layers, dense, keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)
    output = keras.layers.Dense(1, activation="sigmoid")
    made = keras.Sequential([*[keras.Input((6,))] * built, *layers, output])
    optimizer = keras.optimizers.Adam(1e-2) if hidden else "sgd"
    made.compile(optimizer, "binary_crossentropy", metrics=["mae", *["auc"] * auc], **more)
    return made


def counted(x):
    return jax.experimental.io_callback(lambda value: value, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def plateau():
    return keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=0, min_delta=1.0)


EXACT = {
    "shuffled": (lambda: rows().shuffle(20).batch(BATCH), {}, {"built": False}),
    "seeded": (lambda: rows().shuffle(20, seed=3).batch(BATCH).prefetch(2), {}, {}),
    "repeated": (lambda: rows().shuffle(20).repeat().batch(BATCH), {"steps_per_epoch": 10}, {}),
    "unknown length": (lambda: rows().filter(lambda x, y: x[0] > -9.0).shuffle(9).batch(BATCH), {}, {}),
    "scheduled": (lambda: rows().shuffle(20).batch(BATCH), {"plateau": True, "validation_data": True}, {"auc": True}),
    "several a turn": (lambda: rows().shuffle(20).batch(BATCH), {}, {"steps_per_execution": 2}),
    "arrays": (lambda: (X, Y), {"validation_split": 0.5}, {}),
    "arrays in batches": (lambda: (X, Y), {"shuffle": "batch", "steps_per_epoch": 7}, {"built": False}),
    "grain": (grained, {}, {}),
    "by index": (Batches, {"validation_data": True}, {"built": False}),
    "transferred": (lambda: rows().shuffle(20, seed=3).batch(BATCH), {}, {}),
    "loader": (loaded, {"steps_per_epoch": 9}, {"built": False}),
}
"""By name: the data, arguments of fit, and arguments of the model."""

PLAIN = "seeded", "by index", "scheduled", "arrays", "loader", "transferred"
"""Those that are trained without being saved too."""

INEXACT = {
    "eager": (lambda: rows().batch(BATCH), {"epochs": 1}, {"run_eagerly": True}),
    "callback": (lambda: rows().batch(BATCH), {"epochs": 1}, {"layers": [keras.layers.Lambda(counted)]}),
    "workers": (lambda: changed(Batches(), workers=2), {"epochs": 1}, {}),
    "by more than the index": (Beside, {"epochs": 1}, {}),
    "generator": (generated, {"steps_per_epoch": 12, "epochs": 1}, {}),
    "distributed": (lambda: rows().batch(BATCH), {"epochs": 1}, {}),
}


def cell(name, *callbacks, hidden=False):
    """Train; return the losses by step, the random numbers between them, the history and the final weights."""
    data, of_fit, of_model = {**EXACT, **INEXACT}[name]
    of_fit, of_model = dict(of_fit), dict(of_model)
    keras.utils.set_random_seed(1)
    if name == "shuffled":  # its order depends on no seed of the program
        tf.random.set_seed(None)
    one = model(*of_model.pop("layers", ()), hidden=hidden or name in EXACT, **of_model)
    losses = []

    class Note(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            np.random.random()

        def on_train_batch_end(self, batch, logs=None):
            losses.append([batch, float(logs["loss"]).hex(), float(logs["mae"]).hex(), float(np.random.random())])

    extra = [plateau()] * of_fit.pop("plateau", False)
    if of_fit.pop("validation_data", False):
        of_fit["validation_data"] = rows().batch(8)
    jax.default_backend = (lambda: "gpu") if name == "transferred" else backend  # Keras then draws one batch ahead
    given = data()
    x, y = given if isinstance(given, tuple) else (given, None)
    if isinstance(given, tuple):
        of_fit["batch_size"] = BATCH
    history = one.fit(x, y, callbacks=[Note(), *extra, *callbacks], **{"epochs": 3, "verbose": 0} | of_fit).history
    variables = [*one.variables, *one.optimizer.variables]
    state = [np.asarray(variable).tobytes().hex() for variable in variables]
    return {"losses": losses, "history": history, "state": state}


def record(folder, names, *, plain=False):
    """Train each case, saved unless plain; return the results, and the steps and reasons of its checkpoints."""
    seen = {}
    for name in names:
        seeds.forget_keras_generator()
        with nullcontext() if plain else checkpointing(folder / name, every=EVERY):
            result = cell(name)
        found = [] if plain else checkpoints(folder / name)
        seen[name] = {**result, "reasons": sorted({one.reason for one in found}), "steps": [one.step for one in found]}
    return seen


def save(folder, names):
    """Train the cases and those that are not exact; then one that is killed after three checkpoints."""
    whole = record(folder, names)
    plain = record(folder, [name for name in names if name in PLAIN], plain=True)
    inexact = record(folder, [name for name in INEXACT if name != "distributed"])
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=["cpu:0"]))
    inexact |= record(folder, ["distributed"])
    keras.distribution.set_distribution(None)
    (folder / "whole.json").write_text(json.dumps({"plain": plain, "saved": whole, "inexact": inexact}))

    class Kill(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if len([*(folder / "killed").glob("tpunb-*")]) == 3:
                os.kill(os.getpid(), signal.SIGKILL)

    with checkpointing(folder / "killed", every=EVERY):
        cell("by index", Kill())


def go_on(folder, names):
    """Train the cases from two of their checkpoints, and the one that was killed from its last."""
    resumed = {}
    for name in [*names, "killed"]:
        found = checkpoints(folder / name)
        for one in [found[-1]] if name == "killed" else [found[0], found[-2]]:
            with resume(one, on_divergence="raise") as seen:
                result = cell("by index" if name == "killed" else name)
            resumed[f"{name} {one.step}"] = {**result, "verified": seen.verified_steps}
    with resume(checkpoints(folder / "callback")[1], exact=False):
        resumed["callback"] = cell("callback")
    try:
        with resume(checkpoints(folder / "grain")[0]):
            cell("callback", hidden=True)
    except TpunbError as error:
        resumed["other"] = str(error)
    (folder / "resumed.json").write_text(json.dumps(resumed))


def read(x):
    time.sleep(0.005)
    return x


def slow(x):
    x = tf.ensure_shape(tf.numpy_function(read, [x], "float32", stateful=False), (6,))
    return x, x[:1]


def tuned_cell(steps, turn):
    """Return a model, its data, which wait for Python, and a function that trains."""
    keras.utils.set_random_seed(1)
    data = tf.data.Dataset.from_tensor_slices(X).shuffle(64, seed=2).repeat().map(slow).batch(2)
    one = keras.Sequential([keras.Input((6,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    one.compile("adam", "mse", steps_per_execution=turn)

    def fit():
        history = one.fit(data, epochs=1, steps_per_epoch=steps, verbose=0).history
        return history, weights(one)

    return one, data, fit


def weights(one):
    return [float(value) for variable in one.get_weights() for value in variable.ravel()]


def tune(folder, turn):
    """Tune a model before and during a fit; its races are won by plan, as times decide nothing here."""
    forced_tuning.force(pytest.MonkeyPatch(), 8)
    tournament.race = lambda pairs, narrow: forced_tuning.Won().add(*next(pairs))
    tuner._bound = lambda *_: None
    trial._HICCUP = 1e6
    one, data, _ = tuned_cell(0, turn)
    before = weights(one)
    tuning = tp.tune(one, data, search=forced_tuning.others, budget=1e6)
    elements = [
        [x.numpy().tolist() for x, _ in made.take(9)]
        for made in (tuned_cell(0, turn)[1], tuning.apply(tuned_cell(0, turn)[1]))
    ]
    try:
        tp.tune(one, (X, Y))
    except TpunbError as error:
        refused = str(error)
    whole = tuned_cell(60, turn)[2]()
    with tuned(budget=1e6) as online:
        inside = tuned_cell(60, turn)[2]()
    seen = {
        "trials": [[trial.verdict, trial.equal] for trial in tuning.trials],
        "best": tuning.best,
        "same": before == weights(one),
        "elements": elements,
        "refused": refused,
        "headline": online.headline,
        "online": [[trial.verdict, trial.equal] for trial in online.tuning.trials],
        "fits": [whole, inside],
    }
    (folder / "tuned.json").write_text(json.dumps(seen))
    os._exit(0)  # TensorFlow may wait at the exit, forever, for iterators that call Python


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    action, top = sys.argv[1], Path(sys.argv[2])
    jax.config.update("jax_compilation_cache_dir", str(top / "compiled"))  # equal programs are compiled once
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    if action == "tune":
        tune(top, int(sys.argv[3]))
    {"save": save, "resume": go_on}[action](top, sys.argv[3:])
