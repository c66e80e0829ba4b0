"""A chart of one figure per run, which shows whether it was measured, modelled or published."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import altair as alt
import polars as pl
import polars.selectors as cs

from tpunb.charts.render import LayerPicture
from tpunb.charts.style import (
    GREY,
    LETTER,
    LINE,
    PALETTE,
    WIDTH,
    cleaned,
    lanes,
    listed,
    names_of,
    rows_of,
)
from tpunb.errors import TpunbError, wrong_type
from tpunb.text import cut, percent, plain, plural


def faded(colour: str, strength: float) -> str:
    """Return a colour with an opacity from 0 to 1, which legends show.

    >>> faded("#0072B2", 0.25)
    'rgba(0, 114, 178, 0.25)'
    """
    red, green, blue = bytes.fromhex(colour.removeprefix("#"))
    return f"rgba({red}, {green}, {blue}, {strength})"


def framed(field: str, looks: Mapping[str, tuple[str, str, list[int]]], **legend: Any) -> dict[str, Any]:
    """Return the encodings of bars by the values of a field: the fill, frame and dash of each, in one legend."""
    kinds = {"fill": alt.Fill, "stroke": alt.Stroke, "strokeDash": alt.StrokeDash}
    shown = alt.Legend(orient="bottom", title=None, symbolType="square", symbolStrokeWidth=1.5, **legend)
    scales = (alt.Scale(domain=[*looks], range=values) for values in zip(*looks.values(), strict=True))
    return {
        name: kind(f"{field}:N", scale=scale, legend=shown)
        for (name, kind), scale in zip(kinds.items(), scales, strict=True)
    }


_HOW = {  # fill, frame and dash; without colours, two of them still differ
    "measured": (PALETTE[0], PALETTE[0], [1, 0]),
    "modelled": (faded(PALETTE[1], 0.3), PALETTE[1], [4, 2]),
    "published": ("transparent", PALETTE[2], [1, 0]),
}
_NEEDED = {"run": pl.String, "value": pl.Float64, "how": pl.String}
_COLUMNS = _NEEDED | {"form": pl.String, "low": pl.Float64, "high": pl.Float64}
_UNKNOWN = "unknown"
_BAR, _GAP, _BETWEEN = 15, 4, 8  # points: a bar, the gap to the next, and more to that of the next run
_WIDE = WIDTH - 200
_EDGE = 6.0  # points from a line to a text
_FORM = 40  # letters of a form
_ROUNDING = 1e-9  # by which a sum of shares may exceed 1
_BEYOND = 2  # intervals are drawn up to this multiple of the longest bar


def measures(frame: pl.DataFrame, *, title: str, share: bool = True) -> LayerPicture:
    """Return a bar for each figure of each run, by how it was obtained (paper Figures 10 to 16).

    The value is shown beside each bar. Published values of no particular run are lines across all bars.

    Parameters
    ----------
    frame
        One row per figure, in order:

        - ``run``, the name of its run; null for a line across
        - ``value``: 0 to 1 of a share, 0 or more of a ratio; null if unknown
        - ``how``: "measured", "modelled" or "published"
        - ``form``, optional: which figure of the run it is, such as "naive", or the name of a line across
        - ``low`` and ``high``, optional: an interval around it
    title
        Title of the chart.
    share
        Whether values are shares of a whole, in per cent; if not, they are ratios ("1.12x"), with a line at 1.

    Raises
    ------
    TypeError
        When `frame` is no frame or `title` no text.
    ValueError
        When a column is missing or of another type, or a value is out of range.
    TpunbError
        When no row is of a run.
    """
    if not isinstance(title, str):
        raise wrong_type("measures", "title", "be a str", title)
    rows, title = _checked(frame, share), cleaned(plain(title))
    if rows["run"].null_count() == rows.height:
        raise TpunbError("no run to draw", hint="name a run in at least one row of the frame")
    bars, lines = placed(rows, share=share), _lines(rows, share)
    most, same = 100.0 if share else _most(bars, lines), [] if share else [1.0]
    one = rows_of(pl.DataFrame({"value": same, "about": ["1x: no change"] * len(same)}))
    valued = bars.drop_nulls("value")
    counts = [(valued.filter(how=how).height, how) for how in _HOW] + [(bars.height - valued.height, _UNKNOWN)]
    counted = ", ".join(f"{n} {how}" for n, how in counts if n)
    return LayerPicture(
        layer=[
            _bars(valued, _axis(most, share)),
            *(one.mark_rule(color=GREY).encode(x="value:Q") for _ in same),
            *_rules(lines, most),
            *_intervals(bars.drop_nulls(["value", "low", "high"]), most),
            *_texts(bars, _free([*same, *lines["value"]], most)),
        ],
        title=alt.TitleParams(title, subtitle=[f"{plural(bars['run'].n_unique(), 'run')}: {counted}"]),
        description=f"{title}: {listed([*lines['about'], *bars['about']])}.",
        width=_WIDE,
        height=bars["bottom"][-1] + _BETWEEN / 2,
    )


def placed(rows: pl.DataFrame, *, share: bool) -> pl.DataFrame:
    """Return the rows of runs, grouped by run, with their positions and texts.

    ``value``, ``low`` and ``high`` in the units of the axis; ``top`` and ``bottom`` of the bar in points; ``run`` as it
    is shown, ``text`` beside the bar, ``about`` the tooltip.
    """
    rows = rows.drop_nulls("run")
    runs = rows["run"].unique(maintain_order=True).to_list()
    nth = pl.col("run").replace_strict({run: i for i, run in enumerate(runs)}, return_dtype=pl.Int64)
    rows = rows.with_columns(nth=nth).sort("nth", maintain_order=True)
    top = pl.int_range(pl.len()) * (_BAR + _GAP) + pl.col("nth") * _BETWEEN + _BETWEEN / 2
    name = pl.col("run").replace_strict(dict(zip(runs, names_of(runs), strict=True)), return_dtype=pl.String)
    rows = rows.with_columns(run=name, top=top, bottom=top + _BAR)
    texts = [_text(row, share) for row in rows.iter_rows(named=True)]
    columns = pl.DataFrame(texts, schema={"text": pl.String, "about": pl.String}, orient="row")
    return _scaled(pl.concat([rows, columns], how="horizontal"), share)


def _text(row: dict[str, Any], share: bool) -> tuple[str, str]:
    """Return the text beside a bar, and its tooltip."""
    form = cut(plain(row["form"] or ""), _FORM)
    name = f"{row['run']}, {form}" if form else row["run"]
    if row["value"] is None:
        return form, f"{name}: {_UNKNOWN}"
    text = _figure(row["value"], share)
    if row["low"] is not None and row["high"] is not None:
        low, high = (_figure(row[end], share).rstrip(" %x") for end in ("low", "high"))
        text += f" [{low}, {high}]"
    return f"{text} · {form}" if form else text, f"{name}: {text}, {row['how']}"


def _figure(value: float, share: bool) -> str:
    return percent(value, 1) if share else f"{value:.2f}x"


def _lines(rows: pl.DataFrame, share: bool) -> pl.DataFrame:
    """Return the lines across all bars: ``value``, ``how``, and ``about``, the text above each."""
    rows = rows.filter(pl.col("run").is_null()).drop_nulls("value")
    about = []
    for form, value in rows.select("form", "value").iter_rows():
        name, text = cut(plain(form or "published"), _FORM), _figure(value, share)
        about.append(name if re.search(r"\d ?[%x×]$", name) else f"{name}: {text}")  # the figure once
    return _scaled(rows.with_columns(about=pl.Series(about, dtype=pl.String)), share)


def _scaled(rows: pl.DataFrame, share: bool) -> pl.DataFrame:
    """Return rows in the units of the axis: shares in per cent."""
    return rows.with_columns(pl.col("value", "low", "high") * (100 if share else 1))


def _most(bars: pl.DataFrame, lines: pl.DataFrame) -> float:
    """Return the end of the axis of ratios: intervals of few pairs may be a thousand times as long as the bars."""
    longest = float(max([1.0, *bars["value"].drop_nulls(), *lines["value"]]))
    return 1.05 * min(_BEYOND * longest, float(max([longest, *bars["high"].drop_nulls()])))


def _axis(most: float, share: bool) -> alt.X:
    axis = alt.Axis(tickCount=6, format="~r", labelExpr=f"datum.label + '{' %' if share else 'x'}'")
    return alt.X("value:Q", title=None, axis=axis, scale=alt.Scale(domain=[0, most], nice=False))


def _y(column: str) -> alt.Y:
    return alt.Y(f"{column}:Q", axis=None, scale=None)  # points on the page


def _bars(bars: pl.DataFrame, x: alt.X) -> alt.Chart:
    """Return the bars of known figures, by how they were obtained."""
    bar = rows_of(bars).mark_bar(strokeWidth=1.5, orient="horizontal")
    chart: alt.Chart = bar.encode(x=x, x2=alt.datum(0), y=_y("top"), y2="bottom")
    looks = {how: look for how, look in _HOW.items() if how in bars["how"]}
    return chart.encode(**framed("how", looks)) if looks else chart


def _intervals(bars: pl.DataFrame, most: float) -> list[alt.Chart]:
    """Return a line for each interval, and a short one across each end."""
    middle = (pl.col("top") + pl.col("bottom")) / 2
    rows = bars.with_columns(pl.col("low", "high").clip(0, most), middle=middle, above=middle - 4, below=middle + 4)
    base = rows_of(rows)
    ends = (base.mark_rule().encode(x=f"{end}:Q", y=_y("above"), y2="below") for end in ("low", "high"))
    return [base.mark_rule().encode(x="low:Q", x2="high", y=_y("middle")), *ends]


def _free(lines: list[float], most: float) -> float:
    """Return the position of "unknown" in points, where no line crosses it."""
    at, wide = _EDGE, LETTER * len(_UNKNOWN)
    for line in sorted(lines):
        x = _WIDE * line / most
        at = x + _EDGE if x < at + wide else at
    return at


def _texts(bars: pl.DataFrame, free: float) -> list[alt.Chart]:
    """Return the names of the runs, the text beside each bar, and "unknown" in place of one, at `free`."""
    bars = bars.with_columns(middle=(pl.col("top") + pl.col("bottom")) / 2)
    runs = bars.group_by("run", maintain_order=True).agg(pl.col("middle").mean(), about=pl.col("run").first())
    unknown = bars.filter(pl.col("value").is_null()).with_columns(unknown=pl.lit(_UNKNOWN))
    # beside the plot: lines would cross texts at the end of their bars
    beside = rows_of(bars).mark_text(align="left", dx=8).encode(x=alt.value("width"), text="text:N")
    within = rows_of(unknown).mark_text(align="left", dx=free, fontStyle="italic", opacity=0.75)
    names = rows_of(runs).mark_text(align="right", dx=-8).encode(x=alt.value(0), text="run:N")
    return [each.encode(y=_y("middle")) for each in (beside, within.encode(x=alt.value(0), text="unknown:N"), names)]


def _rules(lines: pl.DataFrame, most: float) -> list[alt.Chart]:
    """Return the lines across all bars, with their names above, where no two names overlap."""
    if lines.is_empty():
        return []
    lines = lines.sort("value")
    wide = LETTER * lines["about"].str.len_chars() + LETTER
    at = lines["value"] * _WIDE / most
    # texts of two near lines are on either side
    right = (pl.int_range(pl.len()) >= pl.len() / 2) & (at + wide <= _WIDE + 3 * LINE) | (at + 3 * LINE < wide)
    rows = lines.with_columns(right=right)
    spans = pl.select(left=pl.when(rows["right"]).then(at).otherwise(at - wide)).with_columns(end=pl.col("left") + wide)
    rows = rows.with_columns(line=pl.Series(lanes(spans.rows()), dtype=pl.Int64))
    rules = rows_of(rows).mark_rule(strokeDash=[4, 3], strokeWidth=1.5).encode(x="value:Q")
    return [rules, *(_above(names) for names in rows.partition_by("line", "right"))]


def _above(names: pl.DataFrame) -> alt.Chart:
    """Return names on one line above the plot, all on one side of their lines."""
    right, dy = names["right"][0], -4 - LINE * names["line"][0]
    base = rows_of(names).encode(x="value:Q", y=alt.value(0), text="about:N")
    chart: alt.Chart = base.mark_text(
        align="left" if right else "right", dx=-3 if right else 3, dy=dy, baseline="bottom"
    )
    return chart


def _checked(frame: object, share: bool) -> pl.DataFrame:
    """Return the columns of `frame` that are drawn, if their values are valid."""
    rows = _typed(frame)
    if others := sorted({*rows["how"].fill_null("null")} - {*_HOW}):
        raise _invalid("how", f"be {', '.join(_HOW)}", cut(plain(others[0])))
    if rows.filter(pl.col("run").is_null(), pl.col("how") != "published").height:
        raise _invalid("run", "be a name, where a figure was not published", None)
    for column in ("value", "low", "high"):
        numbers = rows[column].drop_nulls()
        valid = numbers.is_finite() & (numbers >= 0) & (numbers <= (1 + _ROUNDING if share else float("inf")))
        if not valid.all():
            raise _invalid(column, "be in [0, 1]" if share else "be 0 or more", numbers.filter(~valid)[0])
    if (reversed_ := rows.filter(pl.col("low") > pl.col("high"))).height:
        raise _invalid("low", "be no more than high", reversed_["low"][0])
    return rows


def _typed(frame: object) -> pl.DataFrame:
    """Return the columns that are drawn, each of its type; optional ones that are missing are null."""
    if not isinstance(frame, pl.DataFrame):
        raise wrong_type("measures", "frame", "be a polars DataFrame", frame)
    if missing := [name for name in _NEEDED if name not in frame.columns]:
        names = cut(plain(", ".join(frame.columns))) or "none"
        raise ValueError(f"The frame parameter of measures must have the column {missing[0]}. Got {names} instead.")
    for name, dtype in _COLUMNS.items():
        given = frame.schema.get(name, pl.Null())
        numeric = dtype == pl.Float64 and given.is_numeric()
        text = dtype == pl.String and given in (pl.String, pl.Categorical, pl.Enum)
        if not (numeric or text or given == pl.Null):
            raise _invalid(name, f"be {dtype}", given, kind=TypeError)
    columns = (
        (pl.col(name) if name in frame.columns else pl.lit(None)).cast(dtype).alias(name)
        for name, dtype in _COLUMNS.items()
    )
    return frame.select(columns).with_columns(cs.float().fill_nan(None))


def _invalid(column: str, must: str, value: object, kind: type[Exception] = ValueError) -> Exception:
    return kind(f"The {column} column of measures must {must}. Got {value!r} instead.")
