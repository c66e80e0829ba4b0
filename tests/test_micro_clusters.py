"""Micro-clusters: which rows are merged, and how much of the variance that loses."""

from types import SimpleNamespace

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from tpunb.cluster.limits import LIMITS
from tpunb.cluster.micro_clusters import (
    merge,
    merge_leading,
    micro_clusters_of,
    outliers,
)
from tpunb.errors import TpunbError
from tpunb.testing import toy_steps


def test_equal_rows_are_merged_in_order_of_first_row():
    merged = merge(np.array([[2.0], [1.0], [2.0], [0.0]]))
    assert merged.centres.tolist() == [[2], [1], [0]]
    assert merged.weights.tolist() == [2, 1, 1]
    assert merged.labels.tolist() == [0, 1, 0, 2]
    assert merged.side == 0


def test_minus_0_is_0():
    assert merge(np.array([[0.0], [-0.0]])).weights.tolist() == [2]


def test_the_number_of_micro_clusters_is_bounded():
    points = np.random.default_rng(0).normal(size=(3 * LIMITS.most_micro_clusters, 3))
    merged = merge(points)
    assert 100 < len(merged.weights) <= LIMITS.most_micro_clusters
    assert merged.weights.sum() == len(points)
    assert merged.side > 0
    away = np.square(points - merged.centres[merged.labels]).sum(axis=1)
    assert merged.side == pytest.approx(np.sqrt(away.mean()))
    assert merged.side < 0.3
    assert merged.weights @ merged.centres == pytest.approx(points.sum(axis=0))


@examples(10)
@given(st.integers(0, 100), st.integers(1, 20))
def test_error_of_centres_plus_within_is_that_of_the_rows(seed, k):
    random = np.random.default_rng(seed)
    points = random.normal(size=(2 * LIMITS.most_micro_clusters, 2)) * [5, 1]
    merged = merge(points)
    labels = random.integers(k, size=len(merged.weights))
    rows = weighted = 0.0
    for label in range(k):
        own = labels[merged.labels] == label
        if own.any():
            middle = points[own].mean(axis=0)
            rows += np.square(points[own] - middle).sum()
            cell = labels == label
            weighted += merged.weights[cell] @ np.square(merged.centres[cell] - middle).sum(axis=1)
    assert weighted + merged.within == pytest.approx(rows, rel=1e-9)


def test_lost_is_a_share_of_the_variance():
    points = np.random.default_rng(0).normal(size=(2 * LIMITS.most_micro_clusters, 2))
    merged = merge(points)
    assert merged.lost == pytest.approx(merged.within / np.square(points - points.mean(axis=0)).sum())
    assert 0 < merged.lost < LIMITS.most_variance_lost


def test_merging_that_loses_too_much_is_refused():
    points = np.random.default_rng(0).normal(size=(2 * LIMITS.most_micro_clusters, 40))
    with pytest.raises(TpunbError, match="6000 steps are too different to merge") as caught:
        merge(points)
    assert "choose features" in caught.value.__notes__[0]


def test_trailing_columns_give_way_with_a_warning_and_are_not_forgotten():
    noise = np.random.default_rng(0).normal(size=(2 * LIMITS.most_micro_clusters, 40))
    with pytest.warns(UserWarning, match=r"merged by \d+ of 40 components, which loses \d\d% of the variance"):
        merged = merge_leading(noise)
    apart = np.square(noise - merged.centres[merged.labels]).sum()
    assert merged.within == pytest.approx(apart)  # in all columns
    assert merged.lost == pytest.approx(apart / np.square(noise - noise.mean(axis=0)).sum())


def test_all_columns_are_used_if_they_can_be():
    points = np.random.default_rng(0).normal(size=(100, 40))
    assert merge_leading(points).centres.tolist() == merge(points).centres.tolist()


def test_outliers_are_far_from_their_centre():
    random = np.random.default_rng(0)
    points = np.zeros((3 * LIMITS.most_micro_clusters, 40))
    points[:, :2] = random.normal(size=(len(points), 2))
    points[[5, 77], 39] = 3.0  # beyond the columns that decide which seed is the nearest
    merged = merge(points)
    assert np.flatnonzero(outliers(points, merged, 1.0)).tolist() == [5, 77]
    assert not outliers(points[:100], merge(points[:100]), 1.0).any()  # equal rows alone share a cell


def test_noisy_columns_make_no_outliers():
    noise = np.random.default_rng(0).normal(size=(2 * LIMITS.most_micro_clusters, 40))
    with pytest.warns(UserWarning, match="merged by"):
        merged = merge_leading(noise)
    assert not outliers(noise, merged, 0.5).any()


def test_merging_by_few_columns_warns_each_time(monkeypatch):
    noise = np.random.default_rng(0).normal(size=(2 * LIMITS.most_micro_clusters, 40))
    steps = toy_steps("a" * len(noise))
    monkeypatch.setattr("tpunb.cluster.micro_clusters.space", lambda *_: SimpleNamespace(points=noise))
    for _ in range(2):
        with pytest.warns(UserWarning, match="merged by") as caught:
            micro_clusters_of(steps, "default")
        assert len(caught) == 1
