"""Ids of hand-overs and of launches."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from link_ids import flow_id, run_launch

from tpunb.io import event_ids
from tpunb.io.event_ids import MULTIPLIER

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


@pytest.mark.parametrize("make", [flow_id, run_launch])
@given(pairs=st.lists(st.tuples(WORD, WORD), min_size=1))
def test_columns_of_either_library_wrap_as_whole_numbers(make, pairs):
    columns = [np.array([number % 2**64 for number in column], np.uint64) for column in zip(*pairs, strict=True)]
    expected = [make(*pair) for pair in pairs]
    of_columns = getattr(event_ids, make.__name__)
    assert of_columns(*columns).tolist() == expected
    frame = pl.DataFrame(columns, schema=["one", "other"])
    assert of_columns(frame["one"], frame["other"]).to_list() == expected
    assert frame.select(of_columns(pl.col("one"), pl.col("other"))).to_series().to_list() == expected
