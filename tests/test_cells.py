"""Like steps merged: which share a cell, and what the merging hides."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpunb.cluster.cells import MOST_CELLS, MOST_LOST, cells, cells_of, leading_cells, strays
from tpunb.errors import TpunbError
from tpunb.testing import toy_steps


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


@given(st.integers(0, 100), st.integers(1, 20))
def test_the_error_of_the_cells_and_within_them_is_that_of_the_rows(seed, k):
    random = np.random.default_rng(seed)
    points = random.normal(size=(2 * MOST_CELLS, 2)) * [5, 1]
    merged = cells(points)
    labels = random.integers(k, size=len(merged.weights))
    rows = weighted = 0.0
    for label in range(k):
        own = labels[merged.cell] == label
        if own.any():
            middle = points[own].mean(axis=0)
            rows += np.square(points[own] - middle).sum()
            cell = labels == label
            weighted += merged.weights[cell] @ np.square(merged.centres[cell] - middle).sum(axis=1)
    assert weighted + merged.within == pytest.approx(rows, rel=1e-9)


def test_what_merging_hides_is_a_share_of_the_scatter():
    points = np.random.default_rng(0).normal(size=(2 * MOST_CELLS, 2))
    merged = cells(points)
    assert merged.lost == pytest.approx(merged.within / np.square(points - points.mean(axis=0)).sum())
    assert 0 < merged.lost < MOST_LOST


def test_cells_that_would_hide_too_much_are_refused():
    points = np.random.default_rng(0).normal(size=(2 * MOST_CELLS, 40))
    with pytest.raises(TpunbError, match="6000 steps differ too much to be merged") as caught:
        cells(points)
    assert "choose features" in caught.value.__notes__[0]


def test_trailing_columns_give_way_with_a_warning_and_are_not_forgotten():
    noise = np.random.default_rng(0).normal(size=(2 * MOST_CELLS, 40))
    with pytest.warns(UserWarning, match=r"merged by \d+ of 40 components, which hides \d\d% of the scatter"):
        merged = leading_cells(noise)
    apart = np.square(noise - merged.centres[merged.cell]).sum()
    assert merged.within == pytest.approx(apart)  # in all columns
    assert merged.lost == pytest.approx(apart / np.square(noise - noise.mean(axis=0)).sum())


def test_nothing_gives_way_where_all_can_be_told_apart():
    points = np.random.default_rng(0).normal(size=(100, 40))
    assert leading_cells(points).centres.tolist() == cells(points).centres.tolist()


def test_strays_are_the_rows_that_the_grid_put_with_others_that_lie_far_away():
    random = np.random.default_rng(0)
    points = np.zeros((3 * MOST_CELLS, 12))
    points[:, :2] = random.normal(size=(len(points), 2))
    points[[5, 77], 11] = 3.0  # beyond the ten columns of the grid
    merged = cells(points)
    assert np.flatnonzero(strays(points, merged, 1.0)).tolist() == [5, 77]
    assert not strays(points[:100], cells(points[:100]), 1.0).any()  # equal rows alone share a cell


def test_in_noise_of_many_columns_no_row_is_a_stray():
    noise = np.random.default_rng(0).normal(size=(2 * MOST_CELLS, 40))
    with pytest.warns(UserWarning, match="merged by"):
        merged = leading_cells(noise)
    assert not strays(noise, merged, 0.5).any()


def test_where_steps_are_merged_by_few_columns_it_says_so_each_time(monkeypatch):
    noise = np.random.default_rng(0).normal(size=(2 * MOST_CELLS, 40))
    steps = toy_steps("a" * len(noise))
    monkeypatch.setattr("tpunb.cluster.cells.space", lambda *_: SimpleNamespace(points=noise))
    for _ in range(2):
        with pytest.warns(UserWarning, match="merged by") as caught:
            cells_of(steps, "default")
        assert len(caught) == 1
