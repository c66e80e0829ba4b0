"""Fits whose passes have orders of all kinds resume bit for bit: from any checkpoint, and in a new process."""

import json
import random
import subprocess

import numpy as np
import order_fits
import pytest
from exact_fits import resumes, saved, small, trained
from optional import lazy
from order_fits import DATA, QUICK, cell
from warm_python import warm_python

from tpunb.checkpoint import checkpoints
from tpunb.checkpoint.resume import resume

keras, tf = lazy("keras"), lazy("tensorflow")
pytestmark = pytest.mark.live

OTHERS = [name for name in DATA if name not in QUICK]


def other_seeds(name, folder):
    """Train with other random state than before the block."""
    result = cell(name, folder)
    random.seed(len(result[0]))
    np.random.seed(len(result[0]))
    return result


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "files").mkdir()
    return tmp_path / "files"


@pytest.mark.parametrize("name", QUICK)
def test_a_fit_resumes_in_its_orders(tmp_path, folder, name):
    resumes(tmp_path / "saved", lambda: other_seeds(name, folder))


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_other_fits_resume_in_their_orders(tmp_path, folder, name):
    resumes(tmp_path / "saved", lambda: other_seeds(name, folder))


@pytest.mark.parametrize("name", ["split, no seed", "cache and shuffle", "pictures, no seed"])
def test_a_new_process_continues_in_the_orders_of_the_saved_one(tmp_path, folder, name):
    losses, history, weights = saved(tmp_path / "saved", lambda: cell(name, folder))
    command = [*warm_python(), order_fits.__file__, tmp_path, name]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    later, ended, final = json.loads((tmp_path / "resumed.json").read_text())
    assert (later, final) == (losses[3:], weights)
    assert ended == history


def test_a_cache_in_files_is_resumed_though_the_killed_process_has_locked_it(tmp_path, folder):
    command = [*warm_python(), order_fits.__file__, tmp_path, "file of a shuffle"]
    assert subprocess.run([*command, "5"], capture_output=True, timeout=600).returncode == -9
    assert [*folder.glob("*.lockfile")]
    for one in checkpoints(tmp_path / "saved"):
        assert one.exact, one.reason
    losses = []
    for part in range(2):  # in this process, then in a new one
        with resume(checkpoints(tmp_path / "saved")[0]):
            losses.append(cell("file of a shuffle", folder)[0])
        assert len(losses[part]) == 21
    assert losses[0] == losses[1]


def test_two_orders_are_those_of_a_training_without_checkpoints(tmp_path, folder):
    """Counting passes and drawing their ends changes nothing."""
    for name in ("repeat of a map", "cache, seeded", "split"):
        assert saved(tmp_path / name, lambda: cell(name, folder)) == cell(name, folder)  # noqa: B023  called here


@pytest.mark.parametrize("eager", [False, True])
def test_a_step_that_trains_a_part_of_the_variables_resumes(tmp_path, eager):
    class Part(keras.Model):
        """Two layers, one of which is trained."""

        def __init__(self):
            super().__init__()
            self.one, self.two = keras.layers.Dense(1), keras.layers.Dense(1)

        def call(self, x):
            return self.one(x) + self.two(x)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x) - y) ** 2)
            weights = self.one.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            return {"loss": loss}

    def fitted():
        keras.utils.set_random_seed(3)
        made = Part()
        made.compile("adam", run_eagerly=eager)
        return trained(order_fits.rows().batch(8), made)

    resumes(tmp_path, fitted)


def test_a_built_model_is_not_built_again(tmp_path):
    resumes(tmp_path, lambda: trained(order_fits.rows().batch(8), small()))
