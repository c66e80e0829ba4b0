"""Tables for a page and for a terminal, and that all views of a run draw the same."""

import json
from pathlib import Path

import polars as pl
import pytest

import tpunb as tp
from tpunb import schema
from tpunb.frames import Profile
from tpunb.testing import toy_steps
from tpunb.widgets import exports, face, phase_view
from tpunb.widgets import table as tables
from tpunb.widgets.summary import Summary
from tpunb.widgets.table import table


def test_cells_are_text_never_markup():
    evil = "</td><img src=x onerror=alert(1)>\x1b"
    page = tables.html(table(evil, ["Phase", evil], [[evil, evil]]))
    assert "<img" not in page
    assert "\x1b" not in page
    assert page.count("&lt;img src=x onerror=alert(1)&gt;\ufffd") == 4
    assert "<img" not in tables.html(table(evil, [evil], [[evil]]))
    assert "\x1b" not in json.dumps(table(evil, [evil], [[evil]]), ensure_ascii=False)
    assert tables.safe('"<&') == "&quot;&lt;&amp;"


def test_a_phase_has_its_colour_beside_its_name():
    rows = [["Phase 0", "1"], ["2 more", "2"]]
    page = tables.html(table("c", ["Phase", "Steps"], rows, colours=["#0072B2"]))
    assert page.count("tpunb-chip") == 1
    assert "background:#0072B2" in page
    assert '<th scope="row"' in page
    assert "tpunb-chip" not in tables.html(table("c", ["Operation", "Calls"], [["Phase 0", "1"]]))


def test_text_is_aligned_and_long_names_are_cut():
    caption, *lines = tables.text(table("c", ["Operation", "ms"], [["x" * 99, "1.0"], ["y", "20.0"]]))
    assert caption == "c"
    assert len({len(line) for line in lines}) == 1
    assert "…" in lines[1]
    assert lines[2].endswith("  20.0")


def test_one_column_is_a_list():
    sentences = table("What to do", ["What to do"], [["first"], ["second"]])
    assert tables.text(sentences) == ["What to do", "  first", "  second"]
    assert "<ol><li>first</li><li>second</li></ol>" in tables.html(sentences)


@pytest.fixture(scope="module")
def view():
    return tp.explore(toy_steps("aaabbbc"))


def test_panel_saved_page_static_view_and_text_draw_the_same_tables(view):
    phases, state = view.value, view.state
    operations = phase_view.operations(phases, phases.longest.id)
    shown = [phase_view.phase_table(phases), *operations]
    assert [view._clusters["table"], *view.details()["ops"]] == shown
    assert state.accounts()["advice"] == state.todo
    saved = json.loads(exports.page(state).decode().partition("const state = ")[2].partition(";\nrender(")[0])
    details = saved["_details"]["phases"][str(phases.longest.id)]
    assert json.loads(json.dumps(shown)) == [saved["_clusters"]["table"], *details["ops"]]
    assert saved["_advice"] == state.todo
    static = exports.static_bundle(state)["text/html"]
    assert face.html(state.todo) in static
    assert all(tables.html(each) in static for each in [*shown, view.details()["facts"], *view.details()["lists"]])
    profile = Profile("toy", Path("toy"), phases.steps.windows, pl.DataFrame(schema=schema.HARDWARE), 10**10)
    text = repr(Summary(profile, phases.steps, phases))
    assert all("\n".join(tables.text(each)) in text for each in shown)


def test_the_page_has_one_drawing_of_tables():
    scripts = {path.name: path.read_text() for path in Path(tables.__file__).parent.glob("browser/*.js")}
    assert [name for name, script in scripts.items() if 'make("td"' in script] == ["parts.js"]
    assert scripts["parts.js"].count('make("td"') == 1
