"""The time that windows cost, of steps whose times are spelled out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpunb.profiler.limits import LIMITS
from tpunb.profiler.window_cost import TimedStep, WindowCosts


def run(costs, times, start_s=0.0, kind="train"):
    """Add steps one after another; return the end of the last."""
    for time_s in times:
        costs.add(TimedStep(kind, start_s, start_s + time_s))
        start_s += time_s
    return start_s


def test_cost_is_what_steps_take_beyond_those_around_them():
    costs = WindowCosts()
    now = run(costs, [0.1] * 10)
    costs.open(now)
    done = run(costs, [0.15] * 10, now)  # ten steps that take 50 ms longer
    costs.close(now, now, done)
    run(costs, [0.1] * 10, done)
    value, low, high = costs.cost
    assert value == pytest.approx(0.5)
    assert low == pytest.approx(0.5)
    assert high == pytest.approx(0.5)  # none of these times varies
    assert costs.share == pytest.approx((0.5 + LIMITS.guessed_cost_share * 0.3) / 1.8)


def test_first_window_is_compared_with_the_steps_after_it():
    costs = WindowCosts()
    costs.open(0.0)
    done = run(costs, [0.15] * 10)
    costs.close(0.0, 0.0, done)
    assert not costs.measured
    run(costs, [0.1] * 3, done)
    assert costs.measured
    assert costs.cost.value == pytest.approx(0.5)


def test_kinds_of_steps_are_compared_with_their_own():
    costs = WindowCosts()
    now = run(costs, [0.01] * 20, run(costs, [0.1] * 20), "eval")
    costs.open(now)
    done = run(costs, [0.02] * 20, now, "eval")
    costs.close(now, now, done)
    assert costs.cost.value == pytest.approx(0.2)


def test_time_without_comparable_steps_is_lost_at_the_same_rate():
    costs = WindowCosts()
    now = run(costs, [0.1] * 20)
    costs.open(now)
    traced = run(costs, [0.2] * 10, now)
    costs.close(now, now, traced + 2.0)  # then two seconds between steps
    value, low, high = costs.cost
    assert value == pytest.approx(1.0 + 2.0 * costs.share)
    assert high - low >= 4.0 * costs.share * 0.99


def test_cost_of_windows_in_compilation_is_a_guess_with_a_wide_interval():
    costs = WindowCosts()
    costs.open(0.0)
    costs.close(0.0, 0.0, 3.0)
    run(costs, [0.1] * 10, 5.0)
    assert costs.cost.value == pytest.approx(3.0 * LIMITS.guessed_cost_share)
    assert costs.cost.low == 0.0
    assert costs.cost.high == pytest.approx(6.0 * LIMITS.guessed_cost_share)


def test_stall_in_a_window_is_not_taken_for_its_cost():
    costs = WindowCosts()
    now = run(costs, [0.1] * 20)
    costs.open(now)
    done = run(costs, [0.1] * 10 + [9.0] + [0.1] * 10, now)
    costs.close(now, now, done)
    assert costs.cost.value < 0.5


def test_callbacks_are_no_cost():
    costs = WindowCosts()
    now = run(costs, [0.1] * 20)
    costs.open(now)
    costs.add(TimedStep("train", now, now + 0.3, 0.0, 0.2))
    costs.close(now, now, now + 0.3)
    assert costs.cost.value == pytest.approx(0.2 * costs.share)


def test_window_that_waited_for_a_framework_begins_later():
    costs = WindowCosts()
    costs.open(0.0)
    begin = run(costs, [0.1] * 10)
    done = run(costs, [0.2] * 10, begin)
    costs.close(0.0, begin, done)
    assert costs.cost.value == pytest.approx(1.0)


def test_windows_requested_while_the_last_is_reduced_share_no_time():
    costs = WindowCosts()
    now = run(costs, [0.1] * 20)
    costs.open(now)
    second = run(costs, [0.15] * 10, now)
    costs.open(second)
    reduced = run(costs, [0.15] * 5, second)
    costs.close(now, now, reduced)
    done = run(costs, [0.15] * 5, reduced)
    costs.close(second, second, done)
    assert costs.cost.value == pytest.approx(20 * 0.05)


def test_drift_between_before_and_after_widens_the_interval():
    def width(after_s):
        costs = WindowCosts()
        now = run(costs, [0.1] * 50)
        costs.open(now)
        done = run(costs, [0.2] * 10, now)
        costs.close(now, now, done)
        run(costs, [after_s] * 50, done)
        return costs.cost.high - costs.cost.low

    assert width(0.1) < 0.01
    assert width(0.14) >= 2 * 2 * 10 * 0.02


@given(
    st.lists(st.lists(st.floats(1e-4, 2.0), min_size=1, max_size=8), min_size=1, max_size=12),
)
def test_cost_is_within_its_interval_and_below_the_time_of_windows(stretches):
    costs, now, spans = WindowCosts(), 0.0, 0.0
    for number, times in enumerate(stretches):
        begin = now
        if number % 2:
            costs.open(begin)
        now = run(costs, times, begin)
        if number % 2:
            costs.close(begin, begin, now)
            spans += now - begin
    value, low, high = costs.cost
    assert 0 <= low <= value <= high
    assert value <= spans + 1e-9
    assert 0 <= costs.share <= 0.95
