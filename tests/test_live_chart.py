"""Live charts: rows as columns, and a small state."""

import base64
import json
from xml.etree import ElementTree

import altair as alt
import polars as pl
import pytest

import tpunb as tp
from tpunb import charts
from tpunb.testing import toy_steps
from tpunb.widgets.live_chart import LiveChart, columns

EVIL = "<img src=x onerror=alert(1)>"


def points(**more):
    chart = alt.Chart(alt.NamedData("rows"), description="points").mark_text().encode(x="x:Q", text="name:N")
    return LiveChart(chart, tables={"rows": pl.DataFrame({"x": [1, 2], "name": ["a", EVIL]})}, **more)


def saved(live):
    return json.dumps(live.get_state(), allow_nan=False, default=str)


def test_rows_are_replaced():
    live = points(signals={"at": 3}, canvas=True)
    changes = []
    live.observe(lambda change: changes.append(change["name"]), ["spec", "tables", "signals"])
    live.put(rows=pl.DataFrame({"x": [5]}))
    assert live.tables == {"rows": {"x": [5]}}
    live.put(more=pl.DataFrame({"y": [1]}))
    assert {*live.tables} == {"rows", "more"}
    live.signals = {"at": 4}
    assert changes == ["tables", "tables", "signals"]
    assert live.canvas is True


def test_only_charts_are_accepted():
    with pytest.raises(TypeError, match="The chart parameter of LiveChart must be a chart of Altair"):
        LiveChart({"mark": "bar"})


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        ({"x": [2**53, -(2**60)]}, {"x": [str(2**53), str(-(2**60))]}),
        ({"x": [2**53, -(2**53)]}, {"x": [2**53, -(2**53)]}),
        ({"x": [1.5, float("nan"), float("inf"), None]}, {"x": [1.5, None, None, None]}),
        ({"x": ["a\x1b[31m\u202e", None]}, {"x": ["a\ufffd[31m\ufffd", None]}),
        ({"x": [None, None]}, {"x": [None, None]}),
        ({"x": []}, {"x": []}),
        ({"x": [True]}, {"x": [True]}),
    ],
    ids=str,
)
def test_columns_are_valid_in_json_and_javascript(frame, expected):
    assert columns(pl.DataFrame(frame)) == expected
    json.dumps(columns(pl.DataFrame(frame)), allow_nan=False)


def test_categories_are_text():
    frame = pl.DataFrame({"x": ["a\x1b"]}, schema={"x": pl.Categorical})
    assert columns(frame) == {"x": ["a\ufffd"]}


def test_the_bundle_shows_its_rows_without_a_kernel():
    data, _ = points()._repr_mimebundle_()
    assert {"text/html", "image/png", "text/plain", "application/vnd.jupyter.widget-view+json"} <= {*data}
    picture = ElementTree.fromstring(data["text/html"])
    assert [element.tag for element in picture] == ["style", "div", "img"]
    assert picture[1][0].tag.endswith("svg")
    assert EVIL in "".join(picture[1].itertext())
    assert data["text/html"].count("<img") == 1  # that of an untrusted notebook
    assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")
    assert data["text/plain"] == "points"


def test_the_picture_follows_the_rows():
    live = points()
    live.put(rows=pl.DataFrame({"x": [1], "name": ["new"]}))
    data, _ = live._repr_mimebundle_()
    assert ">new<" in data["text/html"]


DRAW = [charts.sweep_curve, charts.coverage]


@pytest.mark.parametrize("draw", DRAW, ids=lambda draw: draw.__name__)
def test_a_saved_chart_is_20_kb_at_most(draw):
    live = LiveChart(draw(tp.phases(tp.steps(tp.sample("keras_cnn")))))
    assert len(saved(live)) < 20_000


def test_a_small_picture_is_saved_and_a_large_one_is_not():
    assert points()._picture.startswith("<svg")
    chart = alt.Chart(alt.NamedData("rows")).mark_point().encode(x="x:Q", y="x:Q")
    many = LiveChart(chart, tables={"rows": pl.DataFrame({"x": range(200)})})
    assert many._picture == ""
    assert len(saved(many)) < 20_000


def test_a_page_may_ask_for_vega_and_change_signals():
    live = LiveChart(charts.sweep_curve(tp.phases(toy_steps("aaabbb"))))
    sent = []
    live.send = lambda content, buffers=None: sent.append((content, buffers))
    live._asked(None, {"ask": "vega", "id": 1, "with": {}}, [])
    ((content, (bundle,)),) = sent
    assert content == {"answer": 1}
    assert b"vegaEmbed" in bundle
    live.set_state({"signals": {"at": 2}})
    assert live.signals == {"at": 2}
