"""What a notebook saves of a live panel: small, and JSON as JavaScript reads it."""

import json

import polars as pl
import pytest

import tpunb as tp
from tpunb.testing import synthetic_run, toy_steps

METHODS = ("dbscan", "kmeans", "ols", "olsplus", "hdbscan")


def text(value):
    """What a front end saves: JSON without NaN, as JavaScript writes it."""
    return json.dumps(value, allow_nan=False, default=str, separators=(",", ":"))


def charts(view):
    """The state of each chart: what it is drawn by, and what in it."""
    state = view.get_state()
    frame, clusters = state["_frame"], state["_clusters"]
    return {
        "timeline": [frame["timeline"], frame["layout"], clusters["tables"], state["_axis"]],
        "curve": [state["_curve"]],
        "coverage": [frame["coverage"], clusters["phases"]],
        "accounts": [frame["accounts"]],
    }


def most_of(run):
    """The panel with as much in it as its sliders can bring."""
    view = tp.explore(run)
    for method in METHODS:
        view.method = method
        yield view
    view.k = 15
    yield view


@pytest.mark.parametrize("run", ["sample", "hard"])
def test_each_chart_is_22_kb_at_most_and_the_whole_70(run):
    hard = synthetic_run(20_000, 60, seed=21, hard=True).steps
    for view in most_of(hard if run == "hard" else tp.steps(tp.sample("keras_cnn"))):
        sizes = {name: len(text(parts)) for name, parts in charts(view).items()}
        assert max(sizes.values()) < 22_000, (view.code, sizes)
        assert len(text(view.get_state())) < 70_000, view.code


@pytest.mark.parametrize("run", ["sample", "hard"])
def test_a_panel_adds_120_kb_to_a_notebook_at_most(run):
    hard = synthetic_run(20_000, 60, seed=21, hard=True).steps
    view = tp.explore(hard if run == "hard" else tp.steps(tp.sample("keras_cnn")))
    assert len(text(view.get_state())) + len(text(view._repr_mimebundle_()[0])) < 120_000


def test_it_holds_no_steps():
    steps = tp.steps(tp.sample("keras_cnn"))
    names = [op for op in steps.ops["op"].cast(pl.String).unique() if len(op) > 8]
    assert len(names) > 20
    for view in most_of(steps):
        saved = text(view.get_state())
        assert not any(word in saved for word in ("dur_ps", "start_ps", "device_ps", *names))


@pytest.mark.parametrize("run", ["a", "aaaaaa", "abcdef", "aaabbb"])
def test_it_is_json(run):
    for view in most_of(toy_steps(run)):
        assert json.loads(text(view.get_state()))["clustering"]["method"] == view.method
