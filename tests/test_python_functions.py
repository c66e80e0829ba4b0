"""Python functions in a pipeline that keep state are found in their byte code, and those that keep none are not."""

from __future__ import annotations

import functools
import random

import numpy as np
import pytest

from tpunb.tfdata.python_functions import state_of

ROWS = iter(range(9))
DICE = np.random.default_rng(3)
TABLE = {"a": 1}
TOTAL = 0


def drawn(_):
    return next(ROWS)


def counted(x):
    global TOTAL
    TOTAL += 1
    return x


def looked_up(x):
    return TABLE.get(x, len(TABLE))


def calling(x):
    return counted(x) + 1


def hidden():
    rows, calls, box = iter([1, 2]), 0, {"n": 0}
    seen = []

    def draws(x):
        return next(rows)

    def counts(x):
        nonlocal calls
        calls += 1
        return x

    def boxed(x):
        box["n"] += x
        return x

    def notes(x):
        seen.append(x)
        return x

    def zipped(x):
        return sorted(x, key=lambda one: one + next(rows))

    return draws, counts, boxed, notes, zipped


class Counter:
    def __init__(self):
        self.calls, self.scale = 0, 2.0

    def __call__(self, x):
        self.calls += 1
        return x

    def scaled(self, x):
        return x * self.scale


draws, counts, boxed, notes, zipped = hidden()

KEEPS = {
    "draws from the iterator 'ROWS'": drawn,
    "changes the variable 'TOTAL'": counted,
    "draws from the iterator 'rows'": draws,
    "changes the variable 'calls'": counts,
    "changes 'box'": boxed,
    "changes 'seen'": notes,
    "changes 'self.calls'": Counter(),
    "draws random numbers from 'DICE'": lambda x: x + DICE.normal(),
    "draws from the global generator of numpy.random": lambda x: x + np.random.normal(),
    "draws from the global generator of random": lambda x: x + random.random(),
}


@pytest.mark.parametrize("reason", KEEPS)
def test_state_is_named(reason):
    assert state_of(KEEPS[reason]) == reason


def test_state_is_found_in_functions_called_partial_and_nested():
    assert state_of(calling) == "changes the variable 'TOTAL'"
    assert state_of(functools.partial(drawn, 1)) == "draws from the iterator 'ROWS'"
    assert state_of(zipped) == "draws from the iterator 'rows'"


def local(x):
    seen = []
    seen.append(x)
    out = np.zeros(3)
    out[0] = TABLE["a"]
    dice = np.random.default_rng(int(x))
    rows = iter(seen)
    return out + dice.random() + next(rows)


@pytest.mark.parametrize("function", [looked_up, local, Counter().scaled, len, None, lambda x: np.sin(x)])
def test_functions_without_state_are_not_named(function):
    assert state_of(function) == ""


def test_stages_with_such_functions_are_named():
    tf = pytest.importorskip("tensorflow")
    from tpunb.tuning.pipeline import Pipeline

    def read(x):
        return tf.numpy_function(draws, [x], tf.int64)

    def tokens(x):
        return tf.py_function(counts, [x], tf.int64)

    rows = iter([1, 2, 3])
    generated = tf.data.Dataset.from_generator(lambda: rows, output_signature=tf.TensorSpec((), tf.int64))
    ranged = tf.data.Dataset.range(9)
    assert Pipeline(ranged.map(read)).unsafe == ("map:1(read) calls draws, which draws from the iterator 'rows'",)
    assert Pipeline(ranged.map(tokens)).unsafe == ("map:1(tokens) calls counts, which changes the variable 'calls'",)
    assert Pipeline(ranged.map(lambda x: tf.numpy_function(local, [x], tf.float64))).unsafe == ()
    assert Pipeline(generated).unsafe == ("from_generator:0 calls <lambda>, which draws from the iterator 'rows'",)
