"""Where the time went: by phase, and by operation within one."""

from __future__ import annotations

import altair as alt
import polars as pl

from tpunb.charts.rows import WIDTH, colours, counted, percent_of, rows_of, titled
from tpunb.errors import TpunbError
from tpunb.export import phase_name
from tpunb.frames import Phases
from tpunb.pictures import LayerPicture, VConcatPicture

_BARS = 20  # as many in one picture


def coverage(phases: Phases) -> LayerPicture:
    """Return the phases by share of the time of all steps, each from where the longer ones end."""
    share, until = ((column * 100).round(1) for column in (pl.col("share"), pl.col("share").cum_sum()))
    rows = phases.frame.head(_BARS).select(
        name=pl.col("phase").map_elements(phase_name, return_dtype=pl.String),
        colour=pl.col("phase").replace_strict(colours(phases)),
        before=until.shift(1, fill_value=0),
        until=until,
        text=pl.format("{} %", share),
        about=pl.format("{}, {} % of the time; {} % with the longer ones", counted("steps", "step"), share, until),
    )
    x = alt.X("before:Q", title="cumulative share of the time of all steps (%)").scale(domain=[0, 100])
    base = rows_of(rows).encode(y=alt.Y("name:N", sort=None, title="phase, longest first"))
    top = f"top 3 cover {percent_of(phases.coverage(3))}"
    third = rows_of(pl.DataFrame({"until": [100 * phases.coverage(3)], "about": [top]}))
    cut = f"; the first {_BARS} of {phases.frame.height} shown" if phases.frame.height > _BARS else ""
    return LayerPicture(
        layer=[
            base.mark_bar().encode(x=x, x2="until", color=alt.Color("colour:N", scale=None)),
            third.mark_rule(strokeDash=[4, 3]).encode(x="until:Q"),
            # beside the plot: behind their bars the dashed line would cross them
            base.mark_text(align="left", dx=6).encode(x=alt.value("width"), text="text:N"),
        ],
        title=alt.TitleParams(titled(phases, "Coverage by phase"), subtitle=[f"{top} (dashed line){cut}"]),
        description=f"Phases by share of the time of all steps: {top}.",
        width=WIDTH,
        height=alt.Step(26),
    )


def top_ops(phases: Phases, phase: int | None = None, n: int = 5) -> VConcatPicture:
    """Return the `n` most time-consuming operations of the longest or the given phase, host and device apart.

    Raises
    ------
    KeyError
        When no step is in that phase.
    TpunbError
        When none of its steps was seen in full, or the profile holds no operations.
    """
    chosen = phases.longest if phase is None else phases[phase]
    top = phases.top(n).filter(pl.col("phase") == chosen.id)
    if top.is_empty():
        seen = (chosen.steps["seen"] == "full").any()
        why = "its profile holds none" if seen else "none of its steps was seen in full"
        hint = "XProf's tables keep none: load the XPlane" if seen else "choose another phase, or capture more windows"
        raise TpunbError(f"{phase_name(chosen.id)} has no operations: {why}", hint=hint)
    percent = pl.col("share") * 100
    text = pl.format("{} % · {} ms", percent.round(1), (pl.col("self_ps") / 1e9).round(3))
    about = pl.format("{}: {}, {}", pl.col("op").cast(pl.String), text, counted("count", "call"))
    rows = top.select("op", "side", percent=percent, text=text, about=about)
    charts = []
    for side in [side for side in ("device", "host") if side in rows["side"]]:
        x = alt.X("percent:Q", title="share of the phase's self time on that side (%)").scale(domain=[0, 100])
        base = rows_of(rows.filter(pl.col("side") == side)).encode(x=x, y=alt.Y("op:N", sort=None, title=None))
        texts = base.mark_text(align="left", dx=6).encode(text="text:N")
        layer = [base.mark_bar(color=colours(phases)[chosen.id]), texts]
        title = alt.TitleParams(f"On the {side}", fontSize=11, offset=4, frame="group")
        charts.append(alt.LayerChart(layer=layer, title=title, width=WIDTH - 240, height=alt.Step(24)))
    whole = chosen.steps.height
    what = f"{phase_name(chosen.id)}: {whole:,} step{'s'[: whole != 1]}, {percent_of(chosen.share)} of step time"
    return VConcatPicture(
        vconcat=charts,
        bounds="flush",
        spacing=80,
        title=alt.TitleParams(titled(phases, "Most time-consuming operations"), subtitle=[what]),
        description=f"The most time-consuming operations, by self time, of {what}.",
    )
