"""The face of a run: its answer, rates, accounts and advice, as trees that pages and pictures draw."""

import json
import re
from dataclasses import replace

import polars as pl
import pytest
from goodput_rows import goodput_of

import tpunb as tp
from tpunb.analysis.rates import rate_curves, rates_of
from tpunb.analysis.verdict import Verdict
from tpunb.testing import toy_steps
from tpunb.widgets import face

EVIL = "<script>alert(1)</script>\x1b\u202e"


def texts(node):
    """Return the texts of a tree, without those of its buttons that copy."""
    if isinstance(node, str):
        return [node]
    return [] if "data-copy" in node[1] else [text for child in node[2:] for text in texts(child)]


def copied(node):
    """Return what the buttons of a tree copy."""
    if isinstance(node, str):
        return []
    return [*filter(None, [node[1].get("data-copy")])] + [text for child in node[2:] for text in copied(child)]


ANSWER = Verdict(
    "", "data loading", "give it `workers`: `DataLoader(num_workers=2)`", 2 * 10**12, cause="T101",
    observed="Waiting took 2.0 s of 3.0 s (67 % of run time): mostly train.py:4 in load ← time.sleep.",
    notes=("The profiler took 1 s.",), place="train.py:4 in load ← time.sleep",
)  # fmt: skip


def test_the_answer_is_cause_line_remedy_code_and_saving():
    shown = face.answer(ANSWER, ["the machine was busy"], toy_steps("a"))
    assert "".join(texts(shown)) == (
        "Waiting took 2.0 s of 3.0 s (67 % of run time).Mostly train.py:4 in load ← time.sleep"
        "Give it workers. Saves up to 2.0 s.DataLoader(num_workers=2)The profiler took 1 s. The machine was busy."
    )
    assert copied(shown) == ["train.py:4 in load ← time.sleep", "DataLoader(num_workers=2)"]
    assert "`" not in face.html(shown)


def test_what_comes_after_the_line_is_no_code():
    observed = "Tracing again took 1 s: mostly jit(<lambda>), for a new function, at a.py:3, twice."
    shown = face.answer(replace(ANSWER, observed=observed, place="a.py:3"), [], toy_steps("a"))
    assert texts(shown)[:3] == ["Tracing again took 1 s: mostly jit(<lambda>), for a new function.", "At ", "a.py:3"]
    assert copied(shown)[0] == "a.py:3"
    assert ", twice" in texts(shown)


def test_what_a_remedy_saved_when_it_was_tried_is_in_place_of_the_bound():
    tried = [{"cause": "T101", "action": ANSWER.action, "decision": "faster", "outcome": "saves 2 s (95 %: 1 to 3 s)"}]
    steps = replace(toy_steps("a"), metadata={"tried": json.dumps(tried)})
    shown = "".join(texts(face.answer(ANSWER, [], steps)))
    assert "When it was tried: saves 2 s (95 %: 1 to 3 s)." in shown
    assert "up to" not in shown


def test_the_next_two_are_listed_and_the_others_folded():
    rows = [
        (3 * 10**12, ANSWER.observed, ANSWER.place, ANSWER.action),
        *((10**12, f"Cause {at}.", None, f"act {at}") for at in range(4)),
    ]
    advice = pl.DataFrame(rows, schema=["saves_ps", "observed", "place", "action"], orient="row")
    shown = face.todo(advice, ANSWER)
    assert re.findall(r"Cause \d|\d more|next", "".join(texts(shown))) == [
        *("next", "Cause 0", "Cause 1", "2 more", "Cause 2", "Cause 3")
    ]
    assert face.todo(advice.head(1), ANSWER) == ["div", {"hidden": "hidden"}]


def test_the_bar_is_longest_first_with_remedies_and_unknown_time_hatched():
    run = goodput_of([("productive", None, 1.0), ("callbacks", EVIL, 3.0), ("other", None, 2.0)])
    advice = pl.DataFrame({"account": ["callbacks", "callbacks"], "action": ["call `f()` less; or not", "never"]})
    html = face.html(face.spent(run, advice))
    assert re.findall(r"flex:([\d.]+)", html) == ["0.5000", "0.1667", "0.3333"]
    assert "Try: call f() less" in html
    assert "never" not in html
    assert html.count("tpunb-unknown") == 2  # its part and its key
    assert "<script" not in html
    assert "\x1b" not in html


def test_rates_are_those_of_the_run_and_their_courses_those_of_its_slices():
    steps = toy_steps("aaabbb")
    steps = replace(steps, frame=steps.frame.with_columns(samples=pl.lit(4, pl.Int64)))
    phases = tp.phases(steps, tp.OLS(0.0))
    found = rates_of(phases, None)
    curves = rate_curves(phases, found, tp.goodput(phases)).filter(pl.col("step_ps").is_not_null())
    assert curves["step_ps"].to_list() == [1e9] * 3 + [2e9] * 3
    assert curves["samples_per_s"].to_list() == pytest.approx([4000.0] * 3 + [2000.0] * 3)
    assert curves["tokens_per_s"].null_count() == curves.height
    shown = texts(face.rates(phases, None, found))
    assert shown == ["step time, mean", "1.5 ms", "samples/s", "2.67k"]


def test_the_productive_share_of_slices_is_that_of_the_run():
    phases = tp.phases(tp.sample("keras_cnn"))
    run = tp.goodput(phases)
    course = rate_curves(phases, rates_of(phases, None), run)["goodput"]
    assert course.mean() == pytest.approx(run.ratio, abs=1e-3)
    assert course.max() <= 1 + 1e-9


def test_names_are_text():
    judged = replace(ANSWER, observed=f"It took 1 s: mostly {EVIL}.", place=EVIL, notes=(EVIL,), action=EVIL)
    html = face.html(face.answer(judged, [EVIL], toy_steps("a")))
    assert "<script" not in html
    assert not re.search("[\x1b\u202e]", html)
