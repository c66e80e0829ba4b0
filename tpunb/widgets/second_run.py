"""The run that a run is compared with, below it: its timeline in the same colours, and what changed since."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from tpunb import charts
from tpunb.analysis import compare
from tpunb.analysis.compare import Comparison
from tpunb.charts import render
from tpunb.charts.accounts import folded
from tpunb.charts.style import names_of
from tpunb.charts.timeline import live_timeline
from tpunb.charts.timeline_rows import Timeline, layout
from tpunb.cluster import phases
from tpunb.errors import TpunbError
from tpunb.frames import Phases
from tpunb.text import cut, percent, plain, short_time
from tpunb.widgets.explorer_state import ExplorerState
from tpunb.widgets.phase_view import goodput_of, runs
from tpunb.widgets.table import Table, measured, table

_OPS = 3  # gained or lost, for each pair
_COLUMNS = (
    *("Phase", "Kind", "Step time", "Ratio [95 % interval]"),
    *("Idle (% of step time)", "MXU (% of peak)", "Gained", "Lost"),
)


def compared(state: ExplorerState) -> dict[str, Any]:
    """Return the other run, grouped by the same method, and what changed since; TpunbError if there is none."""
    return state.once(("compared", state.allow_different_models), lambda: _compared(state))


def _compared(state: ExplorerState) -> dict[str, Any]:
    if state.other is None:
        raise TpunbError("there is no other run", hint="tp.explore(steps, other=...) takes one")
    second = state.other if isinstance(state.other, Phases) else phases(state.other, state.phases.method)
    comparison = compare(second, state.phases, allow_different_models=state.allow_different_models)
    timeline = Timeline(second.steps)
    a, b = _names(comparison)
    return {
        "timeline": render.spec(live_timeline(timeline.hosts, windows=second.steps.windows.height > 0)),
        "edges": [*timeline.edges],
        "layout": layout(len(timeline.hosts)),
        "tables": timeline.rows(second, alias=_aliases(comparison)),
        "runs": runs(second, timeline.edges, f"Timeline table of {a}"),
        "name": plain(a),
        "axis": timeline.axis({}, None if (run := goodput_of(second)) is None else folded(run).segments),
        "chart": _ratios(comparison),
        "table": _table(comparison, f"{b} compared with {a}"),
        "matches": [*map(list, comparison.frame.select("phase_b", "phase_a").iter_rows())],
    }


def _names(comparison: Comparison) -> list[str]:
    return names_of([comparison.b.steps.name or "this run", comparison.a.steps.name or "other run"])[::-1]


def _table(comparison: Comparison, title: str) -> Table:
    """Return the changes phase by phase; phases of one run alone come last."""
    pairs = [
        *(_pair(comparison, row) for row in comparison.frame.iter_rows(named=True)),
        *(_alone(comparison, row) for row in comparison.unmatched.iter_rows(named=True)),
    ]
    columns: dict[str, Sequence[str]] = {name: [pair.get(name, "–") for pair in pairs] for name in _COLUMNS}
    columns = measured(columns)
    result = comparison.sentence.partition(", unmatched: ")[0]  # its rows
    return table(f"{title}: {result}", [*columns], zip(*columns.values(), strict=True))


def _ratios(comparison: Comparison) -> dict[str, Any] | None:
    if not comparison.frame["ratio"].drop_nulls().len():
        return None
    return render.spec(charts.compared(comparison)) | {"usermeta": {"room": 300}}  # for names and figures


def _aliases(comparison: Comparison) -> dict[int, tuple[int, str]]:
    """Return for each phase of the other run the rank of its match in this one, and its name."""
    rank = {phase: at for at, phase in enumerate(p for p in comparison.b.frame["phase"] if p >= 0)}
    pairs = comparison.frame.select("phase_a", "phase_b").iter_rows()
    return {other: (rank[this], comparison.a.names[other]) for other, this in pairs}


def _pair(comparison: Comparison, row: dict[str, Any]) -> dict[str, str]:
    """Return the changes in one pair of phases, by column."""
    interval = "" if row["ratio_low"] is None else f" [{row['ratio_low']:.2f}, {row['ratio_high']:.2f}]"
    ops = comparison.ops.filter(pl.col("phase_a") == row["phase_a"], pl.col("phase_b") == row["phase_b"])
    gained, lost = (
        ", ".join(cut(plain(str(op))) for op in ops.filter(state=state)["op"].head(_OPS))
        for state in ("gained", "lost")
    )
    timed = row["ratio"] is not None
    return {
        "Phase": f"{comparison.a.names[row['phase_a']]} → {comparison.b.names[row['phase_b']]}",
        "Kind": cut(plain(row["kinds"] or "–")),
        "Step time": f"{short_time(row['step_a_ps'])} → {short_time(row['step_b_ps'])}" if timed else "–",
        "Ratio [95 % interval]": f"{row['ratio']:.2f}x{interval}" if timed else "–",
        "Idle (% of step time)": _change(row["idle_a"], row["idle_b"]),
        "MXU (% of peak)": _change(row["mxu_a"], row["mxu_b"]),
        "Gained": gained or "–",
        "Lost": lost or "–",
    }


def _alone(comparison: Comparison, row: dict[str, Any]) -> dict[str, str]:
    """Return the name of a phase of one run alone."""
    run, phase = (comparison.b, row["phase_b"]) if row["phase_a"] is None else (comparison.a, row["phase_a"])
    name = _names(comparison)[row["phase_a"] is None]
    return {"Phase": f"{run.names[phase]} (only in {name})"}


def _change(before: float | None, after: float | None) -> str:
    return "–" if before is None or after is None else f"{percent(before, None)} → {percent(after, None)}"
