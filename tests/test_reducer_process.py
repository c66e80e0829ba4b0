"""Windows are reduced in another process as in this one, which it does not belong to and does not outlive."""

import math
import os
import subprocess
import sys
import textwrap
import time
from dataclasses import replace

import psutil
import pytest
from capture_loops import facts, traced, train, train_until
from polars.testing import assert_frame_equal
from stand_in import StandIn

import tpunb as tp
from tpunb.errors import TpunbError
from tpunb.profiler import recorder
from tpunb.profiler.reducer import Reducer
from tpunb.profiler.reducer_process import ReducerProcess
from tpunb.profiler.step_clock import StepRecord
from tpunb.profiler.windows import LOCAL, WindowResponse
from tpunb.testing import toy_window

ORIGIN, MS = 1_700_000_000_000_000_000, 1_000_000
STEPS = [(number, ORIGIN + begin * MS, ORIGIN + end * MS) for number, begin, end in [(3, 10, 20), (4, 20, 40)]]
RECORDS = [StepRecord(number, "train", begin, end) for number, begin, end in STEPS]
XSPACE = toy_window(ORIGIN, ORIGIN + 100 * MS, STEPS, [("MatMul", begin, end) for _, begin, end in STEPS])

pytestmark = pytest.mark.live


class TheirError(TpunbError):
    """An error of a source of the program, which the other process cannot import."""


def response(number, data=XSPACE):
    return WindowResponse(number, "evenly", ORIGIN, ORIGIN + 120 * MS, {LOCAL: data})


@pytest.fixture
def process():
    reducer = ReducerProcess("vm", ORIGIN)
    reducer.start()
    yield reducer
    reducer.close()


def processes_of(code):
    """The processes that reduce windows for the one of that id."""
    ending = f"reducer_process.main({code})"
    return [p for p in psutil.process_iter(["cmdline"]) if any(ending in word for word in p.info["cmdline"] or ())]


def until_none(code):
    end = time.monotonic() + 120
    while processes_of(code):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_it_gives_the_same_windows(process):
    here = Reducer("vm", ORIGIN)
    for number, data in enumerate([XSPACE, b"damaged", TheirError("gone", hint="wait"), XSPACE]):
        expected, reduced = (each.reduce(response(number, data), RECORDS) for each in (here, process))
        assert reduced.windows == expected.windows
        assert reduced.raw == expected.raw
        for name, table in expected.tables().items():
            assert_frame_equal(reduced.tables()[name], table, check_row_order=name == "windows")
        assert (process.phase, process.phases, process.local_worker) == (here.phase, here.phases, here.local_worker)
        assert process.hardware == here.hardware


def test_an_error_in_it_is_raised_here_and_it_lasts(process):
    with pytest.raises(RuntimeError, match="AttributeError"):
        process._ask("reduce", None, None)
    assert process.reduce(response(1), RECORDS).windows[0]["steps"] == 2


def test_it_is_no_child_of_the_program_and_ends_with_the_capture(process):
    process.reduce(response(0), RECORDS)
    assert len(processes_of(os.getpid())) == 1
    assert not {each.pid for each in processes_of(os.getpid())} & {p.pid for p in psutil.Process().children()}
    process.close()
    until_none(os.getpid())
    with pytest.raises(EOFError):
        process.reduce(response(1), RECORDS)
    assert process.programs(b"", {1: {"dot"}}) == {}


def test_windows_are_left_to_readers_once_it_has_ended(monkeypatch, tmp_path):
    monkeypatch.setattr(recorder, "ReducerProcess", ReducerProcess)
    source = StandIn()
    with tp.capture(tmp_path / "run", source=source, schedule=tp.Schedule(window=0.05, every=0.001)) as run:
        train_until(run, lambda: traced(run) > 0)
        for each in processes_of(os.getpid()):
            each.kill()
        train_until(run, lambda: run._session.recorder.left >= 2, first=100_000)
    assert any("reduces windows ended" in message for message in facts(run)["profiler_messages"])
    assert facts(run)["state"] == "finished"
    unreduced = len([*(tmp_path / "run" / "unreduced").iterdir()])
    windows = tp.load(run).windows
    assert unreduced
    assert windows.filter(windows["error"].is_null()).height > unreduced


@pytest.mark.parametrize("executable", ["", "/nowhere/python3", "/usr/sbin/uwsgi"])
def test_without_an_interpreter_readers_reduce_the_windows(executable, monkeypatch, tmp_path):
    monkeypatch.setattr(recorder, "ReducerProcess", ReducerProcess)
    monkeypatch.setattr(sys, "executable", executable)
    source = StandIn()
    with tp.capture(tmp_path / "run", source=source, schedule=tp.Schedule(window=60, every=0.001)) as run:
        source.wait_asked()
        train(run, range(5))
    assert tp.load(run).windows.select("window", "steps", "error").rows() == [(0, 5, None)]


def test_windows_that_nothing_reduces_are_written_at_once_and_end_at_a_limit(monkeypatch, tmp_path):
    monkeypatch.setattr(recorder, "ReducerProcess", ReducerProcess)
    monkeypatch.setattr(recorder, "LIMITS", replace(recorder.LIMITS, most_unreduced=2))
    monkeypatch.setattr(sys, "executable", "")
    with tp.capture(tmp_path / "run", source=StandIn(), schedule=tp.Schedule(window=0.05, every=0.001)) as run:
        train_until(run, lambda: run._session.recorder.left >= 2)
        assert len([*(tmp_path / "run" / "unreduced").iterdir()]) >= 2
        assert run._session.scheduler.schedule.every == math.inf
    assert len(tp.load(run).windows) < 2 + 5  # those that were requested before


def test_it_ends_with_a_program_that_is_killed_while_a_process_of_that_holds_the_pipe(tmp_path):
    code = f"""
    import os, time
    from tpunb.profiler.reducer_process import ReducerProcess
    reducer = ReducerProcess("vm", {ORIGIN})
    reducer.start()
    if not os.fork():
        time.sleep(600)
    print(os.getpid(), flush=True)
    time.sleep(600)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        children = []
        try:
            assert int(program.stdout.readline()) == program.pid
            children = psutil.Process(program.pid).children()
            assert len(children) == 1  # the fork alone
            program.kill()
            program.wait()
            until_none(program.pid)
        finally:
            for each in [*children, program]:
                each.kill()
