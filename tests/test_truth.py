"""Whether the phases that are found are those that are there: made-up runs at length, and the project's own samples."""

import importlib.util
import tomllib
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from optional import lazy
from simulate.synthetic_runs import synthetic_run

import tpunb as tp

metrics = lazy("sklearn.metrics")

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = ["keras_cnn", "keras_transformer"]


def script_says(name):
    """What each step of a sample did, by the numbers in ``about.toml`` that its script wrote."""
    about = tomllib.loads((ROOT / "datasets" / "sample_profiles" / name / "about.toml").read_text())
    steps = tp.steps(tp.sample(name))
    place = steps.frame["step"].to_numpy() % (about["train_steps"] + about["test_steps"])
    saves = place % about["saves_every"] == about["saves_every"] - 1
    return steps, np.where(place >= about["train_steps"], "eval", np.where(saves, "save", "train"))


@pytest.mark.parametrize("name", SAMPLES)
def test_the_marks_of_a_sample_are_those_of_its_script(name):
    steps, truth = script_says(name)
    assert ((steps.frame["kind"] == "eval").to_numpy() == (truth == "eval")).all()


@pytest.mark.parametrize("name", SAMPLES)
def test_the_default_finds_training_evaluation_and_checkpoints_of_the_samples(name):
    steps, truth = script_says(name)
    full = (steps.frame["traced"] == "full").to_numpy()
    labels = tp.phases(steps).labels.to_numpy()
    assert metrics.adjusted_rand_score(truth[full], labels[full]) >= 0.9
    assert metrics.adjusted_rand_score(truth, labels) >= 0.9  # those between windows too
    main = {kind: np.bincount(labels[full & (truth == kind)] + 1).argmax() - 1 for kind in ("train", "eval", "save")}
    assert len(set(main.values())) == 3
    assert -1 not in main.values()


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("seed", range(61, 63))
def test_the_default_finds_the_phases_of_known_runs(seed, hard):
    run = synthetic_run(5000, 100, seed=seed, hard=hard)
    labels = np.array(tp.DBSCAN()(run.steps))
    noise, corrupted = labels < 0, run.phase < 0
    assert metrics.adjusted_rand_score(run.phase[~corrupted], labels[~corrupted]) >= 0.98
    assert (noise & corrupted).sum() >= 0.9 * max(noise.sum(), corrupted.sum())


@cache
def longest(hard):
    """The figures of the benchmark, of one seed of each kind; it shows more."""
    spec = importlib.util.spec_from_file_location("truth", ROOT / "benchmarks" / "truth.py")
    truth = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(truth)
    return truth.measure(16, hard=hard)


def hard_fails(reason):
    return pytest.param(True, marks=pytest.mark.xfail(reason=reason, raises=AssertionError))


@pytest.mark.slow
@pytest.mark.parametrize("hard", [False, True])
def test_the_papers_longest_run(hard):
    found = longest(hard)
    assert found["ari"] >= 0.98
    assert found["noise_precision"] >= 0.99
    assert found["ari_ols_plus"] >= 0.95
    assert found["error_10"] <= (0.05 if hard else 0.02)
    assert hard or found["ari_bic"] >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("hard", [False, hard_fails("11 % of the corrupted steps resemble another: phases of 2 to 20")])
def test_corrupted_steps_of_the_papers_longest_run_are_outliers(hard):
    assert longest(hard)["noise_recall"] >= 0.99


@pytest.mark.slow
@pytest.mark.parametrize("hard", [False, hard_fails("the error is 3.5 %")])
def test_thirty_representatives_of_the_papers_longest_run(hard):
    assert longest(hard)["error_30"] <= (0.03 if hard else 0.01)
