"""A process ends as its program does, whatever it did with the block of a capture."""

import signal
import sys

import pytest
from attacked_programs import STAND_IN, TORCH, ended, facts
from warm_python import NOTEBOOK, warm_python
from warm_python import TORCH as TORCH_MODULES

import tpunb as tp

pytestmark = pytest.mark.live

ENTERED = "context = opened(); run = context.__enter__(); train(run, range(50))"
LEFT_OPEN = {
    "entered": (ENTERED, 0),
    "sys.exit": (f"{ENTERED}; sys.exit(7)", 7),
    "raises": (f"{ENTERED}; raise KeyError('mine')", 1),
    "ExitStack": ("from contextlib import ExitStack; s = ExitStack(); train(s.enter_context(opened()), range(50))", 0),
    "thread": (
        f"""
import threading
def work():
    global context
    {ENTERED}
    sys.exit(3)
thread = threading.Thread(target=work); thread.start(); thread.join()""",
        0,
    ),
    "daemon": (
        f"""
import threading
{ENTERED}
def forever():
    number = 50
    while True:
        train(run, [number]); number += 1
threading.Thread(target=forever, daemon=True).start(); time.sleep(0.2)""",
        0,
    ),
}


@pytest.mark.parametrize("name", LEFT_OPEN)
def test_a_block_left_open_ends_with_the_program(tmp_path, name):
    program, code = LEFT_OPEN[name]
    python = [sys.executable] if name == "entered" else warm_python(NOTEBOOK)
    seen = ended(f"{STAND_IN}\n{program}", tmp_path / "run", python=python)
    assert seen.returncode == code
    assert not seen.stdout
    assert "tpunb" not in seen.stderr
    assert seen.stderr.count("Traceback") == (code == 1)
    assert facts(tmp_path / "run")["state"] == "left open"
    steps = tp.load(tmp_path / "run").stored.frame["step"].to_list()
    assert steps[:50] == [*range(50)]


@pytest.mark.parametrize("end", ["", "raise KeyError('mine')"])
def test_a_training_of_pytorch_ends_whose_capture_was_left_open(tmp_path, end):
    pytest.importorskip("torch")
    python = warm_python(TORCH_MODULES) if end else [sys.executable]
    program = f"{TORCH}\ncontext = tp.capture(folder); context.__enter__(); train()\nprint('trained')\n{end}"
    seen = ended(program, tmp_path / "run", python=python)
    assert (seen.returncode, seen.stdout) == (bool(end), "trained\n")
    assert "tpunb" not in seen.stderr
    assert facts(tmp_path / "run")["state"] == "left open"
    assert tp.load(tmp_path / "run").stored.frame.height == 200


def test_a_training_of_jax_ends_that_was_imported_in_a_block_left_open(tmp_path):
    pytest.importorskip("jax")
    program = """
import sys
import tpunb as tp
context = tp.capture(sys.argv[1]); context.__enter__()
import jax, jax.numpy as jnp
@jax.jit
def step(w):
    return w - 0.1 * jax.grad(lambda w: (w * w).sum())(w)
w = jnp.ones(4)
for _ in range(100):
    w = step(w)
print("trained")
"""
    seen = ended(program, tmp_path / "run")
    assert (seen.returncode, seen.stdout, seen.stderr) == (0, "trained\n", "")
    assert facts(tmp_path / "run")["state"] == "left open"


def test_a_block_collected_as_garbage_ends_there_and_the_next_may_begin(tmp_path):
    program = """
import gc
from contextlib import ExitStack
def lost():
    stack = ExitStack()
    stack.itself = stack  # collected later
    train(stack.enter_context(opened()), range(50))
lost()
gc.collect()
with tp.capture(folder + "-next", source=StandIn()) as run:
    train(run, range(10))
print(run.status.steps)
"""
    seen = ended(f"{STAND_IN}\n{program}", tmp_path / "run")
    assert (seen.returncode, seen.stdout) == (0, "10\n")
    assert seen.stderr.count("its context manager was collected as garbage") == 1
    assert facts(tmp_path / "run")["state"] == "left open"
    assert facts(tmp_path / "run-next")["state"] == "finished"
    assert tp.load(tmp_path / "run").stored.frame["step"].to_list() == [*range(50)]


@pytest.mark.parametrize(
    ("end", "code"),
    [("import os; os._exit(5)", 5), ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM)],
)
def test_the_steps_are_there_of_a_process_that_ends_without_its_interpreter(tmp_path, end, code):
    seen = ended(f"{STAND_IN}\n{ENTERED}\n{end}", tmp_path / "run", python=warm_python(NOTEBOOK))
    assert (seen.returncode, seen.stderr) == (code, "")
    assert tp.load(tmp_path / "run").stored.frame["step"].to_list() == [*range(50)]


def test_a_run_folder_replaced_by_a_file_is_one_line(tmp_path):
    program = """
import shutil
with opened() as run:
    train(run, range(50))
    shutil.rmtree(folder)
    open(folder, "w").close()
    train(run, range(50, 100))
print("trained")
"""
    seen = ended(f"{STAND_IN}\n{program}", tmp_path / "run", options=["-W", "error"])
    assert (seen.returncode, seen.stdout) == (0, "trained\n")
    assert seen.stderr.count("\n") == 1
    assert "is incomplete" in seen.stderr
    assert "leave the folder in place" in seen.stderr
