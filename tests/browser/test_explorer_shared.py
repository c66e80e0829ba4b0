"""The explorer handed on: its buttons' files, its page without a kernel, and a notebook saved and opened again."""

import json

import pytest

from browser.jupyter_pages import AXIS, VIEWPORT, errors, eventually, expect, idle, listened, python, run_all, save

pytestmark = pytest.mark.live

CELLS = (
    "import tpunb as tp\nsteps = tp.steps(tp.sample('keras_cnn'))\n"
    "view = tp.explore(steps, checkpoints=[100, 200, 300], other=steps)\nview",
)
NAME = "Explorer of phases: keras_cnn"


def shown(jupyter):
    """The explorer of a sample, in JupyterLab."""
    if not jupyter.shows("shared.ipynb"):
        jupyter.open("shared.ipynb", *CELLS)
    panel = jupyter.page.get_by_role("region", name=NAME)
    if not panel.count():
        run_all(jupyter.page, charts=1)
        assert errors(jupyter.page) == []
    return panel


@pytest.fixture
def panel(jupyter):
    return shown(jupyter)


def test_the_line_of_python_is_copied(panel, jupyter):
    panel.page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=jupyter.address)
    panel.get_by_role("button", name="Copy code").click()
    expect(panel.get_by_role("status").filter(has_text="copied")).to_be_visible()
    assert panel.page.evaluate("() => navigator.clipboard.readText()") == "tp.phases(steps, tp.DBSCAN())"
    assert panel.page.complaints == []


@pytest.mark.parametrize(
    ("button", "name", "first"),
    [
        ("PNG", "keras-cnn.png", b"\x89PNG\r\n"),
        ("SVG", "keras-cnn.svg", b"<svg"),
        ("Chrome trace", "keras-cnn.trace.json", b"{"),
        ("Save HTML", "keras-cnn.html", b"<!doctype html>"),
    ],
)
def test_each_button_gives_a_file(panel, button, name, first, tmp_path):
    with panel.page.expect_download() as found:
        panel.get_by_role("button", name=button, exact=True).click()
    assert found.value.suggested_filename == name
    found.value.save_as(tmp_path / name)
    content = (tmp_path / name).read_bytes()
    assert content.startswith(first)
    if name.endswith(".json"):
        assert json.loads(content)
    expect(panel.get_by_text("working …")).to_be_hidden()
    assert panel.page.complaints == []


@pytest.fixture(scope="module")
def notebooks(jupyter):
    """Notebooks saved with the panel as it is, made static, and made static and changed by somebody else."""
    panel = shown(jupyter)
    page = panel.page
    expect(page.locator("[data-tpunb]")).to_be_hidden()
    save(page)
    jupyter.write("revived.ipynb", jupyter.saved("shared.ipynb"))
    panel.get_by_role("button", name="Make static").click()
    expect(panel).to_have_count(0)
    idle(page)
    save(page)
    book = jupyter.saved("shared.ipynb")
    jupyter.write("static.ipynb", book)
    book.cells[0].source += "  # changed elsewhere: its outputs are not trusted"
    book.cells[0].metadata.pop("trusted", None)
    jupyter.write("untrusted.ipynb", book)
    return jupyter


def test_a_notebook_that_was_not_frozen_shows_its_pictures_and_how_to_revive_the_panel(notebooks, shots):
    page = notebooks.open("revived.ipynb")
    shown = page.locator("[data-tpunb]")
    expect(shown).to_contain_text("For the panel, run this cell again.")
    expect(shown.locator("img")).to_have_count(2)
    missing = page.get_by_text("model not found")
    expect(missing).to_have_count(1)  # the front end has looked for it
    expect(missing).to_be_hidden()
    page.screenshot(path=shots / "explorer-revived.png")
    page.complaints.clear()  # the front end's own on the missing model
    run_all(page, charts=1)
    expect(shown).to_be_hidden()
    expect(page.get_by_role("region", name=NAME)).to_be_visible()


def test_a_notebook_that_was_frozen_shows_pictures_and_tables_without_a_kernel(notebooks, shots):
    output, below = notebooks.saved("static.ipynb").cells[0].outputs
    assert below.data == {"text/plain": ""}
    assert {*output.data} == {"text/html", "image/png", "text/plain"}
    page = notebooks.open("static.ipynb")
    shown = page.locator(".tpunb-summary")
    expect(shown.get_by_role("table", name="Phases by share").get_by_role("row")).to_have_count(5)
    expect(shown.locator("img")).to_have_count(2)  # timeline, curve
    page.screenshot(path=shots / "explorer-frozen.png")
    assert page.complaints == []


def test_a_frozen_notebook_of_somebody_else_shows_tables_and_no_code_runs(notebooks, shots):
    """JupyterLab does not trust it: what it cannot show must not become loose text."""
    page = notebooks.open("untrusted.ipynb")
    shown = page.locator(".jp-OutputArea-output").first
    expect(shown.get_by_role("table", name="Phases by share").get_by_role("row")).to_have_count(5)
    page.screenshot(path=shots / "explorer-untrusted.png")
    assert "time since the start of the run" not in shown.inner_text()
    assert page.complaints == []


@pytest.mark.parametrize("by", ["save", "button"])
def test_the_saved_page_needs_no_kernel_and_no_network(panel, browser, shots, tmp_path, by):
    file = tmp_path / f"{by}.html"
    if by == "save":
        python(panel.page, f"view.save({str(file)!r})")
    else:
        with panel.page.expect_download() as found:
            panel.get_by_role("button", name="Save HTML").click()
        found.value.save_as(file)
    page, asked = listened(browser.new_page(viewport=VIEWPORT)), []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri())
    panel = page.get_by_role("region", name=NAME)
    expect(panel.locator("canvas")).to_have_count(2)
    expect(panel.get_by_role("slider")).to_have_count(0)  # its method is folded
    panel.get_by_role("heading", name="How phases were found").click()
    expect(panel.get_by_role("figure").locator("svg.marks")).not_to_have_count(0)
    expect(panel.get_by_role("slider")).to_be_disabled()
    expect(panel.get_by_role("button", name="Open trace")).to_have_count(0)
    expect(panel.get_by_role("combobox", name="Method")).to_be_disabled()
    heading = panel.get_by_role("region", name="Selected phase").get_by_role("heading").first
    expect(heading).to_have_text("train (longest)")
    panel.get_by_role("radio", name="evaluation").check()
    expect(heading).to_have_text("evaluation")
    panel.get_by_role("radio", name="checkpoint").check()
    expect(heading).to_have_text("checkpoint")
    expect(panel.get_by_role("radio", name="checkpoint")).to_be_checked()
    panel.get_by_role("button", name="Clear selection").click()
    expect(heading).to_have_text("train (longest)")
    expect(panel.get_by_role("alert")).to_have_count(0)
    for colour, legible in (("dark", lambda ink: ink > 150), ("light", lambda ink: ink < 110)):
        page.emulate_media(color_scheme=colour)

        def check(legible=legible, panel=panel):
            assert legible(panel.evaluate(AXIS))

        eventually(check)
        page.screenshot(path=shots / f"explorer-page-{colour}.png", full_page=True)
    assert asked == [file.as_uri()]
    assert page.complaints == []
    page.close()
