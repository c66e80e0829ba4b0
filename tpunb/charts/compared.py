"""Charts of comparisons: two runs phase by phase, and the agreement of methods on one run."""

from __future__ import annotations

import altair as alt
import polars as pl

from tpunb.analysis.compare import Comparison
from tpunb.charts.render import LayerPicture
from tpunb.charts.style import GREY, PALETTE, WIDEST, WIDTH, counted, names_of, rows_of
from tpunb.errors import TpunbError
from tpunb.text import cut

_BARS = 20  # at most in one chart
_RUN, _NAME, _METHOD = 32, 22, 26  # letters of a name


def compared(comparison: Comparison) -> LayerPicture:
    """Return the ratio of step times of each matched phase, second run by first, with its 95 % interval.

    Raises
    ------
    TpunbError
        When no two phases were matched.
    """
    frame = comparison.frame.drop_nulls("ratio").head(_BARS)
    if frame.is_empty():
        raise TpunbError("no phase of one run was matched with one of the other", hint="see comparison.unmatched")
    a, b = names_of([comparison.a.steps.name or "a", comparison.b.steps.name or "b"], _RUN)
    names = (
        pl.col(name).replace_strict({phase: cut(text, _NAME) for phase, text in run.names.items()})
        for name, run in (("phase_a", comparison.a), ("phase_b", comparison.b))
    )
    ratio, low, high = (
        pl.col(name).map_elements("{:.2f}".format, return_dtype=pl.String)
        for name in ("ratio", "ratio_low", "ratio_high")
    )
    text = pl.format("{}x{}", ratio, pl.format(" [{}, {}]", low, high).fill_null(""))
    rows = frame.select(
        *("ratio", "ratio_low", "ratio_high"),
        name=pl.format("{} → {}", *names).map_batches(lambda pairs: pl.Series(names_of(pairs, 2 * _NAME + 3))),
        text=text,
        about=pl.format(
            "{} in {}, {} in {}: ratio {}", counted("steps_a", "step"), pl.lit(a), "steps_b", pl.lit(b), text
        ),
    )
    ends = [*rows["ratio"], *rows["ratio_low"].drop_nulls(), *rows["ratio_high"].drop_nulls(), 1.0]
    scale = alt.Scale(type="log", domain=[min(ends) / 1.1, max(ends) * 1.1], nice=False)
    x = alt.X("ratio:Q", title=f"step time, {b} by {a} (1: unchanged)", scale=scale)
    base = rows_of(rows).encode(y=alt.Y("name:N", sort=None, title=None, axis=alt.Axis(labelLimit=WIDEST)))
    unchanged = rows_of(pl.DataFrame({"ratio": [1.0], "about": ["unchanged"]}))
    return LayerPicture(
        layer=[
            unchanged.mark_rule(strokeDash=[4, 3], color=GREY).encode(x=alt.X("ratio:Q", scale=scale)),
            base.mark_rule(strokeWidth=3, color=GREY).encode(x=alt.X("ratio_low:Q", scale=scale), x2="ratio_high"),
            base.mark_point(filled=True, opacity=1, size=80, color=GREY).encode(x=x),
            # beside the plot: the dashed line would cross them next to their points
            base.mark_text(align="left", dx=6).encode(x=alt.value("width"), text="text:N"),
        ],
        title=f"Step times by phase: {a} → {b}",
        description=f"Ratio of step times by phase, {b} by {a}: {comparison.sentence}.",
        width=WIDTH - 200,
        height=alt.Step(34),
    )


def agreed(label_agreement: pl.DataFrame) -> LayerPicture:
    """Return the adjusted Rand index of every two methods, 1 identical and 0 chance."""
    if label_agreement.is_empty():
        raise TpunbError("no two methods to compare", hint="tpunb.cluster.agreement(steps, methods) takes two or more")
    names = list(dict.fromkeys([*label_agreement["a"], *label_agreement["b"]]))
    label = dict(zip(names, names_of(names, _METHOD), strict=True))
    pairs = label_agreement.select(pl.col("a", "b").replace_strict(label, return_dtype=pl.String), "ari")
    diagonal = pl.DataFrame({"a": label.values(), "b": label.values()}).with_columns(ari=pl.lit(1.0))
    rows = pl.concat([pairs, pairs.select(a="b", b="a", ari="ari"), diagonal]).with_columns(
        shade=pl.col("ari").clip(0, 1),
        about=pl.format("{} and {}: adjusted Rand index {}", "a", "b", pl.col("ari").round(3)),
    )
    rows = rows.unique(["a", "b"], keep="first", maintain_order=True)
    worst = pairs.sort("ari").row(0, named=True)
    least = f"least: {worst['a']} and {worst['b']}, {round(worst['ari'], 2) + 0.0:.2f}"  # never -0.00
    order = [*label.values()]
    x = alt.X("a:N", sort=order, title=None, axis=alt.Axis(labelAngle=-30, labelLimit=WIDEST))
    y = alt.Y("b:N", sort=order, title=None, axis=alt.Axis(labelLimit=WIDEST))
    base = rows_of(rows).encode(x=x, y=y)
    colour = alt.Color("shade:Q", title="agreement", scale=alt.Scale(domain=[0, 1], range=["#e8eef4", PALETTE[0]]))
    same, dark = alt.datum.a == alt.datum.b, alt.datum.shade > 0.6
    ink = alt.when(same).then(alt.value(GREY)).when(dark).then(alt.value("white")).otherwise(alt.value("black"))
    return LayerPicture(
        layer=[
            base.mark_rect().encode(
                color=alt.when(same).then(alt.value(GREY)).otherwise(colour),
                opacity=alt.when(same).then(alt.value(0.15)).otherwise(alt.value(1)),
            ),
            base.mark_text().encode(text=alt.Text("ari:Q", format=".2f"), color=ink),
        ],
        title=alt.TitleParams("Agreement of the methods (adjusted Rand index)", subtitle=[least]),
        description=f"Agreement of every two methods on the phases, 1 is identical and 0 chance; {least}.",
        width=alt.Step(96),
        height=alt.Step(44),
    )
