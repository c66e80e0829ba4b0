"""Windows of JAX on GPUs: sessions between steps; on this machine's CPU, whose profiler is the same."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

import tpunb as tp
from tpunb.errors import TpunbError
from tpunb.io import xplane
from tpunb.profiler.limits import LIMITS
from tpunb.profiler.sources import jax_gpu
from tpunb.profiler.sources.between_steps import BetweenSteps

jax = pytest.importorskip("jax")
library = pytest.importorskip("jax._src.lib")


class Binding:
    """JAX's binding, which notes the threads that sessions begin and end in."""

    ProfileOptions = library._profiler.ProfileOptions
    threads: ClassVar = []

    class ProfilerSession:
        def __init__(self, options):
            Binding.threads.append(threading.get_ident())
            self.session = library._profiler.ProfilerSession(options)

        def stop(self):
            Binding.threads.append(threading.get_ident())
            return self.session.stop()


@pytest.mark.live
def test_a_loop_without_marks_has_traced_steps_of_sessions_in_its_own_thread(monkeypatch, tmp_path):
    monkeypatch.setattr(jax_gpu, "binding", lambda: Binding)
    monkeypatch.setattr(Binding, "threads", [])

    @jax.jit
    def step(weights):
        return weights - 1e-3 * jax.numpy.tanh(weights @ weights)

    weights = step(jax.numpy.ones((300, 300)))
    with tp.capture(tmp_path / "run", schedule=tp.Schedule.continuous(window=0.3)) as run:
        while run.status.windows < 2 and run.status.seconds < 120:
            weights = step(weights)
            float(weights[0, 0])
    assert {*Binding.threads} == {threading.get_ident()}
    steps = tp.steps(tp.load(run))
    assert steps.frame["rule"].unique().to_list() == ["calls"]
    assert steps.full().frame["device_ps"].median() > 0  # a call's work may be done before its hook is called


@pytest.mark.live
def test_a_session_that_no_step_ends_goes_on(monkeypatch):
    monkeypatch.setattr("tpunb.profiler.sources.between_steps.LIMITS", replace(LIMITS, boundary_s=0.0))
    kept, between, stopped = [], BetweenSteps(), threading.Event()
    monkeypatch.setattr(jax_gpu, "_kept", kept)
    errors = []

    def window():
        with pytest.raises(TpunbError, match="no step has ended") as caught:
            jax_gpu.window(Binding, 60, between, stopped)
        errors.append(caught)

    thread = threading.Thread(target=window)
    thread.start()
    while not between.is_due:
        pass
    between.boundary()  # it begins
    stopped.set()
    thread.join()
    (session,) = kept
    assert xplane.read(session.stop(), source="window") is not None
    assert errors


def test_only_gpus_need_them(monkeypatch):
    assert jax_gpu.binding() is None
    monkeypatch.setattr(jax, "local_devices", lambda: [type("Device", (), {"platform": "gpu"})])
    assert jax_gpu.binding() is library._profiler


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
