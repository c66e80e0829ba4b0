"""Small fits of Keras on TensorFlow whose checkpoints are resumed bit for bit, or name why they are not exact."""

import warnings
from functools import cache

import numpy as np
from examples import is_thorough
from optional import lazy

from tpunb.checkpoint import checkpointing, checkpoints
from tpunb.checkpoint.resume import resume
from tpunb.training import seeds

keras, tf = lazy("keras"), lazy("tensorflow")

BATCH = 4


def rows(count=32):
    x = np.random.default_rng(7).normal(size=(count, 3)).astype("f")
    return tf.data.Dataset.from_tensor_slices((x, x[:, :1]))


def twice(x, y):
    return 2 * x, y


def sampled():
    parts = [rows().repeat(), rows().map(twice).repeat()]
    return tf.data.Dataset.sample_from_datasets(parts, [0.4, 0.6]).batch(BATCH).take(16)


def small(*layers, **more):
    made = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(1, kernel_initializer="ones")])
    made.compile("sgd", "mse", **more)
    return made


@cache
def _made_once(make):
    made = make()
    made.optimizer.build(made.trainable_variables)
    return made, [(variable, variable.numpy()) for variable in [*made.variables, *made.optimizer.variables]]


def reused(make=small):
    """Return a model in its first state that is made once: to compile its step takes longer than to train it."""
    made, first = _made_once(make)
    for variable, value in first:
        variable.assign(value)
    return made


def noting(losses):
    """Return a callback that appends the loss of every step to a list."""
    return keras.callbacks.LambdaCallback(on_train_batch_end=lambda _, logs: losses.append(float(logs["loss"]).hex()))


def trained(data, model=None, *, epochs=3, callbacks=(), **more):
    """Train a model, or the `reused` one; return the losses of every step, the history and the weights."""
    made, losses = model or reused(), []
    history = made.fit(data, epochs=epochs, verbose=0, callbacks=[noting(losses), *callbacks], **more).history
    return losses, history, [weights.tolist() for weights in made.get_weights()]


def saved(folder, cell, every=3):
    """Train and save; return the result."""
    with warnings.catch_warnings(), checkpointing(folder, every=every):
        warnings.simplefilter("ignore")
        return cell()


def resumes(folder, cell, every=3):
    """Assert that the checkpoints of a cell are exact, and that the middle one continues as it did.

    With --slow these are the first and the last but one.
    """
    losses, history, weights = saved(folder, cell, every)
    found = checkpoints(folder)
    assert len(found) > 2
    for one in found:
        assert one.exact, one.reason
    for one in (found[0], found[-2]) if is_thorough() else (found[len(found) // 2],):
        seeds.forget_keras_generator()
        with resume(one):
            later, ended, final = cell()
        assert later == losses[len(losses) - len(later) :], one.step
        assert len(later) == len(losses) - one.step
        assert final == weights
        for name, values in ended.items():
            assert values == history[name][len(history[name]) - len(values) :]


def refuses(folder, cell, reason, every=3):
    """Assert that the checkpoints of a cell are not exact for a reason, which is also the warning."""
    with warnings.catch_warnings(record=True) as caught, checkpointing(folder, every=every):
        warnings.simplefilter("always")
        cell()
    assert any(reason in str(one.message) for one in caught)
    found = checkpoints(folder)
    assert len(found) > 0
    assert all(not one.exact and reason in one.reason for one in found), found[0].reason
