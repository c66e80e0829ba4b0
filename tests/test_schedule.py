"""When windows are requested, their length and reason, on a simulated clock."""

import itertools
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpunb.profiler.limits import LIMITS
from tpunb.profiler.schedule import Schedule, WindowResult, WindowScheduler
from tpunb.profiler.window_cost import TimedStep

LOOK_S = 0.05  # between two looks at the plan


class Training:
    """A training simulated step by step, slowed while a window is traced, collected and reduced."""

    def __init__(self, schedule, *, step_s=0.1, slow=1.0, collect=0.5, events=1000.0, late=1.0):
        self.now, self.step_s, self.slow, self.collect, self.events = 1000.0, step_s, slow, collect, events
        self.kind, self.plan, self.windows, self.extra = "train", WindowScheduler(schedule, self.now), [], 0.0
        self.late, self.fails, self.opens, self.pending, self.ended, self.full = late, False, False, None, [], Counter()
        self.look_s, self.rest_s, self.steps_done = self.now, LOOK_S, []

    def run(self, seconds):
        """Run steps of the current kind and time, with windows as they are due, for so long."""
        end = self.now + seconds
        while self.now < end:
            self.step(self.kind, min(self.step_s, 10 * seconds))

    def steps(self, *stretches):
        """Run stretches of steps: (kind, number, seconds of each, seconds of each spent waiting for input)."""
        for kind, number, step_s, *input_s in stretches:
            for _ in range(number):
                self.step(kind, step_s, *input_s)

    def step(self, kind, seconds, input_s=0.0):
        """Run one step; kind None is a pause without a step."""
        start, left = self.now, seconds
        while left > 1e-12:
            slow = self.slow if self.pending and self.now < self.pending.done_s else 1.0
            passed = max(min(left * slow, self.look_s - self.now), 1e-9)
            left -= passed / slow
            self.extra += passed * (1 - 1 / slow)
            self.now += passed
            if self.now >= self.look_s - 1e-12:
                self.look(kind, start)
        if kind is not None:
            self.ended.append(TimedStep(kind, start, self.now, input_s * (self.now - start) / seconds))

    def look(self, kind, start):
        """Look at the plan, as the profiling thread does."""
        self.look_s = self.now + self.rest_s
        self.plan.on_steps(self.ended)
        self.steps_done += self.ended
        self.ended = []
        if self.pending and self.now >= self.pending.done_s:
            seen, self.pending = self.pending, None
            begin, end = seen.requested_s, seen.requested_s + seen.traced_s
            inside = [step for step in self.steps_done if step.start_s >= begin and step.end_s <= end]
            full = Counter(step.kind for step in inside) if seen.traced_s else Counter()
            self.full += full
            self.steps_done = []
            self.plan.on_window(seen._replace(full=full, new_phase=self.opens))
            self.windows[-1] = (*self.windows[-1][:3], dict(full))
            self.opens = False
        ask = self.plan.next_window(self.now, kind, 0.0 if kind is None else self.now - start)
        if ask.due_s <= self.now and not self.pending:
            self.plan.on_request(self.now, ask.seconds, kind)
            self.windows.append((round(self.now - 1000.0, 2), ask.seconds, ask.reason, {}))
            traced = ask.seconds * self.late
            done = self.now + traced * (1 + self.collect)
            if self.fails:
                traced, done = 0.0, self.now
            self.pending = WindowResult(self.now, traced, done, int(self.events * traced))

    @property
    def reasons(self):
        return [reason for _, _, reason, _ in self.windows]

    @property
    def begins(self):
        return [begin for begin, *_ in self.windows]

    @property
    def slowdown(self):
        return self.extra / (self.now - 1000.0 - self.extra)


# -- to the letter ------------------------------------------------------------------------------------------------


def test_fixed_schedule_is_followed_exactly():
    training = Training(Schedule.fixed(window=2.0, every=10.0), slow=3.0)
    training.run(60)
    assert [round(begin) for begin in training.begins] == [0, 10, 20, 30, 40, 50]
    assert {seconds for _, seconds, *_ in training.windows} == {2.0}
    assert set(training.reasons) == {"evenly"}


def test_continuous_requests_back_to_back():
    training = Training(Schedule.continuous(), collect=0.0)
    training.run(20)
    assert set(training.reasons) == {"continuous"}
    assert len(training.windows) >= 19


def test_ticks_requests_no_windows():
    training = Training(Schedule.ticks())
    training.run(100)
    assert training.windows == []
    assert training.plan.next_window(training.now).due_s == math.inf


# -- within a budget ----------------------------------------------------------------------------------------------


def test_three_windows_at_the_start_then_one_in_ten_seconds():
    training = Training(Schedule(), slow=1.02)
    training.run(65)
    assert training.reasons[:3] == ["start"] * 3
    assert training.begins[2] < 10
    gaps = [after - before for before, after in itertools.pairwise(training.begins[3:])]
    assert len(gaps) >= 3
    assert all(gap == pytest.approx(10, abs=1) for gap in gaps)


def test_whole_run_is_not_slowed_by_more_than_its_budget():
    # small steps that a window slows by half: without a budget one second in ten would cost 7.5 %
    training = Training(Schedule(budget=0.02), step_s=0.005, slow=1.5)
    training.run(600)
    assert training.slowdown <= 0.02 * 1.1
    assert len(training.windows) > 20  # and the budget is spent


@pytest.mark.parametrize(
    ("step_s", "slow"),
    [(0.0005, 1.5), (0.005, 1.2), (0.005, 1.5), (0.005, 2.0), (0.05, 1.02), (0.05, 1.2)],
)
@pytest.mark.parametrize(
    ("seconds", "budget"), [(5.1, 0.1), (10, 0.1), (19.9, 0.1), (21, 0.05), (59, 0.05), (61, 0.02)]
)
def test_automatic_budget_falls_with_the_age_of_the_run(step_s, slow, seconds, budget):
    training = Training(Schedule(), step_s=step_s, slow=slow)
    training.steps(("train", 1, 1.0))  # compiles
    training.run(seconds - 1)
    assert training.slowdown <= 1.05 * budget
    assert training.full["train"] >= 20


@pytest.mark.parametrize(
    ("lost_s", "age_s"), [(0.0, 0), (0.5, 0), (0.8, 8), (1.0, 10), (1.1, 22), (1.2, 24), (1.3, 65), (4, 200)]
)
def test_age_at_which_a_loss_is_within_the_automatic_budget(lost_s, age_s):
    assert Schedule().age_s(lost_s) == pytest.approx(age_s)


def test_age_at_which_a_loss_is_within_a_fixed_budget():
    assert Schedule(budget=0.05).age_s(1.0) == pytest.approx(20)
    assert Schedule(budget=0).age_s(1.0) > 1e8


@pytest.mark.parametrize("slow", [1.0, 1.2, 1.5])
@pytest.mark.parametrize("seconds", [6, 60, 600])
def test_overhead_is_measured_in_runs_of_any_length(slow, seconds):
    training = Training(Schedule(), step_s=0.005, slow=slow)
    training.run(seconds)
    share, low, high = training.plan.overhead(training.now)
    assert share == pytest.approx(training.slowdown, rel=0.25, abs=0.003)
    assert 0 <= low <= share <= high
    assert low <= training.slowdown <= high + 0.001


def test_overhead_is_unknown_only_without_steps_outside_windows():
    training = Training(Schedule.continuous(), collect=0.0, slow=1.5)
    training.run(20)
    assert training.plan.overhead(training.now) is None
    assert WindowScheduler(Schedule.ticks(), 0.0).overhead(10.0).value == 0.0


def test_no_budget_means_no_window_after_the_start():
    training = Training(Schedule(budget=0), step_s=0.005, slow=1.5)
    training.run(300)
    assert training.reasons == ["start"] * 3


@pytest.mark.parametrize(
    ("step_s", "low", "high"), [(0.001, 0.1, 0.11), (0.005, 0.24, 0.26), (0.02, 0.9, 1.0), (0.2, 2.6, 2.8)]
)
def test_a_window_is_as_short_as_50_steps_and_as_long_as_10(step_s, low, high):
    training = Training(Schedule(), step_s=step_s)
    training.run(60)
    assert low <= training.windows[-1][1] <= high


def test_a_window_ends_before_the_limits_of_the_service():
    slow_steps = Training(Schedule(), step_s=20.0)
    slow_steps.run(2000)
    assert slow_steps.windows[-1][1] == LIMITS.longest_window_s
    many_events = Training(Schedule(window=10.0), step_s=0.2, events=1e6)
    many_events.run(100)
    assert many_events.windows[-1][1] == pytest.approx(0.5)


def test_windows_of_steps_with_100_000_kernels_are_short_from_the_first():
    training = Training(Schedule(), step_s=0.5, slow=1.3, events=2e5)
    training.run(100)
    assert max(seconds * 2e5 for _, seconds, *_ in training.windows) <= LIMITS.most_events


def test_windows_after_one_that_lasted_too_long_are_shorter():
    training = Training(Schedule.fixed(window=1.0, every=20.0))
    training.run(19)
    training.late = 4.0
    training.run(20)  # asked for 1 s, it lasts 4 s
    training.late = 1.0
    training.run(100)
    assert [seconds for _, seconds, *_ in training.windows][:5] == [1.0, 1.0, 0.25, 0.5, 1.0]


def test_devices_that_lag_behind_get_windows_in_which_their_work_ends():
    plan = WindowScheduler(Schedule(), 0.0)
    plan.on_request(0.0)
    plan.on_window(WindowResult(0.0, 1.0, 1.1, 1000, {"train": 3}, queue_s=3.0))
    assert plan.next_window(3.0).seconds == 6.0


# -- where the steps are ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("compile_s", "before"), [(2.0, []), (9.0, []), (60.0, [10.0])])
def test_compilation_gets_at_most_one_window_and_the_steps_after_it_the_next(compile_s, before):
    training = Training(Schedule(), slow=1.0)
    training.steps(("train", 1, compile_s), ("train", 2000, 0.01))
    assert [begin for begin in training.begins if begin < compile_s] == pytest.approx(before, abs=0.1)
    window = training.windows[len(before)]
    assert window[0] == pytest.approx(compile_s + 0.03, abs=0.1)
    assert window[3]["train"] >= 20


def test_two_compilations_in_a_row_get_no_window():
    training = Training(Schedule(), slow=1.2)
    training.steps(("train", 1, 3.0), ("train", 1, 2.5), ("train", 1000, 0.01))  # as Keras on JAX may do
    assert training.begins[0] == pytest.approx(5.54, abs=0.15)
    assert training.windows[0][1] <= 1.0
    assert training.windows[0][3]["train"] >= 20


@pytest.mark.parametrize(("events", "soon"), [(0, True), (100_000, False)])
def test_an_empty_window_that_came_late_is_not_paid_for(events, soon):
    plan = WindowScheduler(Schedule(), 0.0)
    plan.on_request(1.0, 0.25)
    steps = [TimedStep("train", 3.0, 13.0), *(TimedStep("train", 13 + i / 16, 13.06 + i / 16) for i in range(64))]
    plan.on_steps(steps)
    plan.on_window(WindowResult(1.0, 0.25, 17.0, events))
    plan.on_steps([TimedStep("train", 17 + i / 20, 17.05 + i / 20) for i in range(20)])
    assert (plan.next_window(18.0, "train", 0.01).due_s < 19.0) == soon


def test_the_length_of_a_window_ignores_the_compilation():
    training = Training(Schedule(), slow=1.2)
    training.steps(("train", 1, 0.8), ("train", 100, 0.02))
    assert training.windows[0][1] < 1.1


def test_program_without_marks_gets_its_first_window_after_a_second():
    plan = WindowScheduler(Schedule(), 100.0)
    assert plan.next_window(100.0).due_s == 101.0
    assert plan.next_window(101.0) == (101.0, 0.25, "start")
    assert plan.next_window(100.0, "train").due_s == 110.0  # its first step compiles


def test_evaluation_is_traced_in_its_first_two_stretches():
    training = Training(Schedule(), slow=1.3, collect=1.0)
    training.steps(*[("train", 200, 0.02), ("eval", 1, 0.3), ("eval", 100, 0.005)])
    training.steps(*[("train", 200, 0.02), ("eval", 100, 0.005)])
    assert training.full["eval"] >= 20
    assert training.full["train"] >= 20


@pytest.mark.parametrize("slow", [1.1, 1.3, 1.5])
def test_kinds_that_last_a_twentieth_of_a_short_run_are_traced(slow):
    training = Training(Schedule(), slow=slow, collect=1.0)
    for _ in range(4):
        training.steps(("train", 1, 0.3), ("train", 60, 0.02), ("eval", 50, 0.005))
    training.steps((None, 1, 0.2), ("predict", 1, 0.4), ("predict", 150, 0.004))
    assert all(training.full[kind] >= 20 for kind in ("train", "eval", "predict"))
    assert training.slowdown < 0.1


def test_stall_gets_no_window_of_its_own():
    training = Training(Schedule(), slow=1.2)
    training.steps(("train", 1, 1.0), ("train", 5, 0.02), ("train", 1, 8.0), ("train", 300, 0.02))
    assert [begin for begin in training.begins if 1.3 < begin < 9.0] == []
    assert training.full["train"] >= 20


@pytest.mark.parametrize("stall_s", [0.5, 2.0, 10.0])
def test_steps_between_frequent_stalls_are_traced(stall_s):
    training = Training(Schedule(), slow=1.2)
    for _ in range(20):
        training.steps(("train", 20, 0.02), ("train", 1, stall_s))
    assert training.full["train"] >= 20


def test_pause_between_fits_gets_no_window_of_the_start():
    training = Training(Schedule(), slow=1.2)
    training.steps(("train", 1, 1.0), ("train", 4, 0.02), (None, 1, 8.0), ("train", 1, 0.5), ("train", 300, 0.02))
    assert [begin for begin in training.begins if 1.2 < begin < 9.0] == []
    assert training.full["train"] >= 20


def test_steps_of_another_pace_get_a_window_in_their_first_stretch():
    training = Training(Schedule(), slow=1.2)
    training.steps(("train", 2000, 0.01), ("train", 25, 0.04), ("train", 1000, 0.01))
    assert any(20.5 < begin < 21.3 for begin in training.begins)
    training.steps(("train", 25, 0.04))  # known by now
    assert training.reasons[-1] != "under-sampled" or training.begins[-1] < 30


@pytest.mark.parametrize(("slow", "collect"), [(1.2, 0.2), (2.0, 0.2), (3.0, 0.6)])
def test_each_of_three_paces_gets_a_window_however_much_tracing_slows_steps(slow, collect):
    """A step of 3 ms that takes 6 ms under trace is not one of 5.4 ms."""
    training = Training(Schedule(), slow=slow, collect=collect)
    training.steps(("train", 1, 3.0), ("train", 1300, 0.003), ("train", 740, 0.0054), ("train", 250, 0.016))
    for low, high in ((3.0, 6.9), (6.9, 9.0), (10.9, 13.0)):
        assert any(low < begin < high for begin in training.begins), training.begins


def test_steps_that_wait_for_input_get_a_window_in_their_first_stretch():
    training = Training(Schedule(), slow=1.2)
    training.steps(("train", 2000, 0.01, 0.0), ("train", 70, 0.01, 0.008), ("train", 100, 0.01, 0.0))
    assert any(20.3 < begin < 21.1 for begin in training.begins)


def test_new_phase_gets_a_window_at_once():
    training = Training(Schedule(), slow=1.02)
    training.run(95)
    training.opens = True  # the next window ends in operations that none before it saw
    training.run(15)
    at = training.reasons.index("new phase")
    assert training.reasons.count("new phase") == 1
    assert training.begins[at] - training.begins[at - 1] < 6


def test_kind_is_well_sampled_after_20_steps():
    training = Training(Schedule(), slow=1.02)
    training.run(95)
    before = len(training.windows)
    training.kind = "eval"
    training.run(8)
    assert "under-sampled" in training.reasons[before:]
    training.run(40)
    assert training.reasons.count("under-sampled") <= 2


def test_steps_longer_than_any_window_are_given_up():
    training = Training(Schedule(every=100.0), step_s=90.0)
    training.run(1800)
    assert len(training.windows) < 25


def test_a_window_may_be_reduced_for_long_without_another_request():
    training = Training(Schedule(), step_s=0.01, slow=1.1, collect=60.0)
    training.run(15)
    assert len(training.windows) == 1


# -- failures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", [Schedule(), Schedule.continuous(), Schedule.fixed(0.1, 0.1)])
def test_failing_windows_back_off(schedule):
    training = Training(schedule)
    training.fails = True
    training.run(120)
    gaps = [after - before for before, after in itertools.pairwise(training.begins)]
    assert gaps[0] >= 0.19
    assert gaps[-1] >= 5
    assert len(training.begins) < 40


def test_plan_continues_after_a_successful_window():
    training = Training(Schedule.continuous(), collect=0.0)
    training.fails = True
    training.run(30)
    training.fails = False
    training.run(30)
    assert len([begin for begin in training.begins if begin > 35]) >= 20


@given(
    st.lists(st.tuples(st.sampled_from(["train", "eval"]), st.floats(0.0001, 30), st.floats(1, 3)), max_size=8),
    st.sampled_from([0.0, 0.01, 0.02, 0.1, "auto"]),
)
def test_windows_of_any_plan_are_within_limits(stretches, budget):
    training = Training(Schedule(budget=budget))
    for kind, step_s, slow in stretches:
        training.slow, training.rest_s = slow, max(LOOK_S, step_s / 4)
        training.steps((kind, 20, step_s))
    assert all(0.01 <= seconds <= LIMITS.longest_window_s for _, seconds, *_ in training.windows)
    overhead = training.plan.overhead(training.now)
    assert overhead is None or 0 <= overhead.low <= overhead.value <= overhead.high
    assert not math.isnan(training.plan.next_window(training.now).due_s)


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
        ({"budget": 2}, r"The budget parameter of Schedule must be in \[0, 1\], 'auto' or None. Got 2 instead."),
        ({"budget": math.nan}, "Got nan instead"),
    ],
)
def test_wrong_parameters_raise(wrong, words):
    with pytest.raises(ValueError, match=words):
        Schedule(**wrong)


def test_undersampled_phase_gets_a_window_at_once():
    plan = WindowScheduler(Schedule(burst=1), 0.0)
    plan.on_request(0.0, 1.0, "train")
    plan.on_window(WindowResult(0.0, 1.0, 1.0, 1000, {"train": 30}, undersampled=True))
    plan.on_steps([TimedStep("train", i / 10, (i + 1) / 10) for i in range(100)])
    assert plan.next_window(60.0, "train")[::2] == (60.0, "under-sampled")


def test_remote_steps_are_known_from_windows():
    plan = WindowScheduler(Schedule(), 0.0)
    plan.on_request(1.0)
    plan.on_window(WindowResult(1.0, 1.0, 2.2, 1000, {"train": 9}, step_s=0.1))
    due_s, seconds, reason = plan.next_window(3.3)
    assert (due_s, reason) == (3.3, "start")
    assert 0.3 <= seconds <= 3.2  # steps of 0.1 s


def test_reset_failures_ends_the_backoff():
    plan = WindowScheduler(Schedule.continuous(), 0.0)
    for asked in range(8):
        plan.on_request(float(asked))
        plan.on_window(WindowResult(float(asked), 0.0, float(asked)))
    assert plan.next_window(7.0).due_s == 12.0
    plan.reset_failures()
    assert plan.next_window(7.5).due_s <= 7.5


def test_windows_given_up_at_the_start_do_not_use_up_the_burst():
    training = Training(Schedule())
    training.fails = True
    training.run(5)
    training.fails = False
    training.plan.reset_failures()
    begun = len(training.windows)
    training.run(20)
    assert training.reasons[begun : begun + 3] == ["start"] * 3


def test_checkpoints_are_paid_from_the_budget_and_windows_wait_for_it():
    def windows(saved_s):
        training = Training(Schedule(every=1.0), slow=1.2)
        training.run(30)
        training.plan.on_saved(saved_s)
        training.run(120)
        return len(training.windows), training

    (without, _), (some, training) = windows(0.0), windows(1.0)
    assert some < without
    assert training.plan.saved_s == 1.0
    assert training.plan.overhead(training.now).value > 1.0 / 150


def test_window_may_fail_while_the_one_before_is_reduced():
    plan = WindowScheduler(Schedule.continuous(), 0.0)
    plan.on_request(1.0, 1.0)
    plan.on_request(2.0, 0.1)
    plan.on_window(WindowResult(2.0, 0.0, 2.1))  # the second fails at once
    plan.on_window(WindowResult(1.2, 1.0, 2.5))  # the first began late
    assert plan.next_window(3.0).seconds == 1.0  # neither overran


def test_cancelled_request_is_no_window():
    plan = WindowScheduler(Schedule(), 0.0)
    plan.on_request(1.0, 1.0, "train")
    plan.on_cancel()
    plan.on_steps([TimedStep("train", i / 10, (i + 1) / 10) for i in range(10, 40)])
    assert plan.next_window(4.0, "train").due_s == 4.0
