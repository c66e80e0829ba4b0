"""A warning never ends a training, where the program or its tests make errors of warnings."""

import sys

import pytest
from attacked_programs import STAND_IN, ended, facts
from warm_python import JAX, TENSORFLOW, TORCH, warm_python

import tpunb as tp

pytestmark = pytest.mark.live

EVERY = ["-W", "error"]

LOOP = """
import sys
import warnings
import torch
import tpunb as tp
from tpunb.testing import null_run

folder = sys.argv[1]
rows = torch.arange(256.0).reshape(64, 4) / 256
steps = 0

def train(run=null_run, data=rows, seed=0, without=()):
    global steps
    torch.manual_seed(seed)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    state = {"model": model, "optimizer": optimizer}
    state = {name: part for name, part in state.items() if name not in without}
    for epoch in range(2):
        batches = data() if callable(data) else torch.utils.data.DataLoader(data, batch_size=8)
        for batch in run.batches(batches, state=state):
            optimizer.zero_grad()
            model(batch).mean().backward()
            optimizer.step()
            steps += 1
"""

MISUSES = {
    "an incomplete state": "with tp.checkpointing(folder, every=2): train(without=['optimizer'])",
    "no capture for phases": "with tp.checkpointing(folder, at_phases=True): train()",
    "a generator": "with tp.checkpointing(folder, every=2): train(data=lambda: iter(rows.split(8)))",
    "a file in place of the folder": """
import pathlib, shutil
def replaced():
    if steps:
        shutil.rmtree(folder)
        pathlib.Path(folder).touch()
    return [*rows.split(8)]
with tp.checkpointing(folder, every=2): train(data=replaced)""",
    "other data": """
with tp.checkpointing(folder, every=2): train()
steps = 0
with tp.resume(tp.checkpoints(folder)[1]): train(data=rows * 2)
steps = 16""",
}
MAKE_ERRORS = {
    "option": (EVERY, ""),
    "filter": ([], "warnings.simplefilter('error')"),
    "showwarning": ([], "def showwarning(*_, **__): raise RuntimeError('mine')\nwarnings.showwarning = showwarning"),
}


@pytest.mark.parametrize(("options", "prepares"), MAKE_ERRORS.values(), ids=MAKE_ERRORS)
def test_what_cannot_be_saved_is_said_and_the_training_ends_as_without(tmp_path, options, prepares):
    pytest.importorskip("torch")
    program = f"{LOOP}\n{prepares}\n"
    for misuse, code in MISUSES.items():
        begins = f"folder, steps = sys.argv[1] + {misuse!r}, 0\nprint('misuse: {misuse}', file=sys.stderr)"
        program += f"{begins}\n{code}\nprint(steps)\n"
    python = [sys.executable] if options else warm_python(TORCH)
    seen = ended(program, tmp_path / "saved ", python=python, options=options)
    assert (seen.returncode, seen.stdout) == (0, "16\n" * len(MISUSES)), seen.stderr
    _, *reports = seen.stderr.split("misuse: ")
    assert len(reports) == len(MISUSES)
    assert [text for text in reports if "tpunb: " not in text] == []
    assert "Traceback" not in seen.stderr


CAPTURED = """
with tp.capture(folder + "/run") as run, tp.checkpointing(folder + "/saved", every=4):
    train(run)
with tp.capture(folder + "/resumed") as run, tp.resume(tp.checkpoints(folder + "/saved")[0]):
    train(run)
print(*run.resumed)
"""
TRAININGS = {
    "torch": f"{LOOP}\n{CAPTURED}",
    "jax": """
import sys
import jax, jax.numpy as jnp
import tpunb as tp
folder = sys.argv[1]
@jax.jit
def step(w, x):
    return w - 0.1 * jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)
def train(run):
    state = {"w": jnp.ones((4, 1))}
    for epoch in range(2):
        for batch in run.batches([jnp.full((8, 4), float(n)) for n in range(8)], state=state):
            state["w"] = step(state["w"], batch)
"""
    + CAPTURED,
    "keras": """
import sys
import keras, numpy, tensorflow
import tpunb as tp
folder = sys.argv[1]
def train(run):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(numpy.ones((64, 4)), numpy.ones(64), batch_size=8, epochs=2, verbose=0)
"""
    + CAPTURED,
}


@pytest.mark.parametrize("framework", TRAININGS)
def test_a_training_is_captured_saved_and_resumed_where_libraries_warn(tmp_path, framework):
    pytest.importorskip({"keras": "tensorflow"}.get(framework, framework))
    program = TRAININGS[framework].replace("import tpunb as tp\n", "import tpunb as tp, warnings\n", 1)
    # from here on, since importing some versions of the frameworks warns
    program = program.replace("folder = sys.argv[1]\n", "folder = sys.argv[1]\nwarnings.simplefilter('error')\n", 1)
    modules = {"torch": TORCH, "jax": JAX, "keras": TENSORFLOW}[framework]
    seen = ended(program, tmp_path, python=warm_python(modules), variables={"TF_CPP_MIN_LOG_LEVEL": "3"})
    assert seen.returncode == 0, seen.stderr
    assert "resumed exactly" in seen.stdout
    assert "Traceback" not in seen.stderr
    assert facts(tmp_path / "run")["state"] == "finished", seen.stderr
    assert tp.load(tmp_path / "run").stored.frame["step"].to_list() == [*range(16)]


def test_a_test_of_a_training_passes_where_pytest_makes_errors_of_warnings(tmp_path):
    steps = "    with opened() as run:\n        train(run, range(20))\n        shutil.rmtree(folder)\n"
    test = STAND_IN.replace("sys.argv[1]", "sys.path[0] + '/run'").replace("import sys,", "import shutil, sys,")
    (tmp_path / "test_mine.py").write_text(f"{test}\ndef test_trains():\n{steps}\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    program = "import sys, pytest; sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', sys.argv[1]]))"
    seen = ended(program, tmp_path)
    assert seen.returncode == 0, seen.stdout
    assert "1 passed" in seen.stdout


def test_a_full_disk_ends_no_training(tmp_path):
    program = """
import resource
with opened() as run:
    train(run, range(20))
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    train(run, range(20, 200))
print(200)
"""
    seen = ended(f"{STAND_IN}\n{program}", tmp_path / "run", options=EVERY)
    assert (seen.returncode, seen.stdout) == (0, "200\n")
    assert "is incomplete" in seen.stderr
    assert "Traceback" not in seen.stderr
