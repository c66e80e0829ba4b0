"""What a capture costs the process that trains: objects that garbage is searched in, locks, memory."""

import importlib
import json
import subprocess
import sys

import pytest
from optional import lazy

from tpunb.instrument import registry

torch = lazy("torch")

TRAINING = """
import contextlib, gc, json, resource, sys
import torch
import tpunb as tp

captured, folder, limited = sys.argv[1] == "captured", sys.argv[2], sys.argv[3] == "limited"
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.01), []


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(32, 64)).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())


step()
gc.collect()
with contextlib.ExitStack() as stack:
    if captured:
        run = stack.enter_context(tp.capture(folder, schedule=tp.Schedule(window=0.2, every=0.001)))
    for number in range(100):
        step()
    while captured and not limited and not run.status.windows:
        step()
    if limited:  # less than a profiler or polars may ask for at once
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 24 * 2**20, resource.RLIM_INFINITY))
    for number in range(2000 if limited else 1):
        step()
    gc.collect()
    objects = len(gc.get_objects())
readers = {"tpunb.analysis", "tpunb.checkpoint", "tpunb.tfdata", "tpunb.frames.phases", "tpunb.io.logdir"}
heavy = sorted({"numba", "llvmlite", "scipy", "msgspec", *readers} & {*sys.modules})
print(json.dumps({"losses": losses[:2101], "objects": objects, "heavy": heavy}))
"""


def trained(*arguments):
    seen = subprocess.run([sys.executable, "-c", TRAINING, *map(str, arguments)], capture_output=True, timeout=600)
    assert seen.returncode == 0, seen.stderr.decode()
    return json.loads(seen.stdout), seen.stderr.decode()


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """What the training has without a capture, where it takes as many steps as it does without memory."""
    assert torch
    return trained("plain", tmp_path_factory.mktemp("none"), "limited")[0]


@pytest.mark.live
def test_garbage_is_searched_in_a_tenth_more_objects_at_most(tmp_path, plain):
    captured, _ = trained("captured", tmp_path / "run", "free")
    assert captured["heavy"] == []
    assert captured["objects"] < 1.1 * plain["objects"]


@pytest.mark.live
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and a limit of the address space")
def test_a_capture_without_memory_ends_and_the_training_lasts(tmp_path, plain):
    captured, printed = trained("captured", tmp_path / "run", "limited")
    assert captured["losses"] == plain["losses"]
    assert printed.count("is incomplete: MemoryError") == 1
    assert "Traceback" not in printed
    assert json.loads((tmp_path / "run" / "run.json").read_text())["state"].endswith(", incomplete")


IMPORTS = """
import sys, threading

seen = []


def on_event(event, args):
    if event == "import" and threading.current_thread().name.startswith("tpunb"):
        seen.append(args[0])


sys.addaudithook(on_event)
import tpunb as tp

with tp.capture(sys.argv[1], schedule=tp.Schedule(window=0.2, every=0.001)) as run:
    import torch

    weights = torch.ones(8, requires_grad=True)
    optimizer = torch.optim.SGD([weights], lr=0.01)
    while run.status.windows < 2:
        optimizer.zero_grad()
        weights.square().sum().backward()
        optimizer.step()
print(seen)
"""


@pytest.mark.live
def test_threads_of_a_capture_import_nothing_while_the_program_may_import(tmp_path):
    assert torch
    command = [sys.executable, "-c", IMPORTS, str(tmp_path / "run")]
    seen = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert seen.stdout.strip() == "[]", seen.stdout + seen.stderr


def test_a_call_after_an_import_that_fails_ends_no_import(tmp_path, monkeypatch):
    (tmp_path / "imported_by_a_program.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)

    def fail(_):
        raise RuntimeError("of another version")

    with registry.watching("imported_by_a_program", fail):
        module = importlib.import_module("imported_by_a_program")
    assert module.value == 1
