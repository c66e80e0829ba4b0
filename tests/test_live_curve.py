"""A method's curve with the rule that a slider moves."""

import pytest

import tpunb as tp
from tpunb import charts, pictures
from tpunb.charts.live_curve import slid
from tpunb.testing import toy_steps

CURVES = {
    "min_samples": (charts.dbscan_noise, tp.DBSCAN(), (1, 6), 2),
    "k": (charts.kmeans_elbow, tp.KMeans(), (1, 3), 2),
    "threshold": (charts.ols_phases, tp.OLS(), (0.0, 1.0), 0.7),
    "ops": (charts.olsplus_phases, tp.OLSPlus(), (0.5, 1.0), 0.97),
}


def plots(spec):
    return spec.get("vconcat", [spec])


@pytest.mark.parametrize("parameter", CURVES)
def test_every_plot_has_the_rule_and_ends_where_the_slider_ends(parameter):
    draw, method, ends, at = CURVES[parameter]
    chart = draw(tp.phases(toy_steps("aaaabbbbczz"), method))
    spec = slid(chart, parameter, ends, at)
    assert {"name": "at", "value": at} in spec["params"]
    for plot, before in zip(plots(spec), plots(pictures.spec(chart)), strict=True):
        rule = plot["layer"][-1]
        assert rule["mark"]["type"] == "rule"
        assert rule["transform"] == [{"calculate": "at", "as": parameter}]
        assert len(plot["layer"]) == len(before["layer"]) + 1
        along = [
            layer["encoding"]["x"]
            for layer in plot["layer"]
            if layer["encoding"].get("x", {}).get("field") == parameter
        ]
        assert len(along) >= 2  # the curve, and the rule
        assert all(x["scale"] == {"domain": [*ends], "nice": False, "zero": False} for x in along)


def test_the_chart_itself_stays_as_it_was():
    chart = charts.ols_phases(tp.phases(toy_steps("aaabbb"), tp.OLS()))
    before = pictures.spec(chart)
    slid(chart, "threshold", (0.0, 1.0), 0.7)
    assert pictures.spec(chart) == before
