"""The explorer in marimo, whose notebooks are programs: the same panel, with its slider and its phases."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from importlib.util import find_spec

import pytest

from browser.jupyter_pages import LIMIT_S, VIEWPORT, expect, listened

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(find_spec("marimo") is None, reason="marimo is not installed: pip install marimo"),
]

NOTEBOOK = """
import marimo

app = marimo.App()


@app.cell
def _():
    import tpunb as tp

    panel = tp.explore(tp.sample("keras_cnn"))
    panel
    return
"""


@pytest.fixture
def page(browser, tmp_path):
    """A page with the notebook, which a server of marimo runs."""
    (tmp_path / "notebook.py").write_text(NOTEBOOK)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["run", "notebook.py", "--headless", "--no-token", "--host", "127.0.0.1", "--port", str(port)]
    variables = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path), "TPUNB_CACHE": str(tmp_path / "cache")}
    with (tmp_path / "log").open("wb") as log:
        command = [sys.executable, "-m", "marimo", *words]
        server = subprocess.Popen(command, cwd=tmp_path, env=variables, stdout=log, stderr=subprocess.STDOUT)
    page = listened(browser.new_page(viewport=VIEWPORT))
    try:
        until = time.monotonic() + LIMIT_S
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
                break
            except (OSError, urllib.error.URLError):
                assert server.poll() is None, (tmp_path / "log").read_text()
                assert time.monotonic() < until
                time.sleep(0.25)
        page.goto(f"http://127.0.0.1:{port}/")
        yield page
    finally:
        page.close()
        server.terminate()
        server.wait(LIMIT_S)


def test_the_explorer_works_unchanged(page):
    slider = page.get_by_role("slider", name="min_samples (steps)")
    expect(slider).to_have_value("29", timeout=LIMIT_S * 1000)
    slider.press("ArrowRight")
    expect(page.get_by_text("tp.phases(steps, tp.DBSCAN(min_samples=")).to_be_visible(timeout=LIMIT_S * 1000)
    page.get_by_role("radio").first.check()
    expect(page.get_by_text("Top operations of train")).to_be_visible(timeout=LIMIT_S * 1000)
