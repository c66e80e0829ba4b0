"""What ran in each step, as a sparse matrix: the same whatever the order of the rows it comes from."""

import gc
import weakref
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from tpunb import schema
from tpunb.cluster.features import space
from tpunb.frames import Steps
from tpunb.frames.op_matrix import op_matrix
from tpunb.testing import toy_steps


def test_the_matrix_has_one_row_a_step_and_one_column_a_side_and_op():
    steps = toy_steps("ab")
    matrix = op_matrix(steps)
    assert matrix.values("count").toarray().tolist() == [[2, 0, 1, 2, 3, 0, 0, 0], [0, 2, 0, 0, 0, 1, 2, 3]]
    assert matrix.sides.tolist() == [0, 0, 1, 1, 1, 1, 1, 1]


def test_a_host_op_and_a_device_op_of_one_name_are_two_columns():
    steps = toy_steps("a")
    ops = pl.concat([steps.ops, steps.ops.with_columns(side=pl.lit("host", dtype=schema.SIDE))]).filter(
        pl.col("op") == "a0"
    )
    assert op_matrix(Steps(steps.frame, ops)).values("count").toarray().tolist() == [[1, 1]]


def test_an_op_of_no_time_is_present():
    steps = toy_steps("a")
    still = Steps(steps.frame, steps.ops.with_columns(self_ps=pl.lit(0), count=pl.lit(0)))
    assert op_matrix(still).presence().toarray().tolist() == [[1, 1, 1, 1]]


@examples(33)
@given(st.randoms(use_true_random=False), st.text("abc", min_size=1, max_size=6))
def test_the_order_of_rows_does_not_matter(random, pattern):
    steps = toy_steps(pattern)
    rows = list(range(steps.ops.height))
    random.shuffle(rows)
    one, other = op_matrix(steps), op_matrix(Steps(steps.frame, steps.ops[rows]))
    assert one.ops.equals(other.ops)
    for column in ("count", "total_ps", "self_ps"):
        assert one.values(column).toarray().tolist() == other.values(column).toarray().tolist()


def test_two_rows_of_an_op_in_a_step_add_up():
    steps = toy_steps("ab")
    twice = op_matrix(Steps(steps.frame, pl.concat([steps.ops, steps.ops])))
    assert twice.values("count").toarray().tolist() == (2 * op_matrix(steps).values("count").toarray()).tolist()


def test_ops_of_steps_that_are_not_there_are_left_out():
    steps = toy_steps("ab")
    first = op_matrix(Steps(steps.frame.head(1), steps.ops))
    assert first.values("count").toarray().tolist() == [[2, 0, 1, 2, 3, 0, 0, 0]]


def test_null_and_negative_values_are_0_at_any_scale():
    steps = toy_steps("a")
    own = pl.Series("self_ps", [None, -5, 3_000_000, 1_000_000])
    matrix = op_matrix(Steps(steps.frame, steps.ops.with_columns(own)))
    assert sorted(matrix.values("self_ps", scale=1e-6).data.tolist()) == [0, 0, 1, 3]


def test_no_steps_and_no_ops():
    assert op_matrix(toy_steps("")).shape == (0, 0)
    assert op_matrix(Steps(toy_steps("aa").frame, pl.DataFrame(schema=schema.OPS))).shape == (2, 0)


def test_it_is_made_once_for_as_long_as_its_steps_live():
    steps = toy_steps("ab")
    assert op_matrix(steps) is op_matrix(steps)
    assert np.shares_memory(op_matrix(steps).presence().indices, op_matrix(steps).values("count").indices)


def test_steps_that_nobody_holds_are_forgotten():
    steps = toy_steps("ab")
    op_matrix(steps)
    space(steps)
    gone = weakref.ref(steps)
    del steps
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("shift", [0, 7, -3, 10**12])
def test_operations_are_those_of_their_steps_whatever_numbers_these_have(shift):
    steps = toy_steps("abca")
    expected = op_matrix(steps).values("count").toarray()
    moved = pl.col("step") + shift
    shifted = replace(steps, frame=steps.frame.with_columns(moved), ops=steps.ops.with_columns(moved))
    assert (op_matrix(shifted).values("count").toarray() == expected).all()
    without = replace(shifted, frame=shifted.frame[1:3])
    assert (op_matrix(without).values("count").toarray() == expected[1:3]).all()
