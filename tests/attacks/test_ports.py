"""No capture of this process opens a port: its listening sockets are the same before, in and after the block."""

import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
import warm_python

LISTENING = """
import os, sys, time
import tpunb as tp


def listening():
    '''Return the sockets of this process that accept connections: TCP that listens, and bound UDP.'''
    own = set()
    for handle in os.listdir("/proc/self/fd"):
        try:
            own.add(os.readlink(f"/proc/self/fd/{handle}"))
        except OSError:  # that of the folder itself
            continue
    found = set()
    for kind, state in (("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07")):
        for row in open(f"/proc/self/net/{kind}").read().splitlines()[1:]:
            columns = row.split()
            if columns[3] == state and f"socket:[{columns[9]}]" in own:
                found.add((kind, columns[1]))
    return found
"""

JAX = """
import jax
step = jax.jit(lambda x: x @ x / 64)
def train(x=jax.numpy.ones((64, 64))):
    step(x).block_until_ready()
"""

KERAS = """
import keras, numpy as np
rows = np.ones((640, 8), "float32")
model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1)])
model.compile("sgd", "mse", jit_compile=JIT)
def train():
    model.fit(rows, rows[:, :1], verbose=0)
"""

TORCH = """
import torch
layer = torch.nn.Linear(64, 64)
def train(x=torch.ones(64, 64)):
    layer(x).sum().backward()
"""

BLOCK = """
train()
before, until = listening(), time.monotonic() + 120
with tp.capture(sys.argv[1], schedule=tp.Schedule.continuous(window=0.2)) as run:
    entered, frameworks = listening(), set()
    # after a window in which this thread had no processor, some are left to the other framework
    while run.status.windows < 2 or run._session.recorder.programs.missing or sys.argv[2] not in frameworks:
        assert time.monotonic() < until, (run.status, frameworks)
        frameworks.add(run._session.source.facts().get("framework"))
        train()
        assert listening() == before, listening()
    inside = listening()
assert before == entered == inside == listening(), (before, entered, inside, listening())
print(sys.argv[2], tp.load(run).windows["error"].null_count() >= 2)
"""


@pytest.mark.live
@pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="sockets are read from Linux's /proc")
@pytest.mark.parametrize(
    ("program", "framework"),
    [
        (JAX, "jax"),
        ("JIT = False" + KERAS, "tensorflow"),
        pytest.param("JIT = True" + KERAS, "tensorflow", marks=pytest.mark.slow),
        (TORCH, "torch"),
        ("import tensorflow as tf; tf.ones(3)" + JAX, "jax"),
    ],
    ids=["jax", "keras", "keras with XLA", "torch", "jax beside tensorflow"],
)
def test_a_capture_opens_no_port(program, framework, tmp_path):
    for package in ("jax", "keras", "torch"):
        if f"import {package}" in program and find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    modules = {"tensorflow": warm_python.TENSORFLOW, "torch": warm_python.TORCH, "jax": warm_python.JAX}[framework]
    if framework == "jax" and program != JAX:  # what the program imports first is imported first
        modules = warm_python.NOTEBOOK
    command = [*warm_python.warm_python(modules), "-c", LISTENING + program + BLOCK, str(tmp_path / "run"), framework]
    seen = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert seen.stdout == f"{framework} True\n", seen.stderr
