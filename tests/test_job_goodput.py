"""Goodput of a job: attempts that were killed, resumed and resized."""

import json
import sys
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise

import polars as pl
import pytest
from chart_checks import texts_of
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from killed_jobs import killed_job
from optional import lazy
from simulate.goodput_jobs import BEGIN, Job, disrupted
from warm_python import warm_python

import tpunb as tp
from tpunb import charts, schema
from tpunb.analysis import categories
from tpunb.errors import BadProfile, IncompatibleRuns, ProfileNotFound
from tpunb.frames import Steps
from tpunb.frames.steps import WallClock
from tpunb.io import run_folder
from tpunb.io.run_folder import JournalRow
from tpunb.io.run_writer import RunWriter
from tpunb.step_stats import aggregate

S = 10**12
START_NS = 1_800_000_000 * 10**9
keras = lazy("keras")


def run(start, steps, *, before=0, span=None, hosts=("a",), name="run", model="MLP"):
    """A run that starts at a second of the job, with steps of (number, start, end) in seconds of the run."""
    ticks = [
        (host, n, "train", a * S, b * S, None, None, None, "keras", *[None] * 3) for host in hosts for n, a, b in steps
    ]
    tables = {table: pl.DataFrame(schema=columns) for table, columns in run_folder.TABLES.items()}
    tables["ticks"] = pl.DataFrame(ticks, schema=run_folder.TICKS, orient="row")
    span_ps = round((steps[-1][2] if span is None else span) * S)
    wall = WallClock(span_ps, complete=True)
    stored = Steps(*aggregate.merge(tables), name=name, wall=wall, metadata={"model": model}, steps_before=before)
    hardware = pl.DataFrame(schema=schema.HARDWARE)
    origin_ns = START_NS + round(start * 1e9)
    return tp.Profile(name, name, tables["windows"], hardware, span_ps, origin_ns, stored)


def steps(count, first=2, seconds=1):
    """Steps from a second on, one after the other."""
    return [(n, first + n * seconds, first + (n + 1) * seconds) for n in range(count)]


def seconds(job, account):
    return job.time_ps(account) / S


def adds_up(job):
    by_host = job.frame.group_by("host").agg(pl.col("time_ps").sum())["time_ps"]
    in_order = job.segments.group_by("host").agg(pl.col("dur_ps").sum())["dur_ps"]
    return set(by_host) == set(in_order) == {job.wall_ps}


KILLED = [run(0, steps(10), name="x"), run(20, steps(10), before=6, name="y"), run(40, steps(4), before=12, name="z")]


def test_steps_trained_twice_are_lost_and_time_between_attempts_is_downtime():
    job = tp.job(KILLED)
    assert adds_up(job)
    assert job.wall_ps == 46 * S
    assert [seconds(job, name) for name in ("productive", "lost progress", "downtime", "preparation")] == [16, 8, 16, 6]
    columns = ["name", "hosts", "steps", "first_step", "lost_steps"]
    assert job.attempts.select(columns).rows() == [("x", 1, 10, 0, 4), ("y", 1, 10, 6, 4), ("z", 1, 4, 12, 0)]
    times = job.attempts.select(pl.col("wall_ps", "downtime_ps", "startup_ps", "lost_ps") // S).rows()
    assert times == [(12, None, 3, 4), (12, 8, 3, 4), (6, 8, 3, 0)]
    assert job.attempts["started"][1] == datetime.fromtimestamp(START_NS / 1e9 + 20, UTC)
    assert "46.0 s: 16.0 s productive (35 %), 16.0 s down; 8.0 s of lost progress: productive" in repr(job)
    assert repr(job).startswith("JobGoodput(3 attempts in 46.0 s")
    assert job.ideal_step_ps == S


def test_lost_progress_begins_in_order_and_names_where_its_time_was():
    rows = tp.job(KILLED[:2]).segments.filter(account="lost progress")
    assert rows.select(pl.col("start_ps") // S, pl.col("dur_ps") // S, "detail", "step").rows() == [
        (8 + n, 1, "productive", 6 + n) for n in range(4)
    ]


def test_an_attempt_killed_before_a_checkpoint_loses_what_the_next_but_one_trains_again():
    job = tp.job([run(0, steps(10)), run(20, steps(2), before=8), run(40, steps(8), before=4)])
    assert job.attempts["lost_steps"].to_list() == [6, 2, 0]
    assert adds_up(job)


def test_an_attempt_without_a_step_loses_nothing_and_keeps_its_time():
    job = tp.job([run(0, steps(10)), run(20, [], before=None, span=5), run(40, steps(4), before=8)])
    assert job.attempts["lost_steps"].to_list() == [2, 0, 0]
    assert job.attempts["startup_ps"].to_list() == [3 * S, None, 3 * S]
    assert adds_up(job)
    assert seconds(job, "downtime") == 8 + 15


def test_where_numbers_are_unknown_lost_progress_is_too():
    job = tp.job([run(0, steps(10)), run(20, steps(4), before=None, name="b")])
    assert job.attempts["lost_steps"].to_list() == [None, 0]
    assert job.frame.filter(account="lost progress")["time_ps"].to_list() == [None]
    assert any(note.startswith("the numbers of the steps of b in the job are unknown") for note in job.notes)
    assert adds_up(job)


def test_steps_that_no_attempt_has_are_named():
    assert tp.job([run(0, steps(10)), run(20, steps(4), before=15)]).notes == ("steps 10 to 14 are in no attempt",)


def test_hosts_that_an_attempt_does_not_run_on_are_resizing():
    job = tp.job([run(0, steps(10), hosts=("p", "q")), run(20, steps(4), before=8, hosts=("r",))])
    assert adds_up(job)
    assert job.hosts == 2
    assert job.attempts["hosts"].to_list() == [2, 1]
    assert job.frame.filter(account="resizing").select("host", "detail", pl.col("time_ps") // S).rows() == [
        ("host 1", "an attempt on 1 of 2 hosts", 6)
    ]
    assert job.frame.filter(account="downtime")["detail"].unique().to_list() == ["from 2 hosts to 1"]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9), st.integers(0, 5)), min_size=1, max_size=6))
@examples(12)
def test_accounts_add_up_and_lost_steps_are_those_trained_more_than_once(attempts):
    """Attempts of (steps, steps since the checkpoint that the next one resumes from, seconds between)."""
    runs, taken, at, trained = [], 0, 0, []
    for number, (count, back, pause) in enumerate(attempts):
        runs.append(run(at, steps(count), before=taken, name=str(number)))
        trained.append(range(taken, taken + count))
        at += 2 + count + pause
        taken = max(0, taken + count - back)
    job = tp.job(runs)
    lost = [sum(any(n >= min(b) for b in trained[i + 1 :]) for n in a) for i, a in enumerate(trained)]
    assert job.attempts["lost_steps"].to_list() == lost
    assert adds_up(job)
    assert seconds(job, "lost progress") == sum(lost)
    assert seconds(job, "productive") == sum(map(len, trained)) - sum(lost)
    starts, times = job.segments["start_ps"].to_list(), job.segments["dur_ps"].to_list()
    assert [start + time for start, time in zip(starts, times, strict=True)] == [*starts[1:], job.wall_ps]


def test_the_chart_of_accounts_draws_a_job():
    assert "lost progress · 8.0 s" in texts_of(charts.accounts(tp.job(KILLED)))


def test_categories_of_a_run_are_those_of_its_accounts():
    found = categories(tp.goodput(tp.sample("keras_cnn")))
    assert found.filter(pl.col("within").is_null())["share"].sum() == pytest.approx(1)
    assert {"GOODPUT", "PROGRAM_STARTUP", "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"} <= {*found["category"]}
    with pytest.raises(TypeError, match="exclude parameter of categories must be empty for a run"):
        categories(tp.goodput(KILLED[0]), [(datetime.now(UTC), datetime.now(UTC))])


# -- run folders --------------------------------------------------------------------------------------------------


def write(folder, start, ticks, **facts):
    """Write a run that was killed, or has ended if a `state` says so."""
    writer = RunWriter(folder)
    writer.open()
    rows = [("toy", n, "train", a * S, b * S, None, None, None, "keras", *[None] * 3) for n, a, b in ticks]
    writer.part(0, {"ticks": pl.DataFrame(rows, schema=run_folder.TICKS, orient="row")})
    origin_ns = START_NS + round(start * 1e9)
    writer.facts({"name": folder.name, "host": "toy", "origin_ns": origin_ns, "state": "running", **facts})
    return writer


def test_a_folder_of_attempts_that_were_killed_is_a_job(tmp_path):
    write(tmp_path / "runs" / "b", 20, steps(4), steps_before=8, state="finished", span_ps=7 * S).close()
    write(tmp_path / "runs" / "a", 0, steps(10), steps_before=0).close()
    job = tp.job(tmp_path / "runs")
    assert job.attempts.select("name", "lost_steps").rows() == [("a", 2), ("b", 0)]
    assert job.wall_ps == 27 * S
    assert adds_up(job)
    assert tp.job(tmp_path / "runs" / "a").attempts.height == 1
    assert tp.job([tmp_path / "runs" / "b", tp.load(tmp_path / "runs" / "a")]).wall_ps == job.wall_ps


def test_the_journal_has_the_steps_after_the_last_part_until_the_run_ends(tmp_path):
    writer = write(tmp_path / "a", 0, steps(10), steps_before=0)
    for number, start, end in [*steps(12)][9:]:  # the first of them is in the part
        times = (START_NS + start * 10**9, START_NS + end * 10**9)
        writer.step(JournalRow(number, "train", *times, input_ns=5 * 10**6, found_by="keras", before=40))
    frame = tp.load(tmp_path / "a").stored.frame
    assert frame["step"].to_list() == [*range(12)]
    assert frame.select("start_ps", "dur_ps", "kind", "input_ps", "callbacks_ps").row(-1) == (
        *(13 * S, S, "train", 5 * 10**9, None),
    )
    assert tp.job(tmp_path / "a").wall_ps == 14 * S
    assert tp.job(tmp_path / "a").attempts["first_step"].to_list() == [40]
    for damaged in (b"", b"\xff" * 90, (tmp_path / "a" / run_folder.LATEST).read_bytes()[:-3]):
        (tmp_path / "a" / run_folder.LATEST).write_bytes(damaged)
        assert tp.load(tmp_path / "a").stored.frame["step"].to_list()[:10] == [*range(10)]
    writer.facts({"name": "a", "host": "toy", "origin_ns": START_NS, "state": "finished", "span_ps": 20 * S})
    assert not (tmp_path / "a" / run_folder.LATEST).exists()
    writer.step(JournalRow(12, "train", START_NS, START_NS, found_by="keras", before=40))
    writer.close()
    assert len(tp.load(tmp_path / "a").stored) == 10


def test_a_step_that_only_a_window_saw_is_none_if_a_later_one_was_recorded(tmp_path):
    writer = write(tmp_path / "a", 0, [(121, 2, 3), (122, 3, 4)], steps_before=0)
    columns = {"host": "toy", "kind": "train", "dur_ps": S, "traced": "partial", "rule": "clock"}
    seen = pl.DataFrame({"step": [0, 122, 123], "start_ps": [S, 3 * S, 4 * S]}).with_columns(
        pl.lit(value).alias(name) for name, value in columns.items()
    )  # a loop before the training, or the step of a kill
    table = run_folder.TABLES["steps"]
    empty = [pl.lit(None, kind).alias(name) for name, kind in table.items() if name not in seen.columns]
    writer.part(1, {"steps": seen.with_columns(empty).select([*table]).cast(dict(table))})
    writer.close()
    assert tp.load(tmp_path / "a").stored.frame["step"].to_list() == [121, 122, 123]
    assert tp.job(tmp_path / "a").attempts["first_step"].to_list() == [121]


# -- bad input -----------------------------------------------------------------------------------------------------


def test_attempts_of_other_programs_are_refused():
    with pytest.raises(IncompatibleRuns, match="a and b are not attempts of one job: model MLP and CNN"):
        tp.job([run(0, steps(3), name="a"), run(20, steps(3), name="b", model="CNN")])


def test_attempts_that_overlap_are_refused():
    with pytest.raises(BadProfile, match=r"b starts 1\.0 s before a ends") as error:
        tp.job([run(0, steps(3), name="a"), run(4, steps(3), name="b")])
    assert "tp.load" in error.value.hint


def test_attempts_without_a_time_are_refused():
    with pytest.raises(BadProfile, match="an attempt without a time of day"):
        tp.job([run(0, steps(3)), replace(run(20, steps(3)), origin_ns=None)])


@pytest.mark.parametrize("runs", [3, b"runs", None, [3], [None]])
def test_what_is_no_run_is_refused(runs):
    with pytest.raises(TypeError, match="The runs parameter of job must"):
        tp.job(runs)


def test_an_empty_folder_and_list_and_no_folder_are_refused(tmp_path):
    with pytest.raises(ProfileNotFound, match="holds no profile"):
        tp.job(tmp_path)
    with pytest.raises(ProfileNotFound, match="the list of attempts is empty"):
        tp.job([])
    with pytest.raises(ProfileNotFound):
        tp.job(tmp_path / "none")


def test_events_and_run_folders_of_a_folder_are_its_attempts(tmp_path):
    events = Job(tmp_path / "events.jsonl")
    disrupted(events)
    later = (BEGIN.timestamp() - START_NS / 1e9) + 60
    write(tmp_path / "later", later, steps(10), steps_before=5).close()
    assert tp.job(tmp_path).attempts["name"].to_list() == ["events attempt 0", "events attempt 1", "later"]
    write(tmp_path / "last", 0, steps(10), steps_before=5).close()
    with pytest.raises(BadProfile, match="last starts 379 days after events attempt 0: a job has at most 106"):
        tp.job(tmp_path)


# -- real trainings ------------------------------------------------------------------------------------------------


def fitted(folder, model, data, **options):
    with tp.capture(folder, schedule=tp.Schedule(every=3600.0, burst=0)):
        model.fit(data, verbose=0, **options)
    return json.loads((folder / "run.json").read_text())["steps_before"]


@pytest.mark.live
def test_a_fit_knows_the_steps_that_its_optimizer_took_before(tmp_path):
    import numpy as np

    rows = np.zeros((40, 4), "float32"), np.zeros((40, 1), "float32")
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    assert fitted(tmp_path / "a", model, rows[0], y=rows[1], batch_size=8) == 0
    assert fitted(tmp_path / "b", model, rows[0], y=rows[1], batch_size=8, epochs=2) == 5
    assert fitted(tmp_path / "c", model, (rows for _ in range(3))) is None  # of unknown length
    model.compile("sgd", "mse", steps_per_execution=2)
    assert fitted(tmp_path / "d", model, rows[0], y=rows[1], batch_size=8) == 0
    with tp.capture(tmp_path / "e", schedule=tp.Schedule(every=3600.0, burst=0)) as own:
        for number in range(7, 9):
            with own.step(number):
                pass
    assert tp.load(tmp_path / "e").stored.steps_before == 0
    assert tp.job(tmp_path / "e").attempts["first_step"].to_list() == [7]


@pytest.mark.live
def test_a_fit_that_is_resumed_in_its_midst_counts_from_its_checkpoint(tmp_path):
    import numpy as np

    def train(folder):
        keras.utils.set_random_seed(1)
        rows = np.random.default_rng(0).normal(size=(240, 4)).astype("float32")
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        fitted(folder, model, rows, y=rows[:, :1], batch_size=8, epochs=2)

    with tp.checkpointing(tmp_path / "saved", every=20):
        train(tmp_path / "runs" / "a")
    with tp.resume(tp.checkpoints(tmp_path / "saved").before(50)):
        train(tmp_path / "runs" / "b")
    job = tp.job(tmp_path / "runs")
    assert job.attempts.select("first_step", "steps", "lost_steps").rows() == [(0, 60, 20), (40, 20, 0)]
    assert adds_up(job)


@pytest.mark.live
def test_a_kill_in_a_callback_leaves_the_step_that_had_computed(tmp_path):
    truths = killed_job(tmp_path, 40, [23], warm_python(), itself=True)
    job = check_killed(tmp_path / "runs", truths)
    assert job.attempts["lost_steps"].to_list() == [3, 0]


def check_killed(records, truths, *, events=False):
    """Return the job, which a clock beside it agrees with; a kill may come before the clock notes a step that ended.

    Events begin later in an attempt than its clock, and end earlier.
    """
    job = tp.job(records)
    assert job.attempts["first_step"].to_list() == [truth.resumed for truth in truths]
    assert adds_up(job)
    for at, (truth, row) in enumerate(zip(truths, job.attempts.iter_rows(named=True), strict=True)):
        cut = min([later.resumed for later in truths[at + 1 :]], default=10**9)
        ended, begun = ([step for step in steps if step >= cut] for steps in (truth.steps, truth.begun))
        assert len(ended) <= row["lost_steps"] <= len(begun)
    clock_ps = (truths[-1].end_ns - truths[0].begin_ns) * 1000
    down_ps = sum(b.begin_ns - a.end_ns for a, b in pairwise(truths)) * 1000
    if events:
        assert job.wall_ps <= clock_ps
        assert job.time_ps("downtime") >= down_ps
    else:
        assert job.wall_ps == pytest.approx(clock_ps, rel=0.01, abs=10**11)
        assert job.time_ps("downtime") == pytest.approx(down_ps, abs=0.01 * clock_ps + 10**11)
    return job


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["keras", "maxtext"])
def test_a_training_killed_three_times_is_accounted_for_by_a_clock_beside(tmp_path, trainer):
    pytest.importorskip(trainer)
    truths = killed_job(tmp_path, 400, [133, 3, 149], [sys.executable], trainer=trainer)
    job = check_killed(tmp_path / "runs", truths)
    if trainer == "maxtext":
        assert job.time_ps("checkpoint save") > 0 < job.time_ps("checkpoint restore")
        check_killed(tmp_path / "events.jsonl", truths, events=True)
