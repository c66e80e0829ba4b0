"""The explorer's bar of accounts: what selecting one shows, live, in the saved page and in pictures."""

import json
import re
from dataclasses import replace

import polars as pl
import pytest
from traitlets import TraitError

import tpunb as tp
from tpunb import schema
from tpunb.charts.timeline_rows import HEIGHT, LANE, TOP, Timeline
from tpunb.frames.steps import WallClock
from tpunb.testing import toy_steps
from tpunb.widgets import exports, face
from tpunb.widgets import table as tables

MS = 10**9
SPANS = [("toy", 9 * MS, 10 * MS, "callbacks", "Slow.on_epoch_end")]
STALLS = [("toy", 10 * MS, 9 * MS, None, "callbacks", "train.py:4 in on_epoch_end ← time.sleep", 1.0, 8, False)]
LOAD = [("toy", 0, 0.1, 0.9, 1)]


def clocked(spans=SPANS, stalls=STALLS, load=(), wall_ms=20):
    """Six steps of 9 ms in all, then a callback of 10 ms, in a run of 20 ms."""
    frames = {"spans": (spans, schema.SPANS), "stalls": (stalls, schema.STALLS), "load": (load, schema.LOAD)}
    parts = {name: pl.DataFrame(rows, schema=kind, orient="row") for name, (rows, kind) in frames.items()}
    return replace(toy_steps("aaabbb"), wall=WallClock(wall_ms * MS, complete=True, **parts))


@pytest.fixture(scope="module")
def explorer():
    view = tp.explore(clocked())
    assert view.value
    return view


@pytest.fixture
def view(explorer):
    """The explorer of that run, with nothing selected."""
    explorer.account = explorer.time_range = None
    return explorer


def answer(view):
    return json.loads(json.dumps(view.answers()["accounts"](view.account)[0]))


def test_answer_and_bar_are_there_from_the_start_and_hold_no_segments(view):
    shown, bar = view._frame["answer"], view._frame["accounts"]
    assert face.html(shown).count("Callbacks took 10 ms of 20 ms (50 % of run time).") == 1
    assert ["code", {}, "Slow.on_epoch_end, train.py:4 in on_epoch_end ← time.sleep"] in shown[3]
    assert "Call it less often, or do its work in another thread or after training." in face.html(shown)
    assert "Saves up to 10 ms." in face.html(shown)
    assert bar["names"] == ["callbacks", "productive", "device idle", "preparation"]
    assert face.html(bar["bar"]).index("callbacks 10 ms") < face.html(bar["bar"]).index("productive 4.5 ms")
    assert bar["selected"] is None
    assert len(json.dumps(bar)) < 5_000


def test_an_account_marks_its_time_and_lists_its_details_and_stalls(view):
    view.account = "callbacks"
    chosen = answer(view)["selected"]
    assert chosen["heading"] == "callbacks: 10 ms, 50 % of wall time"
    assert chosen["marks"] == {"start": [0.009], "end": [0.019], "y": [TOP], "y2": [TOP + HEIGHT]}
    details, stalls = chosen["tables"]
    assert details["columns"] == ["Detail", "Time", "% of wall time", "Count"]
    assert details["rows"] == [["Slow.on_epoch_end", "10 ms", "50.0", "1"]]
    assert stalls["columns"][:2] == ["Stalls at", "Time"]
    assert [row[:2] for row in stalls["rows"]] == [["train.py:4 in on_epoch_end ← time.sleep", "9 ms"]]
    static = exports.static_bundle(view.state)["text/html"]
    assert all(tables.html(each) in static for each in chosen["tables"])
    view.account = "productive"
    assert "Stalls in productive" not in [each["caption"] for each in answer(view)["selected"]["tables"]]
    view.account = None
    assert answer(view)["selected"] is None


def test_marks_are_those_of_the_time_range(view):
    view.account = "callbacks"
    view.time_range = [0.012, 0.03]
    marks = answer(view)["selected"]["marks"]
    assert (marks["start"], marks["end"]) == ([0.012], [0.019])
    view.time_range = [0.0, 0.005]
    assert answer(view)["selected"]["marks"]["start"] == []


def test_a_slider_changes_no_account():
    view = tp.explore(replace(toy_steps("aaaddd"), wall=clocked().wall), method=tp.OLS(1.0))
    bar = view.state.spent
    view.threshold = 0.0  # one phase of steps of 1 and 4 ms
    assert len(view.value) == 1
    assert view.state.spent == bar


def test_the_timeline_reaches_to_the_end_of_the_run():
    assert Timeline(clocked()).edges == (0.0, 0.02)


def test_an_account_that_took_no_time_is_refused(view):
    with pytest.raises(
        TraitError, match=r"no account 'tuning'; there are \['callbacks', 'productive', 'device idle', 'preparation'\]"
    ):
        view.account = "tuning"
    assert view.account is None
    without = tp.explore(toy_steps("aab"))
    assert without.state.frame()["accounts"] is None
    with pytest.raises(TraitError):
        without.account = "productive"


def test_many_stretches_become_few_marks_as_high_as_their_part():
    spans = [("toy", (9_000 + 10 * i) * 10**6, 5 * 10**6, "callbacks", "Fast.on_batch_end") for i in range(1000)]
    view = tp.explore(clocked(spans=spans, stalls=[]))
    view.account = "callbacks"
    marks = answer(view)["selected"]["marks"]
    assert 1 <= len(marks["start"]) <= 480
    filled = sum(
        (end - start) * (y2 - y) / HEIGHT for start, end, y, y2 in zip(*marks.values(), strict=True)
    )  # of 1000 times 5 µs
    assert filled == pytest.approx(0.005, rel=0.05)


def test_neighbours_of_one_height_are_one_mark(monkeypatch):
    monkeypatch.setattr("tpunb.charts.timeline_rows._MARKED", 1)
    monkeypatch.setattr("tpunb.charts.timeline_rows.SLICES", 10)
    frame = pl.DataFrame(
        [("toy", 2 * MS, 6 * MS), ("toy", 8 * MS, 4 * MS), ("toy", 15 * MS, MS)],
        schema=["host", "start_ps", "dur_ps"],
        orient="row",
    )
    marks = Timeline(clocked()).account(frame)
    assert (marks["start"], marks["end"]) == ([0.002, 0.014], [0.012, 0.016])
    assert [y2 - y for y, y2 in zip(marks["y"], marks["y2"], strict=True)] == [HEIGHT, HEIGHT / 2]


def test_each_host_is_marked_on_its_lane():
    one, two = clocked(), toy_steps("aaabbb", host="zweiter")
    wall = replace(one.wall, spans=one.wall.spans.with_columns(host=pl.lit("zweiter")))
    both = replace(
        one,
        wall=wall,
        **{n: pl.concat([getattr(one, n), getattr(two, n)]) for n in ("frame", "ops", "devices", "windows")},
    )
    view = tp.explore(both)
    view.account = "callbacks"
    assert answer(view)["selected"]["marks"]["y"] == [LANE + TOP]


def test_the_saved_page_holds_every_account_and_the_selected_one(view):
    view.account = "callbacks"
    page = exports.page(view.state).decode()
    state = json.loads(re.search(r"\nconst state = (.*);\n", page)[1])
    assert state["account"] == "callbacks"
    assert [*state["_accounts"]] == ["callbacks", "productive", "device idle", "preparation"]
    assert state["_accounts"]["callbacks"] == answer(view)["selected"]
    assert "_accounts" not in exports.page(tp.explore(toy_steps("aab")).state).decode().partition("const state")[2]


def test_pictures_and_tables_begin_with_the_verdict_and_the_bar():
    view = tp.explore(clocked(load=LOAD))
    for html in (exports.static_html(view.state), exports.static_bundle(view.state)["text/html"]):
        assert "9 ms productive" not in html  # the bar has it
        assert html.index("Callbacks took 10 ms") < html.index("Where the time went") < html.index("<table")
        assert html.count("other programs used 80 % of its processors") == 1
    assert view._frame["warnings"] == []


@pytest.mark.parametrize("sample", ["keras_cnn", "qanet-squad"])
def test_accounts_and_verdict_do_not_depend_on_how_steps_are_grouped(sample):
    view = tp.explore(tp.sample(sample))
    first = [face.html(each) for each in (view.state.answer, view.state.spent)]
    moves = [("threshold", 0.2), ("threshold", 0.9), ("k", 2), ("k", 9), ("min_samples", 1), ("ops", 1.0)]
    for name, value in moves:
        setattr(view, name, value)
        now = [face.html(each) for each in (view.state.answer, view.state.spent)]
        assert [re.sub(' title="[^"]*"', "", html) for html in now] == [
            re.sub(' title="[^"]*"', "", html) for html in first
        ]
