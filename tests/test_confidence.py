"""Confidence in phases, of spelled-out labels; tests/test_scenarios.py has that of the labels that methods find."""

import numpy as np
import pytest
from simulate.scenarios import scenario

import tpunb as tp
from tpunb.cluster.assign import confidences
from tpunb.testing import toy_steps


def test_of_two_phases_that_were_joined_a_third_is_not_to_blame():
    run = scenario("checkpoints and evaluation")
    found = confidences(run.steps, np.where(run.phase == 2, 0, run.phase))
    assert found[1] == 1.0
    assert found[0] < 1.0
    split = confidences(run.steps, np.where(run.phase == 1, np.arange(1000) % 2 + 1, run.phase))
    assert split[0] > 0.9
    assert max(split[1], split[2]) < 0.5


def test_what_is_unknown_is_null():
    assert confidences(toy_steps("ab"), np.array([0, 1])) == {}
    phases = tp.phases(toy_steps("aabbcc", traced="ffffnn"), lambda steps: [0, 0, 1, -1])
    assert phases.frame.filter(phase=-1)["confidence"].item() is None
    assert tp.phases(toy_steps("ab")).confidence is None
    assert set(tp.phases(toy_steps("ab")).frame["confidence"]) == {None}


@pytest.mark.parametrize("labels", [[0] * 10, [-1] * 10, range(10), [0] * 5 + [1] * 5])
def test_it_is_a_share_or_null(labels):
    phases = tp.phases(toy_steps("aaaaabbbbb"), lambda steps: labels)
    values = [phases.confidence, *phases.frame["confidence"]]
    assert all(value is None or 0 <= value <= 1 for value in values)
    assert (phases.confidence == 1.0) == (list(labels) == [0] * 5 + [1] * 5)
