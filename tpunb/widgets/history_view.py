"""The runs of a folder as ``%tpupoint --history`` shows them: a chart and a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from tpunb import charts
from tpunb.charts import render
from tpunb.charts.style import names_of
from tpunb.text import duration, percent, plural
from tpunb.widgets import html_tables

_HEADER = ["Run", "Started (UTC)", "Program", "Device", "Run time", "Goodput", "Step time", "Steps", "Phases"]


@dataclass(frozen=True, eq=False, repr=False)
class History:
    """Runs of a folder, the last first.

    Parameters
    ----------
    runs
        Runs in order of their starts: ``tpunb.schema.RUNS``.
    """

    runs: pl.DataFrame

    @property
    def _table(self) -> html_tables.Table:
        names = names_of(self.runs["name"])
        rows = [
            [
                name,
                "–" if run["started"] is None else f"{run['started']:%Y-%m-%d %H:%M}",
                run["program"] or "–",
                run["device"] or "–",
                _known(run["wall_ps"], duration),
                _known(run["goodput"], percent),
                _known(run["step_ps"], duration),
                _known(run["steps"], "{:,}".format),
                _known(run["phases"], "{:,}".format),
            ]
            for name, run in zip(names, self.runs.iter_rows(named=True), strict=True)
        ]
        return html_tables.Table("Runs, the last first", _HEADER, rows[::-1])

    @property
    def _headline(self) -> str:
        return plural(self.runs.height, "run")

    def __repr__(self) -> str:
        return "\n".join([self._headline, *html_tables.text([_HEADER, *self._table.rows])])

    def _repr_mimebundle_(self, *args: Any, **kwds: Any) -> dict[str, Any]:
        picture = render.inline(charts.history(self.runs))
        page = html_tables.block([self._headline], [], picture, [self._table], [])
        return {"text/html": page, "text/plain": repr(self)}


def _known(value: Any, text: Any) -> str:
    return "–" if value is None else str(text(value))
