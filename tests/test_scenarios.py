"""Runs whose phases a person would name: what the methods find in them, and with which confidence."""

import warnings
from functools import cache

import numpy as np
import pytest
from optional import lazy
from simulate.scenarios import SCENARIOS, scenario

import tpunb as tp
from tpunb.cluster.assign import confidences

metrics = lazy("sklearn.metrics")

METHODS = [tp.DBSCAN(), tp.HDBSCAN(), tp.KMeans(), tp.OLS(), tp.OLSPlus(), tp.DBSCAN.paper(), tp.KMeans.paper()]

run_of = cache(scenario)


@cache
def labels_of(name, seed, method):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.array(method(run_of(name, seed=seed).steps))


@pytest.fixture(scope="module")
def seeds(request):
    return range(5 if request.config.getoption("--slow") else 1)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_default_finds_the_phases_without_outliers(name, seeds):
    for seed in seeds:
        run, labels = run_of(name, seed=seed), labels_of(name, seed, tp.DBSCAN())
        assert labels.min() == 0, seed
        assert len(set(labels.tolist())) == len(run.names), seed
        assert metrics.adjusted_rand_score(run.phase, labels) == 1.0, seed


@pytest.mark.parametrize("name", SCENARIOS)
def test_hdbscan_finds_as_many_phases(name, seeds):
    for seed in seeds:
        run, labels = run_of(name, seed=seed), labels_of(name, seed, tp.HDBSCAN())
        assert len({*labels.tolist()} - {-1}) == len(run.names), seed
        assert metrics.adjusted_rand_score(run.phase, labels) > 0.95, seed


def index(truth, labels):
    """The adjusted Rand index; a few outliers are left out."""
    kept = labels >= 0 if (labels < 0).mean() < 0.01 else np.ones(len(labels), bool)
    return metrics.adjusted_rand_score(truth[kept], labels[kept])


@pytest.mark.parametrize("name", SCENARIOS)
def test_wrong_phases_have_no_confidence_and_true_ones_have(name, seeds):
    true = []
    for seed in seeds:
        run = run_of(name, seed=seed)
        for method in METHODS:
            labels = labels_of(name, seed, method)
            confidence = confidences(run.steps, labels)[None]
            if index(run.phase, labels) < 0.8:
                assert confidence < 0.5, (seed, method)
            else:
                true.append(confidence >= 0.5)
    assert np.mean(true) >= 0.9


def test_a_seed_reproduces_the_run():
    one, same, other = (scenario("5 equal steps", seed=seed).steps for seed in (1, 1, 2))
    assert one.ops.equals(same.ops)
    assert not one.ops.equals(other.ops)


def test_of_the_table_only_step_times_are_known():
    run = scenario("3 step times")
    assert run.steps.ops.is_empty()
    assert (run.steps.frame["dur_ps"] / 1e9).round(0).to_list() == [314, 314, 313]


def test_an_unknown_scenario_is_refused():
    with pytest.raises(ValueError, match=r"must be one of .*'3 step times'.* Got 'four' instead"):
        scenario("four")
