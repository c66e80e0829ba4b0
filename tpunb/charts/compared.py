"""Chart of a comparison: two runs phase by phase."""

from __future__ import annotations

import altair as alt
import polars as pl

from tpunb.analysis.compare import Comparison
from tpunb.charts.render import LayerPicture
from tpunb.charts.style import GREY, WIDEST, WIDTH, counted, names_of, rows_of
from tpunb.errors import TpunbError
from tpunb.text import cut

_BARS = 20  # at most in one chart
_RUN, _NAME = 32, 22  # letters of a name


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
