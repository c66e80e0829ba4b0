"""Two things side by side: two runs, phase by phase, and what methods make of one run."""

from __future__ import annotations

import altair as alt
import polars as pl

from tpunb.charts.rows import GREY, PALETTE, WIDTH, rows_of
from tpunb.errors import TpunbError
from tpunb.export import phase_name
from tpunb.frames import Comparison
from tpunb.pictures import LayerPicture

_BARS = 20  # as many in one picture


def compared(comparison: Comparison) -> LayerPicture:
    """Return how many times as long a step of each matched phase takes in the second run, with its 95 % interval.

    Raises
    ------
    TpunbError
        When no two phases were matched.
    """
    frame = comparison.frame.drop_nulls("ratio").head(_BARS)
    if frame.is_empty():
        raise TpunbError("no phase of one run was matched with one of the other", hint="see comparison.unmatched")
    a, b = (run.steps.name or name for run, name in ((comparison.a, "a"), (comparison.b, "b")))
    numbers = (pl.col(name).map_elements(phase_name, return_dtype=pl.String) for name in ("phase_a", "phase_b"))
    known = pl.col("ratio_low").is_not_null()
    within = pl.format(" [{}, {}]", pl.col("ratio_low").round(2), pl.col("ratio_high").round(2))
    text = pl.format("{}x{}", pl.col("ratio").round(2), pl.when(known).then(within).otherwise(pl.lit("")))
    rows = frame.select(
        *("ratio", "ratio_low", "ratio_high"),
        name=pl.format("{} → {} ({})", *numbers, pl.col("marks").fill_null("–")),
        text=text,
        about=pl.format("{} steps before, {} after: {} as long", "steps_a", "steps_b", text),
    )
    ends = [*rows["ratio"], *rows["ratio_low"].drop_nulls(), *rows["ratio_high"].drop_nulls(), 1.0]
    scale = alt.Scale(type="log", domain=[min(ends) / 1.1, max(ends) * 1.4], nice=False)
    x = alt.X("ratio:Q", title="step time, second run by first (1 is as before)", scale=scale)
    base = rows_of(rows).encode(y=alt.Y("name:N", sort=None, title=None))
    same = rows_of(pl.DataFrame({"ratio": [1.0], "about": ["as long as before"]}))
    what = repr(comparison).removeprefix("Comparison(").removesuffix(")")
    return LayerPicture(
        layer=[
            same.mark_rule(strokeDash=[4, 3], color=GREY).encode(x=alt.X("ratio:Q", scale=scale)),
            base.mark_rule(strokeWidth=3, color=PALETTE[0]).encode(
                x=alt.X("ratio_low:Q", scale=scale), x2="ratio_high"
            ),
            base.mark_point(filled=True, opacity=1, size=80, color=PALETTE[0]).encode(x=x),
            base.mark_text(align="left", dx=8, dy=-9).encode(x=x, text="text:N"),
        ],
        title=alt.TitleParams(
            f"Step times by phase: {a} → {b}", subtitle=[what, "phase of the first run → phase of the second"]
        ),
        description=f"How many times as long a step of each phase takes in {b} as in {a}: {what}.",
        width=WIDTH - 200,
        height=alt.Step(34),
    )


def agreed(agreement: pl.DataFrame) -> LayerPicture:
    """Return how well every two methods agree on the phases, 1 the same and 0 chance: `tpunb.cluster.agreement`."""
    names = list(dict.fromkeys([*agreement["a"], *agreement["b"]]))
    both = pl.concat([agreement.select("a", "b", "ari"), agreement.select(a="b", b="a", ari="ari")])
    rows = both.with_columns(
        pl.col("ari").round(2),
        shade=pl.col("ari").clip(0, 1),
        about=pl.format("{} and {}: adjusted Rand index {}", "a", "b", pl.col("ari").round(3)),
    )
    x = alt.X("a:N", sort=names, title=None, axis=alt.Axis(labelAngle=-30))
    base = rows_of(rows).encode(x=x, y=alt.Y("b:N", sort=names, title=None))
    colour = alt.Color("shade:Q", title="agreement", scale=alt.Scale(domain=[0, 1], range=["#e8eef4", PALETTE[0]]))
    dark = alt.datum.shade > 0.6
    worst = agreement.sort("ari").row(0, named=True)
    what = f"least: {worst['a']} and {worst['b']}, {worst['ari']:.2f}"
    return LayerPicture(
        layer=[
            base.mark_rect().encode(color=colour),
            base.mark_text().encode(
                text="ari:Q", color=alt.when(dark).then(alt.value("white")).otherwise(alt.value("black"))
            ),
        ],
        title=alt.TitleParams("Agreement of the methods (adjusted Rand index)", subtitle=[what]),
        description=f"How well every two methods agree on the phases, 1 is the same and 0 chance; {what}.",
        width=alt.Step(96),
        height=alt.Step(44),
    )
