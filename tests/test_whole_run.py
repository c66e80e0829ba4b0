"""A capture from its first step to its last: stopped early, without windows, in memory, beside blocked parts."""

import gc
import subprocess
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import fsspec
import polars as pl
import pytest
from capture_loops import SHORT, facts, steps_of, traced, train, train_until, until
from stand_in import StandIn
from warm_python import NOTEBOOK, warm_python

import tpunb as tp
from tpunb.io.run_writer import RunWriter
from tpunb.profiler import session
from tpunb.profiler.capture import Schedule
from tpunb.widgets.summary import Summary

LONG = Schedule.continuous(window=60)
"""A window that lasts until the capture ends it."""


def watching():
    """The threads of a capture that run."""
    return {one.name for one in threading.enumerate()} & {"tpunb-profiling", "tpunb-recording", "tpunb-closing"}


# -- ended early --------------------------------------------------------------------------------------------------


def test_until_ends_the_capture_at_that_step(tmp_path):
    source = StandIn()
    with tp.capture(tmp_path / "run", source=source, schedule=LONG, until=30) as run:
        source.wait_asked()
        train(run, range(50))
        until(lambda: not watching())
        ended_ns, asked = time.time_ns(), source.asked._value
        train(run, range(50, 80))
        assert steps_of(run) == list(range(30))  # complete before the block is
        assert source.asked._value == asked
    assert facts(run)["state"] == "stopped at step 30"
    assert [number for number, *_ in source.kinds] == list(range(30))
    assert steps_of(run) == list(range(30))
    assert tp.load(run).span_ps < 1000 * (ended_ns - facts(run)["origin_ns"])


def test_stop_ends_the_capture_and_exactly_the_steps_before_it_are_there(tmp_path):
    collected = threading.Event()

    class Slow(StandIn):
        def window(self, seconds):
            answer = super().window(seconds)
            assert collected.wait(60)
            return answer

    source = Slow()
    with tp.capture(tmp_path / "run", source=source, schedule=SHORT) as run:
        source.wait_asked()
        train(run, range(20))
        run.stop()  # it does not wait for what it ends
        assert "tpunb-profiling" in watching()
        collected.set()
        run.stop()
        train(run, range(20, 40))
        until(lambda: not watching())
        assert run.status.state == "stopped"
    assert steps_of(run) == list(range(20))
    assert tp.load(run).windows["error"].null_count() == tp.load(run).windows.height


def test_a_step_that_runs_when_another_thread_stops_the_capture_ends_when_it_does(tmp_path):
    source = StandIn()
    with tp.capture(tmp_path / "run", source=source, schedule=LONG) as run:
        source.wait_asked()
        train(run, range(5))
        with run.step(5):
            other = threading.Thread(target=run.stop)
            other.start()
            other.join()
            until(lambda: not watching())
    assert [number for number, *_ in source.kinds] == list(range(6))
    frame = tp.load(run).stored.frame
    assert frame["step"].to_list()[:5] == list(range(5))
    assert set(frame.filter(pl.col("step") == 5)["traced"]) <= {"partial", "none"}  # nobody saw it whole


def test_a_capture_that_was_stopped_hides_no_exception_and_is_not_ended_by_it(tmp_path):
    with pytest.raises(KeyError, match="mine"), tp.capture(tmp_path / "run", source=StandIn(), schedule=SHORT) as run:
        train(run, range(10))
        run.stop()
        raise KeyError("mine")
    assert facts(run)["state"] == "stopped"
    assert steps_of(run) == list(range(10))


def test_after_an_early_end_the_next_capture_may_begin_only_when_the_block_is_left(tmp_path):
    with tp.capture(tmp_path / "run", source=StandIn(), schedule=SHORT) as run:
        run.stop()
        until(lambda: not watching())
        with pytest.raises(tp.TpunbError, match="is running"), tp.capture(tmp_path / "next", source=StandIn()):
            pass
    with tp.capture(tmp_path / "next", source=StandIn()):
        pass


# -- by the clock alone -------------------------------------------------------------------------------------------


def test_without_windows_every_step_is_there_by_the_clock_and_each_kind_is_a_phase(tmp_path):
    source = StandIn()
    with tp.capture(tmp_path / "run", source=source, schedule=Schedule.ticks()) as run:
        train(run, range(20))
        train(run, range(20, 30), kind="eval")
    profile = tp.load(run)
    steps = tp.steps(profile)
    assert not source.asked.acquire(blocking=False)
    assert profile.windows.is_empty()
    assert profile.observed == 0
    assert steps.frame["step"].to_list() == list(range(30))
    assert set(steps.frame["traced"]) == {"none"}
    assert steps.frame["kind"].value_counts().sort("kind").rows() == [("eval", 10), ("train", 20)]
    phases = tp.phases(steps)
    assert sorted(phases.frame.select("name", "steps", "full").rows()) == [("evaluation", 10, 0), ("train", 20, 0)]
    assert tp.goodput(phases).time_ps("productive") > 0
    summary = Summary(profile, steps, phases)
    assert "! step times only: the run was over before its first window; for operations, run more" in repr(summary)
    assert "clock only" in repr(summary)
    assert "train" in summary._repr_html_()


NO_PROFILER = """
import time
from dataclasses import replace
import polars as pl
import tpunb as tp
from tpunb.profiler import schedule
from tpunb.widgets.summary import Summary
schedule.LIMITS = replace(schedule.LIMITS, unmarked_start_s=0.0, shortest_window_s=0.0)
with tp.capture({run!r}, schedule=tp.Schedule.continuous(window=0.05)) as run:
    until = time.monotonic() + 60
    while not run._session._tracing.is_set():  # until the first window is requested
        assert time.monotonic() < until
        time.sleep(0.005)
    for i in range(20):
        with run.step(i):
            time.sleep(0.005)
profile = tp.load(run)
phases = tp.phases(profile)
print(len(phases.steps), profile.windows["error"].unique().to_list())
summary = Summary(profile, phases.steps, phases)
print([line for line in repr(summary).splitlines() if line.startswith("! ") and "busy" not in line])
spans = profile.stored.wall.spans.filter(account="profiler")
entry = spans.filter(detail="begin of the capture")
beside = spans.filter(pl.col("detail").is_in(["loading", "reduction of a window"]))  # may slow steps down
most_ps = entry["dur_ps"].item() + beside["dur_ps"].sum()
shows = "image/png" in summary._repr_mimebundle_()
print(spans.height - beside.height, entry["dur_ps"].item() <= tp.goodput(phases).time_ps("profiler") <= most_ps, shows)
"""


@pytest.mark.live
@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("", "no TensorFlow or JAX in use: step times only; compute with one of them in the block for operations"),
        ("torch", "PyTorch: step times only; load a torch.profiler trace for operations"),
    ],
)
def test_a_loop_without_a_profiler_has_steps_goodput_and_phases_by_the_clock(tmp_path, module, message):
    (tmp_path / "torch.py").write_text("")
    code = f"import {module or 'sys'}\n" + NO_PROFILER.format(run=str(tmp_path / "run"))
    command = [*warm_python(NOTEBOOK), "-c", code]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)
    expected = [f"20 [{message!r}]", f"['! {message}']", "1 True True"]
    assert answer.stdout.splitlines() == expected, answer.stderr


def test_steps_without_windows_are_written_during_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "LIMITS", replace(session.LIMITS, part_s=0.1))
    with tp.capture(tmp_path / "run", source=StandIn(), schedule=Schedule.ticks()) as run:
        train(run, range(10))
        until(lambda: (tmp_path / "run" / "parts" / "00000" / "ticks.parquet").is_file())
        before = steps_of(run)
        assert before == list(range(len(before)))
        assert before
        train(run, range(10, 20))
    assert steps_of(run) == list(range(20))


def test_steps_without_windows_are_released_after_writing(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "LIMITS", replace(session.LIMITS, part_s=0.05))
    with tp.capture(tmp_path / "run", source=StandIn(), schedule=Schedule.ticks()) as run:
        train(run, range(200), seconds=0)
        until(lambda: steps_of(run) == list(range(200)))
        recorder = run._session.recorder
        until(lambda: len(recorder._recent) < 200)


# -- raw windows ----------------------------------------------------------------------------------------------------


class Phased(StandIn):
    """A source whose steps run the operations of the stage that they begin in."""

    def __init__(self):
        super().__init__()
        self.stage, self.stages = "first", {}

    def step(self, kind, number):
        self.stages[number] = self.stage
        return super().step(kind, number)

    def ops(self, steps):
        return [(f"{self.stages[number]}{k}", begin, end) for number, begin, end in steps for k in range(3)]


def raw_of(run):
    return sorted(Path(run).glob("plugins/profile/*/*.xplane.pb"))


def trained_in_two_phases(folder):
    """Capture a run of one phase, another, and the first again; return it and the number of their paces."""
    source = Phased()
    with tp.capture(folder, source=source, schedule=SHORT, keep="phases") as run:
        step = train_until(run, lambda: traced(run) >= 5)
        source.stage = "second"
        step = train_until(run, lambda: run.status.phases >= 2, step)
        source.stage = "first"
        paces = run._session.recorder.reducer._paces  # of a busy machine there are more than one
        train_until(run, lambda: run.status.windows > 1 + sum(map(len, [*paces.values()])), step)
    assert run.status.phases == 2
    return run, sum(map(len, paces.values()))


def test_of_each_phase_and_pace_a_raw_window_stays_and_the_run_is_a_logdir(tmp_path):
    run, paces = trained_in_two_phases(tmp_path / "run")
    files = raw_of(run)
    assert 1 <= len(files) <= paces
    seen = tp.load(run).windows.filter(pl.col("steps") > 0)
    assert {int(file.parent.name) for file in files} <= set(seen["window"])
    ops = {name for file in files for name in tp.load(file).events["name"].unique()}
    assert {"first0", "second0"} <= ops
    marked = tp.load(run).events["step_num"].drop_nulls().n_unique()
    assert sum(tp.load(file.parent).events["step_num"].drop_nulls().n_unique() for file in files) == marked
    assert len(tp.load(Path(run) / "plugins" / "profile").windows) == len(files)
    assert not list(Path(run).rglob(".*"))  # nothing on its way, no folder of a window that went


def test_of_a_run_at_a_url_at_most_one_raw_window_a_phase_and_pace_stays_too():
    try:
        run, paces = trained_in_two_phases("memory://whole/run")
        files = [name for name in fsspec.filesystem("memory").find("/whole/run") if name.endswith(".pb")]
        assert 1 <= len(files) <= paces
        assert {"first0", "second0"} <= set(tp.load(run).events["name"])
    finally:
        fsspec.filesystem("memory").rm("/whole", recursive=True)


@pytest.mark.parametrize("keep", ["none", "all"])
def test_keep_none_and_all(tmp_path, keep):
    with tp.capture(tmp_path / "run", source=StandIn(), schedule=SHORT, keep=keep) as run:
        train_until(run, lambda: run.status.windows >= 2)
    windows = tp.load(run).windows.height
    assert windows >= 2
    assert len(raw_of(run)) == (windows if keep == "all" else 0)


def test_raw_window_without_statistics_is_ignored(tmp_path, monkeypatch):
    write = RunWriter.part

    def cut(writer, number, tables):
        if "windows" in tables and tables["windows"]["window"].item() == 1:
            raise OSError("killed between the raw window and its part")
        write(writer, number, tables)

    monkeypatch.setattr(RunWriter, "part", cut)
    with (
        pytest.warns(RuntimeWarning, match="incomplete"),
        tp.capture(tmp_path / "run", source=StandIn(), schedule=SHORT, keep="all") as run,
    ):
        train_until(run, lambda: "incomplete" in run.status.state)
    assert len(raw_of(run)) == 2
    profile = tp.load(run)
    assert profile.windows["window"].to_list() == [0]
    assert profile.events.height > 0


# -- in memory ------------------------------------------------------------------------------------------------------


def test_run_in_memory_loads_while_it_is_referenced():
    with tp.capture(source=StandIn(), schedule=SHORT) as run:
        where = run.path
        done = train_until(run, partial(traced, run))  # which does not keep the run
        assert tp.load(where).windows.height
        now = steps_of(run)
        assert now == list(range(len(now)))
        train(run, range(done, done + 10))
    profile = tp.load(run)
    assert profile.stored.frame["step"].to_list() == list(range(done + 10))
    assert str(where).startswith("memory://")
    del run
    gc.collect()
    assert profile.events.height > 0  # who may still ask for its raw windows keeps it
    del profile
    gc.collect()
    with pytest.raises(tp.TpunbError, match="nothing is at") as gone:
        tp.load(where)
    assert str(where) in str(gone.value)


def test_two_captures_in_memory_are_two_runs():
    runs = []
    for size in (3, 5):
        with tp.capture(source=StandIn(), schedule=SHORT) as run:
            train(run, range(size))
        runs.append(run)
    assert [steps_of(run) for run in runs] == [[0, 1, 2], [0, 1, 2, 3, 4]]
    assert runs[0].path != runs[1].path


# -- training is never blocked ----------------------------------------------------------------------------------------


class Hanging(StandIn):
    """A source whose windows never come, whatever it is told."""

    def __init__(self):
        super().__init__()
        self.let_go = threading.Event()

    def window(self, seconds):
        self.asked.release()
        self.let_go.wait(600)
        raise tp.TpunbError("too late")


def test_a_window_that_never_comes_ends_neither_the_training_nor_the_block(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "LIMITS", replace(session.LIMITS, collect_s=0.5))
    source = Hanging()
    try:
        with (
            pytest.warns(RuntimeWarning, match="did not come back in time"),
            tp.capture(tmp_path / "run", source=source, schedule=SHORT) as run,
        ):
            source.wait_asked()
            train(run, range(20))
        assert facts(run)["state"] == "finished, incomplete"
        assert steps_of(run) == list(range(20))
        before = sorted(Path(run).rglob("*"))
    finally:
        source.let_go.set()
    until(lambda: not watching())
    assert sorted(Path(run).rglob("*")) == before  # who comes too late writes nothing


def test_a_hanging_window_does_not_keep_the_steps_from_being_written(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "LIMITS", replace(session.LIMITS, collect_s=0.5, part_s=0.05))
    source = Hanging()
    try:
        with (
            pytest.warns(RuntimeWarning, match="did not come back in time"),
            tp.capture(tmp_path / "run", source=source, schedule=SHORT) as run,
        ):
            source.wait_asked()
            train(run, range(20))
            until(lambda: (Path(run) / "parts").is_dir() and steps_of(run) == list(range(20)))
    finally:
        source.let_go.set()
    until(lambda: not watching())


def test_slow_disk_delays_windows_but_not_steps(tmp_path, monkeypatch):
    stuck, go_on = threading.Event(), threading.Event()
    write = RunWriter.part

    def slow(*args):
        stuck.set()
        assert go_on.wait(60)
        write(*args)

    monkeypatch.setattr(RunWriter, "part", slow)
    source = StandIn()
    with tp.capture(tmp_path / "run", source=source, schedule=SHORT) as run:
        assert stuck.wait(60)
        responses = run._session._responses
        until(responses.full)  # the queue is bounded
        train(run, range(100), seconds=0)
        assert run.status.steps == 100
        assert responses.full()
        go_on.set()
    assert steps_of(run) == list(range(100))


@pytest.mark.parametrize("method", ["stop", "facts"])
def test_any_failing_method_of_a_source_is_reported_and_the_run_is_complete(tmp_path, method):
    source = StandIn()

    def broken():
        raise RuntimeError("a bug of the source")

    with (
        pytest.warns(RuntimeWarning, match="a bug of the source"),
        tp.capture(tmp_path / "run", source=source, schedule=Schedule.continuous(window=1)) as run,
    ):
        source.wait_asked()
        train(run, range(20))
        setattr(source, method, broken)
    assert facts(run)["state"] == "finished, incomplete"
    assert steps_of(run) == list(range(20))
    with tp.capture(tmp_path / "run", source=StandIn()) as run:
        pass
