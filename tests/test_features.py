"""Steps as points: shapes, what counts as near, and runs with hardly anything in them."""

import numpy as np
import polars as pl
import pytest

from tpunb import schema
from tpunb.cluster.features import MOST_CELLS, MOST_COMPONENTS, cells, features, matrix, paper_features, presence
from tpunb.frames import Steps
from tpunb.testing import toy_steps

OPS = {name: dtype for name, dtype in schema.OPS.items() if name != "category"}

SPACES = pytest.mark.parametrize("space", [features, paper_features])


def test_the_matrix_has_one_row_a_step_and_one_column_a_side_and_op():
    steps = toy_steps("ab")
    counts, sides = matrix(steps, "count")
    assert counts.toarray().tolist() == [[2, 0, 1, 2, 3, 0, 0, 0], [0, 2, 0, 0, 0, 1, 2, 3]]
    assert sides.tolist() == [0, 0, 1, 1, 1, 1, 1, 1]


def test_a_host_op_and_a_device_op_of_one_name_are_two_columns():
    steps = toy_steps("a")
    ops = pl.concat([steps.ops, steps.ops.with_columns(side=pl.lit("host", dtype=schema.SIDE))]).filter(
        pl.col("op") == "a0"
    )
    assert matrix(Steps(steps.frame, ops), "count")[0].toarray().tolist() == [[1, 1]]


def test_an_op_of_no_time_is_present():
    steps = toy_steps("a")
    still = Steps(steps.frame, steps.ops.with_columns(self_ps=pl.lit(0), count=pl.lit(0)))
    assert presence(still).toarray().tolist() == [[1, 1, 1, 1]]


def test_rows_follow_the_frame():
    one, two = toy_steps("ab", host="one"), toy_steps("ba", host="two")
    steps = Steps(pl.concat([two.frame, one.frame]), pl.concat([two.ops, one.ops]))
    points = features(steps)
    assert points.shape[0] == 4
    assert points[0].tolist() == points[3].tolist()
    assert points[1].tolist() == points[2].tolist()
    assert points[0].tolist() != points[1].tolist()


@SPACES
@pytest.mark.parametrize("pattern", ["", "a", "aaaa"])
def test_steps_all_alike_lie_on_one_point(space, pattern):
    points = space(toy_steps(pattern))
    assert points.shape[0] == len(pattern)
    assert points.shape[1] >= 1
    assert not points.any()


@SPACES
def test_steps_without_ops(space):
    steps = toy_steps("aab")
    points = space(Steps(steps.frame, schema.empty(schema.OPS)))
    assert points.shape[0] == 3
    assert np.isfinite(points).all()


def test_the_step_time_alone_tells_steps_apart():
    steps = toy_steps("aab")
    points = features(Steps(steps.frame, schema.empty(schema.OPS)))
    assert points[0] == points[1]
    assert points[0] != points[2]


@SPACES
def test_unknown_and_negative_figures_count_as_nothing(space):
    steps = toy_steps("aab")
    odd = steps.ops.with_columns(self_ps=pl.lit(None, pl.Int64), total_ps=pl.lit(-5))
    assert np.isfinite(space(Steps(steps.frame, odd))).all()


@SPACES
def test_the_same_twice_and_read_only(space):
    once, again = space(toy_steps("abcabc")), space(toy_steps("abcabc"))
    assert once.tolist() == again.tolist()
    assert not once.flags.writeable


@SPACES
def test_at_most_a_hundred_components(space):
    random = np.random.default_rng(0)
    n, d = 150, 130
    frame = pl.DataFrame(
        {
            "host": ["h"] * n,
            "step": range(n),
            "mark": ["m"] * n,
            "start_ps": range(n),
            "dur_ps": [1] * n,
            "device_ps": [1] * n,
            "idle_ps": [0] * n,
            "seen": ["full"] * n,
        }
    )
    rows = [
        ("h", i, f"op{j}", "device", int(random.integers(9)), int(random.integers(10**9)), int(random.integers(10**9)))
        for i in range(n)
        for j in range(d)
        if random.random() < 0.5
    ]
    points = space(Steps(frame, pl.DataFrame(rows, schema=OPS, orient="row")))
    assert 50 < points.shape[1] <= MOST_COMPONENTS


def test_thousands_of_ops_that_run_together_are_few_columns():
    base = toy_steps("aaabbb")
    many = pl.concat([base.ops.with_columns(op=pl.col("op").cast(pl.String) + f".{i}") for i in range(500)])
    points = features(Steps(base.frame, schema.check(many, schema.OPS, "ops")))
    assert np.unique(points, axis=0).shape[0] == 2


# cells


def test_equal_rows_share_a_cell_in_order_of_first_row():
    merged = cells(np.array([[2.0], [1.0], [2.0], [0.0]]))
    assert merged.centres.tolist() == [[2], [1], [0]]
    assert merged.weights.tolist() == [2, 1, 1]
    assert merged.cell.tolist() == [0, 1, 0, 2]
    assert merged.side == 0


def test_minus_0_is_0():
    assert cells(np.array([[0.0], [-0.0]])).weights.tolist() == [2]


def test_many_points_share_a_bounded_number_of_cells():
    points = np.random.default_rng(0).normal(size=(3 * MOST_CELLS, 3))
    merged = cells(points)
    assert 100 < len(merged.weights) <= MOST_CELLS
    assert merged.weights.sum() == len(points)
    assert merged.side > 0
    assert (np.abs(points - merged.centres[merged.cell]) <= merged.side).all()
    assert merged.weights @ merged.centres == pytest.approx(points.sum(axis=0))
