"""Curves that a method chose its parameters from, and the rule that a slider moves along them."""

from dataclasses import replace

import polars as pl
import pytest
from chart_checks import CURVES, SWEEPS, phases_of, rows_of

import tpunb as tp
from tpunb import charts
from tpunb.charts import render
from tpunb.charts.curves import with_slider
from tpunb.errors import TpunbError
from tpunb.testing import toy_steps

elbow, outliers, thresholds, similarities = CURVES[:4]


@pytest.mark.parametrize(
    ("chart", "says"),
    [
        (elbow, "k = 2, sum of squared distances 2, BIC -12"),
        (outliers, "min_samples = 30, outliers 25.0 % of steps, 2 clusters"),
        (charts.dbscan_eps, "eps = 1, 2 dense clusters"),
        (thresholds, "threshold = 0.7, 2 phases"),
        (similarities, "ops = 0.9, 2 phases, outliers 5.0 % of steps"),
        (charts.hdbscan_tree, "2 of 5 clusters are phases"),
    ],
)
def test_a_sweep_marks_its_choice(chart, says):
    made = chart(phases_of())
    assert says in made.description
    assert says in render.svg(made)


@pytest.mark.parametrize("chart", CURVES, ids=lambda chart: chart.__name__)
def test_a_missing_sweep_is_named(chart):
    with pytest.raises(TpunbError, match=r"has no sweep of .*; it has none") as caught:
        chart(phases_of(sweeps={}))
    assert "a method that chooses" in caught.value.hint


def test_a_method_that_declares_no_sweep():
    with pytest.raises(TpunbError, match="declares no sweep"):
        charts.sweep_curve(phases_of())
    with pytest.raises(TpunbError, match=r"HDBSCAN\(\) declares no sweep"):
        charts.sweep_curve(tp.phases(toy_steps("aab"), tp.HDBSCAN()))


def test_a_sweep_without_a_choice_or_with_nan_still_draws():
    sweep = SWEEPS["k"].with_columns(sse=pl.Series([1.0, float("nan"), 0.5]), chosen=pl.lit(False))
    chart = elbow(phases_of(sweeps={"k": sweep}))
    assert "none was chosen" in chart.description
    assert render.png(chart)


def test_all_three_choices_of_k_are_named():
    rules = {row["rule"]: row["k"] for row in rows_of(elbow(phases_of())) if "rule" in row}
    assert rules == {"elbow · elbow of the log": 2, "BIC": 3}


def test_ranges_of_eps_with_too_few_inside_are_faint():
    rows = [row for row in rows_of(charts.dbscan_eps(phases_of())) if "opacity" in row]
    assert [(row["clusters"], row["opacity"]) for row in rows] == [(4, 0.35), (2, 1.0), (1, 1.0)]
    assert min(row["low"] for row in rows) > 0  # the axis is a logarithm


def test_of_a_thousand_thresholds_the_turns_are_drawn():
    sweep = pl.DataFrame({"threshold": [i / 1000 for i in range(1001)]}).with_columns(
        phases=pl.when(pl.col("threshold") > 0.5).then(7).otherwise(1), chosen=pl.col("threshold") == 0.7
    )
    rows = rows_of(thresholds(phases_of(sweeps={"threshold": sweep})))
    assert sorted({(row["threshold"], row["phases"]) for row in rows}) == [
        (0, 1),
        (0.5, 1),
        (0.501, 7),
        (0.7, 7),
        (1, 7),
    ]


@pytest.mark.parametrize("chart", CURVES, ids=lambda c: c.__name__)
def test_counts_of_one_are_singular(chart):
    sweeps = {
        name: sweep.with_columns(pl.lit(1).alias(count) for count in ("clusters", "phases", "steps") if count in sweep)
        for name, sweep in SWEEPS.items()
    }
    said = {row["about"] for row in rows_of(chart(phases_of(sweeps=sweeps)))}
    assert said
    assert not [text for text in said if "1 clusters" in text or "1 phases" in text or "1 steps" in text]


def test_a_repr_of_several_lines_is_one_line_in_the_error():
    class Mine:
        def __call__(self, steps):
            return [0] * len(steps)

        def __repr__(self):
            return "Mine(\x1b[31m\n" + "x" * 500 + ")"

    with pytest.raises(TpunbError, match="has no sweep of threshold; it has none") as caught:
        thresholds(replace(phases_of(sweeps={}), method=Mine()))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 120


def test_names_of_rules_that_would_meet_are_in_lines_of_their_own():
    k = range(1, 16)
    takes = {"by_elbow": 3, "by_log": 4, "by_bic": 12}
    sweep = pl.DataFrame({"k": k, "sse": [100.0 / i for i in k], "bic": [float(i) for i in k]}).with_columns(
        *((pl.col("k") == at).alias(rule) for rule, at in takes.items()), chosen=pl.col("k") == 12
    )
    chart = elbow(phases_of(sweeps={"k": sweep}))
    assert {row["rule"]: row["line"] for row in rows_of(chart) if "rule" in row} == {
        "elbow": 0,
        "elbow of the log": 1,
        "BIC": 0,
    }


def test_the_chosen_eps_is_inside_the_frame_and_under_a_line():
    chart = charts.dbscan_eps(phases_of()).to_dict()
    rule, bars, diamond = chart["layer"]
    assert rule["mark"]["type"] == "rule"
    assert rule["encoding"]["x"]["field"] == "eps"
    assert diamond["encoding"]["y"]["scale"]["domain"] == [0, 4.5]
    assert bars["encoding"]["y"]["title"] == "dense clusters"


def test_similarity_is_drawn_with_its_phases_and_outliers():
    rows = rows_of(similarities(phases_of()))
    assert {(row["ops"], row["phases"], row["noise"]) for row in rows} == {(0.5, 1, 0), (0.9, 2, 5), (1, 5, 50)}
    assert "ops = 0.5, 1 phase, outliers 0.0 % of steps" in {row["about"] for row in rows}


def test_a_tree_is_blocks_of_steps_between_distances():
    chart = charts.hdbscan_tree(phases_of())
    blocks = {(row["left"], row["right"]): row for row in rows_of(chart)}
    assert {at: (round(row["top"], 3), round(row["bottom"], 3)) for at, row in blocks.items()} == {
        (0, 100): (6, 4),  # all steps, from half as far again as the first parting
        (0, 60): (4, 0.667),  # a leaf reaches below the last parting
        (60, 98): (4, 1),  # two steps fell out before
        (60, 96): (1, 0.667),
        (96, 97): (1, 0.667),
    }
    assert {row["about"] for row in blocks.values()} == {
        "a cluster of 100 steps",
        "a phase of 60 steps",
        "a cluster of 38 steps",
        "a phase of 36 steps",
        "a cluster of 1 step",
    }
    assert {row["text"] for row in blocks.values()} == {"100", "60", "38", "36", None}  # no room for 1
    assert not any(chart.to_dict()["layer"][0]["encoding"][axis]["axis"]["grid"] for axis in "xy")


def test_one_step_has_no_tree_and_one_cluster_is_one_phase():
    with pytest.raises(TpunbError, match="one step has no tree") as caught:
        charts.hdbscan_tree(tp.phases(toy_steps("a"), tp.HDBSCAN()))
    assert caught.value.hint
    assert "1 of 1 cluster is a phase" in charts.hdbscan_tree(tp.phases(toy_steps("aaa"), tp.HDBSCAN())).description


@pytest.mark.parametrize("pattern", ["a", "aaabbbab"])
def test_what_the_methods_swept_can_be_drawn(pattern):
    steps = toy_steps(pattern)
    for method, chart in [
        *((method, charts.sweep_curve) for method in (tp.KMeans(), tp.DBSCAN(), tp.OLS(), tp.OLSPlus())),
        (tp.DBSCAN(), charts.dbscan_eps),
        (tp.HDBSCAN(), charts.hdbscan_tree),
    ]:
        if pattern == "a" and chart is charts.hdbscan_tree:
            continue  # one step has no tree
        assert render.svg(chart(tp.phases(steps, method)))


SLIDERS = {
    "min_samples": (tp.DBSCAN(), (1, 6), 2),
    "k": (tp.KMeans(), (1, 3), 2),
    "threshold": (tp.OLS(), (0.0, 1.0), 0.7),
    "ops": (tp.OLSPlus(), (0.5, 1.0), 0.97),
}


@pytest.mark.parametrize("parameter", SLIDERS)
def test_every_plot_has_the_rule_and_ends_where_the_slider_ends(parameter):
    method, ends, at = SLIDERS[parameter]
    chart = charts.sweep_curve(tp.phases(toy_steps("aaaabbbbczz"), method))
    before = render.spec(chart)
    spec = with_slider(chart, parameter, ends, at)
    assert {"name": "at", "value": at} in spec["params"]
    assert render.spec(chart) == before
    for plot, was in zip(spec["vconcat"], before["vconcat"], strict=True):
        rule = plot["layer"][-1]
        assert rule["mark"]["type"] == "rule"
        assert rule["transform"] == [{"calculate": "at", "as": parameter}]
        assert len(plot["layer"]) == len(was["layer"]) + 1
        along = [
            layer["encoding"]["x"]
            for layer in plot["layer"]
            if layer["encoding"].get("x", {}).get("field") == parameter
        ]
        assert len(along) >= 2  # the curve, and the rule
        assert all(x["scale"] == {"domain": [*ends], "nice": False, "zero": False} for x in along)
