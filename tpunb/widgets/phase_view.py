"""Phases as rows and sentences for the panels. Names in them are text, never markup."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import polars as pl

from tpunb import charts
from tpunb.analysis import distinguishing_ops
from tpunb.analysis.advice import advise_phases
from tpunb.analysis.goodput import Goodput, busy, goodput, totals
from tpunb.analysis.representatives import representative
from tpunb.analysis.roofline import device_of, roofline
from tpunb.analysis.verdict import verdict
from tpunb.charts.accounts import account_rows
from tpunb.charts.style import covered
from tpunb.charts.timeline_rows import Timeline
from tpunb.frames import Phase, Phases, Profile
from tpunb.frames.export import segments
from tpunb.frames.nearest import nearest_checkpoint
from tpunb.schema import ACCOUNTS
from tpunb.text import cut, duration, percent, plain, plural, productive, short_time
from tpunb.widgets.html_tables import ROWS, Table

RUNS = 100
"""Most rows of the timeline as a table."""

PHASES = 1000
"""Most rows of the complete table of phases."""

UNMEASURED = "not measured"
"""Value of a fact that no capture measured."""

_TOP = 5
_PIECES = 3
_BLOCKS = {
    "presence": "presence",
    "counts": "call count",
    "invocations": "call count",
    "time_share": "time share",
    "log_self": "self time",
    "durations": "self time",
    "step_time": "step time",
}


def rows(phases: Phases, most: int = ROWS) -> list[dict[str, Any]]:
    """Return the longest phases as rows; unknown values are None."""
    return (
        phases.frame.with_columns(until=covered())
        .head(most)
        .select(
            *("phase", "name", "steps", "full", "share", "until", "step_time_cv", "idle"),
            colour=pl.col("phase").replace_strict(charts.colours(phases)),
            step_ms=pl.col("step_ps") / 1e9,
            mxu="mxu_util",
        )
        .to_dicts()
    )


def tables(phases: Phases, chosen: int | None = None, *, sources: bool = False) -> list[Table]:
    """Return the phases, longest first, and the operations of one, the longest if None, as tables.

    With `sources`, layer and source line are a second line in the cell of an operation; raw events are read for them.
    """
    shown, rest = rows(phases), phases.frame.slice(ROWS)
    number = phases.longest.id if chosen is None else chosen
    full = phases.frame.filter(phase=number)["full"].item()
    cells = [
        [
            *(row["name"], str(row["phase"]), f"{row['steps']:,}"),
            f"{row['full']:,}" if row["full"] else "clock only",
            *(f"{100 * row['share']:.1f}", _figure(row["step_ms"], ",.3f"), _figure(row["step_time_cv"], ".0f", 100)),
            _figure(row["idle"], ".0f", 100),
        ]
        for row in shown
    ]
    if rest.height:
        sums = [f"{rest['steps'].sum():,}", f"{rest['full'].sum():,}", f"{100 * rest['share'].sum():.1f}"]
        cells.append([f"{rest.height} more", "–", *sums, "–", "–", "–"])
    header = ["Phase", "Id", "Steps", "Traced", "% productive", "Step (ms)", "CV %", "Idle %"]
    views = [Table("Phases, longest first", header, cells, {row["name"]: row["colour"] for row in shown})]
    for side in ("device", "host"):
        ops = [
            [
                "\n".join(filter(None, (row["op"], row["where"]))),
                *(f"{100 * row['share']:.1f}", f"{row['self_ms']:,.3f}", f"{row['count']:,}"),
            ]
            for row in _top(phases, number, side, sources=sources)
        ]
        if ops:
            caption = f"Top operations of {phases.names[number]}, {side}, {plural(full, 'step')} traced in full"
            views.append(Table(caption, ["Operation", "% of self time", "Self time (ms)", "Calls"], ops))
    return views


def runs(phases: Phases, edges: tuple[float, float]) -> dict[str, list[Any]]:
    """Return the timeline between two seconds as a table: the longest runs of consecutive steps of one phase."""
    start, end = pl.col("start_ps") / 1e12, pl.col("end_ps") / 1e12
    segmented = segments(phases.labelled, "phase").with_columns(start=start, end=end)
    inside = segmented.filter(pl.col("start") < edges[1], pl.col("end") > edges[0])
    longest = inside.top_k(RUNS, by=pl.col("end") - pl.col("start")).sort("start", "host")
    return longest.select(
        *(["host"] if longest["host"].n_unique() > 1 else []),
        pl.col("phase").replace_strict(phases.names, return_dtype=pl.String),
        first_step="first_step",
        last_step="last_step",
        from_s=pl.col("start").round_sig_figs(6),
        to_s=pl.col("end").round_sig_figs(6),
    ).to_dict(as_series=False)


def describe(phases: Phases, number: int, checkpoints: Mapping[str, int]) -> dict[str, Any]:
    """Return the facts and the top operations of a phase.

    Parameters
    ----------
    phases
        Phases of the run.
    number
        Label of the phase.
    checkpoints
        Step of each checkpoint by name.
    """
    phase = phases[number]
    return {
        "phase": number,
        "name": phases.names[number],
        "facts": [[plain(name), plain(value)] for name, value in _facts(phases, phase, checkpoints)],
        "ops": {side: _top(phases, number, side) for side in ("device", "host")},
    }


def hints(phases: Phases) -> dict[str, str]:
    """Return kind and top operation of each phase, for the pointer on the timeline."""
    top = phases.top(1, sources=False).sort("phase", pl.col("side").cast(pl.String))  # device before host
    ops = dict(top.unique("phase", keep="first", maintain_order=True).select("phase", "op").iter_rows())
    rows = phases.frame.select("phase", kinds=pl.col("kinds").cast(pl.String)).iter_rows()
    known = {
        phase: (kinds and f"kind {cut(kinds)}", ops.get(phase) and f"mostly {cut(ops[phase])}") for phase, kinds in rows
    }
    return {str(phase): plain(", ".join(filter(None, parts))) for phase, parts in known.items()}


def explain(phases: Phases, number: int) -> dict[str, Any]:
    """Return what is slower: operations with their source lines, distinguishing ones, roofline and bottlenecks."""
    return {
        "ops": {side: _top(phases, number, side, sources=True) for side in ("device", "host")},
        "distinguishing": distinguishing(phases, number),
        "roofline": _roofline(phases, number),
        "advice": advised(advise_phases(phases).filter(pl.col("phase") == number)),
        "explained": _explained(phases),
    }


def _explained(phases: Phases) -> str:
    """Return the explained variance in words; "" if there is none."""
    value = phases.explained_variance
    return "" if value is None else f"explained variance {value:.2f} (1: identical steps in each phase)"


def _facts(phases: Phases, phase: Phase, checkpoints: Mapping[str, int]) -> list[tuple[str, str]]:
    row = phases.frame.row(by_predicate=pl.col("phase") == phase.id, named=True)
    facts = [
        ("Steps", f"{row['steps']:,} ({row['full']:,} traced in full)"),
        ("Time", short_time(row["dur_ps"])),
        ("Share", productive(row["share"])),
        ("Step", UNMEASURED if row["step_ps"] is None else f"{short_time(row['step_ps'])} (median)"),
        ("Variation", _share(row["step_time_cv"], "mean step time")),
        ("Idle", _share(row["idle"], "step time")),
        ("MXU", _share(row["mxu_util"], "peak")),
    ]
    if row["drift"] is not None:
        facts.append(("Drift", f"{100 * row['drift']:+.0f} % of step time, last tenth of steps by first"))
    if row["input"] is not None:
        facts.append(("Input wait", _share(row["input"], "step time")))
    facts.append(("Confidence", UNMEASURED if row["confidence"] is None else f"{row['confidence']:.2f} of 1"))
    chosen = representative(phases, phase.id)
    if chosen.height:
        step = chosen.row(0, named=True)
        host = f" of {cut(step['host'])}" if phases.steps.frame["host"].n_unique() > 1 else ""
        facts.append(("Representative", f"step {step['step']:,}{host}, {short_time(step['dur_ps'])}"))
    if (name := nearest_checkpoint(phase.steps["trained"], checkpoints)) is not None:
        facts.append(("Nearest checkpoint", f"{cut(name)} (step {checkpoints[name]:,})"))
    return facts


def _top(phases: Phases, number: int, side: str, *, sources: bool = False) -> list[dict[str, Any]]:
    """Return the top operations; ``where`` is layer and source line, "" if unknown."""
    top = phases.top(_TOP, sources=sources).filter(
        (pl.col("phase") == number) & (pl.col("side").cast(pl.String) == side)
    )
    op, layer, source = (
        pl.col(name).cast(pl.String).map_elements(plain, return_dtype=pl.String) for name in ("op", "layer", "source")
    )
    where = pl.concat_str(layer, source, separator=" · ", ignore_nulls=True).alias("where")
    return top.select(op, "share", "count", where, self_ms=pl.col("self_ps").fill_null(0) / 1e9).to_dicts()


def distinguishing(phases: Phases, number: int) -> list[str]:
    """Return the strongest differences between the phase's steps and the others, a sentence for each operation."""
    sentences: dict[str, str] = {}
    rows = distinguishing_ops(phases, _TOP).filter(phase=number)
    for row in rows.drop_nulls(["inside_ps", "outside_ps"]).iter_rows(named=True):  # null: the profiler may skip it
        op, inside, outside = cut(plain(row["op"])), short_time(row["inside_ps"]), short_time(row["outside_ps"])
        if row["op"] == "step time":
            sentence = f"step time: {inside} ({outside} in other phases)"
        elif row["inside_ran"] != row["outside_ran"] and row["block"] == "presence":
            ran, others = percent(row["inside_ran"], None), percent(row["outside_ran"], None)
            sentence = f"{op}: in {ran} of steps ({others} in other phases)"
        else:
            block = _BLOCKS.get(row["block"], row["block"])
            sentence = f"{op} ({block}): {inside} per step ({outside} in other phases)"
        sentences.setdefault(op, sentence)
    return [*sentences.values()]


def _roofline(phases: Phases, number: int) -> list[str]:
    """Return the operations of a phase with most headroom; none without raw events of a device with known peaks."""
    steps = phases.steps
    chip = device_of(steps)
    if steps.read_layers is None or chip is None:
        return []
    own = phases.labelled.filter(phase=number).select("host", "step")
    layers = steps.layers.join(own, on=["host", "step"], how="semi")
    roof = roofline(replace(steps, read_layers=lambda: layers), "op", device=chip)
    count = max(layers.select("host", "step").n_unique(), 1)
    rows = roof.frame.filter(pl.col("headroom_ps") > 0).head(_TOP)
    sentences = [
        f"{cut(row['what'])}: {percent(row['efficiency'], None)} of attainable ({row['bound']}), "
        f"headroom {short_time(row['headroom_ps'] / count)} per step"
        for row in rows.iter_rows(named=True)
    ]
    reached = roof.utilisation
    whole = [] if reached is None else [f"{percent(reached[0], None)} of the peak of {chip.name} reached"]
    return [plain(text) for text in (*whole, *sentences)]


def advised(advice: pl.DataFrame, most: int = _PIECES) -> list[str]:
    """Return the first pieces of ``tpunb.schema.ADVICE`` in sentences."""
    return [plain(f"{row['sentence']} Try: {row['action']}.") for row in advice.head(most).iter_rows(named=True)]


def _figure(value: float | None, form: str, factor: int = 1) -> str:
    return "–" if value is None else format(factor * value, form)


def _share(part: float | None, base: str) -> str:
    return UNMEASURED if part is None else f"{percent(part, None)} of {base}"


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


def describe_goodput(found: Goodput, account: str, timeline: Timeline) -> dict[str, Any]:
    """Return the time of an account within a timeline, its details and its stalls."""
    of = pl.col("account") == account
    whole = totals(found).filter(of)
    time, share = whole.select("time_ps", "share").row(0) if whole.height else (0, 0)
    details = totals(found, "detail").filter(of).drop_nulls("detail").head(_ROWS)
    began = pl.col("kind").fill_null("other") == account
    stalls = found.stalls.filter(began).drop_nulls("time_ps").head(_ROWS)
    return {
        "account": account,
        "hue": ACCOUNTS[account].colour,
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
