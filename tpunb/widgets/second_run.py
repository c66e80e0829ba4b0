"""A second run beside the first: its ribbon in the first one's colours, and what changed, phase by phase."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from tpunb import charts, pictures
from tpunb.charts.live_ribbon import Ribbon, layout, ribbon
from tpunb.cluster import compare, phases
from tpunb.export import phase_name
from tpunb.frames import Comparison, Phases
from tpunb.frames.words import cut, plain
from tpunb.widgets.described import percent, runs, seconds

if TYPE_CHECKING:
    from tpunb.widgets.explorer import PhaseExplorer

_OPS = 3  # gained or lost, of a pair


def compared(view: PhaseExplorer) -> dict[str, Any]:
    """Return the second run cut as the first is, and what changed.

    Raises
    ------
    Unlike
        When the runs are of another model or precision, and ``view.unlike`` is false.
    """
    other = view.other
    second = other if isinstance(other, Phases) else phases(other, view.value.method)  # type: ignore[arg-type]
    found = compare(view.value, second, unlike=view.unlike)
    drawn = Ribbon(second.steps)
    spec = pictures.spec(ribbon(drawn.hosts, watched=second.steps.windows.height > 0))
    rows = drawn.rows(second, alias=_looks(found))
    return {
        "title": plain(second.steps.name or "the other run"),
        "told": plain(repr(found).removeprefix("Comparison(").removesuffix(")")),
        "ribbon": spec,
        "edges": [*drawn.edges],
        "layout": layout(len(drawn.hosts)),
        "tables": rows,
        "runs": runs(second, drawn.edges),
        "scene": {"watched": drawn.watched(), "checkpoints": drawn.marks({})},
        "chart": _ratios(found),
        "pairs": [_pair(found, row) for row in found.frame.iter_rows(named=True)],
    }


def _ratios(found: Comparison) -> dict[str, Any] | None:
    if not found.frame["ratio"].drop_nulls().len():
        return None
    return pictures.spec(charts.compared(found)) | {"usermeta": {"room": 300}}  # for the names and the figures


def _looks(found: Comparison) -> dict[int, tuple[int, str]]:
    """Return of each phase of the second the rank of the first's that it was matched with, and the name of the pair."""
    rank = {phase: at for at, phase in enumerate(p for p in found.a.frame["phase"] if p >= 0)}
    pairs = found.frame.select("phase_a", "phase_b").iter_rows()
    return {second: (rank[first], f"{first} → {second}") for first, second in pairs}


def _pair(found: Comparison, row: dict[str, Any]) -> dict[str, Any]:
    """Return what changed in one pair of phases, in words."""
    within = "" if row["ratio_low"] is None else f" [{row['ratio_low']:.2f}, {row['ratio_high']:.2f}]"
    both = pl.col("phase_a") == row["phase_a"], pl.col("phase_b") == row["phase_b"]
    ops = found.ops.filter(*both)
    new, gone = (
        [cut(plain(str(op))) for op in ops.filter(state=state)["op"].head(_OPS)] for state in ("gained", "lost")
    )
    return {
        "phase": row["phase_a"],
        "other": row["phase_b"],
        "name": f"{phase_name(row['phase_a'])} → {phase_name(row['phase_b'])}",
        "marks": cut(plain(row["marks"] or "–")),
        "step": "–" if row["ratio"] is None else f"{seconds(row['step_a_ps'])} → {seconds(row['step_b_ps'])}",
        "ratio": "–" if row["ratio"] is None else f"{row['ratio']:.2f}x{within}",
        "idle": _change(row["idle_a"], row["idle_b"]),
        "mxu": _change(row["mxu_a"], row["mxu_b"]),
        "gained": new,
        "lost": gone,
    }


def _change(before: float | None, after: float | None) -> str:
    return "–" if before is None or after is None else f"{percent(before)} → {percent(after)}"
