"""Quality of phases: explained variance, outliers, agreement, stability, distinguishing operations."""

import numpy as np
import polars as pl
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from optional import lazy
from simulate.synthetic_runs import synthetic_run

import tpunb as tp
from tpunb import schema
from tpunb.analysis.quality import Stability, assess, distinguishing_ops, label_agreement, stability
from tpunb.cluster import DBSCAN, OLS, KMeans
from tpunb.errors import BadProfile, TpunbError
from tpunb.frames import Phases, Steps
from tpunb.testing import toy_steps

metrics = lazy("sklearn.metrics")


def steps_of(*rows):
    """Steps spelled as (step time, {op: self time}), one after the other."""
    n = len(rows)
    frame = pl.DataFrame(
        {
            "host": ["toy"] * n,
            "step": range(n),
            "kind": ["train"] * n,
            "start_ps": [sum(dur for dur, _ in rows[:i]) for i in range(n)],
            "dur_ps": [dur for dur, _ in rows],
            "device_ps": [None] * n,
            "idle_ps": [None] * n,
            "traced": ["full"] * n,
        }
    )
    ops = [("toy", i, op, "device", 1, own, own) for i, (_, ran) in enumerate(rows) for op, own in ran.items()]
    columns = {name: dtype for name, dtype in schema.OPS.items() if name != "category"}
    return Steps(frame, pl.DataFrame(ops, schema=columns, orient="row"))


def phases_of(steps, labels, method=lambda steps: [0] * len(steps)):
    return Phases(steps, pl.Series(labels, dtype=pl.Int64), method, pl.Series([0.0] * len(steps)))


def toy_phases(pattern, labels, traced=None):
    return phases_of(toy_steps(pattern, traced=traced), labels)


# -- outliers and explained variance --------------------------------------------------------------------------


def test_noise_is_a_share_of_productive_time():
    assert toy_phases("aab", [0, 0, -1]).noise == pytest.approx(1 / 3)  # up to 1 ms, the median
    assert (toy_phases("ab", [0, 1]).noise, toy_phases("ab", [-1, -1]).noise) == (0.0, 1.0)


def test_one_phase_covers_all_and_explains_nothing():
    assert toy_phases("aaabbb", [0] * 6).coverage() == 1.0
    assert toy_phases("aaabbb", [0] * 6).explained_variance is toy_phases("aaabbb", [-1] * 6).explained_variance is None
    assert toy_phases("aaabbb", [0, 0, 0, 1, 1, 1]).explained_variance == pytest.approx(1.0)


@pytest.mark.parametrize(("pattern", "labels"), [("aaaa", [0, 0, 1, 1]), ("aaaa", [-1, 0, 0, 0]), ("ab", [0, 1])])
def test_phases_of_equal_steps_explain_all_variance(pattern, labels):
    assert toy_phases(pattern, labels).explained_variance == pytest.approx(1.0)


def test_explained_variance_by_hand():
    run = steps_of((10, {"x": 100}), (10, {"x": 100}), (20, {"y": 100}))
    # of compositions x, x and y for 10, 10 and 20: the centre is (1/2, 1/2), each lies sqrt(1/2) from it
    assert phases_of(run, [0, 0, 0]).explained_variance is None
    # phase 0, x for 10 and y for 20: centre (1/3, 2/3), squared distances 8/9 and 2/9, weighted 40/3; of the run 20
    assert phases_of(run, [0, 1, 0]).explained_variance == pytest.approx(1 - (40 / 3) / 20)


def test_explained_variance_is_over_full_steps():
    assert toy_phases("aabb", [0, 0, 1, 0], traced="fffn").explained_variance == pytest.approx(1.0)
    assert toy_phases("ab", [0, 0], traced="nn").explained_variance is None
    assert phases_of(steps_of((1, {}), (2, {})), [0, 1]).explained_variance == 1.0  # no operations: nothing differs


@given(labels=st.lists(st.integers(-1, 3), min_size=1, max_size=8))
@examples(33)
def test_finer_phases_do_not_lower_explained_variance(labels):
    pattern = "aabbccdd"[: len(labels)]
    fine = toy_phases(pattern, labels).explained_variance
    finest = toy_phases(pattern, range(len(labels))).explained_variance
    assert (fine is None) == (len(set(labels)) == 1)
    assert 0 <= (fine or 0) <= (1 if finest is None else finest) + 1e-9 <= 1 + 2e-9


# -- agreement ------------------------------------------------------------------------------------------------


def test_methods_that_say_the_same_agree_whatever_the_numbers():
    steps = toy_steps("aaabbb")
    frame = label_agreement(steps, {"one": lambda _: [0, 0, 0, 1, 1, 1], "other": lambda _: [5, 5, 5, 2, 2, 2]})
    assert frame.schema == schema.LABEL_AGREEMENT
    assert frame.rows() == [("one", "other", 1.0, 1.0, 1.0)]


def test_every_pair_has_a_row_and_the_scores_by_hand():
    steps = toy_steps("aabbcc")
    frame = label_agreement(
        steps,
        {
            "three": lambda _: [0, 0, 1, 1, 2, 2],
            "two": lambda _: [0, 0, 0, 0, 1, 1],
            "noise": lambda _: [0, 0, 1, -1, -1, -1],
        },
    )
    assert frame.select("a", "b").rows() == [("three", "two"), ("three", "noise"), ("two", "noise")]
    # of 15 pairs of steps 3 are together in "three", 7 in "two", 3 in both: expected 21/15 of at most 5
    assert frame["ari"][0] == pytest.approx((3 - 21 / 15) / (5 - 21 / 15))
    # noise is a group: pairs 4 (one of a, three of noise), 2 in both, expected 12/15 of at most 3.5
    assert frame["ari"][1] == pytest.approx((2 - 12 / 15) / (3.5 - 12 / 15))
    assert frame["ari_inside"].to_list() == pytest.approx([frame["ari"][0], 1.0, 0.0])
    assert (frame["ami"] <= 1).all()


LABELS = st.lists(st.tuples(*[st.integers(-1, 3)] * 2), min_size=1, max_size=20)


@given(labels=LABELS)
@examples(33)
def test_the_scores_are_those_of_scikit_learn(labels):
    one, other = zip(*labels, strict=True)
    row = label_agreement(toy_steps("a" * len(labels)), {"a": lambda _: one, "b": lambda _: other}).row(0, named=True)
    assert row["ami"] == pytest.approx(metrics.adjusted_mutual_info_score(one, other))
    assert row["ari"] == pytest.approx(metrics.adjusted_rand_score(one, other))
    inside = [(x, y) for x, y in labels if min(x, y) >= 0]
    expected = metrics.adjusted_rand_score(*zip(*inside, strict=True)) if inside else None
    assert row["ari_inside"] == (expected if expected is None else pytest.approx(expected))


def test_methods_are_named_for_themselves():
    frame = label_agreement(toy_steps("aaabbb"), [DBSCAN(), OLS(0.5), KMeans(2)])
    assert frame.select("a", "b").row(1) == ("DBSCAN()", "KMeans(k=2)")
    assert (frame["ari"] == 1).all()


def test_ari_inside_is_null_without_common_phases():
    frame = label_agreement(toy_steps("ab"), {"none": lambda _: [-1, -1], "all": lambda _: [0, 1]})
    assert frame["ari_inside"].to_list() == [None]
    assert frame["ari"].item() == 0.0


def test_agreement_is_over_full_steps():
    asked = []
    label_agreement(toy_steps("aab", traced="fnf"), [lambda steps: asked.append(len(steps)) or [0] * len(steps)] * 2)
    assert asked == [2, 2]


@pytest.mark.parametrize("methods", [DBSCAN(), DBSCAN, "dbscan", None])
def test_one_method_agrees_with_none(methods):
    with pytest.raises(
        TypeError, match="The methods parameter of label_agreement must be two methods or more"
    ) as caught:
        label_agreement(toy_steps("ab"), methods)
    assert caught.value.__notes__ == ["Hint: label_agreement(steps, [tp.DBSCAN(), tp.OLS()])"]


def test_agreement_is_of_steps():
    with pytest.raises(TypeError, match="The steps parameter of label_agreement must be Steps") as caught:
        label_agreement(tp.phases(toy_steps("ab")), [DBSCAN(), OLS()])
    assert caught.value.__notes__ == ["Hint: tp.steps(profile)"]


def test_agreement_needs_two_methods_and_labels_that_fit():
    with pytest.raises(ValueError, match=r"must be two methods or more\. Got 1 instead"):
        label_agreement(toy_steps("ab"), [DBSCAN()])
    with pytest.raises(BadProfile, match="returned 1 label for 2 steps"):
        label_agreement(toy_steps("ab"), [DBSCAN(), lambda _: [0]])


# -- stability ------------------------------------------------------------------------------------------------


def test_real_phases_are_stable():
    found = stability(tp.phases(toy_steps("aaaaabbbbb")), draws=5)
    assert found == Stability(1.0, 1.0, 1.0, 5, "8 of 10 steps")
    assert str(found) == "1.00 [1.00, 1.00] (ARI, 5 draws of 8 of 10 steps)"


def test_phases_by_chance_are_not():
    random = np.random.default_rng(0)
    steps = toy_steps("a" * 200)
    dice = phases_of(steps, random.integers(0, 3, 200), lambda steps: random.integers(0, 3, len(steps)))
    found = stability(dice, draws=10)
    assert abs(found.ari) < 0.05
    assert found.low <= found.ari <= found.high


def test_the_same_seed_draws_the_same():
    phases = phases_of(toy_steps("abcabcabc"), [0, 1, 2] * 3, lambda steps: [step % 2 for step in steps.frame["step"]])
    assert stability(phases, draws=3, seed=1) == stability(phases, draws=3, seed=1)


def drawn(steps, **more):
    """Return the steps of each draw, as (host, step)."""
    seen = []

    def method(part):
        seen.append(part.frame.select("host", "step").rows())
        assert part.ops.select("host", "step").unique().height == len(part)
        return [0] * len(part)

    found = stability(phases_of(steps, [0] * len(steps), method), **more)
    return found, seen


def test_a_draw_is_four_fifths_of_the_steps_with_their_operations():
    _, seen = drawn(toy_steps("ab" * 10), draws=3)
    assert [len(part) for part in seen] == [16, 16, 16]
    assert len({tuple(part) for part in seen}) == 3
    assert all(part == sorted(part) for part in seen)


def test_of_several_hosts_whole_ones_are_drawn():
    hosts = [toy_steps("aab", host=name) for name in "vwxyz"]
    steps = Steps(pl.concat([host.frame for host in hosts]), pl.concat([host.ops for host in hosts]))
    found, seen = drawn(steps, draws=4)
    assert found.of == "4 of 5 hosts"
    assert all(len(part) == 12 and len({host for host, _ in part}) == 4 for part in seen)


def test_of_several_windows_whole_ones_are_drawn():
    steps = toy_steps("a" * 15)
    begin = [steps.frame["start_ps"][i] for i in range(0, 15, 3)]
    windows = pl.DataFrame(
        [("toy", i, at, 1, 1, 1, 1, 3, None, None) for i, at in enumerate(begin)], schema=schema.WINDOWS, orient="row"
    )
    found, seen = drawn(Steps(steps.frame, steps.ops, windows=windows), draws=4)
    assert found.of == "4 of 5 windows"
    for part in seen:
        assert len(part) == 12
        assert len({step // 3 for _, step in part}) == 4


def test_no_draw_is_beyond_bounds(monkeypatch):
    monkeypatch.setattr("tpunb.analysis.quality._MOST_DRAWN", 7)
    found, seen = drawn(toy_steps("ab" * 10), draws=2)
    assert [len(part) for part in seen] == [7, 7]
    assert found.of == "7 of 20 steps"


def test_unknown_stability_has_a_reason():
    one = stability(tp.phases(toy_steps("a")))
    assert (one.ari, str(one)) == (None, "unknown: 1 step traced in full")

    def gives_up(steps):
        raise TpunbError("too few steps")

    assert str(stability(phases_of(toy_steps("ab"), [0, 1], gives_up))) == "unknown: too few steps"


@pytest.mark.parametrize("draws", [0, True, 1.5])
def test_draws_are_a_count(draws):
    with pytest.raises(ValueError, match="The draws parameter of stability must be an int of 1 or more"):
        stability(tp.phases(toy_steps("ab")), draws=draws)


# -- the whole ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("judge", [assess, distinguishing_ops, stability])
def test_phases_are_judged_not_steps(judge):
    seen = rf"The phases parameter of {judge.__name__} must be Phases\. Got Steps\(2 steps"
    with pytest.raises(TypeError, match=seen) as caught:
        judge(toy_steps("ab"))
    assert caught.value.__notes__ == ["Hint: tp.phases(steps)"]


def test_coverage_never_stands_alone():
    phases = phases_of(toy_steps("aaaaabbbbb"), [0] * 10)
    quality = assess(phases, draws=3)
    assert (quality.coverage, quality.explained_variance, quality.noise) == (1.0, None, 0.0)
    assert quality.frame is phases.frame
    said = repr(quality).splitlines()
    assert said[0].startswith("Quality(1 phase over 10 steps, ")
    assert [line.split("  ")[1] for line in said[1:]] == [
        *("top 3 cover", "explained variance", "outliers", "stability", "confidence", "representatives")
    ]
    assert "op profile within" in said[-1]


@pytest.mark.parametrize("pattern", ["a", "ab", "abcdef"])
def test_of_few_steps_there_is_an_answer(pattern):
    assert repr(assess(tp.phases(toy_steps(pattern)))).startswith("Quality(")


def test_one_phase_for_everything_is_told_from_the_phases_that_are_there():
    run = synthetic_run(2000, 60, seed=1)
    true, one = phases_of(run.steps, run.phase), phases_of(run.steps, [0] * 2000)
    assert one.coverage() >= true.coverage()
    assert one.explained_variance is None
    assert true.explained_variance > 0.8
    assert tp.analysis.representatives(true, 10).error < 0.02 < tp.analysis.representatives(one, 1).error


# -- distinguishing operations -----------------------------------------------------------------------------------


def test_an_operation_that_only_one_phase_runs_distinguishes_it():
    run = steps_of(*[(100, {"dot": 90})] * 4, *[(100, {"dot": 90, "save": 9})] * 2)
    frame = distinguishing_ops(phases_of(run, [0, 0, 0, 0, 1, 1]), 1)
    assert frame.schema == schema.DISTINGUISHING_OPS
    assert frame.select("phase", "rank", "op", "inside_ps", "outside_ps", "inside_ran", "outside_ran").rows() == [
        (0, 1, "save", 0, 9, 0.0, 1.0),
        (1, 1, "save", 9, 0, 1.0, 0.0),
    ]


def test_times_distinguish_phases_of_the_same_operations():
    fast, slow = (
        (100_000_000, {"dot": 60_000_000, "infeed": 10_000_000}),
        ((150_000_000, {"dot": 60_000_000, "infeed": 60_000_000})),
    )
    frame = distinguishing_ops(phases_of(steps_of(fast, fast, fast, slow), [0, 0, 0, 1]))
    slowest = frame.filter(phase=1)
    assert set(slowest["block"]) <= {"log_self", "step_time"}
    infeed = slowest.row(by_predicate=pl.col("op") == "infeed", named=True)
    assert (infeed["inside_ps"], infeed["outside_ps"], infeed["outside_ran"]) == (60_000_000, 10_000_000, 1.0)
    time = slowest.row(by_predicate=pl.col("op") == "step time", named=True)
    assert (time["inside_ps"], time["outside_ps"]) == (150_000_000, 100_000_000)


def test_the_shares_are_of_the_squared_distance_in_the_methods_space():
    phases = tp.phases(toy_steps("aaaabbbbcczc"), DBSCAN(features="paper"))
    frame = distinguishing_ops(phases, 99)
    assert frame["block"].unique().sort().to_list() == ["durations", "invocations"]
    shares = frame.group_by("phase").agg(pl.col("share").sum())["share"].to_list()
    assert shares == pytest.approx([1.0] * len(phases))
    assert frame.filter(rank=1)["share"].min() > 0
    for _, rows in frame.group_by("phase"):
        assert rows["rank"].to_list() == list(range(1, rows.height + 1))
        assert rows["share"].is_sorted(descending=True)


def test_outliers_are_among_the_other_steps():
    frame = distinguishing_ops(phases_of(toy_steps("aabz"), [0, 0, 1, -1]))
    assert frame["phase"].unique().sort().to_list() == [0, 1]
    assert frame.filter(phase=0, op="z_host")["outside_ran"].to_list()[0] == 0.5


@pytest.mark.parametrize(
    ("pattern", "labels"), [("aab", [0, 0, 0]), ("ab", [-1, -1]), ("a", [0]), ("aaaa", [0, 0, 1, 1])]
)
def test_nothing_distinguishes_without_other_steps_or_differences(pattern, labels):
    frame = distinguishing_ops(toy_phases(pattern, labels))
    assert frame.is_empty()
    assert frame.schema == schema.DISTINGUISHING_OPS


@pytest.mark.parametrize("n", [0, True, 2.5])
def test_columns_are_a_count(n):
    with pytest.raises(ValueError, match="The n parameter of distinguishing_ops must be an int of 1 or more"):
        distinguishing_ops(toy_phases("ab", [0, 1]), n)


def test_a_strangers_features_are_not_ours():
    class Strange:
        features = "mine"

        def __call__(self, steps):
            return [0] * len(steps)

    steps = toy_steps("aabb")
    assert (
        distinguishing_ops(phases_of(steps, [0, 0, 1, 1], Strange())).height
        == distinguishing_ops(phases_of(steps, [0, 0, 1, 1])).height
        > 0
    )
