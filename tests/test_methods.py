"""The rule-book of phase methods, and the names by which they are given."""

from itertools import product

import numpy as np
import polars as pl
import pytest
from simulate.synthetic_runs import KINDS, synthetic_run

from tpunb import schema
from tpunb.cluster import DBSCAN, HDBSCAN, OLS, KMeans, OLSPlus, phases
from tpunb.frames import Steps
from tpunb.testing import check_method, toy_steps


def every_other(steps):
    """A method of a user's own."""
    return [i % 2 for i in range(len(steps))]


METHODS = [OLS(), OLSPlus(), KMeans(), KMeans.paper(), DBSCAN(), DBSCAN.paper(), HDBSCAN(), every_other]
OURS = METHODS[:-1]


def called(given):
    """What a test is called by, the same in every process."""
    return getattr(given, "__name__", None) or repr(given)


def two_hosts(pattern="aaabbb", other="aaabbb"):
    one, two = toy_steps(pattern, host="one"), toy_steps(other, host="two")
    return Steps(pl.concat([two.frame, one.frame]), pl.concat([one.ops, two.ops]))


def no_ops(n=4):
    return Steps(toy_steps("a" * n).frame, pl.DataFrame(schema=schema.OPS))


@pytest.mark.parametrize("method", OURS, ids=repr)
def test_times_that_one_host_does_not_know_are_those_of_the_other(method):
    steps = two_hosts("aaaabbbbccc", "aaaabbbbccc")
    unknown = [pl.when(pl.col("host") != "one").then(name).alias(name) for name in ("self_ps", "total_ps")]
    found = phases(Steps(steps.frame, steps.ops.with_columns(unknown)), method)
    assert found.labels.to_list() == phases(steps, method).labels.to_list()


@pytest.mark.parametrize("method", METHODS, ids=called)
def test_holds_to_the_rules_for_all_methods(method):
    check_method(method)


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        (lambda steps: [0] * (len(steps) + 1), "one label a step"),
        (lambda steps: [-2] * len(steps), "no label below -1"),
        (lambda steps: np.zeros(len(steps)), "one int a step"),
        (lambda steps: None, "one int a step"),
        (lambda steps: np.random.default_rng().integers(1000, size=len(steps)), "the same twice"),
    ],
)
def test_the_rules_catch_who_breaks_them(wrong, rule):
    with pytest.raises(AssertionError, match=rule):
        check_method(wrong)


@pytest.mark.parametrize("method", METHODS, ids=called)
def test_each_step_is_in_one_phase_and_has_the_same_label_and_distance_twice(method):
    for steps in (toy_steps("aaabbb"), toy_steps("abc", traced="fnp"), two_hosts(), two_hosts("a", "b"), no_ops()):
        found = phases(steps, method)
        again = phases(Steps(steps.frame, steps.ops), method)
        assert found.labels.dtype == pl.Int64, steps
        assert found.labels.null_count() == 0, steps
        assert found.labels.to_list() == again.labels.to_list(), steps
        assert found.distance.to_list() == pytest.approx(again.distance.to_list()), steps
        assert sum(len(phase.steps) for phase in found) == len(steps), steps
        assert found.top(3).height > 0 or steps.ops.is_empty(), steps


@pytest.mark.parametrize("method", OURS, ids=repr)
def test_labels_are_numbered_by_first_appearance(method):
    labels = phases(two_hosts("aaaabbbbaaaacccc" * 3), method).labels
    found = [label for label in labels.unique(maintain_order=True) if label >= 0]
    assert sorted(found) == list(range(len(found)))
    assert labels[0] <= 0


@pytest.mark.parametrize(
    ("numpys", "pythons"),
    [
        (KMeans(np.int64(2), np.int8(5), np.uint8(1)), KMeans(2, 5, 1)),
        (DBSCAN(np.int64(2)), DBSCAN(2)),
        (HDBSCAN(np.int64(2), np.int64(1)), HDBSCAN(2, 1)),
        (OLSPlus(least=np.int64(2)), OLSPlus(least=2)),
    ],
    ids=repr,
)
def test_numpys_ints_are_as_good_as_pythons(numpys, pythons):
    assert repr(numpys) == repr(pythons)
    assert numpys(toy_steps("aaabbb")) == pythons(toy_steps("aaabbb")) == [0, 0, 0, 1, 1, 1]


def labels_of(steps, method):
    """The label of each step, by host and number."""
    return dict(zip(steps.frame.select("host", "step").rows(), method(steps), strict=True))


@pytest.mark.parametrize("method", OURS, ids=repr)
def test_the_order_of_hosts_does_not_matter(method):
    hosts = [toy_steps("aaaabbbbbcccaaz" * 2, host="one"), toy_steps("bbbbccccaaaaadd" * 2, host="two")]
    found = [
        labels_of(Steps(pl.concat([run.frame for run in runs]), pl.concat([run.ops for run in runs])), method)
        for runs in (hosts, hosts[::-1])
    ]
    assert found[0] == found[1]
    assert len(set(found[0].values())) > 1


def every(number, *values):
    """These values, one after the other and again, each so often."""
    turn = pl.int_range(pl.len()) // number % len(values)
    return turn.replace_strict(range(len(values)), values, return_dtype=pl.Int64)


GAPS = {
    "null": every(1, None),
    "negative": every(1, -(10**9)),
    "the least": every(1, -(2**62)),
    "now and then null": every(5, None, 10**9, 3 * 10**9),
    "of either sign": every(5, -(10**9), 10**9, -3 * 10**9),
}


OF_OPS, OF_STEPS = ("self_ps", "total_ps", "count"), ("dur_ps", "device_ps", "idle_ps")


def with_gaps(gap, columns):
    steps = toy_steps("aaaabbbbccc")
    return Steps(
        *(frame.with_columns(gap.alias(c) for c in columns if c in frame.columns) for frame in (steps.frame, steps.ops))
    )


@pytest.mark.filterwarnings("error::RuntimeWarning")  # of the logarithm and the root of what is below 0
@pytest.mark.parametrize("method", OURS, ids=repr)
def test_null_and_negative_values_count_as_0(method):
    none = {columns: phases(with_gaps(every(1, 0), columns), method) for columns in (OF_OPS, OF_STEPS)}
    for gap, of in product(GAPS, (OF_OPS, OF_STEPS)):
        found = phases(with_gaps(GAPS[gap], of), method)
        if gap in ("null", "negative", "the least"):
            plain = none[of]
        else:
            plain = phases(with_gaps(GAPS[gap].fill_null(0).clip(0), of), method)
        assert found.labels.to_list() == plain.labels.to_list(), (gap, of)
        assert found.distance.is_null().to_list() == (found.labels < 0).to_list(), (gap, of)
        assert not found.distance.is_nan().any(), (gap, of)
        for sweep in found.sweeps.values():
            assert not any(sweep[name].is_nan().any() for name, dtype in sweep.schema.items() if dtype.is_float())


@pytest.mark.parametrize("method", OURS, ids=repr)
def test_every_sweep_marks_one_choice(method):
    sweeps = phases(toy_steps("aaaaabbbbb"), method).sweeps
    assert sweeps
    assert all(sweep["chosen"].sum() == 1 for name, sweep in sweeps.items() if name != "tree")  # of which it takes some


@pytest.mark.parametrize("method", OURS, ids=repr)
def test_order_and_names_of_ops_do_not_matter(method):
    steps = synthetic_run(300, 60).steps
    renamed = {
        op: f"op_{i}" for i, op in enumerate(reversed(steps.ops["op"].cast(pl.String).unique().sort().to_list()))
    }
    shuffled = steps.ops.sample(fraction=1.0, shuffle=True, seed=1)
    other = shuffled.with_columns(pl.col("op").cast(pl.String).replace_strict(renamed))
    expected = method(steps)
    assert method(Steps(steps.frame, shuffled)) == expected
    assert method(Steps(steps.frame, other)) == expected


@pytest.mark.parametrize("method", [DBSCAN(), HDBSCAN(), KMeans(), OLSPlus()], ids=repr)
def test_a_run_of_one_kind_is_one_phase(method):
    run = synthetic_run(600, 60)
    steady = run.steps.frame.filter(pl.Series(run.phase == KINDS.index("steady")))
    labels = phases(Steps(steady, run.steps.ops), method).labels
    assert (labels == 0).mean() > 0.98


@pytest.mark.parametrize("method", [DBSCAN(), HDBSCAN(), KMeans(), OLSPlus()], ids=repr)
def test_hosts_share_their_phases(method):
    assert phases(two_hosts("aaabbb", "aaabbb"), method).labels.to_list() == [0, 0, 0, 1, 1, 1] * 2
    assert method(two_hosts("aaabbb", "bbbaaa")) == [0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0]


@pytest.mark.parametrize("name", ["dbscan", "hdbscan", "kmeans", "ols", "olsplus"])
def test_every_door_that_takes_a_method_takes_its_name(name):
    import tpunb as tp
    from tpunb.analysis import label_agreement
    from tpunb.cluster import METHODS as BY_NAME

    steps, method = toy_steps("aaabbb" * 4), BY_NAME[name]()
    assert tp.phases(steps, name).method == method
    assert tp.explore(steps, method=name).value.method == method
    compared = tp.compare(steps, tp.phases(steps), method=name)
    assert (compared.a.method, compared.b.method) == (method, method)
    assert label_agreement(steps, [name, "ols"])["a"][0] == name


def test_two_profiles_are_compared_by_a_named_method():
    import tpunb as tp

    sample = tp.sample("keras_cnn")
    assert tp.compare(sample, sample, method="kmeans").a.method == KMeans()


def test_an_unknown_name_lists_the_methods():
    with pytest.raises(ValueError, match=r"one of dbscan, hdbscan, kmeans, ols, olsplus\. Got 'dbscn'"):
        phases(toy_steps("ab"), "dbscn")
