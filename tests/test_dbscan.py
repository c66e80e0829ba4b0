"""One graph for every min_samples must say what scikit-learn says for each."""

import numpy as np
import polars as pl
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from optional import lazy
from simulate.synthetic_runs import synthetic_run

from tpunb.cluster import DBSCAN, dbscan
from tpunb.cluster.dbscan import Graph, distances
from tpunb.cluster.features import space
from tpunb.cluster.micro_clusters import merge
from tpunb.frames import Steps
from tpunb.testing import toy_steps

sklearn_cluster = lazy("sklearn.cluster")

GRID = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=40)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("aaabbb", [0, 0, 0, 1, 1, 1]),
        ("aaabbbaaabbb", [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1]),
        ("aaaaaabaaaaaa", [0] * 6 + [-1] + [0] * 6),
        ("bbbbaaaa", [0] * 4 + [1] * 4),
        ("aaaaaa", [0] * 6),
        ("a", [0]),
    ],
)
def test_finds_the_letters(pattern, expected):
    assert DBSCAN()(toy_steps(pattern)) == expected


def test_training_and_evaluation_are_two_phases_even_with_the_same_operations():
    steps = toy_steps("aaaaaaaaaa")
    steps = Steps(steps.frame.with_columns(kind=pl.Series(["train"] * 4 + ["eval"] * 2 + ["train"] * 4)), steps.ops)
    assert DBSCAN()(steps) == [0] * 4 + [1] * 2 + [0] * 4
    assert DBSCAN.paper()(steps) == [0] * 10


def test_the_paper_needs_five_of_a_kind():
    assert DBSCAN.paper()(toy_steps("aaaaabbbbb")) == [0] * 5 + [1] * 5
    assert DBSCAN.paper()(toy_steps("aaabbb")) == [-1] * 6


def test_values_of_the_paper():
    sweep = DBSCAN.paper()(toy_steps("aaaaa")).sweeps["min_samples"]
    assert sweep["min_samples"].to_list() == [5, 30, 55, 80, 105, 130, 155, 180]
    assert sweep["noise"].to_list() == [0, 1, 1, 1, 1, 1, 1, 1]
    assert sweep["clusters"].to_list() == [1, 0, 0, 0, 0, 0, 0, 0]
    assert sweep.schema == {
        "min_samples": pl.Int64,
        "noise": pl.Float64,
        "clusters": pl.Int64,
        "chosen": pl.Boolean,
    }


def test_more_samples_than_steps_makes_outliers():
    assert DBSCAN(min_samples=100)(toy_steps("aab")) == [-1, -1, -1]


def test_a_wide_eps_is_one_phase():
    assert DBSCAN(eps=1e6)(toy_steps("abcabc")) == [0] * 6


@examples(33)
@given(GRID, st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.7]), st.integers(1, 12))
def test_equals_scikit_learn(points, eps, min_samples):
    points = np.array(points, dtype=float)
    expected = sklearn_cluster.DBSCAN(eps=eps, min_samples=min_samples).fit(points).labels_
    graph = Graph(merged := merge(points), distances(merged), eps)
    found = graph.labels(min_samples)
    values = np.array([min_samples])
    assert found.tolist() == expected.tolist()
    assert graph.noise(values)[0] == pytest.approx((expected < 0).mean())
    assert graph.clusters(values)[0] == expected.max() + 1


@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(1, 5))
@examples(10)
def test_every_min_samples_equals_scikit_learn(seed, n, d):
    points = np.random.default_rng(seed).normal(size=(n, d)) * 2
    graph = Graph(merged := merge(points), distances(merged), 1.3)
    values = np.arange(1, 25)
    noise, clusters = graph.noise(values), graph.clusters(values)
    for value in values:
        expected = sklearn_cluster.DBSCAN(eps=1.3, min_samples=value).fit(points).labels_
        assert noise[value - 1] == pytest.approx((expected < 0).mean())
        assert clusters[value - 1] == expected.max() + 1
        assert graph.labels(value).tolist() == expected.tolist()


@pytest.mark.parametrize("seed", range(2))
def test_every_min_samples_equals_scikit_learn_on_weighted_points(seed):
    random = np.random.default_rng(seed)
    points = np.concatenate([random.normal(size=(4500, 2)), random.normal(6, 0.3, size=(1500, 2))])
    merged = merge(points)
    assert merged.side > 0
    assert merged.weights.max() > 1
    values = np.array([1, 2, 3, 5, 10, 30, 80, 200, 1000])
    graph = Graph(merged, distances(merged), 3 * merged.side)
    noise, clusters = graph.noise(values), graph.clusters(values)
    assert 0 < noise[4] < noise[6] < 1 == noise[-1]  # of each kind there is some
    for at, value in enumerate(values):
        fit = sklearn_cluster.DBSCAN(eps=graph.eps, min_samples=value)
        expected = fit.fit(merged.centres, sample_weight=merged.weights).labels_
        assert noise[at] == pytest.approx((expected[merged.labels] < 0).mean())
        assert clusters[at] == expected.max() + 1
        assert graph.labels(value).tolist() == expected[merged.labels].tolist()


def test_steps_equal_scikit_learn_on_their_features():
    steps = toy_steps("aaaabbbbbcccdaaaa")
    expected = sklearn_cluster.DBSCAN(eps=1.0, min_samples=3).fit(space(steps).points).labels_
    assert DBSCAN(eps=1.0, min_samples=3)(steps) == expected.tolist()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"min_samples": 0}, "The min_samples parameter of DBSCAN must be an int of 1 or more. Got 0 instead."),
        ({"min_samples": 1.5}, "The min_samples parameter of DBSCAN must be an int of 1 or more. Got 1.5 instead."),
        ({"min_samples": True}, "The min_samples parameter of DBSCAN must be an int of 1 or more. Got True instead."),
        ({"eps": True}, "The eps parameter of DBSCAN must be a float above 0. Got True instead."),
        ({"eps": 0}, "The eps parameter of DBSCAN must be a float above 0. Got 0 instead."),
        ({"eps": float("nan")}, "The eps parameter of DBSCAN must be a float above 0. Got nan instead."),
        ({"features": "raw"}, "The features parameter of DBSCAN must be one of .* Got 'raw' instead."),
        ({"sweep": ()}, "The sweep parameter of DBSCAN must not be empty"),
        ({"sweep": (5, 0)}, "The sweep parameter of DBSCAN must be an int of 1 or more. Got 0 instead."),
        ({"min_samples": 3, "sweep": (0,)}, "The sweep parameter of DBSCAN must be an int of 1 or more. Got 0"),
    ],
)
def test_wrong_parameters(wrong, message):
    with pytest.raises(ValueError, match=message):
        DBSCAN(**wrong)


def test_a_sweep_is_more_than_a_number():
    with pytest.raises(TypeError, match=r"The sweep parameter of DBSCAN must be a tuple of ints\. Got 5 instead\."):
        DBSCAN(sweep=5)


def test_repr():
    assert repr(DBSCAN()) == "DBSCAN()"
    assert repr(DBSCAN(min_samples=5)) == "DBSCAN(min_samples=5)"


def test_outliers_of_the_sweep_are_those_of_the_labels():
    run = synthetic_run(
        8000, 100, seed=3, hard=True
    )  # longer than the number of micro-clusters, so outliers share some
    labels = DBSCAN()(run.steps)
    chosen = labels.sweeps["min_samples"].filter("chosen")["noise"].item()
    assert chosen == pytest.approx(labels.count(-1) / len(labels))


@pytest.mark.parametrize("n", [100, 4000])  # as many micro-clusters as different steps, and fewer
def test_other_values_of_the_eps_that_was_chosen_share_the_graph(n, monkeypatch):
    steps = synthetic_run(n, 60, seed=1, hard=True).steps
    chosen = DBSCAN()(steps)
    eps = chosen.sweeps["eps"].filter("chosen")["eps"].item()
    own = {m: DBSCAN(min_samples=m, eps=eps)(Steps(steps.frame, steps.ops)) for m in (2, 9, 40)}
    monkeypatch.setattr(dbscan, "distances", None)  # nobody asks for them again
    monkeypatch.setattr(dbscan, "Graph", None)
    sweep = chosen.sweeps["min_samples"]
    for m, labels in own.items():
        again = DBSCAN(min_samples=m, eps=eps)(steps)
        assert again == labels
        assert again.sweeps["min_samples"].equals(labels.sweeps["min_samples"])
        assert list(again.sweeps) == ["min_samples"]
        for noise in sweep.filter(min_samples=m)["noise"]:
            assert noise == pytest.approx(again.count(-1) / len(again))
    value = sweep.filter("chosen")["min_samples"].item()
    assert DBSCAN(min_samples=value, eps=eps)(steps) == chosen


def test_without_an_eps_the_k_of_the_distances_is_min_samples():
    steps = synthetic_run(1000, 60, seed=1, hard=True).steps
    one = DBSCAN(min_samples=2)(steps).sweeps["eps"]
    assert not one.equals(DBSCAN(min_samples=60)(steps).sweeps["eps"])
    assert one.equals(DBSCAN(min_samples=2)(Steps(steps.frame, steps.ops)).sweeps["eps"])
