"""What-if replay of pipelines: simulated jobs of known truth, and published answers."""

import os
from pathlib import Path

import polars as pl
import pytest
from real_pods import SIMULATED, published
from simulate.pipeline import Pipeline

import tpunb as tp
from tpunb.analysis.pipeline import replay
from tpunb.errors import BadProfile, TpunbError

SLOW = Pipeline(worker={(1, 2): 1.6})


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pipelines")

    def load(table):
        table.write_parquet(folder / "job.parquet")
        return tp.steps(tp.load(folder / "job.parquet"))

    return load


@pytest.fixture(scope="module")
def slow(load):
    return tp.hosts(load(SLOW.table()))


def own_times(steps):
    job = replay(steps.pipeline)
    return job, job.step_times([job.table["active_ps"].to_numpy()])[:, 0] / 1e12


@pytest.mark.parametrize("stages", [1, 2, 5])
@pytest.mark.parametrize("microbatches", [1, 3, 8])
def test_the_replay_of_measured_times_takes_as_long_as_the_simulation(load, stages, microbatches):
    made = Pipeline(stages=stages, microbatches=microbatches, steps=3, worker={(0, 1): 1.3}, jitter=0.1)
    _, times = own_times(load(made.table()))
    assert times.mean() == pytest.approx(made.step_s(), rel=1e-9)


def test_the_slow_worker_is_named_with_what_its_replacement_gains(slow):
    row = slow.frame.row(0, named=True)
    assert slow.frame["named"].to_list() == [True] + 11 * [False]
    assert (row["host"], row["cause"], row["op"]) == ("rank5 (stage 1, dp 2)", "compute", "backward-compute")
    assert row["recurrence"] == "every step"
    assert slow.cause == "worker"
    truth = SLOW.step_s() - Pipeline().step_s()
    gain = slow.what_if.filter(part="cause", name="worker").row(0, named=True)
    assert gain["gain_ps"] / 1e12 == pytest.approx(truth, rel=0.1)  # typical times include the slow worker
    assert gain["low_ps"] < gain["gain_ps"] < gain["high_ps"]
    assert row["costs_ps"] == pytest.approx(12 * gain["gain_ps"], rel=1e-6)
    assert slow.slowdown == pytest.approx(SLOW.step_s() / Pipeline().step_s(), rel=0.06)
    assert "replace rank5 (stage 1, dp 2) to gain" in str(slow)


@pytest.mark.parametrize(("cause", "job"), [(cause, job) for cause, jobs in SIMULATED.items() for job in jobs])
def test_the_cause_is_named(load, cause, job):
    found = tp.hosts(load(job.table()))
    assert found.cause == cause
    assert found.frame["named"].any() == (cause == "worker")
    assert found.by == "replay"


def test_an_uneven_stage_is_named_in_words_and_the_sequence_too(load):
    uneven = tp.hosts(load(Pipeline(stage={3: 1.8}).table()))
    assert ": uneven stages, of which stage 3 is the slowest; even work would gain" in str(uneven)
    assert ": uneven work by sequence; even work would gain" in str(tp.hosts(load(Pipeline(sequence=0.5).table())))


def test_parts_add_up_where_they_must(slow):
    parts = {(part, name): row for part, name, *row in slow.what_if.rows()}
    assert parts["job", "job"][4] == 1.0
    assert parts["operation", "optimizer"][0] == pytest.approx(1, abs=1e-6)
    both = [parts["operation", f"{name}-compute"][0] for name in ("forward", "backward")]
    assert all(1.05 < slowdown < slow.slowdown for slowdown in both)
    least = min(parts["stage", "1"][0], parts["data-parallel rank", "2"][0])
    assert parts["worker", "rank5 (stage 1, dp 2)"][0] == pytest.approx(least, rel=0.02)


def test_the_chain_ends_each_step_and_lasts_as_long(slow):
    lengths = slow.critical.group_by("step").agg(pl.col("dur_ps").sum() / 1e12)["dur_ps"]
    assert lengths.mean() == pytest.approx(SLOW.step_s(), rel=1e-9)
    assert slow.critical.filter(step=0)["segment"].to_list() == [*range(1, len(slow.critical.filter(step=0)) + 1)]
    last = slow.critical.group_by("step", maintain_order=True).last()
    assert last["op"].cast(str).unique().to_list() == ["optimizer"]
    compute = slow.critical.filter(pl.col("op").cast(str).str.ends_with("compute"))
    assert (compute["host"] == "rank5 (stage 1, dp 2)").mean() > 0.6


def test_a_clock_that_is_a_second_late_changes_nothing_but_its_skew(load, slow):
    late = SLOW.table().with_columns(pl.col("start") + pl.when(pl.col("rank") == 4).then(1.0).otherwise(0.0))
    found = tp.hosts(load(late))
    assert found.slowdown == pytest.approx(slow.slowdown, rel=1e-4)
    assert (found.cause, found.frame["host"][0]) == ("worker", "rank5 (stage 1, dp 2)")
    skews = dict(found.frame.select("host", pl.col("skew_ps") / 1e12).rows())
    assert skews.pop("rank4 (stage 1, dp 1)") == pytest.approx(1, abs=1e-4)
    assert {*skews.values()} == {0}
    assert "; clocks differ by up to 1.0 s, which is corrected" in str(found)


@pytest.mark.parametrize("missing", [0, 4, 11])
def test_a_missing_rank_counts_as_typical(load, slow, missing):
    found = tp.hosts(load(SLOW.table().filter(pl.col("rank") != missing)))
    assert found.slowdown == pytest.approx(slow.slowdown, rel=0.005)
    assert (found.cause, found.frame["host"][0]) == ("worker", "rank5 (stage 1, dp 2)")
    assert f"1 lost: stage {missing // 3}, dp {missing % 3}" in str(found)
    without = tp.hosts(load(SLOW.table().filter(pl.col("rank") != 5)))
    assert without.cause == "none"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (pl.col("stage") != 1, "no rank of stage 1 has operations"),
        (pl.col("stage") != 3, "no rank of stage 3 has operations"),
        (pl.col("stage") != 0, "no rank of stage 0 has operations"),
        (pl.col("optype") != "backward-send", "no rank has operations of type backward-send"),
        (None, "stages have several model chunks, whose order is not replayed"),
    ],
)
def test_no_host_is_judged_by_a_job_that_cannot_be_replayed(load, change, reason):
    table = SLOW.table()
    table = table.with_columns(chunk=pl.col("step") % 2) if change is None else table.filter(change)
    found = tp.hosts(load(table))
    assert found.slowdown is found.cause is None
    assert found.frame["costs_ps"].is_null().all()
    assert str(found) == f"Hosts({table['rank'].n_unique()} hosts, none is judged; {reason})"
    with pytest.raises(TpunbError, match=reason):
        tp.charts.hosts(found)


def test_one_step_has_no_interval(load):
    assert "interval" not in str(tp.hosts(load(Pipeline(worker={(1, 2): 1.6}, steps=1).table())))


def test_one_worker_per_stage_is_a_stage_and_equally_slow_workers_are_named_together(load):
    assert tp.hosts(load(Pipeline(ranks=1, worker={(1, 0): 2.0}).table())).cause == "stage"
    two = tp.hosts(load(Pipeline(ranks=4, worker={(1, 2): 1.6, (2, 0): 1.6}).table()))
    assert {*two.frame.filter("named")["host"]} == {"rank6 (stage 1, dp 2)", "rank8 (stage 2, dp 0)"}


def test_of_many_workers_the_slowest_are_replayed(load):
    found = tp.hosts(load(Pipeline(ranks=9, steps=2, microbatches=4, worker={(3, 7): 1.8}).table()))
    assert found.frame.height == 36
    assert found.frame["host"][0] == "rank34 (stage 3, dp 7)"
    assert found.frame["costs_ps"].is_null().to_list() == [False] * 16 + [True] * 20
    assert found.what_if.filter(part="worker").height == 16
    assert found.cause == "worker"


def test_a_job_and_its_steps_and_phases_have_the_same_hosts(load, slow):
    phases = tp.phases(load(SLOW.table()))
    assert tp.hosts(phases).what_if.equals(slow.what_if)


def test_operations_that_wait_in_a_circle_are_refused(load):
    table = Pipeline(stages=2, ranks=1, microbatches=2, steps=1).table()
    early = (pl.col("optype") == "backward-compute") & (pl.col("rank") == 0)
    backwards = pl.when(early).then(0.0).otherwise("start")
    with pytest.raises(BadProfile, match="operations of a step wait for each other"):
        tp.hosts(load(table.with_columns(start=backwards)))


@pytest.mark.parametrize(("job", "cause", "worker"), [("AR", "worker", "rank0 (stage 0, dp 0)"), ("ST", "stage", None)])
@pytest.mark.filterwarnings("ignore:times are relative")
def test_published_jobs_have_their_published_answers(job, cause, worker):
    if not os.environ.get("TPUNB_DATA"):
        pytest.skip("TPUNB_DATA is unset: real captures are not part of the project")
    folder = Path(os.environ["TPUNB_DATA"]) / "answers" / "stragglers"
    found = tp.hosts(folder / f"trace-{job}.parquet")
    errors = {which: [] for which in ("slowdown", "by_type")}
    for which, ours, theirs in published(folder, job, found):
        errors[which].append(abs(ours / theirs - 1))
    assert max(errors["slowdown"]) < 1e-5
    parts = found.what_if.filter(~pl.col("part").is_in(["job", "cause"]))
    assert len(errors["by_type"]) == len(parts) + 2  # and the times without the slowest worker or the last stage
    assert sorted(errors["by_type"])[len(errors["by_type"]) // 2] < 1e-6
    assert max(errors["by_type"]) < 0.01  # of workers that alone slow the job less than their stage and rank do
    assert found.cause == cause
    assert found.frame.filter("named")["host"].to_list() == [worker] * (worker is not None)
