"""Chart of the runs of a folder: goodput and step time, in order of their starts."""

from __future__ import annotations

import altair as alt
import polars as pl

from tpunb import schema
from tpunb.charts.render import VConcatPicture
from tpunb.charts.style import OTHERS, PALETTE, WIDTH, hue, listed, names_of, rows_of
from tpunb.errors import TpunbError, wrong_type
from tpunb.text import duration, percent, plural

_LOG_RATIO = 50  # step times with a larger ratio are on a logarithmic axis
_LABELS = 40  # runs whose names fit beside each other
_UNKNOWN = "unknown program"


def history(runs: pl.DataFrame) -> VConcatPicture:
    """Return goodput and median step time of runs, one point each, in order of their starts.

    Lines join the runs of one program. Runs with equal names are numbered.

    Parameters
    ----------
    runs
        Runs as `tp.runs` returns them, or a part of these rows: ``tpunb.schema.RUNS``.

    Raises
    ------
    TypeError
        When `runs` is no frame.
    TpunbError
        When it has no row.
    """
    if not isinstance(runs, pl.DataFrame):
        raise wrong_type("history", "runs", "be a frame of runs", runs, hint='tp.runs("runs/")')
    rows = _rows(schema.check(runs, schema.RUNS, "runs"))
    if rows.is_empty():
        raise TpunbError("no run to draw", hint='pass tp.runs("runs/")')
    programs = rows["program"].unique(maintain_order=True).to_list()
    colours = {program: PALETTE[i] if i < len(PALETTE) else OTHERS for i, program in enumerate(programs)}
    colour = hue("program", colours, title=None, columns=2)
    colour = colour if len(programs) > 1 else colour.legend(None)
    names = rows["run"].to_list()
    first, last = (rows["date"].drop_nulls().gather([at]).to_list() if rows["date"].count() else [] for at in (0, -1))
    when = " to ".join(dict.fromkeys([*first, *last]))
    about = ", ".join(filter(None, [plural(rows.height, "run"), when]))
    x = alt.X("run:N", sort=names, title=None, axis=alt.Axis(labelAngle=-40, labelOverlap=len(names) > _LABELS))
    times = rows["step_ms"].drop_nulls()
    log = bool(times.len()) and times.max() > _LOG_RATIO * max(times.min(), 1e-9)  # type: ignore[operator, type-var]
    scales = alt.Scale(domain=[0, 100]), alt.Scale(type="log") if log else alt.Scale(zero=True)
    panels = []
    for column, title, scale in zip(
        ("goodput", "step_ms"), ("goodput (% of wall time)", "step time (ms)"), scales, strict=True
    ):
        last_panel = column == "step_ms"
        base = rows_of(rows).encode(
            x=x if last_panel else x.axis(labels=False, ticks=False),
            y=alt.Y(f"{column}:Q", title=title, scale=scale, axis=alt.Axis(tickCount=5)),
            color=colour,
        )
        marks = [base.mark_line(strokeWidth=1.5, tooltip=None), base.mark_point(filled=True, opacity=1, size=70)]
        panels.append(alt.layer(*marks).properties(width=WIDTH, height=130))
    return VConcatPicture(
        vconcat=panels,
        title=alt.TitleParams("Runs over time", subtitle=[about]),
        description=f"Goodput and median step time of {about}: {listed(rows['about'].to_list())}.",
    )


def _rows(runs: pl.DataFrame) -> pl.DataFrame:
    """Return one row per run, with its name and what is shown of it."""
    runs = runs.sort("started", nulls_last=True, maintain_order=True).with_row_index("order")
    labels = names_of(runs["name"].fill_null(""))
    distinct = runs["program"].unique(maintain_order=True).to_list()
    shown = dict(zip(distinct, names_of([name or _UNKNOWN for name in distinct], 60), strict=True))
    programs = [shown[name] for name in runs["program"]]
    rows = runs.select(
        "order",
        run=pl.Series(labels, dtype=pl.String),
        program=pl.Series(programs, dtype=pl.String),
        goodput=100 * pl.col("goodput"),
        step_ms=pl.col("step_ps") / 1e9,
        date=pl.col("started").dt.strftime("%Y-%m-%d %H:%M UTC"),
    )
    facts = zip(labels, rows["date"], programs, runs["goodput"], runs["step_ps"], strict=True)
    about = [
        ", ".join(
            [
                f"{run}: {date or 'unknown time'}",
                program,
                f"goodput {'unknown' if share is None else percent(share)}",
                f"step time {'unknown' if step is None else duration(step)}",
            ]
        )
        for run, date, program, share, step in facts
    ]
    return rows.with_columns(about=pl.Series(about, dtype=pl.String))
