"""Tables for a page and for a terminal."""

import polars as pl

from tpunb.frames import Phases, Steps
from tpunb.testing import toy_steps
from tpunb.widgets import tables
from tpunb.widgets.tables import Table


def cut(pattern):
    labels = pl.Series([ord(letter) - ord("a") for letter in pattern])
    return Phases(toy_steps(pattern), labels, lambda steps: [], pl.Series([0.0] * len(pattern)))


def test_phases_and_the_operations_of_the_longest():
    found = tables.of_phases(cut("aabb"))
    assert [table.caption for table in found] == [
        "Phases, longest first",
        "Top operations of Phase 1, device",
        "Top operations of Phase 1, host",
    ]
    assert found[0].rows[0] == ["Phase 1", "train", "2", "2", "66.7 %", "2.000", "0 %", "50 %"]
    assert found[1].rows == [
        ["b2", "50.0 %", "1.000", "6"],
        ["b1", "33.3 %", "0.667", "4"],
        ["b0", "16.7 %", "0.333", "2"],
    ]


def test_what_has_no_row_is_counted():
    (phases, *_) = tables.of_phases(cut("abcdefghijklmnop"))
    assert len(phases.rows) == tables.ROWS + 1
    assert phases.rows[-1][:4] == ["4 more", "–", "4", "4"]


def test_no_operation_no_table():
    phases = cut("ab")
    bare = Steps(phases.steps.frame, phases.steps.ops.clear())
    found = tables.of_phases(Phases(bare, phases.labels, phases.method, phases.far))
    assert [table.caption for table in found] == ["Phases, longest first"]


def test_cells_are_text_never_markup():
    evil = "</td><img src=x onerror=alert(1)>\x1b"
    page = tables.html(Table(evil, ["Phase", evil], [[evil, evil]]))
    assert "<img" not in page
    assert "\x1b" not in page
    assert page.count("&lt;img src=x onerror=alert(1)&gt;\ufffd") == 4
    assert tables.safe('"<&') == "&quot;&lt;&amp;"


def test_a_phase_has_its_colour_beside_its_name():
    rows = [["Phase 0", "1"], ["2 more", "2"]]
    page = tables.html(Table("c", ["Phase", "Steps"], rows, {"Phase 0": "#0072B2"}))
    assert page.count("tpunb-chip") == 1
    assert "background:#0072B2" in page
    assert '<th scope="row"' in page
    assert "tpunb-chip" not in tables.html(Table("c", ["Operation"], [["Phase 0"]]))


def test_text_is_aligned_and_long_names_are_cut():
    lines = tables.text([["Operation", "ms"], ["x" * 99, "1.0"], ["y", "20.0"]])
    assert len({len(line) for line in lines}) == 1
    assert "…" in lines[1]
    assert lines[2].endswith("  20.0")
