"""Sliders of phase methods: their limits, and the method at each position."""

import math
from dataclasses import dataclass

import pytest

import tpunb as tp
from tpunb import charts
from tpunb.cluster import METHODS, SliderSpec
from tpunb.testing import toy_steps
from tpunb.widgets import sliders

TOY = toy_steps("aaaabbbbczz")
SLIDERS = {name: method.slider for name, method in METHODS.items() if name != "hdbscan"}


def grouped(name, **parameters):
    return tp.phases(TOY, METHODS[name](**parameters))


def test_each_method_has_a_name_and_a_title():
    assert [sliders.name_of(make()) for make in METHODS.values()] == [*METHODS]
    assert [sliders.title_of(name) for name in METHODS] == [
        *("DBSCAN", "HDBSCAN", "k-means", "OLS (the paper's scan)", "OLSPlus")
    ]
    assert sliders.name_of(tp.KMeans(k=4)) == "kmeans"
    assert sliders.name_of(lambda steps: []) == ""
    assert sliders.slider_of(tp.HDBSCAN()) is None
    assert all(sliders.slider_of(METHODS[name]()) is slider for name, slider in SLIDERS.items())


class Mine(tp.KMeans):
    """A method of the user's that is derived from one of the project's."""


def test_a_derived_method_is_the_users_own_and_keeps_the_slider():
    assert sliders.name_of(Mine()) == ""
    assert sliders.slider_of(Mine()) is tp.KMeans.slider


def test_a_slider_needs_a_dataclass_and_an_end():
    def function(steps):
        return [0] * len(steps)

    function.slider = SLIDERS["ols"]
    assert sliders.slider_of(function) is None
    with pytest.raises(ValueError, match="most parameter of SliderSpec must be given"):
        SliderSpec("k", "k", step=1, least=1)


@pytest.mark.parametrize(("name", "least"), [("dbscan", 1), ("kmeans", 1), ("ols", 0.0), ("olsplus", 0.5)])
def test_a_slider_covers_what_was_swept(name, least):
    slider, swept = SLIDERS[name], grouped(name)
    first, last = sliders.limits(slider, swept)
    sweep = swept.sweeps[slider.parameter]
    assert first == least
    assert last == (1.0 if slider.step < 1 else sweep[slider.parameter].max())
    assert first <= sliders.position(slider, swept) <= last
    assert sliders.position(slider, swept) == sweep.filter("chosen")[slider.parameter].item()


def test_one_step_has_a_slider_of_one_position():
    assert sliders.limits(SLIDERS["dbscan"], tp.phases(toy_steps("a"))) == (1, 1)


@pytest.mark.parametrize(
    ("name", "given", "at"),
    [
        ("dbscan", {"min_samples": 3}, 3),
        ("kmeans", {"k": 3}, 3),
        ("ols", {"threshold": 0.905}, 0.905),
        ("olsplus", {"ops": 0.8}, 0.8),
    ],
)
def test_a_given_value_is_the_position(name, given, at):
    assert sliders.position(SLIDERS[name], grouped(name, **given)) == at


def test_each_position_keeps_all_else():
    base = tp.DBSCAN(features="paper", sweep=(2, 3, 5))
    swept = tp.phases(TOY, base)
    eps = swept.sweeps["eps"].filter("chosen")["eps"].item()
    assert sliders.moved(SLIDERS["dbscan"], base, 5, swept) == tp.DBSCAN(5, eps, "paper", (2, 3, 5))
    fixed = tp.DBSCAN(eps=0.5)
    assert sliders.moved(SLIDERS["dbscan"], fixed, 5, tp.phases(TOY, fixed)) == tp.DBSCAN(5, 0.5)
    elbow = tp.KMeans(seed=3, choose="elbow")
    assert sliders.moved(SLIDERS["kmeans"], elbow, 2, swept) == tp.KMeans(2, seed=3, choose="elbow")
    assert sliders.moved(SLIDERS["ols"], tp.OLS(0.9), 0.5, swept) == tp.OLS(0.5)


def test_a_value_is_held_as_the_method_holds_it():
    checked = sliders.checked(SLIDERS["ols"], tp.OLS(), 1)
    assert (checked, type(checked)) == (1.0, float)
    assert type(sliders.checked(SLIDERS["kmeans"], tp.KMeans(), 2)) is int
    with pytest.raises(ValueError, match="int of 1 or more"):
        sliders.checked(SLIDERS["kmeans"], tp.KMeans(), 2.5)


def test_the_curve_of_a_given_parameter_is_swept_again_in_the_same_space():
    given = tp.DBSCAN(min_samples=3)
    phases = tp.phases(TOY, given)
    eps = phases.sweeps["eps"].filter("chosen")["eps"].item()
    assert sliders.sweeping(given, phases) == tp.DBSCAN(eps=eps)
    assert sliders.sweeping(tp.KMeans(k=4, choose="log"), phases) == tp.KMeans(choose="log")
    for method in (tp.OLS(0.9), tp.OLSPlus(ops=0.8), tp.DBSCAN(), tp.HDBSCAN()):
        assert sliders.sweeping(method, phases) is method


@pytest.mark.parametrize("name", SLIDERS)
def test_the_curve_as_a_table_has_the_parameter_first_and_the_choice_in_it(name):
    slider, swept = SLIDERS[name], grouped(name)
    table = sliders.sweep_table(swept.sweeps[slider.parameter])
    assert table["columns"][0] == slider.parameter.replace("_", " ")
    assert "chosen" not in table["columns"]
    assert 1 <= len(table["rows"]) <= 61
    at = sliders.position(slider, swept)
    assert any(math.isclose(float(row[0]), at, rel_tol=1e-3) for row in table["rows"])
    assert not {"nan", "inf", "None"} & {cell for row in table["rows"] for cell in row}


@dataclass(frozen=True)
class Bare:
    times: int = 2
    slider = SliderSpec("times", "times", step=1, least=1, most=3)

    def __call__(self, steps):
        return [0] * len(steps)


def test_charts_of_methods_that_have_one():
    assert sliders.chart(tp.phases(TOY, lambda steps: [0] * len(steps))) is None
    assert sliders.chart(tp.phases(TOY, Bare())) is None
    assert sliders.chart(tp.phases(toy_steps("a"), tp.HDBSCAN())) is None  # one step has no tree
    assert sliders.chart(tp.phases(TOY, tp.HDBSCAN())) is not None
    assert all(sliders.chart(grouped(name)) is not None for name in SLIDERS)


def test_the_title_is_without_the_name_of_the_run():
    chart = sliders.chart(tp.phases(TOY))
    assert "toy" not in str(chart.to_dict()["vconcat"][0]["title"])
    assert charts.sweep_curve(tp.phases(TOY)).to_dict()["vconcat"][0]["title"]["text"].endswith(" · toy")
