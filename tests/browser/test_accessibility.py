"""No serious barrier for people who use a keyboard, a screen reader or high contrast, by the rules of axe-core."""

import pytest

import tpunb as tp
from browser.jupyter_pages import errors, eventually, expect, listened, run_all, theme

pytestmark = pytest.mark.live

CELLS = (
    "import tpunb as tp\nsteps = tp.steps(tp.sample('keras_cnn'))",
    "tp.summary(tp.sample('keras_cnn'))",
    "tp.explore(steps)",
    """import tensorflow as tf
import keras

def build():
    data = tf.data.Dataset.range(64).map(lambda n: (tf.cast([n], tf.float32),) * 2).batch(4)
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model, data

model, data = build()
with tp.checkpointing("accessible", every=4):
    model.fit(data, verbose=0)
tp.tuning_panel(tp.tuning.Job(build), tp.phases(steps), "accessible", folder="accessible-trials")""",
)
OUTPUTS = ".jp-OutputArea-output"


def barriers(page, within=None):
    """Return the violations that axe calls serious or critical: rule, element and message of each."""
    from axe_playwright_python.sync_playwright import Axe

    response = Axe().run(page, context=within).response
    assert "button-name" in {rule["id"] for rule in response["passes"]}  # it saw the panels
    return [
        (rule["id"], node["html"][:200], node["failureSummary"])
        for rule in response["violations"]
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]


def has_no_barrier(page, *within):
    assert barriers(page, *within) == []


@pytest.fixture(scope="module")
def shown(jupyter):
    page = jupyter.open("accessibility.ipynb", *CELLS)
    run_all(page)
    assert errors(page) == []
    expect(page.get_by_role("region", name="Tuning of Job(")).to_be_visible()
    return page


@pytest.mark.parametrize("colours", ["Dark", "Light"])
def test_summary_explorer_and_tuning_panel_have_no_serious_barrier(shown, colours):
    theme(shown, colours)
    eventually(lambda: has_no_barrier(shown, OUTPUTS))  # style sheets come when they come


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The explorer of a sample as a page of its own."""
    return tp.explore(tp.sample("keras_cnn")).save(tmp_path_factory.mktemp("saved") / "explorer.html")


@pytest.mark.parametrize(
    ("width", "colours"),
    [
        (620, "dark"),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in ((1600, "light"), (620, "light"), (1600, "dark"))),
    ],
)
def test_a_saved_explorer_has_no_serious_barrier(browser, saved, width, colours):
    page = listened(browser.new_page(viewport={"width": width, "height": 900}, color_scheme=colours))
    page.goto(saved.as_uri())
    page.get_by_role("heading", name="How phases were found").click()
    expect(page.locator("svg.marks").first).to_be_visible()
    eventually(lambda: has_no_barrier(page))  # what is computed is pale until then
    page.close()
