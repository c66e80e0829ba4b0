"""Phases in rows and words: what the panel says of them. Names in it are text, never markup."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tpunb import charts
from tpunb.cluster import advise, apart
from tpunb.export import phase_name, segments
from tpunb.frames import Phase, Phases
from tpunb.frames.words import cut, plain, short
from tpunb.saved_steps import nearest_of
from tpunb.widgets.tables import ROWS, many

RUNS = 100
"""Rows of the ribbon as a table."""

PHASES = 1000
"""Rows of the table of phases, where all are asked for."""

_TOP = 5
_PIECES = 3
_BLOCKS = {
    "presence": "whether it runs",
    "counts": "how often it runs",
    "invocations": "how often it runs",
    "time_share": "its share of the time",
    "log_self": "how long it takes",
    "durations": "how long it takes",
    "step_time": "how long a step takes",
}


def rows(phases: Phases, most: int = ROWS) -> list[dict[str, Any]]:
    """Return the longest phases, a row each; what is not known is None."""
    colours = charts.colours(phases)
    until = phases.frame["share"].cum_sum()
    return [
        {
            "phase": row["phase"],
            "name": phase_name(row["phase"]),
            "colour": colours[row["phase"]],
            "marks": cut(plain(row["marks"] or "")),
            "steps": row["steps"],
            "full": row["full"],
            "share": row["share"],
            "until": reached,
            "step_ms": row["step_ps"] / 1e9,
            "spread": row["spread"],
            "idle": row["idle"],
            "mxu": row["mxu_util"],
        }
        for row, reached in zip(phases.frame.head(most).iter_rows(named=True), until, strict=False)
    ]


def runs(phases: Phases, edges: tuple[float, float]) -> dict[str, list[Any]]:
    """Return the ribbon as a table: the runs of consecutive steps of one phase, between two times, in seconds.

    The longest :data:`RUNS` of them where there are more, in order of time.
    """
    start, end = pl.col("start_ps") / 1e12, pl.col("end_ps") / 1e12
    found = segments(phases.labelled, "phase").with_columns(start=start, end=end)
    inside = found.filter(pl.col("start") < edges[1], pl.col("end") > edges[0])
    longest = inside.top_k(RUNS, by=pl.col("end") - pl.col("start")).sort("start", "host")
    return longest.select(
        *(["host"] if longest["host"].n_unique() > 1 else []),
        pl.col("phase").map_elements(phase_name, return_dtype=pl.String),
        first_step="first_step",
        last_step="last_step",
        from_s=pl.col("start").round_sig_figs(6),
        to_s=pl.col("end").round_sig_figs(6),
    ).to_dict(as_series=False)


def headline(phases: Phases) -> str:
    """Return what was found, in a line."""
    found = f"{many(len(phases), 'phase')} over {many(len(phases.steps), 'step')}"
    return f"{found}; top 3 cover {percent(phases.coverage(3))}; noise {percent(phases.noise)} of the time"


def describe(phases: Phases, number: int, checkpoints: Mapping[str, int]) -> dict[str, Any]:
    """Return what one phase is: its figures and its operations.

    Parameters
    ----------
    phases
        All of them.
    number
        Of the phase.
    checkpoints
        The step of each, by its name.
    """
    phase = phases[number]
    return {
        "phase": number,
        "name": phase_name(number),
        "facts": [[plain(name), plain(value)] for name, value in _facts(phases, phase, checkpoints)],
        "ops": {side: _top(phases, number, side) for side in ("device", "host")},
    }


def explain(phases: Phases, number: int) -> dict[str, Any]:
    """Return what sets one phase apart, what would make it faster, and how alike the steps of all phases are."""
    return {
        "apart": _apart(phases, number),
        "advice": advised(advise(phases).filter(pl.col("phase") == number)),
        "homogeneity": phases.homogeneity,
    }


def _facts(phases: Phases, phase: Phase, checkpoints: Mapping[str, int]) -> list[tuple[str, str]]:
    row = phases.frame.row(by_predicate=pl.col("phase") == phase.id, named=True)
    facts = [
        ("Steps", f"{row['steps']:,} ({row['full']:,} seen in full)"),
        ("Time", f"{seconds(row['dur_ps'])}, {percent(row['share'])} of all steps"),
        ("Step", f"{seconds(row['step_ps'])} (median), spread {_known(row['spread'])}"),
        ("Idle", _known(row["idle"])),
        ("MXU", _known(row["mxu_util"])),
    ]
    if row["input_ps"] is not None:
        facts.append(("Waits for input", f"{seconds(row['input_ps'])} in all"))
    chosen = phases.representative(phase.id)
    if chosen.height:
        one = chosen.row(0, named=True)
        several = phases.steps.frame["host"].n_unique() > 1
        where = f" of {cut(one['host'])}" if several else ""
        facts.append(("Representative", f"step {one['step']:,}{where}, {seconds(one['dur_ps'])}"))
    if (name := nearest_of(phase.steps["trained"], checkpoints)) is not None:
        facts.append(("Nearest checkpoint", f"{cut(name)} (step {checkpoints[name]:,})"))
    return facts


def _top(phases: Phases, number: int, side: str) -> list[dict[str, Any]]:
    found = phases.top(_TOP).filter((pl.col("phase") == number) & (pl.col("side").cast(pl.String) == side))
    return [
        {
            "op": plain(str(row["op"])),
            "share": row["share"],
            "self_ms": (row["self_ps"] or 0) / 1e9,
            "count": row["count"],
        }
        for row in found.iter_rows(named=True)
    ]


def _apart(phases: Phases, number: int) -> list[str]:
    """Return in sentences what the phase's steps do that others do not; of an operation what tells most."""
    said: dict[str, str] = {}
    for row in apart(phases, _TOP).filter(pl.col("phase") == number).iter_rows(named=True):
        op, inside, outside = cut(plain(row["op"])), seconds(row["inside_ps"]), seconds(row["outside_ps"])
        if row["op"] == "step time":
            sentence = f"a step takes {inside}, {outside} elsewhere"
        elif row["inside_ran"] != row["outside_ran"] and row["block"] == "presence":
            others = percent(row["outside_ran"])
            sentence = f"{op} runs in {percent(row['inside_ran'])} of its steps, {others} of the others"
        else:
            sentence = f"{op}, {_BLOCKS.get(row['block'], row['block'])}: {inside} a step, {outside} elsewhere"
        said.setdefault(op, sentence)
    return [*said.values()]


def advised(advice: pl.DataFrame) -> list[str]:
    """Return the first pieces of ``tpunb.schema.ADVICE`` in sentences."""
    return [plain(f"{row['sentence']} Try: {row['knob']}.") for row in advice.head(_PIECES).iter_rows(named=True)]


def _known(part: float | None) -> str:
    return "not known" if part is None else percent(part)


def percent(part: float) -> str:
    """Return a share as percent.

    >>> percent(0.1234), percent(1.0)
    ('12.3 %', '100 %')
    """
    return f"{short(100 * part)} %"


def seconds(picoseconds: float) -> str:
    """Return a time in the unit that suits it.

    >>> seconds(1_500_000_000), seconds(2_000_000_000_000)
    ('1.5 ms', '2 s')
    """
    size, unit = next(one for one in _UNITS if picoseconds >= one[0] or one is _UNITS[-1])
    return f"{short(picoseconds / size)} {unit}"


_UNITS = [(1e12, "s"), (1e9, "ms"), (1e6, "µs"), (1e3, "ns")]
