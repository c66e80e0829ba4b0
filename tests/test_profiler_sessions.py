"""The program's own profiler gets its profile while windows are requested; patches are removed afterwards."""

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
import types
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from capture_loops import steps_of, wait_more
from profiler_server import address_of_tensorflow
from stand_in import StandIn
from warm_python import JAX, warm_python

import tpunb as tp
from tpunb import instrument
from tpunb.errors import TpunbError
from tpunb.instrument.profiler_sessions import ProfilerArbiter, Sessions
from tpunb.instrument.registry import ImportHook, Library, check_imports
from tpunb.profiler.capture import Schedule
from tpunb.profiler.sources import xla_sessions
from tpunb.profiler.sources.between_steps import BetweenSteps

ROUNDS = 3
LIBRARIES = {
    library.SESSIONS.library.name: library for library in (instrument.tensorflow, instrument.jax, instrument.torch)
}
SESSIONS = [library.SESSIONS for library in LIBRARIES.values()]


class Windows:
    """Real windows of this process, one right after another, with the callbacks of a capture."""

    def __init__(self, framework):
        self.framework, self.guest, self.notices = framework, None, []
        self._watching, self._ended, self._stopped = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.came = 0

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self.on_profiler_start("the test")
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _watch(self):
        while not self._ended.is_set():
            self._watching.set()
            self._stopped.clear()
            try:
                if self.guest is None:
                    self.came += (
                        len(xla_sessions.window(LIBRARIES[self.framework], 30, BetweenSteps(), self._stopped)) > 0
                    )
            except TpunbError:
                pass  # another was first
            finally:
                self._watching.clear()
            self._ended.wait(0.01)

    def on_profiler_start(self, who):
        if threading.current_thread() is self._thread:
            return
        self.notices.append(who)
        self.guest = who
        while self._watching.is_set():
            self._stopped.set()
            time.sleep(0.02)

    def on_profiler_stop(self):
        if threading.current_thread() is not self._thread:
            self.notices.append("go on")
            self.guest = None

    def wait_running(self):
        """Wait until a window has the profiler."""
        end = time.monotonic() + 60
        while not ENABLED[self.framework]():
            assert time.monotonic() < end, "no window began"
            time.sleep(0.01)


ENABLED = {  # whether a session records
    "tensorflow": lambda: import_module("tensorflow.python.profiler.internal._pywrap_traceme").traceme_enabled(),
    "jax": lambda: import_module("jax").profiler.TraceAnnotation.is_enabled(),
}


@contextmanager
def watched(framework):
    with (
        Windows(framework) as windows,
        ProfilerArbiter(windows.on_profiler_start, windows.on_profiler_stop, SESSIONS),
    ):
        yield windows


@contextmanager
def arbitrating(events):
    """Record the calls of the arbiter, without any window."""
    with ProfilerArbiter(events.append, lambda: events.append("go on"), SESSIONS) as arbiter:
        yield arbiter


def files(folder):
    return sorted(path.name for path in folder.rglob("*.xplane.pb") if path.stat().st_size)


def quiet_scalars(monkeypatch):
    """Let Keras' TensorBoard callback do without the package that writes its scalars, and nothing of its profile."""
    if find_spec("tensorboard") is None:
        monkeypatch.setattr(import_module("tensorflow.summary"), "scalar", lambda *_, **__: True)


@pytest.fixture
def tf():
    return pytest.importorskip("tensorflow")


@pytest.fixture
def jax():
    module = pytest.importorskip("jax")
    module.numpy.ones(3) + 1  # it has found its devices
    return module


# -- TensorFlow ------------------------------------------------------------------------------------------------------


@pytest.mark.live
def test_start_and_stop_of_tensorflow_get_their_file_each_time_while_windows_run(tf, tmp_path):
    with watched("tensorflow") as windows:
        for i in range(ROUNDS):
            windows.wait_running()
            tf.profiler.experimental.start(str(tmp_path / str(i)))
            tf.matmul(tf.ones((8, 8)), tf.ones((8, 8)))
            tf.profiler.experimental.stop()
    assert [len(files(tmp_path / str(i))) for i in range(ROUNDS)] == [1] * ROUNDS
    assert windows.came >= ROUNDS
    tf.profiler.experimental.start(str(tmp_path / "later"))
    tf.profiler.experimental.stop()
    assert len(files(tmp_path / "later")) == 1


@pytest.mark.live
def test_functions_imported_before_the_block_are_patched_too(tf, tmp_path):
    from tensorflow.profiler.experimental import Profile, start, stop

    with watched("tensorflow") as windows:
        windows.wait_running()
        start(str(tmp_path / "functions"))
        stop()
        windows.wait_running()
        with Profile(str(tmp_path / "context")):
            tf.ones(3)
    assert len(files(tmp_path / "functions")) == len(files(tmp_path / "context")) == 1


@pytest.mark.live
def test_a_tensorboard_callback_gets_its_profile_while_windows_run(tf, tmp_path, monkeypatch):
    import keras
    import numpy as np

    quiet_scalars(monkeypatch)

    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rows = np.ones((64, 4), "float32"), np.ones((64, 1), "float32")
    with watched("tensorflow") as windows:
        for i in range(ROUNDS):
            windows.wait_running()
            board = keras.callbacks.TensorBoard(str(tmp_path / str(i)), profile_batch=(3, 5))
            windows.wait_running()  # the callback profiles for a moment when it is made, to warm up
            model.fit(*rows, batch_size=8, verbose=0, callbacks=[board])
    assert [len(files(tmp_path / str(i))) for i in range(ROUNDS)] == [1] * ROUNDS


@pytest.mark.live
def test_a_summarys_trace_gets_its_profile_while_windows_run(tf, tmp_path):
    with watched("tensorflow") as windows, tf.summary.create_file_writer(str(tmp_path)).as_default():
        windows.wait_running()
        tf.summary.trace_on(graph=True, profiler=True, profiler_outdir=str(tmp_path))
        tf.function(lambda x: x + 1)(tf.ones(3))
        tf.summary.trace_export("toy", step=0)
    assert len(files(tmp_path)) == 1


@pytest.mark.live
def test_a_client_in_the_program_gets_its_trace_while_windows_run(tf, tmp_path):
    done = threading.Event()

    def compute():
        while not done.wait(0.001):
            tf.matmul(tf.ones((8, 8)), tf.ones((8, 8)))

    busy = threading.Thread(target=compute)  # of an idle program there is no trace
    busy.start()
    try:
        with watched("tensorflow") as windows:
            windows.wait_running()
            tf.profiler.experimental.client.trace(f"grpc://{address_of_tensorflow()}", str(tmp_path), 500)
            windows.wait_running()
    finally:
        done.set()
        busy.join(60)
    assert len(files(tmp_path)) == 1


@pytest.mark.live
def test_refused_start_leaves_no_session(tf, tmp_path):
    events = []
    with Windows("tensorflow") as windows:
        windows.wait_running()
        with arbitrating(events):
            with pytest.raises(tf.errors.AlreadyExistsError, match="Another profiler is running"):
                tf.profiler.experimental.start(str(tmp_path))
            windows.on_profiler_start("the test")
            assert events == ["tensorflow", "go on"]
            tf.profiler.experimental.start(str(tmp_path))
            tf.profiler.experimental.stop()
    assert len(files(tmp_path)) == 1


@pytest.mark.live
def test_second_start_is_refused_and_the_first_continues(tf, tmp_path):
    events = []
    with arbitrating(events):
        tf.profiler.experimental.start(str(tmp_path))
        with pytest.raises(tf.errors.AlreadyExistsError):
            tf.profiler.experimental.start(str(tmp_path))
        assert events == ["tensorflow"]
        tf.profiler.experimental.stop()
        assert events == ["tensorflow", "go on"]
        with pytest.raises(tf.errors.UnavailableError):
            tf.profiler.experimental.stop()
    assert events == ["tensorflow", "go on"]
    assert len(files(tmp_path)) == 1


@pytest.mark.live
def test_a_profile_that_is_not_saved_has_ended_too(tf):
    events = []
    with arbitrating(events):
        tf.profiler.experimental.start("")
        tf.profiler.experimental.stop(save=False)
        assert events == ["tensorflow", "go on"]


@pytest.mark.live
def test_running_profiler_is_never_reported_as_stopped(tf, tmp_path):
    events = []
    with arbitrating(events):
        tf.profiler.experimental.start(str(tmp_path))
    tf.profiler.experimental.stop()
    assert events == ["tensorflow"]
    assert len(files(tmp_path)) == 1


@pytest.mark.live
def test_start_with_wrong_arguments_is_reported_as_stopped(tf):
    events = []
    with arbitrating(events), pytest.raises(TypeError):
        tf.profiler.experimental.start(3)
    assert events == ["tensorflow", "go on"]
    tf.profiler.experimental.start("")
    tf.profiler.experimental.stop(save=False)


# -- JAX -------------------------------------------------------------------------------------------------------------


@pytest.mark.live
def test_traces_of_jax_get_their_file_each_time_while_windows_run(jax, tmp_path):
    with watched("jax") as windows:
        for i in range(ROUNDS):
            windows.wait_running()
            with jax.profiler.trace(str(tmp_path / str(i))):
                jax.numpy.ones(3).block_until_ready()
        windows.wait_running()
        jax.profiler.start_trace(str(tmp_path / "functions"))
        jax.profiler.stop_trace()
    assert [len(files(tmp_path / str(i))) for i in [*range(ROUNDS), "functions"]] == [1] * (ROUNDS + 1)
    assert windows.came > ROUNDS
    with jax.profiler.trace(str(tmp_path / "later")):
        pass
    assert len(files(tmp_path / "later")) == 1


@pytest.mark.live
def test_jax_trace_that_never_began_leaves_no_session(jax, tmp_path):
    events = []
    with Windows("jax") as windows:
        windows.wait_running()
        with arbitrating(events):
            jax.profiler.start_trace(str(tmp_path / "refused"))
            with pytest.raises(RuntimeError, match="Another profiling session"):
                jax.profiler.stop_trace()
            windows.on_profiler_start("the test")
            assert events == ["jax", "go on"]
            with jax.profiler.trace(str(tmp_path / "later")):
                pass
    assert len(files(tmp_path / "later")) == 1


@pytest.mark.live
def test_tensorflow_and_jax_side_by_side_are_both_waited_for(tf, jax, tmp_path):
    events = []
    with arbitrating(events):
        with jax.profiler.trace(str(tmp_path / "jax")):
            tf.profiler.experimental.start(str(tmp_path / "tensorflow"))
            tf.profiler.experimental.stop()
            assert events == ["jax", "tensorflow"]
        assert events == ["jax", "tensorflow", "go on"]
    assert len(files(tmp_path)) == 2


# -- beside a whole capture ------------------------------------------------------------------------------------------


@pytest.mark.live
def test_capture_gives_windows_up_for_the_programs_profiler(tf, tmp_path):
    with tp.capture(tmp_path / "run", schedule=Schedule.continuous(0.3)) as run:
        for name in ("first", "second"):
            wait_more(run, "windows")
            with tf.profiler.experimental.Profile(str(tmp_path / name)), run.step(run.status.steps):
                tf.ones(3) + 1
                wait_more(run, "failed")
        wait_more(run, "windows")
    assert len(files(tmp_path / "first")) == len(files(tmp_path / "second")) == 1
    windows = tp.load(run).windows
    assert set(windows["error"].drop_nulls()) == {"given up: tensorflow was profiling"}
    assert windows["error"].null_count() >= 6
    tf.profiler.experimental.start(str(tmp_path / "later"))
    tf.profiler.experimental.stop()
    assert len(files(tmp_path / "later")) == 1


CAPTURED = """
import sys, jax, tpunb as tp
from tpunb.profiler.capture import Schedule
from capture_loops import wait_more
jax.numpy.ones(3) + 1
with tp.capture(sys.argv[1] + "/run", schedule=Schedule.continuous(0.3)) as run:
    for name in ("first", "second"):
        wait_more(run, "windows")
        with jax.profiler.trace(sys.argv[1] + "/" + name), run.step(run.status.steps):
            (jax.numpy.ones(3) + 1).block_until_ready()
            wait_more(run, "failed")
    wait_more(run, "windows")
windows = tp.load(run).windows
print(sorted(set(windows["error"].drop_nulls())), windows["error"].null_count() >= 6)
"""


@pytest.mark.live
def test_a_capture_of_jax_gives_windows_up_for_the_programs_traces(tmp_path):
    pytest.importorskip("jax")
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    command = [*warm_python(JAX, JAX_PLATFORMS="cpu"), "-c", CAPTURED, str(tmp_path)]
    seen = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert seen.stdout == "['given up: jax was profiling'] True\n", seen.stderr
    assert len(files(tmp_path / "first")) == len(files(tmp_path / "second")) == 1


@pytest.mark.live
def test_a_tensorboard_callback_in_a_captured_fit_gets_its_profile(tf, tmp_path, monkeypatch):
    import keras
    import numpy as np

    quiet_scalars(monkeypatch)
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rows = np.ones((64, 4), "float32"), np.ones((64, 1), "float32")
    board = keras.callbacks.TensorBoard(str(tmp_path / "board"), profile_batch=(3, 5))
    with tp.capture(tmp_path / "run", schedule=Schedule.continuous(0.3)) as run:
        wait_more(run, "windows")
        model.fit(*rows, batch_size=8, verbose=0, callbacks=[board])
    assert len(files(tmp_path / "board")) == 1
    assert steps_of(run) == list(range(8))


@pytest.mark.live
def test_the_programs_profiler_waits_for_a_request_of_programs(tmp_path):
    asked, answer, began = threading.Event(), threading.Event(), []

    class Source(StandIn):
        def programs(self):
            asked.set()
            answer.wait()
            began.append("answered")
            return b""

    def begin():
        run._session.on_profiler_start("jax")
        began.append("began")

    with tp.capture(tmp_path / "run", source=Source()) as run:
        request = threading.Thread(target=run._session._request_programs)
        request.start()
        asked.wait()
        users = threading.Thread(target=begin)
        users.start()
        while run._session._other_profiler is None:
            pass
        users.join(0.2)
        answer.set()
        request.join()
        users.join()
    assert began == ["answered", "began"]


# -- afterwards, and frameworks that come later ----------------------------------------------------------------------


def test_patches_are_removed_afterwards(tf, jax):
    from tensorflow.python.profiler import profiler_client, profiler_v2

    def places():
        classes = profiler_v2._pywrap_profiler.ProfilerSession, jax._src.profiler._profiler.ProfilerSession
        return [*classes, profiler_client._pywrap_profiler_plugin.trace, *sys.meta_path]

    before = places()
    with arbitrating([]):
        assert not set(places()) & set(before[:3])
    assert places() == before
    with pytest.raises(KeyError), arbitrating([]):
        raise KeyError
    assert places() == before


ARRIVAL = """
import sys
from tpunb.instrument import jax, tensorflow
from tpunb.instrument.profiler_sessions import ProfilerArbiter
events = []
with ProfilerArbiter(events.append, lambda: events.append("go on"), [tensorflow.SESSIONS, jax.SESSIONS]):
    assert not {{"tensorflow", "jax"}} & set(sys.modules)
    {code}
    assert events == [{name!r}, "go on"], events
    import {name} as module
    assert "tpunb" not in type(module.__spec__.loader).__module__
    assert module.__loader__ is module.__spec__.loader
assert "tpunb" not in str(sys.meta_path)
print("fine")
"""

LATE = {
    "tensorflow": "import tensorflow as tf; tf.profiler.experimental.start(''); tf.profiler.experimental.stop(False)",
    "jax": "import jax.profiler, tempfile; jax.profiler.start_trace(tempfile.mkdtemp()); jax.profiler.stop_trace()",
}


@pytest.mark.live
@pytest.mark.parametrize("name", [pytest.param("tensorflow", marks=pytest.mark.slow), "jax"])
def test_framework_imported_during_the_block_is_patched(name):
    pytest.importorskip(name)
    code = ARRIVAL.format(name=name, code=LATE[name])
    env = os.environ | {"JAX_PLATFORMS": "cpu"}
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert seen.stdout == "fine\n", seen.stderr


def test_framework_on_the_path_is_patched_when_it_is_imported(toy, monkeypatch, tmp_path, own_name):
    (tmp_path / f"{own_name}.py").write_text(TOY)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys.modules[__name__], "SESSIONS", [toy_sessions(own_name)])
    events = []
    with arbitrating(events):
        module = import_module(own_name)
        module.start()
        module.stop()
    assert events == [own_name, "go on"]
    assert "tpunb" not in type(module.__spec__.loader).__module__
    assert module.__loader__ is module.__spec__.loader
    assert "tpunb" not in str(sys.meta_path)
    sys.modules.pop(own_name)


def test_failing_import_fails_unchanged():
    with arbitrating([]), pytest.raises(ModuleNotFoundError, match="no_such_module_at_all"):
        __import__("no_such_module_at_all")


# -- a framework spelled out: sessions, functions, threads, forks -----------------------------------------------------


TOY = """
class binding:
    class ProfilerSession:
        def start(self, fails=False):
            if fails:
                raise RuntimeError("taken")
        def stop(self):
            pass

session = None

def start(fails=False):
    global session
    session = binding.ProfilerSession()
    session.start(fails)

def stop():
    global session
    if session is None:
        raise ValueError("none runs")
    session.stop()
    session = None
"""


@pytest.fixture
def toy(monkeypatch):
    """A framework of a few lines, and the only one that is listened to."""
    module = types.ModuleType("toy")
    monkeypatch.setitem(sys.modules, "toy", module)
    exec(TOY, vars(module))
    module.profiler = types.SimpleNamespace(start=module.start, stop=module.stop)
    monkeypatch.setattr(sys.modules[__name__], "SESSIONS", [toy_sessions("toy")])
    return module


def toy_sessions(name, binding="binding"):
    library = Library(name, name, ("1", "1"))
    start, stop = (library.attribute(name, f"profiler.{function}") for function in ("start", "stop"))
    kind = library.attribute(name, f"{binding}.ProfilerSession", optional=True)
    return Sessions(library, ((start, stop),), kind, begins="start", ends=("stop",), keeps=("session",))


def test_missing_framework_is_not_patched(toy, monkeypatch):
    monkeypatch.delitem(sys.modules, "toy")
    with arbitrating([]):
        check_imports()


def test_framework_being_imported_is_patched_later(toy, monkeypatch):
    events = []
    monkeypatch.setattr(toy, "__spec__", types.SimpleNamespace(_initializing=True))
    with arbitrating(events):
        toy.start()
        toy.stop()
        assert events == []
        toy.__spec__._initializing = False
        check_imports()
        toy.start()
        toy.stop()
        assert events == ["toy", "go on"]
    check_imports()  # a thread that is late
    toy.start()
    toy.stop()
    assert events == ["toy", "go on"]


def test_a_refused_start_is_freed_only_where_it_is_the_one_that_is_kept(toy):
    events = []
    with arbitrating(events):
        with pytest.raises(RuntimeError, match="taken"):
            toy.start(fails=True)
        assert toy.session is None
        toy.start()
        running = toy.session
        with pytest.raises(RuntimeError, match="taken"):
            toy.binding.ProfilerSession().start(fails=True)
        assert toy.session is running
        assert events == ["toy", "go on", "toy", "toy"]
        toy.stop()
    assert events == ["toy", "go on", "toy", "toy", "go on"]


def test_public_functions_are_patched_without_a_session_class(toy, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "SESSIONS", [toy_sessions("toy", "renamed")])
    events = []
    start, stop = toy.start, toy.stop
    with arbitrating(events):
        assert toy.profiler.start is toy.start is not start
        assert toy.profiler.stop is toy.stop is not stop
        with pytest.raises(RuntimeError, match="taken"):
            toy.profiler.start(fails=True)
        assert events == ["toy", "go on"]
        toy.start()
        with pytest.raises(RuntimeError, match="taken"):
            toy.start(fails=True)
        assert events == ["toy", "go on", "toy", "toy"]
        toy.profiler.stop()
        with pytest.raises(ValueError, match="none runs"):
            toy.profiler.stop()
        assert events == ["toy", "go on", "toy", "toy", "go on"]
    assert (toy.profiler.start, toy.start, toy.profiler.stop, toy.stop) == (start, start, stop, stop)


@pytest.mark.live
@pytest.mark.parametrize("name", ["tensorflow", "jax"])
def test_the_public_functions_are_a_way_for_real_frameworks_too(name, tmp_path, monkeypatch):
    module = pytest.importorskip(name)
    sessions = dataclasses.replace(LIBRARIES[name].SESSIONS, kind=None)
    monkeypatch.setattr(sys.modules[__name__], "SESSIONS", [sessions])
    events = []
    with arbitrating(events):
        if name == "jax":
            with module.profiler.trace(str(tmp_path)):
                assert events == ["jax"]
        else:
            with module.profiler.experimental.Profile(str(tmp_path)):
                assert events == ["tensorflow"]
        assert events == [name, "go on"]
    assert len(files(tmp_path)) == 1


def test_version_without_a_profiler_is_not_patched(toy):
    del toy.binding, toy.profiler
    with arbitrating([]):
        pass


def test_sessions_of_many_threads_end_with_the_last(toy):
    events, at_once = [], threading.Barrier(8)

    def profile():
        session = toy.binding.ProfilerSession()
        session.start()
        at_once.wait(120)  # all eight run
        session.stop()
        session.stop()  # once too often

    with arbitrating(events):
        threads = [threading.Thread(target=profile) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert events == ["toy"] * 8 + ["go on"]


def test_failure_to_free_the_profiler_warns_and_the_start_continues(toy):
    def broken(_):
        raise OSError("no route")

    with (
        ProfilerArbiter(broken, lambda: None, SESSIONS),
        pytest.warns(RuntimeWarning, match="could not free the profiler for toy.*no route"),
    ):
        toy.start()
    assert toy.session is not None


def test_interrupt_while_freeing_the_profiler_is_raised(toy):
    events = []

    def interrupted(_):
        raise KeyboardInterrupt

    with ProfilerArbiter(interrupted, lambda: events.append("go on"), SESSIONS):
        with pytest.raises(KeyboardInterrupt):
            toy.start()
        assert toy.session is None
    assert events == ["go on"]


def test_nested_blocks_restore_their_patches(toy):
    outer, inner = [], []
    original = toy.binding.ProfilerSession
    with arbitrating(outer):
        with arbitrating(inner):
            toy.start()
            toy.stop()
        toy.start()
        toy.stop()
    assert (outer, inner) == (["toy", "go on"] * 2, ["toy", "go on"])
    assert toy.binding.ProfilerSession is original


@pytest.mark.live
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_process_reports_nothing(toy):
    events, held, done = [], threading.Event(), threading.Event()

    def hold(lock):
        with lock:
            held.set()
            done.wait(60)

    with arbitrating(events) as arbiter:
        holder = threading.Thread(target=hold, args=[arbiter._lock])  # a thread that the child does not have
        holder.start()
        held.wait(60)
        child = os.fork()
        if child == 0:
            signal.alarm(120)
            toy.start()
            toy.stop()
            os._exit(3 if events else 0)
        ended = os.waitpid(child, 0)[1]
        done.set()
        holder.join(60)
    assert ended == 0


def test_two_import_hooks_stand_side_by_side(monkeypatch, tmp_path, own_name):
    """Each asks the finders after it alone: were it to ask the other too, that would ask it."""
    (tmp_path / f"{own_name}.py").write_text("imported = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    called = []
    hooks = [ImportHook({own_name: lambda number=number: called.append(number)}) for number in range(2)]
    monkeypatch.setattr(sys, "meta_path", [*hooks, *sys.meta_path])
    assert import_module(own_name).imported
    assert sorted(called) == [0, 1]
    monkeypatch.delitem(sys.modules, own_name)
