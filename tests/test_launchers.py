"""Jobs under ``tpunb run``: whatever launches them, the processes that train are the run, with each of their steps."""

import json
import os
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import tpunb as tp

ROOT = Path(__file__).parents[1]
STEPS = 12
pytestmark = pytest.mark.live
needs_torch = pytest.mark.skipif(not find_spec("torch"), reason="torch is not installed")
needs_jax = pytest.mark.skipif(not find_spec("jax"), reason="jax is not installed")

TORCH = f"""
import multiprocessing, os, sys
import torch
import torch.distributed as dist

def train(rank=None):
    if rank is not None:
        dist.init_process_group("gloo", init_method=f"file://{{os.getcwd()}}/group", rank=rank, world_size=2)
    elif int(os.environ["WORLD_SIZE"]) > 1:
        dist.init_process_group("gloo")
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = torch.utils.data.DataLoader(torch.ones({STEPS * 4}, 4), batch_size=4)
    for number, batch in enumerate(loader):
        if number == 5 and "fails" in sys.argv and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            raise RuntimeError("fails once")
        optimizer.zero_grad()
        model(batch).mean().backward()
        if dist.is_initialized():
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()

if __name__ == "__main__":
    if "RANK" in os.environ:
        train()
    else:
        context = multiprocessing.get_context(sys.argv[1])
        processes = [context.Process(target=train, args=(rank,)) for rank in (0, 1)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        sys.exit(sum(process.exitcode for process in processes))
"""

JAX = f"""
import sys
import jax, jax.numpy as jnp

jax.distributed.initialize(sys.argv[1], num_processes=2, process_id=int(sys.argv[2]))

@jax.jit
def update(state, batch):
    loss, gradient = jax.value_and_grad(lambda state: jnp.mean((batch @ state) ** 2))(state)
    return state - 0.1 * gradient, loss

state = jnp.ones(4)
for step in range({STEPS}):
    state, loss = update(state, jnp.ones((8, 4)))
    float(loss)
"""


def launch(folder, *command, ends=True):
    """Run a command, whose processes end, under ``tpunb run``; return the job, and the folders of its runs."""
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith(("TPUNB", "WORLD_SIZE", "RANK"))
    }
    variables |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    words = [sys.executable, "-m", "tpunb", "run", "-o", "run", "--", *command]
    ended = subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert f"tpunb: {STEPS} steps recorded" in ended.stderr or not ends
    return tp.load(folder / "run"), sorted(str(file.parent.relative_to(folder)) for file in folder.rglob("run.json"))


def steps(job):
    return job.stored.frame.filter(kind="train").group_by("host").len()["len"].to_list()


def ranks(folder, runs):
    return [json.loads((folder / run / "run.json").read_text())["group"]["rank"] for run in runs]


def torchrun(size):
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size), "program.py"]


@pytest.mark.slow
@needs_torch
def test_the_only_process_of_torchrun_is_the_run(tmp_path):
    (tmp_path / "program.py").write_text(TORCH)
    job, runs = launch(tmp_path, *torchrun(1))
    assert (steps(job), runs) == ([STEPS], ["run"])


@needs_torch
@pytest.mark.parametrize(
    "command", ["spawn", *(pytest.param(name, marks=pytest.mark.slow) for name in ("torchrun", "forkserver", "fork"))]
)
def test_processes_that_train_together_are_one_job(command, tmp_path):
    (tmp_path / "program.py").write_text(TORCH)
    words = torchrun(2) if command == "torchrun" else [sys.executable, "program.py", command]
    job, runs = launch(tmp_path, *words)
    assert (steps(job), runs) == ([STEPS, STEPS], ["run/rank0", "run/rank1"])
    assert ranks(tmp_path, runs) == [0, 1]


@needs_torch
def test_ranks_that_torchrun_started_again_are_a_later_attempt_of_the_job(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")  # gloo connects to the last attempt's otherwise
    (tmp_path / "program.py").write_text(TORCH)
    *words, program = torchrun(2)
    job, runs = launch(tmp_path, *words, "--max-restarts", "1", program, "fails")
    assert (steps(job), runs[-2:]) == ([STEPS, STEPS], ["run/rank0", "run/rank1"])
    assert ranks(tmp_path, runs[-2:]) == [0, 1]
    assert {*runs[:-2]} <= {"run/attempt0/rank0", "run/attempt0/rank1"}  # one may be ended before its first step
    assert tp.job(tmp_path / "run").attempts.height == 2


@needs_jax
def test_processes_of_jax_distributed_are_one_job(tmp_path):
    (tmp_path / "program.py").write_text(JAX)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    line = f"{sys.executable} program.py {address} 1 & {sys.executable} program.py {address} 0 && wait"
    job, runs = launch(tmp_path, "sh", "-c", line)
    assert (steps(job), runs) == ([STEPS, STEPS], ["run/rank0", "run/rank1"])


IN_A_THREAD = f"""
import os, re, threading, time
from pathlib import Path
import torch

def train():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range({STEPS}):
        optimizer.zero_grad()
        model(torch.ones(8, 4)).mean().backward()
        optimizer.step()

thread = threading.Thread(target=train)
thread.start()
thread.join()
until, last = time.monotonic() + 120, re.compile(rb"(?<!\\t){STEPS - 1}\\ttrain")  # of a step, no text of an event
while time.monotonic() < until and not any(map(last.search, map(Path.read_bytes, Path("run").glob("*/latest.bin")))):
    time.sleep(0.1)
os._exit(0)  # as a launcher ends its workers
"""


@needs_torch
def test_the_last_step_of_a_thread_that_ended_is_recorded_before_its_process_is_killed(tmp_path):
    (tmp_path / "program.py").write_text(IN_A_THREAD)
    job, _ = launch(tmp_path, sys.executable, "program.py", ends=False)
    assert steps(job) == [STEPS]


SHARED = f"""
import multiprocessing
import torch

def train(model, optimizer):
    for step in range({STEPS}):
        optimizer.zero_grad()
        model(torch.ones(8, 4)).mean().backward()
        optimizer.step()

model = torch.nn.Linear(4, 1).share_memory()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
processes = [multiprocessing.get_context("fork").Process(target=train, args=(model, optimizer)) for _ in range(2)]
for process in processes:
    process.start()
for process in processes:
    process.join()
model.eval()
with torch.no_grad():
    for batch in torch.utils.data.DataLoader(torch.ones(40, 4), batch_size=4):
        model(batch)
"""


@needs_torch
def test_processes_that_train_a_shared_model_are_one_job_beside_the_one_that_evaluates_it(tmp_path):
    (tmp_path / "program.py").write_text(SHARED)
    job, runs = launch(tmp_path, sys.executable, "program.py")
    assert steps(job) == [STEPS, STEPS]
    assert runs == ["run-2", "run/rank0", "run/rank1"]
