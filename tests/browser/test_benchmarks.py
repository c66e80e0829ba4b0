"""The benchmark of the slider: what it times and counts in a page."""

from pathlib import Path

import pytest

from browser.jupyter_pages import listened

pytestmark = pytest.mark.live

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
PANEL = """
<div class="tpunb-explorer">
  <canvas width="200" height="40"></canvas>
  <div class="tpunb-phases"><div class="tpunb-bar" style="height: 8px"></div></div>
  <input type="range" min="0" max="9" value="0"><code class="tpunb-code">0</code>
  <table aria-label="Phases by share"></table>
</div>
<script>
  const [canvas, slider, code, bar] = ["canvas", "input", "code", ".tpunb-bar"].map((at) => document.querySelector(at));
  const context = canvas.getContext("2d");
  const paint = (shade) => {
    context.clearRect(0, 0, 200, 40);
    context.fillStyle = `rgb(${20 * shade}, 0, 0)`;
    context.beginPath();
    context.rect(0, 0, 200, 40);
    context.fill();
  };
  const list = () => document.querySelector("table").replaceChildren(document.createElement("tbody"));
  const cut = (value) => { code.textContent = value; paint(value); setTimeout(list, 30); };
  paint(0);
  slider.oninput = () => setTimeout(() => cut(slider.value), 40);
</script>
"""


@pytest.fixture
def slider(monkeypatch):
    """The benchmark of the slider, without a kernel."""
    monkeypatch.syspath_prepend(str(FOLDER))
    import slider

    monkeypatch.setattr(slider, "asked", lambda *_: [])
    return slider


@pytest.fixture
def page(browser):
    page = listened(browser.new_page())
    yield page
    page.close()


def shown(page, slider, panel=PANEL):
    """Show a panel in a page that is listened to, its slider in focus."""
    page.evaluate(slider.PAGE.read_text())
    page.set_content(panel)
    page.locator("input").focus()


def test_a_move_is_timed_until_its_clustering_is_painted(page, slider):
    shown(page, slider)
    found = slider.measured(page, slider.OURS, 2, 4, 20)
    assert len(found.each) == 4
    assert all(40 < move["painted"] <= move["frame"] for move in found.each)  # which the page waits
    assert all(move["listed"] >= move["painted"] + 25 for move in found.each)  # timers may come a little early
    assert all(move["changed"] for move in found.each)
    assert found.drag["cuts"] > 0 == found.drag["blank"]
    assert len(found.soon_ms) == 2
    assert "4 of 4 changed the picture" in found.said()
    assert page.locator("input").input_value() == "0"  # where the drag ended


@pytest.mark.parametrize(
    ("whole", "broken", "said"),
    [
        ("paint(value); setTimeout", "setTimeout", "the ribbon was not painted"),
        ("code.textContent = value;", "", "the line is still 0"),
        ("cut(slider.value), 40", "0", "the line is still 0"),
    ],
)
def test_a_panel_that_does_not_show_its_clustering_is_reported(page, slider, whole, broken, said):
    page.clock.install(time=0)
    shown(page, slider, PANEL.replace(whole, broken))
    page.clock.pause_at(3_600_000)
    slider.press(page, slider.OURS, "ArrowRight", limit_s=0.5)
    page.clock.run_for(600)
    with pytest.raises(Exception, match=f"no new cut within 0.5 s: {said}"):
        page.evaluate("() => bench.move")


def test_a_timeline_that_never_changes_is_reported(page, slider):
    shown(page, slider, PANEL.replace("paint(value)", "paint(0)"))
    with pytest.raises(RuntimeError, match=r"no move changed what \.tpunb-explorer shows"):
        slider.measured(page, slider.OURS, 2, 4, 20)


@pytest.mark.parametrize("blank", ["context.clearRect(0, 0, 200, 40)", "canvas.hidden = true", "bar.remove()"])
def test_blank_frames_are_counted(page, slider, blank):
    shown(page, slider, PANEL.replace("=> setTimeout", f"=> {blank} || setTimeout"))
    assert slider.drag(page, slider.OURS, 20)["blank"] > 0
