"""Windows of JAX and TensorFlow in this process; those of GPUs on this machine's CPU, whose profiler is the same."""

import subprocess
import sys
import threading
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from tempfile import gettempdir

import pytest
from optional import lazy

import tpunb as tp
from tpunb import instrument
from tpunb.errors import TpunbError
from tpunb.io import xplane
from tpunb.profiler.limits import LIMITS
from tpunb.profiler.sources import xla_sessions
from tpunb.profiler.sources.between_steps import BetweenSteps

LIBRARIES = {"jax": instrument.jax, "tensorflow": instrument.tensorflow}
jax = lazy("jax")
tf = lazy("tensorflow")


@pytest.fixture
def threads(monkeypatch):
    """Let JAX seem to compute on a GPU; the threads that sessions begin and end in."""
    threads = []

    class Session(LIBRARIES["jax"].Window):
        def __init__(self, **options):
            threads.append(threading.get_ident())
            super().__init__(**options)

        def collect(self):
            threads.append(threading.get_ident())
            return super().collect()

    monkeypatch.setattr(LIBRARIES["jax"], "on_gpu", lambda: True)
    monkeypatch.setattr(LIBRARIES["jax"], "Window", Session)
    return threads


def window(framework, compute):
    """Return a window in which a function is called, by this thread."""
    stopped, windows = threading.Event(), []
    thread = threading.Thread(
        target=lambda: windows.append(xla_sessions.window(LIBRARIES[framework], 60, BetweenSteps(), stopped))
    )
    thread.start()
    while xla_sessions._open == []:
        compute()
    compute()
    stopped.set()
    thread.join()
    return windows[0]


@pytest.mark.live
def test_a_loop_without_marks_has_traced_steps_of_sessions_in_its_own_thread(threads, tmp_path):
    @jax.jit
    def step(weights):
        return weights - 1e-3 * jax.numpy.tanh(weights @ weights)

    weights = step(jax.numpy.ones((300, 300)))
    with tp.capture(tmp_path / "run", schedule=tp.Schedule.continuous(window=0.3)) as run:
        while run.status.windows < 2 and run.status.seconds < 120:
            weights = step(weights)
            float(weights[0, 0])
    assert {*threads} == {threading.get_ident()}
    steps = tp.steps(tp.load(run))
    assert steps.frame["rule"].unique().to_list() == ["calls"]
    assert steps.full().frame["device_ps"].median() > 0  # a call's work may be done before its hook is called


@pytest.mark.live
def test_a_session_that_no_step_ends_goes_on(monkeypatch, threads):
    monkeypatch.setattr("tpunb.profiler.sources.between_steps.LIMITS", replace(LIMITS, boundary_s=0.0))
    kept, between, stopped = [], BetweenSteps(), threading.Event()
    monkeypatch.setattr(xla_sessions, "_open", kept)
    errors = []

    def window():
        with pytest.raises(TpunbError, match="no step has ended") as caught:
            xla_sessions.window(instrument.jax, 60, between, stopped)
        errors.append(caught)

    thread = threading.Thread(target=window)
    thread.start()
    while not between.is_due:
        pass
    between.boundary()  # it begins
    stopped.set()
    thread.join()
    (session,) = kept
    assert xplane.read(session.collect(), source="window") is not None
    assert errors


def test_only_gpus_need_the_thread_that_trains(monkeypatch):
    jax.devices()
    assert not instrument.jax.on_gpu()
    monkeypatch.setattr(import_module("jax"), "local_devices", lambda: [type("Device", (), {"platform": "gpu"})])
    assert instrument.jax.on_gpu()


def test_on_a_gpu_productive_is_what_it_computes_and_the_line_that_holds_it_up_is_named():
    """200 steps of JAX 0.11 on an H100, each with a batch of 128 MiB from the host: 18 ms of kernels in 38 ms."""
    run = tp.load(Path(__file__).with_name("data") / "h100")
    steps = tp.steps(run)
    kernels_ps = steps.full().frame["device_ps"].mean() * 200
    found, answer = tp.goodput(run), tp.analysis.verdict(tp.phases(steps))
    assert found.time_ps("productive") == pytest.approx(kernels_ps, rel=0.02)
    assert answer.account == "device idle"
    assert "in jloop ← jnp.asarray" in answer.sentence
    assert "lax.scan" in answer.action


@pytest.mark.live
def test_a_window_of_tensorflow_has_its_operations_and_leaves_no_file():
    left = {*Path(gettempdir()).glob("tpunb-*")}
    product = tf.function(lambda x: tf.matmul(x, x))
    data = window("tensorflow", lambda: product(tf.ones((8, 8))).numpy())
    events, facts = xplane.read(data, source="window")
    assert events.filter(events["name"].cast(str).str.contains("MatMul")).height
    assert facts.errors == []
    assert {*Path(gettempdir()).glob("tpunb-*")} <= left


@pytest.mark.live
@pytest.mark.parametrize("framework", ["tensorflow", "jax"])
def test_a_window_beside_another_session_is_refused_and_the_other_goes_on(framework, tmp_path):
    pytest.importorskip(framework)
    jax.devices()
    users = tf.profiler.experimental if framework == "tensorflow" else jax.profiler
    begin, end = (users.start, users.stop) if framework == "tensorflow" else (users.start_trace, users.stop_trace)
    begin(str(tmp_path))
    with pytest.raises(TpunbError, match=f"^the profiler of {framework} failed: .*Another profiling session"):
        xla_sessions.window(LIBRARIES[framework], 0.0, BetweenSteps(), threading.Event())
    end()
    assert len([*tmp_path.rglob("*.xplane.pb")]) == 1


@pytest.mark.live
def test_programs_are_split_from_a_window_of_tensorflow_and_cost_it_nothing_else():
    product = tf.function(lambda x: tf.matmul(x, x) + 1, jit_compile=True)
    whole = window("tensorflow", lambda: product(tf.ones((8, 8))).numpy())
    events, programs = xla_sessions.split_programs(whole)
    assert xplane.programs(whole, source="whole").keys() == xplane.programs(programs, source="programs").keys() != set()
    assert not xplane.programs(events, source="events")
    assert len(events) + len(programs) == len(whole)
    ops = xplane.read(events, source="events")[0]
    assert ops.height == xplane.read(whole, source="whole")[0].height > 0


@pytest.mark.parametrize("size", [0, 1, 100, 127, 128, 20_000])
def test_programs_are_found_whatever_their_size(xplane_pb2, size):
    planes = {name: xplane_pb2.XSpace() for name in ("/host:CPU", "/host:metadata", "Task Environment")}
    for name, space in planes.items():
        plane = space.planes.add(name=name)
        if name == "/host:metadata":
            plane.event_metadata[1].name = "/host:metadata" * (size // 14)
    before, programs, after = (space.SerializeToString() for space in planes.values())
    assert xla_sessions.split_programs(before + programs + after) == (before + after, programs)
    assert xla_sessions.split_programs(before + after) == (before + after, b"")


@pytest.mark.parametrize("data", [b"", b"\n", b"\n\xff", b"\x08\x01", b"\n\x80\x80", b"\xff" * 30, b"\n\x02\x08"])
def test_a_damaged_window_has_no_programs(data):
    assert xla_sessions.split_programs(data) == (data, b"")


ENDS = """
import os, sys, threading, time
import tensorflow as tf
from tpunb.instrument import tensorflow
from tpunb.profiler.sources import xla_sessions
from tpunb.profiler.sources.between_steps import BetweenSteps
product, stopped = tf.function(lambda x: tf.reduce_sum(tf.sin(x))), threading.Event()
thread = threading.Thread(target=xla_sessions.window, args=(tensorflow, 60, BetweenSteps(), stopped), daemon=True)
thread.start()
while not xla_sessions._open:
    time.sleep(0.01)
for _ in range(5_000):
    product(tf.ones(3))
stopped.set()
while not xla_sessions._in_profiler.locked():  # it collects
    pass
sys.exit(7)
"""


@pytest.mark.live
def test_a_process_that_ends_as_a_window_is_collected_ends_with_its_own_code():
    pytest.importorskip("tensorflow")
    ended = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 7, ended.stderr


def test_a_forked_process_does_not_wait_for_a_thread_that_it_lacks(monkeypatch):
    held = threading.Lock()
    held.acquire()
    monkeypatch.setattr(xla_sessions, "_in_profiler", held)
    xla_sessions._forget_threads()
    assert not xla_sessions._in_profiler.locked()


@pytest.mark.live
def test_a_window_of_tensorflow_without_a_place_for_it_fails_and_ends_its_session(monkeypatch, tmp_path):
    tf.ones(3)
    with monkeypatch.context() as patch, pytest.raises(TpunbError, match=r"^the profiler of tensorflow failed: "):
        patch.setattr(instrument.tensorflow, "gettempdir", lambda: str(tmp_path / "missing"))
        xla_sessions.window(instrument.tensorflow, 0.0, BetweenSteps(), threading.Event())
    assert xla_sessions._open == []
    assert xplane.read(window("tensorflow", lambda: tf.ones(3)), source="window")[1].errors == []
