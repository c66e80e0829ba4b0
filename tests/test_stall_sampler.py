"""Stalls have stacks: the innermost line of user code while a step, or the gap between steps, lasts too long."""

import importlib.util
import linecache
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from tpunb import schema
from tpunb.profiler import stall_sampler
from tpunb.profiler.stall_sampler import Place, Progress, Stall, StallSampler

MS = 1_000_000
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
    return box.get(timeout=30)

def secret(seconds, password="hunter2"):
    (["hunter3"], time)[len(password) == 7].sleep(
        seconds
    )

def recurse(depth, seconds):
    return recurse(depth - 1, seconds) if depth else time.sleep(seconds)

def imports():
    import slow_module
"""
LIBRARY = """\
import time

def call(function, *args):
    return function(*args)

def until(event):
    while not event.is_set():
        time.sleep(0.01)
"""


def imported(path, source, name):
    """Return a module from a file of this source."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def program(tmp_path):
    return imported(tmp_path / "program.py", PROGRAM, "program")


@pytest.fixture
def library(tmp_path):
    """A module that is installed like a framework."""
    return imported(tmp_path / "site-packages" / "framework.py", LIBRARY, "framework")


class Training:
    """A training in a thread, whose progress the sampler asks for."""

    def __init__(self, typical_ms=1, account=None):
        self.now = Progress(None, None, None, account, typical_ms * MS)

    def __call__(self):
        return self.now

    def progress(self, step=None):
        self.now = self.now._replace(thread=threading.get_ident(), since_ns=time.time_ns(), step=step)


@contextmanager
def sampling(training, **options):
    """Start a sampler, and stop it at the end of the block."""
    sampler = StallSampler(training, **options)
    sampler.start()
    try:
        yield sampler
    finally:
        sampler.stop()
        assert sampler.failure is None


def in_thread(function, *args, name="training"):
    thread = threading.Thread(target=function, args=args, name=name)
    thread.start()
    return thread


def stalls_of(function, *args, training=None):
    """Return the stalls while a function runs as step 7 in a thread of its own."""
    training = training or Training()

    def step():
        training.progress(7)
        function(*args)
        training.progress()
        training.now = training.now._replace(since_ns=None)

    with sampling(training) as sampler:
        in_thread(step).join()
    return sampler.take()


def test_a_stall_names_the_line_of_user_code_and_what_it_calls(program):
    before = time.time_ns()
    (stall,) = stalls_of(program.on_epoch_end, 0.6, training=Training(account="callbacks"))
    assert before <= stall.start_ns <= stall.end_ns <= time.time_ns()
    assert stall.end_ns - stall.start_ns >= 600 * MS
    assert (stall.step, stall.account) == (7, "callbacks")
    assert [place.text for place in stall.places] == ["program.py:6 in on_epoch_end ← time.sleep"]
    assert stall.places[0].samples == stall.samples >= 2


def test_code_that_holds_the_interpreter_lock_is_marked(program):
    training = Training()
    with sampling(training) as sampler:  # in this thread: one that waits for the lock too might get it first
        time.sleep(0.3)  # let it look at the clock once
        training.progress(7)
        program.hold_the_lock(0.6)
        training.progress()
    (stall,) = sampler.take()
    assert stall.places[0].text == "program.py:10 in hold_the_lock ← hold"
    assert stall.places[0].locked
    assert stall.places[0].samples >= 5  # it counts as the samples that it replaces


def test_nothing_is_sampled_while_steps_progress(program, monkeypatch):
    training, looks = Training(typical_ms=1000), []
    monkeypatch.setattr(sys, "_current_frames", lambda: looks.append(0) or {})
    with sampling(training) as sampler:
        for step in range(100):
            training.progress(step)
            time.sleep(0.005)
    assert sampler.take() == []
    assert looks == []


def test_nothing_is_sampled_when_disabled(program):
    training = Training()
    with sampling(training, enabled=False) as sampler:
        training.progress()
        program.on_epoch_end(0.3)
    assert sampler.take() == []
    assert all(thread.name != "tpunb-stalls" for thread in threading.enumerate())


def test_a_step_of_usual_length_is_no_stall(program):
    assert stalls_of(program.on_epoch_end, 0.3, training=Training(typical_ms=10_000)) == []


def test_a_stall_still_open_at_stop_lasts_until_then(program):
    training, done = Training(), threading.Event()

    def step():
        training.progress(3)
        program.on_epoch_end(0.8)
        done.set()

    with sampling(training) as sampler:
        thread = in_thread(step)
        time.sleep(0.5)
    end_ns = time.time_ns()
    (stall,) = sampler.take()
    assert (stall.step, stall.start_ns) == (3, training.now.since_ns)
    assert stall.start_ns < stall.end_ns <= end_ns
    thread.join()
    assert sampler.take() == []


def test_two_stalls_are_taken_once(program):
    training = Training()

    def steps():
        for step in (1, 2):
            training.progress(step)
            program.on_epoch_end(0.4)
        training.progress()

    with sampling(training) as sampler:
        in_thread(steps).join()
    first, second = sampler.take()
    assert (first.step, second.step) == (1, 2)
    assert first.end_ns == second.start_ns
    assert sampler.take() == []


# -- places ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("account", [None, "data loading"])
def test_a_thread_that_a_library_waits_for_is_the_place(program, library, account):
    """A framework waits in the training thread while its worker runs the user's function."""
    done = threading.Event()
    worker = in_thread(library.call, program.on_epoch_end, 0.7)
    threading.Thread(target=lambda: (worker.join(), done.set())).start()
    (stall,) = stalls_of(library.until, done, training=Training(account=account))
    assert stall.places[0].text == "program.py:6 in on_epoch_end ← time.sleep"


def test_other_threads_do_not_matter_where_the_training_runs_callbacks(program, library):
    worker = in_thread(library.call, program.on_epoch_end, 0.7)
    training = Training(account="callbacks")
    (stall,) = stalls_of(library.call, program.on_epoch_end, 0.7, training=training)
    assert [place.text for place in stall.places] == ["program.py:6 in on_epoch_end ← time.sleep"]
    worker.join()


def test_a_thread_of_the_program_is_waited_for_only_while_data_are_loaded(program, library):
    """A logger that sleeps looks like a producer that sleeps; a producer that waits for a queue is idle."""
    for account, place in ((None, "in user"), ("data loading", "program.py:6 in on_epoch_end ← time.sleep")):
        done, box = threading.Event(), program.queue.Queue()

        def user(done=done):
            library.until(done)

        idle = in_thread(program.wait, box)
        logger = in_thread(program.on_epoch_end, 0.7)
        closing = in_thread(lambda done=done, logger=logger: (logger.join(), done.set()))
        (stall,) = stalls_of(user, training=Training(account=account))
        box.put(None)
        for thread in (idle, logger, closing):
            thread.join()
        assert place in stall.places[0].text


def test_threads_of_the_profiler_are_not_waited_for(program, library):
    done = threading.Event()
    own = in_thread(lambda: (library.call(program.on_epoch_end, 0.5), done.set()), name="tpunb-recording")

    def user():
        library.until(done)

    (stall,) = stalls_of(user)
    own.join()
    assert stall.places[0].text.endswith("in user ← library.until")


def test_a_place_has_no_values_and_no_control_characters(tmp_path, program):
    (stall,) = stalls_of(program.secret, 0.4)
    assert stall.places[0].text == "program.py:16 in secret ← ….sleep"
    odd = imported(tmp_path / "a\x1b[31m\n\u202eb.py", "import time\nnap = time.sleep\ndef f(s):\n    nap(s)", "odd")
    (stall,) = stalls_of(odd.f, 0.4)
    assert stall.places[0].text == "a\ufffd[31m\ufffd\ufffdb.py:4 in f ← nap"


def test_long_names_are_cut_and_deep_stacks_are_read(tmp_path, program):
    name = "f" * 500
    long = imported(tmp_path / "long.py", f"import time\ndef {name}(s):\n    time.sleep(s)", "long")
    (stall,) = stalls_of(getattr(long, name), 0.4)
    assert stall.places[0].text.startswith("long.py:3 in fff")
    assert len(stall.places[0].text) <= 160
    (stall,) = stalls_of(program.recurse, 600, 0.4)
    assert stall.places[0].text == "program.py:21 in recurse ← time.sleep"


@pytest.mark.parametrize("file", ["<ipython-input-3-0a1b>", "/tmp/ipykernel_42/123456.py"])
def test_a_cell_of_a_notebook_is_user_code(file):
    source = "import time\ndef slow(s):\n    time.sleep(s)\n"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)  # as IPython does
    cell = {}
    exec(compile(source, file, "exec"), cell)
    (stall,) = stalls_of(cell["slow"], 0.4)
    assert stall.places[0].text == "cell:3 in slow ← time.sleep"


def test_without_source_the_next_inner_function_is_named(tmp_path, library):
    done = threading.Event()
    threading.Timer(0.4, done.set).start()
    gone = imported(tmp_path / "gone.py", "def wait(library, done):\n    library.until(done)", "gone")
    (tmp_path / "gone.py").unlink()
    (stall,) = stalls_of(gone.wait, library, done)
    assert stall.places[0].text == "gone.py:2 in wait ← until"


def test_an_import_is_named(tmp_path, program, monkeypatch):
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "slow_module.py").write_text("import time\ntime.sleep(0.5)\n")
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.delitem(sys.modules, "slow_module", raising=False)
    (stall,) = stalls_of(program.imports)
    assert stall.places[0].text == "program.py:24 in imports ← import slow_module"


def test_a_function_that_autograph_converted_is_named_by_its_own_line(tmp_path):
    tf = pytest.importorskip("tensorflow")
    source = "import time\ndef step(x, s):\n    if s > 0:\n        time.sleep(s)  # while traced\n    return x"
    traced = imported(tmp_path / "traced.py", source, "traced")
    (stall,) = stalls_of(tf.function(traced.step), tf.constant(1.0), 0.8)
    assert "traced.py:4 in step ← time.sleep" in [place.text for place in stall.places]
    assert not any("tf__" in (place.text or "") for place in stall.places)


def test_a_stall_outside_of_user_code_has_no_place(library):
    (stall,) = stalls_of(threading.Event().wait, 0.4)  # of the test, which calls it
    assert stall.places[0].text.startswith("test_stall_sampler.py:")
    training, done = Training(), threading.Event()
    thread = in_thread(library.until, done)
    training.now = Progress(thread.ident, time.time_ns(), None, "callbacks", MS)
    with sampling(training) as sampler:
        time.sleep(0.4)
    done.set()
    thread.join()
    (stall,) = sampler.take()
    assert [place.text for place in stall.places] == [None]


@pytest.mark.parametrize(
    ("file", "user"),
    [
        ("/home/a/train.py", True),
        ("train.py", True),
        ("<stdin>", True),
        ("<frozen importlib._bootstrap>", False),
        ("<__array_function__ internals>", False),
        ("/home/a/venv/lib/python3.12/site-packages/keras/src/models/model.py", False),
        ("/usr/lib/python3/dist-packages/numpy/core.py", False),
        ("/tmp/__autograph_generated_filex1.py", False),
        (threading.__file__, False),
        (schema.__file__, False),
        (__file__, True),
    ],
)
def test_user_code_is_what_is_not_installed(file, user):
    assert stall_sampler._is_user_code(file) is user


# -- trouble ---------------------------------------------------------------------------------------------------------


def test_an_exception_ends_the_sampling_silently():
    class Broken(Training):
        def __call__(self):
            raise KeyError("broken")

    sampler = StallSampler(Broken())
    sampler.start()
    sampler._thread.join(10)
    assert isinstance(sampler.failure, KeyError)
    assert sampler.failure.__traceback__ is None
    sampler.stop()
    assert sampler.take() == []


def test_a_stall_in_which_the_clock_jumps_is_dropped(program):
    hour, offset = 3600 * 10**9, [0]
    training = Training()

    def step():
        training.progress(1)
        offset[0] = hour
        program.on_epoch_end(0.5)
        training.progress(2)

    with sampling(training, clock=lambda: time.time_ns() + offset[0]) as sampler:
        time.sleep(0.3)  # let it look at the clock once
        in_thread(step).join()
        training.now = training.now._replace(since_ns=None)
    assert sampler.take() == []


_COLLECTING = """
import gc, threading, time
from tpunb.profiler.stall_sampler import stacks

gc.callbacks.append(lambda phase, facts: time.sleep(0.001))  # lets other threads run
end_s = time.monotonic() + 1
threads = [threading.Thread(target=lambda: [stacks() for _ in iter(lambda: time.monotonic() < end_s, False)])
           for _ in range(2)]
gc.set_threshold(1)
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(gc.isenabled())
"""


def test_garbage_is_not_collected_while_stacks_are_read():
    # before Python 3.11.9 all threads would stop forever
    done = subprocess.run([sys.executable, "-c", _COLLECTING], capture_output=True, text=True, timeout=100)
    assert done.stdout.strip() == "True", done.stderr


def test_a_sampler_that_never_started_stops():
    StallSampler(Training()).stop()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_stops_at_once():
    with sampling(Training()) as sampler:
        child = os.fork()
        if child == 0:
            sampler.stop()
            os._exit(0 if sampler.take() == [] else 1)
        deadline = time.monotonic() + 20
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        if ended[0] == 0:
            os.kill(child, 9)
            os.waitpid(child, 0)
    assert ended == (child, 0)


def test_a_stall_keeps_the_places_with_most_samples():
    stall = stall_sampler._Open(0, None, None)
    for line in range(600):
        for _ in range(1 + (line < 10)):
            stall.add(f"train.py:{line} in f", 0)
    kept = stall.stall(10)
    assert kept.samples == 610
    assert [place.samples for place in kept.places] == [2] * 8


def test_rows_are_a_frame_of_stalls():
    places = (Place("train.py:3 in f ← g", 3, False), Place(None, 1, True))
    frame = stall_sampler.rows([Stall(1_000, 3_000, 7, "callbacks", 4, places)], "a", 500)
    assert dict(frame.schema) == schema.STALLS
    assert frame.rows() == [
        ("a", 500_000, 2_000_000, 7, "callbacks", "train.py:3 in f ← g", 0.75, 3, False),
        ("a", 500_000, 2_000_000, 7, "callbacks", None, 0.25, 1, True),
    ]
    assert dict(stall_sampler.rows([], "a", 0).schema) == schema.STALLS
