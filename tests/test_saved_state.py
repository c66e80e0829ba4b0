"""What a notebook saves of a live panel: small, and JSON as JavaScript reads it."""

import json

import polars as pl
import pytest
from simulate.synthetic_runs import synthetic_run

import tpunb as tp
from tpunb.testing import toy_steps

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
        "accounts": [frame["accounts"]],
    }


def most_of(view):
    """The panel with as much in it as its sliders can bring."""
    for method in METHODS:
        view.method = method
        yield view
    view.k = 15
    yield view


RUNS = {
    "sample": lambda: tp.steps(tp.sample("keras_cnn")),
    "hard": lambda: synthetic_run(20_000, 60, seed=21, hard=True).steps,
}


@pytest.mark.parametrize("run", RUNS)
def test_a_panel_is_small_and_holds_no_steps(run):
    steps = RUNS[run]()
    view = tp.explore(steps)
    assert len(text(view.get_state())) + len(text(view._repr_mimebundle_()[0])) < 120_000, "what a notebook gets"
    names = [op for op in steps.ops["op"].cast(pl.String).unique() if len(op) > 8]
    assert len(names) > 20 or run == "hard"
    for _ in most_of(view):
        sizes = {name: len(text(parts)) for name, parts in charts(view).items()}
        assert max(sizes.values()) < 30_000, (view.code, sizes)
        saved = text(view.get_state())
        assert len(saved) < 75_000, view.code
        assert not any(word in saved for word in ("dur_ps", "start_ps", "device_ps", *names))


@pytest.mark.parametrize("run", ["a", "aaaaaa", "abcdef", "aaabbb"])
def test_it_is_json(run):
    for view in most_of(tp.explore(toy_steps(run))):
        assert json.loads(text(view.get_state()))["clustering"]["method"] == view.method
