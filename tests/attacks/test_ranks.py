"""Ranks of one job on CPUs: the slow one is named with its line, and waiting for it is an account of its own."""

import os
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import polars as pl
import psutil
import pytest
from warm_python import TORCH, warm_python

import tpunb as tp
from tpunb import schema
from tpunb.errors import NoSteps
from tpunb.frames.steps import WallClock
from tpunb.profiler.stall_sampler import ProcessLoad
from tpunb.profiler.step_clock import OpenStep, StepClock
from tpunb.schema import PEERS

MS = 10**9
SLOW_LINE = "train.py:7 in load ← time.sleep"


def ranks(work_ms, *, input_ms=None, kinds=None, spans=(), samples=(), load=()):
    """Steps of ranks that work as long as (steps, ranks) says and then wait for the last one, as by their clocks."""
    work = np.asarray(work_ms, float)
    dur = work.max(axis=1)
    start = np.concatenate([[0], dur.cumsum()[:-1]])
    rows = [
        (f"vm rank{rank}", step, "train", start[step], dur[step], dur[step] - work[step, rank])
        for rank in range(work.shape[1])
        for step in range(len(work))
    ]
    names = ["host", "step", "kind", "start_ps", "dur_ps", "peers_ps"]
    frame = pl.DataFrame(rows, names, orient="row").with_columns(pl.col(names[3:]).mul(MS).round().cast(pl.Int64))
    frame = frame.with_columns(traced=pl.lit("none"), rule=pl.lit("optimizer"), input_ps=pl.lit(0, pl.Int64))
    frame = frame.with_columns(pl.lit(None, pl.Int64).alias(name) for name in ("device_ps", "idle_ps"))
    if input_ms is not None:
        frame = frame.with_columns(input_ps=pl.col("host").replace_strict(input_ms, default=0) * MS)
    frames = {
        name: pl.DataFrame(rows, getattr(schema, name.upper()), orient="row")
        for name, rows in (("spans", spans), ("samples", samples), ("load", load))
    }
    wall = WallClock(int(frame.select((pl.col("start_ps") + pl.col("dur_ps")).max()).item()), complete=True, **frames)
    ops = pl.DataFrame(schema=schema.OPS)
    return tp.Steps(schema.check(frame, schema.STEPS, "steps"), ops, name="job", wall=wall)


def looks(steps, place_of):
    """Look at each rank each 5 ms: in `place_of` of the rank while it works, else in the backward pass."""
    samples = []
    for host, start, dur, peers in steps.frame.select("host", "start_ps", "dur_ps", "peers_ps").iter_rows():
        for at in range(start, start + dur, 5 * MS):
            works = at - start < dur - peers
            place = place_of.get(host, "train.py:9 in step") if works else "train.py:12 in step ← loss.backward"
            samples.append((host, at, place, False, False, False, False, None, False, None, None))
    wall = replace(steps.wall, samples=pl.DataFrame(samples, schema.SAMPLES, orient="row"))
    return replace(steps, wall=wall)


def slow_input():
    """Rank 1 of two loads 20 ms longer in each of 150 steps of 10 ms."""
    steps = ranks([[10, 30]] * 150, input_ms={"vm rank1": 20})
    return looks(steps, {"vm rank1": SLOW_LINE})


# -- which rank is slow ------------------------------------------------------------------------------------------------


def test_the_slow_one_of_two_ranks_is_named_with_its_line_and_cost():
    found = tp.hosts(slow_input())
    row = found.frame.row(0, named=True)
    assert [row[name] for name in ("host", "named", "cause", "place", "recurrence")] == [
        *("vm rank1", True, "input", SLOW_LINE, "every step")
    ]
    assert (row["costs_ps"], found.span_ps) == (150 * 20 * MS, 150 * 30 * MS)
    assert found.by == "waits in backward passes and collectives"
    assert repr(found) == (
        f"Hosts(2 hosts, vm rank1 costs 66.7 % of step time (input at {SLOW_LINE}, every step); judged by {found.by})"
    )


def test_the_first_sentence_of_the_report_is_about_the_slow_rank():
    report = tp.report(slow_input())
    assert report.content["verdict"]["sentence"].startswith(
        f"vm rank1 delays the other ranks by 3.0 s of 4.5 s (67 % of run time): input at {SLOW_LINE}, every step. "
        "Make that line as fast on this rank as on the others"
    )
    assert (report.content["run"]["steps"], report.content["run"]["hosts"]) == (150, 2)
    assert sum(phase["steps"] for phase in report.content["phases"]) == 150
    assert report.content["actions"][0]["rule"] == "slow rank"
    assert "uneven ranks" not in [action["rule"] for action in report.content["actions"]]


def test_work_of_the_rank_itself_is_the_cause_where_it_is_not_its_input():
    found = tp.hosts(looks(ranks([[10, 10, 30, 10]] * 40), {"vm rank2": "net.py:3 in forward"}))
    row = found.frame.row(0, named=True)
    assert [row[name] for name in ("host", "named", "cause", "place")] == [
        "vm rank2",
        True,
        "host",
        "net.py:3 in forward",
    ]
    assert found.frame["named"].sum() == 1


def test_a_rank_that_saves_between_steps_is_waited_for_in_the_next_barrier():
    """Rank 0 saves for 400 ms after each fourth step, in which the other waits outside of steps."""
    steps = ranks([[10, 10]] * 80)
    gap = pl.col("step") // 4 * 400 * MS
    frame = steps.frame.with_columns(pl.col("start_ps") + gap)
    ends = frame.filter(pl.col("step") % 4 == 3, host="vm rank1").select(pl.col("start_ps") + 10 * MS).to_series()
    spans = [("vm rank1", end, 400 * MS, PEERS, "barrier") for end in ends]
    spans = pl.DataFrame(spans, schema.SPANS, orient="row")
    steps = replace(steps, frame=frame.with_columns(peers_ps=MS), wall=replace(steps.wall, spans=spans))
    row = tp.hosts(steps).frame.row(0, named=True)
    assert (row["host"], row["named"], row["recurrence"]) == ("vm rank0", True, "every 4 steps")
    assert row["costs_ps"] == 20 * 400 * MS


def test_ranks_are_one_step_by_their_training_steps_where_one_evaluates_alone():
    steps = slow_input()
    extra = steps.frame.filter(pl.col("host") == "vm rank0", pl.col("step") == 70).with_columns(kind=pl.lit("eval"))
    later = (pl.col("host") == "vm rank0") & (pl.col("step") >= 70)
    frame = pl.concat([steps.frame.with_columns(pl.col("step") + later.cast(pl.Int64)), extra])
    found = tp.hosts(replace(steps, frame=frame))
    assert found.frame.filter("named")["host"].to_list() == ["vm rank1"]
    assert found.frame["costs_ps"].max() == 150 * 20 * MS


@pytest.mark.parametrize("seed", range(40))
def test_a_sound_job_names_no_rank_and_a_slow_one_is_named_in_any_order(seed):
    random = np.random.default_rng(seed)
    noise = 20 + random.exponential(
        random.choice([1.0, 10.0]), (int(random.integers(30, 150)), int(random.integers(2, 6)))
    )
    steps = ranks(noise)
    order = random.permutation(noise.shape[1])
    assert not tp.hosts(steps).frame["named"].any()
    assert not tp.hosts(ranks(noise[:, order])).frame["named"].any()
    slow = int(random.integers(noise.shape[1]))
    late = ranks((noise + 40 * (np.arange(noise.shape[1]) == slow))[:, order])
    new = {f"vm rank{rank}": f"node-{9 - rank}" for rank in range(5)}
    named = tp.hosts(replace(late, frame=late.frame.with_columns(pl.col("host").replace(new)))).frame.filter("named")
    assert named["host"].to_list() == [new[f"vm rank{order.tolist().index(slow)}"]]


def test_one_long_pause_of_a_rank_does_not_make_it_slow():
    work = np.full((100, 2), 10.0)
    work[50, 1] = 3000
    assert not tp.hosts(ranks(work)).frame["named"].any()


def compiled(launch_ms, pace=(1, 1)):
    """Steps of a compiled function that computes 10 ms once the last rank has launched it, as by the ranks' clocks."""
    launch = np.asarray(launch_ms, float)
    steps = ranks(launch + 10).frame
    delays = dict(zip(steps["host"].unique(maintain_order=True), launch.T, strict=True))
    delay = np.concatenate([delays[host][steps.filter(host=host)["step"].to_numpy()] for host in delays])
    paces = steps["host"].replace_strict(dict(zip(delays, map(float, pace), strict=True)), return_dtype=pl.Float64)
    frame = steps.with_columns(
        rule=pl.lit("calls", steps.schema["rule"]),
        peers_ps=pl.lit(None, pl.Int64),
        dur_ps=pl.col("dur_ps") - pl.Series(delay * MS).cast(pl.Int64),
        start_ps=((pl.col("start_ps") + pl.Series(delay * MS)) * paces).cast(pl.Int64),
    )
    return replace(ranks(launch + 10), frame=frame)


@pytest.mark.parametrize("seed", range(10))
def test_the_rank_that_launches_compiled_steps_late_is_named_if_the_ranks_keep_pace(seed):
    launch = 5 + np.random.default_rng(seed).exponential(5.0, (120, 2))
    slow = launch + np.array([0, 20])
    assert not tp.hosts(compiled(launch)).frame["named"].any()
    assert tp.hosts(compiled(slow)).frame.filter("named")["host"].to_list() == ["vm rank1"]
    with pytest.raises(NoSteps):  # what each computes is its own
        tp.hosts(compiled(slow, pace=(1, 1.2)))


# -- where the time went -----------------------------------------------------------------------------------------------


def test_each_rank_has_its_own_waiting_beyond_that_of_the_last():
    steps = ranks([[10, 30]] * 150)
    steps = replace(steps, frame=steps.frame.with_columns(peers_ps=pl.col("peers_ps") + MS))  # of a transfer
    run = tp.goodput(steps)
    times = {
        (row["host"], row["account"]): row["time_ps"] // MS
        for row in run.frame.group_by("host", "account").agg(pl.col("time_ps").sum()).iter_rows(named=True)
    }
    assert times[("vm rank0", PEERS)] == 150 * 20
    assert times[("vm rank0", "productive")] == 150 * 10
    assert ("vm rank1", PEERS) not in times
    assert times[("vm rank1", "productive")] == 150 * 30


def test_waits_for_the_start_of_other_ranks_are_no_preparation():
    span = ("vm rank0", 0, 8000 * MS, PEERS, "init_process_group")
    steps = ranks([[10, 10]] * 60, spans=[span])
    late = replace(
        steps,
        frame=steps.frame.with_columns(pl.col("start_ps") + 8000 * MS),
        wall=replace(steps.wall, span_ps=steps.wall.span_ps + 8000 * MS),
    )
    run = tp.goodput(late)
    of_rank = run.frame.filter(host="vm rank0")
    assert of_rank.filter(account=PEERS).select("detail", "time_ps").row(0) == ("init_process_group", 8000 * MS)
    assert of_rank.filter(account="preparation").is_empty()
    sentence = tp.report(late).content["verdict"]["sentence"]
    assert "prepared data" not in sentence


def test_a_rank_alone_has_the_waits_in_calls_that_are_known():
    one = ranks([[10, 30]] * 50, spans=[("vm rank0", 0, 5 * MS, PEERS, "all_reduce")])
    alone = tp.goodput(replace(one, frame=one.frame.filter(host="vm rank0")))
    assert alone.time_ps(PEERS) == 5 * MS
    together = tp.goodput(one)  # the wait of that step is known against the other rank
    assert together.frame.filter(host="vm rank0", account=PEERS)["time_ps"].sum() == 50 * 20 * MS


# -- what is recorded --------------------------------------------------------------------------------------------------


def test_waits_belong_to_the_step_in_which_they_begin():
    clock = StepClock(lambda kind, number: None)
    clock.has_peers = True
    for number in range(3):
        clock.add(OpenStep(-1, "train", 1000 * number, end_ns=1000 * number + 900))
    clock._waits.extend([(100, 40), (200, 2), (950, 5), (1100, 30)])  # the third is between two steps
    assert [record.peers_ns for record in clock.take(final=True)] == [42, 30, 0]


def test_a_process_alone_records_no_waits():
    clock = StepClock(lambda kind, number: None)
    clock.add(OpenStep(-1, "train", 0, end_ns=900))
    assert [record.peers_ns for record in clock.take(final=True)] == [None]


@pytest.mark.live
def test_other_ranks_of_the_launcher_are_no_other_programs(monkeypatch):
    spin = "import time; end = time.monotonic() + 300\nwhile time.monotonic() < end: pass"
    monkeypatch.setenv("LOCAL_RANK", "0")  # as torchrun sets it in this process, which has a brother
    load = ProcessLoad()
    assert load._launcher == psutil.Process().parent()
    monkeypatch.undo()
    launcher = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {spin!r}])"]
    )
    try:
        load._launcher = psutil.Process(launcher.pid)
        while not load._launcher.children():
            time.sleep(0.05)
        load.sample(0)
        (spinning,) = load._launcher.children()
        while spinning.cpu_times().user < 0.3:
            time.sleep(0.05)
        assert load._cpu_of_job() > 0
        assert spinning.pid in load._children
    finally:
        for each in (*psutil.Process(launcher.pid).children(), launcher):
            each.kill()
        launcher.wait()
    assert load._cpu_of_job() >= 0  # of this process alone, as the launcher has ended
    assert load._launcher == load._process


TRAIN = """
import os, sys, time
import torch, torch.distributed as dist
import tpunb as tp

def load(rank):
    if rank == 1:
        time.sleep(0.25)
    return torch.rand(8, 16)

def train(rank):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}-meets", rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(30):
        loss = model(load(rank)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()

rank = int(os.environ["RANK"])
with tp.capture(f"{sys.argv[1]}/rank{rank}", schedule=tp.Schedule.ticks()):
    train(rank)
"""


@pytest.mark.live
def test_two_ranks_name_the_slow_one(tmp_path):
    pytest.importorskip("torch")
    program = tmp_path / "ddp.py"
    program.write_text(TRAIN)
    command = [*warm_python(TORCH), str(program), str(tmp_path / "job")]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2"}
    processes = [
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**variables, "RANK": str(rank)})
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    steps = tp.steps(tmp_path / "job")
    assert steps.frame.group_by("host").len()["len"].to_list() == [30, 30]
    assert steps.frame["peers_ps"].count() == 60
    found = tp.hosts(steps)
    row = found.frame.row(0, named=True)
    assert row["host"].endswith("rank1")
    assert row["named"]
    assert "ddp.py:8 in load ← time.sleep" in row["place"]
    content = tp.report(tmp_path / "job").content
    assert row["host"] in content["verdict"]["sentence"].partition(". ")[0]
    assert content["run"]["steps"] == 30
    assert PEERS in [account["account"] for account in content["accounts"]]
