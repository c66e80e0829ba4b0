"""Programs of their own process, as a user starts them, and what became of them and their run."""

import json
import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent

STAND_IN = """
import sys, time
import tpunb as tp
from stand_in import StandIn

folder = sys.argv[1]

def opened():
    return tp.capture(folder, source=StandIn(), schedule=tp.Schedule.fixed(window=0.05, every=0.1))

def train(run, numbers):
    for number in numbers:
        with run.step(number):
            time.sleep(0.001)
"""
"""The beginning of a program that captures steps without a framework."""

TORCH = """
import sys
import torch
import tpunb as tp

folder = sys.argv[1]
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
batches = torch.utils.data.DataLoader(torch.ones(800, 4), batch_size=8)

def train():
    for epoch in range(2):
        for batch in batches:  # 100
            optimizer.zero_grad()
            model(batch).mean().backward()
            optimizer.step()
"""
"""The beginning of a program that trains with PyTorch."""


def ended(program, *arguments, python=(sys.executable,), options=(), variables=None, command=(), timeout=300, cwd=None):
    """Run a program to its end, which it must reach by itself; a warm `python` has no options."""
    paths = [str(TESTS.parent), str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(variables or {})}
    line = [*command, *python, *options, "-c", program, *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=timeout, env=environment, cwd=cwd)


def facts(folder):
    """Return what ``run.json`` says."""
    return json.loads(Path(folder, "run.json").read_text())
