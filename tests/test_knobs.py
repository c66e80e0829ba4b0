"""The slider of each method: its stops, and the method that each stop gives."""

import math

import pytest

import tpunb as tp
from tpunb.testing import toy_steps
from tpunb.widgets import knobs
from tpunb.widgets.knobs import KNOBS, METHODS, TITLES

TOY = toy_steps("aaaabbbbczz")


def cut(word, **parameters):
    return tp.phases(TOY, METHODS[word](**parameters))


def test_each_method_has_a_word_and_a_title():
    assert {*METHODS} == {*TITLES} == {*KNOBS, "hdbscan"}
    assert [knobs.word(make()) for make in METHODS.values()] == [*METHODS]
    assert knobs.word(tp.KMeans(k=4)) == "kmeans"
    assert knobs.word(lambda steps: []) == ""


class Mine(tp.KMeans):
    """A method of one's own that is much like one of ours."""


def test_a_method_derived_from_ours_is_a_strangers():
    assert knobs.word(Mine()) == ""


@pytest.mark.parametrize(("word", "least"), [("dbscan", 1), ("kmeans", 1), ("ols", 0.0), ("olsplus", 0.5)])
def test_a_slider_goes_over_what_was_swept(word, least):
    knob, swept = KNOBS[word], cut(word)
    first, last = knob.stops(swept)
    assert first == least
    assert last == (1.0 if knob.step < 1 else swept.sweeps[knob.parameter][knob.parameter].max())
    assert first <= knob.chosen(swept) <= last
    assert knob.chosen(swept) == swept.sweeps[knob.parameter].filter("chosen")[knob.parameter].item()


def test_one_step_has_a_slider_of_one_stop():
    one = tp.phases(toy_steps("a"))
    assert KNOBS["dbscan"].stops(one) == (1, 1)


@pytest.mark.parametrize(
    ("word", "given", "at"),
    [
        ("dbscan", {"min_samples": 3}, 3),
        ("kmeans", {"k": 3}, 3),
        ("ols", {"threshold": 0.905}, 0.905),
        ("olsplus", {"ops": 0.8}, 0.8),
    ],
)
def test_what_was_given_is_where_the_slider_stands(word, given, at):
    knob = KNOBS[word]
    assert knob.chosen(cut(word, **given)) == at
    assert knob.of(METHODS[word](**given)) == at


def test_each_stop_keeps_all_else():
    base = tp.DBSCAN(features="paper", sweep=(2, 3, 5))
    swept = tp.phases(TOY, base)
    eps = swept.sweeps["eps"].filter("chosen")["eps"].item()
    assert KNOBS["dbscan"].at(5, base, swept) == tp.DBSCAN(5, eps, "paper", (2, 3, 5))
    fixed = tp.DBSCAN(eps=0.5)
    assert KNOBS["dbscan"].at(5, fixed, tp.phases(TOY, fixed)) == tp.DBSCAN(5, 0.5)
    assert KNOBS["kmeans"].at(2, tp.KMeans(seed=3, choose="elbow"), swept) == tp.KMeans(2, seed=3, choose="elbow")
    assert KNOBS["ols"].at(0.5, tp.OLS(0.9), swept) == tp.OLS(0.5)


def test_the_curve_of_a_given_parameter_is_swept_anew_in_the_same_space():
    given = tp.DBSCAN(min_samples=3)
    found = tp.phases(TOY, given)
    free = KNOBS["dbscan"].free(given, found)
    assert free == tp.DBSCAN(eps=found.sweeps["eps"].filter("chosen")["eps"].item())
    assert KNOBS["kmeans"].free(tp.KMeans(k=4, choose="log"), found) == tp.KMeans(choose="log")
    assert KNOBS["ols"].free(tp.OLS(0.9), found) == tp.OLS(0.9)


@pytest.mark.parametrize("word", KNOBS)
def test_the_curve_as_a_table_has_the_parameter_first_and_the_choice_in_it(word):
    knob, swept = KNOBS[word], cut(word)
    table = knobs.table(swept.sweeps[knob.parameter])
    assert next(iter(table)) == knob.parameter
    assert "chosen" not in table
    assert len({len(column) for column in table.values()}) == 1
    assert 1 <= len(table[knob.parameter]) <= 61
    assert any(math.isclose(value, knob.chosen(swept), rel_tol=1e-3) for value in table[knob.parameter])
    assert not any(
        isinstance(value, float) and not math.isfinite(value) for column in table.values() for value in column
    )


def test_charts_of_methods_that_have_one():
    assert knobs.chart("own", cut("ols")) is None
    assert knobs.chart("hdbscan", tp.phases(toy_steps("a"), tp.HDBSCAN())) is None  # one step has no tree
    assert knobs.chart("hdbscan", tp.phases(TOY, tp.HDBSCAN())) is not None
    assert all(knobs.chart(word, cut(word)) is not None for word in KNOBS)


def test_the_title_stands_without_the_name_of_the_run():
    spec = {"vconcat": [{"title": {"text": "What · toy · a"}}, {}]}
    assert knobs.untitled(spec)["vconcat"][0]["title"]["text"] == "What"
    assert knobs.untitled({"title": "plain"}) == {"title": "plain"}
    assert knobs.untitled({}) == {}
