"""Coverage while it changes: a chart whose rows come and go."""

from __future__ import annotations

import altair as alt
import polars as pl

from tpunb.pictures import LayerPicture


def live_coverage() -> LayerPicture:
    """Return the coverage as a chart without rows, for the table "phases": name, colour, phase, share and until (%).

    Its signals: ``chosen``, the phase that stands out, or null; ``top3``, the share of the three longest (%).
    """
    x = alt.X("before:Q", title="cumulative share of the time of all steps (%)").scale(domain=[0, 100], nice=False)
    base = alt.Chart(alt.NamedData("phases")).transform_calculate(
        before="datum.until - datum.share",
        text="format(datum.share, '.1f') + ' %'",
        whole="format(datum.until, '.1f') + ' %'",
        about="datum.name + ': ' + datum.text + ' of the time, ' + datum.whole + ' with the longer ones'",
    )
    base = base.encode(y=alt.Y("name:N", sort=alt.EncodingSortField("until", op="min"), title=None))
    faint = alt.ExprRef("chosen !== null && datum.phase !== chosen ? 0.3 : 1")
    third = alt.Chart(pl.DataFrame({"top3": [0]})).transform_calculate(top3="top3")
    chart = LayerPicture(
        layer=[
            base.mark_bar(opacity=faint).encode(
                x=x,
                x2="until",
                color=alt.Color("colour:N", scale=None),
                tooltip=alt.Tooltip("about:N", title=" "),
                description="about:N",
            ),
            third.mark_rule(strokeDash=[4, 3]).encode(x=alt.X("top3:Q")),
            base.mark_text(align="left", dx=6).encode(x=alt.value("width"), text="text:N"),
        ],
        description="Coverage: the phases by share of the time of all steps, each from where the longer ones end.",
        width=400,
        height=170,
        usermeta={"room": 120},  # points on the page beside the plot
    )
    picture: LayerPicture = chart.add_params(alt.param("chosen", value=None), alt.param("top3", value=0))
    return picture
