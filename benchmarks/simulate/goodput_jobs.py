"""Jobs as goodput events: the situations of ml-goodput-measurement's public tests, with the buckets expected there.

The situations and figures are those of its goodput_test.py of 17 August 2026; the events are written by a simulated
clock. Expected times are seconds by category of that library. Where a definition is doubtful, `doubt` says why, and
`accounts` has the times in our accounts. Version 0.2.3 itself, run on these events, gives all categories but OTHER as
they are read here, with the differences that are named.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from tpunb.analysis import GoodputRecorder

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
STEP, FIRST, STEPS = 3.0, 5.0, 5  # seconds of a step, more of the first after a start, number of steps
INIT, PREPARATION, LOADING, UNKNOWN, DOWN = 1.0, 2.0, 2.0, 5.0, 5.0  # seconds of the parts of a start, and between


class Job:
    """Events at the times of a simulated clock."""

    def __init__(self, path: Path) -> None:
        self.path, self.now = path, 0.0
        self._recorder = GoodputRecorder(path, path.stem)

    def record(self, event: str, *facts: object) -> None:
        """Record an event now."""
        getattr(self._recorder, f"record_{event}")(*facts, moment(self.now))

    def custom(self, seconds: float, name: str) -> None:
        """Let a custom event take time."""
        self._recorder.record_custom_badput_event_start_time(moment(self.now), name)
        self.now += seconds
        self._recorder.record_custom_badput_event_end_time(moment(self.now), name)

    def during(self, event: str, seconds: float) -> None:
        """Let something take time."""
        self.record(f"{event}_start_time")
        self.now += seconds
        self.record(f"{event}_end_time")

    def orbax(self, kind: str, prefix: str, seconds: float) -> None:
        """Let Orbax save or restore, which writes a record of its own."""
        start, name = moment(self.now).timestamp(), f'"{prefix}_start_time"'
        line = f'{{"event_type": "{kind}", {name}: {start}, "{prefix}_duration_secs": {seconds}, "step": 1}}\n'
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line)
        self.now += seconds

    def start(self, *parts: str) -> None:
        """Start an attempt, with parts of "init", "preparation", "loading" and "unknown"."""
        self.record("job_start_time")
        for part in parts:
            if part == "unknown":
                self.now += UNKNOWN
            else:
                seconds = {"init": INIT, "preparation": PREPARATION, "loading": LOADING}[part]
                names = {"init": "tpu_init", "preparation": "training_preparation", "loading": "data_loading"}
                self.during(names[part], seconds)

    def steps(self, first: int = 0, last: int = STEPS, more: float = 0.0, slow: tuple[int, ...] = ()) -> None:
        """Take steps: the first takes `more` seconds longer, each slow one 30 s."""
        for step in range(first, last):
            self.record("step_start_time", step)
            self.now += STEP + more * (step == first) + 30.0 * (step in slow)

    def end(self) -> None:
        """End the job."""
        self.record("job_end_time")


class Situation(NamedTuple):
    """A job, and the seconds of its categories and accounts."""

    name: str
    write: Callable[[Job], None]
    expected: dict[str, float]
    accounts: dict[str, float] = {}  # noqa: RUF012  never changed
    exclude: tuple[float, float] | None = None
    wall: float | None = None  # seconds, without those that are excluded
    doubt: str = ""


def moment(seconds: float) -> datetime:
    """Return the time of day of the simulated clock."""
    return BEGIN + timedelta(seconds=seconds)


START = ("init", "preparation", "loading")


def _plain(job: Job) -> None:
    job.start("unknown")
    job.steps()
    job.end()


def _first_run(job: Job) -> None:
    job.start("unknown")
    job.steps(more=FIRST)
    job.end()


def _restarted(first: int, last: int, more: float = 0.0) -> Callable[[Job], None]:
    def write(job: Job) -> None:
        job.start("unknown")
        job.steps(more=more)
        job.now += DOWN
        job.start("unknown")
        job.steps(first, last, more)

    return write


def _pathways(steps: int, *slow: int) -> Callable[[Job], None]:
    def write(job: Job) -> None:
        job.start("unknown")
        job.steps(last=steps, slow=slow)
        job.end()

    return write


def _started(*parts: str) -> Callable[[Job], None]:
    def write(job: Job) -> None:
        job.start(*parts)
        job.steps()
        job.end()

    return write


def _loads_in_steps(job: Job) -> None:
    job.start(*START)
    for step in range(STEPS):
        job.steps(step, step + 1)
        job.during("data_loading", LOADING)
    job.end()


def _compiled(job: Job) -> None:
    job.start(*START)
    job.steps(more=FIRST)
    job.end()


def disrupted(job: Job, *, saves: bool = False) -> None:
    """Write a job that is killed in its last step, and resumed from the second."""
    job.start(*START)
    if saves:
        job.steps(0, 2, FIRST)
        job.orbax("save", "checkpoint_manager_blocking", 6.0)
        job.steps(2)
    else:
        job.steps(more=FIRST)
    job.now += DOWN
    job.record("job_start_time")
    if saves:
        job.orbax("restore", "checkpoint_manager", 2.0)
    job.now += INIT + PREPARATION + LOADING
    job.steps(2, more=FIRST)
    job.end()


def _until_the_kill(job: Job) -> None:
    job.start(*START)
    job.steps(0, 4, FIRST)
    job.record("step_start_time", 4)


def _unknown_at_the_end(job: Job) -> None:
    job.start("init", "unknown")
    job.steps()
    job.now += UNKNOWN
    job.end()


def _evaluates(job: Job) -> None:
    job.start("init", "unknown")
    job.steps()
    job.custom(5.0, "eval_step")
    job.steps(STEPS, 2 * STEPS)
    job.end()


def _resumed_late(job: Job) -> None:
    job.start()
    job.steps()
    job.now += DOWN
    job.start()


def _resumed_later(job: Job) -> None:
    _resumed_late(job)
    job.steps(3)
    job.end()


def uneven(job: Job) -> None:
    """Write steps of 1 to 600 s."""
    draw = random.Random(0)
    job.start()
    for step in range(100):
        job.record("step_start_time", step)
        job.now += draw.randint(1, 600)
    job.end()


def _two_steps(job: Job) -> None:
    job.start()
    for step in range(2):
        job.now += 10.0
        job.record("step_start_time", step)
    job.now += 10.0
    job.end()


def _part(event: str) -> Callable[[Job], None]:
    def write(job: Job) -> None:
        job.start()
        job.during(event, 10.0)
        job.now = 20.0
        job.record("step_start_time", 0)
        job.now = 25.0
        job.end()

    return write


def everything(job: Job) -> None:
    """Write each kind of event."""
    job.start()
    for event, seconds in (("tpu_init", INIT), ("training_preparation", PREPARATION), ("data_loading", LOADING)):
        job.now += 1.0
        job.during(event, seconds)
    job.now += 1.0
    for step in range(STEPS):
        job.record("step_start_time", step)
        job.during("data_loading", LOADING)
        if step % 3 == 0:
            job.custom(10.0, "test_sync")
        job.now += STEP
    job.end()


def _at_once(job: Job) -> None:
    job.start()
    job.record("step_start_time", 0)
    job.now = 20.0
    job.start()
    job.record("step_start_time", 0)
    job.now = 30.0
    job.end()


_LOST, _DOWN = "WASTED_PROGRESS_FROM_DISRUPTION", "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"
_DISRUPTED = {"GOODPUT": 15.0, _LOST: 6.0, _DOWN: 8.0, "PROGRAM_STARTUP": 10.0}
_OF_QUERY = "the library counts the time until it is asked, here the last event ends the job"
_FROM_0 = "the library counts no wasted progress where a job restarts from step 0: its time is OTHER"
_MEAN = "a save in a step is in the mean that the first step is compared with there: less startup, more goodput"
_TWICE = "after a disruption it counts the last load twice in DATA_LOADING_SYNC, and less in DATA_LOADING_ASYNC"
_SLOW = "its test of slow steps is turned off: it counts them as goodput, here they are step time deviation"
SITUATIONS = [
    Situation("a job without interruptions", _plain, {"GOODPUT": 15.0, "OTHER": 5.0}, wall=20.0),
    Situation("a long first step", _first_run, {"GOODPUT": 15.0, "PROGRAM_STARTUP": 5.0}, wall=25.0),
    Situation("restarted from step 0", _restarted(0, 3), {"GOODPUT": 6.0, _LOST: 12.0}, wall=36.0, doubt=_FROM_0),
    Situation("restarted from step 2", _restarted(2, 5), {"GOODPUT": 12.0, _LOST: 6.0}, doubt=_OF_QUERY),
    Situation("restarted, with long first steps", _restarted(2, 5, FIRST), {"GOODPUT": 12.0}, doubt=_OF_QUERY),
    Situation("a slow step", _pathways(5, 2), {"GOODPUT": 45.0}, {"productive": 15.0}, doubt=_SLOW),
    Situation("two slow steps", _pathways(10, 2, 7), {"GOODPUT": 90.0}, {"productive": 30.0}, doubt=_SLOW),
    Situation("initialization of devices", _started("init", "unknown"), {"TPU_INITIALIZATION": 1.0}, wall=21.0),
    Situation("preparation", _started("init", "preparation"), {"TRAINING_PREP": 2.0}, wall=18.0),
    Situation("loading before the first step", _started(*START), {"DATA_LOADING_SYNC": 2.0}, wall=20.0),
    Situation(
        "loading between steps",
        _loads_in_steps,
        {"DATA_LOADING_ASYNC": 10.0, "DATA_LOADING_SYNC": 2.0, "GOODPUT": 25.0},
        {"productive": 15.0, "data loading": 12.0},
        doubt="it counts waits between steps as goodput, as if the steps overlapped them",
    ),
    Situation("compilation", _compiled, {"PROGRAM_STARTUP": 5.0}, wall=25.0),
    Situation("compilation after a disruption", disrupted, {"PROGRAM_STARTUP": 10.0}, wall=49.0),
    Situation("steps trained twice", disrupted, {_LOST: 6.0}, {"lost progress": 6.0}),
    Situation("time without an event", _unknown_at_the_end, {"OTHER": 5.0}, wall=26.0),
    Situation(
        "checkpoints of Orbax",
        lambda job: disrupted(job, saves=True),
        _DISRUPTED | {"UNPRODUCTIVE_CHECKPOINT_SAVE_TIME": 6.0, "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME": 2.0},
        doubt=_MEAN,
    ),
    Situation("a window with a disruption", disrupted, _DISRUPTED, wall=49.0, doubt=_TWICE),
    Situation("a window without a disruption", _until_the_kill, {"GOODPUT": 12.0, _LOST: 0.0}, wall=22.0),
    Situation("a custom event", _evaluates, {"CUSTOM_BADPUT_EVENTS": 5.0, "GOODPUT": 30.0}, wall=41.0),
    Situation("restarted, no step yet", _resumed_late, {"GOODPUT": 12.0, _LOST: 0.0}),
    Situation("restarted after that", _resumed_later, {"GOODPUT": 15.0, _LOST: 3.0, _DOWN: 8.0}, wall=26.0),
    Situation("time until the restart", disrupted, {_DOWN: 8.0}, {"downtime": 8.0}),
    Situation("half a step excluded", _two_steps, {"GOODPUT": 15.0, "OTHER": 10.0}, {}, (10.0, 15.0), 25.0),
    Situation(
        "an initialization excluded",
        _part("tpu_init"),
        {"TPU_INITIALIZATION": 0.0, "OTHER": 10.0},
        {},
        (0.0, 10.0),
        15.0,
    ),
    Situation("a custom event excluded", everything, {"CUSTOM_BADPUT_EVENTS": 10.0}, {}, (11.0, 21.0), 44.0),
    Situation("a restart at once", _at_once, {_DOWN: 20.0}, wall=30.0),
    Situation("a restart excluded", _at_once, {_DOWN: 0.0}, {}, (0.0, 20.0), 10.0),
    Situation(
        "a preparation excluded in part",
        _part("training_preparation"),
        {"TRAINING_PREP": 5.0},
        {},
        (5.0, 15.0),
        15.0,
        "it leaves the excluded time that is in no event in the wall time: 20 s",
    ),
]
"""Situations whose buckets are known; `uneven` and those of the recorder are checked by themselves."""
