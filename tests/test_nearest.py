"""Steps of checkpoints, and the nearest to a phase."""

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpunb.frames import Steps
from tpunb.frames.nearest import checkpoint_steps, checkpoint_times, nearest_checkpoint
from tpunb.frames.steps import trained
from tpunb.testing import toy_steps


def saved(step, **more):
    return SimpleNamespace(step=step, **more)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (None, {}),
        ([], {}),
        ([20, 10], {"step 10": 10, "step 20": 20}),
        (range(0, 4, 2), {"step 0": 0, "step 2": 2}),
        (np.array([3]), {"step 3": 3}),
        (pl.Series([3]), {"step 3": 3}),
        ({"b": 2, "a": 1}, {"a": 1, "b": 2}),
        ([saved(2, path="ckpt/2"), saved(1, name="one"), saved(3)], {"one": 1, "ckpt/2": 2, "step 3": 3}),
        ([saved(2), saved(None, path="ckpt/of-which-nothing-is-known")], {"step 2": 2}),
        (iter([1]), {"step 1": 1}),
    ],
)
def test_checkpoint_steps_are_sorted_by_step(given, found):
    assert checkpoint_steps(given) == found
    assert [*checkpoint_steps(found)] == [*found]
    assert {type(step) for step in checkpoint_steps(found).values()} <= {int}


@pytest.mark.parametrize("wrong", [3, "ckpt", b"x", [1.5], ["a"], [True], {"a": None}, [None]], ids=str)
def test_other_objects_are_not_checkpoints(wrong):
    with pytest.raises(TypeError, match="The checkpoints parameter of explore must be steps, or objects with a step"):
        checkpoint_steps(wrong)


def test_checkpoint_time_is_the_end_of_its_step_on_the_last_host():
    one, two = toy_steps("aab", host="h1"), toy_steps("abb", host="h2")
    steps = Steps(pl.concat([one.frame, two.frame]), pl.concat([one.ops, two.ops]))
    assert checkpoint_times(steps, {"x": 0, "y": 1, "other run": 99}) == {"x": 0.001, "y": 0.003}
    assert checkpoint_times(steps, {}) == {}


def test_checkpoints_count_training_steps():
    frame = toy_steps("abba").frame.with_columns(kind=pl.Series(["train", "eval", None, "train"]))
    other = toy_steps("ab", host="h2").frame.with_columns(kind=pl.Series(["eval", "train"]))
    steps = Steps(pl.concat([frame, other]), toy_steps("a").ops)
    found = steps.frame.with_columns(trained()).sort("host", "step")["trained"].to_list()
    assert found == [0, 0, *[0, 1, 1, 1]]
    assert toy_steps("aab").frame.with_columns(kind=pl.lit("eval")).select(trained()).to_series().to_list() == [0, 1, 2]
    assert checkpoint_times(Steps(frame, steps.ops), {"after an epoch": 1}) == {
        "after an epoch": checkpoint_times(toy_steps("abba"), {"x": 3})["x"]
    }


def test_nearest_prefers_the_smaller_distance_then_the_earlier_step():
    assert nearest_checkpoint([10, 11, 12], {"a": 2, "b": 14, "c": 30}) == "b"
    assert nearest_checkpoint([10], {"late": 12, "early": 8}) == "early"
    assert nearest_checkpoint([10, 20], {"late": 19, "early": 11}) == "early"
    assert nearest_checkpoint([10], {"in it": 10, "a": 9}) == "in it"
    assert nearest_checkpoint([10], {}) is None
    assert nearest_checkpoint([], {"a": 1}) is None


@given(st.lists(st.integers(0, 50), min_size=1), st.lists(st.integers(0, 50), min_size=1, unique=True))
def test_no_other_checkpoint_is_nearer(steps, checkpoints):
    saved = checkpoint_steps(checkpoints)
    found = saved[nearest_checkpoint(steps, saved)]
    far = {at: min(abs(at - step) for step in steps) for at in checkpoints}
    assert found == min(at for at in checkpoints if far[at] == min(far.values()))
