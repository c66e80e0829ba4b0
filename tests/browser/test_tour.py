"""Notebooks in a real browser, with no network beyond the machine: the tour, light and dark, and the live line."""

import shutil
from pathlib import Path

import pytest

from browser.jupyter_pages import (
    brightness,
    errors,
    eventually,
    expect,
    idle,
    ink,
    run_all,
    save,
    shot,
    start_all,
    theme,
)

pytestmark = pytest.mark.live

TOUR = Path(__file__).parents[2] / "notebooks" / "00_tour.ipynb"

LIVE = (
    f"""
import sys, time
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from stand_in import StandIn
from tpunb.profiler import capture as capture_module
capture_module.Local = StandIn  # a source that needs no framework
%load_ext tpunb
""",
    """%%tpupoint --run runs/live
print("before the training")
step = 0
while not Path("enough").exists():  # the test says when
    with tpu.step(step, "<b>train</b>" if step % 2 else "train"):
        time.sleep(0.01)
    step += 1
step > 0""",
)

CHARTS = (
    "import tpunb as tp\nfrom tpunb import charts\nphases = tp.phases(tp.steps(tp.sample('keras_cnn')))\nphases",
    "charts.timeline(phases)",
    "charts.coverage(phases)",
)


@pytest.fixture(scope="module")
def tour(jupyter):
    """The tour, run from top to bottom in JupyterLab; without --slow, `test_notebooks` alone runs it."""
    shutil.copy(TOUR, jupyter.folder_of(TOUR.name))
    page = jupyter.open(TOUR.name)
    run_all(page, charts=7)
    return page


@pytest.mark.slow
def test_no_cell_failed_and_no_chart_is_missing(tour):
    assert errors(tour) == []
    assert tour.locator("svg.marks").count() >= 7
    text = tour.locator(".jp-Notebook").text_content()  # of cells out of sight too
    assert "of run time" in text
    assert "VegaLite" not in text


@pytest.mark.slow
def test_the_charts_have_marks_and_a_description(tour):
    has_marks_and_a_description(tour.locator("svg.marks:visible"))  # one is folded


def has_marks_and_a_description(charts):
    for number in range(charts.count()):
        chart = charts.nth(number)
        assert chart.evaluate("chart => chart.closest('svg[aria-label], [role=figure]')?.getAttribute('aria-label')")
        assert chart.locator("path").count() > 1
        box = chart.bounding_box()
        assert box["width"] > 200
        assert box["height"] > 50


@pytest.mark.slow
def test_light_and_dark_are_both_legible(tour, shots):
    is_legible_in_light_and_dark(tour, shots, "tour")


def is_legible_in_light_and_dark(page, shots, name):
    for colour, legible in (("Light", lambda ink: ink < 110), ("Dark", lambda ink: ink > 150)):
        theme(page, colour)

        def check(legible=legible):  # style sheets come when they come
            assert {legible(brightness(one)) for one in ink(page)} == {True}

        eventually(check)
        shot(page, shots, f"{name}-{colour.lower()}")


@pytest.mark.slow
def test_nothing_was_asked_of_the_network_and_nothing_complained(tour):
    assert tour.complaints == []


def test_the_line_changes_in_place_while_the_cell_runs_and_gives_way_to_the_panel(jupyter, shots):
    page = jupyter.open("live.ipynb", *LIVE)
    start_all(page)
    line = page.locator(".jp-OutputArea-output .tpunb-live")
    seen = "() => document.querySelector('.jp-OutputArea-output .tpunb-live')?.textContent ?? ''"
    page.wait_for_function(f"() => / [1-9][0-9,]* steps.* [1-9] windows? cover/.test(({seen})())", timeout=120_000)
    for _ in range(2):
        before = page.evaluate(seen)
        page.wait_for_function("before => (" + seen + ")() !== before", arg=before, timeout=60_000)
    assert line.count() == 1
    assert line.get_attribute("role") == "status"
    assert page.locator(".tpunb-live b").count() == 0  # a mark's name is no markup
    for name, legible in (("Light", lambda ink: ink < 110), ("Dark", lambda ink: ink > 150)):
        theme(page, name)

        def check(legible=legible):
            assert legible(
                brightness(page.evaluate("() => getComputedStyle(document.querySelector('.tpunb-live')).color"))
            )

        eventually(check)
        page.locator(".jp-Notebook").screenshot(path=shots / f"live-{name.lower()}.png")

    (jupyter.folder_of("live.ipynb") / "enough").touch()
    page.get_by_role("region", name="Explorer of phases: live").wait_for(timeout=120_000)
    idle(page, timeout_s=60)
    assert line.count() == 0
    assert page.locator(".jp-OutputArea-output b:not(.tpunb-list > b, td > b)").count() == 0  # nor in the panel
    page.locator(".jp-Notebook").screenshot(path=shots / "live-after.png")
    save(page)
    saved = jupyter.saved("live.ipynb").cells[1].outputs
    assert [output.output_type for output in saved] == ["display_data", "stream", "display_data", "execute_result"]
    assert "of run time" in saved[0]["data"]["text/plain"]
    assert "tpunb-summary" in saved[0]["data"]["text/html"]  # what is shown where no widget can be
    assert page.complaints == []


def charted(jupyter):
    """A notebook of charts, run and saved in Notebook 7."""
    if not jupyter.shows("charts.ipynb"):
        run_all(jupyter.open("charts.ipynb", *CHARTS, app="notebook"), charts=2)
        assert errors(jupyter.page) == []
        save(jupyter.page)
    return jupyter.page


def test_notebook_7_shows_the_charts_in_light_and_dark_and_complains_of_nothing(jupyter, shots):
    page = charted(jupyter)
    assert page.evaluate("() => window.jupyterapp.name") == "Jupyter Notebook"
    assert "Phases(" in page.locator(".jp-Notebook").text_content()
    charts = page.locator("svg.marks")
    assert charts.count() == 2
    has_marks_and_a_description(charts)
    is_legible_in_light_and_dark(page, shots, "notebook-7")
    assert page.complaints == []


def test_charts_of_a_notebook_that_is_not_trusted_are_images_without_loose_letters(jupyter, shots):
    charted(jupyter)
    book = jupyter.saved("charts.ipynb")
    book.cells[0].source += "  # changed elsewhere"
    for cell in book.cells:
        cell.metadata.pop("trusted", None)
    jupyter.write("untrusted-charts.ipynb", book)
    page = jupyter.open("untrusted-charts.ipynb")
    images = page.locator(".jp-OutputArea-output img")
    expect(images).to_have_count(2)
    for number in range(2):
        expect(images.nth(number)).to_be_visible()
    page.screenshot(path=shots / "charts-untrusted.png")
    assert page.locator("svg.marks").count() == 0
    assert "time since the start of the run" not in page.locator(".jp-Notebook").inner_text()
    assert page.complaints == []
