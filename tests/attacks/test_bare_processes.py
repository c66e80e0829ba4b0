"""A process without a home, threads, or a place to write to trains as without a capture, captured if possible."""

import os
import shutil
import stat
import sys
import tempfile
from pathlib import Path

import pytest
from attacked_programs import STAND_IN, TESTS, ended, facts
from warm_python import JAX, NOTEBOOK, warm_python

import tpunb as tp

pytestmark = pytest.mark.live

NOBODY = 65534
TRAINED = """
with opened() as run:
    train(run, range(50))
print(run.path, run.status.state)
"""
BY_CLOCK = f"{STAND_IN}\nopened = lambda: tp.capture(folder, source=StandIn(), schedule=tp.Schedule.ticks())\n{TRAINED}"
"""Without windows, for whose loops this user's processes have no compiled code."""
LOOP = "import numpy as np; from tpunb.frames.sparse_loops import counts; counts(np.zeros(2_000_000, np.int32), 1)"
"""Compiles a loop."""


@pytest.fixture
def as_nobody():
    """Run a program as a user without a home, whose installation belongs to another one; return it and a folder."""
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("root alone can become another user")
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are for one user
        yield installed(Path(folder))


def installed(root):
    root.chmod(0o755)
    shutil.copytree(Path(tp.__file__).parent, root / "tpunb", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(TESTS / "stand_in.py", root)
    own = root / "own"
    own.mkdir()
    own.chmod(0o777)

    def run(program, *arguments, **variables):
        command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        paths = {"PYTHONPATH": str(root), "HOME": "/nonexistent", "TMPDIR": str(own), "TPUNB_CACHE": ""}
        return ended(program, *arguments, command=command, variables={**paths, **variables}, timeout=600, cwd=root)

    return run, own


@pytest.mark.parametrize("cache", ["", "/nonexistent/cache"])
def test_without_a_home_loops_are_kept_in_a_folder_of_this_user_alone(as_nobody, cache):
    run, own = as_nobody
    seen = run(BY_CLOCK, own / "run", TPUNB_CACHE=cache)
    assert (seen.returncode, seen.stdout, seen.stderr) == (0, f"{own}/run finished\n", "")
    assert tp.load(own / "run").stored.frame["step"].to_list() == [*range(50)]
    kept = own / f"tpunb-{NOBODY}"
    assert run(LOOP, TPUNB_CACHE=cache).returncode == 0
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700
    assert [*kept.rglob("*.nbc")]


def test_code_is_not_loaded_from_a_folder_that_another_user_made(as_nobody):
    run, own = as_nobody
    strange = own / f"tpunb-{NOBODY}"
    strange.mkdir()
    strange.chmod(0o777)
    seen = run(LOOP)
    assert (seen.returncode, seen.stderr) == (0, "")
    assert not [*strange.iterdir()]


def test_a_folder_that_cannot_be_written_leaves_the_run_in_memory(as_nobody):
    run, _ = as_nobody
    seen = run(f"{BY_CLOCK}print(len(tp.load(run).stored.frame))", "/nonexistent/run")
    assert seen.returncode == 0
    assert seen.stdout.startswith("memory://")
    assert seen.stdout.endswith(" finished\n50\n")
    assert "the run is kept in memory, until this process ends: /nonexistent/run: no run can be written" in seen.stderr
    assert "Traceback" not in seen.stderr


@pytest.mark.parametrize("started", range(6))
def test_a_training_without_threads_is_recorded(tmp_path, started):
    program = f"""
import threading
start, starts = threading._start_new_thread, []
def limited(*arguments):
    starts.append(1)
    if len(starts) > {started}:
        raise RuntimeError("can't start new thread")
    return start(*arguments)
threading._start_new_thread = limited
{TRAINED}
"""
    python = warm_python(NOTEBOOK) if started else [sys.executable]
    seen = ended(f"{STAND_IN}\n{program}", tmp_path / "run", python=python)
    assert (seen.returncode, seen.stdout) == (0, f"{tmp_path / 'run'} finished\n")
    assert "Traceback" not in seen.stderr
    assert seen.stderr.count("the capture has fewer threads") == (started < 4)
    assert tp.load(tmp_path / "run").stored.frame["step"].to_list() == [*range(50)]


def test_a_training_without_threads_of_jax_is_recorded(tmp_path):
    pytest.importorskip("jax")
    program = """
import sys, threading
import jax, jax.numpy as jnp
import tpunb as tp
@jax.jit
def step(w):
    return w - 0.1 * jax.grad(lambda w: (w * w).sum())(w)
w = step(jnp.ones(4))
tp.capture
def limited(*_):
    raise RuntimeError("can't start new thread")
threading._start_new_thread = limited
from stand_in import StandIn
with tp.capture(sys.argv[1], source=StandIn()):
    for _ in range(50):
        w = step(w)
print("trained")
"""
    seen = ended(program, tmp_path / "run", python=warm_python(JAX))
    assert (seen.returncode, seen.stdout) == (0, "trained\n")
    assert "Traceback" not in seen.stderr
    assert facts(tmp_path / "run")["state"] == "finished"


@pytest.mark.parametrize("broken", ["session.RunRecorder", "capture.listening", "session.WindowScheduler"])
def test_a_capture_that_cannot_begin_is_one_line(tmp_path, broken):
    module, name = broken.split(".")
    program = f"""
from tpunb.profiler import capture, session
def breaks(*_, **__):
    raise RuntimeError("injected")
{module}.{name} = breaks
with opened() as run:
    train(run, range(50))
    for batch in run.batches([1, 2]):
        pass
    run.stop()
print(run.status)
with opened() as run:
    pass
"""
    seen = ended(f"{STAND_IN}\n{program}", tmp_path / "run", options=["-W", "error"])
    assert seen.returncode == 0, seen.stderr
    assert seen.stdout.startswith("not captured: RuntimeError: injected")
    assert seen.stderr == "tpunb: the program runs without a capture: RuntimeError: injected\n" * 2
