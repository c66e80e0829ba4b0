"""Races of two settings: right when it is clear, and seldom wrong when it is not."""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tpunb.tuning import racing
from tpunb.tuning.racing import FEWEST_PAIRS, GAIN, MOST_PAIRS, race

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


@cache
def decisions(noise, *, gain=1.0):
    """Return the decisions of races under seeded noise of the logarithm of time."""
    times = np.exp(NOISES[noise](np.random.default_rng(11)))
    times[..., 0] *= gain
    return [race(map(tuple, one.tolist())) for one in times]


@pytest.mark.parametrize("noise", NOISES)
def test_equal_settings_are_seldom_accepted_as_faster(noise):
    accepted = sum(result.decision == "faster" for result in decisions(noise))
    assert accepted <= 0.025 * RACES, "one side of a 95 % interval"


@pytest.mark.parametrize("noise", NOISES)
def test_a_slower_one_is_never_worth_it(noise):
    assert not any(result.decision == "faster" for result in decisions(noise, gain=0.8) if result.ratio < 1)
    assert sum(result.decision == "faster" for result in decisions(noise, gain=0.8)) <= 0.001 * RACES


@pytest.mark.parametrize("noise", ["normal", "a machine that is shared"])
def test_the_interval_holds_the_truth(noise):
    results = decisions(noise, gain=1.3)
    assert np.mean([one.low <= 1.3 <= one.high for one in results]) >= 0.95


def test_a_gain_of_a_tenth_is_found(monkeypatch):
    monkeypatch.setattr(racing, "MOST_PAIRS", 10)
    monkeypatch.setattr(racing, "_QUANTILES", stats.t.ppf(1 - racing.ERROR / 2 / 8, range(1, 10)))
    results = decisions("a machine that is shared", gain=1.1)
    assert np.mean([result.decision == "faster" for result in results]) > 0.9
    assert np.median([result.ratio for result in results]) == pytest.approx(1.1, rel=0.02)


def test_what_is_clear_is_decided_after_three_pairs():
    result = race(itertools.repeat((2.0, 1.0)))
    assert (result.decision, result.ratio, result.low, result.high, result.pairs) == ("faster", 2.0, 2.0, 2.0, 3)
    assert race(itertools.repeat((1.0, 2.0))).decision == "not faster"


def test_less_than_is_worth_a_change_is_not_faster():
    result = race(itertools.repeat((1.01, 1.0)))
    assert result.low > 1
    assert result.ratio < GAIN
    assert result.decision == "not faster"


def test_the_interval_is_students_with_its_error_shared_among_the_looks():
    pairs = [(1.1, 1.0), (1.0, 1.0), (1.2, 1.1)]
    result = race(pairs)
    logs = np.log([present / other for present, other in pairs])
    low, high = stats.t.interval(1 - 0.05 / 4, 2, logs.mean(), stats.sem(logs))
    assert (result.low, result.high) == pytest.approx((math.exp(low), math.exp(high)))
    assert result.decision == "undecided"


def test_a_race_that_shows_no_gain_is_given_up():
    ran = iter([(1.0, 0.9), (0.9, 1.0), (1.0, 1.0), (2.0, 1.0), (2.0, 1.0)])
    result = race(ran)
    assert (result.decision, result.pairs) == ("not faster", 3)
    assert result.low < 1 < result.high
    assert race([(1.0, 1.1), (1.0, 1.2), (9.0, 1.0)]).pairs == 2
    assert race([(1.0, 1.1), (1.0, 1.01), (9.0, 1.0)]).pairs == 3


def test_one_pair_has_no_interval():
    result = race([(2.0, 1.0)])
    assert (result.decision, result.ratio, result.pairs) == ("undecided", 2.0, 1)
    assert math.isnan(result.low)
    assert math.isnan(result.high)


@given(st.lists(st.tuples(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6)), min_size=1, max_size=12))
def test_an_interval_surrounds_its_ratio(pairs):
    result = race(pairs)
    assert 1 <= result.pairs <= min(MOST_PAIRS, len(pairs))
    if result.pairs > 1:
        assert result.low <= result.ratio * (1 + 1e-9)
        assert result.ratio <= result.high * (1 + 1e-9)
    if result.decision == "faster":
        assert result.low > 1
        assert result.pairs >= FEWEST_PAIRS


@pytest.mark.parametrize(("pairs", "words"), [([], "one pair or more"), ([(0.0, 1.0)], "times above 0")])
def test_wrong_arguments_raise(pairs, words):
    with pytest.raises(ValueError, match=words):
        race(pairs)


def test_a_race_that_is_won_goes_on_until_its_interval_is_narrow():
    wide = [(4.0, 1.0), (2.9, 1.0), (3.4, 1.0)]
    assert race(wide).decision == "faster"
    drawn = iter([*wide, (3.3, 1.0), (3.4, 1.0), (3.3, 1.0), (3.4, 1.0)])
    result = race(drawn, narrow=1.5)
    assert (result.decision, result.pairs) == ("faster", 6)
    assert len(list(drawn)) == 1, "the seventh pair is beyond the last check"
    short = race([*wide, (0.1, 1.0)], narrow=1.5)
    assert (short.decision, short.pairs) == ("faster", 3), "the last check that showed a gain"


def test_quantiles_are_those_of_scipy():
    checks = racing.MOST_PAIRS - racing.FEWEST_PAIRS + 1
    expected = stats.t.ppf(1 - racing.ERROR / 2 / checks, range(1, racing.MOST_PAIRS))
    assert [*expected] == pytest.approx(racing._QUANTILES, rel=1e-9)
