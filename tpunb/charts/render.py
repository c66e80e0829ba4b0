"""Draw charts without a browser or a network, whatever Altair renderer is active.

JupyterLab and exported notebooks show an SVG in the colours of the page, light or dark; an untrusted notebook shows an
image on white.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from html import escape
from typing import Any
from uuid import uuid4
from xml.etree import ElementTree

import altair as alt
import vl_convert

from tpunb.text import plain

VEGA_LITE = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
"""The version of Vega-Lite that Altair writes, in vl-convert's form."""


Tables = Mapping[str, list[dict[str, Any]]]
"""Rows of the tables that a chart only names."""


class Picture(alt.TopLevelMixin):
    """A chart that shows itself as SVG, PNG and text."""

    def _repr_mimebundle_(self, *args: Any, **kwds: Any) -> dict[str, Any]:
        return {
            "text/html": inline(self),
            "image/png": base64.b64encode(png(self)).decode(),
            "text/plain": _description(self),
        }


class LayerPicture(Picture, alt.LayerChart):
    """An ``altair.LayerChart`` that draws itself."""


class VConcatPicture(Picture, alt.VConcatChart):
    """An ``altair.VConcatChart`` that draws itself."""


def inline(chart: alt.TopLevelMixin, tables: Tables | None = None) -> str:
    """Return HTML with a chart as `svg`, or as `image` in front ends that drop untrusted styles and SVG."""
    name = f"tpunb-{uuid4().hex[:10]}"  # styles apply to the whole page, also to outputs that are not trusted
    either = f"<style>.{name}>[hidden]{{display:block}}.{name}>img{{display:none}}</style>"
    look = "color:var(--jp-content-font-color1,currentColor);overflow-x:auto"
    both = f'<div hidden="hidden">{svg(chart, tables)}</div>{image(chart, tables)}'
    return f'<div class="{name}" style="{look}">{either}{both}</div>'


def svg(chart: alt.TopLevelMixin, tables: Tables | None = None) -> str:
    """Return an inline SVG: transparent, in the text colour of the page, with unique ids."""
    root = ElementTree.fromstring(_drawn(spec(chart), tables))
    prefix = f"t{uuid4().hex[:10]}-"
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        label = element.get("aria-label")
        for name, value in list(element.items()):
            if name == "role" or name.startswith("aria-"):  # the picture is one image with one label
                del element.attrib[name]
            else:
                value = re.sub(r"url\(['\"]?#(.+?)['\"]?\)", rf"url(#{prefix}\1)", value)
                element.set(name, prefix + value if name == "id" else value)
        if "mark-rect" in element.get("class", ""):
            element.set("shape-rendering", "crispEdges")  # no gaps between neighbours
        if label is not None and element.tag == "path":
            ElementTree.SubElement(element, "title").text = label  # the tooltip
    look = {"xmlns": "http://www.w3.org/2000/svg", "style": "max-width:100%;height:auto"}
    root.attrib |= look | {"role": "img", "aria-label": _description(chart)}
    return ElementTree.tostring(root, encoding="unicode")


def image(chart: alt.TopLevelMixin, tables: Tables | None = None) -> str:
    """Return an ``<img>`` that holds its SVG, on white: front ends keep it in untrusted pages."""
    source = base64.b64encode(_drawn(_on_white(chart), tables).encode()).decode()
    return f'<img alt="{escape(_description(chart))}" src="data:image/svg+xml;base64,{source}" style="max-width:100%"/>'


def spec(chart: alt.TopLevelMixin) -> dict[str, Any]:
    """Return a chart's Vega-Lite spec for a page: transparent, in the colour of its text."""
    return _themed(chart, "currentColor", "transparent")


def png(chart: alt.TopLevelMixin, tables: Tables | None = None) -> bytes:
    """Return a PNG on white, two pixels per point."""
    return vl_convert.vegalite_to_png(_filled(_on_white(chart), tables), VEGA_LITE, scale=2, allowed_base_urls=[])


def _drawn(spec: dict[str, Any], tables: Tables | None) -> str:
    return vl_convert.vegalite_to_svg(_filled(spec, tables), VEGA_LITE, allowed_base_urls=[])


def _filled(spec: dict[str, Any], tables: Tables | None) -> dict[str, Any]:
    return spec if not tables else {**spec, "datasets": {**spec.get("datasets", {}), **tables}}


def _on_white(chart: alt.TopLevelMixin) -> dict[str, Any]:
    return _themed(chart, "#1a1a1a", "white")


def _themed(chart: alt.TopLevelMixin, ink: str, paper: str) -> dict[str, Any]:
    """Return the spec with every colour that the chart leaves open set to `ink` on `paper`."""
    with alt.data_transformers.enable("default"):  # whatever the user chose: the rows must be in the spec
        spec: dict[str, Any] = _printable(chart.to_dict())
    text = {"labelColor": ink, "titleColor": ink}
    lines = {"domainColor": ink, "tickColor": ink, "gridColor": ink, "gridOpacity": 0.12}
    defaults: dict[str, dict[str, Any]] = {
        "axis": text | lines | {"labelLimit": 300},
        "legend": text | {"labelLimit": 300, "padding": 6, "columnPadding": 16},
        "rule": {"color": ink},
        "title": {"color": ink, "subtitleColor": ink, "anchor": "start", "offset": 12},
        "text": {"color": ink},
        "view": {"stroke": None},
    }
    config = spec.get("config", {})
    merged = {part: values | config.get(part, {}) for part, values in defaults.items()}
    return {**spec, "config": {"background": paper, **config, **merged}}


def _printable(spec: Any) -> Any:
    """Return a spec without control characters in its texts: some end the process in the drawing library."""
    if isinstance(spec, dict):
        return {name: _printable(value) for name, value in spec.items()}
    if isinstance(spec, list):
        return [_printable(value) for value in spec]
    return plain(spec) if isinstance(spec, str) and not spec.isprintable() else spec


def _description(chart: alt.TopLevelMixin) -> str:
    return str(getattr(chart, "description", "a chart"))
