"""The curves that a method chose its parameters from."""

import polars as pl
import pytest
from test_charts import SWEEPS, phases_of, rows_of

import tpunb as tp
from tpunb import charts, pictures
from tpunb.errors import TpunbError
from tpunb.testing import toy_steps


@pytest.mark.parametrize(
    ("chart", "says"),
    [
        (charts.kmeans_elbow, "k = 2, sum of squared distances 2 "),
        (charts.dbscan_noise, "min_samples = 30, 2 clusters, 25.0 % noise"),
        (charts.dbscan_eps, "eps = 1, 2 clusters"),
        (charts.ols_phases, "threshold = 0.7, 2 phases"),
    ],
)
def test_a_sweep_marks_its_choice(chart, says):
    made = chart(phases_of())
    assert says in made.description
    assert says in pictures.svg(made)


@pytest.mark.parametrize(
    ("chart", "hint"),
    [
        (charts.kmeans_elbow, "KMeans"),
        (charts.dbscan_noise, "DBSCAN"),
        (charts.dbscan_eps, "DBSCAN"),
        (charts.ols_phases, "OLS"),
    ],
)
def test_a_missing_sweep_names_the_method_that_gives_it(chart, hint):
    with pytest.raises(TpunbError, match="swept") as caught:
        chart(phases_of(sweeps={}))
    assert f"tp.{hint}()" in caught.value.hint


def test_a_sweep_without_a_choice_or_with_nan_still_draws():
    sweep = SWEEPS["k"].with_columns(sse=pl.Series([1.0, float("nan"), 0.5]), chosen=pl.lit(False))
    chart = charts.kmeans_elbow(phases_of(sweeps={"k": sweep}))
    assert "none was chosen" in chart.description
    assert pictures.png(chart)


def test_all_three_choices_of_k_are_named():
    rules = {row["rule"]: row["k"] for row in rows_of(charts.kmeans_elbow(phases_of())) if "rule" in row}
    assert rules == {"elbow · elbow of the log": 2, "BIC": 3}


def test_ranges_of_eps_with_too_few_inside_are_faint():
    rows = [row for row in rows_of(charts.dbscan_eps(phases_of())) if "seen" in row]
    assert [(row["clusters"], row["seen"]) for row in rows] == [(4, 0.35), (2, 1.0), (1, 1.0)]
    assert min(row["low"] for row in rows) > 0  # the axis is a logarithm


def test_of_a_thousand_thresholds_the_turns_are_drawn():
    sweep = pl.DataFrame({"threshold": [i / 1000 for i in range(1001)]}).with_columns(
        phases=pl.when(pl.col("threshold") > 0.5).then(7).otherwise(1), chosen=pl.col("threshold") == 0.7
    )
    rows = rows_of(charts.ols_phases(phases_of(sweeps={"threshold": sweep})))
    assert sorted({(row["threshold"], row["phases"]) for row in rows}) == [
        (0, 1),
        (0.5, 1),
        (0.501, 7),
        (0.7, 7),
        (1, 7),
    ]


@pytest.mark.parametrize("pattern", ["a", "aaa", "aaabbbab", "abcdefghij"])
def test_what_the_methods_swept_can_be_drawn(pattern):
    steps = toy_steps(pattern)
    for method, chart in [
        (tp.KMeans(), charts.kmeans_elbow),
        (tp.DBSCAN(), charts.dbscan_noise),
        (tp.DBSCAN(), charts.dbscan_eps),
        (tp.OLS(), charts.ols_phases),
    ]:
        assert pictures.svg(chart(tp.phases(steps, method)))
