"""The explorer without a kernel: one page, pictures, a trace, and what a saved notebook shows."""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tpunb import charts, pictures
from tpunb.frames import Phases
from tpunb.frames.words import plain
from tpunb.widgets import described, knobs, tables
from tpunb.widgets.panel import Answer, Panel, asset, told
from tpunb.widgets.tables import safe
from tpunb.widgets.vega import bundle as vega

if TYPE_CHECKING:
    from tpunb.widgets.explorer import PhaseExplorer

_STATE = ("method", "min_samples", "k", "threshold", "ops", "phase", "_frame", "_curve", "_scene", "_cut")
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; \
style-src 'unsafe-inline'; img-src data: blob:">
<title>{title}</title>
<style>
:root{{color-scheme:light dark}}
body{{font-family:system-ui,sans-serif;margin:24px auto;max-width:1200px;padding:0 16px}}
{style}</style></head>
<body><noscript>{still}</noscript><main id="explorer"></main>
<script type="module">{vega}</script>
<script type="module">{module}
const state = {state};
render({{ model: stored(state), el: document.getElementById("explorer") }});
</script></body></html>
"""


def page(view: PhaseExplorer) -> bytes:
    """Return the explorer as one HTML file that asks nothing of any network: all but the sliders and the zoom work."""
    state: dict[str, Any] = {name: getattr(view, name) for name in _STATE}
    numbers = {row["phase"] for row in described.rows(view.value)}
    numbers |= set() if view.phase is None else {view.phase}
    state["_details"] = {
        "phases": {str(number): view.details(number) for number in sorted(numbers)},
        "longest": view.value.longest.id,
    }
    state["_runs"] = described.runs(view.value, view._ribbon.edges)
    if view.other is not None:
        try:
            state["_compared"] = view.answers()["compare"]()[0]
        except Exception as error:  # noqa: BLE001  the page says it where the comparison would stand
            state["_compared"] = {"error": told(error)}
    filled = _PAGE.format(
        title=safe(f"Phases of {view.steps.name}" if view.steps.name else "Phases of a run"),
        style=view._css,  # a class attribute of anywidget's
        still=static(view.value),
        vega=vega().decode().replace("</script", "<\\/script"),
        module=f"{view._esm}\n{asset('saved.js')}".replace("</script", "<\\/script"),
        state=json.dumps(state, allow_nan=False).replace("<", "\\u003c"),
    )
    return filled.encode()


def svg(phases: Phases) -> bytes:
    """Return the ribbon as an SVG in the text colour of the page around it."""
    return pictures.svg(charts.timeline(phases)).encode()


def png(phases: Phases) -> bytes:
    """Return the ribbon as a PNG on white."""
    return pictures.png(charts.timeline(phases))


def trace(view: PhaseExplorer) -> bytes:
    """Return the phases as a trace for chrome://tracing and Perfetto."""
    with tempfile.TemporaryDirectory() as folder:
        return view.value.to_chrome_trace(Path(folder) / "trace.json", view.checkpoints).read_bytes()


def export(view: PhaseExplorer, kind: str) -> Answer:
    """Return one of the files that the page's buttons offer: its name, its type and its bytes."""
    name = "".join(letter if letter.isalnum() else "-" for letter in view.steps.name or "run").strip("-") or "run"
    if kind == "html":
        return {"name": f"{name}.html", "type": "text/html"}, [page(view)]
    if kind == "svg":
        return {"name": f"{name}.svg", "type": "image/svg+xml"}, [svg(view.value)]
    if kind == "png":
        return {"name": f"{name}.png", "type": "image/png"}, [png(view.value)]
    if kind == "trace":
        return {"name": f"{name}.trace.json", "type": "application/json"}, [trace(view)]
    raise ValueError(f"An export must be html, svg, png or trace. Got {kind!r} instead.")


def frozen(view: PhaseExplorer) -> Answer:
    """Put pictures in the panel's place, as its page asks."""
    view.freeze()
    return {}, []


def static(phases: Phases) -> str:
    """Return the phases as HTML without scripts: tables, and the ribbon in the colours of the page."""
    return tables.block(described.headline(phases), [], [], tables.of_phases(phases), svg(phases).decode())


def still(view: PhaseExplorer) -> dict[str, str]:
    """Return what a front end shows without a kernel, by media type; also one that does not trust the notebook."""
    curve = knobs.chart(view.method, view.swept)
    drawn = [charts.timeline(view.value), charts.coverage(view.value), *([] if curve is None else [curve])]
    below = "".join(f"<div>{pictures.image(chart)}</div>" for chart in drawn)
    return {
        "text/html": tables.block(described.headline(view.value), *view.about, tables.of_phases(view.value), below),
        "image/png": base64.b64encode(png(view.value)).decode(),
        "text/plain": plain(repr(view.value)),
    }


About = tuple[Sequence[str], Sequence[str]]
"""What stands above a panel: lines, and what went wrong."""


class Places:
    """Where a panel was shown, so that pictures can be put there."""

    def __init__(self) -> None:
        self._shown: list[str] = []

    def show(self, view: Panel) -> None:
        """Show the panel in an output of its own."""
        name = f"tpunb-{uuid4().hex}"
        data, metadata = view._repr_mimebundle_() or ({}, {})
        _publish(data, metadata, transient={"display_id": name})
        self._shown.append(name)

    def add(self, name: str) -> None:
        """Note that the panel is shown in the output of this display id."""
        self._shown.append(name)

    def freeze(self, data: dict[str, str]) -> None:
        """Put `data` in place of the panel, wherever it was shown."""
        for name in self._shown:
            _publish(data, {}, transient={"display_id": name}, update=True)


def _publish(*data: Any, **how: Any) -> None:
    from IPython import display as ipython

    publish: Callable[..., None] = ipython.publish_display_data
    publish(*data, **how)
