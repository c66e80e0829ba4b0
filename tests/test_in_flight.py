"""When work in flight is done, and the steps it belongs to, with results of a simulated device."""

import threading
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpunb.profiler import loop as loop_module
from tpunb.profiler import step_clock
from tpunb.profiler.in_flight import InFlight
from tpunb.profiler.loop import Loop
from tpunb.profiler.step_clock import StepClock
from tpunb.signals import Spent
from tpunb.step_stats.step_fold import StepTimes

MS = 1_000_000


def until(true):
    """Wait until another thread has made something true."""
    end = time.monotonic() + 120
    while not true():
        assert time.monotonic() < end
        time.sleep(0.0005)


class Result:
    """A result that is ready as the test says so."""

    def __init__(self, error=None, *, ready=False):
        self.error, self.asked = error, 0
        self.waited, self.done = threading.Event(), threading.Event()
        if ready:
            self.done.set()

    def is_ready(self):
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self.done.is_set()

    def block_until_ready(self):
        self.waited.set()
        assert self.done.wait(120)
        if self.error is not None:
            raise self.error


class Device:
    """A device that does one work after the other on a simulated clock, which the host moves."""

    def __init__(self):
        self.now_ns, self.free_ns, self.pending = 10**18, 0, []

    def __call__(self):
        return self.now_ns

    def launch(self, watch, ms):
        """Let the device work for a time; return what `watch` answers of the result."""
        result = Result()
        self.free_ns = max(self.now_ns, self.free_ns) + round(ms * MS)
        answer = watch(result, self.now_ns)
        self.pending.append((self.free_ns, result, answer[0] if isinstance(answer, tuple) else answer))
        return answer

    def spend(self, ms):
        """Let the host take a time, in which the device goes on."""
        end_ns = self.now_ns + round(ms * MS)
        while self.pending and self.pending[0][0] <= end_ns:
            self.now_ns, result, work = self.pending.pop(0)
            until(lambda result=result, work=work: result.waited.is_set() or work.settled or work.superseded)
            result.done.set()
            until(lambda work=work: work.settled)
        self.now_ns = end_ns

    def finish(self):
        """Let the host wait for the device."""
        self.spend(max(0, self.free_ns - self.now_ns) / MS)


@pytest.fixture
def device(monkeypatch):
    device = Device()
    for module in (step_clock, loop_module):
        monkeypatch.setattr(module, "monotonic_ns", device)
    return device


@pytest.fixture
def done_ns():
    times = StepTimes()
    return lambda work: times.done(work.launched_ns, work.done_ns, work.by_ns)


@pytest.fixture
def in_flight(device):
    watching = InFlight(device)
    yield watching
    watching.close()


# -- when work is done ------------------------------------------------------------------------------------------------


def test_work_that_is_waited_for_is_done_when_the_device_is(device, in_flight, done_ns):
    begin_ns = device()
    works = [device.launch(in_flight.watch, 250) for _ in range(4)]
    assert not any(work.settled for work in works)
    device.finish()
    assert [done_ns(work) - begin_ns for work in works] == [250 * MS, 500 * MS, 750 * MS, 1000 * MS]


@pytest.mark.parametrize("result", [None, Result(ready=True)])
def test_work_that_is_ready_at_once_is_done_at_its_launch_without_a_thread(in_flight, result, done_ns):
    work = in_flight.watch(result, 7)
    assert (work.settled, work.done_ns, work.result) == (True, 7, None)
    assert done_ns(work) == 7
    assert in_flight._thread is None


def test_work_does_not_run_any_more_as_soon_as_its_result_is_ready(in_flight):
    first, second = Result(), Result()
    works = [in_flight.watch(result, 7) for result in (first, second)]
    assert all(work.runs for work in works)
    second.done.set()  # the thread still waits for the first
    assert [(work.runs, work.settled) for work in works] == [(True, False), (False, False)]
    first.done.set()
    assert not in_flight.watch(None, 9).runs


def test_deleted_results_end_at_their_launch_or_as_long_after_as_is_usual(device, in_flight, done_ns):
    deleted = in_flight.watch(Result(RuntimeError("deleted")), device())
    until(lambda: deleted.settled)
    assert (deleted.done_ns, deleted.by_ns, deleted.result) == (None, None, None)
    assert done_ns(deleted) == device()
    known = device.launch(in_flight.watch, 30)
    device.finish()
    done_ns(known)
    deleted = in_flight.watch(Result(RuntimeError("deleted")), device())
    until(lambda: deleted.settled)
    assert done_ns(deleted) == device() + 30 * MS


def test_a_result_that_is_deleted_while_it_is_waited_for_is_unknown(device, in_flight):
    result = Result()
    work = in_flight.watch(result, device())
    until(result.waited.is_set)
    result.error = RuntimeError("deleted")
    result.done.set()
    until(lambda: work.settled)
    assert (work.done_ns, work.by_ns) == (None, None)
    after = device.launch(in_flight.watch, 30)  # the thread goes on
    device.finish()
    assert after.done_ns == device()


def test_work_that_the_program_waited_for_too_is_done_by_then(device, in_flight):
    """The thread that waits may get the interpreter lock later than the program."""
    first, second = Result(), Result()
    works = [in_flight.watch(result, device()) for result in (first, second)]
    until(first.waited.is_set)
    first.is_ready = lambda: True
    device.now_ns += 5 * MS
    in_flight.returned(device())
    device.now_ns += 5 * MS
    first.done.set()
    until(second.waited.is_set)
    device.now_ns += 5 * MS
    second.done.set()
    until(lambda: works[1].settled)
    assert [(device() - work.done_ns) // MS for work in works] == [10, 0]


def test_superseded_work_is_not_waited_for(device, in_flight):
    first = device.launch(in_flight.watch, 10)
    result = Result()
    superseded = in_flight.watch(result, device())
    superseded.superseded = True
    last = device.launch(in_flight.watch, 10)
    device.finish()
    assert first.settled
    assert superseded.settled
    assert last.done_ns == device()
    assert (superseded.done_ns, superseded.by_ns, result.asked) == (None, None, 1)  # as it was launched


def test_work_between_two_that_are_known_takes_its_usual_time_but_no_longer_than_until_it_was_seen(
    device, in_flight, done_ns
):
    begin_ns, first = device(), Result()
    works = [in_flight.watch(first, begin_ns)]
    until(first.waited.is_set)
    others = [Result() for _ in range(4)]
    works += [in_flight.watch(result, begin_ns) for result in others]
    for result in others[:3]:
        result.done.set()
    device.now_ns = begin_ns + 100 * MS
    first.done.set()
    until(others[3].waited.is_set)
    device.now_ns = begin_ns + 700 * MS
    others[3].done.set()
    until(lambda: works[-1].settled)
    assert [work.done_ns is None for work in works] == [False, True, True, True, False]
    works[2].by_ns = works[3].by_ns = None  # as if they had been deleted
    done_ms = [(done_ns(work) - begin_ns) // MS for work in works]
    assert done_ms == [100, 100, 200, 300, 700]


def test_nothing_is_waited_for_once_it_is_closed(device, in_flight):
    result = Result()
    before, behind = in_flight.watch(result, device()), in_flight.watch(Result(), device())
    until(result.waited.is_set)
    in_flight.close()
    after = in_flight.watch(Result(), device())
    assert (after.settled, after.done_ns, after.result) == (True, None, None)
    result.done.set()
    in_flight._thread.join(120)
    assert not in_flight._thread.is_alive()
    assert before.settled
    assert (behind.settled, behind.done_ns, behind.result) == (True, None, None)


# -- steps of work in flight ------------------------------------------------------------------------------------------


class Training:
    """A training in a loop with or without marks, on a simulated host and device."""

    def __init__(self, device, marks):
        self.device, self.marks = device, marks
        self.clock = StepClock(lambda kind, number: None)
        self.clock.in_flight.clock = device
        self.clock.adopt()
        self.loop = Loop(self.clock)

    def step(self, ms, *, host_ms=0.04, fetch_ms=0.0):
        """Take a step of the host, with work of the device."""
        device, start_ns = self.device, self.device()
        device.spend(fetch_ms)
        if fetch_ms:
            self.loop.fetched("data", start_ns, device())
        opened = self.clock.begin("train", explicit=True, rule="mark") if self.marks else None
        device.spend(host_ms / 2)
        device.launch(lambda result, now_ns: self.launched(result, now_ns), ms)
        device.spend(host_ms / 2)
        self.clock.end(opened)

    def launched(self, result, now_ns):
        """Launch as the framework does; return the work."""
        self.loop.called("update", now_ns, now_ns, result)
        assert self.loop.failure is None
        return self.clock._latest

    def steps(self):
        """Return all steps once the device is done."""
        self.device.finish()
        self.loop.close()
        self.clock.drain()
        assert self.loop.failure is None
        steps = self.clock.take(final=True)
        assert all(before.end_ns <= after.start_ns for before, after in pairwise(steps))
        return steps

    def close(self):
        self.device.finish()
        self.clock.close()


@pytest.fixture(params=[True, False], ids=["marks", "no marks"])
def training(request, device):
    training = Training(device, request.param)
    yield training
    training.close()


def milliseconds(steps):
    return [(step.end_ns - step.start_ns) / MS for step in steps]


def test_steps_that_run_ahead_last_as_long_as_their_work(training):
    for _ in range(25):
        training.step(250)
    assert training.clock.take() == []  # no work is done yet
    steps = training.steps()
    assert [step.step for step in steps] == [*range(25)]
    assert milliseconds(steps) == pytest.approx([250] * 25, abs=0.1)
    assert all(step.launches_ns is not None and step.launches_ns[1] <= step.start_ns for step in steps[1:])


def test_steps_of_a_host_that_is_slower_than_its_device_are_its_own(training):
    for _ in range(10):
        training.step(5, host_ms=40)
    steps = training.steps()
    lasting = milliseconds(steps)
    # without marks, a step ends with its work: what the host does then is between steps
    assert lasting == pytest.approx([40] * 10 if training.marks else [5] * 10, abs=0.1)
    starts_ns = [step.start_ns for step in steps]
    assert [after - before for before, after in pairwise(starts_ns)] == pytest.approx([40 * MS] * 9, abs=0.1 * MS)
    assert all(step.launches_ns is None for step in steps)


def test_steps_whose_work_is_waited_for_are_taken_as_they_end(training):
    taken = []
    for _ in range(10):
        training.step(30)
        training.device.finish()
        taken.append(len(training.clock.take()))
    assert sum(taken) >= 10 - 3  # where nothing is marked, the first are not known to be steps
    training.steps()


def test_a_save_while_work_is_in_flight_begins_when_it_is_done(training):
    training.step(250)
    start_ns = training.device()
    assert training.clock.take_spans() == []
    training.device.spend(400)
    training.clock.on_spent(Spent("checkpoint save", None, start_ns, training.device()))
    training.device.finish()
    (span,) = training.clock.take_spans()
    (step,) = training.steps() if training.marks else [None]
    assert (span.end_ns - span.start_ns) / MS == pytest.approx(150, abs=0.1)
    assert step is None or step.end_ns == span.start_ns


def test_a_save_that_ends_before_the_work_does_takes_no_time(training):
    training.step(250)
    start_ns = training.device()
    training.device.spend(100)
    training.clock.on_spent(Spent("checkpoint save", None, start_ns, training.device()))
    assert training.clock.take_spans() == []  # it is not known yet
    training.device.finish()
    (span,) = training.clock.take_spans()
    assert span.start_ns == span.end_ns


@pytest.mark.parametrize(("fetch_ms", "waits_ms"), [(100, 0), (400, 150)])
def test_waits_for_input_count_as_far_as_the_device_is_idle(training, fetch_ms, waits_ms):
    for _ in range(10):
        training.step(250, fetch_ms=fetch_ms)
    steps = training.steps()
    assert len(steps) == 10
    assert [step.input_ns / MS for step in steps[1:]] == pytest.approx([waits_ms] * 9, abs=0.1)
    assert milliseconds(steps[1:]) == pytest.approx([max(250, fetch_ms)] * 9, abs=0.2)


TIMES = st.lists(
    st.tuples(
        st.integers(0, 100),  # from launch to launch
        st.none() | st.integers(0, 300),  # from launch to the end of the work, if it is known
        st.none() | st.integers(0, 300),  # to when it was seen to be done, if it is not
    ),
    min_size=1,
)


@given(TIMES)
def test_times_of_steps_never_run_backwards(times):
    now_ns = 10**18
    clock = StepClock(lambda kind, number: None)
    for gap, known, seen in times:
        now_ns += gap
        step = clock.begin("train", explicit=True, rule="mark")
        step.start_ns = now_ns
        work, _ = clock.launch(None, now_ns)
        work.done_ns = None if known is None else now_ns + known
        work.by_ns = None if seen is None else now_ns + seen
        clock.end(step)
        step.end_ns = now_ns
    steps = clock.take(final=True)
    assert len(steps) == len(times)
    assert all(step.start_ns <= step.end_ns for step in steps)
    assert all(before.end_ns <= after.start_ns for before, after in pairwise(steps))
