"""Steps as points: shapes, what counts as near, and runs with hardly anything in them."""

import numpy as np
import polars as pl
import pytest
from simulate.synthetic_runs import synthetic_run

from tpunb import schema
from tpunb.cluster import DBSCAN
from tpunb.cluster.features import BLOCKS, space
from tpunb.cluster.limits import LIMITS
from tpunb.frames import Steps
from tpunb.testing import toy_steps

OPS = {name: dtype for name, dtype in schema.OPS.items() if name != "category"}

FEATURES = pytest.mark.parametrize("features", ["default", "paper", tuple(BLOCKS)])


def test_rows_follow_the_frame():
    one, two = toy_steps("ab", host="one"), toy_steps("ba", host="two")
    steps = Steps(pl.concat([two.frame, one.frame]), pl.concat([two.ops, one.ops]))
    points = space(steps).points
    assert points.shape[0] == 4
    assert points[0].tolist() == points[3].tolist()
    assert points[1].tolist() == points[2].tolist()
    assert points[0].tolist() != points[1].tolist()


@FEATURES
@pytest.mark.parametrize("pattern", ["", "a", "aaaa"])
def test_equal_steps_are_one_point(features, pattern):
    points = space(toy_steps(pattern), features).points
    assert points.shape[0] == len(pattern)
    assert points.shape[1] >= 1
    assert not points.any()


@FEATURES
def test_steps_without_ops(features):
    steps = toy_steps("aab")
    points = space(Steps(steps.frame, pl.DataFrame(schema=schema.OPS)), features).points
    assert points.shape[0] == 3
    assert np.isfinite(points).all()


def test_step_time_alone_separates_steps():
    steps = toy_steps("aab")
    points = space(Steps(steps.frame, pl.DataFrame(schema=schema.OPS))).points
    assert points[0] == points[1]
    assert points[0] != points[2]


@FEATURES
def test_null_and_negative_values_are_0(features):
    steps = toy_steps("aab")
    odd = steps.ops.with_columns(self_ps=pl.lit(None, pl.Int64), total_ps=pl.lit(-5))
    assert np.isfinite(space(Steps(steps.frame, odd), features).points).all()


@FEATURES
def test_the_same_twice_and_read_only(features):
    once, again = (space(toy_steps("abcabc"), features).points for _ in range(2))
    assert once.tolist() == again.tolist()
    assert not once.flags.writeable


@FEATURES
def test_at_most_a_hundred_components(features):
    random = np.random.default_rng(0)
    n, d = 150, 130
    frame = pl.DataFrame(
        {
            "host": ["h"] * n,
            "step": range(n),
            "kind": ["m"] * n,
            "start_ps": range(n),
            "dur_ps": [1] * n,
            "device_ps": [1] * n,
            "idle_ps": [0] * n,
            "traced": ["full"] * n,
        }
    )
    rows = [
        ("h", i, f"op{j}", "device", int(random.integers(9)), int(random.integers(10**9)), int(random.integers(10**9)))
        for i in range(n)
        for j in range(d)
        if random.random() < 0.5
    ]
    points = space(Steps(frame, pl.DataFrame(rows, schema=OPS, orient="row")), features).points
    assert 50 < points.shape[1] <= LIMITS.most_components


def test_thousands_of_ops_that_run_together_are_few_columns():
    base = toy_steps("aaabbb")
    many = pl.concat([base.ops.with_columns(op=pl.col("op").cast(pl.String) + f".{i}") for i in range(500)])
    points = space(Steps(base.frame, schema.check(many, schema.OPS, "ops"))).points
    assert np.unique(points, axis=0).shape[0] == 2


def test_points_are_columns_times_loadings():
    steps = toy_steps("aab")
    found = space(steps)
    assert found.columns.rows()[-1] == ("step_time", "host", "step time")
    assert found.loadings.shape == (found.columns.height, found.points.shape[1])
    log_times = np.log1p(steps.frame["dur_ps"].to_numpy() * 1e-6) - found.mean[-1]
    ran = found.columns["block"].to_list()
    assert ran.count("presence") == 2  # the ops of a, and those of b
    assert np.sign(found.points[:, 0]).tolist() == np.sign(log_times * found.loadings[-1, 0]).tolist()


@FEATURES
def test_the_same_steps_are_placed_where_they_lie(features):
    run = synthetic_run(300, 60)
    found = space(run.steps, features)
    again = Steps(run.steps.frame, run.steps.ops)
    assert found.place(again) == pytest.approx(found.points, abs=1e-5)


def test_later_steps_are_placed_by_known_operations():
    found = space(toy_steps("aabb"))
    later = found.place(toy_steps("bz"))
    assert later[0] == pytest.approx(found.points[2], abs=1e-5)
    assert np.isfinite(later).all()


def test_components_tell_ever_less_and_99_percent_together():
    found = space(synthetic_run(300, 60, hard=True).steps)
    assert (np.diff(found.explained) <= 0).all()
    assert 0.99 <= found.explained.sum() <= 1 + 1e-9


@pytest.mark.parametrize("wrong", ["best", (), [], ("presence", "colour"), (["presence"],), None, 3])
def test_wrong_features(wrong):
    with pytest.raises(ValueError, match="The features parameter of space must be one of"):
        space(toy_steps("ab"), wrong)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        (["presence"], r"\('presence',\)"),
        (["counts", "step_time"], r"\('counts', 'step_time'\)"),
        ("counts", r"\('counts',\)"),
    ],
)
def test_blocks_that_are_not_a_tuple_are_shown_as_one(wrong, right):
    with pytest.raises(ValueError, match=rf"The features parameter of DBSCAN must be a tuple: {right}\. Got"):
        DBSCAN(features=wrong)


def test_a_block_that_hardly_varies_stays_small():
    steps = toy_steps("a" * 10)
    jitter = [1_000_000_000 + 1_000_000 * (i % 2) for i in range(10)]  # a thousandth
    points = space(Steps(steps.frame.with_columns(dur_ps=pl.Series(jitter)), steps.ops)).points
    assert 0 < np.abs(points).max() < 0.01


def test_presence_counts_by_the_time_that_an_operation_takes_where_it_runs():
    steps = toy_steps("a" * 8)
    rare = [("toy", 0, "rare", "device", 1, 0, 500_000_000), ("toy", 1, "short", "device", 1, 0, 50_000_000)]
    rare += [("toy", 2, "cheap", "device", 1, 0, 500)]
    ops = pl.concat([steps.ops.drop("category"), pl.DataFrame(rare, schema=OPS, orient="row")])
    fold = space(Steps(steps.frame, schema.check(ops, schema.OPS, "ops"))).folds[0]
    weight = dict(zip(fold.ops["op"].cast(pl.String), fold.weight, strict=True))
    assert weight["rare"] == pytest.approx(weight["short"] * 10**0.25)
    assert weight["cheap"] == 0  # its absence from the other steps says nothing
    assert weight["rare"] > weight["a2"] * 0.9  # which runs in all steps, for half as long in each
