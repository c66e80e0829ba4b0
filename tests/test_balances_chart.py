"""The chart of shares by balance: a line for each run, its intervals, its marks, the paper's lines."""

import polars as pl
import pytest

import tpunb as tp
from tpunb.charts import render
from tpunb.studies.paper.charts import balances

SCHEMA = ("run", "balance", "mark", "value", "low", "high")


def frame(*rows):
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


ROWS = [
    ("bert", 16.0, "TPU v2", 0.4, 0.38, 0.45),
    ("bert", 1.0, None, 0.1, 0.08, 0.1),
    ("resnet", 4.0, None, 0.7, 0.7, 0.7),
]


def layers(chart):
    spec = chart.to_dict()
    marks = [layer["mark"]["type"] for layer in spec["layer"]]
    rows = [spec["datasets"][layer["data"]["name"]] for layer in spec["layer"]]
    return dict(zip(range(len(marks)), zip(marks, rows, strict=True), strict=True))


def test_lines_run_in_order_of_balance_with_intervals_and_marks():
    found = layers(balances(frame(*ROWS), title="Idle time"))
    assert [mark for mark, _ in found.values()] == ["line", "rule", "point", "point"]
    _, lines = found[0]
    assert [(row["run"], row["balance"], row["value"]) for row in lines] == [
        ("bert", 1, 10),
        ("bert", 16, 40),
        ("resnet", 4, 70),
    ]
    _, rules = found[1]
    assert [(row["low"], row["high"]) for row in rules] == [(8, 10), (38, 45), (70, 70)]
    _, marked = found[3]
    assert [row["about"] for row in marked] == ["bert, balance 16: 40.0 %, TPU v2"]


def test_the_papers_shares_are_lines_across():
    chart = balances(frame(*ROWS), title="Idle time", paper={"paper, TPU v2": 0.389})
    mark, rows = layers(chart)[0]
    assert (mark, rows) == ("rule", [{"value": 38.9, "about": "paper, TPU v2"}])
    assert layers(chart)[1][0] == "text"


def test_it_is_drawn_and_described():
    chart = balances(frame(*ROWS), title="Idle time")
    assert chart.to_dict()["description"].startswith("Idle time: bert, balance 1: 10.0 %")
    assert "large marks: balances of the paper" in render.svg(chart)


def test_names_are_not_trusted():
    chart = balances(frame(("\x1b[31m<b>", 1.0, "\x07", 0.1, 0.1, 0.1)), title="\x1b[31mIdle")
    assert "\x1b" not in str(chart.to_dict())
    assert "\x07" not in str(chart.to_dict())


def test_nothing_to_draw_is_an_error():
    with pytest.raises(tp.TpunbError, match="no run at a balance to draw"):
        balances(frame(), title="Idle time")
