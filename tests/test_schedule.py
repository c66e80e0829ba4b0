"""The plan of a capture: when, how long and why, by a clock that the test turns."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpunb.schedule import LONGEST_S, Planner, Schedule, Seen


class Training:
    """A training simulated second by second: steps of a given time, slowed while a window watches."""

    def __init__(self, schedule, *, step_s=0.1, slow=1.0, overhang=1.5, events=1000.0):
        self.now, self.step_s, self.slow, self.overhang, self.events = 1000.0, step_s, slow, overhang, events
        self.mark, self.plan, self.windows, self.extra = "train", Planner(schedule, self.now), [], 0.0
        self.fails, self.opens = False, False

    def run(self, seconds):
        """Let the training go on; windows are asked for as they are due."""
        end = self.now + seconds
        while self.now < end:
            ask = self.plan.ask(self.now, self.mark)
            if ask.due_s <= self.now:
                self.window(ask)
            else:
                self.steps(min(ask.due_s, end, self.now + 1.0), 1.0)

    def steps(self, until, slow):
        took = []
        while self.now < until:
            took.append((self.mark, self.now, self.now + self.step_s * slow))
            self.now += self.step_s * slow
        self.plan.tell_steps(took)
        return took

    def window(self, ask):
        asked = self.now
        self.plan.tell_asked(asked, self.mark)
        self.windows.append((asked - 1000.0, ask.seconds, ask.why))
        if self.fails:
            self.now += 0.01
            self.plan.tell_window(Seen(asked, 0.0, self.now))
            return
        self.steps(asked + ask.seconds, self.slow)
        watched = self.now - asked
        done = asked + watched * self.overhang
        steps = max(int(watched / (self.step_s * self.slow)) - 1, 0)
        if done > self.now:
            self.steps(done, self.slow)
        self.extra += (self.now - asked) * (1 - 1 / self.slow)
        seen = Seen(asked, watched, self.now, int(self.events * watched), {self.mark: steps}, self.opens)
        self.opens = False
        self.plan.tell_window(seen)

    @property
    def whys(self):
        return [why for _, _, why in self.windows]

    @property
    def slowdown(self):
        return self.extra / (self.now - 1000.0 - self.extra)


# -- to the letter ------------------------------------------------------------------------------------------------


def test_a_fixed_schedule_is_followed_to_the_letter():
    training = Training(Schedule.fixed(window=2.0, every=10.0), slow=3.0)
    training.run(60)
    assert [round(begin) for begin, _, _ in training.windows] == [0, 10, 20, 30, 40, 50]
    assert {seconds for _, seconds, _ in training.windows} == {2.0}
    assert set(training.whys) == {"evenly"}


def test_continuous_asks_back_to_back():
    training = Training(Schedule.continuous(), overhang=1.0)
    training.run(20)
    assert set(training.whys) == {"continuous"}
    assert len(training.windows) == 20


def test_ticks_alone_ask_for_nothing():
    training = Training(Schedule.ticks())
    training.run(100)
    assert training.windows == []
    assert training.plan.ask(training.now).due_s == math.inf


# -- within a budget ----------------------------------------------------------------------------------------------


def test_three_windows_at_the_start_then_one_in_ten_seconds():
    training = Training(Schedule())
    training.run(65)
    assert training.whys[:3] == ["start"] * 3
    assert training.windows[2][0] < 10
    later = [begin for begin, _, _ in training.windows[3:]]
    gaps = [after - before for before, after in itertools.pairwise(later)]
    assert len(later) >= 3
    assert all(gap == pytest.approx(10, abs=1) for gap in gaps)


def test_the_burst_waits_for_steps_where_the_beginning_is_all_compiling():
    plan = Planner(Schedule(), 0.0)
    assert plan.ask(0.0).due_s == 0.0
    plan.tell_asked(0.0)
    plan.tell_window(Seen(0.0, 1.0, 1.2))
    assert plan.ask(2.0).due_s == 10.0  # no step yet: nothing to be learnt that the first window did not show
    plan.tell_steps([("train", 3.0, 3.1)])
    assert plan.ask(3.1) == (3.1, pytest.approx(2.2), "start")


def test_the_whole_run_is_not_slowed_by_more_than_the_budget():
    # small steps that a window slows by half: without a budget one second in ten would cost 7.5 %
    training = Training(Schedule(), step_s=0.005, slow=1.5)
    training.run(600)
    assert training.slowdown <= 0.02 * 1.1
    assert len(training.windows) > 20  # and the budget is spent


def test_the_estimate_is_what_the_windows_cost():
    training = Training(Schedule(), step_s=0.005, slow=1.5)
    training.run(600)
    assert training.plan.overhead(training.now) == pytest.approx(training.slowdown, rel=0.15)


def test_windows_that_cost_nothing_are_estimated_to_cost_nothing():
    training = Training(Schedule(), step_s=0.1, slow=1.0)
    training.run(300)
    assert training.plan.overhead(training.now) < 0.003


def test_no_budget_means_no_window_after_the_start():
    training = Training(Schedule(budget=0), step_s=0.005, slow=1.5)
    training.run(300)
    assert training.whys == ["start"] * 3


@pytest.mark.parametrize(
    ("step_s", "low", "high"), [(0.001, 0.1, 0.11), (0.005, 0.24, 0.26), (0.02, 0.9, 1.0), (0.2, 4.4, 4.5)]
)
def test_a_window_is_as_short_as_50_steps_and_as_long_as_20(step_s, low, high):
    training = Training(Schedule(), step_s=step_s)
    training.run(60)
    assert low <= training.windows[-1][1] <= high


def test_a_window_ends_before_the_limits_of_the_service():
    slow_steps = Training(Schedule(), step_s=20.0)
    slow_steps.run(900)
    assert slow_steps.windows[-1][1] == LONGEST_S
    many_events = Training(Schedule(window=10.0), step_s=0.2, events=1e6)
    many_events.run(100)
    assert many_events.windows[-1][1] == pytest.approx(0.5)


def test_devices_that_lag_behind_get_windows_in_which_their_work_ends():
    plan = Planner(Schedule(), 0.0)
    plan.tell_asked(0.0)
    plan.tell_window(Seen(0.0, 1.0, 1.1, 1000, queue_s=3.0))
    plan.tell_steps([("train", 1.1, 1.2)])
    assert plan.ask(1.2).seconds == 6.0


# -- where it teaches most ----------------------------------------------------------------------------------------


def test_a_phase_that_opens_is_looked_at_again_at_once():
    training = Training(Schedule())
    training.run(95)
    training.opens = True  # the next window ends in operations that none before it saw
    training.run(15)
    at = training.whys.index("new phase")
    assert training.whys.count("new phase") == 1
    assert training.windows[at][0] - training.windows[at - 1][0] < 6


def test_steps_of_a_new_kind_are_looked_at_when_they_run():
    training = Training(Schedule())
    training.run(95)
    training.mark = "test"
    begins = [begin for begin, _, _ in training.windows]
    training.run(4)
    assert "under-sampled" in training.whys[len(begins) :]
    training.run(40)
    assert training.whys.count("under-sampled") == 1  # 20 of them are enough


def test_steps_of_another_pace_are_looked_at_when_they_run():
    training = Training(Schedule(every=60.0))
    training.run(100)
    training.step_s = 0.3  # the same program, but it waits for its input
    training.run(30)
    assert training.whys[-1] == "under-sampled"
    training.run(28)
    assert training.whys.count("under-sampled") == 1


def test_steps_that_no_window_can_hold_are_not_asked_for_without_end():
    training = Training(Schedule(every=100.0), step_s=90.0)
    training.run(1200)
    assert len(training.windows) < 20


def test_what_would_teach_most_waits_until_the_budget_has_paid_for_it():
    training = Training(Schedule(), step_s=0.005, slow=1.5)
    training.run(5)
    spent = len(training.windows)
    training.mark = "test"
    training.run(1)
    assert len(training.windows) == spent
    training.run(60)
    assert "under-sampled" in training.whys


# -- failures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", [Schedule(), Schedule.continuous(), Schedule.fixed(0.1, 0.1)])
def test_windows_that_fail_are_asked_for_ever_more_seldom(schedule):
    training = Training(schedule)
    training.fails = True
    training.run(120)
    begins = [begin for begin, _, _ in training.windows]
    gaps = [after - before for before, after in itertools.pairwise(begins)]
    assert gaps[0] >= 0.2
    assert gaps[-1] >= 5
    assert len(begins) < 40


def test_after_a_window_that_came_the_plan_goes_on():
    training = Training(Schedule.continuous(), overhang=1.0)
    training.fails = True
    training.run(30)
    training.fails = False
    training.run(30)
    assert len([begin for begin, _, _ in training.windows if begin > 35]) >= 20


@given(
    st.lists(st.tuples(st.sampled_from(["train", "test"]), st.floats(0.0001, 30), st.floats(1, 3)), max_size=8),
    st.sampled_from([0.0, 0.01, 0.02, 0.1]),
)
def test_whatever_runs_a_plan_answers_and_its_windows_are_within_limits(stretches, budget):
    training = Training(Schedule(budget=budget))
    for mark, step_s, slow in stretches:
        training.mark, training.step_s, training.slow = mark, step_s, slow
        training.run(20 * step_s)
    assert all(0.01 <= seconds <= LONGEST_S for _, seconds, _ in training.windows)
    overhead = training.plan.overhead(training.now)
    assert overhead is None or overhead >= 0
    assert not math.isnan(training.plan.ask(training.now).due_s)


# -- arguments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"window": 0}, r"The window parameter of Schedule must be in \[0.01, 60\] seconds. Got 0 instead."),
        ({"window": 61}, "Got 61 instead"),
        ({"window": True}, "Got True instead"),
        ({"window": "1"}, "Got '1' instead"),
        ({"every": -1}, "The every parameter of Schedule must be 0 seconds or more. Got -1 instead."),
        ({"every": None}, "Got None instead"),
        ({"burst": -1}, "The burst parameter of Schedule must be an int of 0 or more. Got -1 instead."),
        ({"burst": 1.5}, "Got 1.5 instead"),
        ({"budget": 2}, r"The budget parameter of Schedule must be in \[0, 1\] or None. Got 2 instead."),
        ({"budget": math.nan}, "Got nan instead"),
    ],
)
def test_wrong_parameters_are_told(wrong, words):
    with pytest.raises(ValueError, match=words):
        Schedule(**wrong)


def test_a_slow_down_is_told_once_it_was_measured_a_few_times():
    training = Training(Schedule(), step_s=0.005, slow=1.5)
    training.run(0.5)  # the first windows, and no step outside them yet
    assert training.plan.overhead(training.now) is None
    training.run(300)
    assert training.plan.overhead(training.now) > 0.01


def test_a_run_without_windows_is_slowed_by_none():
    assert Planner(Schedule.ticks(), 0.0).overhead(10.0) == 0.0


def test_a_phase_of_which_hardly_a_step_was_seen_is_looked_at_again_at_once():
    plan = Planner(Schedule(burst=1), 0.0)
    plan.tell_asked(0.0, "train")
    plan.tell_window(Seen(0.0, 1.0, 1.0, 1000, {"train": 30}, scarce=True))
    plan.tell_steps([("train", i / 10, (i + 1) / 10) for i in range(100)])
    assert plan.ask(60.0, "train")[::2] == (60.0, "under-sampled")


def test_of_workers_elsewhere_the_windows_tell_that_steps_run_and_how_long_they_take():
    plan = Planner(Schedule(), 0.0)
    plan.tell_asked(0.0)
    plan.tell_window(Seen(0.0, 1.0, 1.2, 1000, {"train": 9}, step_s=0.1))
    assert plan.ask(1.3) == (1.3, pytest.approx(2.2), "start")


def test_once_what_made_windows_fail_is_over_the_next_is_asked_for_at_once():
    plan = Planner(Schedule.continuous(), 0.0)
    for asked in range(8):
        plan.tell_asked(float(asked))
        plan.tell_window(Seen(float(asked), 0.0, float(asked)))
    assert plan.ask(7.0).due_s == 12.0
    plan.forgive()
    assert plan.ask(7.5).due_s <= 7.5


def test_windows_given_up_at_the_start_do_not_use_up_the_burst():
    training = Training(Schedule())
    training.fails = True
    training.run(5)
    training.fails = False
    training.plan.forgive()
    begun = len(training.windows)
    training.run(8)
    assert training.whys[begun : begun + 3] == ["start"] * 3


def test_checkpoints_are_paid_from_the_budget_and_windows_wait_for_it():
    def windows(saved_s):
        training = Training(Schedule(every=1.0), slow=1.2)
        training.run(30)
        training.plan.tell_saved(saved_s)
        training.run(120)
        return len(training.windows), training

    (without, _), (some, training) = windows(0.0), windows(1.0)
    assert some < without
    assert training.plan.saved_s == 1.0
    assert training.plan.overhead(training.now) > 1.0 / 150
