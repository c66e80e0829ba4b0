"""The explorer in a real browser: every control by its role and name, by keys and by mouse.

JupyterLab and Notebook 7 run the same script of the panel: in Notebook 7 is tested again what that page could take
for itself, keys above all, and what it draws.
"""

import ast
import re

import pytest

from browser.jupyter_pages import (
    AXIS,
    VIEWPORT,
    becomes,
    brightness,
    errors,
    eventually,
    expect,
    ink,
    python,
    run_all,
    theme,
)

pytestmark = pytest.mark.live

CELLS = (
    "import tpunb as tp\nsteps = tp.steps(tp.sample('keras_cnn'))",
    "view = tp.explore(steps, checkpoints=[100, 200, 300])\nview",
    "# the last cell",
)
BEGINNING = "view.min_samples = 29; view.phase = view.time_range = view.account = None"
FIRST = "tp.phases(steps, tp.DBSCAN())"
UNTIL = "9.545098"
SLIDERS = {  # of each method: its title, what its slider is called, and its trait
    "dbscan": ("DBSCAN", "min_samples (steps)", "min_samples"),
    "kmeans": ("k-means", "clusters, k", "k"),
    "ols": ("OLS (the paper's scan)", "similarity threshold", "threshold"),
    "olsplus": ("OLSPlus", "similarity of operations", "ops"),
}
NAMES = (
    ("combobox", "Method"),
    ("spinbutton", "From (seconds)"),
    ("spinbutton", "To (seconds)"),
    ("button", "Whole run"),
    ("button", "Clear selection"),
    ("slider", "min_samples (steps)"),
    ("radio", "train"),
    ("radio", "outliers"),
    ("button", "Copy code"),
    ("button", "Save HTML"),
    ("button", "PNG"),
    ("button", "SVG"),
    ("button", "Chrome trace"),
    ("button", "Open trace"),
    ("button", "Make static"),
    ("region", "Clustering"),
    ("region", "Coverage and phases"),
    ("region", "Selected phase"),
    ("table", "Phases by share of step time without waits"),
)
FOCUSED = """() => {
  const at = document.activeElement;
  return (at.ariaLabel ?? at.labels?.[0]?.innerText ?? at.innerText).trim();
}"""
PLOT = """canvas => {  // its axis is the row with most paint: where that begins and ends
  const {width, height} = canvas, scale = width / canvas.clientWidth;
  const {data} = canvas.getContext("2d").getImageData(0, 0, width, height);
  const painted = (y) => Array.from({ length: width }, (_, x) => x).filter((x) => data[4 * (y * width + x) + 3] > 128);
  const rows = Array.from({ length: height >> 1 }, (_, at) => painted((height >> 1) + at));
  const axis = rows.reduce((most, row) => (row.length > most.length ? row : most), []);
  return [axis[0] / scale, axis[axis.length - 1] / scale];
}"""
PHASES = {0: "train", 1: "checkpoint", 2: "evaluation", -1: "outliers"}


def pytest_generate_tests(metafunc):
    if "shown" in metafunc.fixturenames:
        pages = getattr(metafunc.function, "pages", ["lab"])
        metafunc.parametrize("shown", pages, indirect=True, scope="module")


def in_notebook_7_too(test):
    test.pages = ["lab", "notebook"]
    return test


@pytest.fixture(scope="module")
def shown(request, jupyter):
    """The explorer of a sample, in JupyterLab or in Notebook 7."""
    page = jupyter.open("explorer.ipynb", *CELLS, app=request.param)
    run_all(page, charts=1)
    assert errors(page) == []
    return page


@pytest.fixture
def panel(shown):
    """The panel as it began; the page complains of nothing that a test did."""
    found = shown.get_by_role("region", name="Explorer of phases: keras_cnn")
    is_what_the_kernel_holds(found)  # nothing that another test asked for is still to come
    shown.evaluate("() => document.activeElement.blur()")  # a field that is typed in keeps what is typed
    python(shown, BEGINNING)
    expect(found.locator(".tpunb-code")).to_have_text(FIRST)
    expect(found.get_by_role("spinbutton", name="To (seconds)")).to_have_value(UNTIL)
    expect(found.get_by_role("button", name="Clear selection")).to_be_disabled()
    yield found
    expect(found.get_by_role("alert")).to_have_count(0)
    assert shown.complaints == []


def trait(panel, name):
    return python(panel.page, f"print(view.{name})")


def is_what_the_kernel_holds(panel):
    """The kernel has what list and slider are at, the line of Python gives its phases, and the page shows as many."""
    expect(panel.get_by_role("region", name="Selected phase")).not_to_have_attribute("aria-busy", "true")

    def check():
        line = panel.locator(".tpunb-code").text_content()
        seen = f"found = {line}; print(view.code == {line!r}, view.value.labels.equals(found.labels), len(found))"
        clustering, equal = python(panel.page, f"print(view.clustering); {seen}").splitlines()
        method, *slider = ast.literal_eval(clustering).values()
        assert panel.get_by_role("combobox", name="Method").input_value() == method
        assert [float(one.input_value()) for one in panel.get_by_role("slider").all()] == pytest.approx(slider)
        same, alike, many = equal.split()
        assert (same, alike) == ("True", "True")
        assert panel.get_by_role("status").first.text_content().startswith(f"{many} phase")

    eventually(check)


def choose(panel, method):
    """Pick a method; its slider."""
    title, name, _ = SLIDERS[method]
    panel.get_by_role("combobox", name="Method").select_option(label=title)
    slider = panel.get_by_role("slider", name=name)
    expect(slider).to_be_visible()
    is_what_the_kernel_holds(panel)
    return slider


def at(panel, slider, method):
    """Where the slider is; what is said beside it, the trait and the line of Python are there too."""
    is_what_the_kernel_holds(panel)

    def check():
        value = float(slider.input_value())
        assert panel.locator("output").text_content() == f"{value:g}"
        assert slider.get_attribute("aria-valuetext") == f"{SLIDERS[method][1]} {value:g}"
        assert float(trait(panel, SLIDERS[method][2])) == pytest.approx(value)
        return value

    return eventually(check)


def ends(slider):
    return float(slider.get_attribute("min")), float(slider.get_attribute("max"))


def drag(page, start, end, steps=10):
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move(*end, steps=steps)
    page.mouse.up()


def timeline(panel):
    """Where the timeline is on the page, and how high in it the steps are."""
    canvas = panel.locator("canvas")
    canvas.scroll_into_view_if_needed()
    box, (left, right) = canvas.bounding_box(), canvas.evaluate(PLOT)
    return {**box, "x": box["x"] + left, "width": right - left}, box["y"] + 38


def timeline_pixels(panel):
    return panel.locator("canvas").evaluate("canvas => canvas.toDataURL()")


def is_picked(panel, phase):
    """A phase stands out, or none: in the kernel, by the radios and by the heading of what is said of it."""
    heading = panel.get_by_role("region", name="Selected phase").get_by_role("heading").first
    checked = panel.get_by_role("radio", checked=True)
    becomes(panel.page, "view.phase", str(phase))
    expect(checked).to_have_count(int(phase is not None))
    if phase is None:
        expect(panel.get_by_role("button", name="Clear selection")).to_be_disabled()
        expect(heading).to_have_text(re.compile(r"\(longest\)$"))
    else:
        expect(checked).to_have_attribute("value", str(phase))
        expect(heading).to_have_text(PHASES[phase])


def is_shown(panel, low, high, within=1e-5):
    """The timeline is drawn from one second to another, by the number fields and by the kernel; from when to when."""

    def check():
        fields = [float(panel.get_by_role("spinbutton").nth(i).input_value()) for i in (0, 1)]
        edges = [float(edge) for edge in python(panel.page, "print(*view._axis['edges'])").split()]
        assert fields == pytest.approx(edges, abs=1e-5)
        assert fields == pytest.approx([low, high], abs=within)
        return fields

    return eventually(check)


# -- names, order, keys -----------------------------------------------------------------------------------------------


@in_notebook_7_too
def test_everything_has_a_role_and_a_name(panel):
    for role, name in NAMES:
        expect(panel.get_by_role(role, name=name, exact=True), f"{role} {name}").to_have_count(1)
    figures = panel.get_by_role("figure")
    assert figures.count() == 2
    for number in range(2):
        assert len(figures.nth(number).get_attribute("aria-label")) > 20


@in_notebook_7_too
def test_tab_goes_from_the_accounts_to_the_buttons_as_they_stand(panel):
    expect(panel.get_by_role("button", name="Whole run")).to_be_disabled()  # the whole run is shown
    accounts = panel.get_by_role("group", name="Accounts").get_by_role("button")
    accounts.first.focus()
    accounts = accounts.all_inner_texts()
    reached = []
    for _ in range(17 + len(accounts)):
        reached.append(panel.page.evaluate(FOCUSED))
        panel.page.keyboard.press("Tab")
    assert reached == [
        *(text.strip() for text in accounts),
        "From (seconds)",
        "To (seconds)",
        "Timeline table",
        "Copy CheckpointManager.save",
        "1 more",
        "train",
        "How phases were found",
        "Method",
        "min_samples (steps)",
        "Curve table",
        *("Copy code", "Save HTML", "PNG", "SVG", "Chrome trace", "Open trace", "Make static"),
    ]


NAMED = ("Answer", "Rates", "Where the time went", "The run on", "Advice", "Coverage and phases", "Selected phase")
ORDER = (*(f"[aria-label^='{name}']" for name in NAMED), ".tpunb-method", "footer")


def test_it_begins_with_the_verdict_then_evidence_then_method(panel):
    panel.page.set_viewport_size({"width": 800, "height": 1000})  # one column
    tops = [panel.locator(part).first.bounding_box()["y"] for part in ORDER]
    panel.page.set_viewport_size(VIEWPORT)
    assert tops == sorted(tops)
    assert "What to do" in panel.get_by_role("region", name="Advice").text_content()
    expect(panel.locator("details.tpunb-method")).to_have_attribute("open", "")


def test_phases_that_have_no_row_are_listed_when_asked_for(panel):
    python(panel.page, "view.k = 15")
    every = int(python(panel.page, "print(view.value.frame.height)"))
    table = panel.get_by_role("table", name="Phases by share of step time without waits")
    expect(table.get_by_role("radio")).to_have_count(12)
    panel.get_by_role("button", name=f"Show {every - 12} more").press("Enter")
    expect(table.get_by_role("radio")).to_have_count(every)
    expect(table.get_by_role("button")).to_have_count(0)
    python(panel.page, "view.k = 4")
    fewer = int(python(panel.page, "print(view.value.frame.height)"))
    expect(table.get_by_role("radio")).to_have_count(fewer)  # the next cut is another
    assert fewer < every


@pytest.mark.parametrize("method", SLIDERS)
def test_keys_move_each_slider(panel, method):
    keys_move(panel, method)


def test_keys_and_mouse_move_a_slider_in_notebook_7(panel):
    keys_move(panel, "kmeans")
    the_mouse_drags(panel, "ols")


test_keys_and_mouse_move_a_slider_in_notebook_7.pages = ["notebook"]


def keys_move(panel, method):
    slider = choose(panel, method)
    before = at(panel, slider, method)
    slider.focus()
    for key in ("ArrowLeft", "ArrowLeft", "ArrowLeft", "ArrowRight"):
        panel.page.keyboard.press(key)
    assert at(panel, slider, method) == pytest.approx(before - 2 * float(slider.get_attribute("step")))
    for key, end in zip(("Home", "End"), ends(slider), strict=True):
        panel.page.keyboard.press(key)
        assert at(panel, slider, method) == end


@pytest.mark.parametrize("method", ["dbscan", *(pytest.param(name, marks=pytest.mark.slow) for name in [*SLIDERS][1:])])
def test_the_mouse_drags_each_slider_to_the_value_under_it(panel, method):
    the_mouse_drags(panel, method)


def the_mouse_drags(panel, method):
    slider = choose(panel, method)
    slider.scroll_into_view_if_needed()
    least, most = ends(slider)
    box = slider.bounding_box()
    middle = box["y"] + box["height"] / 2

    def place(value):
        return box["x"] + 8 + (value - least) / (most - least) * (box["width"] - 16), middle

    target = least + 0.6 * (most - least)
    drag(panel.page, place(float(slider.input_value())), place(target), steps=20)
    assert at(panel, slider, method) == pytest.approx(
        target, abs=max(0.02 * (most - least), 0.5 * float(slider.get_attribute("step")))
    )


def test_the_slider_stays_where_it_is_while_what_is_beside_it_changes(panel):
    slider = choose(panel, "kmeans")
    rows = panel.get_by_role("table", name="Phases by share of step time without waits").get_by_role("row")
    about = panel.get_by_role("region", name="Selected phase")
    differences = about.get_by_text("Distinguishing operations")

    def below_the_heading():
        """How far: the notebook around both may scroll."""
        return slider.bounding_box()["y"] - panel.get_by_role("region", name="Clustering").bounding_box()["y"]

    slider.press("Home")  # wherever an earlier test has left it
    for _ in range(3):
        slider.press("ArrowRight")
    expect(differences).to_be_visible()
    is_what_the_kernel_holds(panel)
    before, more = below_the_heading(), rows.count()
    slider.press("Home")
    expect(differences).to_have_count(0)
    is_what_the_kernel_holds(panel)
    assert rows.count() < more
    assert below_the_heading() == pytest.approx(before, abs=2)


def test_a_method_without_a_slider_and_back(panel):
    method = panel.get_by_role("combobox", name="Method")
    method.focus()
    method.select_option(label="HDBSCAN")
    expect(panel.get_by_role("slider")).to_have_count(0)
    expect(panel.locator(".tpunb-code")).to_have_text("tp.phases(steps, tp.HDBSCAN())")
    is_what_the_kernel_holds(panel)
    at(panel, choose(panel, "ols"), "ols")


@in_notebook_7_too
def test_a_method_is_chosen_by_keys(panel):
    panel.get_by_role("combobox", name="Method").focus()
    panel.page.keyboard.press("o")  # as in any list
    expect(panel.get_by_role("slider", name="similarity threshold")).to_be_visible()
    is_what_the_kernel_holds(panel)


def test_a_trait_set_in_the_kernel_moves_the_control(panel):
    python(panel.page, "view.threshold = 0.83")
    expect(panel.get_by_role("slider", name="similarity threshold")).to_have_value("0.83")
    expect(panel.get_by_role("combobox", name="Method")).to_have_value("ols")
    is_what_the_kernel_holds(panel)


def test_the_curve_is_a_table_too(panel):
    choose(panel, "kmeans")
    panel.get_by_text("Curve table").click()
    table = panel.get_by_role("group").get_by_role("table")
    assert table.get_by_role("columnheader").first.text_content() == "k"
    assert table.get_by_role("row").count() == 16
    panel.get_by_text("Curve table").click()


@in_notebook_7_too
def test_no_key_of_the_notebook_fires_from_inside(panel):
    cells = "() => window.jupyterapp.shell.currentWidget.content.widgets.map(cell => cell.model.type).join()"
    active = "() => window.jupyterapp.shell.currentWidget.content.activeCellIndex"
    panel.page.locator(".jp-Cell .jp-InputPrompt").nth(1).click()  # the notebook's own keys are in force
    before, where = panel.page.evaluate(cells), panel.page.evaluate(active)
    for control in (panel.get_by_role("slider"), panel.get_by_role("radio").first, panel.locator("summary").first):
        control.focus()
        for key in ("a", "b", "m", "x", "d", "d", "z", "j", "k", "ArrowDown", "ArrowUp", "ArrowLeft", "ArrowRight"):
            panel.page.keyboard.press(key)
    panel.get_by_role("spinbutton").first.press("b")
    assert panel.page.evaluate(cells) == before
    assert panel.page.evaluate(active) == where


# -- phases and the timeline ------------------------------------------------------------------------------------------


@in_notebook_7_too
def test_a_phase_is_picked_by_its_radio_and_left_again(panel):
    panel.get_by_role("radio", name="evaluation").check()
    is_picked(panel, 2)
    panel.get_by_role("radio", name="evaluation").focus()
    panel.page.keyboard.press("ArrowDown")  # the next of the table
    is_picked(panel, 1)
    panel.get_by_role("button", name="Clear selection").click()
    is_picked(panel, None)


def test_a_phase_is_picked_on_the_timeline_and_by_the_same_click_left(panel):
    box, middle = timeline(panel)
    for phase in (0, None):
        panel.page.mouse.click(box["x"] + 0.265 * box["width"], middle)
        is_picked(panel, phase)


@in_notebook_7_too
def test_an_account_is_picked_by_its_button_and_left_again(panel):
    button = panel.get_by_role("button", name="step time deviation")
    about = panel.get_by_role("region", name="Selected account")
    expect(about).to_have_count(0)
    before = timeline_pixels(panel)
    button.click()
    expect(about.get_by_role("heading")).to_contain_text("of wall time")
    expect(button).to_have_attribute("aria-pressed", "true")
    becomes(panel.page, "view.account", "step time deviation")

    def marked():
        assert timeline_pixels(panel) != before

    eventually(marked)
    panel.get_by_role("slider", name="min_samples (steps)").press("ArrowRight")
    is_what_the_kernel_holds(panel)
    expect(button).to_have_text(re.compile(r"^step time deviation [\d.]+ s$"))
    panel.get_by_role("button", name="step time deviation").press("Enter")
    expect(about).to_have_count(0)
    becomes(panel.page, "view.account", "None")


def test_an_account_is_picked_on_its_lane(panel):
    box, _ = timeline(panel)
    panel.page.mouse.click(box["x"] + 0.06 * box["width"], box["y"] + 71)
    expect(panel.get_by_role("button", name="program startup")).to_have_attribute("aria-pressed", "true")
    becomes(panel.page, "view.account", "program startup")


def test_a_phase_opens_its_card_below_its_row(panel):
    panel.get_by_role("radio", name="checkpoint").check()
    card = panel.get_by_role("region", name="Selected phase")
    expect(card.get_by_role("heading").first).to_have_text("checkpoint")
    row = panel.get_by_role("row", name=re.compile("^checkpoint")).first.bounding_box()
    assert card.bounding_box()["y"] - row["y"] - row["height"] < 20


def test_a_stretch_drawn_over_the_timeline_is_shown_and_the_whole_run_again(panel):
    whole = float(UNTIL)
    box, middle = timeline(panel)
    drag(panel.page, (box["x"] + 0.4 * box["width"], middle), (box["x"] + 0.6 * box["width"], middle))
    is_shown(panel, 0.4 * whole, 0.6 * whole, within=0.03 * whole)
    is_picked(panel, None)  # the click that ends it is none
    panel.get_by_role("button", name="Whole run").click()
    is_shown(panel, 0, whole)
    expect(panel.get_by_role("button", name="Whole run")).to_be_disabled()


@in_notebook_7_too
def test_the_wheel_zooms_around_the_pointer_and_out_again(panel):
    whole = float(UNTIL)
    box, middle = timeline(panel)
    panel.page.mouse.move(box["x"] + 0.5 * box["width"], middle)
    panel.page.mouse.wheel(0, -100)
    low, high = is_shown(panel, 0.1 * whole, 0.9 * whole, within=0.05 * whole)
    assert high - low == pytest.approx(0.8 * whole, rel=0.02)
    for _ in range(3):
        panel.page.mouse.wheel(0, 100)
    becomes(panel.page, "view.time_range", "None")
    is_shown(panel, 0, whole)


def test_the_pointer_over_a_step_gives_its_time_its_kind_and_the_top_operation(panel):
    python(panel.page, "view.time_range = [4.2, 4.6]")  # few enough to be drawn one by one
    is_shown(panel, 4.2, 4.6)
    box, middle = timeline(panel)
    about = panel.page.locator(".vg-tooltip")

    def check():  # what the page asks for when the input rests is shown when the pointer moves
        for x in (0.5, 0.501):
            panel.page.mouse.move(box["x"] + x * box["width"], middle)
        text = "".join(about.all_text_contents())  # there is none before the first
        assert "kind train, mostly " in text
        assert re.search(r"step \d+, .* s to .* s, [\d.]+ms", text)

    eventually(check)
    panel.page.mouse.move(0, 0)


@in_notebook_7_too
def test_a_stretch_is_typed(panel):
    low, high = panel.get_by_role("spinbutton").all()
    high.fill("4")
    high.press("Enter")
    is_shown(panel, 0, 4)
    low.fill("2.5")
    low.press("Tab")
    is_shown(panel, 2.5, 4)


def test_a_refused_value_shows_an_error_and_changes_nothing(panel):
    high = panel.get_by_role("spinbutton", name="To (seconds)")
    high.fill("4")
    high.press("Enter")
    is_shown(panel, 0, 4)
    high.fill("-1")
    high.press("Enter")
    expect(panel.get_by_role("alert")).to_contain_text("The time range must be [from, to] in seconds")
    becomes(panel.page, "view.time_range", "[0.0, 4.0]")
    expect(panel.locator(".tpunb-code")).to_have_text(FIRST)
    high.fill("3")
    high.press("Enter")
    expect(panel.get_by_role("alert")).to_have_count(0)
    is_shown(panel, 0, 3)


# -- light and dark ---------------------------------------------------------------------------------------------------


@in_notebook_7_too
def test_light_and_dark_are_both_legible(panel, shots):
    page = panel.page
    name = "notebook-7" if "/notebooks/" in page.url else "lab"
    page.set_viewport_size({"width": 1500, "height": 2200})  # all of it in one picture
    for colour, legible in (("Dark", lambda ink: ink > 150), ("Light", lambda ink: ink < 110)):
        theme(page, colour)

        def check(legible=legible):  # style sheets come when they come
            assert legible(brightness(panel.evaluate("panel => getComputedStyle(panel).color")))
            assert {legible(brightness(one)) for one in ink(page)} == {True}
            assert legible(panel.evaluate(AXIS))

        eventually(check)
        panel.screenshot(path=shots / f"explorer-{name}-{colour.lower()}.png")
    page.set_viewport_size(VIEWPORT)
