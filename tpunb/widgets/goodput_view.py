"""Goodput for the panels: the sentence, the bar, and the time, details and stalls of one account."""

from __future__ import annotations

from typing import Any

import polars as pl

from tpunb.analysis.goodput import goodput
from tpunb.analysis.verdict import verdict
from tpunb.charts.accounts import HUES, account_rows
from tpunb.charts.timeline_rows import Timeline
from tpunb.frames import Goodput, Phases, Profile
from tpunb.frames.goodput import busy, totals
from tpunb.text import cut, duration, percent, plain

_ROWS = 8  # most details and stalls that are listed


def goodput_of(run: Phases | Profile) -> Goodput | None:
    """Return the goodput of a run, or None if there is no record of its wall time."""
    steps = run.steps if isinstance(run, Phases) else run.stored
    wall = None if steps is None else steps.wall
    return None if wall is None or wall.span_ps <= 0 else goodput(run)


def warnings(found: Goodput | None) -> list[str]:
    """Return what disturbed the measurement, in at most one line."""
    line = None if found is None else busy(found)
    return [] if line is None else [line]


def bar(found: Goodput, phases: Phases) -> dict[str, Any]:
    """Return the verdict, the sentence and the parts of the bar as columns."""
    return {"lines": lines(found, phases), "parts": account_rows(found).to_dict(as_series=False)}


def lines(found: Goodput | None, phases: Phases | None) -> list[str]:
    """Return the verdict on the run, and where its wall time went; nothing without a record of that."""
    judged = None if phases is None else verdict(phases)
    return [line for line in (judged and judged.sentence, found and found.sentence) if line]


def describe(found: Goodput, account: str, timeline: Timeline) -> dict[str, Any]:
    """Return the time of an account within a timeline, its details and its stalls."""
    of = pl.col("account") == account
    whole = totals(found).filter(of)
    time, share = whole.select("time_ps", "share").row(0) if whole.height else (0, 0)
    details = totals(found, "detail").filter(of).drop_nulls("detail").head(_ROWS)
    began = pl.col("kind").fill_null("other") == account
    stalls = found.stalls.filter(began).drop_nulls("time_ps").head(_ROWS)
    return {
        "account": account,
        "hue": HUES[account],
        "heading": f"{account}: {duration(time)}, {percent(share, None)} of wall time",
        "marks": timeline.account(found.segments.filter(of)),
        "details": {
            "Detail": _names(details["detail"]),
            "Time": _times(details["time_ps"]),
            "% of wall time": [f"{100 * part:.1f}" for part in details["share"]],
            "Count": details["count"].to_list(),
        },
        "stalls": {
            "Stalls at": _names(stalls["place"]),
            "Time": _times(stalls["time_ps"]),
            "Count": stalls["count"].to_list(),
            "Median": _times(stalls["median_ps"]),
        },
    }


def _names(column: pl.Series) -> list[str]:
    return [cut(plain(name), 120) if name else "unknown" for name in column]


def _times(column: pl.Series) -> list[str]:
    return ["–" if time is None else duration(time) for time in column]
