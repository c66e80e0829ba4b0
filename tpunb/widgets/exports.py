"""The explorer without a kernel: one page, pictures, a trace, and what a saved notebook shows."""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tpunb import charts
from tpunb.charts import render
from tpunb.charts.accounts import folded
from tpunb.frames import Phases
from tpunb.text import format_error, plain
from tpunb.widgets import face, phase_view, second_run, sliders
from tpunb.widgets.explorer_state import ExplorerState, Messages
from tpunb.widgets.panel import Answer, asset, module
from tpunb.widgets.panel import bundle as vega
from tpunb.widgets.table import CLUSTERING, block, document
from tpunb.widgets.table import STYLE as PAGE_STYLE

SCRIPT = module("parts.js", "panel.js", "phase_facts.js", "accounts.js", "second_run.js", "buttons.js", "explorer.js")
STYLE = PAGE_STYLE + asset("explorer.css")
_BODY = """<noscript>{static}</noscript><main id="explorer"></main>
<script type="module">{vega}</script>
<script type="module">{module}
const state = {state};
render({{ model: stored(state), el: document.getElementById("explorer") }});
</script>"""


def page(state: ExplorerState) -> bytes:
    """Return the explorer as one HTML file that needs no network; its sliders and its zoom are disabled."""
    numbers = {state.shown_phase, *phase_view.phase_table(state.phases)["phases"]}
    details = {str(number): state.figures(number) | state.reasons(number) for number in sorted(numbers)}
    stored: dict[str, Any] = {
        "clustering": state.clustering,
        "phase": state.phase,
        "account": state.account,
        "_frame": replace(state, account=None).frame(),
        "_curve": state.curve(),
        "_axis": state.axis(),
        "_clusters": {"number": 1, **state.clusters()},
        "_details": {"phases": details, "longest": state.phases.longest.id},
        "_runs": phase_view.runs(state.phases, state.edges),
    }
    stored |= {"_advice": state.todo, "_rates": state.rates, "_hints": phase_view.hints(state.phases)}
    if (run := state.goodput) is not None:
        names = stored["_frame"]["accounts"]["names"]
        stored["_accounts"] = {name: phase_view.describe_goodput(run, name, state.timeline) for name in names}
    if state.other is not None:
        try:
            stored["_compared"] = second_run.compared(state)
        except Exception as error:  # noqa: BLE001  shown in place of the comparison
            stored["_compared"] = {"error": format_error(error)}
    body = _BODY.format(
        static=static_html(state),
        vega=vega().decode().replace("</script", "<\\/script"),
        module=f"{SCRIPT}\n{asset('saved.js')}".replace("</script", "<\\/script"),
        state=json.dumps(stored, allow_nan=False).replace("<", "\\u003c"),
    )
    title = f"Phases of {state.steps.name}" if state.steps.name else "Phases of a run"
    return document(title, body, STYLE, scripts=True)


def svg(phases: Phases) -> bytes:
    """Return the timeline as an SVG in the text colour of the page around it."""
    return render.svg(charts.timeline(phases)).encode()


def png(phases: Phases) -> bytes:
    """Return the timeline as a PNG on white."""
    return render.png(charts.timeline(phases))


def trace(state: ExplorerState) -> bytes:
    """Return the phases as a trace for chrome://tracing and Perfetto."""
    with tempfile.TemporaryDirectory() as folder:
        accounts = None if state.goodput is None or state.phases.steps.wall is None else state.goodput.segments
        return state.phases.to_chrome_trace(Path(folder) / "trace.json", state.checkpoints, accounts).read_bytes()


_KINDS: dict[str, tuple[str, Callable[[ExplorerState], bytes]]] = {
    "html": ("text/html", page),
    "svg": ("image/svg+xml", lambda state: svg(state.phases)),
    "png": ("image/png", lambda state: png(state.phases)),
    "trace": ("application/json", trace),
}


def export(state: ExplorerState, kind: str) -> Answer:
    """Return a file for the page's buttons: its name, its type and its bytes."""
    if kind not in _KINDS:
        raise ValueError(f"An export must be html, svg, png or trace. Got {kind!r} instead.")
    media, make = _KINDS[kind]
    stem = "".join(letter if letter.isalnum() else "-" for letter in state.steps.name or "run").strip("-") or "run"
    return {"name": f"{stem}.{'trace.json' if kind == 'trace' else kind}", "type": media}, [make(state)]


def static_html(state: ExplorerState) -> str:
    """Return the phases as HTML without scripts: tables, and the charts in the colours of the page."""
    return _block(state, ([], []), render.svg, sources=True)


def _block(
    state: ExplorerState,
    messages: Messages,
    draw: Callable[[render.LayerPicture], str],
    curve: str = "",
    *,
    sources: bool,
) -> str:
    """Return verdict, goodput, timeline, advice, the phases as tables, the comparison, then how phases were found."""
    run, headline = state.goodput, state.phases.headline
    hosts = "" if (found_hosts := state.hosts) is None else draw(charts.hosts(found_hosts))
    evidence = evidence_of(state, draw, rates=sources) + hosts + face.html(state.todo)
    method = [*([] if run is None else [headline]), *messages[0], state.code]
    phase, warnings = state.shown_phase, [*messages[1]]
    figures = state.figures(phase)
    tables = [phase_view.phase_table(state.phases), figures["facts"]]
    if sources:
        reasons = state.reasons(phase)
        tables += [*reasons["ops"], *reasons["lists"]]
    else:
        distinguishing = phase_view.distinguishing(state.phases, phase)
        tables += [*figures["ops"], *([distinguishing] if distinguishing["rows"] else [])]
    if run is not None and state.account is not None:
        tables = [*phase_view.account_tables(run, state.account), *tables]
    if state.other is not None:
        try:
            tables.append(second_run.compared(state)["table"])
        except Exception as error:  # noqa: BLE001  shown in place of the comparison
            warnings.append(f"no comparison: {format_error(error)}")
    answer, lines = ("", [headline]) if state.answer is None else (face.html(state.answer), [])
    return block(lines, warnings, evidence, tables, method, answer=answer, title=CLUSTERING, curve=curve)


def evidence_of(state: ExplorerState, draw: Callable[[render.LayerPicture], str], *, rates: bool) -> str:
    """Return rates, where the time went and the timeline as HTML; `rates` may read windows."""
    shown = [state.rates] * rates + ([] if state.spent is None else [state.spent])
    segments = None if state.goodput is None else folded(state.goodput).segments
    timeline = draw(charts.timeline(state.phases, segments)) if len(state.steps) else ""
    return "".join(map(face.html, shown)) + timeline


def static_bundle(state: ExplorerState, *, live: bool = False) -> dict[str, str]:
    """Return pictures and tables by media type, for front ends without a kernel and notebooks that are not trusted.

    Beside a live panel there is no PNG, and no raw events are read.
    """
    chart = sliders.chart(state.swept)
    curve = "" if chart is None else f"<div>{render.image(chart)}</div>"
    bundle = {
        "text/html": _block(
            state, state.notes, lambda chart: f"<div>{render.image(chart)}</div>", curve, sources=not live
        ),
        "text/plain": plain(repr(state.phases)),
    }
    return bundle if live else {**bundle, "image/png": base64.b64encode(png(state.phases)).decode()}
