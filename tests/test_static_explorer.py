"""The explorer of ipywidgets alone."""

import pytest

import tpunb as tp
from tpunb.testing import toy_steps
from tpunb.widgets.explorer import explore

TOY = toy_steps("aaaabbbbczz")
VIEW = "application/vnd.jupyter.widget-view+json"


@pytest.fixture
def view():
    return explore(TOY)


@pytest.fixture
def panel(view):
    return view._plain_view()


def test_the_list_and_the_slider_are_the_traits(view, panel):
    panel.method.value = "kmeans"
    assert view.method == "kmeans"
    panel.slider.value = 2
    assert view.k == 2
    assert view.value.labels.equals(tp.phases(TOY, tp.KMeans(k=2)).labels)
    panel.method.value = "ols"
    assert (panel.slider.min, panel.slider.max, panel.slider.value) == (0.0, 1.0, 0.7)
    panel.slider.value = 0.5
    assert view.value.method == tp.OLS(0.5)


def test_what_is_shown_follows(panel):
    before = panel.phases.value
    panel.method.value = "ols"
    panel.slider.value = 0.0
    assert panel.phases.value != before
    assert "1 phase over 11 steps" in panel.phases.value
    assert "<svg" in panel.curve.value


def test_a_method_without_a_parameter_has_no_slider(panel):
    assert panel.slider in panel.children
    panel.method.value = "hdbscan"
    assert panel.slider not in panel.children
    panel.method.value = "ols"
    assert panel.slider in panel.children


def test_a_method_of_ones_own_is_in_the_list():
    panel = explore(TOY, method=lambda steps: [0] * len(steps))._plain_view()
    assert panel.method.value == "own"
    assert panel.curve.value == ""


def test_an_error_is_shown_in_the_panel(panel, monkeypatch):
    def broken(*_):
        raise ValueError("<b>no</b>")

    monkeypatch.setattr("tpunb.widgets.explorer.grouped", broken)
    panel.slider.value = 1
    assert "&lt;b&gt;no&lt;/b&gt;" in panel.alert.value
    assert 'role="alert"' in panel.alert.value
    monkeypatch.undo()
    panel.method.value = "kmeans"
    assert panel.alert.value == ""


def test_it_is_shown_where_other_widgets_cannot_be(view, monkeypatch):
    own = view.view_bundle()
    monkeypatch.setenv("TPUNB_WIDGETS", "plain")
    plain = view.view_bundle()
    assert {*own} == {*plain} == {VIEW}
    assert own[VIEW]["model_id"] == view.model_id
    assert plain[VIEW]["model_id"] != view.model_id
