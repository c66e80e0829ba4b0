"""Trainings whose phases are known: what is said of them is so."""

import numpy as np
import polars as pl
import pytest
from simulate.synthetic_runs import KINDS, synthetic_run

from tpunb import schema
from tpunb.frames.op_matrix import op_matrix

EITHER = pytest.mark.parametrize("hard", [False, True])


def sets_of(run):
    """The operations of each step that is not corrupted, by what it is."""
    ran = op_matrix(run.steps)
    rows = [frozenset(ran.indices[ran.indptr[i] : ran.indptr[i + 1]].tolist()) for i in range(len(run.phase))]
    return {kind: {rows[i] for i in np.flatnonzero(run.phase == number)} for number, kind in enumerate(KINDS)}


@EITHER
@pytest.mark.parametrize("n", [100, 1000, 20_000])
def test_every_phase_occurs_and_one_step_in_a_hundred_is_corrupted(n, hard):
    run = synthetic_run(n, 60, hard=hard)
    assert len(run.phase) == len(run.steps) == n
    assert set(run.phase.tolist()) == {-1, *range(len(KINDS))}
    assert (run.phase < 0).mean() == pytest.approx(0.01, abs=0.003)
    assert (run.phase == KINDS.index("steady")).mean() > 0.6


def test_the_longest_run_has_the_counts_in_the_docstring():
    from simulate.synthetic_runs import _timetable

    phase = _timetable(112_590)
    found = dict(zip(KINDS, np.bincount(phase).tolist(), strict=True))
    assert found["summary"] == pytest.approx(112_590 / 100, rel=0.05)
    assert found["checkpoint"] == pytest.approx(112_590 / 1251 * 3, rel=0.3)
    assert found["evaluation"] == pytest.approx(112_590 / 5004 * 98, rel=0.05)


@EITHER
def test_a_phase_has_one_set_of_operations_and_stalls_that_of_steady_steps(hard):
    sets = sets_of(synthetic_run(2000, 120, hard=hard))
    assert {kind: len(own) for kind, own in sets.items()} == dict.fromkeys(KINDS, 1)
    only = {kind: next(iter(own)) for kind, own in sets.items()}
    assert only["input stall"] == only["steady"]
    assert only["steady"] < only["summary"]
    assert only["steady"] < only["checkpoint"]
    assert only["evaluation"] - only["steady"]
    assert len(set(only.values())) == 5


def test_corrupted_steps_lack_operations():
    run = synthetic_run(2000, 120)
    sizes = np.diff(op_matrix(run.steps).indptr)
    steady = sizes[run.phase == KINDS.index("steady")]
    assert steady.min() == steady.max()
    assert np.median(sizes[run.phase < 0]) < steady.max()


def test_a_stall_waits_for_its_input():
    run = synthetic_run(2000, 120)
    waits = (run.steps.frame["infeed_ps"] / run.steps.frame["dur_ps"]).to_numpy()
    assert waits[run.phase == KINDS.index("input stall")].min() > 0.3
    assert waits[run.phase == KINDS.index("steady")].max() < 0.3


def test_a_hard_run_varies_more():
    easy, hard = synthetic_run(2000, 120), synthetic_run(2000, 120, hard=True)

    def spread(run):
        steady = run.steps.frame.filter(pl.Series(run.phase == KINDS.index("steady")))["dur_ps"]
        return steady.std() / steady.mean()

    assert spread(hard) > 3 * spread(easy)


@EITHER
def test_a_seed_reproduces_the_run(hard):
    one, same, other = (synthetic_run(300, 60, seed=seed, hard=hard) for seed in (1, 1, 2))
    assert one.steps.frame.equals(same.steps.frame)
    assert one.steps.ops.equals(same.steps.ops)
    assert one.phase.tolist() == same.phase.tolist()
    assert not one.steps.frame.equals(other.steps.frame)


def test_frame_and_operations_agree():
    steps = synthetic_run(300, 60).steps
    assert steps.ops.schema == schema.OPS
    own = steps.ops.group_by("step").agg(pl.col("self_ps").sum()).sort("step")["self_ps"]
    assert own.to_list() == steps.frame["dur_ps"].to_list()
    assert (steps.frame["device_ps"] + steps.frame["idle_ps"]).to_list() == steps.frame["dur_ps"].to_list()


@pytest.mark.parametrize(("n", "ops"), [(99, 60), (100, 59)])
def test_too_small_a_run_is_rejected(n, ops):
    with pytest.raises(ValueError, match="must be at least 100 and 60"):
        synthetic_run(n, ops)
