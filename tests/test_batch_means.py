"""Intervals of a difference hold as often as they say."""

import math

import numpy as np
import pytest
from examples import examples
from hypothesis import example, given
from hypothesis import strategies as st

from tpunb.step_stats import batch_means

DRAWS = 10_000


def coverage(a, b, true):
    _, low, high = batch_means.difference(a, b)
    return float(np.mean((low <= true) & (true <= high)))


@pytest.mark.parametrize(
    ("n", "spread", "m", "other"),
    [(2, 0.1, 2, 0.1), (3, 0.1, 10, 0.4), (10, 0.02, 300, 0.2), (50, 0.2, 39, 0.2), (1000, 0.3, 400, 0.05)],
)
def test_intervals_of_step_times_hold_in_95_of_100_draws(n, spread, m, other):
    random = np.random.default_rng(0)
    a, b = random.normal(0, spread, (n, DRAWS)), random.normal(0.27, other, (m, DRAWS))  # logarithms
    assert coverage(a, b, 0.27) >= 0.94


def test_intervals_of_skewed_times_hold_too():
    random = np.random.default_rng(1)
    a, b = (np.log(1 + random.exponential(0.5, (n, DRAWS))) for n in (50, 200))
    assert coverage(a, b + 0.27, 0.27) >= 0.94


def test_intervals_hold_where_steps_resemble_their_neighbours():
    random = np.random.default_rng(2)
    a, b = random.normal(size=(2, 1000, 2000))
    for step in range(1, 1000):  # each is half the one before
        for run in (a, b):
            run[step] = 0.5 * run[step - 1] + math.sqrt(0.75) * run[step]
    assert coverage(a, b + 0.27, 0.27) >= 0.93
    spread = np.sqrt((a.var(axis=0, ddof=1) + b.var(axis=0, ddof=1)) / 1000)
    naive = np.abs(b.mean(axis=0) - a.mean(axis=0)) <= 1.96 * spread
    assert naive.mean() < 0.8  # as if each step told something new


@pytest.mark.parametrize(("like", "n"), [(0.3, 20), (0.6, 39), (0.6, 100), (0.9, 300)])
def test_intervals_hold_however_like_their_neighbours_few_steps_are(like, n):
    random = np.random.default_rng(3)
    a, b = random.normal(size=(2, n, 2000))
    for step in range(1, n):
        for run in (a, b):
            run[step] = like * run[step - 1] + math.sqrt(1 - like**2) * run[step]
    assert coverage(a, b + 0.27, 0.27) >= 0.93


def up_and_down(mean, spread, n, random):
    """`n` values below the mean and above it by turns, each between one and two spreads away."""
    away = spread * random.uniform(1, 2, n)
    return mean + away * (-1) ** np.arange(1, n + 1)


@given(st.integers(2, 60), st.integers(2, 60), st.integers(0, 99))
@examples(30)
@example(4, 2, 0)
def test_of_steps_unlike_their_neighbours_the_interval_is_welchs(n, m, seed):
    from scipy.stats import ttest_ind

    random = np.random.default_rng(seed)
    n, m = min(n, 39), min(m, 39)  # from 40 on steps are put together
    a, b = up_and_down(0, 1, n, random), up_and_down(1, 3, m, random)
    found = ttest_ind(b, a, equal_var=False).confidence_interval(0.95)
    change, low, high = batch_means.difference(a, b)
    assert (low, high) == pytest.approx((found.low, found.high))
    assert change == pytest.approx(b.mean() - a.mean())


def test_there_is_no_interval_of_one_step_of_none_or_of_what_does_not_vary():
    some = np.array([1.0, 2.0, 4.0])
    for a, b in [(some, some[:1]), (some, some[:0]), (np.ones(3), np.full(3, 2.0))]:
        _, low, high = batch_means.difference(a, b)
        assert math.isnan(low)
        assert math.isnan(high)
    _, low, high = batch_means.difference(np.zeros(3), some)  # one side that varies is enough
    assert low < 7 / 3 < high
