"""Two things side by side: two runs, phase by phase, and what methods make of one run."""

from __future__ import annotations

import altair as alt
import polars as pl

from tpunb.charts.rows import GREY, PALETTE, WIDTH, cleaned, counted, rows_of
from tpunb.errors import TpunbError
from tpunb.export import phase_name
from tpunb.frames import Comparison
from tpunb.frames.words import cut
from tpunb.pictures import LayerPicture

_BARS = 20  # as many in one picture
_RUN, _MARKS, _METHOD = 32, 24, 26  # letters of a name
_WIDEST = 300  # points on the page for these: Vega would cut off their ends


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
    a, b = (cut(cleaned(run.steps.name), _RUN) or name for run, name in ((comparison.a, "a"), (comparison.b, "b")))
    numbers = (pl.col(name).map_elements(phase_name, return_dtype=pl.String) for name in ("phase_a", "phase_b"))
    marks = pl.col("marks").fill_null("–").map_elements(lambda marks: cut(marks, _MARKS), return_dtype=pl.String)
    known = pl.col("ratio_low").is_not_null()
    ratio, low, high = (
        pl.col(name).map_elements("{:.2f}".format, return_dtype=pl.String)
        for name in ("ratio", "ratio_low", "ratio_high")
    )
    within = pl.format(" [{}, {}]", low, high)
    text = pl.format("{}x{}", ratio, pl.when(known).then(within).otherwise(pl.lit("")))
    rows = frame.select(
        *("ratio", "ratio_low", "ratio_high"),
        name=pl.format("{} → {} ({})", *numbers, marks),
        text=text,
        about=pl.format("{} before, {} after: {} as long", counted("steps_a", "step"), "steps_b", text),
    )
    ends = [*rows["ratio"], *rows["ratio_low"].drop_nulls(), *rows["ratio_high"].drop_nulls(), 1.0]
    scale = alt.Scale(type="log", domain=[min(ends) / 1.1, max(ends) * 1.1], nice=False)
    x = alt.X("ratio:Q", title="step time, second run by first (1 is as before)", scale=scale)
    base = rows_of(rows).encode(y=alt.Y("name:N", sort=None, title=None, axis=alt.Axis(labelLimit=_WIDEST)))
    same = rows_of(pl.DataFrame({"ratio": [1.0], "about": ["as long as before"]}))
    what = repr(comparison).removeprefix("Comparison(").removesuffix(")")
    return LayerPicture(
        layer=[
            same.mark_rule(strokeDash=[4, 3], color=GREY).encode(x=alt.X("ratio:Q", scale=scale)),
            base.mark_rule(strokeWidth=3, color=PALETTE[0]).encode(
                x=alt.X("ratio_low:Q", scale=scale), x2="ratio_high"
            ),
            base.mark_point(filled=True, opacity=1, size=80, color=PALETTE[0]).encode(x=x),
            # beside the plot: next to their points the dashed line would cross them
            base.mark_text(align="left", dx=6).encode(x=alt.value("width"), text="text:N"),
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
    if agreement.is_empty():
        raise TpunbError("no two methods to compare", hint="tpunb.cluster.agreement(steps, methods) takes two or more")
    names = list(dict.fromkeys([*agreement["a"], *agreement["b"]]))
    label = dict(zip(names, _apart([cut(cleaned(name), _METHOD) for name in names]), strict=True))
    pairs = agreement.select(pl.col("a", "b").replace_strict(label, return_dtype=pl.String), "ari")
    itself = pl.DataFrame({"a": label.values(), "b": label.values()}).with_columns(ari=pl.lit(1.0))
    rows = pl.concat([pairs, pairs.select(a="b", b="a", ari="ari"), itself]).with_columns(
        shade=pl.col("ari").clip(0, 1),
        about=pl.format("{} and {}: adjusted Rand index {}", "a", "b", pl.col("ari").round(3)),
    )
    rows = rows.unique(["a", "b"], keep="first", maintain_order=True)
    worst = pairs.sort("ari").row(0, named=True)
    what = f"least: {worst['a']} and {worst['b']}, {round(worst['ari'], 2) + 0.0:.2f}"  # never -0.00
    order = [*label.values()]
    x = alt.X("a:N", sort=order, title=None, axis=alt.Axis(labelAngle=-30, labelLimit=_WIDEST))
    y = alt.Y("b:N", sort=order, title=None, axis=alt.Axis(labelLimit=_WIDEST))
    base = rows_of(rows).encode(x=x, y=y)
    colour = alt.Color("shade:Q", title="agreement", scale=alt.Scale(domain=[0, 1], range=["#e8eef4", PALETTE[0]]))
    own, dark = alt.datum.a == alt.datum.b, alt.datum.shade > 0.6
    ink = alt.when(own).then(alt.value(GREY)).when(dark).then(alt.value("white")).otherwise(alt.value("black"))
    return LayerPicture(
        layer=[
            base.mark_rect().encode(
                color=alt.when(own).then(alt.value(GREY)).otherwise(colour),
                opacity=alt.when(own).then(alt.value(0.15)).otherwise(alt.value(1)),
            ),
            base.mark_text().encode(text=alt.Text("ari:Q", format=".2f"), color=ink),
        ],
        title=alt.TitleParams("Agreement of the methods (adjusted Rand index)", subtitle=[what]),
        description=f"How well every two methods agree on the phases, 1 is the same and 0 chance; {what}.",
        width=alt.Step(96),
        height=alt.Step(44),
    )


def _apart(labels: list[str]) -> list[str]:
    """Return the labels, those that came before with their number behind them."""
    return [
        f"{label} ({labels[:i].count(label) + 1})" if label in labels[:i] else label for i, label in enumerate(labels)
    ]
