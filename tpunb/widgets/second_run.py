"""A second run below the first: its timeline in the first one's colours, and the changes phase by phase."""

from __future__ import annotations

from typing import Any

import polars as pl

from tpunb import charts
from tpunb.analysis import compare
from tpunb.analysis.compare import Comparison
from tpunb.charts import render
from tpunb.charts.style import names_of
from tpunb.charts.timeline import live_timeline
from tpunb.charts.timeline_rows import Timeline, layout
from tpunb.cluster import phases
from tpunb.errors import TpunbError
from tpunb.frames import Phases
from tpunb.text import cut, percent, plain, short_time
from tpunb.widgets.explorer_state import ExplorerState
from tpunb.widgets.html_tables import Table
from tpunb.widgets.phase_view import runs

_OPS = 3  # gained or lost, for each pair


def compared(state: ExplorerState) -> dict[str, Any]:
    """Return the second run, grouped by the same method, and what changed.

    Raises
    ------
    TpunbError
        When there is no second run.
    IncompatibleRuns
        When the runs are of different models or precisions, and the state does not allow that.
    """
    return state.once(("compared", state.allow_different_models), lambda: _compared(state))


def _compared(state: ExplorerState) -> dict[str, Any]:
    if state.other is None:
        raise TpunbError("there is no second run", hint="tp.explore(steps, other=...) takes one")
    second = state.other if isinstance(state.other, Phases) else phases(state.other, state.phases.method)
    comparison = compare(state.phases, second, allow_different_models=state.allow_different_models)
    timeline = Timeline(second.steps)
    return {
        "title": names_of([state.steps.name or "the run", second.steps.name or "the other run"])[1],
        "result": plain(repr(comparison).removeprefix("Comparison(").removesuffix(")")),
        "timeline": render.spec(live_timeline(timeline.hosts, windows=second.steps.windows.height > 0)),
        "edges": [*timeline.edges],
        "layout": layout(len(timeline.hosts)),
        "tables": timeline.rows(second, alias=_aliases(comparison)),
        "runs": runs(second, timeline.edges),
        "axis": {"windows": timeline.windows(), "checkpoints": timeline.checkpoints({})},
        "chart": _ratios(comparison),
        "pairs": [
            *(_pair(comparison, row) for row in comparison.frame.iter_rows(named=True)),
            *(_alone(comparison, row) for row in comparison.unmatched.iter_rows(named=True)),
        ],
    }


def table(compared: dict[str, Any]) -> Table:
    """Return the changes phase by phase as a table for pictures without scripts."""
    rows = [
        [pair["name"], pair["step"], pair["ratio"], *(", ".join(pair[state]) or "–" for state in ("gained", "lost"))]
        for pair in compared["pairs"]
    ]
    header = ["Phase", "Step time", "Ratio [95 % interval]", "Gained", "Lost"]
    return Table(f"Comparison with {compared['title']}: {compared['result']}", header, rows)


def _ratios(comparison: Comparison) -> dict[str, Any] | None:
    if not comparison.frame["ratio"].drop_nulls().len():
        return None
    return render.spec(charts.compared(comparison)) | {"usermeta": {"room": 300}}  # for names and figures


def _aliases(comparison: Comparison) -> dict[int, tuple[int, str]]:
    """Return for each phase of the second run the rank of its match in the first, and the name of the pair."""
    rank = {phase: at for at, phase in enumerate(p for p in comparison.a.frame["phase"] if p >= 0)}
    pairs = comparison.frame.select("phase_a", "phase_b").iter_rows()
    return {second: (rank[first], f"{first} → {second}") for first, second in pairs}


def _pair(comparison: Comparison, row: dict[str, Any]) -> dict[str, Any]:
    """Return the changes in one pair of phases."""
    interval = "" if row["ratio_low"] is None else f" [{row['ratio_low']:.2f}, {row['ratio_high']:.2f}]"
    ops = comparison.ops.filter(pl.col("phase_a") == row["phase_a"], pl.col("phase_b") == row["phase_b"])
    gained, lost = (
        [cut(plain(str(op))) for op in ops.filter(state=state)["op"].head(_OPS)] for state in ("gained", "lost")
    )
    return {
        "phase": row["phase_a"],
        "other": row["phase_b"],
        "name": f"{comparison.a.names[row['phase_a']]} → {comparison.b.names[row['phase_b']]}",
        "kinds": cut(plain(row["kinds"] or "–")),
        "step": "–" if row["ratio"] is None else f"{short_time(row['step_a_ps'])} → {short_time(row['step_b_ps'])}",
        "ratio": "–" if row["ratio"] is None else f"{row['ratio']:.2f}x{interval}",
        "idle": _change(row["idle_a"], row["idle_b"]),
        "mxu": _change(row["mxu_a"], row["mxu_b"]),
        "gained": gained,
        "lost": lost,
    }


def _alone(comparison: Comparison, row: dict[str, Any]) -> dict[str, Any]:
    """Return a phase of one run alone."""
    run, phase = (comparison.b, row["phase_b"]) if row["phase_a"] is None else (comparison.a, row["phase_a"])
    which = "second" if row["phase_a"] is None else "first"
    unknown = dict.fromkeys(("kinds", "step", "ratio", "idle", "mxu"), "–")
    name = f"{run.names[phase]} (only in the {which} run)"
    return {"phase": row["phase_a"], "other": row["phase_b"], "name": name, **unknown, "gained": [], "lost": []}


def _change(before: float | None, after: float | None) -> str:
    return "–" if before is None or after is None else f"{percent(before, None)} → {percent(after, None)}"
