"""Who sets the explorer's traits, and when: the last that is asked for holds, and nothing is lost between threads."""

import threading

import polars as pl
import pytest

import tpunb as tp
from tpunb.testing import toy_steps

TOY = toy_steps("aabbaacc")


def test_a_value_set_while_another_thread_cuts_is_neither_lost_nor_unchecked(monkeypatch):
    view = tp.explore(TOY)
    inside, go_on = threading.Event(), threading.Event()
    from tpunb.widgets import explorer

    cut = explorer.grouped

    def slow(steps, method):
        inside.set()
        assert go_on.wait(120)
        return cut(steps, method)

    monkeypatch.setattr(explorer, "grouped", slow)
    page = threading.Thread(target=view.set_state, args=({"clustering": {"method": "kmeans", "k": 2}},))
    page.start()
    assert inside.wait(120)
    refused = []

    def cell():
        try:
            view.threshold = 7.0
        except ValueError as error:
            refused.append(error)
        view.threshold = 0.4

    other = threading.Thread(target=cell)
    other.start()
    go_on.set()
    page.join(120)
    other.join(120)
    assert [str(error) for error in refused] == ["The threshold parameter of OLS must be in [0, 1]. Got 7.0 instead."]
    assert (view.method, view.threshold, view.k) == ("ols", 0.4, 2)
    assert view.code == "tp.phases(steps, tp.OLS(threshold=0.4))"


def test_answers_are_of_the_clustering_that_is_shown():
    view = tp.explore(TOY, method=tp.OLS())
    view.phase = 3
    seen_details = []
    view.observe(lambda change: seen_details.append(view.details(0)), "phase")  # asked while the cut is changing
    view.threshold = 0.0
    assert seen_details
    assert view.phase is None
    assert view.details(0)["facts"]["rows"][0] == ["Steps", "8 (8 traced in full)"]


def test_the_value_is_the_panels_own():
    view = tp.explore(TOY)
    with pytest.raises(Exception, match="read-only"):
        view.value = tp.phases(TOY, tp.OLS())


def test_labels_may_be_any_numbers_and_a_start_may_be_unknown():
    view = tp.explore(TOY, method=lambda steps: [10**12 if i % 2 else 5 for i in range(len(steps))])
    assert {*view.value.labels} == {5, 10**12}
    assert {*view._clusters["table"]["phases"]} == {5, 10**12}
    unknown = TOY.frame.with_columns(start_ps=pl.when(pl.col("step") > 0).then("start_ps"))
    assert len(tp.explore(type(TOY)(unknown, TOY.ops)).value.labels) == len(TOY)
