"""A second run beside the first."""

import json
from dataclasses import replace

import pytest

import tpunb as tp
from tpunb.errors import IncompatibleRuns
from tpunb.testing import toy_steps
from tpunb.widgets.explorer import explore
from tpunb.widgets.second_run import compared

FIRST = toy_steps("aaabbb")


def comparison(shown=FIRST, other=FIRST, **more):
    return result_of(explore(shown, other=other, **more))


def result_of(view):
    return compared(replace(view.state, allow_different_models=True))


def pairs(found):
    """Return the rows of the changes phase by phase, by column."""
    return [dict(zip(found["table"]["columns"], row, strict=True)) for row in found["table"]["rows"]]


def test_a_run_beside_itself():
    found = comparison()
    assert found["table"]["caption"].startswith("toy compared with toy (2): 2 phases matched")
    assert [(row["Phase"], row["Ratio [95 % interval]"][:5]) for row in pairs(found)] == [
        ("train → train", "1.00x"),
        ("train (faster) → train (faster)", "1.00x"),
    ]
    first, _ = pairs(found)
    assert first["Step time"] == "2 ms → 2 ms"
    assert first["Idle (% of step time)"] == "50 % → 50 %"
    assert "MXU (% of peak)" not in first
    assert {*first}.isdisjoint({"Gained", "Lost"})  # in no pair
    assert found["name"] == "toy (2)"
    assert found["matches"] == [[1, 1], [0, 0]]
    assert found["tables"]["timeline"]["step"] == [*range(6)]
    assert found["edges"] == [0.0, 0.009]


def test_it_wears_the_colours_of_the_phases_it_was_matched_with():
    second = toy_steps("aaaaaaaaabbb")  # here a is the longest
    found = comparison(FIRST, second)
    rank = {row["Phase"]: i for i, row in enumerate(pairs(found))}
    assert {*rank} == {"train (slower) → train", "train → train (faster)"}
    ranks = found["tables"]["ranks"]
    shades = dict(zip(ranks["phase"], ranks["shade"], strict=True))
    assert (shades[1], shades[0]) == (0, 1)  # b is the longest of the first run


def test_the_panel_and_compare_have_one_direction_and_one_base():
    before, after = tp.sample("qanet-squad"), tp.sample("qanet-squad-half")
    changed, found = tp.compare(before, after), result_of(explore(after, other=before))
    assert changed.sentence in found["table"]["caption"]
    assert "wall time -24.8 s: productive -17.0 s" in changed.sentence
    assert found["table"]["caption"].startswith("qanet-squad-half compared with qanet-squad: ")
    ratios = [f"{ratio:.2f}x" for ratio in changed.frame["ratio"]]
    assert [row["Ratio [95 % interval]"].split()[0] for row in pairs(found)] == ratios


def test_it_is_cut_as_the_first_is_now():
    view = explore(FIRST, other=toy_steps("aaabbbccc"))
    view.threshold = 0.0
    found = result_of(view)
    assert ": 1 phase matched" in found["table"]["caption"]
    assert {*found["tables"]["timeline"]["rank"]} == {"0"}


def test_phases_of_a_second_run_stay_as_they_were_cut():
    second = tp.phases(toy_steps("aabb"), lambda steps: [0, 0, 0, 0])
    view = explore(FIRST, other=second)
    assert {*result_of(view)["tables"]["timeline"]["rank"]} == {"0"}


@pytest.mark.parametrize("method", [lambda steps: [-1] * len(steps), lambda steps: [-1, *[0] * (len(steps) - 1)]])
def test_noise_is_matched_with_nothing(method):
    found = comparison(method=method)
    assert all("outliers" not in row["Phase"] for row in pairs(found))
    json.dumps(found, allow_nan=False)


def test_runs_that_are_not_to_be_compared_unasked():
    a, b = (replace(FIRST, metadata={"model": name}) for name in ("bert", "gpt"))
    view = explore(a, other=b)
    with pytest.raises(IncompatibleRuns, match="bert"):
        compared(view.state)
    assert result_of(view)["table"]["rows"]


def test_the_page_asks_before_it_compares_different_models():
    view = explore(replace(FIRST, metadata={"model": "bert"}), other=replace(FIRST, metadata={"model": "gpt"}))
    sent = []
    view.send = lambda content, buffers=None: sent.append(content)
    view._asked(None, {"ask": "compare", "id": 1, "with": {"allow_different_models": False}}, [])
    view._asked(None, {"ask": "compare", "id": 2, "with": {"allow_different_models": True}}, [])
    assert "bert" in sent[0]["error"]
    assert len(sent[1]["matches"]) == 2
    assert json.loads(json.dumps(sent[1], allow_nan=False))["answer"] == 2


def test_without_a_second_run_there_is_nothing_to_compare():
    view = explore(FIRST)
    sent = []
    view.send = lambda content, buffers=None: sent.append(content)
    view._asked(None, {"ask": "compare", "id": 1}, [])
    assert sent[0]["error"]


def test_names_of_the_second_run_are_text():
    found = comparison(FIRST, replace(FIRST, name="<img src=x>\x1b"))
    assert found["table"]["caption"].startswith("toy compared with <img src=x>\ufffd: ")
    assert "\x1b" not in json.dumps(found, ensure_ascii=False)
