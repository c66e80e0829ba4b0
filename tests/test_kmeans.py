"""k-means: the error that scikit-learn finds, the choice of k, and runs whose phases are known."""

from dataclasses import replace
from functools import cache
from itertools import pairwise, product

import numpy as np
import polars as pl
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from optional import lazy
from simulate.synthetic_runs import synthetic_run

from tpunb import schema
from tpunb.cluster import KMeans
from tpunb.cluster.features import space
from tpunb.cluster.kmeans import fits
from tpunb.cluster.limits import LIMITS
from tpunb.cluster.micro_clusters import merge
from tpunb.frames import Steps
from tpunb.testing import toy_steps

sklearn_cluster = lazy("sklearn.cluster")
metrics = lazy("sklearn.metrics")

ALL = [KMeans(), KMeans(choose="log"), KMeans(choose="elbow"), KMeans.paper()]
EACH = pytest.mark.parametrize("method", ALL, ids=repr)


@cache
def run():
    """Steps whose sweep of k is made once."""
    return synthetic_run(1000, 60, seed=3).steps


@EACH
@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("aaabbb", [0, 0, 0, 1, 1, 1]),
        ("aaaabbbbcccc", [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]),
        ("aaabbbaaabbb", [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1]),
        ("bbbaaa", [0, 0, 0, 1, 1, 1]),
        ("aaaaaa", [0] * 6),
        ("a", [0]),
        ("", []),
    ],
)
@pytest.mark.filterwarnings("error", "ignore::pytest.PytestUnraisableExceptionWarning")  # of what other tests left
def test_finds_the_letters(method, pattern, expected):
    assert method(toy_steps(pattern)) == expected


@EACH
def test_without_operations_the_time_of_a_step_is_left(method):
    steps = Steps(toy_steps("aaaaee").frame, pl.DataFrame(schema=schema.OPS))
    expected = [0] * 6 if method.features == "paper" else [0, 0, 0, 0, 1, 1]
    assert method(steps) == expected


@EACH
def test_unknown_times(method):
    steps = toy_steps("aaaabbbb")
    unknown = pl.lit(None, dtype=pl.Int64)
    frame, ops = steps.frame.with_columns(dur_ps=unknown), steps.ops.with_columns(total_ps=unknown, self_ps=unknown)
    assert method(replace(steps, frame=frame, ops=ops)) == [0, 0, 0, 0, 1, 1, 1, 1]


def test_a_given_k_is_used():
    labels = KMeans(k=2)(toy_steps("aaaabbbbcccc"))
    assert set(labels) == {0, 1}
    by = ["by_elbow", "by_log", "by_bic"]
    assert labels.sweeps["k"].select("k", *by, "chosen").rows() == [(2, None, None, None, True)]


@pytest.mark.parametrize("k", [1, 2, 5, 15])
def test_a_given_k_equals_that_of_the_sweep(k):
    steps = run()
    row = KMeans()(steps).sweeps["k"].row(k - 1, named=True)
    labels = KMeans(k=k)(steps)
    assert len(set(labels)) == k
    assert labels.sweeps["k"].select("k", "sse", "bic").row(0, named=True) == {
        at: row[at] for at in ("k", "sse", "bic")
    }
    assert squares(space(steps).points, np.array(labels)) == pytest.approx(row["sse"])
    assert KMeans(k=k)(Steps(steps.frame, steps.ops)) == labels  # be the sweep asked for before or not


def test_a_k_beyond_the_sweep_is_searched_for_by_itself():
    steps = run()
    labels = KMeans(k=7, k_max=3)(steps)
    assert len(set(labels)) == 7
    assert labels.sweeps["k"]["k"].to_list() == [7]
    assert labels.sweeps["k"]["sse"][0] == pytest.approx(KMeans(k=7)(steps).sweeps["k"]["sse"][0], rel=0.1)


@pytest.mark.filterwarnings("error", "ignore::pytest.PytestUnraisableExceptionWarning")  # of what other tests left
def test_no_more_phases_than_steps_that_differ():
    assert KMeans(k=5)(toy_steps("aabb")) == [0, 0, 1, 1]


def test_the_sweep_shows_what_each_rule_takes():
    sweeps = {method.choose: method(run()).sweeps["k"] for method in ALL[:3]}
    first = sweeps["bic"].drop("chosen")
    assert first["k"].to_list() == list(range(1, 16))
    assert first.schema == {
        "k": pl.Int64,
        "sse": pl.Float64,
        "bic": pl.Float64,
        **dict.fromkeys(["by_elbow", "by_log", "by_bic"], pl.Boolean),
    }
    for rule, sweep in sweeps.items():
        assert sweep.drop("chosen").equals(first)
        assert sweep["chosen"].to_list() == sweep[f"by_{rule}"].to_list()
        assert sweep["chosen"].sum() == 1
    assert len({sweep.filter("chosen")["k"].item() for sweep in sweeps.values()}) > 1


def test_the_labels_are_those_of_the_chosen_k():
    labels = KMeans()(run())
    assert len(set(labels)) == labels.sweeps["k"].filter("chosen")["k"].item()


@pytest.mark.parametrize("method", [KMeans(), KMeans.paper()], ids=repr)
def test_the_error_never_rises(method):
    sweep = method(toy_steps("abcdefghijklmnopqr" * 2)).sweeps["k"]
    assert sweep["k"].to_list() == list(range(1, 16))
    assert (np.diff(sweep["sse"]) <= 0).all()


def squares(points, labels):
    return sum(np.square(points[labels == k] - points[labels == k].mean(axis=0)).sum() for k in np.unique(labels))


@pytest.mark.parametrize(("method", "features"), [(KMeans(), "default"), (KMeans.paper(), "paper")])
def test_the_error_is_the_least_of_all_ways_to_group_the_letters(method, features):
    steps = toy_steps("aaaaabbbccd")
    points = space(steps, features).points
    letters = np.array([ord(letter) - ord("a") for letter in "aaaaabbbccd"])
    for k, sse in method(steps).sweeps["k"].select("k", "sse").rows():
        ways = product(range(k), repeat=4)
        least = min(squares(points, np.array(way)[letters]) for way in ways if len(set(way)) == k)
        assert sse == pytest.approx(least, abs=1e-6)


@given(st.integers(0, 2**32 - 1), st.integers(2, 60), st.integers(1, 30))
@examples(5)
def test_labels_have_the_error_of_the_sweep_which_never_rises(seed, n, d):
    random = np.random.default_rng(seed)
    points = random.normal(size=(n, d)) + random.integers(0, 4, size=(n, 1)) * 5
    merged = merge(np.repeat(points, 2, axis=0))
    found = fits(merged, range(1, min(n, 9) + 1), seed=0)
    for k, fit in enumerate(found, 1):
        assert len(np.unique(fit.labels)) == k
        assert fit.sse == pytest.approx(2 * squares(points, fit.labels), rel=1e-9, abs=1e-9)
    assert all(more.sse <= less.sse * (1 + 1e-9) for less, more in pairwise(found))


def test_of_merged_steps_the_error_is_that_of_every_step():
    random = np.random.default_rng(0)
    n = 2 * LIMITS.most_micro_clusters
    centre = random.normal(size=(5, 30)) * 20
    points = centre[random.integers(0, 5, n)] + random.normal(size=(n, 30)) * np.geomspace(1, 0.01, 30)
    points -= points.mean(axis=0)
    points = points @ np.linalg.svd(points, full_matrices=False)[2].T
    merged = merge(points)
    assert merged.within > 0
    for k, fit in enumerate(fits(merged, range(1, 6), seed=0), 1):
        whole = sklearn_cluster.KMeans(k, n_init=10, random_state=0).fit(points).inertia_
        assert fit.sse + merged.within == pytest.approx(squares(points, fit.labels[merged.labels]), rel=1e-9)
        assert fit.sse + merged.within <= 1.001 * whole


@pytest.mark.parametrize("seed", [6, 7])  # of 5, summaries take 0.8 % of the host's time: no phase of their own
def test_bic_finds_the_phases_of_a_synthetic_run(seed):
    run = synthetic_run(3000, 60, seed=seed)
    labels = np.array(KMeans()(run.steps))
    clean = run.phase >= 0
    assert metrics.adjusted_rand_score(run.phase[clean], labels[clean]) >= 0.95


@cache
def longest(seed):
    run = synthetic_run(seed=seed)
    return run, KMeans()(run.steps)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [11, 12, 13])
def test_bic_finds_the_phases_of_the_papers_longest_run(seed):
    run, labels = longest(seed)
    clean = run.phase >= 0
    assert metrics.adjusted_rand_score(run.phase[clean], np.array(labels)[clean]) >= 0.95


WORSE = pytest.mark.xfail(reason="0.13 % above the best of ten, at k = 6", raises=AssertionError)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [11, 12, pytest.param(13, marks=WORSE)])
def test_the_error_in_the_papers_longest_run_is_that_of_scikit_learns_best_of_ten(seed):
    run, labels = longest(seed)
    points = space(run.steps).points
    sweep = labels.sweeps["k"]
    for k in (1, 3, 6):
        assert sweep["sse"][k - 1] <= 1.001 * sklearn_cluster.KMeans(k, n_init=10, random_state=0).fit(points).inertia_


@pytest.mark.parametrize("seed", [0, 1])
def test_one_cloud_is_one_phase(seed):
    run = synthetic_run(1000, 60, seed=seed)
    steady = Steps(run.steps.frame.filter(pl.Series(run.phase == 1)), run.steps.ops)
    for choose in ("bic", "log"):
        assert set(KMeans(choose=choose)(steady)) == {0}, choose


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"k": 0}, "The k parameter of KMeans must be an int of 1 or more. Got 0 instead."),
        ({"k": 2.5}, "The k parameter of KMeans must be an int of 1 or more. Got 2.5 instead."),
        ({"k": True}, "The k parameter of KMeans must be an int of 1 or more. Got True instead."),
        ({"k_max": 0}, "The k_max parameter of KMeans must be an int of 1 or more. Got 0 instead."),
        ({"k_max": True}, "The k_max parameter of KMeans must be an int of 1 or more. Got True instead."),
        ({"seed": -1}, "The seed parameter of KMeans must be an int of 0 or more. Got -1 instead."),
        ({"seed": False}, "The seed parameter of KMeans must be an int of 0 or more. Got False instead."),
        ({"features": "raw"}, "The features parameter of KMeans must be one of .* Got 'raw' instead."),
        ({"choose": "bent"}, "The choose parameter of KMeans must be one of .* Got 'bent' instead."),
    ],
)
def test_wrong_parameters(wrong, message):
    with pytest.raises(ValueError, match=message):
        KMeans(**wrong)


def test_repr():
    assert repr(KMeans()) == "KMeans()"
    assert repr(KMeans.paper()) == "KMeans(features='paper', choose='elbow')"
