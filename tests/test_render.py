"""Rendering: offline, in the colours of the page, with ids that no other picture has."""

import base64
import re
import zlib

import altair as alt
import pytest
import vl_convert
from chart_checks import ALL, phases_of

from tpunb import charts
from tpunb.charts import render
from tpunb.charts.timeline import live_timeline


@pytest.mark.parametrize("chart", ALL, ids=lambda c: c.__name__)
def test_a_chart_renders_without_a_network(chart):
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


def test_ids_differ_between_renderings_and_references_resolve():
    one, two = (render.svg(live_timeline(["host"])) for _ in range(2))  # it is clipped
    ids = [set(re.findall(r'\bid="(.+?)"', text)) for text in (one, two)]
    assert ids[0]
    assert not ids[0] & ids[1]
    assert set(re.findall(r"url\(#(.+?)\)", one)) <= ids[0]


def test_a_png_has_two_pixels_per_point():
    chart = charts.coverage(phases_of())
    width = int.from_bytes(render.png(chart)[16:20], "big")
    assert width > 2 * chart.width


def test_a_png_is_packed_and_every_pixel_stays():
    chart = charts.timeline(phases_of())
    loose = vl_convert.vegalite_to_png(render._on_white(chart), render.VEGA_LITE, scale=2, allowed_base_urls=[])
    packed = render.png(chart)
    assert len(packed) < len(loose) / 2
    assert pixels(packed) == pixels(loose)


def pixels(png):
    """The filtered rows of a PNG; its checksums are right."""
    data, at = b"", 8
    while at < len(png):
        end = at + 8 + int.from_bytes(png[at : at + 4])
        assert int.from_bytes(png[end : end + 4]) == zlib.crc32(png[at + 4 : end])
        data += png[at + 8 : end] if png[at + 4 : at + 8] == b"IDAT" else b""
        at = end + 4
    return zlib.decompress(data)


def test_a_users_configuration_takes_precedence():
    chart = charts.coverage(phases_of()).configure_axis(labelColor="#123456")
    assert "#123456" in render.svg(chart)


def test_control_characters_in_a_title_are_replaced():
    chart = charts.timeline(phases_of()).properties(title=["red \x1b[31m", "and \u202eback"])
    assert "\ufffd" in render.svg(chart)
    assert render.png(chart)
