"""Draw charts without a browser or a network, whatever Altair renderer is active.

JupyterLab and exported notebooks show an SVG in the colours of the page, light or dark; an untrusted notebook shows an
image on white.
"""

from __future__ import annotations

import base64
import re
import zlib
from html import escape
from typing import Any
from uuid import uuid4
from xml.etree import ElementTree

import altair as alt
import vl_convert

from tpunb.text import plain

VEGA_LITE = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
"""The version of Vega-Lite that Altair writes, in vl-convert's form."""


_FONT = 'font-family="sans-serif" font-size="10px"'  # of most texts
_DEFAULTS = re.compile(
    r' (?:aria-[a-z]+|role|class|pointer-events)="[^"]*"| (?:(?:fill-)?opacity|stroke-width)="1"'
    rf'| transform="translate\(0,0\)"| {_FONT}'
)
_POINT = re.compile(
    r'<path transform="translate\(([-\d.]+),([-\d.]+)\)" '
    r'd="M([\d.]+),0A\3,\3,0,1,1,-\3,0A\3,\3,0,1,1,\3,0" fill="([^"]+)" stroke-width="\d"/>'
)


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


def inline(chart: alt.TopLevelMixin) -> str:
    """Return HTML with a chart as `svg`, or as `image` in front ends that drop untrusted styles and SVG."""
    name = f"tpunb-{uuid4().hex[:10]}"  # styles apply to the whole page, also to outputs that are not trusted
    either = f"<style>.{name}>[hidden]{{display:block}}.{name}>img{{display:none}}</style>"
    look = "color:var(--jp-content-font-color1,currentColor);overflow-x:auto"
    both = f'<div hidden="hidden">{svg(chart)}</div>{image(chart)}'
    return f'<div class="{name}" style="{look}">{either}{both}</div>'


def svg(chart: alt.TopLevelMixin) -> str:
    """Return an inline SVG: transparent, in the text colour of the page, with unique ids."""
    root = ElementTree.fromstring(_drawn(spec(chart)))
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


def image(chart: alt.TopLevelMixin) -> str:
    """Return an ``<img>`` that holds its SVG, on white: front ends keep it in untrusted pages."""
    source = base64.b64encode(_slim(_drawn(_on_white(chart))).encode()).decode()
    return f'<img alt="{escape(_description(chart))}" src="data:image/svg+xml;base64,{source}" style="max-width:100%"/>'


def spec(chart: alt.TopLevelMixin) -> dict[str, Any]:
    """Return a chart's Vega-Lite spec for a page: transparent, in the colour of its text."""
    return _themed(chart, "currentColor", "transparent")


def png(chart: alt.TopLevelMixin) -> bytes:
    """Return a PNG on white, two pixels per point."""
    return _packed(vl_convert.vegalite_to_png(_on_white(chart), VEGA_LITE, scale=2, allowed_base_urls=[]))


def _packed(png: bytes) -> bytes:
    """Return a PNG with its pixels compressed well: a fifth of what the drawing library writes."""
    chunks, at = list[tuple[bytes, bytes]](), 8  # after the signature
    while at < len(png):
        length = int.from_bytes(png[at : at + 4])
        chunks.append((png[at + 4 : at + 8], png[at + 8 : at + 8 + length]))
        at += 12 + length
    pixels = zlib.compress(zlib.decompress(b"".join(data for kind, data in chunks if kind == b"IDAT")), 9)
    others = [chunk for chunk in chunks if chunk[0] != b"IDAT"]
    parts = [*others[:-1], (b"IDAT", pixels), others[-1]]
    return png[:8] + b"".join(
        len(data).to_bytes(4) + kind + data + zlib.crc32(kind + data).to_bytes(4) for kind, data in parts
    )


def _slim(svg: str) -> str:
    """Return an SVG for an ``<img>``: without labels, which no reader gets there, and what cannot be seen."""
    bare = re.sub(r"<[^>]+>", _slim_tag, svg).replace("<g ", f"<g {_FONT} ", 1)
    bare = re.sub(r'<path d="[^"]*"(?: display="none")?/>', "", bare)  # neither filled nor stroked
    bare = _POINT.sub(r'<circle cx="\1" cy="\2" r="\3" fill="\4"/>', bare)
    while "<g></g>" in bare:
        bare = bare.replace("<g></g>", "")
    return re.sub(r'<path d="[^"]*"([^>]*)/>(?:<path d="[^"]*"\1/>)+', _joined, bare)


def _slim_tag(tag: re.Match[str]) -> str:
    """Return a tag with two decimals and without values that are the default."""
    short = re.sub(r"(\d\.\d\d)\d+", r"\1", _DEFAULTS.sub("", tag[0]))
    return re.sub(r"(\d)\.0+\b|(\.\d)0\b", r"\1\2", short)


def _joined(paths: re.Match[str]) -> str:
    """Return neighbours of one look as one path."""
    lines = re.findall(r' d="([^"]*)"', paths[0])
    return f'<path d="{"".join(lines)}"{paths[1]}/>'


def _drawn(spec: dict[str, Any]) -> str:
    return vl_convert.vegalite_to_svg(spec, VEGA_LITE, allowed_base_urls=[])


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
