"""Operations that a window did not record are unknown, not absent; operations that are really absent stay absent."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import tpunb as tp
from tpunb import schema
from tpunb.analysis.quality import distinguishing_ops
from tpunb.cluster.features import space
from tpunb.cluster.recorded import EVIDENCE, incidental
from tpunb.frames.op_matrix import op_matrix
from tpunb.testing import spelled_steps, synthetic_run
from tpunb.widgets import phase_view

STEP_MS = 10


def program(*sides, count=1):
    """Return steps of 10 ms, each from two mappings of op name to microseconds: on the device and on the host."""
    steps = spelled_steps(*sides)
    micros = pl.col("self_ps", "total_ps") * 1_000_000
    frame = steps.frame.with_columns(
        pl.col("start_ps") * STEP_MS * 100_000_000, dur_ps=pl.lit(STEP_MS * 1_000_000_000, pl.Int64)
    )
    return replace(steps, frame=frame, ops=steps.ops.with_columns(micros, count=pl.lit(count, pl.Int64)), name="toy")


def on_host(**micros):
    return {}, micros


def names_of(steps):
    found = op_matrix(steps).ops["op"].cast(pl.String)
    return {name for name, skipped in zip(found, incidental(steps), strict=True) if skipped}


FULL = on_host(MatMul=5000, Conv2DBackpropFilter=4000, Slice=3, Sqrt=2, RandomUniformInt=1)
BARE = on_host(MatMul=5000, Conv2DBackpropFilter=4000, Sqrt=2)
LONGER = on_host(MatMul=5000, Conv2DBackpropFilter=4000, Sqrt=2, Tanh=900)


def test_cheap_operations_that_a_window_lacks_are_incidental():
    steps = program(*[FULL] * 20, *[BARE] * 20, *[FULL] * 20)
    assert names_of(steps) == {"Slice", "RandomUniformInt"}
    assert not space(steps).points.any()  # every step is the same point
    assert len(tp.phases(steps)) == 1


def test_operations_of_every_step_are_not_incidental():
    assert names_of(program(*[FULL] * 3)) == set()


def test_an_operation_that_appears_with_its_time_is_a_phase():
    steps = program(*[BARE] * 20, *[LONGER] * 20)
    assert names_of(steps) == set()
    phases = tp.phases(steps)
    assert phases.labels.to_list() == [0] * 20 + [1] * 20
    assert "Tanh" in distinguishing_ops(phases)["op"].to_list()


def test_many_small_operations_that_come_and_go_together_are_a_phase():
    small = {f"Summary{number}": 100 for number in range(5)}  # of 10,000 us: 1 % each, 5 % together
    steps = program(*[BARE] * 20, *[({}, BARE[1] | small)] * 20)
    assert names_of(steps) == set()
    assert len(tp.phases(steps)) == 2


def test_as_much_time_in_events_that_a_profiler_may_skip_is_none():
    small = {f"Summary{number}": 100 for number in range(5)}
    steps = program(*[({}, {"MatMul": 5000})] * 20, *[({}, {"MatMul": 5000} | small)] * 20, count=50)
    assert names_of(steps) == {*small}
    assert len(tp.phases(steps)) == 1


def test_the_same_small_operations_at_random_are_noise():
    random = np.random.default_rng(0)
    small = [{f"Summary{number}": 100 for number in range(5) if random.random() < 0.5} for _ in range(200)]
    steps = program(*[({}, BARE[1] | each) for each in small])
    assert names_of(steps) == {f"Summary{number}" for number in range(5)}
    assert len(tp.phases(steps)) == 1


def test_a_whole_class_of_small_operations_is_a_difference():
    update = {"ResourceApplyAdam": 3, "AssignSubVariableOp": 2}
    steps = program(*[({}, BARE[1] | update), BARE] * 20)
    assert names_of(steps) == set()
    assert len(tp.phases(steps)) == 2


def test_a_part_of_a_class_is_none():
    update = {"ResourceApplyAdam": 3, "AssignSubVariableOp": 2}
    steps = program(*[({}, BARE[1] | update), ({}, BARE[1] | {"ResourceApplyAdam": 3})] * 20)
    assert names_of(steps) == {"AssignSubVariableOp"}


def test_what_an_input_pipeline_runs_ahead_of_the_steps_separates_nothing():
    piped = {"Iterator::Shuffle": 900, "PyFunc": 300}
    steps = program(*[({}, BARE[1] | piped)] * 10, *[({}, BARE[1] | {"PyFunc": 2000})] * 10, *[BARE] * 20)
    assert names_of(steps) == {*piped}
    assert not space(steps).points.any()
    assert len(tp.phases(steps)) == 1


@pytest.mark.parametrize("base_us", [5000, 500])  # a side of less than a tenth of a step counts as a tenth
def test_the_share_that_counts_is_of_the_time_of_a_side(base_us):
    def small(micros):
        return names_of(program(on_host(MatMul=base_us), on_host(MatMul=base_us, Tanh=micros)))

    least = EVIDENCE * max(base_us, STEP_MS * 100)
    assert small(least * 0.95) == {"Tanh"}
    assert small(least * 1.05) == set()


def test_steps_without_operations_have_no_incidental_ones():
    steps = program(BARE, BARE)
    assert incidental(replace(steps, ops=schema.empty(schema.OPS))).tolist() == []
    assert incidental(program()).tolist() == []


def test_operations_without_times_count_by_their_presence():
    steps = program(*[BARE] * 3, *[LONGER] * 3)
    unknown = pl.lit(None, dtype=pl.Int64)
    assert names_of(replace(steps, ops=steps.ops.with_columns(self_ps=unknown, total_ps=unknown))) == set()


def test_most_operations_of_a_synthetic_run_count():
    run = synthetic_run(1000, 60)
    ran_in_all = np.bincount(op_matrix(run.steps).indices) == 1000
    assert not incidental(run.steps)[ran_in_all].any()


def test_means_of_an_operation_that_was_skipped_are_over_the_steps_that_have_it():
    slow = {"MatMul": 8000, "Slice": 90}
    some = [({}, {"MatMul": 5000} | ({"Slice": 3} if number % 2 else {})) for number in range(20)]
    phases = tp.phases(program(*some, *[({}, slow)] * 20), lambda _: [0] * 20 + [1] * 20)
    row = distinguishing_ops(phases, n=9).filter(pl.col("op") == "Slice", pl.col("phase") == 0).row(0, named=True)
    assert (row["inside_ps"], row["outside_ps"]) == (3_000_000, 90_000_000)
    assert (row["inside_ran"], row["outside_ran"]) == (None, 1.0)


def test_an_operation_that_no_step_of_a_phase_is_known_to_have_does_not_distinguish_it():
    slow = {"MatMul": 8000, "Slice": 90}
    phases = tp.phases(program(*[BARE] * 20, *[({}, slow)] * 20), lambda _: [0] * 20 + [1] * 20)
    rows = distinguishing_ops(phases, n=9).filter(pl.col("op") == "Slice", pl.col("phase") == 0)
    assert rows["inside_ps"].to_list() == [None] * rows.height
    assert [line for (line,) in phase_view.distinguishing(phases, 0)["rows"] if "Slice" in line] == []


def changed(a, b):
    ops = tp.compare(a, b).ops
    return {row["op"]: row for row in ops.iter_rows(named=True)}


def test_two_runs_of_one_program_gain_and_lose_nothing():
    rows = changed(program(*[FULL] * 20), program(*[BARE] * 20))
    assert {op: row["state"] for op, row in rows.items()} == {
        **dict.fromkeys(["MatMul", "Conv2DBackpropFilter", "Sqrt"], "both"),
        **dict.fromkeys(["Slice", "RandomUniformInt"], "unrecorded"),
    }
    assert rows["Slice"]["self_a_ps"] == 3_000_000
    assert [rows["Slice"][name] for name in ("self_b_ps", "change_ps", "low_ps", "high_ps")] == [None] * 4


@pytest.mark.parametrize(("first", "second", "state"), [(BARE, LONGER, "gained"), (LONGER, BARE, "lost")])
def test_a_layer_that_is_added_or_removed_is_named(first, second, state):
    rows = changed(program(*[first] * 20), program(*[second] * 20))
    assert {op for op, row in rows.items() if row["state"] != "both"} == {"Tanh"}
    assert rows["Tanh"]["state"] == state
    assert abs(rows["Tanh"]["change_ps"]) == 900_000_000


@pytest.mark.parametrize(("count", "state"), [(1, "gained"), (50, "unrecorded")])
def test_a_small_operation_is_gained_if_its_events_are_too_long_to_be_skipped(count, state):
    more = ({}, BARE[1] | {"Tanh": 100})
    rows = changed(program(*[BARE] * 20, count=count), program(*[more] * 20, count=count))
    assert rows["Tanh"]["state"] == state


def test_an_operation_of_few_steps_is_not_gained():
    rows = changed(program(*[BARE] * 20), program(*[LONGER] * 2, *[BARE] * 18))
    assert {row["state"] for row in rows.values()} <= {"both", "unrecorded"}


def test_phases_match_whatever_cheap_operations_each_run_recorded():
    small = {f"Cheap{number}": 5 for number in range(30)}
    comparison = tp.compare(program(*[({}, BARE[1] | small)] * 20), program(*[BARE] * 20))
    assert comparison.frame["similarity"].to_list() == pytest.approx([1.0], abs=0.05)
    assert comparison.unmatched.is_empty()


def run_on_device(launch_us, device_us=9000):
    return {"fusion": device_us}, {"CommonPjRtLoadedExecutable::ExecuteHelperOnSingleDevice": launch_us, "prepare": 50}


def test_the_wait_of_a_launch_for_earlier_work_makes_no_phase():
    steps = program(*[run_on_device(12)] * 30, *[run_on_device(1900)] * 30)
    assert set(tp.phases(steps).labels) == {0}
    # the same time of another operation does
    other = program(*[run_on_device(12)] * 30, *[({"fusion": 9000}, {"augment": 1900, "prepare": 50})] * 30)
    assert len(tp.phases(other)) == 2


def test_which_function_waits_for_the_input_makes_no_phase():
    """Keras asks for the next element by one function or the other, with the same program."""
    asks = [on_host(MatMul=5000, **{wait: 900}) for wait in ("IteratorGetNext", "IteratorGetNextAsOptional")]
    steps = program(*[asks[0]] * 20, *[asks[1]] * 20)
    assert names_of(steps) == {"IteratorGetNext", "IteratorGetNextAsOptional"}
    assert set(tp.phases(steps).labels) == {0}


def test_a_few_steps_at_another_pace_are_outliers_and_as_many_with_other_operations_a_phase():
    usual, slow = on_host(MatMul=5000, Relu=300), on_host(MatMul=15000, Relu=900)
    steps = program(*[usual] * 50, *[slow] * 3, *[usual] * 7)
    assert tp.phases(steps).labels.to_list() == [0] * 50 + [-1] * 3 + [0] * 7
    assert set(tp.phases(program(*[usual] * 30, *[slow] * 30)).labels) == {0, 1}
    other = on_host(MatMul=15000, Relu=900, SaveV2=4000)
    steps = program(*[usual] * 50, *[other] * 3, *[usual] * 7)
    assert tp.phases(steps).labels.to_list() == [0] * 50 + [1] * 3 + [0] * 7


def test_one_step_of_another_kind_among_many_is_an_outlier():
    steps = program(*[on_host(MatMul=5000)] * 40)
    kinds = pl.Series(["train"] * 20 + ["eval"] + ["train"] * 19)
    labels = tp.phases(replace(steps, frame=steps.frame.with_columns(kind=kinds))).labels.to_list()
    assert labels == [0] * 20 + [-1] + [0] * 19
