"""Times of steps from rounds: what slows a whole round is divided out, outliers do not move the median."""

import numpy as np
import pytest

from tpunb.studies.step_times import step_times

BATCHES = np.array([16, 32, 64, 128, 256, 512, 1024])


def rounds_of(true, seed, count=20):
    """Return rounds on a busy machine: drift of a factor of 3, and 30 % outliers up to three times as slow."""
    drawn = np.random.default_rng(seed)
    drift = 1 + 0.5 * np.sin(np.linspace(0, 5, count) + seed)
    seconds = true * drift[:, None] * np.exp(drawn.normal(0, 0.02, (count, len(true))))
    return np.where(drawn.random(seconds.shape) < 0.3, seconds * drawn.uniform(1.2, 3, seconds.shape), seconds)


def test_a_slow_round_is_divided_out():
    plain = np.array([1.0, 2.0, 3.0, 5.0])
    times = step_times([plain, 3 * plain, plain, plain * 1.5, plain])
    assert [time.median for time in times] == pytest.approx(plain)
    assert [time.high - time.low for time in times] == pytest.approx([0] * 4)


def test_few_points_have_their_own_medians_and_extremes():
    (first, second) = step_times([[1.0, 9.0], [2.0, np.nan], [4.0, np.nan]])
    assert first == (2, 1, 4)
    assert second == (9, 9, 9)


def test_a_point_that_no_round_reached_has_no_time():
    first, missing = step_times([[1.0, np.nan]])
    assert first == (1, 1, 1)
    assert np.isnan(missing).all()


def test_the_interval_is_that_of_order_statistics():
    (time,) = step_times([[float(number)] for number in range(1, 21)])
    assert time == (10.5, 6, 15)  # holds the median of 20 draws at 95.9 %


@pytest.mark.parametrize("seed", range(20))
def test_a_known_knee_is_found_under_drift_and_outliers(seed):
    times = step_times(rounds_of(np.maximum(BATCHES, 256) * 1e-4, seed))
    rate = BATCHES / np.array([time.median for time in times])
    assert BATCHES[np.argmax(BATCHES / np.array([time.low for time in times]) >= 0.95 * rate.max())] == 256
