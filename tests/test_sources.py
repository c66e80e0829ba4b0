"""The source that is this process profiles the framework in use, also a late one, and never imports it."""

import subprocess
import sys
import threading
import types
from contextlib import nullcontext
from importlib.util import find_spec

import pytest
from optional import lazy
from warm_python import JAX, warm_python

from tpunb.errors import MissingExtra, TpunbError
from tpunb.frames.hardware import this_cpu
from tpunb.instrument import jax, tensorflow
from tpunb.io import xplane
from tpunb.profiler.sources import frameworks, local
from tpunb.profiler.sources.frameworks import in_use
from tpunb.profiler.sources.local import Local

tf = lazy("tensorflow")
needs_jax = pytest.mark.skipif(find_spec("jax") is None, reason="jax is not installed")
needs_tensorflow = pytest.mark.skipif(find_spec("tensorflow") is None, reason="tensorflow is not installed")


def run(code, python):
    """Run a program of its own; what it prints."""
    seen = subprocess.run([*python, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    return seen.stdout.split()


@pytest.mark.live
def test_facts_name_the_profiled_framework(monkeypatch):
    tf.ones(3)
    monkeypatch.setattr(local, "in_use", lambda: (tensorflow,))  # another test may have computed with JAX
    source = Local()
    source.start()
    source.window(0.01)
    devices = [device.name for device in tf.config.list_logical_devices()]
    assert source.facts() == {
        "framework": "tensorflow",
        "framework_version": tf.version.VERSION,
        "devices": devices,
        "cpu": this_cpu(),
    }


@pytest.mark.live
@needs_jax
def test_jax_program_is_profiled_without_importing_tensorflow():
    code = """
import sys, jax, jax.numpy as jnp
from tpunb.profiler.sources.frameworks import in_use
from tpunb.profiler.sources.local import Local
from tpunb.io import xplane
print(*[each.LIBRARY.name for each in in_use()] or ['None'], sep='+')
jnp.ones(3).sum().block_until_ready()
print(*[each.LIBRARY.name for each in in_use()] or ['None'], sep='+')
source = Local(); source.start()
events, facts = xplane.read(source.window(0.1), source="window")
print(source.facts()["framework"], "tensorflow" in sys.modules, facts.errors == [])
"""
    assert run(code, warm_python(JAX)) == ["None", "jax", "jax", "False", "True"]


@pytest.mark.live
@needs_jax
@needs_tensorflow
def test_framework_that_is_only_imported_is_not_profiled():
    code = """
import tensorflow as tf, jax
from tpunb.profiler.sources.frameworks import in_use
print(*[each.LIBRARY.name for each in in_use()] or ['None'], sep='+')
tf.ones(3)
print(*[each.LIBRARY.name for each in in_use()] or ['None'], sep='+')
jax.devices()
print(*[each.LIBRARY.name for each in in_use()] or ['None'], sep='+')
"""
    assert run(code, warm_python()) == ["None", "tensorflow", "jax+tensorflow"]


@pytest.mark.live
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_backend_of_keras_is_profiled(backend):
    pytest.importorskip("keras")
    pytest.importorskip(backend)
    code = """
import time
import numpy as np, tensorflow as tf, jax, keras
import tpunb as tp
tf.ones(3); jax.devices()
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
until = time.monotonic() + 120
with tp.capture(schedule=tp.Schedule.continuous(window=0.2)) as run:
    while not run._session.recorder.full:  # the first window may have begun before Keras
        assert time.monotonic() < until, run.status
        model.fit(np.ones((640, 4)), np.ones((640, 1)), verbose=0)
facts = run._session.source.facts()
print(facts["framework"], tp.steps(tp.load(run)).full().ops.height > 0)
"""
    python = warm_python() if backend == "tensorflow" else warm_python(KERAS_BACKEND=backend)
    assert run(code, python) == [backend, "True"]


def fake(monkeypatch, **modules):
    for name in ("tensorflow", "jax", "keras"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name, initialising in modules.items():
        module = types.ModuleType(name)
        module.__spec__ = types.SimpleNamespace(_initializing=initialising)
        monkeypatch.setitem(sys.modules, name, module)


def test_a_framework_in_the_midst_of_its_import_is_not_in_use_yet(monkeypatch):
    fake(monkeypatch, tensorflow=True)
    assert in_use() == ()
    fake(monkeypatch, jax=True)
    assert in_use() == ()


@pytest.mark.live
def test_framework_used_later_is_waited_for(monkeypatch):
    tf.ones(3)
    monkeypatch.setitem(sys.modules, "torch", None)  # another test may have used it
    frameworks = iter([(), (), (tensorflow,)])
    monkeypatch.setattr(local, "in_use", lambda: next(frameworks, (tensorflow,)))
    source = Local()
    assert xplane.read(source.window(0.05), source="window")[1].errors == []


def test_where_none_comes_waiting_ends_with_the_capture(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # another test may have used it
    monkeypatch.setattr(local, "in_use", lambda: ())
    source, messages = Local(), []

    def window():
        try:
            source.window(60)
        except TpunbError as error:
            messages.append(str(error))

    asking = threading.Thread(target=window)
    asking.start()
    while asking.is_alive():
        source.stop()
        asking.join(0.05)
    assert messages == [
        "no TensorFlow or JAX in use: step times only; compute with one of them in the block for operations"
    ]


def test_without_any_framework_the_extras_are_named(monkeypatch):
    for name in ("tensorflow", "jax", "torch"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match="neither tensorflow nor jax nor torch is installed") as caught:
        Local().start()
    assert caught.value.hint == "pip install jax, or the one that the program trains with"


@pytest.mark.live
@needs_jax
def test_a_window_of_jax_and_one_of_the_programs_own_server_do_not_meet():
    code = """
import socket, jax
from tpunb.profiler.sources.local import Local
jax.devices()
source = Local(); source.start()
with socket.socket() as free:
    free.bind(("127.0.0.1", 0)); port = free.getsockname()[1]
jax.profiler.start_server(port)
jax.profiler.stop_server()
print(len(source.window(0.05)) > 0)
"""
    assert run(code, warm_python(JAX)) == ["True"]


def test_a_step_is_annotated_by_every_framework_in_use(monkeypatch):
    opened = []
    for library in frameworks.SUPPORTED:
        monkeypatch.setattr(
            library, "annotation", lambda *what, library=library: opened.append((library, *what)) or nullcontext()
        )
    for using in ((), (jax,), (jax, tensorflow)):
        for module in (frameworks, local):
            monkeypatch.setattr(module, "in_use", lambda using=using: using)
        opened.clear()
        with Local().step("train", 7):
            assert opened == [(library, "train", 7) for library in using]


@pytest.mark.live
@needs_jax
@needs_tensorflow
def test_of_two_frameworks_the_computing_one_is_profiled():
    code = """
import threading, tensorflow as tf, jax, jax.numpy as jnp
from tpunb.profiler.sources.local import Local
jax.devices()
source = Local(); source.start()
def profiled(compute, expected):
    ended, computed = threading.Event(), threading.Event()
    def busy():
        while not ended.is_set():
            compute(); computed.set()
    thread = threading.Thread(target=busy); thread.start(); computed.wait()
    for _ in range(50):  # a window may be too short for a busy machine to compute in it
        source._jax_rests = 0
        source.window(0.1)  # of JAX, which shows whether that computes
        source.window(0.1)
        if source.facts()["framework"] == expected:
            break
    ended.set(); thread.join()
    return source.facts()["framework"]
print(profiled(lambda: tf.matmul(tf.ones((9, 9)), tf.ones((9, 9))), "tensorflow"))
step = jax.jit(lambda x: x @ x)
print(profiled(lambda: step(jnp.ones((9, 9))), "jax"))
"""
    assert run(code, warm_python()) == ["tensorflow", "jax"]
