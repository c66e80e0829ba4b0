"""A capture: watches the whole block, writes as it goes, and loses nothing to whatever ends it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import polars as pl
import pytest

import tpunb as tp
from tpunb import watcher
from tpunb.errors import CaptureBusy
from tpunb.recorder import Schedule

pb = pytest.importorskip("tensorflow.tsl.profiler.protobuf.xplane_pb2")


def xspace(start_ns, stop_ns, steps=(), ops=()):
    """The bytes of a window: steps are (number, begin_ns, end_ns) and ops (name, begin_ns, end_ns), since the epoch."""
    space = pb.XSpace(hostnames=["stand-in"])
    cpu = space.planes.add(name="/host:CPU")
    cpu.stat_metadata[1].CopyFrom(pb.XStatMetadata(id=1, name="step_num"))
    names = {name: i for i, name in enumerate(["train", *(name for name, *_ in ops)], start=1)}
    for name, i in names.items():
        cpu.event_metadata[i].CopyFrom(pb.XEventMetadata(id=i, name=name))
    python, worker = cpu.lines.add(id=1, name="python"), cpu.lines.add(id=2, name="worker")
    for number, begin, end in steps:
        event = python.events.add(metadata_id=names["train"], offset_ps=(begin - start_ns) * 1000)
        event.duration_ps = (end - begin) * 1000
        event.stats.add(metadata_id=1, int64_value=number)
    for name, begin, end in ops:
        event = worker.events.add(metadata_id=names[name], offset_ps=(begin - start_ns) * 1000)
        event.duration_ps = (end - begin) * 1000
    task = space.planes.add(name="Task Environment")
    for i, (name, value) in enumerate([("profile_start_time", start_ns), ("profile_stop_time", stop_ns)], start=1):
        task.stat_metadata[i].CopyFrom(pb.XStatMetadata(id=i, name=name))
        task.stats.add(metadata_id=i, uint64_value=value)
    return space.SerializeToString()


class StandIn:
    """A source that watches our marks itself: no framework, no waiting beyond what the test asks for."""

    def __init__(self, *answers):
        self.answers = list(answers)  # what window 0, 1, ... does: None for its best, bytes, or an exception
        self.asked = threading.Semaphore(0)
        self.marks = []
        self.stopped = threading.Event()

    def start(self):
        return {"framework": "none", "framework_version": "0", "devices": ["/device:CPU:0"]}

    def window(self, seconds):
        start = time.time_ns()
        self.asked.release()
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        self.stopped.wait(seconds)
        self.stopped.clear()
        stop = time.time_ns()
        inside = [(n, a, b) for n, a, b in self.marks if a >= start and b <= stop]
        return answer or xspace(start, stop, inside, [("MatMul", a, b) for _, a, b in inside])

    def stop(self):
        self.stopped.set()

    def step(self, mark, number):
        source = self

        class Annotation:
            def __enter__(self):
                self.begin = time.time_ns()

            def __exit__(self, *_):
                source.marks.append((number, self.begin, time.time_ns()))

        return Annotation()

    def wait_asked(self, times=1):
        for _ in range(times):
            assert self.asked.acquire(timeout=20)


def facts(run):
    return json.loads((Path(run) / "run.json").read_text())


SHORT = Schedule(window=0.05)


def test_every_step_is_noted_and_those_a_window_saw_have_ops(tmp_path):
    source = StandIn()
    with tp.capture(tmp_path / "run", source=source, schedule=SHORT) as run:
        source.wait_asked()
        for i in range(30):
            with run.step(i):
                time.sleep(0.005)
    steps = tp.steps(tp.load(run))
    assert steps.frame["step"].to_list() == list(range(30))
    assert set(steps.frame["seen"]) >= {"full"}
    full = steps.full()
    assert full.ops.select("step", "op", "count").sort("step").rows() == [(i, "MatMul", 1) for i in full.frame["step"]]


def test_the_run_folder_says_when_where_and_with_what(tmp_path):
    source = StandIn()
    with tp.capture(tmp_path / "run", source=source, schedule=SHORT) as run:
        source.wait_asked(2)
    said = facts(run)
    assert said["state"] == "finished"
    assert said["framework"] == "none"
    assert said["options"] == {"window": 0.05, "every": None, "keep": "none", "source": "StandIn"}
    assert said["versions"]["tpunb"]
    assert said["host"]
    first = said["windows"][0]
    assert first["bytes"] > 0
    assert first["asked"] < first["answered"]
    assert first["error"] is None
    assert {"events", "steps", "dur_ps"} <= set(first)
    assert not list(Path(run).rglob("*.pb"))


def test_the_last_window_is_ended_not_waited_for(tmp_path):
    source = StandIn()
    began = time.monotonic()
    with tp.capture(tmp_path / "run", source=source, schedule=Schedule(window=60)) as run:
        source.wait_asked()
    assert time.monotonic() - began < 30
    assert len(facts(run)["windows"]) >= 1


def test_the_next_window_is_asked_for_while_the_last_is_written(tmp_path, monkeypatch):
    writing, go_on = threading.Event(), threading.Event()
    write = watcher.run_folder.write_window

    def slow(*args):
        writing.set()
        assert go_on.wait(20)
        write(*args)

    monkeypatch.setattr(watcher.run_folder, "write_window", slow)
    source = StandIn()
    with tp.capture(tmp_path / "run", source=source, schedule=SHORT):
        source.wait_asked()
        assert writing.wait(20)
        source.wait_asked()  # a second window begins though the first is still being written
        go_on.set()


def test_an_exception_goes_on_unchanged_and_what_was_recorded_stays(tmp_path):
    source = StandIn()
    error = ValueError("the user's own")
    with pytest.raises(ValueError, match="own") as caught, tp.capture(tmp_path / "run", source=source) as run:
        for i in range(100):
            with run.step(i):
                if i == 50:
                    raise error
    assert caught.value is error
    assert facts(run)["state"] == "ended by ValueError"
    assert tp.load(run).stored.frame["step"].to_list() == list(range(51))


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_goes_on_and_the_next_capture_may_begin(tmp_path, kind):
    with pytest.raises(kind), tp.capture(tmp_path / "run", source=StandIn()):
        raise kind
    with tp.capture(tmp_path / "next", source=StandIn()):
        pass


def test_a_second_capture_is_refused_and_the_first_goes_on(tmp_path):
    source = StandIn()
    with tp.capture(tmp_path / "run", source=source) as run:
        source.wait_asked()
        with pytest.raises(CaptureBusy, match="is running"), tp.capture(tmp_path / "other", source=StandIn()):
            pass
        with run.step(0):
            pass
    assert tp.load(run).stored.frame["step"].to_list() == [0]
    assert not (tmp_path / "other").exists()


def test_a_window_that_fails_says_why_and_the_others_go_on(tmp_path):
    source = StandIn(tp.TpunbError("INTERNAL: Another profiling session active"), b"no XSpace at all", None)
    with tp.capture(tmp_path / "run", source=source, schedule=SHORT) as run:
        source.wait_asked(3)
        with run.step(0):
            pass
    errors = [window["error"] for window in facts(run)["windows"]]
    assert errors[0] == "INTERNAL: Another profiling session active"
    assert "window 1" in errors[1]
    assert errors[2] is None
    assert tp.load(run).stored.frame["step"].to_list() == [0]


def test_a_disk_that_is_full_is_told_at_the_end_and_never_ends_the_training(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(watcher.run_folder, "write_window", full)
    source = StandIn()
    with (
        pytest.warns(RuntimeWarning, match="No space left"),
        tp.capture(tmp_path / "run", source=source, schedule=SHORT),
    ):
        source.wait_asked(2)


def test_steps_after_the_last_window_are_noted_too(tmp_path):
    source = StandIn()
    with tp.capture(tmp_path / "run", source=source, schedule=Schedule(window=0.05, every=60)) as run:
        source.wait_asked()
        for i in range(20):
            with run.step(i):
                time.sleep(0.01)
    assert tp.load(run).stored.frame["step"].to_list() == list(range(20))


@pytest.mark.parametrize("broken", [RuntimeError("a bug"), pl.exceptions.ComputeError("File too large")])
def test_whatever_breaks_the_recording_is_told_and_the_steps_are_kept(tmp_path, monkeypatch, broken):
    write = watcher.run_folder.write_window

    def at_first(folder, number, *rest):
        if number == 0:
            raise broken
        write(folder, number, *rest)

    monkeypatch.setattr(watcher.run_folder, "write_window", at_first)
    source = StandIn()
    with (
        pytest.warns(RuntimeWarning, match="incomplete"),
        tp.capture(tmp_path / "run", source=source, schedule=SHORT) as run,
    ):
        for i in range(5):
            with run.step(i):
                pass
        source.wait_asked(3)
    assert facts(run)["state"] == "finished, incomplete"
    assert tp.load(run).stored.frame["step"].to_list() == list(range(5))


def test_a_source_that_breaks_is_told_and_closing_does_not_wait(tmp_path):
    source = StandIn(None, RuntimeError("a bug of the source"))
    began = time.monotonic()
    with (
        pytest.warns(RuntimeWarning, match="a bug of the source"),
        tp.capture(tmp_path / "run", source=source, schedule=SHORT) as run,
    ):
        source.wait_asked(2)
        with run.step(0):
            pass
    assert time.monotonic() - began < 60
    assert tp.load(run).stored.frame["step"].to_list() == [0]


def test_a_recording_that_fails_never_hides_the_users_exception(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    source = StandIn()
    with pytest.raises(KeyError, match="mine") as caught, tp.capture(tmp_path / "run", source=source):
        monkeypatch.setattr(watcher.run_folder, "write_run", full)
        monkeypatch.setattr(watcher.run_folder, "write_window", full)
        raise KeyError("mine")
    assert "No space left on device" in caught.value.__notes__[0]


def test_an_interrupted_close_keeps_the_steps_and_leaves_nobody_writing(tmp_path, monkeypatch):
    class Slow(StandIn):
        def window(self, seconds):
            answer = super().window(0.01)
            time.sleep(1.0)  # a collection that takes its time
            return answer

    def interrupted(self):
        raise KeyboardInterrupt

    source = Slow()
    with monkeypatch.context() as patched:
        patched.setattr(watcher.Watcher, "_hurry_home", interrupted)
        with pytest.raises(KeyboardInterrupt), tp.capture(tmp_path / "run", source=source) as run:
            source.wait_asked()
            with run.step(0):
                pass
    assert facts(run)["state"] == "interrupted while closing"
    assert tp.load(run).stored.frame["step"].to_list() == [0]
    before = sorted(str(path) for path in Path(run).rglob("*"))
    for thread in [t for t in threading.enumerate() if t.name.startswith("tpunb-")]:
        thread.join(10)
    assert sorted(str(path) for path in Path(run).rglob("*")) == before


def test_marks_of_the_users_own_keep_their_numbers_in_every_window(tmp_path):
    def window(first):
        now = time.time_ns()
        steps = [(first + i, now + i * 1000, now + (i + 1) * 1000) for i in range(3)]
        return xspace(now, now + 10_000, steps, [("MatMul", begin, end) for _, begin, end in steps])

    source = StandIn(window(10), window(20), window(30))
    with tp.capture(tmp_path / "run", source=source, schedule=SHORT) as run:
        source.wait_asked(4)
    assert tp.load(run).stored.frame["step"].to_list() == [10, 11, 12, 20, 21, 22, 30, 31, 32]


def test_a_step_inside_a_step_is_part_of_it(tmp_path):
    with tp.capture(tmp_path / "run", source=StandIn()) as run, run.step(3), run.step(4):
        pass
    assert tp.load(run).stored.frame["step"].to_list() == [3]


def test_a_loop_that_is_left_early_ends_its_step_and_no_other(tmp_path):
    with tp.capture(tmp_path / "run", source=StandIn()) as run:
        for batch in run.steps(range(10)):
            if batch == 2:
                break
        with run.step(7):
            pass
    assert tp.load(run).stored.frame["step"].to_list() == [0, 1, 2, 7]


@pytest.mark.parametrize("number", [-1, 2.5, 2**63, "3"])
def test_a_number_that_is_none_is_refused(tmp_path, number):
    with (
        tp.capture(tmp_path / "run", source=StandIn()) as run,
        pytest.raises(ValueError, match="The number parameter of step must be an int of 0 or more"),
        run.step(number),
    ):
        pass


@pytest.mark.parametrize("mark", ["a#b=c#", "", None, "two\nlines"])
def test_a_mark_that_a_profiler_would_misread_is_refused(tmp_path, mark):
    with (
        tp.capture(tmp_path / "run", source=StandIn()) as run,
        pytest.raises(ValueError, match="The mark parameter of step"),
        run.step(0, mark),
    ):
        pass


def test_a_home_folder_is_understood(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with tp.capture("~/run", source=StandIn()):
        pass
    assert tp.load("~/run").name == "run"


def test_the_block_may_change_its_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with tp.capture("run", source=StandIn()) as run, run.step(0):
        os.chdir(tmp_path / "elsewhere")
    assert tp.load(run).stored.frame["step"].to_list() == [0]
    assert (tmp_path / "run" / "run.json").is_file()


def test_raw_windows_are_kept_when_asked_for_and_give_the_same_steps(tmp_path):
    source = StandIn()
    with tp.capture(tmp_path / "run", source=source, schedule=SHORT, keep="all") as run:
        source.wait_asked()
        for batch in run.steps(range(10)):
            assert batch in range(10)
            time.sleep(0.01)
    profile = tp.load(run)
    assert profile.events["step_num"].drop_nulls().len() > 0
    seen = profile.stored.full().frame.select("step", "start_ps")
    raw = profile.events.filter(pl.col("step_num").is_not_null()).select(step="step_num", raw_ps="start_ps")
    apart = seen.join(raw, on="step").select((pl.col("start_ps") - pl.col("raw_ps")).abs().max()).item()
    assert apart < 1e9  # our clock and the window's agree to a millisecond


def test_statistics_alone_say_so_when_events_are_asked_for(tmp_path):
    with tp.capture(tmp_path / "run", source=StandIn()) as run:
        pass
    with pytest.raises(tp.TpunbError, match="statistics only"):
        tp.load(run).events  # noqa: B018


def test_an_earlier_run_is_renamed_never_overwritten(tmp_path):
    for _ in range(3):
        with tp.capture(tmp_path / "run", source=StandIn()):
            pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run-1", "run-2"]
    assert facts(tmp_path / "run")["earlier_run"] == "run-2"


def test_a_folder_with_something_else_in_it_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match="holds something else"), tp.capture(tmp_path, source=StandIn()):
        pass
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    with tp.capture(tmp_path / "run", source=StandIn()):  # and the process is not left busy
        pass


def test_a_loop_over_data_is_marked_with_the_wait_for_it(tmp_path):
    def data():
        for i in range(3):
            time.sleep(0.02)
            yield i

    with tp.capture(tmp_path / "run", source=StandIn()) as run:
        assert list(run.steps(data())) == [0, 1, 2]
    frame = tp.load(run).stored.frame
    assert frame["step"].to_list() == [0, 1, 2]
    assert (frame["dur_ps"] >= 0.02e12).all()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"keep": "some"}, "The keep parameter of capture must be 'none' or 'all'. Got 'some' instead."),
    ],
)
def test_wrong_arguments_are_told_in_a_sentence(tmp_path, arguments, sentence):
    with pytest.raises(ValueError, match="parameter of capture") as caught, tp.capture(tmp_path / "run", **arguments):
        pass
    assert str(caught.value) == sentence


@pytest.mark.parametrize(("window", "every"), [(0, None), (61, None), (1.0, 0.5), (float("nan"), None)])
def test_a_schedule_that_cannot_be_is_refused(window, every):
    with pytest.raises(ValueError, match="parameter of Schedule"):
        Schedule(window, every)


def test_no_framework_is_imported_before_a_capture_starts():
    code = "import sys, tpunb as tp; tp.capture; tp.load; tp.phases; print('tensorflow' in sys.modules)"
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == "False"


def test_gaps_between_windows_are_reported(tmp_path):
    source = StandIn()
    with tp.capture(tmp_path / "run", source=source, schedule=Schedule(window=0.05, every=0.2)):
        source.wait_asked(3)
    profile = tp.load(tmp_path / "run")
    assert profile.gaps.height >= 2
    assert 0 < profile.observed < 1
    assert f"{profile.observed:.0%} of the run observed" in repr(profile)


# ---- the real profiler service ------------------------------------------------------------------------------------


def test_a_real_keras_fit_is_captured_whole(tmp_path):
    import keras
    import numpy as np

    model = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(256), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rows = np.ones((3200, 64), "float32"), np.ones((3200, 1), "float32")
    with tp.capture(tmp_path / "run", schedule=Schedule(window=0.5)) as run:
        model.fit(*rows, batch_size=32, epochs=4, validation_data=rows, verbose=0)
    profile = tp.load(run)
    steps = tp.steps(profile)
    assert steps.frame["step"].to_list() == list(range(800))
    assert steps.frame["mark"].value_counts().sort("mark").rows() == [("test", 400), ("train", 400)]
    assert len(steps.full()) > 80
    assert "MatMul" in steps.full().ops["op"]
    assert profile.windows["error"].null_count() == profile.windows.height
    phases = tp.phases(steps)
    assert 0 < phases.coverage(3) <= 1
    assert not phases.top(3).is_empty()


def test_a_real_loop_without_keras_is_captured(tmp_path):
    import tensorflow as tf

    weight = tf.Variable(tf.ones((64, 64)))

    @tf.function
    def train_step(x):
        return tf.matmul(x, weight)

    with tp.capture(tmp_path / "run", schedule=Schedule(window=0.3)) as run:
        end, done = time.monotonic() + 1.5, 0  # long enough for a window, however slow its beginning
        while time.monotonic() < end:
            with run.step(done):
                train_step(tf.ones((64, 64)))
            done += 1
    steps = tp.steps(tp.load(run))
    assert steps.frame["step"].to_list() == list(range(done))
    top = steps.ops.filter(pl.col("op") == "MatMul")
    assert top["step"].n_unique() > 20
    assert "train_step" not in steps.ops["op"]  # the name of the user's function is no operation


BODY = """
import sys, time, numpy as np
from tpunb.recorder import Schedule
import tpunb as tp, tensorflow as tf
with tp.capture(sys.argv[1], schedule=Schedule(window=0.5)) as run:
    for i in range(100_000):
        with run.step(i):
            tf.matmul(tf.ones((64, 64)), tf.ones((64, 64)))
            time.sleep(0.002)
        if i == 20:
            print("running", flush=True)
"""


def running(folder):
    process = subprocess.Popen(
        [sys.executable, "-c", BODY, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout.readline().strip() == "running"
    deadline = time.monotonic() + 60
    while not list(Path(folder).glob("windows/0000[1-9]")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process


@pytest.mark.slow
def test_a_killed_process_leaves_a_run_that_loads(tmp_path):
    process = running(tmp_path / "run")
    os.kill(process.pid, signal.SIGKILL)
    process.wait(20)
    profile = tp.load(tmp_path / "run")
    assert facts(tmp_path / "run")["state"] == "running"
    assert len(tp.steps(profile).full()) > 10
    assert len(tp.phases(tp.steps(profile))) >= 1


@pytest.mark.slow
def test_an_interrupt_from_outside_ends_the_run_in_order(tmp_path):
    process = running(tmp_path / "run")
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(60) == -signal.SIGINT
    assert facts(tmp_path / "run")["state"] == "ended by KeyboardInterrupt"
    assert len(tp.steps(tp.load(tmp_path / "run")).full()) > 10


SPIN = """
import sys, threading, time
import tpunb as tp
from tpunb import recorder, marking
from tpunb.recorder import Schedule

data = open(sys.argv[1], "rb").read()
class Canned:
    def __init__(self): self.left = 3; self.done = threading.Event()
    def start(self): return {}
    def window(self, seconds):
        if self.left == 0:
            self.done.wait(30); raise tp.TpunbError("no more")
        self.left -= 1
        return data
    def stop(self): self.done.set()
    def step(self, mark, number):
        from contextlib import nullcontext
        return nullcontext()

longest = 0.0
with tp.capture(sys.argv[2], source=Canned(), schedule=Schedule(window=0.05)) as run:
    last = time.perf_counter()
    end = last + 4
    while last < end:
        now = time.perf_counter()
        longest = max(longest, now - last)
        last = now
print(longest)
"""


def big_window():
    """The bytes of a window of 150,000 events, as a second of small training steps has."""
    now = time.time_ns()
    steps = [(i, now + i * 2_000_000, now + (i + 1) * 2_000_000) for i in range(500)]
    names = [f"StatefulPartitionedCall/layer_{i}/Op{i}:Op{i % 60}" for i in range(300)]
    ops = [(name, begin + i * 6000, begin + i * 6000 + 5000) for _, begin, _ in steps for i, name in enumerate(names)]
    return xspace(now, now + 1_000_000_000, steps, ops)


def test_decoding_never_holds_the_gil_for_long(tmp_path):
    (tmp_path / "window.pb").write_bytes(big_window())
    longest = []
    for attempt in range(4):  # the machine's own hiccups differ from run to run; a held GIL does not
        seen = subprocess.run(
            [sys.executable, "-c", SPIN, str(tmp_path / "window.pb"), str(tmp_path / f"run{attempt}")],
            capture_output=True,
            text=True,
            check=True,
        )
        longest.append(float(seen.stdout))
        windows = facts(tmp_path / f"run{attempt}")["windows"]
        assert sum(window["events"] > 100_000 for window in windows) == 3, "the windows were not decoded"
        if longest[-1] < 0.05:
            return
    raise AssertionError(f"a spinning thread stood still for {[f'{s * 1e3:.0f} ms' for s in longest]}")
