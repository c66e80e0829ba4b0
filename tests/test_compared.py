"""Two runs, and what methods make of one, side by side."""

from dataclasses import replace

import polars as pl
import pytest
from chart_checks import EVIL, rows_of, texts_of

import tpunb as tp
from tpunb import charts, schema
from tpunb.charts import render
from tpunb.errors import TpunbError
from tpunb.testing import toy_steps


def run_of(pattern, name="toy", kinds=None, stretch=1):
    """Phases, one a letter, of steps `stretch` times as long, with a kind a letter."""
    steps = toy_steps(pattern)
    frame = steps.frame.with_columns(
        pl.col("dur_ps") * stretch, kind=pl.Series([(kinds or {}).get(letter, letter) for letter in pattern])
    )
    labels = [ord(letter) - ord("a") for letter in pattern]
    return tp.phases(replace(steps, frame=frame, name=name), lambda full: [labels[step] for step in full.frame["step"]])


# -- compared ---------------------------------------------------------------------------------------------------------


def test_each_pair_of_phases_is_a_row_with_its_ratio_and_interval():
    found = tp.compare(run_of("aaaabbbb"), run_of("aaaabbbb", stretch=2))
    within = {"ratio_low": [1.5, None], "ratio_high": [2.5, None]}
    frame = found.frame.with_columns(
        pl.col("ratio").round(6), **{name: pl.Series(ends) for name, ends in within.items()}
    )
    chart = charts.compared(replace(found, frame=frame))
    long = "2.00x [1.50, 2.50]"
    columns = "name", "ratio", "ratio_low", "ratio_high", "text", "about"
    assert [tuple(row[name] for name in columns) for row in rows_of(chart) if "name" in row] == [
        ("b → b", 2, 1.5, 2.5, long, f"4 steps in toy, 4 in toy (2): ratio {long}"),
        ("a → a", 2, None, None, "2.00x", "4 steps in toy, 4 in toy (2): ratio 2.00x"),
    ]
    assert [row["ratio"] for row in rows_of(chart) if row["about"] == "unchanged"] == [1]
    texts = next(layer for layer in chart.to_dict()["layer"] if layer["mark"]["type"] == "text")
    assert texts["encoding"]["x"] == {"value": "width"}  # beside the plot, where no line is
    assert "2 phases matched" in chart.description
    assert "toy" in chart.description
    assert render.png(chart)


def test_one_step_has_a_ratio_and_no_interval():
    chart = charts.compared(tp.compare(run_of("a"), run_of("a", stretch=3)))
    row = next(row for row in rows_of(chart) if "name" in row)
    assert (row["text"], row["ratio_low"], row["about"]) == (
        "3.00x",
        None,
        "1 step in toy, 1 in toy (2): ratio 3.00x",
    )
    assert render.svg(chart)


def test_runs_without_a_pair_cannot_be_drawn():
    run = run_of("aabb")
    none = replace(tp.compare(run, run), frame=pl.DataFrame(schema=schema.COMPARED))
    with pytest.raises(TpunbError, match="no phase of one run") as caught:
        charts.compared(none)
    assert caught.value.hint


@pytest.mark.parametrize("evil", EVIL)
def test_names_of_runs_and_marks_stay_text(evil):
    run = run_of("aabb", name=evil, kinds={"a": evil})
    chart = charts.compared(tp.compare(run, run))
    assert texts_of(chart).count(evil[:9]) >= 3  # both runs, and the phase
    assert evil[:9] in chart.description


def test_long_names_of_runs_and_marks_are_cut_in_the_middle(tmp_path):
    run = run_of("aabb", name="run " + "x" * 300 + " end", kinds={"a": "mark " + "y" * 300 + " end"})
    chart = charts.compared(tp.compare(run, run))
    names = [row["name"] for row in rows_of(chart) if "name" in row]
    assert max(map(len, names)) < 48
    assert any(name.startswith("mark y") and name.endswith("y end") for name in names)
    assert len(chart.to_dict()["title"]) < 100
    chart.save(tmp_path / "chart.svg")
    for drawn in (texts_of(chart), (tmp_path / "chart.svg").read_text()):
        assert "y end" in drawn  # Vega has not cut it again
    assert len(chart.description) < 250


def test_two_runs_of_one_name_are_numbered():
    steps = replace(toy_steps("aaabbb"), name="bert")
    comparison = tp.compare(tp.phases(steps), tp.phases(steps))
    assert charts.compared(comparison).to_dict()["title"].endswith("bert → bert (2)")
    assert (
        "bert compared with bert (2): " in tp.explore(steps, other=steps).answers()["compare"]()[0]["table"]["caption"]
    )


def test_a_comparison_names_the_phases_of_one_run_alone():
    first, second = run_of("aaabbb"), run_of("aaabbbcc")
    assert repr(tp.compare(first, second)).endswith(f", unmatched: {second.names[2]} only in b)")
    assert "unmatched" not in repr(tp.compare(first, first))
