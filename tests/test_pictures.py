"""Pictures: a chart draws itself offline, in the colours of the page, and no two share an id."""

import base64
import re

import altair as alt
import pytest
from test_charts import ALL, phases_of

from tpunb import charts, pictures


@pytest.mark.parametrize("chart", ALL, ids=lambda c: c.__name__)
def test_a_chart_shows_itself_without_a_network(chart):
    before = alt.renderers.active
    bundle = chart(phases_of())._repr_mimebundle_()
    assert set(bundle) == {"text/html", "image/png", "text/plain"}
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    html = bundle["text/html"]
    assert not re.search(r"<script|src=\"(?!data:image/svg)|href=|url\(['\"]?http|@import", html)
    svg = html[html.index("<svg") : html.index("</svg>")]
    assert 'role="img"' in svg
    assert 'aria-label="' in svg
    assert "currentColor" in svg
    assert not re.search(r'<rect[^>]*fill="white"', svg)  # transparent: the page's own colour
    assert alt.renderers.active == before


def test_ids_differ_between_renderings_and_are_found():
    chart = charts.timeline(phases_of())
    one, two = pictures.svg(chart), pictures.svg(chart)
    ids = [set(re.findall(r'\bid="(.+?)"', text)) for text in (one, two)]
    assert not ids[0] & ids[1]
    clipped = (chart.layer[0] + chart.layer[0]).properties(description="clipped")
    clipped.layer[0].mark = alt.MarkDef("rect", clip=True)
    one, two = pictures.svg(clipped), pictures.svg(clipped)
    ids = [set(re.findall(r'\bid="(.+?)"', text)) for text in (one, two)]
    assert ids[0]
    assert not ids[0] & ids[1]
    assert set(re.findall(r"url\(#(.+?)\)", one)) <= ids[0]


def test_a_png_is_on_white_at_two_pixels_a_point():
    chart = charts.coverage(phases_of())
    width = int.from_bytes(pictures.png(chart)[16:20], "big")
    assert width > 2 * chart.width


def test_the_users_own_configuration_wins():
    chart = charts.coverage(phases_of()).configure_axis(labelColor="#123456")
    assert "#123456" in pictures.svg(chart)


def test_a_title_of_control_characters_does_not_end_the_process():
    chart = charts.timeline(phases_of()).properties(title=["red \x1b[31m", "and \u202eback"])
    assert "\ufffd" in pictures.svg(chart)
    assert pictures.png(chart)
