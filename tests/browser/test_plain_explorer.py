"""Charts that change in a real browser: without a blank frame, Vega sent once a page; and the explorer without them."""

import pytest

from browser.jupyter_pages import errors, expect, python, run_all

pytestmark = pytest.mark.live

CELLS = (
    """import os
import altair as alt
import polars as pl
import tpunb as tp
from tpunb.testing import toy_steps
from tpunb.widgets.live_chart import LiveChart

def points(n, name):
    rule = alt.Chart(pl.DataFrame({"x": [0]})).transform_calculate(x="at").mark_rule(description="rule").encode(x="x:Q")
    dots = alt.Chart(alt.NamedData("rows")).mark_point().encode(x="x:Q", y="x:Q", description="name:N")
    chart = (dots + rule).add_params(alt.param("at", value=0)).properties(description=f"Dots {name}")
    return LiveChart(chart, tables={"rows": rows(n)})

def rows(n):
    return pl.DataFrame({"x": range(n), "name": [f"dot {i}" for i in range(n)]})""",
    "import ipywidgets\nlive = [points(3, i) for i in range(10)]\nipywidgets.VBox(live)",
    "os.environ['TPUNB_WIDGETS'] = 'plain'\nview = tp.explore(toy_steps('aaabbbccc'))\nview",
)
LARGE = 500_000  # bytes: of all that is sent, Vega alone is so large


@pytest.fixture(scope="module")
def heard():
    """How many bytes each message from the server had."""
    return []


@pytest.fixture(scope="module")
def shown(jupyter, heard):
    """Ten charts and a plain explorer, in JupyterLab."""
    socket = lambda one: one.on("framereceived", lambda said: heard.append(len(said)))  # noqa: E731  taken off again
    jupyter.page.on("websocket", socket)
    page = jupyter.open("live-charts.ipynb", *CELLS)
    run_all(page, charts=10)
    assert errors(page) == []
    yield page
    page.remove_listener("websocket", socket)


def figure(page, name):
    return page.get_by_role("figure", name=name, exact=True)


def dots(page, name):
    return figure(page, name).locator("path[aria-label^='dot ']")


def test_ten_charts_fetch_vega_once(shown, heard):
    for number in range(10):
        expect(dots(shown, f"Dots {number}")).to_have_count(3)
        expect(figure(shown, f"Dots {number}").locator(".vega-embed")).to_have_count(1)  # drawn by the page
    python(shown, "0")  # after which the kernel has answered all that was asked before
    assert len([size for size in heard if size > LARGE]) == 1
    assert shown.complaints == []


def test_new_rows_and_signals_change_the_marks_and_no_frame_is_blank(shown):
    expect(figure(shown, "Dots 0").locator(".vega-embed")).to_have_count(1)
    shown.evaluate("""() => {
      const chart = document.querySelector('[aria-label="Dots 0"].tpunb-chart');
      window.frames_seen = { all: 0, blank: 0 };
      const look = () => {
        frames_seen.all += 1;
        if (!chart.querySelector("svg.marks path[aria-label^=dot]") || !chart.clientHeight) frames_seen.blank += 1;
        if (!frames_seen.enough) requestAnimationFrame(look);
      };
      look();
    }""")
    rule = figure(shown, "Dots 0").locator("line[aria-label=rule]")
    before = rule.bounding_box()["x"]
    for n in range(4, 14):
        python(shown, f"live[0].put(rows=rows({n})); live[0].signals = {{'at': {n - 1}}}")
        shown.evaluate("window.before = frames_seen.all")
        shown.wait_for_function("() => frames_seen.all > before")
    expect(dots(shown, "Dots 0")).to_have_count(13)
    assert [dots(shown, "Dots 0").nth(i).get_attribute("aria-label") for i in (0, 12)] == ["dot 0", "dot 12"]
    assert rule.bounding_box()["x"] > before + 50
    seen = shown.evaluate("() => { frames_seen.enough = true; return frames_seen; }")
    assert seen["all"] >= 10
    assert seen["blank"] == 0
    expect(dots(shown, "Dots 1")).to_have_count(3)  # the others stay as they are
    assert shown.complaints == []


def test_a_signal_that_the_chart_does_not_have_is_an_error(shown):
    alert = figure(shown, "Dots 2").locator("xpath=..").get_by_role("alert")
    python(shown, "live[2].signals = {'no such': 1}")
    expect(alert).to_contain_text("no such")
    python(shown, "live[2].signals = {'at': 1}")
    expect(alert).to_have_count(0)
    assert shown.complaints == []


# -- without widgets of others ----------------------------------------------------------------------------------------


@pytest.fixture
def plain(shown):
    """The output of the explorer out of ipywidgets alone."""
    output = shown.locator(".jp-OutputArea-output:has(select)")
    output.scroll_into_view_if_needed()
    return output


def test_the_plain_explorer_has_a_list_and_a_slider_by_keys(plain, shots):
    page = plain.page
    slider = plain.get_by_role("slider")
    expect(slider).to_have_count(1)
    slider.focus()
    page.keyboard.press("Home")
    expect(plain.locator(".tpunb-headline")).to_contain_text("3 phases")
    assert python(page, "print(view.min_samples, view.value.method.min_samples)") == "1 1"
    plain.get_by_role("combobox").select_option(label="OLS (the paper's scan)")
    expect(plain.locator("label", has_text="similarity threshold")).to_be_visible()
    slider.focus()
    page.keyboard.press("Home")
    expect(plain.locator(".tpunb-headline")).to_contain_text("1 phase over 9 steps")
    assert python(page, "print(view.threshold, view.value.method)") == "0.0 OLS(threshold=0.0)"
    plain.screenshot(path=shots / "explorer-plain.png")
    assert page.complaints == []


def test_the_plain_explorer_says_what_went_wrong(plain):
    python(plain.page, "from tpunb.widgets import explorer\nreally = explorer.group_steps")
    python(plain.page, "def broken(*_): raise RuntimeError('no <b>luck</b>')\nexplorer.group_steps = broken")
    plain.get_by_role("slider").focus()
    plain.page.keyboard.press("ArrowRight")
    expect(plain.get_by_role("alert")).to_have_text("RuntimeError: no <b>luck</b>")
    python(plain.page, "explorer.group_steps = really")
    plain.page.keyboard.press("ArrowRight")
    expect(plain.get_by_role("alert")).to_have_count(0)
    assert plain.page.complaints == []
