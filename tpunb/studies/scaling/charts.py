"""Chart of a scaling: time or throughput by number of chips, efficiency, and startup."""

from __future__ import annotations

from typing import Any, Literal

import altair as alt
import polars as pl

from tpunb.charts.render import VConcatPicture
from tpunb.charts.style import PHASE_COLOURS, WIDTH, listed, names_of, rows_of
from tpunb.errors import TpunbError, wrong_type
from tpunb.studies.scaling.scaling import KIND, Scaling
from tpunb.text import count, percent, plural, short

_TITLES = {"minutes": "minutes to quality", "examples_per_s": "examples per second"}


def scaling(sizes: Scaling, *, value: Literal["minutes", "examples_per_s"] | None = None) -> VConcatPicture:
    """Return time or throughput by number of chips, efficiency, and startup as a share of the time after it.

    Dashed lines are ideal: the throughput of the smallest size by the number of its chips. Sizes without a known number
    of chips are left out.

    Parameters
    ----------
    sizes
        Scaling of at most 12 benchmarks, each on one kind of system under one ruleset.
    value
        What the first panel shows; if None minutes, or examples per second where no minutes are known.

    Raises
    ------
    TpunbError
        If no size has a known number of chips and the value, or there are more benchmarks.
    """
    if not isinstance(sizes, Scaling):
        raise wrong_type("scaling", "sizes", "be a Scaling", sizes, hint="tp.studies.scaling.mlperf(folder)")
    if value not in (None, *_TITLES):
        raise ValueError(f"The value parameter of scaling must be one of {', '.join(_TITLES)}. Got {value!r} instead.")
    rows = sizes.frame.drop_nulls("chips")
    value = value or ("minutes" if rows["minutes"].count() else "examples_per_s")
    rows = rows.filter(pl.col(value) > 0)
    kinds = rows.select(KIND).unique(maintain_order=True)
    if not 0 < len(kinds) <= len(PHASE_COLOURS):
        problem = f"{len(kinds)} benchmarks" if len(kinds) else f"sizes without known chips and {_TITLES[value]}"
        hint = (
            "select some: sizes.filter(...)" if len(kinds) else "give mlperf(..., chips=...) or points(..., batch=...)"
        )
        raise TpunbError(f"the chart of a scaling cannot show {problem}", hint=hint)
    varying = [name for name in KIND if name == "benchmark" or kinds[name].n_unique() > 1]
    names = names_of((" ".join(filter(None, row)) for row in kinds.select(varying).rows()), 48)
    rows = rows.join(kinds.with_columns(of=pl.Series(names)), on=KIND, nulls_equal=True, maintain_order="left")
    chips, first = pl.col("chips"), pl.col(value).first().over("of")
    more = chips / chips.first().over("of")
    rows = rows.with_columns(
        ideal=first / more if value == "minutes" else first * more,
        about=pl.Series([_about(row) for row in rows.iter_rows(named=True)]),
        all=pl.lit(1.0),
    )
    log = alt.Scale(type="log", nice=False)
    panels = {
        value: ("ideal", _TITLES[value], log, alt.Axis(format="~g" if value == "minutes" else "~s", tickCount=6)),
        "efficiency": ("all", "efficiency", alt.Scale(zero=True), alt.Axis(format="%", tickCount=4)),
        "startup_share": (None, "startup / rest", log, alt.Axis(format=".2~p", tickCount=4)),
    }
    of = alt.Color(
        "of:N",
        scale=alt.Scale(domain=names, range=[*PHASE_COLOURS[: len(names)]]),
        legend=alt.Legend(title=None, orient="bottom") if len(names) > 1 else None,
    )
    axis = alt.Axis(values=sorted(rows["chips"].unique()), format=",d")
    drawn: list[Any] = []
    for column, (dashed, title, scale, ticks) in panels.items():
        base = rows_of(rows.filter(pl.col(column) > 0)).encode(x=alt.X("chips:Q", scale=log, axis=axis), color=of)
        line = base.encode(y=alt.Y(f"{column}:Q", title=title, scale=scale, axis=ticks))
        marks = [line.mark_line(tooltip=None), line.mark_point(filled=True, size=50, opacity=1)]
        if dashed:
            ideal = base.mark_line(strokeDash=[4, 3], strokeWidth=1, tooltip=None)
            marks.insert(0, ideal.encode(y=alt.Y(f"{dashed}:Q", scale=scale)))
        if rows[column].count():
            drawn.append(alt.layer(*marks).properties(width=WIDTH, height=120 if drawn else 260))
    title = f"Scaling of {names[0]}" if len(names) == 1 else "Scaling"
    return VConcatPicture(
        vconcat=drawn,
        title=alt.TitleParams(title, subtitle=["dashed: ideal, by the smallest size"]),
        description=f"{title}: {listed(rows['about'].to_list())}.",
    )


def _about(row: dict[str, Any]) -> str:
    name, chips, base = row["of"], plural(row["chips"], "chip"), f"{row['base_chips']:,}"
    cores = f" ({plural(row['cores'], 'core')})" if row["cores"] else ""
    texts = {
        "minutes": f"{short(row['minutes'] or 0)} min, mean of {row['scored']} of {plural(row['runs'], 'run')}",
        "examples_per_s": f"{count(round(row['examples_per_s'] or 0))} examples/s",
        "efficiency": f"{percent(row['efficiency'] or 0)} of the throughput per chip on {base}",
        "batch": f"batch {row['batch'] or 0:,}",
        "startup_share": f"startup {percent(row['startup_share'] or 0)} of the time after it",
    }
    return ", ".join([f"{name} on {chips}{cores}", *(text for name, text in texts.items() if row[name] is not None)])
