"""The explorer without widgets of others, in a real browser."""

import pytest

from browser.jupyter_pages import errors, expect, python, run_all

pytestmark = pytest.mark.live

CELLS = (
    "import os\nimport tpunb as tp\nfrom tpunb.testing import toy_steps\nos.environ['TPUNB_WIDGETS'] = 'plain'",
    "view = tp.explore(toy_steps('aaabbbccc'))\nview",
)


@pytest.fixture(scope="module")
def shown(jupyter):
    """A plain explorer in JupyterLab."""
    page = jupyter.open("plain-explorer.ipynb", *CELLS)
    run_all(page)
    assert errors(page) == []
    return page


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
    expect(plain.locator(".tpunb-answer")).to_contain_text("3 phases")
    assert python(page, "print(view.min_samples, view.value.method.min_samples)") == "1 1"
    plain.get_by_role("combobox").select_option(label="OLS (the paper's scan)")
    expect(plain.locator("label", has_text="similarity threshold")).to_be_visible()
    slider.focus()
    page.keyboard.press("Home")
    expect(plain.locator(".tpunb-answer")).to_contain_text("1 phase over 9 steps")
    assert python(page, "print(view.threshold, view.value.method)") == "0.0 OLS(threshold=0.0)"
    plain.screenshot(path=shots / "explorer-plain.png")
    assert page.complaints == []


def test_the_plain_explorer_says_what_went_wrong(plain):
    python(plain.page, "from tpunb.widgets import explorer\nreally = explorer.grouped")
    python(plain.page, "def broken(*_): raise RuntimeError('no <b>luck</b>')\nexplorer.grouped = broken")
    plain.get_by_role("slider").focus()
    plain.page.keyboard.press("ArrowRight")
    expect(plain.get_by_role("alert")).to_have_text("RuntimeError: no <b>luck</b>")
    python(plain.page, "explorer.grouped = really")
    plain.page.keyboard.press("ArrowRight")
    expect(plain.get_by_role("alert")).to_have_count(0)
    assert plain.page.complaints == []
