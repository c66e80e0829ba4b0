"""One browser and one JupyterLab for the tests of pages."""

from contextlib import contextmanager

import pytest

from browser.jupyter_pages import CHROMIUM, LAUNCH, VIEWPORT, Jupyter, listened, served


@contextmanager
def _browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(**LAUNCH)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def browser():
    """Debian's Chromium, with no network beyond the machine; without one, the tests of pages skip.

    It ends with this folder: its event loop stays in the thread until then, and other tests call `asyncio.run`.
    """
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    with _browser() as browser:
        yield browser


@pytest.fixture(scope="package")
def jupyter(browser, tmp_path_factory):
    """One Jupyter server and one page for all tests; see `jupyter_pages.Jupyter`."""
    folder = tmp_path_factory.mktemp("jupyter")
    with served(folder) as address:
        page = listened(browser.new_page(viewport=VIEWPORT))
        shown = Jupyter(address, folder, page)
        yield shown
        shown.close()
        page.close()
