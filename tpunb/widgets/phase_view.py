"""Phases as rows and sentences for the panels. Names in them are text, never markup."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import polars as pl

from tpunb import charts
from tpunb.analysis import distinguishing_ops
from tpunb.analysis.advice import advise_phases
from tpunb.analysis.causes import NAMED_SHARE
from tpunb.analysis.goodput import Goodput, busy, goodput, totals
from tpunb.analysis.kinds import kinds_text
from tpunb.analysis.representatives import representative
from tpunb.analysis.roofline import device_of, roofline
from tpunb.analysis.time_line import VALIDATING
from tpunb.analysis.verdict import verdict
from tpunb.charts.accounts import folded
from tpunb.charts.timeline_rows import Timeline
from tpunb.frames import Phase, Phases, Profile
from tpunb.frames.export import segments
from tpunb.frames.nearest import nearest_checkpoint
from tpunb.schema import ACCOUNTS
from tpunb.text import OF_STEPS, cut, duration, percent, plain, plural, share_of_steps, short_time
from tpunb.widgets.table import ROWS, Table, figure, measured, table

RUNS = 100
"""Most rows of the timeline as a table."""

PHASES = 1000
"""Most rows of the complete table of phases."""

_TOP = 5
_PIECES = 6  # most pieces of advice that are listed
_BOTTLENECKS = 3  # for one phase
_BLOCKS = {
    "presence": "presence",
    "counts": "call count",
    "invocations": "call count",
    "time_share": "time share",
    "log_self": "self time",
    "durations": "self time",
}
_NO_OP = r"(?i)^(step( time)?|ProfilerStep.*|nn\.Module.*)$|\bidle\b|\.step#|\.py[:(]\d"  # of steps, idle time, Python
_LEAST_SAVING = 0.01  # of the run time, that advice is listed for
_CODE = re.compile(r"`([^`]+)`")


def phase_table(phases: Phases, most: int = ROWS) -> Table:
    """Return the longest phases, and a sum of the others; columns that no capture measured are left out."""
    shown, rest = phases.aggregates.head(most), phases.aggregates.slice(most)
    columns = {
        "Phase": shown["name"],
        "Share (%)": [figure(share, ".1f", 100) for share in shown["share"]],
        "Step": ["–" if step_ps is None else short_time(step_ps) for step_ps in shown["step_ps"]],
        "Steps": [figure(steps) for steps in shown["steps"]],
        "Traced": [figure(full) if full else "clock only" for full in shown["full"]],
        "CV (%)": [figure(cv, ".1f", 100) for cv in shown["step_time_cv"]],
    }
    columns |= measured(
        {
            "Idle (%)": [figure(idle, ".1f", 100) for idle in shown["idle"]],
            "MXU (%)": [figure(mxu, ".1f", 100) for mxu in shown["mxu_util"]],
        }
    )
    columns["Id"] = [str(phase) for phase in shown["phase"]]
    rows = [*zip(*columns.values(), strict=True)]
    if rest.height:
        sums = [f"{100 * rest['share'].sum():.1f}", "–", f"{rest['steps'].sum():,}", f"{rest['full'].sum():,}"]
        rows.append((f"{rest.height:,} more", *sums, *["–"] * (len(columns) - 5)))
    hues, share = charts.colours(phases), pl.col("share")
    before = phases.aggregates.select((share.cum_sum() - share).clip(0, 1)).head(most).to_series()
    return table(
        f"Phases by share {OF_STEPS}",
        [*columns],
        rows,
        colours=[hues[phase] for phase in shown["phase"]],
        bars=[*zip(before, shown["share"], strict=True)],
        phases=shown["phase"].to_list(),
    )


def tables(phases: Phases) -> list[Table]:
    """Return the phases, longest first, and the operations of the longest."""
    return [phase_table(phases), *operations(phases, phases.longest.id)]


def operations(phases: Phases, number: int, *, sources: bool = False) -> list[Table]:
    """Return the top operations of a phase on device and host, if it has any.

    With `sources`, layer and source line are a second line in the cell of an operation; raw events are read for them.
    """
    full = phases.frame.filter(phase=number)["full"].item()
    layer_and_line = pl.concat_str("layer", "source", separator=" · ", ignore_nulls=True)
    top = phases.top(_TOP, sources=sources).filter(phase=number)
    top = top.with_columns(pl.col("op", "side", "layer", "source").cast(pl.String)).with_columns(where=layer_and_line)
    sides = ((side, top.filter(side=side)) for side in ("device", "host"))
    return [
        table(
            f"Top operations of {phases.names[number]}, {side}, {plural(full, 'step')} traced in full",
            ["Operation", "% of self time", "Self time", "Calls"],
            [
                [
                    "\n".join(filter(None, (op, where))),
                    f"{100 * share:.1f}",
                    short_time(self_ps or 0),
                    f"{calls:,}",
                ]
                for op, where, share, self_ps, calls in ops["op", "where", "share", "self_ps", "count"].iter_rows()
            ],
            bars=[(0.0, length) for length in (ops["share"] / ops["share"].max()).fill_nan(0)],
        )
        for side, ops in sides
        if ops.height
    ]


def runs(phases: Phases, edges: tuple[float, float], caption: str = "Runs of steps of one phase") -> Table:
    """Return the timeline between two seconds as a table: the longest runs of consecutive steps of one phase."""
    start, end = pl.col("start_ps") / 1e12, pl.col("end_ps") / 1e12
    segmented = segments(phases.labelled, "phase").with_columns(start=start, end=end)
    inside = segmented.filter(pl.col("start") < edges[1], pl.col("end") > edges[0])
    longest = inside.top_k(RUNS, by=pl.col("end") - pl.col("start")).sort("start", "host")
    columns = {
        **({"Host": longest["host"]} if longest["host"].n_unique() > 1 else {}),
        "Phase": longest["phase"].replace_strict(phases.names, return_dtype=pl.String),
        "First step": longest["first_step"],
        "Last step": longest["last_step"],
        "From (s)": longest["start"].round_sig_figs(6),
        "To (s)": longest["end"].round_sig_figs(6),
    }
    return table(caption, [*columns], (map(str, row) for row in zip(*columns.values(), strict=True)))


def describe(phases: Phases, number: int, checkpoints: Mapping[str, int]) -> dict[str, Any]:
    """Return the facts and the top operations of a phase; `checkpoints` are steps by name."""
    facts = _facts(phases, phases[number], checkpoints)
    return {
        "phase": number,
        "name": phases.names[number],
        "large": _large(phases, number),
        "facts": table(phases.names[number], ["Fact", "Value"], facts),
        "ops": operations(phases, number),
    }


def hints(phases: Phases) -> dict[str, str]:
    """Return kind and top operation of each phase, for the pointer on the timeline."""
    top = phases.top(1, sources=False).sort("phase", pl.col("side").cast(pl.String))  # device before host
    ops = dict(top.unique("phase", keep="first", maintain_order=True).select("phase", "op").iter_rows())
    rows = phases.frame.select("phase", kinds=pl.col("kinds").cast(pl.String)).iter_rows()
    parts = {
        phase: (kinds and f"kind {cut(kinds)}", ops.get(phase) and f"mostly {cut(ops[phase])}") for phase, kinds in rows
    }
    return {str(phase): plain(", ".join(filter(None, texts))) for phase, texts in parts.items()}


def explain(phases: Phases, number: int) -> dict[str, Any]:
    """Return what is slower: operations with their source lines, distinguishing ones, roofline and bottlenecks."""
    lists = (
        distinguishing(phases, number),
        _roofline(phases, number),
        bottlenecks(phases, number),
    )
    return {
        "ops": operations(phases, number, sources=True),
        "lists": [each for each in lists if each["rows"]],
        "explained": _explained(phases),
    }


def _explained(phases: Phases) -> str:
    """Return the explained variance in words; "" if there is none."""
    value = phases.explained_variance
    return "" if value is None else f"Explained variance {value:.2f} (1: identical steps in each phase)"


def _large(phases: Phases, number: int) -> list[list[str]]:
    """Return name, value and base of what is first of a phase: its share, its step time, its bottleneck."""
    row = phases.frame.row(by_predicate=pl.col("phase") == number, named=True)
    waits = [(row["input"], VALIDATING), (row["idle"], "idle device")]
    share, name = max(((share, name) for share, name in waits if share is not None), default=(None, ""))
    base = "" if share is None or share < NAMED_SHARE else f"{percent(share, None)} of step time"
    return [
        ["Share", percent(row["share"], 1), OF_STEPS],
        ["Step", "–" if row["step_ps"] is None else short_time(row["step_ps"]), "median"],
        *([] if share is None else [["Bottleneck", name if base else "computing", base]]),
    ]


def _facts(phases: Phases, phase: Phase, checkpoints: Mapping[str, int]) -> list[tuple[str, str]]:
    row = phases.frame.row(by_predicate=pl.col("phase") == phase.id, named=True)
    measures: list[tuple[str, float | None, Callable[[float], str]]] = [
        ("Step", row["step_ps"], lambda value: f"{short_time(value)} (median)"),
        ("Variation", row["step_time_cv"], lambda value: f"{percent(value, None)} of mean step time"),
        ("Idle", row["idle"], lambda value: f"{percent(value, None)} of step time"),
        ("MXU", row["mxu_util"], lambda value: f"{percent(value, None)} of peak"),
        ("Drift", row["drift"], lambda value: f"{100 * value:+.0f} % of step time, last tenth of steps by first"),
        ("Input wait", row["input"], lambda value: f"{percent(value, None)} of step time"),
        ("Confidence", row["confidence"], "{:.2f} of 1".format),
    ]
    facts = [
        ("Steps", f"{row['steps']:,} ({row['full']:,} traced in full)"),
        ("Time", f"{short_time(row['productive_ps'])} without waits, {short_time(row['dur_ps'])} with them"),
        ("Share", share_of_steps(row["share"])),
        *((name, text(value)) for name, value, text in measures if value is not None),  # what this device measures
    ]
    chosen = representative(phases, phase.id)
    if chosen.height:
        step = chosen.row(0, named=True)
        host = f" of {cut(step['host'])}" if phases.steps.frame["host"].n_unique() > 1 else ""
        facts.append(("Representative", f"step {step['step']:,}{host}, {short_time(step['dur_ps'])}"))
    if (name := nearest_checkpoint(phase.steps["trained"], checkpoints)) is not None:
        at = f"step {checkpoints[name]:,}"
        facts.append(("Nearest checkpoint", at if name == at else f"{cut(name)} ({at})"))
    return facts


def distinguishing(phases: Phases, number: int) -> Table:
    """Return the strongest differences between the phase's steps and the others, a sentence for each operation."""
    sentences: dict[str, str] = {}
    name = pl.col("op").cast(pl.String)
    rows = distinguishing_ops(phases, 4 * _TOP).filter(pl.col("phase") == number, ~name.str.contains(_NO_OP))
    rows = rows.filter(~name.is_in(phases.steps.frame["kind"].drop_nulls().unique().to_list()))
    for row in rows.drop_nulls(["inside_ps", "outside_ps"]).iter_rows(named=True):  # null: the profiler may skip it
        op, inside, outside = cut(plain(row["op"])), short_time(row["inside_ps"]), short_time(row["outside_ps"])
        if row["inside_ran"] != row["outside_ran"] and row["block"] == "presence":
            ran, others = percent(row["inside_ran"], None), percent(row["outside_ran"], None)
            sentence = f"{op}: in {ran} of steps ({others} in other phases)"
        else:
            block = _BLOCKS.get(row["block"], row["block"])
            sentence = f"{op} ({block}): {inside} per step ({outside} in other phases)"
        sentences.setdefault(op, sentence)
    return listed("Distinguishing operations", [*sentences.values()][:_TOP])


def _roofline(phases: Phases, number: int) -> Table:
    """Return the operations of a phase with most headroom; none without raw events of a device with known peaks."""
    steps = phases.steps
    chip = device_of(steps)
    if steps.read_layers is None or chip is None:
        return listed("Roofline", [])
    members = phases.labelled.filter(phase=number).select("host", "step")
    layers = steps.layers.join(members, on=["host", "step"], how="semi")
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
    return listed("Roofline", [*whole, *sentences])


def advised(advice: pl.DataFrame, phases: Phases, most: int = _PIECES, *, caption: str = "What to do") -> Table:
    """Return the first pieces of ``tpunb.schema.ADVICE`` in sentences, those that save 1 % of the run time or more.

    Each says what it could save in seconds of the run time, of all step time without a record of that. Code of its
    action is below the sentence.
    """
    whole, base = _whole(phases)
    pieces = []
    rows = worth(advice, phases, named=caption == "What to do").head(most)
    for saves_ps, observed, action in rows["saves_ps", "observed", "action"].iter_rows():
        saved = "" if saves_ps is None else f" Saves up to {duration(saves_ps)} of {duration(whole)} {base}."
        pieces.append("\n".join([f"{observed} Try: {action.replace('`', '')}.{saved}", *_CODE.findall(action)]))
    return listed(caption, pieces)


def worth(advice: pl.DataFrame, phases: Phases, *, named: bool = True) -> pl.DataFrame:
    """Return (saves_ps, observed, place, action) of advice that saves 1 % of the run time; `named` with its phase."""
    observed = pl.concat_str(pl.col("of") + ": ", "observed", ignore_nulls=True) if named else pl.col("observed")
    enough = (pl.col("saves_ps") >= _LEAST_SAVING * _whole(phases)[0]).fill_null(True)
    return advice.filter(enough).select("saves_ps", "place", "action", observed=observed)


def _whole(phases: Phases) -> tuple[int, str]:
    """Return the time that savings are shares of, and its name."""
    wall = phases.steps.wall
    return (wall.span_ps, "run time") if wall and wall.span_ps else (int(phases.frame["dur_ps"].sum()), "step time")


def bottlenecks(phases: Phases, number: int) -> Table:
    """Return the first pieces of advice on a phase."""
    return advised(advise_phases(phases).filter(phase=number), phases, _BOTTLENECKS, caption="Bottleneck")


def listed(caption: str, sentences: Iterable[str]) -> Table:
    """Return sentences as a table of one column."""
    return table(caption, [caption], ([sentence] for sentence in sentences))


_ROWS = 8  # most details and stalls that are listed


def goodput_of(run: Phases | Profile) -> Goodput | None:
    """Return the goodput of a run, or None if there is no record of its wall time."""
    steps = run.steps if isinstance(run, Phases) else run.stored
    wall = None if steps is None else steps.wall
    return None if wall is None or wall.span_ps <= 0 else goodput(run)


def warnings(run: Goodput | None) -> list[str]:
    """Return what disturbed the measurement, in at most one line."""
    line = None if run is None else busy(run)
    return [] if line is None else [line]


def lines(run: Goodput | None, phases: Phases | None) -> list[str]:
    """Return the verdict on the run, and where its wall time went; nothing without a record of that."""
    judged = None if phases is None else verdict(phases)
    kinds = None if phases is None or run is None else kinds_text(phases, run)
    return [line for line in (judged and judged.sentence, run and run.sentence, kinds) if line]


def describe_goodput(run: Goodput, account: str, timeline: Timeline) -> dict[str, Any]:
    """Return the time of an account within a timeline, its details and its stalls."""
    run, of = folded(run), pl.col("account") == account
    whole = totals(run).filter(of)
    time, share = whole.select("time_ps", "share").row(0) if whole.height else (0, 0)
    return {
        "account": account,
        "hue": ACCOUNTS[account].colour,
        "heading": f"{account}: {duration(time)}, {percent(share, None)} of wall time",
        "marks": timeline.account(run.segments.filter(of)),
        "tables": account_tables(run, account),
    }


def account_tables(run: Goodput, account: str) -> list[Table]:
    """Return the details and the stalls of an account, if it has any."""
    details = totals(folded(run), "detail").filter(pl.col("account") == account).drop_nulls("detail").head(_ROWS)
    began = pl.col("kind").fill_null("other") == account
    stalls = run.stalls.filter(began).drop_nulls("time_ps").head(_ROWS)
    made = [
        table(
            f"Details of {account}",
            ["Detail", "Time", "% of wall time", "Count"],
            [
                [_named(detail), duration(time), f"{100 * share:.1f}", f"{count:,}"]
                for detail, time, share, count in details["detail", "time_ps", "share", "count"].iter_rows()
            ],
        ),
        table(
            f"Stalls in {account}",
            ["Stalls at", "Time", "Count", "Median"],
            [
                [_named(place), duration(time), f"{count:,}", "–" if median is None else duration(median)]
                for place, time, count, median in stalls["place", "time_ps", "count", "median_ps"].iter_rows()
            ],
        ),
    ]
    return [each for each in made if each["rows"]]


def _named(name: str | None) -> str:
    return cut(plain(name), 120) if name else "unknown"
