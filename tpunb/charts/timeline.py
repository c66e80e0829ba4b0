"""The timeline: the phases, the accounts, the profiler's windows and the step times of a run on one time axis.

One drawing for live panels, summary, saved HTML, SVG and PNG: :func:`live_timeline` is the chart without rows,
:func:`timeline` the still picture.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import altair as alt
import numpy as np
import polars as pl

from tpunb.charts.render import LayerPicture
from tpunb.charts.style import ABOUT, GREY, HOSTS, INK, TIME, cleaned, legend_of, titled, with_signals
from tpunb.charts.timeline_rows import (
    ACCOUNTS_AT,
    BELOW,
    HEIGHT,
    LANE,
    PACE,
    SHADES,
    THIN,
    TOP,
    TRACED,
    Marks,
    Timeline,
    layout,
)
from tpunb.errors import TpunbError
from tpunb.frames import Phases
from tpunb.schema import ACCOUNTS
from tpunb.text import phases_over, plural

_STILL = 860  # points across in a still picture: the edges of slices meet pixels
_KINDS = [kind for kind, _ in TRACED.values()]
_SHADE = alt.Color("shade:O", scale=alt.Scale(domain=[*range(len(SHADES))], range=[*SHADES]), legend=None)
_TRACED = alt.Opacity(
    "traced:O",
    scale=alt.Scale(domain=[*range(len(TRACED))], range=[opacity for _, opacity in TRACED.values()]),
    legend=None,
)


def live_timeline(hosts: Sequence[str], *, windows: bool = True) -> LayerPicture:
    """Return the timeline without rows, for the tables "timeline", "numbers", "marks" and those of `Timeline.axis`.

    Its signals: ``low`` and ``high``, the time range in seconds; ``chosen``, the selected phase or null; ``hue``, the
    colour of "marks", the time of the selected account, or null.
    """
    pin = alt.MarkDef("point", shape="triangle-up", filled=True, size=55, yOffset=5, opacity=1, color=INK)
    pins = _named("checkpoints").encode(x=_x("at"), y=_y("y", hosts))
    steps, *others = _layers(hosts, _named, windows=windows)
    steps = steps.add_params(alt.selection_interval(name="brush", encodings=["x"]))
    box = {"x": _x("start"), "x2": alt.X2("end"), "y": _y("y", hosts), "y2": alt.Y2("y2")}
    marks = _named("marks").mark_rect(color=alt.ExprRef("hue || 'transparent'"), clip=True).encode(**box)
    pinned = pins.mark_rule(color=INK, strokeDash=[3, 3]).encode(y2="y2"), pins.properties(mark=pin).encode(**ABOUT)
    return _chart(
        [steps, *others, marks, *pinned],
        hosts,
        (0, 1),
        description="The run on its time axis: phases, accounts, the profiler's windows, step times.",
        width=900,
        usermeta={"room": 84 if len(hosts) == 1 else 140},  # points on the page beside the plot
    )


def timeline(phases: Phases, segments: pl.DataFrame | None = None) -> LayerPicture:
    """Return the timeline as a still picture: every step coloured by phase, above the profiler's windows.

    `segments` of ``tp.goodput(phases)`` are its accounts.

    Neighbouring steps of one look are one mark. A run of many steps is drawn in slices of time, each divided by the
    time of its phases.

    Raises
    ------
    TpunbError
        When there are no steps.
    """
    if phases.steps.frame.is_empty():
        raise TpunbError("no steps to draw", hint="pass a rule that finds them: tp.steps(profile, by=...)")
    drawn, failures = Timeline(phases.steps), phases.steps.windows["error"].is_not_null()
    marks, width = drawn.marks(phases), drawn.edges[1] - drawn.edges[0]
    rows = _merged(marks, width / _STILL / 2)
    columns = {"numbers": drawn.numbers(marks), **drawn.axis({}, segments)}
    tables = {"timeline": rows} | {name: _typed(table) for name, table in columns.items()}
    every = phases.steps.frame["host"].n_unique()
    facts = phases_over(len(phases), len(phases.steps))
    facts += f"; {failures.sum()} of {plural(len(failures), 'window')} failed" if failures.any() else ""
    facts += f"; {HOSTS} of {every} hosts shown" if every > HOSTS else ""
    slice_s = width / layout(len(drawn.hosts))["slices"]
    sliced = [] if marks.step is not None else [f"slices of {slice_s:.3g} s, divided by the time of each phase"]
    groups = legend_of(phases).unique("group", maintain_order=True)
    names = {SHADES.index(colour): name for colour, name in groups.select("colour", "group").iter_rows()}
    look: dict[str, Any] = {"orient": "bottom", "symbolType": "square", "symbolStrokeWidth": 0}
    shade = _SHADE.title("phase · share of step time without waits").legend(
        **look,
        titleLimit=300,
        columns=4,
        symbolOpacity=1,
        values=sorted(names),
        labelExpr=f"{json.dumps(names)}[datum.value]",
    )
    kinds, seen = rows["traced"].unique().sort().to_list(), _TRACED
    if len(kinds) > 1:
        seen = seen.title("steps").legend(
            **look, symbolFillColor=GREY, values=kinds, labelExpr=f"{_KINDS}[datum.value]"
        )
    return _chart(
        _layers(
            drawn.hosts, lambda table: alt.Chart(tables[table]), shade, seen, windows=len(failures) > 0, clip=False
        ),
        drawn.hosts,
        drawn.edges,
        title=alt.TitleParams(titled(phases, "Timeline"), subtitle=[facts, *sliced]),
        description=f"Timeline. {facts}. {', '.join(names.values())}.",
        width=_STILL,
    )


def _typed(table: Any) -> pl.DataFrame:
    """Return a table, which may have no rows, as a frame whose columns have types."""
    return pl.DataFrame(table, strict=False).with_columns(pl.col(pl.Null).cast(pl.Float64))


def _merged(marks: Marks, gap: float) -> pl.DataFrame:
    """Return the table "timeline" with neighbours of one look merged; gaps up to `gap` seconds cannot be seen."""
    step = np.full(len(marks.rank), -1) if marks.step is None else marks.step
    y, y2 = (marks.lane * LANE + TOP + HEIGHT * edge / 100 for edge in (marks.low, marks.high))
    columns = {"start": marks.start, "end": marks.end, "y": y, "y2": y2, "traced": marks.seen}
    columns |= {"step": step, "last": step, "part": marks.high - marks.low}
    rows = pl.DataFrame(marks.ranks._asdict(), strict=False)[marks.rank]
    look = ["y", "y2", "phase", "traced"]
    rows = rows.with_columns(**{name: pl.Series(values) for name, values in columns.items()}).sort(*look, "start")
    new = pl.any_horizontal(
        pl.col(look).ne_missing(pl.col(look).shift()), pl.col("start") > pl.col("end").shift() + gap
    )
    last = pl.col("end", "last")
    return (
        rows.group_by(new.fill_null(True).cum_sum().alias("run"), maintain_order=True)
        .agg(pl.exclude("end", "last").first(), last.last())
        .select(pl.exclude("run", "step", "last"), pl.col("step", "last").replace(-1, None))
    )


def _named(table: str) -> alt.Chart:
    return alt.Chart(alt.NamedData(table))


def _x(column: str) -> alt.X:
    scale = alt.Scale(domain=[alt.ExprRef("low"), alt.ExprRef("high")], nice=False)
    return alt.X(f"{column}:Q", title=TIME, scale=scale, axis=alt.Axis(grid=False, tickCount=10))


def _y(column: str, hosts: Sequence[str]) -> alt.Y:
    return alt.Y(f"{column}:Q", axis=None, scale=alt.Scale(domain=[LANE * len(hosts) - 4, 0], nice=False))


def _layers(
    hosts: Sequence[str],
    table: Callable[[str], alt.Chart],
    shade: alt.Color = _SHADE,
    seen: alt.Opacity = _TRACED,
    *,
    windows: bool,
    clip: bool = True,
) -> list[alt.Chart]:
    """Return the steps, then the names of their phases, accounts, step times, marks, windows and names of lanes."""
    box: dict[str, Any] = {"x": _x("start"), "x2": alt.X2("end"), "y": _y("y", hosts), "y2": alt.Y2("y2")}
    steps = table("timeline").transform_calculate(
        steps="datum.last > datum.step ? ', steps ' + datum.step + ' to ' + datum.last : ', step ' + datum.step",
        seconds="format(datum.start, '.6~r') + ' s to ' + format(datum.end, '.6~r') + ' s'",
        lasts="isValid(datum.step) ? ', ' + format(datum.end - datum.start, '.3~s') + 's' : ''",
        hint="datum.more ? ', ' + datum.more : ''",
        about="datum.name + (isValid(datum.step) ? datum.steps : ', ' + datum.part + ' % of this slice')"
        f" + ', ' + {_KINDS}[datum.traced] + ': ' + datum.seconds + datum.lasts + datum.hint",
    )
    dim = "hue !== null || chosen !== null && datum.phase !== chosen"
    faint = alt.ExprRef(f"{dim} ? 0.12 : datum.phase === -1 && chosen !== -1 ? 0.3 : 1")  # accounts explain outliers
    top = [LANE * lane for lane in range(len(hosts))]
    lanes = pl.DataFrame({"top": top}).select(y=pl.col("top") + BELOW, y2=pl.col("top") + BELOW + THIN)
    band = alt.Chart(lanes).encode(x=alt.value(0), y=_y("y", hosts))
    names, colours = [*ACCOUNTS], [account.colour for account in ACCOUNTS.values()]
    hue = alt.Color("colour:N", scale=None)  # not that of the phases
    other = alt.ExprRef("hue !== null && datum.colour !== hue ? 0.12 : 1")
    spent = table("accounts").transform_calculate(
        account=f"{names}[datum.code]",
        colour=f"{colours}[datum.code]",
        about="datum.account",
        y=f"datum.lane * {LANE} + {ACCOUNTS_AT[0]}",
        y2=f"datum.y + {ACCOUNTS_AT[1]}",
    )
    pace = table("pace").transform_calculate(y2=f"datum.lane * {LANE} + {sum(PACE)}", y="datum.y2 - datum.height")
    layers = [
        steps.mark_rect(fillOpacity=faint, clip=clip).encode(**box, **ABOUT, color=shade, opacity=seen),
        table("numbers").mark_text(baseline="middle").encode(x=_x("at"), y=_y("y", hosts), text="name:N"),
        spent.mark_rect(fillOpacity=other, clip=clip).encode(**box, **ABOUT, color=hue),
        pace.mark_rect(color=GREY, clip=clip, tooltip="step time").encode(**box),
        table("events")
        .mark_text(baseline="middle", fontSize=9, clip=clip)
        .encode(x=_x("at"), y=_y("y", hosts), text="sign:N", **ABOUT),
    ]
    if windows:
        layers += [
            band.mark_rect(color=GREY, opacity=0.18).encode(x2=alt.value("width"), y2="y2"),
            table("windows").mark_rect(color=GREY, clip=clip, tooltip="profiler window").encode(**box),
        ]
    middles = {"phases": TOP + HEIGHT / 2, "accounts": ACCOUNTS_AT[0] + ACCOUNTS_AT[1] / 2}
    middles |= {"windows": BELOW + THIN / 2} if windows else {}
    middles |= {"step time": PACE[0] + PACE[1] / 2}
    titles = [  # that of the phases is the host's if there are several
        (cleaned(host) if name == "phases" and len(hosts) > 1 else name, LANE * lane + middle)
        for lane, host in enumerate(hosts)
        for name, middle in middles.items()
    ]
    named = alt.Chart(pl.DataFrame(titles, schema=["name", "y"], orient="row")).encode(y=_y("y", hosts), text="name:N")
    side = named.mark_text(align="right", baseline="middle", dx=-8, limit=110).encode(x=alt.value(0))
    return [*layers, side]


def _chart(layers: list[alt.Chart], hosts: Sequence[str], edges: tuple[float, float], **more: Any) -> LayerPicture:
    """Return layers as one picture with the signals of :func:`live_timeline`."""
    chart = LayerPicture(layer=layers, height=LANE * len(hosts) - 4, **more)
    return with_signals(chart, low=edges[0], high=edges[1], chosen=None, hue=None)
