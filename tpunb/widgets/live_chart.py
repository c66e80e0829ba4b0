"""A chart whose rows and signals change in place: offline, without flicker, light and dark."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import altair as alt
import polars as pl
import polars.selectors as cs
from traitlets import Bool, Dict, Unicode

from tpunb.charts import render
from tpunb.charts.style import clean
from tpunb.errors import wrong_type
from tpunb.widgets.panel import Panel, module

_SAVED = 20_000  # characters of JSON in a saved notebook; a picture that exceeds them is left out
_SAFE = 2**53  # largest integer of JavaScript


class LiveChart(Panel):
    """An Altair chart, drawn in the page by Vega from the kernel.

    Parameters
    ----------
    chart
        Altair chart, which may name tables (``alt.NamedData("rows")``) and parameters (``alt.param("at", value=0)``).
    tables
        Rows of each named table, already aggregated.
    signals
        Values of the parameters.
    canvas
        Whether to draw on a canvas: faster from about a thousand marks.

    >>> chart = alt.Chart(alt.NamedData("rows")).mark_point().encode(x="x:Q")
    >>> live = LiveChart(chart, tables={"rows": pl.DataFrame({"x": [1, 2]})})
    >>> live.put(rows=pl.DataFrame({"x": [3]}))
    >>> live.tables
    {'rows': {'x': [3]}}
    """

    _esm = module("live_chart.js")

    spec = Dict(help="Vega-Lite spec").tag(sync=True)
    tables = Dict(help="columns by table").tag(sync=True)
    signals = Dict(help="values by parameter").tag(sync=True)
    canvas = Bool(False, help="whether to draw on a canvas").tag(sync=True)
    _picture = Unicode("", help="SVG for pages without a kernel").tag(sync=True)

    def __init__(
        self,
        chart: alt.TopLevelMixin,
        *,
        tables: Mapping[str, pl.DataFrame] | None = None,
        signals: Mapping[str, Any] | None = None,
        canvas: bool = False,
    ) -> None:
        if not isinstance(chart, alt.TopLevelMixin):
            raise wrong_type("LiveChart", "chart", "be a chart of Altair", chart)
        named = {name: columns(frame) for name, frame in (tables or {}).items()}
        self._chart = chart
        super().__init__(spec=render.spec(chart), tables=named, signals=dict(signals or {}), canvas=canvas)
        drawn = render.svg(chart, self._rows())
        if len(json.dumps({**self.get_state(), "_picture": drawn}, default=str)) < _SAVED:
            self._picture = drawn

    def put(self, **tables: pl.DataFrame) -> None:
        """Replace the rows of named tables."""
        self.tables = self.tables | {name: columns(frame) for name, frame in tables.items()}

    def _rows(self) -> dict[str, list[dict[str, Any]]]:
        return {name: pl.DataFrame(table, strict=False).to_dicts() for name, table in self.tables.items()}

    def _repr_mimebundle_(self, **kwds: Any) -> Any:
        rows = self._rows()
        still = {
            "text/html": render.inline(self._chart, rows),
            "image/png": base64.b64encode(render.png(self._chart, rows)).decode(),
            "text/plain": str(self.spec.get("description", "a chart")),
        }
        data, metadata = super()._repr_mimebundle_(**kwds) or ({}, {})
        return data | still, metadata


def columns(frame: pl.DataFrame) -> dict[str, list[Any]]:
    """Return a frame as columns for JSON and JavaScript: without NaN, large integers and control characters.

    >>> columns(pl.DataFrame({"id": [2**60], "x": [float("nan")]}))
    {'id': ['1152921504606846976'], 'x': [None]}
    """
    wide = [column.name for column in frame.select(cs.integer()) if column.drop_nulls().abs().gt(_SAFE).any()]
    texts = cs.string() | cs.categorical() | cs.enum()
    finite = pl.when(cs.float().is_finite()).then(cs.float())
    return frame.with_columns(clean(texts), finite, cs.by_name(wide).cast(pl.String)).to_dict(as_series=False)
