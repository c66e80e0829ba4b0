"""Programs that call torch.compile: a capture changes neither what is compiled nor how often."""

import json
import subprocess

import pytest
from optional import lazy
from warm_python import TORCH, warm_python

torch = lazy("torch")

PROGRAM = """
import contextlib, json, sys, warnings
import torch
import tpunb as tp


def trained(compiled, folder):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.01), []
    compile = torch.compile(backend="eager", fullgraph=compiled != "modes")

    def loss_of(batch):
        return model(batch).square().mean()

    def in_both_modes(batch):
        model.eval()
        loss = loss_of(batch)
        model.train()
        return loss + loss_of(batch)

    def train(steps, loss_of):
        for _ in range(steps):
            optimizer.zero_grad()
            loss = loss_of(torch.randn(16, 8))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    with contextlib.ExitStack() as stack:
        if folder:
            schedule = tp.Schedule(window=0.2, every=0.001)
            run = stack.enter_context(tp.capture(f"{folder}/{compiled}", schedule=schedule))
        if compiled == "later":  # in a window
            train(20, loss_of)
            while folder and not run.status.windows:
                train(1, loss_of)
        seen, losses[:] = torch.randn(1), []
        torch.manual_seed(1)
        with warnings.catch_warnings(action="error", category=UserWarning):
            if compiled == "module":
                train(20, lambda batch, module=compile(model): module(batch).square().mean())
            else:
                train(20, compile(in_both_modes if compiled == "modes" else loss_of))
    counters = torch._dynamo.utils.counters
    breaks = {reason.partition("\\n")[0]: count for reason, count in counters["graph_break"].items()}
    found = losses if compiled != "later" else len(losses), dict(counters["frames"]), breaks
    torch._dynamo.reset()
    counters.clear()
    return found


names = "function", "module", "modes", "later"
print(json.dumps({compiled: trained(compiled, sys.argv[1]) for compiled in names}))
"""


@pytest.mark.live
def test_a_capture_changes_nothing_of_what_is_compiled(tmp_path):
    assert torch

    def trained(folder):
        command = [*warm_python(TORCH), "-c", PROGRAM, folder]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout.splitlines()[-1])

    plain, captured = trained(""), trained(str(tmp_path))
    assert [*plain] == [*captured] == ["function", "module", "modes", "later"]
    for compiled, (losses, frames, breaks) in plain.items():
        captured_losses, captured_frames, captured_breaks = captured[compiled]
        assert (captured_losses, captured_breaks) == (losses, breaks), compiled
        assert captured_frames.get("total", 0) <= frames.get("total", 0) + 2, compiled  # a wrapper that returns at once
