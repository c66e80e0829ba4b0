"""The explorer without a browser: every control is a trait, and what they give is what `tp.phases` gives."""

import json
import subprocess
import sys
from dataclasses import dataclass

import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from traitlets import TraitError

import tpunb as tp
from tpunb.errors import NoSteps
from tpunb.frames import Steps
from tpunb.testing import toy_steps
from tpunb.widgets.panel import told

TOY = toy_steps("aaaabbbbczz")
SHOWN = ("method", "min_samples", "k", "threshold", "ops", "phase", "window", "_frame", "_curve", "_scene", "_cut")
WORDS = {"min_samples": "dbscan", "k": "kmeans", "threshold": "ols", "ops": "olsplus"}


def both(*runs, name="two hosts"):
    """Several hosts in one run."""
    tables = (pl.concat([getattr(run, table) for run in runs]) for table in ("frame", "ops", "devices", "windows"))
    return Steps(*tables, name=name)


RUNS = {
    "toy": TOY,
    "one step": toy_steps("a"),
    "one phase": toy_steps("aaaaaa"),
    "no two alike": toy_steps("abcdef"),
    "by the clock": toy_steps("aaabbb", seen="fffttt"),
    "two hosts": both(toy_steps("aaabbb", host="h1"), toy_steps("abbbbb", host="h2")),
}


@pytest.fixture(scope="module", params=["keras_cnn", "keras_transformer"])
def sample(request):
    return tp.steps(tp.sample(request.param))


def is_cut(view, method=None):
    """Whether the panel holds the phases that a method gives: by default that of its own line of Python."""
    names = {"tp": tp, "steps": view.steps}
    expected = tp.phases(view.steps, method) if method is not None else eval(view.code, names)
    same = view.value.labels.equals(expected.labels) and view.value.frame.equals(expected.frame)
    return same and [row["phase"] for row in view._cut["phases"]] == expected.frame["phase"].head(12).to_list()


def settings_of(view):
    return {name: getattr(view, name) for name in SHOWN}


def heard_by(view):
    heard = []
    view.observe(lambda change: heard.append(change["new"]), "value")
    return heard


def each_method(view):
    """Every slider of a panel once, with what `tp.phases` is to be given for the same."""
    eps = tp.phases(view.steps).sweeps["eps"].filter("chosen")["eps"].item()  # the slider moves within one
    yield "min_samples", 3, tp.DBSCAN(min_samples=3, eps=eps)
    yield "k", 2, tp.KMeans(k=2)
    yield "threshold", 0.5, tp.OLS(0.5)
    yield "ops", 0.9, tp.OLSPlus(ops=0.9)
    yield "method", "hdbscan", tp.HDBSCAN()


def check_each_method(view):
    assert view.method == "dbscan"
    assert is_cut(view, tp.DBSCAN())
    heard = heard_by(view)
    for trait, setting, method in each_method(view):
        if trait in WORDS:  # a method begins where it chooses by itself
            view.method = WORDS[trait]
            assert is_cut(view, type(method)())
        setattr(view, trait, setting)
        assert view.method == WORDS.get(trait, setting)
        assert is_cut(view, method), trait
        assert is_cut(view)
        assert view._cut["headline"].startswith(f"{len(view.value)} phase")
    assert len({id(found) for found in heard}) == len(heard)  # each once


def test_every_setting_gives_what_phases_gives(sample):
    check_each_method(tp.explore(sample))


@pytest.mark.parametrize("name", RUNS)
def test_every_setting_gives_what_phases_gives_of_odd_runs(name):
    check_each_method(tp.explore(RUNS[name]))


def test_a_parameter_chooses_its_method_though_its_value_is_there_already():
    view = tp.explore(TOY)
    view.threshold = 0.5
    view.method = "dbscan"
    view.threshold = 0.5
    assert view.method == "ols"
    assert is_cut(view, tp.OLS(0.5))


def test_none_lets_the_method_choose_again():
    view = tp.explore(TOY)
    view.k = 2
    view.k = None
    assert view.k == view.value.sweeps["k"].filter("chosen")["k"].item()
    assert is_cut(view, tp.KMeans())


def test_a_panel_begins_whole_and_with_no_phase_standing_out():
    view = tp.explore(TOY)
    assert (view.window, view.phase, view.error) == (None, None, "")
    assert view._cut["number"] == 1


@dataclass(frozen=True)
class Every:
    n: int = 2

    def __call__(self, steps):
        return [i // self.n for i in range(len(steps))]


def by_halves(steps):
    return [2 * i // len(steps) for i in range(len(steps))]


@pytest.mark.parametrize("method", [Every(3), by_halves, lambda steps: [0] * len(steps)])
def test_a_method_of_ones_own_is_one_of_the_list(method):
    view = tp.explore(TOY, method=method)
    assert view.method == "own"
    assert is_cut(view, method)
    assert view._curve == {"method": "own", "spec": None, "knob": None, "table": None}
    assert next(choice["word"] for choice in view._frame["methods"]) == "own"
    view.k = 2
    view.method = "own"
    assert is_cut(view, method)


def test_the_code_of_a_function_is_its_name():
    assert tp.explore(TOY, method=by_halves).code == "tp.phases(steps, by_halves)"
    assert tp.explore(TOY, method=Every(3)).code == "tp.phases(steps, Every(n=3))"
    assert tp.explore(TOY, method=tp.OLS(0.9)).code == "tp.phases(steps, tp.OLS(threshold=0.9))"


FIXED = [
    (tp.KMeans(k=4), "k", 4),
    (tp.KMeans(choose="elbow"), "k", None),
    (tp.DBSCAN(min_samples=7), "min_samples", 7),
    (tp.DBSCAN(eps=0.5), "min_samples", None),
    (tp.DBSCAN.paper(), "min_samples", 5),
    (tp.OLS(0.9), "threshold", 0.9),
    (tp.OLSPlus(ops=0.8), "ops", 0.8),
]


@pytest.mark.parametrize(("method", "trait", "given"), FIXED, ids=lambda one: str(one))
def test_parameters_that_were_given_stay(method, trait, given):
    view = tp.explore(TOY, method=method)
    assert is_cut(view, method)
    assert given is None or getattr(view, trait) == given
    at = getattr(view, trait)
    view.method = "hdbscan"
    view.method = WORDS[trait]
    assert is_cut(view, method)
    setattr(view, trait, at)
    assert is_cut(view, method)
    setattr(view, trait, 1)  # all else stays as it was given
    assert getattr(view.value.method, trait) == 1
    fixed = {"features", "choose", "seed"} & set(vars(method))
    assert all(getattr(view.value.method, name) == getattr(method, name) for name in fixed)
    assert is_cut(view)


def test_phases_that_were_cut_already_are_the_first_to_be_shown():
    phases = tp.phases(TOY, tp.KMeans(k=2))
    assert tp.explore(phases).value is phases
    assert is_cut(tp.explore(phases, method=tp.OLS(0.5)), tp.OLS(0.5))


BAD = {
    "k": (0, "The k parameter of KMeans must be an int of 1 or more. Got 0 instead."),
    "min_samples": (-1, "The min_samples parameter of DBSCAN must be an int of 1 or more. Got -1 instead."),
    "threshold": (1.3, "The threshold parameter of OLS must be in [0, 1]. Got 1.3 instead."),
    "ops": (-0.5, "The ops parameter of OLSPlus must be in [0, 1]. Got -0.5 instead."),
    "phase": (99, "There is no phase 99; there are [-1, 0, 1, 2]."),
    "window": ([2, 1], "The window must be [from, to] in seconds, from before to. Got [2, 1] instead."),
    "method": ("own", "No method of yours was given; there are"),
}


@pytest.mark.parametrize("trait", BAD)
def test_a_refused_value_changes_nothing(trait):
    value, sentence = BAD[trait]
    view = tp.explore(TOY)
    before, found, heard = settings_of(view), view.value, heard_by(view)
    with pytest.raises((ValueError, TraitError)) as refused:
        setattr(view, trait, value)
    assert isinstance(refused.value, ValueError)
    assert str(refused.value).startswith(sentence)
    view.set_state({trait: value})  # what the page sends
    assert view.error.startswith(sentence)
    assert (settings_of(view), view.value, heard) == (before, found, [])


@pytest.mark.parametrize(("trait", "value"), [("k", 3), ("threshold", 0.2), ("min_samples", 5), ("method", "ols")])
def test_a_cut_that_fails_changes_nothing(monkeypatch, trait, value):
    view = tp.explore(TOY)
    view.k = 2
    view.min_samples = 4
    before, found, heard = settings_of(view), view.value, heard_by(view)

    def broken(*_):
        raise RuntimeError("no memory left")

    monkeypatch.setattr("tpunb.widgets.explorer.cut_into_phases", broken)
    with pytest.raises(RuntimeError, match="no memory"):
        setattr(view, trait, value)
    view.set_state({trait: value})
    assert view.error == "RuntimeError: no memory left"
    assert (settings_of(view), view.value, heard) == (before, found, [])
    monkeypatch.undo()
    view.set_state({trait: value})
    assert (view.error, getattr(view, trait)) == ("", value)
    assert is_cut(view)


def test_details_are_of_the_cut_of_now():
    view = tp.explore(TOY)
    assert view.details()["phase"] == 2  # zz is the longest
    assert dict(view.details(0)["facts"])["Steps"] == "4 (4 seen in full)"
    view.threshold = 0.0
    assert dict(view.details(0)["facts"])["Steps"] == "11 (11 seen in full)"
    with pytest.raises(KeyError, match="no phase 3"):
        view.details(3)


@pytest.mark.parametrize(
    "window", [[0], [0, 1, 2], ["a", "b"], [0, float("nan")], [0, 10**400], [-1e308, 1e308], [1, 1], []]
)
def test_no_window_but_a_stretch_of_time(window):
    view = tp.explore(TOY)
    before = settings_of(view)
    with pytest.raises(ValueError, match="The window must be"):
        view.window = window
    view.set_state({"window": window})
    assert view.error.startswith("The window must be")
    assert settings_of(view) == before
    view.k = 2  # and the panel goes on
    assert is_cut(view, tp.KMeans(k=2))


def test_the_window_cuts_the_ribbon_and_nothing_else():
    view = tp.explore(TOY)
    found, heard = view.value, heard_by(view)
    view.window = (0.001, 0.003)
    assert view.window == [0.001, 0.003]
    assert view._scene["edges"] == [0.001, 0.003]
    assert json.loads(view._cut["tables"])["ribbon"]["step"] == [1, 2]
    view.window = (500, 501)
    assert json.loads(view._cut["tables"])["ribbon"]["step"] == []
    view.window = None
    assert len(json.loads(view._cut["tables"])["ribbon"]["step"]) == len(TOY)
    assert (view.value, heard) == (found, [])


def test_a_phase_that_is_gone_stands_out_no_more():
    view = tp.explore(TOY)
    view.phase = 2
    view.threshold = 1.0
    view.threshold = 0.0
    assert len(view.value) == 1
    assert view.phase is None


VALUES = {
    "min_samples": st.none() | st.integers(-1, 6),
    "k": st.none() | st.integers(-1, 6),
    "threshold": st.none() | st.sampled_from([-0.5, 0.0, 0.5, 0.7, 1.0, 1.5, float("nan")]),
    "ops": st.none() | st.sampled_from([0.2, 0.9, 1.0, 2.0]),
    "method": st.sampled_from([*WORDS.values(), "hdbscan", "own", "nonsense"]),
    "phase": st.none() | st.integers(-2, 4),
    "window": st.none() | st.sampled_from([[0, 0.01], [0.002, 0.001], [0.005, 0.5], [7, 8], ["x"], []]),
}
SETTING = st.sampled_from(sorted(VALUES)).flatmap(lambda trait: st.tuples(st.just(trait), VALUES[trait]))


@settings(max_examples=12)
@given(st.lists(SETTING, min_size=1, max_size=8))
@example([("threshold", 0.5), ("method", "dbscan"), ("threshold", 0.5), ("k", 0), ("method", "own")])
def test_any_settings_in_any_order(asked):
    """By hand and through the page's door alike: what is taken gives its phases, what is refused changes nothing."""
    view, page = tp.explore(TOY), tp.explore(TOY)
    heard, of_page = heard_by(view), heard_by(page)
    for trait, value in asked:
        before, found, known = settings_of(view), view.value, len(heard)
        sentence = ""
        try:
            setattr(view, trait, value)
        except (TraitError, ValueError) as refused:
            sentence = told(refused)
            assert settings_of(view) == before
            assert view.value is found
        else:
            if trait in WORDS and (value, before[trait]) != (None, None):
                assert view.method == WORDS[trait]
            assert is_cut(view)
        assert len(heard) - known == (view.value is not found)
        if trait in WORDS and value == before[trait] and view.method != before["method"]:
            page.set_state({"method": view.method})  # a page sends nothing but what changed
        page.set_state({trait: value})
        assert page.error == sentence
        assert all(getattr(page, name) == getattr(view, name) for name in SHOWN[:8])
        assert page._curve["method"] == page.method
        assert {**page._cut, "number": 0} == {**view._cut, "number": 0}
    assert len(of_page) == len(heard)


def test_a_message_with_method_and_parameter_is_one_change():
    view = tp.explore(TOY)
    heard = heard_by(view)
    view.set_state({"k": 3, "method": "kmeans"})
    assert [found.method for found in heard] == [tp.KMeans(k=3)]
    view.set_state({"k": 0, "method": "ols"})
    assert (view.method, view.k, view._curve["method"]) == ("kmeans", 3, "kmeans")
    assert len(heard) == 1


@pytest.mark.parametrize("wrong", [{"steps": 3}, {"method": 3}, {"other": "x"}, {"checkpoints": 3}])
def test_what_cannot_be_explored(wrong):
    given = {"steps": TOY} | wrong
    with pytest.raises(TypeError, match=r"must be .* Got"):
        tp.explore(given.pop("steps"), **given)


def test_nothing_to_cut():
    with pytest.raises(NoSteps):
        tp.explore(toy_steps("aaa", seen="ttt"))
    with pytest.raises(NoSteps):
        tp.explore(toy_steps(""))


def test_all_of_it_is_noise():
    view = tp.explore(TOY, method=lambda steps: [-1] * len(steps))
    assert view._cut["headline"] == "0 phases over 11 steps; top 3 cover 100 %; noise 100 % of the time"
    assert [row["name"] for row in view._cut["phases"]] == ["Noise"]
    assert view.details()["phase"] == -1
    view.phase = -1


FRESH = """
import sys
import tpunb as tp
assert not {"anywidget", "ipywidgets", "IPython"} & {*sys.modules}, "by the import of tpunb alone"
from tpunb.testing import toy_steps
view = tp.explore(toy_steps("aaaabbbbczz"), other=toy_steps("aabbzz"), checkpoints=[3])
view.send = lambda content, buffers=None: content.get("error") and sys.exit(content["error"])
for name, value in dict(min_samples=3, k=2, threshold=0.5, ops=0.9, method="hdbscan", phase=0, window=[0, 1]).items():
    view.set_state({name: value})
    assert not view.error, view.error
asked = {"figures": {}, "reasons": {}, "runs": {}, "compare": {"unlike": True}, "export": {"kind": "svg"}}
for ask, more in asked.items():
    view._asked(None, {"ask": ask, "id": 1, "with": more}, [])
assert not {"tensorflow", "jax", "torch"} & {*sys.modules}, "by a callback"
"""


def test_no_callback_brings_a_framework():
    run = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
