"""Hosts of a job by step: how long others waited for them, and why."""

from __future__ import annotations

import altair as alt
import polars as pl

from tpunb.analysis.stragglers import Hosts
from tpunb.charts.render import LayerPicture
from tpunb.charts.style import GREY, INK, PALETTE, WHOLE, WIDTH, hue, listed, names_of, rows_of
from tpunb.errors import TpunbError, wrong_type
from tpunb.text import percent, plural

_ROWS, _BINS = 24, 120  # most hosts and ranges of steps
_FEWEST_ROWS = 10  # rows if there are so many hosts
_FAINT = 0.01  # share of step time below which nothing is drawn
_HUES = dict(zip(("compute", "input", "host", "pause", "compile"), PALETTE, strict=False))
_HUES |= {"unknown": PALETTE[5], "not named": GREY}


def hosts(found: Hosts) -> LayerPicture:
    """Return how late hosts came to collectives in each step, in the colour of the cause; the dearest hosts first.

    A cell is the mean over its steps, as a share of mean step time: the stronger, the longer others waited. Named hosts
    and a few more are drawn, up to 24.

    Parameters
    ----------
    found
        Hosts of `tp.hosts`.

    Raises
    ------
    TypeError
        When `found` is something else.
    TpunbError
        When no host has a step with collectives of several hosts.
    """
    if not isinstance(found, Hosts):
        raise wrong_type("hosts", "found", "be Hosts", found, hint="tp.hosts(steps)")
    judged = found.frame.drop_nulls("costs_ps")
    if judged.is_empty() or found.lateness.is_empty():
        problem = found.notes[0] if found.by == "replay" else "no host waits for another"
        raise TpunbError(problem, hint="load the profiles of all hosts of the job")
    shown = judged.head(min(max(int(judged["named"].sum()), _FEWEST_ROWS), _ROWS))
    facts = _facts(found, shown)
    steps = found.lateness["step"].unique().sort()
    cells = _cells(found, facts, steps)
    base = rows_of(cells).transform_calculate(
        about="datum.label + ', steps ' + datum.first + ' to ' + datum.last + ': late by '"
        " + format(100 * datum.late, '.1f') + ' % of step time, ' + datum.cause"
    )
    y = alt.Y("label:N", sort=facts["label"].to_list(), title=None, scale=alt.Scale(domain=facts["label"].to_list()))
    x = alt.X("first:Q", title="step", axis=WHOLE, scale=alt.Scale(domain=[steps[0], steps[-1] + 1], nice=False))
    causes = {cause: colour for cause, colour in _HUES.items() if cause in {*facts["cause"]}}
    colour = hue("cause", causes, title="cause", symbolType="square", symbolOpacity=1, symbolStrokeWidth=0)
    most = float(cells["late"].quantile(0.95) or 1)
    strength = alt.Opacity(
        "late:Q",
        scale=alt.Scale(domain=[0, most], range=[0.15, 1], clamp=True, type="sqrt"),
        legend=alt.Legend(
            orient="bottom",
            title="late, of step time",
            format=".0%",
            tickCount=4,
            symbolType="square",
            symbolFillColor=GREY,
            symbolStrokeWidth=0,
        ),
    )
    labels = rows_of(facts).mark_text(align="left", dx=6, color=INK).encode(x=alt.value("width"), y=y, text="fact:N")
    texts = [f"{name}: {fact}" for name, fact in facts.select("label", "fact").rows()]
    named = judged.filter("named")
    together = percent(found.share(named["together_ps"][-1] if len(named) else 0), 1)
    about = f"{plural(len(judged), 'host')}, {len(shown):,} shown; {plural(len(named), 'straggler')}"
    about += f", without which the job would gain {together} of step time" if len(named) else ""
    return LayerPicture(
        layer=[base.mark_rect().encode(x=x, x2="until:Q", y=y, color=colour, opacity=strength), labels],
        title=alt.TitleParams("Hosts that others wait for", subtitle=[about, "right: gain if replaced, of step time"]),
        description=f"How late hosts came in each step. {about}. {listed(texts)}.",
        width=WIDTH,
        height=18 * len(shown),
        usermeta={"room": 300},  # points on the page beside the plot
    )


def _facts(found: Hosts, shown: pl.DataFrame) -> pl.DataFrame:
    """Return host, label, cause and what is written beside the row of each host."""
    gains = pl.Series([percent(found.share(cost), 1) for cost in shown["costs_ps"]])
    return shown.select(
        pl.col("host").cast(pl.String),
        label=pl.Series(names_of(shown["host"].to_list())),
        cause=pl.col("cause").fill_null("not named"),
        fact=pl.concat_str(gains, "cause", pl.col("recurrence"), separator=" · ", ignore_nulls=True),
    )


def _cells(found: Hosts, facts: pl.DataFrame, steps: pl.Series) -> pl.DataFrame:
    """Return how late each host was in ranges of steps, as a share of mean step time."""
    width, mean_ps = -(-len(steps) // _BINS), max(found.span_ps, 1) / len(steps)
    place = pl.col("step").replace_strict(steps, pl.int_range(len(steps), eager=True)) // width
    rows = found.lateness.with_columns(pl.col("host").cast(pl.String), bin=place).join(facts, on="host")
    late = (pl.col("late_ps").clip(0).mean() / mean_ps).round(4)
    cells = rows.group_by("label", "cause", "bin").agg(
        first=pl.col("step").min(), last=pl.col("step").max(), until=pl.col("step").max() + 1, late=late
    )
    return cells.filter(pl.col("late") >= _FAINT).drop("bin").sort("label", "first")
