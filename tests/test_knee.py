import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpunb.cluster.base import knee


def test_finds_the_elbow():
    assert knee([1, 2, 3, 4, 5, 6], [100, 50, 10, 9, 8, 7]) == 3


def test_finds_the_knee_of_a_rising_curve():
    assert knee(range(10), [0, 0, 0, 0, 0, 0, 0, 1, 3, 9], direction="increasing") in (6, 7, 8)


def test_an_int_that_json_knows():
    found = knee([1, 2, 3, 4, 5, 6], [100, 50, 10, 9, 8, 7])
    assert type(found) is int
    assert json.dumps(found) == "3"


def test_a_knee_at_0_is_a_knee():
    found = knee([-1, 0, 1, 2, 3, 4], [100, 10, 9, 8, 7, 6])
    assert found == 0
    assert found is not None


@pytest.mark.parametrize(
    "y",
    [
        [],
        [1],
        [2, 1],
        [3, 1, 0],
        [5, 5, 5, 5, 5],
        [5, 4, 3, 2, 1],
        [0.5, 0.4, 0.3, 0.2, 0.1, 0.0],
        [5, 4, float("nan"), 2, 1],
        [float("inf"), 4, 3, 2, 1],
        [100, 99, 96, 91, 84, 75, 64, 51],  # falls ever faster
        [1, 1, 1, 1, 1, 0],
    ],
)
@pytest.mark.filterwarnings("error", "ignore::pytest.PytestUnraisableExceptionWarning")  # of what other tests left
def test_no_knee_is_none_without_a_warning(y):
    assert knee(range(len(y)), y) is None


@pytest.mark.parametrize("direction", ["decreasing", "increasing"])
def test_a_curve_that_bends_the_other_way_has_no_knee(direction):
    squares = [x * x for x in range(8)]
    hollow = squares if direction == "increasing" else squares[::-1]
    round_ = [-y for y in (squares if direction == "decreasing" else squares[::-1])]
    assert knee(range(8), round_, direction=direction) is None
    assert knee(range(8), hollow, direction=direction) is not None


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=12))
def test_a_knee_is_an_x_or_none(y):
    x = [3 * i - 1 for i in range(len(y))]
    assert knee(x, y) in {None, *x}


def test_lengths_must_agree():
    with pytest.raises(ValueError, match=r"as long as x, 2\. Got 3"):
        knee([1, 2], [1, 2, 3])
