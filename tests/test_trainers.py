"""Trainers that do not know of the capture: all their steps are found, of the right kind, and what takes their time."""

import os
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec

import pytest
from trainer_runs import ROOT, found, maxtext_command

import tpunb as tp

pytestmark = pytest.mark.live

CODE = {"data loading", "callbacks", "program code", "checkpoint save"}
"""Accounts of what a program does besides its steps; the others depend on the machine."""

WASTES = {
    "data": {"data loading"},
    "hook": {"program code", "callbacks"},
    "save": {"checkpoint save"},
    "read": {"program code", "callbacks"},
}


RULES = {"jax": "calls", "nnx": "fetches", "torch": "optimizer", "keras": "keras"}
"""Rules of the steps of training, of each family of trainers."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a function that captures runs in one process, if a package is there, and checks each."""

    def captured(family, package, *names, **environment):
        if find_spec(package) is None:
            pytest.skip(f"no {package}")
        for name, run in found(tmp_path_factory.mktemp("runs"), *names, **environment).items():
            check(run, name, RULES[family])

    return captured


def check(run, name, rule):
    """Check steps, their rule, and accounts of a run."""
    truth = run["truth"]
    counts = Counter()
    for kind, _, count in run["steps"]:
        counts[kind] += count
    assert {each for kind, each, _ in run["steps"] if kind == "train"} == {rule}, name
    if "injected_s" not in truth:
        assert counts == truth, name
        return
    assert counts == {"train": truth["train"]}, name
    accounts, expected = run["accounts"], WASTES[name.split()[1]]
    if name == "plain_jax data":  # a generator's share of the time between steps is known by samples alone
        expected = {"program code", "data loading"}
    assert max(CODE, key=lambda account: accounts[account]) in expected, name
    assert sum(accounts[account] for account in expected) >= 0.5 * truth["injected_s"], name


def test_loops_of_jax_alone(runs):
    runs("jax", "jax", "jax_loop")


def test_loops_of_pytorch_with_and_without_workers(runs):
    runs("torch", "torch", "torch_loop", "torch_workers data")


@pytest.mark.slow
def test_loops_which_the_corpus_has_recorded_too(runs):
    runs("jax", "jax", *[f"plain_jax {place}" for place in WASTES])
    runs("nnx", "flax", "nnx_loop", *[f"nnx_grain {place}" for place in ("data", "hook")])
    runs("torch", "torch", "torch_workers", "torch_accumulated", *[f"plain_torch {place}" for place in WASTES])


AHEAD = """
import sys
import jax
import jax.numpy as jnp
import tpunb as tp

@jax.jit
def step(weights, x):
    for _ in range(12):
        weights = jnp.tanh(weights @ x)
    return weights

weights, x = jnp.ones((700, 700)), jnp.ones((700, 700)) / 700
step(weights, x).block_until_ready()
with tp.capture(sys.argv[1], schedule=tp.Schedule.continuous(window=1.0)) as run:
    for number in range(40):
        with run.step(number):
            weights = step(weights, x)
    weights.block_until_ready()
"""


def test_steps_that_a_loop_launches_at_once_are_traced_one_after_the_other_where_they_ran(tmp_path):
    pytest.importorskip("jax")
    package = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": package}
    command = [sys.executable, "-c", AHEAD, tmp_path / "run"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    steps = tp.steps(tp.load(tmp_path / "run"))
    frame = steps.frame.sort("step")
    assert len(frame) == 40
    before_ps = (frame["start_ps"] + frame["dur_ps"]).shift().fill_null(0)
    assert (frame["start_ps"] - before_ps >= -2 * 10**9).all()  # those of a window agree with the others' clock
    full = frame.filter(traced="full")
    assert (full["device_ps"] > 0).all()
    assert full["step"].max() > 1  # work of a window that was launched in an earlier one


@pytest.mark.slow
def test_fits_of_keras_on_jax(runs):
    runs("keras", "keras", "keras_fit", *[f"keras_jax {place}" for place in WASTES], KERAS_BACKEND="jax")


@pytest.mark.slow
def test_the_trainer_of_hugging_face(runs):
    runs("torch", "transformers", "hugging_face", *[f"hugging_face {place}" for place in WASTES])


@pytest.mark.slow
def test_the_trainer_of_lightning(runs):
    runs("torch", "lightning", "lightning_fit", *[f"lightning_fit {place}" for place in WASTES])


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info < (3, 12), reason="MaxText needs Python 3.12")
def test_the_trainer_of_maxtext(tmp_path):
    pytest.importorskip("maxtext")
    steps = 20
    trainer = ["-m", "maxtext.trainers.pre_train.train"]
    trainer += maxtext_command(tmp_path, steps=steps, checkpoint_period=10)[1:]
    command = [sys.executable, "-m", "tpunb", "run", "-o", tmp_path / "run", "--", sys.executable, *trainer]
    done = subprocess.run(
        command, env={**os.environ, "JAX_PLATFORMS": "cpu"}, capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stderr
    steps_found = tp.steps(tp.load(tmp_path / "run")).frame.group_by("kind", "rule").len().rows()
    assert [count for kind, _, count in steps_found if kind == "train"] == [steps]
    assert tp.goodput(tp.load(tmp_path / "run")).time_ps("checkpoint save") > 0
