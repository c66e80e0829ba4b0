"""The stack of the training thread is sampled, most of all while a step, or the gap between steps, lasts too long."""

import linecache
import operator
import os
import queue
import sys
import threading
import time
from contextlib import contextmanager
from traceback import walk_stack

import pytest
from capture_loops import until
from optional import lazy
from sampled_stacks import imported, place_of

from tpunb import schema
from tpunb.profiler import stall_sampler
from tpunb.profiler.limits import LIMITS
from tpunb.profiler.stall_sampler import Place, Progress, Stall, StallSampler, Where
from tpunb.step_stats.sample_places import Stacks
from tpunb.text import cut

tf = lazy("tensorflow")
MS = 1_000_000
WHERE = Where(3, ())
PROGRAM = """\
import ctypes
import queue
import time

def on_epoch_end(seconds):
    time.sleep(seconds)

def hold_the_lock(seconds):
    hold = ctypes.PyDLL(None).usleep
    hold(int(seconds * 1e6))

def wait(box):
    return box.get(timeout=600)

def secret(seconds, password="hunter2"):
    (["hunter3"], time)[len(password) == 7].sleep(
        seconds
    )

def recurse(depth, seconds):
    return recurse(depth - 1, seconds) if depth else time.sleep(seconds)

def imports():
    import slow_module

def call(function):
    function(None)
"""
LIBRARY = """\
import time

def call(function, *args):
    return function(*args)

def until(event):
    while not event.is_set():
        time.sleep(0.01)
"""


class Waits:
    """A module ``time`` whose ``sleep`` waits for an item of a queue, in C as the real one."""

    sleep = operator.methodcaller("get")


def gate():
    return queue.SimpleQueue()


@pytest.fixture
def program(tmp_path):
    program = imported(tmp_path / "program.py", PROGRAM, "program")
    program.time = Waits
    return program


@pytest.fixture
def library(tmp_path):
    """A module that is installed like a framework."""
    return imported(tmp_path / "site-packages" / "framework.py", LIBRARY, "framework")


class Training:
    """A training whose progress the sampler asks for."""

    def __init__(self, typical_ms=1, account=None):
        self.now, self.asked = Progress(None, None, None, account, typical_ms * MS), 0

    def __call__(self):
        self.asked += 1
        return self.now

    def progress(self, step=None, since_ns=None):
        since_ns = time.monotonic_ns() if since_ns is None else since_ns
        self.now = self.now._replace(thread=threading.get_ident(), since_ns=since_ns, step=step)

    def pause(self):
        self.now = self.now._replace(since_ns=None)


@contextmanager
def sampling(training, **options):
    """Start a sampler, and stop it at the end of the block."""
    sampler = StallSampler(training, **options)
    sampler.start()
    try:
        yield sampler
    finally:
        sampler.stop()
        assert not sampler._thread.is_alive()
        assert sampler.failure is None


# -- when ------------------------------------------------------------------------------------------------------------


class Looks:
    """A sampler that looks when the test says so, on a simulated clock; all stacks are one."""

    def __init__(self, monkeypatch, training):
        self.now_ns, self.training = 0, training
        self.sampler = StallSampler(training, clock=lambda: self.now_ns)
        self.stacks, self.goes_on = 0, False
        monkeypatch.setattr(stall_sampler, "stacks", self._stacks)
        monkeypatch.setattr(self.sampler, "_where", lambda *_: WHERE)

    def _stacks(self):
        self.stacks += 1
        if self.goes_on:
            self.progress(self.now_ns // MS)
        return {threading.get_ident(): []}

    def progress(self, ms, step=None):
        self.training.progress(step, ms * MS)

    def at(self, *moments_ms, late_ms=0):
        """Look at these moments; return the stalls that have ended."""
        for ms in moments_ms:
            self.now_ns = ms * MS
            self.sampler._look(late_ms * MS)
        return self.sampler.take()


def test_a_stall_has_its_times_its_step_and_its_account(monkeypatch):
    looks = Looks(monkeypatch, Training(account="callbacks"))
    looks.progress(1000, step=7)
    assert looks.at(1050, 1100) == []
    assert looks.stacks == 2  # it is no stall yet, and looked at 50 times a second
    assert looks.at(1150, 1200) == []
    looks.progress(1630, step=8)
    places = (Place(WHERE, 2, False),)
    assert looks.at(1650) == [Stall(1000 * MS, 1630 * MS, 7, "callbacks", 2, places)]
    assert looks.at(1660) == []


def test_a_late_sample_is_marked_as_locked_and_counts_as_those_that_it_replaces(monkeypatch):
    looks = Looks(monkeypatch, Training())
    looks.progress(0)
    looks.at(620, late_ms=600)
    looks.training.pause()
    ((*_, samples, places),) = looks.at(700)
    assert samples == 31
    assert places == (Place(WHERE, 31, True),)


def test_what_runs_after_a_stall_is_not_its_place(monkeypatch):
    looks = Looks(monkeypatch, Training())
    looks.progress(1000, step=7)
    looks.at(1150)
    looks.goes_on = True  # between the look at the progress and that at the stack
    looks.at(1620, late_ms=600)
    places = (Place(WHERE, 1, False),)
    assert looks.at(1700) == [Stall(1000 * MS, 1620 * MS, 7, None, 1, places)]


def test_steps_that_progress_are_no_stalls_and_looked_at_50_times_a_second(monkeypatch):
    looks = Looks(monkeypatch, Training(typical_ms=1000))
    for step in range(10):
        looks.progress(4000 * step, step)
        assert looks.at(4000 * step + 3900) == []
    assert looks.stacks == 10
    looks.progress(39_905, 10)
    assert looks.at(39_910, 39_918) == []
    assert looks.stacks == 10
    samples = looks.sampler.take_samples("vm", 1000 * MS)
    assert samples["start_ps"].to_list() == [(4000 * step + 2900) * MS * 1000 for step in range(10)]
    assert samples["stack"].unique().to_list() == [WHERE.stack]


def test_a_late_sample_stands_for_those_that_it_replaces(monkeypatch):
    looks = Looks(monkeypatch, Training(typical_ms=1000))
    looks.progress(0)
    for ms in range(0, 1000, 50):  # each 30 ms late, since code in C holds the lock
        looks.at(ms, late_ms=30)
    samples = looks.sampler.take_samples("vm", 0)
    assert len(samples) == 19
    assert 48 <= samples["stands_for"].sum() <= 50
    assert samples["late"].all()


def test_looks_are_rarer_after_ten_seconds_and_stand_for_two_samples_then(monkeypatch):
    looks = Looks(monkeypatch, Training(typical_ms=100_000))
    looks.progress(0)
    at_ms, rests_ms = 1, []
    while at_ms < 20_000:
        looks.now_ns = at_ms * MS
        rests_ms.append(looks.sampler._look(0) // MS)
        at_ms += rests_ms[-1]
    assert set(rests_ms[:499]) == {20}
    assert set(rests_ms[500:]) == {40}
    taken = looks.sampler.take_samples("vm", 0)
    late = taken["start_ps"] > 10_001 * MS * 1000
    assert taken.filter(~late)["stands_for"].sum() == pytest.approx(500, abs=2)
    assert taken.filter(late)["stands_for"].sum() == pytest.approx(500, abs=2)  # of half as many looks
    assert len(taken.filter(late)) == pytest.approx(250, abs=2)


def test_while_it_runs_threads_give_up_the_lock_soon_unless_the_program_has_set_that(monkeypatch):
    def interval(while_it_runs):
        sampler = StallSampler(lambda: stall_sampler.Progress(None, None, None, None, 0))
        sampler.start()
        during = sys.getswitchinterval()
        while_it_runs()
        sampler.stop()
        return during

    before = sys.getswitchinterval()
    try:
        assert interval(lambda: None) == pytest.approx(LIMITS.switch_s)
        assert sys.getswitchinterval() == before
        interval(lambda: sys.setswitchinterval(0.002))
        assert sys.getswitchinterval() == pytest.approx(0.002)
        sys.setswitchinterval(LIMITS.switch_s / 2)
        interval(lambda: sys.setswitchinterval(LIMITS.switch_s))
        assert sys.getswitchinterval() == pytest.approx(LIMITS.switch_s)
    finally:
        sys.setswitchinterval(before)


def test_two_stalls_are_taken_once(monkeypatch):
    looks = Looks(monkeypatch, Training())
    looks.progress(100, step=1)
    looks.at(250)
    looks.progress(400, step=2)
    (first,) = looks.at(550)
    looks.training.pause()
    (second,) = looks.at(800)
    assert (first.start_ns, first.end_ns, first.step) == (100 * MS, 400 * MS, 1)
    assert (second.start_ns, second.end_ns, second.step) == (400 * MS, 800 * MS, 2)
    assert looks.at(900) == []


def test_nothing_is_sampled_when_disabled():
    training = Training()
    with sampling(training, enabled=False) as sampler:
        assert not sampler._thread.is_alive()
    assert training.asked == 0


def test_a_stall_still_open_at_stop_lasts_until_then():
    training = Training()
    training.progress(3)
    with sampling(training) as sampler:
        until(lambda: sampler._open is not None)
    (stall,) = sampler.take()
    assert (stall.step, stall.start_ns) == (3, training.now.since_ns)
    assert stall.start_ns < stall.end_ns
    assert stall.samples >= 1
    stack = Stacks(sampler.stacks.unwritten("vm"))
    assert stack.place(*stall.places[0].where, None).startswith("capture_loops.py:")  # where `until` waits
    assert sampler.take() == []


@pytest.mark.live
def test_code_that_holds_the_interpreter_lock_is_marked(program):
    training = Training()
    with sampling(training) as sampler:  # in this thread: one that waits for the lock too might get it first
        for _ in range(20):  # another thread of this process may get it first
            training.progress(7)
            program.hold_the_lock(0.6)
            training.pause()
            asked = training.asked
            until(lambda asked=asked: training.asked > asked + 2)
            if locked := [place for stall in sampler.take() for place in stall.places if place.locked]:
                break
    stacks = Stacks(sampler.stacks.unwritten("vm"))
    assert stacks.place(*locked[0].where, None) == "program.py:10 in hold_the_lock ← hold"
    assert locked[0].samples >= 5  # it counts as the samples that it replaces


# -- places ----------------------------------------------------------------------------------------------------------


@contextmanager
def running(function, *args, name="training"):
    """Run a function in a thread until the block ends, which sets the events and opens the gates in its arguments."""
    thread = threading.Thread(target=lambda: function(*args), name=name)
    thread.start()
    try:
        yield thread
    finally:
        for each in args:
            if isinstance(each, threading.Event):
                each.set()
            elif hasattr(each, "put"):
                each.put(None)
        thread.join()


def place(thread, account, expected):
    """Return the place of a thread: at most a minute later it is there."""
    end = time.monotonic() + 60
    while True:
        text = place_of(thread.ident, account)
        if text == expected or time.monotonic() > end:
            return text
        time.sleep(0.01)


def test_the_place_is_the_line_of_user_code_and_what_it_calls(program):
    with running(program.on_epoch_end, gate()) as thread:
        expected = "program.py:6 in on_epoch_end ← time.sleep"
        assert place(thread, "callbacks", expected) == expected


@pytest.mark.parametrize("account", [None, "data loading"])
def test_a_thread_that_a_library_waits_for_is_the_place(program, library, account):
    """A framework waits in the training thread while its worker runs the user's function."""
    with (
        running(library.until, threading.Event()) as thread,
        running(library.call, program.on_epoch_end, gate(), name="worker"),
    ):
        expected = "program.py:6 in on_epoch_end ← time.sleep"
        assert place(thread, account, expected) == expected


def test_other_threads_do_not_matter_where_the_training_runs_callbacks(program, library):
    with (
        running(library.call, program.recurse, 0, gate()) as worker,
        running(library.call, program.on_epoch_end, gate()) as thread,
    ):
        for each, expected in (
            (worker, "program.py:21 in recurse ← time.sleep"),
            (thread, "program.py:6 in on_epoch_end ← time.sleep"),
        ):
            assert place(each, "callbacks", expected) == expected


def test_a_thread_of_the_program_is_waited_for_only_while_data_are_loaded(program, library):
    """A logger that sleeps looks like a producer that sleeps; a producer that waits for a queue is idle."""

    def user(done):
        library.until(done)

    with (
        running(program.wait, queue.Queue(), name="idle"),
        running(program.on_epoch_end, gate(), name="logger"),
        running(user, threading.Event()) as thread,
    ):
        expected = "program.py:6 in on_epoch_end ← time.sleep"
        assert place(thread, "data loading", expected) == expected
        line = user.__code__.co_firstlineno + 1
        expected = f"test_stall_sampler.py:{line} in user ← library.until"
        assert place(thread, None, expected) == expected


def test_threads_of_the_profiler_are_not_waited_for(program, library):

    def user(done):
        library.until(done)

    with (
        running(library.call, program.on_epoch_end, gate(), name="tpunb-recording") as recording,
        running(user, threading.Event()) as thread,
    ):
        expected = "program.py:6 in on_epoch_end ← time.sleep"
        assert place(recording, "callbacks", expected) == expected  # it is there
        expected = f"test_stall_sampler.py:{user.__code__.co_firstlineno + 1} in user ← library.until"
        assert place(thread, None, expected) == expected


def test_a_place_has_no_values_and_no_control_characters(tmp_path, program):
    with running(program.secret, gate()) as thread:
        expected = "program.py:16 in secret ← ….sleep"
        assert place(thread, None, expected) == expected
    odd = imported(tmp_path / "a\x1b[31m\n\u202eb.py", "import time\nnap = time.sleep\ndef f(s):\n    nap(s)", "odd")
    odd.nap = Waits.sleep
    with running(odd.f, gate()) as thread:
        expected = "a\ufffd[31m\ufffd\ufffdb.py:4 in f ← nap"
        assert place(thread, None, expected) == expected


def test_long_names_are_cut_and_deep_stacks_are_read(tmp_path, program):
    name = "f" * 500
    long = imported(tmp_path / "long.py", f"import time\ndef {name}(s):\n    time.sleep(s)", "long")
    long.time = Waits
    with running(getattr(long, name), gate()) as thread:
        expected = cut(f"long.py:3 in {name} ← time.sleep", 160)
        assert place(thread, None, expected) == expected
        assert len(expected) <= 160
    with running(program.recurse, 600, gate()) as thread:
        expected = "program.py:21 in recurse ← time.sleep"
        assert place(thread, None, expected) == expected


@pytest.mark.parametrize("file", ["<ipython-input-3-0a1b>", "/tmp/ipykernel_42/123456.py"])
def test_a_cell_of_a_notebook_is_user_code(file, monkeypatch):
    source = "def slow(s):\n    time.sleep(s)\n"
    lines = (len(source), None, source.splitlines(keepends=True), file)
    monkeypatch.setitem(linecache.cache, file, lines)  # as IPython does
    cell = {"time": Waits}
    exec(compile(source, file, "exec"), cell)
    with running(cell["slow"], gate()) as thread:
        assert place(thread, None, "cell:2 in slow ← time.sleep") == "cell:2 in slow ← time.sleep"


def test_without_source_the_next_inner_function_is_named(tmp_path, library):
    gone = imported(tmp_path / "gone.py", "def wait(library, done):\n    library.until(done)", "gone")
    (tmp_path / "gone.py").unlink()
    with running(gone.wait, library, threading.Event()) as thread:
        assert place(thread, None, "gone.py:2 in wait ← until") == "gone.py:2 in wait ← until"


def test_the_function_that_is_called_is_named_not_a_patch_around_it(tmp_path):
    installed = """def first(done):
    done.wait()

def second(done):
    done.wait()

def patched(done):
    __tracebackhide__ = True
    first(done)
"""
    library = imported(tmp_path / "site-packages" / "calls.py", installed, "calls")
    gone = imported(tmp_path / "gone.py", "def wait(call, done):\n    call(done)", "gone")
    (tmp_path / "gone.py").unlink()
    for call, name in ((library.patched, "first"), (library.second, "second")):
        with running(gone.wait, call, threading.Event()) as thread:
            assert place(thread, None, f"gone.py:2 in wait ← {name}") == f"gone.py:2 in wait ← {name}"


def test_an_import_is_named(tmp_path, program, monkeypatch, own_name):
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "slow_module.py").write_text(f"import sys\nsys.modules['{own_name}'].get()\n")
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.setitem(sys.modules, own_name, opened := gate())
    monkeypatch.setitem(sys.modules, "slow_module", None)  # which is undone, whatever is imported meanwhile
    monkeypatch.delitem(sys.modules, "slow_module")
    with running(lambda _: program.imports(), opened) as thread:
        expected = "program.py:24 in imports ← import slow_module"
        assert place(thread, None, expected) == expected


def test_a_function_that_autograph_converted_is_named_by_its_own_line(tmp_path):
    source = "import time\ndef step(x, s):\n    if s is not None:\n        time.sleep(s)  # while traced\n    return x"
    traced = imported(tmp_path / "traced.py", source, "traced")
    traced.time = Waits
    with running(tf.function(traced.step), tf.constant(1.0), gate()) as thread:
        expected = "traced.py:4 in step ← time.sleep"
        assert place(thread, None, expected) == expected


def test_a_library_outside_of_user_code_has_no_place(library):
    def text_of(thread):
        def files():
            return {frame.f_code.co_filename for frame, _ in walk_stack(sys._current_frames()[thread.ident])}

        until(lambda: library.__file__ in files())
        return place_of(thread.ident, "callbacks")

    with running(library.until, threading.Event()) as thread:  # which the test calls
        assert text_of(thread).startswith("test_stall_sampler.py:")
    ended = threading.Event()
    thread = threading.Thread(target=library.until, args=[ended])
    thread.start()
    assert text_of(thread) is None
    ended.set()
    thread.join()


# -- trouble ---------------------------------------------------------------------------------------------------------


def test_an_exception_ends_the_sampling_silently():
    class Broken(Training):
        def __call__(self):
            raise KeyError("broken")

    sampler = StallSampler(Broken())
    sampler.start()
    sampler._thread.join(60)
    assert isinstance(sampler.failure, KeyError)
    assert sampler.failure.__traceback__ is None
    sampler.stop()
    assert sampler.take() == []


def test_a_sampler_that_never_started_stops():
    StallSampler(Training()).stop()


@pytest.mark.live
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_stops_at_once():
    with sampling(Training()) as sampler:
        child = os.fork()
        if child == 0:
            sampler.stop()
            os._exit(0 if sampler.take() == [] else 1)
        deadline = time.monotonic() + 120
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        if ended[0] == 0:
            os.kill(child, 9)
            os.waitpid(child, 0)
    assert ended == (child, 0)


def test_rows_are_a_frame_of_stalls():
    places = (Place(Where(3, (5, 4)), 3, False), Place(Where(None, ()), 1, True))
    frame = stall_sampler.rows([Stall(1_000, 3_000, 7, "callbacks", 4, places)], "a", 500)
    assert dict(frame.schema) == schema.STACK_STALLS
    assert frame.rows() == [
        ("a", 500_000, 2_000_000, 7, "callbacks", 0.75, 3, False, 3, [5, 4]),
        ("a", 500_000, 2_000_000, 7, "callbacks", 0.25, 1, True, None, []),
    ]
    assert dict(stall_sampler.rows([], "a", 0).schema) == schema.STACK_STALLS


def test_looks_while_work_is_in_flight_are_marked(monkeypatch):
    looks = Looks(monkeypatch, Training(typical_ms=1000))
    looks.progress(100, step=1)
    looks.training.now = looks.training.now._replace(since_ns=None, computes=True)
    looks.at(200, 300)
    samples = looks.sampler.take_samples("vm", 0)
    assert samples.select("stack", "others", "computes").rows() == [(None, [], True)] * 2


def test_a_stall_counts_each_stack_and_a_bounded_number_of_them():
    stall = stall_sampler._Open(0, None, None)
    for stack in range(600):
        for _ in range(1 + (stack < 10)):
            stall.add(Where(stack, ()), 0)
    kept = stall.stall(10)
    assert kept.samples == 610
    assert [place.samples for place in kept.places] == [2] * 10 + [1] * 502


def test_the_stack_of_a_launch_is_recorded_and_read_by_another_thread(program):
    def launched(_):
        sampler.on_launch("update")

    with sampling(Training()) as sampler:
        program.call(launched)
    program.call(launched)  # it has ended
    samples = sampler.take_samples("vm", 0)
    assert samples.select("event", "stands_for").rows() == [("update", 0)]
    stacks = sampler.stacks.unwritten("vm")
    (stack,) = samples["stack"]
    assert [frame.function for frame in Stacks(stacks).stack(stack)[:2]] == [launched.__qualname__, "call"]
