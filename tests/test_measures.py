"""One figure per run: measured, modelled and published ones look different."""

import re
from itertools import pairwise

import polars as pl
import pytest
from chart_checks import EVIL, texts_of
from hypothesis import given
from hypothesis import strategies as st

from tpunb.charts import render
from tpunb.errors import TpunbError
from tpunb.studies.paper import charts
from tpunb.studies.paper.charts.measures import placed

SCHEMA = {"run": pl.String, "value": pl.Float64, "how": pl.String, "form": pl.String, "low": pl.Float64}
SCHEMA |= {"high": pl.Float64}


def frame(*rows):
    return pl.DataFrame([(*row, None, None, None)[:6] for row in rows], schema=SCHEMA, orient="row")


def drawn(*rows, **more):
    return charts.measures(frame(*rows), title="Idle", **more)


def layers(chart):
    spec = chart.to_dict()
    return [{**layer, "rows": spec["datasets"][layer["data"]["name"]]} for layer in spec["layer"]]


def bars(chart):
    return layers(chart)[0]


def column(chart, name):
    return [row[name] for layer in layers(chart) for row in layer["rows"] if layer_is(layer, name)]


def layer_is(layer, field):
    return layer["encoding"].get("text", {}).get("field") == field


def test_a_figure_is_a_bar_with_its_value_beside_it():
    chart = drawn(("bert", 0.389, "measured"), ("dcgan", 0.5, "modelled"))
    assert [(row["run"], row["value"], row["how"]) for row in bars(chart)["rows"]] == [
        ("bert", pytest.approx(38.9), "measured"),
        ("dcgan", 50, "modelled"),
    ]
    assert column(chart, "text") == ["38.9 %", "50.0 %"]
    assert column(chart, "run") == ["bert", "dcgan"]
    assert bars(chart)["encoding"]["x"]["scale"]["domain"] == [0, 100]
    assert chart.description == "Idle: bert: 38.9 %, measured; dcgan: 50.0 %, modelled."
    assert chart.to_dict()["title"]["subtitle"] == ["2 runs: 1 measured, 1 modelled"]
    said = texts_of(chart)
    assert all(text in said for text in ("Idle", "bert", "38.9 %", "measured", "modelled", "100 %"))
    assert render.png(chart)


def test_measured_modelled_and_published_look_different():
    chart = drawn(*(("bert", 0.1 * i, how) for i, how in enumerate(["published", "modelled", "measured"])))
    looks = {name: bars(chart)["encoding"][name]["scale"] for name in ("fill", "stroke", "strokeDash")}
    assert all(look["domain"] == ["measured", "modelled", "published"] for look in looks.values())
    assert len({*looks["fill"]["range"]}) == len({*looks["stroke"]["range"]}) == 3
    strengths = [re.findall(r"0\.\d+\)|transparent|^#", fill)[0] for fill in looks["fill"]["range"]]
    assert strengths == ["#", "0.3)", "transparent"]  # without colours they differ too
    assert bars(chart)["encoding"]["fill"]["legend"]
    assert all(how in texts_of(chart) for how in ("measured", "modelled", "published"))


def test_the_legend_lists_what_is_drawn():
    chart = drawn(("bert", 0.5, "measured"), ("bert", None, "modelled"))
    assert bars(chart)["encoding"]["fill"]["scale"]["domain"] == ["measured"]


def test_unknown_is_written_in_place_of_a_bar():
    chart = drawn(("bert", None, "measured", "naive"), ("bert", float("nan"), "modelled"), ("dcgan", 0.0, "measured"))
    assert [row["run"] for row in bars(chart)["rows"]] == ["dcgan"]
    assert column(chart, "unknown") == ["unknown", "unknown"]
    assert column(chart, "text") == ["naive", "", "0.0 %"]
    assert "bert, naive: unknown; bert: unknown; dcgan: 0.0 %, measured" in chart.description
    assert "1 measured, 2 unknown" in chart.to_dict()["title"]["subtitle"][0]


def test_no_line_crosses_unknown():
    def right(*lines, **more):
        across = ((None, line, "published", "paper") for line in lines)
        (text,) = (
            each for each in layers(drawn(("bert", None, "measured"), *across, **more)) if layer_is(each, "unknown")
        )
        return text["mark"]["dx"]

    assert right() == right(0.5) == 6
    assert right(0.1) == pytest.approx(0.1 * 440 + 6)
    assert right(0.2, 0.1) == pytest.approx(0.2 * 440 + 6)
    assert right(10.0, share=False) == pytest.approx(440 / 10.5 + 6)  # the line at 1


def test_unknown_figures_alone_are_drawn():
    chart = drawn(("bert", None, "measured"), ("dcgan", None, "measured"))
    assert bars(chart)["rows"] == []
    assert texts_of(chart).count("unknown") >= 2
    assert render.png(chart)
    assert render.svg(drawn(("bert", None, "measured"), share=False))


def test_figures_of_a_run_stand_together_in_their_order():
    chart = drawn(
        ("bert", 0.1, "measured", "naive"), ("dcgan", 0.2, "measured", "naive"), ("bert", 0.3, "measured", "tuned")
    )
    assert column(chart, "text") == ["10.0 % · naive", "30.0 % · tuned", "20.0 % · naive"]
    assert column(chart, "run") == ["bert", "dcgan"]
    tops = [row["top"] for row in bars(chart)["rows"]]
    assert 0 <= tops[0] < tops[1] < tops[2]
    assert tops[2] - tops[1] > tops[1] - tops[0]  # to the next run it is farther
    assert chart.to_dict()["height"] >= bars(chart)["rows"][-1]["bottom"]


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.none() | st.floats(0, 1), st.sampled_from(["measured", "modelled"])),
        min_size=1,
        max_size=20,
    )
)
def test_no_two_figures_overlap(rows):
    found = placed(frame(*rows), share=True)
    assert found.height == len(rows)
    for run in {run for run, *_ in rows}:
        values = found.filter(pl.col("run") == run)["value"].to_list()
        given_values = [value if value is None else 100 * value for name, value, _ in rows if name == run]
        assert values == pytest.approx(given_values)
    assert all(one <= two for one, two in pairwise(found["nth"]))
    assert all(bottom < top for bottom, top in zip(found["bottom"], found["top"][1:], strict=False))


def test_an_interval_is_a_line_with_its_ends_in_the_text():
    chart = drawn(("bert", 0.5, "measured", "naive", 0.4, 0.625), ("dcgan", 0.5, "measured", None, 0.4, None))
    lines = [layer for layer in layers(chart) if layer["encoding"].get("x2", {}).get("field") == "high"]
    assert [(row["low"], row["high"]) for layer in lines for row in layer["rows"]] == [(40, 62.5)]
    assert column(chart, "text") == ["50.0 % [40.0, 62.5] · naive", "50.0 %"]


def test_ratios_have_a_line_at_one():
    chart = drawn(("bert", 1.12, "measured", None, 1.05, 1.2), ("dcgan", 0.9, "measured"), share=False)
    assert column(chart, "text") == ["1.12x [1.05, 1.20]", "0.90x"]
    (one,) = (layer for layer in layers(chart) if [row["about"] for row in layer["rows"]] == ["1x: no change"])
    assert (one["mark"]["type"], one["rows"][0]["value"]) == ("rule", 1)
    low, high = bars(chart)["encoding"]["x"]["scale"]["domain"]
    assert (low, 1.2 <= high < 1.3) == (0, True)
    assert "1x" in texts_of(chart)
    assert not [
        layer for layer in layers(drawn(("bert", 0.5, "measured"))) if layer["mark"]["type"] == "rule" and layer["rows"]
    ]


def test_a_wide_interval_does_not_press_the_bars_together():
    chart = drawn(("bert", 1.0, "measured", None, 0.5, 1000.0), share=False)
    assert bars(chart)["encoding"]["x"]["scale"]["domain"][1] == pytest.approx(2.1)
    (line,) = (layer for layer in layers(chart) if layer["encoding"].get("x2", {}).get("field") == "high")
    assert line["rows"][0]["high"] == pytest.approx(2.1)
    assert column(chart, "text") == ["1.00x [0.50, 1000.00]"]


# -- published values of no run ----------------------------------------------------------------------------------------


def test_a_published_value_of_no_run_is_a_line_with_its_name():
    chart = drawn(("bert", 0.5, "measured"), (None, 0.389, "published", "paper, mean on TPU v2"))
    rules = [layer for layer in layers(chart) if layer["mark"]["type"] == "rule" and "x2" not in layer["encoding"]]
    assert [row["value"] for row in rules[0]["rows"]] == [pytest.approx(38.9)]
    assert column(chart, "about") == ["paper, mean on TPU v2: 38.9 %"]
    assert "paper, mean on TPU v2: 38.9 %" in texts_of(chart)
    assert "paper, mean on TPU v2: 38.9 %" in chart.description
    assert column(chart, "run") == ["bert"]


@pytest.mark.parametrize(
    ("form", "share", "text"),
    [
        ("paper: 38.90 %", True, "paper: 38.90 %"),
        ("paper: 1.12x", False, "paper: 1.12x"),
        ("paper, on TPU v2", False, "paper, on TPU v2: 0.39x"),
        ("the max", False, "the max: 0.39x"),
        (None, True, "published: 38.9 %"),
    ],
)
def test_its_figure_is_written_once(form, share, text):
    chart = drawn(("bert", 0.5, "measured"), (None, 0.389, "published", form), share=share)
    assert column(chart, "about") == [text]


def test_names_of_lines_stand_on_either_side_or_in_lines_of_their_own():
    def sides(*values, name="paper, mean on some device"):
        chart = drawn(("bert", 0.5, "measured"), *((None, value, "published", name) for value in values))
        texts = [layer for layer in layers(chart) if layer_is(layer, "about")]
        return {
            round(row["value"]): (text["mark"]["align"], text["mark"]["dy"]) for text in texts for row in text["rows"]
        }

    assert sides(0.44, 0.39) == {39: ("right", -4), 44: ("left", -4)}
    assert sides(0.02) == {2: ("left", -4)}  # on the other side is no room
    assert sides(0.97) == {97: ("right", -4)}
    assert {dy for _, dy in sides(0.5, 0.51, 0.52, 0.53).values()} == {-4, -18}


def test_a_line_without_a_figure_is_left_out():
    chart = drawn(("bert", 0.5, "measured"), (None, None, "published", "paper"))
    assert column(chart, "about") == []


# -- errors ---------------------------------------------------------------------------------------------


def test_no_run_is_no_picture():
    for rows in ([], [(None, 0.5, "published", "paper")]):
        with pytest.raises(TpunbError, match="no run to draw") as caught:
            drawn(*rows)
        assert caught.value.hint


@pytest.mark.parametrize(
    ("row", "share", "message"),
    [
        (
            ("bert", 0.5, "guessed"),
            True,
            "The how column of measures must be measured, modelled, published. Got 'guess",
        ),
        (("bert", 0.5, None), True, "The how column of measures must be .* Got 'null'"),
        ((None, 0.5, "measured"), True, "The run column of measures must be a name, where a figure was not published"),
        (("bert", 38.9, "measured"), True, r"The value column of measures must be in \[0, 1\]. Got 38.9 instead"),
        (("bert", -0.1, "measured"), False, "The value column of measures must be 0 or more. Got -0.1 instead"),
        (("bert", float("inf"), "measured"), False, "The value column of measures must be 0 or more. Got inf instead"),
        (("bert", 0.5, "measured", None, 0.4, 1.5), True, r"The high column of measures must be in \[0, 1\]. Got 1.5"),
        (("bert", 0.5, "measured", None, 0.6, 0.4), True, "The low column of measures must be no more than high"),
    ],
)
def test_a_wrong_figure_raises(row, share, message):
    with pytest.raises(ValueError, match=message):
        drawn(row, share=share)


def test_a_wrong_frame_raises():
    right = frame(("bert", 0.5, "measured"))
    with pytest.raises(TypeError, match=r"The frame parameter of measures must be a polars DataFrame\. Got 3 instead"):
        charts.measures(3, title="Idle")
    with pytest.raises(TypeError, match=r"The title parameter of measures must be a str\. Got None instead"):
        charts.measures(right, title=None)
    with pytest.raises(ValueError, match=r"must have the column how\. Got run, value instead"):
        charts.measures(right.select("run", "value"), title="Idle")
    with pytest.raises(TypeError, match=r"The value column of measures must be Float64\. Got String instead"):
        charts.measures(right.with_columns(value=pl.lit("0.5")), title="Idle")
    with pytest.raises(TypeError, match=r"The form column of measures must be String\. Got Int32 instead"):
        charts.measures(right.with_columns(form=pl.lit(5)), title="Idle")


def test_columns_that_may_be_absent_or_of_another_kind():
    bare = pl.DataFrame({"run": ["bert"], "value": [1], "how": ["measured"], "what": ["else"]})
    chart = charts.measures(bare.with_columns(pl.col("how").cast(pl.Categorical)), title="Idle")
    assert column(chart, "text") == ["100.0 %"]
    nothing = bare.with_columns(value=None, form=None)
    assert column(charts.measures(nothing, title="Idle"), "unknown") == ["unknown"]
    above = bare.with_columns(value=1 + 1e-12)  # a mean of shares may be
    assert column(charts.measures(above, title="Idle"), "text") == ["100.0 %"]


@pytest.mark.parametrize("evil", EVIL)
def test_names_stay_text(evil):
    chart = charts.measures(
        frame((evil, 0.5, "measured", evil), (evil * 9, None, "measured"), (None, 0.5, "published", evil)), title=evil
    )
    said = texts_of(chart)
    assert said.count(evil[:9]) >= 4  # title, run, form, line
    assert evil[:9] in chart.description
    assert all(text.isprintable() for text in (chart.description, *column(chart, "text"), *column(chart, "run")))


def test_long_names_are_cut_in_the_middle_and_stay_apart():
    chart = drawn(("x" * 400 + "end", 0.1, "measured", "y" * 400 + "end"), ("x" * 401 + "end", 0.2, "measured"))
    names = column(chart, "run")
    assert [len(name) <= 36 for name in names] == [True, True]
    assert names[1] == f"{names[0]} (2)"
    assert column(chart, "text")[0].endswith("yend")
    assert len(chart.description) < 300
