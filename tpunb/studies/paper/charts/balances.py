"""A chart of runs at balances of input and device."""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt
import polars as pl

from tpunb.charts.render import LayerPicture
from tpunb.charts.style import GREY, WIDTH, cleaned, listed, rows_of
from tpunb.errors import TpunbError
from tpunb.studies.paper.charts.runs import looks
from tpunb.text import percent, plain, plural


def balances(frame: pl.DataFrame, *, title: str, paper: Mapping[str, float] | None = None) -> LayerPicture:
    """Return a share against the balance of input and device: a line for each run, with intervals and marks.

    Parameters
    ----------
    frame
        One row per run and balance: ``run``, ``balance``, ``value``, ``low`` and ``high`` from 0 to 1, and ``mark``,
        null if the balance has none.
    title
        Title of the chart.
    paper
        Published shares by name, drawn as lines across.

    Raises
    ------
    TpunbError
        When the frame has no row.
    """
    if frame.is_empty():
        raise TpunbError("no run at a balance to draw", hint="keep at least one row of the frame")
    share = pl.col("value", "low", "high") * 100
    rows = frame.sort("run", "balance").select("run", "balance", "mark", share)
    about = [
        f"{plain(row['run'])}, balance {row['balance']:.3g}: {percent(row['value'] / 100, 1)}"
        + (f", {plain(row['mark'])}" if row["mark"] else "")
        for row in rows.iter_rows(named=True)
    ]
    rows = rows.with_columns(run=pl.col("run").map_elements(plain, pl.String), about=pl.Series(about))
    names = rows["run"].unique(maintain_order=True).to_list()
    stroke, dash, fill, shape = looks(names, "run")
    x = alt.X("balance:Q", title="balance: input work by device work (log)", axis=alt.Axis(tickCount=5, format="~s"))
    x = x.scale(type="log", nice=False)
    top = 100 if max([*rows["high"], *(100 * each for each in (paper or {}).values())]) > 50 else alt.Undefined
    y = alt.Y("value:Q", title="%", scale=alt.Scale(zero=True, domainMax=top))
    base = rows_of(rows).encode(x=x, y=y, stroke=stroke)
    lines = pl.DataFrame({"value": [100 * each for each in (paper or {}).values()], "about": [*(paper or {})]})
    across = rows_of(lines).encode(y=alt.Y("value:Q"))
    marked = rows_of(rows.drop_nulls("mark")).encode(x=x, y=y, stroke=stroke, fill=fill, shape=shape)
    layers = [
        across.mark_rule(color=GREY, strokeDash=[4, 3], strokeWidth=1.5),
        across.mark_text(align="right", dx=-4, dy=-6).encode(x=alt.value("width"), text="about:N"),
        base.mark_line(strokeWidth=2).encode(strokeDash=dash),
        base.mark_rule(strokeWidth=1.5).encode(y="low:Q", y2="high"),
        base.mark_point(size=25, strokeWidth=2).encode(fill=fill, shape=shape),
        marked.mark_point(size=160, strokeWidth=2),
    ]
    return LayerPicture(
        layer=layers[0 if len(lines) else 2 :],
        title=alt.TitleParams(
            title := cleaned(plain(title)),
            subtitle=[f"{plural(len(names), 'run')}; large marks: balances of the paper"],
        ),
        description=f"{title}: {cleaned(listed(about))}.",
        width=WIDTH - 120,
        height=300,
    )
