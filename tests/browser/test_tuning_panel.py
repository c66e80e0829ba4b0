"""The tuning panel in a real browser: Run, trials that arrive, Stop, what is applied; and after a restart all again."""

from pathlib import Path

import pytest

from browser.jupyter_pages import (
    KERNEL,
    VIEWPORT,
    becomes,
    brightness,
    errors,
    eventually,
    expect,
    idle,
    ink,
    python,
    run_all,
    save,
    theme,
)

pytestmark = pytest.mark.live

CORPUS = Path(__file__).parents[1] / "corpus"

JOB = """import time
import keras
import numpy as np
import tensorflow as tf
import tpunb as tp

def read(number):  # what waits for a disk or a network
    time.sleep(0.004)
    return np.full(8, number, dtype="float32")

def pair(row):
    row = tf.ensure_shape(row, [8])
    return row, row[:1]

def build():
    data = tf.data.Dataset.range(4096).map(lambda n: tf.numpy_function(read, [n], tf.float32, stateful=False))
    data = data.map(pair).shuffle(4, seed=1).batch(4)
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model, data"""
SAVE = """model, data = build()
with tp.checkpointing("saved", every=8):
    model.fit(data.take(16), verbose=0)"""
PANEL = """import threading
from itertools import islice
from tpunb.tuning import tournament, trial, tuner
from tpunb.tuning.racing import RaceResult
from tpunb.tuning.tournament import Budget

def won(pairs, **limits):  # whatever the clock shows
    return RaceResult("faster", 2.0, 1.8, 2.2, len(list(islice(pairs, 2))))

tournament.race, tuner._bound = won, lambda default, model: None
trial._SECONDS, trial._HICCUP = 0.1, 600
seen = threading.Semaphore(0)

def eight(space):
    seen.acquire()  # until the page has been seen meanwhile
    yield {"map:1 parallel calls": 8, "options private threads": 8}

def beginning(full):  # and the rest
    return [int(step >= 12) for step in full.frame["step"]]

phases = tp.phases(tp.steps(tp.sample("slow_loader")), beginning)
limits = Budget(3000, trials=2)
panel = tp.tuning_panel(tp.tuning.Job(build), phases, "saved", search=eight, budget=limits, folder="trials")
panel"""
REMEDIES = f"""import zipfile
from tpunb.tuning import tried
from tpunb.tuning.racing import RaceResult

zipfile.ZipFile({str(CORPUS / "keras_eager.zip")!r}).extractall("eager")
tried.Race.add = lambda *times: RaceResult("faster", 2.0, 1.8, 2.2, 3)  # whatever the clock shows

def eagerly():
    keras.utils.set_random_seed(0)
    data = tf.data.Dataset.range(65536).map(lambda n: tf.fill([8], tf.cast(n % 7, tf.float32))).map(pair).batch(16)
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    return model, data

panel = tp.tuning_panel(tp.tuning.Job(eagerly), tp.phases("eager"), folder="tries")
panel"""
NAMES = (
    ("combobox", "Phase"),
    ("combobox", "Search"),
    ("spinbutton", "Budget (s)"),
    ("button", "Run"),
    ("button", "Stop"),
    ("button", "Code"),
    ("button", "Freeze"),
    ("region", "Trial start"),
    ("region", "Tuning"),
    ("region", "Pipeline parameters"),
    ("region", "Trial chart"),
    ("region", "Trial table"),
    ("table", "Pipeline parameters"),
)


@pytest.fixture(scope="module")
def advised(jupyter):
    """The panel of a job with a run that is advised upon, in JupyterLab."""
    page = jupyter.open("remedies.ipynb", JOB, REMEDIES)
    run_all(page)
    assert errors(page) == []
    return page.get_by_role("region", name="Tuning of Job(")


def test_a_remedy_is_tried_and_says_what_it_saves(advised, shots):
    page = advised.page
    remedies = advised.get_by_role("region", name="Remedies", exact=True)
    first = remedies.get_by_role("listitem").first
    expect(first).to_contain_text("compile the model without run_eagerly=True")
    button(first, "Try it").press("Enter")  # by key
    expect(headline(advised)).to_contain_text("running")
    expect(button(first, "Try it")).to_be_disabled()
    expect(first).to_contain_text("output equal, bit for bit")
    expect(button(first, "Try it")).to_be_enabled()
    [cause, decision] = python(page, "print(panel.value.tried[0].cause, panel.value.tried[0].decision)").split()
    assert (cause, decision) == ("T301", "faster")
    assert "a step" in python(page, "print([each['tried'] for each in tp.report('eager').content['actions'][:1]])")
    page.set_viewport_size({"width": 1560, "height": 1700})
    for name, legible in (("Dark", lambda light: light > 150), ("Light", lambda light: light < 100)):
        theme(page, name)

        def is_legible(legible=legible):
            assert legible(brightness(first.evaluate("(item) => getComputedStyle(item).color")))

        eventually(is_legible)
        advised.screenshot(path=shots / f"tuning-panel-remedies-{name.lower()}.png")
    assert page.complaints == []


@pytest.fixture(scope="module")
def shown(jupyter):
    """The panel of a job that waits for its data, in JupyterLab."""
    page = jupyter.open("tuning-panel.ipynb", JOB, SAVE, PANEL)
    run_all(page)
    assert errors(page) == []
    panel = page.get_by_role("region", name="Tuning of Job(")
    expect(headline(panel)).to_have_text("no trials yet")
    expect(button(panel, "Stop")).to_be_disabled()
    expect(button(panel, "Code")).to_be_disabled()
    return panel


@pytest.fixture
def panel(shown):
    yield shown
    assert shown.page.complaints == []


def button(panel, name):
    return panel.get_by_role("button", name=name, exact=True)


def headline(panel):
    return panel.locator(".tpunb-headline")


def rows(panel):
    return panel.get_by_role("table", name="Trials").locator("tbody tr")


def trait(panel, name):
    return python(panel.page, f"print(panel.{name})")


@pytest.fixture
def tuned(panel):
    """The panel after a tuning."""
    if trait(panel, "value") == "None":
        button(panel, "Run").click()
        python(panel.page, "seen.release()")
        expect(headline(panel)).to_contain_text("2.00 times as fast")
    return panel


def test_everything_has_a_role_and_a_name(panel):
    for role, name in NAMES:
        expect(panel.get_by_role(role, name=name, exact=True), f"{role} {name}").to_have_count(1)


def test_the_phase_has_a_checkpoint_and_a_bottleneck(panel):
    where = panel.get_by_role("region", name="Trial start")
    expect(where.get_by_text("step 16, in the phase (tpunb-16)")).to_have_count(1)
    expect(where.get_by_role("listitem")).not_to_have_count(0)  # bottleneck
    other = panel.get_by_role("combobox", name="Phase")
    before = other.input_value()
    other.select_option(index=1)
    expect(where.get_by_text("step 8, in the phase (tpunb-8)")).to_have_count(1)
    becomes(panel.page, "panel.phase", other.input_value())
    assert other.input_value() != before
    other.select_option(before)
    expect(where.get_by_text("step 16, in the phase (tpunb-16)")).to_have_count(1)


def test_an_invalid_budget_is_reported_and_changes_nothing(panel):
    field = panel.get_by_role("spinbutton", name="Budget (s)")
    field.fill("-3")
    field.press("Enter")
    expect(panel.get_by_role("alert")).to_have_text("The budget must be above 0 seconds. Got -3 instead.")
    expect(field).to_have_value("3000")
    field.fill("2000")
    field.press("Enter")
    expect(panel.get_by_role("alert")).to_have_count(0)
    becomes(panel.page, "panel.budget", "2000.0")


def test_trials_appear_and_the_winner_is_marked(panel, shots):
    button(panel, "Run").press("Enter")  # by key
    expect(headline(panel)).to_contain_text("running")
    expect(rows(panel)).to_have_count(1)
    expect(button(panel, "Run")).to_be_disabled()
    expect(panel.get_by_role("progressbar")).to_be_visible()
    panel.screenshot(path=shots / "tuning-panel-running.png")
    python(panel.page, "seen.release()")
    expect(headline(panel)).to_contain_text("2.00 times as fast")
    expect(rows(panel)).to_have_count(2)
    expect(panel.get_by_role("figure").locator("svg.marks")).to_have_count(1)
    assert trait(panel, "value.best") == "{'map:1 parallel calls': 8, 'options private threads': 8}"
    expect(panel.locator(".tpunb-chosen")).to_have_count(2)
    lines = panel.get_by_role("region", name="Code", exact=True)
    assert lines.locator("pre code").text_content() == trait(panel, "value.as_code()")
    expect(lines.get_by_role("button", name="Copy")).to_be_visible()
    assert python(panel.page, "print(panel.apply(build()[1]).element_spec[0].shape)") == "(None, 8)"


def test_light_and_dark_are_both_legible(tuned, shots):
    panel, page = tuned, tuned.page
    page.set_viewport_size({"width": 1560, "height": 1700})  # all of it at once, for people to look at
    for name, legible in (("Dark", lambda light: light > 150), ("Light", lambda light: light < 100)):
        theme(page, name)

        def is_legible(legible=legible):
            assert {legible(brightness(colour)) for colour in ink(page)} == {True}

        eventually(is_legible)
        panel.screenshot(path=shots / f"tuning-panel-{name.lower()}.png")
    page.set_viewport_size({"width": 1200, "height": 1700})
    panel.screenshot(path=shots / "tuning-panel-narrow.png")
    page.set_viewport_size(VIEWPORT)


def test_stop_ends_it_after_the_current_trial(panel):
    button(panel, "Run").click()
    expect(rows(panel)).to_have_count(1)
    button(panel, "Stop").click()
    expect(headline(panel)).to_contain_text("stopping")
    python(panel.page, "seen.release()")
    expect(panel.get_by_text("Stopped before the end.")).to_have_count(1)
    expect(button(panel, "Run")).to_be_enabled()
    assert trait(panel, "state") == "done"


def test_names_and_errors_stay_text(panel):
    evil = "<img src=x onerror=window.hit=1>"
    imports = "from tpunb.tuning.results import Message, Trial, Tuning"
    trial = f"trial = Trial(0, {{{evil!r}: 1}}, 'failed', error={evil!r})"
    message = f"Message('not tuned', {{'reason': {evil!r}}})"
    python(
        panel.page,
        f"{imports}; {trial}; before = panel._shown; panel._on_trial(Tuning((trial,), messages=({message},)))",
    )
    rejected = panel.get_by_role("region", name="Rejected values")
    expect(rejected.get_by_role("row").last).to_have_text(f"{evil} = 1{evil}")
    expect(rows(panel)).to_contain_text(evil)
    expect(panel.locator("img")).to_have_count(0)
    assert panel.page.evaluate("() => window.hit") is None
    python(panel.page, "panel._on_trial(before)")
    expect(rejected).to_have_count(0)


@pytest.mark.slow
def test_a_restart_of_the_kernel_shows_the_trials_again(tuned):
    page = tuned.page
    known, last = rows(tuned).all_text_contents(), trait(tuned, "value.messages[-1]")
    page.evaluate(f"async () => {{ await {KERNEL}.restart(); }}")
    idle(page)
    run_all(page)
    assert errors(page) == []
    expect(tuned.get_by_text("These are trials of an earlier tuning, from the folder trials.")).to_have_count(1)
    expect(rows(tuned)).to_have_count(len(known))
    assert rows(tuned).all_text_contents() == known
    assert trait(tuned, "value.messages[-1]") == last


def test_a_notebook_opened_without_its_kernel_shows_the_trials(tuned, jupyter, shots):
    expect(tuned.page.locator("[data-tpunb]")).to_be_hidden()
    known = rows(tuned).count()
    assert known
    save(tuned.page)
    jupyter.write("tuning-revived.ipynb", jupyter.saved("tuning-panel.ipynb"))
    page = jupyter.open("tuning-revived.ipynb")
    still = page.locator("[data-tpunb]")
    expect(still).to_contain_text("For the panel, run this cell again.")
    expect(still.get_by_role("table", name="Trials").locator("tbody tr")).to_have_count(known)
    missing = page.get_by_text("model not found")
    expect(missing).to_have_count(1)  # the front end has looked for it
    expect(missing).to_be_hidden()
    page.screenshot(path=shots / "tuning-panel-revived.png")
    page.complaints.clear()  # the front end's own on the missing model
