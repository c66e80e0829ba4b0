"""Tables for a page and for a terminal."""

from tpunb.widgets import html_tables as tables
from tpunb.widgets.html_tables import Table


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
