"""What is read of a program from outside: calls by its stacks, and the report on them; nothing stays in the program."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import tpunb as tp
from tpunb import cli
from tpunb.errors import BadProfile, MissingExtra, TpunbError, install
from tpunb.frames.standing import Standing
from tpunb.instrument import LIBRARIES
from tpunb.io import py_spy
from tpunb.io.py_spy import Place, Stretch, Thread
from tpunb.io.run_writer import RunWriter
from tpunb.io.standing import stands
from tpunb.profiler import attach
from tpunb.schema import LOAD, RUN_EVENT_KINDS

TORCH = "/venv/lib/python3.11/site-packages/torch"
LOADER = Place(f"{TORCH}/utils/data/dataloader.py", 735, "_BaseDataLoaderIter.__next__")
UPDATE = Place(f"{TORCH}/optim/optimizer.py", 517, "Optimizer.profile_hook_step.<locals>.wrapper")
SAVE = Place(f"{TORCH}/serialization.py", 980, "save")
KERAS = "/venv/lib/python3.11/site-packages/keras/src"
FIT = Place(f"{KERAS}/backend/tensorflow/trainer.py", 399, "TensorFlowTrainer.fit")
HOOK = Place(f"{KERAS}/callbacks/callback_list.py", 171, "CallbackList.on_train_batch_end")
TENSORFLOW = "/venv/lib/python3.11/site-packages/tensorflow/python"
JAX = "/venv/lib/python3.11/site-packages/jax/_src"
CALL = Place(f"{JAX}/pjit.py", 80, "_run_python_pjit")
TRACE = Place(f"{JAX}/pjit.py", 90, "_infer_params")
COMPILE = Place(f"{JAX}/interpreters/pxla.py", 7, "MeshComputation.compile")
RUNS = Place(f"{JAX}/interpreters/pxla.py", 9, "ExecuteReplicated.__call__")
PROGRAM = """import time

def read(index):
    time.sleep(0.003)
    return index

def fit(loader):
    for x in loader:
        loss = model(x).mean()
        print(sum(value * 2 for value in x))
"""


@pytest.fixture
def program(tmp_path):
    """Return the lines of a program as places."""
    file = tmp_path / "train.py"
    file.write_text(PROGRAM)
    return lambda line, function: Place(str(file), line, function)


def stretches(*stacks, ms=20):
    """Return stretches of as long each, in a row."""
    return [Stretch(number * ms * 1000, (number + 1) * ms * 1000, stack) for number, stack in enumerate(stacks)]


def found(*stacks):
    return [
        (call.event, call.detail, call.start // 20_000, call.end // 20_000)
        for call in attach.calls(stretches(*stacks), lambda file: "site-packages" not in file)
    ]


# -- the file of py-spy ------------------------------------------------------------------------------------------------


def event(phase, name, ts, file="train.py", line=1, tid=7):
    return {"args": {"filename": file, "line": line}, "ph": phase, "name": name, "ts": ts, "tid": tid, "pid": 1}


def test_threads_and_their_stacks_are_read_of_a_trace():
    trace = [
        event("B", "thread (1): MainThread", 500, ""),
        event("B", "<module>", 500),
        event("B", "step", 500, line=3),
        event("B", "thread (2)", 510, "", tid=8),
        event("B", "wait", 510, tid=8),
        event("E", "step", 20_500, line=3),
        event("B", "step", 20_500, line=4),
        *(event("E", name, 60_500) for name in ("step", "<module>", "thread")),
        *(event("E", name, 60_500, tid=8) for name in ("wait", "thread")),
    ]
    main, other = py_spy.read(json.dumps(trace).encode())
    module = Place("train.py", 1, "<module>")
    assert (main.name, other.name) == ("MainThread", "")
    assert main.stretches == [
        Stretch(0, 20_000, (module, Place("train.py", 3, "step"))),
        Stretch(20_000, 60_000, (module, Place("train.py", 4, "step"))),
    ]
    assert other.stretches == [Stretch(10, 60_000, (Place("train.py", 1, "wait"),))]


ENDS = json.dumps([event("E", "a", 1)]).encode()


@pytest.mark.parametrize("data", [b"", b'[{"ts": 1}]', b"[1]", ENDS, b"[" * 9999])
def test_what_is_no_trace_is_an_error(data):
    with pytest.raises(BadProfile):
        py_spy.read(data)


# -- calls -------------------------------------------------------------------------------------------------------------


def test_looks_in_a_row_at_one_call_are_one_event(program):
    fit, mean, read = program(8, "fit"), program(9, "fit"), program(4, "read")
    assert found((fit, LOADER, read), (fit, LOADER), (mean,), (mean, UPDATE), (fit, LOADER, read)) == [
        ("fetch", "_BaseDataLoaderIter.__next__", 0, 2),
        ("update", "Optimizer.profile_hook_step", 3, 4),
        ("fetch", "_BaseDataLoaderIter.__next__", 4, 5),
    ]


def test_of_calls_of_a_kind_the_outermost_counts_and_others_nest(program):
    hook = program(30, "Saves.on_train_batch_end")
    saves = FIT, HOOK, hook, SAVE, SAVE._replace(line=981)
    assert found(saves, (FIT, HOOK, hook), (FIT,)) == [
        ("mark", "Model.fit", 0, 3),
        ("callback", "Saves.on_train_batch_end", 0, 2),
        ("save", "save", 0, 1),
    ]


def test_parts_of_a_compilation_are_one_event_at_the_line_of_the_program(program):
    step, other = program(9, "fit"), program(10, "fit")
    calls = found(
        (step, CALL, TRACE),
        (step, CALL, RUNS),
        (step, CALL._replace(line=81), COMPILE),
        (step, CALL, RUNS),
        (other,),
        (step, CALL, COMPILE),
    )
    assert [call for call in calls if call[0] == "trace"] == [
        ("trace", "train.py:9 in fit", 0, 3),
        ("trace", "train.py:9 in fit", 5, 6),
    ]


def test_each_event_is_one_that_a_capture_records_too():
    evidence = [each.evidence for library in LIBRARIES for each in library.LIBRARY.attributes if each.evidence]
    assert {each.event for each in evidence} <= {*RUN_EVENT_KINDS}


# -- the run -----------------------------------------------------------------------------------------------------------


def write(folder, threads, load=(), ended=False, files=(f"{TORCH}/lib/libtorch.so",)):
    """Write a run of what was seen, and return its report."""
    rows = [(None, second * 10**12, cpu, cpu, 10**9) for second, cpu in enumerate(load)]
    frame = pl.DataFrame(rows, LOAD, orient="row")
    writer = RunWriter(folder)
    writer.open()
    seen = attach.Observation(threads, frame, 1_800_000_000 * 10**9, ended, frozenset(files))
    attach.write(writer, seen, os.getpid())
    writer.close()
    return tp.report(folder)


def test_a_report_has_accounts_and_lines_and_no_count_of_steps(program, tmp_path):
    main = program(1, "<module>")
    wait = (main, program(8, "fit"), LOADER, program(4, "read"))
    steps = [
        wait,
        wait,
        wait,
        (main, program(9, "fit"), Place(f"{TORCH}/nn/modules/module.py", 1, "Module._call_impl")),
    ]
    report = write(tmp_path / "run", [Thread(1, "MainThread", stretches(*steps * 50))], load=[0.5] * 4)
    content = report.content
    assert content["verdict"]["account"] == "data loading"
    assert "mostly train.py:4 in read ← time.sleep" in content["verdict"]["sentence"]
    assert [(each["account"], each["time"]["share"]) for each in content["accounts"]] == [
        ("data loading", pytest.approx(0.75)),
        ("productive", pytest.approx(0.25)),
    ]
    assert (content["run"]["steps"], content["run"]["data"], content["phases"]) == (None, "DataLoader", [])
    assert "Steps were not counted" in report.to_text()
    assert {"what ran before: the observation began in the midst of the program"} < {
        each["what"] for each in content["unknown"]
    }
    assert {each["shown by"] for each in content["unknown"]} >= {"tpunb run"}
    row = tp.runs(tmp_path).row(0, named=True)
    assert (row["steps"], row["step_ps"], row["state"]) == (None, None, "finished")


def test_code_of_the_program_is_that_whose_line_calls_none_of_a_framework(program, tmp_path):
    steps = [(program(10, "fit"), program(10, "fit.<locals>.<genexpr>")), (program(9, "fit"),)]
    report = write(tmp_path / "run", [Thread(1, "MainThread", stretches(*steps * 50))])
    assert {each["account"]: each["time"]["share"] for each in report.content["accounts"]} == {
        "program code": pytest.approx(0.5, abs=0.01),
        "productive": pytest.approx(0.5, abs=0.01),
    }


@pytest.mark.parametrize(("cpu", "is_said"), [(0.0, True), (1.0, False)])
def test_a_training_at_one_line_that_does_not_work_stands_still(program, tmp_path, cpu, is_said, capsys):
    stack = program(8, "fit"), Place("/usr/lib/python3.11/queue.py", 171, "Queue.get")
    report = write(tmp_path / "run", [Thread(1, "MainThread", stretches(stack, ms=16_000))], load=[cpu] * 16)
    assert report.stands is is_said
    assert cli.main(["report", str(tmp_path / "run")]) == (3 if is_said else 0)
    assert ("stands still at least since" in capsys.readouterr().out) is is_said


def test_a_process_that_loaded_no_library_that_trains_has_no_step(program, tmp_path):
    threads = [Thread(1, "MainThread", stretches((program(4, "read"),)))]
    report = write(tmp_path / "run", threads, files=["/lib/libc.so"])
    assert report.content["run"]["steps"] == 0
    assert report.content["unknown"][0]["what"].startswith("whether it trains: no stack shows")


def test_a_compiled_function_beside_code_in_threads_of_its_library_is_of_unknown_cause(program, tmp_path):
    call = Place(f"{TENSORFLOW}/eager/polymorphic_function/polymorphic_function.py", 833, "Function.__call__")
    main = Thread(1, "MainThread", stretches(*[(program(9, "fit"), FIT, call)] * 100))
    draws = Place(f"{TENSORFLOW}/ops/script_ops.py", 269, "FuncRegistry.__call__")
    other = Thread(2, "", stretches(*[(draws, program(4, "read"))] * 50))
    report = write(tmp_path / "run", [main, other], files=[f"{TENSORFLOW}/x.so"])
    assert {each["account"]: each["time"]["share"] for each in report.content["accounts"]} == {
        "productive": pytest.approx(0.5),
        "other": pytest.approx(0.5),
    }


def test_time_without_code_of_the_program_is_of_unknown_cause(program, tmp_path):
    kernel = Place("/venv/lib/python3.11/site-packages/ipykernel/kernelapp.py", 770, "IPKernelApp.start")
    cell = kernel, program(9, "fit")
    report = write(tmp_path / "run", [Thread(1, "MainThread", stretches(*[cell] * 50, *[(kernel,)] * 50))])
    assert {each["account"]: each["time"]["share"] for each in report.content["accounts"]} == {
        "productive": pytest.approx(0.5),
        "other": pytest.approx(0.5),
    }
    report = write(tmp_path / "idle", [Thread(1, "MainThread", stretches(*[(kernel,)] * 50))])
    assert report.content["run"]["steps"] == 0


# -- errors ------------------------------------------------------------------------------------------------------------


def test_what_cannot_be_observed_is_one_line_with_a_hint(monkeypatch, capsys):
    monkeypatch.setattr(py_spy, "program", lambda: "/usr/bin/false")
    assert cli.main(["attach", "99999999"]) == 65
    assert "there is no process 99999999" in capsys.readouterr().err
    assert cli.main(["attach", "1", "--for", "soon"]) == 64
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(TpunbError, match="is of the user"):
        attach.attach(os.getpid(), 1, "runs/x")
    failure = py_spy.failure(7, "Error: Permission Denied: Try again\x1b[31m\nas root")
    assert str(failure) == "py-spy cannot look at process 7: Permission Denied: Try again\ufffd[31m"
    assert "SYS_PTRACE" in failure.hint


def test_without_py_spy_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(py_spy.shutil, "which", lambda *_, **__: None)
    with pytest.raises(MissingExtra) as raised:
        attach.attach(os.getpid(), 1, "runs/x")
    assert raised.value.hint == install("attach")
    assert py_spy.line(os.getpid()) is None


# -- what stands still -------------------------------------------------------------------------------------------------


def test_lines_of_child_processes_are_those_within_their_own_work(monkeypatch, program):
    frames = [("__getitem__", 7), ("_MapDatasetFetcher.fetch", 52), ("BaseProcess._bootstrap", 314), ("<module>", 10)]
    data = [{"name": name, "filename": "/home/me/train.py", "line": line} for name, line in frames]
    data[1]["filename"] = data[2]["filename"] = "/usr/lib/python3.11/site-packages/torch/fetch.py"
    threads = [{"thread_name": "MainThread", "owns_gil": False, "frames": data}]
    monkeypatch.setattr(py_spy, "program", lambda: "py-spy")
    monkeypatch.setattr(
        py_spy.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, json.dumps(threads).encode())
    )
    assert py_spy.line(1) == "train.py:7 in __getitem__"
    threads[0]["frames"] = data[1:]
    assert py_spy.line(1) is None
    threads[0]["frames"] = data
    child = {"process": 4, "name": "train.py", "state": "sleeping"}
    seen = {"since": "2026-11-30T12:00:00+00:00", "seconds": 20, "step": 3, "children": [child], "threads": []}
    samples = pl.DataFrame(schema={"start_ps": pl.Int64, "place": pl.String})
    standing = stands(seen, None, samples, is_now=True, host=socket.gethostname())
    assert isinstance(standing, Standing)
    assert standing.ended == ("train.py (4): at train.py:7 in __getitem__",)
    assert stands(seen, None, samples, is_now=True, host="another").ended == ()


# -- a program that runs -----------------------------------------------------------------------------------------------

BARE = """
import sys, time
import torch

def slow(number):
    time.sleep(0.05)

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters())
print("trains", flush=True)
for number in range(100_000):
    loss = model(torch.ones(2, 4)).mean()
    loss.backward()
    optimizer.step()
    slow(number)
"""


@pytest.mark.live
def test_a_program_that_runs_is_observed_and_continues(tmp_path, capsys):
    pytest.importorskip("torch")
    try:
        py_spy.program()
    except MissingExtra:
        pytest.skip("py-spy is not installed")
    file = tmp_path / "bare.py"
    file.write_text(BARE)
    with subprocess.Popen([sys.executable, str(file)], stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout.readline() == "trains\n"
            code = cli.main(["attach", str(program.pid), "--for", "2s", "-o", str(tmp_path / "run")])
            output = capsys.readouterr()
            if "Permission" in output.err or "Operation not permitted" in output.err:
                pytest.skip("this machine permits no look at the memory of another process")
            assert code == 0, output.err
            assert program.poll() is None
        finally:
            program.kill()
    assert "Code of the program took" in output.out
    assert "bare.py:6 in slow ← time.sleep" in output.out
    assert Path(tmp_path, "run", "run.json").is_file()
