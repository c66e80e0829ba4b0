"""The paper's equation 1, in bulk and online."""

from itertools import pairwise

import polars as pl
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from tpunb.cluster import OLS, OnlineOLS
from tpunb.cluster.ols import similarities
from tpunb.frames import Steps
from tpunb.testing import spelled_steps, toy_steps

SETS = st.lists(st.frozensets(st.sampled_from("abcdefgh")), min_size=1, max_size=25)
THRESHOLD = st.sampled_from([0.0, 0.25, 1 / 3, 0.5, 0.7, 0.75, 1.0]) | st.floats(0, 1)


def steps_of(sets, host="h"):
    """One step a set of operations."""
    return spelled_steps(*((dict.fromkeys(ops, 1), {}) for ops in sets), host=host)


def equation_1(sets, threshold):
    labels = [0]
    for before, now in pairwise(sets):
        smaller = min(len(before), len(now))
        similar = len(before & now) / smaller if smaller else 1.0
        labels.append(labels[-1] + (similar < threshold))
    return labels


def test_a_phase_is_a_run_of_like_steps():
    assert OLS()(toy_steps("aaabbb")) == [0, 0, 0, 1, 1, 1]


def test_phases_never_come_back():
    assert OLS()(toy_steps("abab")) == [0, 1, 2, 3]


def test_a_subset_is_as_similar_as_can_be():
    assert OLS(1.0)(steps_of([{"a", "b", "c"}, {"a", "b"}, {"a", "b", "c", "d"}])) == [0, 0, 0]


def test_similarity_is_never_more_than_1():
    similar, _ = similarities(steps_of([{"a", "b"}, {"a", "b", "c"}, {"a", "b"}, {"x"}, set(), {"x", "y"}]))
    assert similar.tolist() == [1, 1, 1, 0, 1, 1]


def test_similarities_are_computed_once_and_read_only():
    steps = toy_steps("aab")
    assert similarities(steps) is similarities(steps)
    with pytest.raises(ValueError, match="read-only"):
        similarities(steps)[0][0] = 0.0


def test_a_step_without_ops_is_similar_to_any():
    assert OLS(1.0)(steps_of([{"a"}, set(), {"b"}])) == [0, 0, 0]


def test_the_threshold_itself_is_similar_enough():
    ten = set("abcdefghij")
    seven = set("abcdefgxyz")
    assert OLS(0.7)(steps_of([ten, seven])) == [0, 0]
    assert OLS(0.71)(steps_of([ten, seven])) == [0, 1]


def test_threshold_0_is_one_phase():
    assert OLS(0)(toy_steps("abab")) == [0, 0, 0, 0]


def test_a_host_op_is_not_a_device_op_of_its_name():
    steps = steps_of([{"a"}, {"a"}])
    sides = pl.when(pl.col("step") == 0).then(pl.lit("host")).otherwise(pl.lit("device"))
    assert OLS()(Steps(steps.frame, steps.ops.with_columns(side=sides))) == [0, 1]


def test_each_host_is_scanned_by_itself():
    one, two = steps_of([{"a"}, {"b"}], "one"), steps_of([{"b"}, {"b"}, {"c"}], "two")
    both = Steps(pl.concat([two.frame, one.frame]), pl.concat([one.ops, two.ops]))
    labels = OLS()(both)
    assert labels == [0, 1, 2, 2, 3]
    at = labels.sweeps["threshold"].filter(pl.col("threshold").is_in([0.0, 1.0]))
    assert at["phases"].to_list() == [2, 4]


@examples(50)
@given(SETS, THRESHOLD)
def test_bulk_is_equation_1_and_online_is_bulk(sets, threshold):
    expected = equation_1(sets, threshold)
    assert OLS(threshold)(steps_of(sets)) == expected
    scan = OnlineOLS(threshold)
    assert [scan.feed(ops) for ops in sets] == expected


@examples(50)
@given(SETS, THRESHOLD)
def test_the_sweep_counts_the_phases_of_every_threshold(sets, threshold):
    sweep = OLS(threshold)(steps_of(sets)).sweeps["threshold"]
    assert sweep.schema == {"threshold": pl.Float64, "phases": pl.Int64, "chosen": pl.Boolean}
    assert sweep.filter("chosen")["threshold"].to_list() == [threshold]
    assert sweep["phases"].to_list() == [equation_1(sets, value)[-1] + 1 for value in sweep["threshold"]]


def test_the_sweep_goes_from_0_to_1_by_a_thousandth():
    sweep = OLS()(toy_steps("ab")).sweeps["threshold"]
    assert sweep["threshold"].to_list() == [i / 1000 for i in range(1001)]
    assert sweep.filter(pl.col("threshold") == 0.7)["chosen"].to_list() == [True]


@examples(20)
@given(st.lists(st.frozensets(st.integers(0, 200), min_size=60), min_size=2, max_size=6))
def test_long_steps_are_counted_as_short_ones(sets):
    similar, starts = similarities(steps_of([{f"op{op}" for op in ops} for ops in sets]))
    assert starts.tolist() == [True] + [False] * (len(sets) - 1)
    assert similar[1:].tolist() == [len(one & two) / min(len(one), len(two)) for one, two in pairwise(sets)]


@pytest.mark.parametrize("threshold", [1.3, -0.1, float("nan"), "0.7", None, True])
@pytest.mark.parametrize("method", [OLS, OnlineOLS])
def test_a_wrong_threshold(method, threshold):
    with pytest.raises(ValueError, match=rf"The threshold parameter of {method.__name__} must be in \[0, 1\]\. Got"):
        method(threshold)


def test_repr():
    assert repr(OLS()) == "OLS()"
    assert repr(OLS(0.9)) == "OLS(threshold=0.9)"
