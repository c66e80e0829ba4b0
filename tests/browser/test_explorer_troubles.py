"""The explorer in a real browser where something is amiss: names that are markup, errors, a busy kernel, a reload."""

import pytest

from browser.jupyter_pages import KERNEL, errors, eventually, expect, idle, python, run_all, save

pytestmark = pytest.mark.live

CELLS = (
    """import time
from pathlib import Path
import polars as pl
import tpunb as tp
from dataclasses import replace
from tpunb.testing import toy_events, toy_steps
from tpunb.widgets import explorer, sliders

BAD = "<img src=x onerror='window.ran = true'>"
def marked(steps):
    name = lambda column: (pl.lit(BAD) + pl.col(column).cast(pl.String)).alias(column)
    frame = steps.frame.with_columns(name("host"), name("kind"))
    ops = steps.ops.with_columns(name("host"), name("op"))
    devices = steps.devices.with_columns(name("host"), name("device"))
    windows = steps.windows.with_columns(name("host"))
    return replace(steps, frame=frame, ops=ops, devices=devices, windows=windows, name=BAD)
really, drawn = explorer.grouped, sliders.chart
def wait_for(name):  # until the test makes the file
    while not Path(name).exists():
        time.sleep(0.01)
steps = toy_steps("aaaabbbbbbccccc" * 4)""",
    "view = tp.explore(steps)\nview",
    "bad = tp.explore(marked(steps), checkpoints={BAD: 7}, other=marked(toy_steps('aaabbb')))\nbad",
    "def longer(steps):\n"
    "    twice = pl.col('^.*_ps$') * 2\n"
    "    return replace(steps, frame=steps.frame.with_columns(twice), ops=steps.ops.with_columns(twice), name='slow')\n"
    "both = tp.explore(replace(steps, name='fast'), other=longer(steps))\nboth",
    "model = lambda name: replace(steps, name='unlike', metadata={'model': name})\n"
    "unlike = tp.explore(model('a'), other=model('b'))\nunlike",
    "steps_of = [('/host:CPU', 'python', BAD, 1000 * i, 500, i) for i in range(6)]\n"
    "raw = tp.explore(replace(toy_steps('aaabbb'), name='raw', read_events=lambda: toy_events(*steps_of)))\nraw",
)
NOTEBOOK = "troubles.ipynb"
BROKEN = "def broken(*_): raise RuntimeError('no <b>luck</b>')\n"
MEND = """explorer.grouped, sliders.chart = really, drawn
view.threshold, view.error = 0.7, ""
"""


@pytest.fixture(scope="module")
def shown(jupyter):
    """Five explorers below each other, in JupyterLab."""
    page = jupyter.open(NOTEBOOK, *CELLS)
    run_all(page)
    assert errors(page) == []
    return page


@pytest.fixture
def panel(shown):
    """The first of them, cut by OLS, nothing amiss any more."""
    python(shown, MEND)
    found = region(shown, "toy")
    found.scroll_into_view_if_needed()
    expect(found.locator(".tpunb-code")).to_have_text("tp.phases(steps, tp.OLS())")
    expect(found.get_by_role("slider")).to_have_value("0.7")
    expect(found.get_by_role("alert")).to_have_count(0)
    yield found
    assert shown.complaints == []


def region(page, name):
    return page.get_by_role("region", name=f"Explorer of phases: {name}", exact=True)


def press(panel, *keys):
    panel.get_by_role("slider").focus()
    for key in keys:
        panel.page.keyboard.press(key)


# -- errors and a busy kernel -----------------------------------------------------------------------------------------


def test_an_exception_is_shown_and_the_last_clustering_stays(panel):
    python(panel.page, BROKEN + "explorer.grouped = broken")
    before = panel.get_by_role("status").first.text_content()
    press(panel, "ArrowRight")
    expect(panel.get_by_role("alert")).to_have_text("RuntimeError: no <b>luck</b>")
    assert panel.get_by_role("status").first.text_content() == before
    expect(panel.locator(".tpunb-code")).to_have_text("tp.phases(steps, tp.OLS())")
    assert python(panel.page, "print(view.threshold, view.value.method)") == "0.7 OLS()"

    python(panel.page, "explorer.grouped = really")
    press(panel, "ArrowLeft", "ArrowLeft")
    expect(panel.get_by_role("alert")).to_have_count(0)
    value = panel.get_by_role("slider").input_value()
    expect(panel.locator(".tpunb-code")).to_have_text(f"tp.phases(steps, tp.OLS(threshold={value}))")


def test_a_chart_that_cannot_be_made_leaves_the_method_as_it_was(panel):
    python(panel.page, BROKEN + "sliders.chart = broken")
    method = panel.get_by_role("combobox", name="Method")
    method.select_option(label="OLSPlus")
    expect(panel.get_by_role("alert")).to_have_text("RuntimeError: no <b>luck</b>")
    expect(method).to_have_value("ols")
    assert python(panel.page, "sliders.chart = drawn; print(view.method)") == "ols"
    method.select_option(label="OLSPlus")
    expect(panel.get_by_role("alert")).to_have_count(0)
    expect(panel.locator(".tpunb-code")).to_have_text("tp.phases(steps, tp.OLSPlus())")


def test_it_says_that_it_is_busy_and_then_no_more(panel, jupyter):
    python(
        panel.page,
        "files = ['first', 'second']\ndef slow(*a):\n    wait_for(files.pop(0))\n    return really(*a)\n"
        "explorer.grouped = slow",
    )
    busy = panel.get_by_text("working …")
    expect(busy).to_be_hidden()
    press(panel, "ArrowLeft", "ArrowLeft")
    expect(busy).to_be_visible()
    (folder := jupyter.folder_of(NOTEBOOK)).joinpath("first").touch()
    expect(panel.locator(".tpunb-code")).to_have_text("tp.phases(steps, tp.OLS(threshold=0.69))")
    expect(busy).to_be_visible()  # the second is still to come
    folder.joinpath("second").touch()
    expect(panel.locator(".tpunb-code")).to_have_text("tp.phases(steps, tp.OLS(threshold=0.68))")
    expect(busy).to_be_hidden()


def test_sliding_while_a_cell_runs_does_no_harm_and_the_last_value_holds(panel, jupyter):
    counted = "total = 0\nwait_for('slid')\nfor i in range(20):\n    total += i"
    panel.page.evaluate(f"code => {{ {KERNEL}.requestExecute({{code}}); }}", counted)
    press(panel, *["ArrowLeft"] * 8)
    expect(panel.get_by_role("slider")).to_have_value("0.62")  # the thumb follows the hand at once
    jupyter.folder_of(NOTEBOOK).joinpath("slid").touch()
    assert python(panel.page, "print(total)") == "190"  # when the cell has ended
    expect(panel.locator(".tpunb-code")).to_have_text("tp.phases(steps, tp.OLS(threshold=0.62))")
    assert python(panel.page, "print(view.threshold, view.value.method)") == "0.62 OLS(threshold=0.62)"


def test_a_method_with_a_slider_replaces_one_without(panel):
    """The chart of HDBSCAN is on the page, and has no rule for a slider to move."""
    method = panel.get_by_role("combobox", name="Method")
    method.select_option(label="HDBSCAN")
    expect(panel.get_by_text("HDBSCAN: condensed tree")).to_be_visible()
    python(panel.page, "view._first.pop('kmeans', None), view._swept.pop('kmeans', None)")  # as if never computed
    method.select_option(label="k-means")
    expect(panel.locator(".tpunb-code")).to_have_text("tp.phases(steps, tp.KMeans())")
    expect(panel.get_by_role("slider", name="clusters, k")).to_be_visible()
    expect(panel.get_by_text("k-means: squared distances by k")).to_be_visible()
    expect(panel.get_by_text("working …")).to_be_hidden()


def test_what_arrives_while_a_chart_is_drawn_is_drawn_too(panel):
    """The page is slow to draw; meanwhile the kernel sends another cut."""
    late = """() => {
      const draw = tpunbVega.vegaEmbed;
      tpunbVega.vegaEmbed = async (...all) => {
        await new Promise((on) => { window.draw_now = on; });
        tpunbVega.vegaEmbed = draw;
        return draw(...all);
      };
    }"""
    panel.page.evaluate(late)
    python(panel.page, "view.method = 'kmeans'; view.k = 3")  # another curve
    panel.page.wait_for_function("() => window.draw_now")
    python(panel.page, "view.k = 2")
    expect(panel.locator(".tpunb-code")).to_have_text("tp.phases(steps, tp.KMeans(k=2))")
    expect(panel.get_by_role("slider")).to_have_value("2")
    panel.page.evaluate("() => window.draw_now()")
    least, most = (float(panel.get_by_role("slider").get_attribute(end)) for end in ("min", "max"))

    def check():
        rule = panel.get_by_role("region", name="Clustering").locator("svg .mark-rule line").last.bounding_box()
        slider = panel.get_by_role("slider").bounding_box()
        thumb = slider["x"] + 8 + (2 - least) / (most - least) * (slider["width"] - 16)
        assert rule["x"] + rule["width"] / 2 == pytest.approx(thumb, abs=2)

    expect(panel.get_by_text("k-means: squared distances by k")).to_be_visible()
    eventually(check)


# -- names ------------------------------------------------------------------------------------------------------------


def test_names_that_are_markup_are_text(shown):
    bad = "<img src=x onerror='window.ran = true'>"
    panel = region(shown, bad)
    panel.scroll_into_view_if_needed()
    panel.get_by_role("table", name="Phases by share of step time without waits").wait_for()
    panel.get_by_role("radio").first.check()
    operations = panel.get_by_role("region", name="Selected phase").get_by_role("table").first
    expect(operations).to_contain_text(bad)
    for text in (panel.get_by_role("heading").first, panel.get_by_role("region", name="Comparison")):
        expect(text).to_contain_text(bad)
    assert shown.locator("img[src=x]").count() == 0
    assert shown.evaluate("() => window.ran") is None
    assert shown.complaints == []


# -- a second run -----------------------------------------------------------------------------------------------------


def test_a_second_run_has_its_ribbon_and_its_phases_matched(shown, shots):
    panel = region(shown, "fast")
    panel.scroll_into_view_if_needed()
    beside = panel.get_by_role("region", name="Comparison")
    expect(beside.get_by_role("heading").first).to_contain_text("fast compared with slow")
    expect(beside.locator("canvas")).to_have_count(1)
    rows = beside.get_by_role("rowheader")
    expect(rows).to_have_count(3)
    assert [row.text_content() for row in rows.all()] == [
        f"{name} → {name}" for name in ("train", "train (faster)", "train (fastest)")
    ]
    assert [cell.text_content()[:5] for cell in beside.get_by_role("cell", name="0.50x").all()] == ["0.50x"] * 3
    panel.screenshot(path=shots / "explorer-second-run.png")
    assert shown.complaints == []


def test_unlike_runs_are_compared_when_asked(shown):
    panel = region(shown, "unlike")
    panel.scroll_into_view_if_needed()
    beside = panel.get_by_role("region", name="Comparison")
    expect(beside.get_by_role("note")).to_contain_text("model")
    beside.get_by_role("button", name="Compare anyway").click()
    expect(beside.get_by_role("rowheader")).to_have_count(3)
    expect(beside.get_by_role("note")).to_have_count(0)
    assert shown.complaints == []


# -- a trace ----------------------------------------------------------------------------------------------------------


def test_open_trace_says_where_the_trace_is_and_how_to_open_it(shown, jupyter):
    panel = region(shown, "raw")
    name = python(shown, "print(raw.value.names[1])")
    panel.get_by_role("radio", name=name, exact=True).check()
    panel.get_by_role("button", name="Open trace").click()
    expect(panel.get_by_role("status").filter(has_text="ui.perfetto.dev")).to_contain_text(f"of {name}")
    assert [*jupyter.folder_of(NOTEBOOK).glob("*.trace.json.gz")]
    without = region(shown, "toy")
    without.get_by_role("button", name="Open trace").click()
    expect(without.get_by_role("alert")).to_contain_text("holds no raw events")
    python(shown, 'view.error = ""')
    assert shown.complaints == []


# -- a reload ---------------------------------------------------------------------------------------------------------


def test_a_reloaded_page_has_the_panel_as_the_kernel_holds_it(jupyter, shown):
    save(shown)
    python(shown, MEND + "view.phase = 1")
    page = jupyter.reload()
    panel = region(page, "toy")
    expect(panel.locator(".tpunb-code")).to_have_text("tp.phases(steps, tp.OLS())")
    name = python(page, "print(view.value.names[1])")
    expect(panel.get_by_role("radio", name=name, exact=True)).to_be_checked()
    expect(panel.locator("canvas")).to_have_count(1)
    press(panel, "ArrowRight")
    expect(panel.locator(".tpunb-code")).to_have_text("tp.phases(steps, tp.OLS(threshold=0.71))")
    idle(page)
    assert page.complaints == []
