"""Which of the processes of ``tpunb run`` are the run, and where each belongs."""

import json
import warnings
from itertools import permutations

import pytest
from capture_loops import train
from hypothesis import given
from hypothesis import strategies as st
from stand_in import StandIn

import tpunb as tp
from tpunb import signals
from tpunb.io import formats, job_folder, storage
from tpunb.io.job_folder import Process, places
from tpunb.io.run_folder import JournalRow
from tpunb.io.run_writer import RunWriter

LAUNCHER = Process("process1", 0, 0, 100)


def rank(number, start_ns, *, folder=None, size=2, **more):
    return Process(folder or f"rank{number}", 300, start_ns, start_ns + 50, rank=number, size=size, **more)


def spawned(folder, start_ns, end_ns, **more):
    return Process(folder, 300, start_ns, end_ns, spawned_by="7", **more)


JOBS = {
    "a program": ([Process("process1", 300, 0, 9)], {"process1": ""}),
    "a program without steps": ([LAUNCHER], {"process1": ""}),
    "a launcher and its program": ([LAUNCHER, Process("process2", 300, 5, 90)], {"process2": ""}),
    "a launcher and ranks": ([LAUNCHER, rank(1, 6), rank(0, 7)], {"rank1": "rank1", "rank0": "rank0"}),
    "ranks that took no step": (
        [LAUNCHER, Process("rank0", 0, 6, 9, rank=0, size=2), Process("rank1", 0, 7, 9, rank=1, size=2)],
        {"rank0": "rank0", "rank1": "rank1"},
    ),
    "a program that starts the second rank": (
        [rank(0, 0, folder="process1"), rank(1, 20)],
        {"process1": "rank0", "rank1": "rank1"},
    ),
    "processes of a program without a group": (
        [LAUNCHER, spawned("process2", 5, 90), spawned("process3", 6, 91)],
        {"process2": "rank0", "process3": "rank1"},
    ),
    "processes one after the other": (
        [LAUNCHER, spawned("process2", 5, 40), spawned("process3", 50, 91)],
        {"process2": "", "process3": "-2"},
    ),
    "trials of a tuner": (
        [LAUNCHER, Process("process2", 300, 5, 90), Process("process3", 300, 6, 91)],
        {"process2": "", "process3": "-2"},
    ),
    "a program that evaluates what its processes train": (
        [Process("process1", 16, 0, 99, trains=False), spawned("process2", 5, 90), spawned("process3", 6, 91)],
        {"process1": "-2", "process2": "rank0", "process3": "rank1"},
    ),
    "a program that evaluates what its process trains": (
        [Process("process1", 16, 0, 99, trains=False), spawned("process2", 5, 90)],
        {"process1": "-2", "process2": ""},
    ),
    "two programs of a shell": (
        [Process("process1", 300, 0, 9), Process("process2", 300, 10, 19)],
        {"process1": "", "process2": "-2"},
    ),
    "two programs of a shell at the same time": (
        [Process("process1", 300, 0, 9), Process("process2", 300, 1, 9)],
        {"process1": "", "process2": "-2"},
    ),
    "a restart that the launcher counts": (
        [LAUNCHER, rank(0, 5, attempt=0), rank(0, 200, folder="rank0.2", attempt=1), rank(1, 201, attempt=1)],
        {"rank0": "attempt0/rank0", "rank0.2": "rank0", "rank1": "rank1"},
    ),
    "a restart": (
        [rank(0, 5), rank(1, 6), rank(0, 200, folder="rank0.2"), rank(1, 201, folder="rank1.2")],
        {"rank0": "attempt0/rank0", "rank1": "attempt0/rank1", "rank0.2": "rank0", "rank1.2": "rank1"},
    ),
    "a job of one process that was restarted": (
        [LAUNCHER, Process("process2", 300, 5, 40, attempt=0), Process("process3", 300, 50, 90, attempt=1)],
        {"process2": "attempt0/rank0", "process3": "rank0"},
    ),
    "two jobs one after the other": (
        [rank(0, 5, attempt=0), rank(0, 200, folder="rank0.2", attempt=0)],
        {"rank0": "attempt0/rank0", "rank0.2": "rank0"},
    ),
    "a rank that was killed": ([LAUNCHER, Process("rank0", None, 6, 9, rank=0, size=2)], {"rank0": "rank0"}),
    "ranks and a program of its own": (
        [rank(0, 5), rank(1, 6), Process("process3", 300, 7, 9)],
        {"rank0": "rank0", "rank1": "rank1", "process3": "-2"},
    ),
    "a rank whose others are on other machines": ([rank(3, 5, size=8)], {"rank3": "rank3"}),
}


@pytest.mark.parametrize("job", JOBS)
def test_what_a_process_recorded_decides_where_it_belongs(job):
    processes, expected = JOBS[job]
    for order in permutations(processes):
        assert places(order) == expected


PROCESSES = st.builds(
    Process,
    folder=st.integers(0, 99).map("process{}".format),
    steps=st.sampled_from([None, 0, 7]),
    start_ns=st.integers(0, 9),
    end_ns=st.integers(0, 9),
    rank=st.none() | st.integers(0, 2),
    attempt=st.none() | st.integers(0, 2),
    spawned_by=st.none() | st.just("7"),
    trains=st.booleans(),
)


@given(st.lists(PROCESSES, min_size=1, unique_by=lambda process: process.folder))
def test_each_process_that_took_steps_has_a_place_of_its_own(processes):
    found = places(processes)
    assert {process.folder for process in processes if process.steps != 0} <= found.keys()
    assert len({*found.values()}) == len(found) > 0


@pytest.fixture
def folder(tmp_path):
    """A job that was killed before its processes were moved: a launcher, and two ranks that share the work."""
    groups = {"process1": {}, "process2": {"rank": 1, "size": 2}, "process3": {"rank": 0, "size": 2}}
    for number, (name, group) in enumerate(groups.items()):
        with tp.capture(tmp_path / "job" / name, source=StandIn(), schedule=tp.Schedule.ticks()) as run:
            train(run, range(number * 2))
        file = tmp_path / "job" / name / "run.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"group": group}))
    return tmp_path / "job"


def test_readers_find_the_run_among_processes(folder):
    job = tp.load(folder)
    assert (job.name, job.source) == ("job", folder)
    assert sorted(job.stored.frame.group_by("host").len()["len"]) == [2, 4]
    (folder / "process3" / "run.json").write_text("[]")
    assert len(tp.load(folder).stored) == 2


def test_ranks_that_are_not_in_the_folder_are_named(folder):
    file = folder / "process2" / "run.json"
    file.write_text(file.read_text().replace('"size": 2', '"size": 5'))
    with pytest.warns(UserWarning, match="3 of 5 ranks were not captured, or not into this folder: 2, 3, 4"):
        tp.load(folder)


def test_a_job_of_several_attempts_loads_the_last_and_names_the_others(folder):
    (folder / "attempt0").mkdir()
    (folder / "process2").rename(folder / "attempt0" / "rank0")
    (folder / "process3").rename(folder / "rank0")
    with pytest.warns(UserWarning, match="1 earlier attempt of the job: "):
        assert len(tp.load(folder).stored) == 4
    with warnings.catch_warnings(action="error"):
        attempts = formats.attempts(folder)
    assert [len(attempt.stored) for attempt in attempts] == [2, 4]


@pytest.mark.parametrize(
    "facts",
    [
        b"",
        b"[]",
        b'{"tpunb": 1, "group": []}',
        b'{"group": {"rank": -1}, "steps": "x", "updated": 1e999}',
        b"[" * 100_000,
    ],
)
def test_damaged_facts_are_of_a_process_without_a_rank(facts, folder):
    (folder / "process1" / "run.json").write_bytes(facts)
    assert job_folder.read("process1", storage.find(folder).below()).rank is None


def test_a_process_that_became_the_run_has_its_name(tmp_path):
    writer = RunWriter(tmp_path / "process1")
    writer.open()
    writer.facts({"name": writer.name, "state": "finished"})
    writer.close()
    assert tp.load((tmp_path / "process1").rename(tmp_path / "bert")).name == "bert"


def test_a_journal_of_spans_alone_is_no_step(tmp_path):
    writer = RunWriter(tmp_path / "job" / "process1")
    writer.open()
    writer.facts({"name": "killed", "state": "running"})
    spent = signals.Spent("evaluation", None, 17, 23)
    steps = []
    for write in (
        lambda: None,
        lambda: writer.span(spent),
        lambda: writer.step(JournalRow(0, "train", 1, 2, found_by="mark", before=0)),
    ):
        write()
        steps.append(job_folder.read("process1", storage.find(tmp_path / "job").below()).steps)
    assert steps == [0, 0, None]
