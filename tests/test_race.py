"""Races of two settings: right when it is clear, and seldom wrong when it is not."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tpunb.tuning.race import GAIN, alternating, race

RACES = 3000
NOISES = {
    "normal": lambda numbers: numbers.normal(size=(RACES, 10, 2)) * 0.05,
    "long tails": lambda numbers: numbers.standard_t(4, size=(RACES, 10, 2)) * 0.05,
    "now and then much slower": lambda numbers: np.where(
        numbers.random((RACES, 10, 2)) < 0.1,
        numbers.exponential(0.5, (RACES, 10, 2)),
        0.02 * numbers.normal(size=(RACES, 10, 2)),
    ),
    "a machine that is shared": lambda numbers: (
        numbers.normal(size=(RACES, 10, 1)) * 0.3 + numbers.normal(size=(RACES, 10, 2)) * 0.03
    ),
}


def decisions(noise, *, gain=1.0):
    """Return the decisions of races under seeded noise of the logarithm of time."""
    times = np.exp(NOISES[noise](np.random.default_rng(11)))
    times[..., 0] *= gain
    return [race(map(tuple, one.tolist())) for one in times]


@pytest.mark.parametrize("noise", NOISES)
def test_two_alike_are_seldom_told_apart(noise):
    accepted = sum(told.decision == "faster" for told in decisions(noise))
    assert accepted <= 0.025 * RACES, "one side of a 95 % interval"


@pytest.mark.parametrize("noise", NOISES)
def test_a_slower_one_is_never_worth_it(noise):
    assert not any(told.decision == "faster" for told in decisions(noise, gain=0.8) if told.ratio < 1)
    assert sum(told.decision == "faster" for told in decisions(noise, gain=0.8)) <= 0.001 * RACES


@pytest.mark.parametrize("noise", ["normal", "a machine that is shared"])
def test_the_interval_holds_the_truth(noise):
    told = decisions(noise, gain=1.3)
    assert np.mean([one.low <= 1.3 <= one.high for one in told]) >= 0.95


def test_a_gain_of_a_tenth_is_found():
    found = decisions("a machine that is shared", gain=1.1)
    assert np.mean([told.decision == "faster" for told in found]) > 0.9
    assert np.median([told.ratio for told in found]) == pytest.approx(1.1, rel=0.02)


def test_what_is_clear_is_decided_after_three_pairs():
    told = race(itertools.repeat((2.0, 1.0)))
    assert (told.decision, told.ratio, told.low, told.high, told.pairs) == ("faster", 2.0, 2.0, 2.0, 3)
    assert race(itertools.repeat((1.0, 2.0))).decision == "not faster"


def test_less_than_is_worth_a_change_is_not_faster():
    told = race(itertools.repeat((1.01, 1.0)))
    assert told.low > 1
    assert told.ratio < GAIN
    assert told.decision == "not faster"


def test_the_interval_is_students_with_its_error_shared_among_the_looks():
    pairs = [(1.1, 1.0), (1.0, 1.0), (1.2, 1.1)]
    told = race(pairs, fewest=2, most=5)
    logs = np.log([present / other for present, other in pairs])
    low, high = stats.t.interval(1 - 0.05 / 4, 2, logs.mean(), stats.sem(logs))
    assert (told.low, told.high) == pytest.approx((math.exp(low), math.exp(high)))
    assert told.decision == "undecided"


def test_a_race_that_shows_no_gain_is_given_up():
    ran = iter([(1.0, 0.9), (0.9, 1.0), (1.0, 1.0), (2.0, 1.0), (2.0, 1.0)])
    told = race(ran)
    assert (told.decision, told.pairs) == ("not faster", 3)
    assert told.low < 1 < told.high
    assert race([(1.0, 1.1), (1.0, 1.2), (9.0, 1.0)]).pairs == 2
    assert race([(1.0, 1.1), (1.0, 1.01), (9.0, 1.0)]).pairs == 3


def test_one_pair_has_no_interval():
    told = race([(2.0, 1.0)])
    assert (told.decision, told.ratio, told.pairs) == ("undecided", 2.0, 1)
    assert math.isnan(told.low)
    assert math.isnan(told.high)


def test_no_more_pairs_are_run_than_are_needed():
    ran = []

    def run(name, seconds):
        ran.append(name)
        return seconds

    race(alternating(lambda: run("present", 2.0), lambda: run("other", 1.0)))
    assert ran == ["present", "other", "other", "present", "present", "other"]


@given(
    st.lists(st.tuples(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6)), min_size=1, max_size=12),
    st.integers(2, 5),
    st.integers(5, 9),
)
def test_an_interval_surrounds_its_ratio(pairs, fewest, most):
    told = race(pairs, fewest=fewest, most=most)
    assert 1 <= told.pairs <= min(most, len(pairs))
    if told.pairs > 1:
        assert told.low <= told.ratio * (1 + 1e-9)
        assert told.ratio <= told.high * (1 + 1e-9)
    if told.decision == "faster":
        assert told.low > 1
        assert told.pairs >= fewest


@pytest.mark.parametrize(
    ("pairs", "limits", "words"),
    [
        ([], {}, "one pair or more"),
        ([(0.0, 1.0)], {}, "times above 0"),
        ([(1.0, 1.0)], {"fewest": 1}, "fewest"),
        ([(1.0, 1.0)], {"most": 2}, "most"),
    ],
)
def test_wrong_arguments_are_told(pairs, limits, words):
    with pytest.raises(ValueError, match=words):
        race(pairs, **limits)
