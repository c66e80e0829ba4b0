"""Ids of hand-overs and of launches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpunb.io.event_ids import MULTIPLIER, flow_id, run_launch

WORD = st.integers(-(2**63), 2**64 - 1)


def test_ids_by_hand():
    assert flow_id(0, 0) == MULTIPLIER
    assert flow_id(1, 5) == (2 * MULTIPLIER + 5) % 2**64
    assert run_launch(0, 3) == 4
    assert run_launch(2, 3) == (2 * MULTIPLIER + 4) % 2**64


@pytest.mark.parametrize("make", [flow_id, run_launch])
@given(one=WORD, other=st.integers(0, 100))
def test_a_signed_number_is_its_unsigned_self(make, one, other):
    for first, second in ((one, other), (other, one)):
        assert make(first, second) == make(first % 2**64, second) == make(first, second % 2**64)
        assert 0 <= make(first, second) < 2**64


@pytest.mark.parametrize("make", [flow_id, run_launch])
def test_small_numbers_do_not_meet(make):
    assert len({make(one, other) for one in range(300) for other in range(300)}) == 300 * 300
