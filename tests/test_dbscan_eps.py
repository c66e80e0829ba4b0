"""The scale at which steps are neighbours: where the clusters stay what they are."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from optional import lazy

import tpunb as tp
from tpunb.cluster.dbscan_eps import eps_candidates, with_eps
from tpunb.cluster.micro_clusters import merge

distance = lazy("scipy.spatial.distance")


def ranges(values, k=2):
    points = np.array(values, dtype=float)[:, None]
    merged = merge(points)
    return eps_candidates(np.abs(merged.centres - merged.centres.T), merged, k)


def chosen(values, k=2):
    return ranges(values, k).filter("chosen")["eps"].item()


def range_of(points):
    """The range of clusters that is chosen of points with five neighbours."""
    merged = merge(points)
    ranges = eps_candidates(distance.cdist(merged.centres, merged.centres), merged, 5)
    return ranges.filter("chosen").row(0, named=True)


def test_eps_is_in_the_widest_range_of_the_clusters():
    # two clusters 9 apart with neighbours 0.1 apart, and outliers: the clusters are two from 0.1 to 9
    clusters = [place / 10 for place in range(30)] + [12 + place / 10 for place in range(30)]
    assert chosen([*clusters, 200, 3000]) == pytest.approx(np.sqrt(0.1 * 9.1), rel=0.3)


def test_eps_of_one_cluster_leaves_out_its_outlier():
    # neighbours 1 apart, and one stray 100 away: the geometric middle is 10
    assert chosen([*range(20), 119]) == pytest.approx(10)


def test_eps_without_a_gap_reaches_every_step():
    assert chosen([0, 1, 2.1, 3.2]) == pytest.approx(2.2), "twice the distance between neighbours"


def test_eps_separates_exact_repetitions():
    assert 0 < chosen([0, 0, 4, 4, 10, 10]) < 4


def test_eps_has_few_digits_and_gives_the_same_phases():
    for sample in ("keras_cnn", "keras_transformer", "qanet-squad", "resnet-imagenet"):
        grouped = tp.phases(tp.sample(sample))
        eps = grouped.sweeps["eps"].filter("chosen")["eps"].item()
        assert len(f"{eps:.15g}".lstrip("0.").replace(".", "")) <= 3
        copied = replace(grouped.method, eps=eps)  # as the panel's code has it
        assert tp.phases(grouped.steps, copied).labels.equals(grouped.labels)


def test_eps_has_more_digits_where_the_range_is_narrow():
    ranges = pl.DataFrame({"low": [0.0, 1.17402], "high": [1.17402, 1.17441]})
    assert with_eps(ranges, 1, 1.1742561340830764)["eps"].to_list() == [None, 1.1743]
    last = with_eps(ranges.with_columns(high=pl.Series([1.17402, 1.17402])), 1, 1.1742561340830764)
    assert last["eps"][1] == 1.18  # above the largest distance, not below it


def test_eps_of_equal_steps():
    assert chosen([3, 3, 3]) == 1.0
    assert chosen([3]) == 1.0


def test_all_ranges_from_the_first_cluster_to_one():
    found = ranges([0, 1, 2, 100, 101, 102])
    assert found["low"].to_list() == found["low"].sort().to_list()
    assert (found["high"] >= found["low"]).all()
    assert found.filter("chosen").select("clusters", "inside").row(0) == (2, 1.0)
    assert found["chosen"].sum() == 1


def test_few_pairs_among_outliers_are_not_clusters():
    # two pairs close together among eight outliers: the scale is that of the outliers
    found = ranges([0, 0.1, 5, 5.1, *(100 * place**2 for place in range(1, 9))])
    assert found.filter(pl.col("clusters") == 2)["inside"][0] < 0.9
    assert found["eps"].drop_nulls().item() > 100


def test_a_cluster_far_away_does_not_hide_the_gap_between_two_near_ones():
    near = [place / 10 for place in range(20)] + [5 + place / 10 for place in range(20)]
    assert 0.1 < chosen([*near, *(900 + place / 10 for place in range(20))]) < 3.1


def test_an_outlier_between_clusters_is_not_their_core_distance():
    clusters = [place / 10 for place in range(20)] + [12 + place / 10 for place in range(20)]
    assert 0.1 < chosen([*clusters, 7]) < 5


@given(st.integers(0, 50), st.sampled_from([1, 2, 8]))
@examples(25)
def test_one_cloud_of_chance_is_one_cluster(seed, d):
    points = np.random.default_rng(seed).normal(size=(400, d))
    assert range_of(points)["clusters"] == 1


@given(st.integers(0, 50), st.sampled_from([1e-6, 1e-3, 10.0, 1e6]))
@examples(25)
def test_the_unit_does_not_matter(seed, unit):
    random = np.random.default_rng(seed)
    points = random.normal(size=(120, 2))
    points[:60, 0] += 9
    one, other = range_of(points), range_of(points * unit)
    assert one["clusters"] == other["clusters"]
    assert other["eps"] == pytest.approx(one["eps"] * unit, rel=1e-4)


def grids(*corners):
    """Five by five points 0.1 apart, the fifth nearest at most 0.2 away, from each corner; and how they fall apart."""
    return range_of(np.array([(x + i / 10, y + j / 10) for x, y in corners for i in range(5) for j in range(5)]))


@pytest.mark.parametrize(("gap", "clusters"), [(0.12, 1), (0.2, 1), (0.28, 2), (0.4, 2), (1.0, 2)])
def test_two_clouds_are_clusters_where_their_gap_is_wide_beside_their_grain(gap, clusters):
    assert grids((0, 0), (0.4 + gap, 0))["clusters"] == clusters


def test_eps_is_wider_than_the_grain_of_the_coarsest_cluster():
    fine = np.array([(i / 10, j / 10) for i in range(15) for j in range(15)])
    coarse = np.array([(6.0 + i, j * 1.0) for i in range(4) for j in range(4)])  # fewer than a tenth of all
    row = range_of(np.concatenate([fine, coarse]))
    assert row["clusters"] == 2
    assert row["eps"] > 1.0
