"""Real ends of a process: a kernel killed or interrupted in a cell, a full disk."""

import os
import queue
import random
import signal
import subprocess
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import polars as pl
import pytest
from capture_loops import facts, until
from optional import lazy
from stand_in import StandIn
from warm_python import NOTEBOOK, TENSORFLOW, warm_kernels, warm_python

import tpunb as tp

pytestmark = pytest.mark.live
jupyter_client = lazy("jupyter_client")

MODEL = """
%load_ext tpunb
import keras, numpy as np
model = keras.Sequential([keras.layers.Input((32,)), keras.layers.Dense(64), keras.layers.Dense(1)])
model.compile("sgd", "mse")
rows = np.ones((3200, 32), "float32"), np.ones((3200, 1), "float32")
model.fit(*rows, batch_size=32, verbose=0)
"""


class Kernel:
    """A Jupyter kernel of its own process."""

    def __init__(self, folder, backend):
        environment = warm_kernels(TENSORFLOW, **({} if backend == "tensorflow" else {"KERAS_BACKEND": backend}))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("JUPYTER_PATH", environment["JUPYTER_PATH"])
            start = jupyter_client.manager.start_new_kernel
            self.manager, self.client = start(cwd=str(folder), env=os.environ | environment, startup_timeout=180)

    def begin(self, code):
        return self.client.execute(code)

    def messages(self, begun, limit_s=180):
        """What a cell sends, (type, content), until it has ended."""
        sent, end = [], time.monotonic() + limit_s
        while True:
            message = self.client.get_iopub_msg(timeout=max(1, end - time.monotonic()))
            if message["parent_header"].get("msg_id") != begun:
                continue
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return sent
            sent.append((message["msg_type"], message["content"]))

    def interrupt(self, begun):
        """What a cell sends after an interrupt; Python drops one that arrives in a finalizer: it is sent again."""
        for _ in range(3):
            self.manager.interrupt_kernel()
            with suppress(queue.Empty):
                return self.messages(begun, limit_s=180)  # the summary may compile first
        raise AssertionError("three interrupts did not end the cell")

    def run(self, code):
        sent = self.messages(self.begin(code))
        assert [content for kind, content in sent if kind == "error"] == []
        return "".join(content["text"] for kind, content in sent if kind == "stream")

    def end(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def trained(tmp_path, request):
    """A kernel with a model that has been trained a little."""
    backend = getattr(request, "param", "tensorflow")
    if find_spec(backend) is None or find_spec("keras") is None or find_spec("ipykernel") is None:
        pytest.skip(f"{backend}, keras or ipykernel is not installed")
    kernel = Kernel(tmp_path, backend)
    try:
        kernel.run(MODEL)
        yield kernel
    finally:
        kernel.end()


def gone(pid):
    """Return whether a process has ended; it is a child of another one, which waits for it."""
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return False
    return True


def recorded(run):
    """Return whether two windows with steps are there, of a run that another process writes."""
    if not list(run.glob("parts/*/windows.parquet")):
        return False
    return tp.load(run).windows.filter(pl.col("steps") > 0).height >= 2


# -- SIGKILL --------------------------------------------------------------------------------------------------------


CHOICES = [("tensorflow", "all"), ("jax", "phases"), ("tensorflow", "phases"), ("jax", "all")]
ATTEMPTS = [
    pytest.param(*CHOICES[number % 4], number, marks=[pytest.mark.slow] if number >= 2 else []) for number in range(8)
]


@pytest.mark.parametrize(("trained", "keep", "attempt"), ATTEMPTS, indirect=["trained"])
def test_a_kernel_killed_at_any_moment_leaves_every_recorded_window_complete(tmp_path, trained, keep, attempt):
    run = tmp_path / "run"
    pid = int(trained.run("import os\nprint(os.getpid())"))
    trained.begin(
        f"%%tpupoint --run {run} --continuous --window 0.15 --keep {keep}\nmodel.fit(*rows, epochs=10_000, verbose=0)"
    )
    until(lambda: recorded(run))
    time.sleep(random.Random(attempt).uniform(0, 1))
    before = tp.load(run)
    os.kill(pid, signal.SIGKILL)
    until(lambda: gone(pid))
    profile = tp.load(run)
    assert facts(run)["state"] == "running"
    windows, frame = profile.windows, profile.stored.frame
    assert windows.join(before.windows, on=windows.columns, nulls_equal=True).height == before.windows.height
    full = before.stored.full()
    traced = full.frame.select("step", "start_ps", "dur_ps", "traced")
    assert frame.join(traced, on=traced.columns).height == traced.height
    ops = full.ops.select("step", pl.col("op").cast(pl.String), "side", "count", "self_ps")
    now = profile.stored.ops.with_columns(pl.col("op").cast(pl.String))
    assert now.join(ops, on=ops.columns).height == ops.height
    assert windows["steps"].sum() == (frame["traced"] == "full").sum()  # a window and its steps are there together
    assert sorted(frame["step"]) == list(range(len(frame)))
    raw = {int(file.parent.name): file for file in run.glob("plugins/profile/*/*.xplane.pb")}
    for file in raw.values():
        tp.load(file)  # or it raises
    if keep == "all":
        assert set(windows["window"]) <= set(raw)
    assert profile.events.height > 0
    assert len(tp.phases(tp.steps(profile))) >= 1
    with tp.capture(run, source=StandIn()) as again, again.step(0):
        pass
    assert facts(run)["earlier_run"] == str(tmp_path / "run-1")
    assert tp.load(tmp_path / "run-1").stored.frame.equals(frame)
    assert tp.load(run).stored.frame["step"].to_list() == [0]


ALONE = """
import sys, time
from dataclasses import replace
sys.path.insert(0, sys.argv[1])
from stand_in import StandIn
import tpunb as tp
from tpunb.profiler import session

session.LIMITS = replace(session.LIMITS, part_s=1e9)  # no part is written, as while a window is reduced
with tp.capture(sys.argv[2], source=StandIn(), schedule=tp.Schedule.ticks()) as run, open(sys.argv[3], "w") as log:
    for i in range(10**9):
        with run.step(i):
            time.sleep(0.002)
        print(i, time.time_ns(), file=log, flush=True)
"""


def test_a_killed_run_has_the_steps_up_to_the_last_write_of_its_clock(tmp_path):
    """The program's log has the end of each step: those recorded are its first ones, up to 30 s before the kill."""
    run, log, tail = tmp_path / "run", tmp_path / "log", tmp_path / "run" / "ticks.parquet"
    command = [*warm_python(NOTEBOOK), "-c", ALONE, str(Path(__file__).parent), str(run), str(log)]
    program = subprocess.Popen(command)
    try:
        until(tail.exists)
        first = tail.read_bytes()
        until(lambda: tail.read_bytes() != first)  # written again
        seen = tp.load(run).stored.frame
        pid = int(facts(run)["process"])
        os.kill(pid, signal.SIGKILL)
        until(lambda: gone(pid))
    finally:
        program.kill()
        program.wait()
    profile = tp.load(run)
    steps = profile.stored.frame
    assert steps["step"].to_list() == list(range(len(steps)))
    assert len(steps) >= len(seen) > 0
    assert steps.head(len(seen)).equals(seen)
    assert not list(run.glob("parts/*"))
    ends = [int(line.split()[1]) for line in log.read_text().splitlines() if line.count(" ") == 1]
    assert len(steps) <= len(ends) + 1
    recorded = [facts(run)["origin_ns"] + ps // 1000 for ps in steps["start_ps"] + steps["dur_ps"]]
    assert all(end <= logged for end, logged in zip(recorded, ends, strict=False))
    assert ends[-1] - recorded[-1] < 30e9
    assert profile.span_ps // 1000 + facts(run)["origin_ns"] == recorded[-1]


# -- an interrupt and an exception in the cell ------------------------------------------------------------------------


def pages(sent):
    """Pictures and tables that are displayed last; the panel is below them."""
    shown = [content["data"] for kind, content in sent if kind in ("display_data", "update_display_data")]
    return [data for data in shown if "text/html" in data][-1]


# TensorFlow 2.21 corrupts memory if an interrupt arrives as it makes an operation of tf.data (it takes a shape whose
# length it cannot get for unknown, and makes too little room): data made once, before
ENDLESS = """
import tensorflow as tf
model.fit(tf.data.Dataset.from_tensor_slices(rows).repeat().batch(32), steps_per_epoch=100, epochs=10_000, verbose=0)
"""


def test_interrupt_or_exception_in_the_cell_keeps_the_recording(tmp_path, trained):
    run = tmp_path / "run"
    begun = trained.begin(f"%%tpupoint --run {run} --continuous --window 0.15\n{ENDLESS}")
    until(lambda: recorded(run))
    sent = trained.interrupt(begun)
    assert [content["ename"] for kind, content in sent if kind == "error"] == ["KeyboardInterrupt"]
    assert "the cell raised KeyboardInterrupt; this is what was recorded before it" in pages(sent)["text/html"]
    assert facts(run)["state"] == "ended by KeyboardInterrupt"
    steps = tp.steps(tp.load(run))
    assert sorted(steps.frame["step"]) == list(range(len(steps)))
    assert len(steps.full()) >= 1

    after = tmp_path / "after"
    sent = trained.messages(
        trained.begin(f"""%%tpupoint --run {after} --continuous --window 0.15
class Broken(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if tpu._session.recorder.full:
            raise ValueError("the user's own")

model.fit(*rows, epochs=10_000, verbose=0, callbacks=[Broken()])
""")
    )
    (error,) = [content for kind, content in sent if kind == "error"]
    assert (error["ename"], error["evalue"]) == ("ValueError", "the user's own")
    assert "During handling of" not in "".join(error["traceback"])
    assert "the cell raised ValueError; this is what was recorded before it" in pages(sent)["text/html"]
    assert facts(after)["state"] == "ended by ValueError"
    assert len(tp.phases(tp.steps(tp.load(after)))) >= 1
    assert trained.run("print(tpu.steps is not None)") == "True\n"


# -- a full disk ----------------------------------------------------------------------------------------------------

FULL = """
import resource, sys, time, warnings
sys.path.insert(0, sys.argv[1])
from stand_in import StandIn
import tpunb as tp
from tpunb.profiler.capture import Schedule

warnings.simplefilter("always")
folder, limit = sys.argv[2], int(sys.argv[3])
done = 0
with tp.capture(folder, source=StandIn(), schedule=Schedule.continuous(window=0.05), keep="all") as run:
    end = time.monotonic() + 120
    while "incomplete" not in run.status.state:
        assert time.monotonic() < end, run.status
        with run.step(done):
            time.sleep(0.002)
        done += 1
        if limit and run.status.windows >= 2 and run._session.recorder.full:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    for i in range(done, done + 50):
        with run.step(i):
            pass
print("trained to its end", done)
"""


def trained_on_a_full_disk(folder, limit=0):
    command = [*warm_python(NOTEBOOK), "-c", FULL, str(Path(__file__).parent), str(folder), str(limit)]
    seen = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert seen.returncode == 0, seen.stderr
    assert seen.stdout.startswith("trained to its end")
    assert seen.stderr.count("RuntimeWarning") == 1
    assert "Traceback" not in seen.stderr
    return seen.stderr


def check_what_was_written_before(folder):
    profile = tp.load(folder)
    assert profile.windows["error"].null_count() == profile.windows.height >= 2
    steps = tp.steps(profile)
    assert len(steps.full()) >= 1
    assert steps.frame["step"].to_list() == list(range(len(steps)))
    assert profile.events.height > 0
    assert len(tp.phases(steps)) >= 1
    assert not [path for path in folder.rglob(".*") if path.name != ".lock"]


@pytest.mark.parametrize("limit", [1, 2500])
def test_file_size_limit_ends_the_recording_with_one_warning(tmp_path, limit):
    pytest.importorskip("resource")
    output = trained_on_a_full_disk(tmp_path / "run", limit)
    assert "File too large" in output
    check_what_was_written_before(tmp_path / "run")
    with tp.capture(tmp_path / "run", source=StandIn()):  # nobody holds it
        pass


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of 1 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no file system may be mounted here: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_full_disk_ends_the_recording_with_one_warning(tiny_disk):
    output = trained_on_a_full_disk(tiny_disk / "run")
    assert "No space left on device" in output
    check_what_was_written_before(tiny_disk / "run")
    assert facts(tiny_disk / "run")["state"] in ("stopped, incomplete", "running")
