"""A program that forks during a capture: the run stays whole with the parent, and no child writes or hangs."""

import os
import subprocess
import threading
from dataclasses import replace
from importlib.util import find_spec

import pytest
from warm_python import JAX, TENSORFLOW, warm_python

import tpunb as tp
from tpunb.profiler import session

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here"),
    pytest.mark.skipif(find_spec("jax") is None, reason="jax is not installed"),
]

BEGINNING = """
import faulthandler, multiprocessing, os, sys, threading, time, warnings
warnings.simplefilter("ignore")
import tpunb as tp
from tpunb.profiler.capture import Schedule

FOLDER = sys.argv[1]
SCHEDULE = Schedule.fixed(0.1, 0.15)


def listen():
    '''Note, from now on, what this process opens to write, renames or removes below the run's folder.'''
    touched = []

    def hook(event, given):
        if event == "open" and given[0] is not None and not isinstance(given[0], int):
            if FOLDER in os.fsdecode(given[0]) and not (given[1] or "r").startswith("r"):
                touched.append((event, given[0]))
        elif event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link"):
            if any(FOLDER in os.fsdecode(one) for one in given if isinstance(one, (str, bytes))):
                touched.append((event, *given))

    sys.addaudithook(hook)
    return touched


def fail(*seen):
    print("a child:", *seen, file=sys.stderr, flush=True)
    os._exit(1)


def child(body):
    '''Run `body` in a forked process, and wait for its end.'''
    pid = os.fork()
    if pid == 0:
        faulthandler.dump_traceback_later(120, exit=True)
        touched = listen()
        try:
            body()
        except BaseException as error:
            fail(repr(error))
        if touched:
            fail("touched", touched)
        os._exit(0)
    ended = os.waitpid(pid, 0)[1]
    assert ended == 0, f"the child ended with {ended}"
"""

WITH_JAX = """
if __name__ == "__main__":  # not in workers that import this file
    import jax
    multiply = jax.jit(lambda x: x @ x)


def compute():
    multiply(jax.numpy.ones((64, 64))).block_until_ready()
"""

WATCHED = """
def wait_windows(run):
    goal, until = run.status.windows + 1, time.monotonic() + 120
    while run.status.windows < goal:
        assert time.monotonic() < until, run.status
        compute()
        time.sleep(0.002)


if __name__ == "__main__":
    compute()
"""


def captured(folder, code, *, framework=WITH_JAX, modules=JAX):
    """Run a program in a process of its own; return the run that it captured."""
    script = folder / "program.py"
    script.write_text("\n".join([BEGINNING, framework, WATCHED, code]))
    command = [*warm_python(modules, JAX_PLATFORMS="cpu"), str(script), str(folder / "run")]
    seen = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert seen.returncode == 0, seen.stderr[-4000:]
    assert "a child:" not in seen.stderr, seen.stderr[-4000:]
    assert seen.stdout.endswith("fine\n"), seen.stdout
    return tp.load(folder / "run")


def assert_whole(profile, steps):
    assert profile.stored.frame["step"].to_list() == list(range(steps))
    assert profile.windows["error"].null_count() == profile.windows.height >= 2


CHILDREN = """
def marks_steps():
    for step in range(100, 103):
        with run.step(step):
            pass
    for _ in run.batches(range(3)):
        pass
    run.stop()
    repr(run), run.status


def captures():
    try:
        with tp.capture(FOLDER, schedule=SCHEDULE):
            pass
    except tp.TpunbError:
        return
    fail("captured into the folder of its parent")


with tp.capture(FOLDER, schedule=SCHEDULE) as run:
    for step in range(6):
        with run.step(step):
            compute()
            if step in (2, 4):
                wait_windows(run)
                child(marks_steps if step == 2 else captures)
            elif step == 5:
                wait_windows(run)
assert not [thread for thread in threading.enumerate() if thread.name.startswith("tpunb-")]
print("fine")
"""


def test_forked_children_that_mark_steps_or_capture_leave_no_trace(tmp_path):
    assert_whole(captured(tmp_path, CHILDREN), 6)


LEAVING = """
class Leave(Exception):
    pass


parent, pids, touched = os.getpid(), [], []
try:
    with tp.capture(FOLDER, schedule=SCHEDULE) as run:
        for step in range(6):
            with run.step(step):
                compute()
                if step in (3, 4):
                    wait_windows(run)
                    pids.append(os.fork())
                    if pids[-1] == 0:
                        faulthandler.dump_traceback_later(120, exit=True)
                        touched = listen()
                        if step == 3:
                            raise Leave
                        break
                elif step == 5:
                    wait_windows(run)
except Leave:
    assert os.getpid() != parent
if os.getpid() != parent:
    if touched:
        fail("touched", touched)
    {end}
for pid, leaves in zip(pids, ("by an exception", "by break"), strict=True):
    ended = os.waitpid(pid, 0)[1]
    assert ended == 0, f"the child that left {{leaves}} ended with {{ended}}"
print("fine")
"""


def test_forked_children_that_leave_the_block_write_nothing(tmp_path):
    # not by sys.exit: a child of JAX alone, without any profiler, hangs in it
    assert_whole(captured(tmp_path, LEAVING.format(end="os._exit(0)")), 6)


class Beginning:
    """Stands in for a capture whose first window is not over."""

    def __init__(self, is_due):
        self.settled, self.seen, self.is_due = threading.Event(), [], is_due

    def settle(self):
        session.settle(self.settled, lambda: self.is_due)

    def disown(self):
        self.seen.append("disowned")


@pytest.mark.parametrize(("is_due", "fork_s"), [(False, 0.01), (True, 600.0)], ids=["limit", "window of this thread"])
def test_fork_waits_once_for_the_first_window(is_due, fork_s, monkeypatch):
    monkeypatch.setattr(session, "LIMITS", replace(session.LIMITS, fork_s=fork_s))
    capture = Beginning(is_due)
    session.captures.add(capture)
    try:
        for _ in range(2):
            pid = os.fork()
            if pid == 0:
                os._exit(0 if capture.seen == ["disowned"] else 1)
            assert os.waitpid(pid, 0)[1] == 0
            monkeypatch.setattr(session, "LIMITS", replace(session.LIMITS, fork_s=600.0))  # it does not wait again
            capture.is_due = False
        assert capture.seen == []
    finally:
        session.captures.discard(capture)


POOL = """
def square(x):
    assert sys.getswitchinterval() == BEFORE, "that of the capture's sampler"
    return x * x


BEFORE = sys.getswitchinterval()

if __name__ == "__main__":
    with tp.capture(FOLDER, schedule=SCHEDULE) as run:
        with multiprocessing.get_context("fork").Pool(2) as pool:
            for step in range(20):
                with run.step(step):
                    compute()
                    assert pool.map(square, range(4)) == [0, 1, 4, 9]
                    if step in (5, 19):
                        wait_windows(run)
    print("fine")
"""


def test_a_pool_of_forked_workers_leaves_the_run_whole(tmp_path):
    assert_whole(captured(tmp_path, POOL), 20)


LOADER = """
def load(wanted, loaded):
    for index in iter(wanted.get, None):
        loaded.put((index, [index] * 4))


def batches(context, count):
    '''A loader with two processes, as data loaders have them: asked ahead, handed on in order.'''
    wanted, loaded = context.Queue(), context.Queue()
    workers = [context.Process(target=load, args=(wanted, loaded), daemon=True) for _ in range(2)]
    for worker in workers:
        worker.start()
    for index in range(count):
        wanted.put(index)
    ready = {{}}
    for index in range(count):
        while index not in ready:
            key, batch = loaded.get(timeout=120)
            ready[key] = batch
        yield ready.pop(index)
    for _ in workers:
        wanted.put(None)
    for worker in workers:
        worker.join(120)
        assert worker.exitcode == 0, worker


if __name__ == "__main__":
    with tp.capture(FOLDER, schedule=SCHEDULE) as run:
        for epoch in range(2):
            for batch in run.batches(batches(multiprocessing.get_context({method!r}), 10)):
                compute()
                if batch[0] in (3, 9):
                    wait_windows(run)
    print("fine")
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_loader_with_worker_processes_leaves_the_run_whole(tmp_path, method):
    assert_whole(captured(tmp_path, LOADER.format(method=method)), 20)


WITH_TENSORFLOW = """
import tensorflow as tf
multiply = tf.function(lambda x: x @ x)


def compute():
    multiply(tf.ones((64, 64)))
"""

DATASET = """
def square(x):
    return float(x * x)


def numbers():
    with multiprocessing.get_context("fork").Pool(2) as pool:
        yield from pool.imap(square, range(8))


if __name__ == "__main__":
    data = tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec((), tf.float32)).prefetch(2)
    with tp.capture(FOLDER, schedule=SCHEDULE) as run:
        for epoch in range(2):
            seen = []
            for batch in run.batches(data):
                seen.append(float(batch))
                if len(seen) in (1, 8):
                    wait_windows(run)
            assert seen == [0, 1, 4, 9, 16, 25, 36, 49], seen
    print("fine")
"""


@pytest.mark.skipif(find_spec("tensorflow") is None, reason="tensorflow is not installed")
def test_a_dataset_fed_by_a_pool_leaves_the_run_whole(tmp_path):
    assert_whole(captured(tmp_path, DATASET, framework=WITH_TENSORFLOW, modules=TENSORFLOW), 16)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("tensorflow") is None, reason="tensorflow is not installed")
def test_children_of_tensorflow_that_end_their_interpreter_do_so_at_once(tmp_path):
    code = LEAVING.format(end="sys.exit(0)")
    assert_whole(captured(tmp_path, code, framework=WITH_TENSORFLOW, modules=TENSORFLOW), 6)


@pytest.mark.slow
def test_a_hundred_forks_leave_the_run_whole(tmp_path):
    code = """
with tp.capture(FOLDER, schedule=SCHEDULE) as run:
    for step in range(100):
        with run.step(step):
            compute()
            child(lambda: None)
            if step in (50, 99):
                wait_windows(run)
print("fine")
"""
    assert_whole(captured(tmp_path, code), 100)
