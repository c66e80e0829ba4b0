"""Which of the processes of ``tpunb run`` are the run, and where each belongs."""

import json
import warnings
from itertools import permutations

import pytest
from capture_loops import train
from stand_in import StandIn

import tpunb as tp
from tpunb.io import formats, job_folder, storage
from tpunb.io.job_folder import Process, places

LAUNCHER = Process("process1", False, 0, 100)


def rank(number, start_ns, *, folder=None, size=2, **more):
    return Process(folder or f"rank{number}", True, start_ns, start_ns + 50, rank=number, size=size, **more)


def spawned(folder, start_ns, end_ns, **more):
    return Process(folder, True, start_ns, end_ns, spawned_by="7", **more)


JOBS = {
    "a program": ([Process("process1", True, 0, 9)], {"process1": ""}),
    "a program without steps": ([LAUNCHER], {"process1": ""}),
    "a launcher and its program": ([LAUNCHER, Process("process2", True, 5, 90)], {"process2": ""}),
    "a launcher and ranks": ([LAUNCHER, rank(1, 6), rank(0, 7)], {"rank1": "rank1", "rank0": "rank0"}),
    "ranks that took no step": (
        [LAUNCHER, Process("rank0", False, 6, 9, rank=0, size=2), Process("rank1", False, 7, 9, rank=1, size=2)],
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
        [LAUNCHER, spawned("process2", 5, 90, is_trial=True), spawned("process3", 6, 91, is_trial=True)],
        {"process2": "", "process3": "-2"},
    ),
    "two programs of a shell": (
        [Process("process1", True, 0, 9), Process("process2", True, 10, 19)],
        {"process1": "", "process2": "-2"},
    ),
    "two programs of a shell at the same time": (
        [Process("process1", True, 0, 9), Process("process2", True, 1, 9)],
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
    "ranks and a program of its own": (
        [rank(0, 5), rank(1, 6), Process("process3", True, 7, 9)],
        {"rank0": "rank0", "rank1": "rank1", "process3": "-2"},
    ),
    "a rank whose others are on other machines": ([rank(3, 5, size=8)], {"rank3": "rank3"}),
}


@pytest.mark.parametrize("job", JOBS)
def test_what_a_process_recorded_decides_where_it_belongs(job):
    processes, expected = JOBS[job]
    for order in permutations(processes):
        assert places(order) == expected


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
    "facts", [b"", b"[]", b'{"tpunb": 1, "group": []}', b'{"group": {"rank": -1}, "steps": "x"}', b"[" * 100_000]
)
def test_damaged_facts_are_of_a_process_without_a_rank(facts, folder):
    (folder / "process1" / "run.json").write_bytes(facts)
    assert job_folder.read("process1", storage.find(folder).below()).rank is None
