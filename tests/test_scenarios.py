"""Runs whose phases a person would name: what the methods find in them."""

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

import tpunb as tp
from tpunb.testing import SCENARIOS, scenario

SEEDS = range(5)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_default_finds_the_phases_without_outliers(name):
    for seed in SEEDS:
        run = scenario(name, seed=seed)
        labels = np.array(tp.DBSCAN()(run.steps))
        assert labels.min() == 0
        assert len(set(labels.tolist())) == len(run.names)
        assert adjusted_rand_score(run.phase, labels) == 1.0


@pytest.mark.parametrize("name", SCENARIOS)
def test_hdbscan_finds_as_many_phases(name):
    for seed in SEEDS:
        run = scenario(name, seed=seed)
        labels = np.array(tp.HDBSCAN()(run.steps))
        assert len({*labels.tolist()} - {-1}) == len(run.names)
        assert adjusted_rand_score(run.phase, labels) > 0.95


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
