"""Trainings that stand still: when that is said, by simulated clocks, and what is read of a run that does."""

import json
import os
import queue
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from dataclasses import replace
from datetime import datetime, timedelta
from types import SimpleNamespace

import pytest

import tpunb as tp
from tpunb import cli
from tpunb.frames.standing import Standing, of_ranks
from tpunb.io.run_folder import ALIVE_S, LOCK, RUN, STANDING
from tpunb.io.run_storage import FolderLock
from tpunb.io.standing import SILENT_S
from tpunb.profiler import limits, standing
from tpunb.profiler.standing import StandingWatch, Work

LOOK_S = 0.8
OVERFLOWS = '{"since": "0001-01-01T00:00:00+14:00", "seconds": 1, "step": 1, "children": [], "threads": []}'
KNOWN = ["program startup", "checkpoint save", "checkpoint restore", "evaluation"]


class Program:
    """A training by a simulated clock: what it does is set, time passes in looks."""

    def __init__(self, monkeypatch, usual_s=0.1):
        self.now_ns, self.stretches = 10**12, []
        self.own_s = self.children_s = 0.0
        self.clock = SimpleNamespace(
            count=100, signalled_ns=self.now_ns, usual_ns=round(usual_s * 1e9), account=None, thread=0
        )
        self.clock.has_lost_its_thread = False
        self.clock.progress = lambda: SimpleNamespace(computes=False)
        self.function = object()
        monkeypatch.setattr(standing, "_place", lambda clock: self.function and (clock.account, self.function))
        self.watch = StandingWatch(self.clock, self.record, self.measure, lambda: self.now_ns)

    def record(self, begin_ns, end_ns, seen):
        self.stretches.append((begin_ns, end_ns, seen is not None))

    def measure(self):
        return Work(self.own_s, self.children_s, 0)

    def spend(self, seconds, own=0.0, children=0.0):
        """Let time pass without a step, with this many processors at work."""
        until_ns = self.now_ns + round(seconds * 1e9)
        while self.now_ns < until_ns:
            self.now_ns += round(LOOK_S * 1e9)
            self.own_s, self.children_s = self.own_s + own * LOOK_S, self.children_s + children * LOOK_S
            self.watch.look()

    def step(self):
        self.clock.count += 1
        self.clock.signalled_ns = self.now_ns
        self.watch.look()

    @property
    def alarmed_s(self):
        """When it was recorded first, since the last step."""
        return (self.stretches[0][1] - self.stretches[0][0]) / 1e9 if self.stretches else None


@pytest.fixture
def program(monkeypatch):
    program = Program(monkeypatch)
    program.step()
    return program


@pytest.mark.parametrize("account", [None, "data loading", "callbacks", "waiting for other ranks", *KNOWN])
def test_an_idle_program_stands_still_after_15_seconds_wherever_it_is(program, account):
    program.clock.account = account
    program.spend(60)
    assert 15 <= program.alarmed_s < 15 + 2 * LOOK_S


@pytest.mark.parametrize("account", ["data loading", "callbacks"])
def test_one_that_computes_where_nothing_should_last_does_too(program, account):
    program.clock.account = account
    program.spend(60, own=1.0)
    assert 15 <= program.alarmed_s < 15 + 2 * LOOK_S


def test_ten_usual_steps_without_one_are_awaited(monkeypatch):
    program = Program(monkeypatch, usual_s=3.0)
    program.step()
    program.spend(60)
    assert 30 <= program.alarmed_s < 30 + 2 * LOOK_S


@pytest.mark.parametrize("pause_s", [20, 60, 300])
@pytest.mark.parametrize("at_work", [{"own": 1.0}, {"own": 0.3}, {"children": 1.0}])
@pytest.mark.parametrize("account", [None, *KNOWN])
def test_a_program_at_work_may_pause(program, account, at_work, pause_s):
    program.clock.account = account
    program.spend(pause_s, **at_work)
    program.step()
    assert program.stretches == []


@pytest.mark.parametrize("pause_s", [20, 60, 300])
def test_workers_that_work_are_awaited(program, pause_s):
    program.clock.account = "data loading"
    program.spend(pause_s, children=1.0)
    assert program.stretches == []


@pytest.mark.parametrize("at_work", [{"own": 1.0}, {"children": 1.0}])
def test_nothing_that_works_lasts_for_ever(program, at_work):
    program.spend(700, **at_work)
    assert 600 <= program.alarmed_s < 600 + 2 * LOOK_S


def test_a_pause_after_work_begins_with_its_end(program):
    end_ns = program.now_ns + 100 * 10**9  # such as the end of a compilation in another process
    program.spend(100, children=1.0)
    program.spend(14)
    assert program.stretches == []
    program.spend(30)
    assert program.stretches[0][0] >= end_ns
    assert 15 <= program.alarmed_s < 15 + 2 * LOOK_S


def test_a_pause_that_has_ended_is_awaited_the_next_time(program):
    program.spend(40)
    program.step()
    before = len(program.stretches)
    program.spend(70)
    program.step()
    assert len(program.stretches) == before
    program.function = object()
    program.spend(40)
    assert len(program.stretches) > before


def test_stretches_follow_one_another_and_end_with_the_standstill(program):
    since_ns = program.now_ns
    program.spend(400)
    program.step()
    assert [begin for begin, *_ in program.stretches] == [since_ns, *[end for _, end, _ in program.stretches[:-1]]]
    assert [seen for *_, seen in program.stretches] == [True] * (len(program.stretches) - 1) + [False]
    rests = [(end - begin) / 1e9 for begin, end, _ in program.stretches[1:-1]]
    assert all(15 <= rest < 15 + 2 * LOOK_S for rest in rests[:5])
    assert all(60 <= rest < 60 + 2 * LOOK_S for rest in rests[8:])


def test_between_cells_of_a_notebook_nothing_stands_still(program):
    program.function = None
    program.spend(600)
    assert program.stretches == []


def test_where_the_thread_that_trained_has_ended_nothing_stands_still(program):
    program.clock.has_lost_its_thread = True
    program.spend(600)
    assert program.stretches == []


def test_a_thread_in_a_library_stands_and_that_of_a_kernel_waits(monkeypatch):
    def stack(file):
        code = compile("pass", file, "exec")
        monkeypatch.setattr(standing, "_stacks", lambda: {0: [SimpleNamespace(f_code=code)]})
        return standing._place(SimpleNamespace(account=None, thread=0))

    packages = sysconfig.get_path("purelib")
    assert stack(f"{packages}/maxtext/train.py") == (None, None)
    assert stack(f"{packages}/ipykernel/kernelbase.py") is None
    assert stack("train.py")[1].co_filename == "train.py"


def test_whose_the_innermost_function_is():
    def home(*files):
        return standing._home([SimpleNamespace(f_code=compile("pass", file, "exec")) for file in files])

    packages = sysconfig.get_path("purelib")
    assert home(f"{packages}/torch/autograd/graph.py", "train.py") == "library"
    assert home(queue.__file__, "train.py") == "python"
    assert home(standing.__file__, "train.py") == "program"


def test_a_long_first_step_is_awaited(monkeypatch):
    program = Program(monkeypatch, usual_s=0.0)
    program.clock.count = 0
    program.clock.progress = lambda: SimpleNamespace(computes=True)
    program.spend(300)
    assert program.stretches == []


@pytest.fixture(scope="module")
def stood(tmp_path_factory):
    """A run that stands still while it is copied, and goes on: the copy, what was read then, and the run."""
    folder, patch = tmp_path_factory.mktemp("stood"), pytest.MonkeyPatch()
    patch.setattr(standing, "LIMITS", replace(limits.LIMITS, standing_s=1.0, standing_look_s=0.5))
    with tp.capture(folder / "run", schedule=tp.Schedule.ticks()) as run:
        for number in range(5):
            with run.step(number):
                time.sleep(0.01)
        until = time.monotonic() + 60
        while run.status.standing is None or not (folder / "run" / STANDING).exists():
            assert time.monotonic() < until, run.status
            time.sleep(0.5)  # where it stands
        status, seen = str(run.status), tp.load(folder / "run").standing
        shutil.copytree(folder / "run", folder / "copy")
        with run.step(5):
            pass
        while (folder / "run" / STANDING).exists():
            assert time.monotonic() < until
            time.sleep(0.1)
    patch.undo()
    (folder / "copy" / LOCK).unlink()
    facts = json.loads((folder / "copy" / RUN).read_text())
    (folder / "copy" / RUN).write_text(json.dumps({**facts, "updated": time.time() - 2 * ALIVE_S}))
    return folder / "copy", seen, status, folder / "run"


pytestmark = pytest.mark.live


def test_a_live_run_says_since_when_and_where_it_stands(stood):
    _, seen, status, _ = stood
    assert seen.is_now
    assert seen.step == 4
    assert "test_standing.py" in seen.place
    assert "no step for" in status


def test_one_that_was_killed_says_it_too(stood, capsys):
    assert cli.main(["report", str(stood[0])]) == 3
    assert " test_standing.py:" in capsys.readouterr().out.splitlines()[0]


def test_its_time_is_an_account_of_its_own_and_no_advice_promises_any(stood):
    goodput = tp.goodput(stood[3])
    assert goodput.time_ps("standing still") >= 1e12
    assert tp.load(stood[3]).standing is None
    said = tp.report(stood[3]).content["verdict"]
    assert said["sentence"].startswith("The training stood still for")
    assert said["action"] is None


def test_a_process_without_a_sign_of_work_is_said_to_be_silent(stood, tmp_path):
    run = shutil.copytree(stood[0], tmp_path / "run")
    (run / STANDING).unlink()
    lock = FolderLock.take(run)
    try:
        assert tp.load(run).standing is None
        os.utime(run / LOCK, (time.time(), time.time() - 2 * SILENT_S))
        assert "no sign" in tp.load(run).standing.place
    finally:
        lock.release()


@pytest.mark.parametrize("damage", ["", "[]", "{}", '{"since": 1}', '{"since": "x", "step": []}', "\x00", OVERFLOWS])
def test_a_damaged_record_of_it_costs_nothing_else(stood, tmp_path, damage):
    run = shutil.copytree(stood[0], tmp_path / "run")
    (run / STANDING).write_text(damage)
    assert tp.load(run).standing is None
    assert tp.steps(tp.load(run)).count == 5


def test_ranks_without_a_wait_are_told_apart_by_how_far_they_came():
    since = datetime(2026, 11, 30) + timedelta(hours=12)
    ranks = [Standing(since, 60, step, f"{rank}.py:1", (), True, rank) for rank, step in enumerate([9, 9, 7, 9])]
    assert "rank 2 never came: 2.py:1" in str(of_ranks(ranks))
    assert "never came" not in str(of_ranks(ranks[:2]))


def test_a_folder_is_watched_until_no_run_goes_on(stood, capsys):
    assert cli.main(["watch", str(stood[3].parent)]) == 0
    assert "no run continues" in capsys.readouterr().out


def test_children_that_ended_are_named_with_how():
    children = standing.Children()
    killed = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    children.look()
    killed.kill()
    while os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT) is None:
        pass
    children.look()
    (row,) = [row for row in children.described() if row["process"] == killed.pid]
    killed.wait()
    assert row["state"] == "ended with signal 9"


def test_a_failure_of_the_watch_costs_the_run_nothing(tmp_path, monkeypatch):
    looked = threading.Event()

    def look(self):
        looked.set()
        raise RuntimeError("a bug")

    monkeypatch.setattr(StandingWatch, "look", look)
    with tp.capture(tmp_path / "run", schedule=tp.Schedule.ticks()) as run:
        assert looked.wait(60)
        with run.step(0):
            pass
    assert run.status.state == "finished"
    assert tp.steps(tp.load(run)).count == 1
