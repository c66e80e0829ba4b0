"""The runs of a folder as ``%tpupoint --history`` shows them: a chart and a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from tpunb import charts
from tpunb.charts import render
from tpunb.charts.style import names_of
from tpunb.text import duration, percent, plural
from tpunb.widgets.table import Table, block, table, text

_HEADER = ["Run", "Started (UTC)", "Program", "Device", "Run time", "Goodput", "Step time", "Steps", "Phases"]


@dataclass(frozen=True, eq=False, repr=False)
class History:
    """Runs of a folder (``tpunb.schema.RUNS``), shown with the last first."""

    runs: pl.DataFrame

    @property
    def _table(self) -> Table:
        names = names_of(self.runs["name"])
        rows = [
            [
                name,
                "–" if run["started"] is None else f"{run['started']:%Y-%m-%d %H:%M}",
                run["program"] or "–",
                run["device"] or "–",
                _text(run["wall_ps"], duration),
                _text(run["goodput"], percent),
                _text(run["step_ps"], duration),
                _text(run["steps"], "{:,}".format),
                _text(run["phases"], "{:,}".format),
            ]
            for name, run in zip(names, self.runs.iter_rows(named=True), strict=True)
        ]
        return table("Runs, the last first", _HEADER, rows[::-1])

    @property
    def _headline(self) -> str:
        return plural(self.runs.height, "run")

    def __repr__(self) -> str:
        return "\n".join([self._headline, *text(self._table)[1:]])

    def _repr_mimebundle_(self, *args: Any, **kwds: Any) -> dict[str, Any]:
        picture = render.inline(charts.history(self.runs))
        page = block([self._headline], [], picture, [self._table], [])
        return {"text/html": page, "text/plain": repr(self)}


def _text(value: Any, text: Any) -> str:
    return "–" if value is None else str(text(value))
