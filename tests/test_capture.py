"""A capture records the whole block, writes as it runs, and keeps what was recorded however it ends."""

import json
import os
import subprocess
import sys
import threading
import time
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
from capture_loops import SHORT, facts, steps_of, traced, train, train_until, until
from optional import lazy
from stand_in import StandIn, xspace

import tpunb as tp
from tpunb import signals
from tpunb.errors import CaptureBusy, TpunbError
from tpunb.io.run_writer import RunWriter
from tpunb.profiler import recorder as recorder_module
from tpunb.profiler import session, step_clock
from tpunb.profiler.capture import Schedule
from tpunb.profiler.recorder import RunRecorder
from tpunb.profiler.schedule import WindowScheduler
from tpunb.profiler.stacks import outwards
from tpunb.profiler.windows import LOCAL, ReducedWindow, WindowResponse
from tpunb.step_stats import reduce as module
from tpunb.tuning.job import job_of
from tpunb.widgets.summary import Summary

tf = lazy("tensorflow")


def windows(run):
    return tp.load(run).windows


def test_every_step_is_recorded_and_traced_ones_have_ops(tmp_path):
    source = StandIn()
    with tp.capture(tmp_path / "run", source=source, schedule=SHORT) as run:
        source.wait_asked()
        done = train_until(run, lambda: traced(run) >= 10)
    steps = tp.steps(tp.load(run))
    assert steps.frame["step"].to_list() == list(range(done))
    full = steps.full()
    assert len(full) >= 10
    assert full.ops.select("step", "op", "count").sort("step").rows() == [(i, "MatMul", 1) for i in full.frame["step"]]


def test_run_json_holds_time_host_and_versions(tmp_path):
    source = StandIn()
    with tp.capture(tmp_path / "run", source=source, schedule=SHORT, keep="none") as run:
        source.wait_asked(2)
    run_json = facts(run)
    assert run_json["state"] == "finished"
    assert run_json["framework"] == "none"
    assert run_json["options"] == {
        **{"window": 0.05, "every": 0.0, "burst": 0, "budget": None},
        **{"keep": "none", "until": None, "source": "StandIn()"},
    }
    assert run_json["versions"]["tpunb"]
    assert run_json["host"]
    assert run_json["overhead"] is None  # without steps nothing is measured
    assert [*run_json["metadata"]] == ["processors", "machine_processors"]  # nor does anybody say what ran
    first = windows(run).row(0, named=True)
    assert (first["window"], first["reason"], first["error"]) == (0, "continuous", None)
    assert first["bytes"] > 0
    assert first["latency_ps"] >= first["dur_ps"] > 0.04e12
    assert not list(Path(run).rglob("*.pb"))


def test_the_last_window_is_ended_not_waited_for(tmp_path):
    class Endless(StandIn):
        def window(self, seconds):
            return super().window(3600)

    source = Endless()
    with tp.capture(tmp_path / "run", source=source) as run:
        source.wait_asked()
    assert facts(run)["state"] == "finished"
    assert windows(run)["error"].to_list() == [None]


def test_next_window_is_requested_while_the_last_is_written(tmp_path, monkeypatch):
    writing, go_on = threading.Event(), threading.Event()
    write = RunWriter.part

    def slow(*args):
        writing.set()
        assert go_on.wait(60)
        write(*args)

    monkeypatch.setattr(RunWriter, "part", slow)
    source = StandIn()
    with tp.capture(tmp_path / "run", source=source, schedule=SHORT):
        source.wait_asked()
        assert writing.wait(60)
        source.wait_asked()  # a second window begins though the first is still being written
        go_on.set()


def test_exception_is_raised_unchanged_and_the_recording_stays(tmp_path):
    source = StandIn()
    error = ValueError("the user's own")
    with pytest.raises(ValueError, match="own") as caught, tp.capture(tmp_path / "run", source=source) as run:
        for i in range(100):
            with run.step(i):
                if i == 50:
                    raise error
    assert caught.value is error
    assert facts(run)["state"] == "ended by ValueError"
    assert steps_of(run) == list(range(51))


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_interrupt_is_raised_and_the_next_capture_can_begin(tmp_path, kind):
    with pytest.raises(kind), tp.capture(tmp_path / "run", source=StandIn()):
        raise kind
    with tp.capture(tmp_path / "next", source=StandIn()):
        pass


def test_second_capture_is_refused_and_the_first_continues(tmp_path):
    source = StandIn()
    with tp.capture(tmp_path / "run", source=source) as run:
        source.wait_asked()
        with pytest.raises(CaptureBusy, match="is running"), tp.capture(tmp_path / "other", source=StandIn()):
            pass
        with run.step(0):
            pass
    assert steps_of(run) == [0]
    assert not (tmp_path / "other").exists()


def test_failed_window_holds_its_error_and_the_others_are_recorded(tmp_path):
    source = StandIn(tp.TpunbError("INTERNAL: Another profiling session active"), b"no XSpace at all", None)
    with tp.capture(tmp_path / "run", source=source, schedule=SHORT) as run:
        source.wait_asked(3)
        with run.step(0):
            pass
    errors = windows(run)["error"].to_list()
    assert errors[0] == "INTERNAL: Another profiling session active"
    assert "window 1" in errors[1]
    assert errors[2] is None
    assert steps_of(run) == [0]


def test_full_disk_ends_the_recording_with_one_warning(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunWriter, "part", full)
    source = StandIn()
    with (
        pytest.warns(RuntimeWarning, match="No space left") as warned,
        tp.capture(tmp_path / "run", source=source, schedule=SHORT) as run,
    ):
        source.wait_asked(1)
        until(lambda: "No space left" in run.status.state)
        with run.step(0):  # goes on unmarked
            pass
    assert len(warned) == 1
    assert facts(run)["state"] == "stopped, incomplete"


def test_steps_after_the_last_window_are_recorded(tmp_path):
    source = StandIn()
    with tp.capture(tmp_path / "run", source=source, schedule=Schedule.fixed(window=0.05, every=60)) as run:
        source.wait_asked()
        done = train_until(run, lambda: run.status.windows)
        train(run, range(done, done + 10))
    assert steps_of(run) == list(range(done + 10))


@pytest.mark.parametrize("broken", [RuntimeError("a bug"), pl.exceptions.ComputeError("File too large")])
def test_failed_recording_is_reported_and_the_steps_are_kept(tmp_path, monkeypatch, broken):
    write = RunWriter.part

    def at_first(writer, number, tables):
        if "windows" in tables:
            raise broken
        write(writer, number, tables)

    monkeypatch.setattr(RunWriter, "part", at_first)
    source = StandIn()
    with (
        pytest.warns(RuntimeWarning, match="incomplete"),
        tp.capture(tmp_path / "run", source=source, schedule=Schedule.continuous(window=0.5)) as run,
    ):
        train(run, range(5))
        until(lambda: "incomplete" in run.status.state)
    assert facts(run)["state"] == "stopped, incomplete"
    assert steps_of(run) == list(range(5))


def test_window_that_cannot_be_reduced_holds_its_error(tmp_path, monkeypatch):
    reduce, calls = module.reduce, []

    def second(*args):
        calls.append(args)
        if len(calls) == 2:
            raise pl.exceptions.ComputeError("a bug")
        return reduce(*args)

    monkeypatch.setattr(module, "reduce", second)
    source = StandIn()
    with tp.capture(tmp_path / "run", source=source, schedule=SHORT) as run:
        source.wait_asked(4)
    errors = windows(run)["error"].to_list()
    assert "window 1 could not be reduced: ComputeError('a bug')" in errors[1]
    assert errors[0] is errors[2] is None


def test_failed_source_is_reported_and_closing_does_not_wait(tmp_path):
    source = StandIn(None, RuntimeError("a bug of the source"))
    with (
        pytest.warns(RuntimeWarning, match="a bug of the source"),
        tp.capture(tmp_path / "run", source=source, schedule=SHORT) as run,
    ):
        source.wait_asked(2)
        with run.step(0):
            pass
    assert not run._session._abandoned.is_set()  # as when the time limit of closing is over
    assert steps_of(run) == [0]


def test_a_recording_that_fails_never_hides_the_users_exception(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    source = StandIn()
    with pytest.raises(KeyError, match="mine") as caught, tp.capture(tmp_path / "run", source=source):
        monkeypatch.setattr(RunWriter, "facts", full)
        monkeypatch.setattr(RunWriter, "part", full)
        raise KeyError("mine")
    assert "No space left on device" in caught.value.__notes__[0]


def test_interrupted_close_keeps_the_steps_and_ends_all_writes(tmp_path, monkeypatch):
    collected = threading.Event()

    class Slow(StandIn):
        def window(self, seconds):
            answer = super().window(0.01)
            assert collected.wait(60)
            return answer

    class Interrupted(threading.Thread):
        def join(self, timeout=None):
            if self.name == "tpunb-closing":
                raise KeyboardInterrupt
            super().join(timeout)

    source, others = Slow(), {*threading.enumerate()}
    with monkeypatch.context() as patched:
        patched.setattr(session.threading, "Thread", Interrupted)
        with pytest.raises(KeyboardInterrupt), tp.capture(tmp_path / "run", source=source) as run:
            source.wait_asked()
            with run.step(0):
                pass
    assert facts(run)["state"] == "interrupted while closing"
    assert steps_of(run) == [0]
    before = sorted(str(path) for path in Path(run).rglob("*"))
    collected.set()
    for thread in [t for t in {*threading.enumerate()} - others if t.name.startswith("tpunb-")]:
        threading.Thread.join(thread, 60)
        assert not thread.is_alive()
    assert sorted(str(path) for path in Path(run).rglob("*")) == before


def test_explicit_steps_keep_their_numbers_in_every_window(tmp_path):
    def window(first):
        now = time.time_ns()
        steps = [(first + i, now + i * 1000, now + (i + 1) * 1000) for i in range(3)]
        return xspace(now, now + 10_000, steps, [("MatMul", begin, end) for _, begin, end in steps])

    source = StandIn(window(10), window(20), window(30))
    with tp.capture(tmp_path / "run", source=source, schedule=SHORT) as run:
        source.wait_asked(4)
    assert steps_of(run) == [10, 11, 12, 20, 21, 22, 30, 31, 32]


def test_a_step_inside_a_step_is_part_of_it(tmp_path):
    with tp.capture(tmp_path / "run", source=StandIn()) as run, run.step(3), run.step(4):
        pass
    assert steps_of(run) == [3]


def test_a_loop_that_is_left_early_ends_its_step_and_no_other(tmp_path):
    with tp.capture(tmp_path / "run", source=StandIn()) as run:
        for batch in run.batches(range(10)):
            if batch == 2:
                break
        with run.step(7):
            pass
    assert steps_of(run) == [0, 1, 2, 7]


@pytest.mark.parametrize("number", [-1, 2.5, 2**63, "3"])
def test_a_number_that_is_none_is_refused(tmp_path, number):
    with (
        tp.capture(tmp_path / "run", source=StandIn()) as run,
        pytest.raises(ValueError, match="The number parameter of step must be an int of 0 or more"),
        run.step(number),
    ):
        pass


@pytest.mark.parametrize("kind", ["a#b=c#", "", None, "two\nlines"])
def test_kind_that_a_profiler_would_misread_is_refused(tmp_path, kind):
    with (
        tp.capture(tmp_path / "run", source=StandIn()) as run,
        pytest.raises(ValueError, match="The kind parameter of step"),
        run.step(0, kind),
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
    assert steps_of(run) == [0]
    assert (tmp_path / "run" / "run.json").is_file()


def test_raw_windows_are_kept_on_request_and_give_the_same_steps(tmp_path):
    source = StandIn()
    with tp.capture(tmp_path / "run", source=source, schedule=SHORT, keep="all") as run:
        source.wait_asked()
        train_until(run, lambda: traced(run) >= 10)
    profile = tp.load(run)
    seen = profile.stored.full().frame.select("step", "start_ps", "dur_ps")
    assert len(seen) >= 10
    raw = profile.events.filter(pl.col("step_num").is_not_null()).select(step="step_num", raw_ps="start_ps")
    both = seen.join(raw, on="step")  # the annotation is within the step, in the same run's time
    assert both.height == len(seen)
    assert both.filter(~(pl.col("raw_ps") - pl.col("start_ps")).is_between(0, pl.col("dur_ps"))).is_empty()
    steps = tp.steps(profile)
    once = steps.full().layers.select("step", "op", "count")  # each step runs one operation
    assert sorted(once.rows()) == [(step, "MatMul", 1) for step in sorted(steps.full().frame["step"])]


def test_events_of_a_run_without_raw_windows_raise(tmp_path):
    with tp.capture(tmp_path / "run", source=StandIn()) as run:
        pass
    with pytest.raises(tp.TpunbError, match="statistics only"):
        tp.load(run).events  # noqa: B018
    assert tp.load(run).clocks.is_empty()


def test_an_earlier_run_is_renamed_never_overwritten(tmp_path):
    for _ in range(3):
        with tp.capture(tmp_path / "run", source=StandIn()):
            pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run-1", "run-2"]
    assert facts(tmp_path / "run")["earlier_run"] == str(tmp_path / "run-2")


def test_a_resumed_fit_is_a_fact_and_a_line_of_the_summary(tmp_path):
    sentence = "resumed exactly at step 3, verified over 8 steps"
    with tp.capture(tmp_path / "run", source=StandIn()) as run:
        signals.resumed.send(sentence)
    assert facts(run)["resumed"] == [sentence]
    assert run.resumed == (sentence,)
    assert f"\n  {sentence}\n" in repr(Summary(tp.load(run), run=run))


def test_a_folder_with_something_else_in_it_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match="holds something else"), tp.capture(tmp_path, source=StandIn()):
        pass
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    with tp.capture(tmp_path / "run", source=StandIn()):  # and the process is not left busy
        pass


def test_a_loop_over_data_is_marked_with_the_wait_for_it(tmp_path, monkeypatch):
    waited_ns = [0]
    monkeypatch.setattr(step_clock, "monotonic_ns", lambda: time.monotonic_ns() + waited_ns[0])

    def data():
        for i in range(3):
            waited_ns[0] += 20_000_000
            yield i

    with tp.capture(tmp_path / "run", source=StandIn()) as run:
        assert list(run.batches(data())) == [0, 1, 2]
    frame = tp.load(run).stored.frame
    assert frame["step"].to_list() == [0, 1, 2]
    assert (frame["input_ps"] >= 0.02e12).all()
    assert (frame["dur_ps"] >= frame["input_ps"]).all()


def test_wrong_value_of_keep_raises(tmp_path):
    message = "The keep parameter of capture must be 'none', 'phases' or 'all'. Got 'some' instead."
    with pytest.raises(ValueError, match=f"^{message}$"), tp.capture(tmp_path / "run", keep="some"):
        pass


@pytest.mark.live
def test_no_framework_is_imported_before_a_capture_starts():
    code = "import sys, tpunb as tp; tp.capture; tp.load; tp.phases; print('tensorflow' in sys.modules)"
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == "False"


def test_gaps_between_windows_are_reported(tmp_path):
    source = StandIn()
    with tp.capture(tmp_path / "run", source=source, schedule=Schedule.fixed(window=0.05, every=0.2)):
        source.wait_asked(3)
    profile = tp.load(tmp_path / "run")
    assert profile.gaps.height >= 2
    assert 0 < profile.observed < 1
    assert f"{profile.observed:.0%} of the run observed" in repr(profile)


def test_status_is_logged(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(session, "LIMITS", replace(session.LIMITS, log_s=0.0))
    source = StandIn()
    with caplog.at_level("INFO", logger="tpunb"), tp.capture(tmp_path / "mine", source=source, schedule=SHORT):
        until(lambda: caplog.messages)
    assert caplog.messages[0].startswith("mine: profiling")


def test_a_capture_that_cannot_begin_leaves_an_earlier_run_where_it_is(tmp_path):
    class Unreachable(StandIn):
        def start(self):
            raise tp.TpunbError("nobody answers")

    with tp.capture(tmp_path / "run", source=StandIn()) as run, run.step(0):
        pass
    with pytest.raises(tp.TpunbError, match="nobody answers"), tp.capture(tmp_path / "run", source=Unreachable()):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert tp.load(tmp_path / "run").stored.frame["step"].to_list() == [0]


def test_failed_annotation_is_reported_and_the_training_continues(tmp_path):
    class Broken(StandIn):
        def step(self, kind, number):
            raise RuntimeError("a bug of the source")

    source = Broken()
    with (
        pytest.warns(RuntimeWarning, match="a bug of the source"),
        tp.capture(tmp_path / "run", source=source, schedule=Schedule.continuous(window=30)) as run,
    ):
        source.wait_asked()
        for i in range(3):
            with run.step(i):
                pass
    assert steps_of(run) == [0, 1, 2]


def test_the_wait_of_an_inner_loop_is_not_taken_for_that_of_the_step_around_it(tmp_path):
    with tp.capture(tmp_path / "run", source=StandIn(), schedule=Schedule.ticks()) as run, run.step(0):
        for _ in run.batches(range(3)):
            pass
    assert tp.load(run).stored.frame["input_ps"].to_list() == [None]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"source": "10.0.0.2:8466"}, "The source parameter of capture must be a source"),
        ({"schedule": "continuous"}, "The schedule parameter of capture must be a Schedule. Got 'continuous' instead."),
        ({"dir": 3}, "The dir parameter of capture must be a path, a URL or None. Got 3 instead."),
    ],
)
def test_argument_of_another_type_raises(wrong, words):
    with pytest.raises(TypeError, match=words), tp.capture(**wrong):
        pass


def test_block_between_framework_steps_is_a_step_of_its_kind(tmp_path):
    with tp.capture(tmp_path / "run", source=StandIn(), schedule=Schedule.ticks()) as run:
        for i in range(2):
            with run.step(i):
                pass
        with run.between("tune"), run.step(7):  # an inner one is part of it
            pass
    assert tp.load(run).stored.frame.select("step", "kind").rows() == [(0, "train"), (1, "train"), (2, "tune")]


class Batches:
    """As an iterator of Grain."""

    def __init__(self, on_save=lambda: None):
        self.on_save = on_save

    def get_state(self):
        self.on_save()
        return {"next_index": 7}

    def set_state(self, state):
        pass


def test_checkpoint_of_a_loop_is_charged_to_the_overhead(tmp_path, monkeypatch):
    monotonic_ns, saving_ns = time.monotonic_ns, [0]
    monkeypatch.setattr(time, "monotonic_ns", lambda: monotonic_ns() + saving_ns[0])

    def take_60_ms():
        saving_ns[0] += 60_000_000

    with tp.capture(tmp_path / "run", source=StandIn(), schedule=Schedule.ticks()) as run:
        assert run.status.saving == 0
        assert "checkpointing" not in str(run.status)
        saved = run.save(3, data=Batches(take_60_ms))
        elsewhere = run.save(4, tmp_path / "mine", data=Batches(take_60_ms))
        status = run.status
    assert saved.path == tmp_path / "run" / "checkpoints" / "tpunb-3"
    assert elsewhere.path == tmp_path / "mine" / "tpunb-4"
    assert status.saving >= 0.12
    assert status.overhead > 0
    assert str(status).endswith(f"checkpointing {status.saving:.1f} s")
    assert [one.step for one in tp.checkpoints(run.path)] == [3]
    assert tp.load(run).name == "run"  # they do not disturb it


def test_run_in_memory_requires_a_folder_to_save(tmp_path):
    with tp.capture(source=StandIn(), schedule=Schedule.ticks()) as run:
        with pytest.raises(TpunbError, match="is not a folder on this machine"):
            run.save(3, data=Batches())
        assert run.save(3, tmp_path, data=Batches()).step == 3


@pytest.mark.live
def test_job_of_a_run_is_that_of_its_last_fit():
    from slow_jobs import at_hand, little

    model, data = little(), at_hand()
    with tp.capture(source=StandIn(), schedule=Schedule.ticks()) as run:
        with pytest.raises(TpunbError, match="the capture saw no fit"):
            job_of(run)
        model.fit(tf.ones((8, 4)), tf.ones((8, 1)), verbose=0)
        with pytest.raises(TpunbError, match="can be tuned; fit was given EagerTensor"):
            job_of(run)
        model.fit(x=data, validation_data=at_hand(), verbose=0)
    job = job_of(run)
    assert job.parts[0] is model
    assert job.parts[1] is data
    assert repr(job) == "Job(little, tf.data, 1 model)"


def test_windows_that_cannot_be_read_end_neither_the_run_nor_its_windows(tmp_path):
    source = StandIn(b"half", b"half")
    with tp.capture(tmp_path / "run", source=source) as run:
        train_until(run, lambda: traced(run))
    assert windows(run)["error"].is_not_null().to_list()[:3] == [True, True, False]
    assert len(tp.steps(tp.load(run)).full()) >= 1


def test_a_window_knows_the_steps_that_another_thread_takes_as_it_begins_to_be_reduced(monkeypatch):
    clock, writer, now_ns = step_clock.StepClock(lambda kind, number: None), RunWriter(None), time.monotonic_ns()
    writer.open()
    recorder = RunRecorder(writer, clock, WindowScheduler(Schedule(), now_ns / 1e9), "none", now_ns)
    untaken, open_step, records = clock.untaken, clock.open_step, []

    def trains():
        clock.end(clock.begin("train", explicit=True, rule="mark"))
        return open_step()

    def taken():
        thread = threading.Thread(target=recorder.collect_steps, kwargs={"wait": False})
        thread.start()
        thread.join()
        return untaken()

    def reduce(response, of_clock):
        records.extend(of_clock)
        return ReducedWindow()

    monkeypatch.setattr(clock, "open_step", trains)
    monkeypatch.setattr(clock, "untaken", taken)
    monkeypatch.setattr(recorder.reducer, "reduce", reduce)
    recorder.on_request(now_ns, 0.1, None)
    recorder.write(WindowResponse(0, "toy", now_ns, now_ns, {LOCAL: TpunbError("no window")}))
    assert [record.step for record in records] == [0]


def test_stacks_that_could_not_be_written_are_in_the_next_part(monkeypatch):
    clock, writer, now_ns = step_clock.StepClock(lambda kind, number: None), RunWriter(None), time.monotonic_ns()
    writer.open()
    recorder = RunRecorder(writer, clock, WindowScheduler(Schedule(), now_ns / 1e9), "none", now_ns)
    write, written = writer.part, []

    def full(number, tables):
        raise OSError("no space left")

    for part in (full, lambda number, tables: written.append(tables["stacks"]) or write(number, tables)):
        monkeypatch.setattr(writer, "part", part)
        clock.end(clock.begin("train", explicit=True, rule="mark"))
        recorder.collect_steps()
        recorder.stalls.stacks.add(outwards(sys._getframe()))
        with suppress(OSError):
            recorder.write_part()
    (stacks,) = written
    assert stacks["stack"].to_list() == [*range(len(stacks))]
    assert recorder.stalls.stacks.unwritten("vm").is_empty()


@pytest.mark.parametrize(
    ("kind", "steps", "expected"),
    [
        ("train", 1, [(7, 1), (11.1, 4), (17.2, 7)]),
        ("a_function_of_a_long_name" * 3, 1, [(7, 1), (8, 2), (11, 3), (11.1, 4), (12, 5), (17, 6), (17.2, 7)]),
        ("train", 900, [(7, 900), (11, 2700), (11.1, 3600), (12, 4500)]),  # then a part
    ],
)
def test_the_latest_steps_are_written_in_a_hundredth_of_the_time_while_the_journal_has_them(
    monkeypatch, tmp_path, kind, steps, expected
):
    clock, writer, now_ns = (
        step_clock.StepClock(lambda kind, number: None),
        RunWriter(tmp_path / "run"),
        time.monotonic_ns(),
    )
    now_s, tails = [7], []
    writer.open()
    recorder = RunRecorder(writer, clock, WindowScheduler(Schedule(), now_ns / 1e9), "none", now_ns)
    monkeypatch.setattr(recorder_module, "time", SimpleNamespace(**{**vars(time), "monotonic": lambda: now_s[0]}))

    def tail(ticks):
        tails.append((now_s[0], len(ticks)))
        now_s[0] += 0.04 if len(tails) == 1 else 1

    monkeypatch.setattr(writer, "tail", tail)
    for moment_s in (7, 8, 11, 11.1, 12, 17, 17.2):
        now_s[0] = moment_s
        for _ in range(steps):
            clock.end(clock.begin(kind, explicit=True, rule="mark"))
        recorder.write_tail()
    assert tails[: len(expected)] == expected
    assert (tmp_path / "run" / "parts").is_dir() == (steps > 1)


@pytest.fixture
def training_on():
    """A function that leaves a thread of a run in a step, which ends after the test."""
    trains, ended, threads = threading.Event(), threading.Event(), []

    def train(run):
        with run.step(0):
            trains.set()
            ended.wait()

    def begin(run):
        threads.append(threading.Thread(target=train, args=[run]))
        threads[-1].start()
        trains.wait()

    yield begin
    ended.set()
    for thread in threads:
        thread.join()


STILL_TRAINS = "a thread still trains as the captured block ends"


def test_a_thread_that_still_trains_as_the_block_ends_is_warned_of(tmp_path, training_on):
    with (
        pytest.warns(RuntimeWarning, match=STILL_TRAINS),
        tp.capture(tmp_path / "run", source=StandIn()) as run,
    ):
        training_on(run)


def test_a_warning_that_is_an_error_ends_nothing(tmp_path, training_on, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with tp.capture(tmp_path / "run", source=StandIn()) as run:
            training_on(run)
    assert STILL_TRAINS in capsys.readouterr().err
    assert json.loads((tmp_path / "run" / "run.json").read_text())["state"] == "finished"
