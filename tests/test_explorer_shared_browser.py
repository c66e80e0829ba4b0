"""The explorer handed on: its buttons' files, its page without a kernel, and a notebook saved and opened again."""

import json

import nbformat
import pytest
from jupyter_pages import AXIS, errors, idle, python, run_all, save
from playwright.sync_api import expect

expect.set_options(timeout=30_000)

CELLS = (
    "import tpunb as tp\nsteps = tp.steps(tp.sample('keras_cnn'))\n"
    "view = tp.explore(steps, checkpoints=[100, 200, 300], other=steps)\nview",
)
NAME = "Explorer of phases: keras_cnn"


@pytest.fixture(scope="module")
def panel(jupyter):
    """The explorer of a sample, in JupyterLab."""
    page = jupyter.open("shared.ipynb", *CELLS)
    run_all(page, charts=2)
    assert errors(page) == []
    return page.get_by_role("region", name=NAME)


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
def files(panel, tmp_path_factory):
    """The page as the button gives it, and as `save` writes it."""
    folder = tmp_path_factory.mktemp("pages")
    python(panel.page, f"view.save({str(folder / 'written.html')!r})")
    with panel.page.expect_download() as found:
        panel.get_by_role("button", name="Save HTML").click()
    found.value.save_as(folder / "button.html")
    return folder


def test_a_notebook_that_was_not_frozen_shows_its_pictures_and_how_to_revive_the_panel(panel, files, jupyter, shots):
    still = panel.page.locator("[data-tpunb]")
    expect(still).to_be_hidden()
    save(panel.page)
    name = jupyter.folder / "shared.ipynb"
    nbformat.write(nbformat.read(name, as_version=4), jupyter.folder / "revived.ipynb")
    page = jupyter.open("revived.ipynb")
    shown = page.locator("[data-tpunb]")
    expect(shown).to_contain_text("For the panel, run this cell again.")
    expect(shown.locator("img")).to_have_count(3)
    page.wait_for_timeout(3000)
    page.screenshot(path=shots / "explorer-revived.png")
    expect(page.get_by_text("model not found")).to_be_hidden()
    page.complaints.clear()  # the front end's own on the missing model
    run_all(page, charts=2)
    expect(shown).to_be_hidden()
    expect(page.get_by_role("region", name=NAME)).to_be_visible()
    jupyter.open("shared.ipynb")
    run_all(page, charts=2)


def test_a_notebook_that_was_frozen_shows_pictures_and_tables_without_a_kernel(panel, files, jupyter, shots):
    panel.get_by_role("button", name="Make static").click()
    expect(panel).to_have_count(0)
    idle(panel.page)
    save(panel.page)
    output, below = jupyter.saved("shared.ipynb").cells[0].outputs
    assert below.data == {"text/plain": ""}
    assert {*output.data} == {"text/html", "image/png", "text/plain"}
    page = jupyter.open("shared.ipynb")
    shown = page.locator(".tpunb-summary")
    expect(shown.get_by_role("table", name="Phases, longest first").get_by_role("row")).to_have_count(5)
    expect(shown.locator("img")).to_have_count(3)  # bar, timeline, curve
    page.screenshot(path=shots / "explorer-frozen.png")
    assert page.complaints == []


def test_a_frozen_notebook_of_somebody_else_shows_tables_and_no_code_runs(jupyter, files, shots):
    """JupyterLab does not trust it: what it cannot show must not become loose text."""
    book = jupyter.saved("shared.ipynb")
    book.cells[0].source += "  # changed elsewhere: its outputs are not trusted"
    book.cells[0].metadata.pop("trusted", None)
    nbformat.write(book, jupyter.folder / "untrusted.ipynb")
    page = jupyter.open("untrusted.ipynb")
    shown = page.locator(".jp-OutputArea-output").first
    expect(shown.get_by_role("table", name="Phases, longest first").get_by_role("row")).to_have_count(5)
    page.screenshot(path=shots / "explorer-untrusted.png")
    assert "time since the start of the run" not in shown.inner_text()
    assert page.complaints == []


@pytest.mark.parametrize("name", ["written.html", "button.html"])
def test_the_saved_page_needs_no_kernel_and_no_network(jupyter, files, shots, name):
    jupyter.close()
    page, asked = jupyter.page, []
    page.complaints.clear()
    listen = lambda request: asked.append(request.url)  # noqa: E731  it is taken off again
    page.on("request", listen)
    page.goto((files / name).as_uri())
    panel = page.get_by_role("region", name=NAME)
    expect(panel.locator("canvas")).to_have_count(2)
    expect(panel.get_by_role("figure").locator("svg.marks")).not_to_have_count(0)
    expect(panel.get_by_role("slider")).to_be_disabled()
    expect(panel.get_by_role("button", name="Open trace")).to_have_count(0)
    expect(panel.get_by_role("combobox", name="Method")).to_be_disabled()
    heading = panel.get_by_role("region", name="Selected phase").get_by_role("heading").first
    expect(heading).to_have_text("train (longest)")
    panel.get_by_role("radio", name="evaluation").check()
    expect(heading).to_have_text("evaluation")
    panel.get_by_role("figure").locator("path[aria-label^='checkpoint:']").first.click()
    expect(heading).to_have_text("checkpoint")
    expect(panel.get_by_role("radio", name="checkpoint")).to_be_checked()
    panel.get_by_role("button", name="Clear selection").click()
    expect(heading).to_have_text("train (longest)")
    expect(panel.get_by_role("alert")).to_have_count(0)
    for colour, legible in (("dark", lambda ink: ink > 150), ("light", lambda ink: ink < 110)):
        page.emulate_media(color_scheme=colour)
        page.wait_for_timeout(1000)
        assert legible(panel.evaluate(AXIS))
        page.screenshot(path=shots / f"explorer-page-{colour}.png", full_page=True)
    page.emulate_media(color_scheme="null")
    page.remove_listener("request", listen)
    assert asked == [(files / name).as_uri()]
    assert page.complaints == []
