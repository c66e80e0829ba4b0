"""The explorer without a browser: every control is a trait, and what they give is what `tp.phases` gives."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
from examples import examples
from hypothesis import example, given
from hypothesis import strategies as st
from traitlets import TraitError
from warm_python import NOTEBOOK, warm_python

import tpunb as tp
from tpunb.cluster import Curve, SliderSpec
from tpunb.errors import NoSteps
from tpunb.frames import Steps
from tpunb.frames.phases import Labels
from tpunb.testing import toy_steps
from tpunb.widgets import explorer, frontends
from tpunb.widgets.panel import format_error

SAMPLES = Path(__file__).parents[1] / "datasets" / "sample_profiles"

TOY = toy_steps("aaaabbbbczz")
SHOWN = ("clustering", "method", "min_samples", "k", "threshold", "ops", "phase", "time_range")
DRAWN = ("_frame", "_curve", "_axis", "_clusters")
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
    "by the clock": toy_steps("aaabbb", traced="fffnnn"),
    "two hosts": both(toy_steps("aaabbb", host="h1"), toy_steps("abbbbb", host="h2")),
}


def is_clustered(view, method=None):
    """Whether the panel holds the phases that a method gives: by default that of its own line of Python."""
    names = {"tp": tp, "steps": view.steps}
    expected = tp.phases(view.steps, method) if method is not None else eval(view.code, names)
    same = view.value.labels.equals(expected.labels) and view.value.frame.equals(expected.frame)
    return same and view._clusters["table"]["phases"] == expected.frame["phase"].head(12).to_list()


def settings_of(view):
    return {name: getattr(view, name) for name in (*SHOWN, *DRAWN)}


def values_of(view):
    """Every new value of the panel."""
    values = []
    view.observe(lambda change: values.append(change["new"]), "value")
    return values


def sent(name, value):
    """What the page sends to set a control."""
    if name in WORDS:
        return {"clustering": {"method": WORDS[name], name: value}}
    return {"clustering": {"method": value}} if name == "method" else {name: value}


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
    assert is_clustered(view, tp.DBSCAN())
    heard = values_of(view)
    for trait, setting, method in each_method(view):
        if trait in WORDS:  # a method begins where it chooses by itself
            view.method = WORDS[trait]
            assert is_clustered(view, type(method)())
        setattr(view, trait, setting)
        assert view.method == WORDS.get(trait, setting)
        assert is_clustered(view, method), trait
        assert is_clustered(view)
        assert view._clusters["headline"].startswith(f"{len(view.value)} phase")
    assert len({id(found) for found in heard}) == len(heard)  # each once


def test_every_setting_gives_what_phases_gives():
    check_each_method(tp.explore(tp.sample("keras_cnn")))


@pytest.mark.parametrize("name", RUNS)
def test_every_setting_gives_what_phases_gives_of_odd_runs(name):
    check_each_method(tp.explore(RUNS[name]))


def test_a_parameter_chooses_its_method_though_its_value_is_there_already():
    view = tp.explore(TOY)
    view.threshold = 0.5
    view.method = "dbscan"
    view.threshold = 0.5
    assert view.method == "ols"
    assert is_clustered(view, tp.OLS(0.5))


def test_none_lets_the_method_choose_again():
    view = tp.explore(TOY)
    view.k = 2
    view.k = None
    assert view.k == view.value.sweeps["k"].filter("chosen")["k"].item()
    assert is_clustered(view, tp.KMeans())


def test_a_panel_begins_whole_and_with_no_phase_standing_out():
    view = tp.explore(TOY)
    assert (view.time_range, view.phase, view.error, view.method) == (None, None, "", "dbscan")
    assert view._clusters["number"] == 1


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
    assert is_clustered(view, method)
    assert view._curve == {"method": "own", "spec": None, "slider": None, "table": None}
    assert next(choice["name"] for choice in view._frame["methods"]) == "own"
    view.k = 2
    view.method = "own"
    assert is_clustered(view, method)


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
    assert is_clustered(view, method)
    assert given is None or getattr(view, trait) == given
    at = getattr(view, trait)
    view.method = "hdbscan"
    view.method = WORDS[trait]
    assert is_clustered(view, method)
    setattr(view, trait, at)
    assert is_clustered(view, method)
    setattr(view, trait, 1)  # all else stays as it was given
    assert getattr(view.value.method, trait) == 1
    fixed = {"features", "choose", "seed"} & set(vars(method))
    assert all(getattr(view.value.method, name) == getattr(method, name) for name in fixed)
    assert is_clustered(view)


def test_phases_that_were_cut_already_are_the_first_to_be_shown():
    phases = tp.phases(TOY, tp.KMeans(k=2))
    assert tp.explore(phases).value is phases
    assert is_clustered(tp.explore(phases, method=tp.OLS(0.5)), tp.OLS(0.5))


BAD = {
    "k": (0, "The k parameter of KMeans must be an int of 1 or more. Got 0 instead."),
    "min_samples": (-1, "The min_samples parameter of DBSCAN must be an int of 1 or more. Got -1 instead."),
    "threshold": (1.3, "The threshold parameter of OLS must be in [0, 1]. Got 1.3 instead."),
    "ops": (-0.5, "The ops parameter of OLSPlus must be in [0, 1]. Got -0.5 instead."),
    "phase": (99, "There is no phase 99; there are [-1, 0, 1, 2]."),
    "time_range": ([2, 1], "The time range must be [from, to] in seconds, from before to. Got [2, 1] instead."),
    "method": ("own", "The method of clustering must be one of ['dbscan', "),
}


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        (
            "eps",
            0.5,
            "no setting .eps.; set one of method, min_samples, k, threshold, ops, phase, account",
        ),
        ("phase", "train", r"There is no phase 'train'; there are \['-1 \(outliers\)', '0 \(train \(fastest\)\)'"),
        ("time_range", 5, r"The time range must be \[from, to\] in seconds, from before to. Got 5 instead"),
    ],
)
def test_a_wrong_use_is_answered_by_what_to_type(name, value, sentence):
    with pytest.raises(ValueError, match=sentence):
        setattr(tp.explore(TOY), name, value)


def test_a_refused_value_changes_nothing():
    view = tp.explore(TOY)
    before, found, heard = settings_of(view), view.value, values_of(view)
    for trait, (value, sentence) in BAD.items():
        with pytest.raises((ValueError, TraitError)) as refused:
            setattr(view, trait, value)
        assert isinstance(refused.value, ValueError), trait
        assert str(refused.value).startswith(sentence)
        view.set_state(sent(trait, value))
        assert view.error.startswith(sentence)
        assert (settings_of(view), view.value, heard) == (before, found, []), trait


@pytest.mark.parametrize(("trait", "value"), [("k", 3), ("min_samples", 5), ("method", "ols")])
def test_a_cut_that_fails_changes_nothing(monkeypatch, trait, value):
    view = tp.explore(TOY)
    view.k = 2
    view.min_samples = 4
    before, found, heard = settings_of(view), view.value, values_of(view)

    def broken(*_):
        raise RuntimeError("no memory left")

    monkeypatch.setattr("tpunb.widgets.explorer.grouped", broken)
    with pytest.raises(RuntimeError, match="no memory"):
        setattr(view, trait, value)
    view.set_state(sent(trait, value))
    assert view.error == "RuntimeError: no memory left"
    assert (settings_of(view), view.value, heard) == (before, found, [])
    monkeypatch.undo()
    view.set_state(sent(trait, value))
    assert (view.error, getattr(view, trait)) == ("", value)
    assert is_clustered(view)


def test_details_are_of_the_cut_of_now():
    view = tp.explore(TOY)
    assert view.details()["phase"] == 2  # zz is the longest
    assert dict(view.details(0)["facts"]["rows"])["Steps"] == "4 (4 traced in full)"
    view.threshold = 0.0
    assert dict(view.details(0)["facts"]["rows"])["Steps"] == "11 (11 traced in full)"
    with pytest.raises(KeyError, match="no phase 3"):
        view.details(3)


def test_no_time_range_but_two_seconds_in_order():
    view = tp.explore(TOY)
    before = settings_of(view)
    for wrong in ([0], [0, 1, 2], ["a", "b"], [0, float("nan")], [0, 10**400], [-1e308, 1e308], [1, 1], []):
        with pytest.raises(ValueError, match="The time range must be"):
            view.time_range = wrong
        view.error = ""
        view.set_state({"time_range": wrong})
        assert view.error.startswith("The time range must be"), wrong
        assert settings_of(view) == before, wrong
    view.k = 2  # and the panel goes on
    assert is_clustered(view, tp.KMeans(k=2))


def test_the_time_range_changes_the_timeline_alone():
    view = tp.explore(TOY)
    found, heard = view.value, values_of(view)
    view.time_range = (0.001, 0.003)
    assert view.time_range == [0.001, 0.003]
    assert view._axis["edges"] == [0.001, 0.003]
    assert json.loads(view._clusters["tables"])["timeline"]["step"] == [1, 2]
    view.time_range = (500, 501)
    assert json.loads(view._clusters["tables"])["timeline"]["step"] == []
    view.time_range = None
    assert len(json.loads(view._clusters["tables"])["timeline"]["step"]) == len(TOY)
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
    "time_range": st.none() | st.sampled_from([[0, 0.01], [0.002, 0.001], [0.005, 0.5], [7, 8], ["x"], []]),
}
SETTING = st.sampled_from(sorted(VALUES)).flatmap(lambda trait: st.tuples(st.just(trait), VALUES[trait]))


@examples(6)
@given(st.lists(SETTING, min_size=1, max_size=8))
@example([("threshold", 0.5), ("method", "dbscan"), ("threshold", 0.5), ("k", 0), ("method", "own")])
def test_any_settings_in_any_order(asked):
    """From Python and from the page: a valid value gives its phases, an invalid one changes nothing."""
    view, page = tp.explore(TOY), tp.explore(TOY)
    values, of_page = values_of(view), values_of(page)
    for name, value in asked:
        before, phases, count = settings_of(view), view.value, len(values)
        sentence = ""
        unused = name in WORDS and (value, before[name]) == (None, None)
        try:
            setattr(view, name, value)
        except (TraitError, ValueError) as refused:
            sentence = format_error(refused)
            assert settings_of(view) == before
            assert view.value is phases
        else:
            if name in WORDS and not unused:
                assert view.method == WORDS[name]
            assert is_clustered(view)
        assert len(values) - count == (view.value is not phases)
        page.set_state({} if unused else sent(name, value))
        assert page.error == sentence
        assert all(getattr(page, trait) == getattr(view, trait) for trait in SHOWN)
        assert page._curve["method"] == page.method
        assert {**page._clusters, "number": 0} == {**view._clusters, "number": 0}
    assert len(of_page) == len(values)


def test_a_message_with_method_and_parameter_is_one_change():
    view = tp.explore(TOY)
    values = values_of(view)
    view.set_state({"clustering": {"method": "kmeans", "k": 3}})
    assert [phases.method for phases in values] == [tp.KMeans(k=3)]
    view.set_state({"clustering": {"method": "ols", "threshold": 7}})
    assert (view.method, view.k, view._curve["method"]) == ("kmeans", 3, "kmeans")
    assert len(values) == 1


def test_the_trait_of_the_clustering_is_method_and_parameter():
    view = tp.explore(TOY)
    view.clustering = {"method": "ols", "threshold": 1}
    assert (view.clustering, view.threshold) == ({"method": "ols", "threshold": 1.0}, 1.0)
    assert is_clustered(view, tp.OLS(1.0))
    view.clustering = {"method": "hdbscan"}
    view.clustering = {"method": "ols"}  # at its last value
    assert view.clustering == {"method": "ols", "threshold": 1.0}
    for wrong in ({}, {"method": "ols", "k": 3}, {"method": "hdbscan", "k": 3}, {"method": "ols", "threshold": "x"}):
        with pytest.raises(ValueError, match=r"must be|no slider for k"):
            view.clustering = wrong
    assert view.clustering == {"method": "ols", "threshold": 1.0}


@dataclass(frozen=True)
class Slow:
    """A method of the user's own that declares a slider and returns its sweep."""

    times: float | None = None

    slider = SliderSpec(
        "times", "times the median", step=0.1, least=1.0, most=3.0, curves=(Curve("slow", "slow steps"),)
    )

    def __call__(self, steps):
        took = steps.frame["dur_ps"] / steps.frame["dur_ps"].median()
        tried = [1.0, 1.5, 2.0] if self.times is None else [self.times]
        counts = [int((took > times).sum()) for times in tried]
        chosen = [times == tried[-1] for times in tried]
        sweep = pl.DataFrame({"times": tried, "slow": counts, "chosen": chosen})
        return Labels((took > tried[-1]).cast(pl.Int64), {"times": sweep})


@dataclass(frozen=True)
class Longer:
    """One that declares a slider and no curve."""

    times: int = 2

    slider = SliderSpec("times", "times the median", step=1, least=1, most=9)

    def __call__(self, steps):
        took = steps.frame["dur_ps"]
        return (took > self.times * took.median()).cast(pl.Int64)


@pytest.mark.parametrize(("method", "first"), [(Slow(), 2.0), (Slow(1.5), 1.5), (Longer(), 2), (Longer(4), 4)])
def test_a_method_of_the_users_own_has_the_slider_that_it_declares(method, first):
    view = tp.explore(tp.phases(TOY, method))
    assert view.clustering == {"method": "own", "times": first}
    slider = view._curve["slider"]
    assert (slider["parameter"], slider["label"]) == ("times", "times the median")
    assert (slider["least"], slider["most"]) == (method.slider.least, method.slider.most)
    assert (view._curve["spec"] is None) == isinstance(method, Longer)
    view.set_state({"clustering": {"method": "own", "times": 1}})
    assert view.value.method == type(method)(1)
    assert is_clustered(view, type(method)(1))
    view.k = 2
    view.method = "own"
    assert view.clustering == {"method": "own", "times": 1}
    json.dumps([view._curve, view._clusters], allow_nan=False)


@pytest.mark.parametrize("wrong", [{"steps": 3}, {"method": 3}, {"other": 3}, {"checkpoints": 3}])
def test_what_cannot_be_explored(wrong):
    given = {"steps": TOY} | wrong
    with pytest.raises(TypeError, match=r"must be .* Got"):
        tp.explore(given.pop("steps"), **given)


def test_nothing_to_cut():
    with pytest.raises(NoSteps):
        tp.explore(toy_steps(""))


def test_all_of_it_is_noise():
    view = tp.explore(TOY, method=lambda steps: [-1] * len(steps))
    assert view._clusters["headline"] == "0 phases over 11 steps"
    assert [row[0] for row in view._clusters["table"]["rows"]] == ["outliers"]
    assert view.details()["phase"] == -1
    view.phase = -1


CALLBACKS = """
import sys
import tpunb as tp
from tpunb.testing import toy_steps
view = tp.explore(toy_steps("aaaabbbbczz"), other=toy_steps("aabbzz"), checkpoints=[3])
view.send = lambda content, buffers=None: content.get("error") and sys.exit(content["error"])
sent = [dict(method="dbscan", min_samples=3), dict(method="kmeans", k=2), dict(method="hdbscan")]
for state in [*({"clustering": clustering} for clustering in sent), {"phase": 0}, {"time_range": [0, 1]}]:
    view.set_state(state)
    assert not view.error, view.error
asked = {"figures": {}, "reasons": {}, "runs": {}, "export": {"kind": "svg"}}
asked["compare"] = {"allow_different_models": True}
for ask, more in asked.items():
    view._asked(None, {"ask": ask, "id": 1, "with": more}, [])
assert not {"tensorflow", "jax", "torch"} & {*sys.modules}, "by a callback"
"""


@pytest.mark.live
def test_no_callback_brings_a_framework():
    run = subprocess.run([*warm_python(NOTEBOOK), "-c", CALLBACKS], capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr[-2000:]


def test_a_profile_and_its_path_are_explored_by_their_steps():
    path = SAMPLES / "keras_cnn"
    for run in (tp.load(path), path, str(path)):
        assert tp.explore(run, method="kmeans").value.method == tp.KMeans()


def sent_by(view, monkeypatch):
    """What a panel displays and sends to its page, in order: texts of displays, and the names of traits."""
    sent = []
    publish = SimpleNamespace(publish_display_data=lambda data, *_, **__: sent.append(data["text/plain"]))
    monkeypatch.setattr(frontends, "_display", lambda: publish)
    monkeypatch.setattr(view, "send_state", lambda key=None: sent.append({*key}))
    return sent


def test_a_panel_is_shown_before_its_steps_are_grouped(monkeypatch):
    view = tp.explore(TOY)
    page = view.get_state()
    assert page["_frame"]["pending"] == "Grouping 11 steps into phases …"
    assert json.loads(page["_clusters"]["tables"])["timeline"]["step"] == [*range(11)]
    sent = sent_by(view, monkeypatch)
    view._ipython_display_()
    traits = {"clustering", "_frame", "_curve", "_axis", "_clusters"}  # in one message
    assert sent == ["Grouping 11 steps into phases …", "", traits, repr(view.value)]
    assert "pending" not in view._frame
    assert is_clustered(view)


def test_what_fails_as_the_shown_steps_are_grouped_is_raised_and_shown(monkeypatch):
    view = tp.explore(TOY)
    with monkeypatch.context() as patch:
        sent_by(view, patch)
        patch.setattr(explorer, "grouped", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            view._ipython_display_()
        assert view.error == "ZeroDivisionError: division by zero"
    sent_by(view, monkeypatch)
    view._ipython_display_()
    assert view.error == ""
    assert is_clustered(view)
