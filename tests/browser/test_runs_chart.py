"""The chart of sweeps in a page."""

import pytest
from chart_checks import SWEEPS, phases_of

from browser.jupyter_pages import listened
from tpunb.studies.paper import charts

pytestmark = pytest.mark.live


@pytest.fixture
def page(browser):
    page = listened(browser.new_page())
    yield page
    page.close()


def test_the_run_under_the_pointer_stands_out_without_a_kernel_or_a_network(page):
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    runs = dict.fromkeys(["bert", "dcgan"], phases_of(sweeps={"k": SWEEPS["k"]}))
    html = charts.sweeps(runs).to_html(inline=True, embed_options={"renderer": "svg"})
    page.set_content(html)
    page.wait_for_selector("svg .role-legend-label text")

    def faint(*strengths):
        of = "[...document.querySelectorAll('svg .mark-line path')].map(path => path.getAttribute('opacity')).join()"
        page.wait_for_function(f"{of} === '{','.join(strengths)}'")

    faint("1", "1")
    page.locator("svg .role-legend-label text").nth(1).hover()
    faint("0.15", "1")
    page.mouse.move(0, 0)
    faint("1", "1")
    page.locator("svg .mark-symbol.role-mark path").nth(1).hover()  # the mark of the last run lies on top
    faint("0.15", "1")
    assert [url for url in asked if not url.startswith(("about:", "data:"))] == []
