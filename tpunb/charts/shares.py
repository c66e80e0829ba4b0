"""Shares of time: of step time without waits by phase, of a phase's self time by operation."""

from __future__ import annotations

import altair as alt
import polars as pl

from tpunb.charts.render import LayerPicture, VConcatPicture
from tpunb.charts.style import WIDTH, colours, counted, covered, rows_of, titled
from tpunb.errors import TpunbError
from tpunb.frames import Phases
from tpunb.text import coverage as coverage_text
from tpunb.text import plural, share_of_steps

_BARS = 20  # at most in one chart


def coverage(phases: Phases) -> LayerPicture:
    """Return the phases by share of step time without waits, each from where the longer ones end."""
    share, until, before = ((c * 100).round(1) for c in (pl.col("share"), covered(), covered() - pl.col("share")))
    rows = phases.frame.select(
        "name",
        colour=pl.col("phase").replace_strict(colours(phases)),
        before=before,
        until=until,
        text=pl.format("{} %", share),
        about=pl.format("{}, {} % of step time without waits; {}", counted("steps", "step"), share, _cumulative(until)),
    )
    rows = rows.head(_BARS)
    top = coverage_text(phases.coverage(3))
    third = rows_of(pl.DataFrame({"until": [100 * phases.coverage(3)], "about": [top]}))
    cut = f"; the first {_BARS} of {phases.frame.height} shown" if phases.frame.height > _BARS else ""
    base = rows_of(rows).encode(y=alt.Y("name:N", sort=None, title="phase, longest first"))
    return LayerPicture(
        layer=_bars(base, third.encode(x="until:Q")),
        title=alt.TitleParams(titled(phases, "Coverage by phase"), subtitle=[f"{top} (dashed line){cut}"]),
        description=f"Phases by share of step time without waits: {top}.",
        width=WIDTH,
        height=alt.Step(26),
    )


def _cumulative(until: pl.Expr) -> pl.Expr:
    return (
        pl.when(pl.col("phase") < 0)
        .then(pl.lit("not covered"))
        .otherwise(pl.format("{} % with the longer ones", until))
    )


def _bars(base: alt.Chart, third: alt.Chart) -> list[alt.Chart]:
    """Return the layers of a coverage: its bars, a dashed line, the figures beside the plot."""
    x = alt.X("before:Q", title="cumulative share of step time without waits (%)").scale(domain=[0, 100], nice=False)
    return [
        base.mark_bar().encode(x=x, x2="until", color=alt.Color("colour:N", scale=None)),
        third.mark_rule(strokeDash=[4, 3]),
        base.mark_text(align="left", dx=6).encode(x=alt.value("width"), text="text:N"),
    ]


def top_ops(phases: Phases, phase: int | None = None, n: int = 5) -> VConcatPicture:
    """Return the `n` most time-consuming operations of a phase, by default the longest, for each side.

    Raises
    ------
    KeyError
        When no step is in that phase.
    TpunbError
        When no step of it was traced in full, or the profile holds no operations.
    """
    chosen = phases.longest if phase is None else phases[phase]
    top = phases.top(n, sources=False).filter(pl.col("phase") == chosen.id)
    if top.is_empty():
        traced = (chosen.steps["traced"] == "full").any()
        why = "its profile holds none" if traced else "no step of it was traced in full"
        hint = (
            "XProf's tables hold none: load the XPlane" if traced else "choose another phase, or capture more windows"
        )
        raise TpunbError(f"{chosen.name} has no operations: {why}", hint=hint)
    scaled = pl.col("share") * 100
    text = pl.format("{} % · {} ms", scaled.round(1), (pl.col("self_ps") / 1e9).round(3))
    about = pl.format("{}: {}, {}", pl.col("op").cast(pl.String), text, counted("count", "call"))
    rows = top.select("op", "side", percent=scaled, text=text, about=about)
    charts = []
    for side in [side for side in ("device", "host") if side in rows["side"]]:
        x = alt.X("percent:Q", title=f"share of the phase's {side} self time (%)").scale(domain=[0, 100])
        base = rows_of(rows.filter(pl.col("side") == side)).encode(x=x, y=alt.Y("op:N", sort=None, title=None))
        texts = base.mark_text(align="left", dx=6).encode(text="text:N")
        layer = [base.mark_bar(color=colours(phases)[chosen.id]), texts]
        title = alt.TitleParams(f"On the {side}", fontSize=11, offset=4, frame="group")
        charts.append(alt.LayerChart(layer=layer, title=title, width=WIDTH - 240, height=alt.Step(24)))
    phase_facts = f"{chosen.name}: {plural(chosen.steps.height, 'step')}, {share_of_steps(chosen.share)}"
    return VConcatPicture(
        vconcat=charts,
        bounds="flush",
        spacing=80,
        title=alt.TitleParams(titled(phases, "Most time-consuming operations"), subtitle=[phase_facts]),
        description=f"The most time-consuming operations, by self time, of {phase_facts}.",
    )
