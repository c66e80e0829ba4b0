"""JupyterLab in a real browser, with no network beyond the machine: the tour, light and dark, and the live line."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import nbformat
import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
TOUR = Path(__file__).parents[1] / "notebooks" / "00_tour.ipynb"

LIVE = (
    f"""
import sys, time
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from stand_in import StandIn
from tpunb import recorder
recorder.Local = StandIn  # a source that needs no framework
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

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A JupyterLab of its own on loopback, with the tour in its folder; yields its address."""
    root = tmp_path_factory.mktemp("lab")
    shutil.copy(TOUR, root)
    cells = [nbformat.v4.new_code_cell(source) for source in LIVE]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), root / "live.ipynb")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # no question after news over the pictures
    settings = root / ".CONFIG" / "lab" / "user-settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text('{"fetchNews": "false", "checkForUpdates": false}')
    folders = {f"JUPYTER_{name}_DIR": str(root / f".{name}") for name in ("CONFIG", "DATA", "RUNTIME")}
    options = [
        "--no-browser",
        "--allow-root",
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        "--IdentityProvider.token=",
        "--LabApp.news_url=",
        f"--ServerApp.root_dir={root}",
        "--LabApp.expose_app_in_browser=True",
    ]
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", *options],
        env={**os.environ, **folders, "IPYTHONDIR": str(root / ".ipython")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/api", timeout=1)
                break
            except (urllib.error.URLError, OSError):
                assert server.poll() is None, "JupyterLab ended by itself"
                time.sleep(0.25)
        yield f"http://127.0.0.1:{port}", root
    finally:
        server.terminate()
        server.wait(20)


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=[
                "--no-sandbox",
                "--disable-gpu",
                "--disable-background-networking",
                "--disable-component-update",
                "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            ],
        )
        yield browser
        browser.close()


def opened(browser, lab, notebook):
    """Open a notebook with a kernel of its own; what the page complains of from then on is in ``page.complaints``."""
    page = browser.new_page(viewport={"width": 1200, "height": 1000})
    complaints = []
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("requestfailed", lambda request: complaints.append(f"request failed: {request.url}"))
    page.complaints = complaints
    page.goto(f"{lab[0]}/lab/tree/{notebook}?reset")
    page.locator(".jp-CodeCell").first.wait_for(timeout=60_000)
    page.evaluate("async () => { await window.jupyterapp.restored; }")
    page.wait_for_function(
        "() => !!window.jupyterapp?.shell?.currentWidget?.sessionContext?.session?.kernel", timeout=60_000
    )
    del complaints[:]  # what JupyterLab itself complains of while it starts is not ours
    return page


@pytest.fixture(scope="module")
def page(browser, lab):
    """The tour, run from top to bottom in the browser."""
    page = opened(browser, lab, "00_tour.ipynb")
    done = page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-all-cells')", None)
    assert done is not False
    page.wait_for_function(
        "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'idle'"
        " && document.querySelectorAll('.jp-CodeCell .jp-OutputArea-output svg.marks').length >= 7",
        timeout=240_000,
    )
    yield page
    page.close()


def shot(page, tmp_path_factory, name):
    """Save screenshots of the notebook, screen by screen, where SHOTS says, else in the test's folder."""
    folder = Path(os.environ.get("TPUNB_SHOTS") or tmp_path_factory.mktemp("shots"))
    folder.mkdir(parents=True, exist_ok=True)
    pictures = page.locator(".jp-OutputArea-output:has(svg.marks)")
    for number in range(pictures.count()):
        pictures.nth(number).scroll_into_view_if_needed()
        pictures.nth(number).screenshot(path=folder / f"{name}-{number:02d}.png")


def theme(page, name):
    page.evaluate(f"() => window.jupyterapp.commands.execute('apputils:change-theme', {{theme: '{name}'}})")
    light = "true" if "Light" in name else "false"
    page.wait_for_function(f"() => document.body.dataset.jpThemeLight === '{light}'", timeout=30_000)
    # it lies over the page while the theme loads, and JupyterLab stumbles over a second one before the first is gone
    page.wait_for_function("() => document.querySelector('#jupyterlab-splash') === null", timeout=30_000)


def ink(page):
    """The colours of the text in the charts, as the browser paints them."""
    return set(
        page.evaluate(
            "() => [...document.querySelectorAll('.jp-OutputArea-output svg.marks text')]"
            ".filter(text => text.getAttribute('fill') === 'currentColor')"
            ".map(text => getComputedStyle(text).fill)"
        )
    )


def brightness(colour):
    return sum(int(part) for part in re.findall(r"\d+", colour)[:3]) / 3  # rgb(...) or rgba(...)


def test_no_cell_failed_and_no_chart_is_missing(page):
    assert page.locator(".jp-RenderedText[data-mime-type='application/vnd.jupyter.error']").count() == 0
    assert page.locator("svg.marks").count() >= 7
    text = page.locator(".jp-Notebook").text_content()  # of cells out of sight too
    assert "observed" in text
    assert "VegaLite" not in text


def test_the_charts_have_marks_and_a_description(page):
    charts = page.locator("svg.marks")
    for number in range(charts.count()):
        chart = charts.nth(number)
        assert chart.get_attribute("aria-label")
        assert chart.locator("path").count() > 1
        box = chart.bounding_box()
        assert box["width"] > 200
        assert box["height"] > 50


def test_light_and_dark_are_both_legible(page, tmp_path_factory):
    theme(page, "JupyterLab Light")
    shot(page, tmp_path_factory, "light")
    assert {brightness(colour) < 110 for colour in ink(page)} == {True}
    theme(page, "JupyterLab Dark")
    shot(page, tmp_path_factory, "dark")
    assert {brightness(colour) > 150 for colour in ink(page)} == {True}


def test_nothing_was_asked_of_the_network_and_nothing_complained(page):
    assert page.complaints == []


def test_the_line_changes_in_place_while_the_cell_runs_and_gives_way_to_the_summary(browser, lab, tmp_path_factory):
    page = opened(browser, lab, "live.ipynb")
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")
    line = page.locator(".jp-OutputArea-output .tpunb-live")
    seen = "() => document.querySelector('.jp-OutputArea-output .tpunb-live')?.textContent ?? ''"
    page.wait_for_function(f"() => / [1-9][0-9,]* steps.* in [1-9]/.test(({seen})())", timeout=120_000)
    for _ in range(2):
        before = page.evaluate(seen)
        page.wait_for_function("before => (" + seen + ")() !== before", arg=before, timeout=60_000)
    assert line.count() == 1
    assert line.get_attribute("role") == "status"
    assert page.locator(".tpunb-live b").count() == 0  # a mark's name is no markup
    folder = Path(os.environ.get("TPUNB_SHOTS") or tmp_path_factory.mktemp("shots"))
    folder.mkdir(parents=True, exist_ok=True)
    for name, legible in (("Light", lambda ink: ink < 110), ("Dark", lambda ink: ink > 150)):
        theme(page, f"JupyterLab {name}")
        page.locator(".jp-Notebook").screenshot(path=folder / f"live-{name.lower()}.png")
        colour = "() => getComputedStyle(document.querySelector('.tpunb-live')).color"
        assert legible(brightness(page.evaluate(colour)))

    (lab[1] / "enough").touch()
    page.locator(".tpunb-summary").wait_for(timeout=120_000)
    page.wait_for_function(
        "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'idle'", timeout=60_000
    )
    assert line.count() == 0
    page.locator(".jp-Notebook").screenshot(path=folder / "live-after.png")
    page.evaluate("async () => { await window.jupyterapp.commands.execute('docmanager:save'); }")
    saved = nbformat.read(lab[1] / "live.ipynb", as_version=4).cells[1].outputs
    assert [output.output_type for output in saved] == ["display_data", "stream", "execute_result"]
    assert "observed" in saved[0]["data"]["text/plain"]
    assert page.complaints == []
    page.close()
